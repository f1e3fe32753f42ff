"""Records: what is accepted, what is refused, and that no error ever quotes a value."""

import io
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.data.tables import copy_records
from dpmcmc.errors import DataError

SECRET = "Johannes-1234"


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.zeros((3, 2)), np.float64),
        (np.zeros(3, np.float32), np.float32),
        (np.zeros(3, np.float16), np.float64),
        (np.zeros(3, ">f8"), np.float64),
        (np.zeros(3, np.int8), np.int8),
        (np.zeros(3, bool), np.bool_),
        (jnp.zeros((3, 1)), np.float32),
    ],
)
def test_arrays_keep_their_kind(array, dtype):
    records, num_records = copy_records(array)
    assert num_records == 3
    assert records.dtype == dtype
    assert records.dtype.isnative
    assert copy_records({"column": array})[0]["column"].dtype == dtype


def test_records_are_copies():
    array = np.zeros((3, 2))
    records, _ = copy_records(array)
    columns, _ = copy_records({"a": array})
    array[:] = 1.0
    assert not records.any()
    assert not columns["a"].any()


class FakePolarsType:
    def __init__(self, name):
        self.name = name

    def is_float(self):
        return self.name == "Float64"

    def is_integer(self):
        return self.name == "Int64"

    def __str__(self):
        return self.name


class FakePolarsSeries:
    def __init__(self, values, name):
        self.values, self.dtype = values, FakePolarsType(name)

    def cast(self, kind):
        return FakePolarsSeries([np.nan if value is None else kind(value) for value in self.values], "Float64")

    def to_numpy(self):
        return np.array(self.values)


class FakeFrame:
    """A table that is not a mapping, as Polars' is not."""

    def __init__(self, columns):
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name):
        return self._columns[name]


def test_polars_like_tables():
    frame = FakeFrame({"a": FakePolarsSeries([1, None], "Int64"), "b": FakePolarsSeries([True, None], "Boolean")})
    records, num_records = copy_records(frame)
    assert num_records == 2
    np.testing.assert_array_equal(records["a"], [1.0, np.nan])
    np.testing.assert_array_equal(records["b"], [1.0, np.nan])
    with pytest.raises(DataError):
        copy_records(FakeFrame({"name": FakePolarsSeries([SECRET], "String")}))


def test_pandas_tables():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": [0.5, np.nan], "c": pandas.array([1, None], dtype="Int64")})
    records, num_records = copy_records(frame)
    assert num_records == 2
    assert [records[name].dtype for name in "abc"] == [np.float64] * 3
    np.testing.assert_array_equal(records["c"], [1.0, np.nan])
    with pytest.raises(DataError) as caught:
        copy_records(pandas.DataFrame({"name": pandas.Categorical([SECRET, "x"])}))
    assert SECRET not in str(caught.value)
    with pytest.raises(DataError, match="same name"):
        copy_records(pandas.DataFrame([[1, 2]], columns=["a", "a"]))


def test_arrow_tables():
    pyarrow = pytest.importorskip("pyarrow")
    fields = [pyarrow.field("code", pyarrow.int64(), nullable=False), pyarrow.field("b", pyarrow.bool_())]
    table = pyarrow.table(
        [pyarrow.array([0, 2]), pyarrow.array([True, None])], schema=pyarrow.schema(fields)
    ).append_column("x", pyarrow.array([1.5, None]))
    records, num_records = copy_records(table)
    assert num_records == 2
    np.testing.assert_array_equal(records["code"], [0.0, 2.0])
    np.testing.assert_array_equal(records["b"], [1.0, np.nan])
    np.testing.assert_array_equal(records["x"], [1.5, np.nan])


def test_one_entry_that_is_no_number_changes_no_other():
    """Readers make a column text because of one entry: the others must stay the numbers that they are."""
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    text, numbers = ["1", " 2.5 ", "-3e2", "True", SECRET, "", None], [1.0, 2.5, -300.0, 1.0, np.nan, np.nan, np.nan]
    columns = [
        pandas.Series(text, dtype="str"),
        pandas.Series(text, dtype="string"),
        pandas.Series(text, dtype=object),
        pandas.Series(text, dtype=pandas.ArrowDtype(pyarrow.string())),
        pyarrow.array(text),
        np.array(["" if entry is None else entry for entry in text]),
    ]
    for column in columns:
        np.testing.assert_array_equal(copy_records({"c": column})[0]["c"], numbers)
    complete, spoiled = (
        pandas.read_csv(io.StringIO("x,z\n" + "1,0\n" * 9 + last + ",0\n"))[["x"]] for last in ("1", SECRET)
    )
    copies = [copy_records(table)[0]["x"] for table in (complete, spoiled)]
    np.testing.assert_array_equal(copies[0][:-1], copies[1][:-1])
    assert [copy.dtype for copy in copies] == [np.float64] * 2


