"""Sensitivity measured on neighbouring data sets: never above the stated one, in integers, exactly."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpmcmc.curator import arithmetic as curator_module
from dpmcmc.curator import integers, passes
from dpmcmc.queries import (
    Affine,
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
    moments,
)
from dpmcmc.queries.base import Question
from tests.curator.cases import (
    CASES,
    can_answer,
    exact_total,
    nasty,
    noise_free,
    replace_records,
    skewed,
    variants_slow,
)

NUM_RECORDS = 3
QUERIES = {
    "gradient": Gradient(0.7, 2.0),
    "gradient-tiny-clip": Gradient(1e-200, 2.0),
    "gradient-huge-clip": Gradient(1e200, 2.0),
    "log_ratio": LogRatio(0.3, noise_multiplier=1.5),
    "log_ratio-constant-sd": LogRatio(0.3, noise_sd=2.0),
    "quantile": NormQuantile(0.9, 3.0),
    "quantile-of-ratio": NormQuantile(0.9, 3.0, of="log_ratio"),
    "score_moments": ScoreMoments(0.7, 2.0, 2.0),
    "clip_count": ClipCount(0.5, 2.0),
    "clip_count-of-ratio": ClipCount(0.5, 2.0, of="log_ratio"),
    "clip_count-other": ClipCount(3.0, 2.0),
    "invalid_count": InvalidCount(2.0),
    "weighted_gradient": WeightedGradient(0.7, 2.0),
    "weighted_gradient-tiny": WeightedGradient(1e-200, 2.0),
    "coordinate_histogram": CoordinateHistogram(2.0),
    "coordinate_histogram-other": CoordinateHistogram(3.0, lower_exponent=-80, upper_exponent=0),
    "curvature": Curvature(0.7, 2.0),
    "curvature-tiny": Curvature(1e-150, 2.0),
    "fisher_information": FisherInformation(0.7, 2.0),
    "fisher_information-majorised": FisherInformation(30.0, 2.0, majorise=1 / 3),
    "fisher_information-weighted": FisherInformation(0.7, 2.0, weight_bound=0.1),
    "clip_count-of-curvature": ClipCount(0.5, 2.0, of="curvature"),
    "quantile-of-curvature": NormQuantile(0.9, 3.0, of="curvature"),
    "clip_count-of-score_bound": ClipCount(0.5, 2.0, of="score_bound"),
    "quantile-of-score_bound": NormQuantile(0.9, 3.0, of="score_bound"),
    "clip_count-of-information": ClipCount(0.5, 2.0, of="information"),
    "clip_count-of-information-majorised": ClipCount(20.0, 3.0, of="information", majorise=1 / 3),
    "clip_count-of-information-weighted": ClipCount(0.5, 2.0, of="information", majorise=1 / 3, weight_bound=0.1),
}
# In other coordinates, of one of each kind of model: closed form with and without an extra parameter, traced.
IN_COORDINATES = [case for case in CASES if case.name in ("logistic", "negative-binomial-groups", "student")]


def squared_distance(first, second):
    """Exact: Python integers."""
    return sum((int(a) - int(b)) ** 2 for a, b in zip(np.ravel(first), np.ravel(second), strict=True))


def all_of(query, total):
    """All numbers whose distance is bounded: of a triangle the whole matrix."""
    if not isinstance(query, Curvature):
        return total
    return total + np.triu(total, 1).swapaxes(-1, -2)


def allowed(query, curator, theta, proposal, coordinates=None):
    """The stated sensitivity squared, in lattice units, as an exact integer. Counts are in units of one record."""
    lattice = query.lattice(curator.num_records, curator.model.dimension)
    match query:
        case Gradient() | WeightedGradient() | Curvature():
            return (2 * lattice.bound) ** 2
        case LogRatio():
            with jax.enable_x64(True):
                numbers = query.numbers(curator.num_records)
                geometry = query.geometry(jnp.asarray(theta), jnp.asarray(proposal), numbers, coordinates)
                return (2 * int(geometry.bound)) ** 2
        case ScoreMoments() | FisherInformation():
            return 2 * lattice.bound**2
        case CoordinateHistogram():
            return 2 * curator.model.dimension
        case NormQuantile():
            return 2
        case ClipCount() | InvalidCount():
            return 1
        case _:
            raise AssertionError(f"say in allowed() what a {query.kind} may differ by")


def lattice_agrees_with_stated_cost(query, lattice, bound):
    """Return S² · 2μ ≥ sensitivity², that is, the noise is no smaller than the cost says (exact up to 1e-14)."""
    mu = query.mu if query.mu is not None else 2.0 * (bound / lattice.noise_scale) ** 2
    return lattice.noise_scale**2 * 2.0 * mu >= lattice.sensitivity**2 * (1 - 1e-14)


rows = st.lists(nasty, min_size=4, max_size=4)
thetas = st.lists(st.sampled_from([0.0, 1.0, -2.0, 30.0, -700.0, 1e5, 1e-9]), min_size=8, max_size=8)


@pytest.fixture(scope="module")
def curators():
    """One curator a model: what is compiled serves all examples."""
    return {case.name: noise_free(case, case.good_records(NUM_RECORDS)) for case in CASES}


@pytest.mark.parametrize("case", **variants_slow(CASES))
def test_measured_sensitivity_never_exceeds_the_stated_one(case, curators):
    measure(case, curators[case.name], st.none(), 40)


@pytest.mark.parametrize("case", IN_COORDINATES, ids=lambda case: case.name)
def test_measured_sensitivity_in_other_coordinates(case, curators):
    """Badly conditioned ones, and z = θ: the bounds hold in z, whatever C does to the records."""
    dimension = case.model.dimension
    choices = [Affine.identity(dimension), skewed(dimension), skewed(dimension, 1e12)]
    measure(case, curators[case.name], st.sampled_from(choices), 15)


def measure(case, curator, coordinate_choices, max_examples):
    dimension = case.model.dimension
    queries = {name: query for name, query in QUERIES.items() if can_answer(case.model, query)}

    @settings(max_examples=max_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        base=st.lists(rows, min_size=NUM_RECORDS, max_size=NUM_RECORDS),
        new=rows,
        relation=st.sampled_from(["other", "antiparallel", "duplicate", "scaled"]),
        theta=thetas,
        proposal=thetas,
        coordinates=coordinate_choices,
    )
    def check(base, new, relation, theta, proposal, coordinates):
        old = base[0]
        if relation == "antiparallel":
            new = [-value for value in old]
        elif relation == "duplicate":
            base = [old] * NUM_RECORDS
        elif relation == "scaled":
            new = [value * 1e8 for value in old]
        first = np.array(base)[:, : case.width]
        second = first.copy()
        second[0] = new[: case.width]
        theta, proposal = np.array(theta[:dimension]), np.array(proposal[:dimension])
        totals = []
        for matrix in (first, second):
            replace_records(curator, case.records(matrix))
            totals.append(
                {
                    name: exact_total(curator, query, theta, proposal if query.needs_proposal else None, coordinates)
                    for name, query in queries.items()
                    # The moments' centre is itself a release; it must be the same for both data sets.
                    if name != "score_moments"
                }
            )
            totals[-1]["score_moments"] = _moments_around(curator, QUERIES["score_moments"], theta, coordinates)
        for name, query in queries.items():
            limit = allowed(query, curator, theta, proposal, coordinates)
            assert squared_distance(*(all_of(query, total[name]) for total in totals)) <= limit, name

    check()


def _moments_around(curator, query, theta, coordinates, center=0.1):
    with curator_module.exact_arithmetic():
        bound = 2.0 ** query.vector_bits(curator.num_records)
        centers, way = np.full((1, curator.model.dimension), center), curator._way(query, coordinates)
        return curator._host_total(way, query, theta[None], None, centers, query.l2_clip_norm / bound, bound)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
@pytest.mark.parametrize("num_records", [2, 1000, 100_000, 1_000_000_000])
def test_noise_is_no_smaller_than_the_cost_says(query, num_records):
    lattice = query.lattice(num_records, 5)
    assert lattice_agrees_with_stated_cost(query, lattice, lattice.bound) or isinstance(query, ScoreMoments)
    if isinstance(query, ScoreMoments):
        assert lattice.noise_scale >= lattice.sensitivity * query.matrix_noise_multiplier
        first = query.sum_query.lattice(num_records, 5)
        assert first.noise_scale >= first.sensitivity * query.noise_multiplier
    if isinstance(query, Curvature | FisherInformation):
        diagonal, above = query.lattices(num_records, 5)
        assert (diagonal.numbers, above.numbers) == (5, 10)
        assert above.noise_scale * np.sqrt(2.0) >= diagonal.sensitivity * query.noise_multiplier * (1 - 1e-15)
    assert num_records * lattice.bound < 2**62
    assert 12 * lattice.noise_scale < 2**63
    assert float(lattice.noise_scale) == lattice.noise_scale


def _careless_clip(compute, spacing, bound, tile):
    """What one would write first: clip in floating point, round to nearest, trust it."""
    vectors = compute()
    norm = jnp.sqrt(sum(vector**2 for vector in vectors))
    factor = jnp.minimum(1.0, spacing * bound / norm)
    rounded = [jnp.rint(vector * factor / spacing) for vector in vectors]
    # A plain cast of NaN gives the lowest integer.
    return [jnp.where(jnp.isnan(x), -(2**31), x).astype(jnp.int64) * tile.real for x in rounded]


def _careless_stacked_clip(compute, spacing, bound, tile, weights=None):
    """The same for vectors that are one array."""
    vectors = jnp.moveaxis(compute(), 1, 0)
    return jnp.stack(_careless_clip(lambda: list(vectors), spacing, bound, tile), axis=1)


@pytest.mark.parametrize("coordinates", [None, Affine.identity(2)], ids=["theta", "coordinates"])
@pytest.mark.parametrize("breaks", ["nan", "length"])
def test_twin_the_measurement_catches_careless_clipping(monkeypatch, breaks, coordinates):
    """The same measurement finds a NaN that poisons the sum, and vectors that rounding made too long."""
    monkeypatch.setattr(integers, "clip_to_lattice", _careless_clip)
    monkeypatch.setattr(integers, "clip_stacked", _careless_stacked_clip)
    passes.forget()
    case = next(case for case in CASES if case.name == "gaussian")
    query = Gradient(1.0, 2.0, lattice_bits=8)  # coarse: rounding shows
    curator = noise_free(case, case.good_records(NUM_RECORDS))
    limit = allowed(query, curator, None, None)
    generator = np.random.default_rng(1)
    worst = 0
    for _ in range(60):
        direction = generator.normal(size=2) * 1e3
        first = np.vstack([direction] * NUM_RECORDS)
        second = first.copy()
        second[0] = np.nan if breaks == "nan" else -direction
        totals = []
        for matrix in (first, second):
            replace_records(curator, matrix)
            totals.append(exact_total(curator, query, np.zeros(2), coordinates=coordinates))
        worst = max(worst, squared_distance(*totals))
    passes.forget()
    assert worst > limit


@pytest.mark.parametrize("name", QUERIES)
def test_one_scale_of_noise_moves_every_released_number_by_the_stated_sd(name):
    """An answer is (sum + noise) × a unit: with noise S instead of 0 it is larger by its noise sd, in every number."""
    query, chains, dimension, num_records = QUERIES[name], 2, 3, 50
    theta = np.zeros((chains, dimension))
    proposal = theta + 0.1 if query.needs_proposal else None
    lattices = query.lattices(num_records, dimension)

    def total(asked, theta, proposal, *public):
        shape = asked.lattice(num_records, dimension).numbers
        if asked.kind in ("clip_count", "invalid_count", "log_ratio"):
            return np.zeros(chains, np.int64)
        if asked.kind in ("score_moments", "curvature", "fisher_information"):
            return np.zeros((chains, dimension, dimension), np.int64)
        if asked.kind == "coordinate_histogram":
            return np.zeros((chains, dimension, shape // dimension), np.int64)
        return np.zeros((chains, shape), np.int64)

    with jax.enable_x64(True):
        public = query.public(theta, proposal, query.numbers(num_records, dimension))
        without, with_noise = (
            query.release(
                total,
                Question(theta, proposal, public, num_records),
                [np.full((chains, lattice.numbers), times * lattice.noise_scale) for lattice in lattices],
            )
            for times in (0, 1)
        )
    if isinstance(query, NormQuantile | CoordinateHistogram):  # the rest is a function of the histogram, or public
        without, with_noise = (answer._replace(value=answer.value.histogram) for answer in (without, with_noise))
    for before, after, sd in zip(
        *(jax.tree.leaves(part) for part in (without.value, with_noise.value, with_noise.noise_sd)), strict=True
    ):
        moved = np.asarray(after) - np.asarray(before)
        sd = np.asarray(sd)
        expected = np.broadcast_to(sd.reshape(sd.shape + (1,) * (moved.ndim - sd.ndim)), moved.shape)
        np.testing.assert_allclose(moved, expected, rtol=1e-12)


@pytest.mark.parametrize("kind", [InvalidCount, NormQuantile, CoordinateHistogram, WeightedGradient, Curvature])
def test_twin_a_release_without_noise_is_noticed(monkeypatch, kind):
    module = moments if kind is Curvature else sys.modules[kind.__module__]
    monkeypatch.setattr(module, "noised", lambda total, noise: total)
    name = next(name for name, query in QUERIES.items() if isinstance(query, kind))
    with pytest.raises(AssertionError):
        test_one_scale_of_noise_moves_every_released_number_by_the_stated_sd(name)
