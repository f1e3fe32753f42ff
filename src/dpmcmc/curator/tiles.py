"""A tile: some rows of the records, as compiled code sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Design(NamedTuple):
    """Of each row of a regression: the unit of its grid, and the norm of the row on it (NaN: no use)."""

    unit: Any
    norm: Any


class Grid(NamedTuple):
    """The design rows of a tile as whole numbers, and their constants."""

    one: jax.Array
    grid: jax.Array


class Stages(NamedTuple):
    """What a model computes of the record alone, a column for each number: for gradients and for log-likelihoods."""

    for_gradient: Any
    for_value: Any


class Tile(NamedTuple):
    """Some rows of the records (or all of them, as they are placed): what a kernel needs of them is filled in.

    Attributes
    ----------
    real
        Which rows are records; the rest is padding.
    rows
        The model's records.
    design, stages
        What a kernel's ``prepare`` computed of each row.
    here
        True; the compiler cannot know (see :func:`stored`).
    columns, staged
        Rows cut into columns, and what an unpacked program computed of them.
    grid
        The design rows of a regression.
    present, by_row
        Of units of several rows: which rows are there, and the tile of all their rows.
    """

    real: Any
    rows: Any = None
    design: Design | None = None
    stages: Stages | None = None
    here: jax.Array | None = None
    columns: list[list[jax.Array]] | None = None
    staged: list[jax.Array] | None = None
    grid: Grid | None = None
    present: Any = None
    by_row: Any = None


def stored(fresh: Callable[[], Any], here: jax.Array | None) -> Any:
    """Return ``fresh()``, computed once and stored before anything uses it. ``here`` is true; the compiler cannot know.

    The compiler likes to compute a value again wherever it is used, and may round it differently there. What a
    conditional returns is never computed again: so what is checked is what is added. (And a slice of the records that
    is merged into the loop that uses it would be looked up again for every element, one at a time.)
    """
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(fresh))
    return jax.lax.cond(here, fresh, lambda: zeros)
