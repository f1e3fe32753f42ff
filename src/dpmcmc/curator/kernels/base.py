"""What every kernel has: how a model is evaluated on a tile of rows, for all chains at once, and clipped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.curator import integers
from dpmcmc.curator.tiles import Tile
from dpmcmc.models import Model


class TileKernel(ABC):
    """Evaluates a model on a tile: theta is chains × d, a tile has B rows. Queries see it through a :class:`View`.

    Attributes
    ----------
    stores_tiles
        Whether a tile is copied out of the records before it is used.
    family
        The class of a regression that is evaluated in closed form; None for all that is differentiated.
    """

    stores_tiles: bool
    precision: Any
    dimension: int
    family: Any = None

    @abstractmethod
    def prepare(self, records: Any) -> dict[str, Any]:
        """Compute on the host, once, what depends on one record alone. Leading axis: records."""

    @abstractmethod
    def needs(self, records: Tile, gradient: bool) -> Tile:
        """Choose what a pass over all records needs, for gradients or for log-likelihoods."""

    @abstractmethod
    def needs_for_batches(self, records: Tile) -> Tile:
        """Choose what must be looked up of the rows of a batch."""

    @abstractmethod
    def cut(self, tile: Tile) -> Tile:
        """Rearrange a tile as it is cut out of the records."""

    @abstractmethod
    def load(self, tile: Tile, gradient: bool) -> Tile:
        """Compute, and store, what depends on the records alone, for gradients or for log-likelihoods."""

    @abstractmethod
    def tile_rows(self, num_chains: int) -> int:
        """Choose the rows of a tile, a power of two from 128 to 8192: a function of public shapes."""

    @abstractmethod
    def log_likelihood(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Return chains × B, in the kernel's precision."""

    @abstractmethod
    def scores(self, tile: Tile, theta: jax.Array) -> list[jax.Array]:
        """Return gradients with respect to theta: d arrays of chains × B."""

    def gradient_sum(self, tile: Tile, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> Any:
        """Return the sum over the tile of the clipped integer gradients, int64: parts that ``join`` puts together.

        Parts are added up one by one: joined too early, the compiler would compute them all again for each.
        """
        spacing, limit, bits, unit = self.lattice(spacing, bound)
        vectors = integers.clip_to_lattice(lambda: self.scores(tile, theta), spacing, limit, tile)
        return [total * unit for total in integers.add_integers(vectors, bits)]

    def lattice(self, spacing: jax.Array, bound: jax.Array) -> tuple[jax.Array, jax.Array, int, jax.Array]:
        """Return γ and K of the multiples that a record contributes, bits of K, and how many lattice steps they are."""
        bits = integers.CONTRIBUTION_BITS[jnp.dtype(self.precision).name]
        unit = integers.contribution_unit(bound, bits)
        spacing, limit = (value.astype(self.precision) for value in (spacing * unit, bound / unit))
        return spacing, limit, bits, unit.astype(jnp.int64)

    def log_ratios(self, tile: Tile, theta: jax.Array, proposal: jax.Array) -> jax.Array:
        """Return log p(x | proposal) − log p(x | theta), chains × B: both ends in one evaluation."""
        both = self.log_likelihood(tile, jnp.concatenate([proposal, theta]))
        return both[: len(theta)] - both[len(theta) :]

    def ratio_sum(
        self, tile: Tile, theta: jax.Array, proposal: jax.Array, spacing: jax.Array, bound: jax.Array
    ) -> jax.Array:
        """Return the sum of the clipped integer log-ratios."""
        return integers.ratio_sum(self.log_ratios(tile, theta, proposal), spacing, bound, tile.real)


def arithmetic_of(model: Model, records: Any) -> Any:
    """Return the precision to compute in: float32 if that is what every column of the records has.

    (And if the model does not object.) A public rule: it looks at dtypes only. A column of integers counts as double:
    with one value missing it would be one, and that must not change how all others are rounded.
    """
    shapes = jax.tree.map(lambda column: jax.ShapeDtypeStruct(column.shape, column.dtype), records)
    dtypes = {np.dtype(leaf.dtype) for leaf in jax.tree.leaves(model.quantities(shapes))}
    return jnp.float32 if dtypes == {np.dtype(np.float32)} and model.float32_suffices else jnp.float64


def power_of_two(rows: float) -> int:
    """Return the power of two at or below a number, from 128 to 8192."""
    return int(2 ** np.clip(np.floor(np.log2(rows)), 7, 13))


def join(parts: Any) -> jax.Array:
    """Put the parts of a sum together: a single array as it is; a list side by side, vectors as columns."""
    if not isinstance(parts, list):
        return parts
    return jnp.concatenate([part[:, None] if part.ndim == 1 else part for part in parts], axis=-1)


def contract(left: jax.Array, left_axis: int, right: jax.Array, right_axis: int) -> jax.Array:
    """Multiply and sum over one axis of each; what is left of the left comes first."""
    axes = ((left_axis,), (right_axis,)), ((), ())
    return jax.lax.dot_general(left, right, axes, precision="highest")
