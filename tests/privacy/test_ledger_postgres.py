"""Ledgers in PostgreSQL: servers that go away, URLs that are wrong, and passwords that are shown nowhere."""

import json
import os
import sys
import threading
import traceback
from fractions import Fraction

import pytest

from dpmcmc.errors import LedgerError, NotPrivateError
from dpmcmc.privacy.ledger import Ledger
from tests.postgres import PASSWORD

DELTA = 1e-6


def refused(place, match, action=Ledger):
    with pytest.raises(LedgerError, match=match) as caught:
        action(place)
    assert "\n" not in str(caught.value)
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


def create(place):
    return Ledger.create(place, epsilon=1.0, delta=DELTA)


def test_a_ledger_is_never_replaced(postgres_url):
    ledger = create(postgres_url)
    refused(postgres_url, "already; open it", create)
    assert Ledger(postgres_url).verify().head == ledger.status().head


def test_of_several_that_make_one_at_once_one_does(postgres_url):
    made, refusals = [], []

    def make():
        try:
            made.append(create(postgres_url))
        except LedgerError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refusals)) == (1, 3)
    assert all("open" in refusal and "another" in refusal for refusal in refusals)
    assert Ledger(postgres_url).verify().num_entries == 1


def test_there_is_none(postgres_url):
    refused(postgres_url, "there is no ledger in it; make one")


def test_a_name_is_given_and_not_made_of_the_url(postgres_url):
    assert create(postgres_url).status().name == ""


def test_a_table_of_something_else(postgres_url, postgres_server):
    database = postgres_url.rsplit("/", 1)[1]
    postgres_server.execute("CREATE TABLE dpmcmc_ledger (a int)", database)
    refused(postgres_url, "damaged, or no ledger at all")


def test_tampering_shows(postgres_url, postgres_server):
    ledger = create(postgres_url)
    account = ledger.open_run("gaussian", 1.0, DELTA)
    account.charge("mu", Fraction(1, 1000))
    account.charge("mu", Fraction(1, 1000))
    head, database = ledger.status().head, postgres_url.rsplit("/", 1)[1]
    postgres_server.execute("DELETE FROM dpmcmc_ledger WHERE number = 4", database)
    with pytest.raises(LedgerError, match="cut short, or replaced"):
        account.charge("mu", Fraction(1, 1000))
    with pytest.raises(LedgerError, match="cut short"):
        Ledger(postgres_url).verify(head=head)
    postgres_server.execute("UPDATE dpmcmc_ledger SET payload = replace(payload, '1/1000', '1/9000')", database)
    refused(postgres_url, "entry 3: it was edited")


def test_commits_are_on_disk(postgres_url):
    ledger = create(postgres_url)
    with ledger._storage._engine.connect() as connection, connection.begin():
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == "20s"
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"


