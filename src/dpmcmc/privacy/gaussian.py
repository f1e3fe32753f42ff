"""The privacy curve of composed Gaussian queries: δ(ε) for a total μ, and its inverses.

Pure scalar mathematics: nothing here sees data, keeps state or draws noise. The inverses are certified:
they answer only with values whose δ stays below the target even after the worst rounding of this module.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.special import erfc, erfcx

from dpmcmc.errors import QueryError
from dpmcmc.privacy.exact import Exact, check_number, exact_cost, rounded_down, rounded_up

Array = npt.NDArray[np.float64]

_LOG_2 = math.log(2.0)
_SQRT_PI = math.sqrt(math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_UNIT_NODES = 0.5 * (_NODES + 1.0)
_UNIT_WEIGHTS = 0.5 * _WEIGHTS

# From here on the asymptotic series of 2/√π − 2t·erfcx(t) is exact to the last digit, while the
# difference itself has lost a factor t² of precision.
_SERIES_FROM = 50.0
# Beyond this log δ < −1e8, and the leading term of erfcx(a) − erfcx(b) is far more exact than needed.
_LEADING_TERM_FROM = 1e4


def check_delta(delta: float) -> float:
    """Return ``delta`` as a float in (0, 1), or raise a `QueryError`."""
    number = check_number("delta", delta)
    if not 0.0 < number < 1.0:
        raise QueryError(f"delta = {number} must lie strictly between 0 and 1; pass a small probability such as 1e-6")
    return number


def delta_of_gaussians(delta: Fraction, lattice_epsilon: Fraction) -> float:
    """Return δ·e^{−r/2}, rounded down: what δ leaves to Gaussian queries if discrete noise adds r to ε (`Budget`)."""
    # 1e-15 relative covers the rounding of exp and of the products.
    return rounded_down(delta) * math.exp(-0.5 * rounded_up(lattice_epsilon)) * (1.0 - 1e-15)


def _minus_erfcx_slope(points: Array) -> Array:
    """Return −erfcx'(t) = 2/√π − 2t·erfcx(t) without the cancellation at large t."""
    direct = 2.0 / _SQRT_PI - 2.0 * points * erfcx(points)
    inverse_square = 1.0 / np.square(np.maximum(points, _SERIES_FROM))
    terms = 0.5 - inverse_square * (
        0.75 - inverse_square * (1.875 - inverse_square * (6.5625 - 29.53125 * inverse_square))
    )
    series = 2.0 / _SQRT_PI * inverse_square * terms
    return np.asarray(np.where(points < _SERIES_FROM, direct, series))


def _log_erfcx_difference(lower: float, upper: float, root_mu: float) -> float:
    """Return log(erfcx(lower) − erfcx(upper)) for upper = lower + √μ."""
    if lower > _LEADING_TERM_FROM:
        return math.log(root_mu / _SQRT_PI) - math.log(lower) - math.log(upper)
    if root_mu < 0.5:
        slopes = _minus_erfcx_slope(lower + root_mu * _UNIT_NODES)
        return math.log(root_mu * float(np.dot(_UNIT_WEIGHTS, slopes)))
    return math.log(float(erfcx(lower)) - float(erfcx(upper)))


def _log_delta(mu: float, epsilon: float) -> tuple[float, float]:
    """Return log δ and a bound on its absolute rounding error, for mu > 0 and epsilon ≥ 0."""
    root_mu = math.sqrt(mu)
    lower = (epsilon - mu) / (2.0 * root_mu)
    upper = 0.5 * epsilon / root_mu + 0.5 * root_mu
    square = lower * lower
    if lower < 0.0 and root_mu >= 0.5:
        complement = 0.5 * (float(erfc(-lower)) + math.exp(-square) * float(erfcx(upper)))
        value = math.log1p(-complement)
    elif math.isinf(square):
        value = -math.inf
    else:
        value = -square - _LOG_2 + _log_erfcx_difference(lower, upper, root_mu)
    # a is exact to a few units in the last place, which a² multiplies by a²; the rest costs a few units.
    # Near δ = 1 it is 1 − δ, that is |log δ|, that carries the relative error.
    error = 1e-14 * (square + 10.0) * min(1.0, abs(value)) if math.isfinite(value) else 0.0
    return value, error


