"""The accept test of the penalty algorithm, and how a decision is applied. Small pure functions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def penalty_test(key: jax.Array, noisy_log_ratio: jax.Array, noise_sd: jax.Array) -> jax.Array:
    """Accept where ln u < λ + ξ − σ²/2, with λ + ξ the noisy log-ratio of each chain and σ its noise sd.

    E min(1, exp(λ + ξ − σ²/2)) = e^λ · (the same at −λ), so the penalty makes the test exact under noise (Ceperley and
    Dewing 1999); with σ = 0 it is the Metropolis test. NaN, from a diverged proposal, is a rejection.
    """
    uniform = jax.random.uniform(key, noisy_log_ratio.shape, dtype=noisy_log_ratio.dtype)
    return jnp.log(uniform) < noisy_log_ratio - 0.5 * noise_sd**2


def choose(accepted: jax.Array, proposed: Any, current: Any) -> Any:
    """Take the proposed leaves (chains first) where accepted, else the current ones."""

    def pick(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(accepted.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(pick, proposed, current)
