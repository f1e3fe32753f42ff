"""The clipped score sum together with the second-moment matrix of the scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.checks import convert_positive
from dpmcmc.privacy.exact import rounded_up
from dpmcmc.privacy.gaussian import gaussian_cost
from dpmcmc.queries.base import Answer, Kernel, Noise, Query, Question, Total
from dpmcmc.queries.gradient import Gradient
from dpmcmc.queries.lattice import Lattice, lattice_bits, scaled_noise
from dpmcmc.queries.release import noised


class Moments(NamedTuple):
    """Answer to a ScoreMoments query: noisy score sum and noisy centred second-moment matrix."""

    score_sum: Any
    second_moment: Any


@dataclass(frozen=True)
class ScoreMoments(Query):
    """Clipped score sum g̃, then the second-moment matrix of clipped scores centred by the released mean g̃/n.

    With u_x = clip_C(∇ ln p(x|θ) − g̃/n), the matrix Σ u_x u_xᵀ changes by at most √2·C² in Frobenius norm
    when one record is replaced: ‖uuᵀ − u'u'ᵀ‖² = ‖u‖⁴ + ‖u'‖⁴ − 2(uᵀu')² ≤ 2C⁴. Its upper triangle is
    released (and mirrored): with noise of sd √2·C²·τ on the diagonal and C²·τ off it.

    Parameters
    ----------
    l2_clip_norm
        C, for both parts.
    noise_multiplier
        τ of the sum: cost 1/(2τ²).
    matrix_noise_multiplier
        τ of the matrix: cost 1/(2τ²).
    """

    l2_clip_norm: float
    noise_multiplier: float
    matrix_noise_multiplier: float
    kind: ClassVar[str] = "score_moments"

    def __post_init__(self) -> None:
        convert_positive(self, "l2_clip_norm", "noise_multiplier", "matrix_noise_multiplier")

    @property
    def mu(self) -> float:
        """Cost of both releases together, rounded up."""
        costs = (gaussian_cost(self.noise_multiplier), gaussian_cost(self.matrix_noise_multiplier))
        return rounded_up(sum(map(Fraction, costs), Fraction(0)))

    @property
    def sensitivity(self) -> tuple[float, float]:
        """Of the sum, 2C, and of the matrix, √2·C²."""
        return 2.0 * self.l2_clip_norm, math.sqrt(2.0) * self.l2_clip_norm**2

    @property
    def sum_query(self) -> Gradient:
        """The first part as a query of its own."""
        return Gradient(self.l2_clip_norm, self.noise_multiplier)

    def vector_bits(self, num_records: int) -> int:
        """k of the centred vectors: the matrix then has K = 2^(2k)."""
        return lattice_bits(num_records, self.matrix_noise_multiplier) // 2

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers of the matrix's diagonal."""
        bound = 4 ** self.vector_bits(num_records)
        scale = scaled_noise(math.sqrt(2.0), bound, self.matrix_noise_multiplier)
        return Lattice(bound, math.sqrt(2.0) * bound, scale, dimension)

    def lattices(self, num_records: int, dimension: int) -> list[Lattice]:
        """Return those of the diagonal, of the entries above it, and of the sum.

        An entry off the diagonal stands twice in the Frobenius norm, so that noise of S/√2 on it costs what S costs on
        the diagonal: Σ Δ_ii²/S² + Σ_{i<j} Δ_ij²/(S/√2)² = ‖Δ‖²/S².
        """
        diagonal = self.lattice(num_records, dimension)
        above = diagonal._replace(
            noise_scale=scaled_noise(1.0, diagonal.bound, self.matrix_noise_multiplier),
            numbers=dimension * (dimension - 1) // 2,
        )
        return [diagonal, above, self.sum_query.lattice(num_records, dimension)]

    def numbers(self, num_records: int, dimension: int) -> Any:
        """Return those of the sum."""
        return self.sum_query.numbers(num_records, dimension)

    def width(self, dimension: int) -> int:
        """A vector of d numbers."""
        return dimension

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Sum the outer products of the clipped, centred scores."""

        def second_moment(
            tile: Any, theta: jax.Array, center: jax.Array, spacing: jax.Array, bound: jax.Array
        ) -> jax.Array:
            vectors = kernel.clipped(tile, lambda: kernel.scores(tile, theta) - center[:, :, None], spacing, bound)
            return outer_products(vectors)

        return second_moment

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """Release the sum first, and centre the scores by what was released."""
        chains, dimension = np.shape(question.theta)
        first = self.sum_query.release(total, question, noise[2:])
        bound = 2.0 ** self.vector_bits(question.num_records)
        spacing = self.l2_clip_norm / bound
        matrix = total(self, question.theta, None, first.value / question.num_records, spacing, bound)
        scales = [lattice.noise_scale for lattice in self.lattices(question.num_records, dimension)[:2]]
        noise_sd = spacing**2 * np.where(np.eye(dimension, dtype=bool), *scales)
        return Answer(
            Moments(first.value, spacing**2 * add_symmetric(matrix, noise[0], noise[1])),
            Moments(first.noise_sd, np.broadcast_to(noise_sd, (chains, dimension, dimension))),
            np.full(chains, self.mu),
        )


def outer_products(vectors: jax.Array) -> jax.Array:
    """Σ over rows of uuᵀ, for integers u (chains × d × B): exact in float64, since |u_i u_j| ≤ ‖u‖² ≤ 2^40."""
    whole = vectors.astype(jnp.float64)
    return jax.lax.dot_general(whole, whole, (((2,), (2,)), ((0,), (0,))))


def add_symmetric(matrix: Any, on_diagonal: Any, above: Any) -> NDArray[np.int64]:
    """Add one draw of noise to each entry of the diagonal and above it, and mirror it."""
    noisy = np.zeros(matrix.shape, np.int64)
    place = np.arange(matrix.shape[-1])
    noisy[:, place, place] = noised(matrix[:, place, place], on_diagonal)
    row, column = np.triu_indices(matrix.shape[-1], 1)
    noisy[:, row, column] = noised(matrix[:, row, column], above)
    noisy[:, column, row] = noisy[:, row, column]
    return noisy
