import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.privacy_accountant import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from dpmcmc.errors import QueryError
from dpmcmc.privacy import gaussian_delta, gaussian_mu, subsampled_delta, subsampled_steps
from dpmcmc.privacy.subsampled import MAX_STEPS, LossGrid, composed_delta, one_step_losses
from tests.privacy.reference import VECTORS

ONE_STEP = VECTORS["subsampled_one_step"]["rows"]
TABLE = VECTORS["max_iterations_delta1e-6_q0.01"]
SCHEMES = ["without_replacement", "poisson"]
CELLS = [(name, epsilon) for name in TABLE["rows"] for epsilon in ("2", "4", "8", "15")]
# Beyond 12 sds the noise is charged as a certain breach (1.8e-33): smaller δ cannot be told apart.
FLOOR = 4e-33
# The vectors have 15 digits.
VECTOR_DIGITS = 5e-15


def table_value(name: str, epsilon: str, column: str) -> int:
    return TABLE["rows"][name][epsilon][TABLE["columns"].index(column)]


def table_noise_ratio(name: str) -> float:
    """The table's sigma is noise/(2C)."""
    return 2.0 * TABLE["rows"][name]["sigma"]


def one_step_case(row, scheme: str) -> tuple[LossGrid, mpf]:
    # Without replacement the unit is 2C, so that sigma = noise_ratio/2; the ± pair has unit C.
    sigma, prob = float(row["sigma_over_2C"]), float(row["q"])
    if scheme == "without_replacement":
        return one_step_losses(2.0 * sigma, prob, scheme, 1), mpf(row["wor_max"])
    return one_step_losses(sigma, prob, scheme, 1), mpf(row["replace_pm"])


def test_there_are_sixty_one_step_rows():
    assert len(ONE_STEP) == 60


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "row", ONE_STEP, ids=lambda row: f"q={row['q']},sigma={row['sigma_over_2C'][:4]},eps={row['eps']}"
)
def test_one_step_vectors(row, scheme):
    grid, reference = one_step_case(row, scheme)
    value = mpf(grid.delta(float(row["eps"])))
    assert value >= reference * (1 - VECTOR_DIGITS)
    assert value <= reference * (1 + 2e-5) + FLOOR


def test_the_other_curves_would_fail_the_one_step_vectors():
    # "remove" alone is too small for ε < 0, the ± pair is another curve: the test tells them apart.
    for row in ONE_STEP:
        if row["eps"] == "-0.01" and row["sigma_over_2C"] == "0.5":
            assert mpf(row["remove"]) < mpf(row["wor_max"]) * (1 - 1e-3)
            assert mpf(row["replace_pm"]) > mpf(row["wor_max"]) * (1 + 1e-3)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("noise_ratio", [0.1, 0.5, 1.0, 10.0, 1e3, 1e6])
@pytest.mark.parametrize("sampling_prob", [1e-9, 1e-3, 0.5, 1 - 1e-9])
def test_grid_is_a_pair_of_distributions(scheme, noise_ratio, sampling_prob):
    grid = one_step_losses(noise_ratio, sampling_prob, scheme, 10**6)
    assert np.all(grid.masses >= 0.0)
    assert math.fsum(grid.masses) + grid.infinite_mass == pytest.approx(1.0, abs=1e-14)
    # The lower distribution has mass e^{−loss}·upper; what is missing may sit where the upper one has none.
    with np.errstate(divide="ignore"):
        lower = np.exp(np.log(grid.masses) - grid.losses)
    assert math.fsum(lower) <= 1.0 + 1e-13


@pytest.mark.parametrize("scheme", SCHEMES)
def test_grid_losses_dominate_the_exact_curve_between_grid_points(scheme):
    # A coarse grid, and ε off it: the chord lies above the curve, visibly, and never below.
    sigma, prob = 1.0, 0.2
    ratio = 2.0 * sigma if scheme == "without_replacement" else sigma
    coarse = one_step_losses(ratio, prob, scheme, 10**9)
    fine = one_step_losses(ratio, prob, scheme, 1)
    gaps = [coarse.delta(e) - fine.delta(e) for e in np.linspace(-1.0, 1.5, 101)]
    assert min(gaps) >= -1e-15
    assert max(gaps) > 1e-6


