"""The privacy curve of the subsampled Gaussian mechanism: many noisy sums over random batches.

Pure mathematics of the budget, on top of dp-accounting: nothing here sees data, keeps a meter or draws noise.
Every δ returned is an upper bound (pessimistic discretisation, tails and rounding charged), so steps counted
with it are safe; no filter is known for this mechanism, so noise, sampling probability and steps are to be
fixed beforehand.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from dpmcmc.errors import QueryError
from dpmcmc.privacy.exact import check_number, rounded_up
from dpmcmc.privacy.gaussian import check_delta, gaussian_delta_bound, gaussian_epsilon, gaussian_mu, last_certified

if TYPE_CHECKING:  # dp-accounting takes long to load, and only batches need it
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

Scheme = Literal["without_replacement", "poisson"]

MAX_STEPS = 10**9
"""The largest number of steps that is accounted for."""

# Distance of the loss grid's points, in sds of one step's loss. Rounding losses to the grid adds about a sixth
# of its square to their variance, so that steps are lost in that proportion: 0.007 %. From 4e6 steps on it
# grows with their root, which keeps the composed grid near 1e6 points.
_GRID_PER_SD = 0.02
_GRID_PER_COMPOSED_SD = 1e-5
_MAX_ONE_STEP_POINTS = 100_000
# On a finer grid the rounding of the curve would drown its second differences, which are the masses.
_MIN_GRID_STEP = 1e-10
# log of the noise's tail that one step charges as a certain breach.
_LOG_TAIL = -50.0
# Steps are composed in blocks: dp-accounting bounds its Fourier window well for a few thousand at a time. What
# may lie outside the window is charged by it as a certain breach, once per block.
_BLOCK = 1024
_WINDOW_TAIL = 1e-15
# Rounding, charged as a certain breach: of the curve (a few units of roundoff, times the largest exponent) and
# of the transforms per step, and of the transforms at all. Against long double precision the latter are off by
# at most 3e-16 per step and 1e-13.
_ROUNDING_PER_STEP = 1e-15
_ROUNDING_OF_TRANSFORMS = 1e-12
# An ε beyond this is not searched for: it would protect nobody.
_MAX_EPSILON = 1024.0


def _mechanism(noise_ratio: float, sampling_prob: float, scheme: Scheme) -> GaussianPrivacyLoss:
    """Return dp-accounting's description of one step, whose curve at ε ≥ 0 is that of the dominating pair.

    Without replacement, substituting one record swaps it for another in the batch: the components of the
    mixture lie up to 2C apart, and "remove" is the larger of the two curves for ε ≥ 0. Under Poisson sampling
    each of the two records is present or absent on its own: ±C about 0, which is what REPLACE means there.
    """
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    without_replacement = scheme == "without_replacement"
    return GaussianPrivacyLoss(
        noise_ratio / 2.0 if without_replacement else noise_ratio,
        sensitivity=1.0,
        pessimistic_estimate=True,
        log_mass_truncation_bound=_LOG_TAIL,
        sampling_prob=sampling_prob,
        adjacency_type=AdjacencyType.REMOVE if without_replacement else AdjacencyType.REPLACE,
    )


def _loss_sd(mechanism: GaussianPrivacyLoss) -> float:
    """Return the sd of one step's loss, or a little more: the root of 4 ∫ (1 + ε) δ(ε) dε over ε > 0.

    Half the integral is the mean square over losses > 0, by parts; that over losses < 0 is smaller.
    """
    from scipy.integrate import trapezoid

    largest = float(mechanism.connect_dots_bounds().epsilon_upper)
    # Below 1e-15 the library's logarithm of sinh fails.
    points = np.append(0.0, np.maximum(1e-13, largest * np.geomspace(1e-9, 1.0, 301)))
    return math.sqrt(4.0 * float(trapezoid((1.0 + points) * mechanism.get_delta_for_epsilon(points), points)))


def symmetric_distribution(
    mechanism: GaussianPrivacyLoss, grid_step: float, num_points: int
) -> PrivacyLossDistribution:
    r"""Return the discretised pair that dominates a mechanism and its reverse, from the curve at ε ≥ 0.

    The only place that touches a private attribute of dp-accounting (``DensePLDPmf._probs``).

    Parameters
    ----------
    mechanism
        A pair P, Q whose curve :math:`δ_{P|Q}(ε)` is at least :math:`δ_{Q|P}(ε)` for ε ≥ 0.
    grid_step, num_points
        The losses will be the multiples of ``grid_step`` in ±num_points·grid_step, and infinity.

    Notes
    -----
    The curve to dominate is :math:`δ(ε) = \max(δ_{P|Q}(ε), δ_{Q|P}(ε))`: the first of them for ε ≥ 0, and
    for ε < 0 the second, by :math:`δ_{Q|P}(-ε) = 1 - e^{-ε} + e^{-ε} δ_{P|Q}(ε)`. (Without replacement:
    "remove" for ε ≥ 0, "add" for ε < 0.)

    *Losses > 0.* Connect-the-Dots makes masses whose curve is linear in :math:`e^ε` between the grid points
    and equal to :math:`δ_{P|Q}` at them; from the last point on it is constant, the infinite mass. The true
    curve is convex in :math:`e^ε` and decreasing, so this one lies above it everywhere. The mass of a loss
    follows from the curve at the loss and its two neighbours, so what is below 0 plays no part, and the
    curve at ε ≥ 0 needs the losses > 0 only.

    *Losses < 0.* With mass :math:`p(-l) = e^{-l} p(l)`, and the rest at 0, all masses sum to 1 and the curve
    obeys the same identity as the true one, so it lies above it for ε < 0 too. (The rest is not negative,
    as the curve is convex at 0.) These are the masses that Connect-the-Dots gives the "add" curve, without
    the rounding errors of its second differences where they are tiny.

    A pair whose curve lies above that of every step dominates the composition of the steps as well.

    References
    ----------
    Zhu, Dong & Wang (2022), "Optimal accounting of differential privacy via characteristic function"
    (dominating pairs, their composition, and both curves of sampling without replacement). Doroshenko,
    Ghazi, Kamath, Kumar & Manurangsi (2022), "Connect the dots: tighter discrete approximations of privacy
    loss distributions".
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    losses = grid_step * np.arange(num_points + 1, dtype=np.float64)
    deltas = mechanism.get_delta_for_epsilon(losses)
    one_sided = create_pmf_pessimistic_connect_dots_fixed_gap(grid_step, 0, num_points, deltas)
    infinite = float(deltas[-1])
    positive = np.asarray(one_sided.to_dense_pmf()._probs, dtype=np.float64)[1:]
    negative = positive * np.exp(-losses[1:])
    rest = max(0.0, 1.0 - infinite - math.fsum(positive) - math.fsum(negative))
    masses = np.concatenate([negative[::-1], [rest], positive])
    return PrivacyLossDistribution(DensePLDPmf(grid_step, -num_points, masses, infinite, pessimistic_estimate=True))


