"""Questions in other coordinates, and the queries that came with them: values against plain formulas, row by row.

One curator a model serves all tests of the file: what is compiled for one serves the others.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc import Budget, Curator, models
from dpmcmc.curator import NoNoiseNotPrivate, passes
from dpmcmc.errors import QueryError
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
    Release,
    ScoreMoments,
    WeightedGradient,
)
from tests.curator.cases import (
    CASES,
    can_answer,
    exact_total,
    noise_free,
    plain_curvatures,
    plain_log_likelihoods,
    plain_scores,
    replace_records,
    skewed,
)
from tests.streams import stream_of

NUM_RECORDS = 603
CHAINS = 2
LOGISTIC = next(case for case in CASES if case.name == "logistic")
GAUSSIAN = next(case for case in CASES if case.name == "gaussian")
# With and without an extra parameter, with groups, and traced.
SOME = [case for case in CASES if case.name in ("linear", "logistic", "negative-binomial-groups", "student")]


def parameters(case, seed=0):
    generator = np.random.default_rng(seed)
    theta = 0.3 * generator.normal(size=(CHAINS, case.model.dimension))
    return theta, theta + 0.1 * generator.normal(size=theta.shape)


class Asked(NamedTuple):
    """A model, its records, their curator, and scores and curvatures by plain autodiff for each chain."""

    case: Any
    records: Any
    curator: Any
    scores: Any
    curvatures: Any

    @classmethod
    def of(cls, case):
        records = case.good_records(NUM_RECORDS)
        plain = [[plain(case.model, records, one) for one in parameters(case)[0]] for plain in PLAIN]
        return cls(case, records, noise_free(case, records), *plain)

    def seen(self, coordinates):
        """What the curator should see, for each chain."""
        matrix = np.eye(self.case.model.dimension) if coordinates is None else coordinates.matrix
        theta, _ = parameters(self.case)
        chains = zip(theta, self.scores, self.curvatures, strict=True)
        return [Seen(self.case.model, self.records, matrix, *chain) for chain in chains]


PLAIN = plain_scores, plain_curvatures


@pytest.fixture(scope="module", params=SOME, ids=[case.name for case in SOME])
def asked(request):
    return Asked.of(request.param)


@pytest.fixture(scope="module", params=["theta", "z"])
def place(request):
    """Without coordinates, and in badly conditioned ones."""
    return request.param


def coordinates_of(place, case):
    return None if place == "theta" else skewed(case.model.dimension)


# ------------------------------------------------------------------ plain formulas


def design_rows(model, records):
    """(1, x, one-hot) with zeros for the rest, n × d."""
    parts = [np.ones((len(records["y"]), int(model.intercept))), records["X"]]
    if model.num_groups:
        parts.append(np.eye(model.num_groups)[records["group"]])
    rows = np.concatenate(parts, axis=1)
    return np.pad(rows, ((0, 0), (0, model.dimension - rows.shape[1])))


def plain_information(model, records, theta):
    """Expected information about η and about s, and |∂ℓ/∂η|, by formulas that are written out."""
    eta, y = design_rows(model, records) @ theta, records["y"]
    extra = theta[model.linear_size] if model.extra_size else None
    mean = np.exp(eta)
    match model:
        case models.LinearRegression():
            return np.full(len(y), np.exp(-2 * extra)), np.full(len(y), 2.0), np.abs(y - eta) * np.exp(-2 * extra)
        case models.LogisticRegression():
            probability = 1 / (1 + np.exp(-eta))
            return probability * (1 - probability), None, np.abs(y - probability)
        case models.PoissonRegression():
            return mean, None, np.abs(y - mean)
    squared_score = plain_scores(model, records, theta)[:, model.linear_size] ** 2
    return mean / (1 + np.exp(extra) * mean), squared_score, np.abs(y - mean) / (1 + np.exp(extra) * mean)


def clip(vectors, bound):
    """Clip each row (or matrix) of the first axis to a norm."""
    norms = np.linalg.norm(vectors.reshape(len(vectors), -1), axis=1)
    return vectors * np.minimum(1.0, bound / np.where(norms > 0, norms, 1.0)).reshape(-1, *[1] * (vectors.ndim - 1))


def rounding(width):
    """Of a sum of outer products, in C²: vectors are rounded to C/2^20 (a random walk), and clipped short of C.

    8 sds of the walk; clipping leaves room of √width/2 steps for the rounding.
    """
    return 2.0**-20 * (8 * np.sqrt(NUM_RECORDS) + NUM_RECORDS * np.sqrt(width))


class Seen:
    """What the curator should see of the records of one chain, in NumPy."""

    def __init__(self, model, records, matrix, theta, scores, curvatures):
        self.model, self.records, self.theta, self.matrix = model, records, theta, matrix
        self.plain_scores, self.scores = scores, scores @ matrix
        self.norms = np.linalg.norm(self.scores, axis=1)
        self.curvatures = matrix.T @ curvatures @ matrix
        self.curvature_norms = np.linalg.norm(self.curvatures.reshape(len(self.scores), -1), axis=1)

    def roots(self, query):
        """√v·w and √v_e·e of each record, side by side."""
        value, extra, residual = plain_information(self.model, self.records, self.theta)
        if not isinstance(self.model, models.LinearRegression):  # quadratic in η: a Newton step needs no trust region
            value = np.maximum(value, query.majorise * residual)
        rows = design_rows(self.model, self.records) @ self.matrix
        if query.weight_bound is not None:
            value = value * np.minimum(1.0, query.weight_bound / self.score_bounds)
        roots = np.sqrt(value)[:, None] * rows
        if extra is not None:
            place = self.model.linear_size
            extra = np.maximum(extra, query.majorise * np.abs(self.plain_scores[:, place]))
            roots = np.concatenate([roots, np.sqrt(extra)[:, None] * self.matrix[place]], axis=1)
        return roots

    def information(self, query):
        roots = self.roots(query)
        parts = np.split(clip(roots, query.l2_clip_norm), roots.shape[1] // len(self.theta), axis=1)
        return sum(part.T @ part for part in parts)

    @property
    def score_bounds(self):
        rows = design_rows(self.model, self.records)
        probability = 1 / (1 + np.exp(-(rows @ self.theta)))
        return np.maximum(probability, 1 - probability) * np.linalg.norm(rows @ self.matrix, axis=1)


# ------------------------------------------------------------------ values


def test_values_equal_the_plain_formula(asked, place):
    case, records, curator, *_ = asked
    theta, proposal = parameters(case)
    coordinates = coordinates_of(place, case)
    plain = asked.seen(coordinates)
    # Every other record is clipped.
    bound, frobenius = np.median(plain[0].norms), np.median(plain[0].curvature_norms)

    def ask(query, other=None):
        return curator.ask(query, theta, other, coordinates=coordinates)

    released = {
        "gradient": ask(Gradient(bound, 2.0)).value,
        "moments": ask(ScoreMoments(bound, 2.0, 2.0)).value,
        "curvature": ask(Curvature(frobenius, 2.0)).value,
        "histogram": ask(CoordinateHistogram(2.0)).value,
        "quantile": ask(NormQuantile(0.9, 2.0, -30, 30, bins_per_octave=0.5)).value,
        "count": ask(ClipCount(1.001 * bound, 2.0)).value,
        "curvature count": ask(ClipCount(1.001 * frobenius, 2.0, of="curvature")).value,
        "curvature quantile": ask(NormQuantile(0.9, 2.0, -60, 60, bins_per_octave=4, of="curvature")).value,
    }
    ratio = ask(LogRatio(0.5, noise_multiplier=2.0), proposal)
    for chain, one in enumerate(plain):
        # (Without coordinates a regression's row stands on a grid of its own.)
        tolerance = 1e-9 * bound if coordinates is not None else 8 * bound * 2.0**-17
        expected = clip(one.scores, bound).sum(axis=0)
        np.testing.assert_allclose(
            released["gradient"][chain], expected, rtol=1e-6, atol=tolerance * np.sqrt(NUM_RECORDS)
        )
        moments = released["moments"]
        centred = clip(one.scores - moments.score_sum[chain] / NUM_RECORDS, bound)
        np.testing.assert_allclose(moments.second_moment[chain], centred.T @ centred, atol=rounding(4) * bound**2)
        expected = clip(one.curvatures, frobenius).sum(axis=0)
        np.testing.assert_allclose(released["curvature"][chain], expected, rtol=1e-6, atol=1e-8 * frobenius)
        assert np.array_equal(released["curvature"][chain], released["curvature"][chain].T)
        edges = np.concatenate([[0.0], released["histogram"].edges[chain], [np.inf]])
        expected = [np.histogram(np.abs(column), edges)[0] for column in one.scores.T]
        assert np.array_equal(released["histogram"].histogram[chain], expected)
        assert released["count"][chain] == np.sum(one.norms > 1.001 * bound)
        assert released["curvature count"][chain] == np.sum(one.curvature_norms > 1.001 * frobenius)
        for name, norms, factor in (
            ("quantile", one.norms, 4.0),
            ("curvature quantile", one.curvature_norms, 2.0**0.25),
        ):
            assert released[name].histogram[chain].sum() == NUM_RECORDS
            exact = np.sort(norms)[int(np.ceil(0.9 * NUM_RECORDS)) - 1]
            assert exact * (1 - 1e-9) <= released[name].estimate[chain] <= factor * exact * (1 + 1e-9)
        move = proposal[chain] - theta[chain]
        length = np.linalg.norm(move if coordinates is None else np.linalg.solve(one.matrix, move))
        likelihoods = [plain_log_likelihoods(case.model, records, point[chain]) for point in (theta, proposal)]
        expected = np.clip(likelihoods[1] - likelihoods[0], -0.5 * length, 0.5 * length).sum()
        np.testing.assert_allclose(ratio.value[chain], expected, rtol=1e-6, atol=1e-9 * length)
    assert released["quantile"].histogram.shape == (CHAINS, 32)  # a coarse grid: 60 octaves


FISHER = {
    "information": FisherInformation(1.0, 2.0),
    "majorised": FisherInformation(1.0, 2.0, majorise=0.4),
    "weighted": FisherInformation(1.0, 2.0, majorise=0.4, weight_bound=1.0),
}


@pytest.mark.parametrize(
    ("asked", "name"),
    [(case, name) for case in SOME for name, query in FISHER.items() if can_answer(case.model, query)],
    indirect=["asked"],
    ids=lambda value: getattr(value, "name", value),
)
def test_information_equals_the_plain_formula(asked, name, place):
    case, _, curator, *_ = asked
    theta, _ = parameters(case)
    coordinates = coordinates_of(place, case)
    plain = asked.seen(coordinates)
    bound = float(np.median(plain[0].norms))
    weight_bound = None if FISHER[name].weight_bound is None else bound
    query = FisherInformation(bound, 2.0, FISHER[name].majorise, weight_bound)
    value = curator.ask(query, theta, coordinates=coordinates).value
    for chain, one in enumerate(plain):
        expected = one.information(query)
        np.testing.assert_allclose(value[chain], expected, atol=rounding(2 * len(expected)) * bound**2)
        assert np.linalg.eigvalsh(value[chain]).min() >= -1e-9 * bound**2


@pytest.mark.parametrize(
    ("asked", "name"),
    [(case, name) for case in SOME for name, query in FISHER.items() if can_answer(case.model, query)],
    indirect=["asked"],
    ids=lambda value: getattr(value, "name", value),
)
def test_counts_of_information_equal_the_plain_formula(asked, name, place):
    """They count the vectors that `FisherInformation` with the same settings clips."""
    theta, _ = parameters(asked.case)
    coordinates = coordinates_of(place, asked.case)
    plain = asked.seen(coordinates)
    more = {"majorise": FISHER[name].majorise}
    if FISHER[name].weight_bound is not None:
        more["weight_bound"] = float(np.median(plain[0].score_bounds))
    sizes = [np.linalg.norm(one.roots(FisherInformation(1.0, 2.0, **more)), axis=1) for one in plain]
    for share in (0.1, 0.5, 0.97):
        # Between two records, so that no rounding matters.
        place_of = int(share * NUM_RECORDS)
        threshold = float(np.mean(np.sort(sizes[0])[place_of : place_of + 2]))
        query = ClipCount(threshold, 2.0, of="information", **more)
        value = asked.curator.ask(query, theta, coordinates=coordinates).value
        assert value[0] == NUM_RECORDS - place_of - 1
        assert value[1] == np.sum(sizes[1] > threshold)


def test_majorising_leaves_the_quadratic_family_alone():
    """Of a linear regression it raises the information about the scale only; of the others, that about η."""
    theta = {"linear": np.array([0.0, 0.0, 0.0, 0.0, 0.0]), "logistic": np.zeros(4)}
    for case in (case for case in CASES if case.name in theta):
        curator = noise_free(case, case.good_records(NUM_RECORDS))
        plain, raised = (
            curator.ask(FisherInformation(1e3, 2.0, majorise), theta[case.name]).value for majorise in (0.0, 100.0)
        )
        alone = plain[:4, :4] == raised[:4, :4]
        assert alone.all() if case.model.quadratic else not alone.any()
        assert np.trace(raised) > 2.0 * np.trace(plain)


def test_twin_a_wrong_information_is_caught(monkeypatch):
    original = models.LogisticRegression.information_at

    def wrong(self, eta, y, extra=None):
        return 1.001 * original(self, eta, y, extra)[0], None

    monkeypatch.setattr(models.LogisticRegression, "information_at", wrong)
    passes.forget()
    for check in (test_information_equals_the_plain_formula, test_counts_of_information_equal_the_plain_formula):
        with pytest.raises(AssertionError):
            check(Asked.of(LOGISTIC), "weighted", "theta")
    passes.forget()


@pytest.mark.parametrize("asked", [LOGISTIC], indirect=True, ids=["logistic"])
def test_weighted_gradients_are_never_clipped(asked, place):
    """The plain sum of weighted scores, with nothing clipped; and the bound that makes it so."""
    theta, _ = parameters(LOGISTIC)
    coordinates = coordinates_of(place, LOGISTIC)
    plain = asked.seen(coordinates)

    def ask(query):
        return asked.curator.ask(query, theta, coordinates=coordinates).value

    for share in (0.2, 0.99):
        bound = float(np.quantile(plain[0].score_bounds, share))
        value = ask(WeightedGradient(bound, 2.0))
        counted = ask(ClipCount(bound, 2.0, of="score_bound"))
        histogram = ask(NormQuantile(share, 2.0, -40, 40, 4, of="score_bound"))
        for chain, one in enumerate(plain):
            weights = np.minimum(1.0, bound / one.score_bounds)
            assert np.all(weights * one.norms <= bound * (1 + 1e-12))
            np.testing.assert_allclose(value[chain], weights @ one.scores, rtol=1e-8, atol=1e-9 * bound)
            assert abs(counted[chain] - np.sum(one.score_bounds > bound)) <= 1  # the quantile itself
            exact = np.sort(one.score_bounds)[int(np.ceil(share * NUM_RECORDS)) - 1]
            assert exact * (1 - 1e-9) <= histogram.estimate[chain] <= 2.0**0.25 * exact * (1 + 1e-9)


@pytest.mark.parametrize("query", [WeightedGradient(0.05, 2.0), Gradient(0.05, 2.0)], ids=["weighted", "twin-clipped"])
def test_weighted_gradients_have_mean_zero_given_the_features(query):
    """p·(score if y = 1) + (1 − p)·(score if y = 0) = 0 for each record; clipped scores have another mean."""
    features, theta = np.array([2.0, -1.0, 0.5]), np.array([0.3, 0.5, -0.4, 0.2])
    probability = 1 / (1 + np.exp(-(theta[0] + features @ theta[1:])))
    sums = [
        noise_free(LOGISTIC, {"X": np.tile(features, (50, 1)), "y": np.full(50, outcome)})
        .ask(query, theta, coordinates=skewed(4))
        .value
        for outcome in (1.0, 0.0)
    ]
    mean = probability * sums[0] + (1 - probability) * sums[1]
    assert 0.1 < probability < 0.9
    if isinstance(query, WeightedGradient):
        assert np.linalg.norm(mean) <= 1e-9 * np.linalg.norm(sums[0])
    else:
        assert np.linalg.norm(mean) > 0.01 * np.linalg.norm(sums[0])


ALL = {
    "gradient": Gradient(1.3, 2.0),
    "score_moments": ScoreMoments(1.3, 2.0, 2.0),
    "curvature": Curvature(1.3, 2.0),
    "coordinate_histogram": CoordinateHistogram(2.0),
    "quantile": NormQuantile(0.9, 2.0),
    "curvature_count": ClipCount(1.3, 2.0, of="curvature"),
    "information_count": ClipCount(0.3, 2.0, of="information", majorise=1 / 3),
    "fisher_information": FisherInformation(1.3, 2.0, 1 / 3),
    "weighted_gradient": WeightedGradient(1.3, 2.0),
}


def in_z(case, curator, coordinates):
    theta, _ = parameters(case)
    return {
        name: exact_total(curator, query, theta, coordinates=coordinates)
        for name, query in ALL.items()
        if can_answer(case.model, query)
    }


def test_the_identity_changes_nothing_but_roundings(asked):
    """Up to the lattice: 2^-17 of the clip a record for a regression's gradient, 2^-20 for vectors of a matrix."""
    case, _, curator, *_ = asked
    theta, _ = parameters(case)
    for query in ALL.values():
        if can_answer(case.model, query):
            plain, identity = (
                curator.ask(query, theta, coordinates=coordinates)
                for coordinates in (None, Affine.identity(case.model.dimension))
            )
            for one, other in zip(jax.tree.leaves(plain.value), jax.tree.leaves(identity.value), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-9, atol=8 * 1.3**2 * 2.0**-17 * np.sqrt(NUM_RECORDS))
            for one, other in zip(plain[1:3], identity[1:3], strict=True):
                jax.tree.map(np.testing.assert_array_equal, one, other)


