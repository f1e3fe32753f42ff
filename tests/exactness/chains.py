"""Thousands of chains, each with records of its own, through the curator's oracle and the samplers' own kernels.

A replication is a draw of the joint law: θ from the prior, records x from p(x|θ). Given x, θ is then a draw from the
posterior, so that a chain that starts there is in its stationary law from the first step on: nothing has to converge.
What the compiled code takes as records is an input of it, so that one program serves all replications, one after the
other. Nothing is clipped: scores are bounded, and the bounds of the samplers are those bounds.

Twins, kernels that are wrong in one place, are made by :class:`Switches` (numbers that are inputs of the same program)
or by ``spoil`` (a function from the kernel to a wrong one).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from dpmcmc import models
from dpmcmc.curator import Curator, placement
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.queries import PaidNoise, Queries
from dpmcmc.samplers import DPHMC, HMC, RWMH, DPPenalty, Kernel, SurrogateHMC, dp_hmc
from dpmcmc.samplers.surrogate_hmc import accept, build_propose
from dpmcmc.surrogate import Form, Surrogate
from tests.samplers.targets import ALPHA, PRIOR_SCALE, RATIO_CLIP, SKEWED, draw_noise, paying, seeded

NUM_RECORDS = 16
DIMENSION = 2
BLOCK = 1000  # replications of one call

# ---------------------------------------------------------------------- the joint law


class Joint(NamedTuple):
    """A model, draws of its prior (replications × 2), of its records given them, and the norm no score exceeds."""

    model: Any
    draw_prior: Callable[[np.random.Generator, int], np.ndarray]
    draw_records: Callable[[np.random.Generator, np.ndarray], Any]
    score_bound: float


def draw_gumbel(generator, number):
    return PRIOR_SCALE * generator.gumbel(size=(number, DIMENSION))


def draw_skewed(generator, theta):
    """y = θ₀ + xθ₁ + e with P(e < r) = (1 + e^−r)^−α, and x uniform on [−1, 1]."""
    x = generator.uniform(-1.0, 1.0, (len(theta), NUM_RECORDS))
    error = -np.log(generator.random(x.shape) ** (-1.0 / ALPHA) - 1.0)
    return np.stack([x, theta[:, :1] + x * theta[:, 1:] + error], axis=-1)


LOGISTIC = models.LogisticRegression(1, prior_scale=1.0)


def draw_normal(generator, number):
    return generator.normal(size=(number, DIMENSION))


def draw_logistic(generator, theta):
    x = generator.uniform(-1.0, 1.0, (len(theta), NUM_RECORDS))
    y = generator.random(x.shape) < scipy.special.expit(theta[:, :1] + x * theta[:, 1:])
    return {"X": x[..., None], "y": y.astype(float)}


SKEWED_JOINT = Joint(SKEWED, draw_gumbel, draw_skewed, RATIO_CLIP)
# |∂ ln p/∂η| ≤ 1 and ‖(1, x)‖ ≤ √2.
LOGISTIC_JOINT = Joint(LOGISTIC, draw_normal, draw_logistic, 1.4143)


class LogDensities(NamedTuple):
    """ln p(x|θ), ln p(θ), and the gradient of their sum, by the model's plain functions."""

    likelihood: np.ndarray
    prior: np.ndarray
    gradient: np.ndarray


@partial(jax.jit, static_argnums=0)
def _log_densities(model, records, theta):
    over_rows = jax.vmap(model.unconstrained_log_likelihood, in_axes=(None, 0))

    def one(theta, rows):
        likelihood, prior = jnp.sum(over_rows(theta, rows)), model.unconstrained_log_prior(theta)
        return likelihood + prior, (likelihood, prior)

    differentiated = jax.vmap(jax.value_and_grad(one, has_aux=True), in_axes=(0, None))
    (_, both), gradient = jax.vmap(differentiated)(theta, records)
    return LogDensities(*both, gradient)


