"""Posteriors without noise, by Newton's method, chains, grids and formulas: what private runs are compared with.

Plain computations on synthetic or public records. Nothing here is private.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from numpyro import diagnostics
from numpyro.infer import MCMC, NUTS

import dpmcmc
from dpmcmc.errors import DPMCMCError

Array = NDArray[np.float64]
Potential = Callable[[jax.Array], jax.Array]
"""−log p(θ | x) up to a constant, of one unconstrained vector."""

_NUTS_WARMUP, _NUTS_DRAWS, _NUTS_CHAINS = 400, 1500, 4
_MAX_R_HAT = 1.01
_MAX_NEWTON_STEPS = 200
# Of a grid: cells on a side, how often it is drawn anew around what has mass, and the depth below which nothing has.
_GRID_SIDE, _GRID_ROUNDS, _GRID_DEPTH = 1200, 4, 25.0
_FEWEST_CELLS = 4000
_NUM_CHECKED, _LARGEST_SPREAD = 100, 0.05


class NoReferenceError(DPMCMCError):
    """The exact answer of a case could not be found."""


def potential_of(model: dpmcmc.Model, data: Any, weights: Array | None = None) -> Potential:
    """Return −log p(θ | x) up to a constant, as a function of the unconstrained vector.

    Parameters
    ----------
    weights
        How often each record counts, for records that stand for many with the same sufficient statistics; default 1.
    """
    records = jax.tree.map(jnp.asarray, dict(data) if isinstance(data, Mapping) else data)

    def minus_log_posterior(theta: jax.Array) -> jax.Array:
        values = jax.vmap(model.unconstrained_log_likelihood, (None, 0))(theta, records)
        total = jnp.sum(values) if weights is None else jnp.dot(jnp.asarray(weights), values)
        return -model.unconstrained_log_prior(theta) - total

    return minus_log_posterior


def find_mode(potential: Potential, guess: Array) -> tuple[Array, Array]:
    """Return the mode and the inverse Hessian there, by Newton's method with halved steps."""
    return newton(jax.jit(jax.value_and_grad(potential)), jax.jit(jax.hessian(potential)), guess)


def newton(
    value_and_gradient: Callable[[Array], tuple[Any, Any]], hessian: Callable[[Array], Any], guess: Array
) -> tuple[Array, Array]:
    """Do the same as :func:`find_mode` for functions that are compiled already."""
    point = np.array(guess, np.float64)
    value, gradient = value_and_gradient(point)
    for _ in range(_MAX_NEWTON_STEPS):
        matrix = np.asarray(hessian(point))
        scale = 1.0 / np.sqrt(np.maximum(np.diag(matrix), 1e-12))  # features may be on very different scales
        lowest = np.linalg.eigvalsh(scale[:, None] * matrix * scale)[0]
        ridge = 0.0 if lowest > 0.0 else 1e-3 - lowest
        inverse = scale[:, None] * np.linalg.inv(scale[:, None] * matrix * scale + ridge * np.eye(len(point))) * scale
        step = -inverse @ np.asarray(gradient)
        decrease = -float(np.asarray(gradient) @ step)
        if decrease < 1e-12 and ridge == 0.0:  # half the squared length of the step in posterior sds
            return point, (inverse + inverse.T) / 2.0
        length = 1.0
        while not float(value_and_gradient(point + length * step)[0]) <= float(value) - 1e-4 * length * decrease:
            length /= 2.0
            if length < 1e-10:  # as exact as sums of so many numbers are
                if decrease < 1e-6 and ridge == 0.0:
                    return point, (inverse + inverse.T) / 2.0
                raise NoReferenceError("the search for the mode stands still")
        point = point + length * step
        value, gradient = value_and_gradient(point)
    raise NoReferenceError(f"no mode found in {_MAX_NEWTON_STEPS} steps")


def skewness_shift(potential: Potential, mode: Array, cov: Array) -> Array:
    r"""Return the first correction of the mean for skewness, −½ Σ ∇ tr(Σ H(θ)) at the mode, Σ = H⁻¹.

    Source: Tierney and Kadane (1986), "Accurate approximations for posterior moments", section 2.
    """

    def curvature_along(theta: jax.Array, direction: jax.Array) -> jax.Array:
        def slope(point: jax.Array) -> jax.Array:
            return jax.jvp(potential, (point,), (direction,))[1]

        return jax.jvp(slope, (theta,), (direction,))[1]

    directions = jnp.asarray(np.linalg.cholesky(cov).T)
    gradients = jax.jit(lambda point: jax.lax.map(lambda row: jax.grad(curvature_along)(point, row), directions))(mode)
    return np.asarray(-0.5 * cov @ np.asarray(gradients).sum(axis=0))


