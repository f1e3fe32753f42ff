"""The ledger's rules: what fits, what is held, what is set apart, and that a refusal changes nothing."""

import copy
import errno
import itertools
import json
import os
import pickle
import re
import sqlite3
import stat
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmcmc.errors import BudgetExceededError, DPMCMCError, LedgerError, NotPrivateError, QueryError
from dpmcmc.privacy import ledger as ledger_module
from dpmcmc.privacy.budget import Budget
from dpmcmc.privacy.ledger import Ledger, Marks
from tests.privacy.ledgers import files_of, read, rows

DELTA = 1e-6


def mu_of(epsilon, delta=DELTA):
    budget = Budget(epsilon, delta)
    budget.reserve_lattice()
    return Fraction(budget.total)


@pytest.fixture
def make(tmp_path):
    numbers = itertools.count()

    def make_one(epsilon=2.0, delta=DELTA, **options):
        return Ledger.create(tmp_path / f"people{next(numbers)}.ledger", epsilon=epsilon, delta=delta, **options)

    return make_one


# ------------------------------------------------------------------------------------------------------- creation


def test_it_is_found_again_with_its_total(tmp_path):
    made = Ledger.create(tmp_path / "people.ledger", epsilon=1.5, delta=1e-7)
    found = Ledger(tmp_path / "people.ledger")
    assert (found.epsilon, found.delta, found.key) == (1.5, 1e-7, made.key)
    assert found.status() == made.status()
    assert found.status().name == "people"


def test_a_ledger_is_never_replaced(tmp_path):
    place = tmp_path / "people.ledger"
    Ledger.create(place, epsilon=1.0, delta=DELTA)
    before = place.read_bytes()
    with pytest.raises(LedgerError, match="which exists"):
        Ledger.create(place, epsilon=2.0, delta=DELTA)
    assert place.read_bytes() == before
    other = tmp_path / "text"
    other.write_text("mine")
    with pytest.raises(LedgerError, match="which exists"):
        Ledger.create(other, epsilon=2.0, delta=DELTA)
    assert other.read_text() == "mine"


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        *((epsilon, DELTA) for epsilon in (0.0, -1.0, np.nan, np.inf, "one", None)),
        *((1.0, delta) for delta in (0.0, 1.0, -0.1, np.nan)),
        (1e-300, 1e-300),
    ],
)
def test_totals_that_cannot_be(tmp_path, epsilon, delta):
    with pytest.raises(QueryError):
        Ledger.create(tmp_path / "people.ledger", epsilon=epsilon, delta=delta)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [3, "x" * 201])
def test_a_name_that_cannot_be_leaves_no_file(tmp_path, name):
    with pytest.raises(QueryError, match="name"):
        Ledger.create(tmp_path / "people.ledger", epsilon=1.0, delta=DELTA, name=name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["Ärzte ε 数", "\ud800", "a\0b", "'; DROP TABLE dpmcmc_ledger", ""])
def test_any_short_text_is_a_name(make, name):
    ledger = make(name=name)
    assert Ledger(ledger.place).status().name == name


def test_no_folder(tmp_path):
    with pytest.raises(LedgerError, match="cannot be made"):
        Ledger.create(tmp_path / "nowhere" / "people.ledger", epsilon=1.0, delta=DELTA)


@pytest.mark.parametrize("place", ["x" * 300, "a\0b"])
def test_a_place_that_is_no_path(tmp_path, place):
    with pytest.raises(LedgerError):
        Ledger.create(f"{tmp_path}/{place}", epsilon=1.0, delta=DELTA)
    with pytest.raises(LedgerError):
        Ledger(f"{tmp_path}/{place}")


def test_a_folder_is_no_ledger(tmp_path):
    with pytest.raises(LedgerError, match="is a folder"):
        Ledger(tmp_path)


def test_there_is_none(tmp_path):
    with pytest.raises(LedgerError, match="no such file"):
        Ledger(tmp_path / "people.ledger")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["with space", "100%", "a?mode=ro", "a#b", "ä", b"\xff\xfe", "sqlite", "x'y\"z"])
def test_names_that_mean_something_in_urls(tmp_path, name):
    place = os.path.join(os.fsencode(tmp_path), name if isinstance(name, bytes) else name.encode())
    Ledger.create(os.fsdecode(place), epsilon=1.0, delta=DELTA)
    assert Ledger(os.fsdecode(place)).epsilon == 1.0
    assert os.listdir(os.fsencode(tmp_path)) == [os.path.basename(place)]


