"""What turns releases into settings and into a posterior: coordinates, location, bounds. It never sees a record.

All of it is post-processing of what was released, asked through a function that charges before it answers; so every
choice may follow everything released before.
"""

from dpmcmc.tuning.laplace import Laplace, find_laplace
from dpmcmc.tuning.prior import Prior, describe_prior
from dpmcmc.tuning.questions import Asked, Questions, Style

__all__ = ["Asked", "Laplace", "Prior", "Questions", "Style", "describe_prior", "find_laplace"]
