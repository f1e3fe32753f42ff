"""``sample`` without settings: ask, in rounds that follow what was released, then draw.

For DP-Laplace and "auto". Draws of a Gaussian or a surrogate are free; where "auto" finds that no surrogate fits, or
is asked for exact draws, what is left of the budget goes to a chain.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.curator import Curator, ExactNoise, SeededNoiseNotPrivate, placement
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.errors import BudgetExceededError, DPMCMCWarning, QueryError, RunError
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
from dpmcmc.inference.laplace_plan import plan_laplace
from dpmcmc.inference.planning import make_funds, refuse_useless
from dpmcmc.inference.progress import progress_bar
from dpmcmc.inference.settings import Settings
from dpmcmc.inference.stepwise import (
    BUDGET,
    ChainOutcome,
    adaptive_statement,
    constrained,
    moves,
    prepare_chain,
    run_chain,
)
from dpmcmc.models import Model, RegressionModel, UnitModel
from dpmcmc.models.units import open_units, row_model
from dpmcmc.privacy import Budget
from dpmcmc.queries import Affine, AnyRelease, ClipCount, InvalidCount, LogRatio, Queries, Query
from dpmcmc.results import Posterior, Quality
from dpmcmc.results.diagnostics import RecordCheck
from dpmcmc.results.quality import entry_label, share_of_noise
from dpmcmc.samplers import DPLaplace, SurrogateHMC
from dpmcmc.surrogate import Surrogate
from dpmcmc.tuning import (
    CLIPPED_SHARE,
    LARGEST_SHARE,
    Asked,
    Found,
    Groups,
    Laplace,
    Prior,
    Questions,
    RatioBound,
    Style,
    Surveyor,
    Walk,
    can_survey,
    describe_prior,
    find_laplace,
    find_posterior,
    is_surveyed,
    largest_form,
    ratio_bound,
)

Array = NDArray[np.float64]

NUM_DRAWS = 1000
"""Draws of each chain, if nothing else is asked for."""
Method = Literal["DP-Laplace", "auto"]
# So many draws are compared to see what share of each sd is noise.
_COMPARED_DRAWS = 4000
# Of what is left for a chain, this goes to the search for the bound of its log-ratios; so many moves are looked at.
_BOUND_SHARE, _BOUND_MOVES = 0.03, 6
_CHAIN_WARMUP, _CHAIN_NOISE_SD, _FEWEST_STEPS, _MOST_STEPS = 0.25, 2.0, 100, 5000
# Long ones: what a move costs grows no more once it goes all around the narrow directions, its use in wide ones does.
_CHAIN_LEAPFROG = 32
_NO_CHAIN = (
    "There is no chain, though exact=True: what was left after the search does not pay for one step of it, so that the "
    "draws are the surrogate's. Use a larger ε, or other parameters; values that are very large may be why."
)
# Draws in which privacy noise is more than so many posterior sds say little.
_MOSTLY_NOISE = 1.0 - 1.0 / math.sqrt(5.0)
# Noise of so many posterior sds shows in the shape of the draws.
_NOISY = 0.3
# A column whose mean is so many of its sds from zero is called far from it.
_FAR_FROM_ZERO = 20.0


class _Run(NamedTuple):
    """A run that is ready: checked and compiled, and nothing spent yet."""

    curator: Curator
    budget: Budget
    record_check: InvalidCount | None
    prior: Prior
    start: Array
    asked: Asked
    keys: tuple[jax.Array, ...]
    method: Method
    exact: bool
    walk: Walk | None
    settings: Settings
    groups: Groups | None
    books: Books
    journal: Journal

    @property
    def num_chains(self) -> int:
        """Chains of the draws."""
        return self.settings.num_chains


class _Chain(NamedTuple):
    """A chain that "auto" has run, and the bound of its log-ratios."""

    outcome: ChainOutcome
    bound: RatioBound

    def kept(self, num_draws: int | None) -> tuple[Array, Array, int]:
        """Return positions and acceptance after the warm-up (draws × chains), and how many steps a draw stands for.

        All of them; or, if fewer are asked for, at most so many that are equally far apart.
        """
        rest = len(self.outcome.positions) - int(_CHAIN_WARMUP * len(self.outcome.positions))
        thin = 1 if num_draws is None else math.ceil(rest / num_draws)
        draws = rest // thin
        last = slice(len(self.outcome.positions) - draws * thin, len(self.outcome.positions))
        accepted = self.outcome.accepted[last].reshape(draws, thin, -1)
        return self.outcome.positions[last][thin - 1 :: thin], accepted.mean(axis=1), thin


def draw(
    model: Model, data: Any, method: Method, settings: Settings, books: Books, *, exact: bool
) -> tuple[Posterior, tuple[str, ...]]:
    """Draw from the noise-aware posterior; see :func:`dpmcmc.sample`. Return also what there is to say."""
    granted = settings.granted
    for name, value, is_set in (
        ("num_warmup", settings.num_warmup, settings.num_warmup not in (None, 0)),
        ("thin", settings.thin, settings.thin != 1),
    ):
        if is_set:
            raise QueryError(
                f"{name} = {value!r} means nothing to {_caller(method)}, which has no chain to be set; leave it out"
            )
    with exact_arithmetic():
        with before_anything_is_spent("question"):
            run = _prepare(model, data, method, settings, granted, books, exact)
        record_check, found, chain = _search(run)
        with undisturbed():
            posterior = _posterior(run, found, chain, record_check, granted)
            early = []
            if chain is not None and not chain.outcome.complete:
                early = [cut_short(posterior.num_draws, chain.outcome.ended)]
            return posterior, (*early, *posterior.warnings)


def _caller(method: Method) -> str:
    return "DPLaplace" if method == "DP-Laplace" else 'sampler="auto"'


def _prepare(
    model: Model,
    data: Any,
    method: Method,
    settings: Settings,
    granted: tuple[float, float],
    books: Books,
    exact: bool,
) -> _Run:
    """Do all that can be done, and refuse all that must be refused, before anything is spent."""
    (epsilon, delta), seed = granted, books.seed
    model, source = open_units(model, data)
    num_records = placement.total_rows(source.num_records)
    funds = make_funds(Queries(), num_records, epsilon, delta, settings.check_records)
    assert isinstance(funds.main, Budget)
    noise = ExactNoise() if seed is None else SeededNoiseNotPrivate(seed)
    curator = Curator(model, source, funds.main, noise=noise, devices=settings.devices, seed=seed)
    plan = plan_laplace(num_records=num_records, epsilon=epsilon, delta=delta, dimension=model.dimension)
    if not plan.feasible:
        raise BudgetExceededError("; ".join(plan.notes))
    for note in plan.notes:
        warnings.warn(note, DPMCMCWarning, stacklevel=4)
    prior = describe_prior(model, num_records, curator.passes.keep)
    groups = None if exact else Groups.of(row_model(model))
    if groups is not None:
        prior = groups.reference(prior)
    keys = tuple(jax.random.split(books.open(curator, source, funds), 3))
    start = _start(model, method, settings.init, num_records, keys[0], prior)
    coordinates = Affine(start, np.diag(prior.sd))
    questions = Questions(_nobody, Style.of(model), num_records, model.dimension)
    surveyed = can_survey(questions, funds.main.left)  # (as it was when the run was begun: nothing is counted yet)
    if exact and not surveyed:
        raise BudgetExceededError(
            f"exact = True takes a surrogate of the posterior first, for which {num_records} records, "
            f"{model.dimension} parameters and epsilon = {epsilon:g} do not suffice; use more records, fewer "
            "parameters (at most 12), a larger epsilon, or leave exact out"
        )
    # (Less will be left later: what is not surveyed now never will be.)
    surveyed = method == "auto" and surveyed and (exact or is_surveyed(questions.style, model.dimension))
    scouted = method == "auto" and not questions.style.linear_size
    for query in questions.programs(moments=surveyed or scouted):
        curator.prepare(query, start, coordinates=coordinates)
    walk = None
    if surveyed:
        form = largest_form(model.dimension)
        walk = curator.passes.keep(("walk", form), lambda: Walk(model, form))
    if scouted:
        curator.prepare(ClipCount(1.0, 1.0, of="log_ratio"), start, start)
        curator.prepare(LogRatio(1.0, 1.0), start, start)
    if funds.record_check is not None:
        curator.prepare(funds.record_check, start)
    run = _Run(
        curator,
        funds.main,
        funds.record_check,
        prior,
        start,
        Asked(),
        keys,
        method,
        exact,
        walk,
        settings,
        groups,
        books,
        Journal(curator),  # until all is compiled: nothing is asked before that
    )
    # What will be drawn in the end, from the prior: compiled, and seen to work, before anything is spent.
    nothing = np.zeros((model.dimension, model.dimension))
    for shape in ((settings.num_chains, settings.num_steps or NUM_DRAWS), (1, _COMPARED_DRAWS)):
        _constrained(curator, _gaussian(keys[0], start, nothing, shape))
    if walk is not None:
        _prepare_chain(run, walk)
    return run._replace(journal=books.journal(curator))


def _prepare_chain(run: _Run, walk: Walk) -> None:
    """Compile the chain that may have to be run, for any numbers, and go through all of it that is public."""
    curator, start, form = run.curator, run.start, walk.form
    weights = np.zeros((form.dimension, len(form.powers)))
    weights[:, 1 : form.dimension + 1] = np.eye(form.dimension)
    sampler = SurrogateHMC(Surrogate(form, start, np.diag(run.prior.sd), weights), 1.0, num_leapfrog=_CHAIN_LEAPFROG)
    prepare_chain(curator, sampler, run.num_chains)
    curator.prepare(ClipCount(1.0, 1.0, of="log_ratio"), start, start)
    _moves(run, sampler, lambda: np.tile(start, (run.num_chains, 1)))
    constrained(curator, np.tile(start, (1, run.num_chains, 1)))


def _nobody(query: Query, theta: Array, coordinates: Affine | None, proposal: Array | None = None) -> AnyRelease:
    raise AssertionError("nothing is asked yet")


def _start(model: Model, method: Method, init: Any, num_records: int, key: jax.Array, prior: Prior) -> Array:
    """Return where the search starts."""
    if init is None:
        if method == "DP-Laplace" or Style.of(model).linear_size:
            return prior.center
        # Where signs or labels may be switched, the centre is a place from which no slope leads anywhere.
        return np.asarray(
            prior.center + np.minimum(0.5 * prior.sd, 0.5) * np.asarray(jax.random.normal(key, prior.sd.shape))
        )
    if isinstance(init, dict):
        init = {name: np.asarray(value)[None] for name, value in init.items()}
    else:
        try:
            init = np.asarray(init, np.float64)
        except (TypeError, ValueError):
            raise QueryError("init is not numeric; give one unconstrained vector, or a dict of values") from None
        if init.shape != (model.dimension,):
            raise QueryError(
                f"init has shape {init.shape}; {_caller(method)} starts at one point: give ({model.dimension},) or a "
                "dict of constrained values"
            )
        init = init[None]
    return np.asarray(starting_points(model, init, 1, key, num_records)[0], np.float64)


def _search(run: _Run) -> tuple[RecordCheck | None, Found, _Chain | None]:
    """Spend the budget. There are no draws before the end (or a chain), so that whatever ends it early loses it."""
    curator, budget, model = run.curator, run.budget, run.curator.model

    def ask(query: Query, theta: Array, coordinates: Affine | None, proposal: Array | None = None) -> AnyRelease:
        query = run.journal.priced(query, theta, coordinates, proposal)
        run.asked.add(query)  # before it is: whatever happens next, nothing that was paid for is left out
        return run.journal.ask(query, theta, proposal, coordinates=coordinates)

    stopped = ""
    record_check: RecordCheck | None = None
    try:
        with progress_bar(run.settings.progress, run.method, 100) as report:
            if run.record_check is not None:
                run.asked.add(run.record_check)
                release = run.journal.ask(run.record_check, run.start)
                record_check = RecordCheck(
                    estimate=float(release.value), noise_sd=float(release.noise_sd), num_records=curator.num_records
                )
                refuse_useless(record_check)
            questions = Questions(ask, Style.of(model), curator.num_records, model.dimension)
            after_round = _percent(report, budget)
            common: dict[str, Any] = {
                "start": run.start,
                "norm_bound": _norm_bound(model),
                "report": after_round,
            }

            def left() -> float:
                return budget.left * (1.0 - 1e-6)

            if run.method == "DP-Laplace":
                return record_check, Found.gaussian(find_laplace(questions, run.prior, left, **common)), None
            seeds = np.asarray(jax.random.key_data(run.keys[0]))
            generator = run.journal.generator(seeds.astype(np.uint64).tolist())
            found = find_posterior(questions, run.prior, left, run.walk, generator, exact=run.exact, **common)
            if found.method != "chain":
                return record_check, found, None
            chain = _run_chain(run, found, after_round)
            if chain is None:
                assert found.surveyor is not None
                found.surveyor.refine()
                found = found.surveyor.judged(found.converged, "surrogate")
                if run.exact:
                    found = found.checked(False, _NO_CHAIN)
            return record_check, found, chain
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    except Exception as error:
        stopped = reason_of(error)
    # Raised outside the handlers: the text of a foreign error could quote a record.
    raise ended_without_draws("before there were any draws", stopped, run.books.what_is_spent(budget.spent > 0))


def _moves(run: _Run, sampler: SurrogateHMC, start: Callable[[], Array]) -> tuple[Array, Array, jax.Array]:
    """Return both ends of some moves as the chain will make them, and the chain's key. Free."""
    bound_key, run_key = jax.random.split(run.journal.fresh(run.keys[2]))
    pairs = [
        moves(run.curator, sampler, start(), key)
        for key in jax.random.split(bound_key, math.ceil(_BOUND_MOVES / run.num_chains))
    ]
    theta, proposals = (np.concatenate(parts)[:_BOUND_MOVES] for parts in zip(*pairs, strict=True))
    return theta, proposals, run_key


