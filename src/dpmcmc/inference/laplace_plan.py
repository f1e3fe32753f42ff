"""What a budget buys DP-Laplace and "auto", worked out with no data: how wide intervals become, or that it cannot work.

They have no steps to count: all of the budget goes into a few sums, and draws cost nothing. What a budget buys is
precision, and that follows from the number of records, the number of parameters, ε and δ alone.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmcmc import checks
from dpmcmc.errors import BudgetExceededError
from dpmcmc.privacy import Budget, gaussian_epsilon
from dpmcmc.privacy.budget import after_lattice_reserve

__all__ = ["LaplacePlan", "delta_notes", "plan_laplace"]

LARGEST_RELATIVE_NOISE = 0.01
"""Above this the curvature is drowned in its noise, and nothing is found."""
SCORE_SHARE = 0.75
"""The part of the budget that ends up in sums of scores."""
BENIGN_CLIP_FACTOR = 1.5
"""Clip norm over √(d/n), the usual norm of a record's score in whitened coordinates, where scores are of like size."""


@dataclass(frozen=True)
class LaplacePlan:
    """What a budget buys DP-Laplace, or "auto".

    Attributes
    ----------
    sampler, num_records, dimension, epsilon, delta
        What was asked; ``dimension`` is the number d of unconstrained parameters. The sampler is "DP-Laplace" or
        "auto": the numbers are the same.
    mu_total
        The budget's total μ, called B below, with the reserve for discrete noise set aside.
    relative_noise
        ρ = d^1.5/(n√(2B)): the noise of the curvature, relative to the curvature.
    feasible
        Whether ρ is at most 0.01. If not, the other numbers mean nothing.
    noise_sd
        Expected privacy noise on each parameter, in posterior sds: for benign and for skewed data.
    interval_widening
        How many times as wide as without noise the intervals are, of 90 % or any other probability: for both.
    notes
        What deserves a second thought before the budget is spent.
    """

    sampler: str
    num_records: int
    dimension: int
    epsilon: float
    delta: float
    mu_total: float
    relative_noise: float
    feasible: bool
    noise_sd: tuple[float, float]
    interval_widening: tuple[float, float]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        values = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def plan_laplace(
    *, num_records: int, epsilon: float, delta: float, dimension: int, sampler: str = "DP-Laplace"
) -> LaplacePlan:
    r"""Work out what a budget buys DP-Laplace, or "auto" where a Gaussian is enough, with no data.

    Parameters
    ----------
    num_records
        Number n of rows, which is public.
    epsilon, delta
        The budget.
    dimension
        Number d of unconstrained parameters.
    sampler
        Its name, in the plan.

    Raises
    ------
    BudgetExceededError
        If the budget is so small that it pays for nothing at all.

    Notes
    -----
    In coordinates in which the posterior has unit covariance, the second moments of the n records' scores add up to the
    unit matrix, so that a record's score has a norm of about :math:`\sqrt{d/n}`. Clipped to
    :math:`c = κ\sqrt{d/n}`, their sum has sensitivity 2c, and with a cost of 0.75 B, noise of standard deviation

    .. math:: s = \frac{2c}{\sqrt{2 \cdot 0.75\,B}} = \frac{2κ\sqrt{d/n}}{\sqrt{1.5\,B}}

    in each coordinate. The curvature there is one, so that the sum's noise is the centre's: s posterior sds on every
    parameter, in any coordinates. The posterior of the parameters, given what was released, has the variance
    :math:`1 + s^2`. κ is 1.5 where scores are of like size; for skewed data see `clip_factors`. Data with longer tails
    than that need more.

    Examples
    --------
    >>> plan = plan_laplace(num_records=100_000, epsilon=1.0, delta=1e-6, dimension=10)
    >>> plan.feasible
    True
    >>> [round(times, 2) for times in plan.interval_widening]
    [1.01, 1.34]
    """
    num_records, dimension = checks.count("num_records", num_records), checks.count("dimension", dimension)
    budget = total_of(epsilon, delta)
    epsilon, delta, mu = budget.epsilon, budget.delta, budget.total
    relative_noise = float(relative_noise_of(num_records, dimension, mu))
    low, high = map(float, noise_sd_of(num_records, dimension, mu))
    notes = delta_notes(delta, num_records)
    if relative_noise > LARGEST_RELATIVE_NOISE:
        notes.append(_cannot_work(num_records, dimension, epsilon, delta, mu, relative_noise))
    elif low > 1.0:
        notes.append(
            f"even with benign data the privacy noise would be {low:.2g} posterior sds on every parameter, and "
            f"intervals {math.hypot(1.0, low):.2g} times as wide as without it; "
            f"{two_digits_up(num_records * low**2):,.0f} records, or epsilon = "
            f"{epsilon_for(mu * low**2, epsilon, delta):g}, would bring the noise down to one sd"
        )
    return LaplacePlan(
        sampler=sampler,
        num_records=num_records,
        dimension=dimension,
        epsilon=epsilon,
        delta=delta,
        mu_total=mu,
        relative_noise=relative_noise,
        feasible=relative_noise <= LARGEST_RELATIVE_NOISE,
        noise_sd=(low, high),
        interval_widening=(math.hypot(1.0, low), math.hypot(1.0, high)),
        notes=tuple(notes),
    )


