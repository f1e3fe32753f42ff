"""Every statement of a run holds all that its ε follows from: it is computed again here, for every sampler."""

import dataclasses
import json
import math

import pytest

import dpmcmc
from dpmcmc.errors import QueryError
from dpmcmc.inference.planning import make_funds, make_statement
from dpmcmc.privacy import PrivacyStatement, gaussian_delta_bound, gaussian_epsilon, subsampled_delta
from dpmcmc.privacy.statement import NOISE_FREE_MODE, PRIVATE_MODE, SEEDED_MODE

N = 20_000
EPSILON, DELTA = 2.0, 1e-6
DIMENSION, CHAINS = 5, 3
SAMPLERS = {
    "DP-HMC": dpmcmc.DPHMC(0.01, 10, 1.0, 1.0, ratio_noise_multiplier=30.0, gradient_noise_multiplier=100.0),
    "DP-HMC cached": dpmcmc.DPHMC(
        0.01, 10, 1.0, 1.0, ratio_noise_multiplier=30.0, gradient_noise_multiplier=100.0, leapfrog="cached"
    ),
    "DP-penalty": dpmcmc.DPPenalty(0.1, 1.0, 40.0),
    "DP-SGLD": dpmcmc.DPSGLD(200, 1.0, 1e-5),
    "DP-SGLD Poisson": dpmcmc.DPSGLD(200, 1.0, 1e-5, sampling="poisson"),
    "DP-SGLD all records": dpmcmc.DPSGLD(N, 1.0, 1e-7),
    "DP-SGNHT": dpmcmc.DPSGNHT(200, 1.0, 1e-4, 30.0),
}
BATCHES = {name for name in SAMPLERS if "SG" in name}


def state(name, *, steps=None, fixed=True, check_records=True, **changes):
    """State a run of this sampler; ``steps`` of each chain, by default as many as the budget pays for."""
    sampler = SAMPLERS[name]
    sizes = {"num_records": N, "dimension": DIMENSION, "num_chains": CHAINS}
    queries = sampler.queries(N)
    if steps is None:
        budget = {"epsilon": EPSILON, "delta": DELTA, "check_records": check_records}
        steps = dpmcmc.plan(sampler, **sizes, **budget).num_steps
    run = {
        "private": True,
        "mode": PRIVATE_MODE,
        "unit_of_privacy": "one row",
        **sizes,
        "epsilon": EPSILON,
        "delta": DELTA,
        "steps_charged": steps,
        "steps_fixed": steps if fixed else None,
        "interrupted": False,
        "record_check": make_funds(queries, N, EPSILON, DELTA, check_records).record_check,
    }
    return make_statement(sampler, queries, **(run | changes))


@pytest.mark.parametrize("check_records", [True, False])
@pytest.mark.parametrize("name", SAMPLERS)
def test_epsilon_follows_from_what_is_stated(name, check_records):
    """Few steps fixed beforehand: ε is theirs. As many as the budget decides: ε is the budget's, which covers them."""
    few = state(name, steps=7, check_records=check_records)
    few.check()
    assert few.recomputed_epsilon() == few.epsilon < few.budget_epsilon == EPSILON
    assert few.interrupted is False
    whole = state(name, fixed=False, check_records=check_records)
    whole.check()
    assert whole.recomputed_epsilon() <= whole.epsilon == EPSILON
    assert few.queries.get("invalid_count", 0) == int(check_records)
    assert state(name, check_records=check_records).epsilon <= EPSILON  # fixed, and just what it pays for


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_stated_epsilon_by_hand(name):
    """The sum that a reader would do, with the curves themselves: δ at the stated ε is at most the stated δ."""
    made = state(name, steps=7)
    slack, epsilon = made.lattice_epsilon, made.epsilon - made.lattice_epsilon
    if name in BATCHES:
        assert made.mu is None
        assert made.noise_multipliers.keys() == {"invalid_count"}
        apart = made.set_apart["invalid_count"]
        assert apart == {"epsilon": 0.005 * EPSILON, "delta": 0.001 * DELTA}
        batches = made.batches
        assert batches["sampling_prob"] == batches["batch_size"] / N
        assert batches["noise_ratio"] == SAMPLERS[name].queries(N).gradient.noise_ratio
        assert made.queries["batch_gradient"] == 7 * CHAINS
        curve = (batches["noise_ratio"], batches["sampling_prob"], 7 * CHAINS)
        delta = subsampled_delta(*curve, epsilon - apart["epsilon"], batches["sampling"]) + apart["delta"]
        # And the part that is set apart pays for the record check.
        cost = 0.5 / made.noise_multipliers["invalid_count"] ** 2
        assert gaussian_epsilon(cost, apart["delta"]) <= apart["epsilon"]
    else:
        assert made.batches is None
        assert made.set_apart == {}
        cost = math.fsum(number / (2 * made.noise_multipliers[kind] ** 2) for kind, number in made.queries.items())
        assert made.mu == pytest.approx(cost, rel=1e-14)
        delta = gaussian_delta_bound(made.mu, epsilon)
    assert delta * math.exp(slack / 2) + made.lattice_delta == pytest.approx(DELTA, rel=1e-3)


