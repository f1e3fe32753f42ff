"""The data sets of the study of coverage: parameters from the prior, records, and the posterior without noise.

Also the settings of the samplers that need some: they follow from simulations of prior and model and from the budget,
so that no record is looked at. Records are synthetic, made from a seed. The posteriors computed here are not private.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist
from scipy.stats import norm, qmc

import dpmcmc
from dpmcmc import models, privacy
from dpmcmc.errors import QueryError
from studies.cells import DELTA
from studies.exact import Array, NoReferenceError, newton

LEVELS = (50, 90)
"""Central intervals, in per cent."""
PROBABILITIES = (0.05, 0.25, 0.75, 0.95)
"""Where these intervals begin and end."""
NUM_CHAINS = 2
"""Chains of the samplers that run some: as few as R̂ allows, since they share the budget."""

POSTERIOR = "posterior"
"""What the posterior without noise is called where samplers have names."""
STARTED_IN_THE_POSTERIOR = "-started"
"""How the name of a sampler ends whose chains start in draws from the posterior without noise, as in the paper."""
SAMPLERS = {
    "auto": "auto",
    "dp-laplace": "DPLaplace",
    "dp-hmc": "DPHMC",
    "dp-hmc-started": "DPHMC, started in the posterior",
    "dp-penalty": "DPPenalty",
    "dp-penalty-started": "DPPenalty, started in the posterior",
    "dp-sgld": "DPSGLD",
    "dp-sgnht": "DPSGNHT",
}
"""The samplers of the study, and what a reader is shown for them."""

_NUM_POINTS = 1024  # of the importance sample: a power of 2, as low-discrepancy points want it
_LOWEST_EFFICIENCY = 0.7
_NUM_EXACT = 20_000
# Prior draws and records of each from which settings are found.
_NUM_PRIOR_DRAWS, _NUM_SIMULATED = 64, 500
_SCORE_QUANTILE = 0.99


class DataSet(NamedTuple):
    """One data set.

    Attributes
    ----------
    model, data
        The model and its records.
    truth
        The parameters that they were made from, an unconstrained vector.
    init
        Where a run starts, chains × d; None: where the sampler starts by itself, from the prior.
    """

    model: dpmcmc.Model
    data: Any
    truth: Array
    init: Array | None = None


@dataclass(frozen=True, eq=False)
class Kind:
    """Data sets of one kind: a model with its prior, and how records are made.

    Attributes
    ----------
    model, num_records
        The model and the number of records n.
    simulate
        Makes so many records for constrained parameters.
    draw
        Draws from the exact posterior of records, if there is a formula.
    """

    model: dpmcmc.Model
    num_records: int
    simulate: Callable[[np.random.Generator, dict[str, Array], int], Any]
    draw: Callable[[jax.Array, Any, int], Array] | None = None


# ---------------------------------------------------------------------------------------------------- the kinds


def _predictor(generator: np.random.Generator, values: dict[str, Array], number: int) -> tuple[Array, Array]:
    """Return features, uniform in [−1, 1], and the linear predictor."""
    features = generator.uniform(-1.0, 1.0, (number, len(values["coefficients"])))
    return features, values["intercept"] + features @ values["coefficients"]


def _logistic(generator: np.random.Generator, values: dict[str, Array], number: int) -> Any:
    features, predictor = _predictor(generator, values, number)
    return {"X": features, "y": (generator.logistic(size=number) < predictor).astype(np.float64)}


def _linear(generator: np.random.Generator, values: dict[str, Array], number: int) -> Any:
    features, predictor = _predictor(generator, values, number)
    return {"X": features, "y": predictor + values["noise_scale"] * generator.standard_normal(number)}


def _poisson(generator: np.random.Generator, values: dict[str, Array], number: int) -> Any:
    features, predictor = _predictor(generator, values, number)
    return {"X": features, "y": generator.poisson(np.exp(predictor)).astype(np.float64)}


_DEGREES = 4.0  # of freedom


def _student_model() -> dpmcmc.Model:
    """Return a robust regression, written as a user would: intercept, coefficients and scale of Student's t₄ errors."""

    def log_likelihood(values: dict[str, jax.Array], record: dict[str, jax.Array]) -> jax.Array:
        residual = record["y"] - values["intercept"] - jnp.sum(record["X"] * values["coefficients"])
        scaled = residual / values["noise_scale"]
        return -0.5 * (_DEGREES + 1.0) * jnp.log1p(scaled**2 / _DEGREES) - jnp.log(values["noise_scale"])

    def log_prior(values: dict[str, jax.Array]) -> jax.Array:
        normal = dist.Normal(0.0, 1.0)
        total = normal.log_prob(values["intercept"]) + jnp.sum(normal.log_prob(values["coefficients"]))
        return jnp.asarray(total + dist.HalfNormal(1.0).log_prob(values["noise_scale"]))

    def sample_prior(key: jax.Array) -> dict[str, jax.Array]:
        normals = jax.random.normal(key, (4,))
        return {"intercept": normals[0], "coefficients": normals[1:3], "noise_scale": jnp.abs(normals[3])}

    parameters = {"intercept": (), "coefficients": (2,), "noise_scale": "positive"}
    return dpmcmc.Model(log_likelihood, log_prior, parameters, sample_prior=sample_prior, name="Student regression")


