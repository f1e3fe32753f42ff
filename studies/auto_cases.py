"""The cases of the study of ``sampler="auto"``: models, records, and draws from their exact posteriors.

The paper's two models, Adult, a million records, and shapes that a polynomial surrogate was not made for. Records are
synthetic, made from a seed, or the public Adult data. What is computed here is not private.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist

import dpmcmc
from dpmcmc import models
from dpmcmc.errors import QueryError
from studies import laplace_cases
from studies.exact import Array, find_mode, grid_draws, newton_draws, potential_of, run_nuts
from studies.laplace_cases import digest_of, num_records_of

Group = Literal["paper", "adult", "large", "shapes", "chains"]
Way = Literal["auto", "exact", "dp-hmc"]
"""How a case is run: by default, with ``exact=True``, or by the paper's DP-HMC with the paper's settings."""
NUM_EXACT = 6000
"""Exact draws that are kept of each posterior."""

# To be increased when a change of the code makes references that were filed worthless.
_FORMAT = 1


class Summary(NamedTuple):
    """A few records that stand for all of them: they have the same sufficient statistics.

    Attributes
    ----------
    records, weights
        Σᵢ wᵢ log p(rᵢ | θ) is the log-likelihood of all records, up to a constant.
    """

    records: Any
    weights: Array


class Reference(NamedTuple):
    """Draws from the exact posterior, in unconstrained space. Not private.

    Attributes
    ----------
    draws
        Number × d, in random order.
    method
        "exact" (by formula), "grid", "newton" or "nuts".
    """

    draws: Array
    method: str


@dataclass(frozen=True, eq=False)
class Case:
    """What ``auto`` is run on.

    Attributes
    ----------
    name, group
        Its name and the part of the study that it belongs to.
    model, data
        The model and its records, as :func:`dpmcmc.sample` takes them.
    truth
        A point near a mode, unconstrained, where the search for the exact posterior may start.
    init
        Where the run starts, an unconstrained vector; None: where the sampler starts by itself.
    summary
        What may stand for the records, to compute the posterior faster.
    draw
        Draws from the exact posterior, if there is a formula.
    box
        Bounds of both coordinates, if the exact posterior is to be found on a grid.
    nearly_gaussian
        Whether the Gaussian at the mode will do for the exact posterior; that is checked.
    mirror
        A symmetry of the posterior that leads to a part of it where no chain would come.
    way
        How it is run.
    seed, repeat
        What the records were made from.
    """

    name: str
    group: Group
    model: dpmcmc.Model
    data: Any
    truth: Array
    init: Array | None = None
    summary: Summary | None = None
    draw: Callable[[np.random.Generator, int], Array] | None = None
    box: Sequence[tuple[float, float]] | None = None
    nearly_gaussian: bool = False
    mirror: Callable[[Array], Array] | None = None
    way: Way = "auto"
    seed: int = 0
    repeat: int = 0

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
        """Eight digits that change with the records and the way in which references are computed."""
        return digest_of(self.data, f"{self.model!r} {self.box} {self.nearly_gaussian} {NUM_EXACT} {_FORMAT}")

    def reference(self, folder: Path | None = None) -> Reference:
        """Return draws from the exact posterior: those filed in ``folder``, or new ones (which are filed)."""
        path = None if folder is None else reference_file(folder, self.name, self.seed, self.repeat)
        if path is not None and path.exists():
            with np.load(path) as archive:
                if str(archive["digest"]) == self.digest:
                    return Reference(np.asarray(archive["draws"], np.float64), str(archive["method"]))
        found = compute_reference(self)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial.npz")
            np.savez(partial, draws=found.draws, method=found.method, digest=self.digest)
            partial.replace(path)
        return found


def reference_file(folder: Path, name: str, seed: int, repeat: int) -> Path:
    """Return where the reference of a case is kept."""
    return folder / f"{name}-{seed}-{repeat:02d}.npz"


def compute_reference(case: Case) -> Reference:
    """Draw from the exact posterior, by formula, on a grid, from mode and curvature or by NUTS. Not private."""
    generator = np.random.default_rng((case.seed, case.repeat, *b"reference", *case.name.encode()))
    if case.draw is not None:
        return Reference(case.draw(generator, NUM_EXACT), "exact")
    with jax.enable_x64(True):
        records, weights = case.summary or (case.data, None)
        potential = potential_of(case.model, records, weights)
        if case.box is not None:
            return Reference(grid_draws(potential, case.box, generator, NUM_EXACT), "grid")
        mode, cov = find_mode(potential, case.truth)
        if case.nearly_gaussian:
            method, draws = "newton", newton_draws(potential, mode, cov, generator, NUM_EXACT)
        else:
            method, draws = "nuts", run_nuts(potential, mode, cov)[0].reshape(-1, case.dimension)
    if case.mirror is not None:
        draws = np.where(generator.random((len(draws), 1)) < 0.5, case.mirror(draws), draws)
    return Reference(generator.permutation(draws)[:NUM_EXACT], method)


# ------------------------------------------------------------------------------------------------------ by name


@functools.lru_cache(maxsize=4)
def make_case(name: str, seed: int = 0, repeat: int = 0) -> Case:
    """Return a case by its name; the same name, seed and repeat give the same records and start.

    Every repeat has records of its own, unless the reference takes chains (see :func:`data_repeat`).

    Examples
    --------
    >>> case = make_case("ring")
    >>> case.num_records, case.dimension
    (50000, 2)
    """
    if name not in case_names():
        raise QueryError(f"case {name!r} is unknown; give one of {', '.join(case_names())}")
    own = data_repeat(name, repeat)
    group, records_of, way = _CHAINS.get(name, (_ALL[name][0], name, "auto"))
    generator = np.random.default_rng((seed, own, *records_of.encode()))
    made = replace(_ALL[name][1](generator), name=name, group=group, seed=seed, repeat=own, way=way)
    starts = np.random.default_rng((seed, repeat, *b"start", *records_of.encode()))
    if way == "dp-hmc":  # as in the paper: four chains that start in the posterior
        exact = made.reference().draws
        made = replace(made, init=exact[starts.integers(len(exact), size=4)])
    elif records_of in _FLAT_PRIORS:
        start = starts.standard_normal(made.dimension)
        made = replace(made, init=made.truth + start / np.linalg.norm(start))
    return made


def data_repeat(name: str, repeat: int) -> int:
    """Return the repeat whose records a repeat shares: its own, or the first one's where references take long."""
    return 0 if name in _SHARED else repeat


