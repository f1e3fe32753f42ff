"""One missing value, and a library gives its column another dtype: the program must stay the same.

Every kind of model is asked for a gradient with a column in which a value is missing and with the same column
complete. Shapes and dtypes of the records, which decide what is compiled, must be equal, and the two answers must
differ by what the one record contributes.
"""

import jax
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

import dpmcmc
from dpmcmc.curator import NoNoiseNotPrivate
from dpmcmc.queries import Gradient

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")

NUM_RECORDS = 30
MISSING = 7  # the row whose value is missing


def with_and_without(values, make):
    missing = list(values)
    missing[MISSING] = None
    return make(list(values)), make(missing)


MAKERS = {
    "pandas": pandas.Series,
    "pandas nullable": lambda values: pandas.Series(values).convert_dtypes(),
    "arrow": pyarrow.array,
    "objects": lambda values: np.array(values, dtype=object),
}


def numbers():
    generator = np.random.default_rng(0)
    return {
        "X": generator.normal(size=(NUM_RECORDS, 2)),
        "flag": [bool(value) for value in generator.integers(0, 2, NUM_RECORDS)],
        "code": [int(value) for value in generator.integers(0, 3, NUM_RECORDS)],
    }


def generic(parameters, record):
    mean = record["X"] @ parameters["coefficients"] + parameters["level"] * record["code"]
    return dist.Bernoulli(logits=mean).log_prob(record["flag"])


def grouped(X, code, flag):
    effects = numpyro.sample("effects", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    coefficients = numpyro.sample("coefficients", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("records", X.shape[0]):
        numpyro.sample("flag", dist.Bernoulli(logits=X @ coefficients + effects[code]), obs=flag)


LIKE = {
    "X": jax.ShapeDtypeStruct((NUM_RECORDS, 2), float),
    "code": jax.ShapeDtypeStruct((NUM_RECORDS,), int),
    "flag": jax.ShapeDtypeStruct((NUM_RECORDS,), bool),
}
MODELS = {
    "generic": dpmcmc.Model(
        generic,
        lambda parameters: dist.Normal(0.0, 1.0).log_prob(parameters["coefficients"]).sum(),
        {"coefficients": (2,), "level": ()},
    ),
    "regression": dpmcmc.models.LogisticRegression(2, groups=3),
    "numpyro": dpmcmc.from_numpyro(grouped, LIKE),
}


def gradient(model, data):
    curator = dpmcmc.Curator(model, data, noise=NoNoiseNotPrivate())
    return curator.ask(Gradient(100.0, 1.0), np.full(model.dimension, 0.1)).value


def score_of_the_record(model, data):
    """Its gradient, by plain differentiation; never clipped here."""
    with jax.enable_x64(True):
        records, _ = model.prepare_records(data)
        record = {name: column[MISSING] for name, column in records.items()}
        return np.asarray(jax.grad(model.unconstrained_log_likelihood)(np.full(model.dimension, 0.1), record))


@pytest.mark.parametrize("column", ["flag", "code"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_missing_value_takes_one_record_out_and_changes_nothing_else(kind, column):
    model = MODELS[kind]
    names = {"flag": "y", "code": "group"} if kind == "regression" else {}

    def data(**changes):
        arrays = {name: np.asarray(values) for name, values in numbers().items()} | changes
        return {names.get(name, name): values for name, values in arrays.items()}

    total, share = gradient(model, data()), score_of_the_record(model, data())
    assert np.abs(share).max() > 0.05, "a record that contributes nothing shows nothing"
    structures = set()
    for make in MAKERS.values():
        complete, missing = (data(**{column: given}) for given in with_and_without(numbers()[column], make))
        for given in (complete, missing):
            records, _ = model.prepare_records(given)
            structures.add(tuple((name, values.shape, str(values.dtype)) for name, values in sorted(records.items())))
    assert len(structures) == 1
    # Differences of rounding to the lattice, and in regressions of the design's grid (2^-20 of a row's largest entry).
    np.testing.assert_allclose(gradient(model, complete), total, atol=1e-4)
    np.testing.assert_allclose(gradient(model, missing), total - share, atol=1e-4)


def test_a_table_with_a_missing_value_describes_the_same_numpyro_model():
    values = {"flag": numbers()["flag"], "x": [float(value) for value in numbers()["X"][:, 0]]}

    def model_fn(flag, x):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("flag", dist.Bernoulli(logits=slope * x), obs=flag)

    described = []
    for flags in with_and_without(values["flag"], list):
        frame = pandas.DataFrame(values | {"flag": flags})
        for data_like in (frame, dict(frame.items())):
            model = dpmcmc.from_numpyro(model_fn, data_like)
            model.check(model.prepare_records(frame)[0])
            described.append(model._columns)
    assert all(columns == described[0] for columns in described)
