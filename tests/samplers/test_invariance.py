"""Chains that start in the exact posterior stay in it: every Metropolis sampler, noisy, on fine and coarse lattices.

Forty thousand chains start from exact draws of a skewed posterior in two dimensions (``targets``), take ten steps and
are compared with the posterior again, by Kolmogorov–Smirnov tests of both coordinates of the Rosenblatt transform and a
χ² test of their joint law on 8 × 8 cells. The noise is strong: the log-ratio's sd is about 1 to 2.5 on a typical move
and the gradient's is that of the gradient itself.

False failures: each test fails by chance with probability ``LEVEL`` = 1e-6 (Bonferroni over its three statistics).
Twins: the same test, on kernels that are wrong in one place, must fail with p < 1e-8.
Seeds are fixed and were not picked: all are the constants below, chosen before the first run.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmcmc.curator import Curator
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.queries import LogRatio, NotPrivateRelease, PaidNoise, Queries
from dpmcmc.samplers import DPHMC, HMC, RWMH, DPPenalty, Kernel, dp_hmc
from tests.samplers.targets import (
    EXACT,
    GRADIENT_CLIP,
    RATIO_CLIP,
    RECORDS,
    SKEWED,
    coarse,
    compile_chains,
    direct_oracle,
    draw_noise,
    p_value,
    paying,
    per_record,
    quantised,
    scores,
    seeded,
)

CHAINS, STEPS, SEED = 40_000, 10, 1
LEVEL, CAUGHT = 1e-6, 1e-8

DPHMC_SETTINGS = {
    "step_size": 0.3,
    "num_leapfrog": 3,
    "ratio_bound": RATIO_CLIP,
    "gradient_clip_norm": GRADIENT_CLIP,
    "ratio_noise_multiplier": 0.5,
    "gradient_noise_multiplier": 0.4,
}
PRIVATE = {
    **{f"DPHMC-{leapfrog}": DPHMC(**DPHMC_SETTINGS, leapfrog=leapfrog) for leapfrog in dp_hmc.INTEGRATORS},
    "DPHMC-mass-matrix": DPHMC(
        **DPHMC_SETTINGS | {"step_size": 0.25}, mass_matrix=[[1.5, 0.4], [0.4, 0.8]], jitter=None
    ),
    **{
        f"DPPenalty-{update}": DPPenalty([0.4, 0.6], RATIO_CLIP, 0.5, update=update)
        for update in ("all", "one_component", "guided")
    },
}
NOISE_FREE = {
    **{f"HMC-{leapfrog}": HMC(0.4, 3, leapfrog=leapfrog, jitter="halton") for leapfrog in dp_hmc.INTEGRATORS},
    **{f"RWMH-{update}": RWMH([0.5, 0.8], update=update) for update in ("all", "one_component", "guided")},
}


@cache
def starts():
    return EXACT.draw(np.random.default_rng(SEED), CHAINS)


def kernel_of(sampler, model=SKEWED):
    with exact_arithmetic():
        return sampler.kernel(model, len(RECORDS))


def oracle_of(queries, round_ratios=True):
    return direct_oracle(SKEWED, RECORDS, queries.gradient, queries.log_ratio, round_ratios)


def switched(oracle, sign, penalty):
    """The oracle itself at sign = penalty = 1; its twins with a flipped log-ratio or with a noise sd said to be 0."""

    def log_ratio(theta, proposal, noise):
        release = oracle.log_ratio(theta, proposal, noise)
        return release._replace(value=sign * release.value, noise_sd=penalty * release.noise_sd)

    return oracle._replace(log_ratio=log_ratio)


def evolve(run, queries, theta=None, switches=(1.0, 1.0)):
    """Ten steps of all chains."""
    noise = draw_noise(seeded(SEED + 1), queries, len(RECORDS), CHAINS, 2, STEPS)
    return run(starts() if theta is None else theta, noise, SEED + 2, *switches)


@cache
def private_run(name, coarsely):
    """The compiled run of a private sampler and its queries; the twins of the accept test share it."""
    queries = PRIVATE[name].queries(len(RECORDS))
    queries = coarse(queries) if coarsely else queries
    oracle = oracle_of(queries, round_ratios=not coarsely)
    return compile_chains(kernel_of(PRIVATE[name]), lambda *switches: switched(oracle, *switches)), queries


def simple_run(kernel, oracle):
    return compile_chains(kernel, lambda *switches: switched(oracle, *switches))


def departure(run):
    """The p-value of the positions being draws from the exact posterior, for chains that do move."""
    assert run.acceptance > 0.1
    return p_value(EXACT.transform(run.state.position))


# ---------------------------------------------------------------------- the setting is what it is said to be


def test_the_target_is_skewed_and_the_starts_are_exact():
    assert np.all(scipy.stats.skew(starts()) > 0.3)
    assert p_value(EXACT.transform(starts())) > LEVEL
    shifted = starts() + 0.1 * starts().std(axis=0)
    assert p_value(EXACT.transform(shifted)) < CAUGHT


def test_nothing_is_clipped_and_the_noise_is_strong():
    """Scores and log-ratios stay below their bounds; σ is 1 to 2.5 on typical moves; noise sd ≥ the gradient's."""
    theta, proposal = starts()[:20_000], starts()[20_000:]
    with exact_arithmetic():
        norms = np.linalg.norm(scores(SKEWED, RECORDS, theta), axis=-1)
        ratios = np.abs(per_record(SKEWED, RECORDS, proposal) - per_record(SKEWED, RECORDS, theta))
        distance = np.linalg.norm(proposal - theta, axis=-1)
        total = np.asarray(scores(SKEWED, RECORDS, theta).sum(axis=1))
    assert norms.max() < GRADIENT_CLIP
    assert np.all(ratios < RATIO_CLIP * distance[:, None])
    sampler = PRIVATE["DPHMC-position_first"]
    assert np.all(2 * GRADIENT_CLIP * sampler.gradient_noise_multiplier > total.std(axis=0))
    sd = 2 * sampler.ratio_noise_multiplier * RATIO_CLIP * distance
    assert 1.0 < np.median(sd) < 2.5


