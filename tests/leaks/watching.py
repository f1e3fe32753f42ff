"""Everything that a private run lets out, written down, under randomness that can be repeated.

A run is watched from outside: what it returns or raises (all attributes, recursively), what it prints (by the file
descriptors), warns and logs (every logger, at DEBUG), what it shows as progress, every file that it leaves, makes,
renames or has removed (with its content at that moment), and what it leaves behind in the process: the package's own
variables, caches and kept programs (their text), threads, open files, settings. Of all that only wall times and
memory addresses are masked.
"""

import contextlib
import dataclasses
import datetime
import enum
import functools
import hashlib
import io
import logging
import os
import pathlib
import pickle
import re
import secrets
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import traceback
import types
import warnings

import arviz
import jax
import numpy as np
import pytest
import xarray

from dpmcmc.curator import noise, passes
from dpmcmc.data import marks_of
from dpmcmc.inference import books, progress
from dpmcmc.privacy import ledger
from dpmcmc.queries import release
from dpmcmc.results import arviz_bridge

NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
_MASKED = (
    (re.compile(r"\b[0-9.]+(e-?\d+)? ?(s|sec|ms|seconds)\b"), "<time>"),
    (re.compile(r"\b0x[0-9a-f]+\b"), "<address>"),
)


def masked(text):
    for pattern, instead in _MASKED:
        text = pattern.sub(instead, text)
    return text


# ------------------------------------------------------------------ the same randomness, the same releases


class Releases:
    """The seam: where secret sums meet noise (``queries.release.noised``, the one place), the sums are made public.

    On the host those of the first data set are written down, and its neighbour, whose own have been computed as
    always, is given the same. In compiled code both are given zeros, which the compiler cannot foresee: the sums are
    computed. Noise and all other randomness being equal, so is every release; what still differs was not noised.
    """

    def __init__(self):
        self._noised, self._sums, self._place = release.noised, [], None

    def record(self):
        self._sums, self._place = [], None

    def replay(self):
        self._place = 0

    @property
    def number(self):
        return len(self._sums)

    def noised(self, total, drawn):
        if isinstance(total, jax.core.Tracer):
            # No sum is as large as that, so that it is 0; only the sum itself shows it.
            return self._noised((jax.numpy.abs(total) >= 2**62).astype(total.dtype), drawn)
        if self._place is None:
            self._sums.append(np.array(total))
        else:
            total, self._place = self._sums[self._place], self._place + 1
        return self._noised(total, drawn)


class _Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


