"""Without noise, HMC and DP-HMC draw what BlackJAX's HMC draws, and what is known exactly.

Moments are compared by z-scores with Monte-Carlo errors from ArviZ. At ``BAND`` = 5.5 sds one comparison fails by
chance with probability 4e-8, each test (at most 12 of them) with less than 1e-6. Seeds are fixed and were not picked.
"""

from functools import cache

import arviz
import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.curator import Curator, NoNoiseNotPrivate
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.models import GaussianMean
from dpmcmc.samplers import DPHMC, HMC
from dpmcmc.samplers.integrators import Trajectory, make_mass, momentum_first
from tests.samplers.targets import EXACT, RECORDS, SKEWED, draw_noise, paying, per_record

BAND = 5.5
CHAINS, STEPS, WARMUP = 4, 1100, 100
NUM_LEAPFROG = 5
GAUSSIAN = GaussianMean(np.array([[1.0, 0.3], [0.3, 0.5]]))


@cache
def gaussian_data():
    return np.asarray(GAUSSIAN.generate(jax.random.key(1), 2000))


@cache
def case(name):
    """Model, data, mass matrix, step size, exact mean and variance, starting points."""
    if name == "gaussian":
        mean, covariance = GAUSSIAN.posterior_not_private(gaussian_data())
        init = mean + 2 * np.random.default_rng(1).normal(size=(CHAINS, 2)) * np.sqrt(np.diag(covariance))
        return GAUSSIAN, gaussian_data(), np.linalg.inv(covariance), 0.3, mean, np.diag(covariance), init
    mean, variance = EXACT.moments()
    init = mean + np.random.default_rng(1).normal(size=(CHAINS, 2)) * np.sqrt(variance)
    return SKEWED, RECORDS, np.diag(1 / variance), 0.35, mean, variance, init


def log_density_of(model, records):
    def log_density(theta):
        return jnp.sum(per_record(model, records, theta[None])[0]) + model.unconstrained_log_prior(theta)

    return log_density


@cache
def our_draws(name):
    """HMC through ``dpmcmc.sample``."""
    model, records, mass, step_size, _, _, init = case(name)
    sampler = HMC(step_size, NUM_LEAPFROG, mass_matrix=mass)
    posterior = dpmcmc.sample(
        model,
        records,
        sampler=sampler,
        num_steps=STEPS,
        num_warmup=WARMUP,
        num_chains=CHAINS,
        init=init,
        seed=1,
        progress=False,
    )
    return next(iter(posterior.draws.values()))


@cache
def noise_free_dp_draws(name, leapfrog="momentum_first"):
    """DP-HMC through the curator's private oracle with the noise switched off: integer sums on the lattice."""
    model, records, mass, step_size, _, _, init = case(name)
    clip = 50.0
    sampler = DPHMC(step_size, NUM_LEAPFROG, clip, clip, 1.0, 1.0, mass_matrix=mass, leapfrog=leapfrog, jitter=None)
    curator = Curator(model, records, noise=NoNoiseNotPrivate())
    queries = sampler.queries(curator.num_records)
    bind = curator.oracle(queries.gradient, queries.log_ratio)
    start, noise = draw_noise(NoNoiseNotPrivate(), queries, curator.num_records, CHAINS, 2, STEPS)
    with exact_arithmetic():
        kernel = sampler.kernel(model, curator.num_records)

        @jax.jit
        def run(records, key, theta):
            oracle = paying(bind(records))
            state = kernel.init(key, theta, oracle, start)

            def one(state, inputs):
                state, _ = kernel.step(inputs[0], state, oracle, inputs[1])
                return state, state.position

            return jax.lax.scan(one, state, (jax.random.split(jax.random.fold_in(key, 1), STEPS), noise))[1]

        positions = run(curator._records, jax.random.key(2), jnp.asarray(init))
    return np.moveaxis(np.asarray(positions), 0, 1)[:, WARMUP:]


@cache
def blackjax_draws(name):
    """BlackJAX's HMC: same target, step size, number of steps and mass matrix."""
    model, records, mass, step_size, _, _, init = case(name)
    with exact_arithmetic():
        kernel = blackjax.hmc(
            log_density_of(model, jnp.asarray(records)),
            step_size=step_size,
            inverse_mass_matrix=jnp.linalg.inv(jnp.asarray(mass)),
            num_integration_steps=NUM_LEAPFROG,
        )

        @jax.jit
        @jax.vmap
        def run(key, theta):
            def one(state, step_key):
                state, _ = kernel.step(step_key, state)
                return state, state.position

            return jax.lax.scan(one, kernel.init(theta), jax.random.split(key, STEPS))[1]

        return np.asarray(run(jax.random.split(jax.random.key(3), CHAINS), jnp.asarray(init)))[:, WARMUP:]


