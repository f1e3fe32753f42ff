"""Faults put into real runs: what is tried, and what survives.

`python -m trust.faults [--json FILE] [--fast]` kills processes, fills disks, breaks files, locks ledgers and turns the
clock back under runs of every kind of sampler, and prints how many of each were survived. *Survived* means: every
release that there is was charged before the records were looked at; all charges together are within the budget; no file
is half written; the run ends with one line and a documented exit code, and then `resume` completes it, or refuses it
with one line and charges nothing. The sums are made by `trust.books`, which knows nothing of the package.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trust import books

ROOT = Path(__file__).parents[1]
FILES = ["posterior.nc", "privacy.json", "privacy.txt", "report.html", "summary.csv"]
EXIT_CODES = (0, 1, 2, 3, 130)
CHECKPOINT = "checkpoint.db"
DELTA = 1e-4
SECRET = "Johannes-1234"  # stands in the text of every error that is injected, and may stand in none that comes out
MOST_LOOKS = 18  # a fault comes at one of the first so many looks at the records
CHAINS_KINDS = "dp-penalty", "dp-sgld", "dp-laplace", "auto", "surrogate-hmc"
COMMAND_KINDS = "dpmcmc sample, dp-laplace", "dpmcmc sample, auto"


# ------------------------------------------------------------------------------------------------- what is run


@functools.cache
def case_of(kind: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return the model, the records and the options of a small run."""
    import dpmcmc
    from dpmcmc.surrogate import Form, Surrogate

    model = dpmcmc.models.GaussianMean(np.array([[1.0, 0.3], [0.3, 0.5]]), prior_scale=2.0)
    records = np.random.default_rng(1).normal(loc=[1.0, -1.0], size=(500, 2))
    start = np.tile([1.0, -1.0], (4, 1))
    weights = np.array([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]])
    root = np.linalg.cholesky(np.array([[1.0, 0.3], [0.3, 0.5]]) / 500)
    surrogate = Surrogate(Form(2, 2, 2), np.array([1.0, -1.0]), root, weights)
    options: dict[str, dict[str, Any]] = {
        "dp-penalty": {"sampler": dpmcmc.DPPenalty(0.05, 3.0, 20.0), "init": start, "epsilon": 8.0},
        "dp-sgld": {"sampler": dpmcmc.DPSGLD(50, 3.0, 1e-5), "init": start, "epsilon": 8.0},
        "dp-laplace": {"sampler": dpmcmc.DPLaplace(), "epsilon": 20.0},
        "auto": {"epsilon": 20.0},
        "surrogate-hmc": {"sampler": dpmcmc.SurrogateHMC(surrogate, 5.0), "num_steps": 25, "epsilon": 40.0},
    }
    return model, records, {"delta": DELTA, "progress": False} | options[kind]


class Ending(NamedTuple):
    """How a process or a call ended: its exit code (None: an error that nobody expected), and what it said."""

    code: int | None
    text: str = ""


def told(function: Callable[[], Any]) -> Ending:
    """Call something; say how it ended as the command line would."""
    from dpmcmc.errors import BudgetExceededError, DPMCMCError, ResultError, RunError
    from dpmcmc.output import WriteError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function()
    except KeyboardInterrupt as interrupt:
        return Ending(130, str(interrupt))
    except DPMCMCError as error:
        late = isinstance(error, ResultError | RunError | WriteError)
        return Ending(3 if isinstance(error, BudgetExceededError) else 1 if late else 2, str(error))
    except Crash:
        return Ending(-signal.SIGKILL)
    except Exception as error:
        return Ending(None, f"{type(error).__name__}: {error}")
    return Ending(0)


