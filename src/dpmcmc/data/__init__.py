"""Reading records: from Parquet files that are larger than memory."""

from dpmcmc.data.parquet import ParquetRecords

__all__ = ["ParquetRecords"]
