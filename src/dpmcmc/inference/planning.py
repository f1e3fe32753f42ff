"""What a privacy budget buys, worked out with no data: numbers of steps, queries and their cost.

A plan is public. The run that follows it charges the same costs to a real budget, block by block.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from dpmcmc import checks
from dpmcmc.curator.queries import BatchGradient, Gradient
from dpmcmc.errors import BudgetExceededError, QueryError
from dpmcmc.privacy import Budget, StepBudget
from dpmcmc.samplers import SAMPLERS, Queries, Sampler


@dataclass(frozen=True)
class Plan:
    """What a budget buys.

    Attributes
    ----------
    num_steps
        Steps of each chain.
    total_steps
        Steps that the budget pays for in all chains together; a remainder below ``num_chains`` is left unspent.
    mu_per_step
        Cost of one step of one chain (None for minibatch samplers, whose cost is no sum).
    mu_total
        The budget's total μ (None for minibatch samplers).
    queries
        Number of answers of each kind that ``num_steps`` of all chains ask for.
    noise_multipliers
        Noise sd / sensitivity of each kind (for batches: noise sd / clip norm).
    accountant
        How the cost is computed.
    """

    sampler: str
    num_records: int
    num_chains: int
    epsilon: float
    delta: float
    num_steps: int
    total_steps: int
    mu_per_step: float | None
    mu_total: float | None
    queries: dict[str, int]
    noise_multipliers: dict[str, float]
    accountant: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)


def plan(
    sampler: Sampler,
    *,
    num_records: int,
    epsilon: float,
    delta: float,
    num_chains: int = 4,
    dimension: int | None = None,
) -> Plan:
    """Work out what a budget buys, with no data.

    Parameters
    ----------
    sampler
        Settings of a private sampler, such as ``DPHMC(...)``.
    num_records
        Number of rows, which is public.
    epsilon, delta
        The budget, shared by all chains.
    num_chains
        Number of chains.
    dimension
        Number of unconstrained parameters, if known: the reserve for discrete noise then limits the steps too. It does
        so only for very many steps of very many parameters.

    Examples
    --------
    The paper's DP-HMC on its banana model (δ = 1e-6, n = 100,000, ε = 4) runs 377 iterations in all chains:

    >>> import dpmcmc, math
    >>> n = 100_000
    >>> settings = dpmcmc.DPHMC(
    ...     step_size=0.006, num_leapfrog=25, ratio_clip=0.1, gradient_clip=0.05,
    ...     ratio_noise=0.10 * math.sqrt(n), gradient_noise=0.55 * math.sqrt(n), leapfrog="momentum_first",
    ... )
    >>> dpmcmc.plan(settings, num_records=n, epsilon=4.0, delta=1e-6).total_steps
    377
    """
    num_records, num_chains = checks.count("num_records", num_records), checks.count("num_chains", num_chains)
    queries = private_queries(sampler, num_records)
    budget = make_budget(queries, num_records, epsilon, delta)
    if isinstance(budget, StepBudget):
        total_steps, mu_per_step, mu_total = int(budget.total), None, None
    else:
        mu_per_step, mu_total = step_mu(queries), budget.total
        gradient_mu = queries.gradient.mu if isinstance(queries.gradient, Gradient) else 0.0
        start = num_chains * queries.gradients_at_start * gradient_mu
        # Exact division of the floats as they are: one step too many would be refused by the budget.
        total_steps = max(0, math.floor((Fraction(mu_total) - Fraction(start)) / Fraction(mu_per_step)))
    if dimension is not None:
        total_steps = min(total_steps, _steps_within_reserve(queries, budget, num_records, dimension, num_chains))
    num_steps = total_steps // num_chains
    return Plan(
        sampler=sampler.name,
        num_records=num_records,
        num_chains=num_chains,
        epsilon=epsilon,
        delta=delta,
        num_steps=num_steps,
        total_steps=total_steps,
        mu_per_step=mu_per_step,
        mu_total=mu_total,
        queries=count_queries(queries, num_steps, num_chains),
        noise_multipliers=noise_multipliers(queries),
        accountant=describe_accountant(queries),
    )


def check_sampler(sampler: Any) -> None:
    """Accept this package's samplers only, and no subclass: others have not been held to what they declare."""
    if type(sampler) not in SAMPLERS:
        names = ", ".join(f"{known.__name__}(...)" for known in SAMPLERS)
        raise QueryError(f"sampler must be one of {names}, got {type(sampler).__name__}")


