"""`dpmcmc demo`: a private run to look at. What it runs and what its page says is in `dpmcmc.demo`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmcmc.cli.shared import UsageError, print_json

if TYPE_CHECKING:
    from dpmcmc.demo import Outcome
    from dpmcmc.results.table import SummaryRows

EXAMPLES = (
    "**Examples**\n\n"
    "`dpmcmc demo`   then open dpmcmc-demo/index.html\n\n"
    "`dpmcmc demo --fast --out my-demo`   a smaller budget, in half a minute"
)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; files of an earlier demo are replaced.")] = Path(
        "dpmcmc-demo"
    ),
    epsilon: Annotated[
        float | None,
        typer.Option(help="Privacy parameter ε. Default: 15 as in the paper's figures.", show_default=False),
    ] = None,
    num_records: Annotated[int, typer.Option(help="Number of synthetic records n; δ is 0.1/n.", min=100)] = 100_000,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Repeatable data and noise. A seeded run is not private and is marked so.",
            min=0,
            show_default=False,
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="ε = 4: a tenth of the iterations, a rougher picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON: files, summary, what was spent.")] = False,
) -> None:
    """Run DP-HMC on the paper's banana model and show the private draws over the exact posterior.

    Draws synthetic records, samples with exact noise under the budget, prints the summary and what was spent and
    released, and writes posterior.nc (ArviZ), posterior.png and index.html (one page, self-contained).

    Takes about two minutes on two cores, compilation included.
    """
    if fast and epsilon is not None:
        raise UsageError("--fast sets epsilon = 4, but --epsilon is given too; leave one of them out")
    from dpmcmc import demo as study
    from dpmcmc.output import prepare_folder

    settings = study.Settings(
        epsilon=study.FAST_EPSILON if fast else study.DEFAULT_EPSILON if epsilon is None else epsilon,
        num_records=num_records,
        seed=seed,
    )
    prepare_folder(out)
    bought = study.planned(settings)
    if not as_json:
        _show_beginning(study.description(settings, bought))
    outcome = study.run(settings, progress=not as_json)
    files = study.write(outcome, out)
    if as_json:
        print_json(study.report(outcome, files))
    else:
        _show_outcome(outcome, files)


def _show_beginning(lines: list[str]) -> None:
    console = Console()
    console.print(Text("dpmcmc demo: DP-HMC on the paper's banana model", "bold"))
    points = Table.grid(padding=(0, 1))
    for line in lines:
        points.add_row(" •", Text(line))
    console.print(points)
    console.print()


def _show_outcome(outcome: "Outcome", files: dict[Path, str]) -> None:
    from dpmcmc import demo as study
    from dpmcmc.results.report import statement_rows

    console = Console()
    console.print(_summary_table(study.summary_rows(outcome)))
    for warning in outcome.posterior.warnings:
        console.print(Text(f"Warning: {warning}", "bold red"))
    console.print(Text(study.mixing_note(outcome)))
    console.print()
    statement = Table(
        box=box.SIMPLE_HEAD,
        show_header=False,
        title="What was spent and released",
        title_justify="left",
        title_style="bold",
    )
    statement.add_column("", style="dim")
    statement.add_column("")
    for label, value in statement_rows(outcome.posterior):
        statement.add_row(Text(label), Text(value))
    console.print(statement)
    if not outcome.posterior.privacy.private:
        console.print(Text("NOT PRIVATE: this run was seeded; who knows the seed knows the noise.", "bold red"))
    console.print(Text("Written", "bold"))
    for path, what in files.items():
        console.print(Text(f"  {path}  ({what})"), soft_wrap=True)
    console.print(
        Text(
            "How to read the page: the blue draws should fill the orange regions, and in each chain's trace wander over"
        ),
        Text("the whole orange band."),
    )


def _summary_table(summary: "SummaryRows") -> Table:
    """Return the summary with the exact posterior beside it, narrow enough for a terminal of 80 columns."""
    shown = [place for place, name in enumerate(summary.columns) if not name.startswith(("mcse", "hdi", "eti"))]
    table = Table(box=box.SIMPLE_HEAD, title="Summary of the draws", title_justify="left", title_style="bold")
    table.add_column("")
    for place in shown:
        table.add_column(Text(summary.columns[place]), justify="right", overflow="fold")
    for name, values in summary.rows:
        table.add_row(Text(name), *(f"{values[place]:.3g}" for place in shown))
    return table
