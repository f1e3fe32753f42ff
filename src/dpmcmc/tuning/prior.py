"""The public part of the posterior: where the prior lies, how wide it is, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.models import Model, allowed

Array = NDArray[np.float64]
Keep = Callable[[Hashable, Callable[[], Any]], Any]

_NUM_DRAWS = 1000
# Without a width of its own (a flat prior) a coordinate is taken to be this wide at the start.
_WIDEST = 100.0
_NUM_NEWTON_STEPS = 50


class Prior(NamedTuple):
    """The prior in unconstrained space.

    Attributes
    ----------
    center, sd
        Where it lies and how wide it is, coordinate by coordinate: a start, and what is believed before any release.
    gradient, precision
        ∇ ln p(θ) and −∇² ln p(θ), the latter made positive semi-definite.
    log_density
        ln p(θ).
    """

    center: Array
    sd: Array
    gradient: Callable[[Array], Array]
    precision: Callable[[Array], Array]
    log_density: Callable[[Array], float]


def describe_prior(model: Model, num_records: int, keep: Keep | None = None) -> Prior:
    """Describe a model's prior. Public: no record has a part in it. To be called in double precision.

    All of it is compiled here, and the model's own code does not run again.

    Parameters
    ----------
    model
        The model.
    num_records
        Number of records: a ``sample_prior`` that has captured an array of that size is refused.
    keep
        Returns what was made under a key before, for a model with the same prior.
    """
    program = None
    if model.sample_prior is not None:
        program, _ = allowed.trace("sample_prior", model.sample_unconstrained_prior, _keys(()))
        allowed.check_constants("sample_prior", program, num_records)
    # (The density is known to be the same where the key is kept; how it is drawn from is not.)
    name = "prior", None if program is None else allowed.fingerprint(program)
    return _describe(model) if keep is None else keep(name, lambda: _describe(model))


def _describe(model: Model) -> Prior:
    value, theta = model.unconstrained_log_prior, jnp.zeros(model.dimension, jnp.float64)
    density, gradient, hessian = (
        jax.jit(function).lower(theta).compile() for function in (value, jax.grad(value), jax.hessian(value))
    )

    def precision(theta: Array) -> Array:
        matrix = -np.asarray(hessian(jnp.asarray(theta, jnp.float64)), np.float64)
        if not np.all(np.isfinite(matrix)):
            return np.zeros_like(matrix)
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
        return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)

    def slope(theta: Array) -> Array:
        found = np.asarray(gradient(jnp.asarray(theta, jnp.float64)), np.float64)
        return np.nan_to_num(found, nan=0.0, posinf=0.0, neginf=0.0)

    if model.sample_prior is not None:
        center, sd = _from_draws(model)
    else:
        center, sd = _from_mode(model.dimension, slope, precision)
    return Prior(center, sd, slope, precision, lambda theta: float(density(jnp.asarray(theta, jnp.float64))))


def _keys(shape: tuple[int, ...]) -> jax.Array:
    key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl="threefry2x32")
    return jax.random.split(key, shape) if shape else key


def _from_draws(model: Model) -> tuple[Array, Array]:
    """Return medians and (robust) widths of draws with a fixed key: heavy tails do not matter."""
    draws = np.asarray(jax.jit(jax.vmap(model.sample_unconstrained_prior))(_keys((_NUM_DRAWS,))), np.float64)
    low, center, high = np.nanquantile(np.where(np.isfinite(draws), draws, np.nan), [0.1587, 0.5, 0.8413], axis=0)
    center = np.where(np.abs(center) < 0.1 * (high - low), 0.0, center)  # so near to 0 by chance alone
    return center, np.clip((high - low) / 2.0, 1e-6, None)


def _from_mode(
    dimension: int, slope: Callable[[Array], Array], precision: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Return the mode, by damped Newton steps from 0, and the widths that the curvature there gives."""
    theta = np.zeros(dimension)
    for _ in range(_NUM_NEWTON_STEPS):
        matrix = precision(theta) + np.eye(dimension) / _WIDEST**2
        step = np.linalg.solve(matrix, slope(theta))
        theta = theta + np.clip(step, -2.0, 2.0)
        if np.abs(step).max() < 1e-8:
            break
    variances = np.diag(np.linalg.inv(precision(theta) + np.eye(dimension) / _WIDEST**2))
    return theta, np.sqrt(variances)
