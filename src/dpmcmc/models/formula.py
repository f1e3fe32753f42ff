"""A regression from a formula and a table: the model, and its records, ready for ``sample``.

The model is public; the records are private, and are handed on as they are: nothing here looks at a value.
"""

from __future__ import annotations

from typing import NamedTuple

from dpmcmc.data.source import Source
from dpmcmc.data.table import Table, TableStream
from dpmcmc.data.tables import OpenRecords
from dpmcmc.design import Design
from dpmcmc.errors import DataError
from dpmcmc.models.model import Model
from dpmcmc.models.regression import (
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
    RegressionModel,
)
from dpmcmc.models.units import UnitModel

__all__ = ["Regression", "regression"]

_CLASSES: dict[str, type[RegressionModel]] = {
    "logistic": LogisticRegression,
    "linear": LinearRegression,
    "poisson": PoissonRegression,
    "negative_binomial": NegativeBinomialRegression,
}


class Regression(NamedTuple):
    """What :func:`regression` returns: ``model, records = regression(…)``."""

    model: Model
    records: Source


def regression(
    formula: str,
    table: Table,
    *,
    family: str = "logistic",
    prior_scale: float = 2.5,
    groups: str | None = None,
) -> Regression:
    """Make a regression of a table's columns by a formula.

    Every row of the design is a function of its own row and of the public schema: numbers are coded by their bounds (or
    by the field's center and scale), categories against their reference level.
    :meth:`dpmcmc.Posterior.on_original_scale` gives coefficients in the data's units.

    Parameters
    ----------
    formula
        Such as ``"income ~ age + C(education) + hours:C(sex)"``, see :class:`dpmcmc.design.Design`.
    table
        A :class:`dpmcmc.Table`. With a unit of privacy, a record is all rows of one unit; a table that is streamed
        gives records that are streamed.
    family
        What the response is: "logistic" (a boolean, one of two levels, or an integer from 0 to 1; predicted is True, or
        the level that is not the reference), "linear" (a number), "poisson" or "negative_binomial" (an integer of at
        least 0).
    prior_scale
        Scale of the coefficients' priors, for coded columns, which lie in [−1, 1].
    groups
        Name of a category whose levels have effects of their own, with a common scale.

    Returns
    -------
    model, records
        For :func:`dpmcmc.sample`.

    Raises
    ------
    ModelError
        Formula, family, prior_scale or groups cannot be used.
    DataError
        ``table`` is no table.

    Examples
    --------
    >>> import dpmcmc
    >>> schema = dpmcmc.Schema([
    ...     dpmcmc.Field("age", "integer", minimum=20, maximum=80),
    ...     dpmcmc.Field("sex", "string", levels=["female", "male"]),
    ...     dpmcmc.Field("smoker", "boolean"),
    ... ])
    >>> table = dpmcmc.Table({"age": [31, 64], "sex": ["male", "?"], "smoker": [True, False]}, schema)
    >>> model, records = dpmcmc.regression("smoker ~ age + C(sex)", table)
    >>> model.feature_names
    ('age', 'C(sex)[T.male]')
    >>> records
    OpenRecords(2 records)
    """
    if not isinstance(table, Table):
        raise DataError(f"table is of type {type(table).__name__}; give a dpmcmc.Table, which has a schema")
    design = Design(formula, table.schema, family, groups)
    model = _CLASSES[family](
        list(design.columns),
        intercept=design.intercept,
        prior_scale=prior_scale,
        groups=None if groups is None else list(design.level_names),
        feature_bounds=design.bounds if design.columns else None,
        feature_blocks=design.blocks,
    )
    model.design = design
    names = [*design.variables, *design.response_variables]
    if table.streamed:
        return Regression(model, TableStream(table, names, design.records))
    records = design.records(table.clean(names))
    units = table.unit_index()
    if units is None:
        return Regression(model, OpenRecords(records, table.num_records, table))
    return Regression(UnitModel(model, units.max_rows, table.unit), units.stack(records)._replace(origin=table))
