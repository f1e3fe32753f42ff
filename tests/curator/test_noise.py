"""The noise has the law that it should, and would be caught with another scale or if it repeated itself."""

import math

import numpy as np
import pytest
from scipy import stats

from dpmcmc.curator import ExactNoise, NoNoiseNotPrivate, SeededNoiseNotPrivate
from dpmcmc.errors import QueryError

# A test fails falsely with this probability: the chi-square p-value is uniform under the right law.
FALSE_FAILURE = 1e-6
DRAWS = 150_000
SCALES = [3, 40, 1234, 2**38, 2**46 + 12345]


def discrete_gaussian_cells(scale, num_cells=32):
    """Upper ends of cells of nearly equal probability, and the exact probabilities of the cells."""
    inner = np.unique(np.rint(scale * stats.norm.ppf(np.arange(1, num_cells) / num_cells)))
    if scale > 10_000:
        # The discrete law is within 1/scale² of the normal with a continuity correction.
        cumulative = stats.norm.cdf((inner + 0.5) / scale)
    else:
        support = np.arange(-40 * scale, 40 * scale + 1)
        weights = np.exp(-0.5 * (support / scale) ** 2)
        cumulative = np.array([weights[support <= end].sum() for end in inner]) / weights.sum()
    return inner, np.diff(np.concatenate([[0.0], cumulative, [1.0]]))


def p_value(draws, scale):
    ends, probabilities = discrete_gaussian_cells(scale)
    cells = np.searchsorted(ends, draws.astype(float), side="left")
    counts = np.bincount(cells, minlength=len(probabilities))
    return stats.chisquare(counts, probabilities * len(draws)).pvalue


@pytest.fixture(scope="module")
def exact_draws():
    source = ExactNoise()
    return {scale: source.draw(scale, (DRAWS,)) for scale in SCALES}


@pytest.mark.parametrize("scale", SCALES)
def test_exact_noise_has_the_discrete_gaussian_law(exact_draws, scale):
    assert p_value(exact_draws[scale], scale) > FALSE_FAILURE


@pytest.mark.parametrize("scale", [40, 1234, 2**38, 2**46 + 12345])
@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_twin_a_scale_off_by_three_percent_is_caught(exact_draws, scale, factor):
    """The test above, against a scale that the noise does not have, fails (power: more than 1 − 1e-6)."""
    assert p_value(exact_draws[scale], round(scale * factor)) < FALSE_FAILURE


@pytest.mark.parametrize("scale", SCALES)
def test_seeded_noise_has_the_same_law(scale):
    assert p_value(SeededNoiseNotPrivate(5).draw(scale, (DRAWS,)), scale) > FALSE_FAILURE


def repeats(arrays):
    """Return how many numbers occur twice; at scale 2^46 chance gives one with probability below 1e-6."""
    flat = np.concatenate([np.ravel(array) for array in arrays])
    return flat.size - np.unique(flat).size


def test_noise_is_never_repeated_between_queries_chains_or_blocks():
    blocks = [ExactNoise().draw(2**50, (3, 4, 10)) for _ in range(20)]
    assert repeats(blocks) == 0


def test_twin_repeated_noise_is_seen():
    blocks = [SeededNoiseNotPrivate(1).draw(2**50, (3, 4, 10)) for _ in range(2)]
    assert repeats(blocks) == 120


def test_seeded_noise_is_reproducible_and_moves_on():
    first, second = SeededNoiseNotPrivate(3), SeededNoiseNotPrivate(3)
    assert np.array_equal(first.draw(2**46, (5, 2)), second.draw(2**46, (5, 2)))
    assert not np.array_equal(first.draw(2**46, (5, 2)), SeededNoiseNotPrivate(3).draw(2**46, (5, 2)))


def test_no_noise_is_zero():
    assert not NoNoiseNotPrivate().draw(2**40, (3, 2)).any()


def test_shapes_and_types():
    for source in (ExactNoise(), SeededNoiseNotPrivate(0), NoNoiseNotPrivate()):
        drawn = source.draw(17, (2, 3, 4))
        assert drawn.shape == (2, 3, 4)
        assert drawn.dtype == np.int64
        assert source.draw(17, (0, 3)).shape == (0, 3)


@pytest.mark.parametrize("scale", [0, -3, 2**59])
def test_scale_out_of_range(scale):
    with pytest.raises(QueryError, match="noise scale"):
        ExactNoise().draw(scale, (1,))


def test_a_scale_that_no_float_holds_is_refused():
    with pytest.raises(QueryError, match="representable"):
        ExactNoise().draw(2**57 + 1, (1,))


def odd(source):
    return int(np.sum(source.draw(2**58, (400,)) & 1))


def test_exact_noise_is_finer_than_any_float():
    """Half of all integers are odd, at a scale where floats are even: 120 to 280 of 400, but for a chance of 1e-15."""
    assert 120 <= odd(ExactNoise()) <= 280


def test_twin_noise_in_floats_is_caught():
    """A number beyond 2^53 that a float holds is even; |noise| is smaller with probability 0.025 each."""
    assert odd(SeededNoiseNotPrivate(1)) < 120


@pytest.mark.parametrize("seed", [-1, 1.5, True, "7"])
def test_bad_seed(seed):
    with pytest.raises(QueryError, match="seed"):
        SeededNoiseNotPrivate(seed)


def test_only_exact_noise_calls_itself_private():
    assert ExactNoise().description.startswith("private")
    assert SeededNoiseNotPrivate(1).description == "not private: seeded"
    assert NoNoiseNotPrivate().description == "not private: no noise"
    assert math.isclose(NoNoiseNotPrivate().multiplier, 0.0)
