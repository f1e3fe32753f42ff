"""The mathematics of the privacy budget: Gaussian and subsampled-Gaussian curves, and the filter.

Imports nothing of this package but its errors, and sees neither data nor noise.
"""

from dpmcmc.privacy.budget import Budget, StepBudget
from dpmcmc.privacy.gaussian import (
    gaussian_cost,
    gaussian_delta,
    gaussian_delta_bound,
    gaussian_epsilon,
    gaussian_log_delta,
    gaussian_mu,
    smallest_noise_multiplier,
)
from dpmcmc.privacy.statement import PrivacyStatement
from dpmcmc.privacy.subsampled import subsampled_delta, subsampled_epsilon, subsampled_steps

__all__ = [
    "Budget",
    "PrivacyStatement",
    "StepBudget",
    "gaussian_cost",
    "gaussian_delta",
    "gaussian_delta_bound",
    "gaussian_epsilon",
    "gaussian_log_delta",
    "gaussian_mu",
    "smallest_noise_multiplier",
    "subsampled_delta",
    "subsampled_epsilon",
    "subsampled_steps",
]
