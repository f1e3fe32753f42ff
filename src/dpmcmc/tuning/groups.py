r"""Group effects u ~ N(0, s²) whose scale s is unknown: no mode to find, but nothing to ask either.

As s → 0 with all effects at 0 the joint density has no end, so that a search for its mode runs away where groups hardly
differ. But s has no part in the likelihood. So the search is done under a *reference prior*, wide and Gaussian, under
which s stands apart; and what it finds, a Gaussian in all else, is brought under the model's own prior afterwards:

    p(θ, s) ∝ N(θ; m, Σ) · N(u; 0, s²) / N(u; 0, R²) · p(s).

Given s that is Gaussian, and its integral over u has a closed form: s is drawn from a grid, and θ after it. All of it
is public, and exact for the Gaussian that was found.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmcmc.models import Model, RegressionModel
from dpmcmc.tuning.prior import Prior
from dpmcmc.tuning.questions import Style

Array = NDArray[np.float64]

WIDER = 4.0
"""Sd R of the reference prior, in units of the scale of the prior of s."""
LARGEST, SMALLEST, NUM_SCALES = 3.0, 1e-3, 400
"""The grid of s, in the same units: beyond three of them there is 0.3 % of a half-normal prior."""


class Groups(NamedTuple):
    """Where effects and scale stand in the unconstrained vector, and the scale of the prior of s."""

    effects: slice
    scale: int
    prior_scale: float

    @classmethod
    def of(cls, model: Model) -> Groups | None:
        """Return what there is to know of a regression with groups; None of any other model, a derived class too."""
        if not Style.of(model).linear_size or not isinstance(model, RegressionModel) or not model.num_groups:
            return None
        slices = model.parameter_slices
        return cls(slices["group_effects"], slices["group_scale"].start, model.prior_scale)

    def reference(self, prior: Prior) -> Prior:
        """Return the reference prior: that of the model for all but the groups, of which s and the effects are apart.

        Under the model's own prior a slope by u is −u/s², and one by ln s that of s and of u given s.
        """
        width, place = WIDER * self.prior_scale, math.log(self.prior_scale)
        center, sd = prior.center.copy(), prior.sd.copy()
        center[self.effects], sd[self.effects] = 0.0, width
        center[self.scale], sd[self.scale] = place, 1.0
        own = np.zeros(len(center), bool)
        own[self.effects], own[self.scale] = True, True

        def others(theta: Array) -> Array:
            """Where the rest of the model's prior is asked: it does not depend on the groups."""
            return np.where(own, center, theta)

        def gradient(theta: Array) -> Array:
            return np.asarray(np.where(own, (center - theta) / sd**2, prior.gradient(others(theta))))

        def precision(theta: Array) -> Array:
            matrix = prior.precision(others(theta))
            matrix = np.where(own[:, None] | own[None, :], 0.0, matrix)
            return np.asarray(matrix + np.diag(np.where(own, sd**-2.0, 0.0)))

        def log_density(theta: Array) -> float:
            apart = np.where(own, (theta - center) / sd, 0.0)
            return prior.log_density(others(theta)) - 0.5 * float(apart @ apart)

        return Prior(center, sd, gradient, precision, log_density)

    def draw(self, generator: np.random.Generator, mean: Array, covariance: Array, number: int) -> Array:
        """Draw from N(m, Σ), found under the reference prior, brought under the model's own.

        With λ and V the eigenvalues and -vectors of u's part of Σ, m̃ = Vᵀm and D = 1/s² − 1/R², the integral over u is
        Π (R/s) (1 + Dλ)^−½ exp(−½ D m̃²/(1 + Dλ)), and Vᵀu given s is N(m̃/(1 + Dλ), λ/(1 + Dλ)).
        """
        u = np.arange(len(mean))[self.effects]
        rest = np.array([place for place in range(len(mean)) if place not in (*u, self.scale)], int)
        values, vectors = np.linalg.eigh(covariance[np.ix_(u, u)])
        values, turned = np.maximum(values, 1e-300), vectors.T @ mean[u]
        scales = self.prior_scale * np.geomspace(SMALLEST, LARGEST, NUM_SCALES)
        extra = scales**-2.0 - (WIDER * self.prior_scale) ** -2.0
        shrunk = 1.0 + extra[:, None] * values
        heights = -0.5 * np.sum(np.log(shrunk) + extra[:, None] * turned**2 / shrunk, axis=1)
        heights += -len(u) * np.log(scales) - 0.5 * (scales / self.prior_scale) ** 2 + np.log(scales)  # by ln s
        weights = np.exp(heights - heights.max())
        weights = 0.5 * (weights[1:] + weights[:-1])
        cells = generator.choice(len(weights), number, p=weights / weights.sum())
        log_scales = np.log(scales)
        chosen = np.exp(log_scales[cells] + generator.random(number) * np.diff(log_scales)[0])
        shrunk = 1.0 + (chosen**-2.0 - (WIDER * self.prior_scale) ** -2.0)[:, None] * values
        noise = generator.standard_normal((number, len(u)))
        effects = (turned / shrunk + np.sqrt(values / shrunk) * noise) @ vectors.T
        draws = np.empty((number, len(mean)))
        draws[:, u], draws[:, self.scale] = effects, np.log(chosen)
        gain = covariance[np.ix_(rest, u)] @ (vectors / values) @ vectors.T
        left = covariance[np.ix_(rest, rest)] - gain @ covariance[np.ix_(u, rest)]
        spread, axes = np.linalg.eigh((left + left.T) / 2.0)
        root = axes * np.sqrt(np.maximum(spread, 0.0))
        standard = generator.standard_normal((number, len(rest)))
        draws[:, rest] = mean[rest] + (effects - mean[u]) @ gain.T + standard @ root.T
        return draws
