"""How a run's budget was spent, in the order in which it was: what was asked, how often, and the share spent after it.

No times: how long an answer took may tell about records, so it is neither kept nor shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpmcmc.errors import ResultError

__all__ = ["Spend", "checked_spending"]

_ROUNDING = 1e-9


class Spend(NamedTuple):
    """One entry of the course of a run.

    Parameters
    ----------
    what
        What was asked: "gradient", or "steps 1 to 40".
    answers
        Number of answers.
    share
        Share of the run's budget that was spent after it, from 0 to 1.
    """

    what: str
    answers: int
    share: float


def checked_spending(entries: Sequence[Any]) -> tuple[Spend, ...]:
    """Return the entries as :class:`Spend`, or raise a `ResultError` that says which of them cannot be.

    Examples
    --------
    >>> checked_spending([["gradient", 2, 0.25], ["log_ratio", 1, 1.0]])
    (Spend(what='gradient', answers=2, share=0.25), Spend(what='log_ratio', answers=1, share=1.0))
    """
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise ResultError(f"spending is a {type(entries).__name__}; give a tuple of Spend")
    checked: list[Spend] = []
    for place, entry in enumerate(entries):
        if isinstance(entry, str) or not isinstance(entry, Sequence) or len(entry) != 3:
            raise ResultError(f"spending[{place}] is {entry!r}; give a Spend(what, answers, share)")
        what, answers, share = entry
        if not isinstance(what, str) or not what:
            raise ResultError(f"spending[{place}] has what = {what!r}; give a short text")
        if isinstance(answers, bool) or not isinstance(answers, int | np.integer) or answers < 0:
            raise ResultError(f"spending[{place}] has answers = {answers!r}; give a whole number of at least 0")
        number = share if isinstance(share, int | float | np.floating) and not isinstance(share, bool) else math.nan
        if not 0.0 <= number <= 1.0 + _ROUNDING:
            raise ResultError(f"spending[{place}] has share = {share!r}; give a number from 0 to 1")
        number = min(float(number), 1.0)
        if checked and number < checked[-1].share:
            raise ResultError(
                f"spending[{place}] has share = {share!r}, less than the one before; give the share spent after it"
            )
        checked.append(Spend(what, int(answers), number))
    return tuple(checked)