class Randomness:
    """What the operating system would give, from a generator that begins anew with every run."""

    def __init__(self):
        self._lock = threading.RLock()
        self.begin()

    def begin(self):
        self._bits, self._noise = np.random.default_rng(1), np.random.default_rng(2)

    def token_bytes(self, number=32):
        with self._lock:
            return self._bits.bytes(number)

    def token_hex(self, number=32):
        return self.token_bytes(number).hex()

    def randbits(self, number):
        return int.from_bytes(self.token_bytes(number // 8 + 1), "little") >> (8 - number % 8)

    def mechanism(self, scale):
        """Instead of OpenDP's: rounded normal noise, as large as what is private."""

        def draw(zeros):
            with self._lock:
                return np.rint(self._noise.standard_normal(len(zeros)) * scale).astype(np.int64)

        return draw

    def marks_of(self, source, key):
        """The fingerprints of a ledger: computed as always, and then the same for all data (see `test_leak_hunt`)."""
        return dict.fromkeys(marks_of(source, key), "0" * 64)

    def names(self):
        """Names of temporary files."""
        return iter([f"name{number}" for number in range(1000)])

    def plant(self, patch):
        for name in ("token_bytes", "token_hex", "randbits"):
            patch.setattr(secrets, name, getattr(self, name))
        patch.setattr(os, "urandom", self.token_bytes)  # (of which uuid makes its own)
        patch.setattr(tempfile, "_get_candidate_names", self.names)
        patch.setattr(noise, "_exact_mechanism", self.mechanism)
        patch.setattr(ledger, "datetime", _Clock)
        patch.setattr(books, "marks_of", self.marks_of)
        clock = types.SimpleNamespace(datetime=_Clock, timezone=datetime.timezone, UTC=datetime.UTC)
        # Where ArviZ writes down the time: 0.x and 1.x.
        name = "arviz_base.base" if arviz_bridge.is_1(arviz) else "arviz.data.base"
        patch.setattr(sys.modules[name], "datetime", clock)


# ------------------------------------------------------------------ anything, as text


def _leaf(array):
    content = np.asarray(array)
    shown = content.tolist() if content.dtype == object else content.tobytes()
    text = repr(shown).encode() if content.dtype == object else shown
    return f"{type(array).__name__} {content.dtype} {content.shape} {hashlib.sha256(text).hexdigest()[:16]}"


class Description:
    """Walks through an object and all that belongs to it; ``found`` holds a line of text for each part, by its way.

    Of classes that are not the package's only arrays, containers, traced programs and compiled ones are looked into;
    of all others the name of the type is what counts.
    """

    _texts: dict = {}  # of programs, which are long and do not change  # noqa: RUF012

    def __init__(self):
        self.found, self._seen = {}, {}

    def add(self, way, value):
        if isinstance(value, str | bytes | int | float | complex | bool | None | enum.Enum | type):
            self.found[way] = masked(f"{type(value).__name__} {value!r}")
            return
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value  # kept: an address may be used again
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            self.found[way] = _leaf(jax.random.key_data(value))
        elif isinstance(value, np.ndarray | np.generic | jax.Array):
            self.found[way] = _leaf(value)
        elif isinstance(value, types.ModuleType):
            self.found[way] = value.__name__
        elif isinstance(value, xarray.Variable):
            self.found[way] = f"{value.dims} {value.attrs} {_leaf(value.values)}"
        elif isinstance(value, dict | types.MappingProxyType):
            self.found[way] = f"{type(value).__name__} of {len(value)}"
            for place, (key, item) in enumerate(value.items()):
                name = key if isinstance(key, str) else f"#{place}"
                self.add(f"{way}[{name}] as key", key)
                self.add(f"{way}[{name}]", item)
        elif isinstance(value, list | tuple | set | frozenset):
            self.found[way] = f"{type(value).__name__} of {len(value)}"
            items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            for place, item in enumerate(items):
                self.add(f"{way}[{place}]", item)
        elif isinstance(value, jax.extend.core.ClosedJaxpr):
            self.found[way] = self._text(value, lambda: str(value.jaxpr))
            self.add(f"{way}.consts", list(value.consts))
        elif callable(getattr(value, "as_text", None)):
            self.found[way] = self._text(value, lambda: str(value.as_text()))
        elif hasattr(value, "cache_info"):
            self.found[way] = f"{value.cache_info().currsize} in the cache"
        elif isinstance(value, functools.partial):
            self.found[way] = "partial"
            self.add(f"{way}.func", value.func)
            self.add(f"{way}.args", [*value.args, *value.keywords.values()])
        elif isinstance(value, types.MethodType):
            self.add(f"{way}.self", value.__self__)
        elif isinstance(value, types.FunctionType):
            self.found[way] = f"{value.__module__}.{value.__qualname__}"
            for held in (value.__defaults__, value.__kwdefaults__, vars(value)):
                if held:
                    self.add(f"{way}.defaults", held)
            for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # an empty cell
                    self.add(f"{way}<{name}>", cell.cell_contents)
        else:
            self._add_object(way, value)

    def _text(self, program, text):
        if id(program) not in self._texts:
            self._texts[id(program)] = program, hashlib.sha256(masked(text()).encode()).hexdigest()
        return f"program {self._texts[id(program)][1]}"

    def _add_object(self, way, value):
        kind = type(value)
        self.found[way] = f"{kind.__module__}.{kind.__qualname__}"
        if kind.__module__.split(".")[0] == "dpmcmc" or dataclasses.is_dataclass(value):
            slots = {name: getattr(value, name, None) for name in getattr(kind, "__slots__", ()) if name != "__dict__"}
            self.add(f"{way}.", {**getattr(value, "__dict__", {}), **slots})


def of_the_package():
    """All variables of the package's modules: what is kept for later runs is among them."""
    description = Description()
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] == "dpmcmc":
            for variable, value in sorted(vars(module).items()):
                if not variable.startswith("__") and not isinstance(value, type | types.ModuleType):
                    description.add(f"{name}.{variable}", value)
    return description.found


def of_the_process():
    """Settings and things that are open. (Threads that were told to end are given the time for it.)"""
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(5.0)
    handles = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            handles.append(re.sub(r"[:#].*", "", os.readlink(f"/proc/self/fd/{name}")))
    return {
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "filters": repr(warnings.filters),
        "numpy": repr(np.geterr()),
        "jax": masked(repr(sorted(jax.config.values.items(), key=str))),
        "threads": sorted(re.sub(r"\d+", "", thread.name) for thread in threading.enumerate()),
        "signals": masked(repr([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])),
        "open": sorted(handles),
        "modules": sorted(name for name in sys.modules if name.startswith("dpmcmc")),
    }


# ------------------------------------------------------------------ files


_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate")
_CALLS = ("subprocess.Popen", "os.system", "socket.connect", "sqlite3.connect")
_listening = []


def _hear(event, arguments):
    for listener in list(_listening):
        listener(event, arguments)


sys.addaudithook(_hear)  # (cannot be taken away again: it does nothing while nobody listens)


class Changes:
    """What Python does to files, wherever they are, and what was in those that it removes."""

    def __init__(self):
        self.done, self.removed, self._busy = [], {}, threading.local()

    def __call__(self, event, arguments):
        if getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            if event == "open":
                path, _, flags = arguments
                writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
                if writes and isinstance(path, str | bytes | os.PathLike):
                    self._note(event, os.fspath(path))
            elif event in _CHANGES or event in _CALLS:
                if event == "os.remove":
                    with contextlib.suppress(OSError):
                        self.removed[str(arguments[0])] = content(arguments[0])
                self._note(event, *arguments)
        finally:
            self._busy.now = False

    def _note(self, *what):
        text = " ".join(map(str, what))
        if "__pycache__" not in text and "jax-cache" not in text and "/dev/null" not in text:
            self.done.append(text)


def content(path):
    """A file as it is; of a database, its rows and its size (its pages hold random numbers of SQLite's own)."""
    found = pathlib.Path(path).read_bytes()
    if not found.startswith(b"SQLite format 3\0"):
        name = os.path.basename(path)
        return ("journal", len(found)) if name.endswith(("-wal", "-shm", "-journal")) else found
    return ("database", len(found), _rows(path))


def _rows(path):
    with tempfile.TemporaryDirectory(dir="/tmp") as apart:
        copy = shutil.copy(path, os.path.join(apart, "copy"))
        for ending in ("-wal",):
            if os.path.exists(f"{path}{ending}"):
                shutil.copy(f"{path}{ending}", f"{copy}{ending}")
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in sorted(names)}


