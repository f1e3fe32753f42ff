"""Records in a Parquet file that does not fit into memory: read again, chunk by chunk, for every question.

What is decided here depends on the file's schema and number of rows only, which are public; no value of a record is
looked at, and none appears in an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcmc.data.tables import copy_column
from dpmcmc.errors import DataError


class ParquetRecords:
    """A Parquet file as the data of :func:`dpmcmc.sample`, one row per person.

    Parameters
    ----------
    path
        The file. It must not change while it is in use.
    columns
        What a record is made of. A mapping from the model's fields to a column's name, or to a list of names (which
        become one array): ``{"X": ["age", "hours"], "y": "income"}``. Or a list of names alone, for a model whose
        records are the rows of one array.
    dtype
        "float32" or "float64" (the default): the precision to compute in, which no column's type decides. All columns
        become floating point, with NaN for missing: integers and booleans too, since one may be missing. (float32 holds
        whole numbers up to 2^24.)

    Attributes
    ----------
    num_records
        Number of rows, from the file's metadata.

    Notes
    -----
    Each pass over the data reads the file once, so DP-SGLD and DP-SGNHT, which look up random rows, cannot use it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Mapping[str, str | Sequence[str]] | Sequence[str],
        *,
        dtype: str | None = None,
    ) -> None:
        self._parquet = _pyarrow_parquet()
        self.path = Path(path)
        if not self.path.is_file():
            raise DataError(f"path = {str(path)!r} is not a file; give the name of a Parquet file")
        if isinstance(columns, str) or not columns:
            raise DataError(f"columns = {columns!r} names no columns; give a list of names, or a dict of fields")
        self._fields = dict(columns) if isinstance(columns, Mapping) else {"": list(columns)}
        try:
            with self._parquet.ParquetFile(self.path) as file:
                schema = file.schema_arrow
                self.num_records = int(file.metadata.num_rows)
        except Exception:
            schema = None
        if schema is None:
            raise DataError(f"path = {str(path)!r} cannot be read as Parquet; write it with PyArrow, pandas or Polars")
        self._names = [
            name for names in self._fields.values() for name in ([names] if isinstance(names, str) else names)
        ]
        self._dtype = self._check_columns(schema, dtype)
        self._stamp = self._file_stamp()

    def __repr__(self) -> str:
        return f"ParquetRecords({self.path.name!r}, {self.num_records} records of {len(self._names)} columns)"

    def _check_columns(self, schema: Any, dtype: str | None) -> np.dtype[Any]:
        for name in self._names:
            if name not in schema.names:
                raise DataError(f"columns name {name!r}, which the file does not have; it has {schema.names}")
            kind = str(schema.field(name).type)
            # A column in which everything is missing may have the type null; one entry that is no number makes it text.
            numeric = kind.startswith(("int", "uint", "float", "double", "halffloat", "string", "large_string"))
            if not (kind in ("bool", "null") or numeric):
                raise DataError(
                    f"column {name!r} has type {kind}, which is not numeric; encode it as numbers, by a public list of "
                    "levels or a public rule, and write the file again"
                )
        if dtype not in (None, "float32", "float64"):
            raise DataError(f'dtype = {dtype!r} is not known; give "float32", "float64" or None')
        if dtype is not None:
            return np.dtype(dtype)
        # Whatever the columns' types: one entry (missing, or a word) may have decided them.
        return np.dtype(np.float64)

    def _file_stamp(self) -> tuple[int, int]:
        status = os.stat(self.path)
        return status.st_size, status.st_mtime_ns

    def chunks(self, rows: int) -> Iterator[Any]:
        """Yield all records in order, ``rows`` at a time (the last may be shorter); the next is read beside.

        Raises
        ------
        DataError
            If the file has changed since this object was made.
        """
        if self._file_stamp() != self._stamp:
            raise DataError(f"the file {self.path.name!r} has changed since it was opened; make a new ParquetRecords")
        with self._parquet.ParquetFile(self.path) as file, ThreadPoolExecutor(max_workers=1) as beside:
            pieces = self._pieces(file, rows)
            coming = beside.submit(next, pieces, None)
            while (piece := coming.result()) is not None:
                coming = beside.submit(next, pieces, None)
                yield piece

    def _pieces(self, file: Any, rows: int) -> Iterator[Any]:
        """Gather batches (which end where row groups do) into pieces of the same number of rows."""
        held: list[dict[str, NDArray[Any]]] = []
        count = 0
        for batch in file.iter_batches(batch_size=rows, columns=list(dict.fromkeys(self._names)), use_threads=False):
            part = {field: self._array(batch, names) for field, names in self._fields.items()}
            length = batch.num_rows
            while length:
                take = min(length, rows - count)
                held.append({field: array[:take] for field, array in part.items()})
                part = {field: array[take:] for field, array in part.items()}
                count, length = count + take, length - take
                if count == rows:
                    yield self._join(held)
                    held, count = [], 0
        if count:
            yield self._join(held)

    def _join(self, parts: list[dict[str, NDArray[Any]]]) -> Any:
        joined = {field: np.concatenate([part[field] for part in parts]) for field in self._fields}
        return joined.get("", joined) if "" in joined else joined

    def _array(self, batch: Any, names: str | Sequence[str]) -> NDArray[Any]:
        def column(name: str) -> NDArray[Any]:
            # As columns of tables are: NaN for missing, whether or not anything is missing, no branch on a value.
            return copy_column(batch.column(name), f"column {name!r}").astype(self._dtype)

        # NumPy would warn of an overflow, and so tell that some record has one.
        with np.errstate(all="ignore"):
            return column(names) if isinstance(names, str) else np.stack([column(name) for name in names], axis=1)


def _pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError("reading Parquet needs PyArrow; install it with pip install 'dpmcmc[parquet]'") from None
    return pyarrow.parquet
