import math

import numpy as np
import pytest
from dp_accounting.pld import common, privacy_loss_distribution
from dp_accounting.privacy_accountant import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf
from scipy import fft

from dpmcmc.errors import QueryError
from dpmcmc.privacy import (
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    subsampled,
    subsampled_delta,
    subsampled_epsilon,
    subsampled_steps,
)
from dpmcmc.privacy.subsampled import MAX_STEPS, symmetric_distribution
from tests.privacy.reference import VECTORS

ONE_STEP = VECTORS["subsampled_one_step"]["rows"]
TABLE = VECTORS["max_iterations_delta1e-6_q0.01"]
SCHEMES = ["without_replacement", "poisson"]
CELLS = [(name, epsilon) for name in TABLE["rows"] for epsilon in ("2", "4", "8", "15")]
# The vectors have 15 digits.
VECTOR_DIGITS = 5e-15
# Beyond e^-50 the noise is charged as a certain breach.
FLOOR = 3e-22


def table_value(name: str, epsilon: str, column: str) -> int:
    return TABLE["rows"][name][epsilon][TABLE["columns"].index(column)]


def table_noise_ratio(name: str) -> float:
    """The table's sigma is noise/(2C)."""
    return 2.0 * TABLE["rows"][name]["sigma"]


def one_step_case(row, scheme: str) -> tuple[float, float, mpf]:
    # Without replacement the unit is 2C, so that sigma = noise_ratio/2; the ± pair has unit C.
    sigma, prob = float(row["sigma_over_2C"]), float(row["q"])
    if scheme == "without_replacement":
        return 2.0 * sigma, prob, mpf(row["wor_max"])
    return sigma, prob, mpf(row["replace_pm"])


def test_there_are_sixty_one_step_rows():
    assert len(ONE_STEP) == 60


one_step_rows = pytest.mark.parametrize(
    "row", ONE_STEP, ids=lambda row: f"q={row['q']},sigma={row['sigma_over_2C'][:4]},eps={row['eps']}"
)


@pytest.mark.parametrize("scheme", SCHEMES)
@one_step_rows
def test_one_step_vectors(row, scheme):
    # On a finer grid than usual, and before any rounding is charged.
    noise_ratio, prob, reference = one_step_case(row, scheme)
    mechanism = subsampled._mechanism(noise_ratio, prob, scheme)
    largest = mechanism.connect_dots_bounds().epsilon_upper
    grid_step = 0.005 * subsampled._loss_sd(mechanism)
    pair = symmetric_distribution(mechanism, grid_step, math.ceil(largest / grid_step))
    value = mpf(float(pair.get_delta_for_epsilon(float(row["eps"]))))
    rounding = 1e-15 * (1.0 + largest)
    assert value >= reference * (1 - VECTOR_DIGITS) - rounding
    assert value <= reference * mpf("1.001") + rounding + FLOOR


@pytest.mark.parametrize("scheme", SCHEMES)
@one_step_rows
def test_one_step_vectors_are_never_undercut(row, scheme):
    noise_ratio, prob, reference = one_step_case(row, scheme)
    if float(row["eps"]) >= 0.0:
        value = mpf(subsampled_delta(noise_ratio, prob, 1, float(row["eps"]), scheme))
        assert value >= reference * (1 - VECTOR_DIGITS)
        assert value <= reference * mpf("1.02") + 1e-13


def test_the_other_curves_would_fail_the_one_step_vectors():
    # "remove" alone is too small for ε < 0, the ± pair is another curve: the test tells them apart.
    for row in ONE_STEP:
        if row["eps"] == "-0.01" and row["sigma_over_2C"] == "0.5":
            assert mpf(row["remove"]) < mpf(row["wor_max"]) * (1 - 1e-3)
            assert mpf(row["replace_pm"]) > mpf(row["wor_max"]) * (1 + 1e-3)


