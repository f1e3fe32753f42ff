"""The two models of the paper's experiments, whose posteriors are known exactly.

Both can generate the paper's synthetic data and draw from the exact posterior, which serves as the
reference of the studies. Exact posterior draws are not private: use them on synthetic data only.

Source: Räisä, Koskela, Honkela, "Differentially Private Hamiltonian Monte Carlo", section "Experiments".
"""

import math
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmcmc.data.tables import Records
from dpmcmc.errors import DataError, ModelError
from dpmcmc.models.model import Model
from dpmcmc.models.parameters import Parameter

__all__ = ["Banana", "GaussianMean"]

# The eigenvalues of the covariance that the paper's authors drew, as printed by their code.
_AUTHORS_EIGENVALUES = (0.00507, 0.0142, 0.118, 0.127, 0.134, 0.188, 0.216, 0.236, 0.302, 1.012)
# The authors' eigenvectors are not published as numbers; ours come from this NumPy seed.
_EIGENVECTOR_SEED = 20210617


class VectorModel(Model):
    """A model whose records are the rows of one n × d array."""

    num_columns: int

    def prepare_records(self, data: Any) -> tuple[Records, int]:
        """Copy data into an n × d array of records."""
        records, num_records = super().prepare_records(data)
        if isinstance(records, dict):
            raise DataError(f"data has named columns; give one array with {self.num_columns} columns.")
        if records.ndim != 2 or records.shape[1] != self.num_columns:
            raise DataError(
                f"data has shape {records.shape}; give an array of shape (number of records, {self.num_columns})."
            )
        if records.dtype.kind != "f":
            records = records.astype(np.float64)
        return records, num_records

    def _column_means(self, data: Any) -> tuple[NDArray[np.float64], int]:
        records, num_records = self.prepare_records(data)
        return np.mean(np.asarray(records, np.float64), axis=0), num_records