def test_a_database_that_is_serializable_by_default(postgres_url, postgres_server):
    database = postgres_url.rsplit("/", 1)[1]
    postgres_server.execute(f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'")
    ledgers = [create(postgres_url), Ledger(postgres_url)]
    with ledgers[0]._storage._engine.connect() as connection, connection.begin():
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
    for ledger in [*ledgers, *ledgers]:
        ledger.open_run("gaussian", 0.1, DELTA)
    assert ledgers[0].verify().num_entries == 5


def test_a_server_that_goes_away_and_comes_back(postgres_url, postgres_server):
    ledger = create(postgres_url)
    account = ledger.open_run("gaussian", 1.0, DELTA)
    account.charge("mu", Fraction(1, 1000))
    postgres_server.stop("immediate")
    try:
        for action in (lambda: account.charge("mu", Fraction(1, 1000)), ledger.status, lambda: Ledger(postgres_url)):
            with pytest.raises(LedgerError, match="the database cannot be reached; check the URL") as caught:
                action()
            assert "\n" not in str(caught.value)
            assert PASSWORD not in str(caught.value)
    finally:
        postgres_server.start()
    account.charge("mu", Fraction(1, 1000))
    assert ledger.verify().runs[0].spent == Fraction(2, 1000)


def test_a_connection_that_is_cut(postgres_url, postgres_server):
    ledger = create(postgres_url)
    account = ledger.open_run("gaussian", 1.0, DELTA)
    database = postgres_url.rsplit("/", 1)[1]
    postgres_server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")
    account.charge("mu", Fraction(1, 1000))
    assert ledger.verify().num_entries == 3


def test_a_fork_is_refused_before_it_touches_the_connection(postgres_url):
    ledger = create(postgres_url)
    child = os.fork()
    if child == 0:  # no pytest from here on
        code = 1
        try:
            ledger.status()
        except NotPrivateError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    ledger.open_run("gaussian", 1.0, DELTA)


# ------------------------------------------------------------------------------------------------------------- URLs


def test_the_password_is_shown_nowhere(postgres_url):
    option = f"{postgres_url.replace(f':{PASSWORD}@', '@')}?password={PASSWORD}&sslpassword=another-secret"
    create(postgres_url)
    for url in (postgres_url, option):
        ledger = Ledger(url)
        account = ledger.open_run("gaussian", 0.1, DELTA)
        shown = [repr(ledger), ledger.place, repr(ledger.status()), json.dumps(ledger.status().to_dict())]
        shown += [repr(account.standing()), repr(vars(ledger._storage))]
        assert PASSWORD not in "".join(shown)
        assert "another-secret" not in "".join(shown[:-1])
        assert "127.0.0.1" in ledger.place
        assert all(PASSWORD not in row.payload for row in ledger._storage.rows_from(0))


def test_it_is_found_again_by_its_place_where_the_password_is_known(postgres_url, monkeypatch):
    """The place is a URL that works: libpq takes the password from PGPASSWORD, or ~/.pgpass."""
    place = create(postgres_url).place
    assert "*" not in place
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    assert Ledger(place).verify().num_entries == 1


def test_other_ways_to_write_the_url(postgres_url):
    create(postgres_url.replace("postgresql://", "postgres://"))
    assert Ledger(postgres_url.replace("postgresql://", "postgresql+psycopg2://")).verify().num_entries == 1


def test_a_wrong_password(postgres_server):
    refused(postgres_server.url(password="guessed"), "the user or the password is refused")


def test_no_password(postgres_server, monkeypatch):
    monkeypatch.delenv("PGPASSWORD", raising=False)
    refused(postgres_server.url().replace(f":{PASSWORD}", ""), "the user or the password is refused")


def test_no_such_database(postgres_server):
    refused(postgres_server.url("nowhere"), "the database cannot be reached; check the URL")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{PASSWORD}@127.0.0.1:1/db",
        f"postgresql://u:{PASSWORD}@no-such-host.invalid/db",
        f"postgresql://u:{PASSWORD}@127.0.0.1:1/db?no_such_option=1",
        f"postgresql://u:{PASSWORD}@127.0.0.1:1/db?connect_timeout=soon",
    ],
    ids=["port", "host", "option", "value"],
)
def test_urls_that_lead_nowhere(url):
    refused(url, "the database cannot be reached; check the URL")


@pytest.mark.parametrize(
    "url",
    [f"postgresql://u:{PASSWORD}@host:port/db", f"postgresql://u:{PASSWORD}/more@host/db", f"://{PASSWORD}@"],
)
def test_urls_that_cannot_be_read(url):
    refused(url, "URL that cannot be read|cannot be reached")


@pytest.mark.parametrize("kind", ["mysql", "mssql+pyodbc", "oracle", "https", "file"])
def test_urls_of_other_things(kind):
    refused(f"{kind}://u:{PASSWORD}@host/db", f"URL of '{kind.split('+')[0]}'; give the name of a file, or a URL of")


def test_without_psycopg(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "psycopg"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    refused(f"postgresql://u:{PASSWORD}@host/db", r"needs psycopg; pip install 'dpmcmc\[postgres\]'")
