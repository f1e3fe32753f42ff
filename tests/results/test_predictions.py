"""Predictions and coefficients in the data's units, from draws, a formula and public rows alone."""

import pickle

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from numpyro import distributions as dist
from scipy import stats

import dpmcmc
from dpmcmc import Posterior
from dpmcmc.design import Design
from dpmcmc.errors import ResultError
from dpmcmc.results.quality import Quality
from tests.results.cases import STATEMENTS

SCHEMA = dpmcmc.Schema(
    [
        dpmcmc.Field("age", "integer", minimum=17, maximum=90),
        dpmcmc.Field("hours", "number", minimum=0, maximum=100, center=40, scale=10),
        dpmcmc.Field("education", "string", levels=["HS", "BA", "MA"]),
        dpmcmc.Field("sex", "string", levels=["F", "M"], missing="own level"),
        dpmcmc.Field("rich", "boolean"),
        dpmcmc.Field("wage", "number", minimum=10, maximum=210),
        dpmcmc.Field("visits", "integer", minimum=0, maximum=60),
    ]
)
RESPONSES = {"logistic": "rich", "linear": "wage", "poisson": "visits", "negative_binomial": "visits"}
EXTRAS = {"linear": "noise_scale", "negative_binomial": "dispersion"}
ROWS = {
    "age": [20, 45.0, 88, 999, None],
    "hours": [0.0, 40, "60", 12, 30],
    "education": ["HS", "BA", "MA", "BA", "HS"],
    "sex": ["F", "M", "?", "F", "M"],
}
RIGHT_SIDES = [
    "age + C(education) + hours:C(sex)",
    "0 + age + I(age**2)",
    "age*hours*C(sex) + np.log1p(hours)",
    "1",
]


def make(family="logistic", right=RIGHT_SIDES[0], groups=None, kind="private", **changes):
    """Return a posterior of made-up draws: 2 chains × 30 draws."""
    design = Design(f"{RESPONSES[family]} ~ {right}", SCHEMA, family, groups)
    generator = np.random.default_rng(7)
    draws = {"intercept": generator.normal(size=(2, 30))} if design.intercept else {}
    draws["coefficients"] = 0.3 * generator.normal(size=(2, 30, len(design.columns)))
    if groups is not None:
        draws["group_effects"] = generator.normal(size=(2, 30, len(design.level_names)))
        draws["group_scale"] = generator.uniform(0.5, 1.0, size=(2, 30))
    if family in EXTRAS:
        draws[EXTRAS[family]] = generator.uniform(0.2, 0.5, size=(2, 30))
    dims = {"coefficients": ("feature",)} if design.columns else {}
    coords = {"feature": design.columns} if design.columns else {}
    if groups is not None:
        dims["group_effects"], coords["group"] = ("group",), design.level_names
    settings = {"draws": draws, "privacy": STATEMENTS[kind], "sampler": "DP-Laplace", "model": "made up"}
    return Posterior(**settings, dims=dims, coords=coords, design=design, **changes)


def predictors(posterior, rows):
    """Linear predictors, draw by draw and row by row, from the clean values and the names of the columns."""
    clean = SCHEMA.clean(rows, ("age", "hours", "education", "sex"))
    coded = {"age": (clean["age"] - 53.5) / 36.5, "hours": (clean["hours"] - 40.0) / 10.0}
    low, high = 17.0**2, 90.0**2
    coded["I(age ** 2)"] = (clean["age"] ** 2 - (low + high) / 2) / ((high - low) / 2)
    coded["np.log1p(hours)"] = np.log1p(clean["hours"]) / (np.log(101.0) / 2) - 1.0
    total = np.zeros((60, len(clean["age"])))
    for place, name in enumerate(posterior.design.columns):
        value = np.ones(len(clean["age"]))
        for part in name.split(":"):
            if part in coded:
                value = value * coded[part]
            else:
                column, level = part[2:-1].replace(")", "").split("[")
                index = SCHEMA[column].level_names.index(level.removeprefix("T."))
                value = value * np.where(np.isnan(clean[column]), np.nan, clean[column] == index)
        total += posterior.draws["coefficients"].reshape(60, -1)[:, place : place + 1] * value
    if posterior.design.intercept:
        total += posterior.draws["intercept"].reshape(60, 1)
    if posterior.design.groups:
        codes = clean[posterior.design.groups].astype(int)
        total += posterior.draws["group_effects"].reshape(60, -1)[:, codes]
    return total


def direct_mean(family, eta):
    return {"logistic": lambda x: 1 / (1 + np.exp(-x)), "linear": lambda x: 110 + 100 * x}.get(family, np.exp)(eta)


