"""The models: public. They hold functions, shapes and names, never a record."""

from dpmcmc.models.formula import Regression, regression
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
from dpmcmc.models.units import UnitModel

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
    "Regression",
    "RegressionModel",
    "UnitModel",
    "from_numpyro",
    "regression",
]
