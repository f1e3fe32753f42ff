r"""Fit a public surrogate ½‖ψ(u)‖² of minus the log-likelihood to released scores and second moments of scores.

At a query point u, in local coordinates L (θ = m + C (u + L z)), with J the derivative of ψ, the releases are

    score   = −Lᵀ Jᵀ ψ  + noise of known sd,
    moments =  Lᵀ Jᵀ J L + noise of known sd.

The second equation is Fisher's, true of a model that fits the data; a tolerance β (relative, chosen by evidence) is its
leave to be wrong. Moments are cheap and say how ψ bends; scores mostly say where it is zero. The weights of ψ have a
Gaussian prior, wide for degrees 0 and 1, of a scale chosen by evidence for every higher one. The fit is Gauss–Newton's,
and the weights' posterior the Gaussian that belongs to it. ψ is known up to a rotation only, so that the linear part is
kept lower triangular.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import chdtrc

from dpmcmc.surrogate import Form, Surrogate

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

TOLERANCES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""What β may be."""
# Prior sds of the weights of low degree. In coordinates around the posterior ψ is about N(0, I) under it. A wider prior
# of the constant would let it be anything in a direction that the data say nothing about, times a slope near nothing.
_WIDE = {0: 3.0, 1: 3.0}
_SMALLEST_SCALE, _LARGEST_SCALE = 1e-3, 30.0


