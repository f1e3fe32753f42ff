"""Units of several rows: all of a person's rows are added up before anything is clipped, in every query and family."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from dpmcmc import models
from dpmcmc.curator import Curator, NoNoiseNotPrivate, passes
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.curator.batches import Batch
from dpmcmc.curator.kernels import UnitKernel
from dpmcmc.data import UnitRecords, Units
from dpmcmc.models import UnitModel
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
    ScoreMoments,
    WeightedGradient,
)
from tests.curator.cases import (
    CASES,
    Case,
    can_answer,
    exact_total,
    nasty,
    noise_free,
    plain_curvatures,
    plain_log_likelihoods,
    plain_scores,
    replace_records,
    skewed,
    variants_slow,
)
from tests.curator.test_coordinates import Seen, clip, rounding
from tests.curator.test_sensitivity import QUERIES, _moments_around, all_of, allowed, squared_distance

MAX_ROWS = 3
# Every family, with and without groups, and models that are traced: one whose record is a row of an array.
ROW_CASES = [
    case
    for case in CASES
    if case.name in ("linear", "logistic", "poisson-groups", "negative-binomial", "gaussian", "student")
]
by_row_case = variants_slow(ROW_CASES)
# Where it is about the road and not about the family: closed form with and without an extra parameter, and traced.
SOME = [case for case in ROW_CASES if case.name in ("logistic", "negative-binomial", "student")]
some_by_name = {"argvalues": SOME, "ids": [case.name for case in SOME]}
# One of each kind.
ONE_OF_EACH = (
    "gradient",
    "log_ratio",
    "quantile",
    "score_moments",
    "clip_count-of-ratio",
    "invalid_count",
    "weighted_gradient",
    "coordinate_histogram",
    "curvature",
    "fisher_information-weighted",
    "clip_count-of-information",
)


def unit_case(case, max_rows=MAX_ROWS):
    """The same model, of units."""
    return Case(case.name, UnitModel(case.model, max_rows, "person"), case.width)


def take(records, rows):
    return jax.tree.map(lambda column: column[rows], records)


def put(records, rows, value):
    """A copy in which some rows are something else."""
    changed = jax.tree.map(np.copy, records)
    for column in changed.values() if isinstance(changed, dict) else [changed]:
        column[rows] = value if column.dtype.kind == "f" else 0
    return changed


def ids_of(num_units, seed=0, most=5):
    """Ids in any order, of units of 1 to ``most`` rows: some have more than count."""
    generator = np.random.default_rng(seed)
    return generator.permutation(np.repeat(np.arange(num_units), generator.integers(1, most + 1, num_units)))


def parameters(model, seed=0, chains=2):
    generator = np.random.default_rng(seed)
    theta = 0.3 * generator.normal(size=(chains, model.dimension))
    return theta, theta + 0.1 * generator.normal(size=theta.shape)


def totals_of(case, curator, coordinates=None, theta=None, proposal=None, names=ONE_OF_EACH):
    """The secret integers of queries that the model answers. (The moments' centre is a release: fixed here.)"""
    if theta is None:
        theta, proposal = parameters(case.model)
    totals = {}
    for name in names:
        query = QUERIES[name]
        if name == "score_moments":
            totals[name] = _moments_around(curator, query, np.atleast_2d(theta)[0], coordinates)
        elif can_answer(case.model, query):
            other = proposal if query.needs_proposal else None
            totals[name] = exact_total(curator, query, theta, other, coordinates)
    return totals


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), name


# ------------------------------------------------------------------ values

NUM_UNITS = 301


class Rows(NamedTuple):
    """Rows of units, the curator of the units, and what plain autodiff says of each row, for each chain."""

    case: Any
    units: Any
    rows: Any
    curator: Any
    seen: Any

    @classmethod
    def of(cls, case, coordinates):
        ids = ids_of(NUM_UNITS)
        rows, units = case.good_records(len(ids)), Units.of(ids, MAX_ROWS)
        theta, _ = parameters(case.model)
        matrix = np.eye(case.model.dimension) if coordinates is None else coordinates.matrix
        seen = [
            Seen(case.model, rows, matrix, one, *(plain(case.model, rows, one) for plain in PLAIN)) for one in theta
        ]
        return cls(case, units, rows, noise_free(unit_case(case), units.stack(rows)), seen)

    def add_up(self, values):
        """Sum over the rows of each unit that count."""
        index = self.units.index
        there = (index >= 0).reshape(*index.shape, *[1] * (values.ndim - 1))
        return np.sum(np.where(there, values[index], 0.0), axis=1)

    def roots(self, roots, size):
        """The vectors of all rows of a unit, side by side: units × number × size."""
        index = self.units.index
        vectors = np.where(index[:, :, None] >= 0, roots[index], 0.0)
        return vectors.reshape(len(index), -1, size)


