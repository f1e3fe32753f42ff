"""docs/privacy.md: its table is that of the best attack that (ε, δ) allows, for every share of false alarms."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from tests.docs.pages import cell_with


@pytest.fixture
def page():
    namespace = {}
    exec(cell_with("privacy.md", "def detected"), namespace)
    return namespace


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
def test_the_attack_uses_up_epsilon_and_delta_and_no_more(page, epsilon):
    """The smallest δ with found ≤ e^ε · false alarms + δ, over all shares of false alarms, is the stated one."""
    false_alarms = np.logspace(-16, -1e-9, 200_000)
    over = np.max(page["detected"](epsilon, false_alarms) - math.exp(epsilon) * false_alarms)
    assert over == pytest.approx(page["delta"], rel=1e-3)
    # The twin: noise that is 1 % too small would be noticed.
    smaller = np.max(page["detected"](1.01 * epsilon, false_alarms) - math.exp(epsilon) * false_alarms)
    assert smaller > 1.01 * page["delta"]


def test_the_best_guess_is_right_at_the_best_share_of_false_alarms(page):
    false_alarms = np.linspace(0.0, 1.0, 200_001)
    for row in page["rows"]:
        right = 0.5 * (1.0 - false_alarms + page["detected"](row["ε"], false_alarms))
        assert row["best guess, right in"] == pytest.approx(right.max(), rel=1e-9)


def test_a_suspicion_grows_beyond_the_table_with_probability_delta(page):
    """By the densities of the two laws that the best attack tells apart, added up on a grid."""
    for row in page["rows"]:
        apart = page["math"].sqrt(2 * page["gaussian_mu"](row["ε"], page["delta"]))
        seen = np.linspace(-12.0, 12.0 + apart, 2_000_001)
        under_true, under_false = norm.pdf(seen, apart), norm.pdf(seen)
        with np.errstate(divide="ignore"):
            odds = under_true / under_false * 0.1 / 0.9

        def chance(share, odds=odds, law=under_true, step=seen[1] - seen[0]):
            return law[odds / (1 + odds) > share].sum() * step

        assert chance(row["a suspicion of 10 % becomes at most"]) == pytest.approx(page["delta"], rel=1e-3)
        # The twin: e^ε alone is exceeded more often.
        bound = math.exp(row["ε"]) * 0.1 / 0.9
        assert chance(bound / (1 + bound)) > 2 * page["delta"]
