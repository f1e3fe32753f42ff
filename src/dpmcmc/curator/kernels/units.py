"""Units of several rows: the rows are evaluated as their own model's are, and added up by unit before anything else."""

from __future__ import annotations

from copy import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.curator.kernels.autodiff import AutodiffKernel
from dpmcmc.curator.kernels.base import TileKernel, power_of_two
from dpmcmc.curator.tiles import Tile


class UnitKernel(TileKernel):
    """A tile of B units is one of max_rows × B rows to the kernel of the rows; all that comes back is added by unit.

    A row that is not present adds nothing, whatever is computed of it. A unit without any is NaN: it does not count.

    Parameters
    ----------
    of_rows
        Evaluates the model of rows.
    max_rows
        Rows of a unit.
    """

    stores_tiles = True

    def __init__(self, of_rows: TileKernel, max_rows: int) -> None:
        self.of_rows, self.max_rows = of_rows, max_rows
        self.precision, self.family, self.dimension = of_rows.precision, of_rows.family, of_rows.dimension

    def with_curvature(self, closed: Any) -> UnitKernel:
        """Return a kernel that knows the second derivatives too."""
        assert isinstance(self.of_rows, AutodiffKernel)
        kernel = copy(self)
        kernel.of_rows = self.of_rows.with_curvature(closed)
        return kernel

    def prepare(self, records: Any) -> dict[str, Any]:
        """Compute what the rows' kernel wants of each row. (The grid of a closed form is of no use here.)"""
        if self.family is not None:
            return {}
        rows = jax.tree.map(lambda column: column.reshape(-1, *column.shape[2:]), records["rows"])
        prepared = self.of_rows.prepare(rows)
        return jax.tree.map(lambda column: column.reshape(-1, self.max_rows, *column.shape[1:]), prepared)

    def needs(self, records: Tile, gradient: bool) -> Tile:
        """Take what the rows' kernel needs, and which rows are present."""
        return self._with_present(records, self.of_rows.needs(_rows_only(records), gradient))

    def needs_for_batches(self, records: Tile) -> Tile:
        """Likewise."""
        return self._with_present(records, self.of_rows.needs_for_batches(_rows_only(records)))

    def _with_present(self, records: Tile, needed: Tile) -> Tile:
        return needed._replace(present=records.rows["present"])

    def cut(self, tile: Tile) -> Tile:
        """Turn B units into a tile of rows: all first rows, then all second ones, … so that units stay side by side."""

        def by_row(column: jax.Array) -> jax.Array:
            return jnp.moveaxis(column, 1, 0).reshape(-1, *column.shape[2:])

        rows = jax.tree.map(by_row, tile._replace(real=tile.present, present=None))
        return Tile(tile.real, present=jnp.moveaxis(tile.present, 1, 0), by_row=self.of_rows.cut(rows))

    def load(self, tile: Tile, gradient: bool) -> Tile:
        """Compute what depends on the rows alone."""
        assert tile.by_row is not None
        rows = tile.by_row._replace(here=tile.here)
        return tile._replace(by_row=self.of_rows.load(rows, gradient and self.family is None))

    def tile_rows(self, num_chains: int) -> int:
        """Aim at as many rows as the rows' kernel does."""
        return power_of_two(self.of_rows.tile_rows(num_chains) / self.max_rows)

    def by_unit(self, tile: Tile, values: jax.Array) -> jax.Array:
        """Return what is known of rows (… × max_rows·B) as … × max_rows × B, 0 for those that are not present."""
        present: Any = tile.present
        absent = jnp.where(jnp.any(present, axis=0), 0.0, np.nan).astype(values.dtype)
        return jnp.where(present, values.reshape(*values.shape[:-1], *present.shape), absent)

    def add_up(self, tile: Tile, values: jax.Array) -> jax.Array:
        """Add it over the rows of each unit: … × B."""
        return jnp.sum(self.by_unit(tile, values), axis=-2)

    def log_likelihood(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Add those of the rows."""
        return self.add_up(tile, self.of_rows.log_likelihood(tile.by_row, theta))

    def log_ratios(self, tile: Tile, theta: jax.Array, proposal: jax.Array) -> jax.Array:
        """Add those of the rows, which loses fewer digits than the difference of two sums."""
        return self.add_up(tile, self.of_rows.log_ratios(tile.by_row, theta, proposal))

    def scores(self, tile: Tile, theta: jax.Array) -> list[jax.Array]:
        """Add those of the rows."""
        return [self.add_up(tile, score) for score in self.of_rows.scores(tile.by_row, theta)]


def _rows_only(records: Tile) -> Tile:
    return records._replace(rows=records.rows["rows"])
