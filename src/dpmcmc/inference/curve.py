"""Planning a study with no data: how wide intervals become over a range of budgets and of numbers of records.

The numbers are those of :mod:`dpmcmc.inference.laplace_plan`, over a grid, and the question turned round: which ε, or
how many records, it takes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpmcmc import checks
from dpmcmc.errors import QueryError
from dpmcmc.inference.laplace_plan import (
    LARGEST_RELATIVE_NOISE,
    epsilon_for,
    noise_sd_of,
    relative_noise_of,
    total_of,
    two_digits_up,
)
from dpmcmc.privacy import gaussian_mu
from dpmcmc.privacy.budget import after_lattice_reserve
from dpmcmc.privacy.gaussian import check_delta
from dpmcmc.samplers import DPLaplace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DEFAULT_WIDTH", "PlanCurve", "plan_curve"]

DEFAULT_WIDTH = 1.5
"""Intervals that are half as wide again as without noise: the noise is then about as large as the posterior."""
_OCTAVES = 4
"""The grid goes so many times to half and to double of what was asked, …"""
_STEPS_OF_AN_OCTAVE = 2
_BENIGN, _SKEWED = 0, 1
_MOST_ROUNDS = 60


@dataclass(frozen=True, eq=False)
class PlanCurve:
    """How wide intervals become, over a grid of ε and of n.

    Attributes
    ----------
    sampler
        "auto" or "DP-Laplace": the numbers are the same. Of "auto" they hold if the posterior is about Gaussian.
    num_records, epsilon, dimension
        What was asked: the middle of the grid, and the number d of unconstrained parameters.
    delta
        The δ that was asked; None if it is 0.1/n, a different one for each n.
    width
        What `epsilon_needed` and `records_needed` are about: intervals so many times as wide as without noise.
    epsilons
        The ε of the grid, from a sixteenth to sixteen times of what was asked.
    record_numbers
        The n of the grid, likewise.
    relative_noise
        ρ, ε × n: the noise of the curvature, relative to the curvature. Above 0.01 a run cannot work.
    noise_sd
        Expected privacy noise on each parameter, in posterior sds, ε × n × 2: for benign and for skewed data. It means
        nothing where a run cannot work.
    interval_widening
        Intervals, times as wide as without noise, ε × n × 2: for both. NaN where a run cannot work.
    epsilon_needed
        The smallest ε, of two digits, at which intervals of the n asked are no wider than `width` times: for benign and
        for skewed data.
    records_needed
        The smallest n, of two digits, with which those at the ε asked are: for both.
    """

    sampler: str
    num_records: int
    epsilon: float
    dimension: int
    delta: float | None
    width: float
    epsilons: NDArray[np.float64]
    record_numbers: NDArray[np.int64]
    relative_noise: NDArray[np.float64]
    noise_sd: NDArray[np.float64]
    interval_widening: NDArray[np.float64]
    epsilon_needed: tuple[float, float]
    records_needed: tuple[int, int]

    @property
    def interval_width(self) -> NDArray[np.float64]:
        """Widths of intervals, ε × n × 2, times that of intervals without noise from as many records as was asked.

        Without noise an interval shrinks like 1/√n, so that this is `interval_widening` times √(num_records/n).
        """
        shrinking = np.sqrt(self.num_records / self.record_numbers)
        return np.asarray(self.interval_widening * shrinking[:, None])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON; None stands where a run cannot work."""
        names = ("sampler", "num_records", "epsilon", "dimension", "delta", "width")
        arrays = {
            "relative_noise": self.relative_noise,
            "noise_sd": self.noise_sd,
            "interval_widening": self.interval_widening,
            "interval_width": self.interval_width,
        }
        return {
            **{name: getattr(self, name) for name in names},
            "epsilons": self.epsilons.tolist(),
            "record_numbers": self.record_numbers.tolist(),
            **{name: _or_none(values.tolist()) for name, values in arrays.items()},
            "epsilon_needed": list(self.epsilon_needed),
            "records_needed": list(self.records_needed),
        }

    def plot(self) -> Figure:
        """Draw the widths against ε and against n: a figure of Matplotlib.

        Above as `interval_widening`, below as `interval_width`. Bands go from benign to skewed data. Diamonds mark what
        `epsilon_needed` and `records_needed` say.

        Raises
        ------
        ResultError
            If Matplotlib is not installed.
        """
        from dpmcmc.inference.curve_figure import curve_figure

        return curve_figure(self)


