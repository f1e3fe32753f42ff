"""Evaluates a function of one record for many rows and chains at once, several times as fast as ``jax.vmap`` does.

Why ``vmap`` is slow here: a record's log-likelihood works on short vectors (three parameters, say). Under ``vmap`` they
stay the last axis of every array, chains × rows × 3, and a processor that computes with eight neighbouring numbers at a
time finds only three. Here every number gets an array of its own: three arrays of chains × rows, whose neighbours are
rows.

How: the function was traced to JAX's own little language (a jaxpr), and this module goes through it, operation by
operation, with one array in place of each number. It knows elementwise arithmetic, sums, products and moves of
elements. Two stages: what depends on the record alone is computed once for each row, before the run
(:meth:`Unpacked.stage`), the rest for every chain (:meth:`Unpacked.finish`). A function that does anything else, or too
much, is left to ``vmap``. No value is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from numpy.typing import NDArray

# A program of more scalar operations than this takes XLA longer to compile than unpacking saves.
MAX_OPERATIONS = 4000
# Primitives that do the same to every element: applied to an array of chains × rows, they do it to one number of each.
# fmt: off
_ELEMENTWISE = frozenset({
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0e",
    "bessel_i1e", "cbrt", "ceil", "clamp", "convert_element_type", "cos", "cosh", "digamma", "div", "eq",
    "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "igamma", "igammac", "integer_pow",
    "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg",
    "nextafter", "not", "or", "polygamma", "pow", "reduce_precision", "regularized_incomplete_beta", "rem",
    "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign",
    "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor", "zeta",
})
# fmt: on
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}
_CALLS |= {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "remat": "jaxpr", "checkpoint": "jaxpr"}
_FOLDS = {
    "reduce_sum": jax.lax.add_p,
    "reduce_prod": jax.lax.mul_p,
    "reduce_max": jax.lax.max_p,
    "reduce_min": jax.lax.min_p,
    "reduce_and": jax.lax.and_p,
    "reduce_or": jax.lax.or_p,
}

Cells = NDArray[Any]  # an object array: one entry for each scalar, a constant or an array of chains × rows


class _CannotUnpackError(Exception):
    """The function does something that this interpreter does not know."""


def columns_of(records: Any) -> list[list[jax.Array]]:
    """Cut arrays with a leading axis of rows into columns of 1 × rows; a list of them for each array."""
    return [
        [leaf.reshape(len(leaf), -1)[None, :, j] for j in range(int(np.prod(leaf.shape[1:], dtype=int)))]
        for leaf in jax.tree.leaves(records)
    ]


class Unpacked:
    """A function of a parameter vector and a record, as a program of scalars, in two stages.

    ``stage`` computes what depends on the record alone (once a row), ``finish`` the rest (once a row and chain).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> program = unpack(lambda theta, x: jnp.sum((x**2 - theta) ** 2), jnp.zeros(2), jnp.zeros(2))
    >>> staged = program.stage(columns_of(jnp.ones((5, 2))))
    >>> [value.shape for value in staged]
    [(1, 5), (1, 5)]
    >>> program.finish(jnp.zeros((3, 2)), staged).item().shape
    (3, 5)
    """

    def __init__(self, closed_jaxpr: Any, shapes: list[tuple[int, ...]], dimension: int) -> None:
        self._closed = closed_jaxpr
        self._shapes = shapes
        self._dimension = dimension

    def _evaluate(self, parameters: list[Any], columns: list[list[Any]], machine: _Machine) -> Cells:
        leaves = [_as_cells(column, shape) for column, shape in zip(columns, self._shapes, strict=True)]
        constants = [_constant(value) for value in self._closed.consts]
        arguments = [_as_cells(parameters, (self._dimension,)), *leaves]
        return machine.run(self._closed.jaxpr, constants, arguments)[0]

    def stage(self, columns: list[list[jax.Array]]) -> list[jax.Array]:
        """Return what the second stage needs of the records' columns (see :func:`columns_of`), each 1 × rows."""
        machine = _RecordStage()
        result = self._evaluate([_LATER] * self._dimension, columns, machine)
        for entry in result.flat:
            machine.keep(entry)
        return machine.kept

    def finish(self, theta: jax.Array, staged: list[jax.Array]) -> Cells:
        """Return an object array of the result's shape; its entries broadcast to chains × rows."""
        parameters = [theta[:, j, None] for j in range(self._dimension)]
        columns = [[_Known() for _ in range(int(np.prod(shape, dtype=int)))] for shape in self._shapes]
        machine = _ParameterStage(staged)
        result = self._evaluate(parameters, columns, machine)
        return _as_cells([machine.value(entry) for entry in result.flat], result.shape)


