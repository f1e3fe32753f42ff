"""Surrogate HMC: exact under a surrogate that is wrong, and caught if it is not.

Forty thousand chains start from exact draws of a skewed posterior in two dimensions (``targets``), take six steps with
a surrogate that lies elsewhere, is too wide and bends, and are compared with the posterior again, as in
``test_invariance``. False failures: ``LEVEL`` = 1e-6 for each test; twins must fail with p < 1e-8. Seeds are fixed and
were not picked.
"""

import math
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.errors import QueryError
from dpmcmc.samplers import SurrogateHMC
from dpmcmc.samplers.surrogate_hmc import accept, build_propose, clip_bound
from dpmcmc.surrogate import Form, Surrogate
from tests.samplers.targets import EXACT, RECORDS, SKEWED, direct_oracle, p_value, per_record, seeded

CHAINS, STEPS, SEED = 40_000, 6, 1
LEVEL, CAUGHT = 1e-6, 1e-8
# Polynomials 1, u₀, u₁, He₂(u₀)/√2, u₀u₁, He₂(u₁)/√2.
BENT = Surrogate(
    Form(2, 2, 2),
    [0.6, 0.9],
    [[0.9, 0.0], [-0.3, 1.1]],
    [[0.3, 1.0, 0.1, 0.0, 0.0, 0.0], [-0.2, 0.0, 0.9, 0.35, 0.0, 0.0]],
)
# κ is so large that nothing is clipped: constant noise does not grow with it.
SAMPLER = SurrogateHMC(BENT, 300.0, noise_sd=1.5, step_size=0.9, num_leapfrog=3)


@cache
def starts():
    return EXACT.draw(np.random.default_rng(SEED), CHAINS)


class Switches(NamedTuple):
    """Right at 1, wrong otherwise: factors on the penalty, on the surrogate's term, on step sizes on the left."""

    penalty: float = 1.0
    term: float = 1.0
    on_the_left: float = 1.0


def roomy(sampler):
    """The sampler's query on a lattice of spacing σ/2²⁴: the finest has room for c up to 4σ only."""
    return replace(sampler.log_ratio(len(RECORDS)), lattice_bits=24)


@cache
def compiled(transitions):
    """Six steps of all chains: positions, and the share of moves that were accepted. Twins share the program."""
    sampler = replace(SAMPLER, transitions=transitions)
    query, numbers = roomy(sampler), sampler.numbers(len(RECORDS))
    oracle = direct_oracle(SKEWED, RECORDS, None, query)
    propose = build_propose(SKEWED, *sampler.structure)
    noise = seeded(SEED + 1).draw(query.lattice(len(RECORDS), 2).noise_scale, (STEPS, CHAINS))
    middle = np.median(starts()[:, 0])

    @jax.jit
    def run(theta, keys, noise, switches):
        def step(theta, inputs):
            propose_key, accept_key = jax.random.split(inputs[0])
            size = numbers.step_size * jnp.where(theta[:, :1] < middle, switches.on_the_left, 1.0)
            proposal = propose(propose_key, theta, numbers._replace(step_size=size))
            release = oracle.log_ratio(theta, proposal.position, inputs[1])
            changed = proposal._replace(change=switches.term * proposal.change)
            theta, accepted = accept(accept_key, theta, changed, release.value, switches.penalty * release.noise_sd)
            return theta, (jnp.sum(accepted), jnp.sum(proposal.moved))

        theta, (accepted, moved) = jax.lax.scan(step, theta, (keys, noise))
        return theta, jnp.sum(accepted) / jnp.sum(moved)

    def evolve(switches):
        with exact_arithmetic():
            keys = jax.random.split(jax.random.key(SEED + 2), STEPS)
            theta, acceptance = run(jnp.asarray(starts()), keys, jnp.asarray(noise), Switches(*map(float, switches)))
            return np.asarray(theta), float(acceptance)

    return evolve


def departure(*switches, transitions=2):
    """The p-value of the positions being draws from the exact posterior, for chains that do move."""
    theta, acceptance = compiled(transitions)(Switches(*switches))
    assert acceptance > 0.1
    return p_value(EXACT.transform(theta))


# ---------------------------------------------------------------------- invariance


@pytest.mark.parametrize("transitions", [1, 2])
def test_a_wrong_surrogate_leaves_the_posterior_exact(transitions):
    assert departure(transitions=transitions) > LEVEL


