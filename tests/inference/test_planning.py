"""What a budget buys: the paper's iteration counts, and that a run is charged what its plan says."""

import math

import pytest

import dpmcmc
from dpmcmc.errors import BudgetExceededError, QueryError
from dpmcmc.inference.planning import require_steps

N = 100_000
ROOT = math.sqrt(N)
DELTA = 1e-6


def hmc(**settings):
    return dpmcmc.DPHMC(**settings, leapfrog="momentum_first")


PAPER = {
    "DP-HMC banana": (
        hmc(
            step_size=0.006,
            num_leapfrog=25,
            ratio_clip=0.1,
            gradient_clip=0.05,
            ratio_noise=0.10 * ROOT,
            gradient_noise=0.55 * ROOT,
        ),
        {4: 377, 15: 3569},
    ),
    "DP-HMC Gaussian": (
        hmc(
            step_size=0.00015,
            num_leapfrog=12,
            ratio_clip=6.0,
            gradient_clip=10.0,
            ratio_noise=0.10 * ROOT,
            gradient_noise=0.25 * ROOT,
        ),
        {4: 227, 15: 2154},
    ),
    "DP-penalty banana": (dpmcmc.DPPenalty(0.06, 0.15, 0.17 * ROOT), {4: 2028, 15: 19180}),
    "DP-penalty Gaussian": (dpmcmc.DPPenalty(0.0007, 10.0, 0.05 * ROOT), {4: 175, 15: 1659}),
}


@pytest.mark.parametrize(("sampler", "expected"), PAPER.values(), ids=PAPER.keys())
def test_iterations_granted_are_the_papers(sampler, expected):
    """Give or take the one iteration that exact accounting may cost."""
    for epsilon, total in expected.items():
        plan = dpmcmc.plan(sampler, num_records=N, epsilon=epsilon, delta=DELTA)
        assert total - 1 <= plan.total_steps <= total
        assert plan.num_steps == plan.total_steps // 4
        assert plan.mu_per_step * plan.total_steps <= plan.mu_total < plan.mu_per_step * (plan.total_steps + 1)


def test_minibatch_samplers_get_the_steps_of_the_valid_accountant():
    """DP-SGLD on the paper's Gaussian model, ε = 4: `wor_max` of the vectors says 4177 steps, and 0.1 % is allowed."""
    sampler = dpmcmc.DPSGLD(batch_size=1000, gradient_clip=15.0, step_size=0.008 / N, temperature=0.5)
    assert sampler.queries(N).gradient.noise_ratio / 2 == pytest.approx(1.1785113019775793, rel=1e-12)
    plan = dpmcmc.plan(sampler, num_records=N, epsilon=4.0, delta=DELTA)
    assert plan.total_steps == pytest.approx(4177, rel=1e-3)
    assert plan.mu_per_step is None
    assert plan.queries == {"batch_gradient": 4 * plan.num_steps}


def test_noise_of_the_minibatch_samplers_is_that_of_the_vectors():
    sgnht = dpmcmc.DPSGNHT(batch_size=1000, gradient_clip=12.0, step_size=0.2 / N, diffusion=30.0)
    assert sgnht.queries(N).gradient.noise_ratio / 2 == pytest.approx(2.282177322938192, rel=1e-12)
    banana = dpmcmc.DPSGLD(batch_size=1000, gradient_clip=0.2, step_size=1.0 / N, temperature=0.5)
    assert banana.queries(N).gradient.noise_ratio / 2 == pytest.approx(7.905694150420947, rel=1e-12)


def test_queries_are_counted_by_kind():
    settings = {"step_size": 0.1, "num_leapfrog": 5, "ratio_clip": 1.0, "gradient_clip": 1.0}
    settings |= {"ratio_noise": 100.0, "gradient_noise": 100.0}
    counts = {}
    for leapfrog in ("position_first", "momentum_first", "cached"):
        plan = dpmcmc.plan(dpmcmc.DPHMC(**settings, leapfrog=leapfrog), num_records=N, epsilon=4.0, delta=DELTA)
        counts[leapfrog] = plan.queries["gradient"] - plan.num_steps * 4 * 5
        assert plan.queries["log_ratio"] == plan.num_steps * 4
        if leapfrog == "momentum_first":
            assert counts[leapfrog] == plan.num_steps * 4
    assert counts["position_first"] == 0
    assert counts["cached"] == 4


def test_a_plan_is_plain_data():
    plan = dpmcmc.plan(PAPER["DP-penalty banana"][0], num_records=N, epsilon=4.0, delta=DELTA)
    assert plan.to_dict()["total_steps"] == plan.total_steps


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"num_records": 0}, "num_records"),
        ({"num_chains": 0}, "num_chains"),
        ({"num_chains": 2.5}, "num_chains"),
    ],
)
def test_bad_arguments(arguments, names):
    good = {"num_records": N, "epsilon": 1.0, "delta": DELTA, "num_chains": 4}
    with pytest.raises(QueryError, match=names):
        dpmcmc.plan(PAPER["DP-penalty banana"][0], **{**good, **arguments})


def test_what_is_not_private_has_no_plan():
    with pytest.raises(QueryError, match="adds no noise"):
        dpmcmc.plan(dpmcmc.RWMH(0.1), num_records=N, epsilon=1.0, delta=DELTA)
    with pytest.raises(QueryError, match="sampler"):
        dpmcmc.plan("auto", num_records=N, epsilon=1.0, delta=DELTA)
    with pytest.raises(QueryError, match="batch_size"):
        dpmcmc.plan(dpmcmc.DPSGLD(1000, 1.0, 1e-5), num_records=500, epsilon=1.0, delta=DELTA)


def test_a_budget_that_buys_nothing_says_so():
    plan = dpmcmc.plan(dpmcmc.DPPenalty(0.1, 1.0, 0.5), num_records=N, epsilon=0.5, delta=DELTA)
    assert plan.num_steps == 0
    with pytest.raises(BudgetExceededError, match="more noise, fewer chains or a larger budget"):
        require_steps(plan)


def test_the_reserve_for_discrete_noise_limits_very_long_runs():
    """Very many steps of very many parameters: known beforehand, not found out in the middle of a run."""
    sampler = dpmcmc.DPSGLD(batch_size=3, gradient_clip=1.0, step_size=1e-7)
    free = dpmcmc.plan(sampler, num_records=3000, epsilon=0.5, delta=DELTA)
    limited = dpmcmc.plan(sampler, num_records=3000, epsilon=0.5, delta=DELTA, dimension=10**5)
    assert 0 < limited.total_steps < free.total_steps
    lattice = sampler.queries(3000).gradient.lattice(3000, 10**5)
    assert limited.total_steps * lattice.lattice_epsilon <= 1e-5 * 0.5


def test_a_sampler_of_ones_own_is_refused():
    """It is handed the noise, so it could cancel it: only samplers that were held to their declaration are private."""

    class Sneaky(dpmcmc.DPPenalty):
        pass

    with pytest.raises(QueryError, match="sampler must be one of"):
        dpmcmc.plan(Sneaky(0.1, 1.0, 5.0), num_records=N, epsilon=1.0, delta=DELTA)
