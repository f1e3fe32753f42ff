"""The privacy curve of the subsampled Gaussian mechanism: many noisy sums over random batches.

Pure mathematics of the budget: nothing here sees data, keeps a meter or draws noise. Every δ returned is an
upper bound (pessimistic discretisation, tails and rounding charged), so steps counted with it are safe;
no filter is known for this mechanism, so noise, sampling probability and steps are to be fixed beforehand.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import fft
from scipy.special import expit, logsumexp, ndtr

from dpmcmc.errors import QueryError
from dpmcmc.privacy.gaussian import check_delta, check_number, gaussian_delta, gaussian_mu

Scheme = Literal["without_replacement", "poisson"]
Array = npt.NDArray[np.float64]

MAX_STEPS = 10**9
"""The largest number of steps that is accounted for; beyond it rounding would have to be charged visibly."""

# Where the noise is cut off, in sds. What lies beyond (1.8e-33 per step) is charged as a certain breach.
_CUTOFF = 12.0
# The loss grid: fine against one step's loss (its sd), coarser as √steps, so that the grid of the composed
# loss stays near 1e6 points; never so many points for one step that the grid itself is slow.
_GRID_PER_SD_SINGLE = 2e-3
_GRID_PER_SD = 5e-3
_GRID_PER_COMPOSED_SD = 1.5e-5
_MAX_GRID_STEP = 0.25
_MAX_ONE_STEP_POINTS = 2**19
# log of the (tilted) mass that may lie outside the window of the Fourier transform on either side.
_LOG_OUTSIDE = 34.0
_MAX_WINDOW = 2**23
# Relative error of one mass of the grid (exp of up to 72, tilt, quadrature), charged at every step.
_MASS_ERROR = 2e-14
_UNIT_ROUNDOFF = 2.0**-53
# Next to loss 0 a cell may be wide compared with q, and the integrand varies; further out it hardly does.
_FIRST_CELLS = 16


@dataclass(frozen=True)
class LossGrid:
    """A discretised pair of distributions that dominates one step.

    Attributes
    ----------
    step
        Distance between neighbouring losses.
    masses
        Upper-distribution masses of the losses −num·step, …, 0, …, num·step.
    infinite_mass
        Mass that is charged as an infinite loss.
    """

    step: float
    masses: Array
    infinite_mass: float

    @property
    def half_size(self) -> int:
        """Number of grid points on either side of loss 0."""
        return (len(self.masses) - 1) // 2

    @functools.cached_property
    def losses(self) -> Array:
        """The losses that carry the masses."""
        return self.step * np.arange(-self.half_size, self.half_size + 1, dtype=np.float64)

    @functools.cached_property
    def log_masses(self) -> Array:
        """Logarithms of the masses (−inf where a mass underflows)."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.masses))

    def delta(self, epsilon: float) -> float:
        """Return the hockey-stick divergence E[(1 − e^{ε−loss})₊] of one step, for any real ε."""
        above = self.losses > epsilon
        weights = -np.expm1(epsilon - self.losses[above])
        total = float(np.dot(weights, self.masses[above])) * (1.0 + _MASS_ERROR) + self.infinite_mass
        return min(1.0, total)


def _unit_sigma(noise_ratio: float, scheme: Scheme) -> float:
    """Return the noise sd in units of the shift between the two components of a mixture.

    Without replacement, substituting one record swaps it for another in the batch: the components lie up to
    2C apart. Under Poisson sampling each of the two records is present or absent on its own: ±C about 0.
    """
    return noise_ratio / 2.0 if scheme == "without_replacement" else noise_ratio


