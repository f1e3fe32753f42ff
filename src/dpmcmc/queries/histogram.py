"""Noisy histograms of the scores' coordinates, for scales: how large is each of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.checks import convert_positive
from dpmcmc.privacy.gaussian import gaussian_cost
from dpmcmc.queries.base import Answer, Kernel, Noise, Query, Question, Total
from dpmcmc.queries.lattice import Lattice, lattice_bits, scaled_noise
from dpmcmc.queries.quantile import check_grid, grid_edges
from dpmcmc.queries.release import noised


class Histograms(NamedTuple):
    """Answer to a CoordinateHistogram: noisy counts, coordinates × bins, and the inner edges of the bins."""

    histogram: Any
    edges: Any


@dataclass(frozen=True)
class CoordinateHistogram(Query):
    """For every coordinate j a noisy histogram of |score_j| over all records, on a log₂ grid.

    A record adds one to one bin of each coordinate. Replacing it moves at most one unit between two bins in each of d
    histograms, which changes 2d numbers by 1: all counts together have sensitivity √(2d), and noise of sd √(2d)·τ.

    A score of exactly 0 is in the first bin. A record with a score that is not finite is in no bin at all.

    Parameters
    ----------
    noise_multiplier
        τ: the counts have noise of sd √(2d)·τ. Cost μ = 1/(2τ²).
    lower_exponent, upper_exponent
        The grid runs from 2^lower_exponent to 2^upper_exponent; the first and last bin catch the rest.
    octaves_per_bin
        The bins' width: edges are 2^(lower_exponent + k·octaves_per_bin).
    """

    noise_multiplier: float
    lower_exponent: int = -40
    upper_exponent: int = 40
    octaves_per_bin: float = 2
    kind: ClassVar[str] = "coordinate_histogram"

    def __post_init__(self) -> None:
        convert_positive(self, "noise_multiplier", "octaves_per_bin")
        check_grid(self.lower_exponent, self.upper_exponent)

    @property
    def mu(self) -> float:
        """Cost of one release, 1/(2τ²), rounded up."""
        return gaussian_cost(self.noise_multiplier)

    def sensitivity(self, dimension: int) -> float:
        """L2 distance between the counts of neighbouring data sets: √(2d)."""
        return math.sqrt(2.0 * dimension)

    @property
    def edges(self) -> list[float]:
        """Inner edges of the bins; there is one more bin than edges."""
        return grid_edges(self.lower_exponent, self.upper_exponent, 1.0 / self.octaves_per_bin)

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers: a record adds K to its bins."""
        sensitivity = self.sensitivity(dimension)
        bound = 2 ** lattice_bits(num_records, self.noise_multiplier * max(1.0, sensitivity / 2.0))
        scale = scaled_noise(sensitivity, bound, self.noise_multiplier)
        return Lattice(bound, sensitivity * bound, scale, dimension * (len(self.edges) + 1))

    def width(self, dimension: int) -> int:
        """A score of d numbers."""
        return dimension

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Count the records of each coordinate's bins."""

        def histograms(tile: Any, theta: jax.Array, edges: jax.Array) -> jax.Array:
            # What does not count has a size of -1, which is in none of the numbers that are taken differences of.
            thresholds = jnp.concatenate([jnp.zeros(1), edges])
            at_least = jnp.sum(kernel.score_sizes(tile, theta)[:, :, None, :] >= thresholds[:, None], axis=-1)
            return at_least - jnp.concatenate([at_least[..., 1:], jnp.zeros_like(at_least[..., :1])], axis=-1)

        return histograms

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """Counts plus noise."""
        (chains, dimension), edges = np.shape(question.theta), np.asarray(self.edges)
        lattice = self.lattice(question.num_records, dimension)
        counts = total(self, question.theta, None, edges)
        histogram = noised(counts * lattice.bound, np.reshape(noise[0], counts.shape)) / lattice.bound
        value = Histograms(histogram, np.broadcast_to(edges, (chains, len(edges))))
        return Answer(value, np.full(chains, lattice.noise_scale / lattice.bound), np.full(chains, self.mu))
