"""Batches are uniform over all sets of records, however repeated draws are found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpmcmc.curator import batches
from dpmcmc.errors import QueryError
from dpmcmc.queries.batch_gradient import num_draws

FALSE_FAILURE = 1e-6


def draw(num_records, size, num_batches, seed=0):
    """Return the batches as a matrix: a row each, 1 where a record was drawn."""
    rows = num_draws(num_records, size)
    keys = jax.random.split(jax.random.key(seed), num_batches)
    one = jax.vmap(lambda key: batches.draw_rows(key, num_records, rows, jnp.asarray(size)))
    index, chosen = map(np.asarray, jax.jit(one)(keys))
    members = np.zeros((num_batches, num_records), int)
    np.add.at(members, (np.arange(num_batches)[:, None], index), chosen)
    return members


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["table", "sorting", "permutation"])
def num_records_and_size(request, monkeypatch):
    if request.param == "permutation":
        return 60, 20
    monkeypatch.setattr(batches, "_TABLE_UP_TO", 512 if request.param == "table" else 0)
    return 300, 30


def test_batches_hold_distinct_records_and_are_of_the_right_size(num_records_and_size):
    members = draw(*num_records_and_size, 2000)
    assert members.max() == 1
    assert np.all(members.sum(axis=1) == num_records_and_size[1])


def assert_uniform(members):
    """Chi-squared tests of how often records, and pairs of neighbours, are together. False failures: 2e-6."""
    num_batches, num_records = members.shape
    share = members.sum() / members.size
    counts = members.sum(axis=0)
    # Of batches without replacement: counts have variance N·q(1 − q), and one constraint.
    statistic = np.sum((counts - num_batches * share) ** 2) / (num_batches * share * (1 - share))
    statistic *= (num_records - 1) / num_records
    assert stats.chi2.sf(statistic, num_records - 1) > FALSE_FAILURE
    size = members[0].sum()
    pairs = np.sum(members[:, :-1:2] * members[:, 1::2])
    expected = (num_records // 2) * size * (size - 1) / (num_records * (num_records - 1))
    observed = np.sum(members[:, :-1:2] * members[:, 1::2], axis=1)
    deviation = (pairs - num_batches * expected) / (np.sqrt(num_batches) * observed.std())
    assert 2 * stats.norm.sf(abs(deviation)) > FALSE_FAILURE


def test_batches_are_uniform(num_records_and_size):
    assert_uniform(draw(*num_records_and_size, 20_000))


def test_twin_a_record_that_is_never_drawn_is_caught(num_records_and_size, monkeypatch):
    original = batches._uniform
    monkeypatch.setattr(batches, "_uniform", lambda bits, limit: original(bits, limit - 1))
    if num_records_and_size == (60, 20):  # sorted by random bits: put one record last
        bits = jax.random.bits
        monkeypatch.setattr(jax.random, "bits", lambda *args: bits(*args).at[-1].set(2**64 - 1))
    with pytest.raises(AssertionError):
        assert_uniform(draw(*num_records_and_size, 20_000))


def test_both_ways_find_the_same_first_occurrences():
    values = jnp.asarray(np.random.default_rng(0).integers(0, 50, 200))
    expected = np.zeros(200, bool)
    expected[np.unique(values, return_index=True)[1]] = True
    assert np.array_equal(batches._first_by_table(values, 50), expected)
    assert np.array_equal(batches._first_by_sorting(values, 50), expected)


def test_uniform_numbers_are_the_integer_part_of_the_exact_product():
    bits = np.random.default_rng(0).integers(0, 2**64, 1000, dtype=np.uint64)
    bits[:2] = 0, 2**64 - 1
    for limit in (1, 7, 100_000, 2**32 - 1):
        exact = [int(word) * limit >> 64 for word in bits]
        assert np.array_equal(batches._uniform(jnp.asarray(bits), limit), exact)
    with pytest.raises(QueryError, match="the limit is"):
        batches._uniform(jnp.asarray(bits), 2**32)