def case_names(group: str | None = None) -> list[str]:
    """Return the names of all cases, or of one group."""
    return [name for name, (own, _) in _ALL.items() if group in (None, own)]


def _case(model: dpmcmc.Model, data: Any, truth: Sequence[float] | Array, **options: Any) -> Case:
    """Return a case that :func:`make_case` completes."""
    return Case("", "shapes", model, data, np.asarray(truth, np.float64), **options)


def _normal_prior(parameters: dict[str, Any], scales: dict[str, tuple[float, float]]) -> Any:
    """Return log-prior and prior draws of parameters that are N(m, s²), or |N(0, s²)| if they are positive."""

    def distribution(name: str) -> Any:
        mean, scale = scales[name]
        return dist.HalfNormal(scale) if parameters[name] == "positive" else dist.Normal(mean, scale)

    def log_prior(values: dict[str, jax.Array]) -> jax.Array:
        return sum((jnp.sum(distribution(name).log_prob(values[name])) for name in parameters), jnp.zeros(()))

    def sample_prior(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, len(parameters))
        return {
            name: distribution(name).sample(own, () if shape == "positive" else shape)
            for own, (name, shape) in zip(keys, parameters.items(), strict=True)
        }

    return log_prior, sample_prior


def _model(name: str, log_likelihood: Any, parameters: dict[str, Any], **scales: tuple[float, float]) -> dpmcmc.Model:
    """Return a model with independent normal (or half-normal) priors, by parameter (mean, scale)."""
    log_prior, sample_prior = _normal_prior(parameters, scales)
    return dpmcmc.Model(log_likelihood, log_prior, parameters, sample_prior=sample_prior, name=name)


