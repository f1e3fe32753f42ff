"""Turns what a user calls data into NumPy records, for every model alike.

What happens here depends only on public things: types, dtypes, shapes and column names. No value of a
record decides a branch, and none ever appears in an error, so that even a failure leaks nothing. A dtype is public
only where values do not decide it: one missing value turns a pandas column of integers into floats, and one of
booleans into objects. So what such dtypes turn into each other has to become the same records.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from dpmcmc.errors import DataError

__all__ = ["OpenRecords", "Records", "copy_records", "one_record_struct"]

Records: TypeAlias = NDArray[Any] | dict[str, NDArray[Any]]

_ARROW_FLOATS = {"halffloat", "float", "double"}
# A column of nothing but missing values has a type of its own: "null" in Arrow, "Null" in Polars.
_ARROW_INTEGERS = {"null", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
_CATEGORIES = ("categor", "dictionary", "enum")
_WORDS = {"true": 1.0, "false": 0.0}
_TEXT = ("string", "large_string", "utf8", "binary", "large_binary")
_DATES = ("date", "time", "duration", "period", "interval")


class OpenRecords(NamedTuple):
    """Records that were copied into NumPy once, so that their number is known before anything is done with them."""

    records: Records
    num_records: int
    origin: Any = None  # the Table that they were made of, if any

    def __repr__(self) -> str:
        return f"OpenRecords({self.num_records} records)"  # and none of their values


def copy_records(data: Any) -> tuple[Records, int]:
    """Copy data into NumPy: one array, or a dict of columns of equal length.

    Parameters
    ----------
    data
        An array (NumPy, JAX), a mapping from column names to arrays, columns or tables (whose columns are put side
        by side), or a table of pandas, PyArrow, Polars or the like.

    Returns
    -------
    records, num_records
        Arrays keep their dtype if it is boolean or an integer, or float32; any other floating dtype becomes float64.
        Columns of tables and series become float64, integers, booleans and float32 too, with NaN for missing, *whether
        or not* a value is missing. So do objects and text, since one entry that is no number makes a column that: what
        is no number in them (None, a word, a number too large) becomes NaN.

    Examples
    --------
    >>> records, num_records = copy_records({"y": np.array([0, 1, 1])})
    >>> num_records, records["y"].dtype.kind
    (3, 'i')
    >>> copy_records({"y": np.array([True, None, 1.5], dtype=object)})[0]["y"]
    array([1. , nan, 1.5])
    """
    if isinstance(data, OpenRecords):
        return data.records, data.num_records
    if isinstance(data, Mapping):
        return _copy_columns(dict(data.items()))
    table = _table_columns(data, "data")
    if table is not None:
        return _copy_columns(table)
    array = copy_column(data, "data")
    if array.shape[0] == 0:
        raise DataError("data has 0 rows; give at least one record.")
    return array, array.shape[0]


def one_record_struct(records: Records) -> Any:
    """Shapes and dtypes of a single record, in the ambient precision; no values."""

    def struct(column: NDArray[Any]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(column.shape[1:], jax.dtypes.canonicalize_dtype(column.dtype))

    return jax.tree.map(struct, records)


def _copy_columns(columns: dict[Any, Any]) -> tuple[Records, int]:
    if not columns:
        raise DataError("data has no columns; give at least one named column.")
    names_that_are_not_text = [type(name).__name__ for name in columns if not isinstance(name, str)]
    if names_that_are_not_text:
        raise DataError(f"data has column names of type {names_that_are_not_text[0]}; rename the columns to strings.")
    records = {name: _copy_field(column, f"column {name!r}") for name, column in columns.items()}
    lengths = {name: column.shape[0] for name, column in records.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns have different lengths {lengths}; every column needs one entry per record.")
    num_records = next(iter(lengths.values()))
    if num_records == 0:
        raise DataError("data has 0 rows; give at least one record.")
    return records, num_records


def _table_columns(data: Any, label: str) -> dict[Any, Any] | None:
    """Columns of a PyArrow, pandas or Polars table; None if it is no table."""
    if isinstance(data, np.ndarray | jax.Array):  # a structured array may have a field of any name
        return None
    if callable(getattr(data, "collect", None)) and not hasattr(data, "to_numpy"):
        raise DataError(
            f"{label} is of type {type(data).__name__}, which is a plan and has no rows yet; pass what its .collect() "
            "returns (in Polars; .toPandas() in Spark)."
        )
    names = getattr(data, "column_names", None)  # PyArrow, whose .columns are not names
    if names is None:
        names = getattr(data, "columns", None)
    if names is None or callable(names):
        return None
    names = list(names)
    if len(set(map(str, names))) != len(names):
        raise DataError(f"{label} has two columns of the same name; rename one of them.")
    return {name: data[name] for name in names}


def _copy_field(field: Any, label: str) -> NDArray[Any]:
    """One column, or a table as an array of rows × columns."""
    table = _table_columns(field, label)
    if table is None:
        return copy_column(field, label)
    if not table:
        raise DataError(f"{label} is a table without columns; give at least one.")
    columns = [copy_column(column, f"column {name!r} of {label}") for name, column in table.items()]
    shapes = {column.shape for column in columns}
    if len(shapes) > 1 or columns[0].ndim != 1:
        raise DataError(f"{label} is a table of columns of shapes {sorted(shapes)}; give one entry per record in each.")
    return np.stack(columns, axis=1)


def copy_column(column: Any, label: str) -> NDArray[Any]:
    """One column as a fresh NumPy array of a numeric dtype, or a DataError without any of its values."""
    why_not = _why_not(column)
    array = None
    if why_not is None:
        why_not = (
            f"is of type {type(column).__name__} and cannot be used as numbers without looking at its values; convert "
            "it to a NumPy array of a boolean, integer or floating dtype"
        )
        try:
            with np.errstate(all="ignore"):
                array = _convert(column)
        except Exception:  # foreign conversions may quote values in their messages: nothing of them gets out
            array = None
    # Raised outside the handler, so that the foreign error is not even kept as __context__.
    if array is None:
        raise DataError(f"{label} {why_not}.")
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{label} has a dtype of kind {array.dtype.kind!r}, which is not numeric; encode it as booleans, integers "
            "or floats before passing it."
        )
    if array.ndim == 0:
        raise DataError(f"{label} is a single number without rows; give an array with one entry per record.")
    if array.dtype.kind == "f" and array.dtype != np.float32:
        with np.errstate(all="ignore"):  # a warning would tell of a value
            array = array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _convert(column: Any) -> NDArray[Any] | None:
    """Convert by dtype alone; None for types whose NumPy dtype would depend on their values."""
    if isinstance(column, np.ndarray | jax.Array):
        array = np.array(column, order="C")
        return _numbers_of_objects(array) if array.dtype.kind in "OUST" else array
    if _is_text(column):
        entries = column.to_pylist() if hasattr(column, "to_pylist") else column.to_list()
        return np.array([_number(entry) for entry in entries], np.float64)
    if hasattr(column, "cast") and hasattr(column, "type"):  # PyArrow Array or ChunkedArray
        type_name = str(column.type)
        known = type_name in _ARROW_INTEGERS or type_name in _ARROW_FLOATS
        return np.array(column.cast("float64", safe=False)) if known else None
    dtype: Any = getattr(column, "dtype", None)
    if isinstance(dtype, np.dtype) and hasattr(column, "__array__"):  # pandas Series and the like
        array = np.array(column, order="C")
        if array.dtype.kind in "OUST":
            return _numbers_of_objects(array)
        return array.astype(np.float64) if array.dtype.kind in "biuf" else array
    if hasattr(dtype, "is_integer") and hasattr(dtype, "is_float"):  # Polars Series
        if dtype.is_float() or dtype.is_integer() or str(dtype) in ("Boolean", "Null"):
            return np.array(column.cast(float).to_numpy())
        return None
    if getattr(dtype, "kind", "") == "O" and hasattr(column, "to_numpy"):  # an extension array of objects
        return _numbers_of_objects(np.array(column.to_numpy(dtype=object)))
    numeric = getattr(dtype, "kind", "O") in "biuf" or str(dtype) == "null[pyarrow]"
    if numeric and hasattr(column, "to_numpy"):  # pandas' nullable dtypes
        return np.array(column.to_numpy(dtype="float64", na_value=np.nan))
    return None


def _numbers_of_objects(array: NDArray[Any]) -> NDArray[np.float64]:
    return np.array([_number(entry) for entry in array.ravel()], np.float64).reshape(array.shape)


def _is_text(column: Any) -> bool:
    """Whether a column of a table is text, by its type. (One entry that is no number makes readers call it that.)"""
    name = str(getattr(column, "dtype", getattr(column, "type", ""))).lower()
    return name == "str" or name.startswith(_TEXT)


def _number(entry: Any) -> float:
    """The number that an object is, or that a text says, or NaN: never an error, which would tell of a value."""
    try:
        if isinstance(entry, str):
            return _WORDS[entry.strip().lower()] if entry.strip().lower() in _WORDS else float(entry)
        is_number = isinstance(entry, bool | int | float | np.bool_ | np.integer | np.floating)
        # NumPy takes differences of dates for integers.
        return float(entry) if is_number and not isinstance(entry, np.timedelta64) else np.nan
    except Exception:  # an integer beyond the largest float, for example
        return np.nan


def _why_not(column: Any) -> str | None:
    """Why a column cannot be used, and the remedy, by its type and dtype; None if nothing is known against it.

    Dtypes are not quoted: the width of a NumPy string is that of the longest value.
    """
    name = type(column).__name__
    if isinstance(column, np.ma.MaskedArray):
        return "is a masked array and cannot be used as it is; give column.astype(float).filled(numpy.nan)"
    if isinstance(column, str | bytes | os.PathLike):
        return (
            f"is of type {name}, which is not data; give dpmcmc.Table(file, schema), or read the file first, for "
            "example with pandas.read_csv"
        )
    if isinstance(column, set | frozenset):
        return f"is a {name}, which has no order and no repeated values; give an array with one entry per record"
    if isinstance(column, list | tuple | range | Iterator):
        return (
            f"is of type {name}, whose dtype would depend on its values; convert it with "
            "numpy.array(list(column), dtype=float)"
        )
    if hasattr(column, "toarray"):  # SciPy's
        return f"is a sparse {name}; give column.toarray(), a NumPy array"
    dtype: Any = getattr(column, "dtype", getattr(column, "type", None))
    kind = dtype.kind if isinstance(dtype, np.dtype) else ""
    dtype_name = str(dtype).lower()
    if dtype_name.startswith(_CATEGORIES):
        return (
            "is categorical, which is not numeric; encode it by a public list of categories: column.cat.codes in "
            "pandas, column.to_physical() in Polars (categories that were found in the data are themselves secret)"
        )
    if kind in tuple("Mm") or dtype_name.startswith(_DATES):
        return (
            "holds dates or times, which are not numeric; give a number by a public rule, for example the days since a "
            "fixed date"
        )
    return None
