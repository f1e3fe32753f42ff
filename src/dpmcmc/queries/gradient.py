"""Sums of clipped gradients: over all records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dpmcmc.checks import convert_positive
from dpmcmc.privacy.gaussian import gaussian_cost
from dpmcmc.queries.base import Answer, Kernel, Noise, Query, Question, Total
from dpmcmc.queries.lattice import Lattice, chosen_bits, scaled_noise
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
