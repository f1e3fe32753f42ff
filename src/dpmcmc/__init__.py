"""dpmcmc: differentially private Bayesian inference by MCMC.

Give a model, records (one row per person) and a privacy budget. Only the curator sees the records; all that
leaves it is noised exactly and charged first.
"""

import importlib
from typing import TYPE_CHECKING

__all__ = [
    "DPHMC",
    "DPSGLD",
    "DPSGNHT",
    "HMC",
    "RWMH",
    "Budget",
    "Curator",
    "DPLaplace",
    "DPPenalty",
    "Field",
    "LaplacePlan",
    "Ledger",
    "Model",
    "Parameter",
    "Plan",
    "PlanCurve",
    "Posterior",
    "Schema",
    "SurrogateHMC",
    "Table",
    "curator",
    "data",
    "errors",
    "from_numpyro",
    "models",
    "plan",
    "plan_curve",
    "privacy",
    "queries",
    "regression",
    "resume",
    "sample",
]

if TYPE_CHECKING:
    from dpmcmc import curator, data, errors, models, privacy, queries
    from dpmcmc.curator import Curator
    from dpmcmc.data import Table
    from dpmcmc.inference import LaplacePlan, Plan, PlanCurve, plan, plan_curve, resume, sample
    from dpmcmc.models import Model, Parameter, from_numpyro, regression
    from dpmcmc.privacy import Budget, Ledger
    from dpmcmc.results import Posterior
    from dpmcmc.samplers import DPHMC, DPSGLD, DPSGNHT, HMC, RWMH, DPLaplace, DPPenalty, SurrogateHMC
    from dpmcmc.schema import Field, Schema

    __version__: str
else:
    # JAX, NumPyro and dp-accounting take seconds to load, so a name is imported when it is first used (PEP 562).
    _HOME_OF = {
        "Curator": "curator",
        "LaplacePlan": "inference",
        "Plan": "inference",
        "PlanCurve": "inference",
        "plan": "inference",
        "plan_curve": "inference",
        "resume": "inference",
        "sample": "inference",
        "Model": "models",
        "Parameter": "models",
        "from_numpyro": "models",
        "regression": "models",
        "Budget": "privacy",
        "Ledger": "privacy",
        "Posterior": "results",
        "DPHMC": "samplers",
        "DPSGLD": "samplers",
        "DPSGNHT": "samplers",
        "HMC": "samplers",
        "RWMH": "samplers",
        "DPLaplace": "samplers",
        "DPPenalty": "samplers",
        "SurrogateHMC": "samplers",
        "Table": "data",
        "Field": "schema",
        "Schema": "schema",
    }

    def _version():
        """Return the version that was installed, "0+unknown" for sources that were not."""
        from importlib import metadata

        try:
            return metadata.version(__name__)
        except metadata.PackageNotFoundError:
            return "0+unknown"

    def __getattr__(name):
        if name == "__version__":
            globals()[name] = _version()
            return globals()[name]
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name not in _HOME_OF:
            return importlib.import_module(f"{__name__}.{name}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__, "__version__"})
