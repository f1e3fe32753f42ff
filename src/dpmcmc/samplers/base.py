"""What every sampler is: settings, the queries that they declare, and a pair of pure functions.

A sampler sees an :class:`~dpmcmc.queries.Oracle` and the model's public prior, never data. All chains are
advanced together: positions have shape chains × dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import ModelError
from dpmcmc.models import Model
from dpmcmc.queries import Oracle, PaidNoise, Queries


class Kernel(NamedTuple):
    """``init(key, theta, oracle, noise) -> state`` and ``step(key, state, oracle, noise) -> state, info``.

    A state has a field ``position``; an info holds released quantities only.
    """

    init: Callable[[jax.Array, jax.Array, Oracle, PaidNoise], Any]
    step: Callable[[jax.Array, Any, Oracle, PaidNoise], tuple[Any, Any]]


class Sampler(Protocol):
    """Settings of an algorithm."""

    name: ClassVar[str]
    private: ClassVar[bool]

    def queries(self, num_records: int) -> Queries:
        """Declare what one step asks, for each chain."""
        ...

    @property
    def structure(self) -> Hashable:
        """The settings that decide what the compiled code looks like; all others are inputs of it."""
        ...

    def inputs(self, model: Model, num_records: int) -> Any:
        """Return the settings that compiled code takes as inputs: a tree of numbers and arrays."""
        ...

    def kernel(self, model: Model, num_records: int, inputs: Any = None) -> Kernel:
        """Build the pure functions for a model; ``inputs`` (traced, in compiled code) stand in for the settings."""
        ...


class LogPrior(NamedTuple):
    """The public part of the target, for a batch of chains."""

    value: Callable[[jax.Array], jax.Array]
    gradient: Callable[[jax.Array], jax.Array]


def log_prior_of(model: Model) -> LogPrior:
    """Batch the model's unconstrained log-prior and its gradient over chains."""
    return LogPrior(jax.vmap(model.unconstrained_log_prior), jax.vmap(jax.grad(model.unconstrained_log_prior)))


def per_coordinate(name: str, value: Any, dimension: int) -> jax.Array:
    """Turn a positive scalar or a vector of them into a vector, or raise."""
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 0:
        array = np.full(dimension, array)
    if array.shape != (dimension,) or not (np.all(np.isfinite(array)) and np.all(array > 0)):
        raise ModelError(f"{name} must be a positive number or {dimension} of them, got shape {np.shape(value)}")
    return jnp.asarray(array)