# -------------------------------------------------------------------------------------- paper, Adult, a million


def _paper(model: models.Banana | models.GaussianMean, num_records: int = 100_000, heavy: bool = False) -> Any:
    """Return how to make the paper's experiment; ``heavy``: with Student's t₃ noise of the same variance."""

    def make(generator: np.random.Generator) -> Case:
        truth = np.zeros(model.dimension)
        truth[1] = 3.0
        if heavy:
            assert isinstance(model, models.Banana)
            noise = generator.standard_t(3.0, (num_records, 2)) / math.sqrt(3.0)
            data = truth + np.sqrt(model.variances) * noise
        else:
            data = model.generate(jax.random.key(int(generator.integers(2**31))), num_records)

        def draw(generator: np.random.Generator, number: int) -> Array:
            return model.sample_posterior_not_private(jax.random.key(int(generator.integers(2**31))), data, number)

        return _case(model, data, truth, draw=draw)

    return make


def _adult(generator: np.random.Generator) -> Case:
    """Return logistic regression on the Adult data, as in the study of DP-Laplace."""
    made = laplace_cases.make_case("adult")
    return _case(made.model, made.data, made.guess)


def _logistic(num_records: int, intercept: float, slopes: Sequence[float], **options: Any) -> Any:
    """Return how to make a logistic regression on standard normal features."""

    def make(generator: np.random.Generator) -> Case:
        truth = np.array([intercept, *slopes])
        features = generator.standard_normal((num_records, len(slopes)))
        probability = 1.0 / (1.0 + np.exp(-intercept - features @ truth[1:]))
        outcome = (generator.random(num_records) < probability).astype(np.float64)
        return _case(models.LogisticRegression(len(slopes)), {"X": features, "y": outcome}, truth, **options)

    return make


# ------------------------------------------------------------------------------------------------------- shapes


def _bent(
    num_records: int,
    straighten: Callable[[Any, Any], Any],
    scales: Sequence[float],
    *,
    prior_scale: float = 3.0,
    rotated: bool = False,
) -> Any:
    """Return how to make a posterior that is Gaussian but for a bend: x ~ N(u(θ), Σ), u = (v₁, v₂ + f(v₁), v₃, …).

    Here v = Rθ, R a rotation or 1, Σ diagonal, and u ~ N(0, s² I) is the prior: the map has unit Jacobian, so that u
    has a Gaussian posterior.

    Parameters
    ----------
    straighten
        f(v₁), of NumPy or of JAX: called with the module of functions and v₁.
    scales
        Posterior sds of u.
    rotated
        Whether R is a random rotation.
    """
    dimension = len(scales)
    sds = np.asarray(scales) * math.sqrt(num_records)

    def make(generator: np.random.Generator) -> Case:
        rotation = np.linalg.qr(generator.standard_normal((dimension, dimension)))[0] if rotated else np.eye(dimension)
        true_u = np.zeros(dimension)
        true_u[1] = 1.0
        data = true_u + sds * generator.standard_normal((num_records, dimension))

        def straight(theta: jax.Array) -> jax.Array:
            v = jnp.asarray(rotation, theta.dtype) @ theta
            return v.at[1].add(straighten(jnp, v[0]))

        def unbend(module: Any, u: Any) -> Any:
            v = [u[..., place] for place in range(dimension)]
            v[1] = v[1] - straighten(module, v[0])
            return module.stack(v, axis=-1) @ module.asarray(rotation)

        def log_likelihood(values: dict[str, jax.Array], record: jax.Array) -> jax.Array:
            theta = values["theta"]
            return -0.5 * jnp.sum(((record - straight(theta)) / jnp.asarray(sds, theta.dtype)) ** 2)

        model = dpmcmc.Model(
            log_likelihood,
            lambda values: -0.5 * jnp.sum(straight(values["theta"]) ** 2) / prior_scale**2,
            {"theta": dimension},
            sample_prior=lambda key: {"theta": unbend(jnp, prior_scale * jax.random.normal(key, (dimension,)))},
            name="bent",
        )

        def draw(generator: np.random.Generator, number: int) -> Array:
            precision = num_records / sds**2 + prior_scale**-2
            center = num_records / sds**2 * data.mean(axis=0) / precision
            points = center + generator.standard_normal((number, dimension)) / np.sqrt(precision)
            return np.asarray(unbend(np, points))

        return _case(model, data, unbend(np, true_u), draw=draw)

    return make


