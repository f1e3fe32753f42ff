"""``sample`` by DP-Laplace: ask, in rounds that follow what was released, then draw for free."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc import checks
from dpmcmc.curator import Curator, ExactNoise, SeededNoiseNotPrivate, placement
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.data import open_source
from dpmcmc.errors import BudgetExceededError, DPMCMCWarning, QueryError, RunError
from dpmcmc.inference.blocks import starting_points
from dpmcmc.inference.endings import reason_of, undisturbed
from dpmcmc.inference.laplace_plan import plan_laplace
from dpmcmc.inference.planning import make_funds, refuse_useless
from dpmcmc.inference.progress import progress_bar
from dpmcmc.models import Model, RegressionModel
from dpmcmc.privacy import Budget, PrivacyStatement
from dpmcmc.privacy.exact import rounded_up
from dpmcmc.queries import Affine, AnyRelease, InvalidCount, Queries, Query
from dpmcmc.results import Posterior, Quality
from dpmcmc.results.diagnostics import RecordCheck
from dpmcmc.results.quality import entry_label, share_of_noise
from dpmcmc.samplers import DPLaplace
from dpmcmc.tuning import Asked, Laplace, Prior, Questions, Style, describe_prior, find_laplace

Array = NDArray[np.float64]

NUM_DRAWS = 1000
"""Draws of each chain, if nothing else is asked for."""
# So many draws are compared to see what share of each sd is noise.
_COMPARED_DRAWS = 4000
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
    keys: tuple[jax.Array, jax.Array]


def draw(
    model: Model,
    data: Any,
    *,
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
    """Draw from the noise-aware Gaussian posterior; see :func:`dpmcmc.sample`. Return also what there is to say."""
    if epsilon is None or delta is None:
        raise QueryError("epsilon and delta are required: they are the privacy budget, for example 1.0 and 1e-6")
    for name, value, is_set in (("num_warmup", num_warmup, num_warmup not in (None, 0)), ("thin", thin, thin != 1)):
        if is_set:
            raise QueryError(
                f"{name} = {value!r} means nothing to DPLaplace, whose draws are independent; leave it out"
            )
    num_draws = NUM_DRAWS if num_draws is None else checks.count("num_steps", num_draws)
    with exact_arithmetic():
        try:
            run = _prepare(model, data, epsilon, delta, init, seed, devices, check_records)
            # What will be drawn in the end, from the prior: compiled, and seen to work, before anything is spent.
            nothing = np.zeros((model.dimension, model.dimension))
            for shape in ((num_chains, num_draws), (1, _COMPARED_DRAWS)):
                _constrained(run.curator, _gaussian(run.keys[0], run.start, nothing, shape))
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted before the first question; nothing was spent") from None
        record_check, found = _search(run, progress)
        with undisturbed():
            posterior = _posterior(run, found, record_check, epsilon, delta, num_chains, num_draws)
            return posterior, posterior.warnings


def _prepare(
    model: Model, data: Any, epsilon: float, delta: float, init: Any, seed: int | None, devices: Any, check: bool
) -> _Run:
    """Do all that can be done, and refuse all that must be refused, before anything is spent."""
    source = open_source(data)
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
    draw_key, compare_key = jax.random.split(curator.public_key)
    start = _start(model, init, num_records, draw_key, prior)
    asked = Asked()
    coordinates = Affine(start, np.diag(prior.sd))
    for query in Questions(_nobody, Style.of(model), num_records, model.dimension).programs():
        curator.prepare(query, start, coordinates=coordinates)
    if funds.record_check is not None:
        curator.prepare(funds.record_check, start)
    return _Run(curator, funds.main, funds.record_check, prior, start, asked, (draw_key, compare_key))


def _nobody(query: Query, theta: Array, coordinates: Affine) -> AnyRelease:
    raise AssertionError("nothing is asked yet")


def _start(model: Model, init: Any, num_records: int, key: jax.Array, prior: Prior) -> Array:
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
                f"init has shape {init.shape}; DPLaplace starts at one point: give ({model.dimension},) or a dict of "
                "constrained values"
            )
        init = init[None]
    return np.asarray(starting_points(model, init, 1, key, num_records)[0], np.float64)


def _search(run: _Run, progress: bool) -> tuple[RecordCheck | None, Laplace]:
    """Spend the budget. There are no draws before the end, so that whatever ends the search early loses it."""
    curator, budget, model = run.curator, run.budget, run.curator.model

    def ask(query: Query, theta: Array, coordinates: Affine) -> AnyRelease:
        run.asked.add(query)  # before it is: whatever happens next, nothing that was paid for is left out
        return curator.ask(query, theta, coordinates=coordinates)

    stopped = ""
    record_check: RecordCheck | None = None
    try:
        with progress_bar(progress, DPLaplace.name, 100) as report:
            if run.record_check is not None:
                run.asked.add(run.record_check)
                release = curator.ask(run.record_check, run.start)
                record_check = RecordCheck(
                    estimate=float(release.value), noise_sd=float(release.noise_sd), num_records=curator.num_records
                )
                refuse_useless(record_check)
            questions = Questions(ask, Style.of(model), curator.num_records, model.dimension)
            found = find_laplace(
                questions,
                run.prior,
                lambda: budget.left * (1.0 - 1e-6),
                start=run.start,
                norm_bound=_norm_bound(model),
                report=_percent(report, budget),
            )
            return record_check, found
    except KeyboardInterrupt:
        stopped = "it was interrupted"
    except Exception as error:
        stopped = reason_of(error)
    spent = "nothing was spent" if budget.spent == 0 else "the whole budget counts as spent"
    # Raised outside the handlers: the text of a foreign error could quote a record.
    if stopped == "it was interrupted":
        raise KeyboardInterrupt(f"interrupted before there were any draws; {spent}")
    raise RunError(f"the run ended before there were any draws, because {stopped}; {spent}")


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
    """Return a public bound on the design rows' norms in coordinates, where the features have public bounds."""
    if not isinstance(model, RegressionModel) or model.feature_bounds is None:
        return lambda matrix: None
    return lambda matrix: type(model).design_norm_bound(model, matrix)


