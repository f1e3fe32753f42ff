"""The commands `python -m studies …`: run a study, write its tables, figures and statements, and put them into a page.

Modules that take long to load are imported inside the commands, so that help texts come at once.
"""

import fnmatch
import functools
import importlib.util
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console

from dpmcmc.errors import DPMCMCError, QueryError
from studies.exits import Commands

if TYPE_CHECKING:
    from studies.auto import AutoCell
    from studies.cells import Array, Cell
    from studies.coverage import CoverageCell
    from studies.curve import CurveCell
    from studies.laplace import LaplaceCell
    from studies.runner import Outcome, Task, Work
    from studies.statements import Statement
    from studies.tables import Table

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run the experiments of the paper again: *Differentially Private Hamiltonian Monte Carlo* (Räisä, Koskela, "
    "Honkela); measure DP-Laplace, `auto`, what intervals hold, and what a plan says of them. All data are synthetic, "
    "or the public Adult data, and all runs seeded: **nothing here is private**.",
)


class ModelChoice(StrEnum):
    """The paper's models."""

    banana = "banana"
    gaussian = "gaussian"
    all = "all"


class Algorithm(StrEnum):
    """The samplers without noise of the clipping study."""

    hmc = "hmc"
    rwmh = "rwmh"
    all = "all"


OutOption = Annotated[
    Path, typer.Option(help="Folder for results. A run that was interrupted continues in the same folder.")
]
ModelOption = Annotated[ModelChoice, typer.Option("--model", help="Which of the paper's models.")]
RecordsOption = Annotated[
    int | None,
    typer.Option(help="Synthetic records n. Default: the paper's 100,000; δ is 0.1/n.", min=500, show_default=False),
]
SeedOption = Annotated[int, typer.Option(help="Seed of data, starting points and noise.", min=0)]
JobsOption = Annotated[
    int | None, typer.Option(help="Runs side by side. Default: one for each core.", min=1, show_default=False)
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers", "--jobs", help="Runs side by side. Default: one for each core.", min=1, show_default=False
    ),
]
CaseEpsilonOption = Annotated[
    list[float] | None,
    typer.Option(help="Budget ε; may be given several times. Default: those of each group.", show_default=False),
]


@app.command(
    epilog="**Examples**\n\n"
    "`python -m studies comparison --out comparison`   the whole of it, for hours\n\n"
    "`python -m studies comparison --out small --epsilon 4 --epsilon 15 --repeats 2 --sampler paper`   a part of it"
)
def comparison(
    out: OutOption,
    model: ModelOption = ModelChoice.all,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(help="Budget ε; may be given several times. Default: 2, 4, 6, 8, 10, 12, 15.", show_default=False),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs of each algorithm of the paper, and of this package's own.")] = 10,
    variant_repeats: Annotated[int, typer.Option(help="Runs of each variant: other temperature or accountant.")] = 3,
    sampler: Annotated[
        list[str] | None,
        typer.Option(
            help="An algorithm, `paper`, `variants` or `all`; may be given several times. Default: all.",
            show_default=False,
        ),
    ] = None,
    records: RecordsOption = None,
    seed: SeedOption = 0,
    jobs: JobsOption = None,
) -> None:
    """Compare DP-HMC, DP-penalty, DP-SGLD and DP-SGNHT with the exact posterior at several ε (figures 1 and 2).

    DP-SGLD and DP-SGNHT run as many iterations as the paper's accountant granted; extra rows run them under this
    package's tighter one, DP-SGLD at temperature 1 as well as at the ½ of the paper's code, and DP-HMC with this
    package's defaults.

    Writes results.csv (a row for each run; Parquet too if pyarrow is installed), summary.csv and summary.md (medians
    and quartiles), statements.txt and statements.json, and figures as PDF and PNG.
    """
    from studies import settings
    from studies.cells import Cell

    levels = _checked_levels("--epsilon", settings.EPSILONS if epsilon is None else epsilon)
    names = _checked_samplers(sampler)
    main = [name for name in names if settings.ROWS[name].figure == "main"]
    _check_repeats("--repeats", repeats, lowest=1 if main else 0)
    _check_repeats("--variant-repeats", variant_repeats, lowest=0)
    num_records = settings.NUM_RECORDS if records is None else records
    cells = [
        Cell("comparison", model_name, name, level, repeat, num_records, seed)
        for model_name in _models(model)
        for name in names
        for level in levels
        for repeat in range(repeats if name in main else variant_repeats)
    ]
    for cell in cells:  # cheap to know beforehand; what batches cost is known when they run
        if cell.repeat == 0 and settings.ROWS[cell.row].accountant == "gaussian":
            cell.steps()
    _study("comparison", cells, out, jobs, _comparison_files)


