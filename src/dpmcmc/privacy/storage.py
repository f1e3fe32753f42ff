"""The rows of a ledger: a table to which entries are only ever added, in one SQLite file or in a PostgreSQL database.

It knows nothing of what entries mean. An entry counts when it is committed to disk; who reads, decides and adds does so
in one transaction, so that of processes that race each sees what the others have added.
"""

from __future__ import annotations

import contextlib
import logging
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
_DAMAGED = (
    "it is damaged, or no ledger at all; restore a copy that has all entries (what a copy lacks is spent all the same)"
)
# A network that says nothing any more is noticed within a minute or so; what stands in the URL goes before.
_NETWORK = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
# What databases say, and what that means; the first that fits.
_REASONS = (
    (("is locked", "lock timeout"), "another process has it locked; try again later"),
    (("disk is full", "no space", "disk full"), "the disk is full; make room"),
    (("readonly", "read-only"), "it, or its folder, is read-only; change the permissions"),
    (("unable to open", "permission denied"), "it cannot be opened; check the path and its permissions"),
    (("already exists", "duplicate key"), "another process has made one; open that, or choose another"),
    (("not a database", "malformed", "corrupt", "unsupported", "could not decode"), _DAMAGED),
    (("no such column", f"column {_TABLE.name}"), _DAMAGED),
    (("no such table", f'"{_TABLE.name}" does not'), "there is no ledger in it; make one with `dpmcmc ledger create`"),
    (("authentication failed", "no password"), "the user or the password is refused; check the URL"),
    (("connect", "terminating", "server closed", "resolve"), "the database cannot be reached; check the URL"),
    (("i/o error",), "the disk cannot be written; check it"),
)
_SMALLEST_PAGE = 512
# Who logs the SQL of an application must not find a ledger's entries there: they hold the key of the fingerprints.
_LOGGED_AS = "dpmcmc"
logging.getLogger(f"sqlalchemy.engine.Engine.{_LOGGED_AS}").addFilter(lambda line: line.levelno >= logging.WARNING)


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
    first
        The first entry of a new one, which is made with it; what exists is left alone and refused.

    Raises
    ------
    LedgerError
        There is none, it cannot be opened, or it exists already.
    """

    def __init__(self, place: str | os.PathLike[str], *, first: Row | None = None) -> None:
        self._patience = PATIENCE
        self.path = path_of(place)
        if self.path is None:
            url = _postgres(os.fspath(place))
            # Without the password, not with stars for one: so it can be found again where libpq knows the password.
            public = url.difference_update_query(["sslpassword"])
            self.shown = sql.URL.create(**{**public._asdict(), "password": None}).render_as_string()
            try:
                self._engine = sql.create_engine(
                    url,
                    pool_size=1,
                    pool_pre_ping=True,
                    isolation_level="READ COMMITTED",
                    hide_parameters=True,
                    logging_name=_LOGGED_AS,
                    connect_args=_network_settings(url),
                )
            except ImportError:
                raise LedgerError(
                    f"ledger is {self.shown!r}, which needs psycopg; pip install 'dpmcmc[postgres]'"
                ) from None
            sql.event.listen(self._engine, "begin", self._begin_in_postgres)
        else:
            self.shown = str(self.path)
            if first is None:
                self._check_file(self.path)
            self._engine = sql.create_engine(
                "sqlite://",
                creator=self._connect,
                poolclass=sql.pool.NullPool,
                hide_parameters=True,
                logging_name=_LOGGED_AS,
            )
            sql.event.listen(self._engine, "begin", self._begin_in_sqlite)
        self._new = first is not None
        if first is not None:
            self._create(first)
            self._new = False

    @property
    def place(self) -> str:
        """Where it is, so that it can be found again; without the password of a URL."""
        return self.shown

    def _check_file(self, path: Path) -> None:
        if os.path.isdir(path):
            raise LedgerError(f"ledger is {self.shown!r}, which is a folder; give the name of a file")
        if not os.path.exists(path):
            raise LedgerError(
                f"ledger is {self.shown!r}, and there is no such file; make it with `dpmcmc ledger create` (its total "
                "is to be decided first), or check the path"
            )
        # SQLite takes a short file for one that it may write. Not opened to look: to close it would free the locks that
        # another thread has on it (POSIX).
        if os.stat(path).st_size < _SMALLEST_PAGE:
            raise LedgerError(f"ledger is {self.shown!r}, which is no ledger; check the path (or remove it, if empty)")

    def _create(self, first: Row) -> None:
        if self.path is not None:
            self._make_file(self.path)
        try:
            with self._told("made"), self._begun() as connection:
                if sql.inspect(connection).has_table(_TABLE.name):
                    raise LedgerError(f"there is a ledger at {self.shown!r} already; open it, or choose another")
                _TABLE.create(connection)
                connection.execute(_TABLE.insert().values(first._asdict()))
        except LedgerError:
            if self.path is not None:
                for suffix in ("", "-wal", "-shm", "-journal"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
            raise

    def _make_file(self, path: Path) -> None:
        log = f"{path}-wal"
        if os.path.exists(log) and os.path.getsize(log):
            raise LedgerError(
                f"there is a file {log!r} of another ledger, which would go on in a new one; restore that, or remove it"
            )
        try:
            # Nobody else may read it: it holds the key of the fingerprints.
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            raise LedgerError(
                f"ledger is {self.shown!r}, which exists; open it, or choose another name: a ledger is never replaced"
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no path"
            raise LedgerError(f"the ledger {self.shown!r} cannot be made ({reason}); choose another") from None

    def check(self) -> None:
        """See that an SQLite file is sound: a page that is damaged could hide its last entries."""
        if self.path is None:
            return
        with self._told("read"), self._engine.connect() as connection:
            if connection.exec_driver_sql("PRAGMA integrity_check").scalar() != "ok":
                raise LedgerError(f"the ledger {self.shown!r} could not be read: {_DAMAGED}")

    def rows_from(self, number: int) -> list[Row]:
        """Return the entry of this number and all later ones, in order; with 0, all that there are."""
        with self._told("read"), self._engine.connect() as connection:
            return _rows_from(connection, number)

    def append(self, number: int, decide: Callable[[list[Row]], Row], *, patience: float = PATIENCE) -> Row:
        """Add one entry, durably.

        Parameters
        ----------
        number
            The last entry that is known to the caller.
        decide
            Is told the entries from that one on, and returns the one to add; or raises, and nothing is added. Called
            again, with the entries from the last of those on, where another process was faster.
        patience
            Seconds to wait for one that has the ledger locked.
        """
        self._patience, end = patience, time.monotonic() + patience
        with self._told("written"):
            while True:
                try:
                    with self._begun() as connection:
                        rows = _rows_from(connection, number)
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
        assert self.path is not None
        # Not created if it is gone; begun by hand (see `_begin_in_sqlite`).
        mode = "ro&immutable=1" if _is_on_a_read_only_disk(self.path) else "rw"
        name = f"file:{quote(os.fsencode(self.path))}?mode={mode}"
        connection = sqlite3.connect(name, uri=True, isolation_level=None)
        try:
            connection.execute(f"PRAGMA busy_timeout = {int(1000 * self._patience)}")
            connection.execute("PRAGMA synchronous = FULL")
            if self._new:  # it stays so; a file that is no ledger is left as it is
                connection.execute("PRAGMA journal_mode = WAL")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextlib.contextmanager
    def _begun(self) -> Iterator[sql.Connection]:
        """Begin a transaction that will write."""
        with self._engine.connect() as connection, connection.execution_options(writes=True).begin():
            yield connection

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
        except UnicodeDecodeError:  # of what SQLite quotes
            raise LedgerError(f"the ledger {self.shown!r} could not be {done}: {_DAMAGED}") from None
        except (SQLAlchemyError, sqlite3.Error) as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
            said = str(cause).lower()
            known = (meaning for words, meaning in _REASONS if any(word in said for word in words))
            reason = next(known, f"an error of type {type(cause).__name__}")
            raise LedgerError(f"the ledger {self.shown!r} could not be {done}: {reason}") from None


def path_of(place: str | os.PathLike[str]) -> Path | None:
    """Return the file that a place is; None if it is a URL of a database."""
    text = os.fsdecode(place)
    return None if "://" in text and not text.startswith("sqlite") else Path(text.removeprefix("sqlite:///")).absolute()


def _postgres(text: str) -> sql.URL:
    try:
        url = sql.make_url(text)
    except (SQLAlchemyError, ValueError):  # which may quote a part of the password
        raise LedgerError("ledger is a URL that cannot be read; give postgresql://user@host/database") from None
    if url.get_backend_name() not in ("postgresql", "postgres"):
        kind = url.get_backend_name()
        raise LedgerError(f"ledger is a URL of {kind!r}; give the name of a file, or a URL of PostgreSQL")
    # A password among the options goes where SQLAlchemy shows it to nobody.
    given = url.query.get("password") or url.password
    password = given[-1] if isinstance(given, tuple) else given
    return url.difference_update_query(["password"]).set(drivername="postgresql+psycopg", password=password)


def _rows_from(connection: sql.Connection, number: int) -> list[Row]:
    rows = sql.select(_TABLE).order_by(_TABLE.c.number)
    # All of them, whatever their numbers: damage may have changed those.
    return [Row(*row) for row in connection.execute(rows.where(_TABLE.c.number >= number) if number else rows)]


def _network_settings(url: sql.URL) -> dict[str, int]:
    if not url.get_driver_name().startswith("psycopg"):
        return {}
    return {name: value for name, value in _NETWORK.items() if name not in url.query}


def _is_on_a_read_only_disk(path: Path) -> bool:
    """Whether nothing can be written there, so that SQLite could not even read a file with a write-ahead log."""
    try:
        read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        log = Path(f"{path}-wal")
        return read_only and not (log.exists() and log.stat().st_size)  # (with a log, its last entries would be missed)
    except (OSError, AttributeError):
        return False
