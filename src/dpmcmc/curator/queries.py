"""The questions that may be asked of the records. Each carries its sensitivity, its cost and its noise.

Every query is a sum over records of integer vectors on a lattice γZ, bounded by an integer K, plus discrete
Gaussian noise of integer scale S on the same lattice. Sensitivities are those of replacing one record.
Nothing here sees a record: a query is public, and so is all that it computes.

Why integers: Gaussian noise in floating point is not private (Mironov 2012). A sum of bounded integers is
exact in any order, so its sensitivity is exactly what is stated here, and the noise is exact too. N released
numbers then obey the Gaussian formula with ε raised by at most (12 + Δ/S)·N/S and δ by N·1e-31; the curator
charges both. (Add a uniform dither on [−½, ½] to discrete Gaussian noise: at a distance x from the centre its
density is within e^{±x/(2S²)} of the Gaussian's, x ≤ 12 S but for a probability of 1e-32 around one neighbour's
sum and hence x ≤ 12 S + Δ around the other's; rounding the dither off again is post-processing.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from dpmcmc.checks import choice, convert_count, convert_positive
from dpmcmc.curator.batches import largest_size, num_draws
from dpmcmc.curator.noise import MAX_NOISE_SCALE
from dpmcmc.errors import QueryError
from dpmcmc.privacy.exact import rounded_up
from dpmcmc.privacy.gaussian import gaussian_cost

Bound = Callable[[jax.Array, jax.Array], jax.Array]
Magnitude = Literal["gradient", "log_ratio"]
Sampling = Literal["without_replacement", "poisson"]

# Rows are processed in tiles of at most this many, so that |sum of a tile| ≤ 2^13 · 2^40 = 2^53 is exact
# in float64; tiles are added in int64.
MAX_TILE_ROWS = 2**13
MAX_LATTICE_BITS = 40
# Scale of the noise of a log-ratio of constant sd: fixed, so that noise can be drawn before the bound is known.
CONSTANT_SD_SCALE = 2**38


def lattice_bits(num_records: int, noise_multiplier: float) -> int:
    """Choose k, where K = 2^k bounds one record's integers: as fine as exact int64 arithmetic allows.

    n·K ≤ 2^61 keeps the sum exact, and S = 2Kτ ≤ 2^58 keeps the noise from overflowing.
    """
    room_for_sum = 61 - math.ceil(math.log2(max(2, num_records)))
    room_for_noise = 56 - max(0, math.ceil(math.log2(noise_multiplier)))
    bits = min(MAX_LATTICE_BITS, room_for_sum, room_for_noise)
    if bits < 8:
        raise QueryError(
            f"noise_multiplier = {noise_multiplier:g} is too large for exact arithmetic with {num_records} records; "
            "lower it"
        )
    return bits


class Lattice(NamedTuple):
    """The integers of one query: K bounds a record's norm, ``sensitivity`` the sum's, S scales the noise."""

    bound: int
    sensitivity: float
    noise_scale: int
    numbers: int

    @property
    def lattice_epsilon(self) -> float:
        """Return what discreteness adds to ε."""
        return (12.0 + self.sensitivity / self.noise_scale) * self.numbers / self.noise_scale

    @property
    def lattice_delta(self) -> float:
        """Return what discreteness adds to δ."""
        return 1e-31 * self.numbers


def _chosen_bits(requested: int | None, num_records: int, noise_multiplier: float) -> int:
    """Return the finest exact lattice, or a coarser one that a test asks for."""
    finest = lattice_bits(num_records, noise_multiplier)
    if requested is None:
        return finest
    if isinstance(requested, bool) or not isinstance(requested, int) or not 1 <= requested <= finest:
        raise QueryError(f"lattice_bits = {requested!r} must be a whole number from 1 to {finest}, or None")
    return requested


def _scaled_noise(unit_sensitivity: float, bound: int, noise_multiplier: float) -> int:
    """S = ⌈sensitivity · τ⌉, never below it: the factor covers the rounding of √2 and of the product.

    The result is rounded up to 53 significant bits, so that it is exact as a float.
    """
    scale = math.ceil(unit_sensitivity * bound * noise_multiplier * (1.0 + 2.0**-50))
    if scale > MAX_NOISE_SCALE:
        raise QueryError(f"noise_multiplier = {noise_multiplier:g} is too large for exact arithmetic; lower it")
    step = 1 << max(0, scale.bit_length() - 52)
    return -(-scale // step) * step


@dataclass(frozen=True)
class Gradient:
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
        bound = 2 ** _chosen_bits(self.lattice_bits, num_records, self.noise_multiplier)
        return Lattice(bound, 2.0 * bound, _scaled_noise(2.0, bound, self.noise_multiplier), dimension)

    def spacing(self, lattice: Lattice) -> float:
        """γ = C/K."""
        return self.l2_clip_norm / lattice.bound


@dataclass(frozen=True)
class BatchGradient:
    """Sum over a secret random batch of the clipped gradient, with noise of sd C·noise_ratio per coordinate.

    Accounted for by the subsampled Gaussian (``dpmcmc.privacy.subsampled_steps``), not by μ.

    Parameters
    ----------
    l2_clip_norm
        C. Sensitivity 2C if the replaced record is in the batch.
    noise_ratio
        Noise sd on the batch sum / C.
    batch_size
        b, the (expected) number of records in a batch; each record is in it with probability b/n.
    sampling
        "without_replacement" or "poisson".
    """

    l2_clip_norm: float
    noise_ratio: float
    batch_size: int
    sampling: Sampling = "without_replacement"
    kind: ClassVar[str] = "batch_gradient"

    def __post_init__(self) -> None:
        convert_positive(self, "l2_clip_norm", "noise_ratio")
        convert_count(self, "batch_size")
        choice("sampling", self.sampling, ("without_replacement", "poisson"))

    def rows(self, num_records: int) -> int:
        """Return how many rows are looked up to make a batch."""
        return num_draws(num_records, largest_size(num_records, self.batch_size, self.sampling))

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers, such that a whole batch adds up exactly in float64."""
        rows = self.rows(num_records)
        bound = 2 ** min(lattice_bits(rows, max(1.0, self.noise_ratio)), 52 - math.ceil(math.log2(rows)))
        return Lattice(bound, 2.0 * bound, _scaled_noise(1.0, bound, self.noise_ratio), dimension)

    def spacing(self, lattice: Lattice) -> float:
        """γ = C/K."""
        return self.l2_clip_norm / lattice.bound