def _run_chain(run: _Run, found: Found, report: Callable[[], None]) -> _Chain | None:
    """Run a chain on the surrogate with what is left: first the bound of its log-ratios.

    None if the budget would buy too few steps to be worth anything; where somebody insists, if it buys none.
    """
    assert found.surveyor is not None
    curator, surveyor = run.curator, found.surveyor
    sampler = _chain_sampler(surveyor, 1.0)
    theta, proposals, run_key = _moves(run, sampler, lambda: surveyor.draw_theta(run.num_chains, certain=True))

    def ask_count(query: ClipCount, theta: Array, proposal: Array) -> AnyRelease:
        priced = run.journal.priced(query, theta, None, proposal)
        run.asked.add(priced)
        return run.journal.ask(priced, theta, proposal)

    bound = ratio_bound(
        ask_count, sampler.surrogate, theta, proposals, curator.num_records, _BOUND_SHARE * run.budget.left
    )
    fit, frame = surveyor.survey.fit, surveyor.survey.frame
    assert fit is not None
    apart = np.sum((fit.psi(frame.to_u(proposals)) - fit.psi(frame.to_u(theta))) ** 2, axis=1)
    price = 2.0 * bound.value**2 * float(np.mean(apart)) / curator.num_records / _CHAIN_NOISE_SD**2
    if not run.exact and not run.budget.left > _FEWEST_STEPS * run.num_chains * price:
        return None
    sampler = _chain_sampler(surveyor, bound.value)
    start = surveyor.draw_theta(run.num_chains, certain=True)
    outcome = run_chain(
        curator,
        sampler,
        start,
        key=run_key,
        max_steps=_MOST_STEPS,
        report=lambda *_: report(),
        journal=run.journal,
    )
    if len(outcome.positions) and (outcome.complete or not run.books.can_resume):
        return _Chain(outcome, bound)
    if outcome.ended == INTERRUPTED:
        raise KeyboardInterrupt
    if outcome.ended != BUDGET:
        raise RunError(outcome.ended)
    return None


