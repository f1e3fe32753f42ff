"""Several processes in one run: each shows that it is there, and none waits for ever for one that is not.

JAX's collectives wait until all processes have come, and nothing in Python can end that wait. So before each of them
the processes *meet*, by messages through JAX's coordination service: there waiting ends with an error as soon as
another process says that it has failed, or has given no sign of life for `PATIENCE` seconds. A thread gives these
signs. A process that is inside a collective when another goes, and does not come out of it, is ended by a second one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax

from dpmcmc.errors import DPMCMCError, QueryError, RunError

PATIENCE = 60.0
"""Seconds without a sign of life after which another process counts as gone."""
GRACE = 10.0
"""Seconds that a process has, once another is known to be gone, to say so itself before it is ended."""
EXIT_CODE = 1
"""Of a process that had to be ended: that of an error that nobody handles."""
_BEAT = 2.0
_LOOK_AGAIN = 1.0
_LAST_WORD = 5.0
_ALIVE, _DONE, _FAILED, _INTERRUPTED, _STOPPED = "alive", "done", "failed", "interrupted", "stopped"

_runs = itertools.count(1)
_current: Watch | None = None


def coordination_client() -> Any:
    """Return what talks to JAX's coordination service; None where there is none. (All that is private to JAX here.)"""
    from jax._src import distributed

    return distributed.global_state.client


@contextlib.contextmanager
def together(arguments: str) -> Iterator[None]:
    """Run what is inside on all processes: if one fails, all do. Nothing, if there is one process only.

    Parameters
    ----------
    arguments
        What the run is, as text: must be the same on all processes. Only its hash is told to the others.
    """
    global _current
    client = coordination_client() if jax.process_count() > 1 else None
    if client is None or _current is not None:
        yield
        return
    watch = Watch(client, jax.process_index(), jax.process_count(), next(_runs))
    _current = watch
    watch.begin()
    state = _DONE
    try:
        watch.meet(hashlib.sha256(re.sub(" at 0x[0-9a-f]+", "", arguments).encode()).hexdigest())
        yield
    except BaseException as error:
        state = watch.state_after(error)
        raise
    finally:
        _current = None
        watch.end(state)


def meet() -> None:
    """Wait until all processes are here, before they wait for each other in a collective.

    Raises
    ------
    RunError
        One of them has failed, or is gone.
    """
    if _current is not None:
        _current.meet()


def wait_no_more() -> None:
    """From here on this process needs no other, and is not ended because of one: paid draws are put together."""
    if _current is not None:
        _current.needs_others = False