class GradientNumbers(NamedTuple):
    """A gradient query as compiled code sees it, so that other settings need no other program: γ, K, noise sd."""

    spacing: Any
    bound: Any
    noise_sd: Any

    @classmethod
    def of(cls, query: Gradient | BatchGradient, num_records: int, dimension: int) -> GradientNumbers:
        """Take the numbers from a query."""
        lattice = query.lattice(num_records, dimension)
        spacing = query.spacing(lattice)
        return cls(spacing, float(lattice.bound), spacing * lattice.noise_scale)


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
class LogRatio:
    """Sum over records of the clipped log-likelihood ratio, Σ clip_c(ln p(x|θ') − ln p(x|θ)).

    Parameters
    ----------
    bound
        b, for the clip bound c(θ, θ') = b‖θ − θ'‖ of the paper; or any public function c(θ, θ') of two
        parameter vectors, non-negative and symmetric (it is symmetrised: the larger of both orders counts).
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
            bound = 2 ** _chosen_bits(self.lattice_bits, num_records, self.noise_multiplier)
            return Lattice(bound, 2.0 * bound, _scaled_noise(2.0, bound, self.noise_multiplier), 1)
        bound = 2 ** lattice_bits(num_records, 1.0)
        scale = (
            CONSTANT_SD_SCALE if self.lattice_bits is None else 2 ** _chosen_bits(self.lattice_bits, num_records, 1.0)
        )
        return Lattice(bound, 2.0 * bound, scale, 1)

    def numbers(self, lattice: Lattice) -> RatioNumbers:
        """Return what ``geometry`` needs beside the parameters, as plain numbers."""
        scale = float(lattice.noise_scale)
        return RatioNumbers(
            clip=0.0 if callable(self.bound) else self.bound,
            scale=scale,
            bound=float(lattice.bound),
            multiple=0.0 if self.noise_sd is None else max(1.0, float(round(self.noise_sd * scale))),
            mu=0.0 if self.mu is None else self.mu,
        )

    def clip_bound(self, theta: jax.Array, proposal: jax.Array, clip: Any = None) -> jax.Array:
        """c(θ, θ') for vectors or batches of vectors; ``clip`` stands in for the number b."""
        if not callable(self.bound):
            return (self.bound if clip is None else clip) * jnp.linalg.norm(proposal - theta, axis=-1)
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
        self, theta: jax.Array, proposal: jax.Array, lattice: Lattice, numbers: RatioNumbers | None = None
    ) -> RatioGeometry:
        """Return γ, K, σ and μ for each pair of parameter vectors. Public, plain JAX, float64.

        A bound that is NaN or infinite (a diverged proposal) makes γ NaN, and so the released value: reject it.
        """
        numbers = self.numbers(lattice) if numbers is None else numbers
        clip = self.clip_bound(theta, proposal, numbers.clip).astype(jnp.float64)
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