def private_queries(sampler: Sampler, num_records: int) -> Queries:
    """Return what a private sampler asks; refuse what is no sampler, not private, or larger than the data."""
    check_sampler(sampler)
    if not sampler.private:
        raise QueryError(f"{sampler.name} adds no noise, so no budget pays for it; use DPHMC or the like")
    queries = sampler.queries(num_records)
    if isinstance(queries.gradient, BatchGradient) and queries.gradient.batch_size > num_records:
        raise QueryError(
            f"batch_size = {queries.gradient.batch_size} exceeds the {num_records} records; give a smaller batch"
        )
    return queries


def make_budget(queries: Queries, num_records: int, epsilon: float, delta: float) -> Budget | StepBudget:
    """Make the budget that pays for these queries, with the reserve for discrete noise set aside."""
    budget: Budget | StepBudget
    if isinstance(queries.gradient, BatchGradient):
        budget = StepBudget(
            epsilon,
            delta,
            noise_ratio=queries.gradient.noise_ratio,
            sampling_prob=queries.gradient.batch_size / num_records,
            scheme=queries.gradient.sampling,
        )
    else:
        budget = Budget(epsilon, delta)
    budget.reserve_lattice()
    return budget


def _steps_within_reserve(
    queries: Queries, budget: Budget | StepBudget, num_records: int, dimension: int, num_chains: int
) -> int:
    """Return how many steps in all the reserve for discrete noise pays for."""

    def slack(query: Any, number: int) -> float:
        return number * query.lattice(num_records, dimension).lattice_epsilon if query is not None else 0.0

    start = num_chains * slack(queries.gradient, queries.gradients_at_start)
    step = slack(queries.gradient, queries.gradients_per_step) + slack(queries.log_ratio, queries.log_ratios_per_step)
    # A little less, for the rounding of sums: a refusal in the middle of a run would help nobody.
    return max(0, math.floor((budget.lattice_epsilon_reserved * (1.0 - 1e-9) - start) / step))


def step_mu(queries: Queries) -> float:
    """Cost of one step of one chain."""
    gradient = queries.gradients_per_step * queries.gradient.mu if isinstance(queries.gradient, Gradient) else 0.0
    ratio = queries.log_ratios_per_step * (queries.log_ratio.mu or 0.0) if queries.log_ratio else 0.0
    return gradient + ratio


def count_queries(queries: Queries, num_steps: int, num_chains: int) -> dict[str, int]:
    """Return the number of answers of each kind in a run."""
    counts = {}
    if queries.gradient is not None:
        counts[queries.gradient.kind] = num_chains * (
            num_steps * queries.gradients_per_step + queries.gradients_at_start
        )
    if queries.log_ratio is not None:
        counts[queries.log_ratio.kind] = num_chains * num_steps * queries.log_ratios_per_step
    return counts


def noise_multipliers(queries: Queries) -> dict[str, float]:
    """Return noise sd / sensitivity of each kind (for batches: noise sd / clip norm)."""
    multipliers = {}
    if isinstance(queries.gradient, BatchGradient):
        multipliers["batch_gradient (noise / clip norm)"] = queries.gradient.noise_ratio
    elif queries.gradient is not None:
        multipliers["gradient"] = queries.gradient.noise_multiplier
    if queries.log_ratio is not None and queries.log_ratio.noise_multiplier is not None:
        multipliers["log_ratio"] = queries.log_ratio.noise_multiplier
    return multipliers


def describe_accountant(queries: Queries) -> str:
    """Say in words how the cost is computed."""
    if isinstance(queries.gradient, BatchGradient):
        return f"subsampled Gaussian, {queries.gradient.sampling.replace('_', ' ')} (PLD, replace one)"
    return "Gaussian composition (closed form, fully adaptive filter)"


def require_steps(the_plan: Plan) -> None:
    """Refuse a plan that has no step for each chain."""
    if the_plan.num_steps == 0:
        raise BudgetExceededError(
            f"epsilon = {the_plan.epsilon:g}, delta = {the_plan.delta:g} pays for {the_plan.total_steps} steps in all, "
            f"fewer than the {the_plan.num_chains} chains; use more noise, fewer chains or a larger budget"
        )
