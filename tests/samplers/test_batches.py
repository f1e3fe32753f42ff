"""Random batches: uniform subsets, of the right size, without replacement; Poisson batches are independent coins.

Every subset of a small set must be equally likely, which says all there is to say: sizes, inclusion of single records
and of pairs. χ² tests; each fails by chance with probability ``LEVEL`` = 1e-6. Seeds are fixed and were not picked.
"""

from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.curator.batches import draw_rows, draw_sizes
from dpmcmc.queries.batch_gradient import largest_size, num_draws

LEVEL, CAUGHT = 1e-6, 1e-8
BATCHES = 40_000


def chosen_rows(num_records, num_drawn, sizes, seed=1, rule=draw_rows):
    """Return batches × records: how often each record is in a batch."""

    def one(key, size):
        index, mask = rule(key, num_records, num_drawn, size)
        return jnp.zeros(num_records, jnp.int64).at[index].add(mask)

    with exact_arithmetic():
        keys = jax.random.split(jax.random.key(seed), len(sizes))
        return np.asarray(jax.jit(jax.vmap(one))(keys, jnp.asarray(sizes)))


def subset_counts(counts):
    """Return how often each subset of the records occurs, by its number in binary."""
    return np.bincount(counts @ (1 << np.arange(counts.shape[1])), minlength=2 ** counts.shape[1])


def uniformity(counts, size):
    """p-value of all subsets of so many records being equally likely."""
    of_size = [sum(1 << i for i in subset) for subset in combinations(range(counts.shape[1]), size)]
    return scipy.stats.chisquare(subset_counts(counts)[of_size]).pvalue


CASES = {"permutation": (7, 3), "draws": (12, 3), "one record": (9, 1), "draws, pairs": (8, 2)}


@pytest.mark.parametrize("case", CASES)
def test_every_subset_is_equally_likely(case):
    num_records, size = CASES[case]
    num_drawn = num_draws(num_records, size)
    assert (num_drawn == num_records) == (case == "permutation")
    counts = chosen_rows(num_records, num_drawn, np.full(BATCHES, size))
    assert counts.max() == 1
    assert np.all(counts.sum(axis=1) == size)
    assert uniformity(counts, size) > LEVEL


def smallest_first(key, num_records, num_drawn, size):
    """A wrong rule: of the distinct values drawn, the smallest are taken instead of the earliest."""
    index = jnp.sort(jax.random.randint(key, (num_drawn,), 0, num_records))
    is_first = jnp.concatenate([jnp.ones(1, bool), index[1:] != index[:-1]])
    return index, is_first & (jnp.cumsum(is_first) <= size)


def cut_before_dropping_copies(key, num_records, num_drawn, size):
    """Another: the first ``size`` draws, with replacement."""
    return jax.random.randint(key, (num_drawn,), 0, num_records), jnp.arange(num_drawn) < size


def test_twin_wrong_rules_are_caught():
    counts = chosen_rows(12, 8, np.full(BATCHES, 3), rule=smallest_first)
    complete = counts[counts.sum(axis=1) == 3]
    assert uniformity(complete, 3) < CAUGHT
    assert chosen_rows(12, 56, np.full(BATCHES, 3), rule=cut_before_dropping_copies).max() > 1


@pytest.mark.parametrize(("num_records", "size"), [(1000, 250), (1000, 251), (100_000, 1000), (300, 1), (5, 5)])
def test_batches_are_complete(num_records, size):
    """Enough rows are drawn to find ``size`` distinct ones, and the first of each counts, once."""
    counts = chosen_rows(num_records, num_draws(num_records, size), np.full(20, size))
    assert counts.max() == 1
    assert np.all(counts.sum(axis=1) == size)


def test_inclusion_is_uniform_among_many_records():
    """Σ(c − Nq)²/(Nq(1−q))·(n−1)/n of the inclusion counts of n records is χ² with n − 1 degrees of freedom."""
    num_records, size, batches = 400, 60, 4000
    counts = chosen_rows(num_records, num_draws(num_records, size), np.full(batches, size)).sum(axis=0)
    share = size / num_records
    statistic = np.sum((counts - batches * share) ** 2) / (batches * share * (1 - share))
    degrees = num_records - 1
    assert LEVEL < scipy.stats.chi2.sf(statistic * degrees / num_records, degrees) < 1 - LEVEL


def test_poisson_sizes_are_binomial():
    num_records, batch_size = 50, 10
    sizes = draw_sizes(np.random.default_rng(1), num_records, batch_size, "poisson", (BATCHES,))
    edges = np.arange(4, 18)
    law = scipy.stats.binom(num_records, batch_size / num_records)
    expected = np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]])) * BATCHES
    observed = np.bincount(np.searchsorted(edges, sizes), minlength=len(expected))
    assert scipy.stats.chisquare(observed, expected).pvalue > LEVEL
    constant = np.bincount(np.searchsorted(edges, np.full(BATCHES, batch_size)), minlength=len(expected))
    assert scipy.stats.chisquare(constant, expected).pvalue < CAUGHT


def test_poisson_batches_are_independent_coins():
    """Binomial size and uniform subset: each record is in with probability b/n, independently of all others."""
    num_records, batch_size = 6, 2
    sizes = draw_sizes(np.random.default_rng(2), num_records, batch_size, "poisson", (BATCHES,))
    size = largest_size(num_records, batch_size, "poisson")
    counts = chosen_rows(num_records, num_draws(num_records, size), sizes)
    share = batch_size / num_records
    members = np.array([bin(subset).count("1") for subset in range(2**num_records)])
    expected = share**members * (1 - share) ** (num_records - members) * BATCHES
    assert scipy.stats.chisquare(subset_counts(counts), expected).pvalue > LEVEL


@pytest.mark.parametrize(("num_records", "batch_size"), [(100, 10), (10_000, 100), (10**6, 1000), (10**7, 2)])
def test_room_for_the_largest_poisson_batch(num_records, batch_size):
    size = largest_size(num_records, batch_size, "poisson")
    assert size == num_records or scipy.stats.binom.logsf(size, num_records, batch_size / num_records) < np.log(1e-40)
    sizes = draw_sizes(np.random.default_rng(3), num_records, batch_size, "poisson", (1000,))
    assert sizes.max() <= size
    assert draw_sizes(np.random.default_rng(3), num_records, 7, "without_replacement", (2, 3)).tolist() == [[7] * 3] * 2