def prepared_rows(joint, records):
    """Records as the model's own functions take them, replications × records."""
    with exact_arithmetic():
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), records)
        prepared, count = joint.model.prepare_records(flat)
        shape = count // NUM_RECORDS, NUM_RECORDS
        return jax.tree.map(lambda leaf: np.reshape(leaf, (*shape, *np.shape(leaf)[1:])), prepared)


def log_densities(joint, records, theta):
    """For theta, replications × points × 2: replications × points (× 2)."""
    with exact_arithmetic():
        rows = prepared_rows(joint, records)
        return LogDensities(*map(np.asarray, _log_densities(joint.model, rows, jnp.asarray(theta))))


# ---------------------------------------------------------------------- samplers

# A surrogate that lies elsewhere, is too wide and bends: the chain is exact all the same. Polynomials 1, u₀, u₁,
# He₂(u₀)/√2, u₀u₁, He₂(u₁)/√2.
BENT = Surrogate(
    Form(2, 2, 2),
    [0.4, 0.3],
    [[0.5, 0.0], [-0.2, 0.6]],
    [[0.3, 1.0, 0.1, 0.0, 0.0, 0.0], [-0.2, 0.0, 0.9, 0.25, 0.0, 0.0]],
)


def samplers(joint):
    """Every Metropolis sampler, with noise such that σ is 1 to 2 on typical moves and a gradient's is its own size."""
    bound = joint.score_bound
    scale = RATIO_CLIP / bound  # the weaker the records, the wider the posterior
    noisy = {
        "ratio_bound": bound,
        "gradient_clip_norm": bound,
        "ratio_noise_multiplier": 0.7,
        "gradient_noise_multiplier": 0.4,
    }
    updates = ("all", "one_component", "guided")
    return {
        **{f"DPHMC-{name}": DPHMC(0.22 * scale, 3, **noisy, leapfrog=name) for name in dp_hmc.INTEGRATORS},
        **{f"DPPenalty-{name}": DPPenalty([0.3 * scale, 0.4 * scale], bound, 0.7, update=name) for name in updates},
        # κ is so large that nothing is clipped: constant noise does not grow with it.
        "SurrogateHMC": SurrogateHMC(BENT, 300.0, noise_sd=2.0, step_size=0.9, num_leapfrog=3),
        **{f"HMC-{name}": HMC(0.3 * scale, 3, leapfrog=name, jitter="halton") for name in dp_hmc.INTEGRATORS},
        **{f"RWMH-{name}": RWMH([0.5 * scale, 0.7 * scale], update=name) for name in updates},
    }


class SurrogateState(NamedTuple):
    position: Any


def surrogate_query(sampler):
    """The sampler's query on a lattice of spacing σ/2²⁴: the finest has room for log-ratios up to 4σ only."""
    return replace(sampler.log_ratio(NUM_RECORDS), lattice_bits=24)


def surrogate_kernel(sampler, model):
    """Surrogate HMC as a kernel: the steps of ``inference.stepwise.run_chain``, compiled."""
    propose = build_propose(model, *sampler.structure)

    def step(key, state, oracle, noise, step_size=1.0):
        propose_key, accept_key = jax.random.split(key)
        numbers = sampler.numbers(NUM_RECORDS)
        proposal = propose(propose_key, state.position, numbers._replace(step_size=step_size * numbers.step_size))
        release = oracle.log_ratio(state.position, proposal.position, noise.log_ratio)
        position, _ = accept(accept_key, state.position, proposal, release.value, release.noise_sd)
        return SurrogateState(position), None

    return Kernel(lambda key, theta, oracle, noise: SurrogateState(theta), step)


class Switches(NamedTuple):
    """Right as they are by default; otherwise wrong in one place.

    ``penalty`` is a factor on the noise sd that the accept test is told, ``prior`` times the change of ln prior is
    added to the log-ratio (−2: the prior has the wrong sign), step sizes are multiplied by exp(``looks``·θ₀), and a
    guided walk turns on rejection if ``turns`` is 1.
    """

    penalty: float = 1.0
    prior: float = 0.0
    looks: float = 0.0
    turns: float = 1.0