def _posterior(
    run: _Run,
    found: Laplace,
    record_check: RecordCheck | None,
    epsilon: float,
    delta: float,
    num_chains: int,
    num_draws: int,
) -> Posterior:
    """Draw, and say what is known of the draws."""
    curator, model = run.curator, run.curator.model
    theta = _gaussian(run.keys[0], found.mean, found.covariance, (num_chains, num_draws))
    advice = _centring(model, found)
    try:
        dims = {name: (dimension,) for name, (dimension, _) in model.labels.items()}
        coords = dict(model.labels.values())
        return Posterior(
            draws=_constrained(curator, theta),
            privacy=_statement(run, epsilon, delta),
            sampler=repr(DPLaplace()),
            model=model.name,
            dims=dims,
            coords=coords,
            record_check=record_check,
            quality=Quality(
                method=DPLaplace.name,
                converged=found.converged,
                rounds=found.rounds,
                # By itself it speaks against nothing; where something else does, it may be why.
                reasons=found.reasons + (advice if found.reasons else ()),
                notes=found.notes + (() if found.reasons else advice),
                noise_share=_noise_share(curator, run.keys[1], found),
                prior_only=_prior_only(model, found, dims, coords),
                clipped_share=found.clipped_share,
                clipped_share_sd=found.clipped_share_sd,
                independent_draws=True,
            ),
        )
    except Exception as error:
        raise RunError(
            f"the run is done, but its draws could not be put together ({type(error).__name__}: {error}); they are "
            "paid for, and attached to this error as `unconstrained_draws` (draws × chains × parameters)",
            unconstrained_draws=np.swapaxes(theta, 0, 1),
        ) from error


def _gaussian(key: jax.Array, mean: Array, covariance: Array, shape: tuple[int, int]) -> Array:
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    standard = np.asarray(jax.random.normal(key, (*shape, len(mean)), jnp.float64))
    return np.asarray(mean + standard @ factor.T)


def _constrained(curator: Curator, theta: Array) -> dict[str, NDArray[Any]]:
    return {name: np.asarray(value) for name, value in curator.passes.constrain(jnp.asarray(theta)).items()}


def _noise_share(curator: Curator, key: jax.Array, found: Laplace) -> dict[str, NDArray[Any]]:
    """Return the share of each sd that is noise, in constrained space: the same draws, with and without it."""
    without, reported = (
        # (What is next to nothing known may overflow, and has no sd then.)
        {name: np.clip(value, -1e150, 1e150).std(axis=(0, 1)) for name, value in draws.items()}
        for draws in (
            _constrained(curator, _gaussian(key, found.mean, covariance, (1, _COMPARED_DRAWS)))
            for covariance in (found.posterior, found.covariance)
        )
    )
    return {name: share_of_noise(without[name], reported[name]) for name in reported}


def _prior_only(model: Model, found: Laplace, dims: Any, coords: Any) -> tuple[str, ...]:
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


def _statement(run: _Run, epsilon: float, delta: float) -> PrivacyStatement:
    """State what the run guarantees: always the whole budget, since what was asked followed what was released."""
    answers = run.asked.labelled()
    return PrivacyStatement(
        private=run.curator.private,
        mode=run.curator.noise.description,
        epsilon=epsilon,
        budget_epsilon=epsilon,
        delta=delta,
        mu=rounded_up(run.budget.spent_exactly),
        lattice_epsilon=run.budget.lattice_epsilon_spent,
        lattice_delta=run.budget.lattice_delta_spent,
        num_records=run.curator.num_records,
        queries={label: number for label, (number, _) in answers.items()},
        noise_multipliers={label: multiplier for label, (_, multiplier) in answers.items()},
        accountant="Gaussian composition (closed form, fully adaptive filter)",
    )