# ---------------------------------------------------------------------- invariance


@pytest.mark.parametrize("name", PRIVATE)
def test_stays_in_the_posterior(name):
    """With the lattice in use: records rounded to about 2^-40 of the bound, noise on the same lattice."""
    assert departure(evolve(*private_run(name, coarsely=False))) > LEVEL


@pytest.mark.parametrize("name", PRIVATE)
def test_stays_in_the_posterior_on_a_coarse_lattice(name):
    """Noise on a lattice of 8 levels (S = 8, γ ≈ σ/8), gradients truncated to 16 levels.

    The sum of log-ratios is left as it is: the penalty identity holds for any λ, on the lattice or not. Gradients are
    truncated record by record, which moves them much: a leapfrog may use any estimate whose law depends on θ only.
    """
    assert departure(evolve(*private_run(name, coarsely=True))) > LEVEL


@pytest.mark.parametrize("name", NOISE_FREE)
def test_stays_in_the_posterior_without_noise(name):
    queries = NOISE_FREE[name].queries(len(RECORDS))
    run = simple_run(kernel_of(NOISE_FREE[name]), direct_oracle(SKEWED, RECORDS))
    assert departure(evolve(run, queries)) > LEVEL


QUANTISED_SD, QUANTISED_BITS = 1.5, 4
SPACING = QUANTISED_SD / 2**QUANTISED_BITS  # γ = σ/S


