"""The cases of the study of DP-Laplace: a model, its records and the exact answer that a run is compared with.

Records are synthetic, made from a seed, or the public Adult data. What is computed here is not private: the posterior
without noise, and how much noise the best conceivable use of a budget would add to it.
"""

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

import dpmcmc
from dpmcmc import models, privacy
from dpmcmc.errors import QueryError
from dpmcmc.output import replace_file
from studies.exact import find_mode, potential_of, run_nuts, skewness_shift

Array = NDArray[np.float64]
Data = Mapping[str, Array] | Array

Group = Literal["adult", "gaussian", "hard", "sweep", "aside", "curve"]
FAMILIES = {
    "linear": models.LinearRegression,
    "logistic": models.LogisticRegression,
    "poisson": models.PoissonRegression,
    "negative-binomial": models.NegativeBinomialRegression,
}
AXES = ("plain", "skewed", "rare", "constant", "scales", "collinear", "far", "start", "all")
"""What may be hard about a regression, one at a time, and all but "collinear" and "start" at once; see `_hard_case`."""
SIZES = {"20k": 20_000, "50k": 50_000, "100k": 100_000}
SWEEP_DIMENSIONS = (2, 5, 10, 20, 30, 40, 60)
TAIL_FACTOR = 2.25
"""κ of the rule that sets a clip norm: about κ·2√(d/(2μ)) records lie above it, so that bias and noise balance."""

# To be increased when a change of the code makes references that were filed worthless.
_FORMAT = 1


# ------------------------------------------------------------------------------------------------------- case


@dataclass(frozen=True)
class Reference:
    """The posterior without noise, in unconstrained space. Not private.

    Attributes
    ----------
    mean, cov
        By `method`.
    mode, curvature_cov
        Mode and inverse Hessian of the negative log-posterior there.
    newton_mean
        The mode with the first correction for skewness: a second opinion on the mean (see `exact.skewness_shift`).
    method
        "exact", "nuts" or "newton" (`newton_mean` and `curvature_cov`).
    max_r_hat
        Largest split R̂ of the chains; 1 if there were none.
    """

    mean: Array
    cov: Array
    mode: Array
    curvature_cov: Array
    newton_mean: Array
    method: str
    max_r_hat: float

    @property
    def sd(self) -> Array:
        """Standard deviations of the coordinates."""
        return np.sqrt(np.diag(self.cov))

    @property
    def disagreement(self) -> float:
        """Largest difference of the two opinions on the mean, in standard deviations."""
        return float(np.max(np.abs(self.newton_mean - self.mean) / self.sd))


class Floor(NamedTuple):
    """What one score sum for the whole budget would do, in reference sds; see `Case.floor`.

    Attributes
    ----------
    noise
        Sd of the noise in every coordinate.
    noise_bounded
        The same with bounds that do not depend on the outcome, for logistic regression; else NaN.
    clip_bias
        Shift by clipping alone, without noise, of the coordinate that is shifted most.
    """

    noise: float
    noise_bounded: float
    clip_bias: float


