"""The records as the compiled code sees them: padded, in blocks, spread over devices.

Every record goes through the same compiled tile (a fixed number of rows, chosen from public shapes) wherever it
lives: XLA may round a float differently in another shape or outside a loop, so the tile is always the body of a
loop of two turns or more. The tiles' sums are integers. Hence results do not depend on the order of the rows, on
the block size or on the number of devices, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from dpmcmc.curator import processes
from dpmcmc.curator.batches import Batch, draw_rows
from dpmcmc.curator.kernels import TileKernel, join
from dpmcmc.curator.kernels.base import power_of_two
from dpmcmc.curator.tiles import Tile, stored
from dpmcmc.errors import QueryError
from dpmcmc.queries.lattice import MAX_TILE_ROWS

_AXIS = "records"
# How the curator's sums are compiled. The first two make the rounding of a record's floats independent of what stands
# around it; none costs speed here.
# - The algebraic simplifier rewrites floating-point expressions (x/exp(y) to x·exp(−y), say) in some modules and not
#   in others, depending on the number of devices.
# - YNNPACK fusions choose their order of operations by shape (and those of jaxlib 0.10.2 can crash without the
#   simplifier).
# - Integers are added by a plain loop, which the compiler vectorises, not by a tree.
# - Fast mathematics, which someone may have set in XLA_FLAGS, would do away with checks for NaN.
# - The newer fusion emitters of jaxlib 0.10.2 overflow their stack on some programs that were not simplified.
COMPILER_OPTIONS = {
    "xla_disable_hlo_passes": "algsimp,tree_reduction_rewriter",
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_enable_fast_math": False,
}


def make_mesh(devices: int | Sequence[jax.Device] | None) -> Mesh:
    """Turn ``devices`` (a number or a list; None: the first, or all if there are several processes) into a mesh."""
    available = jax.devices()
    if devices is None:
        chosen = available[:1] if jax.process_count() == 1 else available
    elif isinstance(devices, int) and not isinstance(devices, bool):
        if not 1 <= devices <= len(available):
            raise QueryError(f"devices = {devices}, but JAX sees {len(available)}; ask for 1 to {len(available)}")
        chosen = available[:devices]
    else:
        try:
            chosen = list(devices)  # type: ignore[arg-type]
        except TypeError:
            chosen = []
        if not chosen or not all(isinstance(device, jax.Device) for device in chosen):
            raise QueryError(f"devices = {devices!r} must be a number, or a list of JAX devices such as jax.devices()")
    if {device.process_index for device in chosen} != set(range(jax.process_count())):
        raise QueryError("devices leave a process without any; every process holds records, so give all jax.devices()")
    return Mesh(np.array(chosen), (_AXIS,))


def rows_of_processes(local: int) -> list[int]:
    """Return how many rows each process holds (public numbers)."""
    if jax.process_count() == 1:
        return [local]
    processes.meet()
    return [int(count) for count in np.ravel(multihost_utils.process_allgather(np.asarray(local, np.int32)))]


def total_rows(local: int) -> int:
    """Return how many rows all processes hold together."""
    return sum(rows_of_processes(local))


def is_first_process() -> bool:
    """Whether this process draws the noise: of several, only the first does; it is then agreed upon."""
    return jax.process_index() == 0


def agree_everywhere(mesh: Mesh, tree: Any) -> Any:
    """Return process 0's values, replicated on all devices; arrays that lie there already are left alone."""
    if jax.process_count() == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    # (Shapes to compile with need no agreement.)
    placed = [isinstance(leaf, jax.ShapeDtypeStruct) or _lies_on(mesh, leaf) for leaf in leaves]
    rest = iter(replicate(mesh, agree([leaf for leaf, there in zip(leaves, placed, strict=True) if not there])))
    joined = [leaf if there else next(rest) for leaf, there in zip(leaves, placed, strict=True)]
    return jax.tree.unflatten(structure, joined)


def _lies_on(mesh: Mesh, leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) == mesh.size


def agree(tree: Any) -> Any:
    """Return process 0's values of a tree of arrays, on every process."""
    if jax.process_count() == 1:
        return tree
    bare = jax.tree.map(lambda leaf: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf), tree)
    processes.meet()
    shared = multihost_utils.broadcast_one_to_all(bare)
    return jax.tree.map(lambda leaf, value: _as_key(value) if _is_key(leaf) else np.asarray(value), tree, shared)


def replicate(mesh: Mesh, tree: Any) -> Any:
    """Put a tree of arrays, equal on all processes, on all devices. (Within one process JAX does that itself.)"""
    if jax.process_count() == 1:
        return tree
    sharding = NamedSharding(mesh, P())

    def put(leaf: Any) -> Any:
        value = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        placed = jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])
        return _as_key(placed) if _is_key(leaf) else placed

    return jax.tree.map(put, tree)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_key(words: Any) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def largest_tile(num_records: int) -> int:
    """Return the most rows that a tile may have: a sixteenth of the records, so that padding stays small."""
    return int(2 ** np.clip(np.floor(np.log2(num_records / 16)), 7, np.log2(MAX_TILE_ROWS)))