def _chain_sampler(surveyor: Surveyor, bound: float) -> SurrogateHMC:
    """Settings of the chain: weights padded to the form that is compiled."""
    survey = surveyor.survey
    assert survey.fit is not None
    form, weights = surveyor.walk.form, survey.fit.weights()
    padded = np.zeros((form.dimension, len(form.powers)))
    padded[:, : weights.shape[1]] = weights
    surrogate = Surrogate(form, survey.frame.center, survey.frame.matrix, padded)
    return SurrogateHMC(
        surrogate, bound, noise_sd=_CHAIN_NOISE_SD, step_size=survey.step_size, num_leapfrog=_CHAIN_LEAPFROG
    )


def _percent(report: Callable[[int, Any, Any], None], budget: Budget) -> Callable[[], None]:
    """Report, after every round, how much of the budget is spent, in steps of 1 %."""
    shown = 0

    def after_round() -> None:
        nonlocal shown
        now = int(100.0 * budget.spent / budget.total)
        report(now - shown, None, budget)
        shown = now

    return after_round


def _norm_bound(model: Model) -> Callable[[Array], float | None]:
    """Return a public bound on the design rows' norms in coordinates, where the features have public bounds.

    Of units: on the sum of the norms of a unit's rows.
    """
    rows, largest = row_model(model), model.max_rows if isinstance(model, UnitModel) else 1
    if not isinstance(rows, RegressionModel) or rows.feature_bounds is None:
        return lambda matrix: None

    def bound(matrix: Array) -> float | None:
        of_row = type(rows).design_norm_bound(rows, matrix)
        return None if of_row is None else largest * of_row

    return bound