@pytest.mark.parametrize("right", RIGHT_SIDES)
@pytest.mark.parametrize("family", RESPONSES)
def test_means_are_those_of_a_direct_computation(family, right):
    posterior = make(family, right)
    mean = posterior.predict(ROWS).mean
    expected = direct_mean(family, predictors(posterior, ROWS))
    np.testing.assert_allclose(mean, expected, rtol=1e-10)
    assert np.isnan(mean).any(axis=0).tolist() == [False] * 4 + ["age" in right]


def test_groups_take_part():
    posterior = make(right="age + hours", groups="education")
    np.testing.assert_allclose(posterior.predict(ROWS).mean, direct_mean("logistic", predictors(posterior, ROWS)))
    unknown = ROWS | {"education": ["PhD"] * 5}
    assert np.isnan(posterior.predict(unknown).mean).all()
    assert np.isnan(posterior.predict(unknown).outcome).all()


@pytest.mark.parametrize("family", RESPONSES)
def test_outcomes_have_the_distribution_of_the_family(family):
    """Kolmogorov–Smirnov of randomised probability transforms of 24,000 outcomes; fails by chance once in 1e6."""
    posterior = make(family)
    many = {name: column[:4] * 100 for name, column in ROWS.items()}
    predictions = posterior.predict(many, seed=11)
    mean, generator = predictions.mean, np.random.default_rng(12)
    extra = posterior.draws[EXTRAS[family]].reshape(60, 1) if family in EXTRAS else None
    law = {
        "logistic": lambda: stats.bernoulli(mean),
        "linear": lambda: stats.norm(mean, 100.0 * extra),
        "poisson": lambda: stats.poisson(mean),
        "negative_binomial": lambda: stats.nbinom(1.0 / extra, 1.0 / (1.0 + extra * mean)),
    }[family]()
    upper = law.cdf(predictions.outcome)
    lower = upper if family == "linear" else law.cdf(predictions.outcome - 1.0)
    uniform = (lower + generator.random(upper.shape) * (upper - lower)).ravel()
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6
    # Twin: a mean that is a tenth too large is noticed.
    if family != "logistic":
        wrong = stats.poisson(1.1 * mean) if family != "linear" else stats.norm(mean + 10.0, 100.0 * extra)
        assert stats.kstest(wrong.cdf(predictions.outcome).ravel(), "uniform").pvalue < 1e-6


def test_huge_rates_are_no_trouble():
    posterior = make("poisson", "age")
    large = {"draws": {name: 200.0 * value for name, value in posterior.draws.items()}}
    predictions = Posterior(**(posterior._fields() | large)).predict(ROWS)
    assert not np.isnan(predictions.outcome[:, :4]).any()


@pytest.mark.parametrize("family", RESPONSES)
def test_the_summary(family):
    posterior = make(family, kind="seeded")
    predictions = posterior.predict(ROWS, level=0.8, seed=2)
    table = predictions.summary()
    assert list(table.columns) == ["mean", "mean_lower", "mean_upper", "outcome_lower", "outcome_upper"]
    np.testing.assert_allclose(table["mean_lower"][:4], np.quantile(predictions.mean[:, :4], 0.1, axis=0))
    np.testing.assert_allclose(table["outcome_upper"][:4], np.quantile(predictions.outcome[:, :4], 0.9, axis=0))
    assert np.isnan(table.loc[4]).all()
    assert table.index.name == "not private: seeded"
    assert table.attrs["mode"] == "not private: seeded"
    assert "60 draws × 5 rows, not private: seeded" in repr(predictions)
    assert make(family).predict(ROWS).summary().index.name is None


def test_outcomes_can_be_repeated():
    posterior = make()
    first, second, other = (posterior.predict(ROWS, seed=seed).outcome[:, :4] for seed in (1, 1, None))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_rows_are_anything_that_a_table_takes_and_more_columns_do_not_matter():
    posterior, frame = make(), pd.DataFrame(ROWS | {"note": ["a"] * 5, "rich": [None] * 5})
    np.testing.assert_array_equal(posterior.predict(frame).mean, posterior.predict(ROWS).mean)


def test_every_row_is_predicted_alone():
    posterior = make()
    for place in range(5):
        alone = {name: column[place : place + 1] for name, column in ROWS.items()}
        np.testing.assert_allclose(
            posterior.predict(alone).mean[:, 0], posterior.predict(ROWS).mean[:, place], rtol=1e-12
        )


def test_a_file_predicts_the_same(tmp_path):
    posterior = make("linear")
    again = Posterior.load(posterior.save(tmp_path / "run.nc"))
    for one in (again, pickle.loads(pickle.dumps(posterior))):
        np.testing.assert_array_equal(one.predict(ROWS).mean, posterior.predict(ROWS).mean)
        np.testing.assert_array_equal(
            one.on_original_scale().draws["coefficients"], posterior.on_original_scale().draws["coefficients"]
        )


