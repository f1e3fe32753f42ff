"""Ledgers that were edited, damaged, or are none: one clear line, and never another error."""

import json
import random
import sqlite3
from contextlib import closing
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from dpmcmc.errors import DPMCMCError, LedgerError
from dpmcmc.privacy.ledger import Ledger, Marks
from tests.privacy.ledgers import execute, hash_of, rewrite, rows

DELTA = 1e-6
CREATE, RESERVE, OPEN, CHARGE, CLOSE = 0, 1, 2, 3, 8  # places of entries in the ledger below


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A ledger with an entry of every kind."""
    ledger = Ledger.create(tmp_path_factory.mktemp("made") / "people.ledger", epsilon=2.0, delta=DELTA)
    ledger.reserve(0.25, DELTA / 4, note="for later")
    account = ledger.open_run("gaussian", 0.5, DELTA / 2, marks=lambda key: Marks(10, {"a": "b"}))
    for _ in range(4):
        account.charge("mu", Fraction(1, 1000), Fraction(1, 10**9), Fraction(1, 10**15), {"kind": "gradient"})
    account.note_resumed(lambda key: Marks(10, {"a": "b"}))
    account.close("complete")
    ledger.open_run("minibatch", 0.25, DELTA / 4).charge("steps", Fraction(5))
    assert [row[2] for row in rows(ledger.place)][:9] == [
        *("create", "reserve", "open", "charge", "charge", "charge", "charge", "resume", "close")
    ]
    return Path(ledger.place).read_bytes()


@pytest.fixture
def place(content, tmp_path):
    copy = tmp_path / "people.ledger"
    copy.write_bytes(content)
    return copy


def refused(place, match="ledger"):
    """It is refused on opening, in one line."""
    with pytest.raises(LedgerError, match=match) as caught:
        Ledger(place)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_twin_a_ledger_that_was_written_again_as_it_was_is_the_same(place):
    before = Ledger(place).verify()
    rewrite(place, lambda entries: None)
    assert Ledger(place).verify() == before


# ----------------------------------------------------------------------------------------------------------- edits


@pytest.mark.parametrize("number", range(1, 12))
@pytest.mark.parametrize("column", ["time", "kind", "payload", "previous", "hash"])
def test_a_changed_entry(place, number, column):
    old = dict(zip(("number", "time", "kind", "payload", "previous", "hash"), rows(place)[number - 1], strict=True))
    new = old[column].replace("0", "1", 1) if "0" in old[column] else old[column] + " "
    execute(place, f"UPDATE dpmcmc_ledger SET {column} = ? WHERE number = ?", new, number)
    refused(place, f"entry {number}")


def test_a_changed_entry_with_its_own_hash(place):
    """The next one has the hash of the one that was there."""
    number, time, kind, payload, previous, _ = rows(place)[CHARGE]
    payload = payload.replace("1/1000", "1/9000")
    own = hash_of(number, time, kind, payload, previous)
    execute(place, "UPDATE dpmcmc_ledger SET payload = ?, hash = ? WHERE number = ?", payload, own, number)
    refused(place, f"entry {number + 1}: it does not hold the hash of the one before")


@pytest.mark.parametrize("number", range(1, 11))
def test_an_entry_that_is_missing(place, number):
    execute(place, "DELETE FROM dpmcmc_ledger WHERE number = ?", number)
    refused(place, "entries are missing|the first entry")


def test_entries_that_are_missing_with_the_others_numbered_anew(place):
    execute(place, "DELETE FROM dpmcmc_ledger WHERE number = 4")
    execute(place, "UPDATE dpmcmc_ledger SET number = number - 1 WHERE number > 4")
    refused(place, "entry 4: it does not hold the hash")


def test_entries_that_changed_places(place):
    for old, new in ((4, 100), (5, 4), (100, 5)):
        execute(place, "UPDATE dpmcmc_ledger SET number = ? WHERE number = ?", new, old)
    refused(place, "entry 4")


@pytest.mark.parametrize("number", [0, -5, 12, 2**62])
def test_an_entry_too_many(place, number):
    again = "INSERT INTO dpmcmc_ledger SELECT ?, time, kind, payload, previous, hash FROM dpmcmc_ledger LIMIT 1"
    execute(place, again, number)
    refused(place)


def test_a_ledger_that_was_cut_short_shows_by_a_head_that_is_known(place):
    head = Ledger(place).status().head
    execute(place, "DELETE FROM dpmcmc_ledger WHERE number > 4")
    assert Ledger(place).verify().num_entries == 4  # by itself it is a ledger like any other: see `Ledger`
    with pytest.raises(LedgerError, match="cut short"):
        Ledger(place).verify(head=head)
    assert Ledger(place).verify(head=rows(place)[2][5]).num_entries == 4


def test_a_ledger_that_is_cut_short_while_it_is_open(place):
    ledger = Ledger(place)
    execute(place, "DELETE FROM dpmcmc_ledger WHERE number > 9")
    before = rows(place)
    for action in (ledger.status, ledger.verify, lambda: ledger.open_run("gaussian", 0.1, DELTA)):
        with pytest.raises(LedgerError, match="cut short, or replaced"):
            action()
    assert rows(place) == before


def test_a_ledger_that_is_replaced_while_it_is_open(place, tmp_path):
    ledger, other = Ledger(place), Ledger.create(tmp_path / "other.ledger", epsilon=9.0, delta=DELTA)
    for _ in range(20):
        other.reserve(0.01)
    Path(other.place).replace(place)
    with pytest.raises(LedgerError, match="cut short, or replaced"):
        ledger.open_run("gaussian", 0.1, DELTA)


def test_a_ledger_that_is_removed_while_it_is_open(place):
    ledger = Ledger(place)
    place.unlink()
    with pytest.raises(LedgerError, match="cannot be opened"):
        ledger.open_run("gaussian", 0.1, DELTA)
    assert not place.exists()


@pytest.mark.parametrize(
    ("entry", "name", "value"),
    [(CREATE, "epsilon", 20.0), (CHARGE, "spent", "1/9000"), (CHARGE, "what", {}), (RESERVE, "used", True)],
)
def test_a_forgery_without_a_flaw_shows_only_by_a_head_that_is_known(place, entry, name, value):
    """What the hashes cannot notice, and what `Ledger` says that they cannot."""
    head = Ledger(place).status().head
    rewrite(place, lambda entries: entries[entry][1].update({name: value}))
    if name != "used":  # then the minibatch run has no room: the rules notice
        assert Ledger(place).verify().num_entries == 11
        with pytest.raises(LedgerError, match="no entry with the hash"):
            Ledger(place).verify(head=head)
    else:
        refused(place, "entry 10")
    assert "verify(head=…)" in Ledger.__doc__


# -------------------------------------------------------------------------- entries that no ledger could have written

TEXTS = ["1/0", "-1/3", "-1", "nan", "inf", "1e400", "1e999999999", "0x10", "1_000", " 1", "", "1/2/3", "٣", "9" * 5000]
WRONG_COSTS = [*TEXTS, True, False, None, 0.001, 1, [], {}, "9" * 400]
WRONG_NUMBERS = [True, None, "1.0", -1.0, float("nan"), float("inf"), 10**400, [], 0]


@pytest.mark.parametrize("value", WRONG_COSTS, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize("name", ["spent", "lattice_epsilon", "lattice_delta"])
def test_costs_that_are_none(place, name, value):
    rewrite(place, lambda entries: entries[CHARGE][1].update({name: value}))
    refused(place, f"entry {CHARGE + 1}")


@pytest.mark.parametrize("value", [*WRONG_NUMBERS, 1.0], ids=lambda value: str(value)[:12])
@pytest.mark.parametrize("entry", [CREATE, OPEN, RESERVE])
def test_deltas_that_are_none(place, entry, value):
    name = "delta"
    rewrite(place, lambda entries: entries[entry][1].update({name: value}))
    refused(place, f"entry {entry + 1}")


@pytest.mark.parametrize("value", WRONG_NUMBERS, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize("entry", [CREATE, OPEN, RESERVE])
def test_epsilons_that_are_none(place, entry, value):
    rewrite(place, lambda entries: entries[entry][1].update(epsilon=value))
    refused(place, f"entry {entry + 1}")


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0, -1, 2, 10**30, [1]], ids=str)
@pytest.mark.parametrize("entry", [OPEN, CHARGE, 7, CLOSE])
def test_runs_that_are_none(place, entry, value):
    rewrite(place, lambda entries: entries[entry][1].update(run=value))
    refused(place, f"entry {entry + 1}")


@pytest.mark.parametrize(
    ("entry", "name", "value"),
    [
        (CREATE, "format", 2),
        (CREATE, "format", True),
        (CREATE, "name", 5),
        (CREATE, "key", "ab"),
        (CREATE, "key", "zz" * 32),
        (CREATE, "key", None),
        (RESERVE, "used", "false"),
        (RESERVE, "used", 1),
        (RESERVE, "note", None),
        (OPEN, "kind", "laplace"),
        (OPEN, "kind", None),
        (OPEN, "limit", "10"),
        (OPEN, "hold", 1),
        (OPEN, "records", "10"),
        (OPEN, "records", True),
        (OPEN, "columns", []),
        (OPEN, "columns", {"a": 1}),
        (OPEN, "same_people", "yes"),
        (OPEN, "token", 5),
        (CHARGE, "meter", "steps"),
        (CHARGE, "meter", None),
        (CHARGE, "what", [["a", 1]]),
        (CHARGE, "spent", "1/2"),
        (7, "columns", {"a": "c"}),
        (7, "records", 11),
        (CLOSE, "how", None),
    ],
)
def test_values_that_cannot_be(place, entry, name, value):
    rewrite(place, lambda entries: entries[entry][1].update({name: value}))
    refused(place, f"entry {entry + 1}")


def test_every_value_is_needed(place):
    before = rows(place)
    for entry in range(9):
        for name in json.loads(before[entry][3]):
            rewrite(place, lambda entries, entry=entry, name=name: entries[entry][1].pop(name) and None)
            refused(place, f"entry {entry + 1}")
            with closing(sqlite3.connect(place)) as connection:
                connection.execute("DELETE FROM dpmcmc_ledger")
                connection.executemany("INSERT INTO dpmcmc_ledger VALUES (?, ?, ?, ?, ?, ?)", before)
                connection.commit()
    Ledger(place)


@pytest.mark.parametrize(
    "payload",
    ["", "{", "no JSON", "[]", "5", "null", '"text"', "NaN", "[" * 100_000, '{"a":' * 100_000, "\0", "{}", "9" * 5000],
    ids=lambda payload: payload[:8],
)
@pytest.mark.parametrize("entry", [CREATE, CHARGE])
def test_payloads_that_cannot_be_read(place, entry, payload):
    def change(entries):
        entries[entry][1] = payload

    rewrite(place, change)
    refused(place, f"entry {entry + 1}")


def test_values_of_other_types_than_text(place):
    """A column of SQLite holds anything."""
    content = place.read_bytes()
    for column in ("number", "time", "kind", "payload", "previous", "hash"):
        for value in (70, 1.5, b"\xff\xfe", "x", b""):
            execute(place, f"UPDATE dpmcmc_ledger SET {column} = ? WHERE number = 4", value)
            refused(place)
            place.write_bytes(content)
            Ledger(place)


def test_text_that_is_not_utf8(place):
    execute(place, "UPDATE dpmcmc_ledger SET payload = CAST(X'7bff' AS TEXT) WHERE number = 4")
    refused(place)


@pytest.mark.parametrize("kind", ["refund", "", "Charge", "create"])
def test_entries_of_another_kind(place, kind):
    def change(entries):
        entries[CHARGE][0] = kind

    rewrite(place, change)
    refused(place, f"entry {CHARGE + 1}")


def test_a_ledger_that_begins_with_something_else(place):
    rewrite(place, lambda entries: entries[1:])
    refused(place, "the first entry, and no other")


def test_a_parting_after_a_gaussian_charge(place):
    """The rules are checked when a ledger is read, not only when it is written."""
    rewrite(place, lambda entries: [*entries, entries[RESERVE]])
    refused(place, "entry 12: .*cannot be set apart any more")


def test_a_charge_after_the_end(place):
    rewrite(place, lambda entries: [*entries, entries[CHARGE]])
    refused(place, "entry 12: run 1 has ended")


# ---------------------------------------------------------------------------------------------- files that are none


@pytest.mark.parametrize("content", [b"", b"x", b"no ledger at all\n" * 500, b"SQLite format 3\0", b"\0" * 5000])
def test_files_that_are_no_ledger(tmp_path, content):
    place = tmp_path / "people.ledger"
    place.write_bytes(content)
    refused(place)
    assert place.read_bytes() == content


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE other (a)",
        "CREATE TABLE dpmcmc_ledger (a)",
        "CREATE TABLE dpmcmc_ledger (number, time, kind, payload, previous, hash)",
        "CREATE VIEW dpmcmc_ledger AS SELECT 1 AS number, 2 AS time, 3 AS kind, 4 AS payload, 5 AS previous, 6 AS hash",
    ],
)
def test_databases_of_something_else(tmp_path, table):
    place = tmp_path / "people.ledger"
    execute(place, table)
    content = place.read_bytes()
    refused(place)
    assert place.read_bytes() == content


@pytest.mark.parametrize("part", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_off(place, part):
    content = place.read_bytes()
    place.write_bytes(content[: int(len(content) * part)])
    refused(place)


def _flip(place, content, generator, changes):
    damaged = bytearray(content)
    for _ in range(changes):
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
    for name in (f"{place}-wal", f"{place}-shm"):
        Path(name).unlink(missing_ok=True)
    place.write_bytes(damaged)


def _flips(place, trials, seed):
    """Damage bits: it is noticed, or it was in a place that holds nothing."""
    before, content = Ledger(place).verify(), place.read_bytes()
    generator, noticed = random.Random(seed), 0
    for trial in range(trials):
        _flip(place, content, generator, 1 if trial % 2 else generator.randint(2, 40))
        said = _said(lambda: Ledger(place).verify())
        assert "\n" not in said
        assert said or Ledger(place).verify() == before
        noticed += bool(said)
    assert noticed > trials // 4


def _said(action):
    try:
        action()
    except DPMCMCError as error:
        return str(error)
    return ""


def test_bits_that_have_flipped(place):
    _flips(place, 300, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_bits_that_have_flipped(place, seed):
    _flips(place, 2000, seed)


def test_who_writes_into_a_damaged_ledger_gets_one_line(place):
    """Damage that comes while a ledger is open."""
    content, generator, noticed = place.read_bytes(), random.Random(5), 0
    for _ in range(100):
        place.write_bytes(content)
        ledger = Ledger(place)
        _flip(place, content, generator, 30)
        said = _said(partial(ledger.open_run, "gaussian", 0.01, DELTA))
        assert "\n" not in said
        noticed += bool(said)
    assert noticed > 50
