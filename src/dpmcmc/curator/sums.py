"""The clipped per-record sums, in exact integers: the only code that computes with records.

A *kernel* evaluates a model on one tile of rows for all chains at once. The functions below turn per-record
floats into integers with an enforced bound and add them up. A float may be rounded in any way on its road to
the integer: the bound is checked on the integer itself, and a record that fails the check, or that is NaN or
infinite anywhere, contributes exactly 0.

| record's quantity       | contributes                                              |
|-------------------------|----------------------------------------------------------|
| norm ≤ C                | itself, truncated (regressions: rounded) to the lattice  |
| norm > C, finite        | its direction at norm C                                  |
| zero                    | zero                                                     |
| NaN or ±inf anywhere    | zero, and changes no other record's contribution         |
| padding                 | zero                                                     |
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.models import Model, RegressionModel

Tile = dict[str, Any]  # {"rows": the model's records, "real": bool mask, and what a kernel's prepare adds}

# Larger finite values are brought down to this first, so that squares cannot overflow.
_HUGE = 1e120
_UNIT_ROUNDOFF = 2.0**-53
# Bits of a design row's largest entry on its own grid; the rest of the 40 is left to the coefficient.
_DESIGN_BITS = 20
# The closed form needs a lattice much finer than a design row's integers.
_CLOSED_FORM_MIN_BITS = 32


def clip_to_lattice(
    vectors: jax.Array, spacing: jax.Array, bound: jax.Array, real: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Clip vectors (last axis) to norm γK and truncate them to integers of norm ≤ K, exactly.

    Truncation towards zero cannot lengthen a vector. The scaling leaves a margin for its own rounding; the
    final check is on the integers: their squared norm is computed with relative error below (d+2)·2⁻⁵³ and
    compared with K² lowered by twice that, so what passes is within the bound in exact arithmetic.

    Parameters
    ----------
    vectors
        … × d, float64.
    spacing, bound
        γ and K, broadcasting against the leading axes.
    real
        Which rows are records (the rest is padding).

    Returns
    -------
    Integers as float64, and a mask of the rows that count.
    """
    dimension = vectors.shape[-1]
    margin = 4.0 * (dimension + 8) * _UNIT_ROUNDOFF
    finite = jnp.all(jnp.isfinite(vectors), axis=-1)
    scaled = jnp.clip(vectors / spacing[..., None], -_HUGE, _HUGE)
    norm = jnp.sqrt(jnp.sum(scaled * scaled, axis=-1))
    target = bound * (1.0 - 2.0 * margin)
    factor = jnp.where(norm > target, target / norm, 1.0)
    integers = jnp.trunc(scaled * factor[..., None])
    counts = finite & real & (jnp.sum(integers * integers, axis=-1) <= bound * bound * (1.0 - margin))
    return jnp.where(counts[..., None], integers, 0.0), counts


def ratio_to_lattice(ratio: jax.Array, spacing: jax.Array, bound: jax.Array, real: jax.Array) -> jax.Array:
    """Round log-ratios to the nearest integer multiple of γ and clip the integers to ±K.

    ``ratio`` is chains × rows; ``spacing`` and ``bound`` are one number a chain.
    """
    integers = jnp.clip(jnp.rint(ratio / spacing[:, None]), -bound[:, None], bound[:, None])
    counts = jnp.isfinite(ratio) & real & ~jnp.isnan(integers)
    return jnp.where(counts, integers, 0.0)


