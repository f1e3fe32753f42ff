"""The model of a unit: its interface. (What the curator makes of it is tested in tests/curator/test_units.py.)"""

import jax
import numpy as np
import pytest

from dpmcmc.data import Units
from dpmcmc.errors import DataError, ModelError, QueryError
from dpmcmc.models import Banana, LinearRegression, LogisticRegression, UnitModel
from dpmcmc.models.units import open_units, row_model, unit_of_privacy

IDS = np.array(["a", "b", "a", "c", "a"])
ROWS = {"X": np.arange(10.0).reshape(5, 2), "y": np.array([0, 1, 1, 0, 1])}


def test_all_that_is_public_is_that_of_the_model_of_rows():
    inside = LinearRegression(["age", "hours"], groups=["north", "south"])
    model = UnitModel(inside, 4, "person_id")
    assert (model.parameters, model.dimension, model.labels) == (inside.parameters, inside.dimension, inside.labels)
    assert model.name == inside.name
    theta = np.linspace(-1.0, 1.0, inside.dimension)
    jax.tree.map(np.testing.assert_array_equal, model.constrain(theta), inside.constrain(theta))
    assert model.unconstrained_log_prior(theta) == inside.unconstrained_log_prior(theta)
    key = jax.random.key(0)
    assert np.array_equal(model.sample_unconstrained_prior(key), inside.sample_unconstrained_prior(key))
    assert row_model(model) is inside
    assert row_model(inside) is inside


def test_records_are_prepared_by_the_model_of_rows():
    """Features are clamped, integers become what they become there; shapes are units × rows."""
    model = UnitModel(LogisticRegression(2, feature_bounds=5.0), 2)
    records, num_records = model.prepare_records(Units.of(IDS, 2).stack(ROWS))
    assert num_records == 3
    assert records["rows"]["X"].shape == (3, 2, 2)
    assert records["rows"]["X"].max() == 5.0
    assert np.array_equal(records["rows"]["y"], [[0, 1], [1, 1], [0, 0]])
    assert np.array_equal(records["present"], [[True, True], [True, False], [True, False]])
    model.check(records)


def test_rows_alone_are_units_of_one():
    records, num_records = UnitModel(LogisticRegression(2), 1).prepare_records(ROWS)
    assert (num_records, records["rows"]["X"].shape, records["present"].all()) == (5, (5, 1, 2), True)


WRONG = {
    "rows without ids": (lambda: UnitModel(LogisticRegression(2), 2).prepare_records(ROWS), DataError, "no row"),
    "rows without ids, called persons": (  # the statement would promise all rows of a person, and protect one
        lambda: UnitModel(LogisticRegression(2), 1, "person").prepare_records(ROWS),
        DataError,
        "no row",
    ),
    "other max_rows": (
        lambda: UnitModel(LogisticRegression(2), 2).prepare_records(Units.of(IDS, 3).stack(ROWS)),
        DataError,
        "units of 3 rows",
    ),
    "columns": (
        lambda: UnitModel(LogisticRegression(2), 2).prepare_records(Units.of(IDS, 2).stack({"X": ROWS["X"]})),
        DataError,
        "needs exactly",
    ),
    "units of units": (lambda: UnitModel(UnitModel(Banana(), 2), 2), ModelError, "of one row"),
    "no model": (lambda: UnitModel(len, 2), ModelError, "dpmcmc.Model"),
    "max_rows": (lambda: UnitModel(Banana(), 0), QueryError, "max_rows"),
}


@pytest.mark.parametrize(("attempt", "error", "text"), WRONG.values(), ids=WRONG.keys())
def test_what_does_not_fit_is_refused(attempt, error, text):
    with pytest.raises(error, match=text):
        attempt()


def test_who_is_protected_in_words():
    assert unit_of_privacy(Banana()) == unit_of_privacy(UnitModel(Banana(), 1))
    assert unit_of_privacy(Banana()) == "one row of the table, which stands for one person"
    named = UnitModel(Banana(), 8, "person_id")
    assert unit_of_privacy(named) == "all rows of one 'person_id', of which at most 8 are used"
    assert unit_of_privacy(UnitModel(Banana(), 8)) == "all rows of one unit, of which at most 8 are used"


def test_several_processes_could_each_hold_a_part_of_one_unit(monkeypatch):
    stacked = Units.of(IDS, 2).stack(ROWS)
    assert open_units(UnitModel(LogisticRegression(2), 2), stacked)[1] is stacked
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(DataError, match="2 processes"):
        open_units(UnitModel(LogisticRegression(2), 2), stacked)
    open_units(UnitModel(LogisticRegression(2), 1), ROWS)
    with pytest.raises(DataError, match="2 processes"):  # one row of a person on each would be two units
        open_units(UnitModel(LogisticRegression(2), 1, "person"), Units.of(IDS, 1).stack(ROWS))
