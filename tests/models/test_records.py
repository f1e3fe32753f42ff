"""Records: what is accepted, what is refused, and that no error ever quotes a value."""

import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.errors import DataError
from dpmcmc.models.records import copy_records

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
    assert [records[name].dtype.kind for name in "abc"] == ["i", "f", "f"]
    np.testing.assert_array_equal(records["c"], [1.0, np.nan])
    for column in ([SECRET, "x"], pandas.Categorical([SECRET, "x"])):
        with pytest.raises(DataError) as caught:
            copy_records(pandas.DataFrame({"name": column}))
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
    assert records["code"].dtype.kind == "i"
    np.testing.assert_array_equal(records["b"], [1.0, np.nan])
    np.testing.assert_array_equal(records["x"], [1.5, np.nan])
    with pytest.raises(DataError) as caught:
        copy_records(pyarrow.table({"name": [SECRET, "x"]}))
    assert SECRET not in str(caught.value)


def test_the_dtype_of_an_arrow_column_does_not_tell_whether_a_value_is_missing():
    pyarrow = pytest.importorskip("pyarrow")
    complete, missing = pyarrow.table({"a": [1, 2]}), pyarrow.table({"a": [1, None]})
    assert copy_records(complete)[0]["a"].dtype == copy_records(missing)[0]["a"].dtype
    for kind, values in ((pyarrow.int64(), [1, None]), (pyarrow.bool_(), [True, None])):
        schema = pyarrow.schema([pyarrow.field("a", kind, nullable=False)])  # a declaration that nobody enforces
        tables = [pyarrow.table([pyarrow.array(given, kind)], schema=schema) for given in (values[:1] * 2, values)]
        kinds = {copy_records(table)[0]["a"].dtype for table in tables}
        assert len(kinds) == 1


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
        np.array([SECRET, "x"]),
        np.array([SECRET, 1.0], dtype=object),
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
