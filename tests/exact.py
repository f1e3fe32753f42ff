"""Is a run near the exact posterior? Its moments by quadrature, and a distance with a known distribution."""

import numpy as np

from dpmcmc.results import arviz_bridge

LIMIT = 6.5
"""What `distance` may be for a run that samples the exact posterior.

Each of its two parts is a standard normal variable there, but for ArviZ's effective sample size, which is itself an
estimate, usually within a quarter. Even overestimated by 1.8, the limit stands for 6.5/√1.8 = 4.84 sds: a false failure
with probability 1.3e-6 for each of the at most six numbers that a test compares, 8e-6 together.
"""


def moments(log_density, center, num_nodes=12):
    """Return mean and sd of each coordinate under exp(log_density), a density that is near a Gaussian one.

    Newton steps from ``center`` to the mode with numerical derivatives, then Gauss–Hermite quadrature around it.
    ``log_density`` takes a vector.
    """
    center = np.asarray(center, float)
    dimension, identity = len(center), np.eye(len(center))
    width = 1e-3
    for _ in range(8):

        def value(*steps, at=center, width=width):
            return log_density(at + width * sum(steps, np.zeros(dimension)))

        gradient = np.array([value(e) - value(-e) for e in identity]) / (2 * width)
        curvature = np.array(
            [[value(e, f) - value(e, -f) - value(-e, f) + value(-e, -f) for e in identity] for f in identity]
        ) / (4 * width**2)
        center = center - np.linalg.solve(curvature, gradient)
    factor = np.linalg.cholesky(np.linalg.inv(-curvature))
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * dimension)], axis=1)
    points = center + grid @ factor.T
    product = np.prod(np.stack([axis.ravel() for axis in np.meshgrid(*[weights] * dimension)]), axis=0)
    logs = np.array([log_density(point) for point in points]) + 0.5 * np.sum(grid**2, axis=1)
    density = product * np.exp(logs - logs.max())
    density /= density.sum()
    mean = density @ points
    return mean, np.sqrt(density @ (points - mean) ** 2)


def distance(draws, mean, sd):
    """Return how far mean and sd of the draws (chains × draws) are from the exact ones, in their own standard errors.

    The mean of draws worth k independent ones has the standard error sd/√k, and their sd about sd/√(2k) (of a Gaussian
    posterior; squares of draws are less correlated than draws, which is on the safe side).
    """
    with arviz_bridge.quiet():
        effective = float(arviz_bridge.import_arviz().ess(draws, method="mean"))
    off_mean = abs(draws.mean() - mean) / sd * np.sqrt(effective)
    off_sd = abs(draws.std() / sd - 1.0) * np.sqrt(2.0 * effective)
    return float(max(off_mean, off_sd))