def test_the_dtype_of_an_arrow_column_does_not_tell_whether_a_value_is_missing():
    pyarrow = pytest.importorskip("pyarrow")
    complete, missing = pyarrow.table({"a": [1, 2]}), pyarrow.table({"a": [1, None]})
    assert copy_records(complete)[0]["a"].dtype == copy_records(missing)[0]["a"].dtype
    for kind, values in ((pyarrow.int64(), [1, None]), (pyarrow.bool_(), [True, None])):
        schema = pyarrow.schema([pyarrow.field("a", kind, nullable=False)])  # a declaration that nobody enforces
        tables = [pyarrow.table([pyarrow.array(given, kind)], schema=schema) for given in (values[:1] * 2, values)]
        copies = [copy_records(table)[0]["a"] for table in tables]
        assert [copy.dtype for copy in copies] == [np.float64] * 2
        assert np.isnan(copies[1][1])


def make_pairs():
    """Columns without and with a missing value, as the libraries make them of the same Python values."""
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    values = {"bool": ([True, False, True], [True, None, True]), "int": ([0, 1, 2], [0, None, 2])}
    values |= {"float": ([0.5, 1.0, 2.0], [0.5, None, 2.0]), "none": ([0.0, 1.0, 2.0], [None, None, None])}
    makers = {
        "pandas": pandas.Series,
        "nullable": lambda given: pandas.Series(given).convert_dtypes(),
        "arrow backed": lambda given: pandas.Series(given).convert_dtypes(dtype_backend="pyarrow"),
        "column of a frame": lambda given: pandas.DataFrame({"c": given})["c"],
        "index": pandas.Index,
        "arrow": pyarrow.array,
        "chunked arrow": lambda given: pyarrow.chunked_array([pyarrow.array(given)]),
        "polars": fake_polars,
        "object array": lambda given: np.array(given, dtype=object),
    }
    return {
        f"{library} {kind}": [make(given) for given in pair]
        for library, make in makers.items()
        for kind, pair in values.items()
    }


def fake_polars(given):
    present = [value for value in given if value is not None]
    names = {bool: "Boolean", int: "Int64", float: "Float64"}
    series = FakePolarsSeries(given, names[type(present[0])] if present else "Null")
    return series.cast(float) if series.dtype.is_float() else series


def test_one_missing_value_changes_neither_dtype_nor_shape_nor_error():
    for name, (complete, missing) in make_pairs().items():
        for wrap in (lambda column: column, lambda column: {"c": column}, lambda column: FakeFrame({"c": column})):
            copies = []
            for column in (complete, missing):
                records, num_records = copy_records(wrap(column))
                copies.append(records["c"] if isinstance(records, dict) else records)
                assert num_records == 3
            assert [copy.dtype for copy in copies] == [np.float64] * 2, name
            assert copies[0].shape == copies[1].shape == (3,)
            assert not np.isnan(copies[0]).any()
            assert np.isnan(copies[1][1]), name
            if not np.isnan(copies[1]).all():
                np.testing.assert_array_equal(copies[1][[0, 2]], copies[0][[0, 2]], err_msg=name)


class Unwilling(float):
    def __float__(self):
        raise ValueError(SECRET)


def test_objects_become_numbers_or_nan_without_a_word(recwarn, capfd):
    pandas = pytest.importorskip("pandas")
    numbers = [True, 2, 1.5, np.int8(-3), np.uint64(7), np.float32(0.5), np.bool_(False), np.longdouble(2.0), 2**60]
    others = [None, pandas.NA, pandas.NaT, SECRET, b"1", 10**400, -(10**400), Decimal("1.5"), 1 + 2j]
    others += [[1.0, 2.0], [[1.0], [SECRET]], {}, np.zeros(2), np.timedelta64(3, "D"), np.datetime64("2020-01-01")]
    others += [Unwilling(3.0), float("nan"), Fraction(1, 2), object()]
    array = np.empty(len(numbers) + len(others), object)
    for place, entry in enumerate([*numbers, *others]):
        array[place] = entry
    for column in (array, pandas.Series(array)):
        copy, _ = copy_records(column)
        np.testing.assert_array_equal(copy[: len(numbers)], [float(number) for number in numbers])
        assert np.isnan(copy[len(numbers) :]).all()
    assert copy_records(array.reshape(-1, 1))[0].shape == (len(array), 1)
    # NumPy would warn here: of a float that is too large for a float64, and of one too small.
    copy_records(np.array([np.finfo(np.longdouble).max, np.finfo(np.longdouble).tiny], dtype=object))
    copy_records(np.array([np.finfo(np.longdouble).max, np.finfo(np.longdouble).tiny]))
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


