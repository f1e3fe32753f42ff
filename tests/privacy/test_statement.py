"""The statement restores itself exactly, refuses to claim what was not guaranteed, and never understates ε."""

import json
from fractions import Fraction

import numpy as np
import pytest

from dpmcmc.errors import QueryError
from dpmcmc.privacy import PrivacyStatement, gaussian_cost, gaussian_epsilon
from dpmcmc.privacy.exact import rounded_up
from dpmcmc.privacy.statement import NOISE_FREE_MODE, PRIVATE_MODE, SEEDED_MODE, installed_versions


def statement(**changes):
    values = {
        "private": True,
        "mode": PRIVATE_MODE,
        "epsilon": 1.0,
        "delta": 1e-6,
        "mu": 0.0123,
        "num_records": 1000,
        "queries": {"gradient": 1200, "log_ratio": 100},
        "noise_multipliers": {"gradient": 312.5, "log_ratio": 80.0},
        "accountant": "Gaussian composition (exact)",
    }
    return PrivacyStatement(**(values | changes))


BATCHES = {"batch_size": 10, "sampling_prob": 0.01, "sampling": "poisson", "noise_ratio": 4.0}
NOT_PRIVATE = {"private": False, "mode": SEEDED_MODE}
NOISE_FREE = {"private": False, "mode": NOISE_FREE_MODE, "epsilon": None, "delta": None, "mu": None}


@pytest.mark.parametrize("changes", [{}, NOT_PRIVATE, NOISE_FREE, {"mu": None}, {"epsilon": 0.1 + 0.2}])
def test_json_restores_it_exactly(changes):
    original = statement(**changes)
    assert PrivacyStatement.from_json(original.to_json()) == original
    written = json.loads(original.to_json())
    assert written.pop("derived") == json.loads(json.dumps(original.derived()))
    assert written == original.to_dict() == json.loads(original.to_json(derived=False))


def test_defaults_state_unit_relation_and_versions():
    made = statement()
    assert made.unit_of_privacy == "one row of the table, which stands for one person"
    assert made.neighboring_relation == "replace one"
    assert made.versions == installed_versions()
    assert {"dpmcmc", "jax", "numpyro", "opendp", "dp-accounting", "numpy", "python"} <= set(made.versions)


def test_missing_packages_are_left_out(monkeypatch):
    from dpmcmc.privacy import statement as module

    monkeypatch.setattr(module, "_PACKAGES", ("numpy", "no-such-package-of-ours"))
    assert set(installed_versions()) == {"numpy", "python"}


def test_private_text_states_the_guarantee_in_full():
    epsilon = 1.0000000001
    text = str(statement(epsilon=epsilon))
    assert text.startswith("PRIVATE (private: exact discrete Gaussian noise (OpenDP))")
    for part in (repr(epsilon), "1e-06", "one row", "replace one", "1000", "1200 gradient", "312.5", "Gaussian comp"):
        assert part in text, part


@pytest.mark.parametrize(("changes", "mode"), [(NOT_PRIVATE, SEEDED_MODE), (NOISE_FREE, NOISE_FREE_MODE)])
def test_not_private_text_promises_nothing(changes, mode):
    text = str(statement(**changes))
    assert text.startswith(f"NOT PRIVATE ({mode})")
    assert "Nothing is guaranteed" in text
    assert "differentially private" not in text


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": SEEDED_MODE},
        {"private": False},
        {"epsilon": None},
        {"delta": None},
        {"epsilon": 0.0},
        {"epsilon": float("inf")},
        {"epsilon": True},
        {"delta": 1.0},
        {"delta": float("nan")},
        {"mu": -1.0},
        {"num_records": 0},
        {"num_records": 10.5},
        {"queries": {"gradient": -1}},
        {"queries": [1]},
        {"noise_multipliers": {"gradient": 0.0}},
        {"noise_multipliers": {"gradient": None}},
        {"accountant": ""},
        {"mode": None},
        {"budget_epsilon": 0.0},
        {"lattice_epsilon": -1.0},
        {"lattice_delta": 1.0},
        {"batches": {"batch_size": 10}},
        {"batches": BATCHES | {"batch_size": 0}},
        {"batches": BATCHES | {"sampling": "with_replacement"}},
        {"batches": BATCHES | {"noise_ratio": None}},
        {"batches": BATCHES | {"sampling_prob": "half"}},
        {"set_apart": {"invalid_count": {"epsilon": 0.1}}},
        {"set_apart": {"invalid_count": {"epsilon": 0.1, "delta": None}}},
        {"set_apart": {"invalid_count": 0.1}},
    ],
)
def test_refuses(changes):
    with pytest.raises(QueryError):
        statement(**changes)


def test_refusal_names_the_remedy():
    with pytest.raises(QueryError, match=r"must state epsilon and delta.*private=False"):
        statement(epsilon=None)


@pytest.mark.parametrize("text", ["", "not json", "[]", "{}", '{"private": true}', None])
def test_from_json_refuses_other_text(text):
    with pytest.raises(QueryError):
        PrivacyStatement.from_json(text)


def test_from_json_refuses_a_forged_claim():
    values = statement(**NOT_PRIVATE).to_dict() | {"private": True}
    with pytest.raises(QueryError, match="must start with 'private'"):
        PrivacyStatement.from_json(json.dumps(values))