def _point_of_loss(losses: Array, sigma: float, prob: float, scheme: Scheme) -> Array:
    """Return where the loss takes the given values > 0 (it increases with the point)."""
    if scheme == "without_replacement":
        # loss = log(1 − q + q·e^y), y = (2x − 1)/(2σ²), in the form that does not overflow
        small = np.log1p(np.expm1(np.minimum(losses, 30.0)) / prob)
        large = losses - math.log(prob) + np.log1p(-(1.0 - prob) * np.exp(-losses))
        return np.asarray(0.5 + sigma**2 * np.where(losses < 30.0, small, large))
    # loss = log A(x)/A(−x), A(x) = 1 − q + q·e^{(2x−1)/(2σ²)}: sinh(x/σ² − loss/2) = α·sinh(loss/2)
    log_alpha = 0.5 / sigma**2 + math.log1p(-prob) - math.log(prob)
    log_sinh = log_alpha + 0.5 * losses + np.log(-0.5 * np.expm1(-losses))
    moderate = np.arcsinh(np.exp(np.minimum(log_sinh, 300.0)))
    arcsinh = np.where(log_sinh < 300.0, moderate, log_sinh + math.log(2.0))
    return np.asarray(sigma**2 * (0.5 * losses + arcsinh))


def _loss_of_point(points: Array, sigma: float, prob: float, scheme: Scheme) -> Array:
    """Return the privacy loss at the given points."""
    log_rest, log_prob = math.log1p(-prob), math.log(prob)
    upper = np.logaddexp(log_rest, log_prob + (points - 0.5) / sigma**2)
    if scheme == "without_replacement":
        return np.asarray(upper)
    return np.asarray(upper - np.logaddexp(log_rest, log_prob - (points + 0.5) / sigma**2))


def _loss_gain(start: Array, points: Array, sigma: float, prob: float, scheme: Scheme) -> Array:
    """Return loss(points) − loss(start) without cancellation, start being the left ends of the cells."""
    log_odds = math.log(prob) - math.log1p(-prob)
    shift = (points - start) / sigma**2
    gain = np.log1p(np.expm1(shift) * expit(log_odds + (start - 0.5) / sigma**2))
    if scheme == "poisson":
        gain = gain - np.log1p(np.expm1(-shift) * expit(log_odds - (start + 0.5) / sigma**2))
    return np.asarray(gain)


def _upper_density(points: Array, sigma: float, prob: float) -> Array:
    """Return the density (1 − q)·N(0, σ²) + q·N(1, σ²) of the upper distribution."""
    norm = 1.0 / (sigma * math.sqrt(2.0 * math.pi))
    at_zero = np.exp(-0.5 * np.square(points / sigma))
    at_one = np.exp(-0.5 * np.square((points - 1.0) / sigma))
    return np.asarray(norm * ((1.0 - prob) * at_zero + prob * at_one))


def _gauss_rule(num_panels: int, num_nodes: int) -> tuple[Array, Array]:
    """Return the nodes and weights on [0, 1] of a composite Gauss–Legendre rule."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    starts = np.arange(num_panels)[:, None]
    return np.ravel((starts + 0.5 * (nodes + 1.0)) / num_panels), np.tile(0.5 * weights / num_panels, num_panels)


def _split_cells(
    edges: Array, grid_step: float, sigma: float, prob: float, scheme: Scheme, rule: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return what each cell of the loss grid gives to its left and to its right end.

    A mass at loss l between the ends e and e + h is split so that both its upper and its lower probability
    (e^{−l} times the upper) are kept: the share of the right end is (1 − e^{−(l−e)})/(1 − e^{−h}). All terms
    are positive, so that tail masses of 1e-30 are as exact, relatively, as those of the bulk.
    """
    nodes, weights = rule
    widths = np.diff(edges)
    start = edges[:-1, None]
    points = start + widths[:, None] * nodes
    mass = _upper_density(points, sigma, prob) * weights * widths[:, None]
    gain = np.clip(_loss_gain(start, points, sigma, prob, scheme), 0.0, grid_step)
    to_right = np.sum(mass * (np.expm1(-gain) / math.expm1(-grid_step)), axis=1)
    to_left = np.sum(mass * (np.expm1(grid_step - gain) / math.expm1(grid_step)), axis=1)
    return np.asarray(to_left), np.asarray(to_right)


