"""Runs cells side by side in worker processes, one on each core, and continues where an earlier run stopped.

A finished cell is a file, and a cell with a file is never run again. The parent process computes nothing: it hands out
cells, longest first, and shows what is done and how long the rest will take.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dpmcmc.studies.cells import Cell, finish_cell, is_finished

Work = Callable[[Cell, Path, str | None], dict[str, Any]]


@dataclass
class Outcome:
    """What became of the cells.

    Attributes
    ----------
    skipped
        Number of cells that were finished before.
    finished
        Number of cells that were run now.
    failed
        Cells that raised an error, with its text.
    interrupted
        Whether Ctrl-C came before the end.
    seconds
        How long it took.
    """

    skipped: int = 0
    finished: int = 0
    failed: list[tuple[Cell, str]] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    *,
    jobs: int | None = None,
    console: Console | None = None,
    work: Work = finish_cell,
) -> Outcome:
    """Run all cells that have no result yet.

    Parameters
    ----------
    cells
        What to run.
    folder
        Where the results go.
    jobs
        Worker processes at once. Default: one for each core that this process may use.
    console
        Where progress is shown. Default: stderr.
    work
        What a worker does with a cell. (Tests put in something that counts.)
    """
    began = time.monotonic()
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    waiting = [cell for cell in cells if not is_finished(folder, cell)]
    outcome = Outcome(skipped=len(cells) - len(waiting))
    sizes = {cell: cell.work() for cell in waiting}
    waiting.sort(key=lambda cell: (sizes[cell], -cell.repeat))  # taken from the end
    cores = _cores()
    number = min(len(cores) if jobs is None else jobs, len(waiting))
    workers: list[_Worker] = []
    with _display(console or Console(stderr=True), len(waiting), sum(sizes.values())) as show:
        try:
            with _environment(folder):
                commit = current_commit()
                for place in range(number):
                    workers.append(_Worker(cores[place % len(cores)] if number <= len(cores) else None))
                    workers[-1].begin(folder, commit, work, waiting.pop())
                while busy := [worker for worker in workers if worker.cell is not None]:
                    for worker in _ready(busy):
                        cell, row, error = worker.collect()
                        if row is None:
                            outcome.failed.append((cell, error))
                        else:
                            outcome.finished += 1
                        show(cell, row, error, sizes[cell])
                        if waiting:
                            worker.begin(folder, commit, work, waiting.pop())
        except KeyboardInterrupt:
            outcome.interrupted = True
        finally:
            for worker in workers:
                worker.end(kill=outcome.interrupted)
    outcome.seconds = time.monotonic() - began
    return outcome


def current_commit() -> str | None:
    """Return the commit of the source tree that runs, marked if the tree was changed; None outside a repository."""
    package = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() / "src" / "dpmcmc" != package:
            return None  # installed into somebody else's repository
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


# ---------------------------------------------------------------------------------------------------- workers


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


@contextmanager
def _environment(folder: Path) -> Iterator[None]:
    """Set what workers inherit: one thread for linear algebra, and compiled code that is kept for the next cells."""
    wanted = {
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "JAX_COMPILATION_CACHE_DIR": str((folder / "compiled").resolve()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5",
    }
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def _as_the_child_should_be(core: int | None) -> Iterator[None]:
    """Take on for a moment what a child inherits when it is started: one core, and no ears for Ctrl-C.

    XLA and BLAS count the cores when they are loaded, so that it is too late to choose one inside the child; and a
    Ctrl-C in a terminal goes to all processes, of which only the parent should answer.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    pinned = core is not None and hasattr(os, "sched_setaffinity")
    cores = os.sched_getaffinity(0) if pinned else set()
    try:
        if pinned and core is not None:
            os.sched_setaffinity(0, {core})
        yield
    finally:
        if pinned:
            os.sched_setaffinity(0, cores)
        signal.signal(signal.SIGINT, before)


class _Worker:
    """A process that runs one cell after the other. One that dies is replaced when the next cell comes."""

    def __init__(self, core: int | None) -> None:
        self._core = core
        self._process: Any = None
        self._pipe: Any = None
        self.cell: Cell | None = None

    def begin(self, folder: Path, commit: str | None, work: Work, cell: Cell) -> None:
        """Hand out a cell."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, folder, commit, work), daemon=True)
            with _as_the_child_should_be(self._core):
                self._process.start()
            theirs.close()  # so that the pipe ends when the child does
        self.cell = cell
        with suppress(OSError):  # a process that died meanwhile: `collect` will say so
            self._pipe.send(cell)

    @property
    def waits_on(self) -> Any:
        """What becomes ready when there is an answer, or when the process has died."""
        return self._pipe

    def collect(self) -> tuple[Cell, dict[str, Any] | None, str]:
        """Return the cell, its row (None if it failed) and the error."""
        assert self.cell is not None
        cell, self.cell = self.cell, None
        try:
            row, error = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self._process = None
            return cell, None, f"the worker process ended with code {code} (out of memory?)"
        return cell, row, error

    def end(self, *, kill: bool) -> None:
        """Let the process go, at once or when it is idle."""
        if self._process is None:
            return
        if kill or self.cell is not None:
            self._process.terminate()
        else:
            with suppress(OSError):
                self._pipe.send(None)
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _ready(workers: list[_Worker]) -> list[_Worker]:
    found = connection.wait([worker.waits_on for worker in workers])
    return [worker for worker in workers if worker.waits_on in found]


def _serve(pipe: Any, folder: Path, commit: str | None, work: Work) -> None:
    """Run in a worker: cells come in, rows or errors go out, until None comes in or the parent is gone."""
    try:
        for cell in iter(pipe.recv, None):
            try:
                pipe.send((work(cell, folder, commit), ""))
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                text = f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
                pipe.send((None, text))
    except (EOFError, OSError):  # nobody reads or writes at the other end
        sys.exit(1)


# --------------------------------------------------------------------------------------------------- progress

Show = Callable[[Cell, dict[str, Any] | None, str, float], None]


@contextmanager
def _display(console: Console, number: int, total: float) -> Iterator[Show]:
    """Show a bar where there is a terminal, else a line for each cell; a failure always gets a line."""
    began = time.monotonic()
    done = [0, 0.0]  # cells, work

    def left() -> str:
        if not done[1]:
            return "?"
        return _duration((time.monotonic() - began) * (total - done[1]) / done[1])

    with Progress(
        TextColumn("{task.fields[cells]} cells"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]} left"),
        console=console,
        disable=not console.is_terminal or number == 0,
    ) as bar:
        task = bar.add_task("", total=total, cells=f"0/{number}", left="?")

        def show(cell: Cell, row: dict[str, Any] | None, error: str, size: float) -> None:
            done[0], done[1] = done[0] + 1, done[1] + size
            count = f"{done[0]}/{number}"
            bar.update(task, completed=done[1], cells=count, left=left())
            if row is None:
                console.print(f"failed: {cell}: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            elif not console.is_terminal:
                text = f"{count} {cell}: MMD {row['mmd']:.3f}, {row['seconds']:.1f} s; {left()} left"
                console.print(text, markup=False, highlight=False, soft_wrap=True)

        yield show


def _duration(seconds: float) -> str:
    """Write a time so that a person can read it."""
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"