class Layout(NamedTuple):
    """Where the rows are: rows of every process (padding not counted), and rows of every device (with it)."""

    counts: list[int]
    held: int
    mesh: Mesh

    @classmethod
    def choose(cls, counts: list[int], mesh: Mesh) -> Layout:
        """Spread rows evenly; the same whole number of tiles, two or more, on every device."""
        unit = largest_tile(sum(counts))
        owners = [device.process_index for device in mesh.devices]
        most = max(-(-count // owners.count(process)) for process, count in enumerate(counts))
        return cls(counts, max(2, -(-most // unit)) * unit, mesh)

    def first_rows(self) -> NDArray[np.int64]:
        """Return the number of the first row, in the order of processes, and how many there are, for each device."""
        spans, seen = [], dict.fromkeys(range(len(self.counts)), 0)
        for device in self.mesh.devices:
            process = device.process_index
            start = seen[process] * self.held
            here = min(max(self.counts[process] - start, 0), self.held)
            spans.append((sum(self.counts[:process]) + start, here))
            seen[process] += 1
        return np.array(spans, np.int64)


def pad_rows(kernel: TileKernel, records: Any, count: int, padded: int) -> Any:
    """Compute what depends on one record alone, and pad with zeros, masked out by the column ``real``."""

    def pad(column: Any) -> Any:
        array = np.asarray(column)
        whole = np.zeros((padded, *array.shape[1:]), array.dtype)
        whole[:count] = array
        return whole

    tile = Tile(real=None, rows=records, **kernel.prepare(records))
    return jax.tree.map(pad, tile)._replace(real=np.arange(padded) < count)


def place(kernel: TileKernel, records: Any, layout: Layout) -> Any:
    """Pad this process's rows and put them on its devices."""
    sharding = NamedSharding(layout.mesh, P(_AXIS))
    process = jax.process_index()
    local = layout.held * sum(device.process_index == process for device in layout.mesh.devices)
    tree = pad_rows(kernel, records, layout.counts[process], local)
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)
    whole = layout.held * layout.mesh.size
    return jax.tree.map(
        lambda leaf: jax.make_array_from_process_local_data(sharding, leaf, (whole, *leaf.shape[1:])), tree
    )


def sum_over_tiles(
    mesh: Mesh,
    kernel: TileKernel,
    num_records: int,
    tile_sum: Callable[..., Any],
    records: Any,
    *public: jax.Array,
    gradient: bool,
    width: int = 1,
    dtype: Any = jnp.int64,
) -> jax.Array:
    """Σ over all tiles and all devices of ``tile_sum(tile, *public)``, added in int64. ``public[0]`` is chains × d.

    ``gradient`` says whether ``tile_sum`` differentiates, or takes log-likelihoods, and ``width`` how many numbers of a
    record it holds at a time.

    (``dtype`` is float64 for the un-noised, not private sums of research runs, which are not whole numbers.)
    """
    num_chains = len(public[0])
    rows = min(kernel.tile_rows(num_chains), power_of_two(2**18 / (num_chains * width)), largest_tile(num_records))

    def load(local: Any, place: jax.Array, here: jax.Array) -> Any:
        def cut() -> Any:
            return kernel.cut(jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, place * rows, rows), local))

        tile = stored(cut, here) if kernel.stores_tiles or local.rows is not None else cut()
        return kernel.load(tile._replace(here=here), gradient)

    def on_one_device(local: Any, *public: jax.Array) -> jax.Array:
        num_tiles = len(local.real) // rows
        local = kernel.needs(local, gradient)

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
    layout: Layout,
    kernel: TileKernel,
    rows: int,
    batch_sum: Callable[..., jax.Array],
    records: Any,
    theta: jax.Array,
    batch: Batch,
) -> jax.Array:
    """Σ over each chain's batch of ``batch_sum(tile, theta)``, looking up ``rows`` rows a chain. O(batch) work."""

    def on_one_device(local: Any, theta: jax.Array, batch: Batch) -> jax.Array:
        start, held = jnp.asarray(layout.first_rows())[jax.lax.axis_index(_AXIS)]
        always = jnp.all(batch.size >= 0)

        def one_chain(key: jax.Array, size: jax.Array, theta: jax.Array) -> jax.Array:
            index, chosen = draw_rows(key, sum(layout.counts), rows, size)
            here = (index >= start) & (index < start + held)
            looked_up = jnp.where(here, index - start, 0)

            def cut() -> Any:
                return kernel.cut(jax.tree.map(lambda column: column[looked_up], kernel.needs_for_batches(local)))

            tile = stored(cut, always)._replace(real=chosen & here, here=always)
            tile = kernel.load(tile, True)
            return join(batch_sum(tile, theta[None]))[0]

        keys = jax.random.split(batch.key, len(theta))
        return jax.lax.psum(jax.vmap(one_chain)(keys, batch.size, theta), _AXIS)

    sharded = jax.shard_map(
        on_one_device, mesh=layout.mesh, in_specs=(P(_AXIS), P(), P()), out_specs=P(), check_vma=False
    )
    result: jax.Array = sharded(records, theta, batch)
    return result