class Observation(NamedTuple):
    """What was released at one point.

    Attributes
    ----------
    theta, matrix
        The point, and the local coordinates in which it was asked, θ + matrix·z.
    score, score_sd
        Noisy sum of the records' scores in z, and the noise's sd.
    moments, moments_sd
        Noisy second moments of the scores in z, and the sd of the noise on the diagonal (off it: divided by √2).
    """

    theta: Array
    matrix: Array
    score: Array
    score_sd: float
    moments: Array
    moments_sd: float


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates u with θ = center + matrix·u, in which a map is fitted."""

    center: Array
    matrix: Array

    def to_theta(self, u: Array) -> Array:
        """θ of one u or of many."""
        return np.asarray(self.center + u @ self.matrix.T)

    def to_u(self, theta: Array) -> Array:
        """U of one θ or of many."""
        return np.asarray(np.linalg.solve(self.matrix, (theta - self.center).T).T)

    def moved(self, mean: Array, root: Array) -> Frame:
        """Return coordinates with their centre at u = mean, and ``root`` as new axes."""
        return Frame(self.to_theta(mean), self.matrix @ root)


def polynomials(form: Form, u: Array) -> tuple[Array, Array]:
    """Return all polynomials (points × polynomials) and their derivatives (points × d × polynomials)."""
    powers, norms = form.powers, form.norms
    values = np.ones((*u.shape, form.degree + 1))
    values[..., 1] = u
    for n in range(1, form.degree):
        values[..., n + 1] = u * values[..., n] - n * values[..., n - 1]
    slopes = np.zeros_like(values)
    slopes[..., 1:] = values[..., :-1] * np.arange(1, form.degree + 1)
    place = np.arange(form.dimension)
    factors, sloped = values[:, place, powers], slopes[:, place, powers]  # points × polynomials × d
    derivatives = np.empty((len(u), form.dimension, len(powers)))
    for axis in range(form.dimension):
        one = factors[:, :, axis].copy()
        factors[:, :, axis] = sloped[:, :, axis]
        derivatives[:, axis] = factors.prod(axis=2) * norms
        factors[:, :, axis] = one
    return factors.prod(axis=2) * norms, derivatives


class _Data:
    """Observations in the coordinates of a frame, with the polynomials at their points."""

    def __init__(self, form: Form, frame: Frame, observations: Sequence[Observation]) -> None:
        inverse = np.linalg.inv(frame.matrix)
        self.u = frame.to_u(np.array([seen.theta for seen in observations]))
        self.local = np.array([inverse @ seen.matrix for seen in observations])
        self.score = np.array([seen.score for seen in observations])
        self.score_sd = np.array([seen.score_sd for seen in observations])
        moments = np.array([seen.moments for seen in observations])
        row, column = np.triu_indices(form.dimension)
        self.row, self.column, self.diagonal = row, column, row == column
        self.moments = moments[:, row, column]
        self.moments_sd = np.where(self.diagonal, 1.0, math.sqrt(0.5)) * np.array(
            [[seen.moments_sd] for seen in observations]
        )
        sizes = np.maximum(np.einsum("nii->ni", moments), 0.1)
        self.size = np.sqrt(sizes[:, row] * sizes[:, column]) * np.where(self.diagonal, 1.0, math.sqrt(0.5))
        self.values, derivatives = polynomials(form, self.u)
        self.derivatives = np.einsum("nai,nam->nim", self.local, derivatives)  # by z


class _Residuals(NamedTuple):
    """Residuals in units of their sds, and their derivatives by the free weights."""

    score: Array
    moments: Array
    log_sds: float
    score_slopes: Array | None = None
    moments_slopes: Array | None = None

    @property
    def sum_of_squares(self) -> float:
        return float(np.sum(self.score**2) + np.sum(self.moments**2))


def _free(form: Form) -> Mask:
    """Which weights are free: all but those of the linear part above its diagonal."""
    free = np.ones((form.dimension, len(form.powers)), bool)
    free[:, 1 : form.dimension + 1] = np.tril(np.ones((form.dimension, form.dimension), bool))
    return free


def _residuals(form: Form, free: Mask, weights: Array, data: _Data, tolerance: float, slopes: bool) -> _Residuals:
    psi = data.values @ weights.T
    jacobian = np.einsum("nim,am->nai", data.derivatives, weights)
    score_sd = data.score_sd[:, None]
    score = (data.score + np.einsum("nai,na->ni", jacobian, psi)) / score_sd
    moments_sd = np.sqrt(data.moments_sd**2 + (tolerance * data.size) ** 2)
    first, second = jacobian[:, :, data.row], jacobian[:, :, data.column]
    moments = (np.einsum("nap,nap->np", first, second) - data.moments) / moments_sd
    log_sds = float(np.log(moments_sd).sum() + form.dimension * np.log(data.score_sd).sum())
    if not slopes:
        return _Residuals(score, moments, log_sds)
    by_score = np.einsum("nim,na->niam", data.derivatives, psi) + np.einsum("nai,nm->niam", jacobian, data.values)
    by_moments = np.einsum("npm,nap->npam", data.derivatives[:, data.row], second)
    by_moments += np.einsum("npm,nap->npam", data.derivatives[:, data.column], first)
    return _Residuals(
        score,
        moments,
        log_sds,
        (by_score / score_sd[:, :, None, None])[:, :, free].reshape(score.size, -1),
        (by_moments / moments_sd[:, :, None, None])[:, :, free].reshape(moments.size, -1),
    )


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted map, and how sure its weights are.

    Attributes
    ----------
    form, frame
        Which polynomials, in which coordinates.
    mean
        The free weights at the mode.
    factor
        Lower Cholesky factor of the free weights' posterior precision.
    tolerance, scales
        β, and the prior scales of the weights of degree 2 and up: chosen by evidence.
    log_evidence
        Of the observations, by Laplace's approximation.
    score_surprise, moments_surprise
        Probabilities that chance alone makes residuals as large as those seen.
    """

    form: Form
    frame: Frame
    mean: Array
    factor: Array
    tolerance: float
    scales: tuple[float, ...]
    log_evidence: float
    score_surprise: float
    moments_surprise: float

    def weights(self, free_weights: Array | None = None) -> Array:
        """All weights (d × polynomials) of the mode, or of one or many vectors of free weights."""
        vectors = self.mean if free_weights is None else free_weights
        free = _free(self.form)
        whole = np.zeros((*vectors.shape[:-1], *free.shape))
        whole[..., free] = vectors
        return whole

    def drawn(self, generator: np.random.Generator, number: int) -> Array:
        """Draw free weights from their posterior."""
        standard = generator.standard_normal((len(self.mean), number))
        return np.asarray(self.mean + solve_triangular(self.factor, standard, lower=True, trans="T").T)

    def surrogate(self) -> Surrogate:
        """Return the map at the mode."""
        return Surrogate(self.form, self.frame.center, self.frame.matrix, self.weights())

    def psi(self, u: Array) -> Array:
        """ψ at the mode, at many points (points × d)."""
        return np.asarray(polynomials(self.form, u)[0] @ self.weights().T)

    def jacobians(self, u: Array) -> Array:
        """J at the mode, at many points (points × d × d)."""
        return np.einsum("nim,am->nai", polynomials(self.form, u)[1], self.weights())

    def predicts(self, observations: Sequence[Observation]) -> tuple[float, float]:
        """Probabilities that chance makes new scores, and new moments, differ so much from what was predicted."""
        data = _Data(self.form, self.frame, observations)
        found = _residuals(self.form, _free(self.form), self.weights(), data, self.tolerance, True)
        return (
            self._surprise(found.score, found.score_slopes),
            self._surprise(found.moments, found.moments_slopes),
        )

    def _surprise(self, residuals: Array, slopes: Array | None) -> float:
        assert slopes is not None
        spread = solve_triangular(self.factor, slopes.T, lower=True)
        covariance = np.eye(residuals.size) + spread.T @ spread
        vector = residuals.reshape(-1)
        return chance_of_more(vector @ np.linalg.solve(covariance, vector), residuals.size)


