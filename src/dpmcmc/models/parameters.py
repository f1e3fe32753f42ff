"""Named parameters and the map between their constrained values and one flat unconstrained vector.

The samplers move in R^d; users think in names, shapes and supports. All transforms and their Jacobians
are NumPyro's (`numpyro.distributions.transforms.biject_to`): this module only cuts, reshapes and adds up,
and never sees a record.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to

from dpmcmc.errors import ModelError

__all__ = ["SUPPORTS", "Parameter", "ParameterSpace"]

SUPPORTS: dict[str, Any] = {
    "real": constraints.real,
    "positive": constraints.positive,
    "nonnegative": constraints.nonnegative,
    "unit_interval": constraints.unit_interval,
    "simplex": constraints.simplex,
    "ordered": constraints.ordered_vector,
    "positive_ordered": constraints.positive_ordered_vector,
    "zero_sum": constraints.zero_sum(1),
    "corr_cholesky": constraints.corr_cholesky,
    "corr_matrix": constraints.corr_matrix,
    "lower_cholesky": constraints.lower_cholesky,
    "positive_definite": constraints.positive_definite,
}
"""The supports that have a short name. Any other continuous NumPyro constraint can be passed itself."""


@dataclass(frozen=True)
class Parameter:
    """The shape and support of one named parameter.

    Parameters
    ----------
    shape
        Shape of the constrained value; an int means a vector.
    support
        A name from :data:`SUPPORTS` or a constraint of `numpyro.distributions.constraints`.

    Examples
    --------
    A point of the simplex with three components has two free coordinates:

    >>> Parameter(shape=(3,), support="simplex").unconstrained_shape
    (2,)
    """

    shape: tuple[int, ...] = ()
    support: Any = "real"

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _as_shape(self.shape))
        constraint = self.constraint
        if not isinstance(constraint, constraints.Constraint) or constraint.is_discrete:
            raise ModelError(
                f"support is {self.support!r}, which is not a continuous NumPyro constraint; give one of "
                f"{sorted(SUPPORTS)} or a constraint such as constraints.interval(0.0, 1.0)."
            )
        try:
            unconstrained_shape = tuple(self.transform.inverse_shape(self.shape))
            fits = tuple(self.transform.forward_shape(unconstrained_shape)) == self.shape
        except NotImplementedError:
            raise ModelError(
                f"support {self.support!r} has no transform to unconstrained space in NumPyro; choose "
                f"another support, for example one of {sorted(SUPPORTS)}."
            ) from None
        except (ValueError, IndexError, AssertionError, TypeError):
            fits = False
        if not fits or len(self.shape) < constraint.event_dim:
            raise ModelError(
                f"shape {self.shape} does not fit the support {self.support!r}, whose values have "
                f"{constraint.event_dim} axes; give a shape with at least that many axes, such as (3,)."
            )

    @property
    def constraint(self) -> Any:
        """The NumPyro constraint that the support names."""
        if isinstance(self.support, str):
            if self.support not in SUPPORTS:
                raise ModelError(
                    f"support {self.support!r} is unknown; give one of {sorted(SUPPORTS)} or a NumPyro constraint."
                )
            return SUPPORTS[self.support]
        return self.support

    @property
    def transform(self) -> Any:
        """NumPyro's bijection from unconstrained values to the support."""
        return biject_to(self.constraint)

    @property
    def unconstrained_shape(self) -> tuple[int, ...]:
        """Shape of the value before the transform; smaller than `shape` for a simplex, for example."""
        return tuple(self.transform.inverse_shape(self.shape))

    @property
    def unconstrained_size(self) -> int:
        """Number of coordinates this parameter takes in the unconstrained vector."""
        return math.prod(self.unconstrained_shape)