@pytest.mark.parametrize("name", ["DP-penalty", "DP-SGLD"])
def test_an_interrupted_run_states_the_whole_budget(name):
    made = state(name, steps=7, interrupted=True)
    made.check()
    assert made.epsilon == made.budget_epsilon == EPSILON
    assert "Interrupted" in str(made)
    with pytest.raises(QueryError, match="interrupted"):
        dataclasses.replace(made, epsilon=1.9).check()


def test_a_run_without_noise_has_nothing_to_state():
    sampler = dpmcmc.RWMH(0.1)
    made = make_statement(
        sampler,
        sampler.queries(N),
        private=False,
        mode=NOISE_FREE_MODE,
        unit_of_privacy="one row",
        num_records=N,
        dimension=2,
        num_chains=4,
        epsilon=None,
        delta=None,
        steps_charged=100,
        steps_fixed=100,
        interrupted=False,
        record_check=None,
    )
    made.check()
    assert (made.epsilon, made.delta, made.mu, made.accountant) == (None, None, None, "none")
    with pytest.raises(QueryError, match="no budget"):
        made.recomputed_epsilon()
    with pytest.raises(QueryError, match="contradicts itself"):
        dataclasses.replace(made, mu=0.1).check()
    with pytest.raises(QueryError, match="contradicts itself"):
        dataclasses.replace(made, accountant="Gaussian composition").check()


@pytest.mark.parametrize("name", SAMPLERS)
def test_json_restores_it_and_text_shows_every_number(name):
    made = state(name, steps=7)
    assert PrivacyStatement.from_json(made.to_json()) == made
    assert "were fixed beforehand" in made.adaptive
    text = str(made)
    numbers = [made.epsilon, made.delta, made.budget_epsilon, made.lattice_epsilon, made.lattice_delta]
    numbers += [*made.queries.values(), *made.noise_multipliers.values()]
    numbers += [made.mu] if made.batches is None else list(made.batches.values())
    numbers += [value for part in made.set_apart.values() for value in part.values()]
    for number in numbers:
        assert (number.replace("_", " ") if isinstance(number, str) else repr(number)) in text
    assert "0 batch_gradient" not in text.replace(f"{7 * CHAINS} batch_gradient", "")


GAUSSIAN_LIES = {
    "epsilon": {"epsilon": 0.5},
    "epsilon above the budget": {"epsilon": 2.5},
    "delta": {"delta": 1e-9},
    "budget_epsilon": {"budget_epsilon": 0.5},
    "mu": {"mu": 0.01},
    "mu missing": {"mu": None},
    "lattice_epsilon": {"lattice_epsilon": 0.1},
    "lattice_delta": {"lattice_delta": 0.99e-6},
    "lattice_delta larger than delta": {"lattice_delta": 1e-5},
    "no slack": {"lattice_epsilon": 0.0},
    "unit": {"unit_of_privacy": "one household"},
    "relation": {"neighboring_relation": "add or remove one"},
    "queries": {"queries": {"log_ratio": 100_000, "invalid_count": 1}},
    "queries missing": {"queries": {"invalid_count": 1}},
    "queries without noise": {"queries": {"log_ratio": 300, "invalid_count": 1, "gradient": 3}},
    "noise_multipliers": {"noise_multipliers": {"log_ratio": 4.0, "invalid_count": 200.0}},
    "noise_multipliers missing": {"noise_multipliers": {"log_ratio": 40.0}},
    "batches": {
        "batches": {"batch_size": 200, "sampling_prob": 0.01, "sampling": "poisson", "noise_ratio": 10.0},
    },
    "set_apart": {"set_apart": {"log_ratio": {"epsilon": 0.01, "delta": 1e-9}}},
    "accountant": {"accountant": "subsampled Gaussian, poisson (PLD, replace one)"},
}