def chance_of_more(total: ArrayLike, freedom: int) -> float:
    """Return the chance that χ² with ``freedom`` degrees of freedom is above ``total``.

    As ``scipy.stats.chi2.sf``, without ``scipy.stats``, which takes about as long to load as JAX.

    Examples
    --------
    >>> round(chance_of_more(5.991, 2), 4)
    0.05
    """
    return float(chdtrc(freedom, np.maximum(total, 0.0)))


def fit_map(
    form: Form,
    frame: Frame,
    observations: Sequence[Observation],
    like: Fit | None = None,
    before: Fit | None = None,
) -> Fit:
    """Fit a map; tolerance and scales by evidence.

    Parameters
    ----------
    form, frame
        Which polynomials, in which coordinates.
    observations
        What was released.
    like
        A fit of the degree below, in the same coordinates, to begin from; the linear map z = u is tried too.
    before
        An earlier fit, in any coordinates: another point to begin from, if it is of no higher degree.
    """
    data, free = _Data(form, frame, observations), _free(form)
    begin = np.zeros(free.shape)
    begin[:, 1 : form.dimension + 1] = np.eye(form.dimension)
    problem = _Problem(form, frame, data, free, begin[free])
    scales = (0.3,) * (form.degree - 1)
    best = problem.solve(problem.start, TOLERANCES[0], scales)
    if like is not None:
        whole = np.zeros(free.shape)
        whole[:, : len(like.form.powers)] = like.weights()
        other = problem.solve(whole[free], TOLERANCES[0], (*like.scales, 0.1))
        best = max(best, other, key=lambda one: one.log_evidence)
    if before is not None and 1 < before.form.degree <= form.degree:
        scales = (*before.scales, *(0.1,) * (form.degree - before.form.degree))
        other = problem.solve(_moved(before, form, frame, data.u)[free], before.tolerance, scales)
        best = max(best, other, key=lambda one: one.log_evidence)
    for _ in range(6):
        before = best
        best = problem.better_scales(best)
        best = problem.better_tolerance(best)
        if best.log_evidence < before.log_evidence + 0.5:
            break
    return best


def _moved(fit: Fit, form: Form, frame: Frame, u: Array) -> Array:
    """Return weights of about the same surrogate in other coordinates: the same at some points, and its linear part
    triangular again (ψ may be turned by any rotation, which ½‖ψ‖² does not notice).
    """
    around = np.concatenate([u, 1.5 * u, u[::-1] - u])
    psi = fit.psi(fit.frame.to_u(frame.to_theta(around)))
    weights = np.linalg.lstsq(polynomials(form, around)[0], psi, rcond=None)[0].T
    rotation = np.linalg.qr(weights[:, 1 : form.dimension + 1][:, ::-1])[0].T[::-1]
    turned = rotation @ weights
    return np.asarray(np.where(np.diag(turned[:, 1 : form.dimension + 1]) < 0.0, -1.0, 1.0)[:, None] * turned)


