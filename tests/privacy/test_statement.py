"""The statement restores itself exactly, refuses to claim what was not guaranteed, and never understates ε."""

import json

import numpy as np
import pytest

from dpmcmc.errors import QueryError
from dpmcmc.privacy import PrivacyStatement
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
    assert json.loads(original.to_json()) == original.to_dict()


def test_defaults_state_unit_relation_and_versions():
    made = statement()
    assert (made.unit_of_privacy, made.neighboring_relation) == ("one row", "replace one")
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