def pair_and_library(scheme, noise_ratio, prob, grid_step):
    """Our pair, and dp-accounting's own discretisation of "add" and "remove", or of the ± pair."""
    mechanism = subsampled._mechanism(noise_ratio, prob, scheme)
    num_points = math.ceil(mechanism.connect_dots_bounds().epsilon_upper / grid_step)
    poisson = scheme == "poisson"
    library = privacy_loss_distribution.from_gaussian_mechanism(
        noise_ratio if poisson else noise_ratio / 2.0,
        sampling_prob=prob,
        value_discretization_interval=grid_step,
        # It doubles the sensitivity by itself, as the ± pair.
        neighboring_relation=NeighboringRelation.REPLACE_ONE if poisson else NeighboringRelation.ADD_OR_REMOVE_ONE,
    )
    return symmetric_distribution(mechanism, grid_step, num_points), library


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("noise_ratio", "prob"), [(1.0, 0.01), (2.0, 0.2), (5.0, 0.5), (20.0, 0.9)])
def test_pair_is_the_larger_of_the_library_curves(scheme, noise_ratio, prob):
    # At the grid's points; between them the chord of the maximum is above both chords only next to 0.
    pair, library = pair_and_library(scheme, noise_ratio, prob, 0.01)
    for epsilon in 0.01 * np.arange(-150, 151, 5):
        value = pair.get_delta_for_epsilon(float(epsilon))
        assert value == pytest.approx(library.get_delta_for_epsilon(float(epsilon)), abs=1e-12)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_coarse_pair_dominates_the_curve_between_grid_points(scheme):
    # A coarse grid, and ε off it: the chord lies above the curve, visibly, and never below.
    coarse, _ = pair_and_library(scheme, 2.0, 0.2, 0.1)
    fine, _ = pair_and_library(scheme, 2.0, 0.2, 1e-4)
    gaps = [coarse.get_delta_for_epsilon(e) - fine.get_delta_for_epsilon(e) for e in np.linspace(-1.0, 1.5, 101)]
    # The fine one is too large by its own chords.
    assert min(gaps) >= -1e-8
    assert max(gaps) > 1e-5


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("noise_ratio", [0.1, 1.0, 10.0, 1e6])
@pytest.mark.parametrize("sampling_prob", [1e-9, 1e-3, 0.5, 1 - 1e-9])
def test_pair_is_a_pair_of_distributions(scheme, noise_ratio, sampling_prob):
    pair, _ = subsampled._one_step(noise_ratio, sampling_prob, scheme, 4**15)
    masses, infinite = pair._pmf_remove._probs, pair._pmf_remove._infinity_mass
    assert np.all(masses >= 0.0)
    assert infinite < 1e-21
    assert math.fsum(masses) + infinite == pytest.approx(1.0, abs=1e-14)
    # The lower distribution has mass e^{−loss}·upper, and as much that the upper one never shows.
    losses = pair._pmf_remove._discretization * (np.arange(len(masses)) + pair._pmf_remove._lower_loss)
    with np.errstate(divide="ignore"):
        lower = np.exp(np.log(masses) - losses)
    assert math.fsum(lower) <= 1.0 + 1e-13


