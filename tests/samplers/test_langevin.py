"""DP-SGLD and DP-SGNHT on a conjugate model: the posterior's covariance, not half of it.

Nothing is clipped, the step is small and the batches are large enough that their own noise is small beside the injected
one. On a Gaussian posterior of precision λ, Langevin steps of size h have the stationary variance T/λ/(1 − hλ/2)
exactly (plus what the batches add), so the bias of the step is known; the thermostat's is known in the same way from a
discrete Lyapunov equation. Each comparison is one of variances with
Monte-Carlo errors from ArviZ's effective sample size; bands of 5.5 sds fail by chance with probability below 1e-7.
Seeds are fixed and were not picked.
"""

import math
from functools import cache

import arviz
import jax
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

import dpmcmc
from dpmcmc.models import GaussianMean
from dpmcmc.samplers import DPSGLD, DPSGNHT

NUM_RECORDS, BATCH, CLIP = 2000, 400, 8.0
MODEL = GaussianMean(np.diag([1.0, 0.6]))
STEPS, CHAINS = 8_000, 4
STEP_SIZE = 2e-5  # hλ = 0.04 and 0.067


@cache
def data():
    with jax.enable_x64(True):
        return np.asarray(MODEL.generate(jax.random.key(1), NUM_RECORDS))


def draws_of(sampler, model=MODEL, records=None, num_steps=STEPS):
    """Draws of a seeded run, chains × draws × 2, started at exact posterior draws (these data are not secret)."""
    records = data() if records is None else records
    posterior = dpmcmc.sample(
        model,
        records,
        sampler=sampler,
        epsilon=1000.0,
        delta=1e-6,
        num_chains=CHAINS,
        num_steps=num_steps,
        num_warmup=num_steps // 20,
        init=model.sample_posterior_not_private(jax.random.key(2), records, CHAINS),
        seed=1,
        progress=False,
    )
    return posterior.draws["mean"]


def variance_ratio(draws, unit=1.0):
    """Variance of each coordinate in units of the posterior's, and its Monte-Carlo sd."""
    _, covariance = MODEL.posterior_not_private(data())
    squares = (draws - draws.mean(axis=(0, 1))) ** 2 / np.diag(covariance) / unit**2
    sds = [float(arviz.mcse(squares[:, :, i], method="mean")) for i in range(2)]
    return squares.mean(axis=(0, 1)), np.array(sds)


def discretised(temperature):
    """The stationary variance of the Langevin steps in units of the posterior's, batches included."""
    precision = NUM_RECORDS / np.diag(MODEL.covariance)
    # A batch sum times n/b has variance n·(n/b − 1)/σ² for unit clip; h² of it stands beside the injected 2hT.
    batches = STEP_SIZE * precision * (NUM_RECORDS / BATCH - 1) / 2
    return (temperature + batches) / (1 - STEP_SIZE * precision / 2)


def test_nothing_is_clipped():
    scores = (data() - data().mean(axis=0)) / np.diag(MODEL.covariance)
    assert np.linalg.norm(scores, axis=1).max() < 0.9 * CLIP


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sgld_has_the_covariance_of_its_temperature(temperature):
    """T = 1: the posterior's, up to the known bias of the step; T = ½, the published code's: half of it."""
    ratio, sd = variance_ratio(draws_of(DPSGLD(BATCH, CLIP, STEP_SIZE, temperature=temperature)))
    assert np.all(np.abs(ratio - discretised(temperature)) < 5.5 * sd)
    wrong = discretised(1.5 - temperature)
    assert np.all(np.abs(ratio - wrong) > 5.5 * sd), "the twin: the other temperature is told apart"


# The same data in other units, such that λ is 1 and 1.67: the thermostat then settles within the run. Its batches are
# small: their noise is a third of the injected one, and the thermostat has to take it up.
UNIT = math.sqrt(NUM_RECORDS)
THERMOSTAT_MODEL = GaussianMean(NUM_RECORDS * MODEL.covariance)
SGNHT = DPSGNHT(40, CLIP / UNIT, step_size=0.02, diffusion=1.5)


def discretised_thermostat(friction=None):
    """The stationary variances of DP-SGNHT's steps in units of the posterior's, for the thermostat at its mean.

    (θ, p) is linear in itself, p' = (1 − ξh)p − hλθ + noise, θ' = θ + hp': a discrete Lyapunov equation. ξ settles
    where the mean of p² is 1, unless a friction is given.
    """
    h, precision = SGNHT.step_size, 1 / np.diag(MODEL.covariance)
    noise = 2 * SGNHT.diffusion * h + h**2 * precision * (NUM_RECORDS / SGNHT.batch_size - 1)

    def covariances(friction):
        for rate, variance in zip(precision, noise, strict=True):
            keep = 1 - friction * h
            matrix = np.array([[1 - h**2 * rate, h * keep], [-h * rate, keep]])
            yield scipy.linalg.solve_discrete_lyapunov(matrix, variance * np.outer([h, 1], [h, 1]))

    def heat(friction):
        return np.mean([covariance[1, 1] for covariance in covariances(friction)]) - 1

    friction = scipy.optimize.brentq(heat, 0.5 * SGNHT.diffusion, 4 * SGNHT.diffusion) if friction is None else friction
    return precision * [covariance[0, 0] for covariance in covariances(friction)]


@pytest.mark.slow
def test_sgnht_has_the_posterior_covariance():
    """Up to the known bias of step and batches, below 15 %; twins: no thermostat, and half the covariance."""
    expected, no_thermostat = discretised_thermostat(), discretised_thermostat(SGNHT.diffusion)
    assert np.all(np.abs(expected - 1.0) < 0.15)
    ratio, sd = variance_ratio(draws_of(SGNHT, THERMOSTAT_MODEL, UNIT * data(), num_steps=30_000), UNIT)
    assert np.all(np.abs(ratio - expected) < 5.5 * sd)
    assert np.any(np.abs(ratio - no_thermostat) > 5.5 * sd)
    assert np.all(np.abs(ratio - 0.5) > 5.5 * sd)
