"""Records of any numeric dtype give the sums that the same numbers give as float64."""

import numpy as np
import pytest
from numpyro import distributions as dist

import dpmcmc
from dpmcmc.curator import NoNoiseNotPrivate
from dpmcmc.queries import Gradient

DTYPES = ["float32", "int8", "int16", "int32", "int64", "uint8", "bool"]
NUM_RECORDS = 40


def gradient(model, data):
    curator = dpmcmc.Curator(model, data, noise=NoNoiseNotPrivate())
    return curator.ask(Gradient(10.0, 1.0), np.full(model.dimension, 0.3)).value


def log_likelihood(parameters, record):
    # The last term is computed from the record alone, in the record's own dtype.
    mean = record["X"] @ parameters["coefficients"] + parameters["scale"] * (record["X"] @ record["X"])
    return dist.Normal(mean, 2.0).log_prob(record["y"])


GENERIC = dpmcmc.Model(
    log_likelihood,
    lambda parameters: dist.Normal(0.0, 1.0).log_prob(parameters["coefficients"]).sum(),
    {"coefficients": (3,), "scale": ()},
)
LINEAR = dpmcmc.models.LinearRegression(3)


def table():
    generator = np.random.default_rng(0)
    X = np.eye(3)[generator.integers(0, 3, NUM_RECORDS)]  # no more than one 1, so that a product fits booleans
    return {"X": X, "y": generator.normal(size=NUM_RECORDS)}


@pytest.mark.parametrize("model", [GENERIC, LINEAR], ids=["generic", "linear"])
def test_features_of_any_dtype(model):
    data = table()
    expected = gradient(model, data)
    assert np.abs(expected).min() > 1e-3, "a sum of zero shows nothing"
    for dtype in DTYPES:
        result = gradient(model, data | {"X": data["X"].astype(dtype)})
        np.testing.assert_allclose(result, expected, rtol=1e-9, err_msg=dtype)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_the_lowest_integer_is_not_negated_into_itself(dtype):
    """A row's largest entry decides its grid: if it overflows, the gradient is off, or the record is lost."""
    data = table()
    lowest = data["X"] * float(np.iinfo(dtype).min)
    theta = np.zeros(LINEAR.dimension)

    def clipped(X):
        curator = dpmcmc.Curator(LINEAR, data | {"X": X}, noise=NoNoiseNotPrivate())
        return curator.ask(Gradient(1.0, 1.0), theta).value

    np.testing.assert_allclose(clipped(lowest.astype(dtype)), clipped(lowest), rtol=1e-12)
