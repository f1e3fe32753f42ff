"""The curve goes through the stated pair, is never below the truth, and belongs to the budget that was granted."""

from dataclasses import replace

import pytest

from dpmcmc.privacy import Budget, PrivacyStatement, gaussian_delta, gaussian_mu
from dpmcmc.privacy.curve import curve_mu, guarantee_curve
from dpmcmc.privacy.statement import NOISE_FREE_MODE
from dpmcmc.privacy.subsampled import subsampled_delta
from tests.privacy.cases import DELTA, batches, gaussian


def test_it_goes_through_the_stated_pair_and_falls():
    curve = guarantee_curve(gaussian())
    assert (2.0, DELTA) in curve
    assert [epsilon for epsilon, _ in curve] == sorted(epsilon for epsilon, _ in curve)
    assert [delta for _, delta in curve] == sorted((delta for _, delta in curve), reverse=True)
    assert all(0.0 < delta <= 1.0 for _, delta in curve)
    assert curve[0][0] <= 0.25
    assert curve[-1][0] == 4.0


def test_a_run_that_its_releases_may_have_stopped_has_the_curve_of_its_whole_budget():
    """The twin: half of the cost was spent, and the curve of that half would be far lower."""
    made = gaussian()
    budget = Budget(2.0, DELTA)
    budget.reserve_lattice()
    assert curve_mu(made) == budget.total
    assert curve_mu(made) == pytest.approx(2.0 * made.mu, rel=1e-3)
    for epsilon, delta in made.curve():
        assert delta >= gaussian_delta(budget.total, epsilon)
        assert delta == pytest.approx(gaussian_delta(budget.total, epsilon), rel=2e-3, abs=2e-12)
        assert delta > 1.5 * gaussian_delta(made.mu, epsilon)


def test_queries_that_were_fixed_beforehand_have_their_own_curve():
    made = gaussian()
    fixed = replace(made, epsilon=made.recomputed_epsilon())
    assert fixed.epsilon < fixed.budget_epsilon == 2.0
    assert curve_mu(fixed) == made.mu
    for epsilon, delta in fixed.curve():
        assert delta >= gaussian_delta(made.mu, epsilon)
        assert delta == pytest.approx(gaussian_delta(made.mu, epsilon), rel=1e-6)


def test_the_slack_of_discrete_noise_is_charged():
    made = gaussian()
    fixed = replace(made, epsilon=made.recomputed_epsilon(), budget_epsilon=2.0)
    rough = replace(fixed, lattice_epsilon=1e-3, lattice_delta=1e-9)
    for (_, delta), (_, more) in zip(fixed.curve()[:10], rough.curve()[:10], strict=True):
        assert more > delta + 0.9e-9


def test_batches_have_the_curve_of_their_accountant_with_what_is_set_apart():
    made = batches()
    curve = made.curve()
    assert 4 <= len(curve) <= 10
    for epsilon, delta in curve:
        own = subsampled_delta(8.0, 0.01, 500, epsilon - 0.01, "without_replacement") + 1e-8
        assert delta >= min(own, DELTA) or epsilon < 1.0
        if epsilon < 1.0:
            assert delta == pytest.approx(max(own, DELTA), rel=1e-5)


def test_interrupted_batches_have_the_stated_pair_alone():
    """How many batches were granted is not in the statement, and the curve of those that ran would not be valid."""
    assert batches(interrupted=True).curve() == [(1.0, DELTA)]
    assert len(gaussian(interrupted=True).curve()) > 10


def test_no_budget_no_curve():
    made = PrivacyStatement(
        private=False, mode=NOISE_FREE_MODE, epsilon=None, delta=None, num_records=10, accountant="none"
    )
    assert made.curve() == []
    assert curve_mu(made) is None


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-12), (0.5, 0.1), (40.0, 1e-9), (700.0, 1e-3)])
def test_any_budget_has_a_curve(epsilon, delta):
    made = gaussian(epsilon=epsilon, delta=delta, mu=gaussian_mu(epsilon, delta) / 2)
    assert (epsilon, delta) in made.curve()
    assert len(made.curve()) > 20


def test_a_curve_that_was_handed_out_cannot_change_the_statement():
    made = gaussian()
    made.curve().clear()
    assert made.curve()
