"""Leapfrog integrators with noisy gradients, for all chains at once.

For a fixed draw z of the gradient estimate the map p → −p + s·z preserves volume and is its own inverse, so a leapfrog
may use any estimate whose law depends on θ only, as long as the sequence of estimates along the trajectory has the same
law read backwards: fresh, independent draws do. Three arrangements, all exact:

- ``position_first``: half a position step first and last, momentum steps between: L gradients, nothing kept.
- ``momentum_first``: half a momentum step first and last, as the paper does: L + 1 gradients.
- ``cached``: the same, but the last noisy gradient is kept as part of the state: L gradients a step, one at the start.
  On rejection the old one stays, on acceptance the new one: (θ, z) then has the right joint law. Keeping it after
  acceptance only, or after rejection only, is biased.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# gradient(theta, noise) -> estimate of the gradient of the log-density
GradientEstimate = Callable[[jax.Array, Any], jax.Array]
Velocity = Callable[[jax.Array], jax.Array]


class Trajectory(NamedTuple):
    """A point of phase space, with the gradient estimate that was made at it (where one is kept)."""

    position: jax.Array
    momentum: jax.Array
    gradient: jax.Array


def gradients_per_step(leapfrog: str, num_leapfrog: int) -> tuple[int, int]:
    """Return how many gradients a trajectory of L steps asks for, and how many are asked at the start of the chain."""
    return {
        "position_first": (num_leapfrog, 0),
        "momentum_first": (num_leapfrog + 1, 0),
        "cached": (num_leapfrog, 1),
    }[leapfrog]


def position_first(
    start: Trajectory, step_size: jax.Array, gradient: GradientEstimate, velocity: Velocity, noise: Any
) -> Trajectory:
    """θ += ½ηM⁻¹p; (p += ηz(θ); θ += ηM⁻¹p) L − 1 times; p += ηz(θ); θ += ½ηM⁻¹p."""

    def turn(point: tuple[jax.Array, jax.Array], one_noise: Any) -> tuple[tuple[jax.Array, jax.Array], None]:
        position, momentum = point
        momentum = momentum + step_size * gradient(position, one_noise)
        return (position + step_size * velocity(momentum), momentum), None

    first = start.position + 0.5 * step_size * velocity(start.momentum)
    (position, momentum), _ = jax.lax.scan(turn, (first, start.momentum), noise)
    return Trajectory(position - 0.5 * step_size * velocity(momentum), momentum, start.gradient)


def momentum_first(
    start: Trajectory, step_size: jax.Array, gradient: GradientEstimate, velocity: Velocity, noise: Any
) -> Trajectory:
    """Ask for the first gradient anew (noise[0]), then go on as ``cached`` does."""
    first = gradient(start.position, jax.tree.map(lambda leaf: leaf[0], noise))
    rest = jax.tree.map(lambda leaf: leaf[1:], noise)
    return cached(start._replace(gradient=first), step_size, gradient, velocity, rest)


def cached(
    start: Trajectory, step_size: jax.Array, gradient: GradientEstimate, velocity: Velocity, noise: Any
) -> Trajectory:
    """p += ½ηz; (θ += ηM⁻¹p; p += ηz(θ)) L times; p −= ½ηz, with the first z given by the state."""

    def turn(point: Trajectory, one_noise: Any) -> tuple[Trajectory, None]:
        position = point.position + step_size * velocity(point.momentum)
        estimate = gradient(position, one_noise)
        return Trajectory(position, point.momentum + step_size * estimate, estimate), None

    first = start._replace(momentum=start.momentum + 0.5 * step_size * start.gradient)
    end, _ = jax.lax.scan(turn, first, noise)
    return end._replace(momentum=end.momentum - 0.5 * step_size * end.gradient)


INTEGRATORS = {"position_first": position_first, "momentum_first": momentum_first, "cached": cached}


class Mass(NamedTuple):
    """A mass matrix M: draws p ~ N(0, M), M⁻¹p and ½pᵀM⁻¹p for rows of momenta."""

    draw: Callable[[jax.Array, tuple[int, ...]], jax.Array]
    velocity: Velocity
    kinetic_energy: Callable[[jax.Array], jax.Array]


class MassMatrices(NamedTuple):
    """A factor of M and M⁻¹: inputs of compiled code."""

    factor: Any
    inverse: Any


def mass_matrices(matrix: Any, dimension: int) -> MassMatrices:
    """Take None (identity), a vector (diagonal) or a positive-definite matrix; raises ValueError otherwise."""
    array = np.ones(dimension) if matrix is None else np.asarray(matrix, np.float64)
    if array.shape not in ((dimension,), (dimension, dimension)):
        raise ValueError(f"has shape {array.shape}; give ({dimension},) or ({dimension}, {dimension})")
    full = np.diag(array) if array.ndim == 1 else array
    try:
        factor, inverse = np.linalg.cholesky(full), np.linalg.inv(full)
    except np.linalg.LinAlgError:
        factor = inverse = np.full_like(full, np.nan)
    finite = np.isfinite(factor).all() and np.isfinite(inverse).all()
    if not (finite and np.all(np.abs(factor @ factor.T - full) <= 1e-10 * np.max(np.abs(full)))):
        raise ValueError("is not symmetric positive definite")
    return MassMatrices(factor, inverse)


def make_mass(matrix: Any, dimension: int) -> Mass:
    """Build from what :func:`mass_matrices` takes, or from what it returns."""
    factor, inverse = matrix if isinstance(matrix, MassMatrices) else mass_matrices(matrix, dimension)

    def velocity(momentum: jax.Array) -> jax.Array:
        return momentum @ inverse

    return Mass(
        draw=lambda key, shape: jax.random.normal(key, shape, dtype=jnp.float64) @ factor.T,
        velocity=velocity,
        kinetic_energy=lambda momentum: 0.5 * jnp.sum(momentum * velocity(momentum), axis=-1),
    )
