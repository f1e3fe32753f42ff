"""The fit of a surrogate to made-up releases of a known map, whose noise has the stated size."""

import math

import numpy as np
import pytest
from scipy import stats

from dpmcmc.surrogate import Form
from dpmcmc.tuning.fit import Frame, Observation, _factor, _free, fit_map, polynomials

STRAIGHT, CURVED = Form(2, 2, 1), Form(2, 2, 2)
# Constant, linear (lower triangular), and 1, u₀, u₁, He₂(u₀)/√2, u₀u₁, He₂(u₁)/√2.
LINEAR = np.array([[0.3, 1.1, 0.0], [-0.4, 0.3, 0.9]])
BENT = np.concatenate([LINEAR, [[0.1, -0.1, 0.05], [0.7, 0.1, -0.1]]], axis=1)
FRAME = Frame(np.array([3.0, -1.0]), np.array([[0.2, 0.0], [0.1, 0.05]]))
SCORE_SD, MOMENTS_SD = 0.25, 0.25
NUM_REPEATS = 60
RARE = 5e-6


def form_of(weights):
    return STRAIGHT if weights.shape[1] == 3 else CURVED


def observe(weights, generator, number=60, understated=1.0, moments_factor=1.0):
    """What a curator would release of ½‖ψ‖² at points around the centre, each in coordinates of its own."""
    u = generator.normal(size=(number, 2))
    values, slopes = polynomials(form_of(weights), u)
    psi, jacobians = values @ weights.T, np.einsum("nim,am->nai", slopes, weights)
    seen = []
    for place in range(number):
        local = np.eye(2) + 0.2 * generator.normal(size=(2, 2))
        jacobian = jacobians[place] @ local
        noise = np.triu(generator.normal(size=(2, 2))) * np.where(np.eye(2), 1.0, math.sqrt(0.5))
        seen.append(
            Observation(
                FRAME.to_theta(u[place]),
                FRAME.matrix @ local,
                -jacobian.T @ psi[place] + SCORE_SD * generator.normal(size=2),
                SCORE_SD / understated,
                moments_factor * jacobian.T @ jacobian + MOMENTS_SD * (noise + np.triu(noise, 1).T),
                MOMENTS_SD / understated,
            )
        )
    return seen


def fits(observations):
    """Fits of degree 1, and of degree 2 from there, as the search makes them."""
    straight = fit_map(STRAIGHT, FRAME, observations)
    return straight, fit_map(CURVED, FRAME, observations, like=straight)


def right_fit(weights, observations):
    return fits(observations)[form_of(weights).degree - 1]


def heights(form, weights, u):
    """½‖ψ‖² at points, for one or many sets of weights."""
    return 0.5 * np.sum((weights @ polynomials(form, u)[0].T) ** 2, axis=-2)


@pytest.mark.parametrize("weights", [LINEAR, BENT], ids=["degree 1", "degree 2"])
def test_potential_differences_are_found_within_what_the_fit_says_of_them(weights):
    """At 20 points against the centre, within 6.5 of the weights' posterior sds: 2e-9 of the times for 20 normals."""
    generator = np.random.default_rng(0)
    fit = right_fit(weights, observe(weights, generator))
    u = np.concatenate([np.zeros((1, 2)), 1.5 * generator.normal(size=(20, 2))])
    drawn = heights(fit.form, fit.weights(fit.drawn(generator, 2000)), u)
    drawn, found, true = (
        value[..., 1:] - value[..., :1]
        for value in (drawn, heights(fit.form, fit.weights(), u), heights(fit.form, weights, u))
    )
    sds = drawn.std(axis=0)
    assert np.all(np.abs(found - true) < 6.5 * sds)
    # And that says something: noise of a quarter at 60 points leaves less than a tenth of the differences themselves.
    assert np.median(sds) < 0.1 * np.median(np.abs(true))


def total_chi_square(weights, **options):
    """Of the true free weights by their posterior, over repeats; and its degrees of freedom."""
    total = size = 0.0
    for seed in range(NUM_REPEATS):
        fit = right_fit(weights, observe(weights, np.random.default_rng(seed), **options))
        error = fit.factor.T @ (fit.mean - weights[_free(fit.form)])
        total, size = total + float(error @ error), size + error.size
    return total, size


@pytest.mark.parametrize("weights", [LINEAR, BENT], ids=["degree 1", "degree 2"])
def test_the_weights_posterior_is_calibrated(weights):
    """χ² of all free weights and repeats, two-sided, each side 5e-6 (prior and tolerance matter little here)."""
    total, size = total_chi_square(weights)
    assert stats.chi2.isf(1.0 - RARE, size) < total < stats.chi2.isf(RARE, size)


def test_twin_noise_of_twice_the_stated_size_is_noticed():
    total, size = total_chi_square(BENT, understated=2.0)
    assert total > stats.chi2.isf(RARE, size)


def test_evidence_prefers_the_right_degree():
    """A ratio of evidences in favour of what is wrong exceeds e¹⁴ with a probability of at most e⁻¹⁴ (Markov): 8e-6
    for ten repeats."""
    for seed in range(10):
        straight, curved = fits(observe(BENT, np.random.default_rng(seed)))
        assert curved.log_evidence > straight.log_evidence + 14.0
        straight, curved = fits(observe(LINEAR, np.random.default_rng(seed)))
        assert curved.log_evidence < straight.log_evidence + 14.0


