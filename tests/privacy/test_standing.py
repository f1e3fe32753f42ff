"""What a statement says of its ledger is checked by itself, and against the run."""

import math

import pytest

from dpmcmc.errors import QueryError
from dpmcmc.privacy import PrivacyStatement, gaussian_mu
from dpmcmc.privacy.standing import LEDGER_FIELDS
from tests.privacy.cases import batches, gaussian, ledger


def test_a_ledger_that_adds_up():
    made = gaussian(ledger=ledger())
    made.check()
    assert set(made.ledger) == set(LEDGER_FIELDS)
    assert PrivacyStatement.from_json(made.to_json()) == made
    gaussian(ledger=ledger(name="", run=1)).check()


@pytest.mark.parametrize(
    "changes",
    [
        {"name": None},
        {"run": 0},
        {"run": 1.5},
        {"head": ""},
        {"head": "xyz"},
        {"head": 12},
        {"mu_before": -0.1},
        {"mu_total": math.inf},
        {"total_epsilon": None},
        {"left_epsilon": "much"},
        {"more": 1},
    ],
)
def test_bad_fields_are_refused(changes):
    with pytest.raises(QueryError, match="ledger"):
        gaussian(ledger=ledger(**changes))


@pytest.mark.parametrize("name", LEDGER_FIELDS)
def test_every_field_must_be_there(name):
    fewer = {key: value for key, value in ledger().items() if key != name}
    with pytest.raises(QueryError, match="give exactly name, run"):
        gaussian(ledger=fewer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mu_after": 0.05}, "mu_after is less than mu_before"),
        ({"mu_before": 0.1 + 0.1 * gaussian().mu}, "its ledger was charged"),
        ({"mu_total": 0.11}, "more than mu_total"),
        ({"apart_epsilon_after": 4.5}, "set apart more than its total"),
        ({"apart_epsilon_before": 0.2}, "apart_epsilon_after is less"),
        ({"apart_epsilon_after": 3.0}, "allow a Gaussian cost of"),
        ({"total_delta": 1e-30, "left_delta": 0.0}, "allow a Gaussian cost of"),
    ],
)
def test_contradictions_are_found(changes, message):
    with pytest.raises(QueryError, match=f"contradicts itself: .*{message}"):
        gaussian(ledger=ledger(**changes)).check()


def test_the_largest_cost_that_fits_is_no_contradiction():
    most = gaussian_mu(4.0, 1e-5)
    gaussian(ledger=ledger(mu_total=most, mu_after=most)).check()
    with pytest.raises(QueryError, match="allow a Gaussian cost"):
        gaussian(ledger=ledger(mu_total=1.01 * most, mu_after=1.01 * most)).check()


def test_batches_are_set_apart():
    enough = {"mu_after": 0.1, "apart_epsilon_after": 1.0, "apart_delta_after": 1e-6}
    made = batches(ledger=ledger(**enough))
    assert not [text for text in made._contradictions() if "ledger" in text]
    for name in ("apart_epsilon_after", "apart_delta_after"):
        less = batches(ledger=ledger(**(enough | {name: 0.1 * enough[name]})))
        assert [text for text in less._contradictions() if "its ledger has not set apart" in text]


def test_a_run_without_a_budget_has_no_ledger():
    made = gaussian(private=False, mode="not private: no noise", epsilon=None, delta=None, mu=None, ledger=ledger())
    with pytest.raises(QueryError, match="no epsilon and delta that could be charged"):
        made.check()
