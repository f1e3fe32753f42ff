"""Places for ledgers: a file, and a PostgreSQL database where there is a server."""

import pytest

from tests.postgres import postgres_server, postgres_url

__all__ = ["ledger_place", "postgres_server", "postgres_url"]


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_place(request, tmp_path):
    """Where a ledger can be made: both kinds, one after the other."""
    return str(tmp_path / "people.ledger") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