@functools.lru_cache(maxsize=8)
def one_step_losses(noise_ratio: float, sampling_prob: float, scheme: Scheme, steps_scale: int) -> LossGrid:
    r"""Return a discretised dominating pair of one subsampled Gaussian step.

    Let σ be the noise in units of the shift (`noise_ratio`/2 without replacement, `noise_ratio` for Poisson).
    The pair of distributions is

    - *Poisson, replace one*: (1−q)N(0, σ²) + qN(1, σ²) against (1−q)N(0, σ²) + qN(−1, σ²);
    - *without replacement, replace one*: the pair whose hockey-stick curve is the larger of the two curves
      of (1−q)N(0, σ²) + qN(1, σ²) against N(0, σ²) ("remove") and the reverse ("add").

    **Why the second is a pair.** The larger of two functions of α = e^ε that are convex, non-increasing, 1 at
    α = 0 and at least (1−α)₊ is one again, and each such function is the curve of some pair (Zhu et al.).
    "remove" is the larger for ε > 0, "add" for ε < 0, and they meet at ε = 0. The upper mass of losses
    above ε depends on the slope of the curve at ε alone, so the pair's losses are those of "remove" above 0
    and those of "add" below 0, and the kink at ε = 0 puts what is left of the mass at loss 0 exactly.

    **Both pairs are symmetric**: swapping the two distributions mirrors the losses, so the density of losses
    obeys f(−l) = e^{−l} f(l). Only the losses above 0 are integrated.

    **Why the grid dominates.** Each mass between two grid points is split between them such that its upper
    and its lower probability are kept. The curve of the grid is then the chord of the true one (as a function
    of e^ε) between grid points: by convexity never below it ("connect the dots", Doroshenko et al.). Losses
    beyond the grid count as infinite above, as 0 below: both only raise the curve. Pairs that dominate one
    step dominate any adaptive composition when composed (Zhu et al.).

    Parameters
    ----------
    noise_ratio, sampling_prob, scheme
        As in `subsampled_delta`, with 0 < sampling_prob < 1.
    steps_scale
        The grid is chosen for about this many steps: fine against the sd of one step's loss, but no finer
        than 1.5e-5 sds of the composed loss.

    References
    ----------
    Zhu, Dong & Wang (2022), "Optimal accounting of differential privacy via characteristic function"
    (dominating pairs, their composition, and both curves of sampling without replacement). Doroshenko,
    Ghazi, Kamath, Kumar & Manurangsi (2022), "Connect the dots: tighter discrete
    approximations of privacy loss distributions".
    """
    sigma, prob = _unit_sigma(noise_ratio, scheme), sampling_prob
    first = 0.5 if scheme == "without_replacement" else 0.0
    last = 1.0 + _CUTOFF * sigma
    points = np.linspace(first, last, 4001)
    losses = _loss_of_point(points, sigma, prob, scheme)
    squares = np.square(losses) * (1.0 + np.exp(-losses)) * _upper_density(points, sigma, prob)
    loss_sd = math.sqrt(float(np.mean(squares)) * (last - first))
    largest_loss = float(losses[-1])
    per_sd = _GRID_PER_SD if steps_scale > 1 else _GRID_PER_SD_SINGLE
    wanted = loss_sd * max(per_sd, _GRID_PER_COMPOSED_SD * math.sqrt(steps_scale))
    grid_step = min(_MAX_GRID_STEP, max(wanted, largest_loss / _MAX_ONE_STEP_POINTS))
    size = max(_FIRST_CELLS + 1, math.ceil(largest_loss / grid_step))

    edges = np.append(first, _point_of_loss(grid_step * np.arange(1, size + 1, dtype=np.float64), sigma, prob, scheme))
    near = _split_cells(edges[: _FIRST_CELLS + 1], grid_step, sigma, prob, scheme, _gauss_rule(4, 24))
    far = _split_cells(edges[_FIRST_CELLS:], grid_step, sigma, prob, scheme, _gauss_rule(1, 8))
    to_left, to_right = (np.concatenate(parts) for parts in zip(near, far, strict=True))
    positive = to_right.copy()
    positive[:-1] += to_left[1:]
    end = float(edges[-1])
    infinite = (1.0 - prob) * float(ndtr(-end / sigma)) + prob * float(ndtr((1.0 - end) / sigma))
    negative = positive * np.exp(-grid_step * np.arange(1, size + 1))
    rest = max(0.0, 1.0 - infinite - math.fsum(positive) - math.fsum(negative))
    masses = np.concatenate([negative[::-1], [rest], positive])
    return LossGrid(step=grid_step, masses=masses, infinite_mass=infinite)


