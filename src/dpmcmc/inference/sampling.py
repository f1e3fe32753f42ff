"""``sample``: plan, run in blocks, collect. The budget is charged for a block before the block runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc import checks
from dpmcmc.curator import Curator, ExactNoise, NoiseSource, NoNoiseNotPrivate, SeededNoiseNotPrivate
from dpmcmc.curator import records as placement
from dpmcmc.curator.curator import exact_arithmetic
from dpmcmc.errors import QueryError
from dpmcmc.inference import planning
from dpmcmc.inference.blocks import (
    Random,
    Shape,
    choose_shape,
    compile_block,
    compile_start,
    draw_noise,
    starting_points,
)
from dpmcmc.inference.progress import Progress, no_progress, terminal_progress
from dpmcmc.models import Model
from dpmcmc.privacy import Budget, PrivacyStatement, StepBudget
from dpmcmc.privacy.statement import installed_versions
from dpmcmc.results import Posterior
from dpmcmc.samplers import Noise, Queries, Sampler


def sample(
    model: Model,
    data: Any,
    *,
    sampler: Sampler,
    epsilon: float | None = None,
    delta: float | None = None,
    num_chains: int = 4,
    num_steps: int | None = None,
    num_warmup: int | None = None,
    init: Any = None,
    thin: int = 1,
    progress: bool = True,
    seed: int | None = None,
    devices: int | Sequence[jax.Device] | None = None,
) -> Posterior:
    """Draw from the posterior, privately.

    Parameters
    ----------
    model
        A :class:`dpmcmc.Model`.
    data
        The records, one row per person; or a :class:`dpmcmc.data.ParquetRecords`, for a file larger than memory. If
        the whole table is float32, so is the arithmetic (see the page on speed and scale in the docs).
    sampler
        Settings: ``DPHMC(...)``, ``DPPenalty(...)``, ``DPSGLD(...)``, ``DPSGNHT(...)``; or, on data that are not
        secret, ``HMC(...)`` or ``RWMH(...)``, which take no budget.
    epsilon, delta
        The privacy budget of all that is returned. It decides the number of steps (see :func:`dpmcmc.plan`).
    num_chains
        Number of chains; they share the budget.
    num_steps
        Steps of each chain; may only lower what the budget allows. Required for HMC and RWMH.
    num_warmup
        How many of each chain's draws (after thinning) to set apart as warm-up. Default: the first half.
    init
        Starting points: None draws them from the prior; else an array of chains × unconstrained parameters, or a dict
        of constrained values with a leading axis of chains. They must not be taken from the data.
    thin
        Keep every ``thin``-th draw.
    progress
        Show a progress bar, if there is a terminal.
    seed
        For reproducible research: a seeded run is marked *not private* everywhere it is shown.
    devices
        Number or list of JAX devices to spread the records over. Default: one, or, under ``jax.distributed``, all of
        them: each process then gives its own part of the rows, and all get the same draws. Draws do not depend on it.

    Returns
    -------
    Posterior

    Raises
    ------
    DPMCMCError
        An argument does not fit, or the budget buys no step. Raised before anything is spent.

    Notes
    -----
    Ctrl-C ends the run and returns what is done so far; what was charged is spent.
    """
    planning.check_sampler(sampler)
    num_chains, thin = checks.count("num_chains", num_chains), checks.count("thin", thin)
    noise = _noise_source(sampler, seed)
    with exact_arithmetic():
        curator = Curator(model, data, _budget_maker(sampler, epsilon, delta), noise=noise, devices=devices)
        num_records = curator.num_records
        queries = sampler.queries(num_records)
        allowed = None
        if epsilon is not None and delta is not None:
            the_plan = planning.plan(
                sampler,
                num_records=num_records,
                epsilon=epsilon,
                delta=delta,
                num_chains=num_chains,
                dimension=model.dimension,
            )
            planning.require_steps(the_plan)
            allowed = the_plan.num_steps
        steps = _number_of_steps(num_steps, allowed, thin)
        random = Random(seed)
        # Of several processes the first one decides.
        init_key, state_key, run_key = jax.random.split(placement.agree(random.public_key), 3)
        theta = starting_points(model, init, num_chains, init_key)
        kernel = sampler.kernel(model, num_records)
        shape = choose_shape(num_chains, steps, thin)
        warmup = _number_of_warmup(num_warmup, shape.num_draws)
        bind = (
            curator.oracle(queries.gradient, queries.log_ratio)
            if sampler.private
            else curator.noise_free_oracle_not_private(
                getattr(sampler, "gradient_clip", None), getattr(sampler, "ratio_clip", None)
            )
        )
        state = _start(curator, queries, bind, kernel, state_key, theta)
        run = compile_block(bind, kernel, shape, curator.replicated)
        with _progress_bar(progress, sampler, shape) as report:
            done, charged = _run_blocks(curator, queries, random, shape, run, state, run_key, report)
        return _collect(curator, sampler, queries, done, warmup, charged, epsilon, delta)


def _noise_source(sampler: Sampler, seed: int | None) -> NoiseSource:
    seeded = None if seed is None else SeededNoiseNotPrivate(seed)
    if not sampler.private:
        return NoNoiseNotPrivate()
    return ExactNoise() if seeded is None else seeded


def _budget_maker(sampler: Sampler, epsilon: float | None, delta: float | None) -> Any:
    """Return what makes the budget from the number of records (None for a sampler that needs no budget)."""
    if not sampler.private:
        if epsilon is not None or delta is not None:
            raise QueryError(f"{sampler.name} adds no noise and is not private; leave out epsilon and delta")
        return None
    if epsilon is None or delta is None:
        raise QueryError("epsilon and delta are required: they are the privacy budget, for example 1.0 and 1e-6")

    def make(num_records: int) -> Budget | StepBudget:
        return planning.make_budget(planning.private_queries(sampler, num_records), num_records, epsilon, delta)

    return make


def _number_of_steps(num_steps: int | None, allowed: int | None, thin: int) -> int:
    if num_steps is not None:
        num_steps = checks.count("num_steps", num_steps)
    if allowed is None and num_steps is None:
        raise QueryError("num_steps is required for a sampler without noise: no budget decides it")
    if allowed is not None and num_steps is not None and num_steps > allowed:
        raise QueryError(
            f"num_steps = {num_steps} is more than the {allowed} steps a chain that the budget allows; lower it"
        )
    steps = min(value for value in (num_steps, allowed) if value is not None)
    if steps < thin:
        raise QueryError(f"thin = {thin} leaves no draw of {steps} steps; use a smaller one")
    return steps


def _number_of_warmup(num_warmup: int | None, num_draws: int) -> int:
    if num_warmup is None:
        return num_draws // 2
    if isinstance(num_warmup, bool) or not isinstance(num_warmup, int) or not 0 <= num_warmup < num_draws:
        raise QueryError(f"num_warmup = {num_warmup!r} must be a whole number from 0 to below the {num_draws} draws")
    return num_warmup


@contextmanager
def _progress_bar(progress: bool, sampler: Sampler, shape: Shape) -> Iterator[Progress]:
    if not (progress and sys.stderr.isatty() and jax.process_index() == 0):
        yield no_progress
        return
    with terminal_progress(sampler.name, shape.num_draws * shape.thin) as report:
        yield report


def _start(curator: Curator, queries: Queries, bind: Any, kernel: Any, key: jax.Array, theta: jax.Array) -> Any:
    """Charge and ask what the sampler needs before its first step (nothing, for most)."""
    chains, dimension = theta.shape
    noise = np.zeros((queries.gradients_at_start, chains, dimension), np.int64)
    if queries.gradients_at_start and queries.gradient is not None:
        if curator.draws_noise:
            scale = queries.gradient.lattice(curator.num_records, dimension).noise_scale
            noise = curator.noise.draw(scale, noise.shape)
        _charge(curator, queries, chains, gradients=queries.gradients_at_start, log_ratios=0)
    start = compile_start(bind, kernel, curator.replicated)
    return start(curator.secret_records, *curator.agree((key, theta, noise)))


def _charge(curator: Curator, queries: Queries, chains: int, *, gradients: int, log_ratios: int) -> None:
    """Charge so many answers for each chain. Refused or charged as a whole, before any of them is computed."""
    if curator.budget is None:
        return
    asked = [(queries.gradient, gradients), (queries.log_ratio, log_ratios)]
    cost = lattice_epsilon = lattice_delta = 0.0
    for query, number in asked:
        if query is not None and number:
            lattice = query.lattice(curator.num_records, curator.model.dimension)
            lattice_epsilon += chains * number * lattice.lattice_epsilon
            lattice_delta += chains * number * lattice.lattice_delta
            cost += chains * number * (1.0 if isinstance(curator.budget, StepBudget) else _mu(query))
    curator.budget.spend(cost, lattice_epsilon=lattice_epsilon, lattice_delta=lattice_delta)


def _mu(query: Any) -> float:
    """Cost of one answer; a log-ratio of constant noise sd has none that is known beforehand."""
    if query.mu is None:
        raise QueryError("a log-ratio of constant noise_sd cannot be charged by the block; give noise_multiplier")
    return float(query.mu)


def _run_blocks(
    curator: Curator,
    queries: Queries,
    random: Random,
    shape: Shape,
    run: Any,
    state: Any,
    key: jax.Array,
    report: Progress,
) -> tuple[list[tuple[NDArray[Any], Any]], int]:
    """Run all blocks; return positions and infos of each, and the number of steps charged for each chain."""
    done: list[tuple[NDArray[Any], Any]] = []
    charged = 0
    with ThreadPoolExecutor(max_workers=1) as beside:

        def draw(block: int) -> Noise:
            with exact_arithmetic():  # JAX's precision is a setting of the thread
                return draw_noise(curator, queries, random, shape, block)

        coming = beside.submit(draw, 0)
        try:
            for block in range(shape.num_blocks):
                noise = coming.result()
                if block + 1 < shape.num_blocks:
                    coming = beside.submit(draw, block + 1)
                active = shape.draws_in(block)
                steps = active * shape.thin
                _charge(
                    curator,
                    queries,
                    shape.num_chains,
                    gradients=steps * queries.gradients_per_step,
                    log_ratios=steps * queries.log_ratios_per_step,
                )
                charged += steps
                inputs = curator.agree((jax.random.fold_in(key, block), noise, jnp.asarray(active)))
                state, drawn, info = run(curator.secret_records, state, *inputs)
                done.append(jax.tree.map(lambda leaf, active=active: np.asarray(leaf)[:active], (drawn, info)))
                report(steps, done[-1][1], curator.budget)
        except KeyboardInterrupt:
            coming.cancel()
            if not done:
                raise
    return done, charged


def _collect(
    curator: Curator,
    sampler: Sampler,
    queries: Queries,
    done: list[tuple[NDArray[Any], Any]],
    warmup: int,
    charged: int,
    epsilon: float | None,
    delta: float | None,
) -> Posterior:
    """Turn released positions into named draws, with what was spent."""
    model = curator.model
    theta, infos = jax.tree.map(lambda *leaves: np.concatenate(leaves), *done)
    warmup = min(warmup, len(theta) // 2)  # an interrupted run is shorter than planned
    constrained = jax.jit(jax.vmap(jax.vmap(model.constrain)))(jnp.asarray(theta))
    by_chain = {name: np.moveaxis(np.asarray(value), 0, 1) for name, value in constrained.items()}
    joined = {name: value.T for name, value in infos._asdict().items() if value is not None}
    num_chains = theta.shape[1]
    mu = None if curator.budget is None or isinstance(curator.budget, StepBudget) else curator.budget.spent
    statement = PrivacyStatement(
        private=curator.private,
        mode=curator.noise.description,
        epsilon=epsilon,
        delta=delta,
        mu=mu,
        num_records=curator.num_records,
        queries=planning.count_queries(queries, charged, num_chains),
        noise_multipliers=planning.noise_multipliers(queries),
        accountant=planning.describe_accountant(queries) if sampler.private else "none",
        versions=installed_versions(),
    )
    return Posterior(
        draws={name: value[:, warmup:] for name, value in by_chain.items()},
        warmup_draws={name: value[:, :warmup] for name, value in by_chain.items()},
        sample_stats={name: value[:, warmup:] for name, value in joined.items()},
        warmup_stats={name: value[:, :warmup] for name, value in joined.items()},
        privacy=statement,
        sampler=repr(sampler),
        model=model.name,
        dims={name: (dimension,) for name, (dimension, _) in model.labels.items()},
        coords=dict(model.labels.values()),
    )
