"""The curator as a user meets it: what it answers, charges and refuses, and what it never lets out."""

import copy
import math
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpmcmc
from dpmcmc import Budget, Curator, models
from dpmcmc.curator import NoNoiseNotPrivate, Order, SeededNoiseNotPrivate
from dpmcmc.curator import arithmetic as curator_module
from dpmcmc.errors import BudgetExceededError, DataError, ModelError, NotPrivateError, QueryError
from dpmcmc.queries import (
    ClipCount,
    CoordinateHistogram,
    Curvature,
    FisherInformation,
    Gradient,
    LogRatio,
    NormQuantile,
    NotPrivateRelease,
    PaidDraws,
    Release,
    ScoreMoments,
    WeightedGradient,
)
from dpmcmc.queries.quantile import read_quantile
from dpmcmc.queries.release import noised
from tests.curator.cases import CASES, STUDENT, by_name

GAUSSIAN = next(case for case in CASES if case.name == "gaussian")
SECRET = 271828.182845
DATA = np.random.default_rng(0).normal(size=(200, 2))
THETA = np.array([0.1, -0.2])
QUERIES = {
    "gradient": (Gradient(1.0, 30.0), False),
    "log_ratio": (LogRatio(0.5, noise_multiplier=30.0), True),
    "log_ratio-constant-sd": (LogRatio(0.05, noise_sd=2.0), True),
    "quantile": (NormQuantile(0.9, 30.0), False),
    "score_moments": (ScoreMoments(1.0, 30.0, 30.0), False),
    "clip_count": (ClipCount(1.0, 100.0), False),
    "coordinate_histogram": (CoordinateHistogram(30.0), False),
    "curvature": (Curvature(1.0, 30.0), False),
    "quantile-of-curvature": (NormQuantile(0.9, 30.0, of="curvature"), False),
    "clip_count-of-curvature": (ClipCount(1.0, 100.0, of="curvature"), False),
}


def private_curator(epsilon=8.0, **options):
    return Curator(GAUSSIAN.model, DATA, Budget(epsilon, 1e-6), **options)


def ask(curator, name, chains=1):
    query, wants_proposal = QUERIES[name]
    theta = np.tile(THETA, (chains, 1))
    return curator.ask(query, theta, theta + 0.05 if wants_proposal else None)


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_is_charged_what_it_says_for_every_chain(name):
    query, wants_proposal = QUERIES[name]
    curator = private_curator()
    theta = np.tile(THETA, (3, 1))
    proposal = theta + 0.05 if wants_proposal else None
    cost = curator.cost(query, theta, proposal)
    release = curator.ask(query, theta, proposal)
    assert type(release) is Release
    assert curator.budget.spent == pytest.approx(cost.spent, rel=1e-12)
    assert np.sum(release.mu) == pytest.approx(cost.spent, rel=1e-12)
    if query.mu is not None:
        assert cost.spent == pytest.approx(3 * query.mu, rel=1e-12)
    else:
        bound = 0.05 * np.linalg.norm([0.05, 0.05])
        assert cost.spent == pytest.approx(3 * 2 * bound**2 / 2.0**2, rel=1e-6)
    assert 0 < curator.budget.lattice_epsilon_spent <= curator.budget.lattice_epsilon_reserved


@pytest.mark.parametrize("name", ["gradient", "log_ratio", "clip_count"])
def test_released_noise_has_the_stated_sd(name):
    """Chi-square of the standardised noise of 400 answers; fails falsely with probability below 1e-6."""
    exact = Curator(GAUSSIAN.model, DATA, noise=NoNoiseNotPrivate())
    curator = private_curator(epsilon=1000.0)
    truth = np.asarray(ask(exact, name).value)
    release = ask(curator, name, chains=400)
    noise = (np.asarray(release.value) - truth) / np.reshape(release.noise_sd, (400, *[1] * (truth.ndim - 1)))
    stated = {
        "gradient": 2 * 1.0 * 30.0,
        "log_ratio": 2 * 30.0 * 0.5 * 0.05 * math.sqrt(2),
        "clip_count": 100.0,
    }[name]
    assert release.noise_sd[0] == pytest.approx(stated, rel=1e-6)

    def p_value(factor):
        statistic = np.sum((noise / factor) ** 2)
        return 2 * min(stats.chi2.cdf(statistic, noise.size), stats.chi2.sf(statistic, noise.size))

    assert p_value(1.0) > 1e-6
    # Twin: noise of another size would have been caught.
    assert p_value(0.7) < 1e-6
    assert p_value(1.4) < 1e-6


