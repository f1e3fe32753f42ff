"""The rows of a ledger: a table to which entries are only ever added, in one SQLite file or in a PostgreSQL database.

It knows nothing of what entries mean. An entry counts when it is committed to disk; who reads, decides and adds does so
in one transaction, so that of processes that race each sees what the others have added.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from dpmcmc.errors import LedgerError

# Seconds to wait for a ledger that somebody else has locked: nothing is lost by giving up before a run has begun.
PATIENCE, PATIENCE_ON_THE_WAY = 20.0, 180.0

_TABLE = sql.Table(
    "dpmcmc_ledger",
    sql.MetaData(),
    sql.Column("number", sql.BigInteger, primary_key=True, autoincrement=False),
    sql.Column("time", sql.Text, nullable=False),
    sql.Column("kind", sql.Text, nullable=False),
    sql.Column("payload", sql.Text, nullable=False),
    sql.Column("previous", sql.Text, nullable=False),
    sql.Column("hash", sql.Text, nullable=False),
)
# What databases say, and what that means.
_REASONS = (
    (("locked", "lock timeout", "lock not available", "busy"), "another process has it locked; try again later"),
    (("disk is full", "no space", "disk full"), "the disk is full; make room"),
    (("readonly", "read-only"), "it, or its folder, is read-only; change the permissions"),
    (("unable to open", "permission denied"), "it cannot be opened; check the path and its permissions"),
    (("not a database", "malformed", "corrupt"), "it is damaged, or no ledger at all; restore it from a copy"),
    (("connection", "connect", "terminating", "server closed"), "the database cannot be reached; check the URL"),
    (("disk i/o", "i/o error"), "the disk cannot be written; check it"),
)


class Row(NamedTuple):
    """An entry as it is stored; `hash` covers all the others."""

    number: int
    time: str
    kind: str
    payload: str
    previous: str
    hash: str


class Storage:
    """The table of a ledger.

    Parameters
    ----------
    place
        The name of an SQLite file, or a URL for SQLAlchemy: ``postgresql://user@host/database``.
    create
        Whether to make it; what exists is left alone and refused.

    Raises
    ------
    LedgerError
        There is none, it cannot be opened, or it exists already.
    """

    def __init__(self, place: str | os.PathLike[str], *, create: bool = False) -> None:
        text = os.fspath(place)
        self.path: Path | None = None
        if "://" in text and not text.startswith("sqlite"):
            try:
                url = sql.make_url(text)
            except SQLAlchemyError:
                raise LedgerError("ledger is a URL that cannot be read; give postgresql://user@host/database") from None
            if url.get_backend_name() != "postgresql":
                raise LedgerError(
                    f"ledger is a URL of {url.get_backend_name()!r}; give the name of a file, or a URL of PostgreSQL"
                )
            if url.drivername == "postgresql":
                url = url.set(drivername="postgresql+psycopg")
            self.shown = url.render_as_string(hide_password=True)
            try:
                self._engine = sql.create_engine(url, pool_size=1, pool_pre_ping=True)
            except ModuleNotFoundError:
                raise LedgerError(
                    f"ledger is {self.shown!r}, which needs psycopg; pip install 'dpmcmc[postgres]'"
                ) from None
            sql.event.listen(self._engine, "begin", self._begin_in_postgres)
        else:
            self.path = Path(text.removeprefix("sqlite:///")).absolute()
            self.shown = str(self.path)
            if not create:
                self._check_file()
            self._engine = sql.create_engine("sqlite://", creator=self._connect, poolclass=sql.pool.NullPool)
            sql.event.listen(self._engine, "begin", self._begin_in_sqlite)
        self._patience = PATIENCE
        if create:
            self._create()

    @property
    def place(self) -> str:
        """Where it is, so that it can be found again; without the password of a URL."""
        return self.shown

    def _check_file(self) -> None:
        assert self.path is not None
        if self.path.is_dir():
            raise LedgerError(f"ledger is {str(self.path)!r}, which is a folder; give the name of a file")
        if not self.path.exists():
            raise LedgerError(
                f"ledger is {str(self.path)!r}, and there is no such file; make it with `dpmcmc ledger create` (its total "
                "is to be decided first), or check the path"
            )

    def _create(self) -> None:
        if self.path is not None:
            try:
                # Nobody else may read it: it holds the key of the fingerprints.
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                raise LedgerError(
                    f"ledger is {str(self.path)!r}, which exists; open it, or choose another name: a ledger is never replaced"
                ) from None
            except OSError as error:
                raise LedgerError(f"the ledger {str(self.path)!r} cannot be made ({error.strerror}); choose another") from None
        try:
            with self._told("made"), self._engine.connect() as connection:
                with connection.execution_options(writes=True).begin():
                    if sql.inspect(connection).has_table(_TABLE.name):
                        raise LedgerError(f"there is a ledger at {self.shown!r} already; open it, or choose another")
                    _TABLE.create(connection)
        except LedgerError:
            if self.path is not None:
                for suffix in ("", "-wal", "-shm", "-journal"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            raise

    def rows_after(self, number: int) -> list[Row]:
        """Return all entries with a larger number, in order."""
        with self._told("read"), self._engine.connect() as connection:
            return _rows_after(connection, number)

    def append(self, number: int, decide: Callable[[list[Row]], Row], *, patience: float = PATIENCE) -> Row:
        """Add one entry, durably.

        Parameters
        ----------
        number
            The last entry that is known to the caller.
        decide
            Is told the entries after that one, and returns the one to add; or raises, and nothing is added. Called
            again, with the entries that have come since, where another process was faster.
        patience
            Seconds to wait for one that has the ledger locked.
        """
        self._patience, end = patience, time.monotonic() + patience
        with self._told("written"):
            while True:
                with self._engine.connect() as connection:
                    try:
                        with connection.execution_options(writes=True).begin():
                            rows = _rows_after(connection, number)
                            number = rows[-1].number if rows else number
                            row = decide(rows)
                            connection.execute(_TABLE.insert().values(row._asdict()))
                        return row
                    except IntegrityError:  # PostgreSQL: another one was faster with this number
                        if time.monotonic() > end:
                            raise

    def close(self) -> None:
        """Let go of it."""
        self._engine.dispose()

    # ------------------------------------------------------------------------------------------------ databases

    def _connect(self) -> sqlite3.Connection:
        # Not created if it is gone; begun by hand (see `_begin_in_sqlite`).
        connection = sqlite3.connect(f"file:{quote(str(self.path))}?mode=rw", uri=True, isolation_level=None)
        connection.execute(f"PRAGMA busy_timeout = {int(1000 * self._patience)}")
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.OperationalError:  # to be read only; who writes is told
            pass
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin_in_sqlite(self, connection: Any) -> None:
        # Who will write takes the lock before reading: what is read then stays so until it is decided upon.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")

    def _begin_in_postgres(self, connection: Any) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(1000 * self._patience)}")
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")

    @contextlib.contextmanager
    def _told(self, done: str) -> Iterator[None]:
        """Say in one line what a database said in its own way. Nothing in a ledger is secret but its key."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
            said = str(cause).lower()
            known = (meaning for words, meaning in _REASONS if any(word in said for word in words))
            if "no such table" in said or "does not exist" in said:
                known = iter(["there is no ledger in it; make one with `dpmcmc ledger create`"])
            reason = next(known, f"an error of type {type(cause).__name__}")
            raise LedgerError(f"the ledger {self.shown!r} could not be {done}: {reason}") from None


def _rows_after(connection: sql.Connection, number: int) -> list[Row]:
    found = connection.execute(sql.select(_TABLE).where(_TABLE.c.number > number).order_by(_TABLE.c.number))
    return [Row(*row) for row in found]