@dataclass
class Life:
    """One run, from its beginning through faults to its end: a folder, a ledger, and a list of looks at records."""

    place: Path
    kind: str
    ledger: Path = field(init=False)
    folder: Path = field(init=False)
    looks: Path = field(init=False)

    def __post_init__(self) -> None:
        import dpmcmc

        self.place.mkdir(parents=True, exist_ok=True)
        self.ledger, self.folder, self.looks = self.place / "people.ledger", self.place / "run", self.place / "looks"
        self.looks.touch()
        self.table = self.place / "people.csv"
        epsilon = 60.0
        if self.kind in COMMAND_KINDS:
            write_people(self.table)
        else:
            epsilon = case_of(self.kind)[2]["epsilon"]
        if not self.ledger.exists():
            dpmcmc.Ledger.create(self.ledger, epsilon=epsilon, delta=DELTA)

    # -------------------------------------------------------------- in this process

    def begin(self) -> Ending:
        """Begin the run here."""
        import dpmcmc

        model, records, options = case_of(self.kind)
        kept: dict[str, Any] = {"checkpoint": self.folder, "ledger": self.ledger}
        with looks_noted(self):
            return told(lambda: dpmcmc.sample(model, records, **kept, **options))

    def go_on(self) -> Ending:
        """Go on with it here."""
        import dpmcmc

        model, records, _ = case_of(self.kind)
        with looks_noted(self):
            return told(lambda: dpmcmc.resume(self.folder, model, records, ledger=self.ledger, progress=False))

    # -------------------------------------------------------------- in a process of its own

    def start(self, resumes: bool, *options: str) -> subprocess.Popen[str]:
        """Begin the run, or go on with it, in another process."""
        if self.kind in COMMAND_KINDS:
            command = ["-m", "dpmcmc.cli", "resume", str(self.folder)] if resumes else ["-m", "dpmcmc.cli", "sample"]
            if not resumes:
                command += [str(self.table), "--schema", f"{self.table}.schema", "--formula", "income ~ age"]
                command += ["--sampler", self.kind.rsplit(" ", 1)[1], "--epsilon", "60", "--delta", str(DELTA)]
                command += ["--out", str(self.folder), "--ledger", str(self.ledger)]
            command += ["--quiet"]
        else:
            command = ["-m", "trust.faults", "--child", "resume" if resumes else "sample", self.kind, str(self.place)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [sys.executable, *command, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def ended(self, process: subprocess.Popen[str]) -> Ending:
        """Wait for a process, and say how it ended. Others' chatter about devices is not the command's."""
        try:
            _, said = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Ending(None, "it did not end within 300 seconds")
        return Ending(process.returncode, said.strip())

    # -------------------------------------------------------------- what must hold

    def problems(self, ending: Ending, *, killed: bool = False) -> list[str]:
        """Return what is wrong after a fault; nothing, if all is well."""
        found = []
        allowed = (*EXIT_CODES, -signal.SIGKILL) if killed else EXIT_CODES
        if ending.code not in allowed:
            found.append(f"exit code {ending.code}: {ending.text[-300:]}")
        if "\n" in ending.text or "Traceback" in ending.text:
            found.append(f"more than one line: {ending.text[-300:]}")
        if ending.code not in (0, -signal.SIGKILL) and not ending.text:
            found.append("it did not say why it ended")
        if SECRET in ending.text:
            found.append("the text of a foreign error came out")
        return found + self.books_problems() + half_written(self.folder)

    def books_problems(self) -> list[str]:
        """Say what is wrong with the sums."""
        try:
            charged = books.audit(self.ledger).entries
        except (AssertionError, sqlite3.Error, KeyError) as error:
            return [f"the ledger: {error}"]
        found = []
        for number, line in enumerate(self.looks.read_text().split(), 1):
            if int(line) < number:
                found.append(f"look {number} at the records came before its charge")
                break
        try:
            paid = [entry for entry in books.releases_in(self.folder / CHECKPOINT) if entry]
        except (sqlite3.Error, KeyError, ValueError):
            paid = []  # broken by the fault itself
        if len(set(paid)) < len(paid) or not set(paid) <= charged:
            found.append("a release in the checkpoint was not charged, or one charge has two")
        return found

    def completed(self, ending: Ending) -> list[str]:
        """Say what is wrong with a run that should be complete."""
        found = self.problems(ending)
        if ending.code != 0:
            return [*found, f"it does not go on ({ending.code}): {ending.text[-300:]}"]
        if sorted(os.listdir(self.folder)) != FILES:
            found.append(f"the folder holds {sorted(os.listdir(self.folder))}")
        run = books.audit(self.ledger).runs[1]
        statement = json.loads((self.folder / "privacy.json").read_text())
        if run.how != "complete":
            found.append(f"the ledger says that it is {run.how}")
        if run.kind == "gaussian" and not run.spent <= statement["mu"] <= float(run.spent) * (1 + 1e-9):
            found.append("the statement has another μ than the ledger")
        return found

    def refused(self, ending: Ending, before: int) -> list[str]:
        """Say what is wrong with a run that should not have gone on."""
        found = [] if ending.code in (1, 2, 3) else [f"not refused: {ending.code} {ending.text[-300:]}"]
        if books.charges_in(self.ledger) != before:
            found.append("something was charged")
        return found + [one for one in self.problems(ending) if "the ledger:" not in one]


def half_written(folder: Path) -> list[str]:
    """Name results that are there and not whole."""
    from dpmcmc import Posterior

    found = []
    for name in FILES:
        path = folder / name
        try:
            if not path.exists():
                continue
            if name.endswith(".nc"):
                Posterior.load(path)
            elif name.endswith(".json"):
                json.loads(path.read_text())
            elif name.endswith(".html"):
                assert path.read_text().rstrip().endswith("</html>")
            else:
                assert path.read_text().endswith("\n")
        except Exception as error:
            found.append(f"{name} is half written ({type(error).__name__})")
    return found


def write_people(path: Path) -> None:
    """Write a small table and its schema."""
    generator = np.random.default_rng(3)
    age = generator.integers(17, 91, 400)
    income = generator.uniform(size=400) < 1 / (1 + np.exp(-(age - 50) / 20))
    lines = [f"{a},{str(bool(i)).lower()}" for a, i in zip(age, income, strict=True)]
    path.write_text("\n".join(["age,income", *lines]) + "\n")
    bounds = {"minimum": 17, "maximum": 90}
    fields = [{"name": "age", "type": "integer", "constraints": bounds}, {"name": "income", "type": "boolean"}]
    Path(f"{path}.schema").write_text(json.dumps({"fields": fields}))


# ------------------------------------------------------------------------------------------------- how it is broken


class Crash(BaseException):
    """The process would be gone here."""


@contextlib.contextmanager
def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Put something else in the place of a function, which it is given."""
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def looks_noted(life: Life) -> Iterator[None]:
    """Write down, at every look at the records, how many charges there are in the ledger at that moment."""
    with at_looks(lambda: _note(life)):
        yield


def _note(life: Life) -> None:
    with life.looks.open("a") as file:
        file.write(f"{books.charges_in(life.ledger)}\n")


@contextlib.contextmanager
def at_looks(action: Callable[[], None]) -> Iterator[None]:
    """Do something whenever the records are about to be looked at: once for a question, and for a block of steps."""
    import jax

    from dpmcmc.curator import Curator
    from dpmcmc.queries import PaidNoise

    fresh = [True]

    def ask(original: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            fresh[0] = True
            return original(*arguments, **options)

        return wrapped

    def total(original: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            if fresh[0]:
                fresh[0] = False
                action()
            return original(*arguments, **options)

        return wrapped

    def run(original: Any) -> Any:
        def wrapped(curator: Any, compiled: Any, oracle: Any, public: tuple[Any, ...]) -> Any:
            noises = [one for one in public if isinstance(one, PaidNoise)]
            if any(np.size(leaf) for leaf in jax.tree.leaves([one[:2] for one in noises])):
                action()  # (a start that asks for nothing looks at nothing)
            return original(curator, compiled, oracle, public)

        return wrapped

    with (
        patched(Curator, "ask", ask),
        patched(Curator, "_host_total", total),
        patched(Curator, "_run", run),
    ):
        yield


def counted(at: int, action: Callable[[], None]) -> Callable[[], None]:
    """Return a function that acts the n-th time that it is called, and never again."""
    calls = [0]

    def call() -> None:
        calls[0] += 1
        if calls[0] == at:
            action()

    return call


def raising(error: BaseException) -> Callable[[], None]:
    """Return a function that raises."""

    def call() -> None:
        raise error

    return call


@contextlib.contextmanager
def before_calls(owner: Any, name: str, action: Callable[[], None]) -> Iterator[None]:
    """Do something before every call of a function."""

    def make(original: Any) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            action()
            return original(*arguments, **options)

        return wrapped

    with patched(owner, name, make):
        yield


@contextlib.contextmanager
def crashing(at: int) -> Iterator[None]:
    """End a run in this process where its n-th part is about to be kept, as a kill would: nothing is tidied up."""
    from dpmcmc.inference.checkpoint import Checkpoint

    with no_tidying(), before_calls(Checkpoint, "append", counted(at, raising(Crash()))):
        yield


@contextlib.contextmanager
def no_tidying() -> Iterator[None]:
    """Let a `Crash` be as sudden as a kill."""
    from dpmcmc.inference.books import Books

    def make(original: Any) -> Any:
        def wrapped(one: Any, how: str) -> None:
            if not isinstance(sys.exc_info()[1], Crash):
                original(one, how)
            elif one.checkpoint is not None:
                one.checkpoint.close()

        return wrapped

    with patched(Books, "give_up", make):
        yield


@contextlib.contextmanager
def small_disk(place: Path, kilobytes: int = 4096) -> Iterator[Path]:
    """Mount a small disk; `NotTried` where that is not allowed."""
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        raise NotTried("no disk can be mounted (that takes root)")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class NotTried(Exception):
    """A fault that cannot be injected on this machine."""


# ------------------------------------------------------------------------------------------------- the faults


class Lab:
    """Where faults are tried: a folder, a generator of moments, and runs that were stopped in the middle."""

    def __init__(self, folder: Path, generator: np.random.Generator) -> None:
        self._folder, self.generator = folder, generator
        self._number = 0
        self._stopped: dict[str, Path] = {}

    def place(self) -> Path:
        """Return a new folder's path."""
        self._number += 1
        return self._folder / str(self._number)

    def life(self, kind: str) -> Life:
        """Return a run that has not begun."""
        return Life(self.place(), kind)

    def moment(self, most: int = MOST_LOOKS) -> int:
        """Return when a fault comes."""
        return int(self.generator.integers(2, most + 1))

    def one_of(self, *choices: Any) -> Any:
        """Return one of some things."""
        return choices[int(self.generator.integers(len(choices)))]

    def stopped(self, kind: str) -> Life:
        """Return a run that was stopped in the middle; each time another copy of the same."""
        if kind not in self._stopped:
            life = self.life(kind)
            with crashing(9):
                ending = life.begin()
            assert ending.code == -signal.SIGKILL, ending
            self._stopped[kind] = life.place
        place = self.place()
        shutil.copytree(self._stopped[kind], place)
        return Life(place, kind)


def goes_on(life: Life, ending: Ending, *, killed: bool = False) -> list[str]:
    """See that all is well after a fault, and that the run then comes to its end."""
    found = life.problems(ending, killed=killed)
    if ending.code == 0 and not (life.folder / CHECKPOINT).exists():
        return found + life.completed(ending)
    if not life.folder.exists():  # nothing had begun
        return [*found, *([] if books.charges_in(life.ledger) == 0 else ["charged, and there is no folder"])]
    return found + life.completed(life.go_on())


def killed(lab: Lab, kind: str) -> list[str]:
    """A process that is killed, one to three times, goes on each time and comes to its end."""
    return _signalled(lab, kind, signal.SIGKILL, int(lab.generator.integers(1, 4)))


def interrupted(lab: Lab, kind: str) -> list[str]:
    """The same with Ctrl-C and SIGTERM, also while it imports and reads."""
    return _signalled(lab, kind, lab.one_of(signal.SIGINT, signal.SIGTERM), 1)


def _signalled(lab: Lab, kind: str, number: int, times: int) -> list[str]:
    life, found = lab.life(kind), list[str]()
    begun = False
    for _ in range(times):
        process = life.start(begun)
        early = lab.generator.uniform() < 0.4
        if kind not in COMMAND_KINDS and number != signal.SIGKILL:
            early = False  # it is this program itself that would be importing
        due = time.monotonic() + lab.generator.uniform(0.0, 6.0) if early else None
        most = books.charges_in(life.ledger) + lab.moment()
        while process.poll() is None:
            if due is not None and time.monotonic() > due:
                break
            if due is None and books.charges_in(life.ledger) >= most:
                break
            time.sleep(0.002)
        if process.poll() is None:
            process.send_signal(number)
        ending = life.ended(process)
        if early and ending.code == -number and number != signal.SIGKILL and books.charges_in(life.ledger) == 0:
            ending = Ending(130, "ended by the signal before there was a command line")
        found += life.problems(ending, killed=number == signal.SIGKILL)
        begun = (life.folder / CHECKPOINT).exists()
        if ending.code == 0 or found:
            break
    if not found:
        found += life.completed(ending if ending.code == 0 else _finished(life))
    return found


def _finished(life: Life) -> Ending:
    ending = Ending(None, "not begun")
    for _ in range(2):  # (killed before the folder knew what it is: `resume` says so, and it is begun again)
        begun = any((life.folder / name).exists() for name in (CHECKPOINT, "posterior.nc"))
        ending = life.ended(life.start(begun))
        if ending.code == 0 or "before it had begun" not in ending.text:
            break
        shutil.rmtree(life.folder)
    return ending


def exception_in_a_block(lab: Lab, kind: str) -> list[str]:
    """Something raises where the records are looked at, after the charge."""
    life = lab.life(kind)
    error = lab.one_of(ValueError(SECRET), RuntimeError(SECRET), KeyError(SECRET), KeyboardInterrupt())
    with at_looks(counted(lab.moment(), raising(error))):
        ending = life.begin()
    return goes_on(life, ending)


def exception_in_the_noise(lab: Lab, kind: str) -> list[str]:
    """The source of noise fails, before the charge."""
    from dpmcmc.curator import ExactNoise

    life = lab.life(kind)
    with before_calls(ExactNoise, "draw", counted(lab.moment(), raising(OSError(SECRET)))):
        ending = life.begin()
    return goes_on(life, ending)


def out_of_memory(lab: Lab, kind: str) -> list[str]:
    """The pass over the records runs out of memory."""
    life = lab.life(kind)
    with at_looks(counted(lab.moment(), raising(MemoryError(SECRET)))):
        ending = life.begin()
    found = goes_on(life, ending)
    return found if ending.code == 0 or "not enough memory" in ending.text else [*found, f"told as {ending.text}"]


def out_of_memory_really(lab: Lab, kind: str) -> list[str]:
    """A process may have hardly more memory than it has at some look; it says so, or is killed by it."""
    life = lab.life(kind)
    ending = life.ended(life.start(False, "--memory", str(lab.moment()), str(lab.one_of(-256, 0, 1))))
    if ending.code is not None and ending.code < 0:
        ending = Ending(-signal.SIGKILL)  # libraries abort where they get none: as if it were killed
    return goes_on(life, ending, killed=True)


def exception_in_a_result(lab: Lab, kind: str) -> list[str]:
    """Writing a result fails, or the process dies, with half of a file written or before it is put in its place."""
    life = lab.life(kind)
    error = lab.one_of(OSError(errno.EIO, SECRET), OSError(errno.ENOSPC, SECRET), ValueError(SECRET), Crash())
    at = int(lab.generator.integers(1, 6))

    def half(original: Any) -> Any:
        def write(path: Path, content: bytes) -> int:
            if path.parent == life.folder:
                fail = [False]
                nth(lambda: fail.__setitem__(0, True))
                if fail[0]:
                    original(path, content[: len(content) // 2])
                    raise error
            return int(original(path, content))

        return write

    calls = [0]

    def nth(action: Callable[[], None]) -> None:
        calls[0] += 1
        if calls[0] == min(at, 4):
            action()

    def placing(original: Any) -> Any:
        def replace(source: Any, target: Any) -> None:
            if Path(target).parent == life.folder:
                calls[0] += 1
                if calls[0] == at:
                    raise error
            original(source, target)

        return replace

    owner, name, make = lab.one_of((Path, "write_bytes", half), (os, "replace", placing))
    with no_tidying(), patched(owner, name, make):
        ending = life.begin()
    spent = books.audit(life.ledger).spent
    found = goes_on(life, ending, killed=True)
    return found if books.audit(life.ledger).spent == spent else [*found, "writing it again has cost something"]


def disk_full(lab: Lab, kind: str) -> list[str]:
    """The disk of the folder, or of the ledger, has no room at some moment, and then it has."""
    place = lab.place()
    with small_disk(place) as disk:
        life = Life(disk, kind)
        elsewhere = lab.place()
        elsewhere.mkdir(parents=True)
        if lab.generator.uniform() < 0.5:  # the ledger alone is there
            life.folder = elsewhere / "run"
        else:
            life.ledger = Path(shutil.move(life.ledger, elsewhere / "people.ledger"))
        life.looks = elsewhere / "looks"
        life.looks.touch()
        left = int(lab.generator.choice([0, 20_000, 60_000, 100_000, 200_000, 400_000]))
        (disk / "filler").write_bytes(bytes(max(0, shutil.disk_usage(disk).free - left)))
        ending = life.begin()
        (disk / "filler").unlink()
        found = life.problems(ending)
        if not life.folder.exists():
            ending = life.begin()
            return found + life.completed(ending)
        return found + goes_on(life, ending)


def clock_jumps(lab: Lab, kind: str) -> list[str]:
    """Every look at the clock is hours from the last, back or forth."""
    import datetime

    from dpmcmc.privacy import ledger

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.now(tz) + datetime.timedelta(hours=float(lab.generator.uniform(-50, 50)))

    def wrong(original: Any) -> Any:
        return lambda: original() + lab.generator.uniform(-2e5, 2e5)

    import dpmcmc

    life = lab.life(kind)
    with patched(ledger, "datetime", lambda _: Jumping), patched(time, "time", wrong):
        with crashing(lab.moment()):
            ending = life.begin()
        found = goes_on(life, ending, killed=True)
        dpmcmc.Ledger(life.ledger).verify()
    return found


def ledger_locked(lab: Lab, kind: str) -> list[str]:
    """Somebody has the ledger locked: for a moment, and it is waited for; or too long, and the run goes on later."""
    from dpmcmc.privacy import storage

    life, briefly = lab.life(kind), lab.generator.uniform() < 0.5
    held: list[sqlite3.Connection] = []

    def let_go() -> None:
        held.pop().close()

    def lock() -> None:
        held.append(sqlite3.connect(life.ledger, isolation_level=None, check_same_thread=False))
        held[0].execute("BEGIN IMMEDIATE")
        if briefly:
            threading.Timer(0.5, let_go).start()

    patience = 20.0 if briefly else 0.3
    with (
        patched(storage, "PATIENCE", lambda _: patience),
        patched(storage, "PATIENCE_ON_THE_WAY", lambda _: patience),
        at_looks(counted(lab.moment(), lock)),
    ):
        ending = life.begin()
    while briefly and held:
        time.sleep(0.05)
    if held:
        let_go()
    if briefly:
        return life.completed(ending)
    found = [] if ending.code != 0 and "locked" in ending.text else [f"a lock that lasts: {ending}"]
    return found + goes_on(life, ending)


def checkpoint_corrupted(lab: Lab, kind: str) -> list[str]:
    """The checkpoint of a run that was stopped is not as it was written: refused, unless that makes no difference."""
    life = lab.stopped(kind)
    before = books.charges_in(life.ledger)
    _corrupt(lab, life.folder / CHECKPOINT, "parts")
    ending = life.go_on()
    if ending.code == 0:  # free pages, or an older copy: what it lacks is charged anew
        return life.completed(ending)
    return life.refused(ending, before)


def ledger_corrupted(lab: Lab, kind: str) -> list[str]:
    """The same of the ledger."""
    life = lab.stopped(kind)
    whole, looks = life.ledger.read_bytes(), life.looks.read_text()
    _corrupt(lab, life.ledger, "dpmcmc_ledger")
    ending = life.go_on()
    if ending.code == 0:
        return life.completed(ending)
    found = life.problems(ending)
    found = [one for one in found if "the ledger:" not in one and "not charged" not in one]
    if life.looks.read_text() != looks:
        found.append("the records were looked at, and there was no whole ledger")
    for path in life.place.glob("people.ledger*"):
        path.unlink()
    life.ledger.write_bytes(whole)
    return found + life.completed(life.go_on())


def _corrupt(lab: Lab, path: Path, table: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:  # what is in its log belongs to it
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    how = lab.one_of("flipped", "flipped", "cut", "zeros", "row", "dropped", "empty", "no log", "older")
    if how == "flipped":
        for _ in range(int(lab.generator.integers(1, 20))):
            content[int(lab.generator.integers(len(content)))] ^= 1 << int(lab.generator.integers(8))
    elif how == "cut":
        content = content[: int(lab.generator.integers(1, len(content)))]
    elif how == "zeros":
        start = int(lab.generator.integers(len(content)))
        content[start : start + 4096] = bytes(len(content[start : start + 4096]))
    elif how == "empty":
        content = bytearray()
    path.write_bytes(content)
    for suffix in ("-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    last = f"(SELECT MAX(number) FROM {table})"
    text = {"row": f"DELETE FROM {table} WHERE number = {last} - 1", "dropped": f"DROP TABLE {table}"}
    text["older"] = f"DELETE FROM {table} WHERE number > {last} - 3"
    if how in text:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(text[how])


def folder_gone(lab: Lab, kind: str) -> list[str]:
    """The folder is removed or renamed on the way."""
    from dpmcmc.inference.checkpoint import Checkpoint

    removed = lab.generator.uniform() < 0.5
    life, other = lab.life(kind), lab.place()

    def change() -> None:
        if removed:
            shutil.rmtree(life.folder)
        else:
            life.folder.rename(other)

    with before_calls(Checkpoint, "append", counted(lab.moment(), change)):
        ending = life.begin()
    found = life.problems(ending)
    if removed:
        before = books.charges_in(life.ledger)
        return found + life.refused(life.go_on(), before)
    shutil.rmtree(life.folder, ignore_errors=True)
    other.rename(life.folder)
    return found + goes_on(life, ending)


def read_only(lab: Lab, kind: str) -> list[str]:
    """The disk of the folder, or of the ledger, is read-only when the run is to go on, and later it is not."""
    stopped = lab.stopped(kind)
    with small_disk(lab.place()) as disk:
        if lab.generator.uniform() < 0.5:
            stopped.folder = Path(shutil.move(stopped.folder, disk / "run"))
        else:
            stopped.ledger = Path(shutil.move(stopped.ledger, disk / "people.ledger"))
        before = books.charges_in(stopped.ledger)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        found = stopped.refused(stopped.go_on(), before)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        return found + stopped.completed(stopped.go_on())


def data_gone(lab: Lab, kind: str) -> list[str]:
    """The file of a streamed run is changed or removed on the way: told in one line, and resumed when it is back."""
    import pyarrow.csv
    import pyarrow.parquet
    from typer.testing import CliRunner

    from dpmcmc import cli
    from dpmcmc.inference.checkpoint import Checkpoint

    life = lab.life(COMMAND_KINDS[0])
    file = life.place / "people.parquet"
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(life.table), file)
    content, times = file.read_bytes(), file.stat()
    how = lab.one_of("removed", "cut", "fewer rows", "zeros")

    def change() -> None:
        if how == "removed":
            file.unlink()
        elif how == "fewer rows":
            pyarrow.parquet.write_table(pyarrow.csv.read_csv(life.table).slice(1), file)
        else:
            file.write_bytes(content[: len(content) // 2] if how == "cut" else bytes(len(content)))

    def run(*words: Any) -> Ending:
        with looks_noted(life):
            result = CliRunner().invoke(cli.app, [*map(str, words), "--quiet"])
        unexpected = result.exception is not None and not isinstance(result.exception, SystemExit)
        return Ending(None if unexpected else result.exit_code, result.stderr.strip())

    schema = f"{life.table}.schema"
    options = ["--sampler", "dp-laplace", "--epsilon", 60, "--delta", DELTA, "--stream", "--formula", "income ~ age"]
    with before_calls(Checkpoint, "append", counted(lab.moment(), change)):
        ending = run("sample", file, "--schema", schema, *options, "--out", life.folder, "--ledger", life.ledger)
    found = life.problems(ending)
    if ending.code == 0:
        return found + life.completed(ending)
    before = books.charges_in(life.ledger)
    again = run("resume", life.folder)
    found += life.refused(again, before)
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    return found + life.completed(run("resume", life.folder))


PROCESS_FAULTS = "no rows", "raises", "killed", "interrupted", "stopped", "stopped in a collective", "other arguments"


def one_process_of_two(lab: Lab, kind: str) -> list[str]:
    """Of two processes of one run the second has a fault: the first stops with an error, in the stated time."""
    command = [sys.executable, "-m", "tests.inference.test_processes", "both", kind]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    if result.returncode:
        return [result.stderr[-300:]]
    answer = json.loads(result.stdout.splitlines()[-1])
    found = [] if answer["stopped"] else [f"the other did not stop with an error: {answer}"]
    if answer["seconds"] is not None and answer["seconds"] > answer["limit"]:
        found.append(f"it took {answer['seconds']:.0f} seconds, and {answer['limit']:.0f} are stated")
    return [*found, *(["a foreign text"] if SECRET in result.stdout else [])]


class Fault(NamedTuple):
    """A fault: what it is called, how it is tried on one kind of run, on which kinds, and how often on each."""

    name: str
    attempt: Callable[[Lab, str], list[str]]
    kinds: Sequence[str]
    times: int
    times_if_fast: int


ALL_KINDS = (*CHAINS_KINDS, *COMMAND_KINDS)
FAULTS = (
    Fault("kill -9 at any moment, one to three times", killed, ALL_KINDS, 2, 0),
    Fault("Ctrl-C or SIGTERM at any moment", interrupted, ALL_KINDS, 1, 0),
    Fault("exception in a block or question", exception_in_a_block, CHAINS_KINDS, 4, 1),
    Fault("exception in the source of noise", exception_in_the_noise, CHAINS_KINDS, 2, 1),
    Fault("out of memory in a pass", out_of_memory, CHAINS_KINDS, 2, 1),
    Fault("out of memory, a real limit on a process", out_of_memory_really, CHAINS_KINDS, 1, 0),
    Fault("error or crash while a result is written", exception_in_a_result, CHAINS_KINDS, 3, 1),
    Fault("disk full: checkpoint, ledger, results", disk_full, CHAINS_KINDS, 3, 1),
    Fault("clock that jumps hours back and forth", clock_jumps, CHAINS_KINDS, 1, 1),
    Fault("ledger locked, for a moment or for too long", ledger_locked, CHAINS_KINDS, 2, 1),
    Fault("checkpoint corrupted", checkpoint_corrupted, CHAINS_KINDS, 16, 2),
    Fault("ledger corrupted", ledger_corrupted, CHAINS_KINDS, 8, 1),
    Fault("folder removed or renamed on the way", folder_gone, CHAINS_KINDS, 2, 1),
    Fault("folder or ledger read-only", read_only, CHAINS_KINDS, 1, 1),
    Fault("streamed file changed or removed", data_gone, ("dp-laplace",), 6, 1),
    Fault("one of two processes fails, hangs or is killed", one_process_of_two, PROCESS_FAULTS, 1, 0),
)
# In a fast look real processes are few: of each of these one.
FEW = {"kill -9 at any moment, one to three times": "dp-laplace", "Ctrl-C or SIGTERM at any moment": COMMAND_KINDS[0]}


class Row(NamedTuple):
    """How often a fault was tried and survived, and what was wrong otherwise."""

    fault: str
    tried: int
    survived: int
    problems: list[str]


def try_fault(fault: Fault, lab: Lab, kinds: Sequence[str], times: int) -> Row:
    """Try a fault on some kinds of runs, so often on each."""
    tried, survived, problems = 0, 0, list[str]()
    for kind in kinds:
        for _ in range(times):
            try:
                found = fault.attempt(lab, kind)
            except NotTried as reason:
                problems.append(f"{kind}: not tried: {reason}")
                continue
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            tried, survived = tried + 1, survived + (not found)
            problems += [f"{kind}: {one}" for one in found]
    return Row(fault.name, tried, survived, problems)


def run(fast: bool, generator: np.random.Generator, only: str = "") -> Iterator[Row]:
    """Try all faults."""
    with tempfile.TemporaryDirectory(prefix="dpmcmc-faults-") as folder:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(folder) / "cache"))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
        lab = Lab(Path(folder) / "runs", generator)
        for fault in FAULTS:
            kinds, times = fault.kinds, fault.times_if_fast if fast else fault.times
            if fast and fault.name in FEW:
                kinds, times = (FEW[fault.name],), 1
            if times and only in fault.name:
                yield try_fault(fault, lab, kinds, times)


def child(verb: str, kind: str, place: str, memory: Sequence[str]) -> int:
    """Be a process of a run, as the command line is for those samplers that it does not know."""
    life = Life(Path(place), kind)

    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + int(memory[1]) * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    with at_looks(counted(int(memory[0]), limit) if memory else lambda: None):
        ending = life.begin() if verb == "sample" else life.go_on()
    if ending.text:
        print(ending.text, file=sys.stderr)
    return 70 if ending.code is None else ending.code


def main(words: Sequence[str] | None = None) -> int:
    """Try all faults, print a table; the exit code is 0 if all were survived."""
    parser = argparse.ArgumentParser(prog="python -m trust.faults", description=main.__doc__)
    parser.add_argument("--fast", action="store_true", help="a few of each, in two minutes")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    parser.add_argument("--only", default="", metavar="WORDS", help="faults whose name holds these words")
    parser.add_argument("--seed", type=int, help="of the moments, to try the same again")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--memory", nargs=2, default=[], help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if given.child:
        verb, kind, place = given.child
        return child(verb, kind, place, given.memory)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    seed = np.random.SeedSequence().generate_state(1)[0] if given.seed is None else given.seed
    print(f"{'fault':50s} {'tried':>6s} {'survived':>9s}   (--seed {seed})", flush=True)
    rows = []
    for row in run(given.fast, np.random.default_rng(seed), given.only):
        rows.append(row)
        print(f"{row.fault:50s} {row.tried:6d} {row.survived:9d}", flush=True)
        for problem in row.problems:
            print(f"    {problem}", flush=True)
    tried, survived = sum(row.tried for row in rows), sum(row.survived for row in rows)
    print(f"{'all':50s} {tried:6d} {survived:9d}")
    if given.json:
        faults = {row.fault: {"tried": row.tried, "survived": row.survived} for row in rows}
        Path(given.json).write_text(json.dumps({"tried": tried, "survived": survived, "faults": faults}, indent=2))
    return 0 if survived == tried else 1


if __name__ == "__main__":
    sys.exit(main())