PLAIN = plain_scores, plain_curvatures


@pytest.mark.parametrize("in_z", [False, True], ids=["theta", "z"])
@pytest.mark.parametrize("case", **by_row_case)
def test_values_equal_the_plain_formula_for_sums_by_unit(case, in_z):
    coordinates = skewed(case.model.dimension) if in_z else None
    rows = Rows.of(case, coordinates)
    theta, proposal = parameters(case.model)
    scores = [rows.add_up(one.scores) for one in rows.seen]
    curvatures = [rows.add_up(one.curvatures) for one in rows.seen]
    norms = [np.linalg.norm(one, axis=1) for one in scores]
    sizes = [np.linalg.norm(one.reshape(NUM_UNITS, -1), axis=1) for one in curvatures]
    bound, frobenius = float(np.median(norms[0])), float(np.median(sizes[0]))

    def ask(query, other=None):
        return rows.curator.ask(query, theta, other, coordinates=coordinates).value

    gradient, moments = ask(Gradient(bound, 2.0)), ask(ScoreMoments(bound, 2.0, 2.0))
    curvature, histogram = ask(Curvature(frobenius, 2.0)), ask(CoordinateHistogram(2.0))
    counts = ask(ClipCount(1.001 * bound, 2.0)), ask(ClipCount(1.001 * frobenius, 2.0, of="curvature"))
    quantile, ratio = ask(NormQuantile(0.9, 2.0, -40, 40, 4)), ask(LogRatio(0.5, noise_multiplier=2.0), proposal)
    for chain, one in enumerate(rows.seen):
        expected = clip(scores[chain], bound).sum(axis=0)
        np.testing.assert_allclose(gradient[chain], expected, rtol=1e-6, atol=1e-7 * bound)
        centred = clip(scores[chain] - moments.score_sum[chain] / NUM_UNITS, bound)
        np.testing.assert_allclose(moments.second_moment[chain], centred.T @ centred, atol=rounding(4) * bound**2)
        expected = clip(curvatures[chain], frobenius).sum(axis=0)
        np.testing.assert_allclose(curvature[chain], expected, rtol=1e-6, atol=1e-8 * frobenius)
        edges = np.concatenate([[0.0], histogram.edges[chain], [np.inf]])
        assert np.array_equal(histogram.histogram[chain], [np.histogram(np.abs(x), edges)[0] for x in scores[chain].T])
        assert counts[0][chain] == np.sum(norms[chain] > 1.001 * bound)
        assert counts[1][chain] == np.sum(sizes[chain] > 1.001 * frobenius)
        exact = np.sort(norms[chain])[int(np.ceil(0.9 * NUM_UNITS)) - 1]
        assert exact * (1 - 1e-9) <= quantile.estimate[chain] <= 2.0**0.25 * exact * (1 + 1e-9)
        move = proposal[chain] - theta[chain]
        length = np.linalg.norm(move if coordinates is None else np.linalg.solve(one.matrix, move))
        ends = [rows.add_up(plain_log_likelihoods(case.model, rows.rows, point[chain])) for point in (theta, proposal)]
        expected = np.clip(ends[1] - ends[0], -0.5 * length, 0.5 * length).sum()
        np.testing.assert_allclose(ratio[chain], expected, rtol=1e-6, atol=1e-9 * length)
    assert np.array_equal(ask(InvalidCount(2.0)), [0.0, 0.0])


