"""A table: the same clean values from wherever it comes, and nothing that is said or done depends on a value."""

import io
import traceback
import warnings

import duckdb
import jax
import numpy as np
import numpyro
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
from numpyro import distributions as dist

import dpmcmc
from dpmcmc import Field, Schema, Table
from dpmcmc.curator import NoNoiseNotPrivate
from dpmcmc.data import UnitRecords, open_source
from dpmcmc.errors import DataError, DPMCMCError, SchemaError
from dpmcmc.queries import Gradient
from dpmcmc.sources.files import split_line
from tests.streams import stream_of

FIELDS = [
    Field("age", "integer", minimum=17, maximum=90, missing="midpoint"),
    Field("weight", "number", minimum=0, maximum=100, center=70, scale=20),
    Field("degree", "string", levels=["none", "BA", "MA"], missing="own level"),
    Field("married", "boolean", missing="midpoint"),
    Field("income", "boolean"),
]
SCHEMA = Schema(FIELDS, missing_values=("", "NA", "-9"))
OF_PERSONS = Schema([*FIELDS, Field("person", "string")], missing_values=("", "NA", "-9"), unit="person", max_rows=2)
ROWS = {
    "age": [20, None, 200, -9, 41],
    "weight": [70.25, 55.5, None, 1e9, 0.1],
    "degree": ["BA", None, "PhD", "none", "MA"],
    "married": [True, None, False, True, False],
    "person": ["anna", "7", "anna", None, "anna"],
    "income": [True, False, None, True, False],
    "not in the schema": ["x"] * 5,
}
CLEAN = {
    "age": [20.0, 53.5, 90.0, 53.5, 41.0],
    "weight": [70.25, 55.5, np.nan, 100.0, 0.1],
    "degree": [1.0, 3.0, 3.0, 0.0, 2.0],
    "married": [1.0, 0.5, 0.0, 1.0, 0.0],
    "income": [1.0, 0.0, np.nan, 1.0, 0.0],
}
CSV = """\
age,weight,degree,married,person,income,not in the schema
20,70.25,BA,true,anna,1,x
NA,55.5,,,7,0,x
200,heavy,"Ph""D, or so",FALSE,anna,?,x
-9,1e9,none,True,,True
41,0.1," MA",0,anna,False,x,y,z
"""
ARROW = pyarrow.table(ROWS)


def as_csv(tmp_path):
    (tmp_path / "t.csv").write_text(CSV)
    return tmp_path / "t.csv"


def as_parquet(tmp_path, table=ARROW, **options):
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet", **options)
    return tmp_path / "t.parquet"


def of_texts(tmp_path):
    """What readers make of columns in which one entry is a word: text."""
    return {name: [None if entry is None else str(entry) for entry in entries] for name, entries in ROWS.items()}


