"""Runs the cells of a study in parallel worker processes and continues where an earlier run stopped.

Every finished cell has a file with its result, and a cell with such a file is not run again. This process gives the
cells to the workers, the longest first, and shows how many are done and how long the others will take. The workers do
the computing, one on each core of the processor.
"""

import math
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
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from studies.cells import Result, finish_cell, is_finished


class Task(Protocol):
    """What the runner has to know of a cell."""

    @property
    def repeat(self) -> int:
        """Number of the repeat, from 0."""

    def work(self) -> float:
        """Return about how much there is to compute."""


Work = Callable[[Any, Path, str | None], Result]
"""Runs one cell and files the result: called with the cell, the folder and the commit."""


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
    failed: list[tuple[Task, str]] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0


def run_cells(
    cells: Sequence[Task],
    folder: Path,
    *,
    jobs: int | None = None,
    console: Console | None = None,
    work: Work = finish_cell,
    finished: Callable[[Path, Any], bool] = is_finished,
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
        What a worker does with a cell. Tests give something else than running it.
    finished
        Whether a cell has a result already.
    """
    began = time.monotonic()
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    waiting = [cell for cell in cells if not finished(folder, cell)]
    outcome = Outcome(skipped=len(cells) - len(waiting))
    sizes = {cell: cell.work() for cell in waiting}
    waiting.sort(key=lambda cell: (sizes[cell], -cell.repeat))  # the next cell is taken from the end of the list
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
                        answer = worker.collect()
                        if answer.result is None:
                            outcome.failed.append((answer.cell, answer.error))
                        else:
                            outcome.finished += 1
                        show(answer, sizes[answer.cell])
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
    """Return the commit of this repository, marked as dirty if files were changed; None if git knows nothing of it."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None  # a copy inside another repository
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


# ---------------------------------------------------------------------------------------------------- workers


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


@contextmanager
def _environment(folder: Path) -> Iterator[None]:
    """Set environment variables for the workers: one thread for linear algebra, and a cache of compiled code.

    What one cell has compiled is then loaded by the next ones with the same shapes. Variables that are already set
    stay as they are, and the others are removed again at the end.
    """
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
def _settings_for_a_worker(core: int | None) -> Iterator[None]:
    """Bind this process to one core and let it ignore Ctrl-C, while a worker is started and inherits both.

    The worker cannot choose its core itself: XLA and BLAS count the cores when they are loaded, before any code of ours
    runs there. And Ctrl-C in a terminal is sent to all processes, but only this one should react to it and end the
    workers.
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


class Answer(NamedTuple):
    """What a worker says about a cell: the result, or None and the text of the error."""

    cell: Task
    result: Result | None
    error: str


_Pipe: TypeAlias = "connection.Connection[Any, Any]"


class _Child(NamedTuple):
    """A running process and this end of the pipe to it."""

    process: SpawnProcess
    pipe: _Pipe


class _Worker:
    """Runs cells in a child process, one after the other. If the process dies, the next cell gets a new one."""

    def __init__(self, core: int | None) -> None:
        self._core = core
        self._child: _Child | None = None
        self.cell: Task | None = None

    def begin(self, folder: Path, commit: str | None, work: Work, cell: Task) -> None:
        """Give the child a cell to run."""
        if self._child is None:
            self._child = self._start(folder, commit, work)
        self.cell = cell
        with suppress(OSError):  # the process has died meanwhile: `collect` reports it
            self._child.pipe.send(cell)

    def _start(self, folder: Path, commit: str | None, work: Work) -> _Child:
        """Start a new interpreter. It takes over this one's `sys.path`, so that it finds the same packages."""
        context = multiprocessing.get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, folder, commit, work), daemon=True)
        with _settings_for_a_worker(self._core):
            process.start()
        theirs.close()  # now only the child holds that end, so that its death closes the pipe
        return _Child(process, pipe)

    @property
    def waits_on(self) -> _Pipe:
        """The pipe, which becomes readable when there is an answer, or when the process has died."""
        assert self._child is not None
        return self._child.pipe

    def collect(self) -> Answer:
        """Return what the child says about its cell; call it when the pipe is readable."""
        assert self.cell is not None
        assert self._child is not None
        cell, self.cell = self.cell, None
        process, pipe = self._child
        try:
            answer = pipe.recv()
        except (EOFError, OSError):
            process.join()
            self._child = None
            return Answer(cell, None, f"the worker process ended with code {process.exitcode} (out of memory?)")
        assert isinstance(answer, Answer)
        return answer

    def end(self, *, kill: bool) -> None:
        """End the process: at once with ``kill`` or if it still works on a cell, else by telling it to stop."""
        if self._child is None:
            return
        process, pipe = self._child
        if kill or self.cell is not None:
            process.terminate()
        else:
            with suppress(OSError):
                pipe.send(None)
        process.join(timeout=10)
        if process.is_alive():
            process.kill()
            process.join()


def _ready(workers: list[_Worker]) -> list[_Worker]:
    """Wait until at least one worker has an answer or has died; return all such workers."""
    found = connection.wait([worker.waits_on for worker in workers])
    return [worker for worker in workers if worker.waits_on in found]


def _serve(pipe: _Pipe, folder: Path, commit: str | None, work: Work) -> None:
    """Run in the child: receive cells and send answers, until None is received or the parent is gone."""
    try:
        while (cell := pipe.recv()) is not None:
            try:
                answer = Answer(cell, work(cell, folder, commit), "")
            except Exception as error:
                place = traceback.extract_tb(error.__traceback__)[-1]
                text = f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
                answer = Answer(cell, None, text)
            pipe.send(answer)
    except (EOFError, OSError):  # the parent has closed its end
        sys.exit(1)


# --------------------------------------------------------------------------------------------------- progress

Show = Callable[[Answer, float], None]
"""Shows that a cell is done: called with the answer and the work of the cell."""


@contextmanager
def _display(console: Console, number: int, total: float) -> Iterator[Show]:
    """Show progress: a bar on a terminal, elsewhere a line for each cell. A failure gets a line in both cases."""
    began = time.monotonic()
    cells_done, work_done = 0, 0.0

    def left() -> str:
        """Return the time left, if the work goes on as fast as so far."""
        if not work_done:
            return "?"
        return _duration((time.monotonic() - began) * (total - work_done) / work_done)

    with Progress(
        TextColumn("{task.fields[cells]} cells"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]} left"),
        console=console,
        disable=not console.is_terminal or number == 0,
    ) as bar:
        task = bar.add_task("", total=total, cells=f"0/{number}", left="?")

        def show(answer: Answer, size: float) -> None:
            nonlocal cells_done, work_done
            cells_done, work_done = cells_done + 1, work_done + size
            count, result = f"{cells_done}/{number}", answer.result
            bar.update(task, completed=work_done, cells=count, left=left())
            if result is None:
                text = f"failed: {answer.cell}: {answer.error}"
                console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
            elif not console.is_terminal:
                text = f"{count} {answer.cell}: {_found(result)}{result['seconds']:.1f} s; {left()} left"
                console.print(text, markup=False, highlight=False, soft_wrap=True)

        yield show


def _found(result: Result) -> str:
    """Write the one number that tells most about a result, if it has one."""
    for name, text in {"mmd": "MMD {:.3f}, ", "rms_error": "error {:.2f} sds, "}.items():
        value = result.get(name, math.nan)
        if isinstance(value, float) and not math.isnan(value):
            return text.format(value)
    return ""


def _duration(seconds: float) -> str:
    """Write a time so that a person can read it."""
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"