def test_a_url_of_sqlite_is_a_file(tmp_path):
    Ledger.create(f"sqlite:///{tmp_path}/people.ledger", epsilon=1.0, delta=DELTA)
    assert Ledger(tmp_path / "people.ledger").epsilon == 1.0


@pytest.mark.skipif(os.geteuid() == 0, reason="NOT TESTED: root may write into every folder; run the tests as a user")
def test_a_folder_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(LedgerError, match="cannot be made"):
            Ledger.create(tmp_path / "people.ledger", epsilon=1.0, delta=DELTA)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_file_that_cannot_be_made(tmp_path, monkeypatch, code):
    """As above, for root too: what the system would say."""

    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("dpmcmc.privacy.storage.os.open", refuse)
    with pytest.raises(LedgerError, match=f"cannot be made \\({os.strerror(code)}\\)"):
        Ledger.create(tmp_path / "people.ledger", epsilon=1.0, delta=DELTA)


def test_a_database_that_is_read_only_can_be_read_and_not_written(make, monkeypatch):
    """Root may write everything: so it is SQLite that is told to write nothing."""
    ledger = make()
    connect = ledger._storage._connect

    def read_only():
        connection = connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    monkeypatch.setattr(ledger._storage, "_connect", read_only)
    ledger._storage._engine.pool._creator = read_only
    assert ledger.status().left_epsilon == 2.0
    with pytest.raises(LedgerError, match="read-only"):
        ledger.open_run("gaussian", 1.0, DELTA)
    assert Ledger(ledger.place).status().num_entries == 1


def test_remains_of_another_ledger_do_not_come_alive(tmp_path):
    """SQLite would go through a write-ahead log that it finds beside a new file."""
    place = tmp_path / "people.ledger"
    ledger = Ledger.create(place, epsilon=1.0, delta=DELTA)
    with closing(sqlite3.connect(place)) as reader:
        reader.execute("BEGIN").execute("SELECT * FROM dpmcmc_ledger").fetchall()  # so that the log stays
        ledger.reserve(0.25)
        log = Path(f"{place}-wal").read_bytes()
    for file in files_of(place):
        file.unlink()
    Path(f"{place}-wal").write_bytes(log)
    with pytest.raises(LedgerError, match="of another ledger"):
        Ledger.create(place, epsilon=5.0, delta=DELTA)
    assert Path(f"{place}-wal").read_bytes() == log
    assert not place.exists()


def test_only_the_owner_can_read_it(make):
    before = os.umask(0)
    try:
        ledger = make()
        with closing(sqlite3.connect(ledger.place)) as other:
            other.execute("BEGIN").execute("SELECT * FROM dpmcmc_ledger").fetchall()  # keeps the log and its index
            ledger.reserve(0.5)
            files = files_of(Path(ledger.place))
            assert len(files) == 3
            assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 3
    finally:
        os.umask(before)


def test_entries_are_on_disk_when_they_count(make):
    """What SQLite itself says of the connections that write."""
    ledger = make()
    with ledger._storage._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 20000


def test_copies_are_refused(make):
    ledger = make()
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(NotPrivateError):
            copied(ledger)


