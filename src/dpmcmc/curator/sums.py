"""The clipped per-record sums, in exact integers: the only code that computes with records.

A *kernel* evaluates a model on one tile of rows for all chains at once. The functions below turn per-record
floats into integers with an enforced bound and add them up. A float may be rounded in any way on its road to
the integer: the bound is checked on the integer itself, and a record that fails the check, or that is NaN or
infinite anywhere, contributes exactly 0.

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
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from numpy.typing import NDArray

from dpmcmc.curator.unpacked import Unpacked, columns_of, unpack
from dpmcmc.models import (
    Banana,
    GaussianMean,
    LinearRegression,
    LogisticRegression,
    Model,
    NegativeBinomialRegression,
    PoissonRegression,
    RegressionModel,
    allowed,
)

# {"rows": the model's records, "real": which rows are records, "here": true, and what a kernel's prepare adds}
Tile = dict[str, Any]

# Larger finite values are brought down to this first, so that squares cannot overflow.
_HUGE = {"float32": 1e15, "float64": 1e120}
_UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}
# A record's integers are multiples of K/2^bits, so that they fit a float's mantissa. The noise lives on the finest
# lattice all the same: coarser contributions change neither sensitivity nor cost.
_CONTRIBUTION_BITS = {"float32": 20, "float64": 40}
# Adding this number to a smaller one rounds it to a whole number, which then stands in the last bits of the sum.
_ROUNDER = {"float32": 1.5 * 2.0**23, "float64": 1.5 * 2.0**52}
# Bits of a design row's largest entry on its own grid; the rest of the 40 is left to the coefficient.
_DESIGN_BITS = 20
_FAMILIES = (LinearRegression, LogisticRegression, PoissonRegression, NegativeBinomialRegression)
# Rows of a slice in which what depends on the records alone is computed.
_STAGE_ROWS = 1024
# With more groups than this, adding by index is cheaper than a matrix product with indicators.
_MAX_INDICATORS = 128


def contribution_unit(bound: jax.Array, bits: int) -> jax.Array:
    """Return the power of two whose multiples a record contributes: 1, or what leaves ``bits`` bits below ``bound``."""
    _, exponent = jnp.frexp(bound)
    return jnp.ldexp(jnp.ones_like(bound), jnp.maximum(exponent - 1 - bits, 0))


def _rounded(values: jax.Array) -> jax.Array:
    """Round to whole numbers and add ``_ROUNDER``. Conversions to integers take many more instructions than this."""
    return values + _ROUNDER[values.dtype.name]


def _float_of(rounded: jax.Array) -> jax.Array:
    """Return the whole number in ``_rounded`` values as a float, exactly."""
    return rounded - _ROUNDER[rounded.dtype.name]


def _integer_of(rounded: jax.Array) -> jax.Array:
    """Return the whole number in ``_rounded`` values as an integer of as many bits."""
    kind = jnp.int32 if rounded.dtype == jnp.float32 else jnp.int64
    offset = np.asarray(_ROUNDER[rounded.dtype.name], rounded.dtype).view(np.dtype(kind))
    return jax.lax.bitcast_convert_type(rounded, kind) - offset


def _add_integers(integers: Sequence[jax.Array], bits: int) -> list[jax.Array]:
    """Add integers of at most ``bits`` bits over the last axis of each array, exactly.

    Integers, since the compiler may then add eight rows at a time: their order does not matter. All arrays in one
    reduction, so that what they have in common is computed once.
    """

    def add(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        zeros = [jnp.zeros((), array.dtype) for array in arrays]

        def plus(left: list[jax.Array], right: list[jax.Array]) -> list[jax.Array]:
            return [one + other for one, other in zip(left, right, strict=True)]

        return list(jax.lax.reduce(list(arrays), zeros, plus, (arrays[0].ndim - 1,)))

    if integers[0].dtype == jnp.int32:
        piece = math.gcd(integers[0].shape[-1], 2 ** (30 - bits))
        pieces = add([one.reshape(*one.shape[:-1], one.shape[-1] // piece, piece) for one in integers])
        integers = [one.astype(jnp.int64) for one in pieces]
    return add(integers)


def stored(fresh: Callable[[], Any], here: jax.Array) -> Any:
    """Return ``fresh()``, computed once and stored before anything uses it. ``here`` is true; the compiler cannot know.

    The compiler likes to compute a value again wherever it is used, and may round it differently there. What a
    conditional returns is never computed again: so what is checked is what is added. (And a slice of the records that
    is merged into the loop that uses it would be looked up again for every element, one at a time.)
    """
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(fresh))
    return jax.lax.cond(here, fresh, lambda: zeros)


def _once(counts: jax.Array) -> jax.Array:
    """Return 1 where a record counts and 0 elsewhere, by a division, which the compiler does only once."""
    return 1.0 / jnp.where(counts, 1.0, jnp.inf).astype(jnp.float32)


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
        squares = _sum_of_squares(scaled)
        # A lattice as coarse as that (in tests) has room for nothing but zeros.
        target = jnp.maximum(bound * (1.0 - 2.0 * _margin(len(vectors), precision)) - 0.5 * len(vectors) ** 0.5, 0.0)
        # What is not finite gets a factor of 0 (a comparison with NaN is false). All of it goes into the root, since
        # the compiler computes anything cheaper again for every coordinate.
        longer = jnp.where(squares > target * target, squares, target * target)
        factor = target / jnp.sqrt(jnp.where(squares < jnp.inf, longer, jnp.inf))
        return [_rounded(jnp.where(factor > 0.0, coordinate * factor, 0.0)) for coordinate in scaled]

    rounded = stored(clipped, tile["here"])
    squares = _sum_of_squares([_float_of(coordinate) for coordinate in rounded])
    counts = tile["real"] & (squares <= bound * bound * (1.0 - _margin(len(rounded), precision)))
    return [jnp.where(counts, _integer_of(coordinate), 0) for coordinate in rounded]


def _margin(dimension: int, precision: Any) -> float:
    """Return twice the largest relative error of a sum of squares, and more."""
    return 4.0 * (dimension + 8) * _UNIT_ROUNDOFF[jnp.dtype(precision).name]


def _limit(values: jax.Array, largest: jax.Array | float) -> jax.Array:
    """Clip to ±largest; NaN stays. (``jnp.clip`` spends more instructions on NaN.)"""
    values = jnp.where(values > largest, largest, values)
    return jnp.where(values < -largest, -largest, values)


def _sum_of_squares(values: Sequence[jax.Array]) -> jax.Array:
    total = values[0] * values[0]
    for value in values[1:]:
        total = total + value * value
    return total


def ratio_sum(ratio: jax.Array, spacing: jax.Array, bound: jax.Array, real: jax.Array) -> jax.Array:
    """Σ over rows of log-ratios, each rounded to the nearest lattice point and clipped to ±K, in int64.

    ``ratio`` is chains × rows; ``spacing`` and ``bound`` are one number a chain. A record contributes a multiple of
    K/2^20 in float32, K/2^40 in float64, so that what rounding adds is far below a record's own rounding errors.
    """
    bits = _CONTRIBUTION_BITS[ratio.dtype.name]
    unit = contribution_unit(bound, bits)
    limit = jnp.floor(bound / unit)[:, None]  # below 2^(bits + 1)
    scaled = _limit(ratio * (1.0 / (spacing * unit))[:, None].astype(ratio.dtype), limit.astype(ratio.dtype))
    # NaN and infinities count for nothing: comparisons with NaN are false.
    integers = _integer_of(_rounded(jnp.where(real & (jnp.abs(ratio) < jnp.inf), scaled, 0.0)))
    # Again as integers, where nothing can be rounded.
    limit = limit.astype(integers.dtype)
    (total,) = _add_integers([jnp.clip(integers, -limit, limit)], bits + 1)
    return total * unit.astype(jnp.int64)


class Kernel(Protocol):
    """How a model is evaluated on a tile: theta is chains × d, a tile has B rows.

    ``stores_tiles`` says whether a tile is copied out of the records before it is used.
    """

    stores_tiles: bool

    def prepare(self, records: Any) -> dict[str, Any]:
        """Compute on the host, once, what depends on one record alone. Leading axis: records."""
        ...

    def needs(self, records: Tile, gradient: bool) -> Tile:
        """Choose what a pass over all records needs, for gradients or for log-likelihoods."""
        ...

    def cut(self, tile: Tile) -> Tile:
        """Rearrange a tile as it is cut out of the records."""
        ...

    def load(self, tile: Tile, gradient: bool) -> Tile:
        """Compute, and store, what depends on the records alone, for gradients or for log-likelihoods."""
        ...

    def tile_rows(self, num_chains: int) -> int:
        """Choose the rows of a tile, a power of two from 128 to 8192: a function of public shapes."""
        ...

    def log_likelihood(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Return chains × B, in the kernel's precision."""
        ...

    def scores(self, tile: Tile, theta: jax.Array) -> list[jax.Array]:
        """Return gradients with respect to theta: d arrays of chains × B."""
        ...

    def gradient_sum(self, tile: Tile, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> Any:
        """Return the sum over the tile of the clipped integer gradients, int64: parts that ``join`` puts together.

        Parts are added up one by one: joined too early, the compiler would compute them all again for each.
        """
        ...


def arithmetic_of(model: Model, records: Any) -> Any:
    """Return the precision to compute in: float32 if that is what every floating column of the records has.

    (And if the model does not object.) A public rule: it looks at dtypes only.
    """
    floating = {np.dtype(leaf.dtype) for leaf in jax.tree.leaves(records) if leaf.dtype.kind == "f"}
    return jnp.float32 if floating == {np.dtype(np.float32)} and model.float32_suffices else jnp.float64


class AutodiffKernel:
    """Any model: reverse-mode differentiation of one record's log-likelihood, for all rows and chains at once.

    Where the model allows it (see :mod:`~dpmcmc.curator.unpacked`), each coordinate is an array of its own.
    """

    def __init__(self, model: Model, records: Any, traced: allowed.Traced | None = None) -> None:
        self.model = model
        self.precision = arithmetic_of(model, records)
        structure = _arguments_of(model, records)
        # The model's own Python code does not run after this: what was checked is what is evaluated.
        traced = trace(model, records) if traced is None else traced
        self._value, self._gradient = map(_as_function, traced)
        self._unpacked_value = unpack(self._value, *structure)
        self._unpacked_gradient = unpack(self._gradient, *structure)
        # Slices of vectors are as good as vectors.
        self.stores_tiles = self._unpacked_gradient is None or self._unpacked_value is None
        self._stages = {}
        if self._unpacked_gradient is not None and self._unpacked_value is not None:
            programs = {"for_gradient": self._unpacked_gradient, "for_value": self._unpacked_value}
            self._stages = {name: _compiled_stage(program) for name, program in programs.items()}

    def prepare(self, records: Any) -> dict[str, Any]:
        """Run the record's stage of the unpacked programs: a column for each number that it hands on."""
        return {name: stage_columns(stage, records) for name, stage in self._stages.items()}

    def needs(self, records: Tile, gradient: bool) -> Tile:
        """Take the prepared columns if there are any, else the rows."""
        columns = records.get("for_gradient" if gradient else "for_value")
        return {"real": records["real"], **({"rows": records["rows"]} if columns is None else {"staged": columns})}

    def cut(self, tile: Tile) -> Tile:
        """Cut rows into columns."""
        if self._unpacked_gradient is None or self._unpacked_value is None:
            return tile
        if "staged" in tile:
            return {"real": tile["real"], "staged": [column[None] for column in tile["staged"]]}
        return {"real": tile["real"], "columns": columns_of(tile["rows"])}

    def load(self, tile: Tile, gradient: bool) -> Tile:
        """Run the record's stage of the unpacked program, unless that was done before."""
        program = self._unpacked_gradient if gradient else self._unpacked_value
        if program is None or "columns" not in tile:
            return tile
        return {**tile, "staged": stored(lambda: program.stage(tile["columns"]), tile["here"])}

    def tile_rows(self, num_chains: int) -> int:
        """Aim at 2^18 numbers an operation (as measured), or at gradients of 2 MiB where they are not unpacked."""
        if self._unpacked_gradient is not None:
            return _power_of_two(2**18 / num_chains)
        return _power_of_two(2**18 / (num_chains * self.model.dimension))

    def log_likelihood(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Map the model's record log-likelihood."""
        theta = theta.astype(self.precision)
        if self._unpacked_value is not None and "staged" in tile:
            value = self._unpacked_value.finish(theta, tile["staged"]).item()
            return jnp.broadcast_to(value, (len(theta), tile["real"].size)).astype(self.precision)
        over_rows = jax.vmap(self._value, in_axes=(None, 0))
        values: jax.Array = jax.vmap(over_rows, in_axes=(0, None))(theta, tile["rows"])
        return values.astype(self.precision)

    def scores(self, tile: Tile, theta: jax.Array) -> list[jax.Array]:
        """Map its gradient."""
        theta = theta.astype(self.precision)
        if self._unpacked_gradient is not None and "staged" in tile:
            cells = self._unpacked_gradient.finish(theta, tile["staged"])
            shape = len(theta), tile["real"].size
            return [jnp.broadcast_to(cell, shape).astype(self.precision) for cell in cells]
        over_rows = jax.vmap(self._gradient, in_axes=(None, 0))
        values = jax.vmap(over_rows, in_axes=(0, None))(theta, tile["rows"]).astype(self.precision)
        return [values[..., j] for j in range(self.model.dimension)]

    def gradient_sum(self, tile: Tile, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> Any:
        """Clip, round, add."""
        spacing, limit, bits, unit = self._lattice(spacing, bound)
        integers = clip_to_lattice(lambda: self.scores(tile, theta), spacing, limit, tile)
        return [total * unit for total in _add_integers(integers, bits)]

    def _lattice(self, spacing: jax.Array, bound: jax.Array) -> tuple[jax.Array, jax.Array, int, jax.Array]:
        """Return γ and K of the multiples that a record contributes, bits of K, and how many lattice steps they are."""
        bits = _CONTRIBUTION_BITS[jnp.dtype(self.precision).name]
        unit = contribution_unit(bound, bits)
        spacing, limit = (value.astype(self.precision) for value in (spacing * unit, bound / unit))
        return spacing, limit, bits, unit.astype(jnp.int64)

    def gradient_sum_not_private(self, tile: Tile, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> Any:
        """Return the same parts, several times as fast, and one more: how many records would have been clipped.

        If there are any, the sum is worthless. A caller that then takes the other way lets the running time follow the
        records: for noise-free research runs only.
        """
        step, limit, bits, unit = self._lattice(spacing, bound)
        per_step = jnp.where(tile["real"], 1.0 / step, 0.0)  # padding counts for nothing
        scaled = [score * per_step for score in self.scores(tile, theta)]
        room = limit * (1.0 - _margin(len(scaled), self.precision)) - 0.5 * len(scaled) ** 0.5
        integers = [_integer_of(_rounded(coordinate)) for coordinate in scaled]
        # Not the other way round: a comparison with NaN is false.
        clipped = jnp.where(_sum_of_squares(scaled) <= room * room, 0, 1).astype(integers[0].dtype)
        *totals, clipped = _add_integers([*integers, clipped], bits)
        return [*(total * unit for total in totals), clipped]


class RegressionKernel:
    """Regression families: the score is residual × design row, so gradients are never materialised.

    Each design row w = (1, x, one-hot) is put on a grid of its own, w ≈ u·z with a power of two u and integers
    |z_j| ≤ 2^20. A record's clipped gradient is then a·z with an integer a (and an integer t for the
    scale parameter), bounded by a²‖z‖² + t² ≤ K², and the sum over a tile is a matrix product of integers:
    every partial sum is at most K·B ≤ 2^52, so float64 adds it exactly in any order. Residuals and log-likelihoods use
    the features as they are; the grid touches the gradient alone, by at most 2^-20 of the row's largest entry.
    """

    stores_tiles = True

    def __init__(self, model: RegressionModel, records: Any) -> None:
        self.model = model
        self.precision = arithmetic_of(model, records)

    def prepare(self, records: Any) -> dict[str, NDArray[Any]]:
        """Return unit u and norm ‖z‖ for each row; NaN norm: no use."""
        features = np.asarray(records["X"])
        ones = int(self.model.intercept) + int(self.model.num_groups > 0)
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
        return {"unit": unit.astype(precision), "norm": np.where(usable, norm, np.nan).astype(precision)}

    def needs(self, records: Tile, gradient: bool) -> Tile:
        """Take all for gradients; log-likelihoods need no grid."""
        return records if gradient else {"real": records["real"], "rows": records["rows"]}

    def cut(self, tile: Tile) -> Tile:
        """Leave it as it is."""
        return tile

    def load(self, tile: Tile, gradient: bool) -> Tile:
        """Add the grid of the design rows, if gradients are wanted."""
        return {**tile, **stored(lambda: self._grid(tile), tile["here"])} if gradient else tile

    def _grid(self, tile: Tile) -> Tile:
        """Compute the grid ``z`` of the design rows, constants first, as whole numbers in float64."""
        rows = tile["rows"]
        per_unit = 1.0 / tile["unit"].astype(jnp.float64)  # of powers of two: exact
        # A row that is no use, or padding, has a coefficient of 0, but 0 times infinity would spoil the sum.
        usable = tile["real"] & jnp.isfinite(tile["norm"])
        one = jnp.where(usable, jnp.rint(per_unit), 0.0)[:, None]
        grid = jnp.where(usable[:, None], jnp.rint(rows["X"].astype(jnp.float64) * per_unit[:, None]), 0.0)
        parts = [one] if self.model.intercept else []
        parts.append(grid)
        if 0 < self.model.num_groups <= _MAX_INDICATORS:
            parts.append(one * jax.nn.one_hot(rows["group"], self.model.num_groups, dtype=jnp.float64))
        return {"one": one[:, 0], "grid": jnp.concatenate(parts, axis=1)}

    def tile_rows(self, num_chains: int) -> int:
        """Aim at 2^18 numbers an operation (as measured)."""
        return _power_of_two(2**18 / num_chains)

    def _predict(self, tile: Tile, theta: jax.Array) -> tuple[jax.Array, Any, jax.Array | None]:
        """Return linear predictors (chains × B), outcomes, and the extra parameter (chains × 1) if there is one."""
        rows, theta, model = tile["rows"], theta.astype(self.precision), self.model
        start, stop = int(model.intercept), int(model.intercept) + model.num_features
        # In this order the product has rows as its fastest axis.
        eta = jnp.einsum("cp,bp->cb", theta[:, start:stop], rows["X"].astype(self.precision), precision="highest")
        if model.intercept:
            eta = eta + theta[:, :1]
        if model.num_groups:
            group = rows["group"]
            known = (group >= 0) & (group < model.num_groups)
            effects = theta[:, stop + jnp.clip(group, 0, model.num_groups - 1).astype(jnp.int32)]
            eta = eta + effects * jnp.where(known, 1.0, jnp.nan).astype(self.precision)
        place = model.linear_size
        return eta, rows["y"], theta[:, place : place + 1] if model.extra_size else None

    def log_likelihood(self, tile: Tile, theta: jax.Array) -> jax.Array:
        """Evaluate the family's log-likelihood at the linear predictor."""
        # Of the class: an attribute of the instance could be any function, and would be handed a whole tile.
        return type(self.model).log_likelihood_at(self.model, *self._predict(tile, theta)).astype(self.precision)

    def _residuals(self, tile: Tile, theta: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        return type(self.model).score_at(self.model, *self._predict(tile, theta))

    def scores(self, tile: Tile, theta: jax.Array) -> list[jax.Array]:
        """Closed-form scores, materialised: for the rare queries that need them."""
        residual, extra = self._residuals(tile, theta)
        rows = tile["rows"]
        parts = [residual] if self.model.intercept else []
        parts += [residual * rows["X"][:, j].astype(residual.dtype) for j in range(self.model.num_features)]
        parts += [residual * (rows["group"] == code) for code in range(self.model.num_groups)]
        if extra is not None:
            parts.append(extra)
        return parts + [jnp.zeros_like(residual)] * (self.model.dimension - len(parts))

    def gradient_sum(self, tile: Tile, theta: jax.Array, spacing: jax.Array, bound: jax.Array) -> Any:
        """Integer coefficients by the closed form, then one matrix product."""
        residual, extra = self._residuals(tile, theta)
        precision = residual.dtype.name
        largest = _HUGE[precision]
        # In units of 2^20 lattice steps, so that float32 can square them.
        unit, limit = (value.astype(precision) for value in (spacing * 2.0**20, bound * 2.0**-20))
        norm = tile["norm"] * 2.0**-20
        # |a|·‖z‖ ≤ K, with a margin for the rounding of ‖z‖ and of the quotient. NaN for a row that is no use.
        highest = jnp.floor(limit / norm * (1.0 - 2.0**-20))
        coefficient = _limit(residual * (tile["unit"] * 2.0**20 / unit), largest)
        finite = tile["real"] & (jnp.abs(residual) < jnp.inf) & (highest < jnp.inf)
        if extra is None:
            # What is added is checked last: 0 times an overflow, say, is NaN, and would take the tile's sum with it.
            whole = _limit(jnp.rint(coefficient), highest)
            parts = [jnp.where(finite & (jnp.abs(whole) <= highest), whole, 0.0)]
        else:
            parts = self._with_extra(tile, coefficient, _limit(extra / unit, largest), norm, limit)
            finite = finite & (jnp.abs(extra) < jnp.inf)
            parts = [jnp.where(finite, part, 0.0) for part in parts]
        coefficient, *rest = (part.astype(jnp.float64) for part in parts)
        parts = [coefficient @ tile["grid"]]
        if self.model.num_groups > _MAX_INDICATORS:
            # Codes out of range (−1) have a coefficient of 0: wherever they are added, nothing happens.
            constant = coefficient * tile["one"]
            parts.append(jnp.zeros((len(constant), self.model.num_groups)).at[:, tile["rows"]["group"]].add(constant))
        parts += [_row_sums(part)[:, None] for part in rest]
        done = sum(part.shape[1] for part in parts)
        parts.append(jnp.zeros((len(theta), self.model.dimension - done)))
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

        whole = stored(clipped, tile["here"])
        squares = (whole[0] * norm).astype(jnp.float64) ** 2 + (whole[1] * 2.0**-20) ** 2
        # Relative error of `squares` is below 2^-21 in float32: what passes is within K.
        counts = _once(squares <= (limit * limit * (1.0 - 2.0**-20)).astype(jnp.float64))
        return [jnp.where(counts > 0.0, part, 0.0) for part in whole]


def trace(model: Model, records: Any) -> allowed.Traced:
    """Trace and check a model's log-likelihood and its gradient, in the precision that these records ask for."""
    return allowed.trace_likelihood(model.unconstrained_log_likelihood, *_arguments_of(model, records))


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


def _power_of_two(rows: float) -> int:
    return int(2 ** np.clip(np.floor(np.log2(rows)), 7, 13))


def _grid_squares(features: NDArray[Any], unit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ_j rint(x_j/u)² for each row, a slice of rows at a time: no second copy of the features."""
    squares = np.empty(len(features))
    for start in range(0, len(features), 2**16):
        part = slice(start, start + 2**16)
        grid = np.rint(features[part].astype(np.float64) / unit[part, None])
        squares[part] = np.einsum("ij,ij->i", grid, grid)
    return squares


def join(parts: Any) -> jax.Array:
    """Put the parts of a sum together: a single array as it is; a list side by side, vectors as columns."""
    if not isinstance(parts, list):
        return parts
    return jnp.concatenate([part[:, None] if part.ndim == 1 else part for part in parts], axis=-1)


def has_closed_form(model: Model) -> bool:
    """Whether this is one of the package's own regressions, whose code may see whole tiles.

    Exactly these: another class could do anything with the rows of a tile.
    """
    return type(model) in _FAMILIES


def is_own(model: Model) -> bool:
    """Whether the functions of a model are this package's own, and so hold no data."""
    functions = [getattr(function, "__func__", None) for function in (model.log_likelihood, model.log_prior)]
    kind: Any = type(model)
    return kind in (*_FAMILIES, Banana, GaussianMean) and functions == [kind._log_likelihood, kind._log_prior]


def make_kernel(model: Model, records: Any, traced: allowed.Traced | None = None) -> Kernel:
    """Choose how to evaluate a model on records of these shapes and dtypes."""
    if has_closed_form(model):
        assert isinstance(model, RegressionModel)
        return RegressionKernel(model, records)
    return AutodiffKernel(model, records, traced)


def _row_sums(values: jax.Array) -> jax.Array:
    """Add float64 over the last axis, as a matrix product: of a plain sum the compiler keeps the order, one by one."""
    return values @ jnp.ones(values.shape[-1])


def _all_finite(values: Sequence[jax.Array]) -> jax.Array:
    counts = jnp.isfinite(values[0])
    for value in values[1:]:
        counts = counts & jnp.isfinite(value)
    return counts


def magnitudes(kernel: Kernel, tile: Tile, theta: jax.Array, proposal: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Per-record norms (chains × B) of the gradient, or |log-ratio| if there is a proposal, and who counts."""
    if proposal is None:
        scores = [score.astype(jnp.float64) for score in kernel.scores(tile, theta)]
        largest = jnp.abs(scores[0])
        for score in scores[1:]:
            largest = jnp.maximum(largest, jnp.abs(score))
        safe = jnp.where(largest > 0.0, largest, 1.0)
        norm = largest * jnp.sqrt(_sum_of_squares([score / safe for score in scores]))
        return norm, _all_finite(scores) & tile["real"]
    ratio = log_ratios(kernel, tile, theta, proposal).astype(jnp.float64)
    return jnp.abs(ratio), jnp.isfinite(ratio) & tile["real"]


def log_ratios(kernel: Kernel, tile: Tile, theta: jax.Array, proposal: jax.Array) -> jax.Array:
    """Return log p(x | proposal) − log p(x | theta), chains × B: both ends in one evaluation."""
    both = kernel.log_likelihood(tile, jnp.concatenate([proposal, theta]))
    return both[: len(theta)] - both[len(theta) :]


def plain_gradient_sum(kernel: Kernel, tile: Tile, theta: jax.Array) -> Any:
    """Σ score, neither clipped nor on a lattice: for noise-free research runs only."""
    scores = kernel.scores(tile, theta)
    counts = _all_finite(scores) & tile["real"]
    return [_row_sums(jnp.where(counts, score, 0.0).astype(jnp.float64)) for score in scores]


def plain_ratio_sum(kernel: Kernel, tile: Tile, theta: jax.Array, proposal: jax.Array) -> Any:
    """Σ log-ratio, neither clipped nor on a lattice: for noise-free research runs only."""
    ratio = log_ratios(kernel, tile, theta, proposal)
    return _row_sums(jnp.where(tile["real"] & jnp.isfinite(ratio), ratio, 0.0).astype(jnp.float64))


def counted_ratio_sum(
    kernel: Kernel, tile: Tile, theta: jax.Array, proposal: jax.Array, spacing: jax.Array, bound: jax.Array
) -> list[jax.Array]:
    """:func:`ratio_sum`, and how many were clipped: two parts, the second of which makes it not private."""
    ratio = stored(lambda: log_ratios(kernel, tile, theta, proposal), tile["here"])
    largest = (spacing * bound).astype(ratio.dtype)[:, None]
    clipped = tile["real"] & (jnp.abs(ratio) > largest) & (jnp.abs(ratio) < jnp.inf)
    return [ratio_sum(ratio, spacing, bound, tile["real"]), jnp.sum(clipped, axis=-1, dtype=jnp.int32)]
