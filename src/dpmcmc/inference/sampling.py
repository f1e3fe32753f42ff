"""``sample``: plan, compile, run in blocks, collect. The budget is charged for a block before the block runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc import checks
from dpmcmc.curator import (
    Curator,
    ExactNoise,
    NoiseSource,
    NoNoiseNotPrivate,
    Order,
    SeededNoiseNotPrivate,
    placement,
)
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.data import Table
from dpmcmc.errors import DPMCMCWarning, QueryError
from dpmcmc.inference import planning, stepwise, tuned
from dpmcmc.inference.blocks import (
    Program,
    Shape,
    choose_shape,
    compile_run,
    starting_points,
)
from dpmcmc.inference.endings import (
    ALL_SPENT,
    INTERRUPTED,
    NOTHING_SPENT,
    attached_to_errors,
    cut_short,
    ended_without_draws,
    reason_of,
    undisturbed,
)
from dpmcmc.inference.progress import progress_bar
from dpmcmc.inference.settings import Settings
from dpmcmc.models import Model, allowed
from dpmcmc.models.units import open_units, row_model, unit_of_privacy
from dpmcmc.queries import InvalidCount, Queries
from dpmcmc.results import Posterior
from dpmcmc.results.diagnostics import RecordCheck
from dpmcmc.samplers import DPLaplace, Sampler, SurrogateHMC


def sample(
    model: Model,
    data: Any,
    *,
    sampler: Sampler | DPLaplace | SurrogateHMC | Literal["auto"] = "auto",
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
    check_records: bool = True,
    exact: bool = False,
) -> Posterior:
    """Draw from the posterior, privately.

    Parameters
    ----------
    model
        A :class:`dpmcmc.Model`.
    data
        The records, one row per person; or a :class:`dpmcmc.Table`, which may be a file larger than memory. If
        the whole table is float32, so is the arithmetic (see the page on speed and scale in the docs).
    sampler
        ``"auto"``, the default, needs no settings. It looks at the posterior, privately and within the budget, and
        draws from a Gaussian where that is enough, from a curved surrogate where it is not, and runs a chain with exact
        accept tests where no surrogate fits; :attr:`Posterior.quality` says what it chose, why, and what speaks against
        the result. ``DPLaplace()`` always takes the Gaussian. With settings of your own: ``DPHMC(...)``,
        ``DPPenalty(...)``, ``DPSGLD(...)``, ``DPSGNHT(...)``, ``SurrogateHMC(...)``; or, on data that are not secret,
        ``HMC(...)`` or ``RWMH(...)``, which take no budget.
    epsilon, delta
        The privacy budget of all that is returned. It decides the number of steps, or, for "auto" and DPLaplace, how
        much noise there is in the intervals (see :func:`dpmcmc.plan`).
    num_chains
        Number of chains; they share the budget.
    num_steps
        Steps of each chain; may only lower what the budget allows. Required for HMC and RWMH. For "auto" and DPLaplace:
        draws of each chain (1000), which are free; where "auto" runs a chain, that is as long as the budget allows, and
        at most so many draws of it are kept, equally far apart (default: all). For SurrogateHMC, whose steps cost what
        their moves are long: at most so many.
    num_warmup
        How many of each chain's draws (after thinning) to set apart as warm-up. Default: the first half. "auto" and
        DPLaplace take none, nor ``thin``: draws of a Gaussian are independent, those of a surrogate nearly so, and of a
        chain of "auto" the first quarter is left out.
    init
        Starting points: None draws them from the prior; else an array of chains × unconstrained parameters, or a dict
        of constrained values with a leading axis of chains. For SurrogateHMC None draws them from the surrogate. For
        "auto" and DPLaplace, where the search starts: None for the prior's centre (or next to it), one unconstrained
        vector, or a dict of constrained values. They must not be taken from the data.
    thin
        Keep every ``thin``-th draw.
    progress
        Show a progress bar, if there is a terminal.
    seed
        For reproducible research: a seeded run is marked *not private* everywhere it is shown.
    devices
        Number or list of JAX devices to spread the records over. Default: one, or, under ``jax.distributed``, all of
        them: each process then gives its own part of the rows, and all get the same draws. Draws do not depend on it.
    check_records
        Spend a little of the budget (at most 0.1 % of its μ; for minibatch samplers 0.5 % of ε) on a noised count of
        the records that count as nothing: a value missing or infinite, or an outcome that is impossible in the model.
        A table that is coded wrongly is noticed in no other way.
    exact
        For "auto" only: spend what is left after the first look at the posterior on a chain whose accept tests are
        exact, even if a Gaussian or a surrogate would do. Its draws are correlated and fewer, and of the right
        posterior as far as no log-ratio is clipped. Refused, before anything is spent, for more than 12 parameters or
        where records and budget do not suffice for a surrogate. If it then turns out that nothing pays for a chain
        (values that are absurd), the draws are a surrogate's or a Gaussian's, and flagged.

    Returns
    -------
    Posterior

    Raises
    ------
    DPMCMCError
        An argument does not fit, or the budget buys no step. Raised before anything is spent.
    RunError
        Something failed in the first block, so that there are no draws; it says what is spent.

    Warns
    -----
    DPMCMCWarning
        The result has a problem, or the run ended early; each says what to do. They also stand in
        :attr:`Posterior.warnings`.

    Notes
    -----
    Ctrl-C, or anything that fails after the first block, ends the run and returns what is done so far: those draws are
    paid for. Everything is compiled before anything is charged; a second call with the same model, shapes and class of
    sampler compiles nothing.
    """
    planning.check_sampler(sampler)
    num_chains, thin = checks.count("num_chains", num_chains), checks.count("thin", thin)
    if num_steps is not None:
        num_steps = checks.count("num_steps", num_steps)
    if exact and sampler != "auto":
        raise QueryError(f'exact = {exact!r} goes with sampler="auto" only; leave it out for {sampler.name}')
    settings = Settings(
        epsilon=epsilon,
        delta=delta,
        num_chains=num_chains,
        num_steps=num_steps,
        num_warmup=num_warmup,
        thin=thin,
        init=init,
        progress=progress,
        seed=seed,
        devices=devices,
        check_records=check_records,
    )
    if sampler == "auto" or isinstance(sampler, DPLaplace):
        posterior, texts = tuned.draw(model, data, "auto" if sampler == "auto" else "DP-Laplace", settings, exact=exact)
    elif isinstance(sampler, SurrogateHMC):
        posterior, texts = stepwise.draw(model, data, sampler, settings)
    else:
        posterior, texts = _sample_by_steps(model, data, sampler, settings)
    posterior = _with_rows(posterior, model, data)
    for text in texts:
        try:
            warnings.warn(text, DPMCMCWarning, stacklevel=2)
        except DPMCMCWarning as error:  # who makes errors of warnings gets the draws with them: they are paid for
            error.posterior = posterior
            raise
    return posterior


def _with_rows(posterior: Posterior, model: Model, data: Any) -> Posterior:
    """Let the result know, where that is known, how rows are coded and what is predicted for them: public things."""
    rows = row_model(model)
    if rows.design is None and rows.predict is None:
        return posterior
    schema = data.schema if isinstance(data, Table) else None
    predictor = None if rows.predict is None else _without_records(rows.predict, posterior.privacy.num_records)
    return replace(posterior, design=rows.design, predictor=predictor, schema=schema)


def _without_records(predict: Callable[..., Any], num_records: int) -> Callable[..., Any]:
    """Refuse, when it is called, a function that has captured an array as long as the records, as of a likelihood.

    What it predicts comes with the statement of the draws, and would hold sums without noise.
    """

    def predictor(parameters: Any, record: Any) -> Any:
        allowed.check_constants("predict", jax.make_jaxpr(predict)(parameters, record), num_records)
        return predict(parameters, record)

    return predictor


def _sample_by_steps(
    model: Model, data: Any, sampler: Sampler, settings: Settings
) -> tuple[Posterior, tuple[str, ...]]:
    """Run a sampler that takes steps; return what it gave, and what there is to say about that."""
    with exact_arithmetic():
        try:
            run = _prepare(model, data, sampler, settings)
            warmup = _number_of_warmup(settings.num_warmup, run.shape.num_draws)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted before the first step; nothing was spent") from None
        outcome = _run_blocks(run, settings.progress)
        with undisturbed():
            posterior = _collect(run, outcome, warmup, settings)
            return posterior, (*outcome.notes, *posterior.warnings)


class _Run(NamedTuple):
    """A run that is ready: checked, planned and compiled, and nothing spent yet."""

    curator: Curator
    sampler: Sampler
    queries: Queries
    funds: planning.Funds | None
    shape: Shape
    program: Program
    inputs: Any
    keys: tuple[jax.Array, jax.Array]
    theta: jax.Array

    @property
    def num_steps(self) -> int:
        """Steps of each chain."""
        return self.shape.num_draws * self.shape.thin

    @property
    def start_order(self) -> Order:
        """What the sampler asks before its first step."""
        return Order.start(self.queries, self.shape.num_chains)

    @property
    def record_check(self) -> InvalidCount | None:
        """What counts records that are no use."""
        return None if self.funds is None else self.funds.record_check


class _Outcome(NamedTuple):
    """What a run has released: positions and infos of each block, steps charged for each chain, the record check."""

    done: list[tuple[NDArray[Any], Any]]
    charged: int
    record_check: RecordCheck | None
    interrupted: bool
    notes: list[str]


def _prepare(model: Model, data: Any, sampler: Sampler, settings: Settings) -> _Run:
    """Do all that can be done, and refuse all that must be refused, before anything is spent."""
    if not sampler.private and (settings.epsilon is not None or settings.delta is not None):
        raise QueryError(f"{sampler.name} adds no noise and is not private; leave out epsilon and delta")
    granted = settings.granted if sampler.private else None
    num_chains, thin, check_records = settings.num_chains, settings.thin, settings.check_records
    model, source = open_units(model, data)
    num_records = placement.total_rows(source.num_records)
    funds, allowed = None, None
    if granted is not None:
        queries = planning.private_queries(sampler, num_records)
        funds = planning.make_funds(queries, num_records, *granted, check_records)
    curator = Curator(
        model,
        source,
        None if funds is None else funds.main,
        noise=_noise_source(sampler, settings.seed),
        devices=settings.devices,
        seed=settings.seed,
    )
    if granted is not None:
        the_plan = planning.plan(
            sampler,
            num_records=num_records,
            epsilon=granted[0],
            delta=granted[1],
            num_chains=num_chains,
            dimension=model.dimension,
            check_records=check_records,
        )
        allowed = the_plan.num_steps
        for note in the_plan.notes:
            warnings.warn(note, DPMCMCWarning, stacklevel=4)
    shape = choose_shape(num_chains, _number_of_steps(settings.num_steps, allowed, thin), thin)
    init_key, state_key, run_key = jax.random.split(curator.public_key, 3)
    theta = starting_points(model, settings.init, num_chains, init_key, num_records)
    queries = sampler.queries(num_records)
    inputs = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), sampler.inputs(model, num_records))
    program = compile_run(curator, sampler, queries, shape, inputs, theta)
    if funds is not None and funds.record_check is not None:
        curator.prepare(funds.record_check, theta[:1])
    return _Run(curator, sampler, queries, funds, shape, program, inputs, (state_key, run_key), theta)


def _noise_source(sampler: Sampler, seed: int | None) -> NoiseSource:
    seeded = None if seed is None else SeededNoiseNotPrivate(seed)
    if not sampler.private:
        return NoNoiseNotPrivate()
    return ExactNoise() if seeded is None else seeded


def _number_of_steps(num_steps: int | None, allowed: int | None, thin: int) -> int:
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
    whole = isinstance(num_warmup, int | np.integer) and not isinstance(num_warmup, bool)
    if not whole or not 0 <= num_warmup < num_draws:
        raise QueryError(f"num_warmup = {num_warmup!r} must be a whole number from 0 to below the {num_draws} draws")
    return int(num_warmup)


def _check_records(run: _Run) -> RecordCheck | None:
    """Release how many records count as nothing at the first starting point."""
    if run.funds is None or run.funds.record_check is None or run.funds.check is None:
        return None
    release = run.curator.ask(run.funds.record_check, np.asarray(run.theta[0]), paid_by=run.funds.check)
    return RecordCheck(
        estimate=float(release.value), noise_sd=float(release.noise_sd), num_records=run.curator.num_records
    )


def _run_blocks(run: _Run, progress: bool) -> _Outcome:
    """Run all blocks. Whatever ends the run early, what is done comes back: it is paid for."""
    curator, shape = run.curator, run.shape
    orders = [shape.order(run.queries, block) for block in range(shape.num_blocks + 1)]
    done: list[tuple[NDArray[Any], Any]] = []
    charged = 0
    record_check: RecordCheck | None = None
    stopped: str | None = None

    try:
        with progress_bar(progress, run.sampler.name, run.num_steps) as report:
            record_check = _check_records(run)
            planning.refuse_useless(record_check)
            state = run.program.start(run.inputs, run.keys[0], run.theta, curator.pay(run.start_order))
            for block, order in enumerate(orders[:-1]):
                assert order is not None
                active = order.draws
                steps = active * shape.thin
                charged += steps  # before it is: whatever happens next, no step that was paid for is left out
                noise = curator.pay(order, orders[block + 1])
                key = jax.random.fold_in(run.keys[1], block)
                state, drawn, info = run.program.run(run.inputs, state, key, noise, jnp.asarray(active))
                released = jax.tree.map(lambda leaf, active=active: np.asarray(leaf)[:active], (drawn, info))
                curator.raise_stream_error()  # the block's draws are worthless if its records could not be read
                done.append(released)
                report(steps, info, curator.budget)
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    except Exception as error:
        stopped = reason_of(error)
    finally:
        curator.stop_drawing()
    if stopped is None:
        return _Outcome(done, charged, record_check, False, [])
    if not done:
        # Raised outside the handlers: the text of a foreign error could quote a record.
        raise ended_without_draws("in the first block", stopped, _what_is_spent(run, charged))
    finished = sum(len(positions) for positions, _ in done)
    note = cut_short(f"{finished} of {shape.num_draws}", stopped, _what_is_spent(run, charged))
    return _Outcome(done, charged, record_check, True, [note])


def _what_is_spent(run: _Run, charged: int) -> str:
    if run.curator.budget is None:
        return "no budget was involved"
    paid = [run.curator.budget, *([] if run.funds is None or run.funds.check is None else [run.funds.check])]
    if charged == 0 and all(budget.spent == 0 for budget in paid):
        return NOTHING_SPENT
    return ALL_SPENT


def _collect(run: _Run, outcome: _Outcome, warmup: int, settings: Settings) -> Posterior:
    """Turn released positions into named draws, with what was spent."""
    theta, infos = jax.tree.map(lambda *leaves: np.concatenate(leaves), *outcome.done)
    with attached_to_errors(theta):
        return _posterior(run, outcome, theta, infos, warmup, settings)


def _posterior(
    run: _Run, outcome: _Outcome, theta: NDArray[np.float64], infos: Any, warmup: int, settings: Settings
) -> Posterior:
    curator, model = run.curator, run.curator.model
    warmup = min(warmup, len(theta) // 2)  # an interrupted run is shorter than planned
    by_chain = {
        name: np.moveaxis(np.asarray(value), 0, 1) for name, value in run.program.constrain(jnp.asarray(theta)).items()
    }
    joined = {name: value.T for name, value in infos._asdict().items() if value is not None}
    statement = planning.make_statement(
        run.sampler,
        run.queries,
        private=curator.private,
        mode=curator.noise.description,
        unit_of_privacy=unit_of_privacy(model),
        num_records=curator.num_records,
        dimension=model.dimension,
        num_chains=run.shape.num_chains,
        epsilon=settings.epsilon,
        delta=settings.delta,
        steps_charged=outcome.charged,
        steps_fixed=None if settings.num_steps is None else run.num_steps,
        interrupted=outcome.interrupted,
        record_check=run.record_check,
    )
    return Posterior(
        draws={name: value[:, warmup:] for name, value in by_chain.items()},
        warmup_draws={name: value[:, :warmup] for name, value in by_chain.items()},
        sample_stats={name: value[:, warmup:] for name, value in joined.items()},
        warmup_stats={name: value[:, :warmup] for name, value in joined.items()},
        privacy=statement,
        sampler=repr(run.sampler),
        model=model.name,
        dims={name: (dimension,) for name, (dimension, _) in model.labels.items()},
        coords=dict(model.labels.values()),
        record_check=outcome.record_check,
    )