def gaussian_log_delta(mu: float, epsilon: float) -> float:
    r"""Return log δ(ε) of Gaussian queries whose costs add up to μ.

    With :math:`a = (ε-μ)/(2\sqrt μ)` and :math:`b = (ε+μ)/(2\sqrt μ)`,

    .. math:: \log δ = -a^2 - \log 2 + \log(\operatorname{erfcx}(a) - \operatorname{erfcx}(b)),

    where for :math:`\sqrt μ < 1/2` the difference is the integral of −erfcx' (20-point Gauss–Legendre), and
    for a < 0 otherwise :math:`1-δ = \tfrac12(\operatorname{erfc}(-a) + e^{-a^2}\operatorname{erfcx}(b))`.
    The textbook form overflows past ε ≈ 709 and cancels as μ → 0.

    Parameters
    ----------
    mu
        Total cost, Σ 1/(2τ²) over the queries with noise multipliers τ (noise sd / sensitivity).
    epsilon
        Privacy parameter ε ≥ 0.

    Returns
    -------
    float
        log δ, exact to 1e-11 relative also where δ itself underflows or rounds to 1; −inf at mu = 0.

    References
    ----------
    Balle & Wang (2018), "Improving the Gaussian mechanism for differential privacy", theorem 8, with
    their α = √(2μ). Sommer, Meiser & Mohammadi (2019), "Privacy loss classes: the
    central limit theorem in differential privacy".

    Examples
    --------
    >>> round(gaussian_log_delta(1.0, 60.0), 6)
    -878.319294
    """
    mu = check_number("mu", mu, at_least=0.0)
    epsilon = check_number("epsilon", epsilon, at_least=0.0)
    return -math.inf if mu == 0.0 else _log_delta(mu, epsilon)[0]


def gaussian_delta(mu: float, epsilon: float) -> float:
    r"""Return δ(ε) of Gaussian queries whose costs add up to μ.

    .. math:: δ(ε) = \tfrac12\left[\operatorname{erfc}\frac{ε-μ}{2\sqrt μ}
              - e^ε \operatorname{erfc}\frac{ε+μ}{2\sqrt μ}\right]

    Computed in the stable form of `gaussian_log_delta`, which see for parameters and source.

    Examples
    --------
    >>> round(gaussian_delta(2.0, 4.0), 9)
    0.084953319
    """
    return math.exp(gaussian_log_delta(mu, epsilon))


def gaussian_delta_bound(mu: float, epsilon: float) -> float:
    """Return a certain upper bound on `gaussian_delta`: the value plus its rounding error, rounded up.

    Examples
    --------
    >>> gaussian_delta_bound(2.0, 4.0) > gaussian_delta(2.0, 4.0)
    True
    """
    mu = check_number("mu", mu, at_least=0.0)
    epsilon = check_number("epsilon", epsilon, at_least=0.0)
    if mu == 0.0:
        return 0.0
    value, error = _log_delta(mu, epsilon)
    # One unit in the last place for the sum, and two for the exponential.
    bound = math.exp(math.nextafter(value + error, math.inf))
    return min(1.0, math.nextafter(math.nextafter(bound, math.inf), math.inf))


def _certified(mu: float, epsilon: float, log_target: float) -> bool:
    """Whether δ(mu, epsilon) ≤ δ for certain, whatever the rounding of log δ and of the target."""
    value, error = _log_delta(mu, epsilon)
    return value + error + 1e-15 * abs(log_target) <= log_target


