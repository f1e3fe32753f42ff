"""Where records come from: arrays and tables in memory, files, and files that are larger than memory. Opened once."""

from dpmcmc.data.adult import adult, adult_arrow
from dpmcmc.data.source import Source, Stream, marks_of, open_source
from dpmcmc.data.table import Table
from dpmcmc.data.units import UnitRecords, Units

__all__ = ["Source", "Stream", "Table", "UnitRecords", "Units", "adult", "adult_arrow", "marks_of", "open_source"]