def _posterior(
    run: _Run, found: Found, chain: _Chain | None, record_check: RecordCheck | None, granted: tuple[float, float]
) -> Posterior:
    """Draw, and say what is known of the draws."""
    curator, model = run.curator, run.curator.model
    theta, stats, thin = _draws(run, found, chain)
    advice = () if found.laplace is None else _centring(model, found.laplace)
    with attached_to_errors(np.swapaxes(theta, 0, 1)):
        dims = {name: (dimension,) for name, (dimension, _) in model.labels.items()}
        coords = dict(model.labels.values())
        if chain is None:
            draws = _constrained(curator, theta)
            noise_share = _noise_share(run, found)
            said, notes = _said_of_draws(run, found, noise_share), list[str]()
        else:
            by_draw = constrained(curator, np.swapaxes(theta, 0, 1))
            draws = {name: np.swapaxes(value, 0, 1) for name, value in by_draw.items()}
            # The noise of an accept test makes a chain slower, not wider.
            noise_share = {name: np.zeros(value.shape[2:]) for name, value in draws.items()}
            said, notes = _said_of_chain(run, chain, thin)
        reasons = [*found.reasons, *said]
        return Posterior(
            draws=draws,
            sample_stats=stats,
            privacy=adaptive_statement(
                curator,
                run.budget,
                granted,
                run.asked.labelled() | run.journal.lost_answers(),
                None if chain is None else chain.outcome,
            ),
            sampler=repr(DPLaplace()) if run.method == "DP-Laplace" else "auto",
            model=model.name,
            dims=dims,
            coords=coords,
            record_check=record_check,
            quality=Quality(
                method=_method_in_words(run, found),
                converged=found.converged,
                rounds=found.rounds,
                # By itself the advice speaks against nothing; where something else does, it may be why.
                reasons=(*reasons, *(advice if reasons else ())),
                notes=(*found.notes, *notes, *(() if reasons else advice)),
                noise_share=noise_share,
                prior_only=_prior_only(run, found, dims, coords),
                clipped_share=found.clipped_share,
                clipped_share_sd=found.clipped_share_sd,
                independent_draws=chain is None,
            ),
        )


