"""Stand-ins for the curator: an exactly Gaussian likelihood, or ½‖ψ‖² of any map, with noise of known size."""

import numpy as np

from dpmcmc.queries import (
    ClipCount,
    CoordinateHistogram,
    Curvature,
    FisherInformation,
    Gradient,
    LogRatio,
    Release,
    ScoreMoments,
)
from dpmcmc.queries.histogram import Histograms
from dpmcmc.queries.moments import Moments
from dpmcmc.tuning import Prior, Style

TRACED = Style(weighted=False, information=False, information_at_last=False)


def gaussian_prior(center, sd):
    center, sd = np.asarray(center, float), np.asarray(sd, float)
    return Prior(
        center,
        sd,
        lambda theta: (center - theta) / sd**2,
        lambda theta: np.diag(sd**-2.0),
        lambda theta: float(-0.5 * np.sum(((theta - center) / sd) ** 2)),
    )


class GaussianRecords:
    """n records whose scores add up to H(θ̂ − θ) and whose curvatures add up to H.

    In any coordinates their scores and curvatures are as long as they must be on average, times factors between 0 and
    1.7; nothing is clipped, so that all that is wrong with an answer is its noise.

    Parameters
    ----------
    matrix, mode
        H and θ̂.
    num_records
        n.
    total
        The budget, μ.
    generator
        Of the noise.
    false_bin
        A bin of the scales of the second coordinate that seems to be full, by noise alone.
    """

    def __init__(self, matrix, mode, num_records, total, generator, false_bin=None):
        self.matrix, self.mode, self.num_records = matrix, mode, num_records
        self.total, self.spent, self.generator, self.false_bin = total, 0.0, generator, false_bin
        self.asked = []

    def left(self):
        return self.total - self.spent

    def noisy(self, value, sd):
        value = np.asarray(value, float)
        return value + sd * self.generator.normal(size=value.shape)

    def noisy_matrix(self, value, sd):
        """With noise of this sd on the diagonal, and divided by √2 off it."""
        noise = np.triu(self.noisy(np.zeros_like(value), sd * np.where(np.eye(len(value)), 1.0, 0.5**0.5)))
        return value + noise + np.triu(noise, 1).T

    def curvature_and_score(self, theta):
        return self.matrix, self.matrix @ (self.mode - theta)

    def height(self, theta):
        """Minus the log-likelihood, above its lowest."""
        return 0.5 * (self.mode - theta) @ self.matrix @ (self.mode - theta)

    def __call__(self, query, theta, coordinates, proposal=None):
        self.spent += query.mu
        assert self.spent <= self.total
        self.asked.append(query)
        if proposal is not None:
            return self.compared(query, theta, proposal)
        matrix, score = self.curvature_and_score(theta)
        seen, score = coordinates.matrix.T @ matrix @ coordinates.matrix, coordinates.matrix.T @ score
        # Residuals grow with the distance, as those of a linear regression do.
        growth = 1.0 + 2.0 * self.height(theta) / self.num_records
        match query:
            case CoordinateHistogram():
                sd, edges = query.sensitivity(len(theta)) * query.noise_multiplier, np.array(query.edges)
                sizes = np.sqrt(growth * np.diag(seen) / self.num_records)
                counts = np.zeros((len(theta), len(edges) + 1))
                counts[np.arange(len(theta)), np.searchsorted(edges, sizes, side="right")] = self.num_records
                histogram = self.noisy(counts, sd)
                if self.false_bin is not None:
                    histogram[1, self.false_bin] = 4.6 * sd
                return Release(Histograms(histogram, edges), sd, query.mu)
            case ClipCount():
                usual = np.trace(seen) / self.num_records
                usual = np.sqrt(growth * usual) if query.of == "gradient" else usual
                above = self.num_records * np.clip(1.0 - query.threshold / (1.7 * usual), 0.0, 1.0)
                return Release(self.noisy(above, query.noise_sd), query.noise_sd, query.mu)
            case Gradient():
                sd = query.sensitivity * query.noise_multiplier
                return Release(self.noisy(score, sd), sd, query.mu)
            case ScoreMoments():
                of_sum, of_matrix = query.sensitivity
                sd, matrix_sd = of_sum * query.noise_multiplier, of_matrix * query.matrix_noise_multiplier
                value = Moments(self.noisy(score, sd), self.noisy_matrix(growth * seen, matrix_sd))
                return Release(value, Moments(sd, matrix_sd), query.mu)
            case Curvature() | FisherInformation():
                sd = query.sensitivity * query.noise_multiplier
                return Release(self.noisy_matrix(seen, sd), sd, query.mu)
        raise AssertionError(f"{query.kind} is not asked of such a model")

    def compared(self, query, theta, proposal):
        """Log-ratios: of about the same size for all records."""
        difference = self.height(theta) - self.height(proposal)
        if isinstance(query, ClipCount):
            above = self.num_records * np.clip(2.0 - self.num_records * query.threshold / abs(difference), 0.0, 1.0)
            return Release(self.noisy(above, query.noise_sd), query.noise_sd, query.mu)
        assert isinstance(query, LogRatio)
        clip = query.bound * np.linalg.norm(proposal - theta)
        sd = 2.0 * clip * query.noise_multiplier
        limit = self.num_records * clip
        return Release(self.noisy(np.clip(difference, -limit, limit), sd), sd, query.mu)


class BentRecords(GaussianRecords):
    """n records of which minus the log-likelihood is ½‖ψ(θ)‖², and whose scores' second moments are JᵀJ.

    Parameters
    ----------
    psi, jacobian
        ψ and its derivative J, functions of θ.
    num_records, total, generator
        As above.
    """

    def __init__(self, psi, jacobian, num_records, total, generator):
        super().__init__(None, None, num_records, total, generator)
        self.psi, self.jacobian = psi, jacobian

    def curvature_and_score(self, theta):
        slope = self.jacobian(theta)
        return slope.T @ slope, -slope.T @ self.psi(theta)

    def height(self, theta):
        return 0.5 * np.sum(self.psi(theta) ** 2)