class Watch:
    """One process's view of one run of several.

    Parameters
    ----------
    client
        Of JAX's coordination service, which keeps values by their keys.
    process, num_processes
        Which of how many this is.
    run
        A number that all processes have for this run.
    """

    def __init__(self, client: Any, process: int, num_processes: int, run: int) -> None:
        self._client, self._process, self._others = client, process, [k for k in range(num_processes) if k != process]
        self._room = f"dpmcmc/{run}"
        self._before = f"dpmcmc/{run - 2}/"
        self._meetings = 0
        self._seen: dict[int, tuple[str, float]] = {}  # what each other process said last, and when that was new
        self._heard = time.monotonic()  # when the coordination service last answered
        self._over = threading.Event()
        self._stopped_by_others = False
        self.needs_others = True

    def begin(self) -> None:
        """Begin to show that this process is alive, and to look at the others."""
        if self._process == 0:
            with contextlib.suppress(Exception):
                self._client.key_value_delete(self._before)
        for work in (self._beat, self._guard):
            threading.Thread(target=work, daemon=True, name=f"dpmcmc-{work.__name__}").start()

    def end(self, state: str) -> None:
        """Say how it ended here, if anybody hears it."""
        self._over.set()
        last_word = threading.Thread(target=self._try_to_say, args=(state,), daemon=True)
        last_word.start()
        last_word.join(_LAST_WORD)  # process 0 may hang, and the message with it

    def state_after(self, error: BaseException) -> str:
        """Return what the others are told of an error: its type, never its text."""
        if self._stopped_by_others:
            return _STOPPED
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else f"{_FAILED} {type(error).__name__}"

    def _say(self, state: str) -> None:
        self._client.key_value_set(f"{self._room}/state/{self._process}", state, allow_overwrite=True)

    def _try_to_say(self, state: str) -> None:
        with contextlib.suppress(Exception):
            self._say(state)

    # ------------------------------------------------------------------------------------------------ the others

    def _beat(self) -> None:
        """Give signs of life and look for those of the others, until the run is over. (May hang, if process 0 does.)"""
        for number in itertools.count():
            with contextlib.suppress(Exception):
                if not self._over.is_set():
                    self._say(f"{_ALIVE} {number}")
                self._look()
            if self._over.wait(_BEAT):
                return

    def _look(self) -> None:
        for key, state in self._client.key_value_dir_get(f"{self._room}/state/"):
            process, now = int(key.rsplit("/", 1)[1]), time.monotonic()
            if process != self._process and self._seen.get(process, ("", 0.0))[0] != state:
                self._seen[process] = state, now
        self._heard = time.monotonic()

    def problem(self) -> str | None:
        """Say which of the others is gone or has failed; None: all is well."""
        now, seen = time.monotonic(), dict(self._seen)
        for process, (state, since) in seen.items():
            if state.startswith(_FAILED):
                return f"process {process} has failed ({state.removeprefix(_FAILED).strip()}: see what it says itself)"
            if state == _INTERRUPTED:
                return f"process {process} was interrupted"
            if state.startswith(_ALIVE) and now - since > PATIENCE and self._heard - since > PATIENCE:
                return f"process {process} has given no sign of life for {PATIENCE:.0f} seconds"
        if now - self._heard > PATIENCE:
            return f"process 0 has not answered for {PATIENCE:.0f} seconds"
        stopped = [process for process, (state, _) in seen.items() if state == _STOPPED]
        return f"process {stopped[0]} has stopped, because another has" if stopped else None

    def _guard(self) -> None:
        """End this process, if it needs another that is gone and does not notice it for itself."""
        since: float | None = None
        while not self._over.wait(_LOOK_AGAIN):
            problem = self.problem() if self.needs_others else None
            if problem is None:
                since = None
                continue
            since = time.monotonic() if since is None else since
            if time.monotonic() - since > GRACE:
                text = f"dpmcmc: this process ends, because {problem}; what was charged counts as spent\n"
                os.write(2, text.encode())
                os._exit(EXIT_CODE)

    # ------------------------------------------------------------------------------------------------ meetings

    def meet(self, same: str = "") -> None:
        """Wait until all processes are here, and see that all bring the same."""
        self._meetings += 1
        place = f"{self._room}/meeting/{self._meetings}"
        try:
            if self._process == 0:
                brought = [self._await(f"{place}/{process}", process) for process in self._others]
                different = [process for process, own in zip(self._others, brought, strict=True) if own != same]
                self._client.key_value_set(f"{place}/0", ",".join(map(str, different)))
                self._client.key_value_delete(f"{self._room}/meeting/{self._meetings - 1}/")
            else:
                self._send(f"{place}/{self._process}", same)
                different = [int(process) for process in self._await(f"{place}/0", 0).split(",") if process]
        except DPMCMCError:
            self._stopped_by_others = True
            raise
        except jax.errors.JaxRuntimeError:
            self._stopped_by_others = True
            raise RunError("process 0 cannot be reached any more") from None
        if different:
            raise QueryError(
                f"process {different[0]} was given another model or other arguments than process 0; all processes "
                "must call sample with the same, but for their rows; nothing was spent"
            )

    def _send(self, key: str, value: str) -> None:
        """Leave a message with process 0, or raise once it cannot be left. (Nothing else ends a message that hangs.)"""
        failed: list[Exception] = []

        def send() -> None:
            try:
                self._client.key_value_set(key, value)
            except Exception as error:
                failed.append(error)

        message = threading.Thread(target=send, daemon=True)
        message.start()
        while message.is_alive():
            message.join(_LOOK_AGAIN)
            problem = self.problem() if message.is_alive() else None
            if problem is not None:
                raise RunError(problem)
        if failed:
            raise failed[0]

    def _await(self, key: str, process: int) -> str:
        """Return what another process has to say, or raise once it cannot come."""
        while True:
            try:
                return self._client.blocking_key_value_get(key, int(1000 * _LOOK_AGAIN))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            problem = self.problem()
            if problem is None and self._seen.get(process, ("", 0.0))[0] == _DONE:
                problem = f"process {process} has finished this run, and this one has not"
            if problem is not None:
                raise RunError(problem)
