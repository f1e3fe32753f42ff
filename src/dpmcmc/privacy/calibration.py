"""Steps buy noise, and noise buys steps: how much noise makes a budget (ε, δ) last for a given number of queries.

Pure mathematics of the budget: nothing here sees data or spends anything. A run sets a small part of its budget aside
for discrete noise (`Budget.reserve_lattice`); all functions here but `smallest_noise_ratio` take that into account, so
that a run with the noise they return gets all the steps that were asked for.
"""

import math
import numbers
from collections.abc import Callable, Mapping
from fractions import Fraction

from dpmcmc.errors import BudgetExceededError, QueryError
from dpmcmc.privacy.budget import Budget, after_lattice_reserve
from dpmcmc.privacy.exact import Exact, exact_cost
from dpmcmc.privacy.gaussian import gaussian_cost, smallest_noise_multiplier
from dpmcmc.privacy.subsampled import Scheme, subsampled_delta

__all__ = [
    "noise_for_queries",
    "noise_for_steps",
    "noise_ratio_for_steps",
    "queries_for_noise",
    "smallest_noise_ratio",
]

# The accountant of batches takes noise ratios between these.
_LEAST_NOISE_RATIO, _LARGEST_NOISE_RATIO = 0.1, 1e6
_TOLERANCE = 1e-4


def noise_for_queries(epsilon: float, delta: float, num_queries: int) -> float:
    """Return the smallest noise multiplier τ with which a budget pays for ``num_queries`` queries to all records.

    Parameters
    ----------
    epsilon, delta
        The budget.
    num_queries
        Number of queries in the whole run, all with the same τ (noise sd / sensitivity).

    Examples
    --------
    >>> round(noise_for_queries(4.0, 1e-6, 500), 4)
    26.6881
    """
    return smallest_noise_multiplier(num_queries, _room(epsilon, delta, 0.0))


def queries_for_noise(epsilon: float, delta: float, noise_multiplier: float) -> int:
    """Return how many queries to all records with this noise multiplier τ a budget pays for.

    Parameters
    ----------
    epsilon, delta
        The budget.
    noise_multiplier
        τ = noise sd / sensitivity of each query.

    Examples
    --------
    >>> queries_for_noise(4.0, 1e-6, 20.0)
    280
    """
    return math.floor(_room(epsilon, delta, 0.0) / Fraction(gaussian_cost(noise_multiplier)))


def noise_for_steps(
    epsilon: float,
    delta: float,
    *,
    num_steps: int,
    queries_per_step: Mapping[str, int],
    num_chains: int = 1,
    shares: Mapping[str, float] | None = None,
    other_cost: Exact = 0.0,
) -> dict[str, float]:
    r"""Return the noise multipliers with which a budget buys ``num_steps`` steps of each chain, and not one more.

    With :math:`n_k` queries of kind k in a step, and a share :math:`s_k` of the budget's total μ for this kind, it is
    :math:`τ_k = \sqrt{\text{chains} \cdot \text{steps} \cdot n_k / (2 s_k μ)}`, rounded up so that the exact costs fit.
    (The reserve for discrete noise, which limits only very long runs of very many parameters, is not looked at:
    ``dpmcmc.plan(..., dimension=...)`` does that.)

    Parameters
    ----------
    epsilon, delta
        The budget, which all chains share.
    num_steps
        Steps of each chain.
    queries_per_step
        By kind: number of queries that one step of one chain asks, such as ``{"gradient": 25, "log_ratio": 1}``.
    num_chains
        Number of chains.
    shares
        By kind: its share of the budget. Only their proportions matter. By default every query gets the same τ.
    other_cost
        Cost μ of what the run asks beside its steps, such as the count of unusable records.

    Returns
    -------
    dict
        τ by kind.

    Raises
    ------
    BudgetExceededError
        If ``other_cost`` leaves nothing for the steps.

    Examples
    --------
    A thousand steps of DP-HMC with 10 gradients each, half of the budget for the accept test:

    >>> noise = noise_for_steps(
    ...     4.0, 1e-6, num_steps=250, num_chains=4,
    ...     queries_per_step={"gradient": 10, "log_ratio": 1}, shares={"gradient": 0.5, "log_ratio": 0.5},
    ... )
    >>> {kind: round(value, 2) for kind, value in noise.items()}
    {'gradient': 168.79, 'log_ratio': 53.38}
    """
    per_step = {kind: _count(f"queries_per_step[{kind!r}]", number) for kind, number in queries_per_step.items()}
    if not per_step:
        raise QueryError("queries_per_step is empty; name at least one kind of query")
    answers = _count("num_steps", num_steps) * _count("num_chains", num_chains)
    room = _room(epsilon, delta, other_cost)
    if shares is None:
        same = smallest_noise_multiplier(answers * sum(per_step.values()), room)
        return dict.fromkeys(per_step, same)
    parts = _proportions(shares, per_step)
    return {kind: smallest_noise_multiplier(answers * number, parts[kind] * room) for kind, number in per_step.items()}


