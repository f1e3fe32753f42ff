import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mpf

from dpmcmc.errors import QueryError
from dpmcmc.privacy import (
    gaussian_cost,
    gaussian_delta,
    gaussian_delta_bound,
    gaussian_epsilon,
    gaussian_log_delta,
    gaussian_mu,
    smallest_noise_multiplier,
)
from dpmcmc.privacy.gaussian import _log_delta
from tests.privacy.reference import VECTORS, exact_curve, relative_error

SMALLEST_NORMAL = 2.3e-308

# The whole stated range: μ in [1e-16, 1e4], and ε through a = (ε − μ)/(2√μ), so that log δ ≈ −a² ≥ −1e5.
log10_mus = st.floats(-16.0, 4.0)
positions = st.one_of(st.floats(-50.0, 315.0), st.floats(-3.0, 27.0), st.floats(-0.6, 0.6))
epsilons = st.floats(-4.0, 3.0).map(lambda exponent: 10.0**exponent)
deltas = st.one_of(
    st.floats(-300.0, -0.01).map(lambda exponent: 10.0**exponent),
    st.floats(-15.0, -0.3).map(lambda exponent: 1.0 - 10.0**exponent),
)


def epsilon_at(mu: float, position: float) -> float:
    return max(0.0, mu + 2.0 * math.sqrt(mu) * position)


def naive_delta(mu: float, epsilon: float) -> float:
    root = 2.0 * math.sqrt(mu)
    with np.errstate(over="ignore", invalid="ignore"):
        return float(
            0.5 * (math.erfc((epsilon - mu) / root) - np.exp(np.float64(epsilon)) * math.erfc((epsilon + mu) / root))
        )


@pytest.mark.parametrize("row", VECTORS["forward"], ids=lambda row: f"mu={row['mu']},eps={row['eps']}")
def test_forward_vectors(row):
    mu, epsilon = float(row["mu"]), float(row["eps"])
    assert relative_error(gaussian_log_delta(mu, epsilon), mpf(row["log_delta"])) < 1e-11
    if mpf(row["delta"]) > SMALLEST_NORMAL:
        assert relative_error(gaussian_delta(mu, epsilon), mpf(row["delta"])) < 1e-11


def test_naive_formula_would_fail_the_vectors():
    failures = [
        row
        for row in VECTORS["forward"]
        if mpf(row["delta"]) > SMALLEST_NORMAL
        and not relative_error(naive_delta(float(row["mu"]), float(row["eps"])), mpf(row["delta"])) < 1e-11
    ]
    assert len(failures) >= 5


@settings(max_examples=400, deadline=None)
@given(log10_mus, positions)
def test_accuracy_over_the_whole_range(log10_mu, position):
    mu = 10.0**log10_mu
    epsilon = epsilon_at(mu, position)
    delta, log_delta = exact_curve(mu, epsilon)
    assume(-1e5 <= log_delta < -SMALLEST_NORMAL)
    value, claimed_error = _log_delta(mu, epsilon)
    assert relative_error(value, log_delta) < 1e-11
    # The inversions rest on this bound; it must hold with room to spare.
    assert abs(mpf(value) - log_delta) <= claimed_error / 4
    if delta > SMALLEST_NORMAL:
        assert relative_error(gaussian_delta(mu, epsilon), delta) < 1e-11


@pytest.mark.parametrize("row", VECTORS["mu_for_eps_delta"], ids=lambda row: f"{row['eps']},{row['delta']}")
def test_mu_vectors(row):
    mu = gaussian_mu(float(row["eps"]), float(row["delta"]))
    assert relative_error(mu, mpf(row["mu"])) < 1e-11
    assert mpf(mu) <= mpf(row["mu"])


@pytest.mark.parametrize("row", VECTORS["eps_for_mu_delta"], ids=lambda row: f"{row['mu']},{row['delta']}")
def test_epsilon_vectors(row):
    epsilon = gaussian_epsilon(float(row["mu"]), float(row["delta"]))
    assert relative_error(epsilon, mpf(row["eps"])) < 1e-11
    assert mpf(epsilon) >= mpf(row["eps"])


@pytest.mark.parametrize(
    ("epsilon", "mu"),
    [(2.0, 0.1005020197226), (4.0, 0.3510036484162), (8.0, 1.172815223570), (15.0, 3.318427858641)],
)
def test_mu_of_the_paper_budgets(epsilon, mu):
    assert gaussian_mu(epsilon, 1e-6) == pytest.approx(mu, rel=1e-12)


@settings(max_examples=150, deadline=None)
@given(epsilons, deltas)
def test_mu_is_safe_and_tight(epsilon, delta):
    assume(0.0 < delta < 1.0)
    mu = gaussian_mu(epsilon, delta)
    with mpmath.workdps(80):
        assert exact_curve(mu, epsilon)[0] <= mpf(delta)
        assert exact_curve(mu * (1 + 1e-10), epsilon)[0] > mpf(delta)


@settings(max_examples=150, deadline=None)
@given(log10_mus, deltas)
def test_epsilon_is_safe_and_tight(log10_mu, delta):
    assume(0.0 < delta < 1.0)
    mu = 10.0**log10_mu
    epsilon = gaussian_epsilon(mu, delta)
    with mpmath.workdps(80):
        achieved, log_achieved = exact_curve(mu, epsilon)
        assert achieved <= mpf(delta)
        if epsilon > 0.0:
            # Where ε is ill-conditioned (δ(0) barely above δ) the curve, not ε, is what can be tight.
            lower = epsilon * (1 - 1e-10)
            close = abs(log_achieved / mpmath.log(mpf(delta)) - 1) < 1e-10
            assert close or exact_curve(mu, lower)[0] > mpf(delta)


