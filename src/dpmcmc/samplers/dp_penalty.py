"""DP-penalty: a random walk that does not look at the data, with a noisy, penalised accept test.

Yildirim and Ermis (2019). One step: propose θ' symmetrically, release R + ξ = Σ_x clip_c(ln p(x|θ') − ln p(x|θ)) +
noise of sd σ = 2cτ with c = b‖θ' − θ‖, accept if ln u < R + ξ + Δ ln prior − σ²/2. Cost per step: 1/(2τ²). Proposals:

- ``all``: θ' = θ + s·N(0, I);
- ``one_component``: the same in one coordinate, chosen at random;
- ``guided`` (Gustafson 1998): each coordinate keeps a direction; one coordinate, chosen at random, moves |N(0, s²)|
  along it; a rejection flips the direction. (θ', −direction) proposes θ back, so π(θ) × uniform directions is
  invariant.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.checks import choice, convert_positive
from dpmcmc.errors import QueryError
from dpmcmc.models import Model
from dpmcmc.queries import LogRatio, Oracle, PaidNoise, Queries
from dpmcmc.samplers.acceptance import choose, penalty_test
from dpmcmc.samplers.base import Kernel, log_prior_of, per_coordinate

Update = Literal["all", "one_component", "guided"]


class State(NamedTuple):
    """Position of each chain and, for the guided walk, a direction ±1 of each coordinate."""

    position: jax.Array
    direction: jax.Array


class Info(NamedTuple):
    """Released quantities of one step (and, from an oracle without noise only, the fraction of ratios clipped)."""

    acceptance_rate: jax.Array
    ratios_clipped: Any = None


@dataclass(frozen=True)
class DPPenalty:
    """Settings of DP-penalty.

    Parameters
    ----------
    proposal_scale
        s: sd of the proposal, one number or one for each unconstrained coordinate.
    ratio_bound
        b: log-ratios are clipped to b‖θ' − θ‖.
    ratio_noise_multiplier
        Noise multiplier τ (the paper's number times √n).
    update
        "all", "one_component" or "guided".
    """

    proposal_scale: Any
    ratio_bound: float
    ratio_noise_multiplier: float
    update: Update = "all"
    name: ClassVar[str] = "DP-penalty"
    private: ClassVar[bool] = True

    def __post_init__(self) -> None:
        convert_positive(self, "ratio_bound", "ratio_noise_multiplier")
        check_proposal_scale(self.proposal_scale)
        choice("update", self.update, ("all", "one_component", "guided"))

    def queries(self, num_records: int) -> Queries:
        """Declare one log-ratio a step."""
        return Queries(
            log_ratio=LogRatio(self.ratio_bound, noise_multiplier=self.ratio_noise_multiplier), log_ratios_per_step=1
        )

    @property
    def structure(self) -> Hashable:
        """What the compiled code depends on beside its inputs."""
        return self.update

    def inputs(self, model: Model, num_records: int) -> jax.Array:
        """Scales of the proposal, one for each coordinate."""
        return per_coordinate("proposal_scale", self.proposal_scale, model.dimension)

    def kernel(self, model: Model, num_records: int, inputs: jax.Array | None = None) -> Kernel:
        """Build init and step."""
        return build_kernel(model, self.inputs(model, num_records) if inputs is None else inputs, self.update)


def check_proposal_scale(scale: Any) -> None:
    """Accept a positive number or a vector of them."""
    array = np.asarray(scale)
    if array.dtype.kind not in "iuf" or array.ndim > 1 or not (np.all(np.isfinite(array)) and np.all(array > 0)):
        raise QueryError(f"proposal_scale = {scale!r} is out of range; give a positive number, or one a coordinate")


def build_kernel(model: Model, scale: jax.Array, update: Update) -> Kernel:
    """Build the pure functions of random-walk Metropolis against an oracle."""
    log_prior = log_prior_of(model)

    def move(key: jax.Array, direction: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Draw a step of each chain, and which coordinates it moves (as 0 and 1)."""
        step_key, choice_key = jax.random.split(key)
        length = scale * jax.random.normal(step_key, direction.shape, dtype=jnp.float64)
        if update == "all":
            return length, jnp.ones_like(length)
        chosen = jax.random.randint(choice_key, (len(direction),), 0, model.dimension)
        mask = jax.nn.one_hot(chosen, model.dimension, dtype=jnp.float64)
        return mask * (direction * jnp.abs(length) if update == "guided" else length), mask

    def init(key: jax.Array, theta: jax.Array, oracle: Oracle, noise: PaidNoise) -> State:
        return State(theta, 2.0 * jax.random.bernoulli(key, 0.5, theta.shape) - 1.0)

    def step(key: jax.Array, state: State, oracle: Oracle, noise: PaidNoise) -> tuple[State, Info]:
        move_key, accept_key = jax.random.split(key)
        jump, moved = move(move_key, state.direction)
        proposal = state.position + jump
        release = oracle.log_ratio(state.position, proposal, noise.log_ratio)
        change = log_prior.value(proposal) - log_prior.value(state.position)
        accepted = penalty_test(accept_key, release.value + change, release.noise_sd)
        flipped = state.direction * (1.0 - 2.0 * moved)
        position, direction = choose(accepted, (proposal, state.direction), (state.position, flipped))
        return State(position, direction), Info(accepted, getattr(release, "clipped", None))

    return Kernel(init, step)
