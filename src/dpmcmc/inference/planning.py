"""What a privacy budget buys, worked out with no data: numbers of steps, queries, their cost, and what may be stated.

A plan is public. The run that follows it charges the same costs to a real budget, block by block: both add up the same
fractions (`cost_of`), so that a run which was planned is never refused on its way.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from dpmcmc import checks
from dpmcmc.errors import BudgetExceededError, ModelError, QueryError, RunError
from dpmcmc.inference.laplace_plan import LaplacePlan, delta_notes, plan_laplace
from dpmcmc.privacy import Budget, PrivacyStatement, StepBudget, smallest_noise_multiplier
from dpmcmc.privacy.exact import check_number, rounded_down, rounded_up
from dpmcmc.privacy.gaussian import check_delta
from dpmcmc.queries import BatchGradient, Cost, Gradient, InvalidCount, Queries, cost_of, cost_of_answer
from dpmcmc.results.diagnostics import RecordCheck
from dpmcmc.samplers import DPHMC, SAMPLERS, DPLaplace, DPPenalty, Sampler, SurrogateHMC

# The record check: its noise, in records relative to n, is no finer than is useful, and its price is a small share.
_CHECK_NOISE_SHARE = 0.005
_CHECK_MU_SHARE = Fraction(1, 1000)
_CHECK_EPSILON_SHARE = 0.005
_CHECK_DELTA_SHARE = 0.001
# Below this predicted acceptance a chain stands still for all that a budget can buy.
_NOTHING_MOVES = 0.01
# Mean of the jitter's factor on the step size.
_MEAN_JITTER = {"halton": 0.75, "halton_from_zero": 0.5, None: 1.0}


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
        Number of answers of each kind that ``num_steps`` of all chains ask for, the record check included.
    noise_multipliers
        Noise sd / sensitivity of each kind.
    batches
        For minibatch samplers: ``batch_size``, ``sampling_prob``, ``sampling`` and ``noise_ratio`` (noise sd on the
        batch sum / clip norm).
    accountant
        How the cost is computed.
    predicted_acceptance
        See :func:`predicted_acceptance`; None if ``dimension`` was not given, or if there is no accept test.
    notes
        What deserves a second thought before the budget is spent.
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
    batches: dict[str, Any] | None
    accountant: str
    predicted_acceptance: float | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self) | {"notes": list(self.notes)}


class Funds(NamedTuple):
    """What pays for a run: the budget of its steps, that of the record check (the same or one set apart), the check."""

    main: Budget | StepBudget
    check: Budget | None
    record_check: InvalidCount | None


@overload
def plan(
    sampler: DPLaplace | Literal["auto"],
    *,
    num_records: int,
    epsilon: float,
    delta: float,
    num_chains: int = ...,
    dimension: int,
    check_records: bool = ...,
) -> LaplacePlan: ...


@overload
def plan(
    sampler: Sampler,
    *,
    num_records: int,
    epsilon: float,
    delta: float,
    num_chains: int = ...,
    dimension: int | None = ...,
    check_records: bool = ...,
) -> Plan: ...


def plan(
    sampler: Sampler | DPLaplace | Literal["auto"],
    *,
    num_records: int,
    epsilon: float,
    delta: float,
    num_chains: int = 4,
    dimension: int | None = None,
    check_records: bool = True,
) -> Plan | LaplacePlan:
    """Work out what a budget buys, with no data.

    Parameters
    ----------
    sampler
        Settings of a private sampler, such as ``DPHMC(...)``; or ``"auto"`` or ``DPLaplace()``, whose draws are free:
        what the budget buys is then precision.
    num_records
        Number of rows, which is public.
    epsilon, delta
        The budget, shared by all chains.
    num_chains
        Number of chains (no matter to "auto" and DPLaplace).
    dimension
        Number of unconstrained parameters, if known (``model.dimension``). The reserve for discrete noise then limits
        the steps too (it does so only for very many steps of very many parameters, or a very small δ), and the
        acceptance is predicted. Required for "auto" and DPLaplace.
    check_records
        Whether the run counts the records that are of no use (with noise, once): it costs 0.1 % of μ, or 0.5 % of ε for
        minibatch samplers.

    Returns
    -------
    Plan or LaplacePlan
        The latter for DPLaplace and "auto", see :func:`dpmcmc.inference.laplace_plan.plan_laplace`. Of "auto" it says
        what is refused beforehand, and how wide intervals are if the posterior is about Gaussian; what a curved one
        costs is not known before it is looked at.

    Raises
    ------
    BudgetExceededError
        If the budget does not pay for one step of each chain.

    Examples
    --------
    The paper's DP-HMC on its banana model (δ = 1e-6, n = 100,000, ε = 4) runs 377 iterations in all chains:

    >>> import dpmcmc, math
    >>> n = 100_000
    >>> settings = dpmcmc.DPHMC(
    ...     step_size=0.006, num_leapfrog=25, ratio_bound=0.1, gradient_clip_norm=0.05,
    ...     ratio_noise_multiplier=0.10 * math.sqrt(n), gradient_noise_multiplier=0.55 * math.sqrt(n),
    ...     leapfrog="momentum_first",
    ... )
    >>> plan = dpmcmc.plan(settings, num_records=n, epsilon=4.0, delta=1e-6, dimension=2, check_records=False)
    >>> plan.total_steps
    377
    >>> round(plan.predicted_acceptance, 2)
    0.57

    How many times as wide as without noise intervals become, for benign and for skewed data:

    >>> plan = dpmcmc.plan("auto", num_records=n, epsilon=1.0, delta=1e-6, dimension=10)
    >>> [round(times, 2) for times in plan.interval_widening]
    [1.01, 1.34]
    """
    check_sampler(sampler)
    if isinstance(sampler, str | DPLaplace):
        name, caller = ("auto", '"auto"') if isinstance(sampler, str) else (sampler.name, "DPLaplace")
        if dimension is None:
            raise QueryError(f"dimension is required for {caller}, as its noise depends on it; give model.dimension")
        return plan_laplace(num_records=num_records, epsilon=epsilon, delta=delta, dimension=dimension, sampler=name)
    num_records, num_chains = checks.count("num_records", num_records), checks.count("num_chains", num_chains)
    if isinstance(sampler, SurrogateHMC):
        raise _no_plan(sampler, num_records, epsilon, delta)
    dimension = None if dimension is None else checks.count("dimension", dimension)
    epsilon, delta = check_number("epsilon", epsilon, above=0.0), check_delta(delta)
    queries = private_queries(sampler, num_records)
    funds = make_funds(queries, num_records, epsilon, delta, check_records)
    public = {"num_records": num_records, "dimension": dimension or 1}
    start = cost_of(queries, **public, num_chains=num_chains, gradients=queries.gradients_at_start, log_ratios=0)
    each = {"gradients": queries.gradients_per_step, "log_ratios": queries.log_ratios_per_step}
    step = cost_of(queries, **public, num_chains=1, **each)
    steps = {
        meter: max(0, math.floor((room - at_start) / a_step))
        for meter, room, at_start, a_step in zip(Cost._fields, _room(funds, num_records), start, step, strict=True)
        if meter == "spent" or dimension is not None
    }
    limit = min(steps, key=lambda meter: steps[meter])
    total_steps = steps[limit]
    if total_steps < num_chains:
        raise BudgetExceededError(
            f"epsilon = {epsilon:g}, delta = {delta:g} pays for {total_steps} steps in all, fewer than the "
            f"{num_chains} chains; use more noise, fewer chains or a larger budget"
            + ("" if limit == "spent" else f" (here a larger {limit.removeprefix('lattice_')}, for discrete noise)")
        )
    num_steps = total_steps // num_chains
    gaussian = isinstance(funds.main, Budget)
    acceptance = None if dimension is None else predicted_acceptance(sampler, dimension)
    return Plan(
        sampler=sampler.name,
        num_records=num_records,
        num_chains=num_chains,
        epsilon=epsilon,
        delta=delta,
        num_steps=num_steps,
        total_steps=total_steps,
        mu_per_step=rounded_up(step.spent) if gaussian else None,
        mu_total=funds.main.total if gaussian else None,
        queries=count_queries(queries, num_steps, num_chains, funds.record_check),
        noise_multipliers=noise_multipliers(queries, funds.record_check),
        batches=describe_batches(queries, num_records),
        accountant=describe_accountant(queries),
        predicted_acceptance=acceptance,
        notes=tuple(_notes(sampler, num_records, delta, acceptance)),
    )


def _no_plan(sampler: SurrogateHMC, num_records: int, epsilon: float, delta: float) -> QueryError:
    """Say what a budget buys about, of steps that cost what their moves are long."""
    # A move to an independent draw has ‖Δψ‖² = 2·(numbers in ψ) on average, and costs 2c²/σ² with c = κ‖Δψ‖/√n.
    cost = 4.0 * len(sampler.surrogate.weights) * sampler.ratio_bound**2 / (num_records * sampler.noise_sd**2)
    steps = _gaussian_budget(epsilon, delta).total / cost
    return QueryError(
        "the steps of SurrogateHMC cost what their moves are long, so that there is no plan of them: the run ends when "
        f"the budget does. If the surrogate fits and moves are as long as between independent draws, that is about "
        f"{steps:.2g} steps in all chains together, of which {sampler.ceiling:.2f} are accepted"
    )


def _room(funds: Funds, num_records: int) -> Cost:
    """Return what is there for the steps: the whole budget, less what the record check takes of it."""
    room = Cost(*funds.main.room)
    if funds.record_check is None or funds.check is not funds.main:
        return room
    return Cost(*map(Fraction.__sub__, room, cost_of_answer(funds.record_check, num_records, 1)))


# -------------------------------------------------------------------------------------------------------- costs


def make_funds(queries: Queries, num_records: int, epsilon: float, delta: float, check_records: bool = True) -> Funds:
    """Make the budgets of a run, with the reserve for discrete noise set aside, and its record check.

    Parameters
    ----------
    queries
        What the sampler declares.
    num_records
        Number of rows.
    epsilon, delta
        The budget of all that is released.
    check_records
        Whether there is a record check. A Gaussian budget pays for it like for any other query; where batches are paid
        for, 0.5 % of ε and 0.1 % of δ are set apart for it (simple composition).
    """
    epsilon, delta = check_number("epsilon", epsilon, above=0.0), check_delta(delta)
    if not check_records:
        return Funds(make_budget(queries, num_records, epsilon, delta), None, None)
    if isinstance(queries.gradient, BatchGradient):
        apart = _set_apart(epsilon, delta)
        main = make_budget(
            queries,
            num_records,
            rounded_down(Fraction(epsilon) - Fraction(apart["epsilon"])),
            rounded_down(Fraction(delta) - Fraction(apart["delta"])),
        )
        check = Budget(apart["epsilon"], apart["delta"])
        check.reserve_lattice()
        allowance = Fraction(check.total)
    else:
        main = check = _gaussian_budget(epsilon, delta)
        allowance = Fraction(check.total) * _CHECK_MU_SHARE
    noise_sd = smallest_noise_multiplier(1, allowance) if allowance > 0 else math.inf
    if math.isfinite(noise_sd):
        record_check = InvalidCount(max(_CHECK_NOISE_SHARE * num_records, noise_sd))
        cost = cost_of_answer(record_check, num_records, 1)
        if check.can_spend(cost.spent, lattice_epsilon=cost.lattice_epsilon, lattice_delta=cost.lattice_delta):
            return Funds(main, check, record_check)
    raise BudgetExceededError(
        f"epsilon = {epsilon:g}, delta = {delta:g} does not pay for the record check; "
        "use a larger budget, or leave it out with check_records=False"
    )


def _set_apart(epsilon: float, delta: float) -> dict[str, float]:
    """Return what is set apart for the record check of a minibatch run."""
    return {"epsilon": _CHECK_EPSILON_SHARE * epsilon, "delta": _CHECK_DELTA_SHARE * delta}


def make_budget(queries: Queries, num_records: int, epsilon: float, delta: float) -> Budget | StepBudget:
    """Make the budget that pays for these queries alone, with the reserve for discrete noise set aside."""
    if not isinstance(queries.gradient, BatchGradient):
        return _gaussian_budget(epsilon, delta)
    budget = StepBudget(
        epsilon,
        delta,
        noise_ratio=queries.gradient.noise_ratio,
        sampling_prob=queries.gradient.batch_size / num_records,
        scheme=queries.gradient.sampling,
    )
    budget.reserve_lattice()
    return budget


def _gaussian_budget(epsilon: float, delta: float) -> Budget:
    budget = Budget(epsilon, delta)
    budget.reserve_lattice()
    return budget


# --------------------------------------------------------------------------------------------------- acceptance


def predicted_acceptance(sampler: Sampler, dimension: int) -> float | None:
    r"""Predict from public settings how often a chain inside the posterior accepts; None without an accept test.

    Two noises make the accept test refuse good proposals: that of the log-ratio, of variance
    :math:`σ^2 = (2 τ_l b_l \mathrm{E}‖Δθ‖)^2`, which the penalty answers for, and that of the gradients, which changes
    the kinetic energy by :math:`L s^2 \operatorname{tr} M^{-1}`, :math:`s = 2 τ_g b_g η`. With V their sum, the noisy
    log-ratio minus the penalty is about N(−V/2, V), and it is accepted with probability :math:`2Φ(-\sqrt V/2)`.

    It is an approximate upper bound: the error of the leapfrog, or a random walk that leaves the posterior, take their
    own share. Outside the posterior, at the start, a chain may accept more.

    Parameters
    ----------
    sampler
        Settings of a private sampler.
    dimension
        Number d of unconstrained parameters.

    Notes
    -----
    The move has about the norm :math:`ηL\sqrt{\operatorname{tr} M^{-1}}` for DP-HMC, with η the mean step size under
    the jitter; :math:`\sqrt{Σ s_j^2}` for DP-penalty, and the mean of :math:`s_j \sqrt{2/π}` where one component moves.
    """
    noise = _noise_of_a_step(sampler, dimension)
    return None if noise is None else math.erfc(math.hypot(*noise) / math.sqrt(8.0))


def _noise_of_a_step(sampler: Sampler, dimension: int) -> tuple[float, float] | None:
    """Return the sds that the noise of the log-ratio and that of the gradients add to one accept test."""
    if isinstance(sampler, DPHMC):
        step_size = sampler.step_size * _MEAN_JITTER[sampler.jitter]
        root_trace = math.sqrt(_trace_of_inverse(sampler.mass_matrix, dimension))
        move = step_size * sampler.num_leapfrog * root_trace
        kick = 2.0 * sampler.gradient_noise_multiplier * sampler.gradient_clip_norm * step_size
        energy = math.sqrt(sampler.num_leapfrog) * root_trace * kick
    elif isinstance(sampler, DPPenalty):
        scale = np.asarray(sampler.proposal_scale, np.float64)
        if scale.ndim == 1 and scale.shape != (dimension,):
            raise ModelError(
                f"proposal_scale has {scale.size} numbers, the model {dimension} unconstrained parameters; give one "
                "positive number, or one a coordinate"
            )
        scale = np.broadcast_to(scale, (dimension,))
        whole = sampler.update == "all"
        move = float(np.sqrt(np.sum(scale**2)) if whole else np.mean(scale) * math.sqrt(2.0 / math.pi))
        energy = 0.0
    else:
        return None
    return 2.0 * sampler.ratio_noise_multiplier * sampler.ratio_bound * move, energy


def _trace_of_inverse(mass_matrix: Any, dimension: int) -> float:
    if mass_matrix is None:
        return float(dimension)
    matrix = np.asarray(mass_matrix, np.float64)
    if matrix.shape not in ((dimension,), (dimension, dimension)):
        raise QueryError(f"mass_matrix has shape {matrix.shape}; give ({dimension},) or ({dimension}, {dimension})")
    with np.errstate(all="ignore"):
        diagonal = matrix if matrix.ndim == 1 else np.linalg.eigvalsh(matrix)
        trace = float(np.sum(1.0 / diagonal))
    if not (np.all(diagonal > 0.0) and math.isfinite(trace)):
        raise QueryError("mass_matrix is not symmetric positive definite; give positive masses")
    return trace


def _notes(sampler: Sampler, num_records: int, delta: float, acceptance: float | None) -> list[str]:
    """Return what deserves a second thought, in whole sentences."""
    notes = delta_notes(delta, num_records)
    if acceptance is not None and acceptance < _NOTHING_MOVES:
        remedy = "ratio_bound × ratio_noise_multiplier × the length of a move"
        if isinstance(sampler, DPHMC):
            remedy += ", or gradient_clip_norm × gradient_noise_multiplier × step_size"
        notes.append(f"the predicted acceptance is {acceptance:.1g}: nothing can move; lower {remedy}")
    return notes


# ---------------------------------------------------------------------------------------------------- in words


def check_sampler(sampler: Any) -> None:
    """Accept this package's samplers only, and no subclass: others have not been held to what they declare."""
    if isinstance(sampler, str) and sampler == "auto":
        return
    if type(sampler) not in (*SAMPLERS, DPLaplace, SurrogateHMC):
        names = ", ".join(['"auto"', "DPLaplace()", *(f"{known.__name__}(...)" for known in (*SAMPLERS, SurrogateHMC))])
        got = f"the class {sampler.__name__}, not called" if isinstance(sampler, type) else type(sampler).__name__
        raise QueryError(f"sampler must be one of {names}, got {got}")