@pytest.mark.parametrize("lie", GAUSSIAN_LIES.values(), ids=GAUSSIAN_LIES.keys())
def test_check_refuses_a_gaussian_statement_with_any_field_changed(lie):
    made = state("DP-penalty", steps=100)
    made.check()
    with pytest.raises(QueryError):
        dataclasses.replace(made, **lie).check()


def batch_lies(made):
    batches, apart = made.batches, made.set_apart["invalid_count"]
    return {
        "epsilon": {"epsilon": 0.9 * made.epsilon},
        "delta": {"delta": 0.5 * DELTA},
        "mu": {"mu": 0.1},
        "num_records": {"num_records": 10 * N},
        "num_records below the batch": {"num_records": 100},
        "lattice_epsilon": {"lattice_epsilon": 0.1},
        "lattice_delta": {"lattice_delta": 0.5 * DELTA},
        "no slack": {"lattice_delta": 0.0},
        "queries": {"queries": made.queries | {"batch_gradient": 100 * made.queries["batch_gradient"]}},
        "queries missing": {"queries": {"invalid_count": 1}},
        "another kind": {"queries": made.queries | {"gradient": 1}},
        "another kind with noise": {
            "queries": made.queries | {"gradient": 1},
            "noise_multipliers": made.noise_multipliers | {"gradient": 10.0},
        },
        "noise_multipliers": {"noise_multipliers": {"invalid_count": 1.0}},
        "batch_size": {"batches": batches | {"batch_size": 100}},
        "sampling_prob": {"batches": batches | {"sampling_prob": 0.001}},
        "sampling": {"batches": batches | {"sampling": "poisson"}},
        "noise_ratio": {"batches": batches | {"noise_ratio": 0.5 * batches["noise_ratio"]}},
        "batches": {"batches": None},
        "set_apart, too little": {"set_apart": {"invalid_count": apart | {"epsilon": 1e-6}}},
        "set_apart, more": {"set_apart": {"invalid_count": apart | {"epsilon": 0.5}}},
        "set_apart, nothing left": {"set_apart": {"invalid_count": apart | {"delta": 2 * DELTA}}},
        "set_apart missing": {"set_apart": {}},
        "set_apart of what was not asked": {"set_apart": {"clip_count": apart}},
        "accountant": {"accountant": "Gaussian composition"},
    }


def test_check_refuses_a_batch_statement_with_any_field_changed():
    made = state("DP-SGLD", steps=50)
    made.check()
    for name, lie in batch_lies(made).items():
        try:
            dataclasses.replace(made, **lie).check()
        except QueryError:
            continue
        pytest.fail(f"{name} was changed, and the statement passed")


def test_a_seeded_run_is_accounted_for_but_guarantees_nothing():
    made = state("DP-penalty", steps=7, private=False, mode=SEEDED_MODE)
    made.check()
    assert made.recomputed_epsilon() == made.epsilon
    assert "NOT PRIVATE" in str(made)


def test_a_statement_is_plain_data():
    made = state("DP-SGLD", steps=7)
    values = made.to_dict()
    values["batches"]["batch_size"] = 1
    values["set_apart"]["invalid_count"]["epsilon"] = 9.0
    assert made.batches["batch_size"] == 200
    assert made.set_apart["invalid_count"]["epsilon"] == 0.01
    assert json.loads(made.to_json(derived=False)) == made.to_dict()