def test_a_fork_is_refused(make):
    ledger = make()
    account = ledger.open_run("gaussian", 1.0, DELTA)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # no pytest from here on
        said = []
        for action in (ledger.status, ledger.verify, lambda: account.charge("mu", Fraction(1, 1000))):
            try:
                action()
                said.append("done")
            except NotPrivateError:
                said.append("refused")
            except BaseException as error:
                said.append(type(error).__name__)
        os.write(writer, ",".join(said).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"refused,refused,refused"
    assert ledger.verify().num_entries == 2


# ---------------------------------------------------------------------------------------------------- Gaussian runs


def test_the_whole_budget_in_one_run_fits_exactly(make):
    ledger = make(1.0)
    account = ledger.open_run("gaussian", 1.0, DELTA)
    assert ledger.status().left_epsilon == 0.0
    account.charge("mu", mu_of(1.0))
    status = ledger.verify()
    assert (status.mu_spent, status.mu_total) == (float(mu_of(1.0)), float(mu_of(1.0)))
    assert status.mu_left == 0.0
    with pytest.raises(BudgetExceededError):
        account.charge("mu", Fraction(1, 10**30))


def test_sums_are_exact(make):
    """Ten thirds of a third, which no float is; and 1e-40 beside 0.1, which vanishes in floats."""
    ledger = make(1.0)
    account = ledger.open_run("gaussian", 1.0, DELTA, hold=False)
    part = mu_of(1.0) / 7
    for _ in range(6):
        account.charge("mu", part)
    account.charge("mu", part - Fraction(1, 10**40))
    with pytest.raises(BudgetExceededError):
        account.charge("mu", Fraction(2, 10**40))
    account.charge("mu", Fraction(1, 10**40))
    assert Ledger(ledger.place).account(1).spent("mu")[0] == mu_of(1.0)


def test_two_runs_leave_more_than_simple_composition_would(make):
    ledger = make(2.0)
    for _ in range(2):
        account = ledger.open_run("gaussian", 1.0, DELTA)
        account.charge("mu", mu_of(1.0))
        account.close("complete")
    left = ledger.status().left_epsilon
    assert 1.0 < left < 2.0  # simple composition: 0
    assert mu_of(left) <= mu_of(2.0) - 2 * mu_of(1.0) < mu_of(left * 1.001)


def test_who_is_refused_is_told_what_would_fit(make):
    ledger = make(2.0)
    for _ in range(3):
        ledger.open_run("gaussian", 1.0, DELTA)
    with pytest.raises(BudgetExceededError) as caught:
        ledger.open_run("gaussian", 1.5, DELTA)
    could = float(re.search(r"could have ε = (\S+) at this δ", str(caught.value))[1])
    with pytest.raises(BudgetExceededError):
        ledger.open_run("gaussian", could * 1.01, DELTA)
    ledger.open_run("gaussian", could, DELTA)
    with pytest.raises(BudgetExceededError, match="is held by runs that may go on"):
        ledger.open_run("gaussian", 1.0, DELTA)


def test_who_is_refused_when_all_is_spent_is_told_so(make):
    ledger = make(1.0)
    ledger.open_run("gaussian", 1.0, DELTA).charge("mu", mu_of(1.0))
    with pytest.raises(BudgetExceededError, match="is used up, and no setting changes that"):
        ledger.open_run("gaussian", 0.1, DELTA)


def test_what_is_held_cannot_be_taken_and_is_freed_in_the_end(make):
    ledger = make(1.0)
    first = ledger.open_run("gaussian", 1.0, DELTA)
    first.charge("mu", mu_of(1.0) / 4)
    second = ledger.open_run("gaussian", 1.0, DELTA, hold=False)
    with pytest.raises(BudgetExceededError):
        second.charge("mu", Fraction(1, 10**9))
    first.close("interrupted")
    assert ledger.status().mu_held == 0.0
    second.charge("mu", mu_of(1.0) * 3 / 4)
    with pytest.raises(BudgetExceededError):
        second.charge("mu", Fraction(1, 10**9))


@pytest.mark.parametrize("hold", [True, False])
def test_no_run_is_charged_beyond_its_grant(make, hold):
    ledger = make(2.0)
    account = ledger.open_run("gaussian", 1.0, DELTA, hold=hold)
    account.charge("mu", mu_of(1.0) / 2)
    with pytest.raises(BudgetExceededError, match="pays for"):
        account.charge("mu", mu_of(1.0) / 2 + Fraction(1, 10**30))
    account.charge("mu", mu_of(1.0) / 2)
    assert ledger.verify().runs[0].spent == mu_of(1.0)


def test_a_run_that_pays_for_nothing(make):
    """Its hold would be 0, which must not mean that it holds nothing and takes what is there."""
    with pytest.raises(QueryError, match="nothing at all"):
        make().open_run("gaussian", 1e-300, 1e-300)


def test_after_the_end_nothing_is_charged(make):
    ledger = make()
    account = ledger.open_run("gaussian", 1.0, DELTA)
    account.close("complete")
    for action in (
        lambda: account.charge("mu", Fraction(1, 1000)),
        lambda: account.close("complete"),
        account.note_resumed,
        lambda: ledger.account(1),
    ):
        with pytest.raises(LedgerError, match="has ended"):
            action()
    assert ledger.status().num_entries == 3


def test_runs_that_are_not_there(make):
    ledger = make()
    for action in (ledger.account, ledger.close_run):
        with pytest.raises(LedgerError, match="run 7"):
            action(7)


@pytest.mark.parametrize("cost", [-1, Fraction(-1, 3), float("nan"), float("inf"), -0.5, Fraction(10) ** 400, "1"])
def test_costs_that_cannot_be(make, cost):
    ledger = make()
    account = ledger.open_run("gaussian", 1.0, DELTA)
    for costs in ((cost,), (0, cost), (0, 0, cost)):
        with pytest.raises(DPMCMCError):
            account.charge("mu", *costs)
    assert ledger.status().num_entries == 2


def test_a_float_is_charged_as_the_number_that_it_is(make):
    account = make().open_run("gaussian", 1.0, DELTA)
    account.charge("mu", 0.001)
    assert account.spent("mu")[0] == Fraction(0.001) != Fraction("0.001")


def test_the_reserve_for_discrete_noise_is_shared(make):
    ledger = make(1.0)
    accounts = [ledger.open_run("gaussian", 0.5, DELTA) for _ in range(2)]
    total = Fraction(1.0) - Fraction(1.0 * (1.0 - 1e-5)), Fraction(DELTA) - Fraction(DELTA * (1.0 - 1e-6))
    accounts[0].charge("mu", Fraction(0), total[0], Fraction(0))
    accounts[0].charge("mu", Fraction(0), Fraction(0), total[1])
    for lattice in ((Fraction(1, 10**40), 0), (0, Fraction(1, 10**40))):
        with pytest.raises(BudgetExceededError, match="discrete noise"):
            accounts[1].charge("mu", Fraction(0), *lattice)
    accounts[1].charge("mu", Fraction(1, 1000))


def test_meters_belong_to_kinds_of_runs(make):
    ledger = make()
    gaussian, minibatch = ledger.open_run("gaussian", 0.5, DELTA / 4), ledger.open_run("minibatch", 0.5, DELTA / 4)
    for account, meter in ((gaussian, "steps"), (gaussian, "check"), (minibatch, "mu"), (minibatch, "other")):
        with pytest.raises(LedgerError, match="cannot be charged by"):
            account.charge(meter, Fraction(1))
    with pytest.raises(LedgerError, match="which is none"):
        ledger.open_run("laplace", 0.5, DELTA)


def test_what_was_looked_at_does_not_change(make):
    """A status is a picture: neither do charges change it, nor does changing it change the ledger."""
    ledger = make(1.0)
    account = ledger.open_run("gaussian", 1.0, DELTA)
    before = ledger.status()
    account.charge("mu", mu_of(1.0))
    assert before.runs[0].spent == 0
    after = ledger.status()
    after.runs[0].spent, after.runs[0].limit = Fraction(0), Fraction(10)
    after.runs[0].charges.clear()
    with pytest.raises(BudgetExceededError):
        account.charge("mu", Fraction(1, 1000))


def test_another_process_sees_the_same(make):
    ledger = make()
    other = Ledger(ledger.place)
    account = ledger.open_run("gaussian", 1.0, DELTA, token="t")
    account.charge("mu", Fraction(1, 100), what={"kind": "gradient", "answers": 3})
    assert other.run_of("t") == 1
    assert other.run_of("") is None
    again = other.account(1)
    assert again.charges[0].what == {"kind": "gradient", "answers": 3}
    again.charge("mu", Fraction(1, 100))
    ledger.refresh()
    assert account.spent("mu")[0] == Fraction(2, 100)
    assert ledger.status() == other.status()


@pytest.mark.parametrize("what", [{"x": float("nan")}, {"x": object()}])
def test_what_cannot_be_written_is_not_charged(make, what):
    ledger = make()
    account = ledger.open_run("gaussian", 1.0, DELTA)
    with pytest.raises((ValueError, TypeError)):
        account.charge("mu", Fraction(1, 1000), what=what)
    assert ledger.verify().num_entries == 2
    account.charge("mu", Fraction(1, 1000))


def test_other_last_digits_of_another_machine(make, monkeypatch):
    """A total that is computed a little lower elsewhere makes no ledger unreadable there, and allows nothing more."""
    ledger = make(3.0)
    ledger.open_run("gaussian", 1.0, DELTA / 2)
    ledger.reserve(2.0, DELTA / 2)  # all that is not held
    whole = make(1.0)
    whole.open_run("gaussian", 1.0, DELTA).charge("mu", mu_of(1.0))
    original = ledger_module._gaussian_total

    def lower(epsilon, delta):
        total, *lattice = original(epsilon, delta)
        return (total * (1.0 - 1e-12), *lattice)

    monkeypatch.setattr(ledger_module, "_gaussian_total", lower)
    for one in (ledger, whole):
        status = Ledger(one.place).verify()
        assert (status.left_epsilon, status.mu_left) == (0.0, 0.0)
        with pytest.raises(BudgetExceededError):
            Ledger(one.place).open_run("gaussian", 0.01, DELTA)


# ----------------------------------------------------------------------------------------------- what is set apart


def test_minibatch_runs_before_gaussian_ones_in_any_order(make):
    ledger = make(3.0)
    first = ledger.open_run("minibatch", 0.5, DELTA / 4)
    gaussian = ledger.open_run("gaussian", 0.5, DELTA / 4)
    second = ledger.open_run("minibatch", 0.75, DELTA / 4)
    second.charge("steps", Fraction(10))
    first.charge("check", Fraction(1))
    gaussian.charge("mu", mu_of(0.5, DELTA / 4))
    status = ledger.verify()
    assert (status.apart_epsilon, status.apart_used_epsilon) == (1.25, 1.25)
    assert (status.apart_delta, status.apart_used_delta) == (DELTA / 2, DELTA / 2)
    assert status.mu_total == float(mu_of(1.75, DELTA / 2))


def test_a_minibatch_run_counts_once_and_from_its_first_charge(make):
    ledger = make(3.0)
    account = ledger.open_run("minibatch", 0.5, DELTA / 4)
    assert ledger.status().apart_used_epsilon == 0.0
    for _ in range(3):
        account.charge("steps", Fraction(10))
    assert ledger.status().apart_used_epsilon == 0.5
    account.close("complete")
    assert ledger.status().apart_used_epsilon == 0.5


def test_what_a_minibatch_run_did_not_use_serves_the_next(make):
    ledger = make(3.0)
    ledger.open_run("minibatch", 0.5, DELTA / 4).close("failed")
    ledger.open_run("minibatch", 0.5, DELTA / 4)
    assert ledger.status().apart_epsilon == 0.5
    ledger.open_run("minibatch", 0.5, DELTA / 4)
    assert ledger.status().apart_epsilon == 1.0


def test_after_a_gaussian_charge_only_what_was_reserved(make):
    ledger = make(3.0)
    ledger.reserve(0.5, DELTA / 4, note="for later")
    gaussian = ledger.open_run("gaussian", 0.5, DELTA / 4)
    gaussian.charge("mu", Fraction(1, 10**6))
    assert ledger.status().fixed
    with pytest.raises(BudgetExceededError, match="no more can be set apart"):
        ledger.open_run("minibatch", 0.5, DELTA / 2)
    with pytest.raises(BudgetExceededError, match="no more can be set apart"):
        ledger.open_run("minibatch", 0.75, DELTA / 4)
    with pytest.raises(BudgetExceededError, match="cannot be set apart any more"):
        ledger.reserve(0.1)
    account = ledger.open_run("minibatch", 0.5, DELTA / 4)
    account.charge("steps", Fraction(1))
    with pytest.raises(BudgetExceededError):
        ledger.open_run("minibatch", 0.01, DELTA / 100)


def test_the_parting_is_final_even_when_the_gaussian_run_has_ended(make):
    ledger = make(3.0)
    account = ledger.open_run("gaussian", 0.5, DELTA / 4)
    account.charge("mu", Fraction(0))
    account.close("complete")
    with pytest.raises(BudgetExceededError):
        ledger.reserve(0.1)


def test_a_gaussian_run_without_a_charge_fixes_nothing(make):
    ledger = make(3.0)
    ledger.open_run("gaussian", 0.5, DELTA / 4).close("failed")
    ledger.reserve(0.5, DELTA / 4)
    assert not ledger.status().fixed


def test_a_reserve_that_is_used_counts_at_once(make):
    ledger = make(3.0)
    ledger.reserve(0.5, DELTA / 4, note="a table from elsewhere", used=True)
    status = ledger.status()
    assert (status.apart_used_epsilon, status.apart_used_delta) == (0.5, DELTA / 4)
    assert status.reserves[0]["note"] == "a table from elsewhere"
    ledger.open_run("gaussian", 0.5, DELTA / 4).charge("mu", Fraction(1, 10**6))
    with pytest.raises(BudgetExceededError):  # no minibatch run can have it
        ledger.open_run("minibatch", 0.5, DELTA / 4)


def test_what_a_gaussian_run_holds_cannot_be_set_apart(make):
    ledger = make(2.0)
    account = ledger.open_run("gaussian", 1.0, DELTA / 2)
    for action in (
        lambda: ledger.reserve(1.5),
        lambda: ledger.reserve(0.9, DELTA * 0.999),
        lambda: ledger.open_run("minibatch", 1.5, DELTA / 4),
    ):
        with pytest.raises(BudgetExceededError, match="held by Gaussian runs"):
            action()
    ledger.reserve(1.0, DELTA / 2)
    account.charge("mu", mu_of(1.0, DELTA / 2))
    assert ledger.verify().mu_left == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(2.0001, 0.0), (1.0, 1.01e-6)])
