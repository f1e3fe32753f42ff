"""``dpmcmc.regression``: a formula and a table to a model and records, for all families, units and streams."""

import dataclasses

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpmcmc
from dpmcmc import models
from dpmcmc.errors import DataError, ModelError
from dpmcmc.inference.tuned import _norm_bound

FIELDS = [
    dpmcmc.Field("age", "integer", minimum=17, maximum=90),
    dpmcmc.Field("hours", "number", minimum=0, maximum=100, missing="midpoint"),
    dpmcmc.Field("education", "string", levels=["HS", "BA", "MA"], missing="own level"),
    dpmcmc.Field("sex", "string", levels=["F", "M"]),
    dpmcmc.Field("rich", "boolean"),
    dpmcmc.Field("wage", "number", minimum=0, maximum=200),
    dpmcmc.Field("visits", "integer", minimum=0, maximum=60),
]
SCHEMA = dpmcmc.Schema(FIELDS)
FAMILIES = {
    "logistic": ("rich", models.LogisticRegression),
    "linear": ("wage", models.LinearRegression),
    "poisson": ("visits", models.PoissonRegression),
    "negative_binomial": ("visits", models.NegativeBinomialRegression),
}
RIGHT = "age + C(education) + hours:C(sex)"


def columns(number=3000, seed=0):
    generator = np.random.default_rng(seed)
    age, hours = generator.integers(17, 91, number), generator.uniform(0.0, 100.0, number)
    sex, education = generator.choice(["F", "M"], number), generator.choice(["HS", "BA", "MA"], number)
    eta = (age - 53.5) / 36.5 + 0.5 * (education == "MA") - 0.5 * (hours - 50.0) / 50.0 * (sex == "M")
    return {
        "age": age,
        "hours": hours,
        "education": education,
        "sex": sex,
        "rich": generator.random(number) < 1.0 / (1.0 + np.exp(-eta)),
        "wage": np.clip(100.0 + 40.0 * eta + 10.0 * generator.normal(size=number), 0.0, 200.0),
        "visits": generator.poisson(np.exp(eta)),
    }


TABLE = dpmcmc.Table(columns(), SCHEMA)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_and_its_records(family):
    response, kind = FAMILIES[family]
    model, records = dpmcmc.regression(f"{response} ~ {RIGHT}", TABLE, family=family, prior_scale=1.5)
    assert type(model) is kind
    assert model.prior_scale == 1.5
    assert model.feature_names == (
        "age",
        "C(education)[T.BA]",
        "C(education)[T.MA]",
        "C(education)[T.missing]",
        "hours:C(sex)[F]",
        "hours:C(sex)[M]",
    )
    np.testing.assert_array_equal(model.feature_bounds, [[-1, 1], [0, 1], [0, 1], [0, 1], [-1, 1], [-1, 1]])
    prepared, number = model.prepare_records(records)
    assert number == 3000
    raw = columns()
    np.testing.assert_allclose(prepared["X"][:, 0], (raw["age"] - 53.5) / 36.5, atol=1e-15)
    np.testing.assert_array_equal(prepared["X"][:, 2], raw["education"] == "MA")
    np.testing.assert_allclose(prepared["X"][:, 5], (raw["hours"] - 50.0) / 50.0 * (raw["sex"] == "M"), atol=1e-15)
    expected = (raw["wage"] - 100.0) / 100.0 if family == "linear" else raw[response]
    np.testing.assert_allclose(prepared["y"], expected, atol=1e-15)


def test_values_do_not_show():
    found = dpmcmc.regression("rich ~ age", TABLE)
    assert repr(found.records) == "OpenRecords(3000 records)"
    assert "array" not in repr(found)


def test_groups_are_a_category():
    model, records = dpmcmc.regression("rich ~ age", TABLE, groups="education")
    assert model.group_names == ("HS", "BA", "MA", "missing")
    prepared, _ = model.prepare_records(records)
    assert np.array_equal(prepared["group"], [["HS", "BA", "MA"].index(level) for level in columns()["education"]])


def test_a_row_that_counts_as_nothing_does_so_if_the_formula_uses_the_column():
    raw = {name: list(column) for name, column in columns(8).items()}
    raw["sex"][0], raw["age"][1], raw["rich"][2], raw["education"][3], raw["hours"][4] = "?", None, None, "?", "?"
    table = dpmcmc.Table(pd.DataFrame(raw), SCHEMA)
    _, records = dpmcmc.regression(f"rich ~ {RIGHT}", table)
    counts = np.isfinite(records.records["X"]).all(axis=1) & np.isfinite(records.records["y"])
    assert counts.tolist() == [False, False, False, True, True, True, True, True]
    _, records = dpmcmc.regression("rich ~ hours", table)
    assert np.isfinite(records.records["X"]).all()


