"""Runs on units of several rows: every sampler and family, tables, and what the statement says."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpyro import distributions as dist

import dpmcmc
from dpmcmc import models
from dpmcmc.curator import NoNoiseNotPrivate
from dpmcmc.data import Units
from dpmcmc.models import UnitModel
from dpmcmc.surrogate import Form, Surrogate

MAX_ROWS, NUM_UNITS, DELTA = 3, 3000, 1e-6


def _log_likelihood(parameters, row):
    return dist.Normal(parameters["mean"], parameters["scale"]).log_prob(row["x"])


def _log_prior(parameters):
    return dist.Normal(0, 5).log_prob(parameters["mean"]) + dist.HalfNormal(2).log_prob(parameters["scale"])


def _sample_prior(key):
    return {"mean": 0.1 * dist.Normal(0, 5).sample(key), "scale": 1.0}


OWN = dpmcmc.Model(_log_likelihood, _log_prior, {"mean": (), "scale": "positive"}, sample_prior=_sample_prior)
FAMILIES = {
    "linear": models.LinearRegression(1),
    "logistic": models.LogisticRegression(1, feature_bounds=1.0),
    "poisson": models.PoissonRegression(1),
    "negative-binomial": models.NegativeBinomialRegression(1),
}
SURROGATE = Surrogate(Form(2, 2, 2), np.zeros(2), 0.05 * np.eye(2), np.eye(2, 6, 1))
SAMPLERS = {
    "DPHMC": dpmcmc.DPHMC(0.01, 3, 1.0, 1.0, 100.0, 100.0),
    "DPPenalty": dpmcmc.DPPenalty(0.02, 1.0, 100.0),
    "DPSGLD": dpmcmc.DPSGLD(100, 1.0, 1e-5),
    "DPSGNHT": dpmcmc.DPSGNHT(100, 1.0, 1e-3, 10.0),
    "SurrogateHMC": dpmcmc.SurrogateHMC(SURROGATE, 2.0),
    "DPLaplace": dpmcmc.DPLaplace(),
    "auto": "auto",
    "HMC": dpmcmc.HMC(0.01, 3),
    "RWMH": dpmcmc.RWMH(0.02),
}


def table_of(seed=0):
    """Ids in any order, and columns."""
    generator = np.random.default_rng(seed)
    ids = generator.permutation(np.repeat(np.arange(NUM_UNITS), generator.integers(1, MAX_ROWS + 3, NUM_UNITS)))
    return ids, generator.uniform(-1.0, 1.0, len(ids)), generator


def regression_of(name):
    ids, x, generator = table_of()
    eta = 0.3 + 0.5 * x
    y = {
        "linear": lambda: eta + generator.normal(size=len(x)),
        "logistic": lambda: generator.random(len(x)) < 1 / (1 + np.exp(-eta)),
    }.get(name, lambda: generator.poisson(np.exp(eta)))()
    units = Units.of(ids, MAX_ROWS).stack({"X": x[:, None], "y": y.astype(float)})
    return UnitModel(FAMILIES[name], MAX_ROWS, "person_id"), units


def run(model, data, name="DPLaplace", **options):
    sampler = SAMPLERS[name]
    settings = {"sampler": sampler, "progress": False} | options
    if name in ("HMC", "RWMH"):
        return dpmcmc.sample(model, data, num_steps=4, **settings)
    if name not in ("DPLaplace", "auto", "SurrogateHMC"):
        settings["num_steps"] = 4
    return dpmcmc.sample(model, data, **({"epsilon": 4.0, "delta": DELTA} | settings))


@pytest.mark.filterwarnings("ignore::dpmcmc.errors.DPMCMCWarning")
@pytest.mark.parametrize("kind", ["own", "logistic"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_runs_on_units_and_says_whom_it_protects(name, kind, tmp_path):
    if kind == "own":
        ids, x, _ = table_of()
        model, data = UnitModel(OWN, MAX_ROWS, "person_id"), Units.of(ids, MAX_ROWS).stack({"x": x})
    else:
        model, data = regression_of("logistic")
    start = {"init": np.zeros((4, 2))} if name in ("DPHMC", "DPPenalty", "DPSGLD", "DPSGNHT", "HMC", "RWMH") else {}
    posterior = run(model, data, name, **start)
    privacy = posterior.privacy
    assert privacy.num_records == NUM_UNITS
    assert privacy.private == (name not in ("HMC", "RWMH"))
    assert privacy.unit_of_privacy == f"all rows of one 'person_id', of which at most {MAX_ROWS} are used"
    assert privacy.unit_of_privacy in str(privacy) or not privacy.private
    privacy.check()
    posterior.save(tmp_path / "posterior.nc")
    assert dpmcmc.Posterior.load(tmp_path / "posterior.nc").privacy == privacy


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_finds_its_posterior_by_laplace(name):
    """Within 6 reported sds of the truth that the outcomes were drawn from, in both numbers.

    Draws and their noise are Gaussian here: of 8 numbers none is so far off but with a probability of 2e-8.
    """
    posterior = run(*regression_of(name), seed=1)
    assert posterior.quality.converged
    for parameter, truth in (("intercept", 0.3), ("coefficients", 0.5)):
        draws = np.ravel(posterior.draws[parameter])
        assert abs(draws.mean() - truth) < 6.0 * draws.std()
        assert draws.std() < 0.1


@pytest.mark.parametrize("name", ["DPLaplace", "DPHMC"])
def test_draws_do_not_depend_on_the_order_of_units_nor_on_rows_above_the_bound(name):
    ids, x, _ = table_of()
    model = UnitModel(OWN, MAX_ROWS)
    first = run(model, Units.of(ids, MAX_ROWS).stack({"x": x}), name, seed=3)
    order = np.argsort(np.random.default_rng(1).permutation(NUM_UNITS)[ids], kind="stable")
    # And a unit that has as many rows as count gets a thousand more.
    full = np.flatnonzero(np.bincount(ids) >= MAX_ROWS)[0]
    more_ids, more_x = np.append(ids[order], np.full(1000, full)), np.append(x[order], np.full(1000, 1e9))
    second = run(model, Units.of(more_ids, MAX_ROWS).stack({"x": more_x}), name, seed=3)
    assert np.array_equal(first.draws["mean"], second.draws["mean"])


# ------------------------------------------------------------------ tables

FIELDS = [
    dpmcmc.Field("x", "number", minimum=-2.0, maximum=2.0, center=0.0, scale=1.0),
    dpmcmc.Field("unused", "number", minimum=0.0, maximum=1.0),
]


def frame_of():
    ids, x, generator = table_of()
    return {"person_id": [f"p{one}" for one in ids], "x": x, "unused": generator.random(len(x))}


def test_a_table_with_a_unit_makes_a_users_model_one_of_units():
    frame = frame_of()
    schema = dpmcmc.Schema([*FIELDS, dpmcmc.Field("person_id", "string")], unit="person_id", max_rows=MAX_ROWS)
    posterior = run(OWN, dpmcmc.Table(frame, schema), seed=2)
    assert posterior.privacy.unit_of_privacy == f"all rows of one 'person_id', of which at most {MAX_ROWS} are used"
    assert posterior.privacy.num_records == NUM_UNITS
    units = Units.of(np.array(frame["person_id"]), MAX_ROWS)
    by_hand = run(UnitModel(OWN, MAX_ROWS), units.stack({"x": frame["x"]}), seed=2)
    assert np.array_equal(posterior.draws["mean"], by_hand.draws["mean"])
    # Nor are rows taken for persons if the table is not handed on itself.
    of_records = run(OWN, dpmcmc.Table(frame, schema).records(), seed=2)
    assert np.array_equal(posterior.draws["mean"], of_records.draws["mean"])
    assert of_records.privacy.unit_of_privacy == f"all rows of one unit, of which at most {MAX_ROWS} are used"
    assert of_records.privacy.num_records == NUM_UNITS


def test_without_a_unit_one_row_is_one_person():
    frame = frame_of()
    posterior = run(OWN, dpmcmc.Table(frame, dpmcmc.Schema(FIELDS)), seed=2)
    assert posterior.privacy.unit_of_privacy == "one row of the table, which stands for one person"
    assert posterior.privacy.num_records == len(frame["x"])
    by_hand = run(OWN, {"x": frame["x"]}, seed=2)
    assert np.array_equal(posterior.draws["mean"], by_hand.draws["mean"])


@pytest.mark.parametrize("unit", [None, "person_id"])
def test_a_row_that_counts_as_nothing_does_so_even_if_the_model_ignores_what_is_missing(unit):
    """As if those rows were not in the table, though the model looks at another column; bit for bit."""
    frame = frame_of()
    fields = FIELDS if unit is None else [*FIELDS, dpmcmc.Field("person_id", "string")]
    schema = dpmcmc.Schema(fields, unit=unit, max_rows=None if unit is None else MAX_ROWS)
    missing = np.random.default_rng(8).random(len(frame["x"])) < 0.3
    if unit is not None:  # rows that are last of their unit, so that the bound drops no others
        missing = np.zeros(len(missing), bool)
        index = Units.of(np.array(frame["person_id"]), 100).index
        several = np.flatnonzero(np.sum(index >= 0, axis=1) == 2)
        missing[index[several, 1]] = True
    first = dpmcmc.Table({**frame, "unused": np.where(missing, np.nan, frame["unused"])}, schema)
    model = dpmcmc.Curator(OWN, first, noise=NoNoiseNotPrivate())
    rest = {name: np.asarray(column)[~missing] for name, column in frame.items()}
    without = dpmcmc.Curator(OWN, dpmcmc.Table(rest, schema), noise=NoNoiseNotPrivate())
    theta = np.array([0.1, 0.2])
    query = dpmcmc.queries.Gradient(0.5, 1.0)
    # (The lattice follows the number of records, which is another one without a unit.)
    np.testing.assert_allclose(model.ask(query, theta).value, without.ask(query, theta).value, rtol=1e-9)
    counted = model.ask(dpmcmc.queries.InvalidCount(1.0), theta).value
    assert counted == (missing.sum() if unit is None else 0.0)


def test_a_streamed_table_gives_the_same_draws(tmp_path):
    frame = frame_of()
    frame["unused"][::7] = np.nan
    path = tmp_path / "people.parquet"
    pyarrow.parquet.write_table(pyarrow.table(frame), path)
    draws = [
        run(OWN, dpmcmc.Table(path, dpmcmc.Schema(FIELDS), stream=stream), seed=2).draws["mean"]
        for stream in (False, True)
    ]
    assert np.array_equal(*draws)
