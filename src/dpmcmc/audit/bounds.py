"""From guesses to bounds: what right and wrong guesses prove about the privacy loss. Pure mathematics of counts.

A test that says "second data set" with probability a for the first one and b for the second has power b at level a. If
answers cost μ (Gaussian queries with Σ 1/(2τ²) = μ), no test has Φ⁻¹(b) − Φ⁻¹(a) > √(2μ) (Dong, Roth and Su 2022). So a
lower limit of b and an upper limit of a, of Clopper and Pearson, prove a lower limit of μ; no law of the answers is
assumed (Nasr et al., "Tight Auditing of Differentially Private Machine Learning", 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import betaincinv, ndtr, ndtri

from dpmcmc.privacy import gaussian_epsilon, subsampled_delta

CONFIDENCE = 0.95
"""Of the limits that are shown."""
ALARM = 1e-6
"""Chance that a claim which holds is called exceeded, for each comparison."""

Claim = Callable[[float], float]
"""From the level of a test to the largest μ that its power may show there, by what the package says."""


@dataclass(frozen=True)
class Finding:
    """What was claimed, and what the attack has shown.

    Attributes
    ----------
    claimed_mu
        What the answer was charged; of random batches, whose loss is not a Gaussian's, the μ of the Gaussian query that
        allows the same power at the level of this test.
    found_mu, upper_mu
        Limits of the μ that this test shows, together right with a chance of 95 %. The lower one is proven whatever the
        attack; the upper one speaks of this attack only (None: it never guessed wrong, so that there is none).
    delta, found_epsilon
        ε at this δ of a Gaussian query of ``found_mu``.
    exceeds
        Whether the claim is refuted: the lower limit that is wrong with a chance of 1e-6 lies above it.
    guesses
        Number of guesses for each of both data sets.
    """

    claimed_mu: float
    found_mu: float
    upper_mu: float | None
    delta: float
    found_epsilon: float
    exceeds: bool
    guesses: int

    @property
    def share(self) -> float:
        """``found_mu`` as a part of what was claimed."""
        return self.found_mu / self.claimed_mu if self.claimed_mu > 0.0 else math.inf if self.found_mu else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def limits(hits: int, number: int, error: float) -> tuple[float, float]:
    """Return the limits of a probability by Clopper and Pearson, each wrong with a chance of at most ``error``."""
    lower = float(betaincinv(hits, number - hits + 1, error)) if hits else 0.0
    upper = float(betaincinv(hits + 1, number - hits, 1.0 - error)) if hits < number else 1.0
    return lower, upper


def shown_mu(power: float, level: float) -> float:
    """Return the μ of the Gaussian query with this power at this level; 0 for a test that is no better than a coin."""
    apart = float(ndtri(power) - ndtri(level))
    return 0.5 * max(0.0, apart) ** 2


def power_at(level: float, mu: float) -> float:
    """Return the largest power at a level that Gaussian queries of cost μ allow."""
    return float(ndtr(ndtri(level) + math.sqrt(2.0 * mu)))


def judge(said: tuple[int, int], guesses: int, claim: Claim, delta: float) -> Finding:
    """Turn guesses into a finding.

    Parameters
    ----------
    said
        How often "second" was said of the first and of the second data set.
    guesses
        Number of guesses for each.
    claim
        What is claimed.
    delta
        At which δ to say what was found as an ε.
    """
    half, (first, second) = 0.5 * (1.0 - CONFIDENCE), said
    level, power = limits(first, guesses, half), limits(second, guesses, half)
    found = shown_mu(power[0], level[1])
    upper = shown_mu(power[1], level[0])
    surely = limits(first, guesses, 0.5 * ALARM)[1], limits(second, guesses, 0.5 * ALARM)[0]
    return Finding(
        claimed_mu=claim(level[1]),
        found_mu=found,
        upper_mu=upper if math.isfinite(upper) else None,
        delta=delta,
        found_epsilon=gaussian_epsilon(found, delta) if found > 0.0 else 0.0,
        exceeds=shown_mu(surely[1], surely[0]) > claim(surely[0]),
        guesses=guesses,
    )


def claimed_of_gaussians(mu: float) -> Claim:
    """Return the claim of Gaussian queries: μ, at every level."""
    return lambda level: mu


def claimed_of_batches(noise_ratio: float, sampling_prob: float, num_steps: int, scheme: Any) -> Claim:
    """Return the claim of noisy sums over random batches, by the accountant's own δ(ε).

    No test has a power b at level a above e^ε·a + δ(ε), nor, with both data sets exchanged and the opposite guess, one
    with (1 − a) > e^ε·(1 − b) + δ(ε), at any ε.
    """
    epsilons = np.concatenate([[0.0], np.geomspace(1e-3, 60.0, 240)])
    curve = np.array([subsampled_delta(noise_ratio, sampling_prob, num_steps, float(one), scheme) for one in epsilons])

    def claim(level: float) -> float:
        above = np.exp(epsilons) * level + curve
        below = 1.0 - np.exp(-epsilons) * (1.0 - level - curve)
        return shown_mu(float(min(1.0, above.min(), below.min())), level)

    return claim
