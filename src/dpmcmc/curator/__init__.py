"""The private room: the curator, the questions that it answers, its noise, and what it releases."""

from dpmcmc.curator.curator import Cost, Curator
from dpmcmc.curator.noise import ExactNoise, NoiseSource, NoNoiseNotPrivate, SeededNoiseNotPrivate
from dpmcmc.curator.oracle import Moments, NotPrivateRelease, Oracle, Quantile, Release, require_private
from dpmcmc.curator.queries import (
    BatchGradient,
    ClipCount,
    Gradient,
    InvalidCount,
    Lattice,
    LogRatio,
    NormQuantile,
    ScoreMoments,
)

__all__ = [
    "BatchGradient",
    "ClipCount",
    "Cost",
    "Curator",
    "ExactNoise",
    "Gradient",
    "InvalidCount",
    "Lattice",
    "LogRatio",
    "Moments",
    "NoNoiseNotPrivate",
    "NoiseSource",
    "NormQuantile",
    "NotPrivateRelease",
    "Oracle",
    "Quantile",
    "Release",
    "ScoreMoments",
    "SeededNoiseNotPrivate",
    "require_private",
]
