"""What a budget buys: the paper's iteration counts, and that a run is charged what its plan says."""

import functools
import math
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import dpmcmc
from dpmcmc.errors import BudgetExceededError, ModelError, QueryError
from dpmcmc.inference.blocks import choose_shape
from dpmcmc.inference.laplace_plan import plan_laplace
from dpmcmc.inference.planning import Cost, cost_of, make_funds, predicted_acceptance, private_queries
from dpmcmc.privacy import Budget, StepBudget, gaussian_cost, gaussian_mu, smallest_noise_multiplier
from dpmcmc.queries import InvalidCount

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
            ratio_bound=0.1,
            gradient_clip_norm=0.05,
            ratio_noise_multiplier=0.10 * ROOT,
            gradient_noise_multiplier=0.55 * ROOT,
        ),
        {4: 377, 15: 3569},
    ),
    "DP-HMC Gaussian": (
        hmc(
            step_size=0.00015,
            num_leapfrog=12,
            ratio_bound=6.0,
            gradient_clip_norm=10.0,
            ratio_noise_multiplier=0.10 * ROOT,
            gradient_noise_multiplier=0.25 * ROOT,
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
        plan = dpmcmc.plan(sampler, num_records=N, epsilon=epsilon, delta=DELTA, check_records=False)
        assert total - 1 <= plan.total_steps <= total
        assert plan.num_steps == plan.total_steps // 4
        assert plan.mu_per_step * plan.total_steps <= plan.mu_total < plan.mu_per_step * (plan.total_steps + 1)


def test_minibatch_samplers_get_the_steps_of_the_valid_accountant():
    """DP-SGLD on the paper's Gaussian model, ε = 4: `wor_max` of the vectors says 4177 steps, and 0.1 % is allowed."""
    sampler = dpmcmc.DPSGLD(batch_size=1000, gradient_clip_norm=15.0, step_size=0.008 / N, temperature=0.5)
    assert sampler.queries(N).gradient.noise_ratio / 2 == pytest.approx(1.1785113019775793, rel=1e-12)
    plan = dpmcmc.plan(sampler, num_records=N, epsilon=4.0, delta=DELTA, check_records=False)
    assert plan.total_steps == pytest.approx(4177, rel=1e-3)
    assert plan.mu_per_step is None
    assert plan.queries == {"batch_gradient": 4 * plan.num_steps}
    assert plan.noise_multipliers == {}
    assert plan.batches == {
        "batch_size": 1000,
        "sampling_prob": 0.01,
        "sampling": "without_replacement",
        "noise_ratio": sampler.queries(N).gradient.noise_ratio,
    }


def test_noise_of_the_minibatch_samplers_is_that_of_the_vectors():
    sgnht = dpmcmc.DPSGNHT(batch_size=1000, gradient_clip_norm=12.0, step_size=0.2 / N, diffusion=30.0)
    assert sgnht.queries(N).gradient.noise_ratio / 2 == pytest.approx(2.282177322938192, rel=1e-12)
    banana = dpmcmc.DPSGLD(batch_size=1000, gradient_clip_norm=0.2, step_size=1.0 / N, temperature=0.5)
    assert banana.queries(N).gradient.noise_ratio / 2 == pytest.approx(7.905694150420947, rel=1e-12)


def test_queries_are_counted_by_kind():
    settings = {"step_size": 0.1, "num_leapfrog": 5, "ratio_bound": 1.0, "gradient_clip_norm": 1.0}
    settings |= {"ratio_noise_multiplier": 100.0, "gradient_noise_multiplier": 100.0}
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
        dpmcmc.plan("automatic", num_records=N, epsilon=1.0, delta=DELTA)
    with pytest.raises(QueryError, match="batch_size"):
        dpmcmc.plan(dpmcmc.DPSGLD(1000, 1.0, 1e-5), num_records=500, epsilon=1.0, delta=DELTA)


def test_a_budget_that_buys_nothing_is_an_error():
    with pytest.raises(BudgetExceededError, match=r"pays for 0 steps.*more noise, fewer chains or a larger budget"):
        dpmcmc.plan(dpmcmc.DPPenalty(0.1, 1.0, 0.5), num_records=N, epsilon=0.5, delta=DELTA)
    enough = smallest_noise_multiplier(3, Fraction(99, 100) * Fraction(gaussian_mu(0.5, DELTA)))
    with pytest.raises(BudgetExceededError, match="pays for 3 steps in all, fewer than the 4 chains"):
        dpmcmc.plan(dpmcmc.DPPenalty(0.1, 1.0, enough), num_records=N, epsilon=0.5, delta=DELTA)
    assert (
        dpmcmc.plan(dpmcmc.DPPenalty(0.1, 1.0, enough), num_records=N, epsilon=0.5, delta=DELTA, num_chains=3).num_steps
        == 1
    )


def test_the_reserve_for_discrete_noise_limits_very_long_runs():
    """Very many steps of very many parameters: known beforehand, not found out in the middle of a run."""
    sampler = dpmcmc.DPSGLD(batch_size=3, gradient_clip_norm=1.0, step_size=1e-7)
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


def test_a_class_that_was_not_called_is_refused_by_its_name():
    with pytest.raises(
        QueryError, match=r'one of "auto", DPLaplace\(\), DPHMC\(\.\.\.\).*got the class DPLaplace, not called'
    ):
        dpmcmc.plan(dpmcmc.DPLaplace, num_records=N, epsilon=1.0, delta=DELTA, dimension=2)


def test_the_plan_of_auto_is_that_of_dp_laplace_under_its_own_name():
    plan = dpmcmc.plan("auto", num_records=N, epsilon=1.0, delta=DELTA, dimension=10)
    laplace = dpmcmc.plan(dpmcmc.DPLaplace(), num_records=N, epsilon=1.0, delta=DELTA, dimension=10)
    assert (plan.sampler, laplace.sampler) == ("auto", "DP-Laplace")
    assert plan == replace(laplace, sampler="auto")
    with pytest.raises(QueryError, match=r'dimension is required for "auto".*give model\.dimension'):
        dpmcmc.plan("auto", num_records=N, epsilon=1.0, delta=DELTA)


def test_what_auto_refuses_is_what_its_plan_says(monkeypatch):
    """Before anything is spent."""
    monkeypatch.setattr(dpmcmc.Budget, "spend", None)
    plan = dpmcmc.plan("auto", num_records=100, epsilon=0.1, delta=1e-4, dimension=2)
    assert not plan.feasible
    with pytest.raises(BudgetExceededError) as refused:
        dpmcmc.sample(dpmcmc.models.Banana(), np.zeros((100, 2)), epsilon=0.1, delta=1e-4)
    assert str(refused.value) == "; ".join(plan.notes)


def test_the_plan_of_dp_laplace_is_its_own():
    plan = dpmcmc.plan(dpmcmc.DPLaplace(), num_records=N, epsilon=1.0, delta=DELTA, dimension=10)
    assert isinstance(plan, dpmcmc.LaplacePlan)
    assert plan == plan_laplace(num_records=N, epsilon=1.0, delta=DELTA, dimension=10)
    with pytest.raises(QueryError, match=r"dimension is required for DPLaplace.*give model\.dimension"):
        dpmcmc.plan(dpmcmc.DPLaplace(), num_records=N, epsilon=1.0, delta=DELTA)

    class Sneaky(dpmcmc.DPLaplace):
        pass

    with pytest.raises(QueryError, match="sampler must be one of"):
        dpmcmc.plan(Sneaky(), num_records=N, epsilon=1.0, delta=DELTA, dimension=10)


# ------------------------------------------------------------------------------------------- planned is charged


class CalibratedRun:
    """A run whose noise is the smallest with which its budget buys a given number of steps, if the reserve allows."""

    def __init__(self, generator):
        self.epsilon = 10.0 ** generator.uniform(-1.0, 1.3)
        self.delta = 2.0 ** -generator.uniform(generator.choice([8.0, 60.0]), 64.0)
        self.num_records = int(10.0 ** generator.uniform(3.0, 6.0))
        self.num_chains = generator.randint(1, 8)
        self.dimension = int(10.0 ** generator.uniform(0.0, 3.0))
        self.check_records = generator.random() < 0.5
        self.wanted = int(10.0 ** generator.uniform(0.0, 3.5))
        self.thin = generator.choice([1, 1, 2, 3, 7])
        leapfrog = generator.choice([None, "position_first", "momentum_first", "cached"])
        num_leapfrog = generator.randint(1, 30)
        funds = make_funds(dpmcmc.DPPenalty(1.0, 1.0, 1.0).queries(2), *self.budget)
        allowance = funds.main.room[0] - (Fraction(funds.record_check.mu) if self.check_records else 0)
        ratios = self.num_chains * self.wanted
        if leapfrog is None:
            self.sampler = dpmcmc.DPPenalty(1.0, 1.0, smallest_noise_multiplier(ratios, allowance))
        else:
            settings = functools.partial(dpmcmc.DPHMC, 1.0, num_leapfrog, 1.0, 1.0, leapfrog=leapfrog)
            asked = settings(1.0, 1.0).queries(self.num_records)
            gradients = self.num_chains * (self.wanted * asked.gradients_per_step + asked.gradients_at_start)
            share = Fraction(generator.uniform(0.05, 0.95))
            gradient_noise_multiplier = smallest_noise_multiplier(gradients, share * allowance)
            left = allowance - gradients * Fraction(gaussian_cost(gradient_noise_multiplier))
            self.sampler = settings(smallest_noise_multiplier(ratios, left), gradient_noise_multiplier)
        self.queries = private_queries(self.sampler, self.num_records)

    @property
    def budget(self):
        return self.num_records, self.epsilon, self.delta, self.check_records

    def cost(self, **answers):
        sizes = {"num_records": self.num_records, "dimension": self.dimension, "num_chains": self.num_chains}
        return cost_of(self.queries, **sizes, **answers)

    def steps_within_reserve(self, funds):
        """How many steps of each chain the reserve for discrete noise pays for."""
        check = funds.record_check.lattice(self.num_records, 1) if self.check_records else None
        start = self.cost(gradients=self.queries.gradients_at_start, log_ratios=0)
        step = self.cost(gradients=self.queries.gradients_per_step, log_ratios=self.queries.log_ratios_per_step)
        limits = []
        for place, meter in ((1, "lattice_epsilon"), (2, "lattice_delta")):
            room = funds.main.room[place] - (Fraction(getattr(check, meter)) if check else 0)
            limits.append((room - getattr(start, meter)) // getattr(step, meter))
        return min(limits)

    def plan(self):
        return dpmcmc.plan(
            self.sampler,
            num_records=self.num_records,
            epsilon=self.epsilon,
            delta=self.delta,
            num_chains=self.num_chains,
            dimension=self.dimension,
            check_records=self.check_records,
        )

    def charge(self, funds, num_steps, cost_of_block):
        """Charge as a run does: the record check, the start, and block after block."""
        if self.check_records:
            lattice = funds.record_check.lattice(self.num_records, self.dimension)
            slack = {"lattice_epsilon": lattice.lattice_epsilon, "lattice_delta": lattice.lattice_delta}
            funds.check.spend(funds.record_check.mu, **slack)
        shape = choose_shape(self.num_chains, num_steps, min(self.thin, num_steps))
        blocks = [shape.draws_in(block) * shape.thin for block in range(shape.num_blocks)]
        answers = [{"gradients": self.queries.gradients_at_start, "log_ratios": 0}]
        answers += [
            {
                "gradients": steps * self.queries.gradients_per_step,
                "log_ratios": steps * self.queries.log_ratios_per_step,
            }
            for steps in blocks
        ]
        for block in answers:
            cost = cost_of_block(self, block)
            funds.main.spend(cost.spent, lattice_epsilon=cost.lattice_epsilon, lattice_delta=cost.lattice_delta)
        assert sum(blocks) == num_steps - num_steps % shape.thin


def exactly(run, answers):
    return run.cost(**answers)


def in_floats(run, answers):
    """The same cost, multiplied and added up in floating point."""
    total = [0.0, 0.0, 0.0]
    asked = (run.queries.gradient, answers["gradients"]), (run.queries.log_ratio, answers["log_ratios"])
    for query, number in asked:
        if query is not None and number:
            lattice = query.lattice(run.num_records, run.dimension)
            for place, cost in enumerate((query.mu, lattice.lattice_epsilon, lattice.lattice_delta)):
                total[place] += run.num_chains * number * cost
    return Cost(*total)


@pytest.mark.slow
def test_no_calibrated_plan_is_ever_refused():
    """2000 plans, charged block by block to the real budget; each buys exactly the steps its noise was made for."""
    generator = random.Random(1)
    limited = 0
    for _ in range(2000):
        run = CalibratedRun(generator)
        funds = make_funds(run.queries, *run.budget)
        within_reserve = run.steps_within_reserve(funds)
        if within_reserve < 1:
            with pytest.raises(BudgetExceededError, match="for discrete noise"):
                run.plan()
            continue
        plan = run.plan()
        assert plan.num_steps == min(run.wanted, within_reserve)
        limited += plan.num_steps < run.wanted
        run.charge(funds, plan.num_steps, exactly)
        assert plan.queries.get("invalid_count", 0) == int(run.check_records)
    assert 30 < limited < 1000  # both kinds of limit were met


def test_twin_charged_in_floats_some_of_them_are_refused():
    generator = random.Random(1)
    refused = 0
    for _ in range(300):
        run = CalibratedRun(generator)
        funds = make_funds(run.queries, *run.budget)
        if run.steps_within_reserve(funds) >= run.wanted:
            try:
                run.charge(funds, run.wanted, in_floats)
            except BudgetExceededError:
                refused += 1
    assert refused >= 10


def test_twin_without_the_reserve_on_delta_a_planned_run_would_be_refused():
    """δ = 2⁻⁶⁴: its reserve pays for half a million numbers, which a run of a few blocks uses up."""
    queries = hmc(**PAPER_GAUSSIAN).queries(N)
    budget = make_funds(queries, N, 4.0, 2.0**-64, check_records=False).main
    plan = functools.partial(
        dpmcmc.plan, hmc(**PAPER_GAUSSIAN), num_records=N, epsilon=4.0, delta=2.0**-64, check_records=False
    )
    steps, unlimited = plan(dimension=1000).num_steps, plan().num_steps
    assert steps < unlimited
    sizes = {"num_records": N, "dimension": 1000, "num_chains": 4}
    cost = [cost_of(queries, **sizes, gradients=13 * number, log_ratios=number) for number in (steps, steps + 1)]
    fits = [
        budget.can_spend(each.spent, lattice_epsilon=each.lattice_epsilon, lattice_delta=each.lattice_delta)
        for each in cost
    ]
    assert fits == [True, False]
    assert budget.can_spend(cost[1].spent, lattice_epsilon=cost[1].lattice_epsilon)  # it is δ that is used up


PAPER_GAUSSIAN = {
    "step_size": 0.00015,
    "num_leapfrog": 12,
    "ratio_bound": 6.0,
    "gradient_clip_norm": 10.0,
    "ratio_noise_multiplier": 0.10 * ROOT,
    "gradient_noise_multiplier": 0.25 * ROOT,
}


@pytest.mark.parametrize("check_records", [True, False])
@pytest.mark.parametrize("sampling", ["without_replacement", "poisson"])
def test_a_planned_minibatch_run_is_not_refused(sampling, check_records):
    sampler = dpmcmc.DPSGLD(batch_size=100, gradient_clip_norm=1.0, step_size=1e-5, sampling=sampling)
    sizes = {"num_records": 10_000, "epsilon": 2.0, "delta": 1e-5}
    plan = dpmcmc.plan(sampler, **sizes, num_chains=3, dimension=4, check_records=check_records)
    queries = sampler.queries(10_000)
    funds = make_funds(queries, *sizes.values(), check_records)
    assert int(funds.main.total) - 3 < 3 * plan.num_steps <= funds.main.total
    shape = choose_shape(3, plan.num_steps, 1)
    for block in range(shape.num_blocks):
        steps = shape.draws_in(block)
        cost = cost_of(queries, num_records=10_000, dimension=4, num_chains=3, gradients=steps, log_ratios=0)
        assert cost.spent == 3 * steps
        funds.main.spend(cost.spent, lattice_epsilon=cost.lattice_epsilon, lattice_delta=cost.lattice_delta)


# --------------------------------------------------------------------------------------------------- record check


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 15.0])
@pytest.mark.parametrize("num_records", [100, 100_000])
def test_the_record_check_of_gaussian_samplers(epsilon, num_records):
    queries = dpmcmc.DPPenalty(0.1, 1.0, 100.0).queries(num_records)
    funds = make_funds(queries, num_records, epsilon, DELTA)
    assert funds.check is funds.main
    assert isinstance(funds.main, Budget)
    assert isinstance(funds.record_check, InvalidCount)
    share = Fraction(funds.record_check.mu) / Fraction(funds.main.total)
    assert share <= Fraction(1, 1000)
    # As little noise as that allows, but not less than is of use.
    assert funds.record_check.noise_sd == 0.005 * num_records or share > Fraction(999, 1_000_000)
    assert make_funds(queries, num_records, epsilon, DELTA, check_records=False).record_check is None


@pytest.mark.parametrize("num_records", [1000, 10**7])
def test_the_record_check_of_minibatch_samplers_has_a_budget_of_its_own(num_records):
    sampler = dpmcmc.DPSGLD(batch_size=num_records // 100, gradient_clip_norm=1.0, step_size=0.1 / num_records)
    queries = sampler.queries(num_records)
    funds = make_funds(queries, num_records, 1.0, DELTA)
    assert isinstance(funds.main, StepBudget)
    assert (funds.check.epsilon, funds.check.delta) == (0.005, 0.001 * DELTA)
    assert Fraction(funds.main.epsilon) + Fraction(funds.check.epsilon) <= 1
    assert Fraction(funds.main.delta) + Fraction(funds.check.delta) <= Fraction(DELTA)
    assert funds.main.epsilon == pytest.approx(0.995, rel=1e-12)
    assert funds.check.can_spend(funds.record_check.mu)
    expected = 0.005 * num_records if num_records == 10**7 else smallest_noise_multiplier(1, funds.check.total)
    assert funds.record_check.noise_sd == expected


def test_a_budget_that_has_no_room_for_the_record_check_says_so():
    with pytest.raises(BudgetExceededError, match="check_records=False"):
        dpmcmc.plan(dpmcmc.DPPenalty(0.1, 1.0, 1e3), num_records=N, epsilon=1.0, delta=1e-28)


# ----------------------------------------------------------------------------------------------------- acceptance


def test_predicted_acceptance_of_the_paper():
    """Measured by `test_paper_acceptance`: about 0.59 and 0.22."""
    banana, gaussian = PAPER["DP-HMC banana"][0], PAPER["DP-HMC Gaussian"][0]
    assert predicted_acceptance(banana, 2) == pytest.approx(0.57, abs=0.01)
    assert predicted_acceptance(gaussian, 10) == pytest.approx(0.20, abs=0.01)
    plan = dpmcmc.plan(banana, num_records=N, epsilon=4.0, delta=DELTA, dimension=2)
    assert plan.predicted_acceptance == predicted_acceptance(banana, 2)
    assert plan.notes == ()
    assert dpmcmc.plan(banana, num_records=N, epsilon=4.0, delta=DELTA).predicted_acceptance is None


def accepted(sd, generator, number=400_000):
    """How often N(−V/2, V) passes a Metropolis test."""
    return sum(math.log(1.0 - generator.random()) < generator.gauss(-sd * sd / 2, sd) for _ in range(number)) / number


@pytest.mark.parametrize("update", ["all", "one_component", "guided"])
def test_predicted_acceptance_of_a_random_walk(update):
    """The formula against a simulation of the accept test: 5 standard errors of 0.0008, so 6e-7 of false failures."""
    scale, bound, noise = [0.3, 0.1, 0.2], 0.5, 5.0
    sampler = dpmcmc.DPPenalty(scale, bound, noise, update=update)
    move = math.sqrt(0.14) if update == "all" else 0.2 * math.sqrt(2 / math.pi)
    generator = random.Random(7)
    assert predicted_acceptance(sampler, 3) == pytest.approx(accepted(2 * noise * bound * move, generator), abs=0.004)
    # The twin: the penalty forgotten in one place is seen.
    assert predicted_acceptance(sampler, 3) != pytest.approx(accepted(noise * bound * move, generator), abs=0.004)


def test_predicted_acceptance_follows_jitter_and_mass():
    settings = {"step_size": 0.01, "num_leapfrog": 10, "ratio_bound": 1.0, "gradient_clip_norm": 1.0}
    settings |= {"ratio_noise_multiplier": 5.0, "gradient_noise_multiplier": 5.0}

    def at(dimension=3, **changes):
        return predicted_acceptance(dpmcmc.DPHMC(**(settings | changes)), dimension)

    assert at(jitter=None) == at(step_size=0.01 / 0.75) == at(step_size=0.02, jitter="halton_from_zero")
    assert at() == at(mass_matrix=[1.0] * 3) == at(mass_matrix=[[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]])
    # Four times the mass moves half as far; its kinetic energy takes a quarter of a kick's square.
    assert at(mass_matrix=[4.0] * 3) == pytest.approx(at(ratio_bound=0.5, gradient_clip_norm=0.5), rel=1e-12)
    assert at(mass_matrix=[[2.0, 1.0, 0], [1.0, 2.0, 0], [0, 0, 1.0]]) == pytest.approx(
        at(mass_matrix=[1.0, 3.0, 1.0]), rel=1e-12
    )
    for bad in ([1.0, 1.0], [0.0, 1.0, 1.0], [[1.0, 2.0, 0], [2.0, 1.0, 0], [0, 0, 1.0]]):
        with pytest.raises(QueryError, match="mass_matrix"):
            at(mass_matrix=bad)
    with pytest.raises(ModelError, match="proposal_scale"):
        predicted_acceptance(dpmcmc.DPPenalty([1.0, 2.0], 1.0, 1.0), 3)
    assert predicted_acceptance(dpmcmc.DPSGLD(10, 1.0, 1e-3), 3) is None


def test_notes_say_when_nothing_can_move_and_when_delta_is_too_large():
    still = dpmcmc.DPPenalty(1.0, 10.0, 100.0)
    plan = functools.partial(dpmcmc.plan, num_records=N, epsilon=4.0, dimension=2)
    (note,) = plan(still, delta=DELTA).notes
    assert "nothing can move" in note
    assert "ratio_bound × ratio_noise_multiplier" in note
    (note,) = plan(hmc(**PAPER_GAUSSIAN | {"gradient_clip_norm": 1e3}), delta=DELTA).notes
    assert "gradient_clip_norm × gradient_noise_multiplier × step_size" in note
    gentle = dpmcmc.DPPenalty(1e-4, 1.0, 100.0)
    assert plan(gentle, delta=0.999 / N).notes == ()
    (note,) = plan(gentle, delta=1e-5).notes
    assert "at least 1/n" in note
