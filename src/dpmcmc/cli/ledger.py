"""`dpmcmc ledger`: the budget of a data set, which all runs on these people share."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmcmc.cli.shared import JsonOption, print_json

if TYPE_CHECKING:
    from dpmcmc.privacy import LedgerStatus

EXAMPLES = (
    "**Examples**\n\n"
    "Decide the total, once:  `dpmcmc ledger create people.ledger --epsilon 4 --delta 1e-6`\n\n"
    "Sample from it:  `dpmcmc sample people.parquet … --epsilon 1 --delta 1e-6 --ledger people.ledger --out run`\n\n"
    "What is left:  `dpmcmc ledger show people.ledger`\n\n"
    "Whether anybody has edited it:  `dpmcmc ledger verify people.ledger --statement run/privacy.json`"
)
_DIMENSIONS = (5, 10, 20)

commands = typer.Typer(name="ledger", no_args_is_help=True, rich_markup_mode="markdown", epilog=EXAMPLES)

PlaceArgument = Annotated[
    str, typer.Argument(metavar="FILE|URL", help="An SQLite file, or a URL of PostgreSQL.", show_default=False)
]


@commands.callback()
def ledger() -> None:
    """Keep a budget (ε, δ) for a data set over months, runs and people at work on it.

    Every charge is written down, durably, before the data are looked at, and what would exceed the total is refused.
    Keep the file as you keep the data: it holds the key by which data sets are recognised.
    """


@commands.command(epilog=EXAMPLES)
def create(
    place: PlaceArgument,
    epsilon: Annotated[
        float, typer.Option(help="ε of all that is ever released about these people.", show_default=False)
    ],
    delta: Annotated[float, typer.Option(help="δ of it: well below 1/n.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Option(
            help="What statements, which are public, call the data set. Default: the file's name.", show_default=False
        ),
    ] = None,
) -> None:
    """Make a ledger. Its total never changes."""
    from dpmcmc.privacy import Ledger

    made = Ledger.create(place, epsilon=epsilon, delta=delta, name=name)
    name = _called(made.status())
    typer.echo(f"{name}: ε = {made.epsilon:g}, δ = {made.delta:g} for all that is released about these people.")


@commands.command(epilog=EXAMPLES)
def show(place: PlaceArgument, as_json: JsonOption = False) -> None:
    """Print what was spent, by whom, what is left, and what that would buy."""
    from dpmcmc.privacy import Ledger

    status = Ledger(place).status()
    buys = what_it_buys(status)
    if as_json:
        print_json(status.to_dict() | {"would_buy": buys})
        return
    _show(Console(), status, buys)


@commands.command(epilog=EXAMPLES)
def verify(
    place: PlaceArgument,
    statement: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A privacy.json of a run: the ledger must still hold the entry that it ended with.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compute everything again from the first entry on: hashes, rules and sums. Exit code 0 if all is well, else 2."""
    from dpmcmc.privacy import Ledger

    head = None if statement is None else _head_of(statement)
    status = Ledger(place).verify(head)
    if as_json:
        print_json(status.to_dict() | {"verified": True})
        return
    spent, number = _of_total(status), len(status.runs)
    runs = f"{number} run" if number == 1 else f"{number} runs"
    entries = "1 entry" if status.num_entries == 1 else f"{status.num_entries} entries"
    typer.echo(
        f"{_called(status)}: {entries}, each with the hash of the one before; {runs}; "
        f"{spent}. Hashes, rules and sums are in order"
        + ("." if head is None else ", and the last entry that the statement knows is there.")
    )


@commands.command(epilog=EXAMPLES)
def reserve(
    place: PlaceArgument,
    epsilon: Annotated[float, typer.Option(help="ε to set apart.", show_default=False)],
    delta: Annotated[float, typer.Option(help="δ to set apart.")] = 0.0,
    note: Annotated[str, typer.Option(help="What for.", show_default=False)] = "",
    used: Annotated[
        bool, typer.Option("--used", help="It counts as used at once: for a release by other means than dpmcmc.")
    ] = False,
) -> None:
    """Set a part of the total apart, for minibatch runs (DP-SGLD, DP-SGNHT) or releases by other means.

    It is added by simple composition. Only before the first Gaussian run is charged: how the total is parted must not
    follow what was released.
    """
    from dpmcmc.privacy import Ledger

    opened = Ledger(place)
    opened.reserve(epsilon, delta, note=note, used=used)
    status = opened.status()
    typer.echo(
        f"Set apart: ε = {epsilon:g}, δ = {delta:g}{', used' if used else ''}. In all ε = {status.apart_epsilon:g}, "
        f"δ = {status.apart_delta:g} of ε = {status.epsilon:g}, δ = {status.delta:g}."
    )


@commands.command(epilog=EXAMPLES)
def close(
    place: PlaceArgument,
    run: Annotated[int, typer.Argument(metavar="RUN", help="Its number, by `dpmcmc ledger show`.", show_default=False)],
) -> None:
    """End a run that will not be resumed, so that others can have what is held for it.

    What it was charged stays charged. Be sure that it has died: a run that is still at it would be stopped.
    """
    from dpmcmc.privacy import Ledger

    opened = Ledger(place)
    opened.close_run(run)
    typer.echo(f"Run {run} has ended; the largest ε of a further run is now {opened.status().left_epsilon:g}.")


