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
from dpmcmc.tuning.fit import Fit, Frame, Observation, chance_of_more, fit_map, polynomials
from dpmcmc.tuning.laplace import Belief, Laplace, Search, State
from dpmcmc.tuning.prior import Prior
from dpmcmc.tuning.questions import Questions, Style
from dpmcmc.tuning.scouts import Hill, find_hills
from dpmcmc.tuning.walk import NUM_CHAINS, Region, Walk, frame_of

Array = NDArray[np.float64]

SURVEY_LIMITS = (0.04, 0.10)
SURVEY_PARTS = (0.10, 0.75, 0.15)
"""Parts of a batch of the survey: clip searches, scores, second moments."""
BATCH, LATE_BATCH = 12, 24
"""Points of a batch of the survey, and of a later one."""
LATE_SHARES = (0.25, 0.35, 0.40)
LATE_PARTS = (0.03, 0.89, 0.08)
LARGEST_PRICE = 0.04
"""A batch that would have to cost more of the budget to be of use is not worth it."""
FIRST_RADIUS = 0.7
"""Sds of the first points around the centre."""
WARMER = 1.3
MAX_BATCHES = 24
MAX_DIMENSION = 12
"""No surrogate is fitted to more parameters."""
CHECK_SHARE, CHECK_PAIRS = 0.03, 4
"""Part of the budget that looks whether a Gaussian is right, where no surrogate is fitted, and pairs of points."""
REJECTED = 1e-3
"""A fit whose residuals are less probable than this is compared with one of a higher degree."""
WRONG, OUTSIDE = 1e-6, 1e-5
"""A prediction, or the scores of a fit, that are less probable than this are wrong."""
PROBE_SHARE, MAX_PROBES = 0.01, 3
"""Price of a look at a far root of the surrogate, and how many there are at most."""
MAX_MOVES = 1
"""How often the search begins again, on a higher hill."""
SEVERAL = (
    "The posterior has another mode far from this one, as high as far as the noise lets see: the draws are of one of "
    "them. Mostly that is because signs or labels of parameters may be switched: a prior that rules out all but one, "
    "or parameters in an order, would help."
)
COUNT_SHARE = 0.01
"""Part of what is left for counts of clipped records."""


def lowest_price(questions: Questions) -> float:
    """Return the price of a batch of which each score has noise of about 3 posterior sds: less is of little use.

    With a bound of 2√(d/n), noise of sd 2·bound·τ and μ = 1/(2τ²) for each of the points.
    """
    return BATCH / (2.0 * SURVEY_PARTS[1]) * (4.0 * questions.unit / 3.0) ** 2


def can_survey(questions: Questions, budget: float) -> bool:
    """Whether there are records and budget enough for a survey."""
    return questions.dimension <= MAX_DIMENSION and lowest_price(questions) <= LARGEST_PRICE * budget


def is_surveyed(style: Style, dimension: int) -> bool:
    """Whether the posterior of such a model may need more than a Gaussian: those of regressions do not."""
    return not style.linear_size and dimension <= MAX_DIMENSION


