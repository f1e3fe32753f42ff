"""A progress bar for a run: steps, acceptance (released, hence public), budget spent, time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import jax
import numpy as np

Progress = Callable[[int, Any, Any], None]

# Rich leaves the program where its pipe is closed.
_FAILURES = (Exception, SystemExit)


def no_progress(steps: int, info: Any, budget: Any) -> None:
    """Report nothing."""


@contextmanager
def progress_bar(wanted: bool, name: str, total_steps: int) -> Iterator[Progress]:
    """Show a progress bar if it is wanted and there is a terminal. If it fails, the run goes on without it."""
    if not (wanted and sys.stderr.isatty() and jax.process_index() == 0):
        yield no_progress
        return
    with ExitStack() as stack:
        shown: list[Progress] = []
        with suppress(*_FAILURES):
            bar = terminal_progress(name, total_steps)
            shown.append(bar.__enter__())
            stack.push(lambda *error: _leave(bar))

        def report(steps: int, info: Any, budget: Any) -> None:
            try:
                for one in shown:
                    one(steps, info, budget)
            except _FAILURES:
                shown.clear()

        yield report


def _leave(bar: Any) -> None:
    with suppress(*_FAILURES):
        bar.__exit__(None, None, None)


@contextmanager
def terminal_progress(name: str, total_steps: int) -> Iterator[Progress]:
    """Show a Rich progress bar on the terminal's standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=14),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(name, total=total_steps, facts="compiling")

        def report(steps: int, info: Any, budget: Any) -> None:
            facts = []
            acceptance = getattr(info, "acceptance_rate", None)
            if acceptance is not None:
                facts.append(f"accepted {float(np.mean(acceptance)):.2f}")
            if budget is not None:
                facts.append(f"spent {budget.spent / budget.total:.0%}")
            bar.update(task, advance=steps, facts=", ".join(facts))

        yield report
