"""`dpmcmc demo`: private runs to look at. What they run and what their pages say is in `dpmcmc.demo`."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmcmc.cli.shared import UsageError, print_json
from dpmcmc.cli.showing import as_json as posterior_as_json
from dpmcmc.cli.showing import rows_table, show_files, show_not_private, show_quality, statement_table

if TYPE_CHECKING:
    from dpmcmc.demo import adult, banana

EXAMPLES = (
    "**Examples**\n\n"
    "`dpmcmc demo`   then open dpmcmc-demo/index.html\n\n"
    "`dpmcmc demo adult --epsilon 0.5 --out my-demo`   with less to spend\n\n"
    "`dpmcmc demo banana`   the default sampler and the paper's DP-HMC over an exact posterior"
)
# Not in a terminal of 80 columns.
_NARROW = ("mcse", "hdi", "eti")


class Example(StrEnum):
    """What there is to see."""

    adult = "adult"
    banana = "banana"


def demo(
    example: Annotated[
        Example, typer.Argument(help="A regression on the Adult data, or the paper's banana-shaped posterior.")
    ] = Example.adult,
    out: Annotated[Path, typer.Option(help="Folder for the results; files of an earlier demo are replaced.")] = Path(
        "dpmcmc-demo"
    ),
    epsilon: Annotated[
        float | None,
        typer.Option(help="Privacy parameter ε of a run. Default: 2; for banana 4.", show_default=False),
    ] = None,
    num_records: Annotated[
        int | None,
        typer.Option(
            help="Of banana: number of synthetic records n; δ is 0.1/n. Default: 100,000.", min=100, show_default=False
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Repeatable noise (and data of banana). A seeded run is not private and is marked so.",
            min=0,
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON: files, summary, what was spent.")] = False,
) -> None:
    """Show a private posterior, beside what it would be without noise.

    **adult**: a logistic regression on the Adult data (public, and part of the package), ε = 2, by the default sampler:
    private intervals beside those without noise. Writes index.html (one page, self-contained) and the files of a run:
    posterior.nc, privacy.json, privacy.txt, summary.csv and report.html. Takes a minute or two.

    **banana**: the default sampler and the paper's DP-HMC, each over the exact posterior of the paper's banana model,
    on synthetic records; two runs, each with a whole budget. Writes posterior.nc and dp-hmc.nc (ArviZ), posterior.png
    and index.html.
    """
    if example == Example.banana:
        _demo_banana(out, epsilon, num_records, seed, as_json)
        return
    if num_records is not None:
        raise UsageError("--num-records is for banana; the Adult data have the records that they have: leave it out")
    _demo_adult(out, epsilon, seed, as_json)


def _demo_adult(out: Path, epsilon: float | None, seed: int | None, as_json: bool) -> None:
    from dpmcmc import data
    from dpmcmc.demo import adult as study
    from dpmcmc.output import prepare_folder

    settings = study.Settings(study.DEFAULT_EPSILON if epsilon is None else epsilon, seed=seed)
    prepare_folder(out)
    table = data.adult()
    study.check(settings, table.num_records)
    if not as_json:
        _show_beginning("dpmcmc demo adult: a private regression", study.description(settings, table.num_records))
    outcome = study.run(settings, table, progress=not as_json)
    files = study.write(outcome, out)
    if as_json:
        answer = posterior_as_json(outcome.posterior, (), out)
        print_json(answer | study.report(outcome) | {"files": [str(path) for path in files]})
    else:
        _show_adult(outcome, files)


def _show_adult(outcome: "adult.Outcome", files: dict[Path, str]) -> None:
    from dpmcmc.demo import adult as study

    console = Console()
    console.print(rows_table("90 % intervals, private and without noise", study.comparison_rows(outcome), ("mean",)))
    show_quality(console, outcome.posterior)
    console.print()
    console.print(statement_table(outcome.posterior))
    show_not_private(console, outcome.posterior)
    show_files(console, files)


def _demo_banana(out: Path, epsilon: float | None, num_records: int | None, seed: int | None, as_json: bool) -> None:
    from dpmcmc.demo import banana as study
    from dpmcmc.output import prepare_folder

    settings = study.Settings(
        study.DEFAULT_EPSILON if epsilon is None else epsilon,
        study.DEFAULT_NUM_RECORDS if num_records is None else num_records,
        seed,
    )
    prepare_folder(out)
    bought = study.planned(settings)
    if not as_json:
        title = "dpmcmc demo banana: the default sampler and the paper's DP-HMC"
        _show_beginning(title, study.description(settings, bought))
    outcome = study.run(settings, progress=not as_json)
    files = study.write(outcome, out)
    if as_json:
        print_json(study.report(outcome, files))
    else:
        _show_banana(outcome, files)


def _show_beginning(title: str, lines: list[str]) -> None:
    console = Console()
    console.print(Text(title, "bold"))
    points = Table.grid(padding=(0, 1))
    for line in lines:
        points.add_row(" •", Text(line))
    console.print(points)
    console.print()


def _show_banana(outcome: "banana.Outcome", files: dict[Path, str]) -> None:
    from dpmcmc.demo import banana as study

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
    show_files(console, files)
    console.print(
        Text(
            "How to read the page: the blue draws should fill the orange regions, and each chain of DP-HMC wander over"
        ),
        Text("the whole orange band."),
    )


def _show_run(console: Console, outcome: "banana.Outcome", run: "banana.Run") -> None:
    from dpmcmc.demo import banana as study

    console.print(rows_table(f"{run.name}: summary of the draws", study.summary_rows(outcome, run), _NARROW))
    # Of a run that judges itself, the reasons are among what it says of its quality.
    quality = run.posterior.quality
    for warning in run.posterior.warnings:
        if quality is None or warning not in str(quality):
            console.print(Text(f"Warning: {warning}", "bold red"))