def moments(draws, mean, variance):
    """Standardised first and second moments about the exact mean, and their Monte-Carlo sds: should be 0 and 1."""
    standard = (draws - mean) / np.sqrt(variance)
    values = np.concatenate([standard, standard**2], axis=-1)
    sds = [float(arviz.mcse(values[:, :, i], method="mean")) for i in range(values.shape[-1])]
    return values.mean(axis=(0, 1)), np.array(sds)


def z_scores(first, second):
    return (first[0] - second[0]) / np.hypot(first[1], second[1])


OURS = {"HMC": our_draws, "DP-HMC without noise": noise_free_dp_draws}


@pytest.mark.parametrize("name", ["gaussian", "skewed"])
@pytest.mark.parametrize("sampler", OURS)
def test_moments_are_blackjax_and_exact(name, sampler):
    _, _, _, _, mean, variance, _ = case(name)
    draws = OURS[sampler](name)
    ours, theirs = moments(draws, mean, variance), moments(blackjax_draws(name), mean, variance)
    exact = (np.array([0.0, 0.0, 1.0, 1.0]), np.zeros(4))
    assert np.all(np.abs(z_scores(ours, theirs)) < BAND)
    assert np.all(np.abs(z_scores(ours, exact)) < BAND)
    assert max(float(arviz.rhat(draws[:, :, i])) for i in range(2)) < 1.01
    # The twin: a posterior wider or shifted by a quarter of its sd would be told apart.
    assert np.all(np.abs(z_scores(moments(draws, mean, 1.25**2 * variance), exact))[2:] > BAND)
    assert np.all(np.abs(z_scores(moments(draws, mean + 0.25 * np.sqrt(variance), variance), exact))[:2] > BAND)


@pytest.mark.slow
@pytest.mark.parametrize("leapfrog", ["position_first", "cached"])
def test_other_leapfrogs_without_noise_are_exact_too(leapfrog):
    _, _, _, _, mean, variance, _ = case("gaussian")
    draws = noise_free_dp_draws("gaussian", leapfrog)
    value, sd = moments(draws, mean, variance)
    assert np.all(np.abs(value - [0, 0, 1, 1]) < BAND * sd)
    assert max(float(arviz.rhat(draws[:, :, i])) for i in range(2)) < 1.01


def test_a_trajectory_is_blackjax_velocity_verlet():
    """One trajectory of ten steps on the skewed target, with a full mass matrix, to 1e-10."""
    log_density = log_density_of(SKEWED, RECORDS)
    matrix = np.array([[1.5, 0.4], [0.4, 0.8]])
    generator = np.random.default_rng(1)
    theta, momentum = 0.3 * generator.normal(size=(20, 2)), generator.normal(size=(20, 2))
    with exact_arithmetic():
        mass = make_mass(matrix, 2)
        start = Trajectory(jnp.asarray(theta), jnp.asarray(momentum), jnp.zeros((20, 2)))
        ours = momentum_first(
            start,
            jnp.full((20, 1), 0.1),
            lambda position, noise: jax.vmap(jax.grad(log_density))(position),
            mass.velocity,
            jnp.zeros(11),
        )
        metric = blackjax.mcmc.metrics.default_metric(jnp.linalg.inv(jnp.asarray(matrix)))
        integrate = blackjax.mcmc.integrators.velocity_verlet(log_density, metric.kinetic_energy)

        @jax.vmap
        def theirs(position, momentum):
            value, gradient = jax.value_and_grad(log_density)(position)
            state = blackjax.mcmc.integrators.IntegratorState(position, momentum, value, gradient)
            return jax.lax.fori_loop(0, 10, lambda _, state: integrate(state, 0.1), state)

        end = theirs(start.position, start.momentum)
        energies = mass.kinetic_energy(ours.momentum), jax.vmap(metric.kinetic_energy)(end.momentum)
    np.testing.assert_allclose(ours.position, end.position, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.momentum, end.momentum, rtol=0, atol=1e-10)
    np.testing.assert_allclose(*energies, rtol=1e-10)
    assert np.abs(np.asarray(ours.position) - theta).max() > 0.5
