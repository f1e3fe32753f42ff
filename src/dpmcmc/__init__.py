"""dpmcmc: differentially private Bayesian inference by MCMC.

Give a model, records (one row per person) and a privacy budget. Only the curator sees the records; all that
leaves it is noised exactly and charged first.
"""

from dpmcmc import curator, models, privacy
from dpmcmc.curator import Curator
from dpmcmc.models import Model, Parameter, from_numpyro
from dpmcmc.privacy import Budget

__version__ = "0.1.0"

__all__ = ["Budget", "Curator", "Model", "Parameter", "curator", "from_numpyro", "models", "privacy"]
