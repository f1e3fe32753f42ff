r"""Find a posterior of any shape that a polynomial surrogate holds, and say when none does.

With B the whole budget, after the scales and location rounds of :mod:`dpmcmc.tuning.laplace`:

1. *Survey*: batches of points, the first around the centre, the others drawn from the surrogate fitted so far (a little
   warmer), so that it is asked where the posterior is; each point in local coordinates. Cheap while the surrogate still
   moves, dearer when it has settled.
2. *Decision*: is a Gaussian enough? Then the final rounds of DP-Laplace follow, from what is known by now. Is it
   curved? Then further batches, of all that is left. Does no surrogate fit? Then its chain is for the caller to run.
3. Every batch is compared with what the surrogate predicted before it joins the fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmcmc.queries import Affine
from dpmcmc.surrogate import Form
from dpmcmc.tuning.fit import Fit, Frame, Observation, fit_map
from dpmcmc.tuning.laplace import TAIL_FACTOR, Belief, Laplace, _Search, _State
from dpmcmc.tuning.prior import Prior
from dpmcmc.tuning.questions import Questions
from dpmcmc.tuning.walk import NUM_CHAINS, Region, Walk, frame_of

Array = NDArray[np.float64]

SURVEY_LIMITS = (0.04, 0.15)
SURVEY_PARTS = (0.10, 0.75, 0.15)
"""Parts of a batch of the survey: clip searches, scores, second moments."""
BATCH, LATE_BATCH = 12, 24
"""Points of a batch of the survey, and of a later one."""
LATE_SHARES = (0.25, 0.35, 0.40)
LATE_PARTS = (0.03, 0.89, 0.08)
FIRST_RADIUS = 0.7
"""Sds of the first points around the centre."""
WARMER = 1.3
MAX_BATCHES = 24
REJECTED = 1e-3
"""A fit whose residuals are less probable than this is compared with one of a higher degree."""
WRONG = 1e-6
"""A prediction, or a fit, that is less probable than this is wrong."""


def largest_form(dimension: int) -> Form:
    """Return the most that is ever fitted."""
    return Form(dimension, min(dimension, 5), {1: 6, 2: 5, 3: 4}.get(dimension, 3))


@dataclass
class Survey:
    """What is known so far, and what was noticed on the way."""

    frame: Frame
    observations: list[Observation] = field(default_factory=list)
    fit: Fit | None = None
    draws: Array | None = None
    bound: float | None = None
    shift: float = math.inf
    far: float = 1.0
    predictions: list[tuple[float, float]] = field(default_factory=list)

    def region(self) -> Region:
        """Where the surrogate is known."""
        points = self.frame.to_u(np.array([seen.theta for seen in self.observations]))
        inverses = np.array([np.linalg.solve(seen.matrix, self.frame.matrix) for seen in self.observations])
        return Region(points, inverses, math.sqrt(2.0 * len(self.frame.center)) + 2.0)


class Found(NamedTuple):
    """What came out.

    Attributes
    ----------
    method
        "gaussian" (then ``laplace`` is the answer), "surrogate", or "chain": no surrogate fits, run a chain on it.
    laplace
        The noise-aware Gaussian posterior.
    survey
        Fit, coordinates and region of the surrogate.
    settled
        Whether the surrogate had stopped moving when the survey ended.
    converged, rounds
        Of the location rounds; rounds and batches in all.
    reasons, notes
        Why the result should not be trusted as it stands; what is worth knowing.
    clipped_share, clipped_share_sd
        Noised share of the records that were clipped in the score sums.
    """

    method: Literal["gaussian", "surrogate", "chain"]
    laplace: Laplace | None
    survey: Survey
    settled: bool
    converged: bool
    rounds: int
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    clipped_share: float | None = None
    clipped_share_sd: float | None = None


def find_posterior(
    questions: Questions,
    prior: Prior,
    left: Callable[[], float],
    walk: Walk,
    generator: np.random.Generator,
    *,
    start: Array | None = None,
    norm_bound: Callable[[Array], float | None] = lambda matrix: None,
    report: Callable[[], None] = lambda: None,
) -> Found:
    """Spend a budget on where the posterior lies and what shape it has.

    Parameters
    ----------
    questions, prior, left, start, norm_bound, report
        As for :func:`~dpmcmc.tuning.laplace.find_laplace`.
    walk
        Draws from surrogates.
    generator
        Of public randomness.
    """
    search = _Search(questions, prior, left, norm_bound, report)
    state = search.scales(prior.center if start is None else start)
    converged = search.locate(state, thorough=bool(questions.style.linear_size))
    surveyor = _Surveyor(search, state, walk, generator)
    settled = surveyor.explore()
    fit = surveyor.survey.fit
    assert fit is not None
    if fit.form.degree == 1 and fit.score_surprise > WRONG and surveyor.prior_is_straight():
        surveyor.inform(state)
        laplace = search.finish(state, converged or settled)
        return Found(
            "gaussian",
            laplace,
            surveyor.survey,
            settled,
            laplace.converged,
            state.rounds,
            laplace.reasons,
            laplace.notes,
            laplace.clipped_share,
            laplace.clipped_share_sd,
        )
    surveyor.refine()
    return surveyor.judged(settled)


class _Surveyor:
    """Survey and later batches; see the module."""

    def __init__(self, search: _Search, state: _State, walk: Walk, generator: np.random.Generator) -> None:
        self.search, self.state, self.walk, self.generator = search, state, walk, generator
        self.questions, self.prior, self.left = search.questions, search.prior, search.left
        self.dimension, self.num_records = search.dimension, search.num_records
        self.magnitude: Literal["score_bound", "gradient"] = (
            "score_bound" if self.questions.style.weighted else "gradient"
        )
        self.survey = Survey(Frame(state.theta, state.matrix), bound=state.bounds.get(self.magnitude))

    # ---------------------------------------------------------------------------------------------------- stages

    def explore(self) -> bool:
        """Survey the posterior; return whether the surrogate has settled."""
        total, survey = self.search.total, self.survey
        whole = float(np.clip(0.06 / math.sqrt(total), *SURVEY_LIMITS)) * total
        whole = min(whole, 0.5 * self.left())
        price, settled = 0.06 * whole, False
        for batch in range(MAX_BATCHES):
            if batch == 0:
                half = FIRST_RADIUS * self.generator.standard_normal((BATCH // 2, self.dimension))
                points = np.concatenate([half, -half])
            else:
                points = self._points(BATCH, WARMER if batch > 1 else 1.0)
            self._ask(points, price, SURVEY_PARTS, price * SURVEY_PARTS[1])
            self._refit()
            settled = batch > 0 and survey.shift < 1.0 and survey.far < 0.15
            if settled and price >= 0.25 * whole:
                return True
            if self.left() < 0.4 * total:
                break
            if settled:
                price = min(2.2 * price, 0.3 * whole)
        return settled

    def refine(self) -> None:
        """Spend what is left on batches drawn from the surrogate."""
        rest = 0.99 * self.left()
        for share in LATE_SHARES:
            points = self._points(LATE_BATCH, 1.0)
            self._ask(points, share * rest, LATE_PARTS, LATE_PARTS[1] * rest)
            self._refit()

    def prior_is_straight(self) -> bool:
        """Whether the prior's slope is a linear function where the posterior is, so that a Gaussian has room for it."""
        survey = self.survey
        assert survey.draws is not None
        center, matrix = survey.frame.center, survey.frame.matrix
        slope, precision = self.prior.gradient(center), self.prior.precision(center)
        points = survey.frame.to_theta(survey.draws[:: max(1, len(survey.draws) // 64)])
        bend = np.array([self.prior.gradient(theta) - slope + precision @ (theta - center) for theta in points])
        return bool(np.sqrt(np.mean(np.sum((bend @ matrix) ** 2, axis=1))) < 0.1 * math.sqrt(self.dimension))

    def inform(self, state: _State) -> None:
        """Hand over what the survey found to the final rounds of DP-Laplace."""
        survey = self.survey
        assert survey.fit is not None
        free = survey.fit.drawn(self.generator, 400)
        centers = np.array([self._center(weights) for weights in survey.fit.weights(free)])
        mean, covariance = centers.mean(axis=0), np.atleast_2d(np.cov(centers.T))
        known = state.belief
        if known is None or known.surprise(mean, covariance) > self.search._surprising():
            known = Belief(mean, np.diag(self.prior.sd**2))
        state.belief = known.updated(mean, covariance)
        state.theta = state.belief.mean
        if not self.questions.style.linear_size:
            state.matrix = survey.frame.matrix @ self._local(np.zeros(self.dimension))
        state.bounds.pop(self.magnitude, None)
        if survey.bound is not None:
            state.bounds[self.magnitude] = survey.bound

    def _center(self, weights: Array) -> Array:
        """Mode of prior and a linear map, by Newton steps."""
        frame = self.survey.frame
        offset, linear = weights[:, 0], weights[:, 1 : self.dimension + 1]
        u = np.zeros(self.dimension)
        for _ in range(3):
            theta = frame.to_theta(u)
            slope = linear.T @ (offset + linear @ u) - frame.matrix.T @ self.prior.gradient(theta)
            whole = linear.T @ linear + frame.matrix.T @ self.prior.precision(theta) @ frame.matrix
            u = u - np.linalg.solve(whole, slope)
        return frame.to_theta(u)

    # ----------------------------------------------------------------------------------------------------- parts

    def _local(self, u: Array) -> Array:
        """Coordinates around a point in which the surrogate's curvature is the identity."""
        fit, matrix = self.survey.fit, self.survey.frame.matrix
        if fit is None:
            return np.eye(self.dimension)
        jacobian = fit.jacobians(u[None])[0]
        precision = self.prior.precision(self.survey.frame.to_theta(u))
        values, vectors = np.linalg.eigh(jacobian.T @ jacobian + matrix.T @ precision @ matrix)
        return np.asarray((vectors / np.sqrt(np.maximum(values, 0.1))) @ vectors.T)

    def _ask(self, points: Array, price: float, parts: tuple[float, float, float], for_scores: float) -> None:
        """Ask at some points, compare with what was predicted, and keep the answers.

        The bound follows the tail-count rule for all scores of the stage together: a shift that clipping makes is the
        same at all points, and does not average out as noise does.
        """
        survey = self.survey
        searching, scores, moments = (part * price for part in parts)
        asked = [
            (survey.frame.to_theta(u), Affine(survey.frame.to_theta(u), survey.frame.matrix @ self._local(u)))
            for u in points
        ]
        found, probed = [], self.generator.permutation(len(points))[:2]
        for place in probed:
            theta, coordinates = asked[place]
            wanted = self._tail(for_scores)
            found.append(
                self.questions.search(theta, coordinates, self.magnitude, wanted, searching / 2.0, survey.bound)
            )
        survey.bound = max(found)
        new = []
        for theta, coordinates in asked:
            score, matrix = self.questions.score_and_moments(
                theta, coordinates, survey.bound, scores / len(points), moments / len(points)
            )
            new.append(
                Observation(theta, coordinates.matrix, score.value, score.noise_sd, matrix.value, matrix.noise_sd)
            )
        new = self._unclipped(new, probed)
        if survey.fit is not None:
            survey.predictions.append(survey.fit.predicts(new))
        survey.observations += new
        self.state.rounds += 1
        self.search.report()

    def _unclipped(self, new: list[Observation], probed: Array) -> list[Observation]:
        """Leave out points where scores are much larger than where their bound was chosen: most are clipped there."""
        sizes = np.array([np.trace(seen.moments) for seen in new])
        unsure = 3.0 * math.sqrt(self.dimension) * np.array([seen.moments_sd for seen in new])
        most = 1.5 * sizes[probed].max() + unsure
        return [seen for seen, size, limit in zip(new, sizes, most, strict=True) if size <= limit]

    def _relevant(self) -> list[Observation]:
        """Leave out points where there is no posterior, by the last fit: a surrogate need not be right there."""
        survey = self.survey
        if survey.fit is None:
            return survey.observations
        seen = np.array([one.theta for one in survey.observations])
        heights = 0.5 * np.sum(survey.fit.psi(survey.fit.frame.to_u(seen)) ** 2, axis=1)
        limit = max(heights.min() + 3.0 * self.dimension + 15.0, float(np.sort(heights)[: 2 * BATCH][-1]))
        return [one for one, height in zip(survey.observations, heights, strict=True) if height <= limit]

    def _tail(self, for_scores: float) -> float:
        if self.questions.style.weighted:
            return 0.1 * self.num_records
        return TAIL_FACTOR * 2.0 * math.sqrt(self.dimension / (2.0 * for_scores))

    def _refit(self) -> None:
        """Fit anew, in coordinates around the last draws, and draw from the fit."""
        survey = self.survey
        if survey.draws is not None:
            survey.frame, _ = frame_of(survey.frame, survey.draws)
        survey.fit = self._best_fit()
        survey.draws = self._draw(1.0)
        _, survey.shift = frame_of(survey.frame, survey.draws)
        survey.far = float(np.mean(survey.region().distances(survey.draws) > math.sqrt(self.dimension) + 1.0))

    def _best_fit(self) -> Fit:
        """Begin with a Gaussian, and raise the degree while the fit is improbable and the evidence is for it."""
        survey, largest, observations = self.survey, largest_form(self.dimension), self._relevant()
        size = self.dimension
        fit = fit_map(Form(size, largest.active, 1), survey.frame, observations)
        while fit.form.degree < largest.degree and self._is_questionable(fit):
            form = fit.form._replace(degree=fit.form.degree + 1)
            if size * len(form.powers) > 0.5 * len(observations) * (size + size * (size + 1) // 2):
                break
            other = fit_map(form, survey.frame, observations, like=fit)
            if other.log_evidence < fit.log_evidence + 3.0:
                break
            fit = other
        return fit

    def _is_questionable(self, fit: Fit) -> bool:
        return min(fit.score_surprise, fit.moments_surprise) < REJECTED or fit.tolerance > 0.01

    def _draw(self, temperature: float, calls: int = 1, certain: bool = False) -> Array:
        """Draw from the surrogate, each chain with weights of its own (or all with the most probable ones)."""
        survey = self.survey
        assert survey.fit is not None
        fit, region = survey.fit, survey.region()
        heights = 0.5 * np.sum(fit.psi(region.points) ** 2, axis=1)
        chances = np.exp(-(heights - heights.min()))
        places = self.generator.choice(len(heights), NUM_CHAINS, p=chances / chances.sum())
        if certain:
            weights = np.broadcast_to(fit.weights(), (NUM_CHAINS, *fit.weights().shape))
        else:
            weights = fit.weights(fit.drawn(self.generator, NUM_CHAINS))
        draws, _ = self.walk.draw(
            fit, weights, region.points[places], region, self.generator, temperature=temperature, calls=calls
        )
        return np.asarray(draws[9::10].reshape(-1, self.dimension))

    def _points(self, number: int, temperature: float) -> Array:
        draws = self.survey.draws if temperature == 1.0 else self._draw(temperature)
        assert draws is not None
        return np.asarray(draws[self.generator.permutation(len(draws))[:number]])

    def judged(self, settled: bool) -> Found:
        """Say what is known of the result."""
        survey = self.survey
        assert survey.fit is not None
        reasons: list[str] = []
        late = survey.predictions[-len(LATE_SHARES) :]
        if min(score for score, _ in late) < WRONG or survey.fit.score_surprise < WRONG:
            reasons.append("misfit")
        if not settled:
            reasons.append("not settled")
        return Found("surrogate", None, survey, settled, settled, self.state.rounds, tuple(reasons), ())
