"""Files: Parquet, whole or in pieces, and CSV, every line by itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmcmc.errors import DataError
from dpmcmc.sources.base import Column, Entries
from dpmcmc.sources.memory import arrow_columns

_DELIMITERS = (",", ";", "\t", "|")


class ParquetFile:
    """A Parquet file. Names, types and the number of rows come from its metadata."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        self.path = path
        schema = None
        with contextlib.suppress(Exception), pyarrow.parquet.ParquetFile(path) as file:
            schema, self.num_rows = file.schema_arrow, int(file.metadata.num_rows)
        if schema is None:
            raise self._error()
        self.columns = arrow_columns(schema)
        self._stamp = self._file_stamp()

    def read(self, names: Sequence[str]) -> dict[str, Entries]:
        """Read some columns whole."""
        import pyarrow.parquet

        table = None
        # What is raised about a damaged page may quote it.
        with contextlib.suppress(Exception), pyarrow.parquet.ParquetFile(self.path) as file:
            table = file.read(columns=list(names))
        if table is None:
            raise self._error()
        return {name: table.column(name) for name in names}

    def batches(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Entries]]:
        """Yield some columns in order, at most ``rows`` entries at a time (row groups end batches, too).

        Raises
        ------
        DataError
            If the file has changed since it was opened, or is damaged.
        """
        import pyarrow
        import pyarrow.parquet

        if self._file_stamp() != self._stamp:
            raise DataError(f"the file {self.path.name!r} has changed since it was opened; open it again")
        with pyarrow.parquet.ParquetFile(self.path) as file:
            batches = file.iter_batches(batch_size=rows, columns=list(names), use_threads=False)
            while True:
                batch, damaged = None, False
                try:
                    batch = next(batches, None)
                except Exception:
                    damaged = True
                if damaged:
                    raise self._error()
                if batch is None:
                    return
                yield {name: pyarrow.chunked_array([batch.column(name)]) for name in names}

    def _file_stamp(self) -> tuple[int, int]:
        status = os.stat(self.path)
        return status.st_size, status.st_mtime_ns

    def _error(self) -> DataError:
        return DataError(
            f"source = {str(self.path)!r} cannot be read as Parquet; write it again, with PyArrow or pandas"
        )


class CsvFile:
    """A CSV file in UTF-8, with names in its first line; the delimiter is the first of , ; tab | that is there.

    Every line after the first is one record, whatever it holds: an unbalanced quote spoils its own line, a line that is
    too short lacks its last entries, one that is too long loses what is beyond. So a cell cannot hold a line break.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        first = None
        with contextlib.suppress(OSError), path.open("rb") as file:
            first = file.readline()
        if first is None:
            raise DataError(f"source = {str(path)!r} cannot be read; check that it is a file that you may read")
        header = _decoded(first.removeprefix(b"\xef\xbb\xbf"))
        if not header.strip():
            raise DataError(f"source = {str(path)!r} has no names in its first line; write them there")
        self._delimiter = next((sign for sign in _DELIMITERS if sign in header), ",")
        self._names = [name.strip() for name in split_line(header, self._delimiter)]
        self.columns = [Column(name, None) for name in self._names]

    def read(self, names: Sequence[str]) -> dict[str, Entries]:
        """Read the entries of some columns as text."""
        places = [self._names.index(name) for name in names]
        cells: list[list[Any]] = [[] for _ in names]
        with self._path.open("rb") as file:
            next(file)
            for line in file:
                row = split_line(_decoded(line), self._delimiter)
                for column, place in zip(cells, places, strict=True):
                    column.append(row[place] if place < len(row) else None)
        return {name: np.array(column, dtype=object) for name, column in zip(names, cells, strict=True)}


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r\n")


def split_line(line: str, delimiter: str) -> list[str]:
    """Split one line into cells; a quote that is not closed ends with the line.

    Examples
    --------
    >>> split_line('1,"a, b",""', ",")
    ['1', 'a, b', '']
    >>> split_line('1,"a, b', ",")
    ['1', 'a, b']
    """
    if '"' not in line:
        return line.split(delimiter)
    cells = []
    start = 0
    while start <= len(line):
        quoted = ""
        if line.startswith('"', start):
            end = start + 1
            while (end := line.find('"', end)) >= 0 and line.startswith('""', end):
                end += 2
            end = len(line) if end < 0 else end
            quoted, start = line[start + 1 : end].replace('""', '"'), end + 1
        stop = line.find(delimiter, start)
        stop = len(line) if stop < 0 else stop
        cells.append(quoted + line[start:stop])
        start = stop + 1
    return cells
