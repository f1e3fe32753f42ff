"""DP-HMC: Hamiltonian Monte Carlo with noisy, clipped gradients and a noisy, penalised accept test.

Räisä, Koskela and Honkela, "Differentially Private Hamiltonian Monte Carlo", Algorithm 1, with the sign put right. One
step of a chain at θ, with step size η jittered by a Halton sequence and mass matrix M:

1. p ~ N(0, M), then a leapfrog of L steps along z(θ) = Σ_x clip_C(∇ln p(x|θ)) + noise + ∇ln p(θ), noise sd 2C·τ_g;
2. R + ξ = Σ_x clip_c(ln p(x|θ') − ln p(x|θ)) + noise of sd σ = 2c·τ_l, with c = b‖θ' − θ‖;
3. accept θ' if ln u < R + ξ + Δ ln prior − Δ kinetic energy − σ²/2.

The posterior is exact where no log-ratio is clipped; clipped and noisy gradients only lower the acceptance rate. Cost
per step: 1/(2τ_l²) + (number of gradients)/(2τ_g²). The same functions with a noise-free oracle are plain HMC.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from dpmcmc.checks import choice, convert_count, convert_positive
from dpmcmc.errors import QueryError
from dpmcmc.models import Model
from dpmcmc.queries import Gradient, LogRatio, Oracle, PaidDraws, PaidNoise, Queries
from dpmcmc.samplers.acceptance import choose, penalty_test
from dpmcmc.samplers.base import Kernel, log_prior_of
from dpmcmc.samplers.halton import randomised_halton
from dpmcmc.samplers.integrators import (
    INTEGRATORS,
    MassMatrices,
    Trajectory,
    gradients_per_step,
    make_mass,
    mass_matrices,
)

Leapfrog = Literal["position_first", "momentum_first", "cached"]
Jitter = Literal["halton", "halton_from_zero"] | None
JITTERS = ("halton", "halton_from_zero", None)


class State(NamedTuple):
    """Position of each chain, the gradient estimate kept with it (``cached`` only), and the jitter's place."""

    position: jax.Array
    gradient: jax.Array
    jitter_shift: jax.Array
    iteration: jax.Array


class Inputs(NamedTuple):
    """Settings that are inputs of the compiled code: η, and the mass matrix."""

    step_size: Any
    mass: MassMatrices


class Info(NamedTuple):
    """Released quantities of one step (and, from an oracle without noise only, the fraction of ratios clipped)."""

    acceptance_rate: jax.Array
    step_size: jax.Array
    ratios_clipped: Any = None


@dataclass(frozen=True)
class DPHMC:
    """Settings of DP-HMC.

    Parameters
    ----------
    step_size
        η, the largest step size (before jitter).
    num_leapfrog
        L, leapfrog steps of a trajectory.
    ratio_bound
        b_l: log-ratios are clipped to b_l‖θ' − θ‖.
    gradient_clip_norm
        b_g: norm to which each record's gradient is clipped.
    ratio_noise_multiplier, gradient_noise_multiplier
        Noise multipliers τ = noise sd / sensitivity. The paper writes them in units of √n: its 0.1 is
        ``0.1 * math.sqrt(n)`` here.
    mass_matrix
        M: None (identity), a vector (diagonal) or a matrix.
    leapfrog
        "position_first" (L gradients a step), "momentum_first" (the paper's, L + 1) or "cached" (L, and 1 at first).
    jitter
        "halton" multiplies η in each step by a number in (½, 1] of a randomised Halton sequence; "halton_from_zero"
        by one in (0, 1], as the paper's code does (but a short trajectory costs as much budget as a long one); None
        keeps η.
    """

    step_size: float
    num_leapfrog: int
    ratio_bound: float
    gradient_clip_norm: float
    ratio_noise_multiplier: float
    gradient_noise_multiplier: float
    mass_matrix: Any = None
    leapfrog: Leapfrog = "position_first"
    jitter: Jitter = "halton"
    name: ClassVar[str] = "DP-HMC"
    private: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_positive(
            self,
            "step_size",
            "ratio_bound",
            "gradient_clip_norm",
            "ratio_noise_multiplier",
            "gradient_noise_multiplier",
        )
        convert_count(self, "num_leapfrog")
        choice("leapfrog", self.leapfrog, tuple(INTEGRATORS))
        choice("jitter", self.jitter, JITTERS)

    def queries(self, num_records: int) -> Queries:
        """Declare one log-ratio and L or L + 1 gradients a step."""
        per_step, at_start = gradients_per_step(self.leapfrog, self.num_leapfrog)
        return Queries(
            gradient=Gradient(self.gradient_clip_norm, self.gradient_noise_multiplier),
            log_ratio=LogRatio(self.ratio_bound, noise_multiplier=self.ratio_noise_multiplier),
            gradients_per_step=per_step,
            log_ratios_per_step=1,
            gradients_at_start=at_start,
        )

    @property
    def structure(self) -> Hashable:
        """What the compiled code depends on beside its inputs."""
        return self.leapfrog, self.jitter

    def inputs(self, model: Model, num_records: int) -> Inputs:
        """Step size and mass matrix."""
        return make_inputs(model, self.step_size, self.mass_matrix)

    def kernel(self, model: Model, num_records: int, inputs: Inputs | None = None) -> Kernel:
        """Build init and step."""
        inputs = self.inputs(model, num_records) if inputs is None else inputs
        return build_kernel(model, inputs, self.leapfrog, self.jitter)


