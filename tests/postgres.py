"""A private PostgreSQL server for tests: in a temporary directory, on a free port, gone at the end.

Fixtures for a conftest.py: `postgres_server` (one for the session) and `postgres_url` (a fresh database for each test).
"""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PASSWORD = "xY7-secret-of-the-server"


def binaries() -> Path | None:
    """Where initdb and pg_ctl are: in the path, or where Debian puts them."""
    found = shutil.which("initdb")
    if found is not None and shutil.which("pg_ctl") is not None:
        return Path(found).parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return places[-1].parent if places else None


class PostgresServer:
    """A server that asks for a password; nothing in it survives the tests, so that it need not wait for the disk."""

    def __init__(self, folder: Path, programs: Path, user: list[str]) -> None:
        self._folder, self._programs, self._user = folder, programs, user
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._databases = 0
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if user:
            shutil.chown(secret, "postgres")
        self._run("initdb", "-U", "postgres", "--auth=scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._user, str(self._programs / program), "-D", str(self._folder / "data"), *arguments]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", timeout=60
        )
        assert done.returncode == 0, done.stdout.decode(errors="replace")

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        # Its output to a file: a pipe would stay open as long as the server.
        self._run("pg_ctl", "start", "-w", "-l", str(self._folder / "data" / "log"), "-o", options)

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "stop", "-w", "-m", mode)

    def url(self, database: str = "postgres", password: str = PASSWORD) -> str:
        return f"postgresql://postgres:{password}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> None:
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement)

    def fresh(self) -> str:
        """Return the URL of a new, empty database."""
        self._databases += 1
        name = f"people_{self._databases}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server; skipped, with what is missing, where none can be started."""
    programs = binaries()
    if programs is None:
        pytest.skip("NOT TESTED on PostgreSQL: no initdb and pg_ctl here; install the server (Debian: postgresql)")
    pytest.importorskip("psycopg", reason="NOT TESTED on PostgreSQL: psycopg is missing; pip install 'psycopg[binary]'")
    user: list[str] = []
    if os.geteuid() == 0:  # which PostgreSQL refuses to run as
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("NOT TESTED on PostgreSQL: tests run as root, and there is no user `postgres` to run it as")
        user = ["runuser", "-u", "postgres", "--"]
    folder = Path(tempfile.mkdtemp(prefix="dpmcmc-postgres-"))
    try:
        if user:
            shutil.chown(folder, "postgres")
        server = PostgresServer(folder, programs, user)
        server.start()
        try:
            yield server
        finally:
            with contextlib.suppress(AssertionError):  # it may have been stopped by a test
                server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """URL, with a password, of a fresh database."""
    return postgres_server.fresh()