def switched_oracle(oracle, model, switches):
    log_prior = jax.vmap(model.unconstrained_log_prior)

    def log_ratio(theta, proposal, noise):
        release = oracle.log_ratio(theta, proposal, noise)
        change = log_prior(proposal) - log_prior(theta)
        # (Where, not a product alone: 0·∞ would be NaN for a proposal that has left the numbers.)
        change = jnp.where(switches.prior == 0.0, 0.0, switches.prior * change)
        return release._replace(value=release.value + change, noise_sd=switches.penalty * release.noise_sd)

    return oracle._replace(log_ratio=log_ratio)


# ---------------------------------------------------------------------- one program for all replications


@dataclass(eq=False)
class Chains:
    """A sampler's chains on records that differ from chain to chain.

    Parameters
    ----------
    joint, sampler
        What is run.
    elements, thin
        A chain has ``elements`` states beside its start, every ``thin``-th of its steps.
    spoil
        For twins: kernel → wrong kernel.
    extra_gradients
        For twins: gradients a step that the sampler does not declare.
    """

    joint: Joint
    sampler: Any
    elements: int = 8
    thin: int = 3
    spoil: Callable[[Kernel], Kernel] = lambda kernel: kernel
    extra_gradients: int = 0

    @property
    def steps(self):
        return self.elements * self.thin

    @cached_property
    def queries(self):
        if isinstance(self.sampler, SurrogateHMC):
            return Queries(log_ratio=surrogate_query(self.sampler), log_ratios_per_step=1)
        queries = self.sampler.queries(NUM_RECORDS)
        return queries._replace(gradients_per_step=queries.gradients_per_step + self.extra_gradients)

    @cached_property
    def curator(self):
        """Its passes are what is used; which records it was opened with does not matter."""
        generator = np.random.default_rng(0)
        records = self.joint.draw_records(generator, self.joint.draw_prior(generator, 1))
        return Curator(self.joint.model, jax.tree.map(lambda leaf: leaf[0], records), noise=seeded(0))

    def place(self, records):
        """What ``Curator`` makes of records, for all replications: prepared, padded, with a leading axis."""
        number = len(jax.tree.leaves(records)[0])
        held = self.curator.passes.layout.held

        def pad(leaf):
            leaf = np.asarray(leaf)
            whole = np.zeros((number, held, *leaf.shape[1:]), leaf.dtype)
            whole[:, :NUM_RECORDS] = leaf.reshape(number, NUM_RECORDS, *leaf.shape[1:])
            return whole

        with exact_arithmetic():
            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), records)
            prepared, count = self.joint.model.prepare_records(flat)
            tile = placement.pad_rows(self.curator.passes.kernel, prepared, count, count)
            return jax.tree.map(pad, tile)

    def _binding(self, queries):
        if self.sampler.private:
            return self.curator.oracle(queries.gradient, queries.log_ratio)
        return self.curator.noise_free_oracle_not_private(None, None)

    def _kernel_at(self, position, looks=0.0):
        """The sampler's kernel; ``looks`` lets the size of its steps follow where the chain is (0: it does not)."""
        factor = jnp.exp(looks * position[:, :1])
        if isinstance(self.sampler, SurrogateHMC):
            kernel = surrogate_kernel(self.sampler, self.joint.model)
            return kernel._replace(step=partial(kernel.step, step_size=factor))
        inputs = self.sampler.inputs(self.joint.model, NUM_RECORDS)
        if isinstance(self.sampler, DPHMC | HMC):
            inputs = inputs._replace(step_size=inputs.step_size * factor[:, 0])
        else:
            inputs = inputs * factor
        return self.spoil(self.sampler.kernel(self.joint.model, NUM_RECORDS, inputs))

    def _chain(self, binding, numbers, switches, replication):
        """All steps of one replication: its states after each, without the start."""
        key, records, theta, hidden, at_start, gradients, ratios = replication
        oracle = switched_oracle(paying(binding.bind(records, numbers)), self.joint.model, switches)
        init_key, run_key = jax.random.split(key)
        start = self._kernel_at(theta[None]).init(init_key, theta[None], oracle, PaidNoise(at_start[:, None], None))
        forwards = (self.elements - hidden) * self.thin

        def step(state, inputs):
            place, key, gradient, ratio = inputs
            state = jax.tree.map(partial(jnp.where, place == forwards), _reversed(start), state)
            if hasattr(state, "iteration"):  # of the jitter: the steps before the hidden one, in falling order
                before = hidden * self.thin
                number = jnp.where(place < forwards, before + place, before - 1 - (place - forwards))
                state = state._replace(iteration=number.astype(state.iteration.dtype))
            kernel = self._kernel_at(state.position, switches.looks)
            new, _ = kernel.step(key, state, oracle, PaidNoise(gradient[:, None], ratio[None]))
            if hasattr(new, "direction"):
                new = new._replace(direction=jnp.where(switches.turns == 1.0, new.direction, state.direction))
            return new, (new.position[0], getattr(new, "gradient", new.position)[0])

        places = jnp.arange(self.steps)
        inputs = places, jax.random.split(run_key, self.steps), gradients, ratios
        positions, kept = jax.lax.scan(step, start, inputs)[1]
        return positions, kept, getattr(start, "gradient", start.position)[0]

    def run(self, seed, theta, records, hidden=None, switches=None, ratio_bound=None):
        """Run a chain from each θ with its records, a block of replications at a time: one program serves all.

        Parameters
        ----------
        hidden
            Of each replication, which element of its chain the start is, 0 to ``elements``; default: the first.
        switches
            For twins.
        ratio_bound
            For twins: a clip bound that is in effect. (An input of the same program.)

        Returns
        -------
        Elements, replications × (1 + elements) × 2, of which the first is the start; and the gradients kept with them.
        """
        hidden = np.zeros(len(theta), np.int64) if hidden is None else hidden
        source, keys, blocks = seeded(seed), jax.random.split(jax.random.key(seed), len(theta)), []
        queries = self.queries
        if ratio_bound is not None:
            queries = queries._replace(log_ratio=replace(queries.log_ratio, bound=ratio_bound))
        assert len(theta) % BLOCK == 0
        with exact_arithmetic():
            settings = (
                jax.tree.map(float, self._binding(queries).numbers),
                Switches(*map(float, switches or Switches())),
            )
            for first in range(0, len(theta), BLOCK):
                block = jax.tree.map(lambda leaf: leaf[first : first + BLOCK], (theta, records, hidden))  # noqa: B023
                noise = draw_noise(source, self.queries, NUM_RECORDS, BLOCK, DIMENSION, self.steps)
                replications = (
                    keys[first : first + BLOCK],
                    self.place(block[1]),
                    jnp.asarray(block[0]),
                    jnp.asarray(block[2]),
                    np.moveaxis(noise[0].gradient, 1, 0),
                    np.moveaxis(noise[1].gradient, 2, 0),
                    noise[1].log_ratio.T,
                )
                blocks.append([np.asarray(part) for part in self._program(*settings, replications)])
        positions, kept, start = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        last = slice(self.thin - 1, None, self.thin)
        return (
            np.concatenate([np.asarray(theta)[:, None], positions[:, last]], axis=1),
            np.concatenate([start[:, None], kept[:, last]], axis=1),
        )

    @cached_property
    def _program(self):
        binding = self._binding(self.queries)

        def every(numbers, switches, replications):
            return jax.lax.map(partial(self._chain, binding, numbers, switches), replications)

        return jax.jit(every, compiler_options=placement.COMPILER_OPTIONS)


def _reversed(start):
    """From where a chain is run backwards in time: a guided walk looks the other way, all others where they did."""
    return start._replace(direction=-start.direction) if hasattr(start, "direction") else start


# ---------------------------------------------------------------------- p-values that are bounds


def dkw(distance, number):
    """P(sup |F_N − F| ≥ distance) ≤ 2·exp(−2N·distance²) for any law F (Dvoretzky, Kiefer, Wolfowitz; Massart 1990)."""
    return min(1.0, 2.0 * float(np.exp(-2.0 * number * distance**2)))
