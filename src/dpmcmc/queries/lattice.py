"""The integers of a query: how fine its lattice is, how large its noise, and what discreteness costs.

Why integers: Gaussian noise in floating point is not private (Mironov 2012). A sum of bounded integers is
exact in any order, so its sensitivity is exactly what is stated here, and the noise is exact too. N released
numbers then obey the Gaussian formula with ε raised by at most (12 + Δ/S)·N/S and δ by N·1e-31; the curator
charges both. (Add a uniform dither on [−½, ½] to discrete Gaussian noise: at a distance x from the centre its
density is within e^{±x/(2S²)} of the Gaussian's, x ≤ 12 S but for a probability of 1e-32 around one neighbour's
sum and hence x ≤ 12 S + Δ around the other's; rounding the dither off again is post-processing.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dpmcmc.errors import QueryError

# Rows are processed in tiles of at most this many, so that |sum of a tile| ≤ 2^13 · 2^40 = 2^53 is exact
# in float64; tiles are added in int64.
MAX_TILE_ROWS = 2**13
MAX_LATTICE_BITS = 40
# The largest scale whose noise cannot overflow int64 together with a sum.
MAX_NOISE_SCALE = 2**58


def lattice_bits(num_records: int, noise_multiplier: float) -> int:
    """Choose k, where K = 2^k bounds one record's integers: as fine as exact int64 arithmetic allows.

    n·K ≤ 2^61 keeps the sum exact, and S = 2Kτ ≤ 2^58 keeps the noise from overflowing.
    """
    room_for_sum = 61 - math.ceil(math.log2(max(2, num_records)))
    room_for_noise = 56 - max(0, math.ceil(math.log2(noise_multiplier)))
    bits = min(MAX_LATTICE_BITS, room_for_sum, room_for_noise)
    if bits < 8:
        raise QueryError(
            f"noise_multiplier = {noise_multiplier:g} is too large for exact arithmetic with {num_records} records; "
            "lower it"
        )
    return bits


class Lattice(NamedTuple):
    """The integers of one query: K bounds a record's norm, ``sensitivity`` the sum's, S scales the noise."""

    bound: int
    sensitivity: float
    noise_scale: int
    numbers: int

    @property
    def lattice_epsilon(self) -> float:
        """Return what discreteness adds to ε."""
        return (12.0 + self.sensitivity / self.noise_scale) * self.numbers / self.noise_scale

    @property
    def lattice_delta(self) -> float:
        """Return what discreteness adds to δ."""
        return 1e-31 * self.numbers


def chosen_bits(requested: int | None, num_records: int, noise_multiplier: float) -> int:
    """Return the finest exact lattice, or a coarser one that a test asks for."""
    finest = lattice_bits(num_records, noise_multiplier)
    if requested is None:
        return finest
    if isinstance(requested, bool) or not isinstance(requested, int) or not 1 <= requested <= finest:
        raise QueryError(f"lattice_bits = {requested!r} must be a whole number from 1 to {finest}, or None")
    return requested


def scaled_noise(unit_sensitivity: float, bound: int, noise_multiplier: float) -> int:
    """S = ⌈sensitivity · τ⌉, never below it: the factor covers the rounding of √2 and of the product.

    The result is rounded up to 53 significant bits, so that it is exact as a float.
    """
    scale = math.ceil(unit_sensitivity * bound * noise_multiplier * (1.0 + 2.0**-50))
    if scale > MAX_NOISE_SCALE:
        raise QueryError(f"noise_multiplier = {noise_multiplier:g} is too large for exact arithmetic; lower it")
    step = 1 << max(0, scale.bit_length() - 52)
    return -(-scale // step) * step
