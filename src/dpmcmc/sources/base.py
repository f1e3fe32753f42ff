"""What every source of a table has: named columns with types, and entries that are coded one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dpmcmc.errors import DataError

Entries = Any  # a NumPy array in one dimension, or a pyarrow.ChunkedArray
Code = Callable[[NDArray[Any]], NDArray[np.float64]]


class Column(NamedTuple):
    """Name and type of a column.

    Attributes
    ----------
    type
        "number", "integer", "boolean" or "string", or None where nothing says so.
    fixed
        Whether the type is that of the file or table. It is not where the entries decide it, as in CSV files and
        pandas: there one odd entry makes text of a column.
    problem
        Why the column cannot be used, or None.
    """

    name: str
    type: str | None
    fixed: bool = False
    problem: str | None = None


class Source(Protocol):
    """A table that has been looked at and not yet read."""

    columns: list[Column]

    def read(self, names: Sequence[str]) -> dict[str, Entries]:
        """Read the entries of some columns, all of the same number."""
        ...


def num_entries(entries: dict[str, Entries]) -> int:
    """Return the number of rows, which all columns must share and which must not be 0."""
    lengths = {name: len(column) for name, column in entries.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the columns have different lengths {lengths}; every column needs one entry per row")
    (length,) = set(lengths.values())
    if length == 0:
        raise DataError("the table has 0 rows; give at least one")
    return length


def code_entries(entries: Entries, code: Code, *, exactly: bool = False) -> NDArray[np.float64]:
    """Apply a function that treats every entry alone. Entries that repeat may be coded once.

    With ``exactly`` whole numbers come to it as they are; else they may come as float64.
    """
    if isinstance(entries, np.ndarray):
        return code(entries)
    coded = None
    with contextlib.suppress(Exception):  # of a damaged table; what is raised there may quote its values
        coded = np.concatenate([_code_chunk(chunk, code, exactly) for chunk in entries.chunks] or [np.zeros(0)])
    if coded is None:
        raise DataError("the table is damaged and its columns cannot be read; write it again")
    return coded


def _code_chunk(chunk: Any, code: Code, exactly: bool) -> NDArray[np.float64]:
    import pyarrow

    is_type = pyarrow.types
    if is_type.is_null(chunk.type):
        return np.repeat(code(np.array([None], dtype=object)), len(chunk))
    if is_type.is_floating(chunk.type) or (is_type.is_integer(chunk.type) and not exactly):
        return code(chunk.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False))
    if not is_type.is_dictionary(chunk.type):
        chunk = _as_bytes(chunk).dictionary_encode()
    values = _as_bytes(chunk.dictionary)
    distinct = np.empty(len(values) + 1, dtype=object)  # the last, None, is for what is missing
    for place, value in enumerate(values.to_pylist()):
        distinct[place] = value
    places = chunk.indices.cast(pyarrow.int64()).fill_null(len(values))
    return code(distinct)[places.to_numpy(zero_copy_only=False)]


def _as_bytes(values: Any) -> Any:
    """Text as bytes, which are decoded one by one and with no error; all else as it is."""
    import pyarrow

    text = ("string", "large_string", "string_view", "binary", "binary_view")
    return values.cast(pyarrow.large_binary()) if str(values.type) in text else values