def total_of(epsilon: float, delta: float) -> Budget:
    """Return the budget with the reserve for discrete noise set aside; refuse one that pays for nothing."""
    budget = Budget(epsilon, delta)
    budget.reserve_lattice()
    if budget.total == 0.0:
        raise BudgetExceededError(
            f"epsilon = {budget.epsilon:g}, delta = {budget.delta:g} pays for nothing; use a larger budget"
        )
    return budget


def relative_noise_of(num_records: ArrayLike, dimension: int, mu: ArrayLike) -> NDArray[np.float64]:
    """Return ρ = d^1.5/(n√(2B)) for any shape of n and B."""
    return np.asarray(dimension**1.5 / (np.asarray(num_records) * np.sqrt(2.0 * np.asarray(mu))), np.float64)


def noise_sd_of(num_records: ArrayLike, dimension: int, mu: ArrayLike) -> NDArray[np.float64]:
    """Return the noise in posterior sds for any shape of n and B: benign and skewed data along a new last axis."""
    unit = 2.0 * np.sqrt(dimension / np.asarray(num_records)) / np.sqrt(2.0 * SCORE_SHARE * np.asarray(mu))
    return np.asarray(unit[..., None] * clip_factors(num_records, dimension, mu), np.float64)


def clip_factors(num_records: ArrayLike, dimension: int, mu: ArrayLike) -> NDArray[np.float64]:
    r"""Return κ, the clip norm over √(d/n), for any shape of n and B: benign and skewed data along a new last axis.

    Notes
    -----
    DP-Laplace clips so that about :math:`T = 2\sqrt{d/(2 \cdot 0.75\,B)}` records lie above the bound (its tail-count
    rule). So κ is the quantile of the scores' norms, over their root mean square, that T of n records exceed: the
    larger n and B, the farther out. "Skewed" stands for a regression in which one feature with an exponential tail
    decides a score: \|residual\| × feature, the residual Gaussian:

    .. math:: P(|Z| E > t) ≈ \tfrac{2}{\sqrt{3}} e^{-\frac{3}{2} t^{2/3}}, \qquad
        κ = \frac{1}{\sqrt{2}} \left(\frac{2}{3} \ln \frac{2 n}{\sqrt{3}\,T}\right)^{3/2},

    by Laplace's method, as :math:`E (ZE)^2 = 2`.
    """
    above = 2.0 * np.sqrt(dimension / (2.0 * SCORE_SHARE * np.asarray(mu, np.float64)))
    rank = np.log(np.maximum(2.0 * np.asarray(num_records) / (math.sqrt(3.0) * above), 1.0))
    skewed = (2.0 / 3.0 * rank) ** 1.5 / math.sqrt(2.0)
    benign = np.full_like(skewed, BENIGN_CLIP_FACTOR)
    return np.stack([benign, np.maximum(skewed, BENIGN_CLIP_FACTOR)], axis=-1)


def delta_notes(delta: float, num_records: int) -> list[str]:
    """Return a note if δ is too large to protect anyone; else nothing."""
    if Fraction(delta) * num_records < 1:
        return []
    return [
        f"delta = {delta:g} is at least 1/n = {1.0 / num_records:g}: publishing the record of one person chosen at "
        "random would be allowed too; use a delta well below 1/n, such as 0.1/n"
    ]


def _cannot_work(
    num_records: int, dimension: int, epsilon: float, delta: float, mu: float, relative_noise: float
) -> str:
    """Say that ρ is too large, and which n, d or ε would do, each with the others as they are."""
    excess = relative_noise / LARGEST_RELATIVE_NOISE
    most = math.floor(dimension * excess ** (-2.0 / 3.0))
    fewer = f"at most {_parameters(most)}, " if most else ""
    return (
        f"{num_records:,} records, {_parameters(dimension)} and epsilon = {epsilon:g} cannot work: the curvature would "
        f"be lost in its noise (relative noise {relative_noise:.3g}; at most {LARGEST_RELATIVE_NOISE:g} is bearable); "
        f"at this delta it takes {two_digits_up(num_records * excess):,.0f} records, {fewer}or epsilon = "
        f"{epsilon_for(mu * excess**2, epsilon, delta):g}"
    )


def epsilon_for(mu: float, least: float, delta: float) -> float:
    """Return an ε, of two digits, that pays for μ at this δ after the reserve for discrete noise."""
    # The reserve takes a share of 1e-5 of ε, and of δ a factor that depends on ε: two rounds settle it.
    epsilon = least
    for _ in range(3):
        reserve = after_lattice_reserve(epsilon, delta)
        epsilon = gaussian_epsilon(mu, reserve.delta_of_gaussians) * epsilon / reserve.epsilon
    return two_digits_up(epsilon)


def _parameters(number: int) -> str:
    return f"{number:,} parameter{'' if number == 1 else 's'}"


def two_digits_up(value: float) -> float:
    """Round up to two digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit) * unit:.3g}")
