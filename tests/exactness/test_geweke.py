r"""Geweke's joint distribution test of every Metropolis sampler: do the kernel and the model describe one joint law?

**The two simulators** (Geweke 2004, "Getting it right"). Marginal-conditional: θ ~ p(θ), x ~ p(x|θ).
Successive-conditional: from there, sweeps of θ' ~ K(θ, ·|x) and x' ~ p(x|θ'), K some steps of the sampler on the
records x. If K leaves p(θ|x) invariant, every sweep leaves the joint law p(θ)p(x|θ) as it is. Geweke compares long
runs of one chain with standard errors that allow for autocorrelation. Here each of N replications starts from its own
draw of the joint law and makes ``SWEEPS`` sweeps, so that under a right kernel its last (θ, x) is *exactly* a draw of
that law, and replications are independent: nothing has to converge and nothing is estimated about correlation (as in
Gandy and Scott 2020, section 3). A wrong kernel drifts further with each sweep, since the records follow the
parameters. Compared are θ' and the records x by which the last sweep has found it, before they are drawn anew: after
that ln p(x|θ) would say nothing about the kernel.

Records, and all else that a sampler keeps of them (directions, kept gradients), are drawn anew in each sweep: given x
and θ', directions are uniform and a gradient has the law that ``init`` draws it from.

**The test.** Functions of (θ, x): both parameters, their squares and product, ln p(x|θ), the products of a parameter
with the mean outcome, and ‖∇ ln p(x, θ)‖², which grows with the distance from the posterior's mode. The law of each
is known to any accuracy by draws of the joint law, R = 100 N of them. With D = sup |F_N − F_R| ≤ sup |F_N − F| + sup
|F_R − F| and the inequality of Dvoretzky, Kiefer, Wolfowitz and Massart for both parts, split so that their bounds
are equal,

    P(sup |F_N − F_R| ≥ D) ≤ 4·exp(−2D²·NR/(√N + √R)²).

**False failures**: ``LEVEL`` = 1e-6 each, Bonferroni over the functions; no asymptotics. **Twins** fail the same
check with p < ``CAUGHT`` = 1e-8. Seeds are fixed and were not picked.
"""

from functools import cache

import numpy as np
import pytest

from tests.exactness.chains import LOGISTIC_JOINT, SKEWED_JOINT, Chains, Switches, log_densities, samplers

SEED = 100
LEVEL, CAUGHT = 1e-6, 1e-8
FAST, FULL = 1000, 4000
REFERENCE = 100
SWEEPS = 6
SAMPLERS = samplers(SKEWED_JOINT)
IN_FAST = ("DPHMC-position_first", "DPPenalty-guided", "SurrogateHMC", "HMC-cached", "RWMH-all")


@cache
def chains_of(name, joint=SKEWED_JOINT):
    return Chains(joint, samplers(joint)[name], elements=1, thin=5)


def functions(joint, theta, records):
    """What is compared, by name: one number a replication."""
    outcome = np.mean(records["y"] if isinstance(records, dict) else records[..., 1], axis=1)
    first, second = theta.T
    density = log_densities(joint, records, theta[:, None])
    return {
        "first": first,
        "second": second,
        "first²": first**2,
        "second²": second**2,
        "product": first * second,
        "log-likelihood": density.likelihood[:, 0],
        "slope²": np.sum(density.gradient[:, 0] ** 2, axis=1),
        "first × outcome": first * outcome,
        "second × outcome": second * outcome,
    }


@cache
def marginal_conditional(joint, number):
    """Draws of the joint law, sorted by function."""
    generator = np.random.default_rng(SEED - 1)
    theta = joint.draw_prior(generator, number)
    found = functions(joint, theta, joint.draw_records(generator, theta))
    return {name: np.sort(values) for name, values in found.items()}


def successive_conditional(chains, number, seed=SEED, **twin):
    """Parameters after some sweeps from the joint law, the records of the last, and the share that it has moved."""
    generator = np.random.default_rng(seed)
    theta = chains.joint.draw_prior(generator, number)
    for sweep in range(SWEEPS):
        records = chains.joint.draw_records(generator, theta)
        elements, _ = chains.run(seed + 1 + sweep, theta, records, **twin)
        theta = elements[:, -1]
    moved = np.mean(np.any(elements[:, 0] != theta, axis=1))
    return theta, records, moved


def distance(values, reference):
    """sup |F_N − F_R|, where both only step."""
    points = np.sort(values)
    place = [np.searchsorted(reference, points, side=side) / len(reference) for side in ("left", "right")]
    # (A value that comes twice steps twice: where it is entered from below, and left.)
    own = [np.searchsorted(points, points, side=side) / len(points) for side in ("left", "right")]
    return max(np.max(np.abs(a - b)) for a, b in zip(own, place, strict=True))