@pytest.mark.parametrize(("name", "epsilon"), CELLS)
def test_iteration_table_without_replacement(name, epsilon):
    steps = subsampled_steps(table_noise_ratio(name), 0.01, float(epsilon), 1e-6)
    assert steps == pytest.approx(table_value(name, epsilon, "wor_max"), rel=1e-3)
    # More than the R^k column is certainly unsafe.
    assert steps < table_value(name, epsilon, "R_k")


@pytest.mark.parametrize(("name", "epsilon"), CELLS)
def test_iteration_table_poisson(name, epsilon):
    steps = subsampled_steps(table_noise_ratio(name), 0.01, float(epsilon), 1e-6, scheme="poisson")
    assert steps == pytest.approx(table_value(name, epsilon, "pm_noise_over_C"), rel=1e-3)


@pytest.mark.parametrize(("name", "epsilon"), CELLS)
def test_the_poisson_curve_would_fail_the_table_without_replacement(name, epsilon):
    # The twin: the ± pair allows more steps than is safe, by far more than the table's tolerance.
    expected = table_value(name, epsilon, "wor_max")
    assert table_value(name, epsilon, "pm_noise_over_C") > expected * 1.05
    assert subsampled_delta(table_noise_ratio(name), 0.01, round(expected * 1.05), float(epsilon)) > 1.1e-6


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("noise_ratio", "sampling_prob", "num_steps", "epsilon"),
    [(2.0, 0.01, 500, 1.0), (4.0, 0.05, 300, 2.0), (3.0, 0.3, 20, 3.0), (1.0, 0.01, 10, 2.0)],
)
def test_agrees_with_dp_accounting(noise_ratio, sampling_prob, num_steps, epsilon, scheme):
    ours = subsampled_delta(noise_ratio, sampling_prob, num_steps, epsilon, scheme)
    if scheme == "poisson":
        # It doubles the sensitivity by itself, as the ± pair.
        relation, deviation = NeighboringRelation.REPLACE_ONE, noise_ratio
    else:
        relation, deviation = NeighboringRelation.ADD_OR_REMOVE_ONE, noise_ratio / 2.0
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        deviation,
        sampling_prob=sampling_prob,
        value_discretization_interval=2e-4,
        neighboring_relation=relation,
    )
    theirs = pld.self_compose(num_steps).get_delta_for_epsilon(epsilon)
    if scheme == "poisson":
        assert ours == pytest.approx(theirs, rel=1e-3)
    else:
        # Composing "add" and "remove" apart and taking the larger is not enough for substitution.
        assert ours > theirs
        assert ours < 10.0 * theirs


def test_composition_of_a_known_pair_is_exact():
    # Randomised response on a grid: the composed δ is a binomial sum.
    step, log_odds_cells = 0.01, 30
    up = 1.0 / (1.0 + math.exp(-step * log_odds_cells))
    masses = np.zeros(2 * log_odds_cells + 1)
    masses[-1], masses[0] = up, 1.0 - up
    grid = LossGrid(step=step, masses=masses, infinite_mass=1e-20)
    for num_steps, epsilon in [(1, 0.1), (2, 0.1), (10, 0.55), (200, 12.05), (200, 30.05), (200, 59.0)]:
        with mpmath.workdps(60):
            loss, prob = mpf(step) * log_odds_cells, mpf(up)
            expected = sum(
                mpmath.binomial(num_steps, k)
                * prob**k
                * (1 - prob) ** (num_steps - k)
                * max(mpf(0), 1 - mpmath.exp(mpf(epsilon) - (2 * k - num_steps) * loss))
                for k in range(num_steps + 1)
            ) + (1 - (1 - mpf(1e-20)) ** num_steps)
        value = composed_delta(grid, num_steps, epsilon)
        assert value >= expected * (1 - 1e-14)
        assert value == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sampling_everything_is_the_gaussian_mechanism(scheme):
    noise_ratio, num_steps = 20.0, 60
    delta = subsampled_delta(noise_ratio, 1.0, num_steps, 2.0, scheme)
    assert delta == pytest.approx(gaussian_delta(num_steps * 2.0 / noise_ratio**2, 2.0), rel=1e-10)
    assert delta == pytest.approx(subsampled_delta(noise_ratio, 1.0 - 1e-9, num_steps, 2.0, scheme), rel=1e-4)
    steps = subsampled_steps(noise_ratio, 1.0, 2.0, 1e-6, scheme)
    assert steps == math.floor(gaussian_mu(2.0, 1e-6) * noise_ratio**2 / 2.0)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_monotone(scheme):
    base = subsampled_delta(3.0, 0.02, 400, 1.0, scheme)
    assert subsampled_delta(3.0, 0.02, 401, 1.0, scheme) > base
    assert subsampled_delta(3.0, 0.021, 400, 1.0, scheme) > base
    assert subsampled_delta(3.1, 0.02, 400, 1.0, scheme) < base
    assert subsampled_delta(3.0, 0.02, 400, 1.01, scheme) < base
    assert subsampled_delta(3.0, 0.02, 400, 0.0, scheme) < 1.0