def test_rows_of_a_unit_are_one_record():
    schema = dpmcmc.Schema([*FIELDS, dpmcmc.Field("person", "string")], unit="person", max_rows=2)
    raw = {name: list(column) for name, column in columns(5).items()}
    raw["person"], raw["sex"][1] = ["a", "b", "a", "a", "c"], "?"
    model, records = dpmcmc.regression(f"rich ~ {RIGHT}", dpmcmc.Table(pd.DataFrame(raw), schema))
    assert type(model) is models.UnitModel
    assert (model.max_rows, model.unit, records.num_records) == (2, "person", 3)
    assert records.present.tolist() == [[True, True], [False, False], [True, False]]
    assert np.isfinite(records.rows["X"]).all() or not records.present.all()
    prepared, number = model.prepare_records(records)
    assert number == 3
    assert prepared["rows"]["X"].shape == (3, 2, 6)
    matrix = np.eye(model.dimension)
    assert _norm_bound(model)(matrix) == 2.0 * model.model.design_norm_bound(matrix)


def test_a_streamed_table_gives_the_same_records(tmp_path):
    path = tmp_path / "people.parquet"
    raw = {name: pa.array(column.tolist()) for name, column in columns(1000).items()}
    pq.write_table(pa.table(raw), path, row_group_size=300)
    _, whole = dpmcmc.regression(f"rich ~ {RIGHT}", dpmcmc.Table(path, SCHEMA), groups="education")
    model, stream = dpmcmc.regression(f"rich ~ {RIGHT}", dpmcmc.Table(path, SCHEMA, stream=True), groups="education")
    assert stream.num_records == model.prepare_records(whole)[1] == 1000
    chunks = list(stream.chunks(256))
    for name, column in whole.records.items():
        assert np.concatenate([chunk[name] for chunk in chunks]).tobytes() == column.tobytes()


@pytest.mark.parametrize("convert", [pd.DataFrame, lambda raw: pa.table({k: list(v) for k, v in raw.items()})])
def test_the_source_does_not_matter(convert):
    expected = dpmcmc.regression(f"rich ~ {RIGHT}", TABLE).records.records
    found = dpmcmc.regression(f"rich ~ {RIGHT}", dpmcmc.Table(convert(columns()), SCHEMA)).records.records
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_predictions_go_through_a_run_and_a_file(family, tmp_path):
    response, _ = FAMILIES[family]
    model, records = dpmcmc.regression(f"{response} ~ {RIGHT}", TABLE, family=family)
    posterior = dpmcmc.sample(
        model, records, sampler=dpmcmc.DPLaplace(), epsilon=50.0, delta=1e-5, seed=3, num_steps=50, progress=False
    )
    names = posterior.summary().index
    assert {"coefficients[age]", "coefficients[hours:C(sex)[M]]", "coefficients[C(education)[T.MA]]"} <= set(names)
    arviz = posterior.to_arviz()
    assert "hours:C(sex)[M]" in arviz["posterior"]["coefficients"].coords["feature"].values
    again = dpmcmc.Posterior.load(posterior.save(tmp_path / "run.nc"))
    assert again.design.to_dict() == posterior.design.to_dict()
    rows = pd.DataFrame({"age": [20, 60], "hours": [10.0, 90.0], "education": ["HS", "MA"], "sex": ["F", "M"]})
    for one in (posterior, again):
        predictions = one.predict(rows, seed=1)
        np.testing.assert_array_equal(predictions.mean, posterior.predict(rows).mean)
        assert predictions.outcome.shape == (200, 2)
        # In a wide margin around the rate that made the data: the link, the sign and the scale are right.
        eta = np.array([-33.5 / 36.5, 6.5 / 36.5 + 0.5 - 0.4])
        made = {"logistic": 1 / (1 + np.exp(-eta)), "linear": 100 + 40 * eta}.get(family, np.exp(eta))
        np.testing.assert_allclose(predictions.mean.mean(axis=0), made, atol={"linear": 12.0}.get(family, 0.25))


def test_a_constant_alone(tmp_path):
    posterior = dpmcmc.sample(
        *dpmcmc.regression("rich ~ 1", TABLE),
        sampler=dpmcmc.DPLaplace(),
        epsilon=50.0,
        delta=1e-5,
        seed=3,
        num_steps=50,
        progress=False,
    )
    again = dpmcmc.Posterior.load(posterior.save(tmp_path / "run.nc"))
    mean = again.predict({"age": [20, 80]}).mean
    assert mean.shape == (200, 2)
    np.testing.assert_allclose(mean.mean(), columns()["rich"].mean(), atol=0.05)
    np.testing.assert_array_equal(again.on_original_scale().draws["intercept"], posterior.draws["intercept"])


