"""The search on an exactly Gaussian likelihood, where what should come out is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpmcmc.tuning import Questions, find_laplace
from dpmcmc.tuning.laplace import Belief
from tests.tuning.made_up import TRACED, GaussianRecords, gaussian_prior

NUM_RECORDS, DIMENSION, BUDGET = 20_000, 3, 0.02
NUM_RUNS = 150


def random_covariance(generator, size=DIMENSION):
    factor = generator.normal(size=(size, size))
    return factor @ factor.T + 0.01 * np.eye(size)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_the_filter_is_the_exact_posterior(seed, number):
    """N(m, P) and observations y_k ~ N(centre, R_k): precision P⁻¹ + ΣR_k⁻¹, whatever the order."""
    generator = np.random.default_rng(seed)
    mean, covariance = generator.normal(size=DIMENSION), random_covariance(generator)
    observed = [(generator.normal(size=DIMENSION), random_covariance(generator)) for _ in range(number)]
    precision = np.linalg.inv(covariance) + sum(np.linalg.inv(noise) for _, noise in observed)
    weighted = np.linalg.solve(covariance, mean) + sum(np.linalg.solve(noise, value) for value, noise in observed)
    belief = Belief(mean, covariance)
    for value, noise in observed:
        belief = belief.updated(value, noise)
    np.testing.assert_allclose(belief.covariance, np.linalg.inv(precision), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(belief.mean, np.linalg.solve(precision, weighted), rtol=1e-6, atol=1e-6)
    assert np.array_equal(belief.covariance, belief.covariance.T)


def test_surprise_is_the_chi_square_of_what_is_observed():
    """Of 2000 observations that are what is believed; fails falsely with probability 1e-6."""
    generator = np.random.default_rng(0)
    belief, noise = Belief(np.ones(DIMENSION), random_covariance(generator)), random_covariance(generator)
    observed = generator.multivariate_normal(belief.mean, belief.covariance + noise, size=2000)
    total = sum(belief.surprise(value, noise) for value in observed)
    assert 0.5e-6 < stats.chi2.cdf(total, 2000 * DIMENSION) < 1 - 0.5e-6
    # Twin: without the belief's own part it is too large.
    certain = Belief(belief.mean, 1e-9 * belief.covariance)
    total = sum(certain.surprise(value, noise) for value in observed)
    assert stats.chi2.cdf(total, 2000 * DIMENSION) > 1 - 0.5e-6


def run(seed, condition=30.0, start=None, false_bin=None):
    """One search; return it, the mode of the exact posterior and its covariance."""
    generator = np.random.default_rng(seed)
    axes = np.linalg.qr(generator.normal(size=(DIMENSION, DIMENSION)))[0]
    matrix = NUM_RECORDS * (axes * np.geomspace(1.0, 1.0 / condition, DIMENSION)) @ axes.T
    prior = gaussian_prior(generator.normal(size=DIMENSION), np.array([1.0, 3.0, 0.5]))
    mode = prior.center + prior.sd * generator.normal(size=DIMENSION)
    records = GaussianRecords(matrix, mode, NUM_RECORDS, BUDGET, generator, false_bin)
    found = find_laplace(Questions(records, TRACED, NUM_RECORDS, DIMENSION), prior, records.left, start=start)
    whole = matrix + np.diag(prior.sd**-2.0)
    return found, np.linalg.solve(whole, matrix @ mode + prior.center / prior.sd**2), np.linalg.inv(whole), records


def test_the_search_finds_the_posterior_and_spends_the_budget():
    found, mode, covariance, records = run(1)
    assert found.converged
    assert found.reasons == ()
    assert BUDGET * 0.98 < records.spent <= BUDGET
    # 6 sds in each of 3 directions: 6e-9.
    assert np.all(np.abs(found.mean - mode) < 6.0 * np.sqrt(np.diag(found.noise)) + 1e-12)
    ratio = np.linalg.eigvals(np.linalg.solve(covariance, found.posterior)).real
    assert 0.5 < ratio.min() <= ratio.max() < 2.0
    np.testing.assert_allclose(found.covariance, found.posterior + found.noise + found.clipping)


def normalised_errors():
    """χ² of where the centre is taken to be, by the covariance that is reported for what the noise leaves open."""
    statistics = []
    for seed in range(NUM_RUNS):
        found, mode, *_ = run(seed)
        error = found.mean - mode
        statistics.append(error @ np.linalg.solve(found.noise, error))
    return np.array(statistics)


def test_the_noise_on_the_centre_is_what_it_is_said_to_be():
    """The sum over 150 runs is χ² of 450; above its 1 − 5e-6 quantile (1.32 a degree) in 5e-6 of the times.

    What the filter adds for curving, which a Gaussian does not have, makes the sum smaller: down to half is allowed.
    """
    total = normalised_errors().sum() / (NUM_RUNS * DIMENSION)
    assert total < stats.chi2.isf(5e-6, NUM_RUNS * DIMENSION) / (NUM_RUNS * DIMENSION)
    assert total > 0.5


def test_twin_noise_that_is_left_out_of_the_covariance_is_noticed(monkeypatch):
    """Half of the noise's variance forgotten in what is believed."""
    original = Belief.updated
    monkeypatch.setattr(
        Belief, "updated", lambda self, observed, covariance: original(self, observed, 0.5 * covariance)
    )
    total = normalised_errors().sum() / (NUM_RUNS * DIMENSION)
    assert total > stats.chi2.isf(5e-6, NUM_RUNS * DIMENSION) / (NUM_RUNS * DIMENSION)


