"""Sums without noise or clipping, for research on data that are not secret. Apart from everything private.

Refused by a private curator: what comes out is a :class:`~dpmcmc.queries.NotPrivateRelease`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpmcmc.curator.integers import all_finite, ratio_sum, row_sums
from dpmcmc.curator.kernels import AutodiffKernel, TileKernel
from dpmcmc.curator.passes import Binding, Passes
from dpmcmc.curator.tiles import Tile, stored
from dpmcmc.errors import QueryError
from dpmcmc.queries import AnyRelease, Gradient, LogRatio, NotPrivateRelease, Oracle, PaidDraws


def plain_gradient_sum(kernel: TileKernel, tile: Tile, theta: jax.Array) -> Any:
    """Σ score, neither clipped nor on a lattice: for noise-free research runs only."""
    scores = kernel.scores(tile, theta)
    counts = all_finite(scores) & tile.real
    return [row_sums(jnp.where(counts, score, 0.0).astype(jnp.float64)) for score in scores]


def plain_ratio_sum(kernel: TileKernel, tile: Tile, theta: jax.Array, proposal: jax.Array) -> Any:
    """Σ log-ratio, neither clipped nor on a lattice: for noise-free research runs only."""
    ratio = kernel.log_ratios(tile, theta, proposal)
    return row_sums(jnp.where(tile.real & jnp.isfinite(ratio), ratio, 0.0).astype(jnp.float64))


def counted_ratio_sum(
    kernel: TileKernel, tile: Tile, theta: jax.Array, proposal: jax.Array, spacing: jax.Array, bound: jax.Array
) -> list[jax.Array]:
    """:func:`ratio_sum`, and how many were clipped: two parts, the second of which makes it not private."""
    ratio = stored(lambda: kernel.log_ratios(tile, theta, proposal), tile.here)
    largest = (spacing * bound).astype(ratio.dtype)[:, None]
    clipped = tile.real & (jnp.abs(ratio) > largest) & (jnp.abs(ratio) < jnp.inf)
    return [ratio_sum(ratio, spacing, bound, tile.real), jnp.sum(clipped, axis=-1, dtype=jnp.int32)]


def noise_free_oracle(passes: Passes, gradient_clip_norm: float | None, ratio_bound: float | None) -> Binding:
    """Return an oracle without noise; None: no clipping. It takes noise like the others, and leaves it alone."""
    # Queries whose lattices are used. Their noise is never drawn.
    queries = gradient_query, ratio_query = (
        None if gradient_clip_norm is None else Gradient(gradient_clip_norm, 1.0),
        None if ratio_bound is None else LogRatio(ratio_bound, noise_multiplier=1.0),
    )
    kernel, num_records = passes.kernel, passes.num_records

    def bind(records: Any, numbers: Any) -> Oracle:
        add_up = partial(passes.add_up, records, kernel)
        gradient_numbers, ratio_numbers = numbers

        def clipped_gradient(*public: jax.Array) -> jax.Array:
            clip = partial(add_up, kernel.gradient_sum, *public, gradient=True, dtype=jnp.int64)
            if not isinstance(kernel, AutodiffKernel):
                return clip()
            total = add_up(kernel.gradient_sum_not_private, *public, gradient=True, dtype=jnp.int64)
            return jax.lax.cond(jnp.all(total[:, -1] == 0), lambda: total[:, :-1], clip)

        def gradient(theta: jax.Array, noise: PaidDraws) -> AnyRelease:
            if gradient_query is None:
                value = add_up(partial(plain_gradient_sum, kernel), theta, gradient=True, dtype=jnp.float64)
            else:
                # The sums of private runs, which are faster; their lattice is far below what a gradient needs.
                spacing, bound = jnp.asarray(gradient_numbers.spacing), jnp.asarray(gradient_numbers.bound)
                value = spacing * clipped_gradient(theta, spacing, bound)
            return NotPrivateRelease(value, jnp.zeros(len(theta)), jnp.zeros(len(theta)))

        def log_ratio(theta: jax.Array, proposal: jax.Array, noise: PaidDraws) -> AnyRelease:
            zeros = jnp.zeros(len(theta))
            if ratio_query is None:
                plain = partial(plain_ratio_sum, kernel)
                total = add_up(plain, theta, proposal, gradient=False, dtype=jnp.float64)
                return NotPrivateRelease(total, zeros, zeros, clipped=zeros)
            geometry = ratio_query.geometry(theta, proposal, ratio_numbers)
            public = theta, proposal, geometry.spacing, geometry.bound
            total = add_up(partial(counted_ratio_sum, kernel), *public, gradient=False, dtype=jnp.int64)
            clipped = total[:, 1] / num_records
            return NotPrivateRelease(geometry.spacing * total[:, 0], zeros, zeros, clipped=clipped)

        def no_batches(theta: jax.Array, batch: Any, noise: PaidDraws) -> AnyRelease:
            raise QueryError("the noise-free oracle has no batches")

        return Oracle(gradient, log_ratio, no_batches)

    structure = "noise-free", gradient_clip_norm is None, ratio_bound is None
    return Binding(bind, passes.numbers_of(*queries), structure)
