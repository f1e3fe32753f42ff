"""What turns releases into settings and into a posterior: coordinates, location, bounds. It never sees a record.

All of it is post-processing of what was released, asked through a function that charges before it answers; so every
choice may follow everything released before.
"""

from dpmcmc.tuning.auto import Found, Surveyor, can_survey, find_posterior, is_surveyed, largest_form
from dpmcmc.tuning.groups import Groups
from dpmcmc.tuning.laplace import Laplace, find_laplace
from dpmcmc.tuning.prior import Prior, describe_prior
from dpmcmc.tuning.questions import Asked, Questions, Style
from dpmcmc.tuning.ratios import CLIPPED_SHARE, LARGEST_SHARE, RatioBound, ratio_bound
from dpmcmc.tuning.walk import Walk

__all__ = [
    "CLIPPED_SHARE",
    "LARGEST_SHARE",
    "Asked",
    "Found",
    "Groups",
    "Laplace",
    "Prior",
    "Questions",
    "RatioBound",
    "Style",
    "Surveyor",
    "Walk",
    "can_survey",
    "describe_prior",
    "find_laplace",
    "find_posterior",
    "is_surveyed",
    "largest_form",
    "ratio_bound",
]