def _tilt(grid: LossGrid, num_steps: int, epsilon: float) -> float:
    """Return roughly the t ≥ 0 at which the tilted mean of the composed loss is ε.

    It is the t with the smallest Chernoff bound; any t is correct, a good one is precise. Newton steps inside
    a bracket, until the mean is within a tenth of an sd of ε.
    """
    target = epsilon / num_steps
    tilt, low, high = 0.0, 0.0, math.inf
    for _ in range(60):
        exponents = grid.log_masses + tilt * grid.losses
        weights = np.exp(exponents - np.max(exponents))
        weights /= np.sum(weights)
        mean = float(np.dot(weights, grid.losses))
        variance = float(np.dot(weights, np.square(grid.losses - mean)))
        if abs(mean - target) <= 0.1 * math.sqrt(variance / num_steps) or (tilt == 0.0 and mean > target):
            break
        low, high = (tilt, high) if mean < target else (low, tilt)
        proposal = tilt + (target - mean) / variance if variance > 0.0 else math.nan
        # With rare large losses Newton's first step goes much too far: never more than a factor at once.
        upper = high if math.isfinite(high) else max(1.0, 8.0 * low)
        tilt = proposal if low < proposal < upper else 0.5 * (low + upper)
    return tilt


def _log_moment(grid: LossGrid, tilt: float) -> float:
    """Return K(t) = log E e^{t·loss} over the finite losses."""
    return float(logsumexp(grid.log_masses + tilt * grid.losses))


def _window(grid: LossGrid, num_steps: int, tilted: Array, spread: float) -> tuple[float, float, float]:
    """Return a window of the tilted composed loss, and the log of a bound on its mass above the window.

    Chernoff bounds, such that either side has mass ≤ e^{−34} unless the window would get too wide.
    """
    limit = num_steps * grid.step * grid.half_size
    low, high = -limit, limit
    upper_orders: list[tuple[float, float]] = []
    # An order at which the moments overflow is of no use and is left out.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        factors = np.exp(grid.losses * (0.5 / spread))
        for multiple in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0):
            order = multiple / spread
            up = num_steps * float(np.log(np.dot(tilted, factors)))
            down = num_steps * float(np.log(np.dot(tilted, 1.0 / factors)))
            if math.isfinite(up):
                upper_orders.append((order, up))
                high = min(high, (up + _LOG_OUTSIDE) / order)
            if math.isfinite(down):
                low = max(low, -(down + _LOG_OUTSIDE) / order)
            factors = np.square(factors)
    high = min(high, low + _MAX_WINDOW * grid.step)
    log_outside = min([0.0, *(up - order * high for order, up in upper_orders)])
    return low, high, log_outside


