r"""A private Laplace approximation that knows its own noise: where the posterior lies and how wide it is.

Everything is asked in coordinates θ = m + C z that are made rounder as more is known, so that clip bounds and noise,
which are the same in all directions of z, fit the posterior. With B the whole budget (μ):

1. *Scales*: one histogram of \|score_j\| for each coordinate gives diagonal coordinates, never wider than the prior.
2. *Location rounds*, each a clip search, a curvature and a score sum: damped Newton steps while they are long; once
   they are within the noise, a Kalman filter over the centre.
3. *Final rounds*: all that is left, most of it in score sums, combined by the same filter.

With H the curvature of the posterior, s² the variance of the score's noise in z and P the filter's covariance, what
comes out is N(θ̂, H⁻¹ + P + allowance for clipping): what the data leave open, what the noise leaves open, and what
clipping may have done. Eigenvalues of a noisy curvature below the size of its noise, σ√(2d) for a symmetric matrix with
entries of sd σ on the diagonal and σ/√2 off it, are raised to that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri

from dpmcmc.errors import QueryError
from dpmcmc.queries import Affine
from dpmcmc.queries.quantile import Magnitude
from dpmcmc.tuning.prior import Prior
from dpmcmc.tuning.questions import MAJORISE, Matrix, Questions, Score

Array = NDArray[np.float64]

SCALE_SHARE = 0.04
"""Part of the budget for the scales."""
LOCATION_PARTS = (0.15, 0.55, 0.30)
"""Parts of a location round: clip searches, curvature, score."""
LOCATION_LIMITS = (0.01, 0.05)
"""A location round costs between these parts of the budget: more where the curvature's noise needs it."""
LOCATION_NOISE = 65.0
"""Times ρ = d^1.5/(n√(2B)), squared: the part that makes the curvature's noise about a fifth of the curvature."""
LOCATION_GROWTH = 2.5
"""After a step within the noise the next round costs so many times more, up to the limit, before it is believed."""
FAR_DISCOUNT = 5.0
"""While steps are very long compared with the noise, a round costs so many times less."""
MAX_ROUNDS = 24
FARTHEST = 1e6
"""No step is longer than so many prior sds: what would be is a table of numbers that overflow."""
LOCATION_STOP = 0.5
"""Location rounds end, converged or not, when so much of the budget is left."""
FINAL_SHARES = (0.2, 0.3, 0.5)
FINAL_CURVATURE = 0.08
FINAL_SEARCH = 0.08
FINAL_COUNT = 0.01
FINAL_CHECK = 0.04
PUBLIC_NOISE = 0.5
"""Where public bounds of the features leave no more noise than so many posterior sds, no score is weighted down."""
PARTIAL, WIDEST_PARTIAL, FARTHEST_PARTIAL = 0.2, 0.8, 20.0
"""Columns that fewer than so many n/d records have a part in are kept narrower than so many of their own widths, and
move by no more than so many of these in a round; see `_moved`."""
CURVATURE_CLIPPED = (0.01, 0.005)
"""Share of the records whose curvature is clipped: in location rounds, in the final ones."""
_CERTAIN = 6.0  # noise sds: of a thousand million empty bins, one is taken for a full one
# A χ² statistic counts as too large if chance alone makes it so large with this probability.
_BY_CHANCE = 1e-5
_MOSTLY_NOISE = 2.0


def _solved(matrix: Array, right: Array) -> Array:
    """Return matrix⁻¹·right; by the pseudo-inverse if rounding has made the matrix singular (of absurd records)."""
    try:
        return np.asarray(np.linalg.solve(matrix, right))
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.lstsq(matrix, right, rcond=None)[0])