def test_a_table_may_be_a_column_of_a_mapping():
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"age": [30, 40], "hours": [37.5, None], "flag": [True, None]})
    tables = [frame, pyarrow.table({"age": [30, 40], "hours": [37.5, None], "flag": [True, None]})]
    tables.append(FakeFrame({name: fake_polars(given) for name, given in FLAGS.items()}))
    for table in tables:
        records, num_records = copy_records({"X": table, "y": np.zeros(2, np.int8)})
        assert num_records == 2
        np.testing.assert_array_equal(records["X"], [[30.0, 37.5, 1.0], [40.0, np.nan, np.nan]])
        assert records["y"].dtype == np.int8
    single = copy_records({"X": pandas.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0]}, dtype="float32")})[0]["X"]
    assert single.dtype == np.float64  # one word among them would make it so
    with pytest.raises(DataError, match="column 'name' of column 'X' is categorical") as caught:
        copy_records({"X": pandas.DataFrame({"name": pandas.Series([SECRET, "x"], dtype="category")})})
    assert SECRET not in str(caught.value)
    with pytest.raises(DataError, match="without columns"):
        copy_records({"X": frame[[]]})
    with pytest.raises(DataError, match="shapes"):
        copy_records({"X": FakeFrame({"a": np.zeros(2), "b": np.zeros(3)})})
    with pytest.raises(DataError, match="'X' has two columns of the same name"):
        copy_records({"X": frame[["age", "age"]]})


FLAGS = {"age": [30, 40], "hours": [37.5, None], "flag": [True, None]}


class LazyFrame:
    """A plan for a table, as Polars makes them: it knows its columns, and no rows."""

    columns = ("a",)

    def collect(self):
        raise AssertionError("a plan was carried out")


def test_messages_by_type_and_dtype_help():
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    sparse = pytest.importorskip("scipy.sparse")
    text = [SECRET, "x"]
    dates = pandas.to_datetime(["2020-01-01", "2020-01-02"])
    cases = [
        (pandas.Series(text, dtype="category"), r"public list of categories.*cat\.codes.*secret"),
        (pandas.Categorical(text), "public list of categories"),
        (pyarrow.array(text).dictionary_encode(), "public list of categories"),
        (FakePolarsSeries(text, "Categorical"), "to_physical"),
        (FakePolarsSeries(text, f"Enum(categories=['{SECRET}'])"), "to_physical"),
        (pandas.Series(dates), "fixed date"),
        (pandas.Series(dates.tz_localize("UTC")), "fixed date"),
        (pandas.Series(dates - dates[0]), "fixed date"),
        (pandas.Series(pandas.period_range("2020", periods=2, freq="D")), "fixed date"),
        (pyarrow.array(dates), "fixed date"),
        (FakePolarsSeries(text, "Datetime(time_unit='us', time_zone=None)"), "fixed date"),
        (LazyFrame(), r"\.collect\(\)"),
        ((value for value in text), "numpy.array"),
        (iter(text), "numpy.array"),
        (text, "numpy.array"),
        (tuple(text), "numpy.array"),
        (range(3), "numpy.array"),
        (SECRET, "read the file"),
        (Path(SECRET), "read the file"),
        (set(text), "no order"),
        (sparse.csr_array(np.eye(2)), "toarray"),
        (sparse.csr_matrix(np.eye(2)), "toarray"),
        (np.ma.masked_array([1.0], mask=[True]), "filled"),
        (np.array(1.0), "without rows"),
        (jnp.array(1.0), "without rows"),
        (np.array(None, dtype=object), "without rows"),
        (jax.ShapeDtypeStruct((2,), np.float64), "cannot be used"),
    ]
    for column, message in cases:
        for data in (column, {"c": column}):
            with pytest.raises(DataError, match=message) as caught:
                copy_records(data)
            assert SECRET not in str(caught.value)


def test_errors_do_not_tell_how_long_the_longest_text_is():
    messages = set()
    for text in ("x", SECRET):
        with pytest.raises(DataError) as caught:
            copy_records({"a": np.array([text]), "b": np.zeros(2)})
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((0, 2)), "0 rows"),
        ({"a": np.zeros(0)}, "0 rows"),
        ({}, "no columns"),
        (np.float64(1.0), "without rows|cannot be used"),
        (np.array(1.0), "without rows"),
        ({"a": np.zeros(3), "b": np.zeros(2)}, "different lengths"),
        ({1: np.zeros(3)}, "column names of type int"),
        (np.zeros(3, complex), "not numeric"),
        (np.array(["2020-01-01"], "datetime64[D]"), "not numeric"),
        (np.zeros(2, [("a", float)]), "not numeric"),
        (np.ma.masked_array([1.0], mask=[True]), "cannot be used"),
        (None, "cannot be used"),
    ],
)
def test_unusable_data_are_refused(data, message):
    with pytest.raises(DataError, match=message):
        copy_records(data)


class Treacherous:
    """Quotes its content when it is converted, as NumPy does for strings."""

    def __array__(self, dtype=None, copy=None):
        raise ValueError(f"could not convert string to float: {SECRET!r}")

    dtype = np.dtype(float)


@pytest.mark.parametrize(
    "column",
    [
        [SECRET, 1.0],
        [[1.0], [1.0, 2.0]],
        Treacherous(),
    ],
)
@pytest.mark.parametrize("wrap", [lambda column: column, lambda column: {"name": column}])
def test_no_value_leaves_in_an_error(column, wrap):
    with pytest.raises(DataError) as caught:
        copy_records(wrap(column))
    error = caught.value
    assert SECRET not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None
