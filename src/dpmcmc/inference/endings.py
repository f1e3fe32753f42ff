"""How a run ends before its time: what is said, and that nothing paid for is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from dpmcmc.curator import processes
from dpmcmc.errors import DPMCMCError, RunError

INTERRUPTED = "it was interrupted"
NOT_WRITTEN = "the run is done, but"
NOTHING_SPENT, ALL_SPENT = "nothing was spent", "the whole budget counts as spent"


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let Ctrl-C wait while paid draws are put together. (Only the main thread has a say in that.)"""
    processes.wait_no_more()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def before_anything_is_spent(first: str) -> Iterator[None]:
    """Say so of what ends a run before its first step (or question): Ctrl-C, or another of several processes."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted before the first {first}; {NOTHING_SPENT}") from None
    except RunError as error:
        raise RunError(f"{error}; {NOTHING_SPENT}") from None


@contextmanager
def terminated_like_interrupted(wanted: bool) -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does. (Only the main thread has a say in that.)"""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def reason_of(error: Exception) -> str:
    """Say what happened, in words that cannot hold a value of a record."""
    if isinstance(error, RunError):
        return str(error)  # it is called that already
    if isinstance(error, DPMCMCError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return "there was not enough memory"
    return f"of an error of type {type(error).__name__}"


def ended_without_draws(when: str, reason: str, spent: str) -> BaseException:
    """Return what to raise where a run ended and there are no draws; outside of all handlers, to carry no other error.

    Parameters
    ----------
    when
        "before there were any draws", say.
    reason
        Why: ``INTERRUPTED``, or what `reason_of` said.
    spent
        ``NOTHING_SPENT``, ``ALL_SPENT``, ...
    """
    if reason == INTERRUPTED:
        return KeyboardInterrupt(f"interrupted {when}; {spent}")
    return RunError(f"the run ended {when}, because {reason}; {spent}")


def cut_short(num_draws: int | str, reason: str, spent: str = ALL_SPENT) -> str:
    """Say that a run ended early, and that its draws are returned all the same."""
    return (
        f"the run ended after {num_draws} draws of each chain, because {reason}; these are returned, marked "
        f"incomplete; {spent}"
    )


@contextmanager
def attached_to_errors(theta: NDArray[Any]) -> Iterator[None]:
    """Let no draws be lost that cannot be put together: unconstrained draws × chains × parameters, which are paid."""
    try:
        yield
    except Exception as error:
        raise RunError(
            f"the run is done, but its draws could not be put together ({type(error).__name__}: {error}); they are "
            "paid for, and attached to this error as `unconstrained_draws` (draws × chains × parameters)",
            unconstrained_draws=theta,
        ) from error