def unpack(function: Callable[..., Any], theta: Any, record: Any) -> Unpacked | None:
    """Rewrite ``function(theta, record)``, or return None where that is not possible.

    Parameters
    ----------
    function
        Returns one array, for one parameter vector and one record.
    theta, record
        Shapes and dtypes of its arguments.
    """
    closed = jax.make_jaxpr(function)(theta, record)
    if len(closed.jaxpr.outvars) != 1:
        return None
    leaves = jax.tree.leaves(record)
    program = Unpacked(closed, [leaf.shape for leaf in leaves], theta.shape[0])

    def mapped(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype)

    def both_stages(theta: jax.Array, records: Any) -> list[Any]:
        return list(program.finish(theta, program.stage(columns_of(records))).flat)

    try:
        jax.eval_shape(both_stages, mapped(theta), jax.tree.map(mapped, record))
    except _CannotUnpackError:
        return None
    return program


def _as_cells(entries: list[Any], shape: tuple[int, ...]) -> Cells:
    cells = np.empty(len(entries), object)
    for place, entry in enumerate(entries):  # not cells[:] = entries: NumPy would look inside the arrays
        cells[place] = entry
    return cells.reshape(shape)


def _constant(value: Any) -> Cells:
    array = np.asarray(value)
    return _as_cells([array.flat[place : place + 1].reshape(()) for place in range(array.size)], array.shape)


def _is_constant(entry: Any) -> bool:
    return isinstance(entry, np.ndarray | np.generic)


_LATER = object()  # first stage: a number that depends on the parameters


class _Known:
    """Second stage: a number that the first stage has computed."""


