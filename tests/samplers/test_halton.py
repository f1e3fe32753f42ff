"""The jitter's sequence: known values, and never a step of no length."""

import jax.numpy as jnp
import numpy as np

from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.samplers.halton import randomised_halton, van_der_corput


def test_known_values():
    with exact_arithmetic():
        values = van_der_corput(jnp.arange(9, dtype=jnp.uint32))
    assert np.asarray(values).tolist() == [0.0, 0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875, 0.0625]


def test_the_largest_index_is_below_one():
    with exact_arithmetic():
        assert float(van_der_corput(jnp.uint32(2**32 - 1))) == 1.0 - 2.0**-32


def test_randomised_stays_in_the_half_open_interval():
    """0 < h ≤ 1 for all shifts in [0, 1), the extreme ones too, and each of them is reached."""
    with exact_arithmetic():
        shifts = jnp.asarray([0.0, 2.0**-53, 0.3, 0.5, 1.0 - 2.0**-53])
        values = np.asarray(randomised_halton(shifts[:, None], jnp.arange(4096, dtype=jnp.uint32)))
    assert values.dtype == np.float64
    assert np.all((values > 0.0) & (values <= 1.0))
    assert values[0, 0] == 1.0


def test_every_stretch_of_the_sequence_fills_the_interval_evenly():
    """Of 2^k numbers in a row, shifted or not, each of 2^k equal parts of the interval holds one (modulo 1)."""
    with exact_arithmetic():
        values = np.asarray(randomised_halton(jnp.asarray(0.37), jnp.arange(64, 128, dtype=jnp.uint32)))
    # Undo the shift: 1 − h = (v + shift) mod 1.
    unshifted = np.mod(1.0 - values - 0.37, 1.0)
    assert sorted(np.floor(unshifted * 64 + 1e-6).astype(int) % 64) == list(range(64))
