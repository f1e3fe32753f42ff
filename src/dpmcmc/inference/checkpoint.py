"""The folder of a run: while it runs, a checkpoint of what was released; in the end, its results.

A checkpoint is an SQLite file that only its owner can read. Parts are added to it, each in a transaction of its own and
with a hash over it and all before: draws, states of samplers, answers. They were all released, and paid for. It never
holds a record, noise, or the state of a noise source; and nothing in it is code (no pickle).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmcmc.errors import CheckpointError
from dpmcmc.output import OutputError
from dpmcmc.results.folder import POSTERIOR, RUN_FILES

CHECKPOINT, CHARGES = "checkpoint.db", "charges.ledger"
OWN_CHARGES = "the charges of one run, dpmcmc's own"
"""The name of the ledger that a run without one has in its folder: any other is somebody's, and not removed."""
_REPLACED, _TEST = ".replaced", ".dpmcmc-test-"
_FACTS = "facts"
_GENESIS = "0" * 64
# Seconds to wait for another process that has the checkpoint for a moment.
_PATIENCE = 3.0


class Part(NamedTuple):
    """Something that was written down: its kind, plain values, and arrays."""

    kind: str
    header: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


class RunFolder:
    """A folder that will hold a run, checked before anything is computed; `begin` makes it.

    Parameters
    ----------
    folder
        Where; it must not exist, or be empty, or hold an earlier run that is to be replaced.
    overwrite
        Whether an earlier run, complete, may be replaced.
    command
        What `dpmcmc resume` needs to find model and data again; None for a run from Python.

    Raises
    ------
    OutputError
        It cannot be used; nothing was computed.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, overwrite: bool = False, command: dict[str, Any] | None = None
    ) -> None:
        self.shown = os.fspath(folder)
        self.path = Path(folder).absolute()
        self.overwrite, self.command = overwrite, command
        self._made: list[Path] = []
        try:
            self._check()
        except OSError as error:
            raise self._cannot(error) from None

    def _cannot(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write the folder {self.shown!r} ({error.strerror or type(error).__name__}); nothing was computed, "
            "choose another folder"
        )

    def _check(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise OutputError(f"{self.shown!r} is a file, not a folder; nothing was computed, choose another name")
        if self.path.exists():
            self._check_contents(sorted(path.name for path in self.path.iterdir()))
        there = next(folder for folder in (self.path, *self.path.parents) if folder.exists())
        test = there / f"{_TEST}{os.getpid()}"
        test.write_bytes(b"test")
        test.unlink()

    def _check_contents(self, names: list[str]) -> None:
        if CHECKPOINT in names and has_begun(self.path):
            raise OutputError(
                f"the folder {self.shown!r} holds a run that is not complete; go on with it by `dpmcmc resume "
                f"{self.shown}` (in Python dpmcmc.resume), or choose another folder; nothing was computed"
            )
        others = [name for name in names if not _is_left_over(self.path / name)]
        if others and not self.overwrite:
            raise OutputError(
                f"the folder {self.shown!r} is not empty; nothing was computed, choose another, or let an earlier run "
                "be replaced (--overwrite)"
            )
        unknown = [name for name in others if name not in RUN_FILES]
        if unknown:
            raise OutputError(
                f"the folder {self.shown!r} holds {unknown[0]!r}, which is not of an earlier run, so that it is not "
                "replaced; nothing was computed, choose another"
            )
        if others and not _is_a_run(self.path):
            raise OutputError(
                f"the folder {self.shown!r} is not of an earlier run, so that it is not replaced; nothing was "
                "computed, choose another"
            )

    def begin(self, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> Checkpoint:
        """Make the folder, with a checkpoint that holds these facts. An earlier run is set aside until this is done.

        Raises
        ------
        OutputError
            It could not be made.
        """
        checkpoint: Checkpoint | None = None
        ours = True
        try:
            for folder in reversed([one for one in (self.path, *self.path.parents) if not one.exists()]):
                folder.mkdir()
                self._made.append(folder)
            self._check_contents(sorted(path.name for path in self.path.iterdir()))  # somebody may have been faster
            with contextlib.suppress(FileExistsError):  # (not opened beside SQLite: closing it would lose its locks)
                os.close(os.open(self.path / CHECKPOINT, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            checkpoint = Checkpoint(self.path, self.shown)  # from here on nobody else can have it
            ours = not checkpoint.parts
            if not ours:
                raise OutputError(
                    f"another run has begun in {self.shown!r}; nothing was computed, choose another folder"
                )
            _remove_charges(self.path)  # of a run that was killed before it had begun
            checkpoint.append(_FACTS, {**facts, "command": self.command}, arrays)
            self._set_earlier_aside()
        except BaseException as error:
            if ours:
                self.discard(checkpoint)
            elif checkpoint is not None:
                checkpoint.close()
            if isinstance(error, OSError):
                raise self._cannot(error) from None
            raise
        return checkpoint

    def _set_earlier_aside(self) -> None:
        earlier = [name for name in RUN_FILES if (self.path / name).exists()]
        if earlier:
            self.path.joinpath(_REPLACED).mkdir(exist_ok=True)
        for name in earlier:
            os.replace(self.path / name, self.path / _REPLACED / name)

    def discard(self, checkpoint: Checkpoint | None) -> None:
        """Leave everything as it was: nothing was spent."""
        if checkpoint is not None:
            checkpoint.close()
            checkpoint.remove()
            replaced = self.path / _REPLACED
            if replaced.is_dir():
                for path in replaced.iterdir():
                    os.replace(path, self.path / path.name)
                replaced.rmdir()
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()


class Checkpoint:
    """The checkpoint in a folder. One process at a time can have it.

    Attributes
    ----------
    parts
        What was written, in order; the facts first.
    token
        Hash of the facts, by which a ledger knows the run: of facts that were edited it is another.

    Raises
    ------
    CheckpointError
        There is none, it is damaged, or another process has it.
    """

    def __init__(self, folder: str | os.PathLike[str], shown: str | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.shown = os.fspath(folder) if shown is None else shown
        self._file = self.folder / CHECKPOINT
        self._head, self._number, self.token = _GENESIS, 0, ""
        self._check_place()
        before = _identity(self._file)
        with self._told("opened"):
            self._connection = self._locked()
            try:
                self.parts = self._read()
                if before is None or _identity(self._file) != before:  # who had it was done with it, and removed it
                    raise CheckpointError(self._just_now())
            except BaseException:
                self._connection.close()
                raise

    def _locked(self) -> sqlite3.Connection:
        """Open the file so that nobody else can; the system lets go if this process dies.

        Of two that try at the same moment each may keep the other out: so both let go, and try again at another.
        """
        end = time.monotonic() + _PATIENCE
        while True:
            if not self._file.exists():
                raise CheckpointError(self._just_now())
            # (Not made if it is gone by now.)
            name = f"{self._file.as_uri()}?mode=rw"
            connection = sqlite3.connect(name, uri=True, isolation_level=None, check_same_thread=False, timeout=0.1)
            try:
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("BEGIN EXCLUSIVE")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS parts (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, "
                    "header TEXT NOT NULL, arrays BLOB NOT NULL, hash TEXT NOT NULL)"
                )
                connection.execute("COMMIT")
                return connection
            except BaseException as error:
                connection.close()
                if "locked" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(random.uniform(0.02, 0.3))

    def _just_now(self) -> str:
        return f"the run in {self.shown!r} has just ended, or begun; try again"

    def _check_place(self) -> None:
        if self._file.exists():
            return
        if not self.folder.is_dir():
            raise CheckpointError(f"there is no folder {self.shown!r}; check the path")
        if self.folder.joinpath(POSTERIOR).exists():
            raise CheckpointError(
                f"the run in {self.shown!r} is complete: its draws are in {POSTERIOR}; nothing is left to do"
            )
        raise CheckpointError(f"there is no run in {self.shown!r}; check the path")

    @property
    def facts(self) -> dict[str, Any]:
        """What the run is: settings, model, sizes."""
        return self._facts.header

    @property
    def fact_arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays among the facts."""
        return self._facts.arrays

    @property
    def _facts(self) -> Part:
        if not self.parts or self.parts[0].kind != _FACTS:
            raise CheckpointError(
                f"the run in {self.shown!r} was ended before it had begun, and nothing was spent; begin it again"
            )
        return self.parts[0]

    def of_kind(self, *kinds: str) -> list[Part]:
        """Return the parts of some kinds, in order."""
        return [part for part in self.parts if part.kind in kinds]

    def append(self, kind: str, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Add a part: when this returns, it is on disk."""
        part = Part(kind, dict(header), {name: np.asarray(value) for name, value in arrays.items()})
        text = json.dumps(part.header, sort_keys=True, ensure_ascii=False, allow_nan=False)
        content = _packed(part.arrays)
        head = _hash(self._head, kind, text, content)
        with self._told("written"), self._transaction():
            self._connection.execute(
                "INSERT INTO parts VALUES (?, ?, ?, ?, ?)", (self._number + 1, kind, text, content, head)
            )
        self._passed(head)
        self.parts.append(part)

    def _read(self) -> list[Part]:
        """Read everything, and see that it is what was written."""
        parts = []
        found = self._connection.execute("SELECT number, kind, header, arrays, hash FROM parts ORDER BY number")
        for number, kind, text, content, head in found:
            try:
                expected = _hash(self._head, kind, text, content)
                if number != self._number + 1 or head != expected:
                    raise ValueError("not what was written")
                header = json.loads(text)
                if not isinstance(header, dict):
                    raise ValueError("not what was written")
                parts.append(Part(kind, header, _unpacked(content)))
            except Exception:  # NumPy, zip and JSON have many ways to say that something is not theirs
                raise CheckpointError(self._damaged()) from None
            self._passed(expected)
        return parts

    def _passed(self, head: str) -> None:
        self._head, self._number, self.token = head, self._number + 1, self.token or head

    def _damaged(self) -> str:
        return (
            f"the checkpoint in {self.shown!r} is damaged; begin another run (what this one was charged counts as "
            "spent)"
        )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN EXCLUSIVE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _told(self, done: str) -> Iterator[None]:
        """Say in one line what SQLite said in its own way."""
        try:
            yield
        except UnicodeDecodeError:  # of what SQLite quotes
            raise CheckpointError(self._damaged()) from None
        except sqlite3.Error as error:
            said = str(error).lower()
            if "locked" in said or "busy" in said:
                raise CheckpointError(f"another process is at the run in {self.shown!r}; wait for it") from None
            if "not a database" in said or "malformed" in said or "corrupt" in said:
                raise CheckpointError(self._damaged()) from None
            reasons = {
                "full": "the disk is full",
                "readonly": "it is read-only",
                "unable to open": "it may not be opened",
            }
            reason = next((text for word, text in reasons.items() if word in said), type(error).__name__)
            raise CheckpointError(f"the checkpoint in {self.shown!r} could not be {done}: {reason}") from None

    def close(self) -> None:
        """Let go of it."""
        self._connection.close()

    def remove(self) -> None:
        """Remove the checkpoint (not the results), once it is not needed any more."""
        self.close()
        remove_database(self._file)  # first: without its charges it would be worth nothing
        _remove_charges(self.folder)


def tidy(folder: Path) -> None:
    """Remove from the folder of a complete run what is not of it: an earlier run, charges, what a kill has left."""
    shutil.rmtree(folder / _REPLACED, ignore_errors=True)
    _remove_charges(folder)
    for path in folder.iterdir():
        if _is_temporary(path.name):
            path.unlink(missing_ok=True)


def is_complete(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a run that is complete."""
    place = Path(folder)
    return place.joinpath(POSTERIOR).exists() and not place.joinpath(CHECKPOINT).exists()


def has_begun(folder: Path) -> bool:
    """Whether the checkpoint in a folder holds anything."""
    return holds_anything(folder / CHECKPOINT, "parts")


def holds_anything(path: Path, table: str) -> bool:
    """Whether there is anything in a table of an SQLite file (or it cannot be read: no reason to replace it)."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0.5)) as connection:
            (number,) = connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
            return bool(number)
    except sqlite3.OperationalError as error:
        return "no such table" not in str(error)
    except sqlite3.Error:
        return True


def _is_left_over(path: Path) -> bool:
    """Whether a file is of a run that was killed before it had begun."""
    if path.name.startswith(CHARGES):
        return _are_own_charges(path.with_name(CHARGES))
    return path.name.startswith(CHECKPOINT) or _is_temporary(path.name)


def _are_own_charges(path: Path) -> bool:
    """Whether a ledger was made by a run for itself, and is nobody else's."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0.5)) as connection:
            (payload,) = connection.execute("SELECT payload FROM dpmcmc_ledger WHERE number = 1").fetchone() or ("{}",)
            return bool(json.loads(payload).get("name", OWN_CHARGES) == OWN_CHARGES)
    except sqlite3.OperationalError as error:
        return "no such table" in str(error)  # making it was interrupted
    except (sqlite3.Error, ValueError, AttributeError):
        return False


def _remove_charges(folder: Path) -> None:
    if _are_own_charges(folder / CHARGES):
        remove_database(folder / CHARGES)


def _is_temporary(name: str) -> bool:
    """Whether a file was to be gone a moment after it was made."""
    unfinished = name.endswith(".tmp") and name.startswith(tuple(f".{known}." for known in RUN_FILES))
    return unfinished or name.startswith(_TEST)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_a_run(folder: Path) -> bool:
    from dpmcmc.errors import DPMCMCError
    from dpmcmc.results import Posterior

    try:
        Posterior.load(folder / POSTERIOR)
    except (OSError, DPMCMCError):
        return False
    return True


def remove_database(path: Path) -> None:
    """Remove an SQLite file, and what SQLite keeps beside it."""
    for suffix in ("-wal", "-shm", "-journal", ""):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _hash(previous: str, kind: str, header: str, arrays: bytes) -> str:
    own = hashlib.sha256()
    for piece in (previous.encode(), kind.encode(), header.encode(), arrays):
        own.update(len(piece).to_bytes(8, "little"))
        own.update(piece)
    return own.hexdigest()


def _packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    if any(array.dtype.hasobject for array in arrays.values()):  # NumPy would pickle it
        raise TypeError("a checkpoint holds numbers only")
    content = io.BytesIO()
    np.savez(content, **dict(arrays))  # type: ignore[arg-type]
    return content.getvalue()


def _unpacked(content: bytes) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