@dataclass(frozen=True, eq=False)
class Case:
    """What DP-Laplace is run on.

    Attributes
    ----------
    name
        As given to :func:`make_case`.
    group
        Which part of the study it belongs to.
    model, data
        The model and its records, as :func:`dpmcmc.sample` takes them.
    init
        Where the run starts, an unconstrained vector; None: where the sampler starts by itself.
    guess
        Where the search for the exact mode starts, which may be the true parameter.
    chains
        Whether the reference comes from NUTS; else from the mode and the curvature.
    seed
        What the records were made from.
    """

    name: str
    group: Group
    model: dpmcmc.Model
    data: Any
    init: Array | None
    guess: Array
    chains: bool = True
    seed: int = 0

    @property
    def num_records(self) -> int:
        """Number of records n."""
        return num_records_of(self.data)

    @property
    def dimension(self) -> int:
        """Number of unconstrained coordinates d."""
        return self.model.dimension

    @functools.cached_property
    def digest(self) -> str:
        """Eight digits that change with the records, the model and the way in which references are computed."""
        text = f"{self.model!r} {getattr(self.model, 'prior_scale', None)} {self.chains} {_FORMAT}"
        return digest_of(self.data, text)

    def reference(self, folder: Path | str | None = None) -> Reference:
        """Return the posterior without noise: read from ``folder`` if it is filed there, else computed (and filed).

        Computing it takes from a second to about a minute.
        """
        if "_reference" not in self.__dict__:
            self.__dict__["_reference"] = _filed_reference(self, None if folder is None else Path(folder))
        found: Reference = self.__dict__["_reference"]
        return found

    def whitened_scores(self, reference: Reference) -> tuple[Array, Array | None]:
        """Return the records' scores at the mode, n × d, in coordinates in which the posterior is N(0, I).

        The second array, for logistic regression alone, has bounds max(p, 1 − p)·‖Cᵀx‖ of their norms that do not
        depend on the outcome, C Cᵀ the inverse Hessian.
        """
        factor = np.linalg.cholesky(reference.curvature_cov)
        with jax.enable_x64(True):
            scores = np.asarray(_scores(self.model, self.data, jnp.asarray(reference.mode))) @ factor
        if not isinstance(self.model, models.LogisticRegression):
            return scores, None
        rows = _design(self.data["X"])
        probability = 1.0 / (1.0 + np.exp(-rows @ reference.mode))
        return scores, np.maximum(probability, 1.0 - probability) * np.linalg.norm(rows @ factor, axis=1)

    def floor(self, reference: Reference, epsilon: float, delta: float) -> Floor:
        """Return what one score sum for the whole budget would do: the Newton step from the mode, clipped and noised.

        In whitened coordinates a score sum with clip norm c has sensitivity 2c, hence noise of sd 2c/√(2μ) at cost μ,
        and is the step to the centre: the noise is that many posterior sds in every direction. For c see
        :data:`TAIL_FACTOR`.
        """
        budget = privacy.gaussian_mu(epsilon, delta)
        above = round(TAIL_FACTOR * 2.0 * math.sqrt(self.dimension / (2.0 * budget)))
        scores, bounds = self.whitened_scores(reference)
        norms = np.linalg.norm(scores, axis=1)
        clip_norm, bounded_norm = (math.nan if those is None else _largest(those, above) for those in (norms, bounds))
        excess = 1.0 - np.minimum(1.0, clip_norm / np.maximum(norms, np.finfo(np.float64).tiny))
        shift = np.linalg.cholesky(reference.curvature_cov) @ (excess @ scores) / reference.sd
        scale = 2.0 / math.sqrt(2.0 * budget)
        return Floor(scale * clip_norm, scale * bounded_norm, float(np.max(np.abs(shift))))


def num_records_of(data: Data) -> int:
    """Return the number of records n."""
    return len(data["y"] if isinstance(data, Mapping) else data)


def digest_of(data: Data, text: str) -> str:
    """Return eight digits that change with the records and with ``text``."""
    state = hashlib.sha256()
    columns = data if isinstance(data, Mapping) else {"": data}
    for name, column in columns.items():
        state.update(f"{name} {column.dtype} {column.shape} ".encode())
        state.update(np.ascontiguousarray(column).tobytes())
    state.update(text.encode())
    return state.hexdigest()[:8]


def _largest(values: Array, place: int) -> float:
    """Return the value above which there are ``place`` others (the smallest, if there are not so many)."""
    rank = max(0, len(values) - 1 - place)
    return float(np.partition(values, rank)[rank])


@functools.lru_cache(maxsize=4)
def make_case(name: str, seed: int = 0) -> Case:
    """Return a case by its name; the same name and seed give the same records.

    Examples
    --------
    >>> case = make_case("linear-d2-20k")
    >>> case.num_records, case.dimension
    (20000, 2)
    """
    if name not in case_names():
        raise QueryError(f"case {name!r} is unknown; give one of {', '.join(case_names())}")
    return replace(_make(name, seed), seed=seed)