def plan_curve(
    sampler: DPLaplace | Literal["auto"] = "auto",
    *,
    num_records: int,
    epsilon: float,
    dimension: int,
    delta: float | None = None,
    width: float = DEFAULT_WIDTH,
) -> PlanCurve:
    """Work out, with no data, how wide intervals become over a range of budgets and of numbers of records.

    Parameters
    ----------
    sampler
        ``"auto"`` or ``DPLaplace()``. (The others run as many steps as the budget buys, see :func:`dpmcmc.plan`.)
    num_records, epsilon
        The middle of the range, which goes from a sixteenth to sixteen times of both.
    dimension
        Number of unconstrained parameters (``model.dimension``).
    delta
        The δ of all budgets. Default: 0.1/n, which is a different one for each n.
    width
        Answer also which ε, and which n, it takes for intervals that are at most so many times as wide as without
        noise. Must be larger than 1.

    Returns
    -------
    PlanCurve
        The numbers, which :meth:`PlanCurve.plot` draws.

    Examples
    --------
    >>> import dpmcmc
    >>> curve = dpmcmc.plan_curve(num_records=48_842, epsilon=1.0, dimension=5)
    >>> curve.interval_widening[8, 8].round(2).tolist()  # in the middle of the grid: what was asked
    [1.01, 1.29]
    >>> curve.epsilon_needed, curve.records_needed
    ((0.11, 0.66), (4000, 14000))
    """
    if not (isinstance(sampler, str) and sampler == "auto") and type(sampler) is not DPLaplace:
        raise QueryError(
            f'sampler = {sampler!r} has no curve; give "auto" or dpmcmc.DPLaplace(), and for the others dpmcmc.plan'
        )
    num_records, dimension = checks.count("num_records", num_records), checks.count("dimension", dimension)
    epsilon, width = checks.positive("epsilon", epsilon), checks.positive("width", width)
    delta = None if delta is None else check_delta(delta)
    if width <= 1.0:
        raise QueryError(f"width = {width:g} is out of reach, as noise makes every interval wider; give more than 1")
    total_of(epsilon, _delta_of(num_records, delta))  # refuses what pays for nothing
    steps = 2.0 ** (
        np.arange(-_OCTAVES * _STEPS_OF_AN_OCTAVE, _OCTAVES * _STEPS_OF_AN_OCTAVE + 1) / _STEPS_OF_AN_OCTAVE
    )
    epsilons = epsilon * steps
    record_numbers = np.maximum(1, np.rint(num_records * steps)).astype(np.int64)
    mu = np.array([[_mu(float(some), _delta_of(int(n), delta)) for n in record_numbers] for some in epsilons])
    with np.errstate(divide="ignore"):
        relative_noise = relative_noise_of(record_numbers, dimension, mu)
        noise_sd = noise_sd_of(record_numbers, dimension, mu)
    widening = np.hypot(1.0, noise_sd)
    widening[relative_noise > LARGEST_RELATIVE_NOISE] = np.nan
    epsilon_needed, records_needed = zip(
        *(_needed(end, num_records, epsilon, dimension, delta, width) for end in (_BENIGN, _SKEWED)), strict=True
    )
    return PlanCurve(
        sampler="auto" if isinstance(sampler, str) else sampler.name,
        num_records=num_records,
        epsilon=epsilon,
        dimension=dimension,
        delta=delta,
        width=width,
        epsilons=epsilons,
        record_numbers=record_numbers,
        relative_noise=relative_noise,
        noise_sd=noise_sd,
        interval_widening=widening,
        epsilon_needed=epsilon_needed,
        records_needed=records_needed,
    )


def _delta_of(num_records: int, delta: float | None) -> float:
    return 0.1 / num_records if delta is None else delta


@functools.lru_cache(maxsize=4096)
def _mu(epsilon: float, delta: float) -> float:
    """Return the budget's total, the reserve for discrete noise set aside; 0 if it pays for nothing."""
    reserve = after_lattice_reserve(epsilon, delta)
    return gaussian_mu(reserve.epsilon, reserve.delta_of_gaussians)


def _needed(
    end: int, num_records: int, epsilon: float, dimension: int, delta: float | None, width: float
) -> tuple[float, int]:
    """Return the smallest ε for this n, and the smallest n for this ε, at one end of the band."""

    def suffices(n: float, mu: float) -> bool:
        """Whether it can work (where it can, noise falls with n and with B) and intervals are narrow enough."""
        if relative_noise_of(n, dimension, mu) > LARGEST_RELATIVE_NOISE:
            return False
        return math.hypot(1.0, float(noise_sd_of(n, dimension, mu)[end])) <= width

    mu = _smallest(functools.partial(suffices, num_records))
    # δ = 0.1/n falls as n grows, and B with it, but slowly: a few rounds settle it.
    n = 1.0
    for _ in range(_MOST_ROUNDS):
        # From records that are too few upwards, so that no round goes beyond what is needed.
        of_all = _mu(epsilon, 0.1 / n if delta is None else delta)
        before, n = n, max(1.0, _smallest(functools.partial(suffices, mu=of_all)))
        if n <= before * (1.0 + 1e-9):
            break
    return epsilon_for(mu, epsilon, _delta_of(num_records, delta)), math.ceil(two_digits_up(n))


def _smallest(suffices: Callable[[float], bool]) -> float:
    """Return the smallest number that suffices, by bisection of its logarithm; what is larger suffices, too."""
    low, high = -200.0, 200.0
    while high - low > 1e-10:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if suffices(math.exp(middle)) else (middle, high)
    return math.exp(high)


def _or_none(values: Any) -> Any:
    """Replace what is no number in nested lists."""
    if isinstance(values, list):
        return [_or_none(value) for value in values]
    return values if math.isfinite(values) else None