class GaussianMean(VectorModel):
    """The mean of a Gaussian with known covariance: θ ~ N(μ₀, σ₀² I), x ~ N(θ, Σ).

    The posterior of n records with mean x̄ is N(P⁻¹ (n Σ⁻¹ x̄ + μ₀/σ₀²), P⁻¹) with P = n Σ⁻¹ + I/σ₀².

    Parameters
    ----------
    covariance
        The known Σ, d × d, symmetric and positive definite.
    prior_mean
        μ₀, a number or a vector of length d.
    prior_scale
        σ₀, a standard deviation.

    Examples
    --------
    >>> import jax
    >>> model = GaussianMean.paper()
    >>> data = model.generate(jax.random.key(0), 50)
    >>> data.shape, model.sample_posterior_not_private(jax.random.key(1), data, 20).shape
    ((50, 10), (20, 10))
    """

    def __init__(self, covariance: ArrayLike, prior_mean: ArrayLike = 0.0, prior_scale: float = 100.0) -> None:
        matrix = np.array(covariance, np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.allclose(matrix, matrix.T):
            raise ModelError(f"covariance has shape {matrix.shape}; give a symmetric square matrix.")
        try:
            self._cholesky = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            raise ModelError("covariance is not positive definite; add a positive number to its diagonal.") from None
        if not 0 < prior_scale < math.inf:
            raise ModelError(f"prior_scale is {prior_scale!r}; give a positive finite number.")
        self.num_columns = matrix.shape[0]
        if np.shape(prior_mean) not in ((), (self.num_columns,)):
            raise ModelError(
                f"prior_mean has shape {np.shape(prior_mean)}; give a number or a vector of length {self.num_columns}."
            )
        self.covariance = matrix
        self.prior_mean = np.broadcast_to(np.asarray(prior_mean, np.float64), (self.num_columns,)).copy()
        self.prior_scale = float(prior_scale)
        self._whitening = np.linalg.inv(self._cholesky)
        self._squared_distance = _mahalanobis(self._whitening)
        self._log_normaliser = -float(np.log(np.diag(self._cholesky)).sum()) - 0.5 * self.num_columns * math.log(
            2 * math.pi
        )
        super().__init__(
            self._log_likelihood,
            self._log_prior,
            {"mean": Parameter((self.num_columns,))},
            sample_prior=self._sample_prior,
        )

    @classmethod
    def paper(cls, key: jax.Array | None = None, dimension: int = 10) -> Self:
        """Return the paper's model: Gamma(1/2, 1) eigenvalues and eigenvectors by QR of a uniform matrix.

        Parameters
        ----------
        key
            A jax.random key for the eigenvalues and eigenvectors. Without a key (for dimension 10 only) the
            eigenvalues are those of the authors' draw, and the eigenvectors come from a fixed seed.
        dimension
            Length d of the mean.
        """
        if key is None:
            if dimension != len(_AUTHORS_EIGENVALUES):
                raise ModelError(
                    f"dimension is {dimension}, for which the authors' eigenvalues do not exist; pass a key "
                    f"to draw them, or dimension={len(_AUTHORS_EIGENVALUES)}."
                )
            eigenvalues = np.array(_AUTHORS_EIGENVALUES)
            uniform = np.random.default_rng(_EIGENVECTOR_SEED).uniform(size=(dimension, dimension))
        else:
            with jax.enable_x64(True):  # the same model whatever the ambient precision
                key_values, key_vectors = jax.random.split(key)
                eigenvalues = np.asarray(jax.random.gamma(key_values, 0.5, (dimension,), jnp.float64))
                uniform = np.asarray(jax.random.uniform(key_vectors, (dimension, dimension), jnp.float64))
        eigenvectors = np.linalg.qr(uniform)[0]
        covariance = (eigenvectors * eigenvalues) @ eigenvectors.T
        return cls((covariance + covariance.T) / 2)

    def generate(
        self, key: jax.Array, num_records: int, true_parameter: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Draw records from the model; the paper's true mean is (0, 3, 0, …, 0)."""
        if true_parameter is None:
            true_mean = np.zeros(self.num_columns)
            true_mean[min(1, self.num_columns - 1)] = 3.0
        else:
            true_mean = _as_vector("true_parameter", true_parameter, self.num_columns)
        return true_mean + _standard_normals(key, num_records, self.num_columns) @ self._cholesky.T

    def posterior_not_private(self, data: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and covariance of the exact posterior. Not private."""
        mean, num_records = self._column_means(data)
        data_precision = num_records * self._whitening.T @ self._whitening
        prior_precision = self.prior_scale**-2
        precision = data_precision + prior_precision * np.eye(self.num_columns)
        covariance = np.linalg.inv(precision).astype(np.float64)
        return covariance @ (data_precision @ mean + prior_precision * self.prior_mean), covariance

    def sample_posterior_not_private(self, key: jax.Array, data: Any, num_draws: int) -> NDArray[np.float64]:
        """Independent draws from the exact posterior, num_draws × d. Not private."""
        mean, covariance = self.posterior_not_private(data)
        return mean + _standard_normals(key, num_draws, self.num_columns) @ np.linalg.cholesky(covariance).T

    def _log_likelihood(self, parameters: dict[str, jax.Array], record: Any) -> jax.Array:
        return self._log_normaliser - 0.5 * self._squared_distance(parameters["mean"], record)

    def _log_prior(self, parameters: dict[str, jax.Array]) -> jax.Array:
        mean = parameters["mean"]
        standardised = (mean - jnp.asarray(self.prior_mean, mean.dtype)) / self.prior_scale
        return -0.5 * jnp.sum(standardised**2) - self.num_columns * (
            math.log(self.prior_scale) + 0.5 * math.log(2 * math.pi)
        )

    def _sample_prior(self, key: jax.Array) -> dict[str, jax.Array]:
        standard = jax.random.normal(key, (self.num_columns,))
        return {"mean": jnp.asarray(self.prior_mean, standard.dtype) + self.prior_scale * standard}


class Banana(VectorModel):
    """The paper's banana model: a Gaussian model bent by g(u) = (u₁, u₂ - a u₁²).

    Prior: θ = g(u), u ~ N(0, σ₀² I). Likelihood: x₁ ~ N(θ₁, σ₁²), x₂ ~ N(θ₂ + a θ₁², σ₂²). In the straight
    coordinates u the model is conjugate, so that the posterior is Ban(μ, S, a) with, for τ = 1/σ²,
    μ_i = n τ_i x̄_i / (n τ_i + τ₀) and S = diag(1 / (n τ_i + τ₀)).

    Parameters
    ----------
    curvature
        a.
    prior_variance
        σ₀². (The paper's text says σ₀ = 1000; its code has the variance 1000.)
    variances
        (σ₁², σ₂²).

    Examples
    --------
    >>> import jax
    >>> model = Banana()
    >>> model.generate(jax.random.key(0), 5).shape
    (5, 2)
    """

    num_columns = 2

    def __init__(
        self,
        curvature: float = 20.0,
        prior_variance: float = 1000.0,
        variances: tuple[float, float] = (2000.0, 2500.0),
    ) -> None:
        if not math.isfinite(curvature):
            raise ModelError(f"curvature is {curvature!r}; give a finite number.")
        if not 0 < prior_variance < math.inf:
            raise ModelError(f"prior_variance is {prior_variance!r}; give a positive finite number.")
        if len(variances) != 2 or not all(0 < variance < math.inf for variance in variances):
            raise ModelError(f"variances is {variances!r}; give two positive finite numbers.")
        self.curvature = float(curvature)
        self.prior_variance = float(prior_variance)
        self.variances = (float(variances[0]), float(variances[1]))
        super().__init__(
            self._log_likelihood, self._log_prior, {"theta": Parameter((2,))}, sample_prior=self._sample_prior
        )

    def generate(
        self, key: jax.Array, num_records: int, true_parameter: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Draw records from the model; the paper's true parameter is (0, 3)."""
        theta = _as_vector("true_parameter", (0.0, 3.0) if true_parameter is None else true_parameter, 2)
        location = np.array([theta[0], theta[1] + self.curvature * theta[0] ** 2])
        return location + np.sqrt(self.variances) * _standard_normals(key, num_records, 2)

    def sample_posterior_not_private(self, key: jax.Array, data: Any, num_draws: int) -> NDArray[np.float64]:
        """Independent draws from the exact posterior Ban(μ, S, a), num_draws × 2. Not private."""
        location, scale = self.straight_posterior_not_private(data)
        straight = location + scale * _standard_normals(key, num_draws, 2)
        return np.stack([straight[:, 0], straight[:, 1] - self.curvature * straight[:, 0] ** 2], axis=1)

    def straight_posterior_not_private(self, data: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and standard deviations of the posterior of u = (θ₁, θ₂ + a θ₁²). Not private."""
        mean, num_records = self._column_means(data)
        data_precision = num_records / np.array(self.variances)
        precision = data_precision + 1 / self.prior_variance
        return data_precision * mean / precision, 1 / np.sqrt(precision)

    def _straighten(self, theta: jax.Array) -> jax.Array:
        return jnp.stack([theta[0], theta[1] + self.curvature * theta[0] ** 2])

    def _log_likelihood(self, parameters: dict[str, jax.Array], record: Any) -> jax.Array:
        theta = parameters["theta"]
        precisions = jnp.asarray(1.0 / np.array(self.variances), theta.dtype)
        return -0.5 * jnp.sum((record - self._straighten(theta)) ** 2 * precisions) - 0.5 * math.log(
            (2 * math.pi) ** 2 * self.variances[0] * self.variances[1]
        )

    def _log_prior(self, parameters: dict[str, jax.Array]) -> jax.Array:
        # The map g has unit Jacobian, so that the banana's density is the Gaussian's in straight coordinates.
        straight = self._straighten(parameters["theta"])
        return -0.5 * jnp.sum(straight**2) / self.prior_variance - math.log(2 * math.pi * self.prior_variance)

    def _sample_prior(self, key: jax.Array) -> dict[str, jax.Array]:
        straight = math.sqrt(self.prior_variance) * jax.random.normal(key, (2,))
        return {"theta": jnp.stack([straight[0], straight[1] - self.curvature * straight[0] ** 2])}


def _mahalanobis(whitening: NDArray[np.float64]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """(θ, x) → ‖Wx − Wθ‖², with its derivative in closed form.

    Written with Wx and Wθ (and, in the derivative, Px and Pθ with P = WᵀW) apart: one depends on the record alone and
    the other on the parameters alone, so that whoever evaluates many of both need not multiply for every pair.
    """
    precision_matrix = whitening.T @ whitening

    def times(matrix: NDArray[np.float64], vector: jax.Array) -> jax.Array:
        return jnp.matmul(jnp.asarray(matrix, vector.dtype), vector, precision=jax.lax.Precision.HIGHEST)

    @jax.custom_jvp
    def squared_distance(mean: jax.Array, record: jax.Array) -> jax.Array:
        return jnp.sum((times(whitening, record) - times(whitening, mean)) ** 2)

    @squared_distance.defjvp
    def derivative(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
        (mean, record), (mean_change, record_change) = primals, tangents
        score = times(precision_matrix, record) - times(precision_matrix, mean)
        return squared_distance(mean, record), 2.0 * jnp.sum(score * (record_change - mean_change))

    return squared_distance


def _standard_normals(key: jax.Array, num_rows: int, num_columns: int) -> NDArray[np.float64]:
    """Standard normals in double precision, the same ones whatever the ambient precision."""
    with jax.enable_x64(True):
        return np.asarray(jax.random.normal(key, (num_rows, num_columns), jnp.float64))


def _as_vector(argument: str, given: ArrayLike, length: int) -> NDArray[np.float64]:
    vector = np.asarray(given, np.float64)
    if vector.shape != (length,):
        raise ModelError(f"{argument} has shape {vector.shape}; give a vector of length {length}.")
    return vector