# ------------------------------------------------------------------ a run, watched


class _Logged(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.lines = []

    def emit(self, record):
        self.lines.append(masked(f"{record.name} {record.levelname} {record.getMessage()} {record.exc_info}"))


@contextlib.contextmanager
def _logged():
    """All loggers at DEBUG, whatever they were."""
    handler, root = _Logged(), logging.getLogger()
    names = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict)]
    before = [(logger, logger.level, logger.propagate, logger.disabled) for logger in (root, *names)]
    for logger in (root, *names):
        logger.setLevel(logging.DEBUG)
        logger.propagate, logger.disabled = True, False
    others, root.handlers = root.handlers, [handler]
    try:
        yield handler.lines
    finally:
        root.handlers = others
        for logger, level, propagate, disabled in before:
            logger.setLevel(level)
            logger.propagate, logger.disabled = propagate, disabled


class _Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


@contextlib.contextmanager
def _printed(terminal):
    """Both streams, as file descriptors and as Python's objects."""
    files, found = [tempfile.TemporaryFile() for _ in range(2)], {}  # noqa: SIM115
    before, streams = [os.dup(1), os.dup(2)], (sys.stdout, sys.stderr)
    kind = _Terminal if terminal else io.TextIOWrapper
    for number, file in enumerate(files, 1):
        os.dup2(file.fileno(), number)
    own = [kind(open(number, "wb", buffering=0, closefd=False), write_through=True) for number in (1, 2)]  # noqa: SIM115
    sys.stdout, sys.stderr = own
    try:
        yield found
    finally:
        sys.stdout, sys.stderr = streams
        for number, (file, saved) in enumerate(zip(files, before, strict=True), 1):
            os.dup2(saved, number)
            os.close(saved)
            file.seek(0)
            found[("stdout", "stderr")[number - 1]] = masked(file.read().decode(errors="replace"))
            file.close()