def test_units_predict_too():
    schema = dpmcmc.Schema([*FIELDS, dpmcmc.Field("person", "string")], unit="person", max_rows=2)
    table = dpmcmc.Table({**columns(), "person": np.arange(3000) // 2}, schema)
    posterior = dpmcmc.sample(
        *dpmcmc.regression("rich ~ age + hours", table),
        sampler=dpmcmc.DPLaplace(),
        epsilon=50.0,
        delta=1e-5,
        seed=3,
        num_steps=50,
        progress=False,
    )
    mean = posterior.predict({"age": [20, 80], "hours": [50, 50]}).mean.mean(axis=0)
    assert mean[0] < 0.4 < 0.6 < mean[1]
    assert "person" in posterior.privacy.unit_of_privacy


@pytest.mark.parametrize("table", [None, {"age": [1]}, columns(), pd.DataFrame(columns(3))])
def test_a_table_is_needed(table):
    with pytest.raises(DataError, match=r"table is of type \w+; give a dpmcmc\.Table"):
        dpmcmc.regression("rich ~ age", table)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "probit"}, "family = 'probit' is unknown; choose one of 'logistic'"),
        ({"prior_scale": 0.0}, "prior_scale is 0.0; give a positive"),
        ({"prior_scale": -1}, "prior_scale is -1; give a positive"),
        ({"prior_scale": "wide"}, "prior_scale is 'wide'"),
        ({"groups": "age"}, "groups = 'age' is a number in the schema, not a category"),
        ({"groups": "state"}, "groups = 'state' is no column"),
        ({"family": "linear"}, "family = 'linear' cannot have the response 'rich'"),
        ({"family": "poisson"}, "family = 'poisson' cannot have the response 'rich'"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ModelError, match=message):
        dpmcmc.regression("rich ~ hours", TABLE, **options)


def test_the_table_in_place_of_its_records_is_refused():
    model, _ = dpmcmc.regression(f"rich ~ {RIGHT}", TABLE)
    with pytest.raises(DataError, match="give the records that came with the model: model, records = "):
        dpmcmc.sample(model, TABLE, epsilon=1.0, delta=1e-6)


def test_a_formula_that_cannot_be_used_is_refused_before_a_value_is_coded(monkeypatch):
    def fail(self, names=None):
        raise AssertionError("looked at")

    monkeypatch.setattr(dpmcmc.Table, "clean", fail)
    with pytest.raises(ModelError, match="names 'weight'"):
        dpmcmc.regression("rich ~ weight", TABLE)


def test_blocks_make_the_bound_of_a_category_small():
    """One of 16 indicators is 1: the row's norm is √2 with the intercept, and not √16."""
    levels = [f"level {number}" for number in range(16)]
    schema = dpmcmc.Schema([dpmcmc.Field("state", "string", levels=levels), FIELDS[4]])
    table = dpmcmc.Table({"state": levels, "rich": [True] * 16}, schema)
    model, records = dpmcmc.regression("rich ~ C(state)", table)
    bound = model.design_norm_bound(np.eye(16))
    box = models.LogisticRegression(15, feature_bounds=model.feature_bounds).design_norm_bound(np.eye(16))
    longest = np.linalg.norm(np.column_stack([np.ones(16), records.records["X"]]), axis=1).max()
    np.testing.assert_allclose([longest, bound, box], [np.sqrt(2.0), bound, 4.0], rtol=1e-9)
    assert longest <= bound < 1.5


@pytest.mark.parametrize(
    "formula", [f"rich ~ {RIGHT}", "rich ~ age*hours*C(sex)", "rich ~ C(sex):C(education) + bs(age, knots=[40])"]
)
@pytest.mark.parametrize("seed", range(5))
def test_no_row_of_a_table_exceeds_the_bound(formula, seed):
    model, records = dpmcmc.regression(formula, TABLE)
    generator = np.random.default_rng(seed)
    matrix = generator.normal(size=(model.dimension, model.dimension)) * np.geomspace(0.01, 100.0, model.dimension)
    rows = np.column_stack([np.ones(3000), records.records["X"]]) @ matrix
    assert np.linalg.norm(rows, axis=1).max() <= model.design_norm_bound(matrix)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([([0, 0], np.zeros((1, 2)))], "feature_blocks has the columns"),
        ([([0, 2], np.zeros((1, 2)))], "feature_blocks has the columns"),
        ([([0], np.zeros((1, 2)))], "vertices of shape"),
        ([([0], np.full((1, 1), np.nan))], "vertices of shape"),
    ],
)
def test_bad_blocks(blocks, message):
    with pytest.raises(ModelError, match=message):
        models.LogisticRegression(2, feature_bounds=1.0, feature_blocks=blocks)
    with pytest.raises(ModelError, match="feature_blocks needs feature_bounds"):
        models.LogisticRegression(2, feature_blocks=blocks)


def test_the_schema_of_another_design_is_not_mixed_up():
    """The design is the model's own: two regressions of one table do not share it."""
    first, _ = dpmcmc.regression("rich ~ age", TABLE)
    second, _ = dpmcmc.regression("rich ~ hours", TABLE)
    assert (first.design.formula, second.design.formula) == ("rich ~ age", "rich ~ hours")
    assert models.LogisticRegression(1).design is None
    assert dataclasses.is_dataclass(dpmcmc.Posterior)
