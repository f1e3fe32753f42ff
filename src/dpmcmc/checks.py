"""Checks of public arguments: each returns the value as a plain Python number, or names the argument and the remedy.

Settings are converted, not only checked: arithmetic in a NumPy scalar's own precision could lose a safety margin.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpmcmc.errors import QueryError


def positive(name: str, value: Any) -> float:
    """Return a positive finite number as a float."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise QueryError(f"{name} = {value!r} is not a number; give a positive finite number")
    number = float(value)
    if not (math.isfinite(number) and number > 0.0):
        raise QueryError(f"{name} = {value!r} is out of range; give a positive finite number")
    return number


def count(name: str, value: Any) -> int:
    """Return a whole number of at least 1 as an int."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < 1:
        raise QueryError(f"{name} = {value!r} must be a whole number of at least 1")
    return int(value)


def choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return the value if it is one of the choices."""
    if value not in choices:
        raise QueryError(f"{name} = {value!r} is unknown; choose one of {', '.join(map(repr, choices))}")
    return value


def convert_positive(settings: Any, *names: str) -> None:
    """Check and convert fields of a frozen dataclass; a field that is None stays so."""
    for name in names:
        if getattr(settings, name) is not None:
            object.__setattr__(settings, name, positive(name, getattr(settings, name)))


def convert_count(settings: Any, *names: str) -> None:
    """Check and convert fields of a frozen dataclass to whole numbers."""
    for name in names:
        object.__setattr__(settings, name, count(name, getattr(settings, name)))