def _function_of_mean(
    num_records: int,
    location: Callable[[jax.Array], list[jax.Array]],
    truth: Sequence[float],
    scales: Sequence[float],
    box: float,
    prior: tuple[float, float],
) -> Any:
    """Return how to make x ~ N(m(θ), Σ) for θ in the plane, Σ diagonal, of which the mean record tells all.

    Parameters
    ----------
    location
        m, from θ to one or two numbers.
    scales
        Sds of the mean record.
    box
        θ lies between −box and box.
    prior
        Mean and sd of every coordinate of θ.
    """
    sds = np.asarray(scales) * math.sqrt(num_records)

    def make(generator: np.random.Generator) -> Case:
        center = np.array([float(value) for value in location(jnp.asarray(truth))])
        data = center + sds * generator.standard_normal((num_records, len(sds)))

        def log_likelihood(values: dict[str, jax.Array], record: jax.Array) -> jax.Array:
            theta = values["theta"]
            return -0.5 * jnp.sum(((record - jnp.stack(location(theta))) / jnp.asarray(sds, theta.dtype)) ** 2)

        model = _model("function of mean", log_likelihood, {"theta": (2,)}, theta=prior)
        summary = Summary(data.mean(axis=0, keepdims=True), np.array([float(num_records)]))
        return _case(model, data, truth, summary=summary, box=[(-box, box)] * 2)

    return make


def _two_moments(data: Array) -> Summary:
    """Return two records with the mean and the variance of all: enough for a normal likelihood."""
    records = data.mean() + np.array([-1.0, 1.0]) * data.std()
    return Summary(records, np.full(2, len(data) / 2.0))


def _mixture(generator: np.random.Generator) -> Case:
    """Two normals with unit variance, their weight unknown: which is the first is nowhere said."""
    num_records, weight, centers = 5000, 0.4, np.array([-1.5, 1.5])
    second = generator.random(num_records) >= weight
    data = centers[second.astype(int)] + generator.standard_normal(num_records)

    def log_likelihood(values: dict[str, jax.Array], record: jax.Array) -> jax.Array:
        means, logit = values["means"], values["logit"]
        first = jax.nn.log_sigmoid(logit) - 0.5 * (record - means[0]) ** 2
        return jnp.logaddexp(first, jax.nn.log_sigmoid(-logit) - 0.5 * (record - means[1]) ** 2)

    model = _model("mixture", log_likelihood, {"means": (2,), "logit": ()}, means=(0.0, 2.0), logit=(0.0, 1.5))
    truth = [*centers, math.log(weight / (1.0 - weight))]
    return _case(model, data, truth, mirror=lambda draws: draws[:, [1, 0, 2]] * np.array([1.0, 1.0, -1.0]))


def _factor(generator: np.random.Generator) -> Case:
    """One factor behind four columns, x ~ N(0, λλᵀ + 1): the sign of all loadings may be switched."""
    num_records, loadings = 20_000, np.array([1.2, -0.8, 0.6, 1.0])
    factor = generator.standard_normal((num_records, 1))
    data = factor * loadings + generator.standard_normal((num_records, 4))

    def log_likelihood(values: dict[str, jax.Array], record: jax.Array) -> jax.Array:
        size = 1.0 + jnp.sum(values["loadings"] ** 2)
        return 0.5 * jnp.sum(record * values["loadings"]) ** 2 / size - 0.5 * jnp.log(size)

    model = _model("factor", log_likelihood, {"loadings": (4,)}, loadings=(0.0, 2.0))
    return _case(model, data, loadings, mirror=lambda draws: -draws)


