"""Regression families: likelihoods against SciPy and mpmath, closed-form scores against autodiff."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpmcmc.errors import DataError, ModelError
from dpmcmc.models import (
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
    RegressionModel,
)

FAMILIES = [LinearRegression, LogisticRegression, PoissonRegression, NegativeBinomialRegression]
OPTIONS = [{}, {"intercept": False}, {"groups": 3}, {"intercept": False, "groups": ["a", "b", "c"]}]
NUM_ROWS = 12


def outcomes(family, generator, size):
    if family is LinearRegression:
        return generator.normal(size=size)
    if family is LogisticRegression:
        return generator.integers(0, 2, size=size)
    return generator.poisson(3.0, size=size)


def make_data(model, seed=0, size=NUM_ROWS):
    generator = np.random.default_rng(seed)
    data = {
        "X": generator.normal(size=(size, model.num_features)),
        "y": outcomes(type(model), generator, size),
    }
    if model.num_groups:
        data["group"] = generator.integers(0, model.num_groups, size=size)
    return data


def closed_form_scores(model, theta, records, score_at):
    """The per-record scores as the curator forms them."""
    size = len(records["y"])
    eta = model.linear_predictor(theta, records["X"], records.get("group"))
    extra = theta[model.linear_size] if model.extra_size else None
    residual, extra_score = score_at(eta, records["y"], extra)
    design = [np.ones((size, 1))] if model.intercept else []
    design.append(np.asarray(records["X"]))
    if model.num_groups:
        design.append(np.eye(model.num_groups)[np.clip(records["group"], 0, model.num_groups - 1)])
    scores = np.zeros((size, model.dimension))
    scores[:, : model.linear_size] = np.asarray(residual)[:, None] * np.concatenate(design, axis=1)
    if model.extra_size:
        scores[:, model.linear_size] = extra_score
    else:
        assert extra_score is None
    return scores


def autodiff_scores(model, theta, records):
    gradient = jax.jit(jax.vmap(jax.grad(model.unconstrained_log_likelihood), (None, 0)))
    return np.asarray(gradient(theta, jax.tree.map(jnp.asarray, records)))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_closed_form_scores_are_the_derivative(family, options):
    with jax.enable_x64(True):
        model = family(2, **options)
        records, _ = model.prepare_records(make_data(model))
        theta = 0.5 * jax.random.normal(jax.random.key(1), (model.dimension,))
        expected = autodiff_scores(model, theta, records)
        np.testing.assert_allclose(
            closed_form_scores(model, theta, records, model.score_at), expected, rtol=1e-10, atol=1e-11
        )
        likelihood = jax.jit(jax.vmap(model.unconstrained_log_likelihood, (None, 0)))(
            theta, jax.tree.map(jnp.asarray, records)
        )
        eta = model.linear_predictor(theta, records["X"], records.get("group"))
        extra = theta[model.linear_size] if model.extra_size else None
        np.testing.assert_allclose(
            model.log_likelihood_at(eta, records["y"], extra), likelihood, rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrong_score_is_caught(family):
    with jax.enable_x64(True):
        model = family(2)
        records, _ = model.prepare_records(make_data(model))
        theta = 0.5 * jax.random.normal(jax.random.key(1), (model.dimension,))

        def slightly_wrong(eta, y, extra):
            residual, extra_score = model.score_at(eta, y, extra)
            return residual * (1 + 1e-8), extra_score

        wrong = closed_form_scores(model, theta, records, slightly_wrong)
        assert not np.allclose(wrong, autodiff_scores(model, theta, records), rtol=1e-10, atol=1e-11)


def autodiff_curvature(model, eta, y, extra):
    """(a, b, e) by differentiating the log-likelihood twice."""
    variables = 2 if model.extra_size else 1

    def value(point, outcome):
        return model.log_likelihood_at(point[0], outcome, point[1] if model.extra_size else None)

    points = np.stack([eta, extra], axis=1)[:, :variables]
    second = -np.asarray(jax.jit(jax.vmap(jax.hessian(value)))(points, y.astype(float)))
    return (second[:, 0, 0], second[:, 0, 1], second[:, 1, 1]) if variables == 2 else (second[:, 0, 0], None, None)


@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-7], ids=["right", "twin-wrong"])
@pytest.mark.parametrize("family", FAMILIES)
def test_closed_form_curvatures_are_the_second_derivatives(family, factor):
    """Dispersions on both sides of where Stirling's series begins."""
    generator = np.random.default_rng(2)
    eta, extra = generator.normal(size=200), generator.uniform(-6.0, 2.0, size=200)
    y = outcomes(family, generator, 200)
    with jax.enable_x64(True):
        model = family(1)
        computed = model.curvature_at(eta, y, extra if model.extra_size else None)
        expected = autodiff_curvature(model, eta, y, extra)
    assert [part is None for part in computed] == [part is None for part in expected]
    parts = [(one, other) for one, other in zip(computed, expected, strict=True) if one is not None]
    agree = [np.allclose(np.asarray(one) * factor, other, rtol=1e-9, atol=1e-9) for one, other in parts]
    assert all(agree) == (factor == 1.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_information_is_the_mean_of_the_curvature(family):
    """Over the outcomes that the family itself predicts: a sum, or a Gauss-Hermite quadrature."""
    with jax.enable_x64(True):
        model = family(1)
        for eta, extra in [(-0.7, 0.4), (1.1, -0.8), (0.2, -3.0)]:
            if family is LinearRegression:
                nodes, weights = np.polynomial.hermite_e.hermegauss(20)
                y, mass = eta + np.exp(extra) * nodes, weights / weights.sum()
            else:
                y = np.arange(2.0 if family is LogisticRegression else 4000.0)
                mass = np.exp(reference(family, eta, y, extra))
                np.testing.assert_allclose(mass.sum(), 1.0, rtol=1e-12)
            arguments = np.full(len(y), eta), y, np.full(len(y), extra) if model.extra_size else None
            curvature, information = model.curvature_at(*arguments), model.information_at(*arguments)
            for one, other in zip((curvature[0], curvature[2]), information, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    assert np.all(np.asarray(other) >= 0.0)
                    np.testing.assert_allclose(mass @ np.asarray(other), mass @ np.asarray(one), rtol=1e-8)
            assert np.ptp(np.asarray(information[0])) == 0.0  # expected: it does not depend on the outcome


def reference(family, eta, y, extra):
    if family is LinearRegression:
        return stats.norm.logpdf(y, eta, np.exp(extra))
    if family is LogisticRegression:
        return stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-eta)))
    if family is PoissonRegression:
        return stats.poisson.logpmf(y, np.exp(eta))
    r = np.exp(-extra)
    return stats.nbinom.logpmf(y, r, r / (r + np.exp(eta)))