def _draws(run: _Run, found: Found, chain: _Chain | None) -> tuple[Array, dict[str, Array], int]:
    """Return unconstrained draws (chains × draws × parameters), what is known of each, and how many steps each took."""
    if chain is not None:
        theta, accepted, thin = chain.kept(run.settings.num_steps)
        return np.swapaxes(theta, 0, 1), {"acceptance_rate": accepted.T}, thin
    shape = run.num_chains, run.settings.num_steps or NUM_DRAWS
    if found.laplace is not None:
        return (
            _of_laplace(run, run.journal.fresh(run.keys[0]), found.laplace.mean, found.laplace.covariance, shape),
            {},
            1,
        )
    assert found.surveyor is not None
    return found.surveyor.draw_theta(shape[0] * shape[1]).reshape(*shape, -1), {}, 1


def _method_in_words(run: _Run, found: Found) -> str:
    if run.method == "DP-Laplace":
        return DPLaplace.name
    return {
        "gaussian": "auto: a Gaussian (DP-Laplace)",
        "surrogate": "auto: a curved surrogate",
        "chain": "auto: a chain with exact accept tests on a surrogate",
    }[found.method]


def _said_of_chain(run: _Run, chain: _Chain, thin: int) -> tuple[list[str], list[str]]:
    """Return what speaks against a chain, and what is worth knowing of it."""
    outcome, clipped = chain.outcome, chain.bound.clipped_share
    reasons = outcome.misfit("Use a larger ε.")
    notes = [
        f"{outcome.num_steps} steps of {run.num_chains} chains; {100.0 * outcome.acceptance:.0f} % of the moves were "
        f"accepted, where noise alone leaves {100.0 * outcome.ceiling:.0f} % to a surrogate that fits. The first "
        "quarter was left out." + (f" Of the rest, every draw stands for {thin} steps." if thin > 1 else "")
    ]
    if not outcome.complete:
        notes.append(f"The chain ended early, because {outcome.ended}.")
    records = f"{1e4 * clipped:.2g} records in 10,000"
    if math.isinf(clipped):
        reasons.append(
            "Many records' log-ratios were clipped, whatever their bound: the surrogate is nothing like the likelihood "
            "there, and the draws may be far off. Use a larger ε, or other parameters."
        )
    elif clipped > LARGEST_SHARE:
        reasons.append(
            f"As many as {records} may have had their log-ratio clipped, as far as noised counts show: if the data are "
            "skewed, that shifts the posterior. Use a larger ε or more records."
        )
    else:
        harmless = "" if clipped <= CLIPPED_SHARE else f" ({1e4 * CLIPPED_SHARE:g} have done no harm to skewed data)"
        notes.append(f"At most about {records} had their log-ratio clipped, by noised counts{harmless}.")
    return reasons, notes