FRAME = ARROW.to_pandas()
SOURCES = {
    "CSV": as_csv,
    "CSV as Windows writes it": lambda folder: (
        (folder / "w.csv").write_bytes(b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode()) and folder / "w.csv"
    ),
    "CSV with tabs": lambda folder: (
        (folder / "t.tsv").write_text(CSV.replace('"Ph""D, or so"', "PhD").replace(",", "\t")) and folder / "t.tsv"
    ),
    "CSV without a last line break": lambda folder: (folder / "l.csv").write_text(CSV[:-1]) and folder / "l.csv",
    "Parquet": as_parquet,
    "Parquet in small groups": lambda folder: as_parquet(folder, row_group_size=2),
    "the name of a file as text": lambda folder: str(as_parquet(folder)),
    "Arrow": lambda _: ARROW,
    "Arrow in chunks": lambda _: pyarrow.concat_tables([ARROW[:2], ARROW[2:2], ARROW[2:]]),
    "Arrow, a reader": lambda _: ARROW.to_reader(),
    "Arrow, a batch": lambda _: ARROW.combine_chunks().to_batches()[0],
    "Arrow, dictionaries": lambda _: ARROW.set_column(2, "degree", ARROW["degree"].dictionary_encode()),
    "Arrow, decimals": lambda _: ARROW.set_column(0, "age", ARROW["age"].cast(pyarrow.decimal128(30, 5))),
    "pandas": lambda _: FRAME,
    "pandas, objects": lambda _: FRAME.astype(object),
    "pandas, nullable": lambda _: FRAME.convert_dtypes(),
    "pandas, Arrow's types": lambda _: FRAME.convert_dtypes(dtype_backend="pyarrow"),
    "pandas, categories": lambda _: FRAME.astype({"degree": "category", "age": "category"}),
    "pandas from CSV": lambda folder: pandas.read_csv(io.StringIO(FRAME.to_csv(index=False))),
    "Polars": lambda _: polars.from_arrow(ARROW),
    "Polars, categories": lambda _: polars.from_arrow(ARROW).cast({"degree": polars.Categorical}),
    "Polars from CSV": lambda _: polars.read_csv(io.StringIO(FRAME.to_csv(index=False))),
    "DuckDB": lambda folder: duckdb.sql(f"SELECT * FROM '{as_parquet(folder)}'"),
    "dict of lists": lambda _: ROWS,
    "dict of arrays": lambda _: {name: np.array(entries, dtype=object) for name, entries in ROWS.items()},
    "dict of texts": of_texts,
    "dict of series": lambda _: {
        name: [FRAME[name], polars.Series(entries), ARROW[name]][place % 3]
        for place, (name, entries) in enumerate(ROWS.items())
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SOURCES)
def test_the_same_values_from_everywhere(kind, tmp_path):
    table = Table(SOURCES[kind](tmp_path), OF_PERSONS)
    clean = table.clean()
    assert list(clean) == list(CLEAN)
    for name, values in CLEAN.items():
        assert clean[name].tobytes() == np.array(values).tobytes(), name
    assert (table.num_records, table.unit) == (3, "person")
    np.testing.assert_array_equal(table.unit_index().index, [[0, 2], [1, -1], [3, -1]])
    assert repr(table) == "Table(3 units by 'person'; age, weight, degree, married, income)"


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 100])
def test_a_streamed_file_gives_the_same_values_in_pieces(tmp_path, rows):
    path = as_parquet(tmp_path, row_group_size=2)
    in_memory, streamed = Table(path, SCHEMA), Table(path, SCHEMA, stream=True)
    assert (streamed.num_records, streamed.streamed, in_memory.streamed) == (5, True, False)
    for table in (in_memory, streamed):
        pieces = list(table.clean_chunks(["weight", "degree"], rows))
        assert [len(piece["weight"]) for piece in pieces] == [min(rows, 5 - start) for start in range(0, 5, rows)]
        for name in ("weight", "degree"):
            assert np.concatenate([piece[name] for piece in pieces]).tobytes() == np.array(CLEAN[name]).tobytes()
    with pytest.raises(DataError, match="streamed"):
        streamed.clean()


def test_records_of_a_model_of_ones_own():
    records = Table(ROWS, SCHEMA).records()
    assert {column.dtype for column in records.values()} == {np.dtype(np.float64)}
    np.testing.assert_array_equal(records["age"], (np.array(CLEAN["age"]) - 53.5) / 36.5)
    np.testing.assert_array_equal(records["weight"], (np.array(CLEAN["weight"]) - 70.0) / 20.0)
    np.testing.assert_array_equal(records["degree"], CLEAN["degree"])
    rows, units = open_source(Table(ROWS, SCHEMA)), open_source(Table(ROWS, OF_PERSONS))
    assert isinstance(rows, UnitRecords)
    assert rows.present.ravel().tolist() == [True, True, False, True, True]
    # A row with a NaN is not present: the third (anna's second) is not, and her fifth is beyond max_rows.
    assert units.present.tolist() == [[True, False], [True, False], [True, False]]
    assert units.rows["degree"][0, 0] == 1.0