def test_sums_do_not_depend_on_row_order(asked):
    case, records, curator, *_ = asked
    coordinates = skewed(case.model.dimension)
    reference = in_z(case, curator, coordinates)
    order = np.random.default_rng(9).permutation(NUM_RECORDS)
    replace_records(curator, jax.tree.map(lambda column: column[order], records))
    permuted = in_z(case, curator, coordinates)
    replace_records(curator, records)
    for name, total in reference.items():
        assert np.array_equal(permuted[name], total), name


def test_a_bad_record_counts_for_nothing_and_touches_no_other(asked, place):
    """NaN, ±inf and overflow in one row: all the same sums, bit for bit, namely those of the other rows."""
    case, records, curator, *_ = asked
    coordinates = coordinates_of(place, case)
    whole = in_z(case, curator, coordinates)
    single = jax.tree.map(lambda column: np.repeat(column[:1], NUM_RECORDS, axis=0), records)
    replace_records(curator, single)
    of_one = in_z(case, curator, coordinates)
    totals = []
    for value in (np.nan, np.inf, -np.inf):
        changed = jax.tree.map(np.copy, records)
        for column in changed.values() if isinstance(changed, dict) else [changed]:
            column[0] = value if column.dtype.kind == "f" else -1
        replace_records(curator, changed)
        totals.append(in_z(case, curator, coordinates))
    replace_records(curator, records)
    for name, total in whole.items():
        assert np.array_equal(totals[0][name], totals[1][name]), name
        assert np.array_equal(totals[0][name], totals[2][name]), name
        if name != "score_moments":  # its centre moves with the sum
            assert np.array_equal(NUM_RECORDS * (total - totals[0][name]), of_one[name]), name
    # (Around their mean equal records are 0, and no curvature may be above the threshold.)
    assert all(of_one[name].any() for name in of_one if name not in ("score_moments", "curvature_count"))


