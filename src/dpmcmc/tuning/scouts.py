r"""Look for other modes, far from the one that was found: nothing that is released near a mode tells of another.

A *scout* starts somewhere in the prior and goes uphill, by noisy slopes and the covariance of the records' scores,
for a small part of the budget a step. Most come home, to what is known. One that ends elsewhere has its height compared
with the known mode's by a noisy sum of log-ratios: a lower hill is left alone, a higher one is where the search should
have been, and one that noise does not tell from the known one makes the posterior two parts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmcmc.queries import Affine
from dpmcmc.tuning.prior import Prior
from dpmcmc.tuning.questions import Questions

Array = NDArray[np.float64]

MAX_STEPS = 10
STEP_SHARE = 0.002
"""Part of the budget that a step of a scout costs, and its parts: clip search, score, second moments."""
STEP_PARTS = (0.25, 0.35, 0.40)
LAST_STEP = 3.0
"""Times the price of a step: the last one, up to a summit."""
HEIGHT_SHARE = 0.006
"""Part of the budget for the comparison of two heights, and its parts: search for a bound, sum of log-ratios."""
HEIGHT_PARTS = (0.4, 0.6)
CLIPPED = 0.01
"""Share of the records whose log-ratio is clipped."""
HOME, SLACK = 3.0, 8.0
"""A scout has come home if it is within √d and so many posterior sds of a known point, and twice its own noise (but no
more than the second)."""
BLIND = 15.0
"""Posterior sds of noise with which a scout cannot tell a hill from the plain."""
CERTAIN, BESIDE = 3.0, 5.0
"""Noise sds at which a difference of heights is taken for one, and nats by which a better hill must be higher."""


class Hill(NamedTuple):
    """Another mode: where it is, and how much higher its log-posterior is than the known one's.

    Attributes
    ----------
    theta
        Where a scout has come to.
    higher, noise_sd
        The difference, and the sd of its noise.
    below
        How far below the summit the scout may have ended.
    """

    theta: Array
    higher: float
    noise_sd: float
    below: float

    @property
    def matters(self) -> bool:
        """Whether it may hold a part of the posterior."""
        return self.higher > -CERTAIN * self.noise_sd - self.below

    @property
    def is_better(self) -> bool:
        """Whether it is the higher one for certain."""
        return self.higher > CERTAIN * self.noise_sd + BESIDE


def find_hills(
    questions: Questions,
    prior: Prior,
    total: float,
    known: Array,
    matrix: Array,
    generator: np.random.Generator,
) -> list[Hill]:
    """Send scouts, and return what they found that is not known; the best first.

    Parameters
    ----------
    questions, prior
        As for :func:`~dpmcmc.tuning.laplace.find_laplace`.
    total
        The whole budget.
    known, matrix
        Where the posterior is known to be (points × parameters, the highest first), and coordinates in which its
        curvature is about 1.
    generator
        Of public randomness.
    """
    center = known[0]
    near = np.sqrt(np.minimum(np.linalg.norm(matrix, axis=1) / prior.sd, 1.0))
    starts = [
        2.0 * prior.center - center,  # signs and labels that may be switched lead there
        prior.center + prior.sd * generator.standard_normal(len(center)),
        # A prior that is very wide holds hills, if any, much nearer: between its width and the posterior's.
        center + near * prior.sd * generator.standard_normal(len(center)),
    ]
    hills: list[Hill] = []
    for start in starts:
        end = _climb(questions, prior, total, start, known, matrix)
        if end is None:
            continue
        hills.append(_compare(questions, prior, total, center, *end))
    return sorted((hill for hill in hills if hill.matters), key=lambda hill: -hill.higher)


def _climb(
    questions: Questions, prior: Prior, total: float, start: Array, known: Array, matrix: Array
) -> tuple[Array, float] | None:
    """Go uphill; return where that ends, and how far below the summit that may be; None if that is known or nowhere.

    The curvature is taken to be that of the known mode, or the covariance of the scores where that is larger for
    certain. Every step is asked for in coordinates in which the last one's curvature is 1. Steps that go back and forth
    become shorter.
    """
    size, price, is_last = len(start), STEP_SHARE * total, False
    inverse = np.asarray(np.linalg.pinv(matrix))

    def distance(theta: Array, inverse: Array) -> float:
        """From what is known, in posterior sds."""
        return float(np.sqrt(np.min(np.sum((inverse @ (theta - known).T) ** 2, axis=0))))

    if distance(start, inverse) < math.sqrt(size):
        return None
    theta, axes, last, damping, lengths = np.array(start), matrix, np.zeros(size), 1.0, []
    for _ in range(MAX_STEPS):
        searching, for_score, for_moments = (part * price for part in STEP_PARTS)
        coordinates = Affine(theta, axes)
        bound = questions.search(theta, coordinates, "gradient", 0.02 * questions.num_records, searching)
        score, moments = questions.score_and_moments(theta, coordinates, bound, for_score, for_moments)
        slope = score.value + axes.T @ prior.gradient(theta)
        spread = moments.value - np.outer(score.value, score.value) / questions.num_records
        whole = spread + axes.T @ prior.precision(theta) @ axes
        values, vectors = np.linalg.eigh(np.clip(np.nan_to_num(whole + whole.T) / 2.0, -1e150, 1e150))
        usual = np.sum((inverse @ axes @ vectors) ** 2, axis=0)
        values = np.maximum(np.where(values > moments.noise_sd * math.sqrt(2.0 * size), values, usual), usual)
        step = (vectors.T @ slope) / values
        length = float(np.linalg.norm(step * np.sqrt(values)))
        noise = math.sqrt(float(np.sum(score.noise_sd**2 / values)))
        move = axes @ (vectors @ step)
        axes = axes @ (vectors / np.sqrt(values))
        if float(move @ last) < -0.5 * float(np.linalg.norm(move) * np.linalg.norm(last)):
            damping *= 0.5
        # No farther than the prior is wide: a slope says nothing of what lies far beyond the hill.
        last, move = move, move * min(damping, 1.0 / max(float(np.max(np.abs(move) / prior.sd)), 1e-300))
        theta = theta + move
        if not (np.all(np.isfinite(theta)) and np.linalg.cond(axes) < 1e12):
            return None
        if distance(theta, np.asarray(np.linalg.inv(axes))) < math.sqrt(size) + HOME + min(2.0 * noise, SLACK):
            return None
        unsure = noise * (1.0 + 3.0 / math.sqrt(2.0 * size)) + 2.0
        if is_last:
            return (theta, 0.5 * unsure**2) if noise < BLIND else None
        if length < unsure:  # now from nearby, and more precisely
            price, is_last, damping = LAST_STEP * price, True, 1.0
            continue
        lengths.append(length)
        if len(lengths) > 3 and lengths[-1] > 0.5 * lengths[-4]:  # too far away
            return None
    return None


def _compare(questions: Questions, prior: Prior, total: float, center: Array, other: Array, below: float) -> Hill:
    """Compare the heights of two points by a noisy sum of log-ratios, of which next to none is clipped."""
    searching, for_sum = (part * HEIGHT_SHARE * total for part in HEIGHT_PARTS)
    difference, noise_sd = questions.log_ratio(center, other, CLIPPED * questions.num_records, for_sum, searching)
    higher = difference + prior.log_density(other) - prior.log_density(center)
    return Hill(other, higher, noise_sd, below)