def private_queries(sampler: Sampler, num_records: int) -> Queries:
    """Return what a private sampler asks; refuse what is no sampler, not private, or larger than the data."""
    check_sampler(sampler)
    if not sampler.private:
        raise QueryError(f'{sampler.name} adds no noise, so no budget pays for it; use "auto", DPHMC or the like')
    queries = sampler.queries(num_records)
    if isinstance(queries.gradient, BatchGradient) and queries.gradient.batch_size > num_records:
        raise QueryError(
            f"batch_size = {queries.gradient.batch_size} exceeds the {num_records} records; give a smaller batch"
        )
    return queries


def count_queries(
    queries: Queries, num_steps: int, num_chains: int, record_check: InvalidCount | None = None, starts: int = 1
) -> dict[str, int]:
    """Return the number of answers of each kind in a run."""
    counts = {}
    if queries.gradient is not None:
        counts[queries.gradient.kind] = num_chains * (
            num_steps * queries.gradients_per_step + starts * queries.gradients_at_start
        )
    if queries.log_ratio is not None:
        counts[queries.log_ratio.kind] = num_chains * num_steps * queries.log_ratios_per_step
    if record_check is not None:
        counts[record_check.kind] = 1
    return counts


def noise_multipliers(queries: Queries, record_check: InvalidCount | None = None) -> dict[str, float]:
    """Return noise sd / sensitivity of each kind. (For batches see `describe_batches`.)"""
    multipliers = {}
    if isinstance(queries.gradient, Gradient):
        multipliers[queries.gradient.kind] = queries.gradient.noise_multiplier
    if queries.log_ratio is not None and queries.log_ratio.noise_multiplier is not None:
        multipliers[queries.log_ratio.kind] = queries.log_ratio.noise_multiplier
    if record_check is not None:
        multipliers[record_check.kind] = record_check.noise_sd / record_check.sensitivity
    return multipliers


