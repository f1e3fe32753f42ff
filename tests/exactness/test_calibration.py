r"""Simulation-based calibration of every Metropolis sampler, in a form that is exact for chains of any length.

**The statistic.** Talts and others (2018) draw θ from the prior, x from p(x|θ), and rank θ among draws from the
posterior given x. Draws of a chain are neither independent nor, at first, from the posterior. Here, after Gandy and
Scott (2020, "Unit testing for MCMC and other Monte Carlo methods"), θ itself is a *hidden element* of the chain: L is
uniform on {0, …, M} and independent of all else, θ_L = θ, and the chain is run from there forwards to θ_M and
backwards in time to θ_0. Given x, θ is a draw from the posterior π. If every kernel leaves π invariant and is run
backwards by its own reversal, (θ_0, …, θ_M) is the stationary chain whatever L is, hence independent of L. So for any
function f(θ, x) the rank of f(θ_L, x) among f(θ_0, x), …, f(θ_M, x), ties broken at random, is uniform on {0, …, M}:
exactly, for any M, any autocorrelation, and with functions that look at the data, such as ln p(x|θ) (Modrák and
others 2022).

**What runs backwards.**

- Random walks and Surrogate HMC are reversible: backwards is forwards.
- HMC with fresh momenta is reversible for each step size. That of step t follows a Halton sequence: going back, the
  numbers of the steps fall. With a kept gradient z (``cached``) the pair (θ, z) is reversible under π(θ)q(z|θ), q the
  law of the noisy gradient (the whole trajectory with its gradients, read backwards, is as likely): both directions
  begin with the same z, which is drawn anew at θ from q.
- The guided walk is not reversible, but turned round it is: with F(θ, d) = (θ, −d), π(s)K(s, s') = π(Fs')K(Fs', Fs).
  (A move along d_j that is accepted is undone by one along −d_j; one that is rejected turns d_j alone, and is
  proposed again from −(d with d_j turned), whose j-th entry is d_j.) Backwards is therefore forwards from −d.
  Directions are uniform and independent of θ under the invariant law, as ``init`` draws them.

**The test.** sup |F_N − F| of the ranks, and of the ranks folded at the middle (a posterior too narrow or too wide
moves them to both ends or to the centre), for each f. By the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart,
P(sup |F_N − F| ≥ δ) ≤ 2·exp(−2Nδ²) for any F and N, without asymptotics.

**False failures**: ``LEVEL`` = 1e-6 each, Bonferroni over functions and foldings. **Twins**: kernels that are wrong
in one place fail the same check with p < ``CAUGHT`` = 1e-8. Seeds are fixed and were not picked. The noise is strong:
σ is 1 to 2 on typical moves, as accept tests are best run (about 0.3 of the moves pass).

What ``DPLaplace`` and ``auto`` return is not exact: see test_intervals.
"""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.samplers import Kernel, dp_hmc
from dpmcmc.samplers.surrogate_hmc import build_propose
from tests.curator.cases import replace_records
from tests.exactness.chains import (
    LOGISTIC_JOINT,
    NUM_RECORDS,
    SKEWED_JOINT,
    Chains,
    Switches,
    dkw,
    log_densities,
    prepared_rows,
    samplers,
    surrogate_query,
)
from tests.samplers.test_invariance import keeping_only_after

SEED = 1
LEVEL, CAUGHT = 1e-6, 1e-8
FAST, FULL, MANY = 1000, 5000, 10_000
SAMPLERS = samplers(SKEWED_JOINT)
# One of each kind, and all that keep something in their state.
IN_FAST = ("DPHMC-position_first", "DPHMC-cached", "DPPenalty-all", "DPPenalty-guided", "SurrogateHMC")
IN_FAST += ("HMC-momentum_first", "RWMH-one_component")


@cache
def chains_of(name, joint=SKEWED_JOINT):
    return Chains(joint, samplers(joint)[name])


def uniform_ranks(values, generator):
    """The rank of each row's first value among all, ties broken at random: 0 to their number − 1."""
    first = values[:, :1]
    below = np.sum(values < first, axis=1)
    return below + generator.integers(0, np.sum(values == first, axis=1))


def departure(ranks, elements):
    """A bound on the probability that uniform ranks are as far from uniform as these."""
    number, sizes = len(ranks), np.arange(elements + 1)
    values = []
    for transform in (lambda rank: rank, lambda rank: np.abs(2 * rank - elements)):
        every, found = np.sort(transform(sizes)), np.sort(transform(ranks))
        found = np.searchsorted(found, every, side="right") / number
        values.append(dkw(np.max(np.abs(found - np.searchsorted(every, every, side="right") / len(every))), number))
    return min(1.0, len(values) * min(values))


