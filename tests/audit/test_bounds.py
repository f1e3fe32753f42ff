"""Bounds from guesses: right as often as they say, and a claim that is too small is refuted."""

import math

import numpy as np
import pytest
from scipy import stats

from dpmcmc.audit.bounds import claimed_of_batches, claimed_of_gaussians, judge, limits, power_at, shown_mu


@pytest.mark.parametrize(("hits", "number"), [(0, 10), (1, 10), (7, 10), (10, 10), (123, 20_000)])
@pytest.mark.parametrize("error", [0.025, 5e-7])
def test_limits_are_those_of_clopper_and_pearson(hits, number, error):
    lower, upper = limits(hits, number, error)
    reference = stats.binomtest(hits, number).proportion_ci(1 - 2 * error, method="exact")
    assert (lower, upper) == pytest.approx((reference.low, reference.high), rel=1e-9)


@pytest.mark.parametrize("mu", [0.01, 0.5, 4.5])
@pytest.mark.parametrize("level", [0.01, 0.3])
def test_the_best_test_of_a_gaussian_shows_its_cost(mu, level):
    """A shift of √(2μ) sds: power Φ(√(2μ) − z), by SciPy."""
    power = stats.norm.sf(stats.norm.isf(level) - math.sqrt(2 * mu))
    assert power_at(level, mu) == pytest.approx(power, rel=1e-12)
    assert shown_mu(power, level) == pytest.approx(mu, rel=1e-9)


def test_a_test_worse_than_a_coin_shows_nothing():
    finding = judge((700, 300), 1000, claimed_of_gaussians(0.1), 1e-6)
    assert (finding.found_mu, finding.found_epsilon, finding.exceeds) == (0.0, 0.0, False)


def test_all_guesses_right_have_no_upper_limit():
    finding = judge((0, 1000), 1000, claimed_of_gaussians(1e3), 1e-6)
    assert finding.upper_mu is None
    assert finding.found_mu > 10.0


def _guess(generator, apart, number):
    """Guesses between N(0, 1) and N(apart, 1) by the best test."""
    return tuple(int(np.sum(generator.normal(shift, 1.0, number) > apart / 2)) for shift in (0.0, apart))


def test_a_true_claim_is_never_called_exceeded_and_nearly_found():
    """100 audits of a Gaussian at its exact price. False-failure rate: 100 × 1e-6 for an alarm is more than 1e-5, so
    one is let pass: P(two or more) < 5e-9. Nine tenths are missed by one audit with P < 1e-6 (5 sds), so P < 1e-4 by
    100; two are let pass: P < 1e-12."""
    generator = np.random.default_rng()
    apart = 3.0
    findings = [
        judge(_guess(generator, apart, 40_000), 40_000, claimed_of_gaussians(apart**2 / 2), 1e-6) for _ in range(100)
    ]
    assert sum(finding.exceeds for finding in findings) <= 1
    assert sum(finding.share < 0.9 for finding in findings) <= 2


def test_twin_half_the_noise_is_called_exceeded():
    """Power: the bound misses by tens of sds."""
    generator = np.random.default_rng()
    finding = judge(_guess(generator, 3.0, 2000), 2000, claimed_of_gaussians(3.0**2 / 8), 1e-6)
    assert finding.exceeds


@pytest.mark.parametrize(("scheme", "first"), [("without_replacement", 0.0), ("poisson", -1.5)])
def test_the_claim_of_batches_is_the_best_power_and_no_more(scheme, first):
    """One step, q = 0.8, noise of 2/3 C. Fixed size: N(0, 1) against a mixture with N(3, 1); random: ±1.5 in it."""
    inside, second = 0.8, first + 3.0
    claim = claimed_of_batches(2.0 / 3.0, inside, 1, scheme)
    for threshold in (1.0, 1.5, 2.5):
        level = (1 - inside) * stats.norm.sf(threshold) + inside * stats.norm.sf(threshold - first)
        power = (1 - inside) * stats.norm.sf(threshold) + inside * stats.norm.sf(threshold - second)
        shown = shown_mu(power, level)
        assert shown <= claim(level) * (1 + 1e-9)
        # (At large levels the claim, which holds for both orders of both data sets, is more than this order's own.)
        assert shown >= 0.97 * claim(level) or threshold == 1.0


def test_full_batches_claim_what_gaussians_do():
    claim = claimed_of_batches(2.0, 1.0, 3, "without_replacement")
    assert claim(0.1) == pytest.approx(3 * 0.5, rel=2e-2)