def make_inputs(model: Model, step_size: float, mass_matrix: Any) -> Inputs:
    """Check the mass matrix and factorise it."""
    try:
        return Inputs(step_size, mass_matrices(mass_matrix, model.dimension))
    except ValueError as error:
        raise QueryError(f"mass_matrix {error}") from None


def build_kernel(model: Model, inputs: Inputs, leapfrog: Leapfrog, jitter: Jitter) -> Kernel:
    """Build the pure functions of HMC against an oracle; the number of leapfrog steps is that of the noise given."""
    log_prior = log_prior_of(model)
    integrate = INTEGRATORS[leapfrog]
    mass = make_mass(inputs.mass, model.dimension)

    def estimate(oracle: Oracle, theta: jax.Array, noise: PaidDraws) -> jax.Array:
        return oracle.gradient(theta, noise).value + log_prior.gradient(theta)

    def init(key: jax.Array, theta: jax.Array, oracle: Oracle, noise: PaidNoise) -> State:
        gradient = estimate(oracle, theta, noise.gradient[0]) if leapfrog == "cached" else jnp.zeros_like(theta)
        shift = jax.random.uniform(key, (len(theta),), dtype=jnp.float64)
        return State(theta, gradient, shift, jnp.zeros((), jnp.uint32))

    def step(key: jax.Array, state: State, oracle: Oracle, noise: PaidNoise) -> tuple[State, Info]:
        momentum_key, accept_key = jax.random.split(key)
        halton = randomised_halton(state.jitter_shift, state.iteration)
        eta = inputs.step_size * jittered(halton, jitter)
        start = Trajectory(state.position, mass.draw(momentum_key, state.position.shape), state.gradient)
        end = integrate(start, eta[:, None], lambda theta, z: estimate(oracle, theta, z), mass.velocity, noise.gradient)

        release = oracle.log_ratio(start.position, end.position, noise.log_ratio)
        change = log_prior.value(end.position) - log_prior.value(start.position)
        change = change + mass.kinetic_energy(start.momentum) - mass.kinetic_energy(end.momentum)
        accepted = penalty_test(accept_key, release.value + change, release.noise_sd)

        position, gradient = choose(accepted, (end.position, end.gradient), (start.position, start.gradient))
        info = Info(accepted, eta, getattr(release, "clipped", None))
        return State(position, gradient, state.jitter_shift, state.iteration + 1), info

    return Kernel(init, step)


def jittered(halton: jax.Array, jitter: Jitter) -> jax.Array:
    """Return the factor on the step size for numbers in (0, 1]."""
    if jitter is None:
        return jnp.ones_like(halton)
    return halton if jitter == "halton_from_zero" else 0.5 + 0.5 * halton