def test_the_schema_may_be_a_file_or_a_dict(tmp_path):
    SCHEMA.save(tmp_path / "s.json")
    for schema in (tmp_path / "s.json", str(tmp_path / "s.json"), SCHEMA.to_dict()):
        assert Table(ROWS, schema).schema == SCHEMA
    with pytest.raises(SchemaError, match="schema is of type int"):
        Table(ROWS, 3)


def test_whole_numbers_that_differ_by_1_are_different_persons():
    """Above 2^53 they would be the same as floats."""
    schema = Schema([Field("y", "boolean"), Field("id", "integer")], unit="id", max_rows=2)
    ids = [2**60, 2**60 + 1, 2**60]
    for source in ({"y": [0, 1, 1], "id": ids}, pyarrow.table({"y": [0, 1, 1], "id": ids})):
        assert Table(source, schema).num_records == 2


# ------------------------------------------------------------------ what is refused


def small(**columns):
    return pyarrow.table({name: ARROW[name] for name in SCHEMA.names} | columns)


def bad_file(name, content):
    def make(folder):
        (folder / name).write_bytes(content)
        return folder / name

    return make


def truncated(folder):
    path = as_parquet(folder)
    path.write_bytes(path.read_bytes()[:-40])
    return path


def damaged(folder):
    path = as_parquet(folder, compression="none")
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(content)
    return path


