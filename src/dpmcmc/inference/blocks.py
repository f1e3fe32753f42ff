"""A run in compiled blocks: many steps of all chains at once. Every block of a run has the same shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.curator import Curator, Order
from dpmcmc.curator.curator import Program as CompiledProgram
from dpmcmc.errors import QueryError
from dpmcmc.models import Model, allowed
from dpmcmc.queries import Oracle, PaidNoise, Queries
from dpmcmc.samplers import Kernel, Sampler

# About this many blocks in a run: between two of them there is progress, budget and Ctrl-C.
_BLOCKS_PER_RUN = 64
_MAX_STEPS_PER_BLOCK = 4096


class Shape(NamedTuple):
    """How a run is cut up: each block holds ``draws_per_block`` kept draws of ``thin`` steps."""

    num_chains: int
    num_draws: int
    thin: int
    draws_per_block: int

    @property
    def num_blocks(self) -> int:
        """Return how many blocks there are; the last may be shorter than the others."""
        return -(-self.num_draws // self.draws_per_block)

    def draws_in(self, block: int) -> int:
        """Return how many draws a block makes."""
        return min(self.draws_per_block, self.num_draws - block * self.draws_per_block)

    def order(self, queries: Queries, block: int) -> Order | None:
        """Return what a block has to be paid for; None behind the last."""
        if block >= self.num_blocks:
            return None
        return Order(queries, self.num_chains, self.draws_in(block), self.thin, self.draws_per_block)


def choose_shape(num_chains: int, num_steps: int, thin: int) -> Shape:
    """Cut a run into blocks."""
    num_draws = num_steps // thin
    steps = min(_MAX_STEPS_PER_BLOCK, -(-num_steps // _BLOCKS_PER_RUN))
    return Shape(num_chains, num_draws, thin, max(1, steps // thin))


class Program(NamedTuple):
    """The compiled code of a run. The sampler's settings are inputs, so that it serves any others of the same shapes.

    - ``start(inputs, key, theta, noise) -> state``
    - ``run(inputs, state, key, noise, active) -> state, positions, infos``
    - ``constrain(positions) -> named values``
    """

    start: CompiledProgram
    run: CompiledProgram
    constrain: Callable[..., Any]


def compile_run(
    curator: Curator, sampler: Sampler, queries: Queries, shape: Shape, inputs: Any, theta: jax.Array
) -> Program:
    """Compile a run, or take the program of an earlier one. Nothing is run, and no record is looked at.

    All of it is compiled here, before anything is charged: who interrupts a compilation has spent nothing.
    """
    if sampler.private:
        oracle = curator.oracle(queries.gradient, queries.log_ratio)
    else:
        clips = getattr(sampler, "gradient_clip_norm", None), getattr(sampler, "ratio_bound", None)
        oracle = curator.noise_free_oracle_not_private(*clips)
    # Not the curator: what is kept must hold no records.
    model, num_records = curator.model, curator.num_records

    def kernel_of(inputs: Any) -> Kernel:
        return sampler.kernel(model, num_records, inputs)

    key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl="threefry2x32")
    name = type(sampler), sampler.structure
    at_start = curator.blank(Order.start(queries, shape.num_chains))
    start = curator.compile(("start", *name), start_of(kernel_of), oracle, inputs, key, theta, at_start)
    order = shape.order(queries, 0)
    assert order is not None
    block = inputs, start.out_shapes, key, curator.blank(order), jnp.asarray(0)
    run = curator.compile(("run", *name), block_of(kernel_of, shape), oracle, *block)
    return Program(start, run, curator.passes.constrain)


def start_of(kernel_of: Callable[[Any], Kernel]) -> Callable[..., Any]:
    """Return ``start(oracle, inputs, key, theta, noise) -> state``, to be compiled."""

    def start(oracle: Oracle, inputs: Any, key: jax.Array, theta: jax.Array, noise: PaidNoise) -> Any:
        return kernel_of(inputs).init(key, theta, oracle, noise)

    return start


def block_of(kernel_of: Callable[[Any], Kernel], shape: Shape) -> Callable[..., Any]:
    """Return ``run(oracle, inputs, state, key, noise, active) -> state, positions, infos``, to be compiled.

    Keeps the last position of every ``thin`` steps and the mean of their infos. Draws from ``active`` on are skipped:
    the last block of a run may be a short one.
    """

    def run(oracle: Oracle, inputs: Any, state: Any, key: jax.Array, noise: PaidNoise, active: jax.Array) -> Any:
        kernel = kernel_of(inputs)

        def one_step(state: Any, inputs: Any) -> Any:
            step_key, step_noise = inputs
            return kernel.step(step_key, state, oracle, step_noise)

        def thinned(state: Any, inputs: Any) -> Any:
            state, infos = jax.lax.scan(one_step, state, inputs)
            return state, jax.tree.map(lambda leaf: jnp.mean(leaf.astype(jnp.float64), axis=0), infos)

        def one_draw(state: Any, inputs: Any) -> Any:
            place, draw_inputs = inputs
            infos = jax.eval_shape(thinned, state, draw_inputs)[1]

            def skip(state: Any, _: Any) -> Any:
                return state, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), infos)

            state, info = jax.lax.cond(place < active, thinned, skip, state, draw_inputs)
            return state, (state.position, info)

        keys = jax.random.split(key, (shape.draws_per_block, shape.thin))
        places = jnp.arange(shape.draws_per_block)
        state, (positions, infos) = jax.lax.scan(one_draw, state, (places, (keys, noise)))
        return state, positions, infos

    return run


def starting_points(model: Model, init: Any, num_chains: int, key: jax.Array, num_records: int) -> jax.Array:
    """Draw starting points from the prior, or check the ones given. Public: the data have no part in it."""
    dimension = model.dimension
    if init is None:
        program, _ = allowed.trace("sample_prior", model.sample_unconstrained_prior, key)
        allowed.check_constants("sample_prior", program, num_records)
        return jax.vmap(model.sample_unconstrained_prior)(jax.random.split(key, num_chains)).astype(jnp.float64)
    if isinstance(init, dict):
        try:
            theta = jax.vmap(model.unconstrain)({name: jnp.asarray(value) for name, value in init.items()})
        except Exception as error:
            raise QueryError(
                f"init does not fit the parameters {list(model.parameters)} with a leading axis of chains: {error}"
            ) from error
    else:
        theta = jnp.asarray(np.asarray(init, dtype=np.float64))
    if theta.shape != (num_chains, dimension):
        raise QueryError(
            f"init has shape {theta.shape}; give {(num_chains, dimension)}: chains × unconstrained parameters"
        )
    if not bool(jnp.all(jnp.isfinite(theta))):
        raise QueryError("init has NaN or infinite values, or values outside their support; give others")
    return theta.astype(jnp.float64)