def _make(name: str, seed: int) -> Case:
    if name in ("adult", "adult-coarse"):
        return _adult_case(name)
    if name.startswith("gaussian"):
        # Both starts have the same records.
        return _gaussian_case(name, np.random.default_rng((seed, *b"gaussian")))
    generator = np.random.default_rng((seed, *name.encode()))
    if name.startswith("aside-"):
        return _ASIDE[name](name, generator)
    family, what, size = name.rsplit("-", 2)
    if what in AXES:
        return _hard_case(name, family, what, SIZES[size], generator)
    return _sweep_case(name, family, int(what.removeprefix("d")), SIZES[size], generator)


def case_names(group: str | None = None) -> list[str]:
    """Return the names of all cases, or of one group."""
    groups: dict[str, list[str]] = {
        "adult": ["adult", "adult-coarse"],
        "gaussian": ["gaussian", "gaussian-away"],
        "hard": [f"{family}-{axis}-{size}" for family in FAMILIES for axis in AXES for size in ("20k", "50k")],
        "sweep": [
            f"{family}-d{dimension}-{size}"
            for family in ("logistic", "linear")
            for dimension in SWEEP_DIMENSIONS
            for size in ("20k", "100k")
        ],
        "aside": list(_ASIDE),
    }
    return groups[group] if group is not None else [name for names in groups.values() for name in names]


# ------------------------------------------------------------------------------------------------------ adult


def _adult_case(name: str) -> Case:
    features = adult_features() if name == "adult" else adult_features_coarse()
    model = models.LogisticRegression(list(features))
    outcome = np.asarray(dpmcmc.data.adult_arrow()["income"].to_numpy(zero_copy_only=False), np.float64)
    data = {"X": np.column_stack(list(features.values())), "y": outcome}
    return Case(name, "adult", model, data, None, np.zeros(model.dimension))


def _adult_columns() -> tuple[Callable[[str], Array], Callable[..., Array]]:
    """Return how to get a column of numbers of the Adult data, and a column of 0 and 1: one of these words or not."""
    table = dpmcmc.data.adult_arrow()

    def number(column: str) -> Array:
        return np.asarray(table[column].to_numpy(), np.float64)

    def is_one_of(column: str, *words: str) -> Array:
        # What is missing is none of the words.
        return np.isin(np.array([str(word) for word in table[column].to_pylist()]), words).astype(np.float64)

    return number, is_one_of


def adult_features() -> dict[str, Array]:
    """Return the Adult data as 13 features, coded from what everybody knows: people are about 40, work 40 hours, …"""
    number, is_one_of = _adult_columns()
    return {
        "age": (number("age") - 40.0) / 20.0,
        "education": (number("education_num") - 10.0) / 4.0,
        "hours": (number("hours_per_week") - 40.0) / 20.0,
        "capital_gain": np.log1p(number("capital_gain")) / 10.0,
        "capital_loss": np.log1p(number("capital_loss")) / 10.0,
        "male": is_one_of("sex", "Male"),
        "married": is_one_of("marital_status", "Married-civ-spouse", "Married-AF-spouse"),
        "never_married": is_one_of("marital_status", "Never-married"),
        "white": is_one_of("race", "White"),
        "government": is_one_of("workclass", "Federal-gov", "State-gov", "Local-gov"),
        "self_employed": is_one_of("workclass", "Self-emp-inc", "Self-emp-not-inc"),
        "professional": is_one_of("occupation", "Exec-managerial", "Prof-specialty"),
        "born_in_us": is_one_of("native_country", "United-States"),
    }


