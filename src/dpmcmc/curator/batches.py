"""Secret random batches in O(batch) work, inside compiled code.

Privacy by subsampling needs that nobody knows which records were drawn: the key of a batch comes from the operating
system's randomness, stays in the curator and is never released. What is drawn does not depend on any record.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

# Above this share of the records a full permutation is cheaper than drawing until enough are distinct.
_PERMUTE_ABOVE = 0.25


class Batch(NamedTuple):
    """One step's batches: a key, and the number of records for each chain."""

    key: jax.Array
    size: jax.Array


def largest_size(num_records: int, batch_size: int, sampling: str) -> int:
    """Return the largest batch to make room for; Poisson sampling exceeds it with probability below 1e-40."""
    if sampling == "without_replacement":
        return batch_size
    # Chernoff: P(Binomial(n, q) ≥ b + t) ≤ exp(−t²/(2(b + t/3))) < 1e-40 for t = 14√b + 62.
    return min(num_records, math.ceil(batch_size + 14.0 * math.sqrt(batch_size) + 62.0))


def draw_sizes(
    generator: np.random.Generator, num_records: int, batch_size: int, sampling: str, shape: tuple[int, ...]
) -> NDArray[np.int32]:
    """Return the batch sizes of a block of steps: constant, or binomial for Poisson sampling."""
    if sampling == "without_replacement":
        return np.full(shape, batch_size, np.int32)
    sizes = generator.binomial(num_records, batch_size / num_records, shape)
    return np.minimum(sizes, largest_size(num_records, batch_size, sampling)).astype(np.int32)


def num_draws(num_records: int, size: int) -> int:
    """Return how many uniform draws hold ``size`` distinct records, but for a probability below 1e-30."""
    share = size / num_records
    if share > _PERMUTE_ABOVE:
        return num_records
    mean = -num_records * math.log1p(-share)
    # The variance of the number of draws is below n·(share/(1 − share))²/2; small numbers are Poisson-like.
    return math.ceil(mean + 12.0 * math.sqrt(0.5 * num_records) * share / (1.0 - share) + 40.0)


def draw_rows(key: jax.Array, num_records: int, num_drawn: int, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draw ``size`` distinct records uniformly: the first distinct values of a sequence of uniform draws.

    Returns
    -------
    indices, chosen
        ``num_drawn`` row numbers, and which of them are the batch.
    """
    if num_drawn == num_records:
        return jax.random.permutation(key, num_records), jnp.arange(num_records) < size
    index = jax.random.randint(key, (num_drawn,), 0, num_records, dtype=jnp.int64)
    # Sort pairs (value, place in the sequence) as one number; the first of equal values is the earliest drawn.
    ordered = jnp.sort(index * num_drawn + jnp.arange(num_drawn))
    value, place = ordered // num_drawn, ordered % num_drawn
    is_first = jnp.concatenate([jnp.ones(1, bool), value[1:] != value[:-1]])
    is_new = jnp.zeros(num_drawn, bool).at[place].set(is_first, unique_indices=True)
    return index, is_new & (jnp.cumsum(is_new) <= size)