@pytest.mark.parametrize("in_z", [False, True], ids=["theta", "z"])
@pytest.mark.parametrize("case", [case for case in ROW_CASES if isinstance(case.model, models.RegressionModel)])
def test_information_equals_the_plain_formula_for_sums_by_unit(case, in_z):
    """Vectors of all rows are clipped together; the weights of a logistic regression are those of the whole unit."""
    coordinates = skewed(case.model.dimension) if in_z else None
    rows, (theta, _) = Rows.of(case, coordinates), parameters(case.model)
    bound = float(np.median(np.linalg.norm(rows.add_up(rows.seen[0].scores), axis=1)))
    weights: list[float | None] = [None, bound] if isinstance(case.model, models.LogisticRegression) else [None]
    for weight_bound in weights:
        query = FisherInformation(bound, 2.0, 0.4, weight_bound)
        value = rows.curator.ask(query, theta, coordinates=coordinates).value
        counted = rows.curator.ask(
            ClipCount(1.001 * bound, 2.0, "information", 0.4, weight_bound), theta, coordinates=coordinates
        ).value
        for chain, one in enumerate(rows.seen):
            roots = rows.roots(one.roots(FisherInformation(bound, 2.0, 0.4)), case.model.dimension)
            if weight_bound is not None:
                bounds = rows.add_up(one.score_bounds)
                roots = roots * np.sqrt(np.minimum(1.0, weight_bound / bounds))[:, None, None]
                scores = np.minimum(1.0, bound / bounds) @ rows.add_up(one.scores)
                weighted = rows.curator.ask(WeightedGradient(bound, 2.0), theta, coordinates=coordinates).value
                np.testing.assert_allclose(weighted[chain], scores, rtol=1e-8, atol=1e-9 * bound)
            clipped = clip(roots, bound)
            expected = np.einsum("uri,urj->ij", clipped, clipped)
            width = roots.shape[1] * roots.shape[2]
            np.testing.assert_allclose(value[chain], expected, atol=rounding(width) * bound**2)
            assert counted[chain] == np.sum(np.linalg.norm(roots, axis=(1, 2)) > 1.001 * bound)


@pytest.mark.parametrize("case", **by_row_case)
def test_the_models_own_likelihood_is_the_sum_over_the_rows_that_are_present(case):
    ids = ids_of(40)
    units, rows = Units.of(ids, MAX_ROWS), case.good_records(len(ids))
    theta = parameters(case.model)[0][0]
    model = unit_case(case).model
    stacked = units.stack(rows)
    index = units.index
    for plain in (plain_log_likelihoods, plain_scores, plain_curvatures):
        of_rows = plain(case.model, rows, theta)
        there = (index >= 0).reshape(*index.shape, *[1] * (of_rows.ndim - 1))
        expected = np.where(there, of_rows[index], 0.0).sum(axis=1)
        np.testing.assert_allclose(plain(model, stacked, theta), expected, rtol=1e-9, atol=1e-10)
    nobody = UnitRecords(stacked.rows, np.zeros_like(stacked.present))
    assert np.isnan(plain_log_likelihoods(model, nobody, theta)).all()
    assert np.isnan(plain_scores(model, nobody, theta)).any(axis=1).all()