def _student_regression(generator: np.random.Generator) -> Case:
    """Linear regression with Student's t₃ errors, which the likelihood knows of."""
    num_records, slopes = 20_000, np.array([0.5, -1.0, 0.25])
    features = generator.standard_normal((num_records, 3))
    outcome = 1.0 + features @ slopes + 0.7 * generator.standard_t(3.0, num_records)

    def log_likelihood(values: dict[str, jax.Array], record: dict[str, jax.Array]) -> jax.Array:
        residual = record["y"] - values["intercept"] - jnp.sum(record["X"] * values["slopes"])
        scaled = residual / values["scale"]
        return -2.0 * jnp.log1p(scaled**2 / 3.0) - jnp.log(values["scale"])

    parameters = {"intercept": (), "slopes": (3,), "scale": "positive"}
    model = _model(
        "Student regression", log_likelihood, parameters, intercept=(0.0, 5.0), slopes=(0.0, 2.5), scale=(0.0, 5.0)
    )
    return _case(model, {"X": features, "y": outcome}, [1.0, *slopes, math.log(0.7)])


def _normal_log_likelihood(values: dict[str, jax.Array], record: jax.Array) -> jax.Array:
    return -0.5 * ((record - values["mean"]) / values["scale"]) ** 2 - jnp.log(values["scale"])


def _misspecified(generator: np.random.Generator) -> Case:
    """Mean and scale of a normal distribution, of records that have Student's t₃ distribution."""
    data = 1.0 + generator.standard_t(3.0, 20_000)
    parameters = {"mean": (), "scale": "positive"}
    model = _model("misspecified", _normal_log_likelihood, parameters, mean=(0.0, 5.0), scale=(0.0, 5.0))
    truth = [data.mean(), math.log(data.std())]
    return _case(model, data, truth, summary=_two_moments(data), box=[(0.0, 2.0), (-1.0, 2.0)])


def _boundary(generator: np.random.Generator) -> Case:
    """Variance 1 + τ² with τ hardly more than 0: log τ has no end to the left."""
    data = 0.5 + math.hypot(1.0, 0.05) * generator.standard_normal(20_000)

    def log_likelihood(values: dict[str, jax.Array], record: jax.Array) -> jax.Array:
        variance = 1.0 + values["extra"] ** 2
        return -0.5 * (record - values["mean"]) ** 2 / variance - 0.5 * jnp.log(variance)

    parameters = {"mean": (), "extra": "positive"}
    model = _model("boundary", log_likelihood, parameters, mean=(0.0, 5.0), extra=(0.0, 1.0))
    return _case(model, data, [0.5, -2.5], summary=_two_moments(data), box=[(0.3, 0.7), (-16.0, 1.0)])


def _gamma(generator: np.random.Generator) -> Case:
    """Shape and rate of a gamma distribution, few records."""
    data = generator.gamma(0.7, 1.0 / 1.5, 2000)

    def log_likelihood(values: dict[str, jax.Array], record: jax.Array) -> jax.Array:
        shape, rate = values["shape"], values["rate"]
        return shape * jnp.log(rate) - jax.lax.lgamma(shape) + (shape - 1.0) * jnp.log(record) - rate * record

    parameters = {"shape": "positive", "rate": "positive"}
    model = _model("gamma", log_likelihood, parameters, shape=(0.0, 5.0), rate=(0.0, 5.0))
    # Two records with the mean and the geometric mean of all.
    mean, product = data.mean(), math.exp(2.0 * np.log(data).mean())
    records = mean + np.array([-1.0, 1.0]) * math.sqrt(mean**2 - product)
    summary = Summary(records, np.full(2, len(data) / 2.0))
    return _case(model, data, np.log([0.7, 1.5]), summary=summary, box=[(-1.5, 1.0), (-1.5, 2.5)])