def quantised_draws(seed):
    """Exact draws of the posterior whose log-likelihood is rounded to γZ, by rejection from the smooth one."""
    generator = np.random.default_rng(seed)
    kept = []
    while sum(map(len, kept)) < CHAINS:
        theta = EXACT.draw(generator, CHAINS)
        with exact_arithmetic():
            difference = per_record(quantised(SPACING), RECORDS, theta) - per_record(SKEWED, RECORDS, theta)
        log_weight = np.asarray(difference).sum(axis=1) - len(RECORDS) * SPACING / 2
        assert log_weight.max() <= 0.0
        kept.append(theta[np.log(generator.random(CHAINS)) < log_weight])
    return np.concatenate(kept)[:CHAINS]


@cache
def quantised_samples():
    return quantised_draws(SEED + 3), quantised_draws(SEED + 4)


@pytest.mark.parametrize("name", ["DPHMC-position_first", "DPHMC-cached", "DPPenalty-guided"])
def test_stays_in_the_posterior_with_records_rounded_to_a_coarse_lattice(name):
    """Everything on the coarse lattice: log-ratios of records as integers, added up, plus discrete noise, S = 16.

    Rounding a record's log-ratio to nearest is no difference of two log-likelihoods in general, and then there is no
    target. Here the likelihood itself is piecewise constant with values in γZ (constant σ, so that γ = σ/S is the same
    for all moves), so that rounding is exact and the target is the posterior of that likelihood. Two-sample test
    against independent exact draws.
    """
    start, reference = quantised_samples()
    model, queries = quantised(SPACING), PRIVATE[name].queries(len(RECORDS))
    queries = coarse(queries)._replace(
        log_ratio=LogRatio(RATIO_CLIP + 10.0, noise_sd=QUANTISED_SD, lattice_bits=QUANTISED_BITS)
    )
    oracle = direct_oracle(model, RECORDS, queries.gradient, queries.log_ratio, smooth=SKEWED)
    run = evolve(simple_run(kernel_of(PRIVATE[name], model), oracle), queries, start)
    assert run.acceptance > 0.1
    assert p_value(EXACT.transform(run.state.position), EXACT.transform(reference)) > LEVEL


def test_twin_the_rounded_posterior_is_another_one():
    """The two-sample test tells the posterior of the rounded likelihood from one that is a little wider."""
    start, reference = quantised_samples()
    wider = start.mean(axis=0) + 1.1 * (start - start.mean(axis=0))
    assert p_value(EXACT.transform(wider), EXACT.transform(reference)) < CAUGHT


def test_a_guided_walk_keeps_directions_uniform_and_independent():
    """The invariant law is π × uniform directions: χ² over 4 × 4 cells and 4 directions."""
    state = evolve(*private_run("DPPenalty-guided", coarsely=False)).state
    cell = np.minimum((4 * EXACT.transform(state.position)).astype(int), 3)
    sign = (state.direction > 0).astype(int)
    count = np.bincount(cell[:, 0] * 16 + cell[:, 1] * 4 + sign[:, 0] * 2 + sign[:, 1], minlength=64)
    assert scipy.stats.chisquare(count).pvalue > LEVEL


# ---------------------------------------------------------------------- twins: what is wrong is caught


@pytest.mark.parametrize("coarsely", [False, True], ids=["fine", "coarse"])
@pytest.mark.parametrize("switches", [(-1.0, 1.0), (1.0, 0.0)], ids=["flipped-sign", "no-penalty"])
@pytest.mark.parametrize("name", PRIVATE)
def test_twin_wrong_accept_test(name, switches, coarsely):
    """A log-ratio of the wrong sign; an accept test without the penalty σ²/2."""
    assert departure(evolve(*private_run(name, coarsely), switches=switches)) < CAUGHT


def test_twin_flipped_prior():
    """The prior's change enters the accept test with the wrong sign."""
    sampler = PRIVATE["DPPenalty-all"]
    queries = sampler.queries(len(RECORDS))

    class Negated:
        dimension = 2

        @staticmethod
        def unconstrained_log_prior(theta):
            return -SKEWED.unconstrained_log_prior(theta)

    run = simple_run(kernel_of(sampler, Negated), oracle_of(queries))
    assert departure(evolve(run, queries)) < CAUGHT