def test_another_matrix_compiles_nothing(asked):
    case, _, curator, *_ = asked
    in_z(case, curator, skewed(case.model.dimension))
    before = dict(curator.passes._compiled)
    in_z(case, curator, skewed(case.model.dimension, 10.0, seed=8))
    assert curator.passes._compiled == before


def test_float32_records_in_badly_conditioned_coordinates():
    """Scores are float32 numbers, but what is made of them in z is as good as float64."""
    for case in (LOGISTIC, GAUSSIAN):
        coordinates = skewed(case.model.dimension, 1e6)
        single = jax.tree.map(lambda column: column.astype(np.float32), case.good_records(NUM_RECORDS))
        theta, _ = parameters(case)
        scores = plain_scores(case.model, single, theta[0]) @ coordinates.matrix
        bound = float(np.median(np.linalg.norm(scores, axis=1)))
        value = noise_free(case, single).ask(Gradient(bound, 2.0), theta[0], coordinates=coordinates).value
        error = np.abs(value - clip(scores, bound).sum(axis=0)).max()
        assert 0.0 < error <= 64 * 2.0**-24 * bound * np.sqrt(NUM_RECORDS)


@pytest.mark.parametrize("coordinates", [None, skewed(2)], ids=["theta", "z"])
def test_a_bound_above_all_norms_clips_nothing(coordinates):
    """The bound is the question's: where some records are far from the others, it is not what is usual among them."""
    records = GAUSSIAN.good_records(NUM_RECORDS)
    records[:20] *= 50.0
    theta = parameters(GAUSSIAN)[0][0]
    scores = plain_scores(GAUSSIAN.model, records, theta)
    scores = scores if coordinates is None else scores @ coordinates.matrix
    norms = np.linalg.norm(scores, axis=1)
    bound = 1.01 * norms.max()
    assert bound > 30.0 * np.median(norms)
    value = noise_free(GAUSSIAN, records).ask(Gradient(bound, 2.0), theta, coordinates=coordinates).value
    np.testing.assert_allclose(value, scores.sum(axis=0), rtol=1e-8, atol=1e-9 * bound)


