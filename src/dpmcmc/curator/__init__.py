"""The private room: the curator and its noise. What may be asked stands in :mod:`dpmcmc.queries`."""

from dpmcmc.curator.curator import Curator
from dpmcmc.curator.noise import ExactNoise, NoiseSource, NoNoiseNotPrivate, SeededNoiseNotPrivate
from dpmcmc.curator.payment import Order

__all__ = ["Curator", "ExactNoise", "NoNoiseNotPrivate", "NoiseSource", "Order", "SeededNoiseNotPrivate"]
