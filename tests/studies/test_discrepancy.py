"""The distances against plain loops, and R̂ against its formula."""

import math

import numpy as np
import pytest

from dpmcmc.demo import banana
from studies import discrepancy


def double_loop(first, second, width):
    """The definition, pair by pair."""

    def kernel(x, y):
        return math.exp(-np.sum((x - y) ** 2) / (2.0 * width**2))

    n, m = len(first), len(second)
    within = sum(kernel(first[i], first[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    within_second = sum(kernel(second[i], second[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    across = sum(kernel(x, y) for x in first for y in second) / (n * m)
    return math.sqrt(abs(within + within_second - 2.0 * across))


@pytest.mark.parametrize("dimension", [1, 2, 10])
@pytest.mark.parametrize("repeated", [False, True], ids=["distinct", "a chain that rejects"])
@pytest.mark.parametrize("blocks", [(256, 256), (7, 5)], ids=["one block", "many blocks"])
def test_mmd_is_that_of_the_double_loop(dimension, repeated, blocks, monkeypatch):
    monkeypatch.setattr(discrepancy, "_BLOCK_ROWS", blocks[0])
    monkeypatch.setattr(discrepancy, "_BLOCK_COLUMNS", blocks[1])
    generator = np.random.default_rng(1)
    first, second = generator.normal(size=(61, dimension)), generator.normal(0.3, 1.2, size=(40, dimension))
    if repeated:
        first = first[np.sort(generator.integers(20, size=90))]
    found = discrepancy.maximum_mean_discrepancy(first, second, 0.9)
    assert found == pytest.approx(double_loop(first, second, 0.9), rel=1e-11)


def test_mmd_far_from_the_origin():
    """As posteriors are: a mean of 3, a width of 0.001. Differences of large squares would lose all digits."""
    generator = np.random.default_rng(2)
    first, second = 3e3 + 1e-3 * generator.normal(size=(50, 3)), 3e3 + 1e-3 * generator.normal(0.5, 1.0, (30, 3))
    found = discrepancy.maximum_mean_discrepancy(first, second, 2e-3)
    assert found == pytest.approx(double_loop(first, second, 2e-3), rel=1e-6)


def test_mmd_of_a_diverged_chain_has_no_value():
    points = np.zeros((5, 2))
    assert math.isnan(discrepancy.maximum_mean_discrepancy(np.full((5, 2), np.nan), points, 1.0))
    assert math.isnan(discrepancy.maximum_mean_discrepancy(points, np.full((5, 2), np.inf), 1.0))


def test_mmd_sees_a_difference_and_no_other():
    """Twins: the same law gives a value near 0, a shift by half a standard deviation a large one."""
    generator = np.random.default_rng(3)
    reference, same = generator.normal(size=(1000, 2)), generator.normal(size=(4000, 2))
    width = discrepancy.kernel_width(same, reference, generator)
    assert width == pytest.approx(math.sqrt(2.0 * 2.0 * math.log(2.0)), rel=0.25)  # the median of a Rayleigh law
    assert discrepancy.maximum_mean_discrepancy(same, reference, width) < 0.05
    assert discrepancy.maximum_mean_discrepancy(same + 0.5, reference, width) > 0.15


def test_width_is_the_median_of_paired_distances():
    first, second = np.zeros((3, 2)), np.full((4, 2), 3.0)
    assert discrepancy.kernel_width(first, second, np.random.default_rng(0)) == pytest.approx(3.0 * math.sqrt(2.0))


def test_mean_error():
    assert discrepancy.mean_error(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0, 6.0]])) == pytest.approx(
        math.hypot(3.0, 3.0)
    )


@pytest.mark.parametrize("num_draws", [40, 41])
def test_r_hat_is_that_of_the_book(num_draws):
    """R̂² = (n − 1)/n + B/(nW) of the half chains, W the mean variance within, B/n the variance of their means."""
    generator = np.random.default_rng(4)
    chains = generator.normal(size=(4, num_draws, 3)) + np.linspace(0.0, 1.0, 4)[:, None, None] * [0.0, 1.0, 3.0]
    halves = np.concatenate([chains[:, :20], chains[:, 20:40]])  # the last of 41 draws is left out
    within, between = halves.var(axis=1, ddof=1).mean(axis=0), halves.mean(axis=1).var(axis=0, ddof=1)
    expected = np.sqrt(19 / 20 + between / within).max()
    assert discrepancy.max_split_r_hat(chains) == pytest.approx(expected, rel=1e-12)
    assert expected > 1.2


def test_r_hat_of_too_few_or_constant_draws_has_no_value(caplog, recwarn):
    one_moves = np.random.default_rng(5).normal(size=(4, 10, 2)) * [1.0, 0.0]
    assert math.isnan(discrepancy.max_split_r_hat(one_moves))
    assert math.isnan(discrepancy.max_split_r_hat(np.zeros((4, 3, 2))))
    assert math.isnan(discrepancy.max_split_r_hat(np.zeros((4, 10, 2))))
    assert not caplog.records
    assert not recwarn.list


def test_that_of_the_demo_is_the_same():
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=(200, 2)), 0.5 + generator.normal(size=(300, 2))
    width = np.median(np.linalg.norm(first[:, None] - second, axis=2))
    assert banana.discrepancy(first, second) == pytest.approx(
        discrepancy.maximum_mean_discrepancy(first, second, width), rel=1e-9
    )
