"""Draws from public surrogates against exact ones: a Gaussian, and a banana, each times a prior.

Kolmogorov–Smirnov on the last positions of chains that began at the centre; each comparison fails falsely in 1e-6 of
the times, at most two in a test. A twin, with weights that are wrong, must fail with p < 1e-8.
"""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.surrogate import Form
from dpmcmc.tuning.fit import Frame
from dpmcmc.tuning.walk import NUM_CHAINS, NUM_ITERATIONS, Region, Walk, frame_of

LEVEL, CAUGHT = 1e-6, 1e-8
PRIOR_MEAN, PRIOR_SD = np.array([1.0, 0.5]), np.array([2.0, 1.0])
FRAME = Frame(np.array([0.5, -0.5]), np.array([[0.8, 0.0], [0.3, 1.2]]))
LARGEST, CURVED = Form(2, 2, 3), Form(2, 2, 2)
GAUSSIAN = np.array([[0.2, 1.3, 0.0], [-0.1, 0.4, 0.8]])
# ψ = (u₀, u₁ + (u₀² − 1)): its Jacobian is 1, so that v = ψ is standard normal but for the prior.
BANANA = np.array([[0.0, 1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, np.sqrt(2.0), 0.0, 0.0]])
EVERYWHERE = Region(np.zeros((1, 2)), np.eye(2)[None], 1e3)


@pytest.fixture(scope="module")
def walk():
    with exact_arithmetic():
        model = SimpleNamespace(
            unconstrained_log_prior=lambda theta: -0.5 * jnp.sum(((theta - PRIOR_MEAN) / PRIOR_SD) ** 2)
        )
        return Walk(model, LARGEST)


def draw(walk, weights, region=EVERYWHERE, calls=1, start=None, **options):
    """Independent draws: the last positions of every chain. (All of them without ``calls``.)"""
    fit = SimpleNamespace(frame=FRAME)
    generator, found = np.random.default_rng(0), []
    start = np.zeros((NUM_CHAINS, 2)) if start is None else start
    weights = np.broadcast_to(weights, (NUM_CHAINS, *weights.shape[-2:]))
    with exact_arithmetic():
        for _ in range(calls):
            positions, step = walk.draw(fit, weights, start, region, generator, **options)
            assert positions.shape == (NUM_ITERATIONS, NUM_CHAINS, 2)
            assert 0.01 < step < 10.0
            found.append(positions[-1])
    return np.concatenate(found)


def exact_gaussian(temperature=1.0):
    """Mean and covariance in u, with the prior."""
    offset, linear = GAUSSIAN[:, 0], GAUSSIAN[:, 1:]
    prior = FRAME.matrix.T @ np.diag(PRIOR_SD**-2.0) @ FRAME.matrix
    precision = linear.T @ linear + prior
    pull = FRAME.matrix.T @ ((PRIOR_MEAN - FRAME.center) / PRIOR_SD**2) - linear.T @ offset
    return np.linalg.solve(precision, pull), temperature * np.linalg.inv(precision)


def chances(u, temperature=1.0):
    mean, covariance = exact_gaussian(temperature)
    standard = np.linalg.solve(np.linalg.cholesky(covariance), (u - mean).T)
    return [stats.kstest(row, "norm").pvalue for row in standard]


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_draws_of_a_gaussian_are_exact(walk, temperature):
    assert min(chances(draw(walk, GAUSSIAN, calls=8, temperature=temperature), temperature)) > LEVEL


def test_twins_other_weights_and_another_temperature_are_noticed(walk):
    assert min(chances(draw(walk, 1.4 * GAUSSIAN, calls=8))) < CAUGHT
    assert min(chances(draw(walk, GAUSSIAN, calls=8, temperature=2.0))) < CAUGHT


def exact_banana(number=50_000):
    """By rejection: v = ψ(u) from N(0, I), kept with a probability that the prior gives."""
    generator, found = np.random.default_rng(1), []
    while sum(map(len, found)) < number:
        v = generator.normal(size=(number, 2))
        u = np.column_stack([v[:, 0], v[:, 1] - (v[:, 0] ** 2 - 1.0)])
        kept = np.exp(-0.5 * np.sum(((FRAME.to_theta(u) - PRIOR_MEAN) / PRIOR_SD) ** 2, axis=1))
        found.append(u[generator.random(number) < kept])
    return np.concatenate(found)