@functools.lru_cache(maxsize=4)
def _one_step(
    noise_ratio: float, sampling_prob: float, scheme: Scheme, steps_scale: int
) -> tuple[PrivacyLossDistribution, float]:
    """Return the pair that dominates one step, on a grid meant for so many steps, and the rounding to charge."""
    mechanism = _mechanism(noise_ratio, sampling_prob, scheme)
    largest_loss = float(mechanism.connect_dots_bounds().epsilon_upper)
    per_sd = max(_GRID_PER_SD, _GRID_PER_COMPOSED_SD * math.sqrt(steps_scale))
    wanted = per_sd * _loss_sd(mechanism)
    grid_step = max(wanted, largest_loss / _MAX_ONE_STEP_POINTS, _MIN_GRID_STEP)
    num_points = max(1, math.ceil(largest_loss / grid_step))
    rounding = _ROUNDING_PER_STEP * (1.0 + largest_loss)
    return symmetric_distribution(mechanism, grid_step, num_points), rounding


@functools.lru_cache(maxsize=4)
def _one_block(noise_ratio: float, sampling_prob: float, scheme: Scheme, steps_scale: int) -> PrivacyLossDistribution:
    """Return `_BLOCK` steps composed."""
    step, _ = _one_step(noise_ratio, sampling_prob, scheme, steps_scale)
    return step.self_compose(_BLOCK, _WINDOW_TAIL)


@functools.lru_cache(maxsize=4)
def _composed(
    noise_ratio: float, sampling_prob: float, num_steps: int, scheme: Scheme
) -> tuple[PrivacyLossDistribution, float]:
    """Return the pair that dominates so many steps, and the rounding to charge."""
    # Powers of 4, so that a search over steps re-uses the same grid.
    mechanism = noise_ratio, sampling_prob, scheme, 4 ** max(11, math.ceil(math.log(num_steps, 4)))
    composed, rounding = _one_step(*mechanism)
    if num_steps == 1:
        return composed, rounding
    blocks, others = divmod(num_steps, _BLOCK)
    parts = [_one_block(*mechanism).self_compose(blocks, _WINDOW_TAIL)] if blocks else []
    parts += [composed.self_compose(others, _WINDOW_TAIL)] if others else []
    composed = functools.reduce(lambda left, right: left.compose(right, 0.0), parts)
    return composed, num_steps * rounding + _ROUNDING_OF_TRANSFORMS