@settings(max_examples=100, deadline=None)
@given(epsilons, deltas)
def test_calibration_never_overshoots(epsilon, delta):
    assume(0.0 < delta < 1.0)
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_epsilon(mu, delta) <= epsilon * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(log10_mus, positions, st.floats(1.001, 3.0))
def test_monotone(log10_mu, position, factor):
    mu = 10.0**log10_mu
    epsilon = epsilon_at(mu, position)
    assert gaussian_log_delta(mu * factor, epsilon) >= gaussian_log_delta(mu, epsilon)
    assert gaussian_log_delta(mu, epsilon * factor) <= gaussian_log_delta(mu, epsilon)


def test_no_query_costs_nothing():
    assert gaussian_delta(0.0, 1.0) == 0.0
    assert gaussian_log_delta(0.0, 0.0) == -math.inf
    assert gaussian_epsilon(0.0, 1e-6) == 0.0


def test_epsilon_is_zero_where_delta_allows_it():
    assert gaussian_epsilon(1e-16, 1e-6) == 0.0
    assert gaussian_epsilon(1.0, 0.9) == 0.0


@pytest.mark.parametrize("mu", [1e-300, 1e-16, 1.0, 1e4, 1e8])
@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 1.0, 1e6, 1e300])
def test_extreme_arguments_stay_probabilities(mu, epsilon):
    assert 0.0 <= gaussian_delta(mu, epsilon) <= 1.0
    assert gaussian_log_delta(mu, epsilon) <= 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, "one", None])
def test_bad_mu_and_epsilon_are_named(bad):
    for call in (gaussian_delta, gaussian_log_delta):
        with pytest.raises(QueryError, match="mu"):
            call(bad, 1.0)
        with pytest.raises(QueryError, match="epsilon"):
            call(1.0, bad)
    with pytest.raises(QueryError, match="mu"):
        gaussian_epsilon(bad, 1e-6)
    with pytest.raises(QueryError, match="epsilon"):
        gaussian_mu(bad, 1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, 0.0, 1.0, 2.0, "small"])
def test_bad_delta_is_named(bad):
    with pytest.raises(QueryError, match="delta"):
        gaussian_mu(1.0, bad)
    with pytest.raises(QueryError, match="delta"):
        gaussian_epsilon(1.0, bad)


def test_mu_refuses_epsilon_zero():
    with pytest.raises(QueryError, match=r"epsilon = 0\.0 must be greater than 0"):
        gaussian_mu(0.0, 1e-6)


multipliers = st.floats(-6.0, 12.0).map(lambda exponent: 10.0**exponent)


@settings(max_examples=300, deadline=None)
@given(multipliers)
def test_cost_is_the_smallest_float_that_is_enough(multiplier):
    exact = 1 / (2 * Fraction(multiplier) ** 2)
    cost = gaussian_cost(multiplier)
    assert Fraction(math.nextafter(cost, 0.0)) < exact <= Fraction(cost)


def test_the_plain_formula_would_charge_too_little():
    # The twin: 0.5/τ² rounds down for some of these.
    costs = [(0.5 / tau**2, 1 / (2 * Fraction(tau) ** 2)) for tau in np.linspace(1.0, 100.0, 50).tolist()]
    assert any(Fraction(cost) < exact for cost, exact in costs)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 1e-200, "much"])
def test_bad_noise_multipliers_are_named(bad):
    with pytest.raises(QueryError, match="noise_multiplier"):
        gaussian_cost(bad)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 10**7), st.floats(-12.0, 3.0).map(lambda exponent: 10.0**exponent))
def test_smallest_noise_multiplier(num_queries, mu):
    for target in (mu, Fraction(mu) / 3):
        multiplier = smallest_noise_multiplier(num_queries, target)
        assert num_queries * Fraction(gaussian_cost(multiplier)) <= target
        assert num_queries * Fraction(gaussian_cost(math.nextafter(multiplier, 0.0))) > target


@pytest.mark.parametrize(("num_queries", "mu", "name"), [(0, 1.0, "num_queries"), (1.5, 1.0, "num_queries")])
def test_bad_numbers_of_queries_are_named(num_queries, mu, name):
    with pytest.raises(QueryError, match=name):
        smallest_noise_multiplier(num_queries, mu)
    for bad in (0.0, -1.0, math.nan, Fraction(-1, 3)):
        with pytest.raises(QueryError, match="mu"):
            smallest_noise_multiplier(3, bad)


@settings(max_examples=300, deadline=None)
@given(log10_mus, positions)
def test_delta_bound_is_never_below_delta(log10_mu, position):
    mu = 10.0**log10_mu
    epsilon = epsilon_at(mu, position)
    exact, log_exact = exact_curve(mu, epsilon)
    assume(log_exact >= -700.0)
    bound = gaussian_delta_bound(mu, epsilon)
    assert mpf(bound) >= exact
    assert mpf(bound) <= min(mpf(1), exact * (1 + mpf("1e-10")))


def test_the_value_itself_is_sometimes_below_delta():
    # The twin: without the error added, about half of the values would be too small.
    cases = [(0.01 * step, 0.1 * step) for step in range(1, 60)]
    assert sum(mpf(gaussian_delta(*case)) < exact_curve(*case)[0] for case in cases) >= 5


def test_delta_bound_at_the_ends():
    assert gaussian_delta_bound(0.0, 1.0) == 0.0
    assert gaussian_delta_bound(1e4, 0.0) == 1.0
    assert 0.0 < gaussian_delta_bound(1e-16, 1e3) < 1e-300
