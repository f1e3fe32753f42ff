"""Sums of the records' curvatures: minus the second derivatives as they are, or the information, which is positive."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.checks import convert_positive
from dpmcmc.errors import QueryError
from dpmcmc.privacy.gaussian import gaussian_cost
from dpmcmc.queries.base import Answer, Kernel, Noise, Query, Question, Requirement, Total
from dpmcmc.queries.lattice import Lattice, lattice_bits, scaled_noise
from dpmcmc.queries.moments import add_symmetric, outer_products


class SymmetricMatrix(Query):
    """What queries of one symmetric matrix have in common: noise S on the diagonal, S/√2 above it, and the mirror.

    An entry off the diagonal stands twice in the Frobenius norm, so that noise of S/√2 on it costs what S costs on the
    diagonal: Σ Δ_ii²/S² + Σ_{i<j} Δ_ij²/(S/√2)² = ‖Δ‖²/S².
    """

    noise_multiplier: float

    @property
    def mu(self) -> float:
        """Cost of one release, 1/(2τ²), rounded up."""
        return gaussian_cost(self.noise_multiplier)

    def lattices(self, num_records: int, dimension: int) -> list[Lattice]:
        """Return those of the diagonal and of the entries above it."""
        diagonal = self.lattice(num_records, dimension)
        unit_sensitivity = diagonal.sensitivity / diagonal.bound / math.sqrt(2.0)
        scale = scaled_noise(unit_sensitivity, diagonal.bound, self.noise_multiplier)
        return [diagonal, diagonal._replace(noise_scale=scale, numbers=dimension * (dimension - 1) // 2)]

    def release_matrix(self, matrix: Any, spacing: float, question: Question, noise: Noise) -> Answer:
        """γ × (integers + noise), mirrored."""
        chains, dimension = np.shape(question.theta)
        scales = [lattice.noise_scale for lattice in self.lattices(question.num_records, dimension)]
        noise_sd = spacing * np.where(np.eye(dimension, dtype=bool), *scales)
        return Answer(
            spacing * add_symmetric(matrix, noise[0], noise[1]),
            np.broadcast_to(noise_sd, (chains, dimension, dimension)),
            np.full(chains, self.mu),
        )


@dataclass(frozen=True)
class Curvature(SymmetricMatrix):
    """Sum over records of the clipped curvature, Σ clip_b(−∂² ln p(x|θ)/∂θ∂θᵀ): minus the Hessian of the likelihood.

    A record's matrix is clipped to a Frobenius norm of at most b, so that the sum has sensitivity 2b. Its upper
    triangle is released (and mirrored): with noise of sd 2bτ on the diagonal and √2·bτ off it.

    The package's regressions have it in closed form. Of any other model the second derivatives are traced, and checked
    like the gradient (:mod:`dpmcmc.models.allowed`), when they are first asked for.

    Parameters
    ----------
    frobenius_bound
        b: the largest Frobenius norm of one record's matrix.
    noise_multiplier
        τ. Cost μ = 1/(2τ²) for each chain.
    """

    frobenius_bound: float
    noise_multiplier: float
    kind: ClassVar[str] = "curvature"

    def __post_init__(self) -> None:
        convert_positive(self, "frobenius_bound", "noise_multiplier")

    @property
    def sensitivity(self) -> float:
        """Frobenius distance between the sums of neighbouring data sets: 2b."""
        return 2.0 * self.frobenius_bound

    @property
    def differentiates_twice(self) -> bool:
        """Always."""
        return True

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers of the diagonal."""
        bound = 2 ** lattice_bits(num_records, self.noise_multiplier)
        return Lattice(bound, 2.0 * bound, scaled_noise(2.0, bound, self.noise_multiplier), dimension)

    def width(self, dimension: int) -> int:
        """A triangle."""
        return dimension * (dimension + 1) // 2

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Sum the clipped triangles, as matrices with zeros below the diagonal."""

        def curvature(tile: Any, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> jax.Array:
            place = np.triu_indices(theta.shape[-1])
            # An entry off the diagonal stands twice in the norm.
            weights = np.where(place[0] == place[1], 1.0, 2.0)
            whole = kernel.clipped(tile, lambda: kernel.curvatures(tile, theta), spacing, bound, weights)
            matrix = jnp.zeros((len(theta), *(theta.shape[-1:] * 2)), jnp.int64)
            return matrix.at[:, *place].set(jnp.sum(whole, axis=-1))

        return curvature

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """γ × (integers + noise)."""
        bound = float(self.lattice(question.num_records, 1).bound)
        spacing = self.frobenius_bound / bound
        return self.release_matrix(total(self, question.theta, None, spacing, bound), spacing, question, noise)


@dataclass(frozen=True)
class FisherInformation(SymmetricMatrix):
    """Sum over records of the clipped expected information: positive semi-definite (before noise), whatever happened.

    Of a regression, with the design row w and the direction e of the extra parameter s (both in the question's
    coordinates): Σ uuᵀ + ttᵀ with u = √v·w and t = √v_e·e, where v is the expected information about the linear
    predictor η and v_e that about s (of the negative binomial: the squared score, whose mean it is). Both vectors are
    clipped together to ‖u‖² + ‖t‖² ≤ C², so that a record adds a positive semi-definite matrix A of Frobenius norm at
    most trace A = ‖u‖² + ‖t‖² ≤ C². The inner product of two such matrices, trace AB, is not negative; hence
    ‖A − B‖² = ‖A‖² + ‖B‖² − 2·trace AB ≤ 2C⁴: sensitivity √2·C². The upper triangle is released (and mirrored), with
    noise of sd √2·C²·τ on the diagonal and C²·τ off it.

    Parameters
    ----------
    l2_clip_norm
        C.
    noise_multiplier
        τ. Cost μ = 1/(2τ²) for each chain.
    majorise
        f: v is at least f·|∂ℓ/∂η| (but for a linear regression, whose likelihood is quadratic in η), and v_e at least
        f·|∂ℓ/∂s|: a trust region, for steps from far away.
    weight_bound
        c, for logistic regression: v is multiplied by the weights of :class:`WeightedGradient`,
        min(1, c/(max(p, 1 − p)·‖w‖)).
    """

    l2_clip_norm: float
    noise_multiplier: float
    majorise: float = 0.0
    weight_bound: float | None = None
    kind: ClassVar[str] = "fisher_information"

    def __post_init__(self) -> None:
        convert_positive(self, "l2_clip_norm", "noise_multiplier", "weight_bound")
        check_majorise(self)

    @property
    def requires(self) -> Requirement:
        """A family that knows its information; the weights are those of logistic regression."""
        return "regression" if self.weight_bound is None else "logistic"

    @property
    def structure(self) -> Hashable:
        """Whether records are weighted."""
        return self.weight_bound is None

    @property
    def sensitivity(self) -> float:
        """Frobenius distance between the sums of neighbouring data sets: √2·C²."""
        return math.sqrt(2.0) * self.l2_clip_norm**2

    def vector_bits(self, num_records: int) -> int:
        """k of the vectors: the matrix then has K = 2^(2k)."""
        return lattice_bits(num_records, self.noise_multiplier) // 2

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers of the diagonal."""
        bound = 4 ** self.vector_bits(num_records)
        scale = scaled_noise(math.sqrt(2.0), bound, self.noise_multiplier)
        return Lattice(bound, math.sqrt(2.0) * bound, scale, dimension)

    def width(self, dimension: int) -> int:
        """Two vectors."""
        return 2 * dimension

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Sum the outer products of the clipped vectors."""

        def information(
            tile: Any,
            theta: jax.Array,
            spacing: jax.Array,
            bound: jax.Array,
            majorise: jax.Array,
            weight_bound: jax.Array | None = None,
        ) -> jax.Array:
            def compute() -> jax.Array:
                return kernel.information_roots(tile, theta, majorise, weight_bound)

            roots = kernel.clipped(tile, compute, spacing, bound)
            # All vectors side by side, whichever record's they are.
            vectors = jnp.moveaxis(roots.reshape(len(theta), -1, theta.shape[-1], roots.shape[-1]), 1, 2)
            return outer_products(vectors.reshape(len(theta), theta.shape[-1], -1))

        return information

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """γ² × (integers + noise)."""
        bound = 2.0 ** self.vector_bits(question.num_records)
        spacing = self.l2_clip_norm / bound
        weights = () if self.weight_bound is None else (self.weight_bound,)
        matrix = total(self, question.theta, None, spacing, bound, self.majorise, *weights)
        return self.release_matrix(matrix, spacing**2, question, noise)


def check_majorise(query: Any) -> None:
    """Turn ``majorise`` into a float, or refuse it."""
    factor = query.majorise
    if isinstance(factor, bool) or not isinstance(factor, int | float | np.number) or not 0 <= factor < math.inf:
        raise QueryError(f"majorise = {factor!r} must be a finite number of at least 0; 1/3 is a good choice")
    object.__setattr__(query, "majorise", float(factor))
