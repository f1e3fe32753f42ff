"""The Adult census data, which come with the package: a real table to try things on. Public data, nobody's secret."""

from __future__ import annotations

import io
from importlib import resources
from typing import TYPE_CHECKING

from dpmcmc.data.parquet import _pyarrow_parquet

if TYPE_CHECKING:
    import pyarrow


def adult() -> pyarrow.Table:
    """Return the Adult data set ("Census Income"): 48,842 people of the United States census of 1994, one a row.

    The columns are ``age``, ``education_num``, ``capital_gain``, ``capital_loss`` and ``hours_per_week`` (integers),
    ``workclass``, ``education``, ``marital_status``, ``occupation``, ``relationship``, ``race``, ``sex`` and
    ``native_country`` (text; null where unknown: ``workclass``, ``occupation`` and ``native_country`` only) and
    ``income`` (whether it is above 50,000 dollars a year, as 24 % are).

    Raises
    ------
    DataError
        PyArrow is not installed.

    Notes
    -----
    Source: Becker, B. and Kohavi, R. (1996), "Adult", UCI Machine Learning Repository,
    https://doi.org/10.24432/C5XW20, licensed under CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/). Changed:
    both of its files in one table, without the column ``fnlwgt``; ``adult.NOTICE.txt`` beside the file has the details.

    Examples
    --------
    >>> table = adult()
    >>> table.num_rows, table.column_names[:3]
    (48842, ['age', 'workclass', 'education'])
    """
    parquet = _pyarrow_parquet()
    content = resources.files("dpmcmc.data").joinpath("adult.parquet").read_bytes()
    return parquet.read_table(io.BytesIO(content))
