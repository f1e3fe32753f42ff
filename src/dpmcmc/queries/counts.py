"""Noisy counts of records: those above a threshold, and those that count as nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.checks import choice, convert_positive
from dpmcmc.errors import QueryError
from dpmcmc.privacy.gaussian import gaussian_cost
from dpmcmc.queries.base import Answer, Kernel, Noise, Query, Question, Requirement, Total
from dpmcmc.queries.curvature import check_majorise
from dpmcmc.queries.lattice import Lattice, lattice_bits, scaled_noise
from dpmcmc.queries.quantile import MAGNITUDES, Magnitude, OfMagnitudes
from dpmcmc.queries.release import noised


@dataclass(frozen=True)
class ClipCount(OfMagnitudes):
    """Noisy number of records whose gradient norm (or another size) exceeds a threshold. Sensitivity 1.

    Parameters
    ----------
    threshold
        Usually the clip bound in use.
    noise_sd
        Sd of the noise, in records. Cost μ = 1/(2·noise_sd²): nearly free at 500.
    of
        Of what: "gradient", "log_ratio" (then the question takes a proposal), "score_bound", "curvature" or
        "information", see :data:`~dpmcmc.queries.quantile.Magnitude`.
    majorise, weight_bound
        For "information": as in :class:`~dpmcmc.queries.FisherInformation`.
    """

    threshold: float
    noise_sd: float
    of: Magnitude = "gradient"
    majorise: float = 0.0
    weight_bound: float | None = None
    kind: ClassVar[str] = "clip_count"
    sensitivity: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        convert_positive(self, "threshold", "noise_sd", "weight_bound")
        choice("of", self.of, MAGNITUDES)
        check_majorise(self)
        if self.of != "information" and (self.majorise or self.weight_bound is not None):
            raise QueryError('majorise and weight_bound belong to counts of "information"; leave them out')

    @property
    def mu(self) -> float:
        """Cost of one release, rounded up."""
        return gaussian_cost(self.noise_sd)

    @property
    def requires(self) -> Requirement:
        """Regressions have an information; its weights, and a bound that no outcome exceeds, only logistic ones."""
        if self.of == "information":
            return "regression" if self.weight_bound is None else "logistic"
        return super().requires

    @property
    def structure(self) -> Hashable:
        """What is computed of a record."""
        return self.of, self.weight_bound is None

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers: a record above the threshold adds K."""
        bound = 2 ** lattice_bits(num_records, self.noise_sd)
        return Lattice(bound, float(bound), scaled_noise(1.0, bound, self.noise_sd), 1)

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Count the records above the threshold."""

        def count(tile: Any, theta: jax.Array, *rest: jax.Array) -> jax.Array:
            if self.of == "information":
                weight_bound = rest[1] if len(rest) > 2 else None
                size, counts = kernel.information_sizes(tile, theta, rest[0], weight_bound)
            else:
                size, counts = self.magnitudes(kernel, tile, theta, rest)
            return jnp.sum(counts & (size > rest[-1]), axis=-1)

        return count

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """Count plus noise."""
        numbers = [number for number in (self.majorise, self.weight_bound) if number is not None]
        public = [*(numbers if self.of == "information" else []), self.threshold]
        return _noised_count(self, total(self, question.theta, question.proposal, *public), noise, question.num_records)


@dataclass(frozen=True)
class InvalidCount(Query):
    """Noisy number of records that count as nothing at θ: their log-likelihood is not finite.

    A record counts 0 or 1, so that replacing one changes the number by at most 1: sensitivity 1.

    Parameters
    ----------
    noise_sd
        Sd of the noise, in records. Cost μ = 1/(2·noise_sd²).
    """

    noise_sd: float
    kind: ClassVar[str] = "invalid_count"
    differentiates: ClassVar[bool] = False
    sensitivity: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        convert_positive(self, "noise_sd")

    @property
    def mu(self) -> float:
        """Cost of one release, rounded up."""
        return gaussian_cost(self.noise_sd)

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers: a record that counts as nothing adds K."""
        bound = 2 ** lattice_bits(num_records, self.noise_sd)
        return Lattice(bound, float(bound), scaled_noise(1.0, bound, self.noise_sd), 1)

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Count the records without a finite log-likelihood."""

        def invalid(tile: Any, theta: jax.Array) -> jax.Array:
            return jnp.sum(tile.real & ~jnp.isfinite(kernel.log_likelihood(tile, theta)), axis=-1)

        return invalid

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """Count plus noise."""
        return _noised_count(self, total(self, question.theta, None), noise, question.num_records)


def _noised_count(query: ClipCount | InvalidCount, counts: Any, noise: Noise, num_records: int) -> Answer:
    lattice, chains = query.lattice(num_records, 1), len(counts)
    value = noised(counts * lattice.bound, noise[0][:, 0]) / lattice.bound
    return Answer(value, np.full(chains, lattice.noise_scale / lattice.bound), np.full(chains, query.mu))
