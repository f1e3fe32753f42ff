"""Questions at a price: what the tuning asks, each with the noise that its share of the budget buys."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dpmcmc.models import (
    LinearRegression,
    LogisticRegression,
    Model,
    NegativeBinomialRegression,
    PoissonRegression,
)
from dpmcmc.models.units import row_model
from dpmcmc.queries import (
    Affine,
    AnyRelease,
    ClipCount,
    CoordinateHistogram,
    Curvature,
    FisherInformation,
    Gradient,
    LogRatio,
    Query,
    ScoreMoments,
    WeightedGradient,
)
from dpmcmc.queries.quantile import Magnitude

Array = NDArray[np.float64]

# From far away the information is at least this share of |∂ℓ/∂η|: no predictor moves by much more than 3 in one step.
MAJORISE = 1.0 / 3.0
# Searches for a bound: range of exponents of 2, and how the price is divided among the counts.
WIDE, WIDE_SHARES = (-5.0, 11.0), (1, 1, 1, 2, 3, 4, 4)
NARROW, NARROW_SHARES = (-1.0, 2.0), (2, 3, 4)
TIGHT = (-0.5, 1.0)
# The same for the sizes of log-ratios between points that are far apart.
RATIOS, RATIO_SHARES = (-13.0, 19.0), (1, 1, 1, 1, 1)
# Records that a bound of the scores clips, in units of 2√(d/(2μ)): see `Questions.wanted`.
TAIL_FACTOR = 1.0
# Share of the records whose score is weighted down, where weights take the place of clipping.
WEIGHTED_DOWN = 0.1
# Bins of a factor of 4 for the scales of the scores, in prior sds.
SCALE_EXPONENTS = (-40, 40)


class Ask(Protocol):
    """Answers a question that it charges first."""

    def __call__(
        self, query: Query, theta: Array, coordinates: Affine | None, proposal: Array | None = None
    ) -> AnyRelease:
        """Return the release; ``proposal`` is the other end of a log-ratio."""
        ...


class Style(NamedTuple):
    """How a model's score and curvature are asked for.

    Attributes
    ----------
    weighted
        Logistic regression: weights that never clip, rather than clipping.
    information
        Whether the expected information (positive, closed form) serves as curvature on the way, …
    information_at_last
        … and for the sds in the end.
    linear_size
        So many coordinates, the first, belong to columns of a design; 0 for other models.
    """

    weighted: bool
    information: bool
    information_at_last: bool
    linear_size: int = 0

    @property
    def magnitude(self) -> Magnitude:
        """What the bound of a score is a bound on."""
        return "score_bound" if self.weighted else "gradient"

    @classmethod
    def of(cls, model: Model) -> Style:
        """Choose for a model (of rows, or of units of them), by its exact class: others are differentiated."""
        model = row_model(model)
        families = LinearRegression, LogisticRegression, PoissonRegression, NegativeBinomialRegression
        known = type(model) in families
        # At the mode the information of the first three is the curvature; of the negative binomial it is not.
        return cls(
            weighted=type(model) is LogisticRegression,
            information=known,
            information_at_last=known and type(model) is not NegativeBinomialRegression,
            linear_size=model.linear_size if isinstance(model, families) and known else 0,
        )


class Matrix(NamedTuple):
    """A noisy symmetric matrix, and the sd of the noise on its diagonal."""

    value: Array
    noise_sd: float


class Score(NamedTuple):
    """A noisy score sum, the sd of its noise in each coordinate, and the bound on one record's part."""

    value: Array
    noise_sd: float
    bound: float