def test_twin_flipped_kinetic_energy(monkeypatch):
    """The kinetic energy's change enters the accept test with the wrong sign."""
    make_mass = dp_hmc.make_mass

    def negated(matrix, dimension):
        mass = make_mass(matrix, dimension)
        return mass._replace(kinetic_energy=lambda momentum: -mass.kinetic_energy(momentum))

    monkeypatch.setattr(dp_hmc, "make_mass", negated)
    sampler = PRIVATE["DPHMC-position_first"]
    queries = sampler.queries(len(RECORDS))
    run = simple_run(kernel_of(sampler), oracle_of(queries))
    assert departure(evolve(run, queries)) < CAUGHT


def keeping_only_after(kernel, acceptance):
    """A cached leapfrog that keeps its gradient after acceptance only (or after rejection only), else asks anew."""

    def step(key, state, oracle, noise):
        new, info = kernel.step(key, state, oracle, noise._replace(gradient=noise.gradient[:-1]))
        prior = jax.vmap(jax.grad(SKEWED.unconstrained_log_prior))(new.position)
        fresh = oracle.gradient(new.position, noise.gradient[-1]).value + prior
        keep = info.acceptance_rate if acceptance else ~info.acceptance_rate
        return new._replace(gradient=jnp.where(keep[:, None], new.gradient, fresh)), info

    return Kernel(kernel.init, step)


UNEVEN = HMC(0.3, 1, leapfrog="cached")
UNEVEN_STEPS = 30


def uneven_oracle():
    """Gradients with noise of sd 12·exp(2θ₀): a law that depends on θ only, and is much worse at one end.

    A gradient kept with the state matters through the rejections that a bad one causes. Where bad ones are about as
    frequent everywhere, a wrong rule for keeping it hardly shows in θ; here it does.
    """
    plain = direct_oracle(SKEWED, RECORDS)

    def gradient(theta, noise):
        release = plain.gradient(theta, noise)
        return release._replace(value=release.value + 12.0 * jnp.exp(2.0 * theta[:, :1]) * noise)

    return plain._replace(gradient=gradient)


def uneven_run(kernel, extra_gradients=0):
    generator = np.random.default_rng(SEED + 6)
    start = PaidNoise(generator.normal(size=(1, CHAINS, 2)), None)
    each = generator.normal(size=(UNEVEN_STEPS, 1 + extra_gradients, CHAINS, 2))
    run = simple_run(kernel, uneven_oracle())
    return run(starts(), (start, PaidNoise(each, np.zeros((UNEVEN_STEPS, CHAINS)))), SEED + 2, 1.0, 1.0)


def law_of_the_kept_gradient(state):
    """p-value of (z − g(θ))/sd being standard normal in both coordinates: (θ, z) is the state of this leapfrog."""
    with exact_arithmetic():
        prior = jax.vmap(jax.grad(SKEWED.unconstrained_log_prior))(jnp.asarray(state.position))
        mean = np.asarray(prior + jnp.sum(scores(SKEWED, RECORDS, jnp.asarray(state.position)), axis=1))
    noise = (state.gradient - mean) / (12.0 * np.exp(2.0 * state.position[:, :1]))
    return p_value(scipy.stats.norm.cdf(noise))


def test_a_kept_gradient_of_uneven_noise_leaves_the_posterior_exact():
    run = uneven_run(kernel_of(UNEVEN))
    assert departure(run) > LEVEL
    assert law_of_the_kept_gradient(run.state) > LEVEL


@pytest.mark.parametrize("acceptance", [True, False], ids=["acceptance", "rejection"])
def test_twin_gradient_kept_after_one_outcome_only(acceptance):
    """The same chains with a gradient that is asked anew after a rejection (or after an acceptance)."""
    run = uneven_run(keeping_only_after(kernel_of(UNEVEN), acceptance), extra_gradients=1)
    assert departure(run) < CAUGHT
    assert law_of_the_kept_gradient(run.state) < CAUGHT