def adult_features_coarse() -> dict[str, Array]:
    """Return the Adult data coded otherwise: numbers from their bounds to [−1, 1], words as treatment codes.

    Most values of a bounded number then lie near one end (nearly everybody has a capital gain of −1), so that columns
    are nearly collinear with the intercept.
    """
    number, is_one_of = _adult_columns()

    def from_bounds(column: str, low: float, high: float) -> Array:
        return (number(column) - (low + high) / 2.0) / ((high - low) / 2.0)

    return {
        "age": from_bounds("age", 0.0, 120.0),
        "education": from_bounds("education_num", 1.0, 16.0),
        "hours": from_bounds("hours_per_week", 0.0, 168.0),
        "capital_gain": from_bounds("capital_gain", 0.0, 100_000.0),
        "capital_loss": from_bounds("capital_loss", 0.0, 5_000.0),
        "female": is_one_of("sex", "Female"),
        "divorced": is_one_of("marital_status", "Divorced"),
        "never_married": is_one_of("marital_status", "Never-married"),
        "separated": is_one_of("marital_status", "Separated", "Married-spouse-absent"),
        "widowed": is_one_of("marital_status", "Widowed"),
        "black": is_one_of("race", "Black"),
        "managerial": is_one_of("occupation", "Exec-managerial"),
        "private_sector": is_one_of("workclass", "Private"),
    }


# --------------------------------------------------------------------------------------------------- gaussian


def _gaussian_case(name: str, generator: np.random.Generator) -> Case:
    """Return the paper's Gaussian model in ten dimensions; "away" starts one unit from the truth in each coordinate."""
    model = models.GaussianMean.paper()
    data = model.generate(jax.random.key(int(generator.integers(2**31))), SIZES["100k"])
    truth = np.zeros(model.dimension)
    truth[1] = 3.0
    signs = generator.choice([-1.0, 1.0], model.dimension)
    return Case(name, "gaussian", model, data, truth + signs if name == "gaussian-away" else None, truth, chains=False)


# ------------------------------------------------------------------------------------------------- regression


def _design(features: Array) -> Array:
    return np.column_stack([np.ones(len(features)), features])


def _outcomes(family: str, predictor: Array, extra: float, generator: np.random.Generator) -> Array:
    """Draw outcomes of a family; ``extra`` is its noise scale or dispersion."""
    if family == "linear":
        return predictor + extra * generator.standard_normal(len(predictor))
    if family == "logistic":
        return (generator.random(len(predictor)) < 1.0 / (1.0 + np.exp(-predictor))).astype(np.float64)
    means = np.exp(predictor)
    if family == "negative-binomial":
        means = means * generator.gamma(1.0 / extra, extra, len(means))
    return generator.poisson(means).astype(np.float64)


def regression_case(
    name: str,
    group: Group,
    family: str,
    features: Array,
    truth: Array,
    generator: np.random.Generator,
    *,
    extra: float = 1.0,
    prior_scale: float = 2.5,
    start: float | None = None,
    chains: bool = True,
) -> Case:
    """Draw the outcomes of a regression and return the case.

    Parameters
    ----------
    truth
        Intercept and coefficients; the coefficients alone are a model without intercept.
    start
        How far from the truth the run starts, along the intercept.
    """
    intercept = len(truth) > features.shape[1]
    model = FAMILIES[family](features.shape[1], prior_scale=prior_scale, intercept=intercept)
    outcome = _outcomes(family, (_design(features) if intercept else features) @ truth, extra, generator)
    guess = truth if model.extra_name is None else np.append(truth, math.log(extra))
    init = None
    if start is not None:
        init = guess.copy()
        init[0] += start
    return Case(name, group, model, {"X": features, "y": outcome}, init, guess, chains)


