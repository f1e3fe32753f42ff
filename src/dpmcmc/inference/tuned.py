"""``sample`` without settings: ask, in rounds that follow what was released, then draw.

For DP-Laplace and "auto". Draws of a Gaussian or a surrogate are free; where "auto" finds that no surrogate fits, or
is asked for exact draws, what is left of the budget goes to a chain.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc import checks
from dpmcmc.curator import Curator, ExactNoise, SeededNoiseNotPrivate, placement
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.errors import BudgetExceededError, DPMCMCWarning, QueryError, RunError
from dpmcmc.inference.blocks import starting_points
from dpmcmc.inference.endings import reason_of, undisturbed
from dpmcmc.inference.laplace_plan import plan_laplace
from dpmcmc.inference.planning import make_funds, refuse_useless
from dpmcmc.inference.progress import progress_bar
from dpmcmc.inference.stepwise import ChainOutcome, charged_by_bound, moves, prepare_chain, run_chain
from dpmcmc.models import Model, RegressionModel, UnitModel
from dpmcmc.models.units import open_units, row_model, unit_of_privacy
from dpmcmc.privacy import Budget, PrivacyStatement
from dpmcmc.privacy.exact import rounded_up
from dpmcmc.queries import Affine, AnyRelease, ClipCount, InvalidCount, Queries, Query
from dpmcmc.results import Posterior, Quality
from dpmcmc.results.diagnostics import RecordCheck
from dpmcmc.results.quality import entry_label, share_of_noise
from dpmcmc.samplers import DPLaplace, SurrogateHMC
from dpmcmc.surrogate import Surrogate
from dpmcmc.tuning import (
    Asked,
    Found,
    Laplace,
    Prior,
    Questions,
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
    keys: tuple[jax.Array, jax.Array, jax.Array]
    method: Method
    exact: bool
    walk: Walk | None
    num_chains: int


def draw(
    model: Model,
    data: Any,
    method: Method,
    *,
    exact: bool,
    epsilon: float | None,
    delta: float | None,
    num_chains: int,
    num_draws: int | None,
    num_warmup: int | None,
    thin: int,
    init: Any,
    progress: bool,
    seed: int | None,
    devices: int | Sequence[jax.Device] | None,
    check_records: bool,
) -> tuple[Posterior, tuple[str, ...]]:
    """Draw from the noise-aware posterior; see :func:`dpmcmc.sample`. Return also what there is to say."""
    if epsilon is None or delta is None:
        raise QueryError("epsilon and delta are required: they are the privacy budget, for example 1.0 and 1e-6")
    for name, value, is_set in (("num_warmup", num_warmup, num_warmup not in (None, 0)), ("thin", thin, thin != 1)):
        if is_set:
            raise QueryError(
                f"{name} = {value!r} means nothing to {_caller(method)}, whose draws are independent; leave it out"
            )
    num_draws = NUM_DRAWS if num_draws is None else checks.count("num_steps", num_draws)
    with exact_arithmetic():
        try:
            run = _prepare(model, data, method, exact, epsilon, delta, init, seed, devices, check_records, num_chains)
            # What will be drawn in the end, from the prior: compiled, and seen to work, before anything is spent.
            nothing = np.zeros((model.dimension, model.dimension))
            for shape in ((num_chains, num_draws), (1, _COMPARED_DRAWS)):
                _constrained(run.curator, _gaussian(run.keys[0], run.start, nothing, shape))
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted before the first question; nothing was spent") from None
        record_check, found, chain = _search(run, progress)
        with undisturbed():
            posterior = _posterior(run, found, chain, record_check, epsilon, delta, num_draws)
            return posterior, posterior.warnings


def _caller(method: Method) -> str:
    return "DPLaplace" if method == "DP-Laplace" else 'sampler="auto"'


def _prepare(
    model: Model,
    data: Any,
    method: Method,
    exact: bool,
    epsilon: float,
    delta: float,
    init: Any,
    seed: int | None,
    devices: Any,
    check: bool,
    num_chains: int,
) -> _Run:
    """Do all that can be done, and refuse all that must be refused, before anything is spent."""
    model, source = open_units(model, data)
    num_records = placement.total_rows(source.num_records)
    funds = make_funds(Queries(), num_records, epsilon, delta, check)
    assert isinstance(funds.main, Budget)
    noise = ExactNoise() if seed is None else SeededNoiseNotPrivate(seed)
    curator = Curator(model, source, funds.main, noise=noise, devices=devices, seed=seed)
    plan = plan_laplace(num_records=num_records, epsilon=epsilon, delta=delta, dimension=model.dimension)
    if not plan.feasible:
        raise BudgetExceededError("; ".join(plan.notes))
    for note in plan.notes:
        warnings.warn(note, DPMCMCWarning, stacklevel=4)
    prior = describe_prior(model, num_records, curator.passes.keep)
    keys = tuple(jax.random.split(curator.public_key, 3))
    start = _start(model, method, init, num_records, keys[0], prior)
    coordinates = Affine(start, np.diag(prior.sd))
    questions = Questions(_nobody, Style.of(model), num_records, model.dimension)
    for query in questions.programs(moments=method == "auto"):
        curator.prepare(query, start, coordinates=coordinates)
    if exact and not can_survey(questions, funds.main.left):
        raise BudgetExceededError(
            f"exact = True takes a surrogate of the posterior first, for which {num_records} records, "
            f"{model.dimension} parameters and epsilon = {epsilon:g} do not suffice; use more records, fewer "
            "parameters (at most 12), a larger epsilon, or leave exact out"
        )
    walk = None
    if method == "auto" and (exact or is_surveyed(questions.style, model.dimension)):
        form = largest_form(model.dimension)
        walk = curator.passes.keep(("walk", form), lambda: Walk(model, form))
        # The chain that may have to be run, for any numbers.
        weights = np.zeros((model.dimension, len(form.powers)))
        chain = SurrogateHMC(Surrogate(form, start, np.diag(prior.sd), weights), 1.0, num_leapfrog=_CHAIN_LEAPFROG)
        prepare_chain(curator, chain, num_chains)
        curator.prepare(ClipCount(1.0, 1.0, of="log_ratio"), start, start)
    if funds.record_check is not None:
        curator.prepare(funds.record_check, start)
    return _Run(curator, funds.main, funds.record_check, prior, start, Asked(), keys, method, exact, walk, num_chains)


def _nobody(query: Query, theta: Array, coordinates: Affine) -> AnyRelease:
    raise AssertionError("nothing is asked yet")


def _start(model: Model, method: Method, init: Any, num_records: int, key: jax.Array, prior: Prior) -> Array:
    """Return where the search starts."""
    if init is None:
        return prior.center
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


def _search(run: _Run, progress: bool) -> tuple[RecordCheck | None, Found, ChainOutcome | None]:
    """Spend the budget. There are no draws before the end (or a chain), so that whatever ends it early loses it."""
    curator, budget, model = run.curator, run.budget, run.curator.model

    def ask(query: Query, theta: Array, coordinates: Affine) -> AnyRelease:
        run.asked.add(query)  # before it is: whatever happens next, nothing that was paid for is left out
        return curator.ask(query, theta, coordinates=coordinates)

    stopped = ""
    record_check: RecordCheck | None = None
    try:
        with progress_bar(progress, run.method, 100) as report:
            if run.record_check is not None:
                run.asked.add(run.record_check)
                release = curator.ask(run.record_check, run.start)
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
            generator = np.random.default_rng(seeds.astype(np.uint64).tolist())
            found = find_posterior(questions, run.prior, left, run.walk, generator, exact=run.exact, **common)
            if found.method != "chain":
                return record_check, found, None
            chain = _run_chain(run, found, after_round)
            if chain is None:
                assert found.surveyor is not None
                found.surveyor.refine()
                found = found.surveyor.judged(found.converged, "surrogate")
            return record_check, found, chain
    except KeyboardInterrupt:
        stopped = "it was interrupted"
    except Exception as error:
        stopped = reason_of(error)
    spent = "nothing was spent" if budget.spent == 0 else "the whole budget counts as spent"
    # Raised outside the handlers: the text of a foreign error could quote a record.
    if stopped == "it was interrupted":
        raise KeyboardInterrupt(f"interrupted before there were any draws; {spent}")
    raise RunError(f"the run ended before there were any draws, because {stopped}; {spent}")


def _run_chain(run: _Run, found: Found, report: Callable[[], None]) -> ChainOutcome | None:
    """Run a chain on the surrogate with what is left: first the bound of its log-ratios.

    None if the budget would buy too few steps to be worth anything (and nobody insists).
    """
    assert found.surveyor is not None
    curator, surveyor = run.curator, found.surveyor
    sampler = _chain_sampler(surveyor, 1.0)
    bound_key, run_key = jax.random.split(run.keys[2])
    pairs = [
        moves(curator, sampler, surveyor.draw_theta(run.num_chains, certain=True), key)
        for key in jax.random.split(bound_key, math.ceil(_BOUND_MOVES / run.num_chains))
    ]
    theta, proposals = (np.concatenate(parts)[:_BOUND_MOVES] for parts in zip(*pairs, strict=True))

    def ask_count(query: ClipCount, theta: Array, proposal: Array) -> AnyRelease:
        run.asked.add(query)
        return curator.ask(query, theta, proposal)

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
    outcome = run_chain(curator, sampler, start, key=run_key, max_steps=_MOST_STEPS, report=lambda *_: report())
    if not len(outcome.positions):
        raise RunError(
            "the budget does not pay for one step of a chain after the search; use a larger ε, or leave out exact=True"
        )
    return outcome


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
    run: _Run,
    found: Found,
    chain: ChainOutcome | None,
    record_check: RecordCheck | None,
    epsilon: float,
    delta: float,
    num_draws: int,
) -> Posterior:
    """Draw, and say what is known of the draws."""
    curator, model = run.curator, run.curator.model
    theta = _draws(run, found, chain, num_draws)
    advice = () if found.laplace is None else _centring(model, found.laplace)
    try:
        dims = {name: (dimension,) for name, (dimension, _) in model.labels.items()}
        coords = dict(model.labels.values())
        draws = _constrained(curator, theta)
        if chain is None:
            noise_share = _noise_share(curator, run.keys[1], found)
        else:  # the noise of an accept test makes a chain slower, not wider
            noise_share = {name: np.zeros(value.shape[2:]) for name, value in draws.items()}
        reasons = (*found.reasons, *_more_reasons(run, found, chain, noise_share))
        stats = {} if chain is None else {"acceptance_rate": chain.accepted[-theta.shape[1] :].T.astype(np.float64)}
        return Posterior(
            draws=draws,
            sample_stats=stats,
            privacy=_statement(run, chain, epsilon, delta),
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
                notes=(*found.notes, *_more_notes(run, chain), *(() if reasons else advice)),
                noise_share=noise_share,
                prior_only=_prior_only(model, found, dims, coords),
                clipped_share=found.clipped_share,
                clipped_share_sd=found.clipped_share_sd,
                independent_draws=chain is None,
            ),
        )
    except Exception as error:
        raise RunError(
            f"the run is done, but its draws could not be put together ({type(error).__name__}: {error}); they are "
            "paid for, and attached to this error as `unconstrained_draws` (draws × chains × parameters)",
            unconstrained_draws=np.swapaxes(theta, 0, 1),
        ) from error


def _draws(run: _Run, found: Found, chain: ChainOutcome | None, num_draws: int) -> Array:
    """Return unconstrained draws: chains × draws × parameters."""
    if chain is not None:
        kept = chain.positions[int(_CHAIN_WARMUP * len(chain.positions)) :]
        return np.swapaxes(kept, 0, 1)
    shape = run.num_chains, num_draws
    if found.laplace is not None:
        return _gaussian(run.keys[0], found.laplace.mean, found.laplace.covariance, shape)
    assert found.surveyor is not None
    return found.surveyor.draw_theta(shape[0] * shape[1]).reshape(*shape, -1)


def _method_in_words(run: _Run, found: Found) -> str:
    if run.method == "DP-Laplace":
        return DPLaplace.name
    return {
        "gaussian": "auto: a Gaussian (DP-Laplace)",
        "surrogate": "auto: a curved surrogate",
        "chain": "auto: a chain with exact accept tests on a surrogate",
    }[found.method]


def _more_reasons(
    run: _Run, found: Found, chain: ChainOutcome | None, noise_share: dict[str, NDArray[Any]]
) -> list[str]:
    """Return what only the draws show."""
    if chain is not None:
        ceiling = SurrogateHMC.ceiling_at(_CHAIN_NOISE_SD)
        if chain.sds_below(ceiling) > 3.0:
            return [
                f"The chain accepted {100.0 * chain.acceptance:.0f} % of its moves, well below the "
                f"{100.0 * ceiling:.0f} % of a surrogate that fits: it has hardly gone round. Use a larger ε."
            ]
        return []
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


def _more_notes(run: _Run, chain: ChainOutcome | None) -> list[str]:
    if chain is None:
        return []
    return [
        f"{chain.num_steps} steps of {run.num_chains} chains; {100.0 * chain.acceptance:.0f} % of the moves were "
        "accepted, where noise alone leaves 32 % to a surrogate that fits. The first quarter was left out."
    ]


def _gaussian(key: jax.Array, mean: Array, covariance: Array, shape: tuple[int, int]) -> Array:
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    standard = np.asarray(jax.random.normal(key, (*shape, len(mean)), jnp.float64))
    return np.asarray(mean + standard @ factor.T)


def _constrained(curator: Curator, theta: Array) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(value) for name, value in curator.passes.constrain(jnp.asarray(theta)).items()}


def _noise_share(curator: Curator, key: jax.Array, found: Found) -> dict[str, NDArray[Any]]:
    """Return the share of each sd that is noise, in constrained space: draws with and without it."""
    if found.laplace is not None:
        pair = [
            _gaussian(key, found.laplace.mean, covariance, (1, _COMPARED_DRAWS))
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


def _prior_only(model: Model, found: Found, dims: Any, coords: Any) -> tuple[str, ...]:
    """Name the directions that only the prior holds, by their largest parts."""
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
    for direction in found.prior_directions.T:
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


def _statement(run: _Run, chain: ChainOutcome | None, epsilon: float, delta: float) -> PrivacyStatement:
    """State what the run guarantees: always the whole budget, since what was asked followed what was released."""
    answers = run.asked.labelled()
    if chain is not None and chain.spent > 0:
        answers["log_ratio"] = chain.num_answers, chain.mean_multiplier
    return PrivacyStatement(
        private=run.curator.private,
        mode=run.curator.noise.description,
        epsilon=epsilon,
        budget_epsilon=epsilon,
        delta=delta,
        mu=rounded_up(run.budget.spent_exactly),
        interrupted=chain is not None and not chain.complete,
        lattice_epsilon=run.budget.lattice_epsilon_spent,
        lattice_delta=run.budget.lattice_delta_spent,
        unit_of_privacy=unit_of_privacy(run.curator.model),
        num_records=run.curator.num_records,
        queries={label: number for label, (number, _) in answers.items()},
        noise_multipliers={label: multiplier for label, (_, multiplier) in answers.items()},
        accountant="Gaussian composition (closed form, fully adaptive filter)"
        + ("" if chain is None else charged_by_bound(_CHAIN_NOISE_SD)),
    )
