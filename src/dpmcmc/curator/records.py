"""The records as the compiled code sees them: padded, in blocks, spread over devices.

Every record goes through the same compiled tile (a fixed number of rows, chosen from public shapes) wherever it
lives: XLA may round a float differently in another shape or outside a loop, so the tile is always the body of a
loop of two turns or more. The tiles' sums are integers. Hence results do not depend on the order of the rows, on
the block size or on the number of devices, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from dpmcmc.curator.batches import Batch, draw_rows
from dpmcmc.curator.queries import MAX_TILE_ROWS
from dpmcmc.curator.sums import Kernel
from dpmcmc.errors import QueryError

_AXIS = "records"
_MIN_TILE_ROWS = 128
# How the curator's sums are compiled. Both switches make the rounding of a record's floats independent of what
# stands around it; neither costs speed here.
# - The algebraic simplifier rewrites floating-point expressions (x/exp(y) to x·exp(−y), say) in some modules and not
#   in others, depending on the number of devices.
# - YNNPACK fusions choose their order of operations by shape (and those of jaxlib 0.10.2 can crash without the
#   simplifier).
COMPILER_OPTIONS = {"xla_disable_hlo_passes": "algsimp", "xla_cpu_experimental_ynn_fusion_type": ""}


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


def check_block_size(block_size: int | None) -> int:
    """Rows of a block: a multiple of 4096, or by default (0) all rows of a device at once."""
    if block_size is None:
        return 0
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1 or block_size % MAX_TILE_ROWS:
        raise QueryError(f"block_size = {block_size!r} must be a positive multiple of {MAX_TILE_ROWS}, or None")
    return block_size


def place(kernel: Kernel, records: Any, num_records: int, mesh: Mesh, block_size: int) -> Any:
    """Pad the rows to whole blocks, two tiles or more on every device, and put them there.

    Padding is zeros, masked out by the column ``real``.
    """
    unit = max(block_size, 2 * MAX_TILE_ROWS) * mesh.size
    padded = -(-num_records // unit) * unit

    def pad(column: Any) -> Any:
        array = np.asarray(column)
        return np.concatenate([array, np.zeros((padded - num_records, *array.shape[1:]), array.dtype)])

    real = np.arange(padded) < num_records
    tree = {"rows": records, **kernel.prepare(records)}
    tree = {**jax.tree.map(pad, tree), "real": real}
    return jax.device_put(tree, NamedSharding(mesh, P(_AXIS)))


def tile_rows(num_chains: int, width: int) -> int:
    """Rows of a tile: about 2^18 numbers (2 MiB) for all chains together. A function of public shapes."""
    rows = 2 ** int(np.log2(max(1, 2**18 // (num_chains * width))))
    return int(np.clip(rows, _MIN_TILE_ROWS, MAX_TILE_ROWS))


def _cut(column: jax.Array, rows: int) -> jax.Array:
    """Cut the leading axis into pieces (a column may have no entries, so the number of pieces is not inferred)."""
    return column.reshape(len(column) // rows, rows, *column.shape[1:])


def sum_over_tiles(
    mesh: Mesh,
    block_size: int,
    rows: int,
    tile_sum: Callable[..., jax.Array],
    records: Any,
    *public: jax.Array,
    dtype: Any = jnp.int64,
) -> jax.Array:
    """Σ over all tiles of ``rows`` rows and all devices of ``tile_sum(tile, *public)``, added in int64.

    (``dtype`` is float64 for the un-noised, not private sums of research runs, which are not whole numbers.)
    """

    def add_tile(carry: tuple[jax.Array, Any], tile: Any) -> tuple[tuple[jax.Array, Any], None]:
        total, public = carry
        # The barrier hides that the public arguments do not change, so that nothing is moved out of the loop:
        # its body is compiled alike whatever stands around it.
        return (total + tile_sum(tile, *public).astype(dtype), jax.lax.optimization_barrier(public)), None

    def add_block(carry: tuple[jax.Array, Any], block: Any) -> tuple[tuple[jax.Array, Any], None]:
        tiles = jax.tree.map(partial(_cut, rows=rows), block)
        return jax.lax.scan(add_tile, carry, tiles)[0], None

    def on_one_device(local: Any, *public: jax.Array) -> jax.Array:
        shape = jax.eval_shape(tile_sum, jax.tree.map(lambda column: column[:rows], local), *public).shape
        start = (jnp.zeros(shape, dtype), public)
        if block_size:
            blocks = jax.tree.map(
                lambda column: column.reshape(len(column) // block_size, block_size, *column.shape[1:]), local
            )
            (total, _), _ = jax.lax.scan(add_block, start, blocks)
        else:
            (total, _), _ = add_block(start, local)
        return jax.lax.psum(total, _AXIS)

    specs = (P(_AXIS), *(P() for _ in public))
    sharded = jax.shard_map(on_one_device, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    result: jax.Array = sharded(records, *public)
    return result


def sum_over_batches(
    mesh: Mesh,
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
            tile = jax.tree.map(lambda column: column[jnp.where(here, index - start, 0)], local)
            return batch_sum({**tile, "real": chosen & here}, theta[None])[0].astype(jnp.int64)

        keys = jax.random.split(batch.key, len(theta))
        return jax.lax.psum(jax.vmap(one_chain)(keys, batch.size, theta), _AXIS)

    sharded = jax.shard_map(on_one_device, mesh=mesh, in_specs=(P(_AXIS), P(), P()), out_specs=P(), check_vma=False)
    result: jax.Array = sharded(records, theta, batch)
    return result