def largest_form(dimension: int) -> Form:
    """Return the most that is ever fitted."""
    return Form(dimension, min(dimension, 5), {1: 6, 2: 5, 3: 4}.get(dimension, 3 if dimension <= 6 else 2))


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
    modes: list[Array] = field(default_factory=list)
    step_size: float = 0.3

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
        "gaussian" (then ``laplace`` is the answer), "surrogate", or "chain": for the caller to run on the surrogate.
    laplace
        The noise-aware Gaussian posterior, if that is enough.
    surveyor
        Draws from the surrogate, if it is not; None of a search for nothing but a Gaussian.
    converged, rounds
        Whether the search has settled; rounds and batches in all.
    reasons, notes
        Why the result should not be trusted as it stands; what is worth knowing.
    prior_directions
        Directions (columns, in prior sds) that only the prior holds.
    clipped_share, clipped_share_sd
        Noised share of the records that were clipped in the score sums; None if it was not asked for.
    """

    method: Literal["gaussian", "surrogate", "chain"]
    laplace: Laplace | None
    surveyor: Surveyor | None
    converged: bool
    rounds: int
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    prior_directions: Array
    clipped_share: float | None = None
    clipped_share_sd: float | None = None

    def checked(self, is_straight: bool, text: str) -> Found:
        """Return this, with what a look around has found: a reason against it, or a note."""
        if is_straight:
            return self._replace(notes=(*self.notes, text))
        return self._replace(reasons=(*self.reasons, text))

    @classmethod
    def gaussian(cls, laplace: Laplace, notes: tuple[str, ...] = ()) -> Found:
        """Return what DP-Laplace has found."""
        return cls(
            "gaussian",
            laplace,
            None,
            laplace.converged,
            laplace.rounds,
            laplace.reasons,
            (*notes, *laplace.notes),
            laplace.prior_directions,
            laplace.clipped_share,
            laplace.clipped_share_sd,
        )


def find_posterior(
    questions: Questions,
    prior: Prior,
    left: Callable[[], float],
    walk: Walk | None,
    generator: np.random.Generator,
    *,
    exact: bool = False,
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
        Draws from surrogates; may be missing where there is no survey (`is_surveyed`).
    generator
        Of public randomness.
    exact
        Leave most of the budget to a chain; for who has seen to it that there can be a survey.
    """
    search = Search(questions, prior, left, norm_bound, report)
    state = search.scales(prior.center if start is None else start)
    if not (exact or (is_surveyed(questions.style, questions.dimension) and can_survey(questions, left()))):
        converged = search.locate(state)
        hills: list[Hill] = []
        if not questions.style.linear_size:
            known = state.theta + generator.standard_normal((200, questions.dimension)) @ state.matrix.T
            known[0] = state.theta
            hills = find_hills(questions, prior, search.total, known, state.matrix, generator)
        if hills and hills[0].is_better:
            state.move(hills[0].theta)
            converged = search.locate(state)
        reserve = CHECK_SHARE * search.total
        search.left = lambda: left() - reserve
        found = Found.gaussian(laplace := search.finish(state, converged))
        found = found.checked(*_is_straight(questions, prior, state, laplace, left(), generator))
        return found.checked(False, SEVERAL) if hills and not hills[0].is_better else found
    assert walk is not None
    try:
        return _surveyed(search, state, walk, generator, exact)
    except np.linalg.LinAlgError:  # whatever is left is not to be lost
        reason = (
            "The survey of the posterior's shape broke down in its arithmetic: the draws are those of a Gaussian that "
            "nobody has looked at. Values that are very large, or a prior that is very steep, may be why."
        )
        return Found.gaussian(search.finish(state, False)).checked(False, reason)


def _surveyed(search: Search, state: State, walk: Walk, generator: np.random.Generator, exact: bool) -> Found:
    """Survey, look for other modes, decide, and spend what is left."""
    hills: list[Hill] = []
    for _ in range(1 + MAX_MOVES):
        converged = search.locate(state, thorough=False)
        surveyor = Surveyor(search, state, walk, generator)
        settled = surveyor.explore()
        surveyor.probe_roots()
        hills = surveyor.scout()
        if not (hills and hills[0].is_better):
            break
        state.move(hills[0].theta)
    expected = [hill for hill in hills if surveyor.joins(hill)]
    if expected:
        settled = surveyor.explore(again=True)
        hills = [hill for hill in hills if not any(hill is one for one in expected)]
    found = _decided(surveyor, search, state, converged, settled, exact)
    return found.checked(False, SEVERAL) if hills else found


def _decided(surveyor: Surveyor, search: Search, state: State, converged: bool, settled: bool, exact: bool) -> Found:
    """Decide, and spend what is left."""
    if exact or surveyor.is_outside():
        if np.linalg.matrix_rank(surveyor.survey.frame.matrix) < surveyor.dimension:
            raise np.linalg.LinAlgError("coordinates that have no inverse")
        return surveyor.judged(settled, "chain")
    if surveyor.is_gaussian():
        surveyor.inform(state)
        note = "A Gaussian is enough: the survey of the posterior found no curvature."
        return Found.gaussian(search.finish(state, converged or settled, informed=True), (note,))
    surveyor.refine()
    return surveyor.judged(settled, "surrogate")


