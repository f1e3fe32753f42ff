"""The way into the house: open what a user calls data, once. The number of records is known from here on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np

from dpmcmc.data.marks import digests, keyed_marks
from dpmcmc.data.table import Table, TableStream
from dpmcmc.data.tables import OpenRecords, copy_records
from dpmcmc.data.units import UnitRecords, Units
from dpmcmc.errors import DataError


@runtime_checkable
class Stream(Protocol):
    """Records that are read again for every question, a chunk at a time, as those of a streamed :class:`Table`."""

    num_records: int

    def chunks(self, rows: int) -> Iterator[Any]:
        """Yield all records in order, ``rows`` at a time; the last chunk may be shorter."""
        ...


_MARKED_ROWS = 65536

Source = OpenRecords | UnitRecords | Stream


def open_source(data: Any) -> Source:
    """Copy data into NumPy, or take a stream as it is. Both have ``num_records``. Rows of a table are put by unit.

    Raises
    ------
    DataError
        The data are empty, not numeric, ragged or without rows. The message holds no value of a record.
    """
    if isinstance(data, OpenRecords | UnitRecords):
        return data
    if isinstance(data, Table):
        records = data.records()
        if isinstance(records, TableStream | UnitRecords):
            return records
        return Units.one_row_each(data.num_records).stack(records)._replace(origin=data)
    if isinstance(data, Stream):
        if data.num_records < 1:
            raise DataError("data has 0 rows; give at least one record.")
        return data
    return OpenRecords(*copy_records(data))


def marks_of(source: Source, key: bytes) -> dict[str, str]:
    """Return keyed fingerprints of the columns that records came from (:meth:`Table.marks`), or of their own.

    Goes through all records once more. What it returns belongs in a ledger, and nowhere else.
    """
    origin = getattr(source, "origin", None)
    if isinstance(origin, Table):
        return origin.marks(key)
    if isinstance(source, OpenRecords):
        return keyed_marks(key, digests([_columns(source.records)]))
    if isinstance(source, UnitRecords):
        return keyed_marks(key, digests([{**_columns(source.rows), "present": source.present}]))
    return keyed_marks(key, digests(_columns(chunk) for chunk in source.chunks(_MARKED_ROWS)))


def _columns(records: Any) -> dict[str, Any]:
    columns = records if isinstance(records, dict) else {"data": records}
    return {name: np.asarray(column) for name, column in columns.items()}
