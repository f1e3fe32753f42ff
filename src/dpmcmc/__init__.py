"""dpmcmc: differentially private Bayesian inference by MCMC.

Give a model, records (one row per person) and a privacy budget. Only the curator sees the records; all that
leaves it is noised exactly and charged first.
"""

from dpmcmc import curator, data, models, privacy
from dpmcmc.curator import Curator
from dpmcmc.inference import Plan, plan, sample
from dpmcmc.models import Model, Parameter, from_numpyro
from dpmcmc.privacy import Budget
from dpmcmc.results import Posterior, load
from dpmcmc.samplers import DPHMC, DPSGLD, DPSGNHT, HMC, RWMH, DPPenalty

__version__ = "0.1.0"

__all__ = [
    "DPHMC",
    "DPSGLD",
    "DPSGNHT",
    "HMC",
    "RWMH",
    "Budget",
    "Curator",
    "DPPenalty",
    "Model",
    "Parameter",
    "Plan",
    "Posterior",
    "curator",
    "data",
    "from_numpyro",
    "load",
    "models",
    "plan",
    "privacy",
    "sample",
]
