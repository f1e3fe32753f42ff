"""What a posterior predicts at *public* rows: it sees draws, a formula and these rows, and no record.

What it computes is a function of released draws and public rows, and costs no budget. Rows that are secret are not for
here: predictions tell of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpmcmc.design import Design
from dpmcmc.errors import ResultError
from dpmcmc.privacy.statement import PrivacyStatement
from dpmcmc.schema import Schema
from dpmcmc.sources import open_table

if TYPE_CHECKING:
    import pandas

__all__ = ["Predictions", "predict_by_design", "predict_by_function"]

Array = NDArray[np.float64]
_LARGEST_RATE = 1e18  # NumPy draws no Poisson numbers of larger rates


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """Predicted means and outcomes, in the data's units: a row for each draw, a column for each given row.

    Attributes
    ----------
    mean
        Expected outcome (of a logistic regression, its probability) by draw: draws × rows. NaN where a row counts as
        nothing, because a value of it is missing.
    outcome
        An outcome by draw, drawn from the family: draws × rows. None if the model's ``predict`` gives means only.
    level
        How much of the draws the intervals of :meth:`summary` hold.
    response
        What is predicted, in words.
    privacy
        The statement of the draws.
    """

    mean: Array
    outcome: Array | None
    level: float
    response: str
    privacy: PrivacyStatement

    def __repr__(self) -> str:
        draws, rows = self.mean.shape[:2]
        return f"Predictions({self.response}: {draws} draws × {rows} rows, {self.privacy.mode})"

    def summary(self) -> pandas.DataFrame:
        """Return for each row the mean, its interval, and the interval of the outcome.

        ``mean`` is averaged over the draws; ``mean_lower`` and ``mean_upper`` hold it with probability ``level``, and
        ``outcome_lower`` and ``outcome_upper`` a new outcome. ``attrs`` hold the privacy statement.
        """
        import pandas

        if self.mean.ndim != 2:
            raise ResultError(
                f"the predictions of a row have shape {self.mean.shape[2:]}; summarise `mean` and `outcome` yourself"
            )
        columns = {"mean": self.mean.mean(axis=0)}
        for name, values in (("mean", self.mean), ("outcome", self.outcome)):
            if values is not None:
                lower, upper = _interval(values, self.level)
                columns |= {f"{name}_lower": lower, f"{name}_upper": upper}
        table = pandas.DataFrame(columns)
        table.attrs.update(
            privacy=self.privacy.to_json(derived=False),
            private=int(self.privacy.private),
            mode=self.privacy.mode,
            response=self.response,
            level=self.level,
        )
        if not self.privacy.private:
            table.index.name = self.privacy.mode
        return table


def predict_by_design(
    draws: Mapping[str, np.ndarray],
    design: Design,
    rows: Any,
    level: float,
    seed: int | None,
    privacy: PrivacyStatement,
) -> Predictions:
    """Predict with a regression of a formula. With η = α + xᵀβ + u_group the mean is the family's of η."""
    _check_level(level)
    if design.variables:
        there = [column.name for column in open_table(rows).columns]
        missing = [name for name in design.variables if name not in there]
        if missing:
            raise ResultError(
                f"rows has no column {', '.join(map(repr, missing))}, which formula = {design.formula!r} needs; add it"
            )
        clean = design.schema.clean(rows, design.variables)
        features = design.matrix(clean)
    else:
        clean, features = {}, np.empty((_number_of(rows), 0))
    flat = _flat(draws)
    # A row at a time would do too: no row's prediction depends on another row.
    eta = flat["coefficients"] @ features.T
    if "intercept" in flat:
        eta = eta + flat["intercept"][:, None]
    if design.groups is not None:
        code = clean[design.groups]
        effect = flat["group_effects"][:, np.nan_to_num(code).astype(np.int64)]
        eta = eta + np.where(np.isnan(code), np.nan, effect)
    mean, outcome = _FAMILIES[design.family](eta, flat, np.random.default_rng(seed))
    center, scale = design.response_scale
    return Predictions(center + scale * mean, center + scale * outcome, level, design.predicted, privacy)