def _is_straight(
    questions: Questions, prior: Prior, state: State, laplace: Laplace, mu: float, generator: np.random.Generator
) -> tuple[bool, str]:
    """Ask for scores around the centre, in pairs of opposite points: are they those of the Gaussian that was found?

    In coordinates z in which the posterior is N(0, I) the slope at z should be −z. It may differ by the score's noise,
    by what is not known of the centre (covariance P in z, the same everywhere), and of the curvature: noise E with
    entries of sd σ gives E·z the covariance σ²(‖z‖²·I + z·zᵀ)/2.
    """
    size = questions.dimension
    values, vectors = np.linalg.eigh(laplace.posterior)
    matrix = vectors * np.sqrt(np.maximum(values, 1e-12 * values.max()))
    half = generator.standard_normal((CHECK_PAIRS, size))
    points = np.concatenate([half, -half])
    weighted = questions.style.weighted
    wanted = questions.wanted(0.7 * mu, weighted)
    theta = laplace.mean + points @ matrix.T
    bound = questions.search(theta[0], Affine(theta[0], matrix), questions.style.magnitude, wanted, 0.25 * mu)
    residuals, noise = [], 0.0
    for place, z in zip(theta, points, strict=True):
        score = questions.score(place, Affine(place, matrix), bound, 0.7 * mu / len(points), weighted=weighted)
        residuals.append(score.value + matrix.T @ prior.gradient(place) + z)
        noise = score.noise_sd
    inverse = np.linalg.inv(matrix)
    common = inverse @ (laplace.noise + laplace.clipping) @ inverse.T
    clipping = 0.0 if weighted else (0.25 * wanted * bound) ** 2 / size
    curvature = 0.0 if state.curvature is None else 1.0 / state.curvature[1]
    inner = points @ points.T
    covariance = np.kron(np.ones_like(inner), common + clipping * np.eye(size))
    covariance += noise**2 * np.eye(len(covariance)) + 0.5 * curvature * np.kron(inner, np.eye(size))
    crossed = np.einsum("ai,bj->abij", points, points)
    covariance += 0.5 * curvature * np.einsum("abij->aibj", np.swapaxes(crossed, 2, 3)).reshape(covariance.shape)
    vector = np.concatenate(residuals)
    chance = chance_of_more(vector @ np.linalg.solve(covariance, vector), len(vector))
    if chance < OUTSIDE:
        return False, (
            f"The posterior is not the Gaussian that was drawn from: scores around its centre differ (chance "
            f"{chance:.0e}). A larger n, fewer rare columns, or other parameters would help."
        )
    return True, "A Gaussian is enough: scores around its centre are as it predicts."