def quantities(chains, records, theta, kept):
    """Functions of each element and the records: θ, a product, ln p(x|θ), ln p(x, θ), the error of a kept gradient."""
    density = log_densities(chains.joint, records, theta)
    found = {
        "first": theta[..., 0],
        "second": theta[..., 1],
        "product": theta[..., 0] * theta[..., 1],
        "log-likelihood": density.likelihood,
        "log-joint": density.likelihood + density.prior,
    }
    if getattr(chains.sampler, "leapfrog", None) == "cached":
        found["kept gradient"] = np.linalg.norm(kept - density.gradient, axis=-1)
    # The same point has the same value, however sums were rounded.
    same = np.all(theta == theta[:, :1], axis=-1) & np.all(kept == kept[:, :1], axis=-1)
    return {name: np.where(same, value[:, :1], value) for name, value in found.items()}


def calibration(chains, number, seed=SEED, **twin):
    """p-values by quantity, each times their number; the share of elements that are not where the start was."""
    generator = np.random.default_rng(seed)
    theta = chains.joint.draw_prior(generator, number)
    records = chains.joint.draw_records(generator, theta)
    hidden = generator.integers(0, chains.elements + 1, number)
    elements, kept = chains.run(seed + 1, theta, records, hidden, **twin)
    found = quantities(chains, records, elements, kept)
    moved = np.mean(np.any(elements[:, 1:] != elements[:, :1], axis=-1))
    p_values = {
        name: min(1.0, len(found) * departure(uniform_ranks(values, generator), chains.elements))
        for name, values in found.items()
    }
    return p_values, moved


def smallest(chains, number, **twin):
    p_values, moved = calibration(chains, number, **twin)
    assert moved > 0.25, "chains that stand still would pass any test"
    return min(p_values.values())


def slow_unless(fast, names):
    """Parameters, of which all but some are left to ``make test-all``."""
    return [pytest.param(name, marks=[] if name in fast else [pytest.mark.slow]) for name in names]


# ---------------------------------------------------------------------- the setting is what it is said to be


@pytest.mark.parametrize("joint", [SKEWED_JOINT, LOGISTIC_JOINT], ids=["skewed", "logistic"])
def test_records_are_placed_as_the_curator_places_them(joint):
    chains = chains_of("DPPenalty-all", joint)
    generator = np.random.default_rng(SEED)
    records = joint.draw_records(generator, joint.draw_prior(generator, 3))
    placed = chains.place(records)
    for number in range(3):
        replace_records(chains.curator, jax.tree.map(lambda leaf, number=number: leaf[number], records))
        for found, expected in zip(jax.tree.leaves(placed), jax.tree.leaves(chains.curator._records), strict=True):
            np.testing.assert_array_equal(found[number], np.asarray(expected))


@pytest.mark.parametrize("joint", [SKEWED_JOINT, LOGISTIC_JOINT], ids=["skewed", "logistic"])
def test_no_log_ratio_reaches_the_bound(joint):
    """|r| ≤ b‖Δθ‖ follows from bounded scores; Surrogate HMC's bound is seen to be enough."""
    generator = np.random.default_rng(SEED)
    theta = joint.draw_prior(generator, 4000)
    rows = prepared_rows(joint, joint.draw_records(generator, theta))
    sampler = samplers(joint)["SurrogateHMC"]
    with exact_arithmetic():
        propose = jax.jit(build_propose(joint.model, *sampler.structure))
        proposal = propose(jax.random.key(SEED), jnp.asarray(theta), sampler.numbers(NUM_RECORDS)).position
        each = jax.jit(jax.vmap(jax.vmap(joint.model.unconstrained_log_likelihood, (None, 0))))
        ratios = np.abs(each(proposal, rows) - each(jnp.asarray(theta), rows))
        query = surrogate_query(sampler)
        geometry = query.geometry(jnp.asarray(theta), proposal, query.numbers(NUM_RECORDS))
        distance = np.linalg.norm(np.asarray(proposal) - theta, axis=1)
    moved = distance > 0.0
    assert moved.mean() > 0.5
    assert np.all(ratios <= joint.score_bound * distance[:, None])
    assert np.all(ratios[moved] < np.asarray(geometry.spacing * geometry.bound)[moved, None])


def test_ranks_are_uniform_where_the_chain_is_exchangeable_and_the_check_sees_where_not():
    """Independent draws pass; shifted by a fifth of their sd, or a fifth wider, they do not."""
    generator = np.random.default_rng(SEED)
    draws = generator.normal(size=(MANY, 9))
    assert departure(uniform_ranks(draws, generator), 8) > LEVEL
    assert departure(uniform_ranks(np.where(np.arange(9) > 0, draws + 0.2, draws), generator), 8) < CAUGHT
    assert departure(uniform_ranks(np.where(np.arange(9) > 0, draws * 1.2, draws), generator), 8) < CAUGHT
    assert departure(uniform_ranks(np.zeros((MANY, 9)), generator), 8) > LEVEL  # all ties


# ---------------------------------------------------------------------- calibration


@pytest.mark.parametrize("name", slow_unless(IN_FAST, SAMPLERS))
def test_ranks_are_uniform(name):
    assert smallest(chains_of(name), FAST) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_ranks_are_uniform_in_many_replications(name):
    assert smallest(chains_of(name), FULL, seed=SEED + 10) > LEVEL