class Kernel(Protocol):
    """How a model is evaluated on a tile: theta is chains × d, a tile has B rows."""

    def prepare(self, records: Any) -> dict[str, Any]:
        """Compute on the host, once, what depends on one record alone. Leading axis: records."""
        ...

    def log_likelihood(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Return chains × B."""
        ...

    def scores(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Return gradients with respect to theta, chains × B × d."""
        ...

    def gradient_sum(self, tile: Tile, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> jax.Array:
        """Return the sum over the tile of the clipped integer gradients, chains × d, exact in float64."""
        ...


class AutodiffKernel:
    """Any model: reverse-mode differentiation of one record's log-likelihood, mapped over rows and chains."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def prepare(self, records: Any) -> dict[str, Any]:
        """Nothing to prepare."""
        return {}

    def log_likelihood(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Map the model's record log-likelihood."""
        over_rows = jax.vmap(self.model.unconstrained_log_likelihood, in_axes=(None, 0))
        values: jax.Array = jax.vmap(over_rows, in_axes=(0, None))(theta, tile["rows"])
        return values.astype(jnp.float64)

    def scores(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Map its gradient."""
        over_rows = jax.vmap(jax.grad(self.model.unconstrained_log_likelihood), in_axes=(None, 0))
        values: jax.Array = jax.vmap(over_rows, in_axes=(0, None))(theta, tile["rows"])
        return values.astype(jnp.float64)

    def gradient_sum(self, tile: Tile, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> jax.Array:
        """Clip, truncate, add."""
        integers, _ = clip_to_lattice(self.scores(tile, theta), spacing, bound, tile["real"])
        return jnp.sum(integers, axis=-2)


class RegressionKernel:
    """Regression families: the score is residual × design row, so gradients are never materialised.

    Each design row w = (1, x, one-hot) is put on a grid of its own, w ≈ u·z with a power of two u and integers
    |z_j| ≤ 2^20, once. A record's clipped gradient is then a·z with an integer a (and an integer t for the
    scale parameter), bounded by a²‖z‖² + t² ≤ K², and the sum over a tile is a matrix product of integers:
    every partial sum is at most K·B ≤ 2^52, so float64 adds it exactly in any order. Log-likelihoods use the
    features as they are; the grid touches the gradient alone, by at most 2^-20 of the row's largest entry.
    """

    def __init__(self, model: RegressionModel) -> None:
        self.model = model

    def prepare(self, records: Any) -> dict[str, NDArray[Any]]:
        """Return grid ``z`` (features and the constant 1), unit u and norm ‖z‖ for each row; NaN norm: no use."""
        features = np.asarray(records["X"], dtype=np.float64)
        ones = int(self.model.intercept) + int(self.model.num_groups > 0)
        with np.errstate(all="ignore"):
            largest = np.max(np.abs(features), axis=1, initial=1.0 if ones else 0.0)
            usable = np.isfinite(largest)
            largest = np.where(usable & (largest > 0.0), largest, 1.0)
            _, exponent = np.frexp(largest)
            # ldexp by parts: the unit of the smallest numbers would underflow.
            unit = np.ldexp(1.0, np.maximum(exponent - _DESIGN_BITS, -1000))
            grid = np.where(usable[:, None], np.rint(features / unit[:, None]), 0.0)
            one = np.where(usable, np.rint(1.0 / unit), 0.0) if ones else np.zeros_like(unit)
        # Integers up to 2^20: float32 holds them exactly.
        norm = np.sqrt(np.sum(grid * grid, axis=1) + ones * one * one)
        return {
            "z": grid.astype(np.float32),
            "one": one.astype(np.float32),
            "unit": unit,
            "norm": np.where(usable, norm, np.nan),
        }

    def _predict(self, tile: Tile, theta: jax.Array) -> jax.Array:
        rows = tile["rows"]
        group = rows["group"] if self.model.num_groups else None
        eta: jax.Array = jax.vmap(lambda one_theta: self.model.linear_predictor(one_theta, rows["X"], group))(theta)
        return eta

    def _extra(self, theta: jax.Array) -> jax.Array | None:
        if self.model.extra_size == 0:
            return None
        return theta[:, self.model.linear_size : self.model.linear_size + 1]

    def log_likelihood(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Evaluate the family's log-likelihood at the linear predictor."""
        values = self.model.log_likelihood_at(self._predict(tile, theta), tile["rows"]["y"], self._extra(theta))
        return values.astype(jnp.float64)

    def _residuals(self, tile: Tile, theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        residual, extra = self.model.score_at(self._predict(tile, theta), tile["rows"]["y"], self._extra(theta))
        return residual.astype(jnp.float64), (jnp.zeros_like(residual) if extra is None else extra).astype(jnp.float64)

    def scores(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Closed-form scores, materialised: for the rare queries that need them."""
        residual, extra = self._residuals(tile, theta)
        rows = tile["rows"]
        parts = []
        if self.model.intercept:
            parts.append(residual[..., None])
        parts.append(residual[..., None] * rows["X"].astype(jnp.float64))
        if self.model.num_groups:
            parts.append(residual[..., None] * jax.nn.one_hot(rows["group"], self.model.num_groups, dtype=jnp.float64))
        if self.model.extra_size:
            parts.append(extra[..., None])
        scores = jnp.concatenate(parts, axis=-1)
        return jnp.pad(scores, [(0, 0), (0, 0), (0, self.model.dimension - scores.shape[-1])])

    def gradient_sum(self, tile: Tile, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> jax.Array:
        """Integer coefficients by the closed form, then one matrix product."""
        residual, extra = self._residuals(tile, theta)
        finite = jnp.isfinite(residual) & jnp.isfinite(extra) & jnp.isfinite(tile["norm"])
        coefficient = jnp.clip(residual * (tile["unit"] / spacing), -_HUGE, _HUGE)
        scale_part = jnp.clip(extra / spacing, -_HUGE, _HUGE)
        norm = jnp.sqrt((coefficient * tile["norm"]) ** 2 + scale_part**2)
        # Rounding to nearest adds at most (‖z‖ + 1)/2 to the norm: leave room for it.
        target = bound - tile["norm"] - 1.0
        factor = jnp.where(norm > target, target / norm, 1.0)
        coefficient = jnp.rint(coefficient * factor)
        scale_part = jnp.rint(scale_part * factor)
        squared = (coefficient * tile["norm"]) ** 2 + scale_part**2
        # Relative error of `squared` is below 2^-48 (its inputs are integers but for ‖z‖): what passes is within K.
        counts = finite & tile["real"] & (squared <= bound * bound * (1.0 - 2.0**-44))
        coefficient = jnp.where(counts, coefficient, 0.0)
        return self._add_up(tile, coefficient, jnp.where(counts, scale_part, 0.0))

    def _add_up(self, tile: Tile, coefficient: jax.Array, scale_part: jax.Array) -> jax.Array:
        parts = []
        constant = coefficient * tile["one"]
        if self.model.intercept:
            parts.append(jnp.sum(constant, axis=-1, keepdims=True))
        if self.model.num_features:
            parts.append(coefficient @ tile["z"].astype(jnp.float64))
        if self.model.num_groups:
            # Codes out of range (−1) have a coefficient of 0: wherever they are added, nothing happens.
            parts.append(jnp.zeros((len(constant), self.model.num_groups)).at[:, tile["rows"]["group"]].add(constant))
        if self.model.extra_size:
            parts.append(jnp.sum(scale_part, axis=-1, keepdims=True))
        total = jnp.concatenate(parts, axis=-1)
        return jnp.pad(total, [(0, 0), (0, self.model.dimension - total.shape[-1])])


def make_kernel(model: Model) -> Kernel:
    """Choose how to evaluate a model."""
    return RegressionKernel(model) if isinstance(model, RegressionModel) else AutodiffKernel(model)


def magnitudes(kernel: Kernel, tile: Tile, theta: jax.Array, proposal: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Per-record norms (chains × B) of the gradient, or |log-ratio| if there is a proposal, and who counts."""
    if proposal is None:
        scores = kernel.scores(tile, theta)
        counts = jnp.all(jnp.isfinite(scores), axis=-1) & tile["real"]
        largest = jnp.max(jnp.abs(scores), axis=-1, initial=0.0)
        safe = jnp.where(largest > 0.0, largest, 1.0)
        return largest * jnp.sqrt(jnp.sum((scores / safe[..., None]) ** 2, axis=-1)), counts
    ratio = kernel.log_likelihood(tile, proposal) - kernel.log_likelihood(tile, theta)
    return jnp.abs(ratio), jnp.isfinite(ratio) & tile["real"]


def plain_gradient_sum(kernel: Kernel, bound: float, tile: Tile, theta: jax.Array) -> jax.Array:
    """Σ clip(score) in float64, with no lattice: for noise-free research runs only."""
    scores = kernel.scores(tile, theta)
    counts = jnp.all(jnp.isfinite(scores), axis=-1) & tile["real"]
    scores = jnp.where(counts[..., None], scores, 0.0)
    norm = jnp.linalg.norm(scores, axis=-1, keepdims=True)
    return jnp.sum(scores * jnp.where(norm > bound, bound / norm, 1.0), axis=-2)


def plain_ratio_sum(kernel: Kernel, tile: Tile, theta: jax.Array, proposal: jax.Array, bound: jax.Array) -> jax.Array:
    """Σ clip(log-ratio) in float64, with no lattice: for noise-free research runs only."""
    ratio = kernel.log_likelihood(tile, proposal) - kernel.log_likelihood(tile, theta)
    counts = jnp.isfinite(ratio) & tile["real"]
    return jnp.sum(jnp.where(counts, jnp.clip(ratio, -bound[:, None], bound[:, None]), 0.0), axis=-1)
