"""The polynomials of a surrogate, written twice (NumPy for fits, JAX for chains): the same, and what they should be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.surrogate import Form, Surrogate, polynomials
from dpmcmc.tuning import fit

FORMS = [Form(1, 1, 6), Form(2, 2, 5), Form(3, 3, 3), Form(4, 2, 3), Form(3, 1, 2), Form(2, 2, 1)]


def points(form, number=50):
    return 2.0 * np.random.default_rng(form.dimension).normal(size=(number, form.dimension))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_both_ways_to_compute_them_agree_and_derivatives_are_those_of_autodiff(form):
    u = points(form)
    values, derivatives = fit.polynomials(form, u)
    assert values.shape == (len(u), len(form.powers))
    assert derivatives.shape == (len(u), form.dimension, len(form.powers))
    with exact_arithmetic():
        evaluate = polynomials(form)
        both = jax.jit(jax.vmap(lambda one: (evaluate(one), jax.jacfwd(evaluate)(one))))
        in_jax, slopes = both(u)  # points × polynomials, and × d
    np.testing.assert_allclose(in_jax, values, rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(np.swapaxes(slopes, 1, 2), derivatives, rtol=1e-11, atol=1e-9)


@pytest.mark.parametrize("form", [form for form in FORMS if form.dimension < 4], ids=str)
def test_they_are_orthonormal_under_the_standard_gaussian(form):
    """Gauss–Hermite quadrature with more nodes than the degree of any product of two: exact but for rounding."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(form.degree + 1)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * form.dimension)], axis=1)
    product = np.prod([axis.ravel() for axis in np.meshgrid(*[weights] * form.dimension)], axis=0)
    values, _ = fit.polynomials(form, grid)
    gram = (values.T * product / product.sum()) @ values
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-10)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_those_of_a_lower_degree_come_first(form):
    """What pads weights with zeros relies on it."""
    u = points(form)
    whole, _ = fit.polynomials(form, u)
    degrees = form.powers.sum(axis=1)
    assert np.all(np.diff(degrees) >= 0)
    assert np.array_equal(form.powers[: form.dimension + 1], np.eye(form.dimension + 1, form.dimension, -1))
    for degree in range(1, form.degree):
        lower = form._replace(degree=degree)
        assert np.array_equal(lower.powers, form.powers[degrees <= degree])
        np.testing.assert_array_equal(fit.polynomials(lower, u)[0], whole[:, degrees <= degree])


def test_high_degrees_belong_to_the_active_coordinates_only():
    powers = Form(4, 2, 3).powers
    high = powers.sum(axis=1) > 1
    assert not powers[high, 2:].any()
    assert len({tuple(row) for row in powers}) == len(powers) == 1 + 4 + 3 + 4


def test_a_surrogate_is_its_map_in_its_coordinates():
    """ψ = (u₀, u₁ + (u₀² − 1)) at θ = m + C u; padded with zeros it is the same."""
    center, matrix = np.array([1.0, -2.0]), np.array([[2.0, 0.0], [0.5, 3.0]])
    weights = np.zeros((2, 6))
    weights[0, 1] = weights[1, 2] = 1.0
    weights[1, 3] = np.sqrt(2.0)
    u = np.array([0.7, -0.4])
    expected = np.array([u[0], u[1] + u[0] ** 2 - 1.0])
    larger = Form(2, 2, 5)
    padded = np.zeros((2, len(larger.powers)))
    padded[:, :6] = weights
    with exact_arithmetic():
        for surrogate in (
            Surrogate(Form(2, 2, 2), center, matrix, weights),
            Surrogate(larger, center, matrix, padded),
        ):
            theta = jnp.asarray(center + matrix @ u)
            np.testing.assert_allclose(jax.jit(surrogate.psi)(theta), expected, rtol=1e-12)
            np.testing.assert_allclose(jax.jit(surrogate.potential)(theta), 0.5 * np.sum(expected**2), rtol=1e-12)
