"""The statement in sentences: complete, by the terms of NIST SP 800-226, and never more than is guaranteed."""

import json
import math

import pytest

from dpmcmc.privacy import PrivacyStatement
from dpmcmc.privacy.disclosure import _up
from dpmcmc.privacy.statement import NOISE_FREE_MODE, SEEDED_MODE
from tests.privacy.cases import batches, gaussian, ledger

SEEDED = {"private": False, "mode": SEEDED_MODE}
NOISE_FREE = {
    "private": False,
    "mode": NOISE_FREE_MODE,
    "epsilon": None,
    "delta": None,
    "mu": None,
    "queries": {},
    "noise_multipliers": {},
    "accountant": "none",
}
HEADINGS = [
    "What this means",
    "Privacy loss parameter",
    "Unit of privacy and neighbouring data",
    "Trust model",
    "Mechanism",
    "What was released",
    "Composition and accounting",
    "Other runs on the same data: the ledger",
    "What is assumed",
    "What is not protected",
    "Software",
]


def flat(statement):
    """The text without its line breaks."""
    return " ".join(statement.to_text().split())


def test_the_sections_are_those_that_a_reader_looks_for():
    made = gaussian()
    assert [section.heading for section in made.sections()] == HEADINGS
    text = made.to_text()
    assert str(made) == text
    assert all(heading.upper() in text.splitlines() for heading in HEADINGS)
    assert text.splitlines()[0].startswith("PRIVATE (")
    assert "(ε, δ)-differentially private with ε = 2.0, δ = 1e-06" in text.splitlines()[1]
    assert text.splitlines()[2] == ""
    assert max(map(len, text.splitlines()[2:])) <= 110


@pytest.mark.parametrize(
    "part",
    [
        "bounded, replace one",
        "Central: one trusted curator",
        "discrete Gaussian noise",
        "Side channels: running time",
        "Access control",
        "Data collection exposure",
        "Groups: for k units together",
        "people in general",
        "The schema is public",
        "The number of units, 1,000, is public",
        "Each row is about one person",
        "single numbers cannot be noticed",
        "Gaussian composition (exact)",
        "100 gradient (noise multiplier",
        "ε = 1, δ = 0.00",
        "No ledger was used: this run stands alone",
        "not recorded in this statement",
    ],
)
def test_what_must_be_said_is_said(part):
    assert part in flat(gaussian())


def test_what_was_adaptive_is_quoted():
    sentence = "Which question was asked next followed from earlier releases."
    made = gaussian(adaptive=sentence)
    assert f"What was adaptive: {sentence}" in flat(made)
    assert PrivacyStatement.from_json(made.to_json()).adaptive == sentence


def test_a_unit_with_several_rows_is_called_so():
    made = gaussian(unit_of_privacy="all rows of one 'person', of which at most 4 are used")
    assert "All rows of a person bear the same identifier" in flat(made)
    assert "Each row is about one person" not in flat(made)
    assert "suppose that this person's rows had been anything else" in flat(made)


def test_batches_are_described_with_what_is_set_apart():
    text = flat(batches())
    for part in (
        "batches of 10 of 1,000 records",
        "without replacement",
        "q = 0.01",
        "8.0",
        "Set apart for invalid_count",
    ):
        assert part in text


def test_a_ledger_is_told_before_and_after():
    made = gaussian(ledger=ledger())
    text = flat(made)
    for part in ("run 2 of the ledger 'clinic'", "ε = 4.0, δ = 1e-05", "μ = 0.1 was spent before", "0a1b2c", "ε = 2.5"):
        assert part in text
    assert "stands alone" not in text
    assert "unless it was charged to the same ledger" in text
    assert "Set apart (runs on batches" not in text
    apart = gaussian(ledger=ledger(apart_epsilon_after=0.5, apart_delta_after=1e-7))
    assert "ε = 0.5, δ = 1e-07 after it" in flat(apart)


@pytest.mark.parametrize("changes", [SEEDED, NOISE_FREE])
def test_a_run_that_is_not_private_claims_nothing(changes):
    made = gaussian(**changes)
    text = flat(made)
    assert "This run protects nobody" in text
    assert "differentially private" not in text
    assert "differential privacy" not in text
    assert "each of which holds" not in text
    assert made.assumptions == ()
    assert made.not_protected == ("Everything that the records say: this run gives no guarantee to anyone.",)
    assert {"Trust model", "What is assumed"}.isdisjoint(section.heading for section in made.sections())


def test_an_interrupted_run_and_a_larger_grant_are_told():
    assert "Interrupted: the run was stopped on its way" in flat(gaussian(interrupted=True))
    assert "Budget granted: ε = 3.0" in flat(gaussian(budget_epsilon=3.0))


def test_the_cost_and_what_the_budget_allowed_are_both_told():
    made = gaussian()
    assert f"= {made.mu!r}" in flat(made)
    assert "ε is stated for all of it" in flat(made)


def test_derived_is_in_the_json_and_follows_from_the_fields():
    made = gaussian()
    derived = json.loads(made.to_json())["derived"]
    assert derived["curve"] == [list(pair) for pair in made.curve()]
    assert derived["recomputed_epsilon"] == made.recomputed_epsilon()
    assert derived["assumptions"] == list(made.assumptions)
    assert derived["not_protected"] == list(made.not_protected)
    assert derived["mechanism"] == made.mechanism
    assert derived["stands_alone"] is True
    assert gaussian(noise_multipliers={}).derived()["recomputed_epsilon"] is None


def test_derived_is_not_believed_when_it_is_read():
    made = gaussian()
    forged = json.loads(made.to_json())
    forged["derived"] = {"curve": [[0.1, 1e-30]], "recomputed_epsilon": 0.1}
    read = PrivacyStatement.from_json(json.dumps(forged))
    assert read == made
    assert read.curve() == made.curve()


def test_a_statement_of_an_earlier_version_is_read():
    made = gaussian()
    earlier = {name: value for name, value in made.to_dict().items() if name not in ("adaptive", "ledger")}
    assert PrivacyStatement.from_json(json.dumps(earlier)) == made
    for wrong in (earlier | {"unknown": 1}, {name: earlier[name] for name in earlier if name != "mu"}):
        with pytest.raises(Exception, match="not a privacy statement"):
            PrivacyStatement.from_json(json.dumps(wrong))


@pytest.mark.parametrize("value", [2.718281828, 1e-6, 1.00049e-7, 9.9996e-3, 1.0, 0.0, 123456.7])
def test_rounded_numbers_are_never_below_the_truth(value):
    assert value <= float(_up(value)) <= value * 1.0011 or math.isclose(value, float(_up(value)))