def _funnel(generator: np.random.Generator) -> Case:
    """θ₂ ~ N(0, e^θ₁), and few hints at θ₂."""
    num_records = 10_000
    scale = 0.5 * math.sqrt(num_records)
    data = 1.0 + scale * generator.standard_normal(num_records)

    def log_prior(values: dict[str, jax.Array]) -> jax.Array:
        log_variance, effect = values["log_variance"], values["effect"]
        return -0.5 * (log_variance / 1.5) ** 2 - 0.5 * effect**2 * jnp.exp(-log_variance) - 0.5 * log_variance

    def sample_prior(key: jax.Array) -> dict[str, jax.Array]:
        first, second = jax.random.normal(key, (2,))
        return {"log_variance": 1.5 * first, "effect": jnp.exp(0.75 * first) * second}

    model = dpmcmc.Model(
        lambda values, record: -0.5 * ((record - values["effect"]) / scale) ** 2,
        log_prior,
        {"log_variance": (), "effect": ()},
        sample_prior=sample_prior,
        name="funnel",
    )
    summary = Summary(data.mean(keepdims=True), np.array([float(num_records)]))
    return _case(model, data, [0.0, 1.0], summary=summary, box=[(-9.0, 9.0), (-3.0, 5.0)])


_GROUP_SIZES = (2000, 1500, 1000, 800, 500, 200)


def _groups(centred: bool) -> Any:
    """Return how to make a hierarchical model: groups with means of their own, written in one of the two usual ways."""

    def numpyro_model(y: Any, group: Any) -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
        spread = numpyro.sample("spread", dist.HalfNormal(2.0))
        shape = (len(_GROUP_SIZES),)
        if centred:
            effects = numpyro.sample("effects", dist.Normal(mean, spread).expand(shape).to_event(1))
        else:
            effects = mean + spread * numpyro.sample("standard", dist.Normal(0.0, 1.0).expand(shape).to_event(1))
        with numpyro.plate("records", y.shape[0]):
            numpyro.sample("y", dist.Normal(effects[group], 1.0), obs=y)

    def make(generator: np.random.Generator) -> Case:
        group = np.repeat(np.arange(len(_GROUP_SIZES)), _GROUP_SIZES)
        standard = generator.standard_normal(len(_GROUP_SIZES))
        effects = 1.0 + 0.5 * standard
        data = {"y": effects[group] + generator.standard_normal(len(group)), "group": group}
        like = {name: jax.ShapeDtypeStruct(column.shape, column.dtype) for name, column in data.items()}
        model = dpmcmc.from_numpyro(numpyro_model, like, name="groups")
        values = {"mean": 1.0, "spread": 0.5, "effects": effects, "standard": standard}
        with jax.enable_x64(True):
            truth = model.unconstrain({name: jnp.asarray(values[name]) for name in model.parameters})
        means = np.array([data["y"][group == own].mean() for own in range(len(_GROUP_SIZES))])

        def draw(generator: np.random.Generator, number: int) -> Array:
            mean, spread, effects = _draw_groups(means, generator, number)
            rest = effects if centred else (effects - mean[:, None]) / spread[:, None]
            return np.column_stack([mean, np.log(spread), rest])

        return _case(model, data, np.asarray(truth), draw=draw)

    return make


def _draw_groups(means: Array, generator: np.random.Generator, number: int) -> tuple[Array, Array, Array]:
    """Draw mean, spread and effects from the posterior given the groups' mean records.

    Given the spread t all is Gaussian, the group means ȳ_g ~ N(m, t² + 1/n_g): so log t is drawn from a fine grid, then
    m given t, then the effects given both.
    """
    log_spread = np.linspace(-8.0, 3.0, 20_001)
    variances = np.exp(2.0 * log_spread)[:, None] + 1.0 / np.array(_GROUP_SIZES)
    precision = np.sum(1.0 / variances, axis=1) + 1.0 / 25.0
    center = np.sum(means / variances, axis=1) / precision
    squares = np.sum(means**2 / variances + np.log(variances), axis=1)
    log_density = -0.5 * (squares - center**2 * precision + np.log(precision))
    log_density += log_spread - np.exp(2.0 * log_spread) / 8.0  # the prior of t, and that of log t
    masses = np.exp(log_density - log_density.max())
    chosen = generator.choice(len(masses), number, p=masses / masses.sum())
    width = log_spread[1] - log_spread[0]
    spread = np.exp(log_spread[chosen] + width * (generator.random(number) - 0.5))
    mean = center[chosen] + generator.standard_normal(number) / np.sqrt(precision[chosen])
    inner = np.array(_GROUP_SIZES) + 1.0 / spread[:, None] ** 2
    effect_centers = (np.array(_GROUP_SIZES) * means + (mean / spread**2)[:, None]) / inner
    return mean, spread, effect_centers + generator.standard_normal(inner.shape) / np.sqrt(inner)


