"""Noise that was calibrated for a number of steps buys exactly these from a real budget and in a real plan."""

import math
import random
from fractions import Fraction

import pytest

import dpmcmc
from dpmcmc import privacy
from dpmcmc.errors import BudgetExceededError, QueryError
from dpmcmc.privacy import calibration
from dpmcmc.privacy.budget import after_lattice_reserve

N = 100_000


def real_budget(epsilon, delta):
    """A budget as a run has it."""
    budget = privacy.Budget(epsilon, delta)
    budget.reserve_lattice()
    return budget


def random_budgets(number):
    generator = random.Random(3)
    for _ in range(number):
        yield (
            10.0 ** generator.uniform(-2.0, 1.5),
            10.0 ** -generator.uniform(2.0, 15.0),
            int(10.0 ** generator.uniform(0.0, 5.0)),
        )


def test_noise_for_queries_buys_exactly_these():
    for epsilon, delta, num_queries in random_budgets(300):
        multiplier = privacy.noise_for_queries(epsilon, delta, num_queries)
        cost = Fraction(privacy.gaussian_cost(multiplier))
        budget = real_budget(epsilon, delta)
        assert budget.can_spend(num_queries * cost)
        assert not budget.can_spend((num_queries + 1) * cost)
        assert privacy.queries_for_noise(epsilon, delta, multiplier) == num_queries


def test_twin_without_the_reserve_it_would_buy_fewer():
    multiplier = math.sqrt(500 / (2 * privacy.gaussian_mu(4.0, 1e-6)))
    assert privacy.queries_for_noise(4.0, 1e-6, multiplier) == 499


@pytest.mark.parametrize("shares", [None, {"gradient": 0.5, "log_ratio": 0.5}, {"gradient": 3, "log_ratio": 0.1}])
@pytest.mark.parametrize(("num_steps", "num_chains"), [(1, 1), (97, 4), (2500, 3)])
def test_a_plan_with_this_noise_buys_exactly_the_steps(shares, num_steps, num_chains):
    """With and without the record check, whose cost is then set aside."""
    for check_records in (False, True):
        public = {"num_records": N, "epsilon": 4.0, "delta": 1e-6, "num_chains": num_chains}
        check = privacy.gaussian_cost(0.005 * N) if check_records else 0.0
        noise = privacy.noise_for_steps(
            4.0,
            1e-6,
            num_steps=num_steps,
            num_chains=num_chains,
            queries_per_step={"gradient": 10, "log_ratio": 1},
            shares=shares,
            other_cost=check,
        )
        sampler = dpmcmc.DPHMC(
            step_size=0.01,
            num_leapfrog=10,
            ratio_bound=1.0,
            gradient_clip_norm=1.0,
            ratio_noise_multiplier=noise["log_ratio"],
            gradient_noise_multiplier=noise["gradient"],
        )
        bought = dpmcmc.plan(sampler, **public, check_records=check_records)
        assert bought.num_steps == num_steps
        assert bought.total_steps == num_steps * num_chains


def test_every_query_gets_the_same_noise_unless_shares_are_given():
    budget = {"num_steps": 10, "queries_per_step": {"gradient": 3, "log_ratio": 1}}
    noise = privacy.noise_for_steps(2.0, 1e-6, **budget)
    assert noise["gradient"] == noise["log_ratio"] == privacy.noise_for_queries(2.0, 1e-6, 40)
    halves = privacy.noise_for_steps(2.0, 1e-6, **budget, shares={"log_ratio": 2, "gradient": 2})
    assert halves["gradient"] == pytest.approx(math.sqrt(3) * halves["log_ratio"])


@pytest.mark.parametrize("scheme", ["without_replacement", "poisson"])
@pytest.mark.parametrize(("num_steps", "num_chains"), [(1000, 1), (30_000, 1), (500, 4)])
def test_batches_with_this_noise_ratio_are_exactly_the_steps(scheme, num_steps, num_chains):
    ratio = privacy.noise_ratio_for_steps(
        1.0, 1e-6, sampling_prob=0.01, num_steps=num_steps, num_chains=num_chains, scheme=scheme
    )
    budget = privacy.StepBudget(1.0, 1e-6, noise_ratio=ratio, sampling_prob=0.01, scheme=scheme)
    budget.reserve_lattice()
    assert budget.total // num_chains == num_steps


def test_twin_the_curve_alone_gives_other_numbers_of_steps():
    """Within 0.01 % of the least noise is not tight enough for exactly 30,000 steps."""
    ratio = privacy.smallest_noise_ratio(1.0, 1e-6, 0.01, 30_000)
    budget = privacy.StepBudget(1.0, 1e-6, noise_ratio=ratio, sampling_prob=0.01, scheme="without_replacement")
    budget.reserve_lattice()
    assert budget.total != 30_000


def test_smallest_noise_ratio_is_safe_and_nearly_least():
    ratio = privacy.smallest_noise_ratio(1.0, 1e-6, 0.01, 1000)
    assert privacy.subsampled_delta(ratio, 0.01, 1000, 1.0) <= 1e-6
    assert privacy.subsampled_delta(ratio * 0.9998, 0.01, 1000, 1.0) > 1e-6
    assert privacy.smallest_noise_ratio(50.0, 0.5, 1e-6, 1) == 0.1


def test_no_noise_ratio_is_enough():
    with pytest.raises(QueryError, match="give fewer steps, a smaller q or a larger delta"):
        privacy.smallest_noise_ratio(1.0, 1e-13, 0.01, 1000)


def test_the_reserve_is_that_of_the_budget():
    reserve, budget = after_lattice_reserve(4.0, 1e-6), real_budget(4.0, 1e-6)
    assert budget.room == (Fraction(budget.total), reserve.lattice_epsilon, reserve.lattice_delta)
    assert budget.total == privacy.gaussian_mu(reserve.epsilon, reserve.delta_of_gaussians)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_steps": 0}, "num_steps = 0"),
        ({"num_steps": 1.5}, r"num_steps = 1\.5"),
        ({"num_chains": True}, "num_chains = True"),
        ({"queries_per_step": {}}, "queries_per_step is empty"),
        ({"queries_per_step": {"gradient": 0}}, r"queries_per_step\['gradient'\] = 0"),
        ({"shares": {"log_ratio": 1.0}}, "name the same kinds"),
        ({"shares": {"gradient": 0.0}}, "share of 0"),
        ({"shares": {"gradient": -1.0}}, r"shares\['gradient'\]"),
        ({"other_cost": -1.0}, "other_cost"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(changes, words):
    with pytest.raises(QueryError, match=words):
        privacy.noise_for_steps(4.0, 1e-6, **({"num_steps": 10, "queries_per_step": {"gradient": 1}} | changes))


def test_other_queries_may_take_all():
    with pytest.raises(BudgetExceededError, match="leaves nothing for the steps"):
        privacy.noise_for_steps(4.0, 1e-6, num_steps=1, queries_per_step={"gradient": 1}, other_cost=1.0)


def test_all_of_it_is_public():
    assert set(calibration.__all__) <= set(privacy.__all__)