# ------------------------------------------------------------------ streamed, charged, typed


def test_streamed_records_give_the_same_bits(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    records = LOGISTIC.good_records(NUM_RECORDS)
    columns = {f"x{j}": records["X"][:, j] for j in range(3)} | {"y": records["y"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "records.parquet", row_group_size=100)
    stream = stream_of(tmp_path / "records.parquet", {"X": ["x0", "x1", "x2"], "y": "y"})
    coordinates = skewed(4)
    in_memory = in_z(LOGISTIC, noise_free(LOGISTIC, records), coordinates)
    streamed = in_z(LOGISTIC, Curator(LOGISTIC.model, stream, noise=NoNoiseNotPrivate()), coordinates)
    for name, total in in_memory.items():
        assert np.array_equal(streamed[name], total), name
    # Second moments are two passes, the second around what the first one gave.
    theta, _ = parameters(LOGISTIC)
    released = [
        curator.ask(ALL["score_moments"], theta, coordinates=coordinates).value
        for curator in (noise_free(LOGISTIC, records), Curator(LOGISTIC.model, stream, noise=NoNoiseNotPrivate()))
    ]
    for one, other in zip(*released, strict=True):
        assert np.array_equal(one, other)


COSTS = {
    "gradient": (Gradient(1.0, 30.0), 1 / (2 * 30.0**2)),
    "weighted_gradient": (WeightedGradient(1.0, 30.0), 1 / (2 * 30.0**2)),
    "curvature": (Curvature(1.0, 30.0), 1 / (2 * 30.0**2)),
    "fisher_information": (FisherInformation(1.0, 30.0), 1 / (2 * 30.0**2)),
    "fisher_information-weighted": (FisherInformation(1.0, 30.0, 0.3, 1.0), 1 / (2 * 30.0**2)),
    "coordinate_histogram": (CoordinateHistogram(30.0), 1 / (2 * 30.0**2)),
    "quantile-of-score_bound": (NormQuantile(0.9, 30.0, of="score_bound"), 1 / (2 * 30.0**2)),
    "count-of-curvature": (ClipCount(1.0, 40.0, of="curvature"), 1 / (2 * 40.0**2)),
    "count-of-information": (ClipCount(1.0, 40.0, of="information"), 1 / (2 * 40.0**2)),
    "count-of-information-weighted": (ClipCount(1.0, 40.0, "information", 0.3, 1.0), 1 / (2 * 40.0**2)),
}


@pytest.mark.parametrize("name", COSTS)
def test_charged_and_typed_in_coordinates(name):
    query, mu = COSTS[name]
    curator = Curator(LOGISTIC.model, LOGISTIC.good_records(NUM_RECORDS), Budget(8.0, 1e-6))
    theta, _ = parameters(LOGISTIC)
    coordinates = skewed(4)
    curator.prepare(query, theta, coordinates=coordinates)
    assert curator.budget.spent == 0.0
    cost = curator.cost(query, theta, coordinates=coordinates)
    release = curator.ask(query, theta, coordinates=coordinates)
    assert type(release) is Release
    assert curator.budget.spent == pytest.approx(CHAINS * mu, rel=1e-12)
    assert float(cost.spent) == pytest.approx(CHAINS * mu, rel=1e-12)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(release))


def test_noise_scales_are_those_of_z():
    """The stated sds (test_sensitivity.py shows that the noise has them): sensitivity × τ, off the diagonal /√2."""
    curator = Curator(LOGISTIC.model, LOGISTIC.good_records(NUM_RECORDS), Budget(800.0, 1e-6))
    theta, coordinates = np.zeros(4), skewed(4)
    ask = {query: curator.ask(query, theta, coordinates=coordinates).noise_sd for query, _ in COSTS.values()}
    assert ask[COSTS["gradient"][0]] == pytest.approx(60.0)
    assert ask[COSTS["weighted_gradient"][0]] == pytest.approx(60.0)
    assert ask[COSTS["coordinate_histogram"][0]] == pytest.approx(30.0 * np.sqrt(8.0))
    for name, diagonal in (("curvature", 60.0), ("fisher_information", 30.0 * np.sqrt(2.0))):
        expected = np.where(np.eye(4, dtype=bool), diagonal, diagonal / np.sqrt(2.0))
        np.testing.assert_allclose(ask[COSTS[name][0]], expected, rtol=1e-9)


@pytest.mark.parametrize("options", [{"noise_multiplier": 3.0}, {"noise_sd": 2.0}])
def test_a_log_ratios_bound_is_a_length_in_z(options):
    curator = Curator(GAUSSIAN.model, GAUSSIAN.good_records(NUM_RECORDS), Budget(100.0, 1e-6))
    coordinates, move = skewed(2, 100.0), np.array([0.02, 0.01])
    clip_bound = 0.05 * np.linalg.norm(np.linalg.solve(coordinates.matrix, move))
    release = curator.ask(LogRatio(0.05, **options), np.zeros(2), move, coordinates=coordinates)
    if "noise_sd" in options:
        assert release.mu == pytest.approx(2 * clip_bound**2 / 2.0**2, rel=1e-6)
    else:
        assert release.noise_sd == pytest.approx(2 * 3.0 * clip_bound, rel=1e-6)
    assert curator.budget.spent == pytest.approx(float(release.mu), rel=1e-12)
    own = curator.ask(LogRatio(lambda a, b: 0.7 + 0 * a[0], noise_multiplier=3.0), np.zeros(2), move)
    same = curator.ask(
        LogRatio(lambda a, b: 0.7 + 0 * a[0], noise_multiplier=3.0), np.zeros(2), move, coordinates=coordinates
    )
    assert own.noise_sd == same.noise_sd  # a function is one of θ


def test_log_likelihoods_are_asked_as_ever():
    """Coordinates touch no log-likelihood: the same program, the same bits."""
    curator = noise_free(GAUSSIAN, GAUSSIAN.good_records(NUM_RECORDS))
    theta, proposal = parameters(GAUSSIAN)
    queries = (
        LogRatio(lambda a, b: 0.7 + 0 * a[0], noise_multiplier=3.0),
        ClipCount(0.01, 2.0, of="log_ratio"),
        InvalidCount(2.0),
    )
    for query in queries:
        other = proposal if query.needs_proposal else None
        before = curator.ask(query, theta, other).value
        compiled = len(curator.passes._compiled)
        assert np.array_equal(curator.ask(query, theta, other, coordinates=skewed(2)).value, before)
        assert len(curator.passes._compiled) == compiled


# ------------------------------------------------------------------ refused, before anything is spent


def test_affine_goes_there_and_back():
    for coordinates in (skewed(5), Affine.identity(5), Affine(np.zeros(5), np.diag(np.geomspace(1e-20, 1e20, 5)))):
        many = np.random.default_rng(0).normal(size=(3, 4, 5))
        np.testing.assert_allclose(coordinates.to_z(coordinates.to_theta(many)), many, rtol=1e-6, atol=1e-6)
        assert coordinates.to_theta(many[0, 0]).shape == (5,)
        np.testing.assert_allclose(
            coordinates.to_theta(many[0, 0]), coordinates.center + coordinates.matrix @ many[0, 0], rtol=1e-12
        )
    with pytest.raises(ValueError, match="read-only"):
        coordinates.matrix[0, 0] = 3.0


BAD_COORDINATES = [
    (np.zeros(2), np.ones((2, 2)), "not invertible"),
    (np.zeros(2), np.zeros((2, 2)), "not invertible"),
    (np.zeros(2), np.eye(3), "matrix has shape"),
    (np.zeros(2), np.zeros(2), "matrix has shape"),
    (np.zeros((2, 1)), np.eye(2), "center has shape"),
    (np.array([np.nan, 0.0]), np.eye(2), "center has NaN"),
    (np.zeros(2), np.full((2, 2), np.inf), "matrix has NaN"),
    (["a", "b"], np.eye(2), "center has shape"),
]


@pytest.mark.parametrize(("center", "matrix", "message"), BAD_COORDINATES)
def test_bad_coordinates(center, matrix, message):
    with pytest.raises(QueryError, match=message):
        Affine(center, matrix)


def test_coordinates_that_do_not_fit():
    curator = Curator(GAUSSIAN.model, GAUSSIAN.good_records(50), Budget(1.0, 1e-6))

    class Sly(Affine):
        pass

    for coordinates in (np.eye(2), Sly(np.zeros(2), np.eye(2)), Affine.identity(3)):
        for method in (curator.ask, curator.cost, curator.prepare):
            with pytest.raises(QueryError, match="coordinates"):
                method(Gradient(1.0, 30.0), np.zeros(2), coordinates=coordinates)
    with pytest.raises(QueryError, match="theta has shape"):
        Affine.identity(2).to_z(np.zeros(3))
    assert curator.budget.spent == 0.0


REFUSED = {
    "information of any model": (GAUSSIAN, FisherInformation(1.0, 30.0), "use Curvature"),
    "weights of any model": (GAUSSIAN, WeightedGradient(1.0, 30.0), "LogisticRegression"),
    "weights of another family": (CASES[0], WeightedGradient(1.0, 30.0), "LogisticRegression"),
    "weighted information": (CASES[0], FisherInformation(1.0, 30.0, weight_bound=1.0), "LogisticRegression"),
    "bounds of another family": (CASES[0], NormQuantile(0.9, 30.0, of="score_bound"), "LogisticRegression"),
    "counts of information of any model": (GAUSSIAN, ClipCount(1.0, 30.0, of="information"), "use Curvature"),
    "counts of weighted information": (
        CASES[0],
        ClipCount(1.0, 30.0, of="information", weight_bound=1.0),
        "LogisticRegression",
    ),
    "bounds of any model": (GAUSSIAN, ClipCount(1.0, 30.0, of="score_bound"), "LogisticRegression"),
}


@pytest.mark.parametrize(("case", "query", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_models_that_cannot_answer(case, query, message):
    curator = Curator(case.model, case.good_records(50), Budget(1.0, 1e-6))
    for method in (curator.ask, curator.cost, curator.prepare):
        with pytest.raises(QueryError, match=message):
            method(query, np.zeros(case.model.dimension))
    assert curator.budget.spent == 0.0


def test_a_class_derived_from_logistic_regression_is_not_trusted_with_weights():
    class Derived(models.LogisticRegression):
        pass

    curator = dpmcmc.Curator(Derived(3), LOGISTIC.good_records(50), Budget(1.0, 1e-6))
    with pytest.raises(QueryError, match="LogisticRegression"):
        curator.ask(WeightedGradient(1.0, 30.0), np.zeros(4))
