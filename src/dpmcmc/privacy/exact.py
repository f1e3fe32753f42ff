"""Numbers without rounding: costs are added as fractions, and the sum is rounded once, up or down as is safe."""

import math
import numbers
import sys
from fractions import Fraction

from dpmcmc.errors import QueryError

Exact = Fraction | float
"""A number that is taken as it is: a fraction, an integer or a float."""


def check_number(name: str, value: float, *, above: float = -math.inf, at_least: float = -math.inf) -> float:
    """Return ``value`` as a float, or raise a `QueryError` that names the argument.

    Parameters
    ----------
    name
        The argument as the caller knows it.
    value
        What the caller gave.
    above, at_least
        Open and closed lower bounds.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise QueryError(f"{name} = {value!r} is not a number; pass a finite real number") from None
    if not math.isfinite(number):
        raise QueryError(f"{name} = {number} is not finite; pass a finite real number")
    if number <= above:
        raise QueryError(f"{name} = {number} must be greater than {above:g}; pass a larger {name}")
    if number < at_least:
        raise QueryError(f"{name} = {number} must be at least {at_least:g}; pass a larger {name}")
    return number


def exact_cost(name: str, value: Exact) -> Fraction:
    """Return a cost ≥ 0 as the fraction that it is, or raise a `QueryError` that names the argument."""
    if isinstance(value, numbers.Integral):
        value = Fraction(int(value))
    if not isinstance(value, Fraction):
        return Fraction(check_number(name, value, at_least=0.0))
    if not 0 <= value <= sys.float_info.max:
        raise QueryError(f"{name} is a fraction outside [0, 1.8e308]; pass a finite cost of at least 0")
    return value


def rounded_down(value: Fraction) -> float:
    """Return the largest float that is at most ``value`` ≥ 0."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)


def rounded_up(value: Fraction) -> float:
    """Return the smallest float that is at least ``value`` ≥ 0."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)
