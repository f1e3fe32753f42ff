"""`dpmcmc audit`: attack the package's own answers and runs, and compare what is found with what is claimed."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from dpmcmc.cli.shared import UsageError

if TYPE_CHECKING:
    from dpmcmc.audit import Finding, Report

EXAMPLES = (
    "**Examples**\n\n"
    "All of it, in a few minutes:  `dpmcmc audit --fast`\n\n"
    "With tight bounds, in about half an hour:  `dpmcmc audit --json audit.json`\n\n"
    "One question, or one sampler:  `dpmcmc audit --query gradient`  `dpmcmc audit --sampler auto --fast`"
)


class QueryKind(StrEnum):
    """The kinds of questions that the curator answers."""

    gradient = "gradient"
    weighted_gradient = "weighted_gradient"
    log_ratio = "log_ratio"
    quantile = "quantile"
    coordinate_histogram = "coordinate_histogram"
    score_moments = "score_moments"
    curvature = "curvature"
    fisher_information = "fisher_information"
    clip_count = "clip_count"
    invalid_count = "invalid_count"
    batch_gradient = "batch_gradient"


class AuditedSampler(StrEnum):
    """The private samplers."""

    auto = "auto"
    dp_laplace = "dp-laplace"
    dp_hmc = "dp-hmc"
    dp_penalty = "dp-penalty"
    surrogate_hmc = "surrogate-hmc"
    dp_sgld = "dp-sgld"
    dp_sgnht = "dp-sgnht"


def audit(
    sampler: Annotated[
        list[AuditedSampler] | None,
        typer.Option(help="Audit runs of this sampler; may be given more than once.", show_default=False),
    ] = None,
    query: Annotated[
        list[QueryKind] | None,
        typer.Option(help="Audit this kind of question; may be given more than once.", show_default=False),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Fewer guesses: wider bounds, a few minutes.")] = False,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write all figures to FILE (an earlier audit is replaced); - for stdout, in place of the tables.",
        ),
    ] = None,
) -> None:
    """Check the privacy claims by attack, on made-up data.

    An attacker who knows everything but one record sees many answers (or whole runs) of the production code with exact
    noise, and guesses which of two data sets they are of. How often he is right is a lower bound on the privacy loss
    (95 % confidence), which stands beside what was charged. Without options: every kind of question, and runs of every
    private sampler.

    Exit code 1 if a claim is refuted (a bound that is wrong with a chance of 1e-6 lies above it), or if less than 90 %
    of the price of a single question is found. No data of yours are read.
    """
    from dpmcmc.output import prepare_folder, replace_file

    target = None if json_file in (None, "-") else Path(str(json_file))
    if target is not None:
        _check_target(target)
        prepare_folder(target.parent, "--json")
    from dpmcmc.audit import Effort  # takes seconds
    from dpmcmc.audit import audit as run

    say = Console(stderr=True, highlight=False)
    report = run(
        queries=None if query is None else [one.value for one in query],
        samplers=None if sampler is None else [one.value for one in sampler],
        effort=Effort.fast() if fast else Effort.full(),
        tell=lambda what: say.print(f"[dim]{what} …[/dim]", soft_wrap=True),
    )
    text = json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n"
    if target is not None:
        replace_file(target, text.encode())
    if json_file == "-":
        typer.echo(text, nl=False)
    else:
        _show(report)
    if not report.held:
        raise typer.Exit(1)


def _check_target(target: Path) -> None:
    """Refuse what would be lost: anything but an earlier audit."""
    try:
        earlier = json.loads(target.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError, RecursionError):
        earlier = None
    if not isinstance(earlier, dict) or not {"held", "queries", "runs"} <= set(earlier):
        raise UsageError(
            f"{str(target)!r} exists and is no audit, so that it is not replaced; nothing was computed, choose another "
            "--json"
        )


def _show(report: "Report") -> None:
    console = Console(highlight=False)
    if report.queries:
        table = _table("Single questions", "question", "neighbours")
        for kind, cases in report.queries.items():
            for number, (case, finding) in enumerate(cases.items()):
                table.add_row("" if number else kind, case, *_cells(finding), end_section=number == len(cases) - 1)
        console.print(table)
    if report.runs:
        table = _table("Whole runs at ε = 8", "sampler", "neighbours", "seen")
        for sampler, runs in report.runs.items():
            rows = [(case, box_name, f) for case, boxes in runs.items() for box_name, f in boxes.items()]
            for number, (case, box_name, finding) in enumerate(rows):
                seen = "releases" if box_name == "white_box" else "draws"
                name = "" if number else sampler
                table.add_row(name, case, seen, *_cells(finding), end_section=number == len(rows) - 1)
        console.print(table)
    console.print(
        "claimed: the price μ = Σ 1/(2τ²). found: the proven lower bound (95 %). upper: what this attack could still "
        f"have shown. ε found: of the lower bound, at δ = {_any(report).delta:g}."
    )
    for what in report.exceeded:
        console.print(f"[bold red]Refuted:[/] {what}: more was found than is claimed.")
    for kind in report.loose:
        console.print(f"[bold red]Too little found:[/] {kind}: less than 90 % of its price; the audit sees too little.")
    if report.held:
        console.print("Every claim stands.")


def _any(report: "Report") -> "Finding":
    if report.queries:
        return next(iter(next(iter(report.queries.values())).values()))
    return next(iter(next(iter(next(iter(report.runs.values())).values())).values()))


def _table(title: str, *first: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in first:
        table.add_column(name, no_wrap=True)
    for name in ("claimed", "found", "upper", "share", "ε found"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells(finding: "Finding") -> list[str]:
    upper: Any = "–" if finding.upper_mu is None else f"{finding.upper_mu:.3f}"
    share = f"{100.0 * finding.share:.0f} %"
    return [
        f"{finding.claimed_mu:.3f}",
        f"[bold red]{finding.found_mu:.3f}[/]" if finding.exceeds else f"{finding.found_mu:.3f}",
        upper,
        share,
        f"{finding.found_epsilon:.2f}",
    ]