def test_the_surrogate_is_wrong_and_nothing_is_clipped():
    """Without an accept test the chains go elsewhere; no record's log-ratio reaches its bound K·γ."""
    found, query = proposals(SAMPLER, starts()), roomy(SAMPLER)
    assert p_value(EXACT.transform(np.asarray(found.position))) < CAUGHT
    assert np.mean(found.moved) > 0.9
    with exact_arithmetic():
        theta = jnp.asarray(starts())
        geometry = query.geometry(theta, found.position, query.numbers(len(RECORDS)))
        ratios = jnp.abs(per_record(SKEWED, RECORDS, found.position) - per_record(SKEWED, RECORDS, theta))
        reached = np.asarray(ratios.max(axis=1) >= geometry.bound * geometry.spacing) & np.asarray(found.moved)
    assert reached.mean() == 0.0


TWINS = {
    "no penalty": Switches(penalty=0.0),
    "wrong sign of the surrogate's term": Switches(term=-1.0),
    "no term of the surrogate": Switches(term=0.0),
    "an asymmetric proposal: step sizes that follow the position": Switches(on_the_left=0.1),
}


@pytest.mark.parametrize("name", TWINS)
def test_twin_what_is_wrong_is_caught(name):
    assert departure(*TWINS[name]) < CAUGHT


# ---------------------------------------------------------------------- proposals


def proposals(sampler, theta, seed=1):
    with exact_arithmetic():
        propose = build_propose(SKEWED, *sampler.structure)
        return jax.jit(propose)(jax.random.key(seed), jnp.asarray(theta), sampler.numbers(len(RECORDS)))


def test_a_proposal_that_has_not_moved_costs_nothing():
    """Steps so long that most transitions are refused: such chains keep their θ to the last bit, and c = 0."""
    sampler = SurrogateHMC(BENT, 300.0, step_size=1.2, num_leapfrog=3, transitions=1)
    theta = starts()[:2000]
    found = jax.tree.map(np.asarray, proposals(sampler, theta))
    still = ~found.moved
    assert 0.2 < still.mean() < 0.95
    assert np.array_equal(found.position[still], theta[still])
    assert not found.clip[still].any()
    assert not found.change[still].any()
    assert np.all(found.clip[~still] > 0.0)
    with exact_arithmetic():
        query = sampler.log_ratio(len(RECORDS))
        geometry = query.geometry(jnp.asarray(theta), jnp.asarray(found.position), query.numbers(len(RECORDS)))
    assert np.array_equal(np.asarray(geometry.mu) > 0.0, found.moved)
    # 2c²/σ², and never less; with few records the lattice has room up to c = 4σ, with many it rounds up by very little.
    sampler, query = replace(sampler, ratio_bound=1.0), replace(sampler, ratio_bound=1.0).log_ratio(len(RECORDS))
    with exact_arithmetic():
        geometry = query.geometry(jnp.asarray(theta), jnp.asarray(found.position), query.numbers(len(RECORDS)))
    mu, clip = np.asarray(geometry.mu)[found.moved], found.clip[found.moved] / 300.0
    exact = 2.0 * (np.minimum(clip, 4.0 * sampler.noise_sd) / sampler.noise_sd) ** 2
    assert np.all((mu >= exact * (1 - 1e-12)) & (mu <= exact * (1 + 1e-8)))


def test_a_proposal_carries_the_surrogates_change():
    theta = starts()[:100]
    found = proposals(SAMPLER, theta)
    with exact_arithmetic():
        potential = jax.vmap(SAMPLER.surrogate.potential)
        change = potential(found.position) - potential(jnp.asarray(theta))
    np.testing.assert_allclose(found.change, change, rtol=0, atol=1e-12)


def test_the_bound_is_that_of_the_formula_and_symmetric_to_the_last_bit():
    theta, proposal = starts()[:50], starts()[50:100]
    numbers = SAMPLER.numbers(len(RECORDS))
    with exact_arithmetic():
        psi = jax.vmap(SAMPLER.surrogate.psi)
        expected = (
            300.0 * np.linalg.norm(np.asarray(psi(theta)) - np.asarray(psi(proposal)), axis=1) / math.sqrt(len(RECORDS))
        )
        both = [
            np.array([clip_bound(*pair, numbers, form=BENT.form) for pair in zip(*ends, strict=True)])
            for ends in ((theta, proposal), (proposal, theta))
        ]
        asked = SAMPLER.log_ratio(len(RECORDS)).clip_bound(jnp.asarray(theta), jnp.asarray(proposal))
    assert np.array_equal(*both)
    np.testing.assert_allclose(both[0], expected, rtol=1e-12)
    np.testing.assert_allclose(asked, expected, rtol=1e-12)