def test_a_class_derived_from_the_model_is_differentiated_as_it_is():
    """Nothing is taken for granted of it: its own function of a unit is traced."""

    class Doubled(UnitModel):
        def _log_likelihood(self, parameters, record):
            return 2.0 * super()._log_likelihood(parameters, record)

    ids = ids_of(50)
    for case in (case for case in ROW_CASES if case.name in ("logistic", "student")):
        stacked = Units.of(ids, MAX_ROWS).stack(case.good_records(len(ids)))
        theta, _ = parameters(case.model)
        own, derived = (
            Curator(kind(case.model, MAX_ROWS), stacked, noise=NoNoiseNotPrivate())
            .ask(Gradient(100.0, 2.0), theta)
            .value
            for kind in (UnitModel, Doubled)
        )
        np.testing.assert_allclose(derived, 2.0 * own, rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------ sensitivity

FEW = 3


@pytest.fixture(scope="module")
def curators():
    made = {}
    for case in ROW_CASES:
        ids = np.repeat(np.arange(FEW), MAX_ROWS)
        made[case.name] = noise_free(
            unit_case(case), Units.of(ids, MAX_ROWS).stack(case.good_records(len(ids), seed=1))
        )
    return made


row = st.lists(nasty, min_size=4, max_size=4)
unit = st.lists(row, min_size=MAX_ROWS, max_size=MAX_ROWS)
thetas = st.lists(st.sampled_from([0.0, 1.0, -2.0, 30.0, -700.0, 1e5, 1e-9]), min_size=8, max_size=8)


@pytest.mark.parametrize("case", **by_row_case)
def test_measured_sensitivity_never_exceeds_the_stated_one(case, curators):
    """Neighbours differ in all rows of one unit: their values, and how many there are."""
    measure(case, curators[case.name], 12)


def measure(case, curator, max_examples, names=tuple(QUERIES), phases=tuple(Phase)):
    """In integers, exactly. Rows come as they are, so that NaN and infinities reach the kernels too."""
    dimension = case.model.dimension
    choices = [None, None, Affine.identity(dimension), skewed(dimension, 1e12)]

    # Opposite units whose rows each fill the bound: no luck is needed to see that they are not clipped together.
    filled = [[[1.0, -1.0, 1.0, 1.0]] * MAX_ROWS] * FEW

    @example(filled, filled[0], [True] * (FEW + 1) * MAX_ROWS, "antiparallel", [0.0] * 8, [1.0] * 8, None)
    @settings(max_examples=max_examples, deadline=None, phases=phases, suppress_health_check=list(HealthCheck))
    @given(
        base=st.lists(unit, min_size=FEW, max_size=FEW),
        new=unit,
        present=st.lists(st.booleans(), min_size=(FEW + 1) * MAX_ROWS, max_size=(FEW + 1) * MAX_ROWS),
        relation=st.sampled_from(["other", "antiparallel", "parallel", "scaled"]),
        theta=thetas,
        proposal=thetas,
        coordinates=st.sampled_from(choices),
    )
    def check(base, new, present, relation, theta, proposal, coordinates):
        if relation != "other":  # all rows of both units point the same way, or the opposite one
            base = [[base[0][0]] * MAX_ROWS] * FEW
            factor = {"antiparallel": -1.0, "parallel": 1.0, "scaled": 1e8}[relation]
            new = [[factor * value for value in base[0][0]]] * MAX_ROWS
            present = [True] * len(present)
        tables = np.array([*base, new])[:, :, : case.width]
        masks = np.array(present).reshape(FEW + 1, MAX_ROWS)
        theta, proposal = np.array(theta[:dimension]), np.array(proposal[:dimension])
        totals = []
        for units in (list(range(FEW)), [FEW, *range(1, FEW)]):
            flat = case.records(tables[units].reshape(-1, case.width))
            stacked = jax.tree.map(lambda column: column.reshape(FEW, MAX_ROWS, *column.shape[1:]), flat)
            replace_records(curator, UnitRecords(stacked, masks[units]))
            totals.append(totals_of(case, curator, coordinates, theta, proposal, names))
        for name, first in totals[0].items():
            query = QUERIES[name]
            limit = allowed(query, curator, theta, proposal, coordinates)
            assert squared_distance(all_of(query, first), all_of(query, totals[1][name])) <= limit, name

    check()


def _clip_rows_one_by_one(self, tile, theta, spacing, bound):
    """What a unit must not do: each row is within the bound, and their sum is not."""
    rows = tile.by_row._replace(real=tile.by_row.real & jnp.tile(tile.real, self.max_rows))
    return self.of_rows.gradient_sum(rows, theta, spacing, bound)


@pytest.mark.parametrize("name", ["gaussian", "student"])
def test_twin_rows_that_are_clipped_one_by_one_are_caught(monkeypatch, name):
    monkeypatch.setattr(UnitKernel, "gradient_sum", _clip_rows_one_by_one)
    passes.forget()
    case = next(case for case in ROW_CASES if case.name == name)
    ids = np.repeat(np.arange(FEW), MAX_ROWS)
    curator = noise_free(unit_case(case), Units.of(ids, MAX_ROWS).stack(case.good_records(len(ids))))
    with pytest.raises(AssertionError, match="gradient"):
        measure(case, curator, 1, ("gradient",), (Phase.explicit,))
    passes.forget()


# ------------------------------------------------------------------ one unit at a time, bit for bit

MANY = 140


def table_of(case, seed=0):
    ids = ids_of(MANY, seed)
    return ids, case.good_records(len(ids), seed)


@pytest.mark.parametrize("case", **some_by_name)
def test_a_unit_with_a_thousand_rows_moves_nothing_more_than_its_first_rows(case):
    """Rows above the bound are dropped, wherever in the table they stand; and the others are the same as ever."""
    ids, rows = table_of(case)
    curator = noise_free(unit_case(case), Units.of(ids, MAX_ROWS).stack(rows))
    many = np.concatenate([np.flatnonzero(ids != 0), np.flatnonzero(ids == 0)])
    huge = case.good_records(1000, seed=9)
    joined = jax.tree.map(lambda column, more: np.concatenate([column[many], more]), rows, huge)
    long_ids = np.concatenate([ids[many], np.zeros(1000, int)])
    # The unit's first rows stay first; all else of it is scattered over the table.
    order = np.random.default_rng(4).permutation(len(long_ids))
    own = np.sort(np.flatnonzero(long_ids[order] == 0))
    order[own] = np.sort(order[own])
    kept = np.flatnonzero(long_ids == 0)[:MAX_ROWS]
    short = np.concatenate([kept, np.flatnonzero(long_ids != 0)])
    replace_records(curator, Units.of(long_ids[short], MAX_ROWS).stack(take(joined, short)))
    expected = totals_of(case, curator)
    others = long_ids[order] != 0
    order[others] = np.sort(order[others])  # and so that the other units' rows stay in their order
    replace_records(curator, Units.of(long_ids[order], MAX_ROWS).stack(take(joined, order)))
    assert_same(totals_of(case, curator), expected)


@pytest.mark.parametrize("in_z", [False, True], ids=["theta", "z"])
@pytest.mark.parametrize("case", **some_by_name)
def test_sums_do_not_depend_on_the_order_of_units(case, in_z):
    coordinates = skewed(case.model.dimension) if in_z else None
    ids, rows = table_of(case)
    curator = noise_free(unit_case(case), Units.of(ids, MAX_ROWS).stack(rows))
    reference = totals_of(case, curator, coordinates)
    # Sorted by unit, in another order of units; each unit's rows in their order. And the ids are other ones.
    order = np.argsort(np.random.default_rng(1).permutation(MANY)[ids], kind="stable")
    renamed = np.array([f"person {one * 7919 % 1009}" for one in ids[order]])
    replace_records(curator, Units.of(renamed, MAX_ROWS).stack(take(rows, order)))
    assert_same(totals_of(case, curator, coordinates), reference)


@pytest.mark.parametrize("case", **some_by_name)
def test_a_row_that_counts_as_nothing_is_as_if_it_were_not_there(case):
    """A value missing: the rest of the unit counts as before, and the unit without any row counts as nothing."""
    ids = np.repeat(np.arange(MANY), 2)
    rows = case.good_records(len(ids))
    missing = np.arange(1, len(ids), 2)
    curator = noise_free(unit_case(case, 2), Units.of(ids, 2).stack(put(rows, missing, np.nan)))
    first = totals_of(case, curator)
    # As if only the first rows were there.
    replace_records(curator, Units.of(ids[::2], 2).stack(take(rows, slice(None, None, 2))))
    assert_same(first, totals_of(case, curator))
    theta, _ = parameters(case.model)
    for value in (np.nan, np.inf, -np.inf):
        replace_records(curator, Units.of(ids, 2).stack(put(rows, [6, 7, 9], value)))
        assert np.array_equal(exact_total(curator, InvalidCount(2.0), theta), [1, 1])


@pytest.mark.parametrize("in_z", [False, True], ids=["theta", "z"])
@pytest.mark.parametrize("case", **some_by_name)
def test_a_bad_unit_counts_for_nothing_and_touches_no_other(case, in_z):
    """NaN, ±inf and overflow in one unit, even in rows that are taken for good: the sums are those of the others."""
    coordinates = skewed(case.model.dimension) if in_z else None
    ids, rows = table_of(case)
    stacked = Units.of(ids, MAX_ROWS).stack(rows)
    curator = noise_free(unit_case(case), stacked)
    whole = totals_of(case, curator, coordinates)
    replace_records(curator, UnitRecords(*jax.tree.map(lambda x: np.repeat(x[:1], MANY, axis=0), tuple(stacked))))
    of_one = totals_of(case, curator, coordinates)
    bad = {}
    for value in (np.nan, np.inf, -np.inf):
        replace_records(curator, UnitRecords(put(stacked.rows, 0, value), stacked.present))
        bad[value] = totals_of(case, curator, coordinates)
    replace_records(curator, UnitRecords(stacked.rows, stacked.present & (np.arange(MANY) > 0)[:, None]))
    absent = totals_of(case, curator, coordinates)
    for value in bad:
        assert_same(bad[value], absent)
    for name, total in whole.items():
        if name != "invalid_count":
            assert np.array_equal(MANY * (total - absent[name]), of_one[name]), name
    assert np.array_equal(absent["invalid_count"] - whole["invalid_count"], [1, 1])


def test_twin_units_that_are_grouped_wrongly_are_caught(monkeypatch):
    """Rows that are dropped by how many there are of all units: one unit pushes out another's rows."""

    def careless(ids, max_rows):
        ids = np.asarray(ids)[: max_rows * len(set(ids))]  # "as many rows as there can be"
        index = np.full((len(set(ids)), max_rows), -1, np.int32)
        for place, one in enumerate(sorted(set(ids))):
            own = np.flatnonzero(ids == one)[:max_rows]
            index[place, : len(own)] = own
        return Units(index)

    monkeypatch.setattr(Units, "of", staticmethod(careless))
    case = next(case for case in ROW_CASES if case.name == "gaussian")
    with pytest.raises((AssertionError, IndexError)):
        test_a_unit_with_a_thousand_rows_moves_nothing_more_than_its_first_rows(case)


@pytest.mark.parametrize("case", **some_by_name)
def test_units_of_one_row_are_rows(case):
    """The same sums as those of the model of rows. (A regression's gradients stand on a grid there.)"""
    rows = case.good_records(300)
    of_units = noise_free(unit_case(case, 1), Units.one_row_each(300).stack(rows))
    plain_rows = noise_free(Case(case.name, UnitModel(case.model, 1), case.width), rows)
    assert_same(totals_of(case, of_units), totals_of(case, plain_rows))
    of_rows = noise_free(case, rows)
    theta, proposal = parameters(case.model)
    for query in (LogRatio(0.3, noise_multiplier=1.5), ClipCount(0.5, 2.0), Curvature(0.7, 2.0), Gradient(0.7, 2.0)):
        other = proposal if query.needs_proposal else None
        first, second = (curator.ask(query, theta, other).value for curator in (of_units, of_rows))
        np.testing.assert_allclose(first, second, rtol=1e-9, atol=0.7 * 2.0**-17 * np.sqrt(300))


# ------------------------------------------------------------------ batches, devices, precision, caching


@pytest.mark.parametrize("case", **some_by_name)
def test_a_batch_of_all_units_is_the_sum_over_all(case):
    """Rows are looked up, unit by unit, and come to the same integers."""
    ids, rows = table_of(case)
    curator = noise_free(unit_case(case), Units.of(ids, MAX_ROWS).stack(rows))
    theta, _ = parameters(case.model)
    batch_query, query = BatchGradient(0.7, 2.0, MANY), Gradient(0.7, 2.0)
    with exact_arithmetic():
        numbers = curator.passes.numbers_of(batch_query)[0]
        batch = Batch(jax.random.key(0), jnp.full(len(theta), MANY))
        noise = jnp.zeros(theta.shape, jnp.int64)
        answer = jax.jit(curator.passes._answer_batch, static_argnums=1)
        release = answer(curator._records, batch_query, jnp.asarray(theta), batch, noise, numbers)
    np.testing.assert_allclose(release.value, curator.ask(query, theta).value, rtol=1e-9, atol=1e-9)


def in_float32(records):
    return jax.tree.map(lambda column: column.astype(np.float32) if column.dtype.kind == "f" else column, records)


@pytest.mark.parametrize("case", [case for case in ROW_CASES if case.name in ("logistic", "gaussian", "student")])
def test_float32_records_are_computed_with_in_float32(case):
    ids, rows = table_of(case)
    units = Units.of(ids, MAX_ROWS)
    double = noise_free(unit_case(case), units.stack(rows))
    single = noise_free(unit_case(case), units.stack(in_float32(rows)))
    assert (double.passes.kernel.precision, single.passes.kernel.precision) == (jnp.float64, jnp.float32)
    theta, proposal = parameters(case.model)
    for query in (Gradient(0.7, 2.0), LogRatio(0.3, noise_multiplier=1.5)):
        other = proposal if query.needs_proposal else None
        first, second = (curator.ask(query, theta, other).value for curator in (double, single))
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)


