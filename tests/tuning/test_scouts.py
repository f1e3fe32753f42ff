"""Scouts, on made-up releases of one hill or two.

Noise is seeded. A scout ends within its own bound of a summit, and heights are told apart at 3 noise sds and that
bound. Noise of log-ratios has an sd of less than 20 here, so that 2000 nats are never taken for none; of equal
heights the deficit is that of the scout's own place, for which there is the bound: more than both takes an error of
4.5 sds at least (1e-5).
"""

import numpy as np
import pytest

from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.queries import LogRatio
from dpmcmc.tuning import Questions, find_posterior
from dpmcmc.tuning.auto import SEVERAL
from dpmcmc.tuning.scouts import find_hills
from tests.tuning.made_up import TRACED, GaussianRecords, gaussian_prior
from tests.tuning.test_auto import walk_of

NUM_RECORDS, BUDGET = 50_000, 1.0
PRIOR = gaussian_prior([0.5, -0.5], [3.0, 3.0])
HERE = np.array([1.5, 0.7])
MIRRORED = 2.0 * PRIOR.center - HERE
ROOT = np.sqrt(NUM_RECORDS) * np.array([[1.0, 0.3], [0.0, 0.7]])


class Hills(GaussianRecords):
    """Minus the log-likelihood is the lower of two parabolas, the second of them so much higher up (``lower``)."""

    def __init__(self, generator, lower, there=MIRRORED):
        super().__init__(ROOT.T @ ROOT, HERE, NUM_RECORDS, BUDGET, generator)
        self.lower, self.there = lower, there

    def heights(self, theta):
        return [0.5 * np.sum((ROOT @ (theta - mode)) ** 2) + up for mode, up in ((HERE, 0.0), (self.there, self.lower))]

    def height(self, theta):
        return min(self.heights(theta))

    def curvature_and_score(self, theta):
        mode = (HERE, self.there)[int(np.argmin(self.heights(theta)))]
        return self.matrix, self.matrix @ (mode - theta)


def scouted(lower, seed=0):
    generator = np.random.default_rng(seed)
    records = Hills(generator, lower)
    matrix = np.linalg.inv(ROOT)
    known = HERE + generator.standard_normal((200, 2)) @ matrix.T
    known[0] = HERE
    questions = Questions(records, TRACED, NUM_RECORDS, 2)
    return find_hills(questions, PRIOR, BUDGET, known, matrix, generator), records


def test_one_hill_is_all_there_is():
    for seed in range(5):
        hills, records = scouted(np.inf, seed)
        assert hills == []
        assert records.spent < 0.08 * BUDGET


def test_a_hill_as_high_as_the_known_one_is_found():
    for seed in range(5):
        hills, _ = scouted(0.0, seed)
        assert hills
        assert not hills[0].is_better
        assert np.linalg.norm(ROOT @ (hills[0].theta - MIRRORED)) < np.sqrt(2.0 * hills[0].below)


def test_a_lower_hill_is_left_alone_and_a_higher_one_is_better():
    for seed in range(5):
        hills, records = scouted(2000.0, seed)
        assert any(isinstance(query, LogRatio) for query in records.asked), "no scout has been there"
        assert hills == []
        assert scouted(-2000.0, seed)[0][0].is_better


@pytest.mark.parametrize("lower", [0.0, -2000.0, np.inf])
def test_auto_says_so_or_goes_there(lower):
    generator = np.random.default_rng(3)
    records = Hills(generator, lower)
    with exact_arithmetic():
        found = find_posterior(
            Questions(records, TRACED, NUM_RECORDS, 2), PRIOR, records.left, walk_of(2), generator, start=HERE + 0.05
        )
    assert found.method == "gaussian"
    assert (SEVERAL in found.reasons) == (lower == 0.0)
    mode = MIRRORED if lower < 0.0 else HERE
    # Within six sds of what is said of the centre, in both directions.
    assert np.all(np.abs(found.laplace.mean - mode) < 6.0 * np.sqrt(np.diag(found.laplace.covariance)))
