"""DP-SGLD: stochastic-gradient Langevin dynamics whose own noise is the privacy mechanism's.

Wang, Fienberg and Smola (2015). One step with step size h on a random batch of b of the n records:

    θ ← θ + h (∇ln p(θ) + (n/b) · [Σ_batch clip_C(∇ln p(x|θ)) + noise]),  noise sd on the batch sum s = √(2hT)·b/(hn),

so that h(n/b)·noise ~ N(0, 2hT). T = 1 samples the posterior as h → 0, if no gradient is clipped: clipped gradients
shift it, whatever h is. The code published with "Differentially Private Hamiltonian Monte Carlo" has N(0, h), that is
T = ½ (too narrow a posterior). There is no accept test: the step size biases the result too. The budget fixes the
number of steps beforehand, by the accountant of the subsampled Gaussian.
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
    """Position of each chain."""

    position: jax.Array


class Inputs(NamedTuple):
    """Settings that are inputs of the compiled code: h and n/b."""

    step_size: Any
    weight: Any


class Info(NamedTuple):
    """Released quantities of one step."""

    step_size: jax.Array


@dataclass(frozen=True)
class DPSGLD:
    """Settings of DP-SGLD.

    Parameters
    ----------
    batch_size
        b, the (expected) size of a batch.
    gradient_clip_norm
        C: norm to which each record's gradient is clipped.
    step_size
        h.
    temperature
        T; 1 is the posterior.
    sampling
        "without_replacement" or "poisson".
    """

    batch_size: int
    gradient_clip_norm: float
    step_size: float
    temperature: float = 1.0
    sampling: Sampling = "without_replacement"
    name: ClassVar[str] = "DP-SGLD"
    private: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_count(self, "batch_size")
        convert_positive(self, "gradient_clip_norm", "step_size", "temperature")
        choice("sampling", self.sampling, ("without_replacement", "poisson"))

    def queries(self, num_records: int) -> Queries:
        """Declare one batch gradient a step, with the noise that the dynamics need."""
        noise_sd = math.sqrt(2.0 * self.step_size * self.temperature) * self.batch_size / (self.step_size * num_records)
        gradient = BatchGradient(
            self.gradient_clip_norm, noise_sd / self.gradient_clip_norm, self.batch_size, self.sampling
        )
        return Queries(gradient=gradient, gradients_per_step=1)

    @property
    def structure(self) -> Hashable:
        """What the compiled code depends on beside its inputs: nothing."""
        return ()

    def inputs(self, model: Model, num_records: int) -> Inputs:
        """Step size and weight of a batch."""
        return Inputs(self.step_size, num_records / self.batch_size)

    def kernel(self, model: Model, num_records: int, inputs: Inputs | None = None) -> Kernel:
        """Build init and step."""
        log_prior = log_prior_of(model)
        step_size, weight = self.inputs(model, num_records) if inputs is None else inputs

        def init(key: jax.Array, theta: jax.Array, oracle: Oracle, noise: PaidNoise) -> State:
            return State(theta)

        def step(key: jax.Array, state: State, oracle: Oracle, noise: PaidNoise) -> tuple[State, Info]:
            release = oracle.batch_gradient(state.position, noise.batch, noise.gradient[0])
            drift = log_prior.gradient(state.position) + weight * release.value
            size = jnp.full(len(state.position), step_size)
            return State(state.position + step_size * drift), Info(size)

        return Kernel(init, step)
