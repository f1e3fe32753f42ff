"""Fingerprints of columns: the same wherever a table comes from, others after any change, and shown nowhere."""

import io
import json
from decimal import Decimal

import duckdb
import numpy as np
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest

import dpmcmc
from dpmcmc import Field, Schema, Table
from dpmcmc.data import marks_of, open_source
from dpmcmc.data.marks import digests, keyed_marks
from dpmcmc.errors import LedgerError
from dpmcmc.privacy.ledger import Ledger, Marks

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
FIELDS = [
    Field("age", "integer", minimum=17, maximum=90, missing="midpoint"),
    Field("weight", "number", minimum=0, maximum=100),
    Field("degree", "string", levels=["none", "BA", "MA"], missing="own level"),
    Field("smoker", "boolean"),
]
SCHEMA = Schema(FIELDS)
ROWS = {
    "age": [20, None, 200, 41, 17],
    "weight": [70.25, 55.5, None, 0.1, -0.0],
    "degree": ["BA", None, "PhD", "none", "MA"],
    "smoker": [True, False, None, True, False],
    "not in the schema": ["x"] * 5,
}
ARROW = pyarrow.table(ROWS)
CSV = """\
age,weight,degree,smoker,not in the schema
20,70.25,BA,true,x
,55.50,,False,x
200,,PhD,,x
4.1e1, 0.1,none,1,x
17,0,"MA",0,x
"""


def as_file(folder, text=None, **options):
    path = folder / ("people.csv" if text else "people.parquet")
    if text:
        path.write_text(text)
    else:
        pyarrow.parquet.write_table(ARROW, path, **options)
    return path


SOURCES = {
    "Arrow": lambda _: ARROW,
    "Arrow in pieces": lambda _: pyarrow.concat_tables([ARROW.slice(0, 2), ARROW.slice(2, 1), ARROW.slice(3)]),
    "Arrow with dictionaries": lambda _: ARROW.set_column(2, "degree", ARROW["degree"].dictionary_encode()),
    "Arrow of small integers": lambda _: ARROW.set_column(0, "age", ARROW["age"].cast(pyarrow.int16())),
    "Arrow of decimals": lambda _: ARROW.set_column(
        1, "weight", [pyarrow.array([None if w is None else Decimal(str(w)) for w in ROWS["weight"]])]
    ),
    "pandas": lambda _: pandas.DataFrame(ROWS),
    "pandas with nullable types": lambda _: pandas.DataFrame(ROWS).convert_dtypes(),
    "pandas with categories": lambda _: pandas.DataFrame(ROWS).astype({"degree": "category"}),
    "pandas from CSV": lambda _: pandas.read_csv(io.StringIO(CSV)),
    "Polars": lambda _: polars.from_arrow(ARROW),
    "Polars with categories": lambda _: polars.from_arrow(ARROW).cast({"degree": polars.Categorical}),
    "DuckDB": lambda folder: duckdb.sql(f"SELECT * FROM '{as_file(folder)}'"),
    "a reader that can be read once": lambda _: pyarrow.RecordBatchReader.from_batches(
        ARROW.schema, ARROW.to_batches()
    ),
    "a dict of lists": lambda _: ROWS,
    "a dict of arrays": lambda _: {
        "age": np.array([20, np.nan, 200, 41, 17], np.float32),
        "weight": np.array([70.25, 55.5, np.nan, 0.1, -0.0]),
        "degree": np.array(["BA", "", "PhD", "none", "MA"]),
        "smoker": np.array([1, 0, np.nan, 1, 0]),
    },
    "Parquet": as_file,
    "Parquet in row groups": lambda folder: as_file(folder, row_group_size=2),
    "CSV": lambda folder: as_file(folder, CSV),
    "CSV of Polars": lambda folder: as_file(folder, polars.from_arrow(ARROW).write_csv()),
}


@pytest.fixture(scope="module")
def expected():
    return Table(ARROW, SCHEMA).marks(KEY)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_the_same_table_from_anywhere(source, tmp_path, expected):
    table = Table(source(tmp_path), SCHEMA)
    assert table.marks(KEY) == expected
    assert len(expected) == len(FIELDS)
    assert marks_of(open_source(table), KEY) == expected  # as a run gets them


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_a_stream_however_it_is_cut(tmp_path, expected, rows, monkeypatch):
    monkeypatch.setattr("dpmcmc.data.table._MARKED_ROWS", rows)
    table = Table(as_file(tmp_path, row_group_size=2), SCHEMA, stream=True)
    assert table.marks(KEY) == expected
    assert marks_of(open_source(table), KEY) == expected


def test_long_columns_are_taken_in_pieces(monkeypatch):
    column = np.random.default_rng(1).normal(size=(1000, 3))
    whole = digests([{"x": column}])
    monkeypatch.setattr("dpmcmc.data.marks._ROWS", 7)
    assert digests([{"x": column}]) == whole == digests([{"x": column[:10]}, {"x": column[10:]}])
    assert digests([{"x": np.asfortranarray(column)}]) == whole


