"""Turns what a user calls data into NumPy records, for every model alike.

What happens here depends only on public things: types, dtypes, shapes and column names. No value of a
record decides a branch, and none ever appears in an error, so that even a failure leaks nothing.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from dpmcmc.errors import DataError

__all__ = ["Records", "copy_records", "one_record_struct"]

Records: TypeAlias = NDArray[Any] | dict[str, NDArray[Any]]

_ARROW_FLOATS = {"halffloat", "float", "double"}
_ARROW_INTEGERS = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}


def copy_records(data: Any) -> tuple[Records, int]:
    """Copy data into NumPy: one array, or a dict of columns of equal length.

    Parameters
    ----------
    data
        An array (NumPy, JAX), a mapping from column names to arrays, or a table of pandas, PyArrow, Polars or
        the like. Columns that can hold missing values outside NumPy (Arrow, Polars, pandas' nullable dtypes)
        become floating point with NaN for missing, *whether or not* a value is missing: a branch on that
        would depend on the records.

    Returns
    -------
    records, num_records
        Floating columns are float64 (float32 stays), booleans and integers keep their dtype.

    Examples
    --------
    >>> records, num_records = copy_records({"y": np.array([0, 1, 1])})
    >>> num_records, records["y"].dtype.kind
    (3, 'i')
    """
    if isinstance(data, Mapping):
        columns = dict(data.items())
        return _copy_columns(columns, dict.fromkeys(columns, True))
    if not isinstance(data, np.ndarray | jax.Array):
        table = _table_columns(data)
        if table is not None:
            return _copy_columns(*table)
    array = _copy_column(data, "data", True)
    if array.shape[0] == 0:
        raise DataError("data has 0 rows; give at least one record.")
    return array, array.shape[0]


def one_record_struct(records: Records) -> Any:
    """Shapes and dtypes of a single record, in the ambient precision; no values."""

    def struct(column: NDArray[Any]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(column.shape[1:], jax.dtypes.canonicalize_dtype(column.dtype))

    if isinstance(records, dict):
        return {name: struct(column) for name, column in records.items()}
    return struct(records)


def _copy_columns(columns: dict[Any, Any], nullable: dict[Any, bool]) -> tuple[Records, int]:
    if not columns:
        raise DataError("data has no columns; give at least one named column.")
    names_that_are_not_text = [type(name).__name__ for name in columns if not isinstance(name, str)]
    if names_that_are_not_text:
        raise DataError(f"data has column names of type {names_that_are_not_text[0]}; rename the columns to strings.")
    records = {name: _copy_column(column, f"column {name!r}", nullable[name]) for name, column in columns.items()}
    lengths = {name: column.shape[0] for name, column in records.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns have different lengths {lengths}; every column needs one entry per record.")
    num_records = next(iter(lengths.values()))
    if num_records == 0:
        raise DataError("data has 0 rows; give at least one record.")
    return records, num_records


def _table_columns(data: Any) -> tuple[dict[Any, Any], dict[Any, bool]] | None:
    """Columns of a PyArrow, pandas or Polars table and whether each may hold nulls; None if no table."""
    names = getattr(data, "column_names", None)  # PyArrow, whose .columns are not names
    if names is None:
        names = getattr(data, "columns", None)
    if names is None or callable(names):
        return None
    names = list(names)
    if len(set(map(str, names))) != len(names):
        raise DataError("data has two columns of the same name; rename one of them.")
    schema: Any = getattr(data, "schema", None)
    nullable = {
        name: bool(getattr(schema.field(name), "nullable", True)) if hasattr(schema, "field") else True
        for name in names
    }
    return {name: data[name] for name in names}, nullable


def _copy_column(column: Any, label: str, nullable: bool) -> NDArray[Any]:
    """One column as a fresh NumPy array of a numeric dtype, or a DataError without any of its values."""
    try:
        with np.errstate(all="ignore"):
            array = _convert(column, nullable)
    except Exception:  # foreign conversions may quote values in their messages: nothing of them gets out
        array = None
    # Raised outside the handler, so that the foreign error is not even kept as __context__.
    if array is None:
        raise DataError(
            f"{label} is of type {type(column).__name__} and cannot be used as numbers without looking at "
            "its values; convert it to a NumPy array of a boolean, integer or floating dtype."
        )
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"{label} has dtype {array.dtype}, which is not numeric; encode it as booleans, integers or "
            "floats (for example category codes) before passing it."
        )
    if array.ndim == 0:
        raise DataError(f"{label} is a single number without rows; give an array with one entry per record.")
    if array.dtype.kind == "f" and array.dtype != np.float32:
        with np.errstate(all="ignore"):  # a warning would tell of a value
            array = array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _convert(column: Any, nullable: bool) -> NDArray[Any] | None:
    """Convert by dtype alone; None for types whose NumPy dtype would depend on their values (lists)."""
    if isinstance(column, np.ma.MaskedArray):
        return None
    if isinstance(column, np.ndarray | jax.Array):
        return np.array(column, order="C")
    if hasattr(column, "cast") and hasattr(column, "type"):  # PyArrow Array or ChunkedArray
        type_name = str(column.type)
        if type_name in _ARROW_INTEGERS:
            # A column that is declared without nulls may hold some all the same; no dtype may depend on that.
            if nullable:
                return np.array(column.cast("float64", safe=False))
            return np.array(column.fill_null(False if type_name == "bool" else 0))
        return np.array(column) if type_name in _ARROW_FLOATS else None
    dtype: Any = getattr(column, "dtype", None)
    if isinstance(dtype, np.dtype):
        return np.array(column, order="C")
    if hasattr(dtype, "is_integer") and hasattr(dtype, "is_float"):  # Polars Series
        if dtype.is_float():
            return np.array(column.to_numpy())
        if dtype.is_integer() or str(dtype) == "Boolean":
            return np.array(column.cast(float).to_numpy())
        return None
    if getattr(dtype, "kind", "O") in "biuf" and hasattr(column, "to_numpy"):  # pandas' nullable dtypes
        return np.array(column.to_numpy(dtype="float64", na_value=np.nan))
    return None
