"""Where the noise comes from: integers, drawn on the host a block at a time, fed to compiled code as an input.

Only :class:`ExactNoise` is private. The two other sources exist for research on data that are not secret;
what they produce is returned as another type (:class:`~dpmcmc.queries.NotPrivateRelease`).
There is no floating-point noise in this package.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpmcmc.errors import QueryError
from dpmcmc.queries.lattice import MAX_NOISE_SCALE

# Up to this scale the seeded generator inverts the exact distribution function; above it a rounded normal
# has the same law to within 1e-8, which is all that research needs.
_SEEDED_TABLE_SCALE = 2**12


class NoiseSource(Protocol):
    """Draws integer noise of discrete Gaussian law, p(k) ∝ exp(−k²/(2 scale²))."""

    @property
    def description(self) -> str:
        """What this noise is, in words that may be shown with a result."""
        ...

    @property
    def multiplier(self) -> float:
        """1 where noise is drawn, 0 where there is none: the factor on the stated noise sd."""
        ...

    def draw(self, scale: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Draw an array of independent integers."""
        ...


def _check_scale(scale: int) -> int:
    if not 1 <= scale <= MAX_NOISE_SCALE:
        raise QueryError(f"noise scale must be an integer in [1, 2^58], got {scale}; lower the noise multiplier")
    return int(scale)


@lru_cache(maxsize=64)
def _exact_mechanism(scale: int) -> Any:
    import opendp.prelude as opendp  # takes long to load, and only exact noise needs it

    # OpenDP asks its users to acknowledge contributed (not yet externally vetted) components.
    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T="i64")), opendp.l2_distance(T=float)
    return opendp.m.make_gaussian(*space, scale=float(scale))


class ExactNoise:
    """The discrete Gaussian of Canonne, Kamath and Steinke (2020), sampled exactly by OpenDP.

    The randomness is the operating system's; the sampler works in exact rational arithmetic, so that no
    rounding can leak. It takes no seed: noise that can be repeated is not private.
    """

    description = "private: exact discrete Gaussian noise (OpenDP)"
    multiplier = 1.0

    def draw(self, scale: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Draw ``shape`` independent integers with scale parameter ``scale``."""
        # An integer up to 2^58 may need rounding to become a float: refuse instead of adding less noise.
        if float(_check_scale(scale)) != scale:
            raise QueryError(f"noise scale {scale} is not exactly representable; use a multiple of a power of 2")
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            return np.zeros(shape, np.int64)
        drawn = _exact_mechanism(int(scale))(np.zeros(count, np.int64))
        return np.asarray(drawn, dtype=np.int64).reshape(shape)


class SeededNoiseNotPrivate:
    """Reproducible noise of the same law from a seeded NumPy generator. Not private: who knows the seed, knows all.

    Parameters
    ----------
    seed
        A non-negative integer.
    """

    multiplier = 1.0

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise QueryError(f"seed must be a non-negative integer, got {seed!r}")
        self.seed = int(seed)
        self._generator = np.random.Generator(np.random.PCG64(self.seed))

    @property
    def description(self) -> str:
        """Say that the run is seeded."""
        return "not private: seeded"

    def draw(self, scale: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Draw from the exact distribution function for small scales, else a rounded normal."""
        _check_scale(scale)
        if scale > _SEEDED_TABLE_SCALE:
            return np.rint(self._generator.standard_normal(shape) * scale).astype(np.int64)
        support, cumulative = _seeded_table(scale)
        return support[np.searchsorted(cumulative, self._generator.random(shape), side="right")]


@lru_cache(maxsize=16)
def _seeded_table(scale: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    support = np.arange(-10 * scale - 1, 10 * scale + 2, dtype=np.int64)
    weights = np.exp(-0.5 * (support / scale) ** 2)
    cumulative = np.cumsum(weights) / weights.sum()
    return support, cumulative[:-1]


class NoNoiseNotPrivate:
    """No noise at all: exact answers, for baselines and tests on data that are not secret."""

    description = "not private: no noise"
    multiplier = 0.0

    def draw(self, scale: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return zeros."""
        _check_scale(scale)
        return np.zeros(shape, np.int64)