class Belief(NamedTuple):
    """A Gaussian belief about the centre of the posterior."""

    mean: Array
    covariance: Array

    def surprise(self, observed: Array, covariance: Array) -> float:
        """χ² of an observation of the centre, with its covariance: expected is d, if belief and noise are right."""
        apart = observed - self.mean
        return float(apart @ _solved(self.covariance + covariance, apart))

    def updated(self, observed: Array, covariance: Array) -> Belief:
        """Kalman filter: what is believed after one more noisy observation of the centre."""
        gain = _solved(self.covariance + covariance, self.covariance).T
        left = np.eye(len(observed)) - gain
        # Joseph's form stays symmetric and positive.
        after = left @ self.covariance @ left.T + gain @ covariance @ gain.T
        return Belief(self.mean + gain @ (observed - self.mean), (after + after.T) / 2.0)


class Whitened(NamedTuple):
    """A noisy curvature, taken apart.

    Attributes
    ----------
    vectors, values
        Eigenvectors, and eigenvalues that are no lower than the floor.
    floored
        Which eigenvalues were.
    floor
        The size of the noise.
    """

    vectors: Array
    values: Array
    floored: NDArray[np.bool_]
    floor: float


class Laplace(NamedTuple):
    """What was found, in unconstrained space.

    Attributes
    ----------
    mean
        θ̂.
    posterior, noise, clipping
        Covariances: of the posterior, of what the noise leaves open, of what clipping may have done.
    converged, rounds
        Whether the last location step was within the noise, and how many rounds there were.
    reasons, notes
        Why the result should not be trusted as it stands; what is worth knowing.
    prior_directions
        Directions (columns, in prior sds) that only the prior holds.
    clipped_share, clipped_share_sd
        Noised share of the records that were clipped in the final score sums; None where weights take that place.
    """

    mean: Array
    posterior: Array
    noise: Array
    clipping: Array
    converged: bool
    rounds: int
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    prior_directions: Array
    clipped_share: float | None
    clipped_share_sd: float | None

    @property
    def covariance(self) -> Array:
        """Of the noise-aware posterior."""
        return self.posterior + self.noise + self.clipping


@dataclass
class State:
    """Where the search stands."""

    theta: Array
    matrix: Array
    belief: Belief | None = None
    rounds: int = 0
    curvature: tuple[Array, float] | None = None
    bounds: dict[str, float] = field(default_factory=dict)
    rare: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    partial: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    usual: int = 0
    relative: Array = field(default_factory=lambda: np.zeros(0))
    last_move: Array | None = None
    capped: int = 0
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def move(self, theta: Array) -> None:
        """Begin again elsewhere, in the same coordinates."""
        self.theta, self.belief, self.curvature, self.last_move = theta, None, None, None
        self.bounds.clear()


def find_laplace(
    questions: Questions,
    prior: Prior,
    left: Callable[[], float],
    *,
    start: Array | None = None,
    norm_bound: Callable[[Array], float | None] = lambda matrix: None,
    report: Callable[[], None] = lambda: None,
) -> Laplace:
    """Spend a budget on where the posterior lies and how wide it is.

    Parameters
    ----------
    questions
        Asks the curator.
    prior
        The public part of the posterior.
    left
        Returns how much of the budget is left.
    start
        Where to begin. Default: the prior's centre.
    norm_bound
        A public bound on the norms of the design rows in coordinates C, if there is one: nothing is clipped beyond it.
    report
        Called after every round.
    """
    search = Search(questions, prior, left, norm_bound, report)
    state = search.scales(prior.center if start is None else start)
    converged = search.locate(state)
    return search.finish(state, converged)