def test_more_than_the_total_cannot_be_set_apart(make, epsilon, delta):
    ledger = make(2.0)
    with pytest.raises(BudgetExceededError, match="is left of the total"):
        ledger.reserve(epsilon, delta)
    ledger.reserve(2.0, DELTA)
    with pytest.raises(BudgetExceededError):
        ledger.open_run("gaussian", 0.01, DELTA)
    assert ledger.verify().left_epsilon == 0.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (-1.0, 0.0), (1.0, -1e-9), (np.nan, 0.0), (1.0, np.inf)])
def test_reserves_that_cannot_be(make, epsilon, delta):
    ledger = make()
    with pytest.raises(QueryError):
        ledger.reserve(epsilon, delta)
    with pytest.raises(QueryError, match="note"):
        ledger.reserve(0.1, note="x" * 501)
    assert ledger.status().num_entries == 1


# ------------------------------------------------------------------------------------------------------ everything

amounts = st.sampled_from([Fraction(1, 50), Fraction(1, 7), Fraction(1, 3), Fraction(1, 2), Fraction(1)])
operations = st.one_of(
    st.tuples(st.just("open"), st.sampled_from(["gaussian", "minibatch"]), amounts, amounts, st.booleans()),
    st.tuples(st.just("charge"), st.integers(1, 6), amounts, st.sampled_from([0, 1, 5, 11])),
    st.tuples(st.just("charge"), st.integers(1, 6), amounts, st.just(0)),
    st.tuples(st.just("close"), st.integers(1, 6)),
    st.tuples(st.just("reserve"), amounts, amounts, st.booleans()),
)