def _digest(num_devices):
    digest = hashlib.sha256()
    for case in ROW_CASES:
        if case.name in ("linear", "logistic", "student"):
            ids = ids_of(5001)
            stacked = Units.of(ids, MAX_ROWS).stack(case.good_records(len(ids)))
            curator = noise_free(unit_case(case), stacked, devices=num_devices)
            theta, proposal = parameters(case.model)
            for name in ("gradient", "log_ratio"):
                other = proposal if name == "log_ratio" else None
                digest.update(exact_total(curator, QUERIES[name], theta, other).tobytes())
            digest.update(
                exact_total(curator, QUERIES["curvature"], theta, coordinates=skewed(len(theta[0]))).tobytes()
            )
    return digest.hexdigest()


@pytest.mark.slow
def test_sums_do_not_depend_on_the_number_of_devices():
    """1, 2 and 3 devices agree bit for bit (a process of its own: the flag is read when JAX starts)."""
    script = "from tests.curator.test_units import _digest; print([_digest(k) for k in (1, 2, 3)])"
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=3", "JAX_PLATFORMS": "cpu"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert eval(result.stdout) == [_digest(1)] * 3  # a list of strings, printed by the line above


def test_what_is_compiled_is_kept_and_not_mixed_up():
    """The same units again, of another object: the same passes. Other rows a unit, or plain rows: others."""
    case = next(case for case in ROW_CASES if case.name == "logistic")
    ids, rows = table_of(case)

    def passes_of(model, records):
        return Curator(model, records, noise=NoNoiseNotPrivate()).passes

    stacked = Units.of(ids, MAX_ROWS).stack(rows)
    first = passes_of(UnitModel(models.LogisticRegression(3), MAX_ROWS), stacked)
    assert passes_of(UnitModel(models.LogisticRegression(3), MAX_ROWS, "other"), stacked) is first
    fewer = passes_of(UnitModel(models.LogisticRegression(3), 2), Units.of(ids, 2).stack(rows))
    alone = passes_of(UnitModel(models.LogisticRegression(3), 1), rows)
    assert len({id(made) for made in (first, fewer, alone, passes_of(models.LogisticRegression(3), rows))}) == 4


