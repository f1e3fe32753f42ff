"""Worst cases for single questions: neighbouring data sets for which an answer tells as much as its price allows.

The first pair of each kind uses up the whole sensitivity (a record at the clip bound against its opposite, or against
one that is orthogonal to it, or counted against not counted). The others are records as bad as they come, which may
tell less and never more: extreme, infinite, NaN, missing, and a person of many rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from dpmcmc.data import Table
from dpmcmc.data.units import Units
from dpmcmc.models import LogisticRegression, Model, regression
from dpmcmc.queries import (
    Affine,
    BatchGradient,
    ClipCount,
    CoordinateHistogram,
    Curvature,
    FisherInformation,
    Gradient,
    InvalidCount,
    LogRatio,
    NormQuantile,
    Query,
    ScoreMoments,
    WeightedGradient,
)
from dpmcmc.schema import Field, Schema

PRICE = 4.5
"""μ of a question here: data sets are then 3 noise sds apart, where guesses bound it most tightly."""
_TAU = 1.0 / math.sqrt(2.0 * PRICE)
_NUM_RECORDS = 10
_HUGE = 1e6
_THETA, _PROPOSAL = np.zeros(2), np.array([0.1, 0.0])
_SIDE, _UP, _DOWN, _NOTHING = (0.0, _HUGE), (_HUGE, 0.0), (-_HUGE, 0.0), (0.0, 0.0)


@dataclass(frozen=True)
class Pair:
    """A question, and two data sets that differ in one record (or in all rows of one person).

    Attributes
    ----------
    model, first, second
        The model, and the data.
    query, theta, proposal, coordinates
        The question.
    others
        For random batches: a data set of which all records are like those that do not differ.
    """

    model: Model
    first: Any
    second: Any
    query: Query | BatchGradient
    theta: Any = None
    proposal: Any = None
    coordinates: Affine | None = None
    others: Any = None


# Scores are x − wθ and curvatures w·I: both as large, and of either sign, as a record wants.
_MODEL = Model(
    lambda p, record: jnp.dot(record["x"], p["theta"]) - 0.5 * record["w"] * jnp.sum(p["theta"] ** 2),
    lambda p: -0.5 * jnp.sum(p["theta"] ** 2),
    {"theta": (2,)},
    name="audit",
)


def _records(x: Any, w: float = 0.0) -> dict[str, Any]:
    """Return ordinary records, and this one instead of the first."""
    angle = np.arange(_NUM_RECORDS)
    records = {"x": 0.3 * np.stack([np.cos(angle), np.sin(angle)], axis=1), "w": np.ones(_NUM_RECORDS)}
    records["x"][0], records["w"][0] = x, w
    return records


def _rows(row: Any, y: float) -> dict[str, Any]:
    """Return the same for a logistic regression."""
    angle = np.arange(_NUM_RECORDS)
    records = {"X": 0.3 * np.stack([np.cos(angle), np.sin(angle)], axis=1), "y": angle % 2.0}
    records["X"][0], records["y"][0] = row, y
    return records


def _person(x: Any) -> Any:
    """Return the records by person; the first has 40 rows, of which 5 count."""
    ids = np.concatenate([np.zeros(40, int), np.arange(1, _NUM_RECORDS)])
    whole = _records(x)
    rows = {name: np.concatenate([np.repeat(column[:1], 40, axis=0), column[1:]]) for name, column in whole.items()}
    return Units.of(ids, max_rows=5).stack(rows)


def _bad(worst: Pair, records: Callable[..., Any]) -> dict[str, Pair]:
    """Return the worst pair, and bad records in place of its second."""
    values = {"extreme": 1.7e308, "infinite": math.inf, "nan": math.nan}
    rest = {name: replace(worst, second=records((value, -value), 1.0)) for name, value in values.items()}
    return {"worst": worst, **rest}


def _by_unit(pair: Pair) -> Pair:
    return replace(pair, first=_person(_UP), second=_person(_DOWN))


def _gradient() -> dict[str, Pair]:
    worst = Pair(_MODEL, _records(_UP), _records(_DOWN), Gradient(1.0, _TAU))
    skewed = Affine(np.zeros(2), np.array([[3.0, 0.0], [40.0, 0.01]]))
    return {
        **_bad(worst, _records),
        "coordinates": replace(worst, coordinates=skewed),
        "unit": _by_unit(worst),
        "missing": _of_table(Gradient(1.0, _TAU)),
    }


def _of_table(query: Query) -> Pair:
    """Return a table in which one entry is missing, or at its bound."""
    schema = Schema([Field("age", "number", minimum=0, maximum=100, missing="midpoint"), Field("rich", "boolean")])
    tables = [
        Table({"age": [age, *range(10, 55, 5)], "rich": [True, *([True, False, True] * 3)]}, schema)
        for age in (100.0, None)
    ]
    (model, first), (_, second) = (regression("rich ~ age", table) for table in tables)
    return Pair(model, first, second, query)


def _weighted_gradient() -> dict[str, Pair]:
    query = WeightedGradient(1.0, _TAU)
    pair = Pair(LogisticRegression(2, intercept=False), _rows(_UP, 1.0), _rows(_UP, 0.0), query)
    return {**_bad(pair, _rows), "missing": _of_table(query)}


def _log_ratio() -> dict[str, Pair]:
    worst = Pair(_MODEL, _records(_UP), _records(_DOWN), LogRatio(10.0, noise_multiplier=_TAU), proposal=_PROPOSAL)
    constant = LogRatio(10.0, noise_sd=2.0 * _TAU)  # the bound is 1 for this move, the sensitivity 2
    return {**_bad(worst, _records), "constant noise": replace(worst, query=constant), "unit": _by_unit(worst)}


def _quantile() -> dict[str, Pair]:
    query = NormQuantile(0.9, _TAU, lower_exponent=-2, upper_exponent=2)
    return _bad(Pair(_MODEL, _records(_UP), _records(_NOTHING), query), _records)


def _coordinate_histogram() -> dict[str, Pair]:
    query = CoordinateHistogram(_TAU, lower_exponent=-4, upper_exponent=4)
    return _bad(Pair(_MODEL, _records((_HUGE, _HUGE)), _records(_NOTHING), query), _records)


def _score_moments() -> dict[str, Pair]:
    # No pair uses up both parts: opposite scores have the same square. So nearly all is paid for one of them.
    mostly, hardly = 1.0 / math.sqrt(2.0 * 0.98 * PRICE), 1.0 / math.sqrt(2.0 * 0.02 * PRICE)
    matrix = Pair(_MODEL, _records(_UP), _records(_SIDE), ScoreMoments(1.0, hardly, mostly))
    total = Pair(_MODEL, _records(_UP), _records(_DOWN), ScoreMoments(1.0, mostly, hardly))
    return {**_bad(matrix, _records), "sum": total}


def _curvature() -> dict[str, Pair]:
    worst = Pair(_MODEL, _records(_NOTHING, _HUGE), _records(_NOTHING, -_HUGE), Curvature(1.0, _TAU))
    return _bad(worst, _records)


def _fisher_information() -> dict[str, Pair]:
    query = FisherInformation(1.0, _TAU)
    pair = Pair(LogisticRegression(2, intercept=False), _rows(_UP, 1.0), _rows(_SIDE, 1.0), query)
    return _bad(pair, _rows)


def _clip_count() -> dict[str, Pair]:
    worst = Pair(_MODEL, _records(_UP), _records(_NOTHING), ClipCount(1.0, _TAU))
    ratios = replace(worst, query=ClipCount(1.0, _TAU, of="log_ratio"), proposal=_PROPOSAL)
    return {**_bad(worst, _records), "log-ratios": ratios}


def _invalid_count() -> dict[str, Pair]:
    worst = Pair(_MODEL, _records(_UP), _records((math.nan, 0.0)), InvalidCount(_TAU))
    return {"worst": worst, "extreme": replace(worst, second=_records((1.7e308, 1.7e308), -1.7e308))}


def _batch_gradient() -> dict[str, Pair]:
    # Batches of fixed size tell most if all other records are at the opposite bound: one in the batch takes the place
    # of another. Those of random size tell most if the others are nothing.
    def alike(own: tuple[float, float], others: tuple[float, float]) -> dict[str, Any]:
        x = np.repeat(np.array([others]), _NUM_RECORDS, axis=0)
        x[0] = own
        return {"x": x, "w": np.zeros(_NUM_RECORDS)}

    query = BatchGradient(1.0, 2.0 * _TAU, 8)
    fixed = Pair(_MODEL, alike(_DOWN, _DOWN), alike(_UP, _DOWN), query, others=alike(_DOWN, _DOWN))
    poisson = replace(query, sampling="poisson")
    random = Pair(_MODEL, alike(_DOWN, _NOTHING), alike(_UP, _NOTHING), poisson, others=alike(_NOTHING, _NOTHING))
    return {"worst": fixed, "poisson": random, "nan": replace(fixed, second=alike((math.nan, 0.0), _DOWN))}


QUERIES: dict[str, Callable[[], dict[str, Pair]]] = {
    "gradient": _gradient,
    "weighted_gradient": _weighted_gradient,
    "log_ratio": _log_ratio,
    "quantile": _quantile,
    "coordinate_histogram": _coordinate_histogram,
    "score_moments": _score_moments,
    "curvature": _curvature,
    "fisher_information": _fisher_information,
    "clip_count": _clip_count,
    "invalid_count": _invalid_count,
    "batch_gradient": _batch_gradient,
}
"""Every kind of question that the curator answers, with its pairs; the first of each uses up the whole sensitivity."""


def parameters_of(pair: Pair) -> Any:
    """Return where a pair is asked: the origin, if it does not say."""
    return np.zeros(pair.model.dimension) if pair.theta is None else pair.theta