def test_bad_rows_and_levels():
    posterior = make()
    with pytest.raises(ResultError, match=r"rows has no column 'age', which formula = .* needs; add it"):
        posterior.predict({name: column for name, column in ROWS.items() if name != "age"})
    for level in (0, 1, 90, -0.1, "0.9", None, True):
        with pytest.raises(ResultError, match=r"level = .* is not between 0 and 1; give"):
            posterior.predict(ROWS, level=level)
    with pytest.raises(ResultError, match="rows is of type int"):
        make(right="1").predict(3)


def test_nothing_to_predict_with():
    bare = make()._fields() | {"design": None}
    for method in (lambda posterior: posterior.predict(ROWS), lambda posterior: posterior.on_original_scale()):
        with pytest.raises(ResultError, match=r"dpmcmc\.regression"):
            method(Posterior(**bare))


def test_draws_of_another_formula_are_refused():
    with pytest.raises(ResultError, match=r"has 1 coefficients and an intercept, which the draws have not"):
        Posterior(**(make()._fields() | {"design": Design("rich ~ age", SCHEMA)}))


# ---------------------------------------------------------------------------------------------- the original scale


@pytest.mark.parametrize("right", RIGHT_SIDES)
@pytest.mark.parametrize("family", RESPONSES)
def test_original_coefficients_predict_the_same_from_raw_rows(family, right):
    posterior = make(family, right)
    original = posterior.on_original_scale()
    rows = {name: column[:4] for name, column in ROWS.items()}
    clean = SCHEMA.clean(rows, ("age", "hours", "education", "sex"))
    values = {"age": clean["age"], "hours": clean["hours"]}
    values |= {"I(age ** 2)": clean["age"] ** 2, "np.log1p(hours)": np.log1p(clean["hours"])}
    eta = np.zeros((60, 4))
    if "intercept" in original.draws:
        eta += original.draws["intercept"].reshape(60, 1)
    for place, name in enumerate(original.coords.get("feature", ())):
        value = np.ones(4)
        for part in name.split(":"):
            if part in values:
                value = value * values[part]
            else:
                column, level = part[2:-1].replace(")", "").split("[")
                value = value * (clean[column] == SCHEMA[column].level_names.index(level.removeprefix("T.")))
        eta += original.draws["coefficients"].reshape(60, -1)[:, place : place + 1] * value
    mean = eta if family == "linear" else direct_mean(family, eta)
    np.testing.assert_allclose(mean, posterior.predict(rows).mean, rtol=1e-9, atol=1e-9)


def test_a_linear_regression_is_all_in_the_responses_units():
    posterior = make("linear", "age", groups="education")
    original = posterior.on_original_scale()
    for name in ("noise_scale", "group_scale", "group_effects"):
        np.testing.assert_allclose(original.draws[name], 100.0 * posterior.draws[name])
    np.testing.assert_allclose(original.draws["coefficients"], 100.0 / 36.5 * posterior.draws["coefficients"])
    expected = 110.0 + 100.0 * (posterior.draws["intercept"] - 53.5 / 36.5 * posterior.draws["coefficients"][..., 0])
    np.testing.assert_allclose(original.draws["intercept"], expected)
    assert list(original.draws) == ["intercept", "coefficients", "group_effects", "noise_scale", "group_scale"]


def test_the_original_scale_has_names_statement_and_files(tmp_path):
    original = make(kind="seeded").on_original_scale()
    assert original.coords["feature"][-2:] == ("C(sex)[T.M]", "C(sex)[T.missing]")
    assert "in the data's units" in original.model
    assert original.privacy == STATEMENTS["seeded"]
    table = original.summary()
    assert "coefficients[C(sex)[T.M]]" in table.index
    assert table.index.name == "not private: seeded"
    again = Posterior.load(original.save(tmp_path / "original.nc"))
    np.testing.assert_array_equal(again.draws["coefficients"], original.draws["coefficients"])
    with pytest.raises(ResultError, match="once only"):
        again.on_original_scale()


def test_an_intercept_is_induced_where_there_was_none():
    assert "intercept" not in make(right="0 + age").draws
    assert "intercept" in make(right="0 + age").on_original_scale().draws


def test_shares_of_noise_go_along():
    shares = {"intercept": np.array(0.3), "coefficients": np.linspace(0.1, 0.6, 6)}
    quality = Quality(method="DP-Laplace", converged=True, rounds=3, noise_share=shares, independent_draws=True)
    posterior = make(quality=quality)
    found = posterior.on_original_scale().quality.noise_share
    np.testing.assert_allclose(found["coefficients"][:6], shares["coefficients"], atol=1e-12)  # only scaled
    assert found["coefficients"].shape == (8,)
    assert 0.0 < float(found["intercept"]) < 1.0
    alike = {"intercept": np.array(0.4), "coefficients": np.full(6, 0.4)}
    same = Posterior(**(posterior._fields() | {"quality": Quality(**(quality.to_dict() | {"noise_share": alike}))}))
    for share in same.on_original_scale().quality.noise_share.values():
        np.testing.assert_allclose(share, 0.4, atol=1e-12)