def _said_of_draws(run: _Run, found: Found, noise_share: dict[str, NDArray[Any]]) -> list[str]:
    """Return what speaks against draws of a Gaussian or a surrogate, and only they show."""
    shares = np.concatenate([share.reshape(-1) for share in noise_share.values()])
    drowned = int(np.sum(shares > _MOSTLY_NOISE))
    if found.laplace is None and drowned:
        return [
            f"{drowned} parameters are mostly privacy noise, of more than 2 posterior sds (see noise_share): their "
            "intervals say little. Use a larger ε or more records."
        ]
    # Of regressions this is no surprise, and intervals are what matters; elsewhere it is the shape.
    if found.laplace is not None:
        unknown = np.diag(found.laplace.noise + found.laplace.clipping) / np.diag(found.laplace.posterior)
        noise = math.sqrt(float(np.mean(unknown)))
    else:
        assert found.surveyor is not None
        noise = found.surveyor.noise()
    if run.method == "auto" and not isinstance(row_model(run.curator.model), RegressionModel) and noise > _NOISY:
        return [
            f"Privacy noise moves the draws by about {noise:.1f} posterior sds. Their intervals allow for that, but "
            "their shape is not the posterior's own. Use a larger ε or more records."
        ]
    return []


def _gaussian(key: jax.Array, mean: Array, covariance: Array, shape: tuple[int, int]) -> Array:
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    standard = np.asarray(jax.random.normal(key, (*shape, len(mean)), jnp.float64))
    return np.asarray(mean + standard @ factor.T)


def _constrained(curator: Curator, theta: Array) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(value) for name, value in curator.passes.constrain(jnp.asarray(theta)).items()}


