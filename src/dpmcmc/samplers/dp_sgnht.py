"""DP-SGNHT: the stochastic-gradient Nosé–Hoover thermostat, whose own noise is the privacy mechanism's.

Ding et al. (2014). With step size h and diffusion A, on a random batch of b of the n records:

    p ← p − ξhp + h (∇ln p(θ) + (n/b) · [Σ_batch clip_C(∇ln p(x|θ)) + noise]),  noise sd s = √(2Ah)·b/(hn),
    θ ← θ + hp,   ξ ← ξ + h (pᵀp/d − 1),   ξ₀ = A,

so that h(n/b)·noise ~ N(0, 2Ah); the thermostat ξ also absorbs noise of unknown size from the batches. There is no
accept test: the step size biases the result. The budget fixes the number of steps beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from dpmcmc.checks import choice, convert_count, convert_positive
from dpmcmc.models import Model
from dpmcmc.queries import BatchGradient, Oracle, PaidNoise, Queries
from dpmcmc.queries.batch_gradient import Sampling
from dpmcmc.samplers.base import Kernel, log_prior_of


class State(NamedTuple):
    """Position, momentum and thermostat of each chain."""

    position: jax.Array
    momentum: jax.Array
    thermostat: jax.Array


class Inputs(NamedTuple):
    """Settings that are inputs of the compiled code: h, n/b and A."""

    step_size: Any
    weight: Any
    diffusion: Any


class Info(NamedTuple):
    """Released quantities of one step."""

    step_size: jax.Array


@dataclass(frozen=True)
class DPSGNHT:
    """Settings of DP-SGNHT.

    Parameters
    ----------
    batch_size
        b, the (expected) size of a batch.
    gradient_clip_norm
        C: norm to which each record's gradient is clipped.
    step_size
        h.
    diffusion
        A.
    sampling
        "without_replacement" or "poisson".
    """

    batch_size: int
    gradient_clip_norm: float
    step_size: float
    diffusion: float
    sampling: Sampling = "without_replacement"
    name: ClassVar[str] = "DP-SGNHT"
    private: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_count(self, "batch_size")
        convert_positive(self, "gradient_clip_norm", "step_size", "diffusion")
        choice("sampling", self.sampling, ("without_replacement", "poisson"))

    def queries(self, num_records: int) -> Queries:
        """Declare one batch gradient a step, with the noise that the dynamics need."""
        noise_sd = math.sqrt(2.0 * self.diffusion * self.step_size) * self.batch_size / (self.step_size * num_records)
        gradient = BatchGradient(
            self.gradient_clip_norm, noise_sd / self.gradient_clip_norm, self.batch_size, self.sampling
        )
        return Queries(gradient=gradient, gradients_per_step=1)

    @property
    def structure(self) -> Hashable:
        """What the compiled code depends on beside its inputs: nothing."""
        return ()

    def inputs(self, model: Model, num_records: int) -> Inputs:
        """Step size, weight of a batch and diffusion."""
        return Inputs(self.step_size, num_records / self.batch_size, self.diffusion)

    def kernel(self, model: Model, num_records: int, inputs: Inputs | None = None) -> Kernel:
        """Build init and step."""
        log_prior = log_prior_of(model)
        size, weight, diffusion = self.inputs(model, num_records) if inputs is None else inputs

        def init(key: jax.Array, theta: jax.Array, oracle: Oracle, noise: PaidNoise) -> State:
            momentum = jax.random.normal(key, theta.shape, dtype=jnp.float64)
            return State(theta, momentum, jnp.full(len(theta), diffusion))

        def step(key: jax.Array, state: State, oracle: Oracle, noise: PaidNoise) -> tuple[State, Info]:
            release = oracle.batch_gradient(state.position, noise.batch, noise.gradient[0])
            force = log_prior.gradient(state.position) + weight * release.value
            friction = state.thermostat[:, None] * state.momentum
            momentum = state.momentum + size * (force - friction)
            thermostat = state.thermostat + size * (jnp.mean(momentum**2, axis=-1) - 1.0)
            return State(state.position + size * momentum, momentum, thermostat), Info(jnp.full(len(momentum), size))

        return Kernel(init, step)