def test_a_bin_that_noise_fills_does_not_mislead_unnoticed():
    """At 6 sds this is one run in a million with 50 parameters: it must be flagged, or do no harm."""
    for seed in range(3):
        found, mode, *_ = run(seed, false_bin=35)
        error = found.mean - mode
        assert found.reasons or error @ np.linalg.solve(found.covariance, error) < 60.0


@pytest.mark.parametrize("start", [[20.0, -20.0, 20.0], [1e4, 0.0, -1e4]], ids=["far", "very far"])
def test_a_start_that_is_far_away_costs_rounds_and_nothing_else(start):
    """A quadratic likelihood: one Newton step is enough, as far as the curvature's noise lets it."""
    found, mode, _, records = run(3, start=np.array(start))
    assert records.spent <= BUDGET
    assert found.converged or found.reasons
    if found.converged:  # 8 sds, for what is left of the way
        assert np.all(np.abs(found.mean - mode) < 8.0 * np.sqrt(np.diag(found.covariance)))


def test_a_direction_without_data_is_the_priors():
    generator = np.random.default_rng(0)
    prior = gaussian_prior(np.zeros(3), np.ones(3))
    matrix = NUM_RECORDS * np.diag([1.0, 1.0, 0.0])
    records = GaussianRecords(matrix, np.array([0.3, -0.2, 0.0]), NUM_RECORDS, BUDGET, generator)
    found = find_laplace(Questions(records, TRACED, NUM_RECORDS, 3), prior, records.left)
    assert np.all(np.isfinite(found.covariance))
    # The noise of the curvature may hide it, which is said; or the prior holds it, which is said too.
    assert found.reasons or abs(found.prior_directions[2]).max() > 0.9


def test_rounds_are_reported_and_never_more_than_the_budget_allows():
    generator, rounds = np.random.default_rng(0), []
    records = GaussianRecords(NUM_RECORDS * np.eye(3), np.full(3, 1e6), NUM_RECORDS, BUDGET, generator)
    prior = gaussian_prior(np.zeros(3), np.ones(3))
    questions = Questions(records, TRACED, NUM_RECORDS, 3)
    found = find_laplace(questions, prior, records.left, report=lambda: rounds.append(None))
    assert len(rounds) == found.rounds
    assert records.spent <= BUDGET