@pytest.mark.parametrize("family", FAMILIES)
def test_log_likelihood_against_scipy(family):
    generator = np.random.default_rng(5)
    eta, extra = generator.normal(size=200), generator.normal(size=200)
    y = outcomes(family, generator, 200)
    with jax.enable_x64(True):
        model = family(1)
        computed = model.log_likelihood_at(eta, y, extra if model.extra_size else None)
    np.testing.assert_allclose(computed, reference(family, eta, y, extra), rtol=1e-10)


@settings(max_examples=40, deadline=None)
@given(eta=st.floats(-6, 6), log_dispersion=st.floats(-25, 4), y=st.integers(0, 60))
def test_negative_binomial_is_accurate_down_to_the_poisson_limit(eta, log_dispersion, y):
    with mpmath.workdps(60):
        r, m = mpmath.exp(-mpmath.mpf(log_dispersion)), mpmath.exp(mpmath.mpf(eta))
        log_p = (
            mpmath.loggamma(y + r)
            - mpmath.loggamma(r)
            - mpmath.loggamma(y + 1)
            + r * mpmath.log(r / (r + m))
            + y * mpmath.log(m / (r + m))
        )
        residual = (y - m) / (1 + m / r)
        extra = -r * (mpmath.digamma(y + r) - mpmath.digamma(r)) + r * mpmath.log(1 + m / r) + residual
    with jax.enable_x64(True):
        model = NegativeBinomialRegression(1)
        computed = model.log_likelihood_at(eta, y, log_dispersion)
        computed_residual, computed_extra = model.score_at(eta, y, log_dispersion)
    size = 1 + y + float(m)  # the terms that cancel are of this size
    np.testing.assert_allclose(float(computed), float(log_p), atol=1e-13 * size * 10, rtol=1e-12)
    np.testing.assert_allclose(float(computed_residual), float(residual), atol=1e-13 * size)
    np.testing.assert_allclose(float(computed_extra), float(extra), atol=1e-13 * size * 10)
    with mpmath.workdps(60):
        share = m / (r + m)
        a = (y + r) * share * (1 - share)
        rest = r * mpmath.log(1 + m / r) - r * (mpmath.digamma(y + r) - mpmath.digamma(r))
        e = a - 2 * r * share + rest - r**2 * (mpmath.psi(1, y + r) - mpmath.psi(1, r))
    with jax.enable_x64(True):
        curvature = model.curvature_at(eta, y, log_dispersion)
    for one, other in zip(curvature, (a, a - r * share, e), strict=True):
        np.testing.assert_allclose(float(one), float(other), atol=1e-12 * size, rtol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_functions_broadcast_over_chains(family):
    model = family(1)
    eta, y = jnp.ones((4, 1, 6)), jnp.ones(6)
    extra = jnp.zeros((4, 1, 1)) if model.extra_size else None
    assert model.log_likelihood_at(eta, y, extra).shape == (4, 1, 6)
    residual, extra_score = model.score_at(eta, y, extra)
    assert residual.shape == (4, 1, 6)
    assert extra_score is None or extra_score.shape == (4, 1, 6)
    assert residual.dtype == jnp.float32


INVALID_OUTCOMES = {
    LinearRegression: [np.nan, np.inf, -np.inf],
    LogisticRegression: [np.nan, np.inf, 2.0, -1.0, 0.5],
    PoissonRegression: [np.nan, np.inf, -1.0, 0.5, -np.inf],
    NegativeBinomialRegression: [np.nan, np.inf, -1.0, 0.5, -np.inf],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_impossible_records_have_nan_likelihood_and_score(family):
    with jax.enable_x64(True):
        model = family(1, groups=2)
        theta = jnp.full(model.dimension, 0.3)
        rows = [(1.0, y, 0) for y in INVALID_OUTCOMES[family]]
        rows += [(x, 1.0, 0) for x in (np.nan, np.inf, -np.inf)]
        rows += [(1.0, 1.0, group) for group in (-1, 2, 2**40, -(2**40))]
        valid = [(1.0, 1.0, 0), (1.0, 0.0, 1)]
        x, y, group = (np.array(column) for column in zip(*rows, *valid, strict=True))
        records, _ = model.prepare_records({"X": x[:, None].astype(float), "y": y, "group": group})
        likelihood = jax.jit(jax.vmap(model.unconstrained_log_likelihood, (None, 0)))(
            theta, jax.tree.map(jnp.asarray, records)
        )
        impossible = np.arange(len(y)) < len(rows)
        np.testing.assert_array_equal(np.isnan(likelihood), impossible)
        eta = model.linear_predictor(theta, records["X"], records["group"])
        extra = theta[model.linear_size] if model.extra_size else None
        residual, extra_score = model.score_at(eta, records["y"], extra)
        np.testing.assert_array_equal(np.isnan(residual), impossible)
        if extra_score is not None:
            np.testing.assert_array_equal(np.isnan(extra_score), impossible)
        for method in (model.curvature_at, model.information_at):
            for part in method(eta, records["y"], extra):
                if part is not None:
                    np.testing.assert_array_equal(np.isnan(part), impossible)
        # Autodiff agrees: every impossible record has a NaN in its gradient, and no possible one has.
        gradients = autodiff_scores(model, theta, records)
        np.testing.assert_array_equal(np.isnan(gradients).any(axis=1), impossible)


def test_wide_integers_do_not_wrap_around_in_single_precision():
    model = PoissonRegression(1, groups=2)
    records, _ = model.prepare_records({"X": np.array([[2**40]]), "y": np.array([2**32]), "group": np.array([2**32])})
    assert float(jnp.asarray(records["X"])[0, 0]) == 2.0**40
    assert float(jnp.asarray(records["y"])[0]) == 2.0**32
    assert bool(jnp.isnan(model.linear_predictor(jnp.zeros(model.dimension), **_rows(records))[0]))


@pytest.mark.parametrize("make", [np.array, lambda codes: np.array(codes, dtype=object)])
def test_groups_of_any_dtype(make):
    model = LogisticRegression(1, groups=3)
    rest = {"X": np.zeros((9, 1)), "y": np.zeros(9)}
    codes = [0.0, 2.0, np.nan, 0.5, 3.0, -1.0, np.inf, -np.inf, 1e300]
    records, _ = model.prepare_records({**rest, "group": make(codes)})
    assert records["group"].tolist() == [0, 2, *[-1] * 7]
    for dtype in (np.int64, np.uint8, np.float32, bool):
        column = np.array([0, 1, 1, 0, 0, 0, 1, 1, 1], dtype)
        records, _ = model.prepare_records({**rest, "group": column})
        assert records["group"].dtype == np.int32
        assert records["group"].tolist() == [0, 1, 1, 0, 0, 0, 1, 1, 1]


def test_integer_features_are_floating_and_narrow_outcomes_stay():
    for dtype in (bool, np.int8, np.int16, np.int32, np.int64, np.uint64):
        records, _ = LogisticRegression(1).prepare_records({"X": np.ones((2, 1), dtype), "y": np.ones(2, dtype)})
        assert records["X"].dtype == np.float64
        assert records["y"].dtype == (np.float64 if np.dtype(dtype).itemsize == 8 else dtype)
    records, _ = LogisticRegression(1).prepare_records({"X": np.ones((2, 1), np.float32), "y": np.ones(2, np.int8)})
    assert records["X"].dtype == np.float32


def test_features_may_be_a_table():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [30, 40], "hours": [37.5, None], "income": [True, None]})
    data = {"X": frame[["age", "hours"]], "y": frame["income"]}
    records, _ = LogisticRegression(["age", "hours"]).prepare_records(data)
    np.testing.assert_array_equal(records["X"], [[30.0, 37.5], [40.0, np.nan]])
    np.testing.assert_array_equal(records["y"], [1.0, np.nan])
    with pytest.raises(DataError, match=r"table\[\["):
        LogisticRegression(["age", "hours"]).prepare_records(frame)