class _Problem:
    """One fit: everything but tolerance and scales."""

    def __init__(self, form: Form, frame: Frame, data: _Data, free: Mask, start: Array) -> None:
        self.form, self.frame, self.data, self.free, self.start = form, frame, data, free, start
        degrees = np.broadcast_to(form.powers.sum(axis=1), free.shape)
        self.degrees = degrees[free]

    def better_scales(self, fit: Fit) -> Fit:
        """Take each degree's scale to be that of its weights, over so many of them as the data decide (MacKay's)."""
        if not fit.scales:
            return fit
        inverse = solve_triangular(fit.factor, np.eye(len(fit.mean)), lower=True)
        variances = np.sum(inverse**2, axis=0)
        scales = []
        for degree, scale in enumerate(fit.scales, start=2):
            of_degree = self.degrees == degree
            decided = float(np.sum(1.0 - variances[of_degree] / scale**2))
            size = float(np.sum(fit.mean[of_degree] ** 2))
            new = math.sqrt(size / decided) if decided > 0.02 * of_degree.sum() else 0.3 * scale
            scales.append(float(np.clip(new, _SMALLEST_SCALE, _LARGEST_SCALE)))
        return max(fit, self.solve(fit.mean, fit.tolerance, tuple(scales)), key=lambda one: one.log_evidence)

    def better_tolerance(self, fit: Fit) -> Fit:
        """Raise or lower the tolerance while that is better."""
        for step in (1, -1):
            while True:
                place = TOLERANCES.index(fit.tolerance) + step
                if not 0 <= place < len(TOLERANCES):
                    break
                other = self.solve(fit.mean, TOLERANCES[place], fit.scales)
                if other.log_evidence <= fit.log_evidence:
                    break
                fit = other
        return fit

    def solve(self, start: Array, tolerance: float, scales: tuple[float, ...]) -> Fit:
        """Gauss–Newton with Levenberg's damping."""
        by_degree = {**_WIDE, **dict(enumerate(scales, start=2))}
        precision = np.array([by_degree[degree] ** -2.0 for degree in self.degrees.tolist()])

        def cost(vector: Array) -> float:
            found = _residuals(self.form, self.free, self._whole(vector), self.data, tolerance, False)
            return 0.5 * found.sum_of_squares + 0.5 * float(np.sum(precision * (vector - self.start) ** 2))

        vector, damping = start, 1e-3
        value = cost(vector)
        for _ in range(40):
            found, hessian, slope = self._normal(vector, tolerance, precision)
            gained = 0.0
            while damping < 1e12:
                step = -cho_solve((_factor(hessian + damping * np.diag(np.diag(hessian))), True), slope)
                new = cost(vector + step)
                if new <= value:
                    vector, gained, value = vector + step, value - new, new
                    damping = max(damping / 10.0, 1e-9)
                    break
                damping *= 6.0
            if gained < 1e-2:
                break
        found, hessian, _ = self._normal(vector, tolerance, precision)
        factor = _factor(hessian)
        return Fit(
            self.form,
            self.frame,
            vector,
            factor,
            tolerance,
            scales,
            -value - found.log_sds + 0.5 * float(np.log(precision).sum()) - float(np.log(np.diag(factor)).sum()),
            *self._surprises(found),
        )

    def _normal(self, vector: Array, tolerance: float, precision: Array) -> tuple[_Residuals, Array, Array]:
        found = _residuals(self.form, self.free, self._whole(vector), self.data, tolerance, True)
        assert found.score_slopes is not None
        assert found.moments_slopes is not None
        hessian = found.score_slopes.T @ found.score_slopes + found.moments_slopes.T @ found.moments_slopes
        slope = found.score_slopes.T @ found.score.reshape(-1) + found.moments_slopes.T @ found.moments.reshape(-1)
        return found, hessian + np.diag(precision), slope + precision * (vector - self.start)

    def _surprises(self, found: _Residuals) -> tuple[float, float]:
        """Of residuals at the mode. Each degree of freedom that was fitted is taken from the scores, as far as it is.

        (Weights are fitted to both; leaving out none of the scores' own would make them look too good.)
        """
        scores = found.score.size
        return (
            chance_of_more(np.sum(found.score**2), scores),
            chance_of_more(np.sum(found.moments**2), found.moments.size),
        )

    def _whole(self, vector: Array) -> Array:
        whole = np.zeros(self.free.shape)
        whole[self.free] = vector
        return whole


def _factor(matrix: Array) -> Array:
    """Lower Cholesky factor; a matrix that rounding has made indefinite gets a little on its diagonal."""
    added = 0.0
    while True:
        try:
            return np.asarray(np.linalg.cholesky(matrix + added * np.diag(np.diag(matrix))), np.float64)
        except np.linalg.LinAlgError:
            added = max(10.0 * added, 1e-12)
            if added > 1.0:
                raise