def _student(generator: np.random.Generator, values: dict[str, Array], number: int) -> Any:
    features, predictor = _predictor(generator, values, number)
    return {"X": features, "y": predictor + values["noise_scale"] * generator.standard_t(_DEGREES, number)}


# At 20,000 records as bent, relative to its width, as the paper's at 100,000.
_BANANA_CURVATURE = 9.0


def _make_banana() -> Kind:
    model = models.Banana(curvature=_BANANA_CURVATURE, prior_variance=1.0)

    def simulate(generator: np.random.Generator, values: dict[str, Array], number: int) -> Any:
        return model.generate(jax.random.key(int(generator.integers(2**31))), number, values["theta"])

    return Kind(model, 20_000, simulate, model.sample_posterior_not_private)


_KINDS: dict[str, Callable[[], Kind]] = {
    "logistic": lambda: Kind(models.LogisticRegression(4, prior_scale=1.0, feature_bounds=1.0), 10_000, _logistic),
    "linear": lambda: Kind(models.LinearRegression(3, prior_scale=1.0, feature_bounds=1.0), 10_000, _linear),
    "poisson": lambda: Kind(models.PoissonRegression(3, prior_scale=0.5, feature_bounds=1.0), 10_000, _poisson),
    "student": lambda: Kind(_student_model(), 10_000, _student),
    "banana": _make_banana,
}
KINDS = tuple(_KINDS)
"""Names of the kinds; data sets take them in turn."""


@functools.cache
def kind_of(name: str) -> Kind:
    """Return a kind by its name; always the same object, so that what was compiled for it serves all data sets."""
    if name not in _KINDS:
        raise QueryError(f"kind {name!r} is unknown; give one of {', '.join(KINDS)}")
    return _KINDS[name]()


def _draw_prior(model: dpmcmc.Model, generator: np.random.Generator) -> tuple[Array, dict[str, Array]]:
    """Return a draw from the prior: unconstrained, and constrained."""
    with jax.enable_x64(True):
        theta = model.sample_unconstrained_prior(jax.random.key(int(generator.integers(2**31))))
        return np.asarray(theta, np.float64), {name: np.asarray(v) for name, v in model.constrain(theta).items()}


@functools.lru_cache(maxsize=2)
def make_data_set(name: str, number: int, seed: int = 0) -> DataSet:
    """Return a data set of a kind; the same name, number and seed give the same parameters and records.

    Examples
    --------
    >>> made = make_data_set("banana", 3)
    >>> made.data.shape, made.truth.shape
    ((20000, 2), (2,))
    """
    kind = kind_of(name)
    generator = np.random.default_rng((seed, number, *b"coverage", *name.encode()))
    truth, values = _draw_prior(kind.model, generator)
    return DataSet(kind.model, kind.simulate(generator, values, kind.num_records), truth)


# ------------------------------------------------------------------------------------- the posterior without noise