def _of_laplace(run: _Run, key: jax.Array, mean: Array, covariance: Array, shape: tuple[int, int]) -> Array:
    """Draw from a Gaussian that was found; brought under the model's own prior, where groups took another."""
    if run.groups is None:
        return _gaussian(key, mean, covariance, shape)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)).astype(np.uint64).tolist())
    return run.groups.draw(generator, mean, covariance, shape[0] * shape[1]).reshape(*shape, -1)


def _noise_share(run: _Run, found: Found) -> dict[str, NDArray[Any]]:
    """Return the share of each sd that is noise, in constrained space: draws with and without it."""
    curator = run.curator
    if found.laplace is not None:
        pair = [
            _of_laplace(run, run.keys[1], found.laplace.mean, covariance, (1, _COMPARED_DRAWS))
            for covariance in (found.laplace.posterior, found.laplace.covariance)
        ]
    else:
        assert found.surveyor is not None
        pair = [found.surveyor.draw_theta(_COMPARED_DRAWS, certain=certain)[None] for certain in (True, False)]
    without, reported = (
        # (What is next to nothing known may overflow, and has no sd then.)
        {name: np.clip(value, -1e150, 1e150).std(axis=(0, 1)) for name, value in _constrained(curator, theta).items()}
        for theta in pair
    )
    return {name: share_of_noise(without[name], reported[name]) for name in reported}


def _prior_only(run: _Run, found: Found, dims: Any, coords: Any) -> tuple[str, ...]:
    """Name the directions that only the prior holds, by their largest parts."""
    model, directions = run.curator.model, found.prior_directions
    if run.groups is not None:  # of the scale of groups, the effects tell
        directions = directions[:, np.abs(directions[run.groups.scale]) < 0.9]
    names = [
        name if place.stop - place.start == 1 else f"{name}[{index}]"
        for name, place in model.parameter_slices.items()
        for index in range(place.stop - place.start)
    ]
    for name, place in model.parameter_slices.items():
        if name in dims and place.stop - place.start == len(coords[dims[name][0]]):
            for index in range(place.stop - place.start):
                names[place.start + index] = entry_label(name, (index,), dims, coords)
    labels = []
    for direction in directions.T:
        first, *others = np.argsort(-np.abs(direction))[:3]
        largest = [first, *(place for place in others if abs(direction[place]) > 0.3)]
        parts = [f"{abs(direction[place]):.1f}·{names[place]}" for place in largest]
        signs = ["−" if direction[place] * direction[largest[0]] < 0.0 else "+" for place in largest]
        rest = "".join(f" {sign} {part}" for sign, part in zip(signs[1:], parts[1:], strict=True))
        labels.append(names[largest[0]] if len(largest) == 1 else parts[0] + rest)
    return tuple(labels)


def _centring(model: Model, found: Laplace) -> tuple[str, ...]:
    """Say which columns should be centred: those that vary little compared with how far they are from zero.

    With mean m and sd s of a column, its coefficient and the intercept have the correlation −m/√(m² + s²) under the
    posterior, as far as the other columns do not matter. That is released; bounds of features are public.
    """
    model = row_model(model)
    if not isinstance(model, RegressionModel) or not model.intercept or not model.num_features:
        return ()
    place = slice(1, 1 + model.num_features)
    sd = np.sqrt(np.diag(found.posterior))
    correlation = found.posterior[0, place] / np.maximum(sd[0] * sd[place], 1e-300)
    far = np.abs(correlation) > _FAR_FROM_ZERO / np.hypot(1.0, _FAR_FROM_ZERO)
    if model.feature_bounds is not None:
        low, high = np.asarray(model.feature_bounds).T
        far |= np.abs(low + high) > _FAR_FROM_ZERO * (high - low)
    names = [name for name, is_far in zip(model.feature_names, far, strict=True) if is_far]
    if not names:
        return ()
    return (
        f"Centre {', '.join(names)} (subtract a public constant): where values vary little compared with how far they "
        "are from zero, a coefficient and the intercept can hardly be told apart, and the intercept's prior is about "
        "records that there are none of. Leave out a column that is the same for all.",
    )
