"""What is known before any release."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

import dpmcmc
from dpmcmc import models
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.errors import ModelError
from dpmcmc.tuning import describe_prior

N = 50


@pytest.fixture(autouse=True)
def double_precision():
    with exact_arithmetic():
        yield


def describe(model, **options):
    return describe_prior(model, N, **options)


def check_derivatives(model, prior, theta):
    value = model.unconstrained_log_prior
    gradient, hessian = np.asarray(jax.grad(value)(theta)), np.asarray(jax.hessian(value)(theta))
    np.testing.assert_allclose(prior.gradient(theta), gradient, rtol=1e-9, atol=1e-12)
    values, vectors = np.linalg.eigh(-hessian)
    expected = (vectors * np.maximum(values, 0.0)) @ vectors.T
    np.testing.assert_allclose(prior.precision(theta), expected, rtol=1e-8, atol=1e-10)
    assert np.linalg.eigvalsh(prior.precision(theta)).min() >= -1e-9


@pytest.mark.slow
def test_a_regression():
    """By draws: of coefficients exactly in the middle, and the width to 1 in 10 (1000 draws; a fixed key)."""
    model = models.LinearRegression(3, prior_scale=2.0)
    prior = describe(model)
    assert np.array_equal(prior.center[:4], np.zeros(4))
    np.testing.assert_allclose(prior.sd[:4], 2.0, rtol=0.15)
    check_derivatives(model, prior, np.array([0.3, -1.0, 2.0, 0.1, 0.7]))


@pytest.mark.slow
def test_groups():
    model = models.PoissonRegression(2, groups=3)
    prior = describe(model)
    assert prior.center.shape == prior.sd.shape == (model.dimension,)
    assert np.all(np.isfinite(prior.center))
    assert np.all(prior.sd > 0)
    # At a small scale the effects' prior is narrow, and its precision follows.
    theta = np.zeros(model.dimension)
    theta[-1] = -3.0
    check_derivatives(model, prior, theta)
    place = model.parameter_slices["group_effects"]
    assert np.diag(prior.precision(theta))[place] == pytest.approx(np.exp(6.0))


def test_a_numpyro_model():
    def model(x):
        location = numpyro.sample("location", dist.Normal(5.0, 0.5))
        scale = numpyro.sample("scale", dist.LogNormal(1.0, 0.3))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("x", dist.Normal(location, scale), obs=x)

    model = dpmcmc.from_numpyro(model, {"x": np.zeros(N)})
    prior = describe(model)
    np.testing.assert_allclose(prior.center, [5.0, 1.0], atol=0.1)
    np.testing.assert_allclose(prior.sd, [0.5, 0.3], rtol=0.15)
    check_derivatives(model, prior, np.array([4.0, 1.5]))


def own(log_prior, sample_prior=None):
    return dpmcmc.Model(
        lambda p, x: -0.5 * (x - p["m"]) ** 2 / p["s"] - 0.5 * jnp.log(p["s"]),
        log_prior,
        {"m": (), "s": "positive"},
        sample_prior=sample_prior,
    )


def normal(parameters):
    return dist.Normal(3.0, 0.7).log_prob(parameters["m"]) + dist.LogNormal(0.5, 0.2).log_prob(parameters["s"])


def draw(key):
    first, second = jax.random.split(key)
    return {"m": 3.0 + 0.7 * jax.random.normal(first), "s": jnp.exp(0.5 + 0.2 * jax.random.normal(second))}


@pytest.mark.parametrize("sample_prior", [None, draw], ids=["mode", "draws"])
def test_a_model_of_ones_own(sample_prior):
    """Where there are no draws, the mode and the curvature say it exactly."""
    model = own(normal, sample_prior)
    prior = describe(model)
    tolerance = 0.15 if sample_prior else 1e-3
    np.testing.assert_allclose(prior.center, [3.0, 0.5], atol=tolerance)
    np.testing.assert_allclose(prior.sd, [0.7, 0.2], rtol=tolerance)
    check_derivatives(model, prior, np.array([2.0, 0.1]))


@pytest.mark.parametrize(
    "log_prior",
    [
        lambda p: 0.0 * p["m"],
        lambda p: -jnp.log(p["s"]) + 0.0 * p["m"],
        lambda p: jnp.where(p["m"] > -5.0, 0.0, -jnp.inf),
        lambda p: jnp.nan * p["m"],
        lambda p: dist.Cauchy(0.0, 1.0).log_prob(p["m"]) + dist.HalfCauchy(1.0).log_prob(p["s"]),
    ],
    ids=["flat", "improper", "bounded", "nan", "heavy-tailed"],
)
def test_flat_and_improper_priors_have_a_center_and_a_width(log_prior):
    prior = describe(own(log_prior))
    for values in (prior.center, prior.sd, prior.gradient(np.ones(2)), prior.precision(np.ones(2))):
        assert np.all(np.isfinite(values))
    assert np.all((prior.sd > 0) & (prior.sd <= 100.0 * (1 + 1e-9)))
    assert np.linalg.eigvalsh(prior.precision(np.ones(2))).min() >= -1e-12


def test_nothing_of_the_model_runs_again():
    """What is kept reads nothing off the model later."""
    calls = []

    def log_prior(parameters):
        calls.append(None)
        return normal(parameters)

    model = own(log_prior, draw)
    prior = describe(model)
    before, expected = len(calls), prior.gradient(np.ones(2))
    model.log_prior = lambda parameters: jnp.nan
    assert np.array_equal(prior.gradient(np.ones(2)), expected)
    prior.precision(np.ones(2))
    assert len(calls) == before


def test_kept_by_how_it_is_drawn_from():
    kept = {}

    def keep(key, make):
        if key not in kept:
            kept[key] = make()
        return kept[key]

    first, again = (describe(own(normal, draw), keep=keep) for _ in range(2))
    assert first is again
    other = describe(own(normal, lambda key: {"m": 9.0 + jax.random.normal(key), "s": 1.0}), keep=keep)
    none = describe(own(normal), keep=keep)
    assert len(kept) == 3
    assert other.center[0] > 8.0
    assert none.center[0] == pytest.approx(3.0, abs=1e-3)


def test_a_sample_prior_that_holds_the_data_is_refused():
    """Its draws decide the start and the widths: they must not be the records."""
    records = np.random.default_rng(0).normal(size=N)
    captured = own(normal, lambda key: {"m": jax.random.choice(key, jnp.asarray(records)), "s": 1.0})
    with pytest.raises(ModelError, match="sample_prior"):
        describe(captured)
    assert describe_prior(captured, N + 1).center.shape == (2,)  # twin: by the number of records
