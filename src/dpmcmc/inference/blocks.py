"""A run in compiled blocks: many steps of all chains at once, with the noise of the next block drawn beside.

The records enter the compiled code as an argument, never as a constant. Every block of a run has the same shape, so a
run compiles once.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.curator import Curator
from dpmcmc.curator.batches import Batch, draw_sizes
from dpmcmc.curator.passes import Bind
from dpmcmc.curator.queries import BatchGradient
from dpmcmc.curator.records import COMPILER_OPTIONS
from dpmcmc.errors import QueryError
from dpmcmc.models import Model, allowed
from dpmcmc.samplers import Kernel, Noise, Queries, Sampler

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


def choose_shape(num_chains: int, num_steps: int, thin: int) -> Shape:
    """Cut a run into blocks."""
    num_draws = num_steps // thin
    steps = min(_MAX_STEPS_PER_BLOCK, -(-num_steps // _BLOCKS_PER_RUN))
    return Shape(num_chains, num_draws, thin, max(1, steps // thin))


class Random:
    """Where a run's randomness comes from. Seeded runs repeat; private ones take it from the operating system."""

    def __init__(self, seed: int | None) -> None:
        self._seeded = seed is not None
        self._generator = np.random.Generator(np.random.PCG64(secrets.randbits(128) if seed is None else seed))
        self.public_key = self._keys(())  # momenta, proposals, the accept uniform: need not be secret

    def _keys(self, shape: tuple[int, ...]) -> jax.Array:
        """Return independent keys, of 64 bits each."""
        count = 2 * int(np.prod(shape, dtype=int))
        if self._seeded:
            words = self._generator.integers(0, 2**32, count, dtype=np.uint32)
        else:
            words = np.frombuffer(secrets.token_bytes(4 * count), np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words.reshape(*shape, 2)), impl="threefry2x32")

    def batches(self, query: BatchGradient, num_records: int, shape: tuple[int, int, int]) -> Batch:
        """Return the secret batches of a block (draws × thin × chains), a fresh key for every step."""
        sizes = draw_sizes(self._generator, num_records, query.batch_size, query.sampling, shape)
        return Batch(self._keys(shape[:2]), jnp.asarray(sizes))


def draw_noise(curator: Curator, queries: Queries, random: Random, shape: Shape, block: int | None) -> Noise:
    """Draw the noise of one block on the host: draws × thin × (…). Steps that will not run get none.

    Without a block none is drawn: zeros of the right shapes, to compile with.

    Of several processes only the first draws; the others hold zeros, until all agree on what the first has drawn.
    """
    chains, dimension = shape.num_chains, curator.model.dimension
    active = 0 if block is None else shape.draws_in(block)

    def draw(query: Any, *rest: int) -> Any:
        whole = np.zeros((shape.draws_per_block, shape.thin, *rest), np.int64)
        if query is not None and curator.draws_noise and active:
            scale = query.lattice(curator.num_records, dimension).noise_scale
            whole[:active] = curator.noise.draw(scale, (active, shape.thin, *rest))
        return whole

    batch = None
    if isinstance(queries.gradient, BatchGradient):
        size = (shape.draws_per_block, shape.thin, chains)
        batch = random.batches(queries.gradient, curator.num_records, size)
    return Noise(
        draw(queries.gradient, queries.gradients_per_step, chains, dimension), draw(queries.log_ratio, chains), batch
    )


class Program(NamedTuple):
    """The compiled code of a run. Settings are inputs, records too: it can be used for any others of the same shapes.

    - ``start(records, settings, key, theta, noise) -> state``
    - ``run(records, settings, state, key, noise, active) -> state, positions, infos``
    - ``constrain(positions) -> named values``
    """

    start: Callable[..., Any]
    run: Callable[..., Any]
    constrain: Callable[..., Any]


class Settings(NamedTuple):
    """What may change between runs of the same program: numbers of the queries, and inputs of the sampler."""

    numbers: Any
    inputs: Any


