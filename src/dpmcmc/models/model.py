"""The model: a log-prior, a per-record log-likelihood and named parameters, on one unconstrained vector.

A `Model` is public: it holds functions, shapes and names, never a record. It prepares records for the
curator and checks, from shapes and dtypes alone, that its functions can be summed over records.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dpmcmc.errors import ModelError
from dpmcmc.models.parameters import Parameter, ParameterSpace
from dpmcmc.models.records import Records, copy_records, one_record_struct

__all__ = ["Model"]

# Primitives through which a compiled function can reach the host, where it could print or store a record.
_HOST_PRIMITIVES = {"infeed", "outfeed", "ffi_call", "custom_call", "debug_print"}


class Model:
    """A Bayesian model whose likelihood is a product over records.

    The log-density on unconstrained space is, with θ ↦ φ the transform to the supports,

        log p(θ | x) = log p(φ(θ)) + log |det ∂φ/∂θ| + Σ_i log p(x_i | φ(θ)) + const.

    Parameters
    ----------
    log_likelihood
        `log_likelihood(parameters, record) -> scalar`, for one record: one row of the array, or a dict with
        one entry per column. Plain JAX.
    log_prior
        `log_prior(parameters) -> scalar` on the constrained space.
    parameters
        Mapping from names to :class:`Parameter`; a support name stands for a scalar, a shape for a real
        array.
    sample_prior
        Optional `sample_prior(key) -> dict` of constrained values.
    name
        A name for reports.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from numpyro import distributions as dist
    >>> model = Model(
    ...     lambda parameters, x: dist.Normal(parameters["mean"], parameters["scale"]).log_prob(x),
    ...     lambda parameters: dist.Normal(0.0, 10.0).log_prob(parameters["mean"])
    ...     + dist.HalfNormal(5.0).log_prob(parameters["scale"]),
    ...     {"mean": (), "scale": "positive"},
    ... )
    >>> model.dimension
    2
    >>> float(model.constrain(jnp.zeros(2))["scale"])
    1.0
    """

    float32_suffices: ClassVar[bool] = True
    """Whether float32 records may be computed with in float32; False for functions that lose too many digits."""

    def __init__(
        self,
        log_likelihood: Callable[[dict[str, jax.Array], Any], jax.Array],
        log_prior: Callable[[dict[str, jax.Array]], jax.Array],
        parameters: Mapping[str, Any],
        *,
        sample_prior: Callable[[jax.Array], Mapping[str, Any]] | None = None,
        name: str | None = None,
    ) -> None:
        for argument, function in (("log_likelihood", log_likelihood), ("log_prior", log_prior)):
            if not callable(function):
                raise ModelError(f"{argument} is {type(function).__name__}; give a function.")
        if sample_prior is not None and not callable(sample_prior):
            raise ModelError(f"sample_prior is {type(sample_prior).__name__}; give a function of a key, or None.")
        self._space = ParameterSpace(parameters)
        self.log_likelihood = log_likelihood
        self.log_prior = log_prior
        self.sample_prior = sample_prior
        self.name = type(self).__name__ if name is None else name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {', '.join(self.parameters)}; dimension {self.dimension}>"

    @property
    def parameters(self) -> dict[str, Parameter]:
        """The declared parameters, in the order of the unconstrained vector."""
        return dict(self._space.parameters)

    @property
    def dimension(self) -> int:
        """Length d of the unconstrained vector."""
        return self._space.dimension

    @property
    def parameter_slices(self) -> dict[str, slice]:
        """Where each parameter stands in the unconstrained vector."""
        return dict(self._space.slices)

    @property
    def labels(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """What the entries of a vector parameter are called: parameter → (dimension, names). For reports."""
        return {}

    def constrain(self, theta: Any) -> dict[str, jax.Array]:
        """Named constrained values of one unconstrained vector of shape (d,)."""
        return self._space.constrain(theta)

    def unconstrain(self, values: Mapping[str, Any]) -> jax.Array:
        """Return the unconstrained vector of named constrained values; the inverse of `constrain`."""
        return self._space.unconstrain(values)

    def unconstrained_log_prior(self, theta: Any) -> jax.Array:
        """Log-prior density of the unconstrained vector: log p(φ(θ)) + log |det ∂φ/∂θ|."""
        values, log_det = self._space.constrain_with_log_det(theta)
        return self.log_prior(values) + log_det

    def unconstrained_log_likelihood(self, theta: Any, record: Any) -> jax.Array:
        """Log-likelihood log p(x | φ(θ)) of one record at an unconstrained vector."""
        return self.log_likelihood(self.constrain(theta), record)

    def sample_unconstrained_prior(self, key: jax.Array) -> jax.Array:
        """One draw from the prior, as an unconstrained vector."""
        if self.sample_prior is None:
            raise ModelError(
                f"model {self.name!r} cannot draw from its prior; pass sample_prior, a function from a "
                "jax.random key to a dict of constrained values, to the model."
            )
        return self.unconstrain(self.sample_prior(key))

    def prepare_records(self, data: Any) -> tuple[Records, int]:
        """Copy data into NumPy records and count them; see :func:`dpmcmc.models.records.copy_records`.

        Raises
        ------
        DataError
            If the data are empty, not numeric, ragged or without rows. The message holds no value of a
            record.

        Examples
        --------
        >>> import numpy as np
        >>> model = Model(lambda parameters, x: -(x**2), lambda parameters: 0.0, {"mean": ()})
        >>> model.prepare_records(np.zeros((5, 2)))[1]
        5
        """
        return copy_records(data)

    def check(self, records: Records) -> None:
        """Refuse, before any budget is spent, a model whose functions cannot be used with these records.

        Only the shapes and dtypes of one record are used: the functions are traced, not evaluated.

        Raises
        ------
        ModelError
            If a function fails, does not return a real floating scalar, is not differentiable, or reaches the
            host (printing or callbacks could show a record).
        """
        record = one_record_struct(records)
        theta = jax.eval_shape(lambda: jnp.zeros(self.dimension))
        values = jax.eval_shape(self.constrain, theta)
        _trace_scalar("log_prior", self.log_prior, values)
        _refuse_host_access(_trace_scalar("log_likelihood", self.log_likelihood, values, record))
        # A custom derivative rule has code of its own, which the function's trace does not show.
        gradient = jax.value_and_grad(self.unconstrained_log_likelihood)
        _refuse_host_access(_trace("the gradient of log_likelihood", gradient, theta, record)[0])


def _trace(name: str, function: Callable[..., Any], *arguments: Any) -> tuple[Any, Any]:
    try:
        return jax.make_jaxpr(function, return_shape=True)(*arguments)
    except Exception as error:  # any error of the user's function; tracers hold no values
        raise ModelError(
            f"{name} failed while JAX traced it for one record: {type(error).__name__}: {error} "
            "Write it in jax.numpy for a single record, without Python control flow on values."
        ) from error


def _trace_scalar(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    jaxpr, output = _trace(name, function, *arguments)
    if not isinstance(output, jax.ShapeDtypeStruct):
        raise ModelError(f"{name} returned a {type(output).__name__}; return one real floating-point scalar.")
    if output.shape != () or not jnp.issubdtype(output.dtype, jnp.floating):
        raise ModelError(
            f"{name} returned shape {output.shape} and dtype {output.dtype}; return one real floating-point "
            "scalar (sum over the components of one record, never over records)."
        )
    return jaxpr


def _refuse_host_access(closed_jaxpr: Any) -> None:
    names = set(_primitive_names(closed_jaxpr.jaxpr))
    if "custom_vmap_call" in names:
        raise ModelError(
            "log_likelihood uses jax.custom_batching.custom_vmap, whose rule would see many records at once; write it "
            "for one record without it."
        )
    reaching = sorted(name for name in names if "callback" in name or name in _HOST_PRIMITIVES)
    if reaching or closed_jaxpr.effects:
        found = ", ".join(reaching) or ", ".join(sorted(type(effect).__name__ for effect in closed_jaxpr.effects))
        raise ModelError(
            f"log_likelihood reaches out of the compiled program ({found}) and could show records; remove "
            "jax.debug.print, callbacks and other side effects from it."
        )


def _primitive_names(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in _inner_jaxprs(equation.params.values()):
            yield from _primitive_names(inner)


def _inner_jaxprs(values: Any) -> Iterator[Any]:
    for value in values:
        if hasattr(value, "eqns"):
            yield value
        elif hasattr(value, "jaxpr") and hasattr(value.jaxpr, "eqns"):
            yield value.jaxpr
        elif isinstance(value, tuple | list):
            yield from _inner_jaxprs(value)
        elif isinstance(value, Mapping):
            yield from _inner_jaxprs(value.values())
