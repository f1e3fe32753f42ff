"""Named parameters: shapes, order, and transforms whose Jacobian is right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints

from dpmcmc.errors import ModelError
from dpmcmc.models import Parameter
from dpmcmc.models.parameters import ParameterSpace

SUPPORTS_AND_SHAPES = [
    ("real", ()),
    ("real", (2, 3)),
    ("positive", ()),
    ("nonnegative", (2,)),
    ("unit_interval", (2,)),
    ("simplex", (4,)),
    ("simplex", (2, 3)),
    ("ordered", (3,)),
    ("positive_ordered", (3,)),
    ("zero_sum", (3,)),
    ("corr_cholesky", (3, 3)),
    ("corr_matrix", (3, 3)),
    ("lower_cholesky", (2, 2)),
    ("positive_definite", (2, 2)),
    (constraints.interval(-1.0, 3.0), (2,)),
    (constraints.greater_than(2.0), ()),
]


@pytest.mark.parametrize(("support", "shape"), SUPPORTS_AND_SHAPES)
def test_constrain_and_unconstrain_are_inverse(support, shape):
    with jax.enable_x64(True):
        space = ParameterSpace({"first": (2,), "value": Parameter(shape, support), "last": "positive"})
        theta = jax.random.normal(jax.random.key(0), (space.dimension,))
        values = space.constrain(theta)
        assert list(values) == ["first", "value", "last"]
        assert values["value"].shape == shape
        assert bool(jnp.all(Parameter(shape, support).constraint(values["value"])))
        np.testing.assert_allclose(space.unconstrain(values), theta, atol=1e-9)


@pytest.mark.parametrize(
    ("support", "shape"),
    [("positive", (3,)), ("unit_interval", (2,)), ("ordered", (3,)), (constraints.interval(-1.0, 3.0), (2,))],
)
def test_log_jacobian_is_that_of_the_map(support, shape):
    with jax.enable_x64(True):
        space = ParameterSpace({"value": Parameter(shape, support)})
        theta = jax.random.normal(jax.random.key(1), (space.dimension,))
        jacobian = jax.jacobian(lambda vector: space.constrain(vector)["value"])(theta)
        expected = np.linalg.slogdet(np.asarray(jacobian))[1]
        np.testing.assert_allclose(space.constrain_with_log_det(theta)[1], expected, rtol=1e-12)


def test_log_jacobian_of_the_simplex_is_that_of_its_free_components():
    with jax.enable_x64(True):
        space = ParameterSpace({"value": Parameter((4,), "simplex")})
        theta = jax.random.normal(jax.random.key(1), (3,))
        jacobian = jax.jacobian(lambda vector: space.constrain(vector)["value"][:-1])(theta)
        expected = np.linalg.slogdet(np.asarray(jacobian))[1]
        np.testing.assert_allclose(space.constrain_with_log_det(theta)[1], expected, rtol=1e-12)


def test_works_under_jit_vmap_and_grad_in_the_ambient_precision():
    space = ParameterSpace({"weights": Parameter((3,), "simplex"), "scale": "positive"})
    thetas = jnp.zeros((5, space.dimension))
    values = jax.jit(jax.vmap(space.constrain))(thetas)
    assert values["weights"].shape == (5, 3)
    assert values["weights"].dtype == jnp.float32
    assert jax.grad(lambda theta: space.constrain_with_log_det(theta)[1])(thetas[0]).shape == (3,)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({}, "non-empty"),
        ({"a": "sphere-like"}, "unknown"),
        ({"a": Parameter((2,))}, None),
        ({"a": 3.5}, r"parameters\['a'\]"),
        ({1: "real"}, "names must be"),
        ({"a": (-1,)}, "non-negative"),
        ({"a": (0,)}, "no free coordinate"),
    ],
)
def test_declarations_are_checked(declared, message):
    if message is None:
        assert ParameterSpace(declared).dimension == 2
    else:
        with pytest.raises(ModelError, match=message):
            ParameterSpace(declared)


@pytest.mark.parametrize(
    ("shape", "support"),
    [((), "simplex"), ((2, 3), "corr_cholesky"), ((3,), constraints.sphere), ((), constraints.boolean)],
)
def test_supports_that_do_not_fit_are_refused(shape, support):
    with pytest.raises(ModelError):
        Parameter(shape, support)


def test_wrong_vectors_and_values_are_refused():
    space = ParameterSpace({"a": (2,)})
    with pytest.raises(ModelError, match=r"jax\.vmap"):
        space.constrain(jnp.zeros((4, 2)))
    with pytest.raises(ModelError, match="exactly the parameters"):
        space.unconstrain({"b": jnp.zeros(2)})
    with pytest.raises(ModelError, match="has shape"):
        space.unconstrain({"a": jnp.zeros(3)})
