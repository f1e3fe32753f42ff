"""Sums of gradients over all records: clipped, or weighted so that nothing is clipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.checks import convert_positive
from dpmcmc.privacy.gaussian import gaussian_cost
from dpmcmc.queries.base import Answer, Kernel, Noise, Query, Question, Requirement, Total
from dpmcmc.queries.lattice import Lattice, chosen_bits, lattice_bits, scaled_noise
from dpmcmc.queries.release import noised


class GradientNumbers(NamedTuple):
    """A gradient query as compiled code sees it, so that other settings need no other program: γ, K, noise sd."""

    spacing: Any
    bound: Any
    noise_sd: Any

    @classmethod
    def of(cls, query: Any, num_records: int, dimension: int) -> GradientNumbers:
        """Take the numbers from a query."""
        lattice = query.lattice(num_records, dimension)
        spacing = query.spacing(lattice)
        return cls(spacing, float(lattice.bound), spacing * lattice.noise_scale)


@dataclass(frozen=True)
class Gradient(Query):
    """Sum over records of the clipped gradient, Σ clip_C(∇ ln p(x|θ)), with noise of sd 2Cτ per coordinate.

    Parameters
    ----------
    l2_clip_norm
        C: the largest norm of one record's gradient. Sensitivity 2C.
    noise_multiplier
        τ = noise sd / sensitivity. Cost μ = 1/(2τ²) for each chain.
    lattice_bits
        For tests: a coarser lattice than the finest that is exact. Leave it alone otherwise.
    """

    l2_clip_norm: float
    noise_multiplier: float
    lattice_bits: int | None = None
    kind: ClassVar[str] = "gradient"

    def __post_init__(self) -> None:
        convert_positive(self, "l2_clip_norm", "noise_multiplier")

    @property
    def sensitivity(self) -> float:
        """L2 distance between the sums of neighbouring data sets: 2C."""
        return 2.0 * self.l2_clip_norm

    @property
    def mu(self) -> float:
        """Cost of one release, 1/(2τ²), rounded up."""
        return gaussian_cost(self.noise_multiplier)

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers."""
        bound = 2 ** chosen_bits(self.lattice_bits, num_records, self.noise_multiplier)
        return Lattice(bound, 2.0 * bound, scaled_noise(2.0, bound, self.noise_multiplier), dimension)

    def spacing(self, lattice: Lattice) -> float:
        """γ = C/K."""
        return self.l2_clip_norm / lattice.bound

    def numbers(self, num_records: int, dimension: int) -> GradientNumbers:
        """γ, K and the noise's sd."""
        return GradientNumbers.of(self, num_records, dimension)

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Sum the clipped gradients."""
        return kernel.gradient_sum

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """γ × (integers + noise)."""
        value = question.public.spacing * noised(
            total(self, question.theta, None, question.public.spacing, question.public.bound), noise[0]
        )
        return Answer(
            value, question.public.noise_sd * np.ones(len(question.theta)), np.full(len(question.theta), self.mu)
        )


@dataclass(frozen=True)
class WeightedGradient(Query):
    """Sum over records of the weighted gradient of a logistic regression, Σ w_x·∇ ln p(x|θ), with noise of sd 2cτ.

    With p = P(y = 1) and the design row r (in the question's coordinates), w = min(1, c/(max(p, 1 − p)·‖r‖)). The
    gradient (y − p)·r has a norm of at most max(p, 1 − p)·‖r‖ whatever y is, so that nothing is ever clipped; and the
    weight does not depend on y, so that the weighted gradient has mean 0 at the true parameters, given the features:
    p·w·(1 − p)·r + (1 − p)·w·(−p)·r = 0. Clipping shifts a posterior; this does not.

    Parameters
    ----------
    l2_clip_norm
        c: the largest norm of one record's weighted gradient. Sensitivity 2c (checked on the integers all the same).
    noise_multiplier
        τ = noise sd / sensitivity. Cost μ = 1/(2τ²) for each chain.
    """

    l2_clip_norm: float
    noise_multiplier: float
    kind: ClassVar[str] = "weighted_gradient"

    def __post_init__(self) -> None:
        convert_positive(self, "l2_clip_norm", "noise_multiplier")

    @property
    def sensitivity(self) -> float:
        """L2 distance between the sums of neighbouring data sets: 2c."""
        return 2.0 * self.l2_clip_norm

    @property
    def requires(self) -> Requirement:
        """Only logistic regression has a bound that no outcome exceeds."""
        return "logistic"

    @property
    def mu(self) -> float:
        """Cost of one release, 1/(2τ²), rounded up."""
        return gaussian_cost(self.noise_multiplier)

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers."""
        bound = 2 ** lattice_bits(num_records, self.noise_multiplier)
        return Lattice(bound, 2.0 * bound, scaled_noise(2.0, bound, self.noise_multiplier), dimension)

    def width(self, dimension: int) -> int:
        """A gradient."""
        return dimension

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Sum the weighted gradients."""

        def weighted(tile: Any, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> jax.Array:
            def scores() -> jax.Array:
                return kernel.weighted_scores(tile, theta, spacing * bound)

            return jnp.sum(kernel.clipped(tile, scores, spacing, bound), axis=-1)

        return weighted

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """γ × (integers + noise)."""
        lattice = self.lattice(question.num_records, np.shape(question.theta)[-1])
        spacing, chains = self.l2_clip_norm / lattice.bound, len(question.theta)
        value = spacing * noised(total(self, question.theta, None, spacing, float(lattice.bound)), noise[0])
        return Answer(value, np.full(chains, spacing * lattice.noise_scale), np.full(chains, self.mu))
