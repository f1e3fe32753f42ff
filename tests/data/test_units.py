"""Which rows are whose: by their ids alone, and by the order of a unit's own rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmcmc.data import Units, open_source
from dpmcmc.errors import DataError, QueryError

pandas = pytest.importorskip("pandas")


def plain_units(ids, max_rows):
    """The rule, one row after the other."""
    rows = {}
    for row, one in enumerate(ids):
        rows.setdefault(one, []).append(row)
    return {tuple(found[:max_rows]) for found in rows.values()}


def as_sets(units):
    return {tuple(int(row) for row in rows if row >= 0) for rows in units.index}


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 6), min_size=1, max_size=40), max_rows=st.integers(1, 5))
def test_the_first_rows_of_every_unit_are_kept(ids, max_rows):
    units = Units.of(np.array(ids), max_rows)
    assert as_sets(units) == plain_units(ids, max_rows)
    assert (units.num_units, units.max_rows, units.index.dtype) == (len(set(ids)), max_rows, np.int32)


@settings(deadline=None)
@given(
    own=st.integers(0, 8),
    before=st.lists(st.integers(1, 5), min_size=1, max_size=20),
    after=st.lists(st.integers(1, 5), min_size=1, max_size=20),
    seed=st.integers(0, 9),
)
def test_which_rows_of_a_unit_count_depends_on_its_own_rows_only(own, before, after, seed):
    """Other units may come, go or be anywhere in between: of one unit the same rows count, in the same order."""

    def kept(others):
        own_rows = np.sort(np.random.default_rng(seed).permutation(own + len(others))[:own])
        ids = np.zeros(own + len(others), int)
        ids[np.setdiff1d(np.arange(len(ids)), own_rows)] = others
        index = Units.of(ids, 3).index
        return [int(np.searchsorted(own_rows, row)) for rows in index for row in rows if row in own_rows]

    assert kept(before) == kept(after) == list(range(min(own, 3)))


SAME = {
    "integers": np.array([7, 8, 7, 9, 7]),
    "small integers": np.array([7, 8, 7, 9, 7], np.int8),
    "floats": np.array([7.0, 8.0, 7.0, 9.0, 7.0]),
    "text": np.array(["7", "8", "7", "9", "7"]),
    "objects": np.array(["7", 8, 7.0, "9", np.int64(7)], object),
    "bytes": np.array([b"7", b"8", b"7", b"9", b"7"], object),
}


@pytest.mark.parametrize("ids", SAME.values(), ids=SAME.keys())
def test_ids_that_are_written_the_same_are_the_same(ids):
    assert np.array_equal(Units.of(ids, 2).index, [[0, 2], [1, -1], [3, -1]])


MISSING = {
    "NaN": np.array([1.0, np.nan, np.nan]),
    "None": np.array([1, None, None], object),
    "of all kinds": np.array(["a", None, np.nan], object),
    "pandas.NA": np.array(["a", pandas.NA, pandas.NaT], object),
    "what cannot be written": np.array(["a", type("Odd", (), {"__str__": None})(), None], object),
}


@pytest.mark.parametrize("ids", MISSING.values(), ids=MISSING.keys())
def test_a_missing_id_is_an_id_like_any_other(ids):
    assert np.array_equal(Units.of(ids, 2).index, [[0, -1], [1, 2]])


def test_rows_that_are_not_finite_or_not_there_are_not_present():
    columns = {"x": np.array([[np.nan, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, -np.inf]]), "k": np.arange(4)}
    stacked = Units.of(np.array(["a", "b", "a", "c"]), 3).stack(columns)
    assert np.array_equal(stacked.present, [[False, True, False], [True, False, False], [False, False, False]])
    assert np.array_equal(stacked.rows["k"], [[2, 2, 2], [1, 1, 1], [3, 3, 3]])
    assert stacked.rows["x"].shape == (3, 3, 2)
    assert stacked.num_records == 3
    assert open_source(stacked) is stacked


def test_one_array_of_rows_is_stacked_too():
    stacked = Units.of(np.array([1, 2, 1]), 2).stack(np.array([[1.0], [2.0], [3.0]]))
    assert np.array_equal(stacked.rows[:, :, 0], [[1.0, 3.0], [2.0, 2.0]])


def test_what_is_shown_holds_neither_values_nor_the_number_of_rows():
    units = Units.of(np.array([777, 888, 777, 777]), 8)
    stacked = units.stack(np.array([[111.5], [222.5], [333.5], [444.5]]))
    assert repr(units) == "Units(2 units of at most 8 rows)"
    assert repr(stacked) == str(stacked) == "UnitRecords(2 units of at most 8 rows)"


@pytest.mark.parametrize("max_rows", [0, -1, 1.5, True, None, "8"])
def test_max_rows_must_be_a_count(max_rows):
    with pytest.raises(QueryError, match="max_rows"):
        Units.of(np.array([1, 2]), max_rows)


def test_no_rows_are_refused():
    with pytest.raises(DataError, match="0 rows"):
        Units.of(np.array([]), 2)


def test_a_million_rows_take_seconds():
    ids = np.random.default_rng(0).integers(0, 300_000, 10**6)
    units = Units.of(ids, 4)
    counts = np.bincount(ids, minlength=300_000)
    assert units.num_units == np.count_nonzero(counts)
    assert np.count_nonzero(units.index >= 0) == np.minimum(counts, 4).sum()
