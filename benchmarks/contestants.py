"""The contestants: functions without arguments that do the work to be timed once.

All data are arguments of the compiled code, never constants that the compiler could compute with beforehand, and a
chain goes on from call to call as in a run. The private side runs the code of a private run, with noise that was drawn
before; the others run in JAX's default float32.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from benchmarks.problems import Problem, log_density
from dpmcmc.curator import Curator, NoiseSource, SeededNoiseNotPrivate
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.curator.placement import COMPILER_OPTIONS
from dpmcmc.inference import chains
from dpmcmc.inference.blocks import Shape, compile_run
from dpmcmc.inference.books import Books
from dpmcmc.privacy import Budget
from dpmcmc.queries import Gradient, PaidDraws
from dpmcmc.samplers import DPHMC, Sampler

Contestant = Callable[[], object]
Starts = NDArray[np.float64]

# A budget that no benchmark exhausts: it is charged because charging takes time. The records are synthetic.
EPSILON, DELTA = 1e4, 1e-6


class Ready:
    """A contestant that is compiled already: it need not be called before it is timed, which may take seconds."""

    ready = True

    def __init__(self, call: Contestant) -> None:
        self._call = call

    def __call__(self) -> object:
        """Do the work."""
        return self._call()


def curator_of(problem: Problem, noise: NoiseSource | None = None, devices: int | None = None) -> Curator:
    """Return a curator with seeded noise, unless another source is given (exact noise gets a budget)."""
    source = SeededNoiseNotPrivate(0) if noise is None else noise
    return Curator(problem.model, problem.records, Budget(EPSILON, DELTA), noise=source, devices=devices)


def dp_hmc(problem: Problem, num_leapfrog: int) -> DPHMC:
    """Return DP-HMC for a problem, with so little noise that draws are accepted; more noise takes no more time."""
    root = float(np.sqrt(problem.num_records))
    return DPHMC(
        step_size=problem.step_size,
        num_leapfrog=num_leapfrog,
        ratio_bound=problem.ratio_bound,
        gradient_clip_norm=problem.gradient_clip_norm,
        ratio_noise_multiplier=0.006 * root,
        gradient_noise_multiplier=0.02 * root,
    )


# --------------------------------------------------------------------------------------------------- a gradient


def private_gradient(problem: Problem, curator: Curator, theta: Starts) -> Contestant:
    """Return one clipped, exactly summed and noised gradient for each chain, as compiled blocks compute it."""
    bind = curator.oracle(Gradient(problem.gradient_clip_norm, 0.1 * float(np.sqrt(problem.num_records))), None)

    def answer(records: Any, theta: jax.Array, noise: jax.Array) -> jax.Array:
        return bind(records).gradient(theta, PaidDraws(noise)).value

    with exact_arithmetic():
        compiled = jax.jit(answer, compiler_options=COMPILER_OPTIONS)
        arguments = curator._records, jnp.asarray(theta), jnp.zeros(theta.shape, jnp.int64)

    def call() -> jax.Array:
        with exact_arithmetic():
            return compiled(*arguments)

    return call


def plain_gradient(problem: Problem, theta: Starts) -> Contestant:
    """Return the lines of plain JAX that a user would write: vmap of grad, clip, sum; float32, no noise."""
    score = jax.grad(problem.log_likelihood)

    def clipped(theta: jax.Array, record: Any) -> jax.Array:
        gradient = score(theta, record)
        return gradient * jnp.minimum(1.0, problem.gradient_clip_norm / jnp.linalg.norm(gradient))

    def total(theta: jax.Array, records: Any) -> jax.Array:
        return jnp.sum(jax.vmap(clipped, (None, 0))(theta, records), axis=0)

    arguments = jnp.asarray(theta, jnp.float32), jax.tree.map(jnp.asarray, problem.records)
    compiled = jax.jit(jax.vmap(total, (0, None))).lower(*arguments).compile()
    return Ready(lambda: compiled(*arguments))


# ------------------------------------------------------------------------------------------------------- draws


class PrivateDraws:
    """One compiled block of a private sampler; each call goes on where the last one ended.

    Parameters
    ----------
    curator, sampler, theta
        As in ``dpmcmc.sample``.
    num_draws
        Draws of each chain in a block. The noise of the block is drawn here, not when it is called.
    """

    def __init__(self, curator: Curator, sampler: Sampler, theta: Starts, num_draws: int) -> None:
        self._records = curator._records
        shape = Shape(len(theta), num_draws, 1, num_draws)
        with exact_arithmetic():
            run = _ready_run(curator, sampler, theta, shape)
            self._state = run.program.start(run.inputs, run.keys[0], run.theta, curator.pay(run.start_order))
            order = shape.order(run.queries, 0)
            assert order is not None
            # The compiled code itself: the same noise serves every call here. On the device beforehand, as the floor's
            # and the others' inputs are.
            block: Any = run.program.run
            self._run, numbers = block._compiled, curator._numbers(block._oracle)
            inputs = numbers, run.inputs, curator.pay(order), num_draws
            self._numbers, self._inputs, self._noise, self._active = jax.tree.map(jnp.asarray, inputs)
            self._key = run.keys[1]

    def __call__(self) -> jax.Array:
        """Run the block; return the positions, draws × chains × parameters."""
        with exact_arithmetic():
            self._state, positions, _ = self._run(
                self._records, self._numbers, self._inputs, self._state, self._key, self._noise, self._active
            )
            return positions


def private_runs(
    problem: Problem, sampler: Sampler, theta: Starts, num_blocks: int, draws_per_block: int, **noise: NoiseSource
) -> dict[str, Contestant]:
    """Return runs of many blocks as ``dpmcmc.sample`` makes them, one for each source of noise.

    While one block runs, a thread draws the noise of the next, and the budget is charged. All runs use the same
    compiled code and differ only in their noise.
    """
    curators = {name: curator_of(problem, source) for name, source in noise.items()}
    shape = Shape(len(theta), num_blocks * draws_per_block, 1, draws_per_block)
    with exact_arithmetic():
        runs = {name: _ready_run(curator, sampler, theta, shape) for name, curator in curators.items()}

    def call(run: chains._Run) -> object:
        with exact_arithmetic():
            # The package's own loop, so that what is timed is what a user waits for.
            return chains._run_blocks(run, False).done

    return {name: Ready(partial(call, run)) for name, run in runs.items()}


def _ready_run(curator: Curator, sampler: Sampler, theta: Starts, shape: Shape) -> chains._Run:
    """Return a compiled run, as ``dpmcmc.sample`` makes it, without a record check."""
    queries = sampler.queries(curator.num_records)
    starts = jnp.asarray(theta)
    inputs = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), sampler.inputs(curator.model, curator.num_records))
    program = compile_run(curator, sampler, queries, shape, inputs, starts)
    keys = jax.random.key(0), jax.random.key(1)
    return chains._Run(curator, sampler, queries, None, shape, program, inputs, keys, starts, Books.none())


class BlackjaxDraws:
    """BlackJAX's HMC on the same posterior, not private: vmapped over chains, scanned over draws, float32."""

    ready = True  # see Ready

    def __init__(self, problem: Problem, theta: Starts, num_leapfrog: int, num_draws: int) -> None:
        import blackjax

        def block(records: Any, states: Any, key: jax.Array) -> Any:
            kernel = blackjax.hmc(
                log_density(problem, records),
                step_size=problem.step_size,
                inverse_mass_matrix=jnp.ones(theta.shape[1]),
                num_integration_steps=num_leapfrog,
            )

            def one(states: Any, key: jax.Array) -> Any:
                states, _ = jax.vmap(kernel.step)(jax.random.split(key, len(theta)), states)
                return states, states.position

            return jax.lax.scan(one, states, jax.random.split(key, num_draws))

        def start(records: Any, theta: jax.Array) -> Any:
            return jax.vmap(lambda one: blackjax.hmc.init(one, log_density(problem, records)))(theta)

        self._records = jax.tree.map(jnp.asarray, problem.records)
        self._state = jax.jit(start)(self._records, jnp.asarray(theta, jnp.float32))
        self._key = jax.random.key(1)
        self._block = jax.jit(block).lower(self._records, self._state, self._key).compile()

    def __call__(self) -> jax.Array:
        """Run the block; return the positions, draws × chains × parameters."""
        self._state, positions = self._block(self._records, self._state, self._key)
        return positions