@dataclass(frozen=True)
class NormQuantile:
    """Quantile of the per-record norms of the gradient (or of |log-ratio|s), from a noisy log₂ histogram.

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
        How many bins a factor of 2 is split into.
    of
        "gradient" or "log_ratio" (then the question takes a proposal).
    """

    quantile: float
    noise_multiplier: float
    lower_exponent: int = -16
    upper_exponent: int = 16
    bins_per_octave: int = 1
    of: Magnitude = "gradient"
    kind: ClassVar[str] = "quantile"
    sensitivity: ClassVar[float] = math.sqrt(2.0)

    def __post_init__(self) -> None:
        convert_positive(self, "quantile", "noise_multiplier")
        if not self.quantile < 1.0:
            raise QueryError(f"quantile = {self.quantile!r} is not in (0, 1); 0.9 is a good choice")
        if not self.lower_exponent < self.upper_exponent or self.bins_per_octave < 1:
            raise QueryError(
                f"the grid 2^{self.lower_exponent} to 2^{self.upper_exponent} with {self.bins_per_octave} bins per "
                "octave is empty; lower_exponent must be below upper_exponent and bins_per_octave at least 1"
            )
        if max(abs(self.lower_exponent), abs(self.upper_exponent)) > 300:
            raise QueryError("lower_exponent and upper_exponent must lie within ±300")
        choice("of", self.of, ("gradient", "log_ratio"))

    @property
    def mu(self) -> float:
        """Cost of one release, 1/(2τ²), rounded up."""
        return gaussian_cost(self.noise_multiplier)

    @property
    def edges(self) -> list[float]:
        """Inner edges of the bins; there is one more bin than edges."""
        steps = (self.upper_exponent - self.lower_exponent) * self.bins_per_octave
        return [2.0 ** (self.lower_exponent + j / self.bins_per_octave) for j in range(steps + 1)]

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers: a record adds K to its bin."""
        bound = 2 ** lattice_bits(num_records, self.noise_multiplier)
        scale = _scaled_noise(self.sensitivity, bound, self.noise_multiplier)
        return Lattice(bound, self.sensitivity * bound, scale, len(self.edges) + 1)


@dataclass(frozen=True)
class ScoreMoments:
    """Clipped score sum g̃, then the second-moment matrix of clipped scores centred by the released mean g̃/n.

    With u_x = clip_C(∇ ln p(x|θ) − g̃/n), the matrix Σ u_x u_xᵀ changes by at most √2·C² in Frobenius norm
    when one record is replaced: ‖uuᵀ − u'u'ᵀ‖² = ‖u‖⁴ + ‖u'‖⁴ − 2(uᵀu')² ≤ 2C⁴. Its upper triangle is
    released (and mirrored), each entry with noise of sd √2·C²·τ.

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
        """Choose the integers of the matrix."""
        bound = 4 ** self.vector_bits(num_records)
        scale = _scaled_noise(math.sqrt(2.0), bound, self.matrix_noise_multiplier)
        return Lattice(bound, math.sqrt(2.0) * bound, scale, dimension * (dimension + 1) // 2)


@dataclass(frozen=True)
class ClipCount:
    """Noisy number of records whose gradient norm (or |log-ratio|) exceeds a threshold. Sensitivity 1.

    Parameters
    ----------
    threshold
        Usually the clip bound in use.
    noise_sd
        Sd of the noise, in records. Cost μ = 1/(2·noise_sd²): nearly free at 500.
    of
        "gradient" or "log_ratio" (then the question takes a proposal).
    """

    threshold: float
    noise_sd: float
    of: Magnitude = "gradient"
    kind: ClassVar[str] = "clip_count"
    sensitivity: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        convert_positive(self, "threshold", "noise_sd")
        choice("of", self.of, ("gradient", "log_ratio"))

    @property
    def mu(self) -> float:
        """Cost of one release, rounded up."""
        return gaussian_cost(self.noise_sd)

    def lattice(self, num_records: int, dimension: int) -> Lattice:
        """Choose the integers: a record above the threshold adds K."""
        bound = 2 ** lattice_bits(num_records, self.noise_sd)
        return Lattice(bound, float(bound), _scaled_noise(1.0, bound, self.noise_sd), 1)


@dataclass(frozen=True)
class InvalidCount:
    """Noisy number of records that count as nothing at θ: their log-likelihood is not finite.

    A record counts 0 or 1, so that replacing one changes the number by at most 1: sensitivity 1.

    Parameters
    ----------
    noise_sd
        Sd of the noise, in records. Cost μ = 1/(2·noise_sd²).
    """

    noise_sd: float
    kind: ClassVar[str] = "invalid_count"
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
        return Lattice(bound, float(bound), _scaled_noise(1.0, bound, self.noise_sd), 1)


Query = Gradient | LogRatio | NormQuantile | ScoreMoments | ClipCount | InvalidCount
