"""Secret random batches in O(batch) work, inside compiled code.

Privacy by subsampling needs that nobody knows which records were drawn: the key of a batch comes from the operating
system's randomness, stays in the curator and is never released. What is drawn does not depend on any record.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.errors import QueryError
from dpmcmc.queries.batch_gradient import largest_size

# With at most this many records for each one drawn, a table of all records finds repeated draws faster than sorting.
_TABLE_UP_TO = 512


class Batch(NamedTuple):
    """One step's batches: a key, and the number of records for each chain."""

    key: jax.Array
    size: jax.Array


def draw_sizes(
    generator: np.random.Generator, num_records: int, batch_size: int, sampling: str, shape: tuple[int, ...]
) -> NDArray[np.int32]:
    """Return the batch sizes of a block of steps: constant, or binomial for Poisson sampling."""
    if sampling == "without_replacement":
        return np.full(shape, batch_size, np.int32)
    sizes = generator.binomial(num_records, batch_size / num_records, shape)
    return np.minimum(sizes, largest_size(num_records, batch_size, sampling)).astype(np.int32)


def draw_rows(key: jax.Array, num_records: int, num_drawn: int, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw ``size`` distinct records uniformly: the first distinct values of a sequence of uniform draws.

    Returns
    -------
    indices, chosen
        ``num_drawn`` row numbers, and which of them are the batch.
    """
    if num_drawn == num_records:
        # Not jax.random.permutation, whose 32-bit keys have ties; these have none but for a chance of n²/2^65.
        order = jnp.argsort(jax.random.bits(key, (num_records,), jnp.uint64))
        return order, jnp.arange(num_records) < size
    index = _uniform(jax.random.bits(key, (num_drawn,), jnp.uint64), num_records)
    find = _first_by_table if num_records <= _TABLE_UP_TO * num_drawn else _first_by_sorting
    is_new = find(index, num_records)
    return index, is_new & (jnp.cumsum(is_new) <= size)


def _uniform(bits: jax.Array, limit: int) -> jax.Array:
    """Return ⌊limit·u/2^64⌋ for each u of 64 random bits: every number's probability is within 1/2^64 of 1/limit.

    (``jax.random.randint`` divides, which takes several times as long.)
    """
    if limit >= 2**32:
        raise QueryError(f"{limit:,} records are more than batches can be drawn from; the limit is {2**32 - 1:,}")
    high, low = bits >> 32, bits & 0xFFFFFFFF
    return ((high * limit + (low * limit >> 32)) >> 32).astype(jnp.int64)


def _first_by_table(values: jax.Array, limit: int) -> jax.Array:
    """Return where a value below ``limit`` occurs for the first time. O(limit) memory."""
    kind = jnp.int16 if len(values) < 2**15 else jnp.int32
    place = jnp.arange(len(values), dtype=kind)
    earliest = jnp.full(limit, len(values), kind).at[values].min(place, mode="promise_in_bounds")
    return earliest.at[values].get(mode="promise_in_bounds") == place


def _first_by_sorting(values: jax.Array, limit: int) -> jax.Array:
    """Return the same in O(len(values)) memory."""
    # Sort pairs (value, place in the sequence) as one number; the first of equal values is the earliest drawn.
    bits = len(values).bit_length()
    ordered = jnp.sort((values << bits) | jnp.arange(len(values)))
    value, place = ordered >> bits, ordered & (2**bits - 1)
    is_first = jnp.concatenate([jnp.ones(1, bool), value[1:] != value[:-1]])
    return jnp.zeros(len(values), bool).at[place].set(is_first, unique_indices=True)