def smallest_noise_ratio(
    epsilon: float,
    delta: float,
    sampling_prob: float,
    num_steps: int,
    scheme: Scheme = "without_replacement",
) -> float:
    """Return a noise ratio with which so many batches certainly have δ(ε) ≤ ``delta``, at most 0.01 % above the least.

    The inverse of `subsampled_delta`, like `subsampled_epsilon` and `subsampled_steps`: nothing is set aside for
    discrete noise. For the noise of a run see `noise_ratio_for_steps`.

    Parameters
    ----------
    epsilon, delta
        The budget.
    sampling_prob, num_steps, scheme
        As in `subsampled_delta`.

    Returns
    -------
    float
        Noise sd on the sum over the batch / clip norm of one record; at least 0.1, the least that is accounted for.

    Raises
    ------
    QueryError
        If no noise ratio up to 1e6 is enough.
    """

    def fits(ratio: float) -> bool:
        return subsampled_delta(ratio, sampling_prob, num_steps, epsilon, scheme=scheme) <= delta

    return _least_ratio(fits, lambda ratio: True)


def noise_ratio_for_steps(
    epsilon: float,
    delta: float,
    *,
    sampling_prob: float,
    num_steps: int,
    num_chains: int = 1,
    scheme: Scheme = "without_replacement",
) -> float:
    """Return a noise ratio with which a budget buys ``num_steps`` batches for each chain, and not one more.

    Parameters
    ----------
    epsilon, delta
        What pays for the batches. A run that counts unusable records sets a part of its budget apart for that.
    sampling_prob
        q = batch size / number of records.
    num_steps
        Steps of each chain; a step asks one batch.
    num_chains
        Number of chains, which share the budget.
    scheme
        How batches are drawn, as in `subsampled_delta`.

    Returns
    -------
    float
        Noise sd on the sum over the batch / clip norm of one record. At least 0.1, the least that is accounted for:
        only there the budget may buy more steps.
    """
    asked = _count("num_steps", num_steps) * _count("num_chains", num_chains)
    reserve = after_lattice_reserve(epsilon, delta)

    def buys(steps: int, ratio: float) -> bool:
        bound = subsampled_delta(ratio, sampling_prob, steps, reserve.epsilon, scheme=scheme)
        return bound <= reserve.delta_of_gaussians

    return _least_ratio(
        lambda ratio: buys(asked, ratio),
        lambda ratio: not buys(asked + num_chains, ratio),
    )


def _least_ratio(fits: Callable[[float], bool], is_tight: Callable[[float], bool]) -> float:
    """Bisect on a logarithmic scale for the smallest ratio that fits, until it is near the least and is tight."""
    low, high = _LEAST_NOISE_RATIO, _LARGEST_NOISE_RATIO
    if fits(low):
        return low
    if not fits(high):
        raise QueryError(f"no noise ratio up to {high:g} is enough; give fewer steps, a smaller q or a larger delta")
    while high / low > 1.0 + _TOLERANCE or not is_tight(high):
        middle = math.sqrt(low * high)
        if not low < middle < high:  # neighbouring floats
            break
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _room(epsilon: float, delta: float, other_cost: Exact) -> Fraction:
    """Return the cost μ that a run has for its steps, exactly."""
    budget = Budget(epsilon, delta)
    budget.reserve_lattice()
    room = Fraction(budget.total) - exact_cost("other_cost", other_cost)
    if room <= 0:
        raise BudgetExceededError(
            f"epsilon = {epsilon:g}, delta = {delta:g} allow μ = {budget.total:g} in all, and other_cost = "
            f"{float(other_cost):g} leaves nothing for the steps; use a larger budget"
        )
    return room


def _proportions(shares: Mapping[str, float], kinds: Mapping[str, int]) -> dict[str, Fraction]:
    if set(shares) != set(kinds):
        raise QueryError(
            f"shares names {sorted(shares)}, queries_per_step {sorted(kinds)}; name the same kinds in both"
        )
    exact = {kind: exact_cost(f"shares[{kind!r}]", share) for kind, share in shares.items()}
    if min(exact.values()) <= 0:
        raise QueryError(f"shares = {dict(shares)!r} has a share of 0; every kind needs a part of the budget")
    total = sum(exact.values())
    return {kind: share / total for kind, share in exact.items()}


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise QueryError(f"{name} = {value!r} must be a whole number of at least 1")
    return int(value)