def test_step_sizes_are_log_uniform_over_a_factor_five_and_independent_of_the_position():
    """One leapfrog step from u = 0 of a surrogate without slope moves by size × momentum: the ratio of both is known.

    With ψ constant and a flat prior every transition is accepted, and |Δu|²/η² is χ² with 2 degrees of freedom, where
    ln(η/size) is uniform: tested through its mean, E ln|Δu|² = 2 E ln η + E ln χ²₂. False failures: 1e-6 (z = 4.9).
    """
    flat = type("Flat", (), {"unconstrained_log_prior": staticmethod(lambda theta: 0.0 * jnp.sum(theta))})
    constant = Surrogate(Form(2, 2, 1), np.zeros(2), np.eye(2), np.zeros((2, 3)))
    sampler = SurrogateHMC(constant, 1.0, step_size=0.7, num_leapfrog=1, transitions=1)
    with exact_arithmetic():
        found = jax.jit(build_propose(flat, *sampler.structure))(
            jax.random.key(1), jnp.zeros((CHAINS, 2)), sampler.numbers(10)
        )
        logs = np.log(np.sum(np.asarray(found.position) ** 2, axis=1))
    assert np.all(found.moved)
    mean = 2 * (math.log(0.7) - math.log(5.0) / 2) + math.log(2.0) + scipy.special.digamma(1.0)
    variance = 4 * math.log(5.0) ** 2 / 12 + math.pi**2 / 6
    assert abs(logs.mean() - mean) < 4.9 * math.sqrt(variance / CHAINS)


def test_a_diverged_trajectory_is_refused():
    """A likelihood that overflows along the way, and a prior that is nowhere there, leave the chain where it is."""
    steep = Surrogate(Form(2, 2, 2), np.zeros(2), np.eye(2), np.full((2, 6), 1e200))
    found = proposals(SurrogateHMC(steep, 1.0, step_size=5.0), starts()[:20])
    assert np.all(np.isfinite(found.position))


# ---------------------------------------------------------------------- settings


def test_the_ceiling_is_that_of_a_perfect_surrogate():
    assert SurrogateHMC(BENT, 1.0).ceiling == pytest.approx(2 * scipy.stats.norm.cdf(-1.0))
    assert SurrogateHMC(BENT, 1.0, noise_sd=1.0).ceiling == pytest.approx(2 * scipy.stats.norm.cdf(-0.5))


def test_settings_are_shown_without_the_numbers_of_the_surrogate():
    assert repr(SurrogateHMC(BENT, 4.0)) == (
        "SurrogateHMC(surrogate of degree 2 in 2 dimensions, ratio_bound=4.0, noise_sd=2.0, step_size=0.3, "
        "num_leapfrog=24, transitions=2)"
    )


def test_a_surrogate_is_copied():
    center = np.zeros(2)
    sampler = SurrogateHMC(Surrogate(Form(2, 2, 1), center, np.eye(2), np.ones((2, 3))), 1.0)
    center[0] = 1.0
    assert sampler.surrogate.center[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        sampler.surrogate.weights[0] = 1.0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"surrogate": "gaussian"}, "surrogate must be a dpmcmc.surrogate.Surrogate, got str"),
        ({"center": np.zeros(3)}, r"surrogate.center has shape \(3,\); its form wants 2"),
        ({"matrix": np.zeros((2, 2))}, "surrogate.matrix has no inverse"),
        ({"weights": np.ones((2, 4))}, "surrogate.weights has shape .* its form wants rows × 6"),
        ({"weights": np.full((2, 6), np.nan)}, "surrogate.weights has NaN"),
        ({"ratio_bound": 0.0}, "ratio_bound = 0.0"),
        ({"noise_sd": -1.0}, "noise_sd = -1.0"),
        ({"noise_sd": 1e9}, "noise_sd = 1e\\+09 is out of"),
        ({"step_size": math.inf}, "step_size = inf"),
        ({"num_leapfrog": 0}, "num_leapfrog = 0"),
        ({"transitions": 1.5}, "transitions = 1.5"),
    ],
)
def test_bad_settings_are_refused(change, text):
    parts = {name: change.pop(name, getattr(BENT, name)) for name in ("center", "matrix", "weights")}
    settings = {"surrogate": Surrogate(BENT.form, **parts), "ratio_bound": 1.0} | change
    with pytest.raises(QueryError, match=text):
        SurrogateHMC(**settings)
