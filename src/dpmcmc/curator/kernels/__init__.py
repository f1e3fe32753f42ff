"""How a model is evaluated on records: the only code that computes with them."""

from __future__ import annotations

from typing import Any

from dpmcmc.curator.kernels.autodiff import AutodiffKernel, trace, trace_curvature
from dpmcmc.curator.kernels.base import TileKernel, join
from dpmcmc.curator.kernels.regression import RegressionKernel
from dpmcmc.curator.kernels.view import RegressionView, View
from dpmcmc.models import (
    Banana,
    GaussianMean,
    LinearRegression,
    LogisticRegression,
    Model,
    NegativeBinomialRegression,
    PoissonRegression,
    RegressionModel,
    allowed,
)

__all__ = [
    "AutodiffKernel",
    "RegressionKernel",
    "TileKernel",
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
    """Whether this is one of the package's own regressions, whose code may see whole tiles.

    Exactly these: another class could do anything with the rows of a tile.
    """
    return type(model) in _FAMILIES


def is_own(model: Model) -> bool:
    """Whether the functions of a model are this package's own, and so hold no data."""
    functions = [getattr(function, "__func__", None) for function in (model.log_likelihood, model.log_prior)]
    kind: Any = type(model)
    return kind in (*_FAMILIES, Banana, GaussianMean) and functions == [kind._log_likelihood, kind._log_prior]


def make_kernel(model: Model, records: Any, traced: allowed.Traced | None = None) -> TileKernel:
    """Choose how to evaluate a model on records of these shapes and dtypes."""
    if has_closed_form(model):
        assert isinstance(model, RegressionModel)
        return RegressionKernel(model, records)
    return AutodiffKernel(model, records, traced)


def view_of(kernel: TileKernel, matrix: Any = None) -> View:
    """Return what a query is handed, in coordinates if there is a matrix C."""
    return RegressionView(kernel, matrix) if isinstance(kernel, RegressionKernel) else View(kernel, matrix)
