"""The Adult census data, which come with the package: a real table to try things on. Public data, nobody's secret."""

from __future__ import annotations

import io
from importlib import resources
from typing import TYPE_CHECKING

from dpmcmc.data.table import Table
from dpmcmc.schema import Schema

if TYPE_CHECKING:
    import pyarrow


def adult() -> Table:
    """Return the Adult data set ("Census Income"): 48,842 people of the United States census of 1994, one a row.

    The columns are ``age``, ``education_num``, ``capital_gain``, ``capital_loss`` and ``hours_per_week`` (integers),
    ``workclass``, ``education``, ``marital_status``, ``occupation``, ``relationship``, ``race``, ``sex`` and
    ``native_country`` (text; missing only in ``workclass``, ``occupation`` and ``native_country``, where that is a
    level of its own) and ``income`` (whether it is above 50,000 dollars a year, as 24 % are). The schema comes from
    the data set's description: bounds that anybody would state, and the levels of the questionnaire.

    Notes
    -----
    Source: Becker, B. and Kohavi, R. (1996), "Adult", UCI Machine Learning Repository,
    https://doi.org/10.24432/C5XW20, licensed under CC BY 4.0 (https://creativecommons.org/licenses/by/4.0/). Changed:
    both of its files in one table, without the column ``fnlwgt``; ``adult.NOTICE.txt`` beside the file has the details.

    Examples
    --------
    >>> table = adult()
    >>> table.num_records, table.schema["age"].bounds
    (48842, (17.0, 90.0))
    """
    folder = resources.files("dpmcmc.data")
    return Table(adult_arrow(), Schema.from_yaml(folder.joinpath("adult.schema.yaml").read_text(encoding="utf-8")))


def adult_arrow() -> pyarrow.Table:
    """Return the same data as they are, without a schema.

    Examples
    --------
    >>> table = adult_arrow()
    >>> table.num_rows, table.column_names[:3]
    (48842, ['age', 'workclass', 'education'])
    """
    import pyarrow.parquet

    content = resources.files("dpmcmc.data").joinpath("adult.parquet").read_bytes()
    return pyarrow.parquet.read_table(io.BytesIO(content))