@dataclass
class Asked:
    """What was asked, for the privacy statement: number of answers by kind and noise multiplier."""

    answers: Counter[tuple[str, float]] = field(default_factory=Counter)

    def add(self, query: Query) -> None:
        """Note one answer."""
        # Of a count the sensitivity is 1, so that its sd is its multiplier; of two releases in one, that of their cost.
        if isinstance(query, ScoreMoments):
            multiplier: float | None = math.sqrt(0.5 / query.mu)
        else:
            multiplier = getattr(query, "noise_multiplier", None) or getattr(query, "noise_sd", None)
        assert multiplier is not None
        self.answers[query.kind, float(multiplier)] += 1

    def labelled(self) -> dict[str, tuple[int, float]]:
        """Return number and multiplier by kind; kinds that were asked with several multipliers are numbered."""
        kinds = Counter(kind for kind, _ in self.answers)
        seen: Counter[str] = Counter()
        labelled = {}
        for (kind, multiplier), number in self.answers.items():
            seen[kind] += 1
            labelled[kind if kinds[kind] == 1 else f"{kind} ({seen[kind]})"] = (number, multiplier)
        return labelled


class Questions:
    """Asks in coordinates, for parts of the budget.

    Parameters
    ----------
    ask
        Charges and answers.
    style
        How this model is asked.
    num_records, dimension
        Public sizes.
    """

    def __init__(self, ask: Ask, style: Style, num_records: int, dimension: int) -> None:
        self._ask, self.style = ask, style
        self.num_records, self.dimension = num_records, dimension

    @property
    def unit(self) -> float:
        """√(d/n): about the norm of a record's score in coordinates in which the posterior is N(0, I)."""
        return math.sqrt(self.dimension / self.num_records)

    def programs(self, moments: bool = False) -> list[Query]:
        """Return one query of every kind that may be asked, so that all is compiled before anything is charged.

        With ``moments``, those of :meth:`score_and_moments` too.
        """
        bound, style = self.unit, self.style
        queries: list[Query] = [
            CoordinateHistogram(1.0, *SCALE_EXPONENTS),
            Gradient(bound, 1.0),
            ClipCount(bound, 1.0),
        ]
        if style.weighted:
            queries += [
                WeightedGradient(bound, 1.0),
                ClipCount(bound, 1.0, of="score_bound"),
                FisherInformation(bound, 1.0, weight_bound=bound),
                ClipCount(bound, 1.0, of="information", weight_bound=bound),
            ]
        elif style.information:
            queries += [FisherInformation(bound, 1.0), ClipCount(bound, 1.0, of="information")]
        if not style.information_at_last:
            queries += [Curvature(bound, 1.0), ClipCount(bound, 1.0, of="curvature")]
        if moments and not style.weighted:
            queries.append(ScoreMoments(bound, 1.0, 1.0))
        return queries

    def scales(self, theta: Array, coordinates: Affine, mu: float) -> tuple[Array, Array, float]:
        """Return noisy histograms of |score_j| (d × bins), the edges between bins, and the sd of the noise."""
        release = self._ask(CoordinateHistogram(multiplier_of(mu), *SCALE_EXPONENTS), theta, coordinates)
        return (
            np.asarray(release.value.histogram),
            np.asarray(release.value.edges).reshape(-1),
            float(np.ravel(release.noise_sd)[0]),
        )

    def count(
        self, theta: Array, coordinates: Affine, threshold: float, mu: float, of: Magnitude, **more: Any
    ) -> tuple[float, float]:
        """Return how many records exceed a threshold, and the sd of the noise on that."""
        release = self._ask(ClipCount(threshold, multiplier_of(mu), of=of, **more), theta, coordinates)
        return float(release.value), float(release.noise_sd)

    def wanted(self, for_scores: float, weighted: bool = False) -> float:
        """Return how many records a bound of the scores should clip, where so much is spent on their sums; or weight.

        Clipping T records shifts the sum by about T bounds, and noise is 2·bound·√(d/(2μ)) long: at T = 2√(d/(2μ)) one
        more record clipped shifts the centre as much as it saves in noise.
        """
        if weighted:
            return WEIGHTED_DOWN * self.num_records
        return TAIL_FACTOR * 2.0 * math.sqrt(self.dimension / (2.0 * for_scores))

    def search(
        self,
        theta: Array,
        coordinates: Affine,
        of: Magnitude,
        wanted: float,
        mu: float,
        about: float | None = None,
        *,
        tight: bool = False,
        **more: Any,
    ) -> float:
        """Return a bound that about ``wanted`` records exceed, by noisy counts that halve a range of exponents.

        The first counts need no precision, so that most of the price goes to the last. No fewer records are asked for
        than three sds of a count's noise. With a bound from before (``about``) the range is narrow: fewer counts, each
        of them better, and none can lead far astray; narrower still if that one was good (``tight``). In units of
        √(d/n), or d/n for matrices.
        """
        unit, octaves = (self.unit**2, 2.0) if of == "curvature" else (self.unit, 1.0)
        low, high = (octaves * exponent for exponent in WIDE)
        shares: tuple[int, ...] = WIDE_SHARES
        if about is not None:
            low, high = (math.log2(about / unit) + octaves * exponent for exponent in (TIGHT if tight else NARROW))
            shares = NARROW_SHARES
        for share in shares:
            middle = (low + high) / 2.0
            found, noise_sd = self.count(theta, coordinates, unit * 2.0**middle, mu * share / sum(shares), of, **more)
            if found > max(wanted, 3.0 * noise_sd):
                low = middle
            else:
                high = middle
        return float(unit * 2.0**high)

    def log_ratio(
        self, theta: Array, proposal: Array, wanted: float, mu: float, mu_search: float
    ) -> tuple[float, float]:
        """Return Σ ln p(x|θ') − ln p(x|θ) and its noise's sd, clipped where about ``wanted`` records are at most."""
        low, high = RATIOS
        for share in RATIO_SHARES:
            middle = (low + high) / 2.0
            query = ClipCount(2.0**middle, multiplier_of(mu_search * share / sum(RATIO_SHARES)), of="log_ratio")
            release = self._ask(query, theta, None, proposal)
            if float(release.value) > max(wanted, 3.0 * float(release.noise_sd)):
                low = middle
            else:
                high = middle
        bound = 2.0**high / float(np.linalg.norm(proposal - theta))
        release = self._ask(LogRatio(bound, multiplier_of(mu)), theta, None, proposal)
        return float(release.value), float(release.noise_sd)

    def score(self, theta: Array, coordinates: Affine, bound: float, mu: float, *, weighted: bool) -> Score:
        """Return the score sum, weighted or clipped."""
        kind = WeightedGradient if weighted else Gradient
        release = self._ask(kind(bound, multiplier_of(mu)), theta, coordinates)
        return Score(np.asarray(release.value), float(release.noise_sd), bound)

    def score_and_moments(
        self, theta: Array, coordinates: Affine, bound: float, mu: float, mu_moments: float
    ) -> tuple[Score, Matrix]:
        """Return the score sum and the second moments of the scores: with weights, what stands for both."""
        if self.style.weighted:
            score = self.score(theta, coordinates, bound, mu, weighted=True)
            matrix = self.curvature(theta, coordinates, bound, mu_moments, information=True, weight_bound=bound)
            return score, matrix
        release = self._ask(ScoreMoments(bound, multiplier_of(mu), multiplier_of(mu_moments)), theta, coordinates)
        value, sd = release.value, release.noise_sd
        return (
            Score(np.asarray(value.score_sum), float(np.max(sd.score_sum)), bound),
            Matrix(np.asarray(value.second_moment), float(np.max(sd.second_moment))),
        )

    def curvature(
        self,
        theta: Array,
        coordinates: Affine,
        bound: float,
        mu: float,
        *,
        information: bool,
        majorise: float = 0.0,
        weight_bound: float | None = None,
    ) -> Matrix:
        """Return the curvature of the likelihood, clipped."""
        query: Query
        if information:
            query = FisherInformation(bound, multiplier_of(mu), majorise, weight_bound)
        else:
            query = Curvature(bound, multiplier_of(mu))
        release = self._ask(query, theta, coordinates)
        return Matrix(np.asarray(release.value), float(np.max(release.noise_sd)))


def multiplier_of(mu: float) -> float:
    """Return τ with 1/(2τ²) just below a price."""
    return math.sqrt(0.5 / mu) * (1.0 + 1e-9)