def composed_delta(grid: LossGrid, num_steps: int, epsilon: float) -> float:
    r"""Return an upper bound on δ(ε) of ``num_steps`` ≥ 1 steps, each dominated by ``grid``.

    The composed loss is the sum of independent losses, convolved by FFT under the tilted masses
    :math:`\tilde p(l) = p(l) e^{t l - K(t)}`; then

    .. math:: δ(ε) = \sum_{l > ε} e^{nK(t) - t l} (1 - e^{ε - l})\, \tilde p_n(l) + 1 - (1 - p_∞)^n.

    With t at the saddle point of ε, rounding errors of the transform are small against δ itself, not just
    against 1. Charged on top: the Chernoff bound of what lies above the window, the rounding of the
    transform (8 units of roundoff per step and frequency) and 2e-14 per step for the masses. What lies
    below the window has loss < ε, or no tilt: wrapped round by the transform it can only raise the sum.
    """
    infinite = -math.expm1(num_steps * math.log1p(-grid.infinite_mass))
    if num_steps == 1:
        return grid.delta(epsilon)
    largest = num_steps * grid.step * grid.half_size
    if largest <= epsilon:
        return min(1.0, infinite)
    tilt = _tilt(grid, num_steps, epsilon)
    log_moment = _log_moment(grid, tilt)
    tilted = np.exp(grid.log_masses + tilt * grid.losses - log_moment)
    mean = float(np.dot(tilted, grid.losses))
    variance = float(np.dot(tilted, np.square(grid.losses - mean)))
    low, high, log_outside = _window(grid, num_steps, tilted, math.sqrt(num_steps * variance))
    if tilt > 0.0:
        low = min(low, epsilon)

    lowest = math.floor(low / grid.step)
    size = int(fft.next_fast_len(math.ceil(high / grid.step) - lowest + 2, real=True))
    # Centred, the phases of the frequencies that matter stay small, and so does their error times num_steps.
    centre = round(mean / grid.step)
    places = (np.arange(-grid.half_size, grid.half_size + 1) - centre) % size
    spectrum = fft.rfft(np.bincount(places, weights=tilted, minlength=size))
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.where(np.abs(spectrum) > 0.0, np.exp(num_steps * np.log(spectrum)), 0.0)
    composed = np.roll(fft.irfft(powers, size), -((lowest - num_steps * centre) % size))

    losses = grid.step * (lowest + np.arange(size))
    above = losses > epsilon
    losses = losses[above]
    log_scale = num_steps * log_moment
    weights = np.exp(log_scale - tilt * losses) * -np.expm1(epsilon - losses)
    rounding = 8.0 * _UNIT_ROUNDOFF * (num_steps + 64) * 2.0 * float(np.sum(np.abs(powers))) / size
    finite = float(np.dot(weights, np.maximum(composed[above], 0.0))) + rounding * float(np.sum(weights))
    outside = 0.0 if high >= largest else math.exp(min(0.0, log_scale - tilt * high + log_outside))
    return min(1.0, (finite + outside) * (1.0 + _MASS_ERROR * num_steps) + infinite)


def _check_mechanism(noise_ratio: float, sampling_prob: float, scheme: str) -> tuple[float, float, Scheme]:
    """Return the checked arguments that both public functions share."""
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


def _full_batch_cost(noise_ratio: float) -> float:
    """Return μ of one step over all records: sensitivity 2C, so τ = noise_ratio/2 and μ = 1/(2τ²)."""
    return 2.0 / noise_ratio**2


