"""Where records come from: tables in memory, and Parquet files that are larger than it. Opened first, once."""

from dpmcmc.data.adult import adult
from dpmcmc.data.parquet import ParquetRecords
from dpmcmc.data.source import Source, Stream, open_source
from dpmcmc.data.table import Table
from dpmcmc.data.units import UnitRecords, Units

__all__ = ["ParquetRecords", "Source", "Stream", "Table", "UnitRecords", "Units", "adult", "open_source"]