def test_budget_is_a_wall():
    curator = private_curator(epsilon=1.0)
    query = Gradient(1.0, 3.0)
    answered = 0
    while curator.budget.can_spend(query.mu):
        curator.ask(query, THETA)
        answered += 1
    assert answered == math.floor(curator.budget.total / query.mu)
    spent = curator.budget.spent
    with pytest.raises(BudgetExceededError):
        curator.ask(query, THETA)
    assert curator.budget.spent == spent
    # A cheaper question may still fit.
    curator.ask(Gradient(1.0, 1000.0), THETA)


def test_a_coarse_lattice_is_refused_in_a_private_run():
    """The slack of a coarse lattice does not fit the reserve, so nothing can be released on one."""
    curator = private_curator()
    with pytest.raises(BudgetExceededError):
        curator.ask(Gradient(1.0, 30.0, lattice_bits=8), THETA)
    assert curator.budget.spent == 0.0


def test_charged_before_computed(monkeypatch):
    """If the computation dies, the budget is spent: never the other way round."""
    curator = private_curator()
    monkeypatch.setattr(curator, "_host_total", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ask(curator, "gradient")
    assert curator.budget.spent > 0


@pytest.mark.parametrize("noise", [SeededNoiseNotPrivate(1), NoNoiseNotPrivate()])
@pytest.mark.parametrize("name", QUERIES)
def test_what_is_not_private_is_of_another_type(noise, name):
    curator = Curator(GAUSSIAN.model, DATA, noise=noise)
    release = ask(curator, name)
    assert type(release) is NotPrivateRelease
    assert not isinstance(release, Release)
    assert "not private" in repr(curator)


def test_an_oracle_takes_nothing_but_noise_that_was_paid_for():
    """Payment is a type: plain integers are refused, also inside compiled code."""
    oracle = private_curator().oracle(QUERIES["gradient"][0], QUERIES["log_ratio"][0])({})
    with pytest.raises(QueryError, match="paid for"):
        oracle.gradient(THETA[None], np.zeros((1, 2), np.int64))
    with pytest.raises(QueryError, match="paid for"):
        oracle.log_ratio(THETA[None], THETA[None], np.zeros(1, np.int64))


def test_paid_noise_is_used_once_and_only_where_it_was_paid_for():
    sampler = dpmcmc.DPPenalty(0.1, 1.0, 20.0)
    curators = [private_curator() for _ in range(2)]
    queries = sampler.queries(curators[0].num_records)
    order = Order(queries, 3, 2, 1, 2)
    theta = jnp.zeros((3, 2))

    def program(curator):
        def run(oracle, theta, noise):
            return oracle.log_ratio(theta, theta + 0.1, noise.log_ratio[0, 0]).value

        with curator_module.exact_arithmetic():
            oracle = curator.oracle(queries.gradient, queries.log_ratio)
            return curator.compile("test", run, oracle, theta.astype(jnp.float64), curator.blank(order))

    first, second = map(program, curators)
    with curator_module.exact_arithmetic():
        before = curators[0].budget.spent
        noise = curators[0].pay(order)
        assert curators[0].budget.spent == pytest.approx(before + 3 * 2 * queries.log_ratio.mu, rel=1e-12)
        with pytest.raises(QueryError, match="not paid for here"):
            second(theta.astype(jnp.float64), noise)
        with pytest.raises(QueryError, match="not paid for here"):
            first(theta.astype(jnp.float64), curators[0].blank(order))
        assert np.all(np.isfinite(first(theta.astype(jnp.float64), noise)))
        with pytest.raises(QueryError, match="used before"):
            first(theta.astype(jnp.float64), noise)


def test_a_noise_source_of_ones_own_is_never_private():
    class Pretender(NoNoiseNotPrivate):
        description = "private: trust me"

    class Subclass(dpmcmc.curator.ExactNoise):
        def draw(self, scale, shape):
            return np.zeros(shape, np.int64)

    for noise in (Pretender(), Subclass()):
        curator = Curator(GAUSSIAN.model, DATA, Budget(1.0, 1e-6), noise=noise)
        assert type(ask(curator, "gradient")) is NotPrivateRelease


def test_seeded_is_reproducible_and_private_is_not():
    def run(noise):
        budget = Budget(8.0, 1e-6)
        return ask(Curator(GAUSSIAN.model, DATA, budget, noise=noise), "gradient").value

    assert np.array_equal(run(SeededNoiseNotPrivate(4)), run(SeededNoiseNotPrivate(4)))
    assert not np.array_equal(run(SeededNoiseNotPrivate(4)), run(SeededNoiseNotPrivate(5)))
    assert not np.array_equal(run(None), run(None))


def test_shapes_of_single_and_batched_questions():
    curator = private_curator(epsilon=100.0)
    assert curator.ask(Gradient(1.0, 30.0), THETA).value.shape == (2,)
    assert curator.ask(Gradient(1.0, 30.0), THETA[None]).value.shape == (1, 2)
    assert curator.ask(LogRatio(1.0, noise_multiplier=30.0), THETA, THETA + 1).value.shape == ()
    moments = curator.ask(ScoreMoments(1.0, 30.0, 30.0), np.tile(THETA, (5, 1)))
    assert moments.value.second_moment.shape == (5, 2, 2)
    assert np.array_equal(moments.value.second_moment, moments.value.second_moment.transpose(0, 2, 1))
    curvature = curator.ask(Curvature(1.0, 30.0), np.tile(THETA, (5, 1)))
    assert curvature.value.shape == curvature.noise_sd.shape == (5, 2, 2)
    assert np.array_equal(curvature.value, curvature.value.transpose(0, 2, 1))
    histograms = curator.ask(CoordinateHistogram(30.0), THETA).value
    assert histograms.edges.tolist() == [2.0**exponent for exponent in range(-40, 41, 2)]
    assert histograms.histogram.shape == (2, len(histograms.edges) + 1)
    quantile = curator.ask(NormQuantile(0.5, 30.0), THETA)
    assert quantile.value.histogram.shape == (len(quantile.value.edges) + 1,)


@pytest.mark.parametrize("noise", [None, SeededNoiseNotPrivate(2)], ids=["exact", "seeded"])
def test_a_quantile_is_read_off_the_histogram_that_is_released(noise):
    """So much noise that the true counts say something else: of 40 answers all follow the released histogram."""
    curator = Curator(GAUSSIAN.model, DATA, Budget(8.0, 1e-6), noise=noise)
    query, exact = NormQuantile(0.9, 30.0), Curator(GAUSSIAN.model, DATA, noise=NoNoiseNotPrivate())
    released = curator.ask(query, np.tile(THETA, (40, 1))).value
    expected = read_quantile(released.histogram, released.edges[0], 0.9 * len(DATA))
    assert np.array_equal(released.estimate, expected)
    # Twin: the histogram without noise would have given another estimate.
    assert np.any(expected != exact.ask(query, THETA).value.estimate)


def test_log_ratio_of_a_move_that_does_not_move():
    release = Curator(GAUSSIAN.model, DATA, noise=NoNoiseNotPrivate()).ask(
        LogRatio(0.5, noise_multiplier=2.0), THETA, THETA
    )
    assert release.value == 0.0


@pytest.mark.parametrize("case", **by_name)
def test_the_compiled_oracle_gives_the_same_answers(case):
    records = case.good_records(333)
    curator = Curator(case.model, records, noise=NoNoiseNotPrivate())
    gradient, log_ratio = Gradient(1.0, 2.0), LogRatio(0.4, noise_multiplier=1.5)
    theta = np.random.default_rng(1).normal(size=(4, case.model.dimension)) * 0.2
    bind = curator.oracle(gradient, log_ratio)

    @jax.jit
    def run(records, theta, proposal, gradient_noise, ratio_noise):
        oracle = bind(records)
        return (
            oracle.gradient(theta, PaidDraws(gradient_noise)),
            oracle.log_ratio(theta, proposal, PaidDraws(ratio_noise)),
        )

    with curator_module.exact_arithmetic():
        noise = np.zeros(theta.shape, np.int64), np.zeros(4, np.int64)
        first, second = run(curator._records, theta, theta + 0.1, *noise)
    expected = curator.ask(gradient, theta), curator.ask(log_ratio, theta, theta + 0.1)
    for got, want in zip((first, second), expected, strict=True):
        assert type(got) is NotPrivateRelease
        np.testing.assert_allclose(got.value, want.value, rtol=1e-12)
        np.testing.assert_allclose(got.noise_sd, want.noise_sd)


def test_an_oracle_answers_only_what_was_declared():
    oracle = private_curator().oracle(None, None)(None)
    with pytest.raises(QueryError, match="declared no gradient"):
        oracle.gradient(THETA[None], 0)
    with pytest.raises(QueryError, match="declared no log-ratio"):
        oracle.log_ratio(THETA[None], THETA[None], 0)


# ---------------------------------------------------------------- nothing by the side


def test_precision_of_the_users_process_is_untouched():
    ask(private_curator(), "gradient")
    assert jnp.zeros(1).dtype == jnp.float32
    assert not jax.config.jax_enable_x64


def test_debug_nans_does_not_reveal_a_nan_record():
    data = DATA.copy()
    data[3] = np.nan
    with jax.debug_nans(True), jax.debug_infs(True):
        curator = Curator(GAUSSIAN.model, data, Budget(8.0, 1e-6))
        for name in QUERIES:
            ask(curator, name)


def test_twin_debug_nans_would_have_raised():
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.jit(jnp.sum)(jnp.array([jnp.nan, 1.0])).block_until_ready()


def test_a_curator_cannot_be_pickled_or_copied():
    curator = private_curator()
    for action in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(NotPrivateError):
            action(curator)


def test_repr_shows_public_facts_only():
    data = np.full((10, 2), SECRET)
    curator = Curator(GAUSSIAN.model, data, Budget(1.0, 1e-6))
    assert "271828" not in repr(curator)
    assert "num_records=10" in repr(curator)
    assert "271828" not in repr(curator.budget)


def test_later_changes_of_the_callers_array_do_not_matter():
    data = DATA.copy()
    curator = Curator(GAUSSIAN.model, data, noise=NoNoiseNotPrivate())
    data[:] = np.nan
    expected = Curator(GAUSSIAN.model, DATA, noise=NoNoiseNotPrivate())
    assert np.array_equal(ask(curator, "gradient").value, ask(expected, "gradient").value)


def test_a_likelihood_that_prints_is_refused():
    def talkative(parameters, row):
        jax.debug.print("{}", row)
        return -jnp.sum((row - parameters["mean"]) ** 2)

    model = dpmcmc.Model(talkative, lambda parameters: 0.0 * parameters["mean"].sum(), {"mean": (2,)})
    with pytest.raises(ModelError):
        Curator(model, DATA, Budget(1.0, 1e-6))


def test_a_bound_that_is_no_scalar_is_refused():
    """A bound of shape (1,) would broadcast one draw of noise over several sums, which then cancels."""
    model = dpmcmc.Model(
        lambda parameters, x: -((x - parameters["mean"]) ** 2),
        lambda parameters: 0.0 * parameters["mean"],
        {"mean": ()},
    )
    curator = Curator(model, DATA[:, 0], Budget(8.0, 1e-6))
    query = LogRatio(lambda theta, proposal: 2 * jnp.abs(proposal - theta), noise_multiplier=100.0)
    theta = np.array([[0.1], [0.2]])
    with pytest.raises(QueryError, match="one number"):
        curator.ask(query, theta, theta + 0.1)
    assert curator.budget.spent == 0.0


def test_noise_is_never_broadcast():
    with pytest.raises(QueryError, match="does not fit"):
        noised(np.zeros((2, 2), np.int64), np.zeros((2, 1), np.int64))


def test_what_is_charged_is_what_is_answered():
    """A bound that changes its mind is asked once: for the charge and the answer together."""
    calls = []

    def fickle(theta, proposal):
        calls.append(1)
        return jnp.asarray(1e-6 if len(calls) <= 3 else 5.0)  # the first time it is only looked at

    curator = private_curator()
    release = curator.ask(LogRatio(fickle, noise_sd=2.0), THETA, THETA + 0.1)
    assert curator.budget.spent == pytest.approx(float(release.mu), rel=1e-12)
    assert float(release.mu) < 1e-9


@pytest.mark.parametrize("precision", ["BF16_BF16_F32", "F32_F32_F32", "bfloat16"])
def test_the_users_matmul_precision_does_not_round_integers(precision):
    case = next(case for case in CASES if case.name == "logistic")
    records = case.good_records(300)
    theta = np.full(case.model.dimension, 0.3)
    totals = []
    for setting in (None, precision):
        with jax.default_matmul_precision(setting):
            totals.append(Curator(case.model, records, noise=NoNoiseNotPrivate()).ask(Gradient(0.5, 2.0), theta).value)
    assert np.array_equal(*totals)


def test_noise_and_budget_cannot_be_swapped():
    curator = private_curator()
    for name, value in {"noise": NoNoiseNotPrivate(), "budget": None, "private": True}.items():
        with pytest.raises(AttributeError):
            setattr(curator, name, value)


@pytest.mark.filterwarnings("error")
def test_no_warning_depends_on_a_record():
    wide = DATA.astype(np.longdouble)
    wide[3, 0] = np.longdouble("1e4000")
    signalling = np.zeros((10, 3), np.float32)
    signalling.view(np.uint32)[2, 1] = 0x7F800001
    with np.errstate(all="raise"):
        ask(Curator(GAUSSIAN.model, wide, Budget(8.0, 1e-6)), "gradient")
        Curator(models.LogisticRegression(3), {"X": signalling, "y": np.zeros(10)}, Budget(8.0, 1e-6))


def test_settings_become_plain_numbers():
    """In a NumPy scalar's own precision the noise could come out below the stated multiple."""
    query = NormQuantile(0.9, np.float32(3.3))
    assert type(query.noise_multiplier) is float
    assert type(dpmcmc.DPSGLD(np.int16(50), np.float32(1.0), 1e-5).batch_size) is int
    lattice = query.lattice(1000, 2)
    assert lattice.noise_scale >= math.sqrt(2) * lattice.bound * query.noise_multiplier


@pytest.mark.parametrize("bits", [0, -2, 45, 2.0])
def test_lattice_bits_within_exact_arithmetic(bits):
    with pytest.raises(QueryError, match="lattice_bits"):
        Gradient(1.0, 2.0, lattice_bits=bits).lattice(1000, 2)


def test_a_regression_without_features():
    model = models.PoissonRegression(0)
    data = {"X": np.zeros((20, 0)), "y": np.arange(20.0)}
    release = Curator(model, data, noise=NoNoiseNotPrivate()).ask(Gradient(50.0, 2.0), np.zeros(1))
    assert release.value == pytest.approx(np.sum(data["y"] - 1.0), abs=8 * 50.0 * 2.0**-20 * math.sqrt(20))


# ---------------------------------------------------------------- bad input, before anything is spent


def _vector_model(parameters, row):
    return row - parameters["mean"]


LOGISTIC = models.LogisticRegression(2)
NAMES = np.array([["2020-01-01", "2020-01-02"]] * 5)
BAD_DATA = {
    "empty": (GAUSSIAN.model, np.zeros((0, 2)), DataError),
    "one row": (GAUSSIAN.model, np.zeros((1, 2)), DataError),
    "a number": (GAUSSIAN.model, 3.0, DataError),
    "None": (GAUSSIAN.model, None, DataError),
    "missing column": (LOGISTIC, {"X": np.zeros((5, 2))}, DataError),
    "extra column": (LOGISTIC, {"X": np.zeros((5, 2)), "y": np.zeros(5), "z": np.zeros(5)}, DataError),
    "wrong width": (LOGISTIC, {"X": np.zeros((5, 3)), "y": np.zeros(5)}, DataError),
    "ragged": (LOGISTIC, {"X": np.zeros((5, 2)), "y": np.zeros(4)}, DataError),
    "dates in a column": (LOGISTIC, {"X": NAMES.astype("datetime64[D]"), "y": np.zeros(5)}, DataError),
    "width of an array": (GAUSSIAN.model, np.zeros((5, 3)), (ModelError, DataError)),
    "vector likelihood": (
        dpmcmc.Model(_vector_model, lambda parameters: 0.0 * parameters["mean"].sum(), {"mean": (2,)}),
        DATA,
        ModelError,
    ),
    "not a model": (_vector_model, DATA, ModelError),
}


@pytest.mark.parametrize(("model", "data", "error"), BAD_DATA.values(), ids=BAD_DATA.keys())
def test_bad_data_or_model(model, data, error):
    budget = Budget(1.0, 1e-6)
    with pytest.raises(error) as caught:
        Curator(model, data, budget)
    assert budget.spent == 0.0
    chain, texts = caught.value, []
    while chain is not None:
        texts.append(str(chain))
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    assert not re.search("Ann|Bob", " ".join(texts))
    assert len(texts[0]) > 20


BAD_THETA = [
    np.array([np.nan, 0.0]),
    np.array([np.inf, 0.0]),
    np.zeros(3),
    np.zeros((2, 3)),
    np.zeros((0, 2)),
    "ab",
]


@pytest.mark.parametrize("theta", BAD_THETA, ids=["nan", "inf", "long", "wide", "none", "text"])
def test_bad_parameters(theta):
    curator = private_curator()
    with pytest.raises(QueryError, match="theta"):
        curator.ask(Gradient(1.0, 2.0), theta)
    with pytest.raises(QueryError, match="proposal"):
        curator.ask(LogRatio(1.0, noise_multiplier=2.0), THETA, theta)
    assert curator.budget.spent == 0.0


BAD_QUERIES = [
    (Gradient, {"l2_clip_norm": 0.0, "noise_multiplier": 1.0}, "l2_clip_norm"),
    (Gradient, {"l2_clip_norm": math.nan, "noise_multiplier": 1.0}, "l2_clip_norm"),
    (Gradient, {"l2_clip_norm": 1.0, "noise_multiplier": -1.0}, "noise_multiplier"),
    (Gradient, {"l2_clip_norm": 1.0, "noise_multiplier": math.inf}, "noise_multiplier"),
    (Gradient, {"l2_clip_norm": "1", "noise_multiplier": 1.0}, "l2_clip_norm"),
    (LogRatio, {"bound": 1.0}, "exactly one"),
    (LogRatio, {"bound": 1.0, "noise_multiplier": 1.0, "noise_sd": 1.0}, "exactly one"),
    (LogRatio, {"bound": -1.0, "noise_multiplier": 1.0}, "bound"),
    (LogRatio, {"bound": 1.0, "noise_sd": 0.0}, "noise_sd"),
    (LogRatio, {"bound": 1.0, "noise_sd": 1e9}, "noise_sd"),
    (NormQuantile, {"quantile": 1.0, "noise_multiplier": 1.0}, "quantile"),
    (
        NormQuantile,
        {"quantile": 0.9, "noise_multiplier": 1.0, "lower_exponent": 5, "upper_exponent": 5},
        "grid",
    ),
    (NormQuantile, {"quantile": 0.9, "noise_multiplier": 1.0, "of": "age"}, "of"),
    (
        ScoreMoments,
        {"l2_clip_norm": 1.0, "noise_multiplier": 1.0, "matrix_noise_multiplier": 0.0},
        "matrix_noise",
    ),
    (NormQuantile, {"quantile": 0.9, "noise_multiplier": 1.0, "bins_per_octave": 0}, "bins_per_octave"),
    (NormQuantile, {"quantile": 0.9, "noise_multiplier": 1.0, "lower_exponent": 0.5}, "lower_exponent"),
    (NormQuantile, {"quantile": 0.9, "noise_multiplier": 1.0, "upper_exponent": 301}, "upper_exponent"),
    (CoordinateHistogram, {"noise_multiplier": 0.0}, "noise_multiplier"),
    (CoordinateHistogram, {"noise_multiplier": 1.0, "octaves_per_bin": -1}, "octaves_per_bin"),
    (CoordinateHistogram, {"noise_multiplier": 1.0, "lower_exponent": 40}, "grid"),
    (Curvature, {"frobenius_bound": 0.0, "noise_multiplier": 1.0}, "frobenius_bound"),
    (FisherInformation, {"l2_clip_norm": 1.0, "noise_multiplier": 1.0, "majorise": -0.1}, "majorise"),
    (FisherInformation, {"l2_clip_norm": 1.0, "noise_multiplier": 1.0, "majorise": math.nan}, "majorise"),
    (FisherInformation, {"l2_clip_norm": 1.0, "noise_multiplier": 1.0, "weight_bound": 0.0}, "weight_bound"),
    (WeightedGradient, {"l2_clip_norm": math.inf, "noise_multiplier": 1.0}, "l2_clip_norm"),
    (ClipCount, {"threshold": 1.0, "noise_sd": 1.0, "of": "gradients"}, "of"),
    (ClipCount, {"threshold": 1.0, "noise_sd": 1.0, "majorise": 0.3}, "majorise"),
    (ClipCount, {"threshold": 1.0, "noise_sd": 1.0, "of": "curvature", "majorise": 0.3}, "majorise"),
    (ClipCount, {"threshold": 1.0, "noise_sd": 1.0, "of": "score_bound", "weight_bound": 1.0}, "weight_bound"),
    (ClipCount, {"threshold": 1.0, "noise_sd": 1.0, "of": "information", "majorise": -1.0}, "majorise"),
    (ClipCount, {"threshold": 1.0, "noise_sd": 1.0, "of": "information", "majorise": True}, "majorise"),
    (ClipCount, {"threshold": 1.0, "noise_sd": 1.0, "of": "information", "weight_bound": 0.0}, "weight_bound"),
    (NormQuantile, {"quantile": 0.9, "noise_multiplier": 1.0, "of": "information"}, "of"),
    (ClipCount, {"threshold": 0.0, "noise_sd": 1.0}, "threshold"),
    (ClipCount, {"threshold": 1.0, "noise_sd": -1.0}, "noise_sd"),
]


@pytest.mark.parametrize(("query", "arguments", "names"), BAD_QUERIES)
def test_bad_queries(query, arguments, names):
    with pytest.raises(QueryError, match=names):
        query(**arguments)


def test_questions_that_do_not_fit():
    curator = private_curator()
    with pytest.raises(QueryError, match="proposal"):
        curator.ask(LogRatio(1.0, noise_multiplier=2.0), THETA)
    with pytest.raises(QueryError, match="proposal"):
        curator.ask(Gradient(1.0, 2.0), THETA, THETA)
    with pytest.raises(QueryError, match="same shape"):
        curator.ask(LogRatio(1.0, noise_multiplier=2.0), THETA, THETA[None])
    with pytest.raises(QueryError, match="query"):
        curator.ask("gradient", THETA)
    with pytest.raises(QueryError, match="bound"):
        curator.ask(LogRatio(lambda a, b: -1.0 + 0 * a[0], noise_multiplier=2.0), THETA, THETA + 1)
    with pytest.raises(QueryError, match="too large"):
        curator.ask(Gradient(1.0, 1e30), THETA)
    assert curator.budget.spent == 0.0


def test_options_that_do_not_fit():
    with pytest.raises(QueryError, match="budget"):
        Curator(GAUSSIAN.model, DATA)
    with pytest.raises(QueryError, match="budget"):
        Curator(GAUSSIAN.model, DATA, 1.0)
    with pytest.raises(QueryError, match="devices"):
        private_curator(devices=999)
    with pytest.raises(QueryError, match="devices"):
        private_curator(devices=[])


@pytest.mark.parametrize("data", [np.zeros((50, 2)), np.full((50, 2), 1e308), np.full((2, 2), np.nan)])
def test_degenerate_data_are_answered_like_any_other(data):
    curator = Curator(STUDENT, data, Budget(8.0, 1e-6))
    theta = np.zeros(3)
    for query, wants_proposal in QUERIES.values():
        release = curator.ask(query, theta, theta + 0.01 if wants_proposal else None)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(release))
