"""Checks of the single fields of a privacy statement: numbers in their range, counts, mappings by text.

Each returns the plain Python value, or raises an error that names the field, what it was, and what to give instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpmcmc.errors import QueryError

__all__ = ["as_count", "as_items", "as_number", "as_present"]


def as_number(
    name: str, value: float | None, *, above: float = -math.inf, least: float = -math.inf, below: float = math.inf
) -> float | None:
    """Return ``value`` as a float if it is finite and in range; None stays None."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or not above < number < below or number < least:
        limit = f"above {above}" if above > -math.inf else f"at least {least}"
        raise QueryError(
            f"{name} is {value!r}; give a finite number {limit}" + (f" and below {below}" if below < math.inf else "")
        )
    return number


def as_present(name: str, value: Any, *, above: float = -math.inf, least: float = -math.inf) -> float:
    """Return ``value`` as :func:`as_number` does, but refuse None."""
    number = as_number(name, value, above=above, least=least)
    if number is None:
        limit = f"above {above}" if above > -math.inf else f"of at least {least}"
        raise QueryError(f"{name} is None; give a finite number {limit}")
    return number


def as_count(name: str, value: int, *, least: int = 0) -> int:
    """Return ``value`` as a whole number of at least ``least``."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise QueryError(f"{name} is {value!r}; give a whole number of at least {least}") from None
    if isinstance(value, bool) or number != value or number < least:
        raise QueryError(f"{name} is {value!r}; give a whole number of at least {least}")
    return number


def as_items(name: str, value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the entries of a mapping whose keys are texts."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise QueryError(f"{name} is a {type(value).__name__}; give a dict whose keys are texts")
    return list(value.items())
