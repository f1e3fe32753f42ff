"""Records as a model takes them. Nobody's code but this package's own sees many rows at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpmcmc.data.tables import Records
from dpmcmc.errors import ModelError
from dpmcmc.models import Model, NumpyroModel, RegressionModel, UnitModel
from dpmcmc.models.paper import VectorModel

_OWN = tuple(kind.prepare_records for kind in (Model, RegressionModel, VectorModel, NumpyroModel, UnitModel))


def prepare(model: Model, data: Any) -> tuple[Records, int]:
    """Return ``model.prepare_records(data)``, if the method is this package's own.

    Any other could centre a column, fill in missing values from other rows, cut off outliers or number the levels it
    finds: each lets one record move all others before anything is clipped, and no test on made-up rows would notice.

    Raises
    ------
    ModelError
        If the class, one that it is derived from, or the instance brings a method of its own.
    DataError
        If the data do not fit. No message holds a value of a record.
    """
    if isinstance(model, UnitModel):  # which hands rows on to the model inside
        _refuse_other(model.model)
    return _refuse_other(model)(model, data)


def _refuse_other(model: Model) -> Callable[[Model, Any], tuple[Records, int]]:
    """Return the method that a model prepares records with, if it and all that it may call are this package's own."""
    methods = [vars(kind)["prepare_records"] for kind in type(model).__mro__ if "prepare_records" in vars(kind)]
    if "prepare_records" in vars(model) or any(method not in _OWN for method in methods):
        raise ModelError(
            f"{type(model).__name__} has a prepare_records of its own, which would see all records at once; compute "
            "what it does in log_likelihood, for one record, with public constants in place of what it learns from the "
            "data (what depends on the record alone is computed once, before the run)."
        )
    return methods[0]