def _hard_case(name: str, family: str, axis: str, num_records: int, generator: np.random.Generator) -> Case:
    """Return a regression with nine features that are hard in one way, or in all.

    - plain: standard normal features;
    - skewed: log-normal and exponential ones;
    - rare: a feature that is 1 for 0.1 % of the records and else 0;
    - constant: a feature that is 1 for all, so that the prior alone tells it from the intercept;
    - scales: features on scales from 1e-3 to 1e3;
    - collinear: features whose covariance has the condition number 1e6;
    - far: the true intercept is 30 prior sds from the prior's centre;
    - start: the run starts 30 prior sds from the true intercept;
    - all: skewed, rare, constant, scales and far at once.
    """
    number = 9
    features = generator.standard_normal((num_records, number))
    # Effects on the predictor of one sd of a feature. With a log link a skewed feature has to have less.
    effects = 0.3 * generator.choice([-1.0, 1.0], number) * generator.uniform(0.5, 1.0, number)
    chosen = ("skewed", "rare", "constant", "scales", "far") if axis == "all" else (axis,)
    prior_scale, intercept, start, extra = 2.5, 0.5, None, 1.0 if family == "linear" else 0.5
    if "skewed" in chosen:
        for place in range(0, number, 2):
            features[:, place] = np.exp(features[:, place])
        features[:, 1] = -np.log(norm.sf(features[:, 1]))
        features[:, 3] = -np.log(norm.sf(features[:, 3]))
        effects *= 0.2 if family in ("poisson", "negative-binomial") else 1.0
    if "collinear" in chosen:
        rotation = np.linalg.qr(generator.standard_normal((number, number)))[0]
        features = features * np.logspace(0.0, -3.0, number) @ rotation
    if "far" in chosen or "start" in chosen:
        if family == "linear":
            distance = 30.0 * prior_scale
        else:  # the links leave no room: a narrow prior, and effects that it allows
            prior_scale, distance, extra = 0.1, 3.0, 0.1
            effects *= 0.3
        if "far" in chosen:
            intercept = distance
        else:
            start = distance
    if "rare" in chosen:
        features[:, -1] = generator.random(num_records) < 1e-3
        effects[-1] = 0.5 if prior_scale > 1.0 else 0.1
    if "constant" in chosen:
        features[:, -2] = 1.0
        effects[-2] = 0.0
    if "scales" in chosen:
        scales = np.logspace(-3.0, 3.0, 7)
        features[:, :7] *= scales
        # No coefficient that the prior would not allow: the smallest features hardly matter.
        effects[:7] = np.sign(effects[:7]) * np.minimum(np.abs(effects[:7]) / scales, prior_scale)
    truth = np.append(intercept, effects)
    return regression_case(
        name,
        "hard",
        family,
        features,
        truth,
        generator,
        extra=extra,
        prior_scale=prior_scale,
        start=start,
        chains=num_records <= SIZES["20k"],
    )


def _sweep_case(name: str, family: str, dimension: int, num_records: int, generator: np.random.Generator) -> Case:
    """Return a regression with ``dimension`` unconstrained coordinates in all and features of correlation 0.3.

    Linear regression has a noise scale, so that with two coordinates there is no room for an intercept.
    """
    intercepts = 0 if family == "linear" and dimension == 2 else 1
    number = dimension - intercepts - (family == "linear")
    shared = generator.standard_normal((num_records, 1))
    features = math.sqrt(0.7) * generator.standard_normal((num_records, number)) + math.sqrt(0.3) * shared
    # The predictor's variance does not grow with d.
    effects = generator.standard_normal(number) / math.sqrt(number)
    truth = np.append([-0.5] * intercepts, effects)
    return regression_case(name, "sweep", family, features, truth, generator, chains=False)


def _mixture_case(name: str, generator: np.random.Generator) -> Case:
    """Correlated normals whose mean depends on a category, the category one-hot, and an outcome by a heavy-tailed link.

    Analysed as logistic regression, while P(y = 1) = ½ + arctan(η)/π.
    """
    num_records, number = 40_000, 5
    category = generator.choice(5, num_records, p=[0.45, 0.3, 0.15, 0.08, 0.02])
    root = generator.standard_normal((number, number)) / math.sqrt(number) + 0.5 * np.eye(number)
    centers = generator.standard_normal((5, number))
    numbers = centers[category] + generator.standard_normal((num_records, number)) @ root
    features = np.column_stack([numbers, category[:, None] == np.arange(1, 5)])
    model = models.LogisticRegression(features.shape[1])
    truth = np.append(-1.0, 0.6 * generator.standard_normal(features.shape[1]))
    probability = 0.5 + np.arctan(_design(features) @ truth) / np.pi
    outcome = (generator.random(num_records) < probability).astype(np.float64)
    return Case(name, "aside", model, {"X": features, "y": outcome}, None, np.zeros(model.dimension))