def test_twin_guided_walk_that_does_not_turn():
    """A direction that is not flipped on rejection."""
    sampler = PRIVATE["DPPenalty-guided"]
    queries, kernel = sampler.queries(len(RECORDS)), kernel_of(sampler)

    def step(key, state, oracle, noise):
        new, info = kernel.step(key, state, oracle, noise)
        return new._replace(direction=state.direction), info

    run = simple_run(Kernel(kernel.init, step), oracle_of(queries))
    assert departure(evolve(run, queries)) < CAUGHT


# ---------------------------------------------------------------------- batches along a trajectory

BATCHES = np.array([[0, 1], [2, 3], [4, 5]])
ORDERS = {
    "drawn anew": lambda generator: generator.integers(0, 3, (STEPS, 3, CHAINS)),
    "one order, the same for all": lambda generator: np.broadcast_to(np.arange(3)[:, None], (STEPS, 3, CHAINS)),
    "a palindrome": lambda generator: np.broadcast_to(np.array([0, 1, 0])[:, None], (STEPS, 3, CHAINS)),
    "a shuffled order": lambda generator: generator.permuted(
        np.broadcast_to(np.arange(3)[:, None], (STEPS, 3, CHAINS)), axis=1
    ),
}


@cache
def compiled_batch_run():
    """HMC whose j-th gradient of a trajectory comes from one batch of two of the six records, times 3.

    The index of the batch travels where the integer noise of the gradient does. The accept test uses all records.
    """

    def gradient(theta, index):
        chosen = jnp.any(jnp.asarray(BATCHES)[index][:, :, None] == jnp.arange(len(RECORDS)), axis=1)
        value = 3.0 * jnp.sum(jnp.where(chosen[..., None], scores(SKEWED, RECORDS, theta), 0.0), axis=1)
        return NotPrivateRelease(value, 0.0, 0.0)

    kernel = kernel_of(HMC(0.3, 3, leapfrog="position_first", jitter="halton"))
    return compile_chains(kernel, lambda: direct_oracle(SKEWED, RECORDS)._replace(gradient=gradient))


def batch_run(order):
    start, noise = draw_noise(seeded(SEED), Queries(), len(RECORDS), CHAINS, 2, STEPS)
    indices = np.ascontiguousarray(ORDERS[order](np.random.default_rng(SEED + 5)))
    return compiled_batch_run()(starts(), (start, noise._replace(gradient=indices)), SEED + 2)


@pytest.mark.parametrize("order", ["drawn anew", "a palindrome", "a shuffled order"])
def test_gradients_of_batches_whose_order_reads_alike_backwards(order):
    """Estimates whose sequence has the same law in both directions leave the posterior exact, however poor."""
    assert departure(batch_run(order)) > LEVEL


def test_twin_fixed_order_of_batches():
    assert departure(batch_run("one order, the same for all")) < CAUGHT


# ---------------------------------------------------------------------- the real oracle agrees


@pytest.mark.parametrize("name", ["DPHMC-momentum_first", "DPHMC-cached", "DPPenalty-guided"])
def test_the_curator_gives_what_the_direct_oracle_gives(name):
    """Same noise, same keys: 64 chains through the real curator and through the tests' oracle, five steps."""
    chains, steps, queries = 64, 5, PRIVATE[name].queries(len(RECORDS))
    noise = draw_noise(seeded(SEED), queries, len(RECORDS), chains, 2, steps)
    curator = Curator(SKEWED, RECORDS, noise=seeded(SEED))
    with exact_arithmetic():
        real = paying(curator.oracle(queries.gradient, queries.log_ratio)(curator._records))
    answers = [
        compile_chains(kernel_of(PRIVATE[name]), lambda oracle=oracle: oracle)(starts()[:chains], noise, SEED)
        for oracle in (real, oracle_of(queries))
    ]
    assert answers[0].acceptance == answers[1].acceptance
    np.testing.assert_allclose(answers[0].state.position, answers[1].state.position, rtol=0, atol=1e-9)