class _Machine:
    """Evaluates a jaxpr on cells; the stages differ in what they do with one elementary operation."""

    def __init__(self) -> None:
        self._operations_left = MAX_OPERATIONS

    def run(self, jaxpr: Any, constants: list[Cells], arguments: list[Cells]) -> list[Cells]:
        values: dict[Any, Cells] = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True),
        )

        def read(variable: Any) -> Cells:
            return _constant(variable.val) if isinstance(variable, core.Literal) else values[variable]

        for equation in jaxpr.eqns:
            outputs = self._apply(equation, [read(variable) for variable in equation.invars])
            values.update(zip(equation.outvars, outputs, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _apply(self, equation: Any, operands: list[Cells]) -> list[Cells]:
        name, params = equation.primitive.name, equation.params
        if name in _CALLS:
            inner = params[_CALLS[name]]
            if hasattr(inner, "jaxpr"):
                return self.run(inner.jaxpr, [_constant(value) for value in inner.consts], operands)
            return self.run(inner, [], operands)
        if name in _ELEMENTWISE:
            shape = equation.outvars[0].aval.shape
            spread = [np.broadcast_to(operand, shape) for operand in operands]
            cells = np.empty(shape, object)
            for place in np.ndindex(shape):
                cells[place] = self._step(equation.primitive, params, [operand[place] for operand in spread])
            return [cells]
        if name in _FOLDS:
            return [self._fold(_FOLDS[name], operands[0], params["axes"])]
        if name == "dot_general":
            target = equation.outvars[0].aval.dtype
            if target == jnp.bool_:
                raise _CannotUnpackError("matrix product of booleans")
            # Factors of different dtypes are converted first, as XLA does it.
            left, right = (
                self._converted(operand, variable.aval.dtype, target)
                for operand, variable in zip(operands, equation.invars, strict=True)
            )
            return [self._dot(left, right, params["dimension_numbers"])]
        return _move(name, params, operands, equation.outvars)

    def _fold(self, combine: Any, operand: Cells, axes: tuple[int, ...]) -> Cells:
        """Reduce over axes, in order."""
        kept = [axis for axis in range(operand.ndim) if axis not in axes]
        shape = tuple(operand.shape[axis] for axis in kept)
        flat = operand.transpose([*kept, *axes]).reshape(*shape, -1)
        if flat.shape[-1] == 0:
            raise _CannotUnpackError("reduction of nothing")
        cells = np.empty(shape, object)
        for place in np.ndindex(shape):
            cells[place] = reduce(lambda left, right: self._step(combine, {}, [left, right]), list(flat[place]))
        return cells

    def _converted(self, operand: Cells, source: Any, target: Any) -> Cells:
        if source == target:
            return operand
        params = {"new_dtype": target, "weak_type": False, "sharding": None}
        entries = [self._step(jax.lax.convert_element_type_p, params, [entry]) for entry in operand.flat]
        return _as_cells(entries, operand.shape)

    def _dot(self, left: Cells, right: Cells, dimensions: Any) -> Cells:
        (left_summed, right_summed), (left_batch, right_batch) = dimensions
        if left_batch or right_batch:
            raise _CannotUnpackError("batched matrix product")
        left_kept = [axis for axis in range(left.ndim) if axis not in left_summed]
        right_kept = [axis for axis in range(right.ndim) if axis not in right_summed]
        shape = (*(left.shape[axis] for axis in left_kept), *(right.shape[axis] for axis in right_kept))
        inner = int(np.prod([left.shape[axis] for axis in left_summed], dtype=int))
        if inner == 0:
            raise _CannotUnpackError("matrix product over nothing")
        rows = left.transpose([*left_kept, *left_summed]).reshape(-1, inner)
        columns = right.transpose([*right_kept, *right_summed]).reshape(-1, inner)
        cells = np.empty((len(rows), len(columns)), object)
        for i, j in np.ndindex(cells.shape):
            products = [self._step(jax.lax.mul_p, {}, [a, b]) for a, b in zip(rows[i], columns[j], strict=True)]
            cells[i, j] = reduce(lambda left, right: self._step(jax.lax.add_p, {}, [left, right]), products)
        return cells.reshape(shape)

    def _step(self, primitive: Any, params: dict[str, Any], entries: list[Any]) -> Any:
        """One operation on scalars."""
        if all(_is_constant(entry) for entry in entries):
            with jax.ensure_compile_time_eval():
                return np.asarray(primitive.bind(*map(jnp.asarray, entries), **params))
        # Derivatives are full of sums with zeros (of slices) and products with ones; XLA is told to leave them alone.
        if primitive.name in ("add", "add_any", "mul"):
            neutral = 1 if primitive.name == "mul" else 0
            for entry, other in (entries, entries[::-1]):
                if _is_constant(entry) and entry == neutral:
                    return other
        return self._operate(primitive, params, entries)

    def _operate(self, primitive: Any, params: dict[str, Any], entries: list[Any]) -> Any:
        raise NotImplementedError

    def _bind(self, primitive: Any, params: dict[str, Any], entries: list[Any]) -> Any:
        self._operations_left -= 1
        if self._operations_left < 0:
            raise _CannotUnpackError("too many operations")
        shape = np.broadcast_shapes(*(np.shape(entry) for entry in entries))
        return primitive.bind(*(jnp.broadcast_to(jnp.asarray(entry), shape) for entry in entries), **params)


class _RecordStage(_Machine):
    """Computes what does not depend on the parameters, and keeps what will meet them."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[jax.Array] = []
        self._places: dict[int, int] = {}

    def keep(self, entry: Any) -> None:
        if entry is not _LATER and not _is_constant(entry) and id(entry) not in self._places:
            self._places[id(entry)] = len(self.kept)
            self.kept.append(entry)

    def _operate(self, primitive: Any, params: dict[str, Any], entries: list[Any]) -> Any:
        if any(entry is _LATER for entry in entries):
            for entry in entries:
                self.keep(entry)
            return _LATER
        return self._bind(primitive, params, entries)


class _ParameterStage(_Machine):
    """Goes the same way again, taking what was kept in the order in which it was kept."""

    def __init__(self, kept: list[jax.Array]) -> None:
        super().__init__()
        self._kept = iter(kept)
        self._values: dict[int, tuple[_Known, jax.Array]] = {}

    def value(self, entry: Any) -> Any:
        if not isinstance(entry, _Known):
            return entry
        if id(entry) not in self._values:
            self._values[id(entry)] = (entry, next(self._kept))  # the entry is held, so that its id stays its own
        return self._values[id(entry)][1]

    def _operate(self, primitive: Any, params: dict[str, Any], entries: list[Any]) -> Any:
        if all(isinstance(entry, _Known) or _is_constant(entry) for entry in entries):
            return _Known()
        return self._bind(primitive, params, [self.value(entry) for entry in entries])


def _move(name: str, params: dict[str, Any], operands: list[Cells], outputs: Any) -> list[Cells]:
    """Primitives that put elements elsewhere."""
    operand = operands[0] if operands else np.empty(0, object)
    match name:
        case "broadcast_in_dim":
            shape = [1] * len(params["shape"])
            for axis, place in enumerate(params["broadcast_dimensions"]):
                shape[place] = operand.shape[axis]
            return [np.broadcast_to(operand.reshape(shape), params["shape"])]
        case "reshape" | "squeeze" | "expand_dims":
            return [operand.reshape(outputs[0].aval.shape)]
        case "copy" | "copy_p" | "optimization_barrier" | "stop_gradient":
            return operands
        case "transpose":
            return [operand.transpose(params["permutation"])]
        case "rev":
            return [np.flip(operand, params["dimensions"])]
        case "concatenate":
            return [np.concatenate(operands, params["dimension"])]
        case "stack":
            return [np.stack(operands, params["axis"])]
        case "unstack":
            return [np.take(operand, [j], params["axis"]).reshape(out.aval.shape) for j, out in enumerate(outputs)]
        case "split":
            return list(np.split(operand, np.cumsum(params["sizes"])[:-1], params["axis"]))
        case "slice":
            strides = params["strides"] or [1] * operand.ndim
            pieces = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
            return [operand[tuple(slice(*piece) for piece in pieces)]]
        case "pad":
            return [_pad(operand, operands[1], params["padding_config"], outputs[0].aval.shape)]
        case "iota":
            numbers = np.arange(params["shape"][params["dimension"]], dtype=params["dtype"])
            spread = numbers.reshape([-1 if axis == params["dimension"] else 1 for axis in range(len(params["shape"]))])
            return [_constant(np.broadcast_to(spread, params["shape"]))]
    raise _CannotUnpackError(name)


def _pad(operand: Cells, value: Cells, config: Any, shape: tuple[int, ...]) -> Cells:
    # Padding of a negative width takes elements away.
    taken = tuple(
        slice(max(0, -int(low)), size - max(0, -int(high)))
        for (low, high, _), size in zip(config, operand.shape, strict=True)
    )
    if any(int(gap) and (int(low) < 0 or int(high) < 0) for low, high, gap in config):
        raise _CannotUnpackError("negative padding with gaps")
    operand = operand[taken]
    padded = np.empty(shape, object)
    for place in np.ndindex(shape):
        padded[place] = value[()]
    inner = tuple(
        slice(max(0, int(low)), max(0, int(low)) + size + max(0, size - 1) * int(gap), int(gap) + 1)
        for (low, _, gap), size in zip(config, operand.shape, strict=True)
    )
    padded[inner] = operand
    return padded