def long_double_delta(pair, num_steps: int, epsilon: float) -> float:
    """δ(ε) of the composition by one Fourier transform with 64-bit mantissas, rounding errors 2000 times less."""
    pmf = pair._pmf_remove
    half = -pmf._lower_loss
    low, high = common.compute_self_convolve_bounds(pmf._probs, num_steps, 1e-16)
    size = fft.next_fast_len(high - low + 1)
    masses = np.zeros(size, dtype=np.longdouble)
    places = np.arange(-half, half + 1)
    np.add.at(masses, places % size, pmf._probs)
    composed = fft.ifft(np.exp(num_steps * np.log(fft.fft(masses)))).real
    places = np.arange(low, high + 1) - num_steps * half
    losses = pmf._discretization * places
    above = losses > epsilon
    finite = np.dot(-np.expm1(epsilon - losses[above]), composed[places[above] % size])
    return float(finite) - math.expm1(num_steps * math.log1p(-pmf._infinity_mass))


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no long double on this machine")
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("noise_ratio", "prob", "num_steps", "epsilon"),
    [(2.0, 0.01, 2, 0.1), (1.0, 1e-4, 300, 0.5), (2.4, 0.01, 5000, 2.0), (15.8, 0.01, 400_000, 4.0)],
)
def test_transforms_round_by_less_than_is_charged(scheme, noise_ratio, prob, num_steps, epsilon):
    value = subsampled_delta(noise_ratio, prob, num_steps, epsilon, scheme)
    pair, rounding = subsampled._one_step(noise_ratio, prob, scheme, 4**11)
    reference = long_double_delta(pair, num_steps, epsilon)
    charged = 1e-12 + num_steps * rounding
    assert 0.5 * charged < value - reference < 1.5 * charged


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
    [(2.0, 0.01, 500, 1.0), (4.0, 0.05, 3000, 8.0), (3.0, 0.3, 20, 3.0), (1.0, 0.01, 10, 2.0)],
)
def test_composition_agrees_with_the_library(noise_ratio, sampling_prob, num_steps, epsilon, scheme):
    ours = subsampled_delta(noise_ratio, sampling_prob, num_steps, epsilon, scheme)
    _, library = pair_and_library(scheme, noise_ratio, sampling_prob, 2e-4)
    theirs = library.self_compose(num_steps).get_delta_for_epsilon(epsilon)
    if scheme == "poisson":
        assert ours == pytest.approx(theirs, rel=3e-3, abs=2e-12)
    else:
        # Composing "add" and "remove" apart and taking the larger is not enough for substitution.
        assert ours > theirs
        assert ours < 100.0 * theirs


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sampling_everything_is_the_gaussian_mechanism(scheme):
    noise_ratio, num_steps = 20.0, 60
    delta = subsampled_delta(noise_ratio, 1.0, num_steps, 2.0, scheme)
    assert delta == pytest.approx(gaussian_delta(num_steps * 2.0 / noise_ratio**2, 2.0), rel=1e-10)
    assert delta == pytest.approx(subsampled_delta(noise_ratio, 1.0 - 1e-9, num_steps, 2.0, scheme), rel=1e-3)
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


@settings(max_examples=6, deadline=None)
@calibration_cases
def test_calibration_never_overshoots(scheme, noise_ratio, sampling_prob, epsilon, delta):
    check_calibration(scheme, noise_ratio, sampling_prob, epsilon, delta)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@calibration_cases
def test_calibration_never_overshoots_in_many_cases(scheme, noise_ratio, sampling_prob, epsilon, delta):
    check_calibration(scheme, noise_ratio, sampling_prob, epsilon, delta)


def test_delta_below_the_rounding_is_refused_not_guessed():
    # The transform cannot see a δ this small among its rounding errors, which are charged.
    assert subsampled_steps(15.811388300841895, 0.01, 4.0, 1e-18) == 0
    assert subsampled_delta(15.811388300841895, 0.01, 100_000, 4.0) >= 1e-10
    # Near it, some steps are lost and none is won: 254,759 fit by an accountant with exponential tilting.
    assert 245_000 < subsampled_steps(15.811388300841895, 0.01, 4.0, 1e-9) <= 254_759


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


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("noise_ratio", "prob", "num_steps", "delta"),
    [(4.0, 0.01, 1000, 1e-6), (2.0, 0.1, 1, 1e-5), (15.8, 0.01, 50_000, 1e-6), (10.0, 1.0, 7, 1e-9)],
)
def test_epsilon_is_safe_and_tight(scheme, noise_ratio, prob, num_steps, delta):
    epsilon = subsampled_epsilon(noise_ratio, prob, num_steps, delta, scheme)
    assert subsampled_delta(noise_ratio, prob, num_steps, epsilon, scheme) <= delta
    assert subsampled_delta(noise_ratio, prob, num_steps, epsilon * (1.0 - 1e-9), scheme) > delta * (1.0 - 1e-7)


def test_epsilon_of_full_batches_is_the_gaussian_one():
    assert subsampled_epsilon(8.0, 1.0, 16, 1e-6) == gaussian_epsilon(0.5, 1e-6)


def test_epsilon_at_the_ends():
    assert subsampled_epsilon(1.0, 0.01, 0, 1e-6) == 0.0
    assert subsampled_epsilon(1e3, 1e-6, 1, 0.1) == 0.0
    with pytest.raises(QueryError, match="fewer steps, more noise or a larger delta"):
        subsampled_epsilon(1.0, 0.01, 1000, 1e-15)
    with pytest.raises(QueryError, match="num_steps"):
        subsampled_epsilon(1.0, 0.01, 1.5, 1e-6)
    with pytest.raises(QueryError, match="delta"):
        subsampled_epsilon(1.0, 0.01, 1, 1.0)
