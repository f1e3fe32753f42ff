"""Any model: its log-likelihood and gradient were traced for one record, and are evaluated for all rows and chains."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from numpy.typing import NDArray

from dpmcmc.curator.integers import add_integers, integer_of, margin, sum_of_squares, to_whole
from dpmcmc.curator.kernels.base import TileKernel, arithmetic_of, power_of_two
from dpmcmc.curator.kernels.unpacked import Unpacked, columns_of, unpack
from dpmcmc.curator.tiles import Stages, Tile, stored
from dpmcmc.models import Model, allowed

# Rows of a slice in which what depends on the records alone is computed.
_STAGE_ROWS = 1024


class AutodiffKernel(TileKernel):
    """Any model: reverse-mode differentiation of one record's log-likelihood, for all rows and chains at once.

    Where the model allows it (see :mod:`~dpmcmc.curator.unpacked`), each coordinate is an array of its own.
    """

    def __init__(self, model: Model, records: Any, traced: allowed.Traced | None = None) -> None:
        self.dimension = model.dimension
        self.precision = arithmetic_of(model, records)
        structure = _arguments_of(model, records)
        # The model's own Python code does not run after this: what was checked is what is evaluated.
        traced = trace(model, records) if traced is None else traced
        self._value, self._gradient = map(_as_function, traced)
        self._unpacked_value = unpack(self._value, *structure)
        self._unpacked_gradient = unpack(self._gradient, *structure)
        # Slices of vectors are as good as vectors.
        self.stores_tiles = self._unpacked_gradient is None or self._unpacked_value is None
        self._stages: tuple[Callable[[Any], list[jax.Array]], ...] | None = None
        if self._unpacked_gradient is not None and self._unpacked_value is not None:
            self._stages = (_compiled_stage(self._unpacked_gradient), _compiled_stage(self._unpacked_value))

        self._curvature: Callable[[jax.Array, Any], jax.Array] | None = None

    def with_curvature(self, closed: Any) -> AutodiffKernel:
        """Return a kernel that knows the second derivatives too, traced and checked. It maps rows, unpacking none."""
        kernel = copy(self)
        kernel._curvature = _as_function(closed)
        kernel._unpacked_value = kernel._unpacked_gradient = kernel._stages = None
        kernel.stores_tiles = True
        return kernel

    def prepare(self, records: Any) -> dict[str, Stages]:
        """Run the record's stage of the unpacked programs: a column for each number that it hands on."""
        if self._stages is None:
            return {}
        return {"stages": Stages(*(stage_columns(stage, records) for stage in self._stages))}

    def needs(self, records: Tile, gradient: bool) -> Tile:
        """Take the prepared columns if there are any, else the rows."""
        if records.stages is None or self._stages is None:
            return Tile(records.real, rows=records.rows)
        return Tile(records.real, staged=records.stages.for_gradient if gradient else records.stages.for_value)

    def needs_for_batches(self, records: Tile) -> Tile:
        """Take the rows: looking up prepared columns would take longer than computing them again."""
        return Tile(records.real, rows=records.rows)

    def cut(self, tile: Tile) -> Tile:
        """Cut rows into columns."""
        if self._unpacked_gradient is None or self._unpacked_value is None:
            return tile
        if tile.staged is not None:
            return Tile(tile.real, staged=[column[None] for column in tile.staged])
        return Tile(tile.real, columns=columns_of(tile.rows))

    def load(self, tile: Tile, gradient: bool) -> Tile:
        """Run the record's stage of the unpacked program, unless that was done before."""
        program, columns = self._unpacked_gradient if gradient else self._unpacked_value, tile.columns
        if program is None or columns is None:
            return tile
        return tile._replace(staged=stored(lambda: program.stage(columns), tile.here))

    def tile_rows(self, num_chains: int) -> int:
        """Aim at 2^18 numbers an operation (as measured), or at gradients of 2 MiB where they are not unpacked."""
        if self._unpacked_gradient is not None:
            return power_of_two(2**18 / num_chains)
        return power_of_two(2**18 / (num_chains * self.dimension))

    def log_likelihood(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Map the model's record log-likelihood."""
        theta = theta.astype(self.precision)
        if self._unpacked_value is not None and tile.staged is not None:
            value = self._unpacked_value.finish(theta, tile.staged).item()
            return jnp.broadcast_to(value, (len(theta), tile.real.size)).astype(self.precision)
        over_rows = jax.vmap(self._value, in_axes=(None, 0))
        values: jax.Array = jax.vmap(over_rows, in_axes=(0, None))(theta, tile.rows)
        return values.astype(self.precision)

    def scores(self, tile: Tile, theta: jax.Array) -> list[jax.Array]:
        """Map its gradient."""
        theta = theta.astype(self.precision)
        if self._unpacked_gradient is not None and tile.staged is not None:
            cells = self._unpacked_gradient.finish(theta, tile.staged)
            shape = len(theta), tile.real.size
            return [jnp.broadcast_to(cell, shape).astype(self.precision) for cell in cells]
        over_rows = jax.vmap(self._gradient, in_axes=(None, 0))
        values = jax.vmap(over_rows, in_axes=(0, None))(theta, tile.rows).astype(self.precision)
        return [values[..., j] for j in range(self.dimension)]

    def curvatures(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Map minus the second derivatives: chains × d × d × B."""
        assert self._curvature is not None
        over_rows = jax.vmap(self._curvature, in_axes=(None, 0), out_axes=-1)
        return jax.vmap(over_rows, in_axes=(0, None))(theta.astype(self.precision), tile.rows)

    def gradient_sum_not_private(self, tile: Tile, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> Any:
        """Return the same parts, several times as fast, and one more: how many records would have been clipped.

        If there are any, the sum is worthless. A caller that then takes the other way lets the running time follow the
        records: for noise-free research runs only.
        """
        step, limit, bits, unit = self.lattice(spacing, bound)
        per_step = jnp.where(tile.real, 1.0 / step, 0.0)  # padding counts for nothing
        scaled = [score * per_step for score in self.scores(tile, theta)]
        room = limit * (1.0 - margin(len(scaled), self.precision)) - 0.5 * len(scaled) ** 0.5
        whole = [integer_of(to_whole(coordinate)) for coordinate in scaled]
        # Not the other way round: a comparison with NaN is false.
        clipped = jnp.where(sum_of_squares(scaled) <= room * room, 0, 1).astype(whole[0].dtype)
        *totals, clipped = add_integers([*whole, clipped], bits)
        return [*(total * unit for total in totals), clipped]


def trace(model: Model, records: Any) -> allowed.Traced:
    """Trace and check a model's log-likelihood and its gradient, in the precision that these records ask for."""
    return allowed.trace_likelihood(model.unconstrained_log_likelihood, *_arguments_of(model, records))


def trace_curvature(model: Model, records: Any) -> Any:
    """Trace and check minus the second derivatives of a model's log-likelihood, likewise."""
    return allowed.trace_curvature(model.unconstrained_log_likelihood, *_arguments_of(model, records))


def _arguments_of(model: Model, records: Any) -> tuple[jax.ShapeDtypeStruct, Any]:
    """Return shapes and dtypes of the arguments of a log-likelihood: a parameter vector and one record."""
    record = jax.tree.map(lambda column: jax.ShapeDtypeStruct(column.shape[1:], column.dtype), records)
    return jax.ShapeDtypeStruct((model.dimension,), arithmetic_of(model, records)), record


def _as_function(closed: Any) -> Callable[[jax.Array, Any], jax.Array]:
    """Return a traced program as the function of a parameter vector and a record that it was."""
    evaluate = core.jaxpr_as_fun(closed)

    def function(theta: jax.Array, record: Any) -> jax.Array:
        (result,) = evaluate(theta, *jax.tree.leaves(record))
        return result

    return function


def _compiled_stage(program: Unpacked) -> Callable[[Any], list[jax.Array]]:
    """Return the record's stage of a program for slices × rows, slice by slice: compiled once for each shape."""
    return jax.jit(lambda slices: jax.lax.map(lambda rows: program.stage(columns_of(rows)), slices))


def stage_columns(stage: Callable[[Any], list[jax.Array]], records: Any) -> list[NDArray[Any]]:
    """Return what a compiled stage computes of all rows, a vector for each number.

    In slices of a fixed size and always in a loop, so that a row's numbers do not depend on how many others there are.
    """
    count = len(jax.tree.leaves(records)[0])
    num_slices = max(2, -(-count // _STAGE_ROWS))

    def slices(column: Any) -> NDArray[Any]:
        padded = np.zeros((num_slices * _STAGE_ROWS, *column.shape[1:]), column.dtype)
        padded[:count] = column
        return padded.reshape(num_slices, _STAGE_ROWS, *column.shape[1:])

    return [np.asarray(column).reshape(-1)[:count] for column in stage(jax.tree.map(slices, records))]