class ParameterSpace:
    """The ordered collection of a model's parameters: dict of values <-> one flat vector.

    Examples
    --------
    >>> space = ParameterSpace({"location": Parameter(), "weights": Parameter((3,), "simplex")})
    >>> space.dimension, space.slices["weights"]
    (3, slice(1, 3, None))
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        if not isinstance(parameters, Mapping) or not parameters:
            raise ModelError(
                "parameters must be a non-empty mapping from names to Parameter(shape, support), a support "
                f"name or a shape; got {type(parameters).__name__}."
            )
        self.parameters: dict[str, Parameter] = {}
        self.slices: dict[str, slice] = {}
        start = 0
        for name, declared in parameters.items():
            if not isinstance(name, str) or not name:
                raise ModelError(f"parameters has the name {name!r}; names must be non-empty strings.")
            parameter = _as_parameter(name, declared)
            stop = start + parameter.unconstrained_size
            self.parameters[name] = parameter
            self.slices[name] = slice(start, stop)
            start = stop
        self.dimension = start
        if self.dimension == 0:
            raise ModelError("parameters have no free coordinate at all; declare at least one non-empty shape.")

    def constrain(self, theta: Any) -> dict[str, jax.Array]:
        """Map one unconstrained vector to the named constrained values."""
        return self.constrain_with_log_det(theta)[0]

    def constrain_with_log_det(self, theta: Any) -> tuple[dict[str, jax.Array], jax.Array]:
        """Constrained values together with log |det ∂values/∂θ|, summed over all parameters."""
        theta = jnp.asarray(theta)
        if theta.shape != (self.dimension,):
            raise ModelError(
                f"theta has shape {theta.shape} but the model's unconstrained vector has shape "
                f"({self.dimension},); map over several vectors with jax.vmap."
            )
        values: dict[str, jax.Array] = {}
        log_det = jnp.zeros((), theta.dtype)
        for name, parameter in self.parameters.items():
            transform = parameter.transform
            unconstrained = theta[self.slices[name]].reshape(parameter.unconstrained_shape)
            # A support whose bounds are arrays would promote the value; the ambient precision is theta's.
            value = jnp.asarray(transform(unconstrained), theta.dtype)
            values[name] = value
            log_det = log_det + jnp.sum(transform.log_abs_det_jacobian(unconstrained, value))
        return values, jnp.asarray(log_det, theta.dtype)

    def unconstrain(self, values: Mapping[str, Any]) -> jax.Array:
        """Map named constrained values to one unconstrained vector; the inverse of `constrain`."""
        if not isinstance(values, Mapping) or set(values) != set(self.parameters):
            given = sorted(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
            raise ModelError(
                f"values must have exactly the parameters {list(self.parameters)}; got {given}. "
                "Add the missing ones and remove the others."
            )
        pieces = []
        for name, parameter in self.parameters.items():
            value = jnp.asarray(values[name], jnp.result_type(float))
            if value.shape != parameter.shape:
                raise ModelError(
                    f"values[{name!r}] has shape {value.shape} but the parameter is declared with shape "
                    f"{parameter.shape}; reshape it or change the declaration."
                )
            pieces.append(jnp.reshape(parameter.transform.inv(value), (-1,)))
        return jnp.concatenate(pieces)


def _as_shape(shape: Any) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) and not isinstance(shape, bool) else shape
    if not isinstance(sizes, tuple | list) or not all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes
    ):
        raise ModelError(f"shape is {shape!r}; give a tuple of non-negative integers such as () or (3,).")
    return tuple(sizes)


def _as_parameter(name: str, declared: Any) -> Parameter:
    """Expand the shorthands: a support name is a scalar, a shape is real."""
    if isinstance(declared, Parameter):
        return declared
    if isinstance(declared, str):
        return Parameter((), declared)
    if isinstance(declared, int | tuple | list) and not isinstance(declared, bool):
        return Parameter(_as_shape(declared))
    raise ModelError(
        f"parameters[{name!r}] is {declared!r}; give a Parameter(shape, support), a support name (a scalar) "
        "or a shape (real)."
    )