def run_nuts(potential: Potential, mode: Array, cov: Array) -> tuple[Array, float]:
    """Return draws of NUTS, chains × draws × d, and their largest split R̂, which must be small.

    They run in coordinates θ = mode + C z, C Cᵀ the inverse Hessian.
    """
    factor, center = jnp.asarray(np.linalg.cholesky(cov)), jnp.asarray(mode)

    def whitened(z: jax.Array) -> jax.Array:
        return potential(center + factor @ z)

    sampler = MCMC(
        NUTS(potential_fn=whitened),
        num_warmup=_NUTS_WARMUP,
        num_samples=_NUTS_DRAWS,
        num_chains=_NUTS_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    key, start_key = jax.random.split(jax.random.key(0))
    starts = 2.0 * jax.random.normal(start_key, (_NUTS_CHAINS, len(mode)), jnp.float64)
    sampler.run(key, init_params=starts)
    draws = np.asarray(mode + np.asarray(sampler.get_samples(group_by_chain=True)) @ np.asarray(factor).T)
    max_r_hat = float(np.max(diagnostics.split_gelman_rubin(draws)))
    if max_r_hat > _MAX_R_HAT:
        raise NoReferenceError(f"the chains did not converge: R̂ = {max_r_hat:.3f}")
    return draws, max_r_hat


def grid_draws(
    potential: Potential, box: Sequence[tuple[float, float]], generator: np.random.Generator, number: int
) -> Array:
    """Return independent draws, number × 2, from a density in the plane: cells of a grid, a uniform point in each.

    The grid is drawn anew around the cells that have mass, and must have thousands of these, or it would be too coarse.

    Parameters
    ----------
    box
        Bounds of both coordinates, between which the density has its mass.
    """
    evaluate = jax.jit(jax.vmap(potential))
    for _ in range(_GRID_ROUNDS):
        widths = [(high - low) / _GRID_SIDE for low, high in box]
        axes = [low + width * (np.arange(_GRID_SIDE) + 0.5) for (low, _), width in zip(box, widths, strict=True)]
        centers = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        values = np.concatenate([np.asarray(evaluate(row)) for row in np.array_split(centers.reshape(-1, 2), 8)])
        values = np.where(np.isfinite(values), values, math.inf)
        depth = (values - values.min()).reshape(_GRID_SIDE, _GRID_SIDE)
        has_mass = np.argwhere(depth < _GRID_DEPTH)
        low_cells, high_cells = np.maximum(has_mass.min(axis=0) - 2, 0), has_mass.max(axis=0) + 3
        masses, cell_centers, cell_widths = np.exp(-depth).ravel(), centers.reshape(-1, 2), np.array(widths)
        box = [
            (low + width * first, min(high, low + width * last))
            for (low, high), width, first, last in zip(box, widths, low_cells, high_cells, strict=True)
        ]
    masses /= masses.sum()
    if 1.0 / np.sum(masses**2) < _FEWEST_CELLS:
        raise NoReferenceError(f"the grid is too coarse: its mass lies in {1.0 / np.sum(masses**2):.0f} cells")
    chosen = generator.choice(len(masses), number, p=masses)
    return np.asarray(cell_centers[chosen] + cell_widths * (generator.random((number, 2)) - 0.5))


def newton_draws(potential: Potential, mode: Array, cov: Array, generator: np.random.Generator, number: int) -> Array:
    """Return draws of the Gaussian at the mode, corrected for skewness, of a posterior that is very nearly that.

    The log-weights log p(θ | x) − log N(θ) of a few draws show whether it is: they must all be about the same.
    """
    center = mode + skewness_shift(potential, mode, cov)
    standard = generator.standard_normal((number, len(mode)))
    points = center + standard @ np.linalg.cholesky(cov).T
    evaluate = jax.jit(potential)
    values = np.array([float(evaluate(point)) for point in points[:_NUM_CHECKED]])
    spread = float(np.std(0.5 * np.sum(standard[:_NUM_CHECKED] ** 2, axis=1) - values))
    if not spread <= _LARGEST_SPREAD:
        raise NoReferenceError(f"the posterior is not Gaussian enough: its log-weights have an sd of {spread:.2f}")
    return np.asarray(points)