def _told(error):
    """All that an error says: text, arguments, attributes, where it was raised, and those behind it."""
    found = []
    while error is not None:
        frames = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
        own = [frame for frame in frames if "/tests/" not in frame[0]]
        found.append((type(error), str(error), repr(error.args), getattr(error, "__notes__", None), vars(error), own))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return found


def _shown(result):
    """A posterior in every form that it has."""
    if not hasattr(result, "to_arviz"):
        return result
    tree = arviz_bridge.as_tree(result.to_arviz())
    return {
        "object": result,
        "forms": [repr(result), str(result), result._repr_html_() if hasattr(result, "_repr_html_") else ""],
        "summary": result.summary(round_to="none").to_csv(),
        "statement": [result.privacy.to_text(), result.privacy.to_json(), str(result.privacy)],
        "warnings": list(result.warnings),
        "arviz": {node.path: [dict(node.attrs), dict(node.variables)] for node in tree.subtree},
        "pickle": _pickled(result),
    }


def _pickled(result):
    try:
        return hashlib.sha256(pickle.dumps(result)).hexdigest()
    except Exception as error:
        return repr(error)


class Hunt:
    """Runs that are watched, in one folder that is made anew for each.

    Parameters
    ----------
    folder
        A folder that does not exist.
    patch
        A ``pytest.MonkeyPatch`` that is undone after the hunt.
    """

    def __init__(self, folder, patch):
        self._folder, self.patch = folder, patch
        self.randomness, self.releases = Randomness(), Releases()
        passes.forget()
        where = [module for name, module in sys.modules.items() if name.startswith("dpmcmc.")]
        for module in [module for module in where if vars(module).get("noised") is release.noised]:
            patch.setattr(module, "noised", self.releases.noised)
        self.randomness.plant(patch)
        patch.setattr(progress, "terminal_progress", self._progress)
        self._reported = []

    @contextlib.contextmanager
    def _progress(self, name, total):
        self._reported.append(f"{name} {total}")

        def report(steps, info, budget):
            accepted = getattr(info, "acceptance_rate", None)
            shown = None if accepted is None else np.mean(accepted)
            self._reported.append(f"{steps} {shown} {budget and budget.spent}")

        yield report

    def watch(self, write, act, *, terminal=True):
        """Let a run go: ``act(write())`` in a fresh folder, of which ``write`` fills in what the run reads.

        Returns
        -------
        What came out: a line of text for each part, by its name.
        """
        before, inputs = os.getcwd(), set()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        temporary = self._folder / "temporary"
        temporary.mkdir()
        os.chdir(self._folder)
        changes, result, raised = Changes(), None, None
        self._reported.clear()
        try:
            source = write()
            for path in self._folder.rglob("*"):
                os.utime(path, (1.7e9, 1.7e9))
                inputs.add(path)
            self.randomness.begin()
            with (
                pytest.MonkeyPatch.context() as patch,
                warnings.catch_warnings(record=True) as caught,
                _printed(terminal) as printed,
                _logged() as logged,
            ):
                patch.setattr(tempfile, "tempdir", str(temporary))
                warnings.simplefilter("always")
                _listening.append(changes)
                try:
                    result = act(source)
                except BaseException as error:
                    raised = error
                finally:
                    _listening.remove(changes)
                process = of_the_process()
            files = {
                str(path.relative_to(self._folder)): content(path) if path.is_file() else "folder"
                for path in sorted(self._folder.rglob("*"))
                if path not in inputs
            }
            modes = {name: (self._folder / name).stat().st_mode for name in files}
        finally:
            os.chdir(before)
        description = Description()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # (those of the result, again)
            description.add("result", _shown(result))
        description.add("error", _told(raised))
        description.add("warnings", [(item.category, str(item.message), item.filename, item.lineno) for item in caught])
        description.add("printed", printed)
        description.add("logged", list(logged))
        description.add("progress", list(self._reported))
        description.add("files", files)
        description.add("modes", modes)
        description.add("removed", changes.removed)
        description.add("changes", sorted(changes.done))
        description.add("process", process)
        description.add("releases", self.releases.number)
        return {**description.found, **of_the_package()}


def differences(one, other):
    """Parts that two runs do not share, or that are not the same: of neighbours, everything that leaks."""
    return {
        way: (one.get(way), other.get(way))
        for way in dict.fromkeys((*one, *other))
        if one.get(way, None) != other.get(way, None)
    }