def test_warmup_is_mapped_too():
    draws = make().draws
    posterior = make(warmup_draws={name: value[:, :5] for name, value in draws.items()})
    original = posterior.on_original_scale()
    np.testing.assert_array_equal(original.warmup_draws["coefficients"], original.draws["coefficients"][:, :5])


# ------------------------------------------------------------------------------------------------- a user's own model


def own(predict):
    return dpmcmc.Model(
        lambda parameters, record: dist.Normal(parameters["mean"] + record["x"], 1.0).log_prob(record["y"]),
        lambda parameters: dist.Normal(0.0, 5.0).log_prob(parameters["mean"]),
        {"mean": ()},
        sample_prior=lambda key: {"mean": 0.0},
        predict=predict,
    )


def run(model, data):
    return dpmcmc.sample(
        model, data, sampler=dpmcmc.RWMH(0.1), num_steps=40, num_chains=2, seed=1, progress=False, check_records=False
    )


DATA = {"x": np.linspace(-1.0, 1.0, 50), "y": np.linspace(-1.0, 1.0, 50)}


@pytest.mark.filterwarnings("ignore")
def test_a_function_that_gives_means():
    posterior = run(own(lambda parameters, record: parameters["mean"] + record["x"]), DATA)
    predictions = posterior.predict({"x": np.array([0.0, 2.0])})
    draws = posterior.draws["mean"].reshape(-1, 1)
    np.testing.assert_allclose(predictions.mean, draws + np.array([0.0, 2.0]), rtol=1e-6)
    assert predictions.outcome is None
    assert list(predictions.summary().columns) == ["mean", "mean_lower", "mean_upper"]


@pytest.mark.filterwarnings("ignore")
def test_a_function_that_gives_a_distribution():
    posterior = run(own(lambda parameters, record: dist.Normal(parameters["mean"] + record["x"], 1e-6)), DATA)
    predictions = posterior.predict({"x": np.array([0.0, 2.0, 5.0])}, seed=4)
    np.testing.assert_allclose(predictions.outcome, predictions.mean, atol=1e-4)
    assert not np.array_equal(predictions.outcome, predictions.mean)
    np.testing.assert_array_equal(
        posterior.predict({"x": np.array([0.0, 2.0, 5.0])}, seed=4).outcome, predictions.outcome
    )


@pytest.mark.filterwarnings("ignore")
def test_a_table_codes_the_rows(tmp_path):
    fields = [dpmcmc.Field("x", "number", minimum=0, maximum=10), dpmcmc.Field("y", "number", minimum=-2, maximum=2)]
    table = dpmcmc.Table({"x": 5.0 + DATA["x"], "y": DATA["y"]}, dpmcmc.Schema(fields))
    posterior = run(own(lambda parameters, record: parameters["mean"] * 0.0 + record["x"]), table)
    np.testing.assert_allclose(posterior.predict({"x": [0.0, 5.0, "99", None]}).mean[0], [-1.0, 0.0, 1.0, np.nan])
    with pytest.raises(ResultError, match="has none of the schema's columns"):
        posterior.predict({"z": [1.0]})
    again = Posterior.load(posterior.save(tmp_path / "own.nc"))
    assert again.schema == table.schema
    with pytest.raises(ResultError, match="no file holds a function"):
        again.predict({"x": [1.0]})
    assert pickle.loads(pickle.dumps(posterior)).predictor is None


@pytest.mark.filterwarnings("ignore")
def test_a_function_that_fails():
    posterior = run(own(lambda parameters, record: parameters["slope"]), DATA)
    with pytest.raises(ResultError, match=r"predict failed \(KeyError.*predict\(parameters, record\)"):
        posterior.predict({"x": jnp.zeros(2)})


def test_predict_must_be_a_function():
    with pytest.raises(dpmcmc.errors.ModelError, match="predict is int; give a function"):
        own(3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("give", [lambda mean: mean, lambda mean: dist.Normal(mean, 1.0)], ids=["mean", "distribution"])
def test_a_function_that_has_captured_the_data_is_refused(give):
    """What it predicts would hold sums of records without noise, under the statement of the draws."""
    secret = jnp.asarray(DATA["y"])
    posterior = run(own(lambda parameters, record: give(parameters["mean"] + jnp.mean(secret * record["x"]))), DATA)
    with pytest.raises(ResultError, match=r"predict uses an array of shape \(50,\) from outside"):
        posterior.predict({"x": np.ones(2)})