def predict_by_function(
    draws: Mapping[str, np.ndarray],
    function: Callable[[dict[str, Any], Any], Any],
    schema: Schema | None,
    rows: Any,
    level: float,
    seed: int | None,
    privacy: PrivacyStatement,
) -> Predictions:
    """Predict with a model's own function of parameters and a record, for every draw and row."""
    import jax
    from numpyro.distributions import Distribution

    _check_level(level)
    given = _arrays(rows) if schema is None else _coded(rows, schema)
    number = len(next(iter(given.values())) if isinstance(given, dict) else given)
    flat = _flat(draws)
    num_draws = len(next(iter(flat.values())))
    has_outcome = False

    def one(parameters: dict[str, Any], record: Any, key: jax.Array) -> tuple[Any, Any]:
        nonlocal has_outcome
        predicted = function(parameters, record)
        if not isinstance(predicted, Distribution):
            return predicted, 0.0
        has_outcome = True
        return predicted.mean, predicted.sample(key)

    entropy = np.random.SeedSequence(seed).generate_state(1)[0]
    keys = jax.random.split(jax.random.key(int(entropy)), (num_draws, number))
    every = jax.vmap(jax.vmap(one, in_axes=(None, 0, 0)), in_axes=(0, None, 0))
    try:
        mean, outcome = every(flat, given, keys)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, NotImplementedError) as error:
        raise ResultError(
            f"the model's predict failed ({type(error).__name__}: {error}); it is called as predict(parameters, "
            "record) and returns the expected outcome, or a NumPyro distribution of it"
        ) from error
    return Predictions(
        np.asarray(mean, np.float64),
        np.asarray(outcome, np.float64) if has_outcome else None,
        level,
        "what the model's predict gives",
        privacy,
    )


def _flat(draws: Mapping[str, np.ndarray]) -> dict[str, Array]:
    """Put the chains one after the other."""
    return {
        name: np.asarray(value, np.float64).reshape(value.shape[0] * value.shape[1], *value.shape[2:])
        for name, value in draws.items()
    }


def _coded(rows: Any, schema: Schema) -> dict[str, Array]:
    """Return the columns that public rows have, coded as the records of a model of the user's own are."""
    there = [column.name for column in open_table(rows).columns]
    names = [name for name in schema.names if name in there and name != schema.unit]
    if not names:
        raise ResultError(f"rows has none of the schema's columns; give some of {', '.join(map(repr, schema.names))}")
    clean = schema.clean(rows, names)
    for name, column in clean.items():
        field = schema[name]
        if field.kind == "number" and field.center is not None and field.scale is not None:
            clean[name] = (column - field.center) / field.scale
    return clean


def _arrays(rows: Any) -> Any:
    """Return public rows as the records of a model without a schema: an array, or a dict of arrays."""
    if isinstance(rows, Mapping):
        return {name: np.asarray(column) for name, column in rows.items()}
    if hasattr(rows, "columns"):
        return {name: np.asarray(rows[name]) for name in rows.columns}
    return np.asarray(rows)


def _interval(values: Array, level: float) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        ends = np.quantile(values, [0.5 - 0.5 * level, 0.5 + 0.5 * level], axis=0)
    return ends[0], ends[1]


def _check_level(level: Any) -> None:
    if not isinstance(level, int | float) or isinstance(level, bool) or not 0.0 < level < 1.0:
        raise ResultError(f"level = {level!r} is not between 0 and 1; give the intervals' probability, such as 0.9")


def _number_of(rows: Any) -> int:
    """Return the number of rows for a formula without columns."""
    try:
        return len(next(iter(rows.values()))) if isinstance(rows, Mapping) else len(rows)
    except (TypeError, StopIteration):
        raise ResultError(f"rows is of type {type(rows).__name__}; give a table, or a dict of columns") from None


def _logistic(eta: Array, parameters: Mapping[str, Array], generator: np.random.Generator) -> tuple[Array, Array]:
    with np.errstate(over="ignore"):
        mean = 1.0 / (1.0 + np.exp(-eta))
    outcome = (generator.random(eta.shape) < mean).astype(np.float64)
    return mean, np.where(np.isnan(mean), np.nan, outcome)


def _linear(eta: Array, parameters: Mapping[str, Array], generator: np.random.Generator) -> tuple[Array, Array]:
    return eta, eta + parameters["noise_scale"][:, None] * generator.standard_normal(eta.shape)


def _poisson(eta: Array, parameters: Mapping[str, Array], generator: np.random.Generator) -> tuple[Array, Array]:
    with np.errstate(over="ignore"):
        mean = np.exp(eta)
    return mean, _poisson_numbers(mean, generator)


def _negative_binomial(
    eta: Array, parameters: Mapping[str, Array], generator: np.random.Generator
) -> tuple[Array, Array]:
    """Draw Poisson numbers of gamma rates: mean m, variance m + a·m² with the dispersion a."""
    with np.errstate(over="ignore"):
        mean = np.exp(eta)
    dispersion = np.maximum(parameters["dispersion"], 1e-12)[:, None]
    rates = generator.standard_gamma(np.broadcast_to(1.0 / dispersion, eta.shape)) * dispersion * mean
    return mean, _poisson_numbers(rates, generator)


def _poisson_numbers(rates: Array, generator: np.random.Generator) -> Array:
    numbers = generator.poisson(np.clip(np.nan_to_num(rates, nan=0.0, posinf=math.inf), 0.0, _LARGEST_RATE))
    return np.where(np.isnan(rates), np.nan, numbers.astype(np.float64))


_FAMILIES = {
    "logistic": _logistic,
    "linear": _linear,
    "poisson": _poisson,
    "negative_binomial": _negative_binomial,
}
