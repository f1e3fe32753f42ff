"""Models: what is inferred, without any data.

A `Model` is a log-prior, a per-record log-likelihood and named parameters on one unconstrained vector. Here
are the general class, regression families with closed-form scores, the paper's two models and the way in
for NumPyro models. This room imports nothing of the package but its errors, and holds no records.
"""

from dpmcmc.models.model import Model
from dpmcmc.models.numpyro_model import NumpyroModel, from_numpyro
from dpmcmc.models.paper import Banana, GaussianMean
from dpmcmc.models.parameters import Parameter
from dpmcmc.models.regression import (
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
    RegressionModel,
)

__all__ = [
    "Banana",
    "GaussianMean",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "NegativeBinomialRegression",
    "NumpyroModel",
    "Parameter",
    "PoissonRegression",
    "RegressionModel",
    "from_numpyro",
]
