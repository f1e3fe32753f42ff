"""The model: a log-prior, a per-record log-likelihood and named parameters, on one unconstrained vector.

A `Model` is public: it holds functions, shapes and names, never a record. It prepares records for the
curator and checks, from shapes and dtypes alone, that its functions can be summed over records.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from dpmcmc.data.tables import Records, copy_records, one_record_struct
from dpmcmc.design import Design
from dpmcmc.errors import ModelError
from dpmcmc.models import allowed
from dpmcmc.models.parameters import Parameter, ParameterSpace

__all__ = ["Model"]


class Model:
    """A Bayesian model whose likelihood is a product over records.

    The log-density on unconstrained space is, with θ ↦ φ the transform to the supports,

        log p(θ | x) = log p(φ(θ)) + log |det ∂φ/∂θ| + Σ_i log p(x_i | φ(θ)) + const.

    Parameters
    ----------
    log_likelihood
        `log_likelihood(parameters, record) -> scalar`, for one record: one row of the array, or a dict with
        one entry per column. Plain JAX, of the primitives in :data:`dpmcmc.models.allowed.ALLOWED`. It may not use an
        array as long as the data from outside; numbers computed from the data (their mean, say) are just as secret,
        but cannot be noticed here: never use any.
    log_prior
        `log_prior(parameters) -> scalar` on the constrained space.
    parameters
        Mapping from names to :class:`Parameter`; a support name stands for a scalar, a shape for a real
        array.
    sample_prior
        Optional `sample_prior(key) -> dict` of constrained values.
    name
        A name for reports.
    predict
        Optional `predict(parameters, record)`, for :meth:`dpmcmc.Posterior.predict`: the expected outcome of a record,
        or a NumPyro distribution of the outcome. The record is a public one, without the outcome if that is not known.

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
    design: Design | None = None
    """The formula and schema of a regression that :func:`dpmcmc.regression` made: public, and kept with its results."""

    def __init__(
        self,
        log_likelihood: Callable[[dict[str, jax.Array], Any], jax.Array],
        log_prior: Callable[[dict[str, jax.Array]], jax.Array],
        parameters: Mapping[str, Any],
        *,
        sample_prior: Callable[[jax.Array], Mapping[str, Any]] | None = None,
        name: str | None = None,
        predict: Callable[[dict[str, jax.Array], Any], Any] | None = None,
    ) -> None:
        for argument, function in (("log_likelihood", log_likelihood), ("log_prior", log_prior)):
            if not callable(function):
                raise ModelError(f"{argument} is {type(function).__name__}; give a function.")
        if sample_prior is not None and not callable(sample_prior):
            raise ModelError(f"sample_prior is {type(sample_prior).__name__}; give a function of a key, or None.")
        if predict is not None and not callable(predict):
            raise ModelError(
                f"predict is {type(predict).__name__}; give a function of parameters and a record, or None."
            )
        self._space = ParameterSpace(parameters)
        self.log_likelihood = log_likelihood
        self.log_prior = log_prior
        self.sample_prior = sample_prior
        self.predict = predict
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
        """Copy data into NumPy records and count them; see :func:`dpmcmc.data.tables.copy_records`.

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

    def quantities(self, records: Any) -> Any:
        """Return the columns of prepared records that are numbers, not codes: their dtypes decide the precision."""
        return records

    def check(self, records: Records) -> None:
        """Refuse, before any budget is spent, a model whose functions cannot be used with these records.

        Only the shapes and dtypes of one record are used: the functions are traced, not evaluated. (The curator does
        the same again with what it will run.)

        Raises
        ------
        ModelError
            If a function fails, does not return a real floating scalar, is not differentiable, computes with a record
            what may not be computed (:mod:`dpmcmc.models.allowed`), or has captured an array as long as the records.
        """
        num_records = len(jax.tree.leaves(records)[0])
        theta = jax.eval_shape(lambda: jnp.zeros(self.dimension))
        for closed in allowed.trace_likelihood(self.unconstrained_log_likelihood, theta, one_record_struct(records)):
            allowed.check_constants("log_likelihood", closed, num_records)
        for closed in trace_prior(self):
            allowed.check_constants("log_prior", closed, num_records)


def trace_prior(model: Model) -> allowed.Traced:
    """Trace a model's log-prior on unconstrained space and its gradient, or say what is wrong with it."""
    theta = jax.eval_shape(lambda: jnp.zeros(model.dimension))
    allowed.trace_scalar("log_prior", model.log_prior, jax.eval_shape(model.constrain, theta))
    prior = model.unconstrained_log_prior
    return allowed.Traced(
        allowed.trace_scalar("log_prior", prior, theta),
        allowed.trace("the gradient of log_prior", jax.grad(prior), theta)[0],
    )
