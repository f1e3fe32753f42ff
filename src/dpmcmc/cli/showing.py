"""A posterior in a terminal and as JSON: its summary, how far to trust it, what was spent and released."""

import contextlib
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmcmc.cli.shared import print_json

if TYPE_CHECKING:
    from dpmcmc import Posterior
    from dpmcmc.results.table import SummaryRows


_SHOWN = "What is shown"


@dataclass(frozen=True)
class ShowOptions:
    """What is printed."""

    as_json: Annotated[
        bool, typer.Option("--json", help="Print only JSON on stdout, all digits.", rich_help_panel=_SHOWN)
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.", rich_help_panel=_SHOWN)] = False
    debug: Annotated[
        bool,
        typer.Option("--debug", help="With an error, where it came from (never a record).", rich_help_panel=_SHOWN),
    ] = False

    def say(self, line: str) -> None:
        """Say on stderr what is being done."""
        if not self.quiet:
            typer.echo(line, err=True)


@contextlib.contextmanager
def sampling_shown(show: ShowOptions, folder: Path) -> Iterator[Callable[[Callable[[], "Posterior"]], None]]:
    """Give a function that samples and then shows what came of it; within, this package's warnings are collected."""
    from dpmcmc.inference.checkpoint import is_complete
    from dpmcmc.inference.endings import NOT_WRITTEN
    from dpmcmc.output import WriteError

    with _warnings_kept() as notes:

        def draw(sample: Callable[[], "Posterior"]) -> None:
            # A model of one's own may print, and stdout is for the result.
            with contextlib.redirect_stdout(sys.stderr):
                posterior = sample()
            written = is_complete(folder)
            try:
                _show_run(show, posterior, tuple(notes), folder if written else None)
            finally:
                if not written:
                    raise WriteError(next(note for note in notes if note.startswith(NOT_WRITTEN)))

        yield draw


def _show_run(show: ShowOptions, posterior: "Posterior", notes: tuple[str, ...], folder: Path | None) -> None:
    if show.as_json:
        print_json(as_json(posterior, notes, folder))
        return
    console = Console()
    show_posterior(console, posterior, notes)
    if folder is not None:
        from dpmcmc.results.folder import RUN_FILES

        show_files(console, {folder / name: what for name, what in RUN_FILES.items()})


@contextlib.contextmanager
def _warnings_kept() -> Iterator[list[str]]:
    """Collect this package's warnings. Those of others are dropped: what a library warns of may follow the records."""
    from dpmcmc.errors import DPMCMCWarning

    texts: list[str] = []

    def keep(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, DPMCMCWarning):
            texts.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", DPMCMCWarning)
        warnings.showwarning = keep
        yield texts


def show_posterior(console: Console, posterior: "Posterior", notes: tuple[str, ...] = ()) -> None:
    """Print all that there is to say of a run. The notes are warnings that the posterior does not know of."""
    from dpmcmc.results.table import summary_rows

    show_not_private(console, posterior)
    title = f"{posterior.model}, {posterior.sampler}: {posterior.size_text}"
    console.print(rows_table(title, summary_rows(posterior), left_out=("mcse",)))
    show_quality(console, posterior, notes)
    console.print()
    console.print(statement_table(posterior))
    show_not_private(console, posterior)


def show_quality(console: Console, posterior: "Posterior", notes: tuple[str, ...] = ()) -> None:
    """Print how far the result is to be trusted, and all warnings."""
    for label, text in posterior.quality_rows:
        console.print(Text(f"{label}: {text}"))
    for warning in dict.fromkeys([*notes, *posterior.warnings]):
        console.print(Text(f"Warning: {warning}", "bold red"))


def show_not_private(console: Console, posterior: "Posterior") -> None:
    """Say it if a run was seeded."""
    if not posterior.privacy.private:
        console.print(Text("NOT PRIVATE: this run was seeded; who knows the seed knows the noise.", "bold red"))


def statement_table(posterior: "Posterior", name: str = "") -> Table:
    """Return what was spent and released."""
    from dpmcmc.results.report import statement_rows

    statement = Table(
        box=box.SIMPLE_HEAD,
        show_header=False,
        title=f"{name}: what was spent and released" if name else "What was spent and released",
        title_justify="left",
        title_style="bold",
    )
    statement.add_column("", style="dim")
    statement.add_column("")
    for label, value in statement_rows(posterior):
        statement.add_row(Text(label), Text(value))
    return statement


def rows_table(title: str, summary: "SummaryRows", left_out: tuple[str, ...]) -> Table:
    """Return a table of numbers that fits into 80 columns, without the columns whose names begin so."""
    shown = [place for place, name in enumerate(summary.columns) if not name.startswith(left_out)]
    table = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("", overflow="fold")
    for place in shown:
        head = summary.columns[place].replace("noise_share", "noise")
        head = head.replace(" ", "\n", 1) if len(head) > 8 else head
        table.add_column(Text(head), justify="right", no_wrap=True)
    for name, values in summary.rows:
        # What is not a coefficient has a name of another form.
        table.add_row(
            Text(re.sub(r"^coefficients\[(.*)\]$", r"\1", name)),
            *(_short(summary.columns[place], values[place]) for place in shown),
        )
    return table


def show_files(console: Console, files: Mapping[Path, str]) -> None:
    """Say what was written."""
    console.print(Text("Written", "bold"))
    for path, what in files.items():
        console.print(Text(f"  {path}  ({what})"), soft_wrap=True)


def as_json(posterior: "Posterior", notes: tuple[str, ...], folder: Path | None) -> dict[str, Any]:
    """Return all that there is to say of a run for programs; the folder is None if nothing could be written."""
    from dpmcmc.results.folder import RUN_FILES
    from dpmcmc.results.table import summary_rows

    privacy, quality = posterior.privacy, posterior.quality
    columns, rows = summary_rows(posterior)
    return {
        "private": bool(privacy.private),
        "mode": privacy.mode,
        "model": posterior.model,
        "sampler": posterior.sampler,
        "method": None if quality is None else quality.method,
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "num_records": privacy.num_records,
        "num_chains": posterior.num_chains,
        "num_draws": posterior.num_draws,
        "flagged": None if quality is None else quality.flagged,
        "warnings": list(dict.fromkeys([*notes, *posterior.warnings])),
        "summary": {name: plain_numbers(columns, values) for name, values in rows},
        "quality": None if quality is None else quality.to_dict(),
        "privacy": privacy.to_dict(),
        "files": [] if folder is None else [os.fspath(folder / name) for name in RUN_FILES],
    }


def plain_numbers(columns: list[str], values: list[float]) -> dict[str, float | None]:
    """Return a row by its columns, with None for what is not finite, which is no JSON."""
    return {name: value if math.isfinite(value) else None for name, value in zip(columns, values, strict=True)}


def _short(column: str, value: float) -> str:
    from dpmcmc.results.quality import as_percent

    if math.isnan(value):
        return "–"
    if column == "noise_share":
        return as_percent(value)
    return f"{value:,.0f}" if abs(value) >= 100.0 else f"{value:.3g}"