@app.command(
    epilog="**Examples**\n\n"
    "`python -m studies clipping --out clipping`   the whole of it\n\n"
    "`python -m studies clipping --out small --algorithm rwmh --repeats 2 --model banana`   a part of it"
)
def clipping(
    out: OutOption,
    model: ModelOption = ModelChoice.all,
    algorithm: Annotated[Algorithm, typer.Option(help="Which sampler without noise.")] = Algorithm.all,
    bound: Annotated[
        list[float] | None,
        typer.Option(
            help="Clip bound of the log-ratios; may be given several times. Default: the nine of the paper for each "
            "model.",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Runs at each bound.")] = 10,
    records: RecordsOption = None,
    seed: SeedOption = 0,
    jobs: JobsOption = None,
) -> None:
    """Clip the log-ratios of HMC and RWMH without noise, and see what it does to the posterior (figure 3).

    Writes the same files as `comparison`, and checks beside the paper's 20 % guideline a model with skewed scores, for
    which it does not hold.
    """
    from studies import settings
    from studies.cells import Cell

    given = None if bound is None else _checked_levels("--bound", bound)
    _check_repeats("--repeats", repeats, lowest=1)
    names = list(settings.CLIPPING_ROWS) if algorithm is Algorithm.all else [algorithm.value]
    num_records = settings.NUM_RECORDS if records is None else records
    cells = [
        Cell("clipping", model_name, name, level, repeat, num_records, seed)
        for model_name in _models(model)
        for name in names
        for level in given or settings.CLIPPING[model_name].bounds
        for repeat in range(repeats)
    ]
    _study("clipping", cells, out, jobs, _clipping_files)


@app.command(
    epilog="**Examples**\n\n"
    "`python -m studies laplace --out laplace`   the whole of it, for hours\n\n"
    "`python -m studies laplace --out small --cases 'adult*' --cases 'gaussian*' --repeats 5`   a part of it\n\n"
    "`python -m studies laplace --out fast --fast`   a quick look"
)
def laplace(
    out: OutOption,
    cases: Annotated[
        list[str] | None,
        typer.Option(
            help="A case, a pattern such as `'adult*'` or `'logistic-*-20k'`, or `hard`, `sweep` or `aside`; may be "
            "given several times. Default: all.",
            show_default=False,
        ),
    ] = None,
    epsilon: CaseEpsilonOption = None,
    repeats: Annotated[int, typer.Option(help="Runs of each case at each ε.")] = 20,
    fast: Annotated[bool, typer.Option("--fast", help="Five cases at ε = 4, unless others are given.")] = False,
    seed: SeedOption = 0,
    workers: WorkersOption = None,
) -> None:
    """Compare DP-Laplace, with nothing tuned, with the posterior without noise.

    On Adult in two codings, the paper's Gaussian, regressions that are hard in one way or in all, dimensions from 2 to
    60, and data that nothing was tuned on. Writes results.csv, summary.csv and summary.md, statements and figures.
    The posteriors without noise are computed first and kept in the same folder.
    """
    _check_repeats("--repeats", repeats, lowest=1)
    levels = None if epsilon is None else _checked_levels("--epsilon", epsilon)
    _require_packages("pyarrow")  # the Adult data
    from studies import laplace as study
    from studies.laplace_cases import case_names
    from studies.laplace_results import cells_of

    if fast:
        levels = levels or [4.0]
    names = _checked_cases(list(study.FAST) if fast and not cases else cases, case_names, study.EPSILONS)
    _laplace_study(cells_of(names, levels, repeats, seed), out, workers, seed)


@app.command(
    epilog="**Examples**\n\n"
    "`python -m studies auto --out auto`   the whole of it, for hours\n\n"
    "`python -m studies auto --out small --cases banana --cases shapes --epsilon 4 --repeats 3`   a part of it\n\n"
    "`python -m studies auto --out fast --fast --repeats 3`   a quick look"
)
def auto(
    out: OutOption,
    cases: Annotated[
        list[str] | None,
        typer.Option(
            help="A case, a pattern such as `'curved-*'`, or `paper` or `shapes`; may be given several times. Default: "
            "all.",
            show_default=False,
        ),
    ] = None,
    epsilon: CaseEpsilonOption = None,
    repeats: Annotated[int, typer.Option(help="Runs of each case at each ε.")] = 10,
    fast: Annotated[bool, typer.Option("--fast", help="Six cases at ε = 4, unless others are given.")] = False,
    timed: Annotated[
        bool, typer.Option("--timed/--not-timed", help="Whether to time cold starts in the end, on all cores.")
    ] = True,
    seed: SeedOption = 0,
    workers: WorkersOption = None,
) -> None:
    """Compare the default sampler, `auto`, with exact posteriors; nothing is tuned.

    On the paper's two models (beside the paper's samplers, whose figures are those of docs/reproduction.md), Adult, a
    million records, and shapes that its surrogate was not made for. Writes results.csv, summary.csv and summary.md,
    statements and figures. Exact draws are computed first and kept in the same folder.
    """
    _check_repeats("--repeats", repeats, lowest=1)
    levels = None if epsilon is None else _checked_levels("--epsilon", epsilon)
    _require_packages("pyarrow")  # the Adult data
    from studies import auto as study
    from studies.auto_cases import case_names
    from studies.auto_results import cells_of

    if fast:
        levels = levels or [4.0]
    names = _checked_cases(list(study.FAST) if fast and not cases else cases, case_names, study.EPSILONS)
    _auto_study(cells_of(names, levels, repeats, seed), out, workers, seed, timed and not fast)


@app.command(
    epilog="**Examples**\n\n"
    "`python -m studies coverage --out coverage`   the whole of it, for an hour on one core\n\n"
    "`python -m studies coverage --out small --data-sets 50 --sampler auto --epsilon 4`   a part of it\n\n"
    "`python -m studies coverage --out fast --fast`   a quick look"
)
def coverage(
    out: OutOption,
    data_sets: Annotated[
        int | None,
        typer.Option(help="Synthetic data sets, of five kinds in turn. Default: 200.", show_default=False),
    ] = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(help="Budget ε; may be given several times. Default: 1 and 4.", show_default=False),
    ] = None,
    sampler: Annotated[
        list[str] | None,
        typer.Option(
            help="A sampler, such as `auto`, `dp-laplace` or `dp-hmc`; may be given several times. Default: all.",
            show_default=False,
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Ten data sets, unless another number is given.")] = False,
    seed: SeedOption = 0,
    workers: WorkersOption = None,
) -> None:
    """Count how often reported intervals hold the true parameter, and the mean of the posterior without noise.

    Parameters are drawn from the prior and records from the model, so that the intervals of a calibrated method hold
    the true parameter as often as they say. Writes results.csv, summary.csv and summary.md, and statements. The
    posteriors without noise are computed first and kept in the same folder.
    """
    from studies import coverage as study
    from studies.coverage_cases import SAMPLERS

    number = data_sets if data_sets is not None else study.FAST_DATA_SETS if fast else study.NUM_DATA_SETS
    if not 1 <= number <= 9999:
        raise QueryError(f"--data-sets is {number}; give a whole number from 1 to 9999")
    levels = _checked_levels("--epsilon", study.EPSILONS if epsilon is None else epsilon)
    for name in sampler or ():
        if name not in SAMPLERS:
            raise QueryError(f"--sampler is {name!r}, which is unknown; give one of {', '.join(SAMPLERS)}")
    names = [name for name in SAMPLERS if not sampler or name in sampler]
    _require_packages()
    _coverage_study(study.cells_of(names, levels, number, seed), out, workers, seed)


@app.command(
    epilog="**Examples**\n\n"
    "`python -m studies curve --out curve`   the whole of it, for a quarter of an hour on two cores\n\n"
    "`python -m studies curve --out small --cases 'adult*' --epsilon 1`   a part of it\n\n"
    "`python -m studies curve --out fast --fast`   a quick look"
)
def curve(
    out: OutOption,
    cases: Annotated[
        list[str] | None,
        typer.Option(
            help="A case, a pattern such as `'skewed-*'` or `'*-20k'`, or a kind of data such as `poisson`; may be "
            "given several times. Default: all.",
            show_default=False,
        ),
    ] = None,
    epsilon: CaseEpsilonOption = None,
    repeats: Annotated[int, typer.Option(help="Runs of each case and sampler at each ε.")] = 2,
    fast: Annotated[bool, typer.Option("--fast", help="Two cases at ε = 1 and 4, unless others are given.")] = False,
    seed: SeedOption = 0,
    workers: WorkersOption = None,
) -> None:
    """Compare how wide intervals become with what `dpmcmc.plan` and `dpmcmc plan --curve` say without any data.

    Runs of DP-Laplace and `auto` on regressions with bounded and with skewed data of several sizes, and on Adult.
    Writes results.csv, summary.csv and summary.md, statements and a figure. The posteriors without noise are computed
    first and kept in the same folder.
    """
    _check_repeats("--repeats", repeats, lowest=1)
    levels = None if epsilon is None else _checked_levels("--epsilon", epsilon)
    _require_packages("pyarrow")  # the Adult data
    from studies import curve as study

    if fast:
        levels = levels or [1.0, 4.0]

    def of_kind(kind: str | None) -> list[str]:
        return [name for name in study.case_names() if kind is None or study.kind_of(name) == kind]

    names = _checked_cases(list(study.FAST) if fast and not cases else cases, of_kind, study.KINDS)
    _curve_study(study.cells_of(names, study.SAMPLERS, levels, repeats, seed), out, workers, seed)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders that the other commands have written.")],
    to: Annotated[Path, typer.Option(help="Markdown page with the two markers that the results go between.")],
) -> None:
    """Put the tables, statements, versions, times and figures of finished studies into a page.

    Replaces what stands between the lines `<!-- measured: begin -->` and `<!-- measured: end -->`, and copies the
    figures into a folder beside the page.
    """
    _require_packages()
    from studies.page import write_page

    for path in write_page(folders, to):
        typer.echo(f"wrote {path}")


# ------------------------------------------------------------------------------------------------------ options


class MissingPackageError(DPMCMCError):
    """A package that only the studies need is not installed."""


def _require_packages(*others: str) -> None:
    """Refuse to start without what the tables and figures need: better now than after hours of running."""
    for name in ("pandas", "matplotlib", *others):
        if importlib.util.find_spec(name) is None:
            raise MissingPackageError(f"{name} is not installed, and the studies need it; pip install -e '.[studies]'")


def _models(model: ModelChoice) -> list[str]:
    from studies import settings

    return list(settings.MODELS) if model is ModelChoice.all else [model.value]


def _checked_levels(option: str, values: Sequence[float]) -> list[float]:
    for value in values:
        if not 0.0 < value < math.inf:
            raise QueryError(f"{option} is {value}; give positive finite numbers")
    return sorted({float(value) for value in values})


def _check_repeats(option: str, value: int, lowest: int) -> None:
    if not lowest <= value <= 99:
        raise QueryError(f"{option} is {value}; give a whole number from {lowest} to 99")


def _checked_samplers(given: Sequence[str] | None) -> list[str]:
    """Return the names of rows in the order of the table."""
    from studies import settings

    groups = {
        "all": list(settings.ROWS),
        "paper": [name for name, row in settings.ROWS.items() if row.in_paper],
        "variants": [name for name, row in settings.ROWS.items() if row.figure == "variants"],
    }
    chosen: set[str] = set()
    for name in given or ["all"]:
        if name not in groups and name not in settings.ROWS:
            raise QueryError(f"--sampler is {name!r}, which is unknown; give {', '.join([*groups, *settings.ROWS])}")
        chosen.update(groups.get(name, [name]))
    return [name for name in settings.ROWS if name in chosen]


def _checked_cases(
    given: Sequence[str] | None, of_group: Callable[[str | None], list[str]], groups: Iterable[str]
) -> list[str]:
    """Return the names of cases that are meant by names, groups and patterns, in the order of the study."""
    names = of_group(None)
    chosen: set[str] = set()
    for word in given or ["*"]:
        found = fnmatch.filter(names, word)  # a name is a pattern, too
        if not found and word not in groups:
            raise QueryError(
                f"--cases is {word!r}, which is no case; give a name such as {names[-1]}, a pattern such as "
                f"'{names[0]}*', or one of the groups {', '.join(groups)}"
            )
        chosen.update(found or of_group(word))
    return [name for name in names if name in chosen]


# -------------------------------------------------------------------------------------------------------- run

Files = Callable[[Path, "Table", "list[Cell]"], "list[Statement]"]


def _study(study: str, cells: "list[Cell]", out: Path, jobs: int | None, write: Files) -> None:
    """Run what is missing, write the files, say what was found."""
    _require_packages()
    from dpmcmc.output import prepare_folder
    from studies import settings, tables
    from studies.runner import run_cells

    if not cells:
        raise QueryError("nothing to run; give more --repeats, --variant-repeats or another --sampler")
    prepare_folder(out)
    console = Console(stderr=True)
    first = cells[0]
    console.print(
        f"{len(cells)} runs on {first.num_records:,} synthetic records, seed {first.seed}. Seeded or without noise: "
        "NOT private.",
        highlight=False,
        soft_wrap=True,
    )
    if first.num_records != settings.NUM_RECORDS:
        console.print(f"The paper has {settings.NUM_RECORDS:,} records: this is not its experiment.", highlight=False)
    outcome = run_cells(cells, out, jobs=jobs, console=console)
    _log(out, study, len(cells), outcome)
    _stop_if_interrupted(outcome, len(cells))
    table, done = tables.collect(out, study, first.num_records, first.seed)
    if not table.empty:
        statements = write(out, table, done)
        for statement in statements:
            typer.echo(str(statement))
        typer.echo(f"Tables, figures and statements are in {out}")
    _stop_if_failed(outcome, len(cells))


def _laplace_study(cells: "list[LaplaceCell]", out: Path, jobs: int | None, seed: int) -> None:
    """Compute the references that are missing, run the cells that are, write the files, say what was found."""
    from studies import laplace, laplace_results
    from studies.cells import has_result

    references = [laplace.ReferenceCell(name, seed) for name in dict.fromkeys(cell.case for cell in cells)]
    stages = [
        _Stage(references, laplace.finish_reference, laplace.has_reference),
        _Stage(cells, laplace.finish_cell, has_result),
    ]
    _study_of_cases("laplace", stages, out, jobs, seed, laplace_results.collect, _laplace_files)


def _auto_study(cells: "list[AutoCell]", out: Path, jobs: int | None, seed: int, timed: bool) -> None:
    """Do the same for the study of ``auto``; in the end, time a few runs from a cold start, one after the other."""
    from studies import auto, auto_results
    from studies.cells import has_result

    stages = [
        _Stage(auto.exact_cells(cells), auto.finish_exact, auto.has_exact),
        _Stage(cells, auto.finish_cell, has_result),
    ]
    if timed:
        cold = [auto.ColdCell(name, 4.0, repeat, seed) for name in auto.TIMED for repeat in range(3)]
        stages.append(_Stage(cold, auto.finish_cold, has_result, alone=True))
    _study_of_cases("auto", stages, out, jobs, seed, auto_results.collect, functools.partial(_auto_files, seed=seed))


def _coverage_study(cells: "list[CoverageCell]", out: Path, jobs: int | None, seed: int) -> None:
    """Do the same for the study of coverage."""
    from studies import coverage, coverage_results
    from studies.cells import has_result

    posteriors = list(dict.fromkeys(coverage.posterior_cell(cell) for cell in cells))
    stages = [
        _Stage(posteriors, coverage.finish_cell, has_result),
        _Stage(cells, coverage.finish_cell, has_result),
    ]
    _study_of_cases("coverage", stages, out, jobs, seed, coverage_results.collect, _coverage_files)


def _curve_study(cells: "list[CurveCell]", out: Path, jobs: int | None, seed: int) -> None:
    """Do the same for the study of the planning curve."""
    from studies import curve, curve_results
    from studies.cells import has_result

    references = [curve.CurveReferenceCell(name, seed) for name in dict.fromkeys(cell.case for cell in cells)]
    stages = [
        _Stage(references, curve.finish_reference, curve.has_reference),
        _Stage(cells, curve.finish_cell, has_result),
    ]
    _study_of_cases("curve", stages, out, jobs, seed, curve_results.collect, _curve_files)


class _Stage(NamedTuple):
    """A part of a study that must be done before the next one: cells, how they are run, and whether one is done.

    ``alone``: one after the other.
    """

    cells: "Sequence[Task]"
    work: "Work"
    finished: Callable[[Path, Any], bool]
    alone: bool = False


def _study_of_cases(
    study: str,
    stages: Sequence[_Stage],
    out: Path,
    jobs: int | None,
    seed: int,
    collect: "Callable[[Path, int], Table]",
    write: "Callable[[Path, Table], list[Statement]]",
) -> None:
    """Run what is missing, stage by stage, write the files, say what was found."""
    from dpmcmc.output import prepare_folder
    from studies.runner import run_cells

    prepare_folder(out)
    console = Console(stderr=True)
    console.print(
        f"{len(stages[1].cells)} runs on synthetic and public records, seed {seed}. Seeded: NOT private.",
        highlight=False,
        soft_wrap=True,
    )
    for stage in stages:
        number = len(stage.cells)
        outcome = run_cells(
            stage.cells,
            out,
            jobs=1 if stage.alone else jobs,
            console=console,
            work=stage.work,
            finished=stage.finished,
        )
        if outcome.interrupted or outcome.failed:
            break
    _log(out, study, number, outcome)
    _stop_if_interrupted(outcome, number)
    table = collect(out, seed)
    if not table.empty:
        for statement in write(out, table):
            typer.echo(str(statement))
        typer.echo(f"Tables, figures and statements are in {out}")
    _stop_if_failed(outcome, number)


def _stop_if_interrupted(outcome: "Outcome", number: int) -> None:
    if outcome.interrupted:
        typer.echo(
            f"Interrupted. {outcome.skipped + outcome.finished} of {number} runs are finished and kept; the same "
            "command continues with the others.",
            err=True,
        )
        raise typer.Exit(130)


def _stop_if_failed(outcome: "Outcome", number: int) -> None:
    if outcome.failed:
        for cell, error in outcome.failed:
            typer.echo(f"failed: {cell}: {error}", err=True)
        typer.echo(f"{len(outcome.failed)} of {number} runs failed; the same command tries them again.", err=True)
        raise typer.Exit(1)


def _log(out: Path, study: str, number: int, outcome: "Outcome") -> None:
    """Keep how long each invocation took: the wall-clock time of a study is their sum."""
    entry = {
        "study": study,
        "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(outcome.seconds, 1),
        "cells": number,
        "skipped": outcome.skipped,
        "finished": outcome.finished,
        "failed": len(outcome.failed),
        "interrupted": outcome.interrupted,
    }
    with (out / "invocations.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


# ------------------------------------------------------------------------------------------------------ files


def _common_files(out: Path, study: str, table: "Table", statements: "list[Statement]") -> None:
    """Write the tables and the statements of a study."""
    from dpmcmc.output import replace_file
    from studies import tables

    tables.write_csv(out / "results.csv", table)
    tables.write_parquet(out / "results.parquet", table)
    tables.write_csv(out / "summary.csv", tables.summarise(table, study))
    parts = ["# Medians (quartiles) over the repeats", "Synthetic data, seeded runs: not private."]
    for model in table["model"].unique():
        for measure, title in tables.MEASURES.items():
            parts += [f"## {model}: {title}", tables.markdown(table, study, measure, model)]
        parts += [f"## {model}: iterations of each chain", tables.iterations_markdown(table, study, model)]
    replace_file(out / "summary.md", ("\n\n".join(parts) + "\n").encode())
    _statement_files(out, statements)


def _statement_files(out: Path, statements: "list[Statement]") -> None:
    from dpmcmc.output import replace_file

    replace_file(out / "statements.txt", ("\n".join(map(str, statements)) + "\n").encode())
    content = [statement.to_dict() for statement in statements]
    replace_file(out / "statements.json", json.dumps(content, indent=1, ensure_ascii=False).encode())


def _comparison_files(out: Path, table: "Table", cells: "list[Cell]") -> "list[Statement]":
    from studies import figures, settings
    from studies.statements import of_comparison

    statements = of_comparison(table)
    _common_files(out, "comparison", table, statements)
    figures.write_figure(figures.comparison_figure(table), out / "figure1")
    for model in table["model"].unique():
        figures.write_figure(figures.full_figure(table, model), out / f"figure1_full_{model}")
    if any(settings.ROWS[name].figure == "variants" for name in table["sampler"].unique()):
        figures.write_figure(figures.comparison_figure(table, "variants"), out / "figure1_variants")
    runs = _best_median_worst(out, table, cells)
    if runs:
        from dpmcmc.models import Banana
        from studies.cells import make_problem

        problem = make_problem("banana", cells[0].num_records, cells[0].seed)
        assert isinstance(problem.model, Banana)
        figures.write_figure(figures.posterior_figure(runs, problem.model, problem.data), out / "figure2")
    return statements


def _best_median_worst(out: Path, table: "Table", cells: "list[Cell]") -> "dict[str, dict[str, Array]]":
    """Return the kept draws of three runs of each algorithm, chosen by MMD as in the paper's code."""
    from studies import settings
    from studies.cells import keeps_draws, read_draws

    by_mmd = table["mmd"].reset_index(drop=True).sort_values(kind="stable")
    places = [place for place, mmd in by_mmd.items() if keeps_draws(cells[place]) and math.isfinite(mmd)]
    runs: dict[str, dict[str, Array]] = {}
    for name, row in settings.ROWS.items():
        order = [place for place in places if cells[place].row == name]
        if order and row.figure == "main":
            chosen = {"best": order[0], "median": order[len(order) // 2], "worst": order[-1]}
            runs[row.label] = {key: read_draws(out, cells[place]).reshape(-1, 2) for key, place in chosen.items()}
    return runs


def _clipping_files(out: Path, table: "Table", cells: "list[Cell]") -> "list[Statement]":
    from studies import figures
    from studies.statements import of_clipping

    statements = of_clipping(table)
    _common_files(out, "clipping", table, statements)
    figures.write_figure(figures.clipping_figure(table), out / "figure3")
    return statements


# The figures of the paper's samplers are those of the page on the reproduction.
_PAPER_PAGE = Path(__file__).resolve().parents[1] / "docs" / "reproduction.md"


def _laplace_files(out: Path, table: "Table") -> "list[Statement]":
    from studies import figures, laplace_figures, laplace_results

    laplace_results.write_tables(out, table, _PAPER_PAGE)
    statements = laplace_results.statements_of(table)
    _statement_files(out, statements)
    if table["group"].isin(["adult", "aside", "gaussian"]).any():
        figures.write_figure(laplace_figures.accuracy_figure(table, _PAPER_PAGE), out / "laplace_accuracy")
    if (table["group"] == "sweep").any():
        figures.write_figure(laplace_figures.dimension_figure(table), out / "laplace_dimension")
    return statements


def _auto_files(out: Path, table: "Table", seed: int) -> "list[Statement]":
    from studies import auto, auto_figures, auto_results, figures

    auto_results.write_tables(out, table, _PAPER_PAGE)
    statements = auto_results.statements_of(table, auto.cold_seconds(out, seed))
    _statement_files(out, statements)
    if (table["group"] == "paper").any():
        figures.write_figure(auto_figures.mmd_figure(table, _PAPER_PAGE), out / "auto_mmd")
    draws = auto_figures.read_shown(out, table, seed)
    if draws:
        figures.write_figure(auto_figures.shapes_figure(draws), out / "auto_shapes")
    return statements


def _coverage_files(out: Path, table: "Table") -> "list[Statement]":
    from studies import coverage_results

    coverage_results.write_tables(out, table)
    statements = coverage_results.statements_of(table)
    _statement_files(out, statements)
    return statements


def _curve_files(out: Path, table: "Table") -> "list[Statement]":
    from studies import curve_results, figures

    curve_results.write_tables(out, table)
    statements = curve_results.statements_of(table)
    _statement_files(out, statements)
    figures.write_figure(curve_results.band_figure(table), out / "curve_band")
    return statements