DAY = np.array(["2020-01-01"] * 5, "datetime64[D]")
BAD = {
    "no such file": (lambda folder: folder / "none.csv", {}, DataError, "none.csv' does not exist"),
    "a folder": (lambda folder: folder, {}, DataError, "is not a file"),
    "a file of another kind": (bad_file("t.xlsx", b"PK"), {}, DataError, "neither .parquet nor .csv"),
    "an empty Parquet file": (bad_file("t.parquet", b""), {}, DataError, "cannot be read as Parquet"),
    "text that is called Parquet": (bad_file("t.parquet", b"secret 42"), {}, DataError, "cannot be read as Parquet"),
    "a truncated Parquet file": (truncated, {}, DataError, "cannot be read as Parquet"),
    "a damaged Parquet file": (damaged, {}, DataError, "cannot be read as Parquet"),
    "an empty CSV file": (bad_file("t.csv", b""), {}, DataError, "no names in its first line"),
    "a CSV file without rows": (
        bad_file("t.csv", b"age,weight,degree,married,income\n"), {}, DataError, "0 rows"
    ),
    "a CSV file without names": (bad_file("t.csv", b"20,70,BA,1,1\n"), {}, SchemaError, "none of the names 'age'"),
    "a Parquet file without rows": (lambda folder: as_parquet(folder, ARROW[:0]), {}, DataError, "0 rows"),
    "streamed without rows": (lambda folder: as_parquet(folder, ARROW[:0]), {"stream": True}, DataError, "0 rows"),
    "a dict without rows": (lambda _: {name: [] for name in ROWS}, {}, DataError, "0 rows"),
    "columns of different lengths": (lambda _: ROWS | {"age": [1]}, {}, DataError, "different lengths"),
    "a missing column": (lambda _: FRAME.drop(columns="age"), {}, SchemaError, "no column 'age'.* it has 'weight'"),
    "a name in capitals": (lambda _: FRAME.rename(columns={"age": "Age"}), {}, SchemaError, "no column 'age'"),
    "the same name twice": (
        lambda _: pandas.concat([FRAME, FRAME[["age"]]], axis=1), {}, SchemaError, "'age' is there 2 times"
    ),
    "the same name twice in CSV": (
        bad_file("t.csv", b"age,age,weight,degree,married,income\n1,2,3,4,5,6\n"), {}, SchemaError, "'age' is there 2"
    ),
    "dates in Arrow": (lambda _: small(age=DAY), {}, SchemaError, "column 'age' has type date32.* public rule"),
    "dates in pandas": (lambda _: FRAME.assign(age=DAY), {}, SchemaError, "column 'age' holds dates"),
    "lists": (lambda _: small(age=[[1]] * 5), {}, SchemaError, "column 'age' has type list"),
    "complex numbers": (lambda _: FRAME.assign(age=1j), {}, SchemaError, "column 'age' is neither"),
    "numbers for words": (lambda _: small(degree=range(5)), {}, SchemaError, "column 'degree' has the type integer"),
    "truth values for words": (lambda _: small(degree=[True] * 5), {}, SchemaError, "'degree' has the type boolean"),
    "a matrix as a column": (lambda _: ROWS | {"age": np.zeros((5, 2))}, {}, SchemaError, "column 'age' is of type"),
    "a number as a column": (lambda _: ROWS | {"age": 3}, {}, SchemaError, "column 'age' is of type int"),
    "text as a column": (lambda _: ROWS | {"age": "12345"}, {}, SchemaError, "column 'age' is of type str"),
    "an array": (lambda _: np.zeros((5, 3)), {}, DataError, "source is of type ndarray"),
    "nothing": (lambda _: None, {}, DataError, "source is of type NoneType"),
    "a query that fails when it is run": (
        lambda _: duckdb.sql("SELECT 'secret'::INT AS age, 1 AS weight, 'BA' AS degree, 1 AS married, 1 AS income"),
        {}, DataError, "cannot be read as an Arrow table",
    ),
    "CSV, streamed": (as_csv, {"stream": True}, DataError, "for Parquet files only"),
    "a frame, streamed": (lambda _: FRAME, {"stream": True}, DataError, "for Parquet files only"),
    "persons, streamed": (as_parquet, {"stream": True, "schema": OF_PERSONS}, DataError, "unit = 'person'"),
    "blanks": (
        lambda _: FRAME, {"schema": Schema([Field("age", "integer"), Field("degree", "string")])}, SchemaError,
        "blanks: field 'age': minimum, maximum; field 'degree': enum",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_named(case, tmp_path):
    source, options, error, message = BAD[case]
    options = {"schema": SCHEMA} | options
    with pytest.raises(error, match=message) as caught:
        Table(source(tmp_path), **options)
    # No value, and no other error that might hold one behind it.
    text = "".join(traceback.format_exception(caught.value, chain=True))
    assert not any(value in str(caught.value) for value in ("secret", "PhD", "70.25", "anna"))
    assert caught.value.__context__ is None
    assert "secret" not in text.replace("tests", "").split("Error:")[-1]


def test_a_file_that_has_changed_is_not_read_on(tmp_path):
    table = Table(as_parquet(tmp_path), SCHEMA, stream=True)
    as_parquet(tmp_path, ARROW[:3])
    with pytest.raises(DataError, match="has changed"):
        next(table.clean_chunks(None, 10))


def test_columns_that_are_not_in_the_schema_may_be_anything():
    """They are never read."""
    for source in (small(other=DAY, another=[[1]] * 5), ROWS | {"other": 3, "another": np.zeros((5, 2)), 7: "x"}):
        assert Table(source, SCHEMA).columns == SCHEMA.names


# ------------------------------------------------------------------ no value decides anything

ODD = {
    "age": [None, float("nan"), "old", "", -1e300, float("inf"), 10**30, True, "1e999", "\x00", "3;4"],
    "weight": [None, float("nan"), "heavy", "NA", 1e300, -float("inf"), 10**400, False, "0x10", b"\xff"],
    "degree": [None, float("nan"), "PhD", "", 7, 1.5, "missing", "BA\x00", True, "é" * 9, '"'],
    "married": [None, "maybe", 2, -1, "", float("nan")],
    "income": [None, "maybe", 2, 1e300, ""],
    "person": [None, float("nan"), "", 7, 7.0, "anna ", 1e300, "x" * 1000, True],
}


def as_observed(make, entries, schema, tmp_path):
    """All that can be seen from outside: error, warnings, shapes and dtypes."""
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="raise"):
        warnings.simplefilter("always")
        try:
            table = Table(make(entries, tmp_path), schema)
            seen = repr(table.schema), {name: (column.dtype, column.shape) for name, column in table.clean().items()}
            seen += (table.columns, table.unit)
        except DPMCMCError as error:
            seen = (str(error),)
    return seen, [str(warning.message) for warning in caught]


def in_csv(entries, folder):
    def cell(entry):
        text = entry.decode("latin-1") if isinstance(entry, bytes) else "" if entry is None else str(entry)
        return text.replace("\n", " ")

    lines = [",".join(entries), *(",".join(map(cell, row)) for row in zip(*entries.values(), strict=True))]
    (folder / "odd.csv").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return folder / "odd.csv"


MAKERS = {
    "pandas": lambda entries, _: pandas.DataFrame(entries),
    "pandas, objects": lambda entries, _: pandas.DataFrame(entries, dtype=object),
    "dict": lambda entries, _: entries,
    "CSV": in_csv,
    "pandas from CSV": lambda entries, _: pandas.read_csv(
        io.StringIO(pandas.DataFrame(entries, dtype=object).to_csv(index=False))
    ),
}


def test_text_that_a_file_declares_is_no_number(tmp_path):
    """The type of a Parquet column is said once, for the whole file; a CSV file and pandas declare none."""
    source = as_parquet(tmp_path, pyarrow.table(of_texts(tmp_path)))
    for opened in (lambda: Table(source, SCHEMA), lambda: Table(pyarrow.table(of_texts(tmp_path)), SCHEMA)):
        with pytest.raises(SchemaError, match="column 'age' is declared as text, but is of type integer in the schema"):
            opened()


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("schema", [SCHEMA, OF_PERSONS], ids=["rows", "persons"])
def test_any_record_in_place_of_another_shows_nothing(maker, schema, tmp_path):
    plain = {name: list(ROWS[name]) for name in schema.names}
    expected = as_observed(MAKERS[maker], plain, schema, tmp_path)
    assert len(expected[0]) == 4  # no error
    assert expected[1] == []
    others = Table(MAKERS[maker](plain, tmp_path), schema).clean()
    for name, odd in ODD.items():
        for entry in odd if name in schema.names else []:
            entries = plain | {name: [*plain[name][:4], entry]}
            assert as_observed(MAKERS[maker], entries, schema, tmp_path) == expected, (name, entry)
            now = Table(MAKERS[maker](entries, tmp_path), schema).clean()
            for column, values in others.items():  # no bit of another row has changed
                assert now[column][:4].tobytes() == values[:4].tobytes()


def test_twin_a_value_that_shows_is_caught(tmp_path):
    """A reader that fails for text in a column of numbers."""

    def strict(entries, _):
        try:
            return {
                name: np.array(column, dtype=float) if name == "age" else column for name, column in entries.items()
            }
        except (TypeError, ValueError):
            raise DataError("age is not numeric") from None

    plain = {name: list(ROWS[name]) for name in SCHEMA.names} | {"age": [20.0] * 5}
    odd = plain | {"age": [20.0, 20.0, 20.0, 20.0, "old"]}
    assert as_observed(strict, plain, SCHEMA, tmp_path) != as_observed(strict, odd, SCHEMA, tmp_path)


def test_a_quote_that_is_not_closed_spoils_its_own_line_only(tmp_path):
    lines = CSV.splitlines()
    lines[3] = '"200,"heavy,PhD,FALSE,anna,?,x'
    (tmp_path / "q.csv").write_text("\n".join(lines) + "\n")
    clean = Table(tmp_path / "q.csv", SCHEMA).clean()
    for name, values in CLEAN.items():
        assert np.delete(clean[name], 2).tobytes() == np.delete(np.array(values), 2).tobytes()


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        ("", [""]),
        (",", ["", ""]),
        ('"a,b",c', ["a,b", "c"]),
        ('"a""b"', ['a"b']),
        ('"a"b,c', ["ab", "c"]),
        ('a"b,c"', ['a"b', 'c"']),
        ('"a,b', ["a,b"]),
        ('"', [""]),
        ('""', [""]),
        ('"",""', ["", ""]),
        ('1,""",2', ["1", '",2']),
    ],
)
def test_lines_of_csv(line, cells):
    assert split_line(line, ",") == cells


