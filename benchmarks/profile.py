"""Where the time of a private gradient goes, part by part: ``python -m benchmarks.profile``.

Synthetic records of the benchmark's logistic regression (n = 100,000, d = 20, float32). Each of the first
rows adds one part of the work to the row before, so that their differences are the costs of the parts. No sum without
noise is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.curator import Curator, ExactNoise, NoNoiseNotPrivate, placement
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.models import LogisticRegression
from dpmcmc.queries import Gradient, LogRatio, PaidDraws

NUM_RECORDS, DIMENSION, ROUNDS = 100_000, 20, 31


def _median_ms(function: Callable[[], object]) -> float:
    jax.block_until_ready(function())
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def parts_of_a_gradient(num_chains: int) -> dict[str, float]:
    """Return milliseconds of growing parts of a private gradient, and of what is beside it in a draw."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(NUM_RECORDS, DIMENSION)).astype(np.float32)
    outcomes = generator.integers(0, 2, NUM_RECORDS).astype(np.float32)
    theta = 0.05 * generator.normal(size=(num_chains, DIMENSION))
    with exact_arithmetic():
        model = LogisticRegression(DIMENSION, intercept=False)
        curator = Curator(model, {"X": features, "y": outcomes}, noise=NoNoiseNotPrivate())
        kernel: Any = curator.passes.kernel
        records, noise = curator._records, np.zeros(theta.shape, np.int64)

        def over_tiles(tile_sum: Callable[..., jax.Array], gradient: bool) -> float:
            compiled = jax.jit(
                lambda records, theta: placement.sum_over_tiles(
                    curator.passes.mesh, kernel, NUM_RECORDS, tile_sum, records, theta, gradient=gradient
                ),
                compiler_options=placement.COMPILER_OPTIONS,
            )
            return _median_ms(lambda: compiled(records, theta))

        def first(values: jax.Array) -> jax.Array:
            return values[..., 0].astype(jnp.int64)

        def bits(values: jax.Array) -> jax.Array:
            return jnp.sum(jax.lax.bitcast_convert_type(values, jnp.int32), axis=-1, dtype=jnp.int32)

        bind = curator.oracle(Gradient(4.0, 30.0), LogRatio(4.0, noise_multiplier=30.0))
        gradient = jax.jit(
            lambda records, theta, noise: bind(records).gradient(theta, PaidDraws(noise)).value,
            compiler_options=placement.COMPILER_OPTIONS,
        )
        ratio = jax.jit(
            lambda records, theta, other, noise: bind(records).log_ratio(theta, other, PaidDraws(noise)).value,
            compiler_options=placement.COMPILER_OPTIONS,
        )
        single, double = jnp.asarray(features), jnp.asarray(features, jnp.float64)
        forward = jax.jit(lambda theta, features: theta @ features.T)
        back = jax.jit(lambda coefficients, features: coefficients @ features)
        coefficients = jnp.ones((num_chains, NUM_RECORDS))
        ExactNoise().draw(2**40, (1,))
        start = time.perf_counter()
        ExactNoise().draw(2**40, (10 * num_chains, DIMENSION))
        noise_ms = 1e3 * (time.perf_counter() - start)
        return {
            "cut the tiles out": over_tiles(lambda tile, theta: first(theta + tile.rows["X"][0, 0]), False),
            "+ linear predictors": over_tiles(lambda tile, theta: bits(kernel._predict(tile, theta)[0]), False),
            "+ residuals": over_tiles(lambda tile, theta: bits(kernel._residuals(tile, theta)[0]), False),
            "cut the tiles out, and the integer grid": over_tiles(
                lambda tile, theta: first(theta + tile.grid.grid[0, 0]), True
            ),
            "whole gradient": _median_ms(lambda: gradient(records, theta, noise)),
            "whole log-ratio": _median_ms(lambda: ratio(records, theta, theta + 1e-3, noise[:, 0])),
            "alone: first product, float32": _median_ms(lambda: forward(theta.astype(np.float32), single)),
            "alone: second product, float64": _median_ms(lambda: back(coefficients, double)),
            "exact noise of 10 gradients (one core)": noise_ms,
        }


def main() -> None:
    """Print both tables."""
    for num_chains in (4, 40):
        print(f"{num_chains} chains, milliseconds (median of {ROUNDS})")
        for name, value in parts_of_a_gradient(num_chains).items():
            print(f"  {name:42s}{value:8.2f}")


if __name__ == "__main__":
    main()
