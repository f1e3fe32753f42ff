"""The leapfrogs, for fixed draws of the noise: reversible and volume preserving. Mass matrices: forms and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.errors import QueryError
from dpmcmc.samplers import DPHMC, HMC
from dpmcmc.samplers.acceptance import choose, penalty_test
from dpmcmc.samplers.integrators import INTEGRATORS, Trajectory, gradients_per_step, make_mass
from tests.samplers.targets import RECORDS, SKEWED, per_record

LEAPFROG_STEPS = 5
MATRIX = np.array([[1.5, 0.4], [0.4, 0.8]])


def log_density(theta):
    return jnp.sum(per_record(SKEWED, RECORDS, theta[None])[0]) + SKEWED.unconstrained_log_prior(theta)


def gradient(theta, noise):
    """An estimate with a draw of the noise that is fixed from outside."""
    return jax.vmap(jax.grad(log_density))(theta) + noise


def draws(leapfrog, chains, seed=1):
    """Positions, momenta and noise; L + 1 draws of it for all, of which position_first uses L."""
    generator = np.random.default_rng(seed)
    number = LEAPFROG_STEPS + (leapfrog != "position_first")
    theta, momentum = generator.normal(size=(2, chains, 2))
    return 0.3 * theta, momentum, generator.normal(size=(number, chains, 2))


def integrate(leapfrog, theta, momentum, noise, integrator=None):
    """One trajectory. The first draw of the cached leapfrog is that of the gradient that it starts with."""
    mass = make_mass(MATRIX, 2)
    step_size = jnp.full((len(theta), 1), 0.2)
    start = Trajectory(theta, momentum, jnp.zeros_like(theta))
    if leapfrog == "cached":
        start, noise = start._replace(gradient=gradient(theta, noise[0])), noise[1:]
    return (integrator or INTEGRATORS[leapfrog])(start, step_size, gradient, mass.velocity, noise)


def euler(start, step_size, gradient, velocity, noise):
    """Not a leapfrog."""
    position, momentum = start.position, start.momentum
    for one_noise in noise:
        position, momentum = (
            position + step_size * velocity(momentum),
            momentum + step_size * gradient(position, one_noise),
        )
    return Trajectory(position, momentum, start.gradient)


def error_of_return(leapfrog, integrator=None):
    """Go, turn round, come back along the same draws in reverse order: the distance from the start."""
    with exact_arithmetic():
        theta, momentum, noise = map(jnp.asarray, draws(leapfrog, 50))
        end = integrate(leapfrog, theta, momentum, noise, integrator)
        back = integrate(leapfrog, end.position, -end.momentum, noise[::-1], integrator)
        assert float(jnp.abs(end.position - theta).max()) > 1.0
        return max(float(jnp.abs(back.position - theta).max()), float(jnp.abs(back.momentum + momentum).max()))


def log_volume(leapfrog, integrator=None):
    """ln |det| of the map (θ, p) → (θ', p') for fixed draws, the largest of ten chains."""
    with exact_arithmetic():
        theta, momentum, noise = map(jnp.asarray, draws(leapfrog, 10))

        def flat(point, one_noise):
            end = integrate(leapfrog, point[None, :2], point[None, 2:], one_noise[:, None], integrator)
            return jnp.concatenate([end.position[0], end.momentum[0]])

        points = jnp.concatenate([theta, momentum], axis=1)
        jacobians = jax.vmap(jax.jacfwd(flat), in_axes=(0, 1))(points, noise)
        return float(jnp.abs(jnp.linalg.slogdet(jacobians)[1]).max())


@pytest.mark.parametrize("leapfrog", INTEGRATORS)
def test_reversible(leapfrog):
    assert error_of_return(leapfrog) < 1e-10


@pytest.mark.parametrize("leapfrog", INTEGRATORS)
def test_volume_preserving(leapfrog):
    assert log_volume(leapfrog) < 1e-10


def test_twin_euler_is_neither():
    assert error_of_return("position_first", euler) > 1e-2
    assert log_volume("position_first", euler) > 1e-2


def test_twin_the_same_order_of_draws_does_not_lead_back():
    """Reversibility is for the reversed sequence of draws: this is why a fixed order of batches is biased."""
    with exact_arithmetic():
        theta, momentum, noise = map(jnp.asarray, draws("position_first", 50))
        end = integrate("position_first", theta, momentum, noise)
        back = integrate("position_first", end.position, -end.momentum, noise)
        assert float(jnp.abs(back.position - theta).max()) > 1e-2


def test_momentum_first_is_cached_with_a_fresh_first_gradient():
    with exact_arithmetic():
        theta, momentum, noise = map(jnp.asarray, draws("cached", 20))
        ends = [integrate(leapfrog, theta, momentum, noise) for leapfrog in ("momentum_first", "cached")]
        last = gradient(ends[0].position, noise[-1])
    for first, second in zip(*ends, strict=True):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(ends[1].gradient, last, rtol=1e-12)


def test_the_integrators_ask_as_often_as_declared():
    assert gradients_per_step("position_first", 7) == (7, 0)
    assert gradients_per_step("momentum_first", 7) == (8, 0)
    assert gradients_per_step("cached", 7) == (7, 1)


# ---------------------------------------------------------------------- mass matrices


def test_forms_of_a_mass_matrix_agree():
    """None, ones and the identity; a vector and its diagonal matrix."""
    with exact_arithmetic():
        momenta = jnp.asarray(np.random.default_rng(1).normal(size=(7, 3)))
        for forms in ([None, np.ones(3), np.eye(3)], [[0.5, 2.0, 3.0], np.diag([0.5, 2.0, 3.0])]):
            masses = [make_mass(form, 3) for form in forms]
            for other in masses[1:]:
                key = jax.random.key(1)
                np.testing.assert_allclose(masses[0].draw(key, (4, 3)), other.draw(key, (4, 3)), rtol=1e-14)
                np.testing.assert_allclose(masses[0].velocity(momenta), other.velocity(momenta), rtol=1e-14)
                np.testing.assert_allclose(masses[0].kinetic_energy(momenta), other.kinetic_energy(momenta), rtol=1e-14)


def test_momenta_have_the_mass_matrix_as_covariance():
    """Whitened by M, momenta are standard normal: 2·kinetic energy is χ², covariance within 6 sds (1e-8 by chance)."""
    with exact_arithmetic():
        mass = make_mass(MATRIX, 2)
        momenta = np.asarray(mass.draw(jax.random.key(1), (200_000, 2)))
        energy = np.asarray(mass.kinetic_energy(jnp.asarray(momenta)))
        velocity = np.asarray(mass.velocity(jnp.asarray(momenta)))
    sd = np.sqrt((MATRIX**2 + np.outer(np.diag(MATRIX), np.diag(MATRIX))) / len(momenta))
    assert np.all(np.abs(np.cov(momenta.T) - MATRIX) < 6 * sd)
    assert np.any(np.abs(np.cov(momenta.T) - np.linalg.inv(MATRIX)) > 20 * sd)
    assert abs(energy.mean() - 1.0) < 6 / np.sqrt(len(momenta))
    np.testing.assert_allclose(velocity @ MATRIX, momenta, rtol=0, atol=1e-12)


BAD = {
    "wrong length": np.ones(3),
    "wrong shape": np.ones((2, 3)),
    "scalar": 2.0,
    "negative": np.array([1.0, -1.0]),
    "zero": np.array([1.0, 0.0]),
    "NaN": np.array([1.0, np.nan]),
    "infinite": np.array([1.0, np.inf]),
    "indefinite": np.array([[1.0, 2.0], [2.0, 1.0]]),
    "singular": np.array([[1.0, 1.0], [1.0, 1.0]]),
    "zero matrix": np.zeros((2, 2)),
    "asymmetric": np.array([[1.0, 0.5], [0.1, 1.0]]),
    "small and asymmetric": 1e-10 * np.array([[1.0, 0.5], [0.1, 1.0]]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_mass_matrices_are_errors(name):
    with exact_arithmetic(), pytest.raises(ValueError, match=r"has shape|is not symmetric positive definite"):
        make_mass(BAD[name], 2)


def test_samplers_name_the_argument():
    for sampler in (HMC(0.1, 2, mass_matrix=[1.0, -1.0]), DPHMC(0.1, 2, 1.0, 1.0, 1.0, 1.0, mass_matrix=np.ones(3))):
        with exact_arithmetic(), pytest.raises(QueryError, match="mass_matrix"):
            sampler.kernel(SKEWED, 10)


# ---------------------------------------------------------------------- the accept test


def test_penalty_test_accepts_with_the_stated_probability():
    """With σ = 0 it is the Metropolis test, min(1, e^λ); with noise a(λ) = e^λ a(−λ). 6 sds: 1e-8 by chance."""
    draws_each = 200_000
    with exact_arithmetic():
        for ratio in (-1.2, 0.7):
            accepted = penalty_test(jax.random.key(1), jnp.full(draws_each, ratio), jnp.zeros(draws_each))
            expected = min(1.0, np.exp(ratio))
            spread = 6 * np.sqrt(expected * (1 - expected) / draws_each)
            assert abs(float(accepted.mean()) - expected) <= spread
        noise = 1.5 * jax.random.normal(jax.random.key(2), (draws_each,))
        rates = [float(penalty_test(jax.random.key(3), r + noise, 1.5).mean()) for r in (0.8, -0.8)]
    assert abs(rates[0] - np.exp(0.8) * rates[1]) < 6 * np.sqrt((1 + np.exp(1.6)) / 4 / draws_each)


@pytest.mark.parametrize(("ratio", "sd"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, np.inf), (-np.inf, 0.0)])
def test_what_is_no_number_is_a_rejection(ratio, sd):
    with exact_arithmetic():
        assert not bool(penalty_test(jax.random.key(1), jnp.full(1, ratio), jnp.full(1, sd))[0])


def test_choose_takes_whole_chains():
    accepted = jnp.array([True, False])
    new = (jnp.ones((2, 3)), jnp.full(2, jnp.nan), jnp.ones((2, 3, 2)))
    old = (jnp.zeros((2, 3)), jnp.zeros(2), jnp.zeros((2, 3, 2)))
    chosen = choose(accepted, new, old)
    assert np.isnan(chosen[1][0])
    assert chosen[1][1] == 0.0
    for leaf in (chosen[0], chosen[2]):
        assert np.all(leaf[0] == 1.0)
        assert np.all(leaf[1] == 0.0)