def test_no_foreign_code_sees_many_rows():
    """A model inside with a method of its own that would see all rows is refused, like one that stands alone."""

    class Centred(models.LogisticRegression):
        def prepare_records(self, data):
            records, count = super().prepare_records(data)
            return records | {"X": records["X"] - records["X"].mean(axis=0)}, count

    case = next(case for case in ROW_CASES if case.name == "logistic")
    ids, rows = table_of(case)
    stacked = Units.of(ids, MAX_ROWS).stack(rows)
    inside = models.LogisticRegression(3)
    inside.prepare_records = lambda data: data
    for model in (Centred(3), inside):
        with pytest.raises(Exception, match="prepare_records of its own"):
            Curator(UnitModel(model, MAX_ROWS), stacked, noise=NoNoiseNotPrivate())


def test_a_class_derived_from_a_regression_cannot_clamp_in_its_own_way():
    """What clamps sees all rows at once."""

    class Centred(models.LogisticRegression):
        def _clamped(self, features):
            return features - features.mean(axis=0)

    rows = {"X": np.array([[0.5], [1.0], [7.0]]), "y": np.array([0.0, 1.0, 1.0])}
    records, _ = Centred(1, feature_bounds=2.0).prepare_records(rows)
    np.testing.assert_array_equal(records["X"], [[0.5], [1.0], [2.0]])
