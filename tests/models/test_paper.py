"""The paper's models: the exact posterior is the posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.errors import DataError, ModelError
from dpmcmc.models import Banana, GaussianMean

MODELS = {
    "gaussian": GaussianMean([[2.0, 0.5], [0.5, 1.0]], prior_mean=[1.0, -1.0], prior_scale=0.7),
    "gaussian of the paper": GaussianMean.paper(),
    "banana": Banana(curvature=0.5, prior_variance=2.0, variances=(3.0, 1.0)),
    "banana of the paper": Banana(),
}
SMALL = ["gaussian", "banana"]


def exact_log_density(model, data, theta):
    """Log density of the closed-form posterior, up to a constant."""
    if isinstance(model, GaussianMean):
        mean, covariance = model.posterior_not_private(data)
        return -0.5 * (theta - mean) @ np.linalg.solve(covariance, theta - mean)
    location, scale = model.straight_posterior_not_private(data)
    straight = np.array([theta[0], theta[1] + model.curvature * theta[0] ** 2])
    return -0.5 * np.sum(((straight - location) / scale) ** 2)


@pytest.mark.parametrize("name", MODELS)
def test_posterior_is_proportional_to_prior_times_likelihood(name):
    model = MODELS[name]
    data = model.generate(jax.random.key(0), 20)
    points = model.sample_posterior_not_private(jax.random.key(1), data, 5)
    with jax.enable_x64(True):
        joint = [
            model.unconstrained_log_prior(theta)
            + jax.vmap(model.unconstrained_log_likelihood, (None, 0))(theta, data).sum()
            for theta in jnp.asarray(points)
        ]
    exact = [exact_log_density(model, data, theta) for theta in points]
    difference = np.array(joint) - np.array(exact)
    np.testing.assert_allclose(difference, difference[0], rtol=1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_posterior_draws_have_the_moments_of_the_posterior(name):
    """Each of 4 z-scores exceeds 5.5 with probability 4e-8, so that this fails by chance below 1e-6."""
    model = MODELS[name]
    data = model.generate(jax.random.key(2), 30)
    draws = model.sample_posterior_not_private(jax.random.key(3), data, 20_000)
    if isinstance(model, GaussianMean):
        location, covariance = model.posterior_not_private(data)
        whitened = np.linalg.solve(np.linalg.cholesky(covariance), (draws - location).T).T
    else:
        location, scale = model.straight_posterior_not_private(data)
        straight = np.stack([draws[:, 0], draws[:, 1] + model.curvature * draws[:, 0] ** 2], axis=1)
        whitened = (straight - location) / scale

    def z_scores(sample):
        return np.concatenate([sample.mean(0) * np.sqrt(len(sample)), (sample.var(0) - 1) * np.sqrt(len(sample) / 2)])

    assert np.abs(z_scores(whitened)).max() < 5.5
    # The twin: a posterior that is 10 % too wide or a tenth of a deviation off is found.
    assert np.abs(z_scores(1.1 * whitened)).max() > 5.5
    assert np.abs(z_scores(whitened + 0.1)).max() > 5.5


@pytest.mark.parametrize("name", SMALL)
def test_prior_draws_agree_with_the_prior_density(name):
    """For u standard normal in d = 2, -2 log(p(u)/p(0)) is chi² with mean 2; the z-score is below 5.5."""
    model = MODELS[name]
    draws = jax.vmap(model.sample_unconstrained_prior)(jax.random.split(jax.random.key(4), 20_000))
    mode = jnp.asarray(model.prior_mean if isinstance(model, GaussianMean) else jnp.zeros(2), jnp.float32)
    log_ratio = jax.vmap(model.unconstrained_log_prior)(draws) - model.unconstrained_log_prior(mode)
    assert abs(float(jnp.mean(-2 * log_ratio)) - 2.0) / np.sqrt(4 / 20_000) < 5.5


def test_generated_data_have_the_paper_s_moments():
    """z-scores below 5.5: failure by chance below 1e-5."""
    model = Banana()
    data = model.generate(jax.random.key(5), 50_000)
    z = (data.mean(0) - np.array([0.0, 3.0])) / np.sqrt(np.array([2000.0, 2500.0]) / len(data))
    assert np.abs(z).max() < 5.5
    gaussian = GaussianMean.paper()
    data = gaussian.generate(jax.random.key(5), 50_000)
    z = (data.mean(0) - 3.0 * np.eye(10)[1]) / np.sqrt(np.diag(gaussian.covariance) / len(data))
    assert np.abs(z).max() < 5.5
    np.testing.assert_allclose(np.cov(data.T), gaussian.covariance, atol=0.05)
    bent = model.generate(jax.random.key(5), 50_000, true_parameter=(2.0, 3.0))
    assert abs(bent[:, 1].mean() - 83.0) < 5.5 * np.sqrt(2500 / 50_000)


def test_the_paper_s_covariance():
    authors = [0.00507, 0.0142, 0.118, 0.127, 0.134, 0.188, 0.216, 0.236, 0.302, 1.012]
    np.testing.assert_allclose(np.linalg.eigvalsh(GaussianMean.paper().covariance), authors, rtol=1e-9)
    np.testing.assert_array_equal(GaussianMean.paper().covariance, GaussianMean.paper().covariance)
    drawn = GaussianMean.paper(jax.random.key(0), dimension=4)
    assert drawn.covariance.shape == (4, 4)
    with jax.enable_x64(True):
        again = GaussianMean.paper(jax.random.key(0), dimension=4)
    np.testing.assert_array_equal(drawn.covariance, again.covariance)
    with pytest.raises(ModelError, match="pass a key"):
        GaussianMean.paper(dimension=3)


@pytest.mark.parametrize("name", MODELS)
def test_models_pass_their_own_check(name):
    model = MODELS[name]
    model.check(model.prepare_records(np.zeros((3, model.num_columns)))[0])


def test_arguments_and_data_are_checked():
    with pytest.raises(ModelError, match="positive definite"):
        GaussianMean([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(ModelError, match="symmetric"):
        GaussianMean([[1.0, 2.0]])
    with pytest.raises(ModelError, match="prior_mean"):
        GaussianMean(np.eye(2), prior_mean=[0.0, 0.0, 0.0])
    with pytest.raises(ModelError, match="prior_scale"):
        GaussianMean(np.eye(2), prior_scale=0.0)
    with pytest.raises(ModelError, match="variances"):
        Banana(variances=(1.0, -1.0))
    with pytest.raises(ModelError, match="true_parameter"):
        Banana().generate(jax.random.key(0), 3, true_parameter=(1.0,))
    with pytest.raises(DataError, match="shape"):
        Banana().prepare_records(np.zeros((3, 3)))
    with pytest.raises(DataError, match="named columns"):
        Banana().prepare_records({"x": np.zeros((3, 2))})