def _rows(records):
    return {"X": records["X"], "group": records["group"]}


@pytest.mark.parametrize("double", [False, True])
def test_no_overflow_at_extreme_predictors(double):
    with jax.enable_x64(double):
        eta, y = map(jnp.ravel, jnp.meshgrid(jnp.array([-1e4, -800.0, -40.0, 40.0, 800.0, 1e4]), jnp.arange(2)))
        logistic = LogisticRegression(1)
        value, gradient = jax.vmap(jax.value_and_grad(logistic.log_likelihood_at))(eta, y)
        residual = logistic.score_at(eta, y)[0]
        assert np.isfinite([value, gradient, residual]).all()
        np.testing.assert_allclose(residual, gradient, rtol=1e-5)
        surprised = (2 * y - 1) * eta < 0
        np.testing.assert_allclose(value, np.where(surprised, -abs(eta), 0.0), atol=1e-15)
        binomial = NegativeBinomialRegression(1)
        derivative = jax.jit(jax.vmap(jax.value_and_grad(binomial.log_likelihood_at, (0, 2))))
        for extra in (-3.0, 0.0, 3.0):
            value, (d_eta, d_extra) = derivative(eta, y, jnp.full(eta.shape, extra))
            residual, extra_score = binomial.score_at(eta, y, extra)
            assert np.isfinite([value, d_eta, d_extra, residual, extra_score]).all()
            np.testing.assert_allclose([residual, extra_score], [d_eta, d_extra], rtol=2e-4, atol=1e-5)


