"""The cases of the study of auto: records follow from their seeds, and exact draws are exact."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from dpmcmc.errors import QueryError
from studies import auto_cases, exact
from studies.auto_cases import Summary, case_names, data_repeat, make_case

CHAINS = ("adult", "logistic-1m", "mixture", "factor", "student-regression", "small-n", "rare-events")
QUICK = [name for name in case_names() if name not in CHAINS]


def test_names():
    names = case_names()
    assert (
        len(names)
        == len(set(names))
        == sum(len(case_names(group)) for group in ("paper", "adult", "large", "shapes", "chains"))
    )
    assert len(case_names("shapes")) >= 18
    with pytest.raises(QueryError, match="case 'rnig' is unknown; give one of banana, "):
        make_case("rnig")


@pytest.mark.parametrize("name", ["gaussian", "ring", "groups-centred", "mixture"])
def test_records_follow_from_name_seed_and_repeat(name):
    case = make_case(name)
    make_case.cache_clear()
    assert make_case(name).digest == case.digest
    assert make_case(name, 1).digest != case.digest
    own = data_repeat(name, 1) == 1
    assert own == (name != "mixture")
    assert (make_case(name, 0, 1).digest != case.digest) == own
    assert case.model.prepare_records(case.data)[1] == case.num_records


def test_starts():
    """One unit away where the prior is flat, in another direction in every repeat; else the sampler's own start."""
    starts = [make_case("gaussian", 0, repeat) for repeat in range(2)]
    for case in starts:
        assert np.linalg.norm(case.init - case.truth) == pytest.approx(1.0)
    assert not np.allclose(starts[0].init, starts[1].init)
    assert make_case("ring").init is None


def summary_of(case):
    """The few records that stand for all: of a Gaussian likelihood with known variances their mean will do."""
    if case.summary is not None:
        return case.summary
    if isinstance(case.data, dict):
        groups = np.unique(case.data["group"])
        means = np.array([case.data["y"][case.data["group"] == own].mean() for own in groups])
        return Summary({"y": means, "group": groups}, np.bincount(case.data["group"]).astype(float))
    return Summary(case.data.mean(axis=0, keepdims=True), np.array([float(len(case.data))]))


@pytest.mark.parametrize("name", QUICK)
def test_draws_are_exact(name):
    """Stein's identities E[∂U] = 0 and E[(θ − m) ∂U] = 1 for each coordinate of −log p(θ | x) = U, within 5.5 s.e.

    Fails by chance in 2·d·4e-8 runs, of all cases together in 1e-5, if the draws had other seeds. The twin: draws that
    are moved by a quarter of their sds, or made a fifth wider, fail one of them.
    """
    case = make_case(name)
    draws = case.reference().draws
    assert draws.shape == (auto_cases.NUM_EXACT, case.dimension)
    with jax.enable_x64(True):
        few = exact.potential_of(case.model, *summary_of(case))
        full = jax.jit(exact.potential_of(case.model, case.data))
        gradient = jax.jit(jax.vmap(jax.grad(few)))
        values = [[float(function(point)) for point in draws[:2]] for function in (few, full)]
        # What stands for the records has the same potential, up to a constant.
        assert values[0][0] - values[0][1] == pytest.approx(values[1][0] - values[1][1], rel=1e-6, abs=1e-5)

        def largest(points):
            slopes = np.asarray(gradient(points))
            parts = np.hstack([slopes, (points - points.mean(axis=0)) * slopes - 1.0])
            return np.max(np.abs(parts.mean(axis=0)) / (parts.std(axis=0) / math.sqrt(len(parts))))

        center, scale = draws.mean(axis=0), draws.std(axis=0)
        assert largest(draws) < 5.5
        assert max(largest(draws + 0.25 * scale), largest(center + 1.2 * (draws - center))) > 5.5


def test_modes_have_their_weights():
    """Both modes of equal weight; of unequal ones, 1/(1 + e^1.02) of the mass is left of zero.

    6,000 draws: the share has a standard error of at most 0.0065, and 0.035 is more than 5 of them (chance 7e-8).
    """
    left = {name: np.mean(make_case(name).reference().draws[:, 0] < 0.0) for name in ("two-modes", "unequal-modes")}
    assert left["two-modes"] == pytest.approx(0.5, abs=0.035)
    exact_share = 1.0 / (1.0 + math.exp(2.0 * abs(float(make_case("unequal-modes").truth[0])) / 1.4**2))
    assert left["unequal-modes"] == pytest.approx(exact_share, abs=0.06)  # the modes are at ±√x̄, near ±1


@pytest.mark.slow
def test_labels_are_switched():
    """Chains stay with one labelling; the symmetry makes half of the draws those of the other."""
    case = make_case("mixture")
    reference = auto_cases.compute_reference(dataclasses.replace(case, data=case.data[:300]))
    switched = reference.draws[:, 0] > reference.draws[:, 1]
    assert reference.method == "nuts"
    assert np.mean(switched) == pytest.approx(0.5, abs=0.035)
    ours, theirs = reference.draws[~switched], case.mirror(reference.draws[switched])
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=0.2 * ours.std(axis=0).max())


def test_a_grid_that_is_too_coarse_is_refused():
    def narrow(theta):
        return 0.5 * (theta[0] ** 2 + ((theta[1] - 50.0 * theta[0]) / 0.001) ** 2)

    with jax.enable_x64(True), pytest.raises(exact.NoReferenceError, match="the grid is too coarse"):
        exact.grid_draws(narrow, [(-8.0, 8.0), (-400.0, 400.0)], np.random.default_rng(0), 10)


def test_nearly_gaussian():
    """Exact for what is very nearly Gaussian, the mean corrected for skewness; refused for what is not."""

    def skewed(size):
        return lambda theta: 0.5 * theta[0] ** 2 + size * theta[0] ** 3

    with jax.enable_x64(True):
        draws = exact.newton_draws(skewed(0.01), np.zeros(1), np.eye(1), np.random.default_rng(0), 100_000)
        # The first correction of the mean is −3·size. 100,000 draws: 0.02 is six standard errors (chance 2e-9).
        assert draws.mean() == pytest.approx(-0.03, abs=0.02)
        with pytest.raises(exact.NoReferenceError, match="not Gaussian enough"):
            exact.newton_draws(skewed(0.05), np.zeros(1), np.eye(1), np.random.default_rng(0), 1000)


def test_references_are_filed(tmp_path, monkeypatch):
    first = make_case("ring").reference(tmp_path)
    monkeypatch.setattr(auto_cases, "compute_reference", None)  # no other one is computed
    again = make_case("ring").reference(tmp_path)
    np.testing.assert_array_equal(again.draws, first.draws)
    assert again.method == first.method == "grid"
    with pytest.raises(TypeError):  # another repeat has other records
        make_case("ring", 0, 1).reference(tmp_path)
    auto_cases.reference_file(tmp_path, "ring", 0, 0).rename(auto_cases.reference_file(tmp_path, "ring", 0, 1))
    with pytest.raises(TypeError):  # filed for other records
        make_case("ring", 0, 1).reference(tmp_path)