class Reference(NamedTuple):
    """The posterior without noise, by coordinate, unconstrained. Not private.

    Attributes
    ----------
    mean, sd
        Of each coordinate.
    quantiles
        At :data:`PROBABILITIES`, 4 × d.
    starts
        A draw for each chain that is to start in the posterior, chains × d.
    method
        "exact" (draws by formula) or "importance".
    """

    mean: Array
    sd: Array
    quantiles: Array
    starts: Array
    method: str


def compute_reference(name: str, number: int, seed: int = 0) -> Reference:
    """Return the posterior of a data set without noise.

    By formula, or by importance sampling: scrambled Sobol' points of the Gaussian at the mode, found by Newton's
    method, weighted by the exact density. Weights that are worth too few points are refused.
    """
    kind, made = kind_of(name), make_data_set(name, number, seed)
    generator = np.random.default_rng((seed, number, *b"reference", *name.encode()))
    if kind.draw is not None:
        draws = kind.draw(jax.random.key(int(generator.integers(2**31))), made.data, _NUM_EXACT)
        quantiles = np.quantile(draws, PROBABILITIES, axis=0)
        return Reference(draws.mean(axis=0), draws.std(axis=0), quantiles, draws[:NUM_CHAINS], "exact")
    with jax.enable_x64(True):
        records = jax.tree.map(jnp.asarray, made.data)
        value_and_gradient, hessian, values_at = _compiled_potential(name)
        mode, cov = newton(
            lambda point: value_and_gradient(point, records), lambda point: hessian(point, records), made.truth
        )
        uniform = qmc.Sobol(len(mode), rng=generator).random(_NUM_POINTS)
        standard = norm.ppf(uniform)
        points = mode + standard @ np.linalg.cholesky(cov).T
        log_weights = 0.5 * np.sum(standard**2, axis=1) - np.asarray(values_at(points, records))
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    efficiency = 1.0 / (len(weights) * float(np.sum(weights**2)))
    if not efficiency >= _LOWEST_EFFICIENCY:
        raise NoReferenceError(f"the weighted points are worth {100.0 * efficiency:.0f} % of as many draws, too few")
    mean = weights @ points
    sd = np.sqrt(weights @ (points - mean) ** 2)
    starts = points[generator.choice(len(points), NUM_CHAINS, p=weights)]
    return Reference(mean, sd, weighted_quantiles(points, weights, PROBABILITIES), starts, "importance")


@functools.cache
def _compiled_potential(name: str) -> tuple[Any, Any, Any]:
    """Return −log p(θ | x) of a kind with its gradient, its Hessian and its values at many points; x is an argument."""
    model = kind_of(name).model

    def potential(theta: jax.Array, records: Any) -> jax.Array:
        values = jax.vmap(model.unconstrained_log_likelihood, (None, 0))(theta, records)
        return -model.unconstrained_log_prior(theta) - jnp.sum(values)

    def values_at(points: jax.Array, records: Any) -> jax.Array:
        return jax.lax.map(lambda point: potential(point, records), points)

    return jax.jit(jax.value_and_grad(potential)), jax.jit(jax.hessian(potential)), jax.jit(values_at)


def weighted_quantiles(points: Array, weights: Array, probabilities: tuple[float, ...]) -> Array:
    """Return quantiles of each column of weighted points, probabilities × columns, between neighbouring points."""
    found = []
    for column in points.T:
        order = np.argsort(column)
        middle = np.cumsum(weights[order]) - 0.5 * weights[order]
        found.append(np.interp(probabilities, middle, column[order]))
    return np.array(found).T


# -------------------------------------------------------------------------------------------------------- settings


class Scales(NamedTuple):
    """What prior and model tell of the posterior beforehand.

    Attributes
    ----------
    score_norm
        A norm that few scores exceed.
    widths
        About the sd of the posterior along each coordinate.
    """

    score_norm: float
    widths: Array