def p_value(values, reference):
    n, r = len(values), len(reference)
    exponent = 2.0 * distance(values, reference) ** 2 * n * r / (np.sqrt(n) + np.sqrt(r)) ** 2
    return min(1.0, 4.0 * float(np.exp(-exponent)))


def departure(joint, theta, records):
    found, reference = functions(joint, theta, records), marginal_conditional(joint, REFERENCE * FAST)
    return {name: min(1.0, len(found) * p_value(values, reference[name])) for name, values in found.items()}


def smallest(chains, number, **twin):
    theta, records, moved = successive_conditional(chains, number, **twin)
    assert moved > 0.2, "chains that stand still would pass any test"
    return min(departure(chains.joint, theta, records).values())


def slow_unless(fast, names):
    return [pytest.param(name, marks=[] if name in fast else [pytest.mark.slow]) for name in names]


# ---------------------------------------------------------------------- right


@pytest.mark.parametrize("joint", [SKEWED_JOINT, LOGISTIC_JOINT], ids=["skewed", "logistic"])
def test_the_check_passes_draws_of_the_joint_law_and_no_others(joint):
    generator = np.random.default_rng(SEED)
    theta = joint.draw_prior(generator, FULL)
    records = joint.draw_records(generator, theta)
    assert min(departure(joint, theta, records).values()) > LEVEL
    assert min(departure(joint, 1.2 * theta, records).values()) < CAUGHT
    assert min(departure(joint, theta, joint.draw_records(generator, 1.2 * theta)).values()) < CAUGHT


@pytest.mark.parametrize("name", slow_unless(IN_FAST, SAMPLERS))
def test_sweeps_leave_the_joint_law_as_it_is(name):
    assert smallest(chains_of(name), FAST) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_sweeps_leave_the_joint_law_as_it_is_in_many_replications(name):
    assert smallest(chains_of(name), FULL, seed=SEED + 50) > LEVEL


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_sweeps_leave_the_joint_law_as_it_is_for_a_regression_in_closed_form(name):
    assert smallest(chains_of(name, LOGISTIC_JOINT), FAST) > LEVEL


# ---------------------------------------------------------------------- twins

NO_PENALTY = {"switches": Switches(penalty=0.0)}
FLIPPED_PRIOR = {"switches": Switches(prior=-2.0)}
STEPS_THAT_LOOK = {"switches": Switches(looks=2.0)}
NO_TURN = {"switches": Switches(turns=0.0)}
CLIPPED = {"ratio_bound": 0.7}
FAST_TWINS = {
    "the prior with the wrong sign, DPHMC": ("DPHMC-position_first", FLIPPED_PRIOR),
    "the prior with the wrong sign, SurrogateHMC": ("SurrogateHMC", FLIPPED_PRIOR),
    "the prior with the wrong sign, RWMH": ("RWMH-all", FLIPPED_PRIOR),
    "the penalty σ²/2 left out": ("DPPenalty-guided", NO_PENALTY),
    "log-ratios that are clipped": ("DPPenalty-guided", CLIPPED),
    "step sizes chosen after looking at θ": ("HMC-cached", STEPS_THAT_LOOK),
}


@pytest.mark.parametrize("twin", FAST_TWINS)
def test_twin(twin):
    name, options = FAST_TWINS[twin]
    assert smallest(chains_of(name), FAST, **options) < CAUGHT


def those(*kinds):
    return [name for name in SAMPLERS if name.startswith(kinds)]


SLOW_TWINS = [
    *[(name, "no penalty", NO_PENALTY, FULL) for name in those("DPPenalty", "Surrogate")],
    *[(name, "prior flipped", FLIPPED_PRIOR, FAST) for name in SAMPLERS],
    *[(name, "steps that look", STEPS_THAT_LOOK, FULL) for name in SAMPLERS],
    *[(name, "clipped", CLIPPED, FULL) for name in those("DP")],
    *[(name, "no turn", NO_TURN, FULL) for name in ("DPPenalty-guided", "RWMH-guided")],
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "twin", "options", "number"), SLOW_TWINS, ids=[f"{name}, {twin}" for name, twin, *_ in SLOW_TWINS]
)
def test_twin_of_every_sampler(name, twin, options, number):
    """(DP-HMC without its penalty is left to the calibration: here it takes tens of thousands of replications.)"""
    assert smallest(chains_of(name), number, seed=SEED + 50, **options) < CAUGHT