# --------------------------------------------------------------------------------------------------- the floor


def products(problem: Problem, theta: Starts, num_gradients: int, *, exact: bool = False) -> Contestant:
    """Return the matrix products of a regression's draw and nothing else.

    Each gradient takes two, θXᵀ and (that) X; with more than one gradient two predictors for the log-ratio follow.
    With ``exact`` the second product is in float64, which a sum of integers without rounding needs.
    """
    wide = jnp.float64 if exact else jnp.float32

    def gradient(theta: jax.Array, features: jax.Array, wide_features: jax.Array) -> jax.Array:
        return (theta @ features.T).astype(wide) @ wide_features

    def draw(theta: jax.Array, features: jax.Array, wide_features: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def step(position: jax.Array, _: None) -> tuple[jax.Array, None]:
            # Each product depends on the one before, so that none can be left out.
            move = 1e-9 * gradient(position, features, wide_features)
            return position + move.astype(jnp.float32), None

        end, _ = jax.lax.scan(step, theta, None, length=num_gradients)
        return end, jnp.sum(theta @ features.T), jnp.sum(end @ features.T)

    with jax.enable_x64(exact):
        compiled = jax.jit(gradient if num_gradients == 1 else draw)
        features = problem.records["X"]
        arguments = jnp.asarray(theta, jnp.float32), jnp.asarray(features), jnp.asarray(features, wide)

    def call() -> object:
        with jax.enable_x64(exact):
            return compiled(*arguments)

    return call


def reads(problem: Problem, times: int) -> Contestant:
    """Return so many reads of the whole data set: its sum, in float32."""
    compiled = jax.jit(jnp.sum)
    records = jnp.asarray(problem.records)
    return lambda: [compiled(records) for _ in range(times)]
