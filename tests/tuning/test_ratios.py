"""The bound on log-ratios: found from noised counts, at its price."""

import math

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.curator import Curator, SeededNoiseNotPrivate
from dpmcmc.errors import QueryError
from dpmcmc.inference import stepwise
from dpmcmc.queries import ClipCount, Release
from dpmcmc.surrogate import Form, Surrogate
from dpmcmc.tuning.ratios import CLIPPED_SHARE, EXPONENTS, NOISE_SDS, ratio_bound

NUM_RECORDS, PAIRS = 100_000, 6
LINEAR = Surrogate(Form(2, 2, 1), np.zeros(2), np.eye(2), np.hstack([np.zeros((2, 1)), np.eye(2)]))
MOVES = np.random.default_rng(1).normal(size=(2, PAIRS, 2))
SIZES = np.linalg.norm(MOVES[1] - MOVES[0], axis=1)
RESOLUTION = 2.0 ** ((EXPONENTS[1] - EXPONENTS[0]) / 2**6)


class Counting:
    """Answers counts: the j-th pair's log-ratios are factor_j·|t|·‖Δψ‖/√n with heavy tails, the same t for all."""

    def __init__(self, factors, noise=False, seed=1):
        tails = np.abs(np.random.default_rng(seed).standard_t(5.0, NUM_RECORDS))
        self.ratios = [
            factor * tails * size / math.sqrt(NUM_RECORDS) for factor, size in zip(factors, SIZES, strict=True)
        ]
        self.quantile = np.sort(tails)[-int(CLIPPED_SHARE * NUM_RECORDS) - 1]
        self.noise, self.generator, self.asked = noise, np.random.default_rng(seed + 1), []

    def __call__(self, query, theta, proposal):
        assert type(query) is ClipCount
        assert query.of == "log_ratio"
        (place,) = np.flatnonzero((MOVES[0] == theta).all(axis=1))
        assert np.array_equal(MOVES[1][place], proposal)
        self.asked.append((place, query))
        noise = query.noise_sd * self.generator.normal() if self.noise else 0.0
        return Release(np.sum(self.ratios[place] > query.threshold) + noise, query.noise_sd, query.mu)

    @property
    def spent(self):
        return sum(query.mu for _, query in self.asked)


def find(ask, mu):
    return ratio_bound(ask, LINEAR, *MOVES, NUM_RECORDS, mu)


@pytest.mark.parametrize(
    "factors", [(1,) * 6, (1, 1, 3, 1, 0.5, 2), (4, 1, 1, 1, 1, 1), (0.3, 0.4, 0.5, 0.6, 0.7, 2.5)]
)
def test_the_largest_of_the_pairs_counts(factors):
    """Without noise (but at a price so high that none is assumed), to within the last interval."""
    ask = Counting(factors)
    found = find(ask, 1e3)
    exact = max(factors) * ask.quantile
    assert exact <= found.value <= exact * RESOLUTION
    assert found.clipped_share == pytest.approx(CLIPPED_SHARE)
    assert ask.spent <= 1e3
    for place in range(PAIRS):
        assert np.sum(ask.ratios[place] > found.value * SIZES[place] / math.sqrt(NUM_RECORDS)) <= 20


@pytest.mark.parametrize("mu", [1e-4, 0.003, 0.5])
def test_the_price_is_kept_and_the_share_is_what_the_noise_lets_see(mu):
    """With noise: no more than the stated share lies above, but for the noise of six counts.

    A wrong decision needs noise of ``NOISE_SDS`` or more below the truth; 4.9 further sds: 1e-6 and less.
    """
    ask = Counting((1, 1, 2, 1, 1, 1), noise=True)
    found = find(ask, mu)
    assert 0.0 < ask.spent <= mu
    largest = max(query.noise_sd for _, query in ask.asked)
    assert CLIPPED_SHARE <= found.clipped_share <= max(CLIPPED_SHARE, NOISE_SDS * largest / NUM_RECORDS) * (1 + 1e-12)
    for place in range(PAIRS):
        above = np.sum(ask.ratios[place] > found.value * SIZES[place] / math.sqrt(NUM_RECORDS))
        assert above <= found.clipped_share * NUM_RECORDS + 4.9 * largest


def test_a_later_pair_takes_one_count_if_the_bound_serves_it():
    ask = Counting((2, 1, 1, 1, 1, 1))
    find(ask, 1.0)
    assert [place for place, _ in ask.asked] == [0] * 6 + [1, 2, 3, 4, 5]
    # What the others leave is for those after them: their counts are ever better.
    checks = [query.noise_sd for place, query in ask.asked if place]
    assert checks == sorted(checks, reverse=True)


def test_a_surrogate_that_is_nothing_like_the_likelihood_is_told():
    assert find(Counting((1e4,) * 6), 1e3).clipped_share == math.inf
    assert find(Counting((1,) * 5 + (1e4,)), 1e3).clipped_share == math.inf


def test_pairs_that_have_not_moved_are_left_out():
    ask = Counting((1,) * 6)
    theta, proposals = MOVES.copy()
    theta[0] = proposals[0]
    ratio_bound(ask, LINEAR, theta, proposals, NUM_RECORDS, 1.0)
    assert {place for place, _ in ask.asked} == {1, 2, 3, 4, 5}
    with pytest.raises(QueryError, match="none of the pairs has moved"):
        ratio_bound(ask, LINEAR, theta, theta, NUM_RECORDS, 1.0)


@pytest.mark.parametrize(
    ("theta", "proposals", "mu", "text"),
    [
        (np.zeros((6, 3)), np.ones((6, 3)), 1.0, "give both as pairs × 2"),
        (np.zeros((6, 2)), np.ones((5, 2)), 1.0, "give both as pairs × 2"),
        (np.zeros(2), np.ones(2), 1.0, "give both as pairs × 2"),
        (np.zeros((6, 2)), np.ones((6, 2)), 0.0, "mu = 0.0"),
    ],
)
def test_bad_arguments(theta, proposals, mu, text):
    with pytest.raises(QueryError, match=text):
        ratio_bound(None, LINEAR, theta, proposals, NUM_RECORDS, mu)


def test_with_the_curator_on_moves_of_the_sampler():
    """Gaussian records: |r|√n/‖Δψ‖ is about a standard normal, whose 0.02 % quantile is 3.7; κ from the real counts."""
    model, n = dpmcmc.models.GaussianMean(np.eye(2), prior_scale=10.0), 50_000
    data = np.random.default_rng(3).normal(size=(n, 2))
    mean, covariance = model.posterior_not_private(data)
    surrogate = Surrogate(LINEAR.form, mean, np.linalg.cholesky(covariance), LINEAR.weights)
    budget = dpmcmc.Budget(8.0, 1e-6)
    curator = Curator(model, data, budget, noise=SeededNoiseNotPrivate(1), seed=1)
    sampler = dpmcmc.SurrogateHMC(surrogate, 1.0)
    theta, proposals = stepwise.moves(curator, sampler, np.tile(mean, (PAIRS, 1)), jax.random.key(1))
    assert budget.spent == 0.0
    found = ratio_bound(curator.ask, surrogate, theta, proposals, n, 0.5)
    assert 0.0 < budget.spent <= 0.5
    assert 2.8 < found.value < 4.8