def _bounded_delta(noise_ratio: float, sampling_prob: float, num_steps: int, epsilon: float, scheme: Scheme) -> float:
    """Return `subsampled_delta` of arguments that are known to be good."""
    if num_steps == 0:
        return 0.0
    if sampling_prob == 1.0:
        # Two units more than rounding can take away from the product.
        cost = math.nextafter(num_steps * _full_batch_cost(noise_ratio) * (1.0 + 1e-15), math.inf)
        return min(1.0, gaussian_delta(cost, epsilon) * (1.0 + 1e-11))
    # Powers of 4, so that a search over steps re-uses the same grid.
    steps_scale = 4 ** math.ceil(math.log(num_steps, 4)) if num_steps > 1 else 1
    grid = one_step_losses(noise_ratio, sampling_prob, scheme, steps_scale)
    return composed_delta(grid, num_steps, epsilon)


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
        δ in [0, 1], never below the true one; it never falls below num_steps × 1.8e-33.

    Notes
    -----
    See `one_step_losses` for the pair of distributions and `composed_delta` for its composition.
    """
    noise_ratio, sampling_prob, scheme = _check_mechanism(noise_ratio, sampling_prob, scheme)
    epsilon = check_number("epsilon", epsilon, at_least=0.0)
    if int(check_number("num_steps", num_steps, at_least=0.0)) != num_steps:
        raise QueryError(f"num_steps = {num_steps} is not a whole number; pass an integer")
    if num_steps > MAX_STEPS:
        raise QueryError(f"num_steps = {num_steps} is above {MAX_STEPS}; pass fewer steps")
    return _bounded_delta(noise_ratio, sampling_prob, int(num_steps), epsilon, scheme)


def _largest_within(log_excess: Callable[[int], float], guess: int) -> int:
    """Return the largest n in [0, MAX_STEPS] found with log_excess(n) ≤ 0, for an increasing function.

    Secant steps on log n, in which the excess is nearly linear, inside a bracket of integers: its lower end
    was evaluated and fits, its upper end was evaluated and does not. When the same end moves again, the next
    step goes past the root, twice as far each time, so that the other end moves too.
    """
    low, high = 0, MAX_STEPS + 1
    candidate = min(max(1, guess), MAX_STEPS)
    slope, streak, moved_low = 10.0, 0, False
    while high - low > 1:
        excess = log_excess(candidate)
        fits = excess <= 0.0
        end = low if fits else high
        if 0 < end <= MAX_STEPS and math.isfinite(excess) and math.isfinite(log_excess(end)):
            slope = max(0.1, (excess - log_excess(end)) / math.log(candidate / end))
        low, high = (candidate, high) if fits else (low, candidate)
        streak = streak + 1 if fits == moved_low else 1
        moved_low = fits
        if low > 0 and high <= MAX_STEPS and math.isfinite(log_excess(low)):
            slope = max(0.1, (log_excess(high) - log_excess(low)) / math.log(high / low))
        root = candidate * math.exp(min(max(-excess / slope, -3.0), 3.0))
        past = 0.1 * abs(root - candidate) * 5.0 ** (streak - 2) + streak if streak > 1 else 0.0
        candidate = math.floor(min(root + past, 2.0 * MAX_STEPS) if fits else max(root - past, 0.0))
        candidate = min(max(candidate, low + 1), high - 1)
    return low


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
        Privacy parameter δ in (0, 1).

    Returns
    -------
    int
        A number of steps for which ``subsampled_delta(...) <= delta`` was computed, while one step more was
        found not to fit; 0 if not even one step fits, and at most `MAX_STEPS`.
    """
    noise_ratio, sampling_prob, scheme = _check_mechanism(noise_ratio, sampling_prob, scheme)
    epsilon = check_number("epsilon", epsilon, at_least=0.0)
    delta = check_delta(delta)
    log_target = math.log(delta)

    @functools.cache
    def log_excess(num_steps: int) -> float:
        bound = _bounded_delta(noise_ratio, sampling_prob, num_steps, epsilon, scheme)
        if bound <= delta:
            return min(0.0, math.log(bound) - log_target) if bound > 0.0 else -math.inf
        return max(5e-324, math.log(bound) - log_target)

    total = gaussian_mu(epsilon, delta) if epsilon > 0.0 else delta**2
    if sampling_prob == 1.0:
        step_cost = _full_batch_cost(noise_ratio)
    else:
        # The central limit: n losses of second moment V look like one Gaussian query of μ = nV/2.
        grid = one_step_losses(noise_ratio, sampling_prob, scheme, 4**10)
        step_cost = 0.5 * float(np.dot(grid.masses, np.square(grid.losses)))
    guess = total / step_cost if step_cost > 0.0 else math.inf
    return _largest_within(log_excess, int(min(guess, MAX_STEPS)))
