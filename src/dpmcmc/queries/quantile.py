"""A quantile of the records' gradient norms or log-ratios, from a noisy histogram."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.checks import choice, convert_positive
from dpmcmc.errors import QueryError
from dpmcmc.privacy.gaussian import gaussian_cost
from dpmcmc.queries.base import Answer, Kernel, Noise, Query, Question, Requirement, Total
from dpmcmc.queries.lattice import Lattice, lattice_bits, scaled_noise
from dpmcmc.queries.release import noised

Magnitude = Literal["gradient", "log_ratio", "score_bound", "curvature", "information"]
"""What is compared with a grid or a threshold, for each record; in coordinates, of the vectors and matrices there.

- "gradient": the norm of the gradient;
- "log_ratio": |log-ratio| (then the question takes a proposal);
- "score_bound": the largest norm that the gradient could have, whatever the outcome: max(p, 1 − p)·‖design row‖
  (logistic regression only; of records that have a gradient);
- "curvature": the Frobenius norm of minus the second derivatives;
- "information": the root of the information's trace, which :class:`~dpmcmc.queries.FisherInformation` clips
  (regressions only, and counts only).
"""
MAGNITUDES: tuple[Magnitude, ...] = ("gradient", "log_ratio", "score_bound", "curvature", "information")


class Quantile(NamedTuple):
    """Answer to a NormQuantile: the estimate, the noisy histogram that it was read from, and the grid."""

    estimate: Any
    histogram: Any
    edges: Any


class OfMagnitudes(Query):
    """What queries of one number a record have in common: ``of`` says which."""

    of: Magnitude

    @property
    def needs_proposal(self) -> bool:
        """For log-ratios it is about two parameter vectors."""
        return self.of == "log_ratio"

    @property
    def requires(self) -> Requirement:
        """Only logistic regression has a bound that no outcome exceeds."""
        return "logistic" if self.of == "score_bound" else "any"

    @property
    def differentiates_twice(self) -> bool:
        """For curvatures."""
        return self.of == "curvature"

    @property
    def structure(self) -> Hashable:
        """What is computed of a record."""
        return self.of

    def width(self, dimension: int) -> int:
        """A gradient, or one number."""
        return 1 if self.of == "log_ratio" else dimension

    def magnitudes(self, kernel: Kernel, tile: Any, theta: jax.Array, rest: Any) -> tuple[jax.Array, jax.Array]:
        """Return one number a record, and who counts."""
        return kernel.magnitudes(tile, theta, rest[0] if self.needs_proposal else None, self.of)


@dataclass(frozen=True)
class NormQuantile(OfMagnitudes):
    """Quantile of the per-record norms of the gradient (or of another size), from a noisy log₂ histogram.

    One record moves one unit between two bins: sensitivity √2 for all counts together. The estimate is the
    upper edge of the bin in which the noisy cumulated count reaches the quantile. Take moderate quantiles
    (90 %) and few bins: the noise of all bins below adds up.

    Parameters
    ----------
    quantile
        In (0, 1).
    noise_multiplier
        τ: the counts have noise of sd √2·τ. Cost μ = 1/(2τ²).
    lower_exponent, upper_exponent
        The grid runs from 2^lower_exponent to 2^upper_exponent; the first and last bin catch the rest.
    bins_per_octave
        How many bins a factor of 2 is split into; 0.5 for bins of a factor of 4.
    of
        Of what: "gradient", "log_ratio" (then the question takes a proposal), "score_bound" or "curvature", see
        :data:`Magnitude`.
    """

    quantile: float
    noise_multiplier: float
    lower_exponent: int = -16
    upper_exponent: int = 16
    bins_per_octave: float = 1
    of: Magnitude = "gradient"
    kind: ClassVar[str] = "quantile"
    sensitivity: ClassVar[float] = math.sqrt(2.0)

    def __post_init__(self) -> None:
        convert_positive(self, "quantile", "noise_multiplier", "bins_per_octave")
        if not self.quantile < 1.0:
            raise QueryError(f"quantile = {self.quantile!r} is not in (0, 1); 0.9 is a good choice")
        check_grid(self.lower_exponent, self.upper_exponent)
        choice("of", self.of, MAGNITUDES[:-1])

    @property
    def mu(self) -> float:
        """Cost of one release, 1/(2τ²), rounded up."""
        return gaussian_cost(self.noise_multiplier)

    @property
    def edges(self) -> list[float]:
        """Inner edges of the bins; there is one more bin than edges."""
        return grid_edges(self.lower_exponent, self.upper_exponent, self.bins_per_octave)

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers: a record adds K to its bin."""
        bound = 2 ** lattice_bits(num_records, self.noise_multiplier)
        scale = scaled_noise(self.sensitivity, bound, self.noise_multiplier)
        return Lattice(bound, self.sensitivity * bound, scale, len(self.edges) + 1)

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Count the records of each bin."""

        def histogram(tile: Any, theta: jax.Array, *rest: jax.Array) -> jax.Array:
            size, counts = self.magnitudes(kernel, tile, theta, rest)
            position = jnp.sum(size[..., None] >= rest[-1], axis=-1)
            bins = position[..., None] == jnp.arange(rest[-1].size + 1)
            return jnp.sum(jnp.where(counts[..., None], bins, False), axis=-2)

        return histogram

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """Read the quantile off the noisy histogram."""
        chains, edges = len(question.theta), np.asarray(self.edges)
        lattice = self.lattice(question.num_records, np.shape(question.theta)[-1])
        histogram = (
            noised(total(self, question.theta, question.proposal, edges) * lattice.bound, noise[0]) / lattice.bound
        )
        estimate = read_quantile(histogram, edges, self.quantile * question.num_records)
        value = Quantile(estimate, histogram, np.broadcast_to(edges, (chains, len(edges))))
        sd = np.full(chains, lattice.noise_scale / lattice.bound)
        return Answer(value, sd, np.full(chains, self.mu))


def check_grid(lower_exponent: int, upper_exponent: int) -> None:
    """Refuse a grid that is empty, or that floats cannot hold."""
    for name, value in (("lower_exponent", lower_exponent), ("upper_exponent", upper_exponent)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or abs(value) > 300:
            raise QueryError(f"{name} = {value!r} must be a whole number within ±300")
    if not lower_exponent < upper_exponent:
        raise QueryError(
            f"the grid 2^{lower_exponent} to 2^{upper_exponent} is empty; lower_exponent must be below upper_exponent"
        )


def grid_edges(lower_exponent: int, upper_exponent: int, bins_per_octave: float) -> list[float]:
    """Return 2^lower_exponent, …, in equal factors, up to 2^upper_exponent or the first edge beyond it."""
    steps = math.ceil((upper_exponent - lower_exponent) * bins_per_octave - 1e-9)
    return [2.0 ** (lower_exponent + j / bins_per_octave) for j in range(steps + 1)]


def read_quantile(histogram: NDArray[Any], edges: NDArray[Any], target: float) -> NDArray[Any]:
    """Return the upper edge of the bin where the noisy cumulated count first reaches ``target``; the last if none."""
    cumulated = np.cumsum(histogram, axis=-1)[:, : len(edges)]
    reached = cumulated >= target
    first = np.where(reached.any(axis=-1), reached.argmax(axis=-1), len(edges) - 1)
    return np.asarray(edges[first])