def straightened(u):
    return np.stack([u[:, 0], u[:, 1] + u[:, 0] ** 2 - 1.0])


def test_draws_of_a_banana_are_exact(walk):
    exact, drawn = straightened(exact_banana()), straightened(draw(walk, BANANA, calls=8))
    assert min(stats.ks_2samp(*pair).pvalue for pair in zip(exact, drawn, strict=True)) > LEVEL


def test_twin_a_banana_that_bends_by_half_is_noticed(walk):
    weaker = BANANA * np.where(np.arange(6) > 2, 0.5, 1.0)
    exact, drawn = straightened(exact_banana()), straightened(draw(walk, weaker, calls=16))
    assert min(stats.ks_2samp(*pair).pvalue for pair in zip(exact, drawn, strict=True)) < CAUGHT


def test_each_chain_has_weights_of_its_own(walk):
    """Half of them narrow, half wide, about centres 4 apart: 256 normals are within 7 sds but for 1e-9."""
    weights = np.zeros((NUM_CHAINS, 2, 3))
    weights[:, :, 1:] = 20.0 * np.eye(2)
    weights[::2, 0, 0], weights[1::2, 0, 0] = -20.0 * 2.0, 20.0 * 2.0  # u₀ = 2, and −2
    start = np.zeros((NUM_CHAINS, 2))
    start[::2, 0], start[1::2, 0] = 2.0, -2.0
    u = draw(walk, weights, start=start)
    assert np.all(np.abs(u[::2, 0] - 2.0) < 7 / 20)
    assert np.all(np.abs(u[1::2, 0] + 2.0) < 7 / 20)


def test_the_wall_keeps_draws_near_the_region(walk):
    """Weights of next to nothing, so that the prior and the wall, exp(−5 (distance − 1)²), are all there is.

    2.5 beyond it the density is e⁻³¹ of that inside. Without the wall the prior, of sds 1 to 2.6 in u, goes farther.
    """
    free = 1e-3 * GAUSSIAN
    points = np.array([[0.0, 0.0], [2.0, 0.0]])
    inverses = np.array([np.eye(2), np.diag([1.0, 2.0])])
    region = Region(points, inverses, 1.0)
    within = region.distances(draw(walk, free, region, calls=4))
    assert within.max() < 3.5
    assert region.distances(draw(walk, free, calls=4)).max() > 3.5
    # The wall is soft and keeps nothing in that is inside: it is reached.
    assert within.max() > 1.0


def test_distances_are_those_to_the_nearest_point_in_its_own_coordinates():
    region = Region(np.array([[0.0, 0.0], [3.0, 0.0]]), np.array([np.eye(2), np.diag([10.0, 1.0])]), 1.0)
    np.testing.assert_allclose(region.distances(np.array([[1.0, 0.0], [2.9, 0.0], [3.0, 2.0]])), [1.0, 1.0, 2.0])


def test_a_surrogate_without_a_floor_below_it_is_not_left_with_nan(walk):
    """Weights so large that every step overflows: the chain stays where it is."""
    fit, start = SimpleNamespace(frame=FRAME), np.full((NUM_CHAINS, 2), 0.3)
    weights = np.full((NUM_CHAINS, 2, len(LARGEST.powers)), 1e200)
    with exact_arithmetic():
        positions, _ = walk.draw(fit, weights, start, EVERYWHERE, np.random.default_rng(0))
    assert np.array_equal(positions[-1], start)


def test_frames_follow_draws():
    draws = np.random.default_rng(0).normal(size=(500, 2)) @ np.array([[1.5, 0.3], [0.0, 0.7]]) + [0.4, -1.0]
    frame, moved = frame_of(FRAME, draws)
    seen = frame.to_u(FRAME.to_theta(draws))
    np.testing.assert_allclose(seen.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(np.cov(seen.T), np.eye(2), atol=1e-12)
    assert moved == pytest.approx(np.sqrt(draws.mean(axis=0) @ np.linalg.solve(np.cov(draws.T), draws.mean(axis=0))))