def _bounded_delta(noise_ratio: float, sampling_prob: float, num_steps: int, epsilon: float, scheme: Scheme) -> float:
    """Return `subsampled_delta` of arguments that are known to be good."""
    if num_steps == 0:
        return 0.0
    if sampling_prob == 1.0:
        return gaussian_delta_bound(_full_batches_cost(noise_ratio, num_steps), epsilon)
    composed, rounding = _composed(noise_ratio, sampling_prob, num_steps, scheme)
    # The losses are rounded products of the grid's step.
    finite = float(composed.get_delta_for_epsilon(epsilon * (1.0 - 1e-15)))
    return min(1.0, max(0.0, finite) + rounding)


def _full_batches_cost(noise_ratio: float, num_steps: int) -> float:
    """Return μ of steps over all records, rounded up: sensitivity 2C, so τ = noise_ratio/2 and μ = 1/(2τ²) each."""
    return rounded_up(num_steps * 2 / Fraction(noise_ratio) ** 2)


def _check_mechanism(noise_ratio: float, sampling_prob: float, scheme: str) -> tuple[float, float, Scheme]:
    """Return the checked arguments that all public functions share."""
    noise_ratio = check_number("noise_ratio", noise_ratio, above=0.0)
    sampling_prob = check_number("sampling_prob", sampling_prob, above=0.0)
    if sampling_prob > 1.0:
        raise QueryError(f"sampling_prob = {sampling_prob} must be at most 1; pass batch size / number of records")
    if not 0.1 <= noise_ratio <= 1e6:
        raise QueryError(
            f"noise_ratio = {noise_ratio} is outside [0.1, 1e6]; "
            "pass the noise sd on the batch sum divided by the clip norm"
        )
    if sampling_prob < 1e-9:
        raise QueryError(f"sampling_prob = {sampling_prob} is below 1e-9; pass batch size / number of records")
    if scheme == "without_replacement":
        return noise_ratio, sampling_prob, "without_replacement"
    if scheme == "poisson":
        return noise_ratio, sampling_prob, "poisson"
    raise QueryError(f"scheme = {scheme!r} is unknown; pass one of {', '.join(map(repr, get_args(Scheme)))}")


def subsampled_delta(
    noise_ratio: float,
    sampling_prob: float,
    num_steps: int,
    epsilon: float,
    scheme: Scheme = "without_replacement",
) -> float:
    """Return an upper bound on δ(ε) of noisy batch sums, neighbours differing by the replacement of a record.

    Parameters
    ----------
    noise_ratio
        Noise sd on the *sum over the batch* divided by the clip norm C of one record.
    sampling_prob
        q = batch size / number of records ("without_replacement"), or the probability with which each record
        enters a batch ("poisson").
    num_steps
        Number of batches, at most `MAX_STEPS`.
    epsilon
        Privacy parameter ε ≥ 0.
    scheme
        "without_replacement": batches of fixed size; "poisson": each record on its own. They have different
        curves, and the (better) one of "poisson" is **invalid** for batches of fixed size.

    Returns
    -------
    float
        δ in [0, 1], never below the true one. Rounding is charged: when sampling_prob < 1, the bound does not
        fall below 1e-12 + num_steps × 1e-15, so it is of no use for δ much smaller than that.

    Notes
    -----
    See `symmetric_distribution` for the pair of distributions that dominates one step; dp-accounting
    composes it by Fourier transform.
    """
    noise_ratio, sampling_prob, scheme = _check_mechanism(noise_ratio, sampling_prob, scheme)
    epsilon = check_number("epsilon", epsilon, at_least=0.0)
    return _bounded_delta(noise_ratio, sampling_prob, _check_steps(num_steps), epsilon, scheme)