def _heavy_tailed_case(name: str, generator: np.random.Generator) -> Case:
    """Linear regression on features that have Student's t distribution, 3 degrees of freedom, with t₅ errors."""
    num_records, number = 60_000, 8
    features = generator.standard_t(3.0, (num_records, number))
    features[:, 1:] += 0.4 * features[:, :1]
    truth = np.append(2.0, 0.4 * generator.standard_normal(number))
    outcome = _design(features) @ truth + generator.standard_t(5.0, num_records)
    model = models.LinearRegression(number)
    return Case(name, "aside", model, {"X": features, "y": outcome}, None, np.append(truth, 0.25))


def _overdispersed_case(name: str, generator: np.random.Generator) -> Case:
    """Counts with variance m + m²/2, as of visits to a doctor, analysed as Poisson."""
    num_records = 30_000
    age = generator.uniform(18.0, 85.0, num_records)
    income = generator.lognormal(0.0, 0.8, num_records)
    features = np.column_stack(
        [
            (age - 50.0) / 20.0,
            ((age - 50.0) / 20.0) ** 2,
            np.log(income),
            income / 5.0,
            generator.random(num_records) < 0.52,
            generator.random(num_records) < 0.15 + 0.3 * (age > 65.0),
            generator.random(num_records) < 0.05,
            generator.poisson(0.4, num_records),
        ]
    ).astype(np.float64)
    truth = np.array([0.2, 0.15, 0.1, -0.1, 0.05, 0.25, 0.5, 0.7, 0.2])
    outcome = _outcomes("negative-binomial", _design(features) @ truth, 0.5, generator)
    model = models.PoissonRegression(features.shape[1])
    return Case(name, "aside", model, {"X": features, "y": outcome}, None, truth)


_ASIDE: dict[str, Callable[[str, np.random.Generator], Case]] = {
    "aside-mixture": _mixture_case,
    "aside-heavy-tailed": _heavy_tailed_case,
    "aside-overdispersed": _overdispersed_case,
}


# -------------------------------------------------------------------------------------------------- reference


def reference_file(folder: Path, name: str, seed: int) -> Path:
    """Return where the reference of a case is kept."""
    return folder / f"{name}-{seed}.json"


def _filed_reference(case: Case, folder: Path | None) -> Reference:
    """Return what is filed for these very records; else compute it, and file it if there is a folder."""
    path = None if folder is None else reference_file(folder, case.name, case.seed)
    if path is not None and path.exists():
        content: dict[str, Any] = json.loads(path.read_bytes())
        if content.pop("digest") == case.digest:
            values: dict[str, Any] = {key: np.array(v) if isinstance(v, list) else v for key, v in content.items()}
            return Reference(**values)
    found = compute_reference(case)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {key: v.tolist() if isinstance(v, np.ndarray) else v for key, v in vars(found).items()}
        replace_file(path, json.dumps(content | {"digest": case.digest}).encode())
    return found


def compute_reference(case: Case) -> Reference:
    """Return the posterior without noise, by formula, by NUTS or from mode and curvature. Not private."""
    if isinstance(case.model, models.GaussianMean):
        mean, cov = case.model.posterior_not_private(case.data)
        return Reference(mean, cov, mean, cov, mean, "exact", 1.0)
    with jax.enable_x64(True):
        minus_log_posterior = potential_of(case.model, case.data)
        mode, cov = find_mode(minus_log_posterior, case.guess)
        newton_mean = mode + skewness_shift(minus_log_posterior, mode, cov)
        if not case.chains:
            return Reference(newton_mean, cov, mode, cov, newton_mean, "newton", 1.0)
        draws, max_r_hat = run_nuts(minus_log_posterior, mode, cov)
    points = draws.reshape(-1, case.dimension)
    return Reference(points.mean(axis=0), np.cov(points.T), mode, cov, newton_mean, "nuts", max_r_hat)


def _scores(model: dpmcmc.Model, data: Any, theta: jax.Array) -> jax.Array:
    """Return the gradient of each record's log-likelihood, n × d."""
    data = jax.tree.map(jnp.asarray, dict(data) if isinstance(data, Mapping) else data)
    return jax.jit(jax.vmap(jax.grad(model.unconstrained_log_likelihood), (None, 0)))(theta, data)