def describe_batches(queries: Queries, num_records: int) -> dict[str, Any] | None:
    """Return what the subsampled accountant needs to know of the batches; None without batches."""
    if not isinstance(queries.gradient, BatchGradient):
        return None
    return {
        "batch_size": queries.gradient.batch_size,
        "sampling_prob": queries.gradient.batch_size / num_records,
        "sampling": queries.gradient.sampling,
        "noise_ratio": queries.gradient.noise_ratio,
    }


def describe_accountant(queries: Queries) -> str:
    """Say in words how the cost is computed."""
    if isinstance(queries.gradient, BatchGradient):
        return f"subsampled Gaussian, {queries.gradient.sampling.replace('_', ' ')} (PLD, replace one)"
    return "Gaussian composition (closed form, fully adaptive filter)"


def make_statement(
    sampler: Sampler,
    queries: Queries,
    *,
    private: bool,
    mode: str,
    unit_of_privacy: str,
    num_records: int,
    dimension: int,
    num_chains: int,
    epsilon: float | None,
    delta: float | None,
    steps_charged: int,
    steps_fixed: int | None,
    interrupted: bool,
    record_check: InvalidCount | None,
    starts: int = 1,
) -> PrivacyStatement:
    """State what a run guarantees, with all that is needed to compute it again.

    If the user fixed the number of steps beforehand, and they were all run, then ε is what those steps cost. Otherwise
    it is the budget's: a smaller one, read off where a run was stopped, would not be valid.

    Parameters
    ----------
    sampler, queries
        Settings, and what they declare.
    private, mode
        Whether the noise was exact, and what it was in words.
    unit_of_privacy
        Who is protected, in words.
    num_records, dimension, num_chains
        Public sizes of the run.
    epsilon, delta
        The budget that was granted; None for samplers without noise.
    steps_charged
        Steps of each chain that were charged.
    steps_fixed
        Steps of each chain that the user fixed beforehand; None if the budget decided.
    interrupted
        Whether the run was stopped on its way.
    record_check
        What counted useless records, or None.
    starts
        How often the sampler was started: more than once only if a crash lost the first start.
    """
    if not sampler.private or epsilon is None or delta is None:
        return PrivacyStatement(
            private=private,
            mode=mode,
            epsilon=None,
            delta=None,
            unit_of_privacy=unit_of_privacy,
            num_records=num_records,
            interrupted=interrupted,
            accountant="none",
        )
    cost = cost_of(
        queries,
        num_records=num_records,
        dimension=dimension,
        num_chains=num_chains,
        gradients=steps_charged * queries.gradients_per_step + starts * queries.gradients_at_start,
        log_ratios=steps_charged * queries.log_ratios_per_step,
    )
    set_apart = {}
    if record_check is not None:
        if isinstance(queries.gradient, BatchGradient):
            set_apart[record_check.kind] = _set_apart(epsilon, delta)
        else:
            cost = cost + cost_of_answer(record_check, num_records, 1)
    statement = PrivacyStatement(
        private=private,
        mode=mode,
        epsilon=epsilon,
        budget_epsilon=epsilon,
        delta=delta,
        mu=None if isinstance(queries.gradient, BatchGradient) else rounded_up(cost.spent),
        lattice_epsilon=rounded_up(cost.lattice_epsilon),
        lattice_delta=rounded_up(cost.lattice_delta),
        unit_of_privacy=unit_of_privacy,
        num_records=num_records,
        queries=count_queries(queries, steps_charged, num_chains, record_check, starts),
        noise_multipliers=noise_multipliers(queries, record_check),
        batches=describe_batches(queries, num_records),
        set_apart=set_apart,
        interrupted=interrupted,
        accountant=describe_accountant(queries),
        adaptive=(
            "Kinds of question, their noise and the number of steps (by "
            f"{'the budget' if steps_fixed is None else 'the user'}) were fixed beforehand; where each step asked "
            "followed from the releases before it."
        ),
    )
    if interrupted or steps_fixed is None:
        return statement
    return replace(statement, epsilon=min(epsilon, statement.recomputed_epsilon()))


def refuse_useless(check: RecordCheck | None) -> None:
    """Stop where most records are no use, for certain: no posterior of the rest is worth a budget."""
    if check is not None and check.estimate - 6.0 * check.noise_sd > 0.5 * check.num_records:
        raise RunError(
            f"about {check.share:.0%} of the records count as nothing: their values are missing, infinite, text, or "
            "impossible for the model; check the columns and their coding (by a schema, yes and no are levels, not a "
            "boolean, and a model of your own gets numbers within [-1, 1]: counts as they are take center: 0, scale: 1)"
        )