def test_the_tail_of_the_logistic_score_is_accurate():
    with jax.enable_x64(True):
        np.testing.assert_allclose(LogisticRegression(1).score_at(50.0, 1)[0], np.exp(-50.0), rtol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_layout_of_the_unconstrained_vector(family, options):
    model = family(["age", "hours"], **options)
    assert isinstance(model, RegressionModel)
    assert model.feature_names == ("age", "hours")
    order = ["intercept", "coefficients", "group_effects", "noise_scale", "dispersion", "group_scale"]
    assert list(model.parameters) == [name for name in order if name in model.parameters]
    assert ("intercept" in model.parameters) == model.intercept
    last_linear = "group_effects" if model.num_groups else "coefficients"
    assert model.parameter_slices[last_linear].stop == model.linear_size
    assert model.dimension == model.linear_size + model.extra_size + (1 if model.num_groups else 0)
    model.check(model.prepare_records(make_data(model))[0])
    assert model.sample_unconstrained_prior(jax.random.key(0)).shape == (model.dimension,)


def test_priors_against_scipy():
    with jax.enable_x64(True):
        model = LinearRegression(2, prior_scale=1.5, groups=2)
        values = {
            "intercept": 0.4,
            "coefficients": np.array([0.1, -2.0]),
            "group_effects": np.array([0.3, -0.5]),
            "noise_scale": 0.8,
            "group_scale": 0.6,
        }
        expected = (
            stats.norm.logpdf([0.4, 0.1, -2.0], 0, 1.5).sum()
            + stats.norm.logpdf([0.3, -0.5], 0, 0.6).sum()
            + stats.halfnorm.logpdf([0.8, 0.6], 0, 1.5).sum()
        )
        computed = model.log_prior({name: jnp.asarray(value) for name, value in values.items()})
        np.testing.assert_allclose(computed, expected, rtol=1e-12)


def test_prior_draws_have_the_prior_s_scales():
    """Second moments of 20 000 draws; z-scores below 6 fail by chance below 1e-7."""
    model = NegativeBinomialRegression(1, prior_scale=2.0, groups=1)
    draws = jax.vmap(model.sample_prior)(jax.random.split(jax.random.key(7), 20_000))
    draws["group_effects"] = draws["group_effects"][:, 0] / draws["group_scale"] * 2.0
    draws["coefficients"] = draws["coefficients"][:, 0]
    for name, value in draws.items():
        z = (np.mean(np.asarray(value) ** 2) / 4.0 - 1) * np.sqrt(20_000 / 2)
        assert abs(z) < 6, name
    assert float(draws["dispersion"].min()) > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, r"needs exactly \['X', 'y', 'group'\]"),
        ({"extra": np.zeros(4)}, "extra"),
        ({"X": np.zeros((4, 3))}, "2 features"),
        ({"X": np.zeros(4)}, "2 features"),
        ({"y": np.zeros((4, 1))}, "'y'"),
        ({"group": np.zeros((4, 1), int)}, "'group'"),
        ({"y": np.array(["2020-01-01"] * 4, "datetime64[D]")}, "not numeric"),
    ],
)
def test_columns_are_checked(change, message):
    data = {"X": np.zeros((4, 2)), "y": np.zeros(4), "group": np.zeros(4, int)} | change
    data = {name: column for name, column in data.items() if column is not None}
    with pytest.raises(DataError, match=message) as caught:
        LogisticRegression(2, groups=2).prepare_records(data)
    assert "secret" not in str(caught.value)