def test_a_regression_is_marked_by_its_table_and_not_by_its_design(tmp_path, expected):
    """Another formula, or other bounds, are the same data."""
    wider = Schema([Field("age", "integer", minimum=0, maximum=120, missing="midpoint"), *FIELDS[1:]])
    for table in (
        Table(ARROW, SCHEMA),
        Table(ARROW, wider),
        Table(as_file(tmp_path), SCHEMA, stream=True),
    ):
        for formula in ("smoker ~ age", "smoker ~ age + C(degree)"):
            assert marks_of(dpmcmc.regression(formula, table).records, KEY) == expected


def test_a_table_with_a_unit():
    rows = {"person": ["a", "b", "a", "c", "b"], "age": ROWS["age"], "smoker": ROWS["smoker"]}
    fields = [Field("person", "string"), FIELDS[0], FIELDS[3]]
    tables = [Table(rows, Schema(fields, unit="person", max_rows=number)) for number in (1, 2)]
    expected = tables[0].marks(KEY)
    assert len(expected) == 3  # whose row it is counts as well
    for table in tables:
        assert marks_of(open_source(table), KEY) == expected
        assert marks_of(dpmcmc.regression("smoker ~ age", table).records, KEY) == expected
    others = Table(rows | {"person": ["a", "b", "b", "c", "b"]}, tables[1].schema).marks(KEY)
    assert sum(others[name] != expected[name] for name in expected) == 1


def test_data_without_a_schema():
    array, columns = np.arange(12.0).reshape(4, 3), {"x": np.arange(4), "y": np.array([0.5, 1, 2, np.nan])}
    of_array, of_columns = marks_of(open_source(array), KEY), marks_of(open_source(columns), KEY)
    assert (len(of_array), len(of_columns)) == (1, 2)
    assert marks_of(open_source(array.astype(np.int8)), KEY) == of_array
    assert marks_of(open_source(pandas.DataFrame(columns)), KEY) == of_columns
    assert marks_of(open_source(array.reshape(12, 1)), KEY) != of_array  # another shape of a record
    assert marks_of(open_source(array.T), KEY) != of_array


class Chunked:
    """Records of a user's own, a chunk at a time."""

    def __init__(self, columns, step):
        self.num_records, self._columns, self._step = len(columns["x"]), columns, step

    def chunks(self, rows):
        for start in range(0, self.num_records, self._step):
            yield {name: column[start : start + self._step] for name, column in self._columns.items()}


def test_a_stream_of_ones_own():
    columns = {"x": np.arange(10.0), "y": np.random.default_rng(1).normal(size=(10, 2))}
    expected = marks_of(open_source(columns), KEY)
    for step in (1, 3, 10):
        assert marks_of(open_source(Chunked(columns, step)), KEY) == expected


# --------------------------------------------------------------------------------------------------------- changes


def _changed(name, place, value):
    return Table(ROWS | {name: [*ROWS[name][:place], value, *ROWS[name][place + 1 :]]}, SCHEMA).marks(KEY)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("age", value) for value in (42, 41.000001, "old", None)),
        *(("weight", value) for value in (np.nextafter(0.1, 1), np.inf)),
        *(("degree", value) for value in ("None", "nonE", "")),
        *(("smoker", value) for value in (False, "maybe", 2)),
    ],
)
def test_one_other_entry_changes_its_column_and_no_other(expected, name, value):
    changed = _changed(name, 3, value)
    assert set(changed) == set(expected)
    assert [field for field, mark in _by_name(changed).items() if mark != _by_name(expected)[field]] == [name]


def _by_name(marks):
    """Marks by the names of columns, which their keys are marks of."""
    keys = {field.name: next(iter(keyed_marks(KEY, {field.name: b""}))) for field in FIELDS}
    return {name: marks[key] for name, key in keys.items()}


def test_another_order_of_rows_changes_all_columns(expected):
    other = Table(ARROW.take([1, 0, 2, 3, 4]), SCHEMA).marks(KEY)
    assert all(other[name] != expected[name] for name in expected)


def test_one_row_less_changes_all_columns(expected):
    other = Table(ARROW.slice(0, 4), SCHEMA).marks(KEY)
    assert all(other[name] != expected[name] for name in expected)


def test_another_name_is_another_column(expected):
    renamed = Schema([Field("years", "integer", minimum=17, maximum=90, missing="midpoint"), *FIELDS[1:]])
    other = Table(ARROW.rename_columns(["years", *ARROW.column_names[1:]]), renamed).marks(KEY)
    assert len(set(other) - set(expected)) == 1
    assert len(set(other.values()) - set(expected.values())) == 1


def test_names_and_entries_are_not_mixed_up():
    """The same entries under two names have two marks, and no name can pass for another with its entries."""
    marks = keyed_marks(KEY, digests([{"a": np.arange(3), "b": np.arange(3)}]))
    assert len(set(marks.values()) | set(marks)) == 4
    keyed_marks(KEY, {"\ud800": b"x" * 32})


