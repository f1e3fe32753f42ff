"""The public half of the curator: what may be asked, what it costs, and what comes back. Nothing here sees a record.

Every query is a sum over records of integer vectors on a lattice γZ, bounded by an integer K, plus discrete Gaussian
noise of integer scale S on the same lattice. Sensitivities are those of replacing one record.
"""

from dpmcmc.queries.base import Answer, Kernel, Query
from dpmcmc.queries.batch_gradient import BatchGradient
from dpmcmc.queries.coordinates import Affine
from dpmcmc.queries.counts import ClipCount, InvalidCount
from dpmcmc.queries.curvature import Curvature, FisherInformation
from dpmcmc.queries.declared import Cost, Queries, cost_of, cost_of_answer
from dpmcmc.queries.gradient import Gradient, WeightedGradient
from dpmcmc.queries.histogram import CoordinateHistogram, Histograms
from dpmcmc.queries.lattice import Lattice
from dpmcmc.queries.log_ratio import LogRatio
from dpmcmc.queries.moments import Moments, ScoreMoments
from dpmcmc.queries.oracle import Oracle
from dpmcmc.queries.paid import PaidDraws, PaidNoise
from dpmcmc.queries.quantile import NormQuantile, Quantile
from dpmcmc.queries.release import AnyRelease, NotPrivateRelease, Release, require_private

__all__ = [
    "Affine",
    "Answer",
    "AnyRelease",
    "BatchGradient",
    "ClipCount",
    "CoordinateHistogram",
    "Cost",
    "Curvature",
    "FisherInformation",
    "Gradient",
    "Histograms",
    "InvalidCount",
    "Kernel",
    "Lattice",
    "LogRatio",
    "Moments",
    "NormQuantile",
    "NotPrivateRelease",
    "Oracle",
    "PaidDraws",
    "PaidNoise",
    "Quantile",
    "Queries",
    "Query",
    "Release",
    "ScoreMoments",
    "WeightedGradient",
    "cost_of",
    "cost_of_answer",
    "require_private",
]
