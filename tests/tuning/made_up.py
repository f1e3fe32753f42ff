"""A stand-in for the curator: an exactly Gaussian likelihood, given by its matrix, with noise of known size."""

import numpy as np

from dpmcmc.queries import ClipCount, CoordinateHistogram, Curvature, Gradient, Release
from dpmcmc.queries.histogram import Histograms
from dpmcmc.tuning import Prior, Style

TRACED = Style(weighted=False, information=False, information_at_last=False)


def gaussian_prior(center, sd):
    center, sd = np.asarray(center, float), np.asarray(sd, float)
    return Prior(center, sd, lambda theta: (center - theta) / sd**2, lambda theta: np.diag(sd**-2.0))


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

    def __call__(self, query, theta, coordinates):
        self.spent += query.mu
        assert self.spent <= self.total
        self.asked.append(query)
        seen = coordinates.matrix.T @ self.matrix @ coordinates.matrix
        apart = self.mode - theta
        # Residuals grow with the distance, as those of a linear regression do.
        growth = 1.0 + apart @ self.matrix @ apart / self.num_records
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
                return Release(self.noisy(coordinates.matrix.T @ self.matrix @ apart, sd), sd, query.mu)
            case Curvature():
                sd = query.sensitivity * query.noise_multiplier * np.where(np.eye(len(theta)), 1.0, 0.5**0.5)
                noise = np.triu(self.noisy(np.zeros_like(seen), sd))
                return Release(seen + noise + np.triu(noise, 1).T, sd, query.mu)
        raise AssertionError(f"{query.kind} is not asked of such a model")
