"""How far draws are from the exact posterior: maximum mean discrepancy and distance of the means; and split R̂.

Plain functions of arrays. They know nothing of models, samplers or privacy.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dpmcmc.results import arviz_bridge

Array = NDArray[np.float64]

_WIDTH_PAIRS = 500
# Rows and columns of a block of kernel values: half a MiB, so that it stays in the processor's cache.
_BLOCK_ROWS, _BLOCK_COLUMNS = 256, 256


def kernel_width(first: Array, second: Array, generator: np.random.Generator) -> float:
    """Return the median distance between 500 pairs of points, one of each sample, drawn with replacement."""
    left = first[generator.integers(len(first), size=_WIDTH_PAIRS)]
    right = second[generator.integers(len(second), size=_WIDTH_PAIRS)]
    return float(np.median(np.linalg.norm(left - right, axis=1)))


def maximum_mean_discrepancy(first: Array, second: Array, width: float) -> float:
    r"""Return the estimate of the maximum mean discrepancy between two samples.

    With k(x, y) = exp(−‖x − y‖²/(2w²)), the square root of the absolute value of the unbiased estimate

    .. math:: \frac{1}{n(n-1)} \sum_{i \ne j} k(x_i, x_j) + \frac{1}{m(m-1)} \sum_{i \ne j} k(y_i, y_j)
        - \frac{2}{nm} \sum_{i,j} k(x_i, y_j).

    Parameters
    ----------
    first, second
        Points, one a row: n × d and m × d, at least two of each.
    width
        w.

    Returns
    -------
    float
        NaN if there are points that are not finite (a chain that diverged).

    Notes
    -----
    Exact: all pairs, in float64. A chain that rejects stays where it is, so equal points are counted once, with
    weights; that saves most of the work for a random walk.

    Source: Gretton, Borgwardt, Rasch, Schölkopf and Smola (2012), "A kernel two-sample test", equation 3.

    Examples
    --------
    >>> points = np.array([[0.0], [1.0], [2.0]])
    >>> round(maximum_mean_discrepancy(points, points + 10.0, width=1.0), 4)
    0.9481
    """
    if not (np.all(np.isfinite(first)) and np.all(np.isfinite(second))):
        return math.nan
    points, weights = _distinct(first)
    others, other_weights = _distinct(second)
    within_first = _sum_within(points, weights, width)
    within_second = _sum_within(others, other_weights, width)
    across = _sum_across(points, weights, others, other_weights, width)
    n, m = len(first), len(second)
    # The sums within run over all ordered pairs, a point with itself too: n and m ones to take off.
    squared = (within_first - n) / (n * (n - 1)) + (within_second - m) / (m * (m - 1)) - 2.0 * across / (n * m)
    return math.sqrt(abs(squared))


def _distinct(points: Array) -> tuple[Array, Array]:
    """Return the different points and how often each occurs."""
    distinct, counts = np.unique(np.asarray(points, np.float64), axis=0, return_counts=True)
    return distinct, counts.astype(np.float64)


def _sum_within(points: Array, weights: Array, width: float) -> float:
    """Σ_{a,b} w_a w_b k(a, b) by one half of the matrix: blocks of rows against the rows from there on."""
    total = 0.0
    for start in range(0, len(points), _BLOCK_ROWS):
        stop = start + _BLOCK_ROWS
        block, block_weights = points[start:stop], weights[start:stop]
        total += _sum_across(block, block_weights, block, block_weights, width)
        total += 2.0 * _sum_across(block, block_weights, points[stop:], weights[stop:], width)
    return total


def _sum_across(left: Array, left_weights: Array, right: Array, right_weights: Array, width: float) -> float:
    """Σ_{a,b} w_a v_b k(a, b), in blocks: one matrix product gives a block's xᵀy − ‖x‖²/2 − ‖y‖²/2."""
    center = left.mean(axis=0)  # near the points, so that the squares do not cancel
    left, right = (left - center) / width, (right - center) / width
    rows = np.column_stack([left, -0.5 * np.sum(left**2, axis=1), np.ones(len(left))])
    columns = np.column_stack([right, np.ones(len(right)), -0.5 * np.sum(right**2, axis=1)]).T
    total = 0.0
    for i in range(0, rows.shape[0], _BLOCK_ROWS):
        for j in range(0, columns.shape[1], _BLOCK_COLUMNS):
            values = rows[i : i + _BLOCK_ROWS] @ columns[:, j : j + _BLOCK_COLUMNS]
            np.exp(values, out=values)
            total += float(left_weights[i : i + _BLOCK_ROWS] @ values @ right_weights[j : j + _BLOCK_COLUMNS])
    return total


def compare(first: Array, second: Array, generator: np.random.Generator) -> float:
    """Return the maximum mean discrepancy with the width of the two samples' own distances."""
    return maximum_mean_discrepancy(first, second, kernel_width(first, second, generator))


def mean_error(first: Array, second: Array) -> float:
    """Return the Euclidean distance between the means of two samples."""
    return float(np.linalg.norm(first.mean(axis=0) - second.mean(axis=0)))


def max_split_r_hat(chains: Array) -> float:
    """Return the largest split R̂ over the coordinates of chains × draws × d, by ArviZ.

    NaN with fewer than four draws a chain, or if nothing moved. Of an odd number of draws the last is left out (ArviZ
    alone would leave out the middle one).

    Source: Gelman et al., "Bayesian Data Analysis", third edition, section 11.4.
    """
    even = chains[:, : chains.shape[1] // 2 * 2]
    with arviz_bridge.quiet():
        rhat = arviz_bridge.import_arviz().rhat
        return float(np.max([rhat(even[:, :, place], method="split") for place in range(even.shape[2])]))
