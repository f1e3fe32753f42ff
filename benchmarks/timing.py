"""How times are taken: the contestants alternate in one loop; medians and quartiles are kept.

Other programs on the machine make single times unreliable. If contestants alternate (a, b, a, b, …), a slow minute
slows all of them down and hardly changes the ratio of their medians.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np


class Pace(NamedTuple):
    """How long a comparison goes on: at least ``min_rounds``, then until ``seconds`` have passed or ``max_rounds``."""

    min_rounds: int
    max_rounds: int
    seconds: float


class Timing(NamedTuple):
    """Seconds of one call: the median over the rounds, and the quartiles, which show how much the times varied."""

    median: float
    lower_quartile: float
    upper_quartile: float
    rounds: int

    def per(self, number: int) -> "Timing":
        """Return the time of one of ``number`` equal parts.

        Examples
        --------
        >>> Timing(4.0, 2.0, 6.0, 5).per(2)
        Timing(median=2.0, lower_quartile=1.0, upper_quartile=3.0, rounds=5)
        """
        return Timing(self.median / number, self.lower_quartile / number, self.upper_quartile / number, self.rounds)

    def to_dict(self) -> dict[str, float]:
        """Return milliseconds, for JSON."""
        return {
            "median_ms": 1e3 * self.median,
            "lower_quartile_ms": 1e3 * self.lower_quartile,
            "upper_quartile_ms": 1e3 * self.upper_quartile,
            "rounds": self.rounds,
        }


def interleave(
    contestants: Mapping[str, Callable[[], object]], pace: Pace, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Timing]:
    """Time functions alternately.

    Parameters
    ----------
    contestants
        Functions without arguments, by name. Each is called once beforehand, which compiles it, unless it has an
        attribute ``ready`` that is true. A call ends when its result is there (``block_until_ready``): JAX returns
        before it has computed.
    pace
        How many rounds.
    clock
        Returns the time in seconds; tests give their own.

    Examples
    --------
    >>> order = []
    >>> timings = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, Pace(2, 2, 1.0))
    >>> "".join(order), timings["a"].rounds
    ('ababab', 2)
    """
    for call in contestants.values():
        if not getattr(call, "ready", False):
            jax.block_until_ready(call())
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    begin = clock()
    for done in range(pace.max_rounds):
        if done >= pace.min_rounds and clock() - begin >= pace.seconds:
            break
        for name, call in contestants.items():
            start = clock()
            jax.block_until_ready(call())
            seconds[name].append(clock() - start)
    return {name: summarise(values) for name, values in seconds.items()}


def summarise(seconds: list[float]) -> Timing:
    """Return median and quartiles."""
    lower, median, upper = np.quantile(seconds, (0.25, 0.5, 0.75))
    return Timing(float(median), float(lower), float(upper), len(seconds))


def ratio(first: Timing, second: Timing) -> float:
    """Return the ratio of medians.

    Examples
    --------
    >>> ratio(Timing(3.0, 1.0, 9.0, 5), Timing(2.0, 2.0, 2.0, 5))
    1.5
    """
    return first.median / second.median
