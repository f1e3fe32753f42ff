"""The mathematics of the privacy budget: Gaussian and subsampled-Gaussian curves, the filter, and calibration of noise.

Imports nothing of this package but its errors, and sees neither data nor noise.
"""

from dpmcmc.privacy.budget import Budget, StepBudget
from dpmcmc.privacy.calibration import (
    noise_for_queries,
    noise_for_steps,
    noise_ratio_for_steps,
    queries_for_noise,
    smallest_noise_ratio,
)
from dpmcmc.privacy.gaussian import (
    gaussian_cost,
    gaussian_delta,
    gaussian_delta_bound,
    gaussian_epsilon,
    gaussian_log_delta,
    gaussian_mu,
    smallest_noise_multiplier,
)
from dpmcmc.privacy.ledger import Account, Ledger, LedgerStatus
from dpmcmc.privacy.statement import PrivacyStatement
from dpmcmc.privacy.subsampled import subsampled_delta, subsampled_epsilon, subsampled_steps

__all__ = [
    "Account",
    "Budget",
    "Ledger",
    "LedgerStatus",
    "PrivacyStatement",
    "StepBudget",
    "gaussian_cost",
    "gaussian_delta",
    "gaussian_delta_bound",
    "gaussian_epsilon",
    "gaussian_log_delta",
    "gaussian_mu",
    "noise_for_queries",
    "noise_for_steps",
    "noise_ratio_for_steps",
    "queries_for_noise",
    "smallest_noise_multiplier",
    "smallest_noise_ratio",
    "subsampled_delta",
    "subsampled_epsilon",
    "subsampled_steps",
]