def test_an_array_is_not_regression_data():
    with pytest.raises(DataError, match="one array"):
        LogisticRegression(2).prepare_records(np.zeros((4, 2)))


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((-1,), {}),
        (("age",), {}),
        ((["a", "a"],), {}),
        ((True,), {}),
        ((0,), {"intercept": False}),
        ((1,), {"prior_scale": 0.0}),
        ((1,), {"prior_scale": float("nan")}),
        ((1,), {"groups": 0}),
        ((1,), {"intercept": 1}),
    ],
)
def test_arguments_are_checked(arguments, options):
    with pytest.raises(ModelError):
        LogisticRegression(*arguments, **options)


# ------------------------------------------------------------------ public bounds on the features


def test_features_are_clamped_to_public_bounds():
    model = LinearRegression(3, feature_bounds=[2.0, (0.0, 1.0), np.float32(0.5)])
    np.testing.assert_array_equal(model.feature_bounds, [[-2.0, 2.0], [0.0, 1.0], [-0.5, 0.5]])
    features = np.array([[5.0, -3.0, 0.1], [np.nan, np.inf, -np.inf], [-5.0, 0.5, -9.0]])
    expected = np.array([[2.0, 0.0, 0.1], [np.nan, np.inf, -np.inf], [-2.0, 0.5, -0.5]])
    records, _ = model.prepare_records({"X": features, "y": np.zeros(3)})
    np.testing.assert_array_equal(records["X"], expected)
    np.testing.assert_array_equal(features[0], [5.0, -3.0, 0.1])  # the caller's array stays
    records, _ = model.prepare_records({"X": np.array([[7, -7, 7]]), "y": np.zeros(1)})
    np.testing.assert_array_equal(records["X"], [[2.0, 0.0, 0.5]])
    free, _ = LinearRegression(3).prepare_records({"X": features, "y": np.zeros(3)})
    np.testing.assert_array_equal(free["X"], features)
    assert LinearRegression(3).feature_bounds is None


