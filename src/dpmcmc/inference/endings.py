"""How a run ends before its time: what is said, and that nothing paid for is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dpmcmc.errors import DPMCMCError, RunError


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let Ctrl-C wait while paid draws are put together. (Only the main thread has a say in that.)"""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def reason_of(error: Exception) -> str:
    """Say what happened, in words that cannot hold a value of a record."""
    if isinstance(error, RunError):
        return str(error)  # it is called that already
    if isinstance(error, DPMCMCError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return "there was not enough memory"
    return f"of an error of type {type(error).__name__}"
