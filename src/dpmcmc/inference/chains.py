"""``sample`` by a sampler that takes steps: plan, compile, run in blocks, collect.

The budget is charged for a block before the block runs, and what a block has released is written down after it: a run
that was stopped goes on with the next block.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

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
from dpmcmc.errors import CheckpointError, DPMCMCWarning, QueryError
from dpmcmc.inference import planning
from dpmcmc.inference.blocks import Program, Shape, choose_shape, compile_run, starting_points
from dpmcmc.inference.books import Books
from dpmcmc.inference.endings import (
    INTERRUPTED,
    attached_to_errors,
    before_anything_is_spent,
    cut_short,
    ended_without_draws,
    reason_of,
    undisturbed,
)
from dpmcmc.inference.progress import progress_bar
from dpmcmc.inference.settings import Settings
from dpmcmc.models import Model
from dpmcmc.models.units import open_units, unit_of_privacy
from dpmcmc.queries import Cost, InvalidCount, Queries
from dpmcmc.results import Posterior
from dpmcmc.results.diagnostics import RecordCheck
from dpmcmc.samplers import Sampler


def draw(
    model: Model, data: Any, sampler: Sampler, settings: Settings, books: Books
) -> tuple[Posterior, tuple[str, ...]]:
    """Run a sampler that takes steps; return what it gave, and what there is to say about that."""
    with exact_arithmetic():
        with before_anything_is_spent("step"):
            run = _prepare(model, data, sampler, settings, books)
            warmup = _number_of_warmup(settings.num_warmup, run.shape.num_draws)
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
    books: Books

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
    starts: int
    record_check: RecordCheck | None
    interrupted: bool
    notes: list[str]

    @property
    def num_draws(self) -> int:
        """Draws of each chain."""
        return sum(len(positions) for positions, _ in self.done)


def _prepare(model: Model, data: Any, sampler: Sampler, settings: Settings, books: Books) -> _Run:
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
        noise=_noise_source(sampler, books.seed),
        devices=settings.devices,
        seed=books.seed,
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
    init_key, *_ = jax.random.split(books.open(curator, source, funds), 3)
    # Of this process alone: after a resume momenta and accept tests are fresh.
    _, state_key, run_key = jax.random.split(curator.public_key, 3)
    theta = starting_points(model, settings.init, num_chains, init_key, num_records)
    queries = sampler.queries(num_records)
    inputs = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), sampler.inputs(model, num_records))
    program = compile_run(curator, sampler, queries, shape, inputs, theta)
    if funds is not None and funds.record_check is not None:
        curator.prepare(funds.record_check, theta[:1])
    return _Run(curator, sampler, queries, funds, shape, program, inputs, (state_key, run_key), theta, books)


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
    check = RecordCheck(
        estimate=float(release.value), noise_sd=float(release.noise_sd), num_records=run.curator.num_records
    )
    entry = run.funds.check.last_entry
    _write(run, "check", {"estimate": check.estimate, "noise_sd": check.noise_sd, "entry": entry}, {})
    return check


def _write(run: _Run, kind: str, header: dict[str, Any], arrays: dict[str, Any]) -> None:
    """Keep what was released, if there is a checkpoint."""
    if run.books.checkpoint is not None:
        run.books.checkpoint.append(kind, header, arrays)


class _Kept(NamedTuple):
    """What earlier processes have done of a run: its blocks, the state after the last, and what was paid."""

    done: list[tuple[NDArray[Any], Any]]
    state: Any
    record_check: RecordCheck | None
    checked: bool
    charged: int
    starts: int


def _kept(run: _Run) -> _Kept:
    """Read the checkpoint. What was charged and lost by a crash counts."""
    checkpoint, account = run.books.checkpoint, run.books.account
    if not run.books.resumed or checkpoint is None:
        return _Kept([], None, None, False, 0, 0)
    info_shapes = run.program.run.out_shapes[2]
    blocks, states = checkpoint.of_kind("block"), checkpoint.of_kind("start", "block")
    done = [
        (part.arrays["positions"], jax.tree.unflatten(jax.tree.structure(info_shapes), _leaves(part.arrays, "info")))
        for part in blocks
    ]
    state = None
    if states:
        structure = jax.tree.structure(run.program.start.out_shapes)
        state = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in _leaves(states[-1].arrays, "state")])
    check = None
    for part in checkpoint.of_kind("check"):
        found = {name: part.header[name] for name in ("estimate", "noise_sd")}
        check = RecordCheck(**found, num_records=run.curator.num_records)
    charged, starts = sum(int(part.header["steps"]) for part in blocks), len(checkpoint.of_kind("start"))
    checked = check is not None
    if account is not None and run.funds is not None:
        known = {0, *(charge.number for charge in account.charges)}  # (0: a start that asks for nothing)
        if any(part.header["entry"] not in known for part in checkpoint.of_kind("check", "start", "block")):
            raise CheckpointError(
                f"the ledger {account.ledger.place!r} lacks charges of what is in {checkpoint.shown!r}: it was "
                "replaced by an older copy; put the whole one back (what it lacks is spent all the same)"
            )
        charges = [charge.what for charge in account.charges]
        charged = sum(int(what["steps"]) for what in charges if what["kind"] == "steps")
        starts = sum(what["kind"] == "start" for what in charges)
        checked = any(what["kind"] == InvalidCount.kind for what in charges)
        run.books.count_all(run.funds)
    return _Kept(done, state, check, checked, charged, starts)


def _leaves(arrays: dict[str, NDArray[Any]], name: str) -> list[NDArray[Any]]:
    own = [key for key in arrays if key.startswith(f"{name}.")]
    return [arrays[f"{name}.{place}"] for place in range(len(own))]


def _named(name: str, tree: Any) -> dict[str, Any]:
    return {f"{name}.{place}": np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(tree))}


def _rest(run: _Run, kept: _Kept) -> Shape:
    """Return what is left to do: what was planned, less what is done, as far as the budget still pays for it."""
    shape = run.shape
    num_draws = shape.num_draws - sum(len(positions) for positions, _ in kept.done)
    budget = run.curator.budget
    if run.books.resumed and budget is not None:
        sizes = run.curator.num_records, run.curator.model.dimension
        draw = Order(run.queries, shape.num_chains, 1, shape.thin, 1).cost(*sizes)
        start = run.start_order.cost(*sizes) if kept.state is None else Cost()
        rooms = zip(budget.room, start, draw, strict=True)
        num_draws = min(num_draws, *(math.floor((room - first) / each) for room, first, each in rooms if each))
    return shape._replace(num_draws=max(0, num_draws))


def _run_blocks(run: _Run, progress: bool) -> _Outcome:
    """Run all blocks. Whatever ends the run early, what is done comes back: it is paid for."""
    curator = run.curator
    kept = _kept(run)
    shape = _rest(run, kept)
    orders = [shape.order(run.queries, block) for block in range(shape.num_blocks + 1)]
    done, charged, starts, record_check = list(kept.done), kept.charged, kept.starts, kept.record_check
    start_cost = run.start_order.cost(curator.num_records, curator.model.dimension)
    stopped: str | None = None

    try:
        with progress_bar(progress, run.sampler.name, shape.num_draws * shape.thin) as report:
            if not kept.checked:  # (one that was charged and lost is not paid for twice)
                record_check = _check_records(run)
            planning.refuse_useless(record_check)
            state = kept.state
            if state is None and shape.num_draws:
                starts += 1
                state = run.program.start(run.inputs, run.keys[0], run.theta, curator.pay(run.start_order))
                state = jax.block_until_ready(state)
                curator.raise_stream_error()
                entry = 0 if curator.budget is None else curator.budget.last_entry
                _write(run, "start", {"entry": entry if any(start_cost) else 0}, _named("state", state))
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
                arrays = {"positions": released[0], **_named("info", released[1]), **_named("state", state)}
                entry = 0 if curator.budget is None else curator.budget.last_entry
                _write(run, "block", {"steps": steps, "entry": entry}, arrays)
                done.append(released)
                report(steps, info, curator.budget)
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    except Exception as error:
        stopped = reason_of(error)
    finally:
        curator.stop_drawing()
    if stopped is None and done:
        return _Outcome(done, charged, starts, record_check, False, [])
    if stopped is None:
        run.books.over = True
        stopped = "crashes have cost what would have paid for the first draw, so that another run is to be begun"
    outcome = _Outcome(done, charged, starts, record_check, True, [])
    if not done or run.books.can_resume:
        # Raised outside the handlers: the text of a foreign error could quote a record.
        when = (
            f"after {outcome.num_draws} of {run.shape.num_draws} draws of each chain" if done else "in the first block"
        )
        raise ended_without_draws(when, stopped, _what_is_spent(run, charged))
    note = cut_short(f"{outcome.num_draws} of {run.shape.num_draws}", stopped, _what_is_spent(run, charged))
    return outcome._replace(notes=[note])


def _what_is_spent(run: _Run, charged: int) -> str:
    if run.curator.budget is None:
        return "no budget was involved"
    paid = [run.curator.budget, *([] if run.funds is None or run.funds.check is None else [run.funds.check])]
    return run.books.what_is_spent(charged > 0 or any(budget.spent > 0 for budget in paid))


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
        # What a crash has cost was not fixed beforehand.
        steps_fixed=run.num_steps if settings.num_steps is not None and outcome.charged == run.num_steps else None,
        interrupted=outcome.interrupted,
        record_check=run.record_check,
        starts=max(1, outcome.starts),
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