@functools.cache
def scales_of(name: str) -> Scales:
    """Simulate from prior and model; return medians over the prior of the scores' norms (99 %) and of 1/√(n I_jj).

    Nothing here looks at a data set of the study: it is what a careful user can do beforehand.
    """
    kind = kind_of(name)
    generator = np.random.default_rng((*b"settings", *name.encode()))
    gradient = jax.jit(jax.vmap(jax.grad(kind.model.unconstrained_log_likelihood), (None, 0)))
    norms, widths = [], []
    with jax.enable_x64(True):
        for _ in range(_NUM_PRIOR_DRAWS):
            theta, values = _draw_prior(kind.model, generator)
            records = jax.tree.map(jnp.asarray, kind.simulate(generator, values, _NUM_SIMULATED))
            scores = np.asarray(gradient(theta, records))
            norms.append(np.quantile(np.linalg.norm(scores, axis=1), _SCORE_QUANTILE))
            widths.append(1.0 / np.sqrt(kind.num_records * np.mean(scores**2, axis=0)))
    return Scales(float(np.median(norms)), np.median(widths, axis=0))


_NOISE_SD = 1.0
"""Of an accept test, and the energy error that noisy gradients may cause."""
_MARGIN = 1.001  # on noise: something is left for the record check
_PENALTY_STEPS, _HMC_STEPS, _HMC_LEAPFROG = 200, 50, 5
_BATCH_SHARE = 5
_SGLD_STEP, _SGNHT_STEP, _SGNHT_DIFFUSION = 0.05, 0.1, 2.0


def make_sampler(name: str, sampler: str, epsilon: float) -> Any:
    """Return a sampler with settings from public numbers.

    With C the bound of scores and w the widths of :func:`scales_of`, B the budget's μ:

    - "dp-penalty" takes 200 steps in each of 2 chains, so that τ = √(400/(2B)). Noise of sd 1 in the accept test allows
      moves of length 1/(2Cτ), at most 2.4 sds: that decides the proposal, a·w;
    - "dp-hmc" takes 50 steps of 5 leapfrog steps in each of 2 chains, half of B for accept tests and half for
      gradients, mass 1/w². Noise of sd 1 in the accept test and in the energy allows a trajectory of length 1/(2Cτ),
      at most 1.5 sds;
    - "dp-sgld" has batches of a fifth of the records and h = 0.05 min w²: the noise of batches and the step size then
      add some 15 % to the variance. The budget decides the number of steps;
    - "dp-sgnht" has the same batches, h = 0.1 min w and A = 2/min w, critical damping.
    """
    sampler = sampler.removesuffix(STARTED_IN_THE_POSTERIOR)
    if sampler == "auto":
        return "auto"
    if sampler == "dp-laplace":
        return dpmcmc.DPLaplace()
    clip, widths = scales_of(name)
    num_records, smallest = kind_of(name).num_records, float(np.min(widths))
    budget = privacy.gaussian_mu(epsilon, DELTA)
    diameter = float(np.linalg.norm(widths))
    if sampler == "dp-penalty":
        multiplier = _MARGIN * math.sqrt(NUM_CHAINS * _PENALTY_STEPS / (2.0 * budget))
        factor = min(_NOISE_SD / (2.0 * clip * multiplier * diameter), 2.4 / math.sqrt(len(widths)))
        return dpmcmc.DPPenalty(factor * widths, clip, multiplier)
    if sampler == "dp-hmc":
        multiplier = _MARGIN * math.sqrt(NUM_CHAINS * _HMC_STEPS / budget)
        length = min(_NOISE_SD / (2.0 * clip * multiplier * diameter), 1.5)
        return dpmcmc.DPHMC(
            step_size=length / _HMC_LEAPFROG,
            num_leapfrog=_HMC_LEAPFROG,
            ratio_bound=clip,
            gradient_clip_norm=clip,
            ratio_noise_multiplier=multiplier,
            gradient_noise_multiplier=multiplier * math.sqrt(_HMC_LEAPFROG),
            mass_matrix=1.0 / widths**2,
        )
    batch = num_records // _BATCH_SHARE
    if sampler == "dp-sgld":
        return dpmcmc.DPSGLD(batch, clip, _SGLD_STEP * smallest**2)
    if sampler == "dp-sgnht":
        return dpmcmc.DPSGNHT(batch, clip, _SGNHT_STEP * smallest, _SGNHT_DIFFUSION / smallest)
    raise QueryError(f"sampler {sampler!r} is unknown; give one of {', '.join(SAMPLERS)}")