@pytest.mark.parametrize("name", slow_unless(["DPHMC-cached"], SAMPLERS))
def test_ranks_are_uniform_for_a_regression_in_closed_form(name):
    """The same with logistic regression, whose sums the curator computes by other code."""
    assert smallest(chains_of(name, LOGISTIC_JOINT), FAST) > LEVEL


# ---------------------------------------------------------------------- twins: what is wrong is caught

NO_PENALTY = {"switches": Switches(penalty=0.0)}
DOUBLED_PENALTY = {"switches": Switches(penalty=2.0**0.5)}
NOISE_SAID_TO_BE_SMALLER = {"switches": Switches(penalty=0.7)}
FLIPPED_PRIOR = {"switches": Switches(prior=-2.0)}
STEPS_THAT_LOOK = {"switches": Switches(looks=2.0)}
NO_TURN = {"switches": Switches(turns=0.0)}
CLIPPED = {"ratio_bound": 0.7}

FAST_TWINS = {
    "the penalty σ²/2 left out": ("DPPenalty-all", NO_PENALTY, FAST),
    "the prior with the wrong sign": ("DPHMC-position_first", FLIPPED_PRIOR, FAST),
    "step sizes chosen after looking at θ": ("HMC-momentum_first", {"switches": Switches(looks=1.0)}, 2 * FAST),
    "a guided walk that does not turn": ("DPPenalty-guided", NO_TURN, FAST),
    "log-ratios that are clipped": ("DPPenalty-guided", CLIPPED, 2 * FAST),
    "no penalty, on a surrogate": ("SurrogateHMC", NO_PENALTY, 2 * FAST),
    "the prior with the wrong sign, without noise": ("RWMH-one_component", FLIPPED_PRIOR, FAST),
}


@pytest.mark.parametrize("twin", FAST_TWINS)
def test_twin(twin):
    name, options, number = FAST_TWINS[twin]
    assert smallest(chains_of(name), number, **options) < CAUGHT


def those(*kinds):
    return [name for name in SAMPLERS if name.startswith(kinds)]


# As many replications as it takes: the cheaper the sampler or the louder the bug, the more or the fewer.
SLOW_TWINS = [
    *[(name, "no penalty", NO_PENALTY, FULL) for name in those("DP", "Surrogate")],
    *[(name, "doubled penalty", DOUBLED_PENALTY, MANY) for name in those("DPPenalty")],
    *[(name, "noise sd 0.7 of what it is", NOISE_SAID_TO_BE_SMALLER, MANY) for name in those("DPPenalty", "Surr")],
    *[(name, "prior flipped", FLIPPED_PRIOR, FAST) for name in SAMPLERS],
    # (Walks that move one coordinate at a time drift too slowly for that: test_geweke catches them.)
    *[(name, "steps that look", STEPS_THAT_LOOK, FULL) for name in those("HMC", "RWMH-all")],
    *[(name, "steps that look", STEPS_THAT_LOOK, MANY) for name in those("DPHMC", "DPPenalty-all", "Surrogate")],
    *[(name, "clipped", CLIPPED, FULL) for name in those("DP")],
    *[(name, "no turn", NO_TURN, FAST) for name in ("DPPenalty-guided", "RWMH-guided")],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "twin", "options", "number"), SLOW_TWINS, ids=[f"{name}, {twin}" for name, twin, *_ in SLOW_TWINS]
)
def test_twin_of_every_sampler(name, twin, options, number):
    assert smallest(chains_of(name), number, seed=SEED + 10, **options) < CAUGHT


def test_twin_kinetic_energy_with_the_wrong_sign(monkeypatch):
    make_mass = dp_hmc.make_mass

    def negated(matrix, dimension):
        mass = make_mass(matrix, dimension)
        return mass._replace(kinetic_energy=lambda momentum: -mass.kinetic_energy(momentum))

    monkeypatch.setattr(dp_hmc, "make_mass", negated)
    assert smallest(Chains(SKEWED_JOINT, SAMPLERS["DPHMC-position_first"]), FAST) < CAUGHT


# Where a kept gradient is good or bad for acceptance: short trajectories, and noise well above the gradient.
KEEPING = replace(
    SAMPLERS["DPHMC-cached"],
    num_leapfrog=1,
    gradient_noise_multiplier=2.0,
    ratio_noise_multiplier=0.3,
)


@pytest.mark.slow
def test_a_kept_gradient_is_kept_rightly():
    assert smallest(Chains(SKEWED_JOINT, KEEPING), FULL) > LEVEL


@pytest.mark.parametrize(
    ("acceptance", "number"),
    [
        pytest.param(False, 2 * FAST, id="rejection"),
        pytest.param(True, 15 * FAST, id="acceptance", marks=pytest.mark.slow),
    ],
)
def test_twin_gradient_kept_after_one_outcome_only(acceptance, number):
    """Of the outcomes, acceptance is the harder one to notice: few chains pay for a gradient that came with a move."""

    def spoil(kernel: Kernel) -> Kernel:
        return keeping_only_after(kernel, acceptance)

    assert smallest(Chains(SKEWED_JOINT, KEEPING, spoil=spoil, extra_gradients=1), number) < CAUGHT
