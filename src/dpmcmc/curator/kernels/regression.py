"""Regression families: residual × design row, so that gradients are never formed one by one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.curator.integers import limit_to, row_sums
from dpmcmc.curator.kernels.base import TileKernel, arithmetic_of, contract, power_of_two
from dpmcmc.curator.tiles import Design, Grid, Tile, stored
from dpmcmc.errors import DataError
from dpmcmc.models import RegressionModel

# Larger finite values are brought down to this first, so that squares cannot overflow.
_HUGE = {"float32": 1e15, "float64": 1e120}
# Bits of a design row's largest entry on its own grid; the rest of the 40 is left to the coefficient.
_DESIGN_BITS = 20
# With more groups than this, adding by index is cheaper than a matrix product with indicators.
_MAX_INDICATORS = 128


class RegressionKernel(TileKernel):
    """Regression families: the score is residual × design row, so gradients are never materialised.

    Each design row w = (1, x, one-hot) is put on a grid of its own, w ≈ u·z with a power of two u and integers
    |z_j| ≤ 2^20. A record's clipped gradient is then a·z with an integer a (and an integer t for the
    scale parameter), bounded by a²‖z‖² + t² ≤ K², and the sum over a tile is a matrix product of integers:
    every partial sum is at most K·B ≤ 2^52, so float64 adds it exactly in any order. Residuals and log-likelihoods use
    the features as they are; the grid touches the gradient alone, by at most 2^-20 of the row's largest entry.
    """

    stores_tiles = True

    def __init__(self, model: RegressionModel, records: Any) -> None:
        # Copied, all of it: a model may be changed by whoever holds it, and what was compiled for it must not change.
        self.family = type(model)
        self.intercept, self.num_features, self.num_groups = model.intercept, model.num_features, model.num_groups
        self.linear_size, self.extra_size, self.dimension = model.linear_size, model.extra_size, model.dimension
        self.precision = arithmetic_of(model, records)
        shapes = {name: (column.ndim, column.shape[1:]) for name, column in records.items()}
        expected: dict[str, Any] = {"X": (2, (self.num_features,)), "y": (1, ())}
        if shapes != expected | ({"group": (1, ())} if self.num_groups else {}):
            raise DataError(f"records of shapes {shapes} do not fit the regression; give X of rows × features and y")

    def prepare(self, records: Any) -> dict[str, Design]:
        """Return unit u and norm ‖z‖ for each row; NaN norm: no use."""
        features = np.asarray(records["X"])
        ones = int(self.intercept) + int(self.num_groups > 0)
        with np.errstate(all="ignore"):
            # Without np.abs of it all, which would be a second copy of the features.
            largest = np.maximum(np.max(features, axis=1, initial=0.0), -np.min(features, axis=1, initial=0.0))
            largest = np.maximum(largest.astype(np.float64), 1.0 if ones else 0.0)
            usable = np.isfinite(largest)
            largest = np.where(usable & (largest > 0.0), largest, 1.0)
            _, exponent = np.frexp(largest)
            # A unit that float32 holds as well: smaller features than 2^-100 are as good as zero.
            lowest = -120 if features.dtype == np.float32 else -1000
            unit = np.ldexp(1.0, np.maximum(exponent - _DESIGN_BITS, lowest))
            squares = _grid_squares(features, unit)
            one = np.where(usable, np.rint(1.0 / unit), 0.0) if ones else np.zeros_like(unit)
        norm = np.sqrt(squares + ones * one * one)
        precision = np.dtype(self.precision)
        return {"design": Design(unit.astype(precision), np.where(usable, norm, np.nan).astype(precision))}

    def needs(self, records: Tile, gradient: bool) -> Tile:
        """Take all for gradients; log-likelihoods need no grid."""
        return records if gradient else records._replace(design=None)

    def needs_for_batches(self, records: Tile) -> Tile:
        """Take all."""
        return records

    def cut(self, tile: Tile) -> Tile:
        """Leave it as it is."""
        return tile

    def load(self, tile: Tile, gradient: bool) -> Tile:
        """Add the grid of the design rows, if gradients are wanted."""
        return tile._replace(grid=stored(lambda: self._grid(tile), tile.here)) if gradient else tile

    def _grid(self, tile: Tile) -> Grid:
        """Compute the grid ``z`` of the design rows, constants first, as whole numbers in float64."""
        assert tile.design is not None
        rows = tile.rows
        per_unit = 1.0 / tile.design.unit.astype(jnp.float64)  # of powers of two: exact
        # A row that is no use, or padding, has a coefficient of 0, but 0 times infinity would spoil the sum.
        usable = tile.real & jnp.isfinite(tile.design.norm)
        one = jnp.where(usable, jnp.rint(per_unit), 0.0)[:, None]
        grid = jnp.where(usable[:, None], jnp.rint(rows["X"].astype(jnp.float64) * per_unit[:, None]), 0.0)
        parts = [one] if self.intercept else []
        parts.append(grid)
        if 0 < self.num_groups <= _MAX_INDICATORS:
            parts.append(one * jax.nn.one_hot(rows["group"], self.num_groups, dtype=jnp.float64))
        return Grid(one[:, 0], jnp.concatenate(parts, axis=1))

    def tile_rows(self, num_chains: int) -> int:
        """Aim at 2^18 numbers an operation (as measured)."""
        return power_of_two(2**18 / num_chains)

    def _predict(self, tile: Tile, theta: jax.Array) -> tuple[jax.Array, Any, jax.Array | None]:
        """Return linear predictors (chains × B), outcomes, and the extra parameter (chains × 1) if there is one."""
        rows, theta = tile.rows, theta.astype(self.precision)
        start, stop = int(self.intercept), int(self.intercept) + self.num_features
        # In this order the product has rows as its fastest axis.
        eta = contract(theta[:, start:stop], 1, rows["X"].astype(self.precision), 1)
        if self.intercept:
            eta = eta + theta[:, :1]
        if self.num_groups:
            group = rows["group"]
            known = (group >= 0) & (group < self.num_groups)
            effects = theta[:, stop + jnp.clip(group, 0, self.num_groups - 1).astype(jnp.int32)]
            eta = eta + effects * jnp.where(known, 1.0, jnp.nan).astype(self.precision)
        place = self.linear_size
        return eta, rows["y"], theta[:, place : place + 1] if self.extra_size else None

    def log_likelihood(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Evaluate the family's log-likelihood at the linear predictor."""
        return self.at("log_likelihood_at", tile, theta).astype(self.precision)

    def at(self, name: str, tile: Tile, theta: jax.Array) -> Any:
        """Return what a method of the family says of the tile (``score_at``, say): arrays of chains × B, or None."""
        # Of the class: an attribute of the instance could be any function, and would be handed a whole tile.
        return getattr(self.family, name)(None, *self._predict(tile, theta))

    def _residuals(self, tile: Tile, theta: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        residual, extra = self.at("score_at", tile, theta)
        return residual, extra

    def sure(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """max(p, 1 − p) of a logistic regression, chains × B."""
        eta, _, _ = self._predict(tile, theta)
        return jax.nn.sigmoid(jnp.abs(eta))

    def design(self, tile: Tile, matrix: jax.Array | None) -> jax.Array:
        """Return the design rows Cᵀw as columns, d × B, float64: one matrix product a tile. No matrix: C = I."""
        features, group = tile.rows["X"].astype(jnp.float64), tile.rows.get("group")
        start, stop = int(self.intercept), int(self.intercept) + self.num_features
        if matrix is None:
            parts = [jnp.ones((start, len(features))), features.T]
            if self.num_groups:
                parts.append(jax.nn.one_hot(group, self.num_groups, axis=0))
            return jnp.concatenate([*parts, jnp.zeros((self.dimension - self.linear_size, len(features)))])
        columns = contract(matrix[start:stop], 0, features, 1)
        if self.intercept:
            columns = columns + matrix[0][:, None]
        if self.num_groups:
            columns = columns + matrix[stop + jnp.clip(group, 0, self.num_groups - 1)].T
        return columns

    def extra_direction(self, matrix: jax.Array | None) -> jax.Array | None:
        """Return Cᵀe of the direction e of the extra parameter, if there is one."""
        if not self.extra_size:
            return None
        return jnp.zeros(self.dimension).at[self.linear_size].set(1.0) if matrix is None else matrix[self.linear_size]

    def scores(self, tile: Tile, theta: jax.Array) -> list[jax.Array]:
        """Closed-form scores, materialised: for the rare queries that need them."""
        residual, extra = self._residuals(tile, theta)
        rows = tile.rows
        parts = [residual] if self.intercept else []
        parts += [residual * rows["X"][:, j].astype(residual.dtype) for j in range(self.num_features)]
        parts += [residual * (rows["group"] == code) for code in range(self.num_groups)]
        if extra is not None:
            parts.append(extra)
        return parts + [jnp.zeros_like(residual)] * (self.dimension - len(parts))

    def gradient_sum(self, tile: Tile, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> Any:
        """Integer coefficients by the closed form, then one matrix product."""
        assert tile.design is not None
        assert tile.grid is not None
        residual, extra = self._residuals(tile, theta)
        precision = residual.dtype.name
        largest = _HUGE[precision]
        # In units of 2^20 lattice steps, so that float32 can square them.
        unit, limit = (value.astype(precision) for value in (spacing * 2.0**20, bound * 2.0**-20))
        norm = tile.design.norm * 2.0**-20
        # |a|·‖z‖ ≤ K, with a margin for the rounding of ‖z‖ and of the quotient. NaN for a row that is no use.
        highest = jnp.floor(limit / norm * (1.0 - 2.0**-20))
        coefficient = limit_to(residual * (tile.design.unit * 2.0**20 / unit), largest)
        finite = tile.real & (jnp.abs(residual) < jnp.inf) & (highest < jnp.inf)
        if extra is None:
            # What is added is checked last: 0 times an overflow, say, is NaN, and would take the tile's sum with it.
            whole = limit_to(jnp.rint(coefficient), highest)
            parts = [jnp.where(finite & (jnp.abs(whole) <= highest), whole, 0.0)]
        else:
            parts = self._with_extra(tile, coefficient, limit_to(extra / unit, largest), norm, limit)
            finite = finite & (jnp.abs(extra) < jnp.inf)
            parts = [jnp.where(finite, part, 0.0) for part in parts]
        coefficient, *rest = (part.astype(jnp.float64) for part in parts)
        parts = [coefficient @ tile.grid.grid]
        if self.num_groups > _MAX_INDICATORS:
            # Codes out of range (−1) have a coefficient of 0: wherever they are added, nothing happens.
            constant = coefficient * tile.grid.one
            parts.append(jnp.zeros((len(constant), self.num_groups)).at[:, tile.rows["group"]].add(constant))
        parts += [row_sums(part)[:, None] for part in rest]
        done = sum(part.shape[1] for part in parts)
        parts.append(jnp.zeros((len(theta), self.dimension - done)))
        return [part.astype(jnp.int64) for part in parts]

    def _with_extra(
        self, tile: Tile, coefficient: jax.Array, scale_part: jax.Array, norm: jax.Array, limit: jax.Array
    ) -> list[jax.Array]:
        """Clip (a·z, t) together, in units of 2^20 lattice steps; return whole numbers a and t that are within K."""

        def clipped() -> tuple[jax.Array, jax.Array]:
            length = jnp.sqrt((coefficient * norm) ** 2 + scale_part**2)
            # Rounding to nearest adds at most (‖z‖ + 1)/2 to the norm: leave room for it, and for that of floats.
            target = (limit - norm - 2.0**-20) * (1.0 - 2.0**-20)
            factor = target / jnp.where(length > target, length, target)
            # t in whole lattice steps, which float32 cannot hold.
            return jnp.rint(coefficient * factor), jnp.rint((scale_part * factor).astype(jnp.float64) * 2.0**20)

        whole = stored(clipped, tile.here)
        squares = (whole[0] * norm).astype(jnp.float64) ** 2 + (whole[1] * 2.0**-20) ** 2
        # Relative error of `squares` is below 2^-21 in float32: what passes is within K.
        counts = _once(squares <= (limit * limit * (1.0 - 2.0**-20)).astype(jnp.float64))
        return [jnp.where(counts > 0.0, part, 0.0) for part in whole]


def _once(counts: jax.Array) -> jax.Array:
    """Return 1 where a record counts and 0 elsewhere, by a division, which the compiler does only once."""
    return 1.0 / jnp.where(counts, 1.0, jnp.inf).astype(jnp.float32)


def _grid_squares(features: NDArray[Any], unit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ_j rint(x_j/u)² for each row, a slice of rows at a time: no second copy of the features."""
    squares = np.empty(len(features))
    for start in range(0, len(features), 2**16):
        part = slice(start, start + 2**16)
        grid = np.rint(features[part].astype(np.float64) / unit[part, None])
        squares[part] = np.einsum("ij,ij->i", grid, grid)
    return squares