def test_float32_features_lie_within_the_bounds_as_they_were_given():
    model = LogisticRegression(1, feature_bounds=0.1)  # float32 has a number just above it, and none there
    records, _ = model.prepare_records({"X": np.array([[3.0], [-3.0]], np.float32), "y": np.zeros(2)})
    assert records["X"].dtype == np.float32
    assert np.all(np.abs(records["X"].astype(float)) <= 0.1)
    assert np.all(np.abs(records["X"].astype(float)) > 0.0999999)


BAD_BOUNDS = [
    -1.0,
    0.0,
    "x",
    True,
    [1.0],
    [(1.0, 0.0), 2.0],
    [(1, 2, 3), 4],
    [np.nan, 1.0],
    np.inf,
    {1: 2},
    [True, 1.0],
]


@pytest.mark.parametrize("bounds", BAD_BOUNDS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_bad_feature_bounds(family, bounds):
    with pytest.raises(ModelError, match=r"feature_bounds .* give a positive number"):
        family(2, feature_bounds=bounds)


def test_bounds_that_hold_a_number_for_each_record_are_refused_without_showing_them():
    model = LogisticRegression(2, feature_bounds=1.0)
    model.feature_bounds = np.full((2, 5, 2), 271828.0)
    with pytest.raises(ModelError, match="feature_bounds has shape") as caught:
        model.prepare_records({"X": np.zeros((5, 2)), "y": np.zeros(5)})
    assert "271828" not in str(caught.value)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_design_row_exceeds_its_bound(family, options):
    """Corners of the box, where a norm is largest; the bound is at most √d above the largest of them."""
    bounds = [2.0, (0.0, 1.0), (-5.0, -3.0)]
    model, generator = family(3, feature_bounds=bounds, **options), np.random.default_rng(4)
    corners = np.stack(np.meshgrid(*model.feature_bounds), axis=-1).reshape(-1, 3)
    for scale in (np.ones(model.dimension), np.geomspace(1e-3, 1e3, model.dimension)):
        matrix = generator.normal(size=(model.dimension, model.dimension)) * scale
        groups = np.eye(model.num_groups) if model.num_groups else np.zeros((1, 0))
        lengths = [
            np.linalg.norm(np.concatenate([[1.0] * model.intercept, x, group]) @ matrix[: model.linear_size])
            for x in corners
            for group in groups
        ]
        bound = model.design_norm_bound(matrix)
        assert max(lengths) <= bound <= np.sqrt(model.dimension) * max(lengths)
    assert family(3, **options).design_norm_bound(matrix) is None
    with pytest.raises(ModelError, match="matrix has shape"):
        model.design_norm_bound(matrix[:-1])


def test_the_bound_is_exact_where_it_can_be():
    """Axes of the box that stay orthogonal: each coordinate is at its largest at once."""
    model = LogisticRegression(2, feature_bounds=[3.0, 4.0])
    np.testing.assert_allclose(model.design_norm_bound(np.diag([1.0, 2.0, 0.5])), np.sqrt(1 + 36 + 4), rtol=1e-11)


def test_the_base_class_is_not_a_family_and_groups_need_codes():
    with pytest.raises(ModelError, match="base of the families"):
        RegressionModel(2)
    with pytest.raises(ModelError, match="group is missing"):
        LogisticRegression(1, groups=2).linear_predictor(jnp.zeros(5), jnp.zeros((3, 1)))
