"""The three posteriors of the benchmark, each with synthetic float32 records and the functions that a user would write.

The functions for the other side are written the way that is fastest there (elementwise where JAX can fuse, the
precision matrix multiplied out), not the way that this package's models are written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.models import Banana, GaussianMean, LogisticRegression, Model

NUM_FEATURES = 20
# Rows generated at a time, so that the data never need more memory than their own.
_CHUNK = 2**17


@dataclass(frozen=True)
class Problem:
    """A posterior, seen from both sides.

    Attributes
    ----------
    model, records
        What dpmcmc is given. The records are float32.
    log_likelihood
        ``(theta, record)``: what a user of plain JAX or BlackJAX would write for one record (float32).
    center, spread
        Where the posterior is, roughly: starting points are ``center + spread × standard normals``.
    gradient_clip_norm, ratio_bound
        Clip bounds that touch a part of the records.
    step_size
        Of the leapfrog, with unit masses; small enough for most trajectories to be accepted.
    """

    name: str
    model: Model
    records: Any
    log_likelihood: Callable[[jax.Array, Any], jax.Array]
    center: NDArray[np.float64]
    spread: NDArray[np.float64]
    gradient_clip_norm: float
    ratio_bound: float
    step_size: float

    @property
    def num_records(self) -> int:
        """Return the number of rows."""
        return len(jax.tree.leaves(self.records)[0])

    @property
    def num_bytes(self) -> int:
        """Return the size of the data set itself."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.records))

    def starts(self, num_chains: int) -> NDArray[np.float64]:
        """Return starting points near the posterior, chains × parameters; the same ones every time."""
        generator = np.random.default_rng(2)
        return self.center + self.spread * generator.standard_normal((num_chains, len(self.center)))


def logistic(num_records: int) -> Problem:
    """Logistic regression on 20 standard normal features, no intercept."""
    generator = np.random.default_rng(1)
    coefficients = (0.3 * np.cos(np.arange(NUM_FEATURES))).astype(np.float32)
    features = np.empty((num_records, NUM_FEATURES), np.float32)
    outcome = np.empty(num_records, np.float32)
    for start in range(0, num_records, _CHUNK):
        part = slice(start, min(start + _CHUNK, num_records))
        features[part] = generator.standard_normal((part.stop - start, NUM_FEATURES), np.float32)
        outcome[part] = generator.logistic(size=part.stop - start) < features[part] @ coefficients

    def log_likelihood(theta: jax.Array, record: Any) -> jax.Array:
        predictor = record["X"] @ theta
        return record["y"] * predictor - jax.nn.softplus(predictor)

    return Problem(
        name="logistic",
        model=LogisticRegression(NUM_FEATURES, intercept=False),
        records={"X": features, "y": outcome},
        log_likelihood=log_likelihood,
        center=coefficients.astype(np.float64),
        spread=np.full(NUM_FEATURES, 2.2 / np.sqrt(num_records)),
        gradient_clip_norm=4.0,
        ratio_bound=4.0,
        step_size=0.6 / np.sqrt(num_records),
    )


def gaussian(num_records: int) -> Problem:
    """The mean of a Gaussian of known covariance, d = 10: the paper's model."""
    model = GaussianMean.paper()
    records = model.generate(jax.random.key(1), num_records).astype(np.float32)
    mean, covariance = model.posterior_not_private(records)
    precision = np.linalg.inv(model.covariance).astype(np.float32)

    def log_likelihood(theta: jax.Array, record: Any) -> jax.Array:
        difference = record - theta
        return -0.5 * (difference @ precision @ difference)

    return Problem(
        name="gaussian",
        model=model,
        records=records,
        log_likelihood=log_likelihood,
        center=mean,
        # The posterior is narrow across some diagonals: its smallest sd is on the safe side.
        spread=np.full(len(mean), np.sqrt(np.linalg.eigvalsh(covariance)[0])),
        gradient_clip_norm=10.0,
        ratio_bound=6.0,
        step_size=0.05 / np.sqrt(num_records),
    )


def banana(num_records: int) -> Problem:
    """The paper's banana, d = 2."""
    model = Banana()
    records = model.generate(jax.random.key(1), num_records).astype(np.float32)
    (first_variance, second_variance), curvature = model.variances, model.curvature
    location, scale = model.straight_posterior_not_private(records)

    def log_likelihood(theta: jax.Array, record: Any) -> jax.Array:
        first = (record[0] - theta[0]) ** 2 / first_variance
        second = (record[1] - theta[1] - curvature * theta[0] ** 2) ** 2 / second_variance
        return -0.5 * (first + second)

    return Problem(
        name="banana",
        model=model,
        records=records,
        log_likelihood=log_likelihood,
        center=np.array([location[0], location[1] - curvature * location[0] ** 2]),
        spread=0.1 * scale,
        gradient_clip_norm=0.05,
        ratio_bound=0.1,
        step_size=2.0 / np.sqrt(num_records),
    )


PROBLEMS: dict[str, Callable[[int], Problem]] = {"logistic": logistic, "gaussian": gaussian, "banana": banana}
MODELS = tuple(PROBLEMS)


def log_density(problem: Problem, records: Any) -> Callable[[jax.Array], jax.Array]:
    """Return the log posterior density as a BlackJAX user writes it: prior + sum of a vmap over the records."""

    def density(theta: jax.Array) -> jax.Array:
        likelihood = jax.vmap(problem.log_likelihood, (None, 0))(theta, records)
        return problem.model.unconstrained_log_prior(theta) + jnp.sum(likelihood)

    return density
