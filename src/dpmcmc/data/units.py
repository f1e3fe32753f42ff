"""The unit of privacy: which rows of a table belong to one person, and how many of them count.

How a row is treated depends on the rows of its own unit only, and on their order: no other unit can push a row out or
take its place. The number of units is public; the number of rows, and how many were dropped, are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmcmc.checks import count
from dpmcmc.data.tables import Records
from dpmcmc.errors import DataError

__all__ = ["UnitRecords", "Units"]


class UnitRecords(NamedTuple):
    """Rows put together by unit, the records of a :class:`dpmcmc.models.UnitModel`. Made by :meth:`Units.stack`.

    Attributes
    ----------
    rows
        The columns, each of shape (units, max_rows, …).
    present
        Which of them are rows that count, of shape (units, max_rows). The others hold numbers that nobody uses.
    origin
        The table that they were made of, if any.
    """

    rows: Records
    present: NDArray[np.bool_]
    origin: Any = None

    def __repr__(self) -> str:
        return f"UnitRecords({self.num_records} units of at most {self.present.shape[1]} rows)"

    @property
    def num_records(self) -> int:
        """Number of units, which is public."""
        return len(self.present)


@dataclass(frozen=True, repr=False, eq=False)
class Units:
    """Which rows of a table are whose.

    Attributes
    ----------
    index
        Row numbers of each unit in the order of the table, of shape (units, max_rows), int32; −1 where there is none.
        Every unit has at least one row.

    Examples
    --------
    >>> Units.of(np.array(["a", "b", "a", "a"]), max_rows=2).index
    array([[ 0,  2],
           [ 1, -1]], dtype=int32)
    """

    index: NDArray[np.int32]

    def __repr__(self) -> str:
        return f"Units({self.num_units} units of at most {self.max_rows} rows)"

    @classmethod
    def of(cls, ids: NDArray[Any], max_rows: int) -> Units:
        """Group rows by the id that stands in each, and keep the first ``max_rows`` of every unit.

        Parameters
        ----------
        ids
            One id a row: numbers, text or objects. Ids that are written the same are the same, whatever their type: 7,
            7.0 and "7", since one missing id may turn a column of integers into floats or text. A missing id is an id
            like any other: all rows without one are one unit.
        max_rows
            Public bound on the rows of a unit that count.

        Raises
        ------
        QueryError
            ``max_rows`` is not a whole number of at least 1.
        DataError
            There are no rows.
        """
        max_rows = count("max_rows", max_rows)
        if not len(ids):
            raise DataError("data has 0 rows; give at least one record.")
        unit = _numbered(ids)
        by_unit = np.argsort(unit, kind="stable")  # the order of the table within each unit
        unit = unit[by_unit]
        starts = np.flatnonzero(np.diff(unit, prepend=-1))
        place = np.arange(len(unit)) - starts[unit]
        kept = place < max_rows
        index = np.full((len(starts), max_rows), -1, np.int32)
        index[unit[kept], place[kept]] = by_unit[kept]
        return cls(index)

    @classmethod
    def one_row_each(cls, num_rows: int) -> Units:
        """Return the units of a table without ids: every row is a person."""
        return cls(np.arange(num_rows, dtype=np.int32)[:, None])

    @property
    def num_units(self) -> int:
        """Number of units, which is public."""
        return len(self.index)

    @property
    def max_rows(self) -> int:
        """How many rows of a unit count."""
        return self.index.shape[1]

    def stack(self, records: Records) -> UnitRecords:
        """Put the rows of each unit side by side.

        A row with a number that is not finite counts as nothing: it is not present. In the places of rows that are not
        present stand copies of the unit's first that is, so that a function of them has no trouble of its own there.
        """
        present = self.index >= 0
        for column in records.values() if isinstance(records, dict) else [records]:
            present = present & _finite_rows(column)[self.index]
        # The first of all, where none is present.
        first = np.take_along_axis(self.index, np.argmax(present, axis=1)[:, None], axis=1)
        source = np.where(present, self.index, first)
        if isinstance(records, dict):
            return UnitRecords({name: column[source] for name, column in records.items()}, present)
        return UnitRecords(records[source], present)


def _finite_rows(column: NDArray[Any]) -> NDArray[np.bool_]:
    finite = np.isfinite(column)
    return np.all(finite, axis=tuple(range(1, finite.ndim)))


def _numbered(ids: NDArray[Any]) -> NDArray[np.int64]:
    """Number the ids 0, 1, … in the order in which they first occur."""
    numbers: dict[str | None, int] = {}
    keys = map(_key, np.asarray(ids).tolist())
    return np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int64, len(ids))


def _key(entry: Any) -> str | None:
    """How an id is written, or None for a missing one; never an error, which would tell of a value."""
    if isinstance(entry, str):
        return entry
    try:
        if isinstance(entry, bytes):
            return entry.decode(errors="replace")
        if entry is None or entry != entry:
            return None
        if isinstance(entry, float) and entry.is_integer():
            entry = int(entry)
        return str(entry)
    except Exception:  # pandas.NA cannot be compared; other objects do what they like
        return None
