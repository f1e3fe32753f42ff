"""`Table`: private records with a public schema. Coded entry by entry, in memory or from a file larger than that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcmc.data.marks import digests, keyed_marks
from dpmcmc.data.units import UnitRecords, Units
from dpmcmc.entries import identity_of, plain
from dpmcmc.errors import DataError, SchemaError
from dpmcmc.schema import Schema
from dpmcmc.sources import ArrowTable, Entries, ParquetFile, Source, code_entries, num_entries

__all__ = ["Clean", "Table", "TableStream"]

Clean = dict[str, NDArray[np.float64]]
_MARKED_ROWS = 65536


class Table:
    """A table about people, and what is known about it without looking: records for :func:`dpmcmc.sample`.

    Parameters
    ----------
    source
        The name of a Parquet or CSV file; a table of PyArrow, pandas, Polars or DuckDB, or anything else with Arrow's
        PyCapsule interface; or a dict of columns. Columns that the schema does not name are not read. A CSV file is
        UTF-8 with names in the first line, and every other line is one record (a cell cannot hold a line break).
    schema
        A :class:`dpmcmc.Schema`, a descriptor of one, or the name of a file that holds one. It must have no blanks.
    stream
        For a Parquet file that does not fit into memory: it is read again, piece by piece, for every question, and must
        not change while it is in use. The draws are the same, bit for bit. DP-SGLD and DP-SGNHT, which look up random
        rows, cannot use it, and the schema can have no unit.

    Attributes
    ----------
    schema : Schema
    num_records : int
        Number of rows, or of units if the schema has one: the public n.

    Raises
    ------
    DataError, SchemaError
        The source cannot be read, or does not fit the schema in names and types. No message holds a value of a record.

    Notes
    -----
    The number that an entry becomes depends on that entry and its field alone (:meth:`dpmcmc.Field.code`): what is out
    of bounds is clamped, what is missing, malformed or an unknown level follows the field's rule, with no error, no
    warning and no count.

    Examples
    --------
    >>> from dpmcmc import Field, Schema
    >>> Table({"age": ["34", "old"]}, Schema([Field("age", "integer", minimum=17, maximum=90)]))
    Table(2 rows; age)
    """

    def __init__(
        self, source: Any, schema: Schema | Mapping[str, Any] | str | os.PathLike[str], *, stream: bool = False
    ) -> None:
        self.schema = _as_schema(schema)
        self.schema.refuse_blanks()
        opened = self._opened = self.schema.open(source)
        self._marks: dict[str, bytes] | None = None
        self._streamed: ParquetFile | None = None
        self._clean: Clean = {}
        self._identities: NDArray[np.int64] | None = None
        if stream:
            self._streamed = self._check_stream(opened)
            self.num_records = self._num_rows = self._streamed.num_rows
            return
        entries = opened.read(self.schema.names)
        if isinstance(opened, ArrowTable):  # may be a stream, which can be read once only
            self._marks = digests([entries])
        self.num_records = self._num_rows = num_entries(entries)
        for name, column in entries.items():
            if name == self.unit:
                self._identities = self._identify(column)
                self.num_records = int(self._identities.max()) + 1
            else:
                self._clean[name] = self.schema.code_entries(name, column)
                self._clean[name].setflags(write=False)

    @property
    def unit(self) -> str | None:
        """The column that says whom a row is about; None if one row is one person."""
        return self.schema.unit

    @property
    def streamed(self) -> bool:
        """Whether the file is read again for every question."""
        return self._streamed is not None

    def __repr__(self) -> str:
        of_what = "rows" if self.unit is None else f"units by {self.unit!r}"
        return f"Table({self.num_records} {of_what}; {', '.join(self.columns)})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The schema's columns but the unit's."""
        return tuple(name for name in self.schema.names if name != self.unit)

    def _check_stream(self, opened: Source) -> ParquetFile:
        if not isinstance(opened, ParquetFile):
            raise DataError("stream = True is for Parquet files only; write the table to one, or leave it out")
        if self.unit is not None:
            raise DataError(
                f"stream = True does not go with unit = {self.unit!r}, since the rows of a unit may lie anywhere in "
                "the file; leave stream out"
            )
        if opened.num_rows < 1:
            raise DataError("the table has 0 rows; give at least one")
        return opened

    def _identify(self, entries: Entries) -> NDArray[np.int64]:
        """Number the units. What is missing is an id like any other."""
        numbers: dict[str, int] = {}
        missing = set(self.schema.missing_values)

        def number(raw: NDArray[Any]) -> NDArray[np.float64]:
            texts = (identity_of(plain(entry)) for entry in raw.tolist())
            return np.array(
                [numbers.setdefault("" if text in missing else text, len(numbers)) for text in texts], np.float64
            )

        places = code_entries(entries, number, exactly=True).astype(np.int64)
        # Arrow's dictionaries have an order of their own, and entries that no row has: numbered again by first rows.
        _, first, units = np.unique(places, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[units.reshape(-1)]

    def clean(self, names: Sequence[str] | None = None) -> Clean:
        """Return clean values of whole columns (:meth:`dpmcmc.Field.code`), which are secret. In memory only."""
        if self.streamed:
            raise DataError("the table is streamed and is never in memory as a whole; leave stream = True out")
        return {name: self._clean[name] for name in self._known(names)}

    def clean_chunks(self, names: Sequence[str] | None, rows: int) -> Iterator[Clean]:
        """Yield clean values in order, ``rows`` at a time (the last may be shorter); the next are read beside."""
        names = self._known(names)
        if self._streamed is None:
            for start in range(0, self._num_rows, rows):
                yield {name: self._clean[name][start : start + rows] for name in names}
            return
        with ThreadPoolExecutor(max_workers=1) as beside:
            pieces = self._pieces(self._streamed, names, rows)
            coming = beside.submit(next, pieces, None)
            while (piece := coming.result()) is not None:
                coming = beside.submit(next, pieces, None)
                yield piece

    def _pieces(self, file: ParquetFile, names: Sequence[str], rows: int) -> Iterator[Clean]:
        """Gather batches (which end where row groups do) into pieces of the same number of rows."""
        held: list[Clean] = []
        count = 0
        for batch in file.batches(names, rows):
            part = {name: self.schema.code_entries(name, entries) for name, entries in batch.items()}
            length = len(part[names[0]])
            while length:
                take = min(length, rows - count)
                held.append({name: column[:take] for name, column in part.items()})
                part = {name: column[take:] for name, column in part.items()}
                count, length = count + take, length - take
                if count == rows:
                    yield _joined(held, names)
                    held, count = [], 0
        if count:
            yield _joined(held, names)

    def _known(self, names: Sequence[str] | None) -> tuple[str, ...]:
        for name in names or ():
            if name not in self.columns:
                raise DataError(f"column {name!r} is not one of {', '.join(map(repr, self.columns))}; choose one")
        return self.columns if names is None else tuple(names)

    def unit_index(self) -> Units | None:
        """Return which rows belong to which unit, or None if one row is one person."""
        if self._identities is None or self.schema.max_rows is None:
            return None
        return Units.of(self._identities, self.schema.max_rows)

    def coded(self, clean: Clean) -> Clean:
        """Code clean values for a model: numbers (x − center) / scale, booleans 0 and 1, categories by index."""
        with np.errstate(all="ignore"):  # a warning of an overflow would tell of a value
            return {name: self._coded(name, column) for name, column in clean.items()}

    def _coded(self, name: str, column: NDArray[np.float64]) -> NDArray[np.float64]:
        field = self.schema[name]
        if field.kind != "number" or field.center is None or field.scale is None:
            return column
        return (column - field.center) / field.scale

    def records(self) -> Clean | UnitRecords | TableStream:
        """Return coded columns for a model of the user's own, row by row or by unit, or a stream of them. Secret."""
        if self.streamed:
            return TableStream(self, self.columns, self.coded)
        rows, units = self.coded(self.clean()), self.unit_index()
        return rows if units is None else units.stack(rows)._replace(origin=self)

    def marks(self, key: bytes) -> dict[str, str]:
        """Return keyed fingerprints of the columns, as they are in the source, by those of their names.

        Whatever the schema makes of entries, and wherever the table comes from (a number is the same in CSV, Parquet
        and pandas), the marks are the same; another order of rows is another table. They reveal nothing without key.
        """
        if self._marks is not None:
            return keyed_marks(key, self._marks)
        if self._streamed is not None:
            return keyed_marks(key, digests(self._streamed.batches(self.schema.names, _MARKED_ROWS)))
        return keyed_marks(key, digests([self._opened.read(self.schema.names)]))


class TableStream:
    """Records that are made of a streamed table's clean values, a chunk at a time.

    Parameters
    ----------
    table
        A streamed table.
    names
        The columns that are needed.
    build
        Makes records of clean values. Each record may depend on its own row only.
    """

    def __init__(self, table: Table, names: Sequence[str], build: Callable[[Clean], Any]) -> None:
        self.num_records, self.origin = table.num_records, table
        self._table, self._names, self._build = table, tuple(names), build

    def __repr__(self) -> str:
        return f"TableStream({self.num_records} records of {', '.join(self._names)})"

    def chunks(self, rows: int) -> Iterator[Any]:
        """Yield all records in order, ``rows`` at a time; the last chunk may be shorter."""
        for clean in self._table.clean_chunks(self._names, rows):
            yield self._build(clean)


def _as_schema(schema: Any) -> Schema:
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, str | os.PathLike):
        return Schema.load(schema)
    if isinstance(schema, Mapping):
        return Schema.from_dict(schema)
    raise SchemaError(
        f"schema is of type {type(schema).__name__}; give a dpmcmc.Schema, a dict of its descriptor or a file's name"
    )


def _joined(parts: list[Clean], names: Sequence[str]) -> Clean:
    return {name: np.concatenate([part[name] for part in parts]) for name in names}
