"""The sum of clipped log-likelihood ratios, whose noise the penalty test knows how to correct for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.checks import convert_positive
from dpmcmc.errors import QueryError
from dpmcmc.privacy.gaussian import gaussian_cost
from dpmcmc.queries.base import Answer, Kernel, Noise, Query, Question, Total
from dpmcmc.queries.coordinates import Affine
from dpmcmc.queries.lattice import Lattice, chosen_bits, lattice_bits, scaled_noise
from dpmcmc.queries.release import noised

Bound = Callable[[jax.Array, jax.Array], jax.Array]

# Scale of the noise of a log-ratio of constant sd: fixed, so that noise can be drawn before the bound is known.
CONSTANT_SD_SCALE = 2**38


class RatioNumbers(NamedTuple):
    """The same for a log-ratio: b (0 if the bound is a function), S, K, σS (0 at constant τ), μ (0 at constant σ)."""

    clip: Any
    scale: Any
    bound: Any
    multiple: Any
    mu: Any


class RatioGeometry(NamedTuple):
    """Public numbers of a log-ratio test, one for each chain: γ, K, noise sd σ and cost μ."""

    spacing: jax.Array
    bound: jax.Array
    noise_sd: jax.Array
    mu: jax.Array


@dataclass(frozen=True)
class LogRatio(Query):
    """Sum over records of the clipped log-likelihood ratio, Σ clip_c(ln p(x|θ') − ln p(x|θ)).

    Parameters
    ----------
    bound
        b, for the clip bound c(θ, θ') = b‖θ − θ'‖ of the paper; or any public function c(θ, θ') of two
        parameter vectors, non-negative and symmetric (it is symmetrised: the larger of both orders counts). In
        coordinates θ = m + C z a number means b‖C⁻¹(θ − θ')‖; a function stays one of θ.
    noise_multiplier
        τ: the noise has sd σ = 2τc and costs μ = 1/(2τ²), whatever the move. Give this or ``noise_sd``.
    noise_sd
        σ: the noise has constant sd and costs μ = 2c²/σ², which follows the bound.
    lattice_bits
        For tests: a coarser lattice than the finest that is exact.

    Notes
    -----
    The penalty test, accept with probability min(1, exp(λ + ξ − σ²/2)), is exact for discrete Gaussian ξ on
    γZ if σ² is an integer multiple of γ. Constant τ: m = ⌈cS²/K⌉, γ = m/S², hence σ = Sγ = m/S and
    σ² = γm. Constant σ: γ = m/S² with the integer m = σS, and K = ⌈c/γ⌉ varies.
    """

    bound: float | Bound
    noise_multiplier: float | None = None
    noise_sd: float | None = None
    lattice_bits: int | None = None
    kind: ClassVar[str] = "log_ratio"
    differentiates: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not callable(self.bound):
            convert_positive(self, "bound")
        if (self.noise_multiplier is None) == (self.noise_sd is None):
            raise QueryError(
                "a log-ratio needs exactly one of noise_multiplier (sd follows the bound) and noise_sd (cost follows "
                f"the bound), got noise_multiplier = {self.noise_multiplier!r} and noise_sd = {self.noise_sd!r}"
            )
        convert_positive(self, "noise_multiplier", "noise_sd")
        if self.noise_sd is not None and not 2.0**-20 <= self.noise_sd <= 2.0**14:
            raise QueryError(f"noise_sd = {self.noise_sd:g} is out of [2^-20, 2^14]; useful values are near 2")

    @property
    def mu(self) -> float | None:
        """Cost of one release, 1/(2τ²) rounded up; None at constant sd, where it follows the bound (``geometry``)."""
        return None if self.noise_multiplier is None else gaussian_cost(self.noise_multiplier)

    def sensitivity(self, theta: jax.Array, proposal: jax.Array) -> jax.Array:
        """L2 distance between the sums of neighbouring data sets, 2c(θ, θ')."""
        return 2.0 * self.clip_bound(theta, proposal)

    def lattice(self, num_records: int, dimension: int = 1) -> Lattice:
        """Choose the integers; at constant sd ``bound`` is the largest K that exact sums allow."""
        if self.noise_multiplier is not None:
            bound = 2 ** chosen_bits(self.lattice_bits, num_records, self.noise_multiplier)
            return Lattice(bound, 2.0 * bound, scaled_noise(2.0, bound, self.noise_multiplier), 1)
        bound = 2 ** lattice_bits(num_records, 1.0)
        scale = (
            CONSTANT_SD_SCALE if self.lattice_bits is None else 2 ** chosen_bits(self.lattice_bits, num_records, 1.0)
        )
        return Lattice(bound, 2.0 * bound, scale, 1)

    @property
    def needs_proposal(self) -> bool:
        """A log-ratio is about two parameter vectors."""
        return True

    def numbers(self, num_records: int, dimension: int = 1) -> RatioNumbers:
        """Return what ``geometry`` needs beside the parameters."""
        lattice = self.lattice(num_records)
        scale = float(lattice.noise_scale)
        return RatioNumbers(
            clip=0.0 if callable(self.bound) else self.bound,
            scale=scale,
            bound=float(lattice.bound),
            multiple=0.0 if self.noise_sd is None else max(1.0, float(round(self.noise_sd * scale))),
            mu=0.0 if self.mu is None else self.mu,
        )

    def clip_bound(
        self, theta: jax.Array, proposal: jax.Array, clip: Any = None, coordinates: Affine | None = None
    ) -> jax.Array:
        """c(θ, θ') for vectors or batches of vectors; ``clip`` stands in for the number b."""
        if not callable(self.bound):
            move = proposal - theta if coordinates is None else (proposal - theta) @ coordinates.inverse.T
            return (self.bound if clip is None else clip) * jnp.linalg.norm(move, axis=-1)
        bound = self.bound
        for _ in range(theta.ndim - 1):
            bound = jax.vmap(bound)
        clip = jnp.maximum(bound(theta, proposal), bound(proposal, theta))
        if clip.shape != theta.shape[:-1]:
            raise QueryError(
                f"bound(theta, proposal) has shape {clip.shape[theta.ndim - 1 :]}; it must return one number"
            )
        return jnp.where(clip >= 0.0, clip, jnp.nan)

    def geometry(
        self, theta: jax.Array, proposal: jax.Array, numbers: RatioNumbers, coordinates: Affine | None = None
    ) -> RatioGeometry:
        """Return γ, K, σ and μ for each pair of parameter vectors. Public, plain JAX, float64.

        A bound that is NaN or infinite (a diverged proposal) makes γ NaN, and so the released value: reject it.
        """
        clip = self.clip_bound(theta, proposal, numbers.clip, coordinates).astype(jnp.float64)
        scale = numbers.scale
        if self.noise_sd is None:
            multiple = jnp.ceil(clip * (scale * scale / numbers.bound))
            bound = jnp.full_like(clip, numbers.bound)
            mu = jnp.full_like(clip, numbers.mu)
        else:
            multiple = jnp.full_like(clip, numbers.multiple)
            steps = jnp.ceil(clip * (scale * scale / multiple))
            bound = jnp.where(jnp.isfinite(clip), jnp.minimum(steps, numbers.bound), 0.0)
            mu = (bound / scale) ** 2 * (2.0 + 2.0**-51)  # 2c²/σ², and a unit in the last place for its rounding
        spacing = jnp.where(jnp.isfinite(clip), multiple / scale / scale, jnp.nan)
        return RatioGeometry(spacing, bound, multiple / scale, mu)

    def public(self, theta: Any, proposal: Any, numbers: Any, coordinates: Affine | None = None) -> RatioGeometry:
        """γ, K, σ and μ of each chain's move."""
        return self.geometry(jnp.asarray(theta), jnp.asarray(proposal), numbers, coordinates)

    def cost(self, public: Any, num_chains: int) -> Fraction:
        """Add up the chains' costs, which follow the bound at constant σ."""
        return sum(map(Fraction, np.asarray(public.mu).tolist()), Fraction(0))

    def tile_sum(self, kernel: Kernel) -> Callable[..., Any]:
        """Sum the clipped log-ratios."""
        return kernel.ratio_sum

    def release(self, total: Total, question: Question, noise: Noise) -> Answer:
        """γ × (integers + noise)."""
        secret = total(self, question.theta, question.proposal, question.public.spacing, question.public.bound)
        return Answer(
            question.public.spacing * noised(secret, noise[0][:, 0]), question.public.noise_sd, question.public.mu
        )
