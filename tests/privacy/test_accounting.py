"""What docs/accounting.md says of parting a total: fixed beforehand it holds, chosen after a look it does not."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpmcmc.privacy import gaussian_delta, gaussian_mu

EPSILON, DELTA = 2.0, 1e-6


def gaussian_value(x, mu, epsilon):
    """E_Q (e^(x + Y) − e^ε)₊ after a loss of x, with Y the loss of Gaussian queries of cost μ."""
    sd = math.sqrt(2.0 * mu)
    return np.exp(x) * norm.sf((epsilon - x - mu) / sd) - math.exp(epsilon) * norm.sf((epsilon - x + mu) / sd)


def response_value(x, apart, epsilon):
    """The same for randomised response with ε = apart, the worst of all mechanisms that have it."""
    rare = 1.0 / (1.0 + math.exp(apart))
    tell, hide = np.exp(x + apart) - math.exp(epsilon), np.exp(x - apart) - math.exp(epsilon)
    return rare * np.maximum(tell, 0.0) + (1.0 - rare) * np.maximum(hide, 0.0)


@pytest.fixture
def after_the_first_releases():
    """Losses after a tenth of the budget was spent, with their probabilities under Q."""
    total = gaussian_mu(EPSILON, DELTA)
    spent = 0.1 * total
    sd = math.sqrt(2.0 * spent)
    losses = np.linspace(-spent - 12.0 * sd, spent + 12.0 * sd, 200_001)
    return total, spent, losses, norm.pdf(losses, -spent, sd) * (losses[1] - losses[0])


def test_who_chooses_after_a_look_between_mu_and_a_part_of_epsilon_exceeds_the_total(after_the_first_releases):
    total, spent, losses, weights = after_the_first_releases
    apart = brentq(lambda part: math.log(gaussian_delta(spent, EPSILON - part) / DELTA), 0.0, EPSILON - 1e-9)
    go_on, take_apart = gaussian_value(losses, total - spent, EPSILON), response_value(losses, apart, EPSILON)
    # Each alone, decided beforehand, is within the total ...
    assert weights @ go_on == pytest.approx(DELTA, rel=1e-6)
    assert weights @ take_apart < DELTA
    # ... and the better of the two, by what was seen, is not: the figure on the page.
    assert weights @ np.maximum(go_on, take_apart) == pytest.approx(1.8 * DELTA, rel=0.01)


def test_what_is_set_apart_before_the_first_charge_leaves_the_total_as_it_is(after_the_first_releases):
    _, spent, losses, weights = after_the_first_releases
    apart = 0.5
    total = gaussian_mu(EPSILON - apart, DELTA)  # what the ledger leaves to Gaussian runs then
    rare = 1.0 / (1.0 + math.exp(apart))
    # The set-apart mechanism now or never, by what was seen; the Gaussian ones go on in any case.
    rest = total - spent
    without = gaussian_value(losses, rest, EPSILON)
    with_it = rare * gaussian_value(losses + apart, rest, EPSILON)
    with_it += (1.0 - rare) * gaussian_value(losses - apart, rest, EPSILON)
    assert weights @ np.maximum(without, with_it) < DELTA
