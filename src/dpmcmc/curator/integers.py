"""Clipping to a lattice, in exact integers: what turns a record's floats into what it contributes.

A float may be rounded in any way on its road to the integer: the bound is checked on the integer itself, and a record
that fails the check, or that is NaN or infinite anywhere, contributes exactly 0.

| record's quantity                       | contributes                                       |
|-----------------------------------------|---------------------------------------------------|
| norm ≤ C                                | itself, rounded to the lattice                    |
| norm > C                                | its direction at norm C                           |
| zero                                    | zero                                              |
| NaN or ±inf anywhere                    | zero, and changes no other record's contribution  |
| so long that its squared norm overflows | zero (not in regressions): beyond about 10^13·C   |
|                                         | in float32, 10^140·C in float64                   |
| padding                                 | zero                                              |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.curator.tiles import Tile, stored

_UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}
# A record's integers are multiples of K/2^bits, so that they fit a float's mantissa. The noise lives on the finest
# lattice all the same: coarser contributions change neither sensitivity nor cost.
CONTRIBUTION_BITS = {"float32": 20, "float64": 40}
# Adding this number to a smaller one rounds it to a whole number, which then stands in the last bits of the sum.
_ROUNDER = {"float32": 1.5 * 2.0**23, "float64": 1.5 * 2.0**52}


def contribution_unit(bound: jax.Array, bits: int) -> jax.Array:
    """Return the power of two whose multiples a record contributes: 1, or what leaves ``bits`` bits below ``bound``."""
    _, exponent = jnp.frexp(bound)
    return jnp.ldexp(jnp.ones_like(bound), jnp.maximum(exponent - 1 - bits, 0))


def to_whole(values: jax.Array) -> jax.Array:
    """Round to whole numbers, which then stand in the last bits: ``_ROUNDER`` is added.

    Conversions to integers would take many more instructions.
    """
    return values + _ROUNDER[values.dtype.name]


def float_of(rounded: jax.Array) -> jax.Array:
    """Return the whole number in ``to_whole`` values as a float, exactly."""
    return rounded - _ROUNDER[rounded.dtype.name]


def integer_of(rounded: jax.Array) -> jax.Array:
    """Return the whole number in ``to_whole`` values as an integer of as many bits."""
    kind = jnp.int32 if rounded.dtype == jnp.float32 else jnp.int64
    offset = np.asarray(_ROUNDER[rounded.dtype.name], rounded.dtype).view(np.dtype(kind))
    return jax.lax.bitcast_convert_type(rounded, kind) - offset


def add_integers(integers: Sequence[jax.Array], bits: int) -> list[jax.Array]:
    """Add integers of at most ``bits`` bits over the last axis of each array, exactly.

    Integers, since the compiler may then add eight rows at a time: their order does not matter. All arrays in one
    reduction, so that what they have in common is computed once.
    """

    def add(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        zeros = [jnp.zeros((), array.dtype) for array in arrays]
        return list(jax.lax.reduce(list(arrays), zeros, _plus, (arrays[0].ndim - 1,)))

    if integers[0].dtype == jnp.int32:
        piece = math.gcd(integers[0].shape[-1], 2 ** (30 - bits))
        pieces = add([one.reshape(*one.shape[:-1], one.shape[-1] // piece, piece) for one in integers])
        integers = [one.astype(jnp.int64) for one in pieces]
    return add(integers)


def _plus(left: list[jax.Array], right: list[jax.Array]) -> list[jax.Array]:
    """Add arrays one by one. (Not a function made anew for each trace: JAX keeps all that it has reduced by.)"""
    return [one + other for one, other in zip(left, right, strict=True)]


def clip_to_lattice(
    compute: Callable[[], Sequence[jax.Array]], spacing: jax.Array, bound: jax.Array, tile: Tile
) -> list[jax.Array]:
    """Clip vectors to norm γK and round them to integers of norm ≤ K, exactly.

    The scaling leaves room for the rounding to integers (√d/2) and of floats; the final check is on the integers:
    their squared norm is computed with relative error below (d+2)·u, u the unit roundoff, and compared with K²
    lowered by twice that, so what passes is within the bound in exact arithmetic.

    Parameters
    ----------
    compute
        Returns d arrays, one for each coordinate, all float32 or all float64.
    spacing, bound
        γ and K in the same precision; K is a whole number, at most 2^20 in float32 and 2^40 in float64.
    tile
        Says which rows are records (the rest is padding).

    Returns
    -------
    d arrays of integers, 0 where a record does not count.
    """
    precision = spacing.dtype

    def clipped() -> list[jax.Array]:
        vectors = compute()
        per_step = 1.0 / spacing
        scaled = [vector * per_step for vector in vectors]
        squares = sum_of_squares(scaled)
        # A lattice as coarse as that (in tests) has room for nothing but zeros.
        target = jnp.maximum(bound * (1.0 - 2.0 * margin(len(vectors), precision)) - 0.5 * len(vectors) ** 0.5, 0.0)
        # What is not finite gets a factor of 0 (a comparison with NaN is false). All of it goes into the root, since
        # the compiler computes anything cheaper again for every coordinate.
        longer = jnp.where(squares > target * target, squares, target * target)
        factor = target / jnp.sqrt(jnp.where(squares < jnp.inf, longer, jnp.inf))
        return [to_whole(jnp.where(factor > 0.0, coordinate * factor, 0.0)) for coordinate in scaled]

    rounded = stored(clipped, tile.here)
    squares = sum_of_squares([float_of(coordinate) for coordinate in rounded])
    counts = tile.real & (squares <= bound * bound * (1.0 - margin(len(rounded), precision)))
    return [jnp.where(counts, integer_of(coordinate), 0) for coordinate in rounded]


def clip_stacked(
    compute: Callable[[], jax.Array],
    spacing: jax.Array,
    bound: jax.Array,
    tile: Tile,
    weights: NDArray[np.float64] | None = None,
) -> jax.Array:
    """Do the same to vectors that are one array, chains × m × rows: for long ones, and for symmetric matrices.

    Parameters
    ----------
    compute
        Returns chains × m × rows, float64.
    spacing, bound, tile
        As above; K is at most 2^40.
    weights
        Of the squares of the m numbers in the norm, whole numbers; default: 1.

    Returns
    -------
    Integers, chains × m × rows, 0 where a record does not count.
    """

    def norms(vectors: jax.Array) -> jax.Array:
        squares = vectors * vectors
        return jnp.sum(squares if weights is None else squares * weights[:, None], axis=1)

    length = jax.eval_shape(compute).shape[1]
    total_weight = length if weights is None else float(np.sum(weights))

    def clipped() -> jax.Array:
        scaled = compute() * (1.0 / spacing)
        squares = norms(scaled)
        # Rounding moves every number by at most ½, and the norm by at most half the root of all weights.
        target = jnp.maximum(bound * (1.0 - 2.0 * margin(length, spacing.dtype)) - 0.5 * total_weight**0.5, 0.0)
        longer = jnp.where(squares > target * target, squares, target * target)
        factor = (target / jnp.sqrt(jnp.where(squares < jnp.inf, longer, jnp.inf)))[:, None]
        return to_whole(jnp.where(factor > 0.0, scaled * factor, 0.0))

    rounded = stored(clipped, tile.here)
    counts = tile.real & (norms(float_of(rounded)) <= bound * bound * (1.0 - margin(length, spacing.dtype)))
    return jnp.where(counts[:, None], integer_of(rounded), 0)


def margin(dimension: int, precision: Any) -> float:
    """Return twice the largest relative error of a sum of squares, and more."""
    return 4.0 * (dimension + 8) * _UNIT_ROUNDOFF[jnp.dtype(precision).name]


def limit_to(values: jax.Array, largest: jax.Array | float) -> jax.Array:
    """Clip to ±largest; NaN stays. (``jnp.clip`` spends more instructions on NaN.)"""
    values = jnp.where(values > largest, largest, values)
    return jnp.where(values < -largest, -largest, values)


def sum_of_squares(values: Sequence[jax.Array]) -> jax.Array:
    """Add squares, in order."""
    total = values[0] * values[0]
    for value in values[1:]:
        total = total + value * value
    return total


def ratio_sum(ratio: jax.Array, spacing: jax.Array, bound: jax.Array, real: jax.Array) -> jax.Array:
    """Σ over rows of log-ratios, each rounded to the nearest lattice point and clipped to ±K, in int64.

    ``ratio`` is chains × rows; ``spacing`` and ``bound`` are one number a chain. A record contributes a multiple of
    K/2^20 in float32, K/2^40 in float64, so that what rounding adds is far below a record's own rounding errors.
    """
    bits = CONTRIBUTION_BITS[ratio.dtype.name]
    unit = contribution_unit(bound, bits)
    limit = jnp.floor(bound / unit)[:, None]  # below 2^(bits + 1)
    scaled = limit_to(ratio * (1.0 / (spacing * unit))[:, None].astype(ratio.dtype), limit.astype(ratio.dtype))
    # NaN and infinities count for nothing: comparisons with NaN are false.
    integers = integer_of(to_whole(jnp.where(real & (jnp.abs(ratio) < jnp.inf), scaled, 0.0)))
    # Again as integers, where nothing can be rounded.
    limit = limit.astype(integers.dtype)
    (total,) = add_integers([jnp.clip(integers, -limit, limit)], bits + 1)
    return total * unit.astype(jnp.int64)


def row_sums(values: jax.Array) -> jax.Array:
    """Add float64 over the last axis, as a matrix product: of a plain sum the compiler keeps the order, one by one."""
    return values @ jnp.ones(values.shape[-1])


def all_finite(values: Sequence[jax.Array]) -> jax.Array:
    """Whether every coordinate is finite, for each chain and row."""
    counts = jnp.isfinite(values[0])
    for value in values[1:]:
        counts = counts & jnp.isfinite(value)
    return counts
