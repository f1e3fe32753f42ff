"""Group effects under their own prior, from a Gaussian that was found under another.

Draws are seeded; tolerances are six standard errors of the means of 40,000 draws (a chance of 2e-9 each).
"""

import numpy as np
import pytest
from scipy import stats

import dpmcmc
from dpmcmc.models import LogisticRegression, PoissonRegression
from dpmcmc.tuning import Groups, Prior
from dpmcmc.tuning.groups import LARGEST, SMALLEST, WIDER

NUMBER = 40_000
GROUPS = Groups(slice(1, 3), 3, 0.8)
MEAN = np.array([0.4, 0.3, -0.2, 0.0])
COVARIANCE = np.diag([0.04, 0.05, 0.03, 1.0])
COVARIANCE[0, 1] = COVARIANCE[1, 0] = -0.02
COVARIANCE[1, 2] = COVARIANCE[2, 1] = 0.01


def by_quadrature(power):
    """Means of β, u₁, u₂ and ln s, to a power, by summation over a grid of u and s, with β given u in closed form."""
    t = (np.arange(240) + 0.5) / 120.0 - 1.0
    u, width = 2.0 * np.sign(t) * np.abs(t) ** 4, np.abs(t) ** 3  # dense around 0, where small s put all of the mass
    first, second = np.meshgrid(u, u, indexing="ij")
    points = np.stack([first.ravel(), second.ravel()], axis=1)
    log_s = np.linspace(np.log(SMALLEST * 0.8), np.log(LARGEST * 0.8), 300)
    s = np.exp(log_s)
    likelihood = stats.multivariate_normal(MEAN[1:3], COVARIANCE[1:3, 1:3]).logpdf(points)
    likelihood += np.log(width[:, None] * width).ravel() - stats.norm(0.0, WIDER * 0.8).logpdf(points).sum(axis=1)
    whole = likelihood[:, None] + stats.norm(0.0, s).logpdf(points[:, :, None]).sum(axis=1)
    whole += stats.halfnorm(scale=0.8).logpdf(s) + log_s
    weights = np.exp(whole - whole.max())
    weights /= weights.sum()
    of_u, of_s = weights.sum(axis=1), weights.sum(axis=0)
    gain = COVARIANCE[0, 1:3] @ np.linalg.inv(COVARIANCE[1:3, 1:3])
    beta = MEAN[0] + (points - MEAN[1:3]) @ gain
    left = COVARIANCE[0, 0] - gain @ COVARIANCE[1:3, 0]
    of_beta = of_u @ (beta if power == 1 else beta**2 + left)
    return np.array([of_beta, *(of_u @ points**power), of_s @ log_s**power])


def distance(draws, power):
    moments = draws**power
    return np.abs(moments.mean(axis=0) - by_quadrature(power)) / (moments.std(axis=0) / np.sqrt(len(draws)))


@pytest.mark.slow
def test_draws_are_those_of_the_joint_posterior():
    draws = GROUPS.draw(np.random.default_rng(0), MEAN, COVARIANCE, NUMBER)
    for power in (1, 2):
        assert np.all(distance(draws, power) < 6.0)


def test_twin_a_reference_prior_that_is_left_in_is_caught():
    """A reference as narrow as the prior of s, which is then divided out as if it were wide."""
    narrow = Groups(slice(1, 3), 3, 0.4)
    draws = narrow.draw(np.random.default_rng(0), MEAN, COVARIANCE, NUMBER)
    assert np.any(distance(draws, 1) > 6.0)


def test_only_regressions_of_this_package_with_groups():
    class Derived(LogisticRegression):
        pass

    assert Groups.of(LogisticRegression(2)) is None
    assert Groups.of(Derived(2, groups=3)) is None
    found = Groups.of(PoissonRegression(2, groups=3, prior_scale=1.5))
    assert (found.effects, found.scale, found.prior_scale) == (slice(3, 6), 6, 1.5)


def test_the_reference_prior_is_the_models_own_but_for_the_groups():
    own = Prior(
        np.full(4, 9.0),
        np.full(4, 2.0),
        lambda theta: -theta * (1.0 + theta[3]),
        lambda theta: np.diag(1.0 + np.abs(theta)),
        lambda theta: -0.5 * float(theta[0] ** 2),
    )
    found = GROUPS.reference(own)
    theta = np.array([0.5, 1.0, -1.0, -7.0])
    assert found.center[0] == 9.0
    np.testing.assert_allclose(found.gradient(theta)[1:3], -theta[1:3] / (WIDER * 0.8) ** 2)
    np.testing.assert_allclose(found.precision(theta)[0], [1.5, 0.0, 0.0, 0.0])
    for coordinate in (1, 2, 3):  # slopes are those of the density
        step = 1e-4 * np.eye(4)[coordinate]
        slope = (found.log_density(theta + step) - found.log_density(theta - step)) / 2e-4
        assert found.gradient(theta)[coordinate] == pytest.approx(slope, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("effect", [0.0, 0.7])
def test_groups_that_do_not_differ_are_no_harm(effect):
    """Noise has 0.1 to 0.2 sds here, and the slope's posterior an sd of 0.07: 0.6 is more than 6 of both."""
    generator = np.random.default_rng(1)
    effects = effect * np.array([1.0, -1.0, 0.5, -0.5])
    features, group = generator.uniform(-1.0, 1.0, (3000, 1)), generator.integers(0, 4, 3000)
    chance = 1.0 / (1.0 + np.exp(0.3 - features[:, 0] - effects[group]))
    data = {"X": features, "y": (generator.random(3000) < chance).astype(float), "group": group}
    model = LogisticRegression(1, groups=4, feature_bounds=1.0)
    posterior = dpmcmc.sample(model, data, epsilon=8.0, delta=1e-6, seed=0, progress=False)
    assert abs(posterior.draws["coefficients"].mean() - 1.0) < 0.6
    assert np.all(np.abs(posterior.draws["group_effects"].mean(axis=(0, 1)) - effects) < 1.5)
    assert (np.median(posterior.draws["group_scale"]) > 0.3) == (effect > 0.0)
    assert not any("group_scale" in name for name in posterior.quality.prior_only)
