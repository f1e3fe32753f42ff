"""The records as the compiled code sees them: padded, in blocks, spread over devices.

Every record goes through the same compiled tile (a fixed number of rows, chosen from public shapes) wherever it
lives: XLA may round a float differently in another shape or outside a loop, so the tile is always the body of a
loop of two turns or more. The tiles' sums are integers. Hence results do not depend on the order of the rows, on
the block size or on the number of devices, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dpmcmc.curator.batches import Batch, draw_rows
from dpmcmc.curator.queries import MAX_TILE_ROWS
from dpmcmc.curator.sums import Kernel, join, stored
from dpmcmc.errors import QueryError

_AXIS = "records"
# How the curator's sums are compiled. Both switches make the rounding of a record's floats independent of what
# stands around it; neither costs speed here.
# - The algebraic simplifier rewrites floating-point expressions (x/exp(y) to x·exp(−y), say) in some modules and not
#   in others, depending on the number of devices.
# - YNNPACK fusions choose their order of operations by shape (and those of jaxlib 0.10.2 can crash without the
#   simplifier).
# The third is for speed: integers are added by a plain loop, which the compiler vectorises, not by a tree.
COMPILER_OPTIONS = {
    "xla_disable_hlo_passes": "algsimp,tree_reduction_rewriter",
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_cpu_use_fusion_emitters": False,
}


def make_mesh(devices: int | Sequence[jax.Device] | None) -> Mesh:
    """Turn ``devices`` (None: the first one; a number; or a list) into a one-dimensional mesh."""
    available = jax.devices()
    if devices is None:
        chosen = available[:1]
    elif isinstance(devices, int) and not isinstance(devices, bool):
        if not 1 <= devices <= len(available):
            raise QueryError(f"devices = {devices}, but JAX sees {len(available)}; ask for 1 to {len(available)}")
        chosen = available[:devices]
    else:
        chosen = list(devices)  # type: ignore[arg-type]
        if not chosen:
            raise QueryError("devices is empty; give at least one")
    return Mesh(np.array(chosen), (_AXIS,))


def largest_tile(num_records: int) -> int:
    """Return the most rows that a tile may have: an eighth of the records, so that padding stays small."""
    return int(2 ** np.clip(np.floor(np.log2(num_records / 8)), 7, np.log2(MAX_TILE_ROWS)))


def place(kernel: Kernel, records: Any, num_records: int, mesh: Mesh) -> Any:
    """Pad the rows to whole tiles, two or more on every device, and put them there.

    Padding is zeros, masked out by the column ``real``.
    """
    unit = 2 * largest_tile(num_records) * mesh.size
    padded = -(-num_records // unit) * unit

    def pad(column: Any) -> Any:
        array = np.asarray(column)
        return np.concatenate([array, np.zeros((padded - num_records, *array.shape[1:]), array.dtype)])

    real = np.arange(padded) < num_records
    tree = {"rows": records, **kernel.prepare(records)}
    tree = {**jax.tree.map(pad, tree), "real": real}
    return jax.device_put(tree, NamedSharding(mesh, P(_AXIS)))


def sum_over_tiles(
    mesh: Mesh,
    kernel: Kernel,
    num_records: int,
    tile_sum: Callable[..., Any],
    records: Any,
    *public: jax.Array,
    gradient: bool,
    dtype: Any = jnp.int64,
) -> jax.Array:
    """Σ over all tiles and all devices of ``tile_sum(tile, *public)``, added in int64. ``public[0]`` is chains × d.

    ``gradient`` says whether ``tile_sum`` differentiates, or takes log-likelihoods.

    (``dtype`` is float64 for the un-noised, not private sums of research runs, which are not whole numbers.)
    """
    rows = min(kernel.tile_rows(len(public[0])), largest_tile(num_records))

    def load(local: Any, place: jax.Array, here: jax.Array) -> Any:
        def cut() -> Any:
            return kernel.cut(jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, place * rows, rows), local))

        return kernel.load({**stored(cut, here), "here": here}, gradient)

    def on_one_device(local: Any, *public: jax.Array) -> jax.Array:
        num_tiles = len(local["real"]) // rows

        def add_tile(place: jax.Array, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            total, (limit, *public) = carry
            tile = load(local, place, place < limit)
            # The barrier hides that the public arguments do not change, so that nothing is moved out of the loop:
            # its body is compiled alike whatever stands around it.
            total = jax.tree.map(lambda sum_, part: sum_ + part.astype(dtype), total, tile_sum(tile, *public))
            return total, jax.lax.optimization_barrier((limit, *public))

        def first(*public: jax.Array) -> Any:
            return tile_sum(load(local, jnp.asarray(0), jnp.asarray(True)), *public)

        parts = jax.eval_shape(first, *public)
        zeros = jax.tree.map(lambda part: jnp.zeros(part.shape, dtype), parts)
        total, _ = jax.lax.fori_loop(0, num_tiles, add_tile, (zeros, (jnp.asarray(num_tiles), *public)))
        return jax.lax.psum(join(total), _AXIS)

    specs = (P(_AXIS), *(P() for _ in public))
    sharded = jax.shard_map(on_one_device, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    result: jax.Array = sharded(records, *public)
    return result


def sum_over_batches(
    mesh: Mesh,
    kernel: Kernel,
    rows: int,
    num_records: int,
    batch_sum: Callable[..., jax.Array],
    records: Any,
    theta: jax.Array,
    batch: Batch,
) -> jax.Array:
    """Σ over each chain's batch of ``batch_sum(tile, theta)``, looking up ``rows`` rows a chain. O(batch) work."""

    def on_one_device(local: Any, theta: jax.Array, batch: Batch) -> jax.Array:
        held = len(local["real"])
        start = jax.lax.axis_index(_AXIS) * held

        def one_chain(key: jax.Array, size: jax.Array, theta: jax.Array) -> jax.Array:
            index, chosen = draw_rows(key, num_records, rows, size)
            here = (index >= start) & (index < start + held)
            looked_up = jnp.where(here, index - start, 0)

            def cut() -> Any:
                return kernel.cut(jax.tree.map(lambda column: column[looked_up], local))

            tile = {**stored(cut, size >= 0), "real": chosen & here, "here": size >= 0}
            tile = kernel.load(tile, True)
            return join(batch_sum(tile, theta[None]))[0]

        keys = jax.random.split(batch.key, len(theta))
        return jax.lax.psum(jax.vmap(one_chain)(keys, batch.size, theta), _AXIS)

    sharded = jax.shard_map(on_one_device, mesh=mesh, in_specs=(P(_AXIS), P(), P()), out_specs=P(), check_vma=False)
    result: jax.Array = sharded(records, theta, batch)
    return result