class Surveyor:
    """Survey and later batches; see the module."""

    def __init__(self, search: Search, state: State, walk: Walk, generator: np.random.Generator) -> None:
        self.search, self.state, self.walk, self.generator = search, state, walk, generator
        self.questions, self.prior, self.left = search.questions, search.prior, search.left
        self.dimension, self.num_records = search.dimension, search.num_records
        self.magnitude = self.questions.style.magnitude
        self.survey = Survey(Frame(state.theta, state.matrix), bound=state.bounds.get(self.magnitude))

    # ---------------------------------------------------------------------------------------------------- stages

    def explore(self, again: bool = False) -> bool:
        """Survey the posterior; return whether the surrogate has settled."""
        total, survey = self.search.total, self.survey
        whole = float(np.clip(0.06 / math.sqrt(total), *SURVEY_LIMITS)) * total
        lowest = lowest_price(self.questions)
        whole = min(max(whole, 4.0 * lowest), 0.5 * self.left())
        price, settled = max(0.06 * whole, lowest), False
        for batch in range(MAX_BATCHES):
            if batch == 0 and not again:
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

    def is_gaussian(self) -> bool:
        """Whether a Gaussian is enough, by what was released."""
        fit = self.survey.fit
        assert fit is not None
        return fit.form.degree == 1 and self.prior_is_straight()

    def is_outside(self) -> bool:
        """Whether no surrogate of any degree fits the scores, or one of the highest has just predicted wrongly."""
        fits, predicts = self._chances()
        return fits < OUTSIDE or predicts < WRONG

    def _chances(self) -> tuple[float, float]:
        """Return the chance of the scores, and of the last batches of the survey if no higher degree is left to try."""
        fit, last = self.survey.fit, [score for score, _ in self.survey.predictions[-2:]]
        assert fit is not None
        at_most = fit.form.degree == largest_form(self.dimension).degree
        return fit.score_surprise, min(last, default=1.0) if at_most else 1.0

    def refine(self) -> None:
        """Spend what is left on batches drawn from the surrogate."""
        rest = (1.0 - COUNT_SHARE) * self.left()
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

    def inform(self, state: State) -> None:
        """Hand over what the survey found to the final rounds of DP-Laplace."""
        survey = self.survey
        assert survey.fit is not None
        free = survey.fit.drawn(self.generator, 400)
        centers = np.array([self._center(weights) for weights in survey.fit.weights(free)])
        mean, covariance = centers.mean(axis=0), np.atleast_2d(np.cov(centers.T))
        known = state.belief
        if known is None or known.surprise(mean, covariance) > self.search.surprising():
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
            u = u - np.linalg.lstsq(whole, slope, rcond=None)[0]
        return frame.to_theta(u)

    # ----------------------------------------------------------------------------------------------------- parts

    def _local(self, u: Array) -> Array:
        """Coordinates around a point in which the surrogate's curvature is the identity."""
        fit, matrix = self.survey.fit, self.survey.frame.matrix
        if fit is None:
            return np.eye(self.dimension)
        jacobian = fit.jacobians(u[None])[0]
        precision = self.prior.precision(self.survey.frame.to_theta(u))
        whole = np.clip(np.nan_to_num(jacobian.T @ jacobian + matrix.T @ precision @ matrix), -1e100, 1e100)
        values, vectors = np.linalg.eigh(whole)
        # (Far away, where nothing is known, a surrogate or a prior may be as steep as it likes.)
        return np.asarray((vectors / np.sqrt(np.clip(values, 0.1, 1e8))) @ vectors.T)

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
            wanted = self.questions.wanted(for_scores, self.questions.style.weighted)
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

    def _unclipped(self, new: list[Observation], probed: NDArray[np.int64]) -> list[Observation]:
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

    def _refit(self) -> None:
        """Fit anew, in coordinates around the last draws, and draw from the fit."""
        survey = self.survey
        if survey.draws is not None:
            survey.frame, _ = frame_of(survey.frame, survey.draws)
        self._rotate()
        survey.fit = self._best_fit()
        survey.draws = self.draw()
        _, survey.shift = frame_of(survey.frame, survey.draws)
        survey.far = float(np.mean(survey.region().distances(survey.draws) > math.sqrt(self.dimension) + 1.0))

    def _rotate(self) -> None:
        """Where only some coordinates may bend, let those be first along which the moments change most.

        By a linear regression of the moments, in u, on the points.
        """
        survey, active = self.survey, largest_form(self.dimension).active
        if active == self.dimension or len(survey.observations) < 3 * self.dimension:
            return
        region = survey.region()
        moments = np.array(
            [
                inverse.T @ seen.moments @ inverse
                for seen, inverse in zip(survey.observations, region.inverses, strict=True)
            ]
        )
        design = np.column_stack([np.ones(len(moments)), region.points])
        slopes = np.linalg.lstsq(design, moments.reshape(len(moments), -1), rcond=None)[0][1:]
        _, vectors = np.linalg.eigh(slopes @ slopes.T)
        survey.frame = survey.frame.moved(np.zeros(self.dimension), vectors[:, ::-1])

    def _best_fit(self) -> Fit:
        """Begin with a Gaussian, and raise the degree while the fit is improbable and the evidence is for it."""
        survey, largest, observations = self.survey, largest_form(self.dimension), self._relevant()
        size = self.dimension
        best = last = fit_map(Form(size, largest.active, 1), survey.frame, observations)
        # One degree may be no better, and the next one right: bends that are odd and even come apart.
        while last.form.degree < largest.degree and self._is_questionable(best):
            form = last.form._replace(degree=last.form.degree + 1)
            if size * len(form.powers) > 0.5 * len(observations) * (size + size * (size + 1) // 2):
                break
            last = fit_map(form, survey.frame, observations, like=last, before=survey.fit)
            if last.log_evidence > best.log_evidence + 3.0:
                best = last
        return best

    def _is_questionable(self, fit: Fit) -> bool:
        return min(fit.score_surprise, fit.moments_surprise) < REJECTED or fit.tolerance > 0.01

    def _basins(self, u: Array) -> tuple[NDArray[np.int64], Array]:
        """Number of the minimum of ½‖ψ‖² that each point leads to, and the minima, apart by more than 3 local sds."""
        ends, heights = self._descend(u)
        found: list[Array] = []
        inverses: list[Array] = []
        owners = np.zeros(len(u), np.int64)
        for place in np.argsort(heights):
            near = [np.linalg.norm(inverse @ (ends[place] - one)) for one, inverse in zip(found, inverses, strict=True)]
            if near and min(near) < 3.0:
                owners[place] = int(np.argmin(near))
            else:
                owners[place] = len(found)
                found.append(ends[place])
                inverses.append(np.asarray(np.linalg.inv(self._local(ends[place]))))
        return owners, np.array(found)

    def _starts(self, region: Region) -> Array:
        """Starting points: those asked about where the surrogate is low; of each minimum as many as its mass."""
        survey = self.survey
        assert survey.fit is not None
        heights = 0.5 * np.sum(survey.fit.psi(region.points) ** 2, axis=1)
        owners, minima = self._basins(region.points)
        volumes = [np.linalg.slogdet(self._local(u))[1] for u in minima]
        masses = np.array(volumes) - 0.5 * np.sum(survey.fit.psi(minima) ** 2, axis=1)
        masses += [self.prior.log_density(theta) for theta in survey.frame.to_theta(minima)]
        masses = np.exp(masses - masses.max())
        chances = np.zeros(len(heights))
        for minimum, mass in enumerate(masses):
            own = owners == minimum
            share = np.exp(-(heights[own] - heights[own].min()))
            chances[own] = mass * share / share.sum()
        return region.points[self.generator.choice(len(heights), NUM_CHAINS, p=chances / chances.sum())]

    def _is_divided(self) -> bool:
        """Whether there are parts between which the surrogate's chains do not go."""
        survey = self.survey
        assert survey.fit is not None
        region, fit = survey.region(), survey.fit
        starts = self._starts(region)
        weights = np.broadcast_to(fit.weights(), (NUM_CHAINS, *fit.weights().shape))
        draws, _ = self.walk.draw(fit, weights, starts, region, self.generator)
        owners, minima = self._basins(np.concatenate([starts, draws[-1]]))
        before, after = owners[:NUM_CHAINS], owners[NUM_CHAINS:]
        shares = np.bincount(after, minlength=len(minima)) / NUM_CHAINS
        # Of chains that forget where they began, so many would be elsewhere in the end.
        expected = 1.0 - float(np.sum(shares**2))
        return expected > 0.05 and float(np.mean(before != after)) < 0.1 * expected

    def draw(self, *, temperature: float = 1.0, certain: bool = False, warmup: int = 2) -> Array:
        """Draw from the surrogate, in u: chains with weights of their own, or all with the most probable ones.

        Draws of one chain are so far apart that they are hardly correlated.
        """
        survey = self.survey
        assert survey.fit is not None
        fit, region = survey.fit, survey.region()
        if certain:
            weights = np.broadcast_to(fit.weights(), (NUM_CHAINS, *fit.weights().shape))
        else:
            weights = fit.weights(fit.drawn(self.generator, NUM_CHAINS))
        draws, survey.step_size = self.walk.draw(
            fit, weights, self._starts(region), region, self.generator, temperature=temperature, warmup=warmup
        )
        return np.asarray(draws[:: -_thinning(draws)][::-1].reshape(-1, self.dimension))

    def noise(self) -> float:
        """Return by how many posterior sds the weights' uncertainty moves the surrogate, on average where it lies.

        A change δψ moves the slope by Jᵀδψ, which is compared with the curvature JᵀJ + the prior's.
        """
        survey = self.survey
        assert survey.fit is not None
        assert survey.draws is not None
        fit, points = survey.fit, survey.draws[self.generator.permutation(len(survey.draws))[:64]]
        changes = fit.weights(fit.drawn(self.generator, 128)) - fit.weights()
        moved = np.einsum("kam,jm->kja", changes, polynomials(fit.form, points)[0])
        slopes = np.einsum("jai,kja->kji", fit.jacobians(points), moved)
        locals_ = np.array([self._local(u) for u in points])
        return float(np.sqrt(np.mean(np.einsum("jil,kji->kjl", locals_, slopes) ** 2)))

    def draw_theta(self, number: int, *, certain: bool = False) -> Array:
        """Draw so many parameter vectors, with new weights every time."""
        found: list[Array] = []
        warmup = 8 if self.dimension < 5 else 4
        while sum(map(len, found)) < number:
            found.append(self.survey.frame.to_theta(self.draw(certain=certain, warmup=warmup)))
        return np.asarray(self.generator.permutation(np.concatenate(found))[:number])

    def _points(self, number: int, temperature: float) -> Array:
        draws = self.survey.draws if temperature == 1.0 else self.draw(temperature=temperature)
        assert draws is not None
        return np.asarray(draws[self.generator.permutation(len(draws))[:number]])

    # ----------------------------------------------------------------------------------------------------- modes

    def probe_roots(self) -> None:
        """Look at far roots of the surrogate, which it has for free: is there another mode?

        A root counts if the records' scores there have the second moments that the surrogate expects, and add up to
        about nothing.
        """
        survey = self.survey
        assert survey.fit is not None
        survey.modes = [survey.frame.center]
        if survey.fit.form.degree == 1 or survey.bound is None:
            return
        for u in self._far_roots()[:MAX_PROBES]:
            self._probe(survey.frame.to_theta(u))
        if len(survey.modes) > 1:
            self._refit()

    def scout(self) -> list[Hill]:
        """Look for modes where no draw is."""
        survey = self.survey
        assert survey.fit is not None
        assert survey.draws is not None
        if self.questions.style.linear_size:  # regressions have one mode
            return []
        heights = 0.5 * np.sum(survey.fit.psi(survey.draws) ** 2, axis=1)
        known = survey.frame.to_theta(np.concatenate([survey.draws[[np.argmin(heights)]], survey.draws]))
        hills = find_hills(self.questions, self.prior, self.search.total, known, survey.frame.matrix, self.generator)
        self.search.report()
        return hills

    def joins(self, hill: Hill) -> bool:
        """Whether the surrogate is low on a hill as well, so that it may hold both; it is then asked about there."""
        survey = self.survey
        assert survey.fit is not None
        points = np.array([survey.observations[0].theta, *(one.theta for one in survey.observations), hill.theta])
        heights = 0.5 * np.sum(survey.fit.psi(survey.frame.to_u(points)) ** 2, axis=1)
        known = len(survey.modes)
        if heights[-1] < heights[:-1].min() + hill.below + (math.sqrt(self.dimension) + 3.0) ** 2:
            self._probe(hill.theta)
        return len(survey.modes) > known

    def _probe(self, theta: Array) -> None:
        """Ask at a root, and where the answer leads: another mode, if the steps become short and the moments fit."""
        survey = self.survey
        assert survey.bound is not None
        local = survey.frame.matrix @ self._local(survey.frame.to_u(theta))
        seen = []
        for price in (0.3 * PROBE_SHARE, 0.3 * PROBE_SHARE, 0.4 * PROBE_SHARE):
            part = price * self.search.total
            score, matrix = self.questions.score_and_moments(
                theta, Affine(theta, local), 2.0 * survey.bound, 0.7 * part, 0.3 * part
            )
            self.state.rounds += 1
            seen.append(Observation(theta, local, score.value, score.noise_sd, matrix.value, matrix.noise_sd))
            values, vectors = np.linalg.eigh(matrix.value + local.T @ self.prior.precision(theta) @ local)
            noise = 3.0 * math.sqrt(2.0 * self.dimension) * matrix.noise_sd
            if values.min() < 0.2 - noise or values.max() > 5.0 + noise:
                return
            axes = vectors / np.sqrt(np.maximum(values, 0.2))
            step = axes.T @ (score.value + local.T @ self.prior.gradient(theta))
            length, by_noise = np.linalg.norm(step), math.sqrt(self.dimension) * score.noise_sd
            if length > 12.0 + 3.0 * by_noise:
                return
            local = local @ axes
            theta = theta + local @ step
        if length < 3.0 * math.sqrt(self.dimension) + 2.0 * by_noise:
            survey.modes.append(theta)
            survey.observations += seen[1:]

    def _descend(self, u: Array) -> tuple[Array, Array]:
        """Go down ½‖ψ‖² from many points, by damped Gauss–Newton steps; return where that leads, and its height."""
        fit = self.survey.fit
        assert fit is not None
        damping = np.ones(len(u))
        heights = 0.5 * np.sum(fit.psi(u) ** 2, axis=1)
        for _ in range(60):
            jacobians, psi = fit.jacobians(u), fit.psi(u)
            normal = np.einsum("nai,naj->nij", jacobians, jacobians)
            normal += (
                damping[:, None, None] * (np.einsum("nii->n", normal)[:, None, None] + 1e-9) * np.eye(self.dimension)
            )
            slopes = np.clip(np.nan_to_num(np.einsum("nai,na->ni", jacobians, psi)), -1e100, 1e100)
            normal = np.clip(np.nan_to_num(normal), -1e100, 1e100)
            steps = np.linalg.solve(normal, slopes[..., None])[..., 0]
            new = u - steps
            lower = 0.5 * np.sum(fit.psi(new) ** 2, axis=1)
            better = lower < heights
            u, heights = np.where(better[:, None], new, u), np.where(better, lower, heights)
            damping = np.where(better, damping / 4.0, damping * 4.0).clip(1e-9, 1e9)
        return u, heights

    def _far_roots(self) -> list[Array]:
        """Minima of ½‖ψ‖² − ln prior from many starts, far from all that was asked about, the lowest first."""
        survey = self.survey
        assert survey.fit is not None
        region = survey.region()
        wide = np.repeat([3.0, 10.0, 30.0, 100.0], 24)[:, None]
        u = wide * self.generator.standard_normal((len(wide), self.dimension))
        u, heights = self._descend(u)
        here = self.prior.log_density(survey.frame.center)
        with np.errstate(invalid="ignore"):
            whole = heights + here - np.array([self.prior.log_density(theta) for theta in survey.frame.to_theta(u)])
        far = (region.distances(u) > region.radius) & (heights < 2.0) & (whole < 12.0)
        found: list[Array] = []
        for place in np.argsort(whole):
            inverse = np.linalg.inv(self._local(u[place]))
            if far[place] and all(np.linalg.norm(inverse @ (u[place] - other)) > region.radius for other in found):
                found.append(u[place])
        return found

    # ------------------------------------------------------------------------------------------------- judgement

    def judged(self, settled: bool, method: Literal["surrogate", "chain"]) -> Found:
        """Say what is known of the result."""
        survey = self.survey
        assert survey.fit is not None
        assert survey.draws is not None
        reasons: list[str] = []
        if not settled:
            reasons.append(
                f"The search did not settle in {self.state.rounds} rounds: the centre may be far off. A larger ε, more "
                "records, fewer parameters, or a start nearer to the posterior (init) would help."
            )
        degree = survey.fit.form.degree
        late = [score for score, _ in survey.predictions[-len(LATE_SHARES) :]]
        if method == "chain" and self.is_outside():
            reasons.append(
                f"No surrogate up to degree {degree} fits the released scores (chance {min(self._chances()):.0e}):"
                " the draws are those of a chain with exact accept tests, of which a budget buys few. A larger ε, or "
                "other parameters in which the posterior is rounder, would help."
            )
        elif method == "surrogate" and min(*late, survey.fit.score_surprise) < WRONG:
            reasons.append(
                "The surrogate does not fit what was released last (chance "
                f"{min(*late, survey.fit.score_surprise):.0e}): the draws may be off. Run with exact=True, a larger ε, "
                "or in other parameters."
            )
        at_most = degree > 1 and degree == largest_form(self.dimension).degree
        if at_most and min(*late, survey.fit.score_surprise) < REJECTED:
            reasons.append(
                f"The posterior asks for more than polynomials of degree {degree}: the draws may be off. Other "
                "parameters, in which it is rounder, would help."
            )
        if self._is_divided():
            reasons.append(
                "The posterior has parts far from each other: how much of it each holds is the surrogate's guess. A "
                "prior that rules all but one out would help."
            )
        outside = float(np.mean(survey.region().distances(survey.draws) > survey.region().radius))
        if outside > 0.02:
            reasons.append(
                f"{100.0 * outside:.0f} % of the draws lie where nothing was asked: the posterior reaches farther than "
                "the budget has shown. A larger ε, or a narrower prior, would help."
            )
        floor = survey.observations[-1].moments_sd * math.sqrt(2.0 * self.dimension / LATE_BATCH)
        if floor > 0.4:
            reasons.append(
                f"The noise of the curvature ({floor:.2f}, where the curvature is 1) hides directions: their sds are "
                "not known. Use a larger ε, more records or fewer parameters."
            )
        share, share_sd = (None, None) if method == "chain" else self._count_clipped(reasons)
        center = survey.frame.center
        jacobian = survey.fit.jacobians(np.zeros((1, self.dimension)))[0] @ np.linalg.inv(survey.frame.matrix)
        posterior = np.linalg.pinv(jacobian.T @ jacobian + self.prior.precision(center), hermitian=True)
        self.state.theta = center
        note = (
            f"The posterior is {'curved' if degree > 1 else 'Gaussian but for its prior'}: drawn from a surrogate of "
            f"degree {degree}, fitted to scores at {len(survey.observations)} points, with its weights drawn from "
            "their posterior."
        )
        return Found(
            method,
            None,
            self,
            settled,
            self.state.rounds,
            tuple(reasons),
            (note,) if method == "surrogate" else (),
            self.search.prior_directions(self.state, posterior),
            share,
            share_sd,
        )

    def _count_clipped(self, reasons: list[str]) -> tuple[float, float]:
        """Count the clipped records at three draws, and say whether they may have shifted the posterior."""
        survey = self.survey
        assert survey.draws is not None
        assert survey.bound is not None
        counts, price = [], 0.999 * self.left() / 3.0
        for u in survey.draws[self.generator.permutation(len(survey.draws))[:3]]:
            theta = survey.frame.to_theta(u)
            coordinates = Affine(theta, survey.frame.matrix @ self._local(u))
            counts.append(self.questions.count(theta, coordinates, survey.bound, price, self.magnitude))
        above = float(np.mean([count for count, _ in counts]))
        sd = counts[0][1] / math.sqrt(3.0)
        shift = 0.25 * max(above - 2.0 * sd, 0.0) * survey.bound / math.sqrt(self.dimension)
        if shift > 0.5 and not self.questions.style.weighted:
            reasons.append(
                f"Clipping may have shifted the posterior by about {shift:.1f} sds. Bound or transform features and "
                "outcomes with long tails."
            )
        return above / self.num_records, sd / self.num_records


def _thinning(draws: Array) -> int:
    """Return a distance at which draws of a chain are hardly correlated: iterations × chains × d."""
    centered = draws - draws.mean(axis=0)
    variance = np.mean(centered**2, axis=(0, 1)) + 1e-300
    for lag in range(1, len(draws) // 2):
        if np.max(np.mean(centered[lag:] * centered[:-lag], axis=(0, 1)) / variance) < 0.1:
            return lag
    return len(draws) // 2
