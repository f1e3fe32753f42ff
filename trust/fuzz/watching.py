"""What may come of reading an input, and what may not: the oracle, with a canary and an audit hook."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trust.fuzz.mutations import CANARY, CANARY_MODULE

LONGEST_TEXT = 2000  # of an error
PATIENCE = 20.0  # seconds for one input
_FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.forkpty",
    "os.startfile",
    "os.kill",
    "pty.spawn",
    "subprocess.Popen",
    "pickle.find_class",
    "socket.connect",
    "socket.bind",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "urllib.Request",
    "ftplib.connect",
    "smtplib.connect",
    "sqlite3.enable_load_extension",
    "sqlite3.load_extension",
    "webbrowser.open",
)


class TooLong(BaseException):
    """Reading took longer than `PATIENCE`. Not an Exception: no reader may take it for damage."""


@dataclass(frozen=True)
class Outcome:
    """What came of an input.

    Attributes
    ----------
    kind
        "read", "refused" or "finding".
    what
        Of a refusal the class of the error; of a finding what it was, in one line.
    """

    kind: str
    what: str = ""


class Watch:
    """Watches this process while a reader is at an input. One in a process: an audit hook cannot be taken out.

    Parameters
    ----------
    folder
        Where a reader may write, and where it works while it reads (so that a canary lands there).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.seen: list[str] = []
        self._on = False
        modules = self.folder / "modules"
        modules.mkdir(exist_ok=True)
        self._canary = modules / CANARY
        (modules / f"{CANARY_MODULE}.py").write_text(f"open({str(self._canary)!r}, 'w').close()\n")
        sys.path.append(str(modules))
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._on:
            return
        if event in _FORBIDDEN:
            self.seen.append(event)
        elif event == "os.putenv" and os.fsdecode(arguments[0]) == CANARY:
            self.seen.append("os.putenv")
        elif event == "open":
            path, mode, flags = arguments
            writes = any(sign in (mode or "") for sign in "wax+") or (
                isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) != 0
            )
            if writes and not self._inside(path):
                self.seen.append("open for writing, elsewhere")
        elif event == "sqlite3.connect" and not self._inside(_path_of(arguments[0])):
            self.seen.append("sqlite3.connect, elsewhere")
        elif event == "import" and arguments[0].partition(".")[0] == CANARY_MODULE:
            self.seen.append("import of what the input names")
        elif event == "exec":
            source = getattr(arguments[0], "co_filename", "")
            # Modules that are loaded when they are first needed have a file; text of an input has none.
            if not source.startswith("<frozen") and not os.path.isfile(source) and not _is_generated():
                maker = Path(sys._getframe(1).f_code.co_filename).name
                self.seen.append(f"exec of code from {source!r} in {maker}")

    def _inside(self, path: Any) -> bool:
        if isinstance(path, int):
            return True
        text = os.fsdecode(path)
        return text == os.devnull or os.path.realpath(text).startswith(str(self.folder))

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Watch what is done inside."""
        self.seen.clear()
        here = os.getcwd()
        os.chdir(self.folder)
        self._on = True
        try:
            yield
        finally:
            self._on = False
            os.chdir(here)

    def traces(self) -> list[str]:
        """Return what has been seen, and remove the canary."""
        found = list(self.seen)
        for path in (self.folder / CANARY, self._canary):
            if path.exists():
                path.unlink()
                found.append("the canary file is there")
        if os.environ.pop(CANARY, None) is not None:
            found.append("the canary is in the environment")
        if sys.modules.pop(CANARY_MODULE, None) is not None:
            found.append("the canary module was imported")
        return sorted(set(found))


_MAKERS = (
    "/collections/__init__.py",
    "/dataclasses.py",
    "/sqlalchemy/util/langhelpers.py",
    "/scipy/stats/_distn_infrastructure.py",
)


def _is_generated() -> bool:
    """Whether code without a file is made by one of those that make classes from texts of their own."""
    maker = sys._getframe(2).f_code.co_filename.replace(os.sep, "/")
    return maker.endswith(_MAKERS)


def _path_of(database: Any) -> str:
    text = os.fsdecode(database)
    if text.startswith("file:"):
        from urllib.parse import unquote

        return unquote(text.removeprefix("file://").removeprefix("file:").partition("?")[0])
    return text


def observe(watch: Watch, read: Callable[[], Any], errors: tuple[type[BaseException], ...]) -> Outcome:
    """Read an input, and say what came of it.

    Parameters
    ----------
    watch
        The watch of this process.
    read
        Reads it.
    errors
        Those that are allowed: of the package, and `FileNotFoundError` and the like where they are documented.

    Returns
    -------
    Outcome
    """
    with _patience(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with watch():
                read()
            outcome = Outcome("read")
        except errors as error:
            text = str(error)
            outcome = Outcome("refused", type(error).__name__)
            if len(text) > LONGEST_TEXT or len(text.splitlines()) > 1:
                shape = f"{len(text)} characters in {len(text.splitlines())} lines"
                outcome = Outcome("finding", f"a text of {type(error).__name__} has {shape}{_where(error)}")
        except TooLong as error:
            outcome = Outcome("finding", f"takes longer than {PATIENCE:g} s{_where(error)}")
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            outcome = Outcome("finding", f"{type(error).__name__}{_where(error)}")
    if traces := watch.traces():
        return Outcome("finding", "; ".join(traces))
    foreign = [one for one in caught if not _is_known(one.category)]
    if foreign and outcome.kind != "finding":
        place = f"{Path(foreign[0].filename).name}:{foreign[0].lineno}"
        return Outcome("finding", f"{foreign[0].category.__name__} of a library at {place}")
    return outcome


def _is_known(category: type[Warning]) -> bool:
    from dpmcmc.errors import DPMCMCWarning

    return issubclass(category, DPMCMCWarning | ResourceWarning)


def _where(error: BaseException) -> str:
    """The last place of this package that an error has come through."""
    place, trace = "", error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if f"{os.sep}dpmcmc{os.sep}" in name:
            place = f" at {name.rpartition(f'{os.sep}dpmcmc{os.sep}')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
