"""Tables in memory: anything with Arrow's PyCapsule interface, pandas, and dicts of columns."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcmc.errors import DataError
from dpmcmc.sources.base import Column, Entries

_DATES = "holds dates or times; give a number by a public rule, for example the days since a fixed date"
_NO_VALUE = "is neither numbers nor text; convert it by a public rule, or leave it out of the schema"
_NUMPY_TYPES = {
    "b": "boolean",
    "i": "integer",
    "u": "integer",
    "f": "number",
    "U": "string",
    "S": "string",
    "T": "string",
}


def arrow_columns(schema: Any) -> list[Column]:
    """Names and types of an Arrow schema."""
    return [_arrow_column(field.name, field.type) for field in schema]


def _arrow_column(name: str, of_type: Any) -> Column:
    import pyarrow

    is_type = pyarrow.types
    if is_type.is_dictionary(of_type):
        return _arrow_column(name, of_type.value_type)
    if is_type.is_null(of_type):
        return Column(name, None)
    if is_type.is_boolean(of_type):
        return Column(name, "boolean", fixed=True)
    if is_type.is_integer(of_type):
        return Column(name, "integer", fixed=True)
    if is_type.is_floating(of_type) or is_type.is_decimal(of_type):
        return Column(name, "number", fixed=True)
    if str(of_type) in ("string", "large_string", "string_view", "binary", "large_binary", "binary_view"):
        return Column(name, "string", fixed=True)
    dates = is_type.is_temporal(of_type)
    return Column(name, None, fixed=True, problem=f"has type {of_type}: it {_DATES if dates else _NO_VALUE}")


class ArrowTable:
    """A table of PyArrow, Polars, DuckDB or any other library with Arrow's PyCapsule interface."""

    def __init__(self, source: Any) -> None:
        import pyarrow

        self._kind = type(source).__name__
        reader = None
        with contextlib.suppress(Exception):  # a foreign library's message may quote a value
            if isinstance(source, pyarrow.RecordBatchReader):
                reader = source
            elif hasattr(source, "__arrow_c_stream__"):
                reader = pyarrow.RecordBatchReader.from_stream(source)
            else:
                reader = pyarrow.Table.from_batches([pyarrow.record_batch(source)]).to_reader()
        if reader is None:
            raise self._error()
        self._reader = reader
        self.columns = arrow_columns(reader.schema)

    def read(self, names: Sequence[str]) -> dict[str, Entries]:
        """Read the entries of some columns. A stream can be read once."""
        import pyarrow

        places = [[column.name for column in self.columns].index(name) for name in names]
        pieces: list[list[Any]] | None = None
        with contextlib.suppress(Exception):  # a query that is run only now, and whose message may quote a value
            pieces = [[batch.column(place) for place in places] for batch in self._reader]
        if pieces is None:
            raise self._error()
        types = [self._reader.schema.field(place).type for place in places]
        return {
            name: pyarrow.chunked_array([piece[order] for piece in pieces], type=types[order])
            for order, name in enumerate(names)
        }

    def _error(self) -> DataError:
        return DataError(
            f"source is of type {self._kind} and cannot be read as an Arrow table; convert it to one, for example "
            "with .to_arrow_table() or .to_arrow(), or write it to a Parquet file"
        )


class Frame:
    """A pandas.DataFrame, column by column: what PyArrow cannot convert it would quote."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        # Without types: in pandas one missing value makes numbers of integers, and one word makes text of numbers.
        self.columns = [
            column_of(name, frame.dtypes.iloc[place])._replace(type=None)
            for place, name in enumerate(frame.columns)
            if type(name) is str
        ]

    def read(self, names: Sequence[str]) -> dict[str, Entries]:
        """Read the entries of some columns."""
        entries = {name: entries_of(self._frame[name]) for name in names}
        for name, column in entries.items():
            if column is None:
                raise DataError(f"column {name!r} cannot be read entry by entry; convert it with .astype(object)")
        return entries


class Columns:
    """A dict of columns: arrays, lists, or series of pandas, Polars or PyArrow."""

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        self._entries = {name: entries_of(column) for name, column in columns.items() if isinstance(name, str)}
        self.columns = [_described(name, entries, columns[name]) for name, entries in self._entries.items()]

    def read(self, names: Sequence[str]) -> dict[str, Entries]:
        """Return the entries of some columns."""
        return {name: self._entries[name] for name in names}


def column_of(name: str, dtype: Any) -> Column:
    """Name and type of a column of NumPy or pandas, by its dtype."""
    kind = getattr(dtype, "kind", "O")
    # Not the dtype's whole text: that of a category lists its values.
    text = str(dtype).lower() if kind in tuple("OMm") and not hasattr(dtype, "categories") else ""
    if kind in tuple("Mm") or text.startswith(("period", "interval", "date", "time", "duration")):
        return Column(name, None, problem=_DATES)
    if kind in tuple("cV"):
        return Column(name, None, problem=_NO_VALUE)
    if text.startswith("str"):
        return Column(name, "string")
    return Column(name, _NUMPY_TYPES.get(kind))


def entries_of(column: Any) -> Entries | None:
    """Take one column as a NumPy array or a pyarrow.ChunkedArray, whatever its values; None if it is none."""
    entries = None
    with contextlib.suppress(Exception):  # foreign conversions may quote values
        entries = _entries(column)
    return None if isinstance(entries, np.ndarray) and entries.ndim != 1 else entries


def _described(name: str, entries: Entries | None, column: Any) -> Column:
    if entries is None:
        of_type = f"is of type {type(column).__name__}, which is no column with one entry per row"
        return Column(name, None, problem=f"{of_type}; give an array in one dimension or a list")
    if not isinstance(entries, np.ndarray):
        return _arrow_column(name, entries.type)
    described = column_of(name, entries.dtype)
    return described._replace(type=None) if hasattr(column, "iloc") else described  # as in a frame of pandas


def _entries(column: Any) -> Entries:
    import pyarrow

    if isinstance(column, str | bytes | Mapping):
        return None
    if isinstance(column, pyarrow.ChunkedArray | pyarrow.Array):
        return pyarrow.chunked_array([column]) if isinstance(column, pyarrow.Array) else column
    if isinstance(column, np.ma.MaskedArray):
        entries = np.array(column.data, dtype=object)
        entries[np.ma.getmaskarray(column)] = None
        return entries
    if isinstance(column, np.ndarray):
        return np.array(column)
    if isinstance(column, list | tuple | range):
        return _objects(list(column))
    if hasattr(column, "iloc"):  # pandas
        numeric = isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf"
        return np.array(column.to_numpy()) if numeric else _objects(list(column.to_numpy(dtype=object)))
    if hasattr(column, "__arrow_c_stream__") or hasattr(column, "__arrow_c_array__"):
        return (
            pyarrow.chunked_array(column) if hasattr(column, "__arrow_c_stream__") else pyarrow.chunked_array([column])
        )
    return np.array(column) if hasattr(column, "__array__") else None


def _objects(entries: list[Any]) -> NDArray[Any]:
    array = np.empty(len(entries), dtype=object)
    for place, entry in enumerate(entries):  # NumPy would make rows of an entry that is a list
        array[place] = entry
    return array