def _bend(module: Any, v: Any) -> Any:
    """f of the curved shapes: 2.5 sds of u₂ at one sd of u₁, as in the paper's banana."""
    return 2.0 * v**2


_ALL: dict[str, tuple[Group, Callable[[np.random.Generator], Case]]] = {
    "banana": ("paper", _paper(models.Banana())),
    "gaussian": ("paper", _paper(models.GaussianMean.paper())),
    "adult": ("adult", _adult),
    "logistic-1m": ("large", _logistic(1_000_000, -1.0, [0.5, -0.8, 0.3, 0.0, 1.0], nearly_gaussian=True)),
    "ring": (
        "shapes",
        _function_of_mean(50_000, lambda t: [t[0] ** 2 + t[1] ** 2], [2.0, 0.0], [0.4], 6.0, (0.0, 2.0)),
    ),
    "two-modes": (
        "shapes",
        _function_of_mean(20_000, lambda t: [t[0] ** 2, t[1]], [1.0, 1.0], [0.2, 0.1], 4.0, (0.0, 1.5)),
    ),
    "unequal-modes": (
        "shapes",
        _function_of_mean(20_000, lambda t: [t[0] ** 2, t[1]], [1.0, 1.0], [0.2, 0.1], 4.0, (1.0, 1.4)),
    ),
    "four-modes": (
        "shapes",
        _function_of_mean(50_000, lambda t: [t[0] ** 2, t[1] ** 2], [1.0, 1.0], [0.2, 0.3], 4.0, (0.0, 1.5)),
    ),
    "product": (
        "shapes",
        _function_of_mean(20_000, lambda t: [t[0] * t[1]], [1.0, 1.0], [0.15], 8.0, (0.0, 1.5)),
    ),
    "far-modes": (
        "shapes",
        _function_of_mean(20_000, lambda t: [t[0] ** 2, t[1]], [2.0, 1.0], [0.2, 0.05], 4.0, (0.0, 2.0)),
    ),
    "mixture": ("shapes", _mixture),
    "factor": ("shapes", _factor),
    "student-regression": ("shapes", _student_regression),
    "misspecified": ("shapes", _misspecified),
    "banana-t3": ("shapes", _paper(models.Banana(), heavy=True)),
    "funnel": ("shapes", _funnel),
    "groups-centred": ("shapes", _groups(centred=True)),
    "groups-noncentred": ("shapes", _groups(centred=False)),
    "small-n": ("shapes", _logistic(300, -0.5, [1.0, -0.5])),
    "rare-events": ("shapes", _logistic(20_000, -6.5, [0.8, -0.5])),
    "cubic": ("shapes", _bent(50_000, lambda module, v: 2.0 * v**3, [0.5, 0.15])),
    "sine": ("shapes", _bent(50_000, lambda module, v: 0.6 * module.sin(2.0 * v), [1.0, 0.15])),
    "curved-5d": ("shapes", _bent(50_000, _bend, [0.5, 0.2, 0.3, 0.1, 0.4], rotated=True)),
    "curved-12d": ("shapes", _bent(100_000, _bend, [0.5, 0.2, *[0.2] * 10], rotated=True)),
    "gamma": ("shapes", _gamma),
    "boundary": ("shapes", _boundary),
}
# Chains on the records of other cases: those of ``exact=True``, and the paper's.
_CHAINS: dict[str, tuple[Group, str, Way]] = {
    "banana-exact": ("chains", "banana", "exact"),
    "banana-dp-hmc": ("chains", "banana", "dp-hmc"),
    "cubic-exact": ("chains", "cubic", "exact"),
}
_ALL |= {name: (group, _ALL[records_of][1]) for name, (group, records_of, _) in _CHAINS.items()}
# One unit away from the truth; the others start by themselves, from the prior.
_FLAT_PRIORS = ("banana", "gaussian", "banana-t3")
_SHARED = ("adult", "logistic-1m", "mixture", "factor", "student-regression", "small-n", "rare-events")