def test_another_key_changes_everything(expected):
    other = Table(ARROW, SCHEMA).marks(OTHER_KEY)
    assert not (set(other) | set(other.values())) & (set(expected) | set(expected.values()))


# --------------------------------------------------------------------------------------------------- what is alike


def _digest(entries):
    return digests([{"x": np.array(entries, dtype=object)}])["x"]


@pytest.mark.parametrize(
    "entries",
    [
        [None, np.nan, "", "  ", "nan", "NaN", "-nan", b"", Decimal("NaN"), np.float32("nan"), pandas.NA, pandas.NaT],
        [0.0, -0.0, 0, False, "0", "-0", "false", "0.0", b"0", Decimal(0), np.int8(0)],
        [1, 1.0, True, "1", "true", "TRUE", " 1 ", "1e0", np.uint64(1)],
        [2**53, 2**53 + 1, float(2**53), "9007199254740993"],  # beyond that, doubles cannot tell neighbours apart
        [np.inf, "inf", "Infinity", 10**400, "1e999"],
        ["word", " word ", b"word"],
    ],
    ids=["missing", "zero", "one", "beyond 2^53", "infinite", "text"],
)
def test_entries_that_are_alike(entries):
    assert len({_digest([entry]) for entry in entries}) == 1


@pytest.mark.parametrize(
    "entries",
    [
        [
            0,
            1,
            None,
            "x",
            "X",
            "-",
            "+",
            "none",
            0.5,
            np.nextafter(0.5, 1),
            2**53,
            2**53 + 2,
            -1,
            np.inf,
            -np.inf,
            "1_0",
            10,
        ]
    ],
)
def test_twin_entries_that_are_not(entries):
    assert len({_digest([entry]) for entry in entries}) == len(entries)


def test_single_precision_is_not_the_decimal_that_it_was_made_of():
    """As `digests` says: the number that is stored is what counts."""
    stored = digests([{"x": np.array([0.1], np.float32)}])
    assert stored != digests([{"x": np.array([0.1])}])
    assert stored == digests([{"x": np.array([float(np.float32(0.1))])}])


def test_wide_columns_of_nothing():
    assert digests([{"x": np.zeros((3, 0))}])["x"] != digests([{"x": np.zeros((3, 1))}])["x"]


# ----------------------------------------------------------------------------------------------------- in a ledger


@pytest.fixture
def ledger(tmp_path):
    return Ledger.create(tmp_path / "people.ledger", epsilon=2.0, delta=1e-6)


def opened(ledger, table, **options):
    source = open_source(table)
    return ledger.open_run(
        "gaussian", 0.1, 1e-6, marks=lambda key: Marks(source.num_records, marks_of(source, key)), **options
    )


def test_a_ledger_knows_its_data_again(ledger, tmp_path):
    opened(ledger, Table(ARROW, SCHEMA))
    opened(ledger, Table(as_file(tmp_path, CSV), SCHEMA))
    opened(ledger, Table(ARROW, Schema(FIELDS[:2])))  # fewer columns
    more = Table(ARROW.append_column("height", [[1.5, 1.6, 1.7, 1.8, 1.9]]), _with_height())
    opened(ledger, more)
    opened(ledger, Table({"height": [1.5, 1.6, 1.7, 1.8, 1.9]}, Schema(_with_height().fields[-1:])))
    assert ledger.verify().num_records == (5,)


def _with_height():
    return Schema([*FIELDS, Field("height", "number", minimum=0, maximum=3)])


def test_a_ledger_refuses_other_data_until_somebody_says_so(ledger):
    opened(ledger, Table(ARROW, SCHEMA))
    corrected = Table(ARROW.set_column(0, "age", [[21, None, 200, 41, 17]]), SCHEMA)
    for other in (corrected, Table(ARROW.slice(0, 4), SCHEMA), np.zeros((5, 2))):
        with pytest.raises(LedgerError, match="not those that this ledger knows"):
            opened(ledger, other)
    opened(ledger, corrected, same_people=True)
    opened(ledger, corrected)
    assert [run.same_people for run in ledger.verify().runs] == [False, True, False]


def test_marks_are_shown_nowhere(ledger):
    table = Table(ARROW, SCHEMA)
    account = opened(ledger, table)
    status = ledger.status()
    shown = repr(table) + repr(open_source(table)) + repr(ledger) + repr(status) + json.dumps(status.to_dict())
    shown += repr(account.standing()) + repr(account.status)
    marks = table.marks(ledger.key)
    for secret in (ledger.key.hex(), *marks, *marks.values(), "age"):
        assert secret not in shown.replace("Table(5 rows; age", "")
    assert all(mark in ledger._storage.rows_from(2)[0].payload for mark in marks.values())  # twin: they are these