def test_empty_lines_are_records(tmp_path):
    """How many lines there are is public; what stands in them is not."""
    (tmp_path / "t.csv").write_text("income\n1\n\n0\n")
    assert Table(tmp_path / "t.csv", Schema([Field("income", "boolean")])).num_records == 3


# ------------------------------------------------------------------ in models

NUM_RECORDS = 300


def columns():
    generator = np.random.default_rng(0)
    return {
        "x": generator.normal(size=NUM_RECORDS),
        "kind": generator.integers(0, 3, NUM_RECORDS),
        "flag": generator.random(NUM_RECORDS) < 0.5,
    }


BY_KIND = Schema([
    Field("x", "number", minimum=-9, maximum=9, center=0, scale=1),
    Field("kind", "integer", levels=[0, 1, 2]),
    Field("flag", "boolean"),
])  # fmt: skip


def write(path, table):
    pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=100)
    return path


def by_kind(x, kind, flag):
    effects = numpyro.sample("effects", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("flag", dist.Bernoulli(logits=x * effects[kind]), obs=flag)


def gradient(model, data):
    curator = dpmcmc.Curator(model, data, noise=NoNoiseNotPrivate())
    return curator.ask(Gradient(10.0, 1.0), np.full(model.dimension, 0.3)).value


@pytest.mark.parametrize("stream", [False, True])
def test_a_numpyro_model_of_a_table(tmp_path, stream):
    model = dpmcmc.from_numpyro(by_kind, columns())
    in_memory = gradient(model, columns())
    assert np.abs(in_memory).min() > 1e-3
    table = Table(write(tmp_path / "whole.parquet", columns()), BY_KIND, stream=stream)
    np.testing.assert_allclose(gradient(model, table), in_memory, rtol=1e-9)
    # Missing, not whole or no level: the record counts as nothing.
    odd = columns()
    odd["kind"] = odd["kind"].astype(float)
    odd["kind"][:4] = np.nan, 0.5, 1e300, -np.inf
    table = Table(write(tmp_path / "odd.parquet", odd), BY_KIND, stream=stream)
    others = {name: column[4:] for name, column in columns().items()}
    np.testing.assert_allclose(gradient(model, table), gradient(model, others), rtol=1e-9)


@pytest.mark.parametrize("stream", [False, True])
def test_a_numpyro_model_is_made_of_the_table_itself(tmp_path, stream):
    """Its schema says which columns are codes to look up with; a level that is missing counts as nothing."""
    table = Table(write(tmp_path / "whole.parquet", columns()), BY_KIND, stream=stream)
    model = dpmcmc.from_numpyro(by_kind, table)
    np.testing.assert_allclose(gradient(model, table), gradient(dpmcmc.from_numpyro(by_kind, columns()), columns()))
    odd = columns()
    odd["kind"] = odd["kind"].astype(float)
    odd["kind"][:2] = np.nan, 7
    others = {name: column[2:] for name, column in columns().items()}
    changed = gradient(model, Table(write(tmp_path / "odd.parquet", odd), BY_KIND, stream=stream))
    np.testing.assert_allclose(changed, gradient(model, Table(others, BY_KIND)), rtol=1e-9)
    assert not np.allclose(changed, gradient(model, table), rtol=1e-3)


def test_a_narrow_declared_dtype_does_not_wrap_around(tmp_path):
    """300 is no uint8, and does not become 44: the record counts for nothing."""
    like = {name: jax.ShapeDtypeStruct(column.shape, column.dtype) for name, column in columns().items()}
    like["kind"] = jax.ShapeDtypeStruct((NUM_RECORDS,), np.uint8)
    model = dpmcmc.from_numpyro(by_kind, like)
    odd = columns()
    odd["kind"][0] = 300
    wide = Schema([BY_KIND["x"], Field("kind", "integer", minimum=0, maximum=400, center=0, scale=1), BY_KIND["flag"]])
    streamed = gradient(model, Table(write(tmp_path / "odd.parquet", odd), wide, stream=True))
    for others in (odd, {name: column[1:] for name, column in odd.items()}):
        np.testing.assert_allclose(streamed, gradient(model, others), rtol=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_groups_of_a_regression(tmp_path, dtype):
    data = columns()
    table = {"x": data["x"], "y": data["flag"], "g": [None, *data["kind"][1:].tolist()]}
    stream = stream_of(write(tmp_path / "groups.parquet", table), {"X": ["x"], "y": "y", "group": "g"}, dtype=dtype)
    (chunk,) = stream.chunks(NUM_RECORDS)
    assert {array.dtype for array in chunk.values()} == {np.dtype(dtype)}
    model = dpmcmc.models.LogisticRegression(1, groups=3)
    codes = np.concatenate([[-1], data["kind"][1:]])
    in_memory = {"X": data["x"][:, None].astype(dtype), "y": data["flag"].astype(dtype), "group": codes}
    assert np.array_equal(gradient(model, stream), gradient(model, in_memory))


def test_no_warning_of_an_overflow():
    """Of a scale that is far too small, only a record's value decides whether coding overflows."""
    schema = Schema([Field("x", "number", minimum=0, maximum=1e300, center=0, scale=1e-10)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for last in (0.0, 1e300):
            assert Table({"x": [1.0, last]}, schema).records()["x"][0] == 1e10


def test_a_csv_file_without_names_quotes_no_record(tmp_path):
    (tmp_path / "t.csv").write_text("39,State-gov,4711\n40,Private,4712\n")
    with pytest.raises(SchemaError, match="first line has none of the names 'age'") as caught:
        Table(tmp_path / "t.csv", SCHEMA)
    assert "4711" not in str(caught.value)
    assert "State-gov" not in str(caught.value)


@pytest.mark.parametrize("series", [False, True])
def test_the_draft_of_a_pandas_frame_does_not_tell_whether_a_value_is_missing(series):
    """There one missing value makes floats of integers and objects of booleans."""
    drafts = []
    for last in (3, None, "x"):
        frame = pandas.DataFrame({"count": [1, 2, last], "yes": [True, False, None if last is None else True]})
        drafts.append(Schema.draft({name: frame[name] for name in frame} if series else frame))
    assert drafts[0] == drafts[1] == drafts[2]


@pytest.mark.parametrize("max_rows", [1, 2])
def test_replacing_all_rows_of_a_person_changes_no_other_person(max_rows):
    """With as many persons, wherever the new rows stand, however many there are and whatever they hold."""
    schema = Schema([*FIELDS, Field("person", "string")], unit="person", max_rows=max_rows)
    generator = np.random.default_rng(max_rows)
    names = [name for name in schema.names if name != "person"]

    def other_units(source):
        """What reaches the curator of every person but one, in whatever order."""
        table = Table(source, schema)
        stacked = open_source(table)
        ids = [source["person"][rows[0]] for rows in table.unit_index().index]
        kept = {}
        for place, of_whom in enumerate(ids):
            if of_whom in ("a", "b", "c"):
                kept[of_whom] = [stacked.present[place].tobytes()]
                kept[of_whom] += [stacked.rows[name][place].tobytes() for name in names]
        return kept, table.num_records, {column.dtype for column in stacked.rows.values()}

    others = [[ROWS[name][row % 5] for name in names] + [who] for row, who in enumerate("abacbca")]
    expected = None
    for own_id in ("z", None, 7, 10**5000, float("nan"), "é" * 99):
        for count in (1, 2, 50):
            rows = list(others)
            for _ in range(count):
                own = [ODD[name][generator.integers(len(ODD[name]))] for name in names]
                rows.insert(generator.integers(len(rows) + 1), [*own, own_id])
            seen = other_units(dict(zip([*names, "person"], map(list, zip(*rows, strict=True)), strict=True)))
            expected = expected or seen
            assert seen == expected
    assert expected[1] == 4