def subsampled_epsilon(
    noise_ratio: float,
    sampling_prob: float,
    num_steps: int,
    delta: float,
    scheme: Scheme = "without_replacement",
) -> float:
    """Return the smallest ε found at which so many batches certainly have δ(ε) ≤ ``delta``.

    Parameters
    ----------
    noise_ratio, sampling_prob, num_steps, scheme
        As in `subsampled_delta`.
    delta
        Privacy parameter δ in (0, 1).

    Returns
    -------
    float
        ε for which ``subsampled_delta(...) <= delta`` was computed, while the next smaller float was found not to fit;
        0.0 if δ(0) is already small enough.

    Raises
    ------
    QueryError
        If no ε is enough, because the rounding that is charged exceeds ``delta``.
    """
    noise_ratio, sampling_prob, scheme = _check_mechanism(noise_ratio, sampling_prob, scheme)
    num_steps, delta = _check_steps(num_steps), check_delta(delta)
    if num_steps > 0 and sampling_prob == 1.0:
        return gaussian_epsilon(_full_batches_cost(noise_ratio, num_steps), delta)

    def is_safe(epsilon: float) -> bool:
        return _bounded_delta(noise_ratio, sampling_prob, num_steps, epsilon, scheme) <= delta

    if is_safe(0.0):
        return 0.0
    unsafe, safe = 0.0, 1.0
    while not is_safe(safe):
        unsafe, safe = safe, 2.0 * safe
        if safe > _MAX_EPSILON:
            raise QueryError(
                f"no epsilon up to {_MAX_EPSILON:g} is enough for {num_steps} steps and delta = {delta:g}; "
                "pass fewer steps, more noise or a larger delta"
            )
    return last_certified(safe, unsafe, is_safe)


def _check_steps(num_steps: int) -> int:
    if int(check_number("num_steps", num_steps, at_least=0.0)) != num_steps:
        raise QueryError(f"num_steps = {num_steps} is not a whole number; pass an integer")
    if num_steps > MAX_STEPS:
        raise QueryError(f"num_steps = {num_steps} is above {MAX_STEPS}; pass fewer steps")
    return int(num_steps)


def _largest_within(log_excess: Callable[[int], float], guess: int) -> int:
    """Return the largest n in [0, MAX_STEPS] found with log_excess(n) ≤ 0, for an increasing function.

    A bracket by growing strides from the guess, then its root by Brent's method on log n, in which the excess
    is nearly linear; n fits and n + 1 does not by evaluation.
    """
    from scipy.optimize import brentq

    fits = log_excess(guess) <= 0.0
    low = high = guess
    stride = 1.25
    while fits:
        low, high = high, min(math.ceil(high * stride), MAX_STEPS)
        if low == high:
            return MAX_STEPS
        fits, stride = log_excess(high) <= 0.0, stride**2
    while low == high or log_excess(low) > 0.0:
        if low == 1:
            return 0
        low, high, stride = max(1, math.floor(low / stride)), low, stride**2
    root = brentq(lambda x: log_excess(round(math.exp(x))), math.log(low), math.log(high), xtol=2.0 / high)
    steps = round(math.exp(root))
    while log_excess(steps) > 0.0:
        steps -= 1
    while steps < MAX_STEPS and log_excess(steps + 1) <= 0.0:
        steps += 1
    return steps


def subsampled_steps(
    noise_ratio: float,
    sampling_prob: float,
    epsilon: float,
    delta: float,
    scheme: Scheme = "without_replacement",
) -> int:
    """Return how many batches may be released under (ε, δ): the largest number found to fit.

    Parameters
    ----------
    noise_ratio, sampling_prob, epsilon, scheme
        As in `subsampled_delta`.
    delta
        Privacy parameter δ in (0, 1). Below about 1e-11 it leaves no room for the rounding that is charged:
        the answer is then too small, or 0.

    Returns
    -------
    int
        A number of steps for which ``subsampled_delta(...) <= delta`` was computed, while one step more was
        found not to fit; 0 if not even one step fits, and at most `MAX_STEPS`.
    """
    noise_ratio, sampling_prob, scheme = _check_mechanism(noise_ratio, sampling_prob, scheme)
    return _steps_within(
        noise_ratio, sampling_prob, scheme, check_number("epsilon", epsilon, at_least=0.0), check_delta(delta)
    )


@functools.lru_cache(maxsize=256)  # a run asks the same several times, and the repeats of a study again
def _steps_within(noise_ratio: float, sampling_prob: float, scheme: Scheme, epsilon: float, delta: float) -> int:
    """Return `subsampled_steps` of arguments that are known to be good."""

    @functools.cache
    def log_excess(num_steps: int) -> float:
        bound = _bounded_delta(noise_ratio, sampling_prob, num_steps, epsilon, scheme)
        return math.log(max(bound, 1e-300) / delta)

    total = gaussian_mu(epsilon, delta) if epsilon > 0.0 else delta**2
    # The central limit: n losses of sd s look like one Gaussian query of μ = n·s²/2.
    step_cost = (
        _full_batches_cost(noise_ratio, 1)
        if sampling_prob == 1.0
        else 0.5 * _loss_sd(_mechanism(noise_ratio, sampling_prob, scheme)) ** 2
    )
    guess = total / step_cost if step_cost > 0.0 else math.inf
    return _largest_within(log_excess, max(1, int(min(guess, MAX_STEPS))))