class Search:
    """The three phases; see the module."""

    def __init__(
        self,
        questions: Questions,
        prior: Prior,
        left: Callable[[], float],
        norm_bound: Callable[[Array], float | None],
        report: Callable[[], None],
    ) -> None:
        self.questions, self.prior, self.left, self.report = questions, prior, left, report
        self.norm_bound = norm_bound
        self.total = left()
        self.dimension, self.num_records = questions.dimension, questions.num_records
        self.style = questions.style
        self.relative_noise = self.dimension**1.5 / (self.num_records * math.sqrt(2.0 * self.total))

    # ------------------------------------------------------------------------------------------------- phases

    def scales(self, start: Array) -> State:
        """Choose diagonal coordinates by the sizes of the scores at the start."""
        sd = self.prior.sd
        coordinates = Affine(start, np.diag(sd))
        histogram, edges, noise_sd = self.questions.scales(start, coordinates, SCALE_SHARE * self.total)
        middles = np.concatenate([[0.0], np.sqrt(edges[:-1] * edges[1:]), [2.0 * edges[-1]]])
        seen = np.where(histogram > _CERTAIN * noise_sd, histogram, 0.0)
        squares = seen @ middles**2
        if self.style.information:
            # A rare column hides below the noise: as many records as could be there, with residuals like the first
            # coordinate's. A column that most records have a part in hides nothing.
            usual = squares[0] / sd[0] ** 2 / self.num_records
            part = seen[:, 1:].sum(axis=1)
            squares = squares + np.where(part < 0.5 * self.num_records, _CERTAIN * noise_sd * usual * sd**2, 0.0)
        widths = sd * np.minimum(1.0, 1.0 / np.sqrt(np.maximum(squares, 1e-300)))
        part = seen[:, 1:].sum(axis=1)
        in_design = np.arange(len(sd)) < self.style.linear_size
        usual = int(np.argmax(part))
        return State(
            np.array(start, np.float64),
            np.diag(widths),
            rare=in_design & (part < 0.02 * self.num_records),
            partial=in_design & (part < PARTIAL * self.num_records / self.dimension),
            usual=usual,
            relative=widths / widths[usual],
        )

    def locate(self, state: State, thorough: bool = True) -> bool:
        """Go to where the posterior is, making coordinates rounder on the way; return whether it was found.

        If not ``thorough``, it is enough to be near: the first step within the noise is the last, if that is low.
        """
        near = float(np.clip((LOCATION_NOISE * self.relative_noise) ** 2, *LOCATION_LIMITS))
        price, short_steps = near / FAR_DISCOUNT, 0
        while state.rounds < MAX_ROUNDS and self.left() > LOCATION_STOP * self.total:
            state.rounds += 1
            searching, for_curvature, for_score = (part * price * self.total for part in LOCATION_PARTS)
            bound = self._score_bound(state, searching / 2.0, for_score)
            matrix = self._curvature(state, bound, searching / 2.0 + for_curvature, on_the_way=True)
            score = self.questions.score(
                state.theta, self._coordinates(state), bound, for_score, weighted=self.style.weighted
            )
            whitened = self._whiten(state, matrix)
            step = self._step(state, score, whitened)
            length, noise = self._lengths(score, whitened, step)
            observed, round_matrix = self._moved(state, whitened, step)
            self.report()
            if length > self._usual(noise):
                state.theta, state.matrix, state.belief, short_steps = observed, round_matrix, None, 0
                state.bounds.clear()  # another place, other coordinates
                price = near / FAR_DISCOUNT if length > 10.0 * noise + 20.0 else max(price, near)
                continue
            self._observe(state, observed, score, matrix, whitened, length)
            state.matrix = round_matrix
            short_steps += 1
            is_round = not whitened.floored.any() and whitened.values.max() < 4.0 and whitened.values.min() > 0.25
            if price >= LOCATION_LIMITS[1] and (is_round or short_steps >= 4):
                return True
            near_enough = noise < 1.5 * math.sqrt(self.dimension) and not whitened.floored.any()
            if not thorough and price >= near and near_enough:
                return True
            # What looks like noise at a low price may be a step at a higher one.
            price = min(LOCATION_GROWTH * max(price, near), LOCATION_LIMITS[1])
        return False

    def finish(self, state: State, converged: bool, informed: bool = False) -> Laplace:
        """Spend what is left around the centre.

        If ``informed``, the bound of the scores is about known, and a short search is enough; so it is where no columns
        with long tails decide it.
        """
        informed = informed or not self.style.linear_size
        rest = self.left()
        public = self._public_bound(state, (1.0 - FINAL_CURVATURE) * rest)
        count_price = check_price = 0.0
        if public is not None:
            state.belief = None  # what was seen on the way was weighted down, and about another centre
        else:
            count_price, search_price = FINAL_COUNT * rest, FINAL_SEARCH * rest / (1.6 if informed else 1.0)
            check_price = FINAL_CHECK * rest if self.style.weighted else 0.0
            rest -= count_price + search_price + check_price
        for_scores = (1.0 - FINAL_CURVATURE) * rest
        if public is None:
            bound = self._score_bound(state, search_price, for_scores, tight=informed)
        surprises = []
        for share in FINAL_SHARES:
            state.rounds += 1
            if public is not None:
                bound = self.norm_bound(state.matrix) or public  # these coordinates are not quite the last ones
            matrix = self._curvature(state, bound, FINAL_CURVATURE * share * rest, on_the_way=False)
            matrix = self._combined(state, matrix)
            score = self.questions.score(
                state.theta, self._coordinates(state), bound, for_scores * share, weighted=self.style.weighted
            )
            whitened = self._whiten(state, matrix)
            step = self._step(state, score, whitened)
            length, _ = self._lengths(score, whitened, step)
            posterior = self._inverse(state, whitened)
            observed, round_matrix = self._moved(state, whitened, step)
            surprises.append(self._observe(state, observed, score, matrix, whitened, length))
            state.matrix = round_matrix
            self.report()
        settled = converged and surprises[-1] <= self.surprising()
        if public is not None:
            state.notes.append("No score was clipped or weighted down: public bounds of the features bound them all.")
            return self._result(state, posterior, settled, 0.0, whitened)
        return self._judged(state, posterior, settled, bound, count_price, check_price, for_scores, whitened)

    # -------------------------------------------------------------------------------------------------- parts

    def _coordinates(self, state: State) -> Affine:
        try:
            return Affine(state.theta, state.matrix)
        except QueryError:
            # Values that are absurd, or slopes without an end, make directions that nothing tells apart: keep them so.
            left, sizes, right = np.linalg.svd(np.nan_to_num(state.matrix / self.prior.sd[:, None]))
            sizes = np.maximum(sizes, 1e-9 * sizes.max(initial=1e-9))
            state.matrix = self.prior.sd[:, None] * ((left * sizes) @ right)
            return Affine(state.theta, state.matrix)

    def _score_bound(self, state: State, mu: float, for_score: float, tight: bool = False) -> float:
        """Choose the bound of one record's score: by the tail-count rule, or a share of the records with weights."""
        wanted = self.questions.wanted(for_score, self.style.weighted)
        found = self._bound(state, self.style.magnitude, wanted, mu, tight=tight)
        public = self.norm_bound(state.matrix) if self.style.weighted else None
        return found if public is None else min(found, public)

    def _public_bound(self, state: State, for_scores: float) -> float | None:
        """Return the public bound of the scores, if its noise is low; None if there is none, or weights are better.

        In these coordinates the curvature is about 1, so that the noise of the scores' sum, 2B/√(2μ), is the centre's
        in posterior sds. Without weights the centre is the posterior's own, whether or not the model holds; weighting
        down a tenth of the records moves it by about one sd of a real table of 50,000, and by more of a larger one.
        """
        bound = self.norm_bound(state.matrix) if self.style.weighted else None
        if bound is None or 2.0 * bound > PUBLIC_NOISE * math.sqrt(2.0 * for_scores):
            return None
        return bound

    def _bound(self, state: State, of: Magnitude, wanted: float, mu: float, **more: Any) -> float:
        """Search for a bound, near to the last one in coordinates like these if there is one."""
        coordinates = self._coordinates(state)
        found = self.questions.search(state.theta, coordinates, of, wanted, mu, state.bounds.get(of), **more)
        state.bounds[of] = found
        return found

    def _curvature(self, state: State, score_bound: float, mu: float, *, on_the_way: bool) -> Matrix:
        """Release the curvature of the likelihood in the current coordinates, and first find its bound."""
        information = self.style.information if on_the_way else self.style.information_at_last
        coordinates, wanted = self._coordinates(state), CURVATURE_CLIPPED[not on_the_way] * self.num_records
        more: dict[str, float] = {}
        if information:
            more["majorise"] = MAJORISE if on_the_way else 0.0
            if self.style.weighted:
                more["weight_bound"] = score_bound
        bound = self._bound(state, "information" if information else "curvature", wanted, 0.15 * mu, **more)
        return self.questions.curvature(state.theta, coordinates, bound, 0.85 * mu, information=information, **more)

    def _combined(self, state: State, matrix: Matrix) -> Matrix:
        """Average a curvature with those of earlier final rounds, which were asked near here."""
        inverse, weight = self._coordinates(state).inverse, matrix.noise_sd**-2
        value = matrix.value
        if state.curvature is not None:
            before, before_weight = state.curvature
            moved = state.matrix.T @ before @ state.matrix
            value = (weight * value + before_weight * moved) / (weight + before_weight)
            weight += before_weight
        state.curvature = (inverse.T @ value @ inverse, weight)
        return Matrix(value, weight**-0.5)

    def _whiten(self, state: State, matrix: Matrix) -> Whitened:
        """Add the prior's part, and raise eigenvalues to the size of the noise."""
        whole = matrix.value + state.matrix.T @ self.prior.precision(state.theta) @ state.matrix
        whole = np.clip(np.nan_to_num(whole + whole.T) / 2.0, -1e150, 1e150)  # of values that overflow
        values, vectors = np.linalg.eigh(whole)
        floor = matrix.noise_sd * math.sqrt(2.0 * self.dimension)
        # Where the likelihood bends the other way, far from the mode, its size still says how far to go.
        sizes = np.abs(values)
        return Whitened(vectors, np.maximum(sizes, floor), values < floor, floor)

    def _step(self, state: State, score: Score, whitened: Whitened) -> Array:
        """Return a Newton step, by eigenvectors; half of it, and not too far, where the curvature is not known."""
        slope = score.value + state.matrix.T @ self.prior.gradient(state.theta)
        step = (whitened.vectors.T @ slope) / whitened.values
        limit = 3.0 / np.sqrt(whitened.values)
        if not self.style.information:
            # A slope that is no noise, where the curvature is less than the floor: half of what that gives is short.
            limit = np.where(np.abs(whitened.vectors.T @ slope) > _CERTAIN * score.noise_sd, np.inf, limit)
        return np.where(whitened.floored, np.clip(0.5 * step, -limit, limit), step)

    def _lengths(self, score: Score, whitened: Whitened, step: Array) -> tuple[float, float]:
        """Return the length of a step, and the part of it that noise alone makes, in posterior sds."""
        length = float(np.linalg.norm(step * np.sqrt(whitened.values)))
        return length, math.sqrt(float(np.sum(score.noise_sd**2 / whitened.values)))

    def _inverse(self, state: State, whitened: Whitened) -> Array:
        """Return the inverse of a curvature, in θ."""
        roots = state.matrix @ (whitened.vectors / np.sqrt(whitened.values))
        return np.asarray(roots @ roots.T)

    def _usual(self, noise: float) -> float:
        """Return a length that steps made by noise alone rarely exceed: it is within 1/√(2d) of its own, and 2 more."""
        return noise * (1.0 + 3.0 / math.sqrt(2.0 * self.dimension)) + 2.0

    def _moved(self, state: State, whitened: Whitened, step: Array) -> tuple[Array, Array]:
        """Return where a step leads, and coordinates in which the curvature is the identity.

        But for columns that few records have a part in: these few would be far out in such coordinates, and clipped, so
        that their direction would look flatter than it is, and become wider still. So a column's width stays below what
        the sizes of the scores said of it, compared with a column that most have a part in.
        """
        farthest = FARTHEST * self.prior.sd
        move = np.clip(np.nan_to_num(state.matrix @ (whitened.vectors @ step)), -farthest, farthest)
        if not self.style.information:
            # The information is a trust region by itself. Any other likelihood may not be concave, and whole steps
            # would overshoot: nothing moves by more than a prior sd, or twice that in every further round of the kind.
            allowed = 2.0**state.capped / float(np.max(np.abs(move) / self.prior.sd, initial=1e-300))
            state.capped = state.capped + 1 if allowed < 1.0 else 0
            move = move * min(1.0, allowed)
        matrix = state.matrix @ (whitened.vectors / np.sqrt(whitened.values))
        if not state.partial.any():
            return state.theta + move, matrix
        ceiling = WIDEST_PARTIAL * state.relative * np.linalg.norm(matrix[state.usual])
        # Their curvature may be taken for too small: no step of theirs is very long, and none goes back by more than
        # half of the one before.
        limit = FARTHEST_PARTIAL * ceiling
        if state.last_move is not None:
            limit = np.where(move * state.last_move < 0.0, np.minimum(limit, 0.5 * np.abs(state.last_move)), limit)
        move = np.where(state.partial, np.clip(move, -limit, limit), move)
        state.last_move = move
        rows = matrix[state.partial] / ceiling[state.partial, None]
        values, vectors = np.linalg.eigh(np.eye(self.dimension) + rows.T @ rows)
        return state.theta + move, matrix @ (vectors / np.sqrt(values))

    def _observe(
        self, state: State, observed: Array, score: Score, matrix: Matrix, whitened: Whitened, length: float
    ) -> float:
        """Take a step's end as a noisy observation of the centre: noise of score and curvature, and curving.

        Return the χ² of the observation before it was believed.
        """
        size = len(observed)
        bend = 1.5 * self.questions.unit * length**2
        variances = score.noise_sd**2 / whitened.values + (matrix.noise_sd * length) ** 2 / whitened.values**2 / size
        roots = state.matrix @ (whitened.vectors / np.sqrt(whitened.values))
        by_noise = (roots * variances) @ roots.T
        covariance = by_noise + bend**2 / size * roots @ roots.T
        surprise = math.inf if state.belief is None else state.belief.surprise(observed, by_noise)
        if state.belief is None or surprise > self.surprising():
            # What was believed was wrong: begin again with the prior.
            sd = self.prior.sd
            is_far = bool(np.any(np.abs(observed - self.prior.center) > 6.0 * sd))
            state.belief = Belief(observed if is_far else self.prior.center, np.diag(sd**2))
        updated = state.belief.updated(observed, covariance)
        if np.all(np.isfinite(updated.mean)) and np.all(np.isfinite(updated.covariance)):
            state.belief = updated
        state.theta = state.belief.mean
        return surprise

    def surprising(self) -> float:
        """Return what a χ² of as many degrees of freedom as there are parameters hardly ever exceeds."""
        return float(chdtri(self.dimension, _BY_CHANCE))

    # ------------------------------------------------------------------------------------------------ judgement

    def _judged(
        self,
        state: State,
        posterior: Array,
        converged: bool,
        bound: float,
        count_price: float,
        check_price: float,
        for_scores: float,
        whitened: Whitened,
    ) -> Laplace:
        coordinates = self._coordinates(state)
        above, above_sd = self.questions.count(state.theta, coordinates, bound, count_price, self.style.magnitude)
        clipped: float | None = None
        clipped_sd: float | None = None
        shift = 0.0
        if self.style.weighted:
            state.notes.append(
                f"About {100.0 * max(above, 0.0) / self.num_records:.0f} % of the records have extreme features and "
                "were weighted down (by their features, never by their outcome); no score was clipped."
            )
            self._check_fit(state, check_price)
        else:
            clipped, clipped_sd = above / self.num_records, above_sd / self.num_records
            shift = 0.25 * max(above, self.questions.wanted(for_scores), 0.0) * bound
        return self._result(state, posterior, converged, shift, whitened, clipped, clipped_sd)

    def _result(
        self,
        state: State,
        posterior: Array,
        converged: bool,
        shift: float,
        whitened: Whitened,
        clipped: float | None = None,
        clipped_sd: float | None = None,
    ) -> Laplace:
        assert state.belief is not None
        clipping = shift**2 / self.dimension * posterior
        unknown = np.sqrt(np.diag(state.belief.covariance + clipping) / np.diag(posterior))
        wide = np.sqrt(np.diag(posterior)) > 0.3 * self.prior.sd
        self._flag(state, converged, whitened, shift, int(np.sum(unknown > _MOSTLY_NOISE)), int(sum(state.rare & wide)))
        return Laplace(
            mean=state.theta,
            posterior=posterior,
            noise=state.belief.covariance,
            clipping=clipping,
            converged=converged,
            rounds=state.rounds,
            reasons=tuple(state.reasons),
            notes=tuple(state.notes),
            prior_directions=self.prior_directions(state, posterior),
            clipped_share=clipped,
            clipped_share_sd=clipped_sd,
        )

    def _check_fit(self, state: State, mu: float) -> None:
        """Compare with clipped scores, which follow the records that the weights leave out: do they say the same?"""
        coordinates, wanted = self._coordinates(state), self.questions.wanted(0.7 * mu)
        bound = self._bound(state, "gradient", wanted, 0.3 * mu)
        score = self.questions.score(state.theta, coordinates, bound, 0.7 * mu, weighted=False)
        slope = score.value + state.matrix.T @ self.prior.gradient(state.theta)
        assert state.belief is not None
        known = coordinates.inverse @ state.belief.covariance @ coordinates.inverse.T
        covariance = known + (score.noise_sd**2 + (0.25 * wanted * bound) ** 2 / self.dimension) * np.eye(
            self.dimension
        )
        statistic = float(slope @ _solved(covariance, slope))
        if statistic > self.surprising():
            state.reasons.append(
                "Records with extreme features do not follow the model: weighted and clipped scores disagree "
                f"(χ² {statistic:.0f} for {self.dimension} parameters). Transform or bound the features, or add terms."
            )

    def _flag(self, state: State, converged: bool, whitened: Whitened, shift: float, drowned: int, rare: int) -> None:
        if not converged:
            state.reasons.append(
                f"The search did not settle in {state.rounds} rounds: the centre may be far off. A larger ε, more "
                "records, fewer parameters, or a start nearer to the posterior (init) would help; so would leaving out "
                "a column that decides the outcome alone."
            )
        if whitened.floored.any() or whitened.floor > 0.4:
            state.reasons.append(
                f"The curvature's noise ({whitened.floor:.2f}, where the curvature is 1) hides "
                f"{int(whitened.floored.sum())} of {self.dimension} directions: their sds are not known. Leave out "
                "rare or collinear columns, or use a larger ε or more records."
            )
        if rare:
            state.reasons.append(
                f"{rare} of {self.dimension} columns have too few records with a part in them: what is reported there "
                "is mostly the prior, and may be far from what these records say. Leave rare columns out, or join them."
            )
        if drowned:
            state.reasons.append(
                f"{drowned} of {self.dimension} parameters are mostly privacy noise, of more than {_MOSTLY_NOISE:.0f} "
                "posterior sds (see noise_share): their intervals say little. Leave out rare columns, or use a larger "
                "ε or more records."
            )
        if shift / math.sqrt(self.dimension) > 0.5:
            state.reasons.append(
                f"Clipping may have shifted the posterior by about {shift / math.sqrt(self.dimension):.1f} sds. Bound "
                "or transform features and outcomes with long tails."
            )

    def prior_directions(self, state: State, posterior: Array) -> Array:
        """Return directions of which the prior holds more than nine tenths, as columns in prior sds of length 1."""
        sizes, axes = np.linalg.eigh(posterior)
        roots = axes * np.sqrt(np.maximum(sizes, 0.0))
        part = roots.T @ self.prior.precision(state.theta) @ roots
        values, vectors = np.linalg.eigh((part + part.T) / 2.0)
        directions = (roots @ vectors[:, values > 0.9]) / self.prior.sd[:, None]
        return np.asarray(directions / np.maximum(np.linalg.norm(directions, axis=0), 1e-300))
