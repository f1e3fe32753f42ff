"""How a model is evaluated on records: the only code that computes with them."""

from __future__ import annotations

from typing import Any

import jax

from dpmcmc.curator.kernels import autodiff
from dpmcmc.curator.kernels.autodiff import AutodiffKernel
from dpmcmc.curator.kernels.base import TileKernel, join
from dpmcmc.curator.kernels.regression import RegressionKernel
from dpmcmc.curator.kernels.units import UnitKernel
from dpmcmc.curator.kernels.view import View, view_of
from dpmcmc.models import (
    Banana,
    GaussianMean,
    LinearRegression,
    LogisticRegression,
    Model,
    NegativeBinomialRegression,
    PoissonRegression,
    RegressionModel,
    UnitModel,
    allowed,
)
from dpmcmc.models.units import row_model

__all__ = [
    "AutodiffKernel",
    "RegressionKernel",
    "TileKernel",
    "UnitKernel",
    "View",
    "has_closed_form",
    "is_own",
    "join",
    "make_kernel",
    "trace",
    "trace_curvature",
    "view_of",
]

_FAMILIES = (LinearRegression, LogisticRegression, PoissonRegression, NegativeBinomialRegression)


def has_closed_form(model: Model) -> bool:
    """Whether this is one of the package's own regressions, of rows or of units, whose code may see whole tiles.

    Exactly these: another class could do anything with the rows of a tile.
    """
    return type(row_model(model)) in _FAMILIES


def is_own(model: Model) -> bool:
    """Whether the functions of a model are this package's own, and so hold no data."""
    if type(model) is UnitModel:
        return is_own(model.model) and model.log_prior == model.model.log_prior
    functions = [getattr(function, "__func__", None) for function in (model.log_likelihood, model.log_prior)]
    kind: Any = type(model)
    return kind in (*_FAMILIES, Banana, GaussianMean) and functions == [kind._log_likelihood, kind._log_prior]


def make_kernel(model: Model, records: Any, traced: allowed.Traced | None = None) -> TileKernel:
    """Choose how to evaluate a model on records of these shapes and dtypes."""
    if type(model) is UnitModel:
        return UnitKernel(make_kernel(model.model, _row_shapes(records), traced), model.max_rows)
    if has_closed_form(model):
        assert isinstance(model, RegressionModel)
        return RegressionKernel(model, records)
    return AutodiffKernel(model, records, traced)


def trace(model: Model, records: Any) -> allowed.Traced:
    """Trace and check a model's log-likelihood and its gradient, of one record; of units, of one row."""
    return autodiff.trace(*_of_rows(model, records))


def trace_curvature(model: Model, records: Any) -> Any:
    """Trace and check minus the second derivatives of a model's log-likelihood, likewise."""
    return autodiff.trace_curvature(*_of_rows(model, records))


def _of_rows(model: Model, records: Any) -> tuple[Model, Any]:
    return row_model(model), _row_shapes(records) if type(model) is UnitModel else records


def _row_shapes(records: Any) -> Any:
    """Return shapes and dtypes of the rows of units, as records of their own."""

    def rows(column: Any) -> jax.ShapeDtypeStruct:
        units, slots, *shape = column.shape
        return jax.ShapeDtypeStruct((units * slots, *shape), column.dtype)

    return jax.tree.map(rows, records["rows"])