def _called(status: "LedgerStatus") -> str:
    return f"Ledger {status.name or status.place}"


def what_it_buys(status: "LedgerStatus") -> dict[str, Any]:
    """Return what is left in words of runs: ε of each of some equal ones, and how wide intervals of one become."""
    from fractions import Fraction

    from dpmcmc.privacy.ledger import affordable_epsilon

    left = Fraction(status.mu_left)
    runs = {
        str(number): affordable_epsilon(left / number, status.delta, most=status.epsilon) for number in (1, 2, 5, 10)
    }
    widening: dict[str, Any] = {}
    if status.num_records and status.left_epsilon > 0.0:
        import dpmcmc
        from dpmcmc.errors import DPMCMCError

        records = status.num_records[-1]
        for dimension in _DIMENSIONS:
            try:
                plan = dpmcmc.plan(
                    "auto", num_records=records, epsilon=status.left_epsilon, delta=status.delta, dimension=dimension
                )
                widening[str(dimension)] = list(plan.interval_widening) if plan.feasible else None
            except DPMCMCError:
                widening[str(dimension)] = None
    return {"delta": status.delta, "epsilon_of_equal_runs": runs, "interval_widening_by_dimension": widening}


def _show(console: Console, status: "LedgerStatus", buys: dict[str, Any]) -> None:
    facts = _table("", "")
    for label, text in _facts(status):
        facts.add_row(Text(label), Text(text))
    console.print(Text(_called(status), "bold"))
    console.print(facts)
    if status.runs:
        runs = _table("run", "what", "ε, δ", "charged", "begun (UTC)", "how it stands")
        for run in status.runs:
            how = run.how if not run.open else f"may go on; holds μ = {float(run.held):.3g}"
            charged = (
                f"μ = {float(run.spent):.4g}" if run.kind == "gaussian" else "set apart" if run.charges else "nothing"
            )
            what = ", ".join(filter(None, (run.sampler, run.model))) + (" (same people)" if run.same_people else "")
            cells = (
                str(run.run),
                what,
                f"{run.epsilon:g}, {run.delta:g}",
                charged,
                run.begun[:16].replace("T", " "),
                how,
            )
            runs.add_row(*map(Text, cells))
        console.print(runs)
    for run in status.runs:
        if run.open:
            give_back = f"dpmcmc ledger close {status.place} {run.run}"
            console.print(
                Text(f"Run {run.run} may go on where it was begun; if it will not, `{give_back}` frees what it holds."),
                soft_wrap=True,
            )
    console.print(Text("What is left would buy", "bold"))
    each = buys["epsilon_of_equal_runs"]
    console.print(
        Text(
            "  "
            + "; ".join(f"{n} run{'s' if n != '1' else ''} of ε = {e:g}" for n, e in each.items())
            + f" (each at δ = {status.delta:g})"
        )
    )
    for dimension, times in buys["interval_widening_by_dimension"].items():
        what = (
            "nothing of use"
            if times is None
            else f"intervals {times[0]:.2f} to {times[1]:.2f} times as wide as without noise"
        )
        console.print(
            Text(f"  {dimension} parameters, {status.num_records[-1]:,} records, all of it in one run: {what}")
        )


def _facts(status: "LedgerStatus") -> list[tuple[str, str]]:
    facts = [("Total", f"ε = {status.epsilon:g}, δ = {status.delta:g}, for all runs together")]
    facts.append(("Spent by Gaussian runs", _of_total(status)))
    if status.mu_held:
        facts.append(("Held by runs that may go on", f"μ = {status.mu_held:.4g}"))
    if status.apart_epsilon or status.apart_delta:
        facts.append(
            (
                "Set apart (simple composition)",
                f"ε = {status.apart_epsilon:g}, δ = {status.apart_delta:g}; used: ε = {status.apart_used_epsilon:g}, "
                f"δ = {status.apart_used_delta:g}",
            )
        )
    left = f"ε = {status.left_epsilon:g} at δ = {status.delta:g}" if status.left_epsilon else "nothing"
    facts.append(("Left for one more run", f"{left} (μ = {status.mu_left:.4g})"))
    if status.num_records:
        facts.append(("Records", ", ".join(f"{number:,}" for number in status.num_records)))
    facts.append(("Entries", f"{status.num_entries}, the last with the hash {status.head[:16]}…"))
    return facts


def _of_total(status: "LedgerStatus") -> str:
    """Say what was spent. No ε is read off it: that would be valid only of a stop that was fixed beforehand."""
    share = status.mu_spent / status.mu_total if status.mu_total else 0.0
    return f"μ = {status.mu_spent:.4g} of {status.mu_total:.4g} ({share:.1%})"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=any(columns), pad_edge=False)
    for name in columns:
        table.add_column(Text(name), overflow="fold")
    return table


def _head_of(statement: str) -> str:
    from pathlib import Path

    from dpmcmc.cli.shared import UsageError
    from dpmcmc.privacy import PrivacyStatement

    try:
        text = Path(statement).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"--statement is {statement!r}, which cannot be read; give a privacy.json of a run") from None
    found = PrivacyStatement.from_json(text).ledger
    if found is None:
        raise UsageError(f"--statement is {statement!r}, of a run without a ledger; give one of a run with this ledger")
    return str(found["head"])