def last_certified(safe: float, unsafe: float, is_safe: Callable[[float], bool]) -> float:
    """Bisect between a certified and an uncertified value down to neighbouring floats."""
    while True:
        # The geometric mean crosses many orders of magnitude at the pace of the arithmetic one.
        wide = min(safe, unsafe) > 0.0 and not 0.5 <= safe / unsafe <= 2.0
        middle = math.sqrt(safe) * math.sqrt(unsafe) if wide else safe + 0.5 * (unsafe - safe)
        if not min(safe, unsafe) < middle < max(safe, unsafe):
            return safe
        if is_safe(middle):
            safe = middle
        else:
            unsafe = middle


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest total cost μ whose δ(ε) is certainly at most ``delta``.

    Parameters
    ----------
    epsilon
        Privacy parameter ε > 0.
    delta
        Privacy parameter δ in (0, 1).

    Returns
    -------
    float
        μ such that δ(ε) ≤ ``delta`` holds in exact arithmetic; below the true inverse by about 1e-12
        relative or less, so that rounding never lands on the unsafe side. See `gaussian_log_delta`.

    Examples
    --------
    >>> round(gaussian_mu(4.0, 1e-6), 10)
    0.3510036484
    """
    # Above 1e15 floats run out, and the search would not end; what 1e15 pays for, more pays for as well.
    epsilon = min(check_number("epsilon", epsilon, above=0.0), 1e15)
    log_target = math.log(check_delta(delta))

    def is_safe(mu: float) -> bool:
        return _certified(mu, epsilon, log_target)

    unsafe = 1.0
    while is_safe(unsafe):
        unsafe *= 16.0
    safe = unsafe / 16.0
    while not is_safe(safe):
        unsafe, safe = safe, safe / 16.0
        if safe < 1e-300:
            return 0.0  # δ(ε) of no query at all is 0: always safe
    return last_certified(safe, unsafe, is_safe)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε at which Gaussian queries of total cost μ certainly have δ(ε) ≤ ``delta``.

    Parameters
    ----------
    mu
        Total cost μ ≥ 0; see `gaussian_log_delta`.
    delta
        Privacy parameter δ in (0, 1).

    Returns
    -------
    float
        ε such that δ(ε) ≤ ``delta`` holds in exact arithmetic; 0.0 if δ(0) is already small enough.

    Examples
    --------
    >>> round(gaussian_epsilon(0.5, 1e-6), 9)
    4.886554117
    """
    mu = check_number("mu", mu, at_least=0.0)
    log_target = math.log(check_delta(delta))
    if mu == 0.0 or _certified(mu, 0.0, log_target):
        return 0.0

    def is_safe(epsilon: float) -> bool:
        return _certified(mu, epsilon, log_target)

    unsafe, safe = 0.0, math.sqrt(mu) + mu
    while not is_safe(safe):
        unsafe, safe = safe, 2.0 * safe
    return last_certified(safe, unsafe, is_safe)


def gaussian_cost(noise_multiplier: float) -> float:
    """Return the cost μ of one Gaussian query: the smallest float that is at least 1/(2τ²).

    Parameters
    ----------
    noise_multiplier
        τ = noise sd / sensitivity.

    Examples
    --------
    >>> gaussian_cost(4.0)
    0.03125
    >>> Fraction(gaussian_cost(20.0)) > Fraction(1, 800)
    True
    """
    multiplier = check_number("noise_multiplier", noise_multiplier, above=0.0)
    try:
        return rounded_up(1 / (2 * Fraction(multiplier) ** 2))
    except OverflowError:
        raise QueryError(
            f"noise_multiplier = {multiplier} is so small that its cost is no finite number; pass a larger one"
        ) from None


def smallest_noise_multiplier(num_queries: int, mu: Exact) -> float:
    """Return the smallest float τ with which ``num_queries`` times `gaussian_cost` is at most ``mu``, exactly.

    Parameters
    ----------
    num_queries
        Number k ≥ 1 of queries with the same τ.
    mu
        What they may cost together, > 0.

    Examples
    --------
    >>> smallest_noise_multiplier(32, 1.0)
    4.0
    """
    if isinstance(num_queries, bool) or int(num_queries) != num_queries or num_queries < 1:
        raise QueryError(f"num_queries = {num_queries!r} must be a whole number of at least 1")
    # The most that one query may cost is a float, and a rounded-up cost is at most that if the cost itself is.
    most = rounded_down(exact_cost("mu", mu) / int(num_queries))
    if most == 0.0:
        raise QueryError(f"mu = {float(mu)!r} is too small for {num_queries} queries; pass a larger mu")

    def fits(multiplier: float) -> bool:
        return 2 * Fraction(most) * Fraction(multiplier) ** 2 >= 1

    multiplier = math.sqrt(0.5) / math.sqrt(most)
    while fits(multiplier):
        multiplier = math.nextafter(multiplier, 0.0)
    while not fits(multiplier):
        multiplier = math.nextafter(multiplier, math.inf)
    return multiplier
