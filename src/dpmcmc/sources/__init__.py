"""Tables as they come: Parquet and CSV files, Arrow, pandas, Polars, DuckDB and columns of arrays.

What is decided here depends on names and types only, which are public; no value of a record decides a branch, and none
appears in an error. Of these libraries only PyArrow is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmcmc.errors import DataError
from dpmcmc.sources.base import Column, Entries, Source, code_entries, num_entries
from dpmcmc.sources.files import CsvFile, ParquetFile
from dpmcmc.sources.memory import ArrowTable, Columns, Frame

__all__ = [
    "ArrowTable",
    "Column",
    "CsvFile",
    "Entries",
    "ParquetFile",
    "Source",
    "code_entries",
    "num_entries",
    "open_table",
]

_TAKEN = "give the name of a .parquet or .csv file, a table of PyArrow, pandas, Polars or DuckDB, or a dict of columns"


def open_table(source: Any) -> Source:
    """Look at a table's names and types. No value is read before :meth:`Source.read` is called."""
    if isinstance(source, str | os.PathLike):
        return _open_file(Path(source))
    if isinstance(source, Mapping):
        return Columns(source)
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # pandas: its way to Arrow quotes values in errors
        return Frame(source)
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return ArrowTable(source)
    if callable(getattr(source, "collect", None)):
        raise DataError(f"source is of type {type(source).__name__}, a plan without rows; give what .collect() returns")
    raise DataError(f"source is of type {type(source).__name__}, which is no table; {_TAKEN}")


def _open_file(path: Path) -> Source:
    if not path.exists():
        raise DataError(f"source = {str(path)!r} does not exist; {_TAKEN}")
    if not path.is_file():
        raise DataError(f"source = {str(path)!r} is not a file; {_TAKEN}")
    suffix = path.suffix.lower()
    if suffix in (".parquet", ".pq"):
        return ParquetFile(path)
    if suffix in (".csv", ".tsv"):
        return CsvFile(path)
    raise DataError(f"source = {str(path)!r} is called neither .parquet nor .csv; {_TAKEN}")