calibration_cases = given(
    st.sampled_from(SCHEMES),
    st.floats(math.log(1.0), math.log(50.0)).map(math.exp),
    st.floats(math.log(1e-3), math.log(0.9)).map(math.exp),
    st.floats(0.1, 8.0),
    st.floats(-9.0, -1.0).map(lambda exponent: 10.0**exponent),
)


def check_calibration(scheme, noise_ratio, sampling_prob, epsilon, delta):
    steps = subsampled_steps(noise_ratio, sampling_prob, epsilon, delta, scheme)
    assert subsampled_delta(noise_ratio, sampling_prob, steps, epsilon, scheme) <= delta
    if steps < MAX_STEPS:
        assert subsampled_delta(noise_ratio, sampling_prob, steps + 1, epsilon, scheme) > delta


@settings(max_examples=10, deadline=None)
@calibration_cases
def test_calibration_never_overshoots(scheme, noise_ratio, sampling_prob, epsilon, delta):
    check_calibration(scheme, noise_ratio, sampling_prob, epsilon, delta)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@calibration_cases
def test_calibration_never_overshoots_in_many_cases(scheme, noise_ratio, sampling_prob, epsilon, delta):
    check_calibration(scheme, noise_ratio, sampling_prob, epsilon, delta)


def test_small_delta_is_resolved():
    # Without the tilt the transform could not see a δ this small among its rounding errors.
    steps = subsampled_steps(15.811388300841895, 0.01, 4.0, 1e-18)
    assert steps > 100_000
    assert subsampled_delta(15.811388300841895, 0.01, steps, 4.0) == pytest.approx(1e-18, rel=1e-3)


def test_no_steps_and_no_room():
    assert subsampled_delta(1.0, 0.01, 0, 0.0) == 0.0
    assert subsampled_steps(0.2, 0.5, 0.5, 1e-6) == 0
    assert subsampled_delta(0.1, 0.5, 1000, 0.0) == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 1e-3, 1e7, "loud"])
def test_bad_noise_ratio_is_named(bad):
    with pytest.raises(QueryError, match="noise_ratio"):
        subsampled_delta(bad, 0.1, 1, 1.0)
    with pytest.raises(QueryError, match="noise_ratio"):
        subsampled_steps(bad, 0.1, 1.0, 1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.1, 0.0, 1.1, 1e-12])
def test_bad_sampling_prob_is_named(bad):
    with pytest.raises(QueryError, match="sampling_prob"):
        subsampled_delta(1.0, bad, 1, 1.0)
    with pytest.raises(QueryError, match="sampling_prob"):
        subsampled_steps(1.0, bad, 1.0, 1e-6)


@pytest.mark.parametrize("bad", [-1, 1.5, math.nan, math.inf, MAX_STEPS + 1])
def test_bad_num_steps_is_named(bad):
    with pytest.raises(QueryError, match="num_steps"):
        subsampled_delta(1.0, 0.1, bad, 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_bad_epsilon_is_named(bad):
    with pytest.raises(QueryError, match="epsilon"):
        subsampled_delta(1.0, 0.1, 1, bad)
    with pytest.raises(QueryError, match="epsilon"):
        subsampled_steps(1.0, 0.1, bad, 1e-6)


@pytest.mark.parametrize("bad", [math.nan, 0.0, 1.0, -1e-6])
def test_bad_delta_is_named(bad):
    with pytest.raises(QueryError, match="delta"):
        subsampled_steps(1.0, 0.1, 1.0, bad)


def test_unknown_scheme_is_named():
    with pytest.raises(QueryError, match="with_replacement"):
        subsampled_delta(1.0, 0.1, 1, 1.0, scheme="with_replacement")
