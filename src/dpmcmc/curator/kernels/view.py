"""What a query is handed: a kernel, and the coordinates θ = m + C z that vectors and matrices are wanted in.

In coordinates everything is float64, whatever the records are: C may be badly conditioned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.curator import integers
from dpmcmc.curator.kernels.autodiff import AutodiffKernel
from dpmcmc.curator.kernels.base import TileKernel, contract
from dpmcmc.curator.kernels.regression import RegressionKernel
from dpmcmc.curator.kernels.units import UnitKernel
from dpmcmc.curator.tiles import Tile, stored


class View:
    """Any model. See :class:`dpmcmc.queries.Kernel` for the methods: this is what queries are written against.

    Parameters
    ----------
    kernel
        Evaluates the model.
    matrix
        C, or None: θ itself.
    """

    def __init__(self, kernel: TileKernel, matrix: jax.Array | None) -> None:
        self._kernel, self._matrix = kernel, matrix

    def log_likelihood(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Coordinates make no difference."""
        return self._kernel.log_likelihood(tile, theta)

    def ratio_sum(
        self, tile: Tile, theta: jax.Array, proposal: jax.Array, spacing: jax.Array, bound: jax.Array
    ) -> jax.Array:
        """Coordinates make no difference but for the bound, which is public."""
        return self._kernel.ratio_sum(tile, theta, proposal, spacing, bound)

    def gradient_sum(self, tile: Tile, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> Any:
        """By the kernel's own, faster way, or in coordinates."""
        if self._matrix is None:
            return self._kernel.gradient_sum(tile, theta, spacing, bound)
        return jnp.sum(self.clipped(tile, lambda: self.scores(tile, theta), spacing, bound), axis=-1)

    def scores(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Cᵀ·score."""
        scores = jnp.stack([score.astype(jnp.float64) for score in self._kernel.scores(tile, theta)], axis=1)
        return scores if self._matrix is None else jnp.matmul(self._matrix.T, scores, precision="highest")

    def score_sizes(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Return |Cᵀ·score|, and -1 for a record that does not count; stored, so that all comparisons see the same."""

        def sizes() -> jax.Array:
            scores = self.scores(tile, theta)
            counts = jnp.all(jnp.isfinite(scores), axis=1) & tile.real
            return jnp.where(counts[:, None], jnp.abs(scores), -1.0)

        return stored(sizes, tile.here)

    def curvatures(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Upper triangles of Cᵀ·H·C."""
        assert isinstance(self._kernel, AutodiffKernel)
        matrices = self._kernel.curvatures(tile, theta).astype(jnp.float64)
        if self._matrix is not None:
            matrices = contract(self._matrix, 0, contract(self._matrix, 0, matrices, 1), 2).transpose(2, 1, 0, 3)
        return jnp.concatenate([matrices[:, i, i:] for i in range(matrices.shape[1])], axis=1)

    def clipped(
        self,
        tile: Tile,
        compute: Callable[[], jax.Array],
        spacing: jax.Array,
        bound: jax.Array,
        weights: NDArray[np.float64] | None = None,
    ) -> jax.Array:
        """Clip vectors to integers of norm at most ``bound``."""
        return integers.clip_stacked(compute, spacing, bound, tile, weights)

    def magnitudes(
        self, tile: Tile, theta: jax.Array, proposal: jax.Array | None, of: str
    ) -> tuple[jax.Array, jax.Array]:
        """Return one number a record, and who counts: those for whom all that it is made of is finite."""

        def compute() -> jax.Array:
            match of:
                case "log_ratio":
                    assert proposal is not None
                    return jnp.abs(self._kernel.log_ratios(tile, theta, proposal).astype(jnp.float64))
                case "curvature":
                    return self.curvature_norms(tile, theta)
                case "score_bound":
                    return self.score_bounds(tile, theta)
                case _:
                    return norms_of(self.scores(tile, theta))

        size = stored(compute, tile.here)  # so that all comparisons see the same
        return size, jnp.isfinite(size) & tile.real

    def curvature_norms(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Frobenius norms, chains × B."""
        place = np.triu_indices(theta.shape[-1])
        roots = np.where(place[0] == place[1], 1.0, np.sqrt(2.0))
        return norms_of(self.curvatures(tile, theta) * roots[:, None])

    # Of regressions, or of logistic regression, only: the curator refuses the questions of other models.

    def score_bounds(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Return the largest norm that a gradient could have, whatever the outcome: chains × B."""
        raise NotImplementedError

    def weights(self, tile: Tile, theta: jax.Array, weight_bound: jax.Array) -> jax.Array:
        """min(1, c/score bound), chains × 1 × B."""
        bounds = self.score_bounds(tile, theta)[:, None]
        return jnp.where(bounds > weight_bound, weight_bound / bounds, 1.0)

    def weighted_scores(self, tile: Tile, theta: jax.Array, weight_bound: jax.Array) -> jax.Array:
        """Return gradients that are never longer than the bound."""
        return self.weights(tile, theta, weight_bound) * self.scores(tile, theta)

    def information_roots(
        self, tile: Tile, theta: jax.Array, majorise: jax.Array, weight_bound: jax.Array | None
    ) -> jax.Array:
        """Return vectors whose outer products add up to the information."""
        raise NotImplementedError

    def information_sizes(
        self, tile: Tile, theta: jax.Array, majorise: jax.Array, weight_bound: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Return their norms, and who counts."""
        size = stored(lambda: norms_of(self.information_roots(tile, theta, majorise, weight_bound)), tile.here)
        return size, jnp.isfinite(size) & tile.real


class RegressionView(View):
    """Regression families, in closed form: all of it is made of the design rows Cᵀw and a few numbers a record."""

    _kernel: RegressionKernel

    def _design(self, tile: Tile) -> tuple[jax.Array, jax.Array | None]:
        columns = stored(lambda: self._kernel.design(tile, self._matrix), tile.here)
        return columns, self._kernel.extra_direction(self._matrix)

    def _at(self, name: str, tile: Tile, theta: jax.Array) -> list[Any]:
        """Return what the family says of the tile, in float64, with an axis for the coordinates."""
        parts = self._kernel.at(name, tile, theta)
        return [None if part is None else part.astype(jnp.float64)[:, None] for part in parts]

    def scores(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """residual·Cᵀw + (score of the extra parameter)·Cᵀe."""
        columns, direction = self._design(tile)
        residual, extra = self._at("score_at", tile, theta)
        scores = residual * columns
        return scores if direction is None else scores + extra * direction[:, None]

    def curvatures(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """a·wwᵀ + b·(weᵀ + ewᵀ) + c·eeᵀ, upper triangles."""
        columns, direction = self._design(tile)
        a, b, c = self._at("curvature_at", tile, theta)
        size = len(columns)
        if direction is None:
            right = a * columns
            return jnp.concatenate([columns[i] * right[:, i:] for i in range(size)], axis=1)
        direction = direction[:, None]
        right, lower = a * columns + b * direction, b * columns + c * direction
        rows = [columns[i] * right[:, i:] + direction[i] * lower[:, i:] for i in range(size)]
        return jnp.concatenate(rows, axis=1)

    def curvature_norms(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """‖R M Rᵀ‖ with M = [[a, b], [b, c]] and (w, e) = QR, without forming a matrix."""
        columns, direction = self._design(tile)
        a, b, c = self._at("curvature_at", tile, theta)
        length = norms_of(columns[None])
        if direction is None:
            return jnp.abs(a[:, 0]) * length * length
        a, b, c = a[:, 0], b[:, 0], c[:, 0]
        along = direction @ columns / jnp.where(length > 0.0, length, 1.0)
        across = jnp.sqrt(jnp.maximum(direction @ direction - along * along, 0.0))
        corner = a * length * length + 2.0 * b * length * along + c * along * along
        edge = across * (b * length + c * along)
        return norms_of(jnp.stack([corner, np.sqrt(2.0) * edge, c * across * across], axis=1))

    def score_bounds(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """max(p, 1 − p)·‖Cᵀw‖; not finite for a record without a gradient."""
        residual, _ = self._at("score_at", tile, theta)
        length = norms_of(self._design(tile)[0][None])
        bounds = self._kernel.sure(tile, theta).astype(jnp.float64) * length
        return jnp.where(jnp.isfinite(residual[:, 0]), bounds, jnp.nan)

    def information_roots(
        self, tile: Tile, theta: jax.Array, majorise: jax.Array, weight_bound: jax.Array | None
    ) -> jax.Array:
        """√v·Cᵀw, and √v_e·Cᵀe behind it if there is an extra parameter."""
        columns, direction = self._design(tile)
        value, extra = self._at("information_at", tile, theta)
        residual, extra_score = self._at("score_at", tile, theta)
        if not self._kernel.family.quadratic:
            value = jnp.maximum(value, majorise * jnp.abs(residual))
        if weight_bound is not None:
            value = value * self.weights(tile, theta, weight_bound)
        roots = jnp.sqrt(value) * columns
        if direction is None:
            return roots
        extra = jnp.maximum(extra, majorise * jnp.abs(extra_score))
        return jnp.concatenate([roots, jnp.sqrt(extra) * direction[:, None]], axis=1)


class UnitView(View):
    """Units of several rows: what the view of the rows says, added up by unit."""

    _kernel: UnitKernel

    def __init__(self, kernel: UnitKernel, matrix: jax.Array | None) -> None:
        super().__init__(kernel, matrix)
        self._rows = view_of(kernel.of_rows, matrix)

    def scores(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Σ_j of the rows."""
        return self._kernel.add_up(tile, self._rows.scores(tile.by_row, theta))

    def curvatures(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Σ_j of the rows."""
        return self._kernel.add_up(tile, self._rows.curvatures(tile.by_row, theta))

    def score_bounds(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Σ_j of the rows: no outcomes give a longer gradient."""
        return self._kernel.add_up(tile, self._rows.score_bounds(tile.by_row, theta))

    def information_roots(
        self, tile: Tile, theta: jax.Array, majorise: jax.Array, weight_bound: jax.Array | None
    ) -> jax.Array:
        """Return the vectors of all rows, one behind the other; 0 for rows that are not there."""
        size = theta.shape[-1]
        roots = self._kernel.by_unit(tile, self._rows.information_roots(tile.by_row, theta, majorise, None))
        chains, numbers, slots, units = roots.shape
        vectors = jnp.moveaxis(roots.reshape(chains, numbers // size, size, slots, units), 2, 3)
        joined = vectors.reshape(chains, numbers * slots, units)
        return joined if weight_bound is None else jnp.sqrt(self.weights(tile, theta, weight_bound)) * joined


def view_of(kernel: TileKernel, matrix: Any = None) -> View:
    """Return what a query is handed, in coordinates if there is a matrix C."""
    if isinstance(kernel, UnitKernel):
        return UnitView(kernel, matrix)
    return RegressionView(kernel, matrix) if isinstance(kernel, RegressionKernel) else View(kernel, matrix)


def norms_of(vectors: jax.Array) -> jax.Array:
    """Norms of vectors (chains × m × B); NaN if an entry is not finite, and else finite, whatever overflows."""
    largest = jnp.max(jnp.abs(vectors), axis=1)
    scaled = vectors / jnp.where(largest > 0.0, largest, 1.0)[:, None]
    norms = largest * jnp.sqrt(jnp.sum(scaled * scaled, axis=1))
    return jnp.where(largest < jnp.inf, jnp.minimum(norms, np.finfo(np.float64).max), jnp.nan)
