"""Jitter of the step size: a randomised Halton (van der Corput) sequence in base 2 (Owen 2017)."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def van_der_corput(index: jax.Array) -> jax.Array:
    """Return the radical inverse of a 32-bit index in base 2: its bits mirrored at the binary point, in [0, 1)."""
    bits = jnp.arange(32, dtype=jnp.uint32)
    digits = (jnp.asarray(index, jnp.uint32)[..., None] >> bits) & 1
    return jnp.sum(digits * 2.0 ** -(bits.astype(jnp.float64) + 1.0), axis=-1)


def randomised_halton(shift: jax.Array, index: jax.Array) -> jax.Array:
    """Return h_i in (0, 1]: the sequence shifted by a uniform number, modulo 1 (0 would be a step of no length)."""
    return 1.0 - jnp.mod(van_der_corput(index) + shift, 1.0)