def test_numpy_numbers_become_plain_ones_and_dicts_are_copied():
    queries = {"gradient": np.int64(7)}
    made = statement(queries=queries, epsilon=np.float64(2.0), num_records=np.int32(5))
    queries["gradient"] = 8
    assert made.queries == {"gradient": 7}
    assert type(made.queries["gradient"]) is int
    assert PrivacyStatement.from_json(made.to_json()) == made
    made.to_dict()["queries"]["gradient"] = 9
    assert made.queries == {"gradient": 7}


def test_cannot_be_changed():
    with pytest.raises(AttributeError):
        statement(**NOT_PRIVATE).private = True


def test_the_budget_is_what_is_stated_unless_said_otherwise():
    assert statement().budget_epsilon == 1.0
    made = statement(budget_epsilon=3.0)
    assert made.budget_epsilon == 3.0
    assert "Budget granted: ε = 3.0" in str(made)
    assert statement(**NOISE_FREE).budget_epsilon is None


def test_check_wants_a_sum_that_adds_up():
    """`tests/inference/test_statements.py` does this for every sampler."""
    with pytest.raises(QueryError, match=r"contradicts itself: mu = 0\.0123, but the queries cost 0\.01395"):
        statement().check()
    with pytest.raises(QueryError, match="noise_multipliers lacks log_ratio"):
        statement(noise_multipliers={"gradient": 312.5}).recomputed_epsilon()


# ------------------------------------------------------------------------- one kind of query, several multipliers

ADAPTIVE = {
    "histogram (scales)": (1, 120.0),
    "gradient (round 1)": (1, 60.0),
    "gradient (round 2)": (1, 45.5),
    "score_moments (rounds 1–2)": (2, 71.25),
    "gradient (final)": (3, 11.0),
    "invalid_count": (1, 500.0),
}


def adaptive(extra=None, **changes):
    """What an adaptive run states: everything that it was granted, whatever it spent."""
    asked = ADAPTIVE | (extra or {})
    mu = sum(number * Fraction(gaussian_cost(multiplier)) for number, multiplier in ADAPTIVE.values())
    values = {
        "queries": {kind: number for kind, (number, _) in asked.items()},
        "noise_multipliers": {kind: multiplier for kind, (_, multiplier) in asked.items()},
        "mu": rounded_up(mu),
        "epsilon": 1.2,
        "lattice_epsilon": 1e-9,
        "lattice_delta": 1e-25,
        "accountant": "Gaussian composition (closed form, fully adaptive filter)",
    }
    return statement(**(values | changes))


def test_a_kind_may_be_asked_with_several_multipliers():
    made = adaptive()
    made.check()
    assert PrivacyStatement.from_json(made.to_json()) == made
    gaussian = gaussian_epsilon(made.mu, 1e-6)
    assert gaussian <= made.recomputed_epsilon() == pytest.approx(gaussian, rel=1e-6)
    assert made.recomputed_epsilon() <= 1.2
    text = str(made)
    for kind, (number, multiplier) in ADAPTIVE.items():
        assert f"{number} {kind} (noise multiplier {multiplier!r})" in text
    assert "fully adaptive filter" in text
    adaptive(interrupted=True).check()


@pytest.mark.parametrize("entry", list(ADAPTIVE))
def test_every_entry_counts(entry):
    """The twin: one more answer of any entry, or less noise, is noticed; so is an entry without noise."""
    number, multiplier = ADAPTIVE[entry]
    for changed in ((number + 1, multiplier), (number, 0.99 * multiplier)):
        with pytest.raises(QueryError, match="contradicts itself: mu"):
            adaptive({entry: changed}).check()
        assert adaptive({entry: changed}).recomputed_epsilon() > adaptive().recomputed_epsilon()
    multipliers = {kind: value for kind, (_, value) in ADAPTIVE.items() if kind != entry}
    with pytest.raises(QueryError, match="contradicts itself: queries has the kinds"):
        adaptive(noise_multipliers=multipliers).check()
    with pytest.raises(QueryError, match="noise_multipliers lacks"):
        adaptive(noise_multipliers=multipliers).recomputed_epsilon()


def test_an_adaptive_run_cannot_state_less_than_it_asked():
    made = adaptive()
    with pytest.raises(QueryError, match="more than is stated"):
        adaptive(epsilon=0.99 * made.recomputed_epsilon(), budget_epsilon=1.2).check()


def test_entries_of_one_kind_are_listed_together():
    """An adaptive run asks the same kind with many multipliers; the text says how many and between which."""
    queries = {"gradient (1)": 2, "gradient (2)": 3, "invalid_count": 1}
    multipliers = {"gradient (1)": 5.0, "gradient (2)": 40.0, "invalid_count": 100.0}
    statement = PrivacyStatement(
        private=False,
        mode=SEEDED_MODE,
        epsilon=1.0,
        delta=1e-6,
        num_records=100,
        queries=queries,
        noise_multipliers=multipliers,
        accountant="Gaussian composition",
    )
    released = [line for line in str(statement).splitlines() if line.startswith("- ")]
    assert released[-3].startswith("- 5 gradient (noise multipliers 5 to 40): sums over the records of the gradient")
    assert released[-2].startswith("- 1 invalid_count (noise multiplier 100.0): ")
    assert statement.to_dict()["queries"] == queries  # nothing is lost where it is computed with