def _do(ledger, operation):
    """One operation, in parts of the total."""
    kind, *arguments = operation
    if kind == "open":
        run_kind, epsilon, delta, hold = arguments
        ledger.open_run(run_kind, float(epsilon) * ledger.epsilon, float(delta) * ledger.delta, hold=hold)
    elif kind == "charge":
        run, part, lattice = arguments
        account = ledger.account(run)
        if account.status.kind == "minibatch":
            account.charge("steps", Fraction(1))
        else:  # of what it may spend, or of what is free
            costs = Fraction(ledger.epsilon) * lattice / 10**6, Fraction(ledger.delta) * lattice / 10**7
            account.charge("mu", account.status.limit * part, *costs)
    elif kind == "close":
        ledger.close_run(arguments[0])
    else:
        ledger.reserve(float(arguments[0]) * ledger.epsilon, float(arguments[1]) * ledger.delta, used=arguments[2])


@settings(max_examples=100, deadline=None, database=None)
@given(sequence=st.lists(operations, min_size=5, max_size=25), total=st.sampled_from([(1.0, 1e-6), (8.0, 1e-3)]))
def test_the_promise_is_kept_by_any_sequence(tmp_path_factory, sequence, total):
    """A second reader adds up, with the exact curve: (ε, δ) holds, and a refusal has changed nothing."""
    place = tmp_path_factory.mktemp("ledger") / "people.ledger"
    ledger = Ledger.create(place, epsilon=total[0], delta=total[1])
    head, number = ledger.status().head, 1
    for operation in sequence:
        try:
            _do(ledger, operation)
            number += 1
        except (BudgetExceededError, LedgerError):
            assert rows(place)[-1][5] == head
        found = rows(place)
        assert len(found) == number
        head = found[-1][5]
    sums, status = read(place), Ledger(place).verify(head=head)
    assert sums.exceeded() == []
    assert (status.head, status.num_entries) == (sums.head, sums.number)
    assert status == ledger.status()
    spent = sum((run.spent for run in status.runs), Fraction(0)), sum((run.held for run in status.runs), Fraction(0))
    assert spent == (sums.mu, sums.held)
    assert status.apart_epsilon == pytest.approx(float(sums.apart[0]), rel=1e-15)
    assert status.apart_used_delta == pytest.approx(float(sums.used[1]), rel=1e-15)


