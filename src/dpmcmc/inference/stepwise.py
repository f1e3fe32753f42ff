"""``sample`` by a chain whose steps cost what their moves are long: propose, look at the price, ask, accept.

What a step costs is known only when it is proposed, so it cannot be paid for in compiled blocks. Here the host goes
round: all chains propose (compiled, public), the filter is asked whether it can pay, the curator charges and answers in
one pass over the data, all chains decide (compiled). When to stop follows public numbers and releases alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc import checks
from dpmcmc.curator import Curator, ExactNoise, SeededNoiseNotPrivate, placement
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.errors import BudgetExceededError, DPMCMCWarning, QueryError
from dpmcmc.inference.blocks import starting_points
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
from dpmcmc.inference.journal import Journal
from dpmcmc.inference.laplace_plan import delta_notes
from dpmcmc.inference.planning import describe_accountant, make_funds, refuse_useless
from dpmcmc.inference.progress import Progress, no_progress, progress_bar
from dpmcmc.inference.settings import Settings
from dpmcmc.models import Model
from dpmcmc.models.units import open_units, unit_of_privacy
from dpmcmc.privacy import Budget, PrivacyStatement
from dpmcmc.privacy.exact import rounded_up
from dpmcmc.queries import InvalidCount, Queries
from dpmcmc.results import Posterior
from dpmcmc.results.diagnostics import RecordCheck
from dpmcmc.samplers import SurrogateHMC
from dpmcmc.samplers.surrogate_hmc import Numbers, accept, build_propose
from dpmcmc.surrogate import Surrogate

Array = NDArray[np.float64]

_NO_DRAWS = "before there were any draws"
BUDGET, STEPS = "the budget ended", "all steps are done"

# Free proposals on the surrogate before a starting point that nobody gave.
_FREE_PROPOSALS = 50
# So many first proposals show what a step costs.
_PRICED_STEPS = 8
# So many draws are brought to constrained space at a time: how many there will be is not known when that is compiled.
_DRAWS_AT_A_TIME = 512
# Acceptance this many sds below the ceiling is no accident.
_CERTAIN = 3.0


class ChainOutcome(NamedTuple):
    """What a chain released and what it cost.

    Attributes
    ----------
    positions
        Kept draws × chains × parameters, unconstrained: after every ``thin`` steps.
    accepted, moved
        Steps × chains: which accepted a move, and which proposals were one (the others cost nothing).
    last
        Where the chains are: chains × parameters.
    num_answers
        Log-ratios that were charged for: one for each chain and step whose proposal was a move.
    spent
        Their cost μ, exactly.
    ended
        Why the run ended, in words: ``BUDGET``, ``STEPS``, ``INTERRUPTED`` or what failed.
    noise_sd
        σ of the accept tests.
    """

    positions: Array
    accepted: NDArray[np.bool_]
    moved: NDArray[np.bool_]
    last: Array
    num_answers: int
    spent: Fraction
    ended: str
    noise_sd: float

    @property
    def num_steps(self) -> int:
        """Steps that were done."""
        return len(self.accepted)

    @property
    def complete(self) -> bool:
        """Whether nothing but the budget or the number of steps ended the run."""
        return self.ended in (BUDGET, STEPS)

    @property
    def acceptance(self) -> float:
        """Share of the moves that were accepted, to be compared with the ceiling."""
        return float(self.accepted.sum() / max(1, self.moved.sum()))

    @property
    def ceiling(self) -> float:
        """Share that would be, if the surrogate were the likelihood itself."""
        return SurrogateHMC.ceiling_at(self.noise_sd)

    @property
    def mean_multiplier(self) -> float:
        """Every log-ratio has a noise multiplier of its own, σ/(2c): this is that of their mean cost."""
        return math.sqrt(self.num_answers / (2.0 * float(self.spent)))

    def sds_below(self, ceiling: float) -> float:
        """Return how many sds the acceptance lies below a ceiling. Well above 3: the surrogate does not fit."""
        return (ceiling - self.acceptance) * math.sqrt(max(1, self.moved.sum()) / (ceiling * (1.0 - ceiling)))

    def misfit(self, remedy: str) -> list[str]:
        """Say so, and what helps, if the acceptance is too low for a surrogate that fits; else nothing."""
        if not self.sds_below(self.ceiling) > _CERTAIN:
            return []
        return [
            f"{self.acceptance:.3f} of the moves were accepted, where a surrogate that fits leaves "
            f"{self.ceiling:.3f}: it does not, and the chains may not reach all of the posterior. {remedy}"
        ]


class Chain(NamedTuple):
    """The compiled parts of a step, for any surrogate of one form: numbers are inputs.

    - ``propose(key, step, theta, numbers) -> Proposal``
    - ``accept(key, step, theta, proposal, noisy_log_ratio, noise_sd) -> theta, accepted``
    - ``usable(theta, numbers)``: whether there is a density to start from
    """

    propose: Callable[..., Any]
    accept: Callable[..., Any]
    usable: Callable[..., Any]


def prepare_chain(curator: Curator, sampler: SurrogateHMC, num_chains: int) -> Chain:
    """Compile all that `run_chain` needs, or take it from before. Looks at no record and spends nothing.

    Serves any other surrogate of the same form, so that who fits one on the way can have all forms compiled first.
    """
    model, dimension = curator.model, curator.model.dimension
    if sampler.surrogate.form.dimension != dimension:
        raise QueryError(
            f"the surrogate has {sampler.surrogate.form.dimension} dimensions; this model has {dimension} "
            "unconstrained parameters"
        )
    with exact_arithmetic():
        key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl="threefry2x32")
        step, theta = np.zeros((), np.int64), np.tile(sampler.surrogate.center, (num_chains, 1))
        propose, accept_move, usable = _programs(model, sampler)
        numbers = sampler.numbers(curator.num_records)
        proposal = jax.eval_shape(propose, key, step, theta, numbers)
        release = np.zeros(num_chains)
        arguments: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
            "propose": (propose, (key, step, theta, numbers)),
            "accept": (accept_move, (key, step, theta, proposal, release, release)),
            "usable": (usable, (theta, numbers)),
        }
        shapes = sampler.structure, numbers.weights.shape, num_chains

        def compiled(name: str) -> Any:
            function, given = arguments[name]
            return curator.passes.keep(("chain", name, shapes), lambda: jax.jit(function).lower(*given).compile())

        chain = Chain(*map(compiled, Chain._fields))
        # The bound and the price, which are computed apart, and the pass over the records.
        curator.prepare(sampler.log_ratio(curator.num_records), theta, theta)
    return chain


def _programs(model: Model, sampler: SurrogateHMC) -> tuple[Callable[..., Any], ...]:
    form = sampler.surrogate.form
    draw = build_propose(model, form, sampler.num_leapfrog, sampler.transitions)

    def propose(key: jax.Array, step: jax.Array, theta: jax.Array, numbers: Numbers) -> Any:
        return draw(_key(key, step, 0), theta, numbers)

    def accept_move(key: jax.Array, step: jax.Array, theta: Any, proposal: Any, ratio: Any, noise_sd: Any) -> Any:
        return accept(_key(key, step, 1), theta, proposal, ratio, noise_sd)

    def usable(theta: jax.Array, numbers: Numbers) -> jax.Array:
        surrogate = Surrogate(form, numbers.center, numbers.matrix, numbers.weights)
        density = jax.vmap(lambda one: model.unconstrained_log_prior(one) - surrogate.potential(one))(theta)
        return jnp.all(jnp.isfinite(density))

    return propose, accept_move, usable


def _key(key: jax.Array, step: jax.Array, part: int) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(key, step), part)


def settled(curator: Curator, sampler: SurrogateHMC, theta: Any, key: jax.Array) -> Array:
    """Return draws of the surrogate that started at ``theta`` (chains × parameters). Free: nothing is asked."""
    with exact_arithmetic():
        theta = np.asarray(theta, np.float64)
        chain, numbers = prepare_chain(curator, sampler, len(theta)), sampler.numbers(curator.num_records)
        for step in range(_FREE_PROPOSALS):
            theta = np.asarray(chain.propose(key, np.int64(step), theta, numbers).position)
        return placement.agree(theta)


def moves(curator: Curator, sampler: SurrogateHMC, theta: Any, key: jax.Array) -> tuple[Array, Array]:
    """Return draws of the surrogate, started at ``theta`` (pairs × parameters), and a proposal from each. Free.

    For :func:`dpmcmc.tuning.ratios.ratio_bound`, which has to see moves as the sampler makes them.
    """
    with exact_arithmetic():
        settle_key, move_key = jax.random.split(key)
        start = settled(curator, sampler, theta, settle_key)
        chain, numbers = prepare_chain(curator, sampler, len(start)), sampler.numbers(curator.num_records)
        return start, placement.agree(np.asarray(chain.propose(move_key, np.int64(0), start, numbers).position))


def run_chain(
    curator: Curator,
    sampler: SurrogateHMC,
    theta: Any,
    spend: float = math.inf,
    *,
    key: jax.Array,
    max_steps: int | None = None,
    thin: int = 1,
    report: Progress = no_progress,
    journal: Journal | None = None,
) -> ChainOutcome:
    """Run Surrogate HMC on an open curator, for a part of its budget.

    Parameters
    ----------
    curator
        Answers, and charges its own budget.
    sampler
        Settings.
    theta
        Starting points: chains × unconstrained parameters, or one vector.
    spend
        Up to so much μ is spent here; infinite: all that is left.
    key
        Of proposals and accept tests; need not be secret. With the same key and ``theta`` a chain goes the same way.
    max_steps
        At most so many steps. Required where no budget ends the run.
    thin
        Keep every ``thin``-th position.
    report
        Called after every step with 1, the acceptance so far, and the budget.
    journal
        Asks the curator, and keeps the answers; default: one that keeps nothing.

    Returns
    -------
    ChainOutcome
        Also if the run was interrupted or something failed on its way: what is done is paid for.

    Raises
    ------
    QueryError
        An argument does not fit. Nothing was spent.

    Notes
    -----
    The run ends at the first step that does not fit into ``spend`` for all chains together; that step is not asked. The
    price of a step follows its proposals, which are public: so stopping reveals nothing. (It makes the last draws of a
    run a little nearer to each other than a fixed number of steps would; of hundreds of steps that is not seen.)
    """
    theta = np.atleast_2d(np.asarray(theta, np.float64))
    thin, limit = checks.count("thin", thin), math.inf if max_steps is None else checks.count("max_steps", max_steps)
    if isinstance(spend, bool) or not isinstance(spend, int | float) or not spend > 0.0:
        raise QueryError(f"spend = {spend!r} is out of range; give a positive μ, or math.inf for all that is left")
    if curator.budget is None and max_steps is None:
        raise QueryError("max_steps is required: there is no budget that would end the run")
    _check_start(curator, sampler, theta)
    allowance = None if math.isinf(spend) else Fraction(spend)
    query, numbers = sampler.log_ratio(curator.num_records), sampler.numbers(curator.num_records)
    journal = Journal(curator) if journal is None else journal
    spent_before = None if curator.budget is None else curator.budget.spent_exactly - journal.lost_spent
    positions, accepted, moved = [], [], []
    answers, spent, step, ended = 0, Fraction(0), 0, STEPS
    before = answers, spent
    with exact_arithmetic():
        chain = prepare_chain(curator, sampler, len(theta))
        try:
            while step < limit:
                place, key_now = np.int64(step), journal.fresh(key)
                # Several processes go the way of the first.
                theta, proposal = placement.agree((theta, chain.propose(key_now, place, theta, numbers)))
                # In NumPy from here on: JAX would compile sums and means of arrays of its own.
                proposal = jax.tree.map(np.asarray, proposal)
                price = _price(proposal.clip, sampler.noise_sd)
                if allowance is not None and spent + price > allowance:
                    ended = BUDGET
                    break
                # Before it is charged: whatever happens next, nothing that was paid for is left out.
                before, answers, spent = (answers, spent), answers + int(np.sum(proposal.moved)), spent + price
                release = journal.ask(query, np.asarray(theta), proposal.position)
                spent = before[1] + sum(map(Fraction, np.asarray(release.mu).tolist()))  # what was really charged
                noise_sd = np.broadcast_to(np.asarray(release.noise_sd, np.float64), len(theta))
                theta, won = chain.accept(key_now, place, theta, proposal, np.asarray(release.value), noise_sd)
                theta, won = np.asarray(theta), np.asarray(won)
                accepted.append(won)
                moved.append(proposal.moved)
                step += 1
                if step % thin == 0:
                    positions.append(theta)
                report(1, _Info(np.mean(won)), curator.budget)
        except BudgetExceededError:  # the filter has refused, and charged nothing
            ended, (answers, spent) = BUDGET, before
        except KeyboardInterrupt:
            ended = INTERRUPTED
        except Exception as error:
            ended = reason_of(error)
    if curator.budget is not None and spent_before is not None:  # exactly, also of a step that failed
        spent = curator.budget.spent_exactly - spent_before - journal.lost_spent
    done = min(len(accepted), len(moved))  # Ctrl-C may come between any two lines
    shape = len(theta), curator.model.dimension
    return ChainOutcome(
        np.array(positions, np.float64).reshape(-1, *shape),
        np.array(accepted[:done], bool).reshape(-1, shape[0]),
        np.array(moved[:done], bool).reshape(-1, shape[0]),
        np.asarray(theta),
        answers,
        spent,
        ended,
        sampler.noise_sd,
    )


class _Info(NamedTuple):
    """What the progress bar shows of a step."""

    acceptance_rate: Any


def _check_start(curator: Curator, sampler: SurrogateHMC, theta: Array) -> None:
    dimension = curator.model.dimension
    if theta.ndim != 2 or theta.shape[1] != dimension or not len(theta):
        raise QueryError(f"theta has shape {theta.shape}; give chains × {dimension} unconstrained parameters")
    usable = prepare_chain(curator, sampler, len(theta)).usable
    with exact_arithmetic():
        if not bool(usable(theta, sampler.numbers(curator.num_records))):
            raise QueryError("a starting point has no finite prior density or surrogate; start inside the posterior")


def adaptive_statement(
    curator: Curator,
    budget: Budget,
    granted: tuple[float, float],
    answers: dict[str, tuple[int, float]],
    chain: ChainOutcome | None,
) -> PrivacyStatement:
    """State what a run guarantees: always the whole budget, since where it stopped followed what was released.

    Parameters
    ----------
    curator, budget
        Who answered, and what paid.
    granted
        ε and δ.
    answers
        Number and noise multiplier by kind, of all but the chain's log-ratios.
    chain
        What a chain has cost, if there was one.
    """
    accountant, epsilon = describe_accountant(Queries()), granted[0]
    if chain is not None:
        accountant += (
            f"; each log-ratio has noise of sd {chain.noise_sd:g} and was charged by its own public clip bound: the "
            "noise multiplier stated is that of their mean cost"
        )
    adaptive = []
    if not all(kind.startswith(InvalidCount.kind) for kind in answers):
        adaptive.append(
            "Which question was asked next, its noise, clip bounds and coordinates, and when to stop asking followed "
            "from earlier releases."
        )
    if chain is not None:
        adaptive.append(
            "Where each step of the chain asked, what it cost (by the length of its move) and so the number of steps "
            "followed from earlier releases."
        )
    if chain is not None and chain.spent > 0:
        # (A search may have asked for log-ratios, too, each with noise of its own.)
        kind = "log_ratio" if "log_ratio" not in answers else "log_ratio (of the chain)"
        answers = {**answers, kind: (chain.num_answers, chain.mean_multiplier)}
    return PrivacyStatement(
        private=curator.private,
        mode=curator.noise.description,
        epsilon=epsilon,
        budget_epsilon=epsilon,
        unit_of_privacy=unit_of_privacy(curator.model),
        delta=granted[1],
        mu=rounded_up(budget.spent_exactly),
        lattice_epsilon=budget.lattice_epsilon_spent,
        lattice_delta=budget.lattice_delta_spent,
        num_records=curator.num_records,
        queries={kind: number for kind, (number, _) in answers.items()},
        noise_multipliers={kind: multiplier for kind, (_, multiplier) in answers.items()},
        interrupted=chain is not None and not chain.complete,
        accountant=accountant,
        adaptive=" ".join(adaptive),
    )


def _price(clip: Any, noise_sd: float) -> Fraction:
    """Return what a step of all chains costs, Σ 2c²/σ², or a little more: the curator rounds c up to its lattice."""
    return Fraction(2.0 * float(np.sum((np.asarray(clip) / noise_sd * (1.0 + 1e-9) + 1e-11) ** 2)))


# ------------------------------------------------------------------------------------------------------ sample


class _Run(NamedTuple):
    """A run that is ready: checked and compiled, and nothing spent yet."""

    curator: Curator
    budget: Budget
    sampler: SurrogateHMC
    record_check: InvalidCount | None
    start: Array
    key: jax.Array
    books: Books
    journal: Journal


def draw(
    model: Model, data: Any, sampler: SurrogateHMC, settings: Settings, books: Books
) -> tuple[Posterior, tuple[str, ...]]:
    """Draw from the posterior by Surrogate HMC; see :func:`dpmcmc.sample`. Return also what there is to say."""
    granted = settings.granted
    _check_warmup(settings.num_warmup, settings.num_steps, settings.thin)
    with exact_arithmetic():
        with before_anything_is_spent("step"):
            run = _prepare(model, data, sampler, settings, granted, books)
        record_check, outcome = _run(run, settings)
        with undisturbed():
            posterior = _collect(run, outcome, record_check, settings, granted)
            return posterior, (*_notes(outcome), *posterior.warnings)


def _check_warmup(num_warmup: int | None, num_steps: int | None, thin: int) -> None:
    if num_steps is not None and num_steps < thin:
        raise QueryError(f"thin = {thin} leaves no draw of {num_steps} steps; use a smaller one")
    if num_warmup is None:
        return
    whole = isinstance(num_warmup, int | np.integer) and not isinstance(num_warmup, bool)
    most = math.inf if num_steps is None else num_steps // thin
    if not whole or not 0 <= num_warmup < most:
        limit = "" if num_steps is None else f" below the {most} draws"
        raise QueryError(f"num_warmup = {num_warmup!r} must be a whole number from 0{limit}")


def _prepare(
    model: Model, data: Any, sampler: SurrogateHMC, settings: Settings, granted: tuple[float, float], books: Books
) -> _Run:
    """Do all that can be done, and refuse all that must be refused, before anything is spent."""
    (epsilon, delta), num_chains, thin, seed = granted, settings.num_chains, settings.thin, books.seed
    model, source = open_units(model, data)
    num_records = placement.total_rows(source.num_records)
    funds = make_funds(Queries(), num_records, epsilon, delta, settings.check_records)
    assert isinstance(funds.main, Budget)
    for note in delta_notes(delta, num_records):
        warnings.warn(note, DPMCMCWarning, stacklevel=4)
    noise = ExactNoise() if seed is None else SeededNoiseNotPrivate(seed)
    curator = Curator(model, source, funds.main, noise=noise, devices=settings.devices, seed=seed)
    init_key, run_key = jax.random.split(books.open(curator, source, funds))
    chain = prepare_chain(curator, sampler, num_chains)
    if settings.init is None:
        center = np.tile(sampler.surrogate.center, (num_chains, 1))
        _check_start(curator, sampler, center)
        start = settled(curator, sampler, center, init_key)
    else:
        start = np.asarray(starting_points(model, settings.init, num_chains, init_key, num_records))
    _check_start(curator, sampler, start)
    numbers = sampler.numbers(num_records)
    # Proposals of some first steps are free, and show what a draw will cost.
    first = [chain.propose(run_key, np.int64(step), start, numbers).clip for step in range(_PRICED_STEPS)]
    price = sum((_price(clip, sampler.noise_sd) for clip in first), Fraction(0)) / _PRICED_STEPS
    if not books.resumed and price * min(thin, settings.num_steps or thin) > Fraction(funds.main.left):
        raise BudgetExceededError(
            f"epsilon = {epsilon:g}, delta = {delta:g} buys μ = {funds.main.left:.3g}, and a draw of {num_chains} "
            f"chains costs about {float(price * thin):.3g}; use fewer chains, a smaller ratio_bound or thin, or a "
            "larger budget"
        )
    if funds.record_check is not None:
        curator.prepare(funds.record_check, start[:1])
    constrained(curator, start[None])
    journal = books.journal(curator)
    return _Run(curator, funds.main, sampler, funds.record_check, start, run_key, books, journal)


def _run(run: _Run, settings: Settings) -> tuple[RecordCheck | None, ChainOutcome]:
    """Spend the budget. Whatever ends the run early, what is done comes back: it is paid for."""
    curator, num_steps, thin = run.curator, settings.num_steps, settings.thin
    record_check: RecordCheck | None = None
    outcome: ChainOutcome | None = None
    stopped = ""
    # Steps that would be paid for and not kept are not done.
    limit = None if num_steps is None else num_steps // thin * thin
    try:
        with progress_bar(settings.progress, run.sampler.name, 100) as report:
            if run.record_check is not None:
                release = run.journal.ask(run.record_check, run.start[0])
                record_check = RecordCheck(
                    estimate=float(release.value), noise_sd=float(release.noise_sd), num_records=curator.num_records
                )
                refuse_useless(record_check)
            shown = _percent(report, run.budget, limit)
            outcome = run_chain(
                curator,
                run.sampler,
                run.start,
                key=run.key,
                max_steps=limit,
                thin=thin,
                report=shown,
                journal=run.journal,
            )
            stopped = outcome.ended
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    except Exception as error:
        stopped = reason_of(error)
    early = outcome is not None and not outcome.complete and run.books.can_resume
    if outcome is not None and len(outcome.positions) and not early:
        return record_check, outcome
    # Raised outside the handlers: the text of a foreign error could quote a record.
    spent = run.books.what_is_spent(run.budget.spent > 0)
    when = f"after {len(outcome.positions)} draws of each chain" if outcome is not None and early else _NO_DRAWS
    raise ended_without_draws(when, stopped, spent)


def _percent(report: Progress, budget: Budget, limit: int | None) -> Progress:
    """Report, in steps of 1 %, how much of the budget is spent or of the steps done, whichever is nearer to its end."""
    shown = steps = 0
    accepted = 0.0

    def after_step(number: int, info: Any, _: Any) -> None:
        nonlocal shown, steps, accepted
        steps, accepted = steps + number, accepted + float(info.acceptance_rate)
        now = int(100.0 * max(budget.spent / budget.total, 0.0 if limit is None else steps / limit))
        if now > shown:
            report(now - shown, _Info(accepted / steps), budget)
            shown = now

    return after_step


def _notes(outcome: ChainOutcome) -> list[str]:
    """Return what there is to say about the run, in whole sentences."""
    early = [] if outcome.complete else [cut_short(len(outcome.positions), outcome.ended)]
    return [*early, *outcome.misfit("Fit another one, or take shorter steps")]


def constrained(curator: Curator, theta: Array) -> dict[str, NDArray[Any]]:
    """Return named values (draws first) of unconstrained draws × chains × parameters, so many at a time."""
    parts = []
    for first in range(0, len(theta), _DRAWS_AT_A_TIME):
        part = theta[first : first + _DRAWS_AT_A_TIME]
        filled = np.concatenate([part, np.repeat(part[-1:], _DRAWS_AT_A_TIME - len(part), axis=0)])
        named = curator.passes.constrain(jnp.asarray(filled))
        parts.append({name: np.asarray(value)[: len(part)] for name, value in named.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _collect(
    run: _Run,
    outcome: ChainOutcome,
    record_check: RecordCheck | None,
    settings: Settings,
    granted: tuple[float, float],
) -> Posterior:
    """Turn released positions into named draws, with what was spent."""
    theta, model, thin, num_warmup = outcome.positions, run.curator.model, settings.thin, settings.num_warmup
    with attached_to_errors(theta):
        num_draws = len(theta)
        # How many draws there are was not known beforehand; a warm-up leaves at least half of them.
        warmup = num_draws // 2 if num_warmup is None else min(int(num_warmup), num_draws // 2)
        by_chain = {name: np.moveaxis(value, 0, 1) for name, value in constrained(run.curator, theta).items()}
        accepted = outcome.accepted[: num_draws * thin].reshape(num_draws, thin, -1).mean(axis=1).T
        check, answers = run.record_check, dict[str, tuple[int, float]]()
        if check is not None:
            answers[check.kind] = 1, check.noise_sd / check.sensitivity
        answers |= run.journal.lost_answers()
        return Posterior(
            draws={name: value[:, warmup:] for name, value in by_chain.items()},
            warmup_draws={name: value[:, :warmup] for name, value in by_chain.items()},
            sample_stats={"acceptance_rate": accepted[:, warmup:]},
            warmup_stats={"acceptance_rate": accepted[:, :warmup]},
            privacy=adaptive_statement(run.curator, run.budget, granted, answers, outcome),
            sampler=repr(run.sampler),
            model=model.name,
            dims={name: (dimension,) for name, (dimension, _) in model.labels.items()},
            coords=dict(model.labels.values()),
            record_check=record_check,
        )