def settings_of(curator: Curator, sampler: Sampler, queries: Queries) -> Settings:
    """Return a run's settings as arrays in double precision."""
    asked = oracle_queries(curator, sampler, queries)
    numbers = curator.passes.oracle_numbers(*asked)
    inputs = sampler.inputs(curator.model, curator.num_records)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), Settings(numbers, inputs))


def oracle_queries(curator: Curator, sampler: Sampler, queries: Queries) -> tuple[Any, Any]:
    """Return the queries that the oracle answers; of a sampler without noise, those whose lattices it uses."""
    if sampler.private:
        return queries.gradient, queries.log_ratio
    return curator.passes.noise_free_queries(*_clips(sampler))


def _clips(sampler: Any) -> tuple[float | None, float | None]:
    return getattr(sampler, "gradient_clip", None), getattr(sampler, "ratio_clip", None)


def bind_oracle(curator: Curator, sampler: Sampler, queries: Queries) -> Bind:
    """Return what makes an oracle of traced records: with noise, or, for a research sampler, without."""
    if sampler.private:
        return curator.oracle(queries.gradient, queries.log_ratio)
    return curator.noise_free_oracle_not_private(*_clips(sampler))


def compile_run(
    curator: Curator, sampler: Sampler, queries: Queries, shape: Shape, settings: Settings, theta: jax.Array
) -> Program:
    """Compile a run, or take the program of an earlier one. Nothing is run, and no record is looked at.

    All of it is compiled here, before anything is charged: who interrupts a compilation has spent nothing.
    """
    passes, placed = curator.passes, curator.replicated
    bind = bind_oracle(curator, sampler, queries)
    # Not the curator and not the settings: what is kept must hold no records.
    model, num_records = passes.model, passes.num_records

    def kernel_of(settings: Settings) -> Kernel:
        return sampler.kernel(model, num_records, settings.inputs)

    dummy = curator.agree(draw_noise(curator, queries, Random(0), shape, None))
    key = curator.agree(jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl="threefry2x32"))
    settings, theta, active = curator.agree((settings, theta, jnp.asarray(0)))
    at_start = curator.agree(np.zeros((queries.gradients_at_start, *theta.shape), np.int64))
    name = (
        type(sampler),
        sampler.structure,
        passes.oracle_structure(*oracle_queries(curator, sampler, queries)),
        queries.gradients_per_step,
        queries.gradients_at_start,
        shape._replace(num_draws=0),
    )

    def make() -> Program:
        start = compile_start(bind, kernel_of, placed).lower(curator.secret_records, settings, key, theta, at_start)
        state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed), start.out_info)
        run = compile_block(bind, kernel_of, shape, placed).lower(
            curator.secret_records, settings, state, key, dummy, active
        )
        constrain = jax.jit(jax.vmap(jax.vmap(model.constrain)))
        return Program(start.compile(), run.compile(), constrain)

    if passes.streams:
        return make()
    program: Program = passes.keep(name, make)
    return program


def compile_start(bind: Bind, kernel_of: Callable[[Settings], Kernel], placed: Any) -> Any:
    """Return ``start(records, settings, key, theta, noise) -> state``, to be compiled."""

    def start(records: Any, settings: Settings, key: jax.Array, theta: jax.Array, noise: Any) -> Any:
        return kernel_of(settings).init(key, theta, bind(records, settings.numbers), Noise(noise, None))

    return jax.jit(start, out_shardings=placed, compiler_options=COMPILER_OPTIONS)


def compile_block(bind: Bind, kernel_of: Callable[[Settings], Kernel], shape: Shape, placed: Any) -> Any:
    """Return ``run(records, settings, state, key, noise, active) -> state, positions, infos``, to be compiled.

    Keeps the last position of every ``thin`` steps and the mean of their infos. Draws from ``active`` on are skipped:
    the last block of a run may be a short one. ``placed`` says where the results lie: where the next block takes them.
    """

    def run(records: Any, settings: Settings, state: Any, key: jax.Array, noise: Noise, active: jax.Array) -> Any:
        oracle, kernel = bind(records, settings.numbers), kernel_of(settings)

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

    return jax.jit(run, out_shardings=placed, compiler_options=COMPILER_OPTIONS)


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