def test_twin_the_second_reader_notices_a_promise_that_is_broken(make, monkeypatch):
    ledger = make(1.0)
    account = ledger.open_run("gaussian", 1.0, DELTA)
    account.charge("mu", mu_of(1.0))
    assert read(ledger.place).exceeded() == []
    original = ledger_module._gaussian_total
    more = lambda epsilon, delta: (original(epsilon, delta)[0] * 1.0001, *original(epsilon, delta)[1:])  # noqa: E731
    monkeypatch.setattr(ledger_module, "_gaussian_total", more)
    other = make(1.0)
    account = other.open_run("gaussian", 1.0, DELTA)
    account.charge("mu", account.status.limit)
    assert read(other.place).exceeded() == ["gaussian"]


# ----------------------------------------------------------------------------------------------------------- people


def marks(num_records=10, **columns):
    return lambda key: Marks(num_records, columns)


def opened(ledger, found, **options):
    return ledger.open_run("gaussian", 0.1, DELTA, marks=found, **options)


def test_data_are_recognised_by_some_of_their_columns(make):
    ledger = make()
    opened(ledger, marks(age="a", sex="s"))
    opened(ledger, marks(age="a"))
    opened(ledger, marks(age="a", sex="s", city="c"))
    opened(ledger, marks(city="c"))
    assert ledger.status().num_records == (10,)