def test_a_wrong_degree_is_rejected_and_the_right_one_is_not():
    """Ten repeats at 5e-7 for each of two probabilities: 1e-5."""
    for seed in range(10):
        generator = np.random.default_rng(seed)
        old, new = observe(BENT, generator), observe(BENT, generator)
        straight, curved = fits(old)
        assert straight.score_surprise < 1e-6
        assert straight.predicts(new)[0] < 1e-6
        assert curved.score_surprise > 5e-7
        assert curved.predicts(new)[0] > 5e-7


def test_predictions_are_calibrated():
    """Probabilities of new scores and moments are uniform: Kolmogorov–Smirnov at 5e-6 for each, 40 repeats.

    Twin: those of noise that is twice the stated one are not.
    """
    found = {}
    for understated in (1.0, 2.0):
        chances = []
        for seed in range(40):
            generator = np.random.default_rng(seed)
            fit = right_fit(BENT, observe(BENT, generator))
            chances.append(fit.predicts(observe(BENT, generator, 10, understated)))
        found[understated] = [stats.kstest(column, "uniform").pvalue for column in np.transpose(chances)]
    assert min(found[1.0]) > RARE
    assert max(found[2.0]) < RARE


def test_the_tolerance_rises_where_moments_do_not_fit():
    """Scores' second moments are twice the curvature, as of a model that does not fit the data: the scores decide."""
    generator = np.random.default_rng(0)
    right = right_fit(BENT, observe(BENT, generator))
    wrong = right_fit(BENT, observe(BENT, generator, moments_factor=2.0))
    assert right.tolerance < 0.1 < wrong.tolerance
    assert min(right.moments_surprise, wrong.score_surprise) > 1e-6
    u = 1.5 * generator.normal(size=(20, 2))
    true = heights(CURVED, BENT, u)
    # Taken at their word, the moments would double every height.
    assert np.median(np.abs(heights(CURVED, wrong.weights(), u) / true - 1.0)) < 0.25


def test_weights_are_put_where_they_belong():
    fit = right_fit(BENT, observe(BENT, np.random.default_rng(0)))
    assert fit.weights().shape == BENT.shape
    assert fit.weights()[0, 2] == 0.0
    u = np.random.default_rng(1).normal(size=(5, 2))
    np.testing.assert_allclose(0.5 * np.sum(fit.psi(u) ** 2, axis=1), heights(CURVED, fit.weights(), u))
    step = 1e-6
    for axis in range(2):
        move = step * np.eye(2)[axis]
        np.testing.assert_allclose(
            (fit.psi(u + move) - fit.psi(u - move)) / (2 * step), fit.jacobians(u)[:, :, axis], atol=1e-7
        )
    drawn = fit.drawn(np.random.default_rng(2), 20_000)
    precision = fit.factor @ fit.factor.T
    # Each entry of a covariance of 20,000 normals is off by at most 2/√20,000 in its own units, and 7 sds are 3e-12.
    np.testing.assert_allclose(
        fit.factor.T @ np.cov(drawn.T) @ fit.factor, np.eye(len(precision)), atol=7 * math.sqrt(2 / 20_000)
    )


# ------------------------------------------------------------------ what breaks linear algebra


def nothing_seen(score_sd, moments_sd=1.0, score=0.0, moments=0.0, size=2):
    return Observation(
        FRAME.to_theta(np.zeros(size)),
        FRAME.matrix,
        np.full(size, score),
        score_sd,
        np.full((size, size), moments),
        moments_sd,
    )


@pytest.mark.parametrize(
    "observations",
    [
        [nothing_seen(1.0)],
        [nothing_seen(1e-9, 1e-9)] * 3,
        [nothing_seen(1e-9, 1e-9, 1e6, 1e6)] * 3,
        [nothing_seen(1e9, 1e9, -1e12, -1e12)] * 3,
        [nothing_seen(1e-3, 1e3, 1e8, 0.0), nothing_seen(1e3, 1e-3, 0.0, 1e8)],
    ],
    ids=["one point", "noise-free nothing", "noise-free and huge", "mostly noise", "mixed"],
)
@pytest.mark.parametrize("form", [STRAIGHT, CURVED, Form(2, 2, 5)], ids=str)
def test_a_singular_problem_does_not_raise(observations, form):
    """After the first charge an error would cost the whole budget."""
    fit = fit_map(form, FRAME, observations)
    assert np.all(np.isfinite(fit.mean))
    assert np.all(np.isfinite(fit.drawn(np.random.default_rng(0), 10)))


def test_a_matrix_that_rounding_has_made_indefinite_has_a_factor():
    vector = np.array([1.0, 1e4, 1e8])
    matrix = np.outer(vector, vector) - 1e-5 * np.diag([1.0, 0.0, 0.0])
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(matrix)
    factor = _factor(matrix)
    np.testing.assert_allclose(factor @ factor.T, matrix, rtol=1e-3)
