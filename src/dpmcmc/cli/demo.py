"""`dpmcmc demo`: private runs to look at. What it runs and what its page says is in `dpmcmc.demo`."""

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmcmc.cli.shared import print_json

if TYPE_CHECKING:
    from dpmcmc.demo import Outcome, Run
    from dpmcmc.results.table import SummaryRows

EXAMPLES = (
    "**Examples**\n\n"
    "`dpmcmc demo banana`   then open dpmcmc-demo/index.html\n\n"
    "`dpmcmc demo banana --epsilon 15 --out my-demo`   the largest budget of the paper"
)


class Example(StrEnum):
    """What there is to see."""

    banana = "banana"


def demo(
    example: Annotated[Example, typer.Argument(help="The paper's banana-shaped posterior.")] = Example.banana,
    out: Annotated[Path, typer.Option(help="Folder for the results; files of an earlier demo are replaced.")] = Path(
        "dpmcmc-demo"
    ),
    epsilon: Annotated[float, typer.Option(help="Privacy parameter ε of each of the two runs.")] = 4.0,
    num_records: Annotated[int, typer.Option(help="Number of synthetic records n; δ is 0.1/n.", min=100)] = 100_000,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Repeatable data and noise. A seeded run is not private and is marked so.",
            min=0,
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON: files, summary, what was spent.")] = False,
) -> None:
    """Show the default sampler and the paper's DP-HMC, each over the exact posterior of the paper's banana model.

    Draws synthetic records, samples them twice with exact noise, each time with a whole budget (a comparison, not one
    release), prints the summary and what was spent and released, and writes posterior.nc and dp-hmc.nc (ArviZ),
    posterior.png and index.html (one page, self-contained).

    Takes a minute or two on two cores, compilation included.
    """
    from dpmcmc import demo as study
    from dpmcmc.output import prepare_folder

    settings = study.Settings(epsilon=epsilon, num_records=num_records, seed=seed)
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
    console.print(Text("dpmcmc demo banana: the default sampler and the paper's DP-HMC", "bold"))
    points = Table.grid(padding=(0, 1))
    for line in lines:
        points.add_row(" •", Text(line))
    console.print(points)
    console.print()


def _show_outcome(outcome: "Outcome", files: dict[Path, str]) -> None:
    from dpmcmc import demo as study

    console = Console()
    _show_run(console, outcome, outcome.auto)
    if outcome.auto.posterior.quality is not None:
        console.print(Text(str(outcome.auto.posterior.quality)))
    console.print()
    _show_run(console, outcome, outcome.paper)
    console.print(Text(study.mixing_note(outcome)))
    console.print()
    console.print(rows_table("How near they are", study.comparison_rows(outcome), ()))
    console.print(Text(study.comparison_note()))
    console.print(Text(study.separate_runs_note(outcome.settings), "bold"))
    console.print()
    for run in (outcome.auto, outcome.paper):
        console.print(statement_table(run.posterior, run.name))
    if not outcome.auto.posterior.privacy.private:
        console.print(Text("NOT PRIVATE: these runs were seeded; who knows the seed knows the noise.", "bold red"))
    console.print(Text("Written", "bold"))
    for path, what in files.items():
        console.print(Text(f"  {path}  ({what})"), soft_wrap=True)
    console.print(
        Text(
            "How to read the page: the blue draws should fill the orange regions, and each chain of DP-HMC wander over"
        ),
        Text("the whole orange band."),
    )


def _show_run(console: Console, outcome: "Outcome", run: "Run") -> None:
    from dpmcmc import demo as study

    console.print(rows_table(f"{run.name}: summary of the draws", study.summary_rows(outcome, run), _NARROW))
    # Of a run that judges itself, the reasons are among what it says of its quality.
    quality = run.posterior.quality
    for warning in run.posterior.warnings:
        if quality is None or warning not in str(quality):
            console.print(Text(f"Warning: {warning}", "bold red"))