@pytest.mark.parametrize(
    "found",
    [marks(age="b", sex="s"), marks(city="c"), marks(11, age="a", sex="s")],
    ids=["one column differs", "no column is known", "another number of records"],
)
def test_other_data_are_refused_unless_somebody_says_they_are_the_same_peoples(make, found):
    ledger = make()
    opened(ledger, marks(age="a", sex="s")).close("complete")
    with pytest.raises(LedgerError, match="not those that this ledger knows"):
        opened(ledger, found)
    assert ledger.status().num_entries == 3
    opened(ledger, found, same_people=True)
    again = Ledger(ledger.place)
    opened(again, found)  # from now on they are known
    opened(again, marks(age="a", sex="s"))
    assert [run.same_people for run in again.verify().runs] == [False, True, False, False]
    assert json.loads(rows(ledger.place)[3][3])["same_people"] is True


def test_a_run_goes_on_with_its_own_data_only(make):
    ledger = make()
    account = opened(ledger, marks(age="a"))
    account.note_resumed(marks(age="a"))
    with pytest.raises(LedgerError, match="not those"):
        account.note_resumed(marks(age="b"))
    assert ledger.verify().num_entries == 3


def test_key_and_fingerprints_are_shown_nowhere(make):
    ledger = make()
    opened(ledger, marks(name_mark="column_mark"), token="secret_token").charge("mu", Fraction(1, 10**6))
    status = ledger.status()
    shown = repr(ledger) + repr(status) + json.dumps(status.to_dict()) + repr(ledger.account(1).standing())
    for secret in (ledger.key.hex(), repr(ledger.key), "name_mark", "column_mark", "secret_token"):
        assert secret not in shown
    assert ledger.key.hex() in rows(ledger.place)[0][3]  # twin: it is that key


def test_a_statement_can_be_made_of_it(make):
    ledger = make(2.0)
    account = ledger.open_run("gaussian", 1.0, DELTA)
    account.charge("mu", mu_of(1.0))
    standing = account.standing()
    assert (standing["mu_before"], standing["mu_after"]) == (0.0, float(mu_of(1.0)))
    assert mu_of(standing["left_epsilon"]) <= mu_of(2.0) - mu_of(1.0)
    assert ledger.verify(head=standing["head"]).num_entries == 3
