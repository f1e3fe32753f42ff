r"""Regression posteriors against NumPyro's NUTS: with a loose budget, means and sds agree within Monte-Carlo error.

The reference models are written out in NumPyro's own distributions and share no code with the package. Priors are so
narrow that they matter (they move the posterior by about half an sd), records so many that posteriors are Gaussian:
the mean's first correction for skewness is below ``SKEWNESS`` posterior sds (tested below), where the Monte-Carlo
error of a comparison is about 0.03. ε = 1000 leaves privacy noise below 0.001 of an sd, which is tested too. Only
there can methods that are approximate be held to Monte-Carlo error; how wrong they are elsewhere is the matter of
docs/laplace.md and docs/auto.md.

**z-scores.** Means differ by z·√(s₁²/k₁ + s₂²/k₂), sds by about z·√(s₁²/2k₁ + s₂²/2k₂): k is the number of draws
where they are independent, and ArviZ's effective sample size (for means, for sds) of NUTS and of chains.

**False failures**: ``BAND`` = 7.5. If effective sample sizes are overestimated by half, that is 6.1 sds; an error of
``SKEWNESS`` is at most one sd of a comparison, which leaves 5.1 for a mean: 3e-7 for each, 5e-6 for the at most 13
means and 13 sds of a test. **Twins**: references with a prior half as wide are told apart (twice as wide, too, but
for counts), and those that are shifted by half an sd, or half as wide again, or 0.6 as wide. Seeds are fixed and were
not picked.
"""

import warnings
from functools import cache, partial
from typing import Any, NamedTuple

import arviz
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
import scipy.special
from numpyro import distributions as dist
from numpyro.infer import MCMC, NUTS

import dpmcmc
from dpmcmc import models
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.data import Units
from dpmcmc.data.adult import adult, adult_arrow
from dpmcmc.errors import DPMCMCWarning
from dpmcmc.models import UnitModel
from dpmcmc.models.units import row_model

BAND = 7.5
SKEWNESS = 0.03
NUM_RECORDS, NUM_FEATURES, NUM_GROUPS, MAX_ROWS = 10_000, 2, 8, 3
PRIOR_SCALE = 0.15
EPSILON, DELTA, SEED = 1000.0, 1e-6, 1
CHAINS, WARMUP, DRAWS = 2, 300, 800


class Case(NamedTuple):
    """A model with its records, and the same rows for NumPyro."""

    model: Any
    data: Any
    family: str
    rows: dict


def reference_model(family, rows, prior_scale):
    """The regressions as NumPyro writes them; the negative binomial by mean and concentration 1/dispersion."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, prior_scale))
    features = rows["X"].shape[1]
    coefficients = numpyro.sample("coefficients", dist.Normal(0.0, prior_scale).expand([features]).to_event(1))
    predictor = intercept + rows["X"] @ coefficients
    if "group" in rows:
        scale = numpyro.sample("group_scale", dist.HalfNormal(prior_scale))
        effects = numpyro.sample("group_effects", dist.Normal(0.0, scale).expand([NUM_GROUPS]).to_event(1))
        predictor = predictor + effects[rows["group"]]
    match family:
        case "logistic":
            outcome = dist.Bernoulli(logits=predictor)
        case "poisson":
            outcome = dist.Poisson(jnp.exp(predictor))
        case "linear":
            outcome = dist.Normal(predictor, numpyro.sample("noise_scale", dist.HalfNormal(prior_scale)))
        case "negative-binomial":
            dispersion = numpyro.sample("dispersion", dist.HalfNormal(prior_scale))
            outcome = dist.NegativeBinomial2(jnp.exp(predictor), 1.0 / dispersion)
    with numpyro.plate("records", len(rows["y"])):
        numpyro.sample("y", outcome, obs=rows["y"])


FAMILIES = {
    "linear": models.LinearRegression,
    "logistic": models.LogisticRegression,
    "poisson": models.PoissonRegression,
    "negative-binomial": models.NegativeBinomialRegression,
}


def outcomes(family, predictor, generator):
    mean = np.exp(predictor)
    match family:
        case "linear":
            return predictor + generator.normal(size=len(predictor))
        case "logistic":
            return (generator.random(len(predictor)) < scipy.special.expit(predictor)).astype(float)
        case "poisson":
            return generator.poisson(mean).astype(float)
    return generator.poisson(mean * generator.gamma(2.0, 0.5, len(mean))).astype(float)


@cache
def case(name):
    family, _, variant = name.partition(" ")
    if variant == "of Adult":
        return adult_case()
    generator = np.random.default_rng(SEED)
    if variant == "with units":
        ids = np.repeat(np.arange(NUM_RECORDS // 2), generator.integers(1, MAX_ROWS + 2, NUM_RECORDS // 2))
    else:
        ids = np.arange(NUM_RECORDS)
    features = generator.uniform(-1.0, 1.0, (len(ids), NUM_FEATURES))
    predictor = 0.3 + features @ [0.5, -0.4]
    rows = {"X": features}
    options = {}
    if variant == "with groups":
        rows["group"] = generator.integers(0, NUM_GROUPS, len(ids))
        predictor += 0.2 * generator.normal(size=NUM_GROUPS)[rows["group"]]
        options = {"groups": NUM_GROUPS}
    rows["y"] = outcomes(family, predictor, generator)
    model = FAMILIES[family](NUM_FEATURES, prior_scale=PRIOR_SCALE, feature_bounds=1.0, **options)
    if variant != "with units":
        return Case(model, rows, family, rows)
    # A person's first rows count, in the order of the table.
    place = np.arange(len(ids)) - np.searchsorted(ids, ids)
    counted = {name: column[place < MAX_ROWS] for name, column in rows.items()}
    return Case(UnitModel(model, MAX_ROWS, "person"), Units.of(ids, MAX_ROWS).stack(rows), family, counted)


def adult_case():
    """Income by a formula; the reference codes the columns by hand, as the schema says."""
    columns = adult_arrow().slice(0, NUM_RECORDS)
    table = dpmcmc.Table(columns, adult().schema)
    formula = "income ~ age + education_num + hours_per_week + C(sex)"
    model, records = dpmcmc.regression(formula, table, prior_scale=PRIOR_SCALE)
    assert model.feature_names == ("age", "education_num", "hours_per_week", "C(sex)[T.Male]")
    raw = columns.to_pandas()
    coding = {"age": (40, 20), "education_num": (10, 4), "hours_per_week": (40, 20)}
    coded = [(raw[name] - center) / scale for name, (center, scale) in coding.items()]
    features = np.stack([*coded, raw["sex"] == "Male"], axis=1).astype(float)
    return Case(model, records, "logistic", {"X": features, "y": raw["income"].to_numpy(float)})


CASES = [
    *FAMILIES,
    "linear with groups",
    "poisson with groups",
    "logistic with units",
    "logistic of Adult",
]
GAUSSIAN = [name for name in CASES if "groups" not in name]
IN_FAST = ("logistic",)
by_name = [pytest.param(name, marks=[] if name in IN_FAST else [pytest.mark.slow]) for name in CASES]


# ---------------------------------------------------------------------- both sides


@cache
def compiled_nuts(name):
    """NUTS of a case; records and the prior's scale are inputs of the compiled code."""
    return MCMC(
        NUTS(partial(reference_model, case(name).family)),
        num_warmup=WARMUP,
        num_samples=DRAWS,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
        jit_model_args=True,
    )


@cache
def nuts(name, prior_scale=PRIOR_SCALE):
    """Draws of NUTS in double precision: by parameter, chains × draws (× size)."""
    with jax.enable_x64(True):
        sampler = compiled_nuts(name)
        sampler.run(jax.random.key(SEED), jax.tree.map(jnp.asarray, case(name).rows), jnp.asarray(prior_scale))
        draws = {key: np.asarray(value) for key, value in sampler.get_samples(group_by_chain=True).items()}
    assert max(arviz.rhat(value) for value in flat(draws).values()) < 1.02
    return draws


def flat(draws):
    """One matrix, chains × draws, for each number."""
    found = {}
    for name, values in draws.items():
        columns = values.reshape(*values.shape[:2], -1)
        found |= {f"{name}[{place}]": columns[..., place] for place in range(columns.shape[-1])}
    return found


@cache
def private(name, sampler="auto", **options):
    return run(name, dpmcmc.DPLaplace() if sampler == "DPLaplace" else sampler, **options)


def run(name, sampler, **options):
    model, data, *_ = case(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)
        return dpmcmc.sample(
            model,
            data,
            sampler=sampler,
            epsilon=EPSILON,
            delta=DELTA,
            seed=SEED,
            progress=False,
            **options,
        )


class Moments(NamedTuple):
    """Mean and sd with their variances. (Of NUTS and HMC, squares of draws are often more correlated than draws.)"""

    mean: float
    sd: float
    of_mean: float
    of_sd: float

    @classmethod
    def of(cls, draws, independent):
        sizes = [draws.size if independent else float(arviz.ess(draws, method=kind)) for kind in ("mean", "sd")]
        variance = draws.var()
        return cls(draws.mean(), draws.std(), variance / sizes[0], variance / (2.0 * sizes[1]))


def z_scores(ours, theirs, independent=True):
    """|z| of the mean and of the sd of every number that both have."""
    ours, theirs = flat(ours), flat(theirs)
    assert set(ours) == set(theirs)
    found = {}
    for name in ours:
        one, other = Moments.of(ours[name], independent), Moments.of(theirs[name], False)
        found[name] = (
            abs(one.mean - other.mean) / np.sqrt(one.of_mean + other.of_mean),
            abs(one.sd - other.sd) / np.sqrt(one.of_sd + other.of_sd),
        )
    return found


def largest(scores):
    return max(max(pair) for pair in scores.values())


# ---------------------------------------------------------------------- agreement


@pytest.mark.parametrize("name", by_name)
def test_auto_agrees_with_nuts(name):
    """(Flags are no matter here: with so little noise it is seen that no posterior is Gaussian to the last digit.)"""
    posterior = private(name)
    assert posterior.quality.converged
    assert max(np.max(share) for share in posterior.quality.noise_share.values()) < 1e-3
    assert largest(z_scores(posterior.draws, nuts(name))) < BAND


@pytest.mark.parametrize("name", by_name)
def test_laplace_agrees_with_nuts(name):
    posterior = private(name, "DPLaplace")
    assert posterior.quality.converged
    assert largest(z_scores(posterior.draws, nuts(name))) < BAND


# |∂ ln p/∂η| ≤ 1 and ‖(1, x)‖ ≤ √3: nothing is clipped. About the information of 10,000 records of features in [−1, 1].
CHAIN = dpmcmc.DPHMC(0.5, 3, 3.0**0.5, 3.0**0.5, 3.0, 4.0, mass_matrix=np.array([2200.0, 750.0, 750.0]))


def test_an_exact_chain_agrees_with_nuts():
    """DP-HMC, whose accept tests have noise of σ about 1, started from what DP-Laplace has released."""
    starts = {name: draws[:, 0] for name, draws in private("logistic", "DPLaplace").draws.items()}
    posterior = run("logistic", CHAIN, num_steps=1000, num_warmup=100, init=starts)
    assert max(arviz.rhat(draws) for draws in flat(posterior.draws).values()) < 1.03
    assert largest(z_scores(posterior.draws, nuts("logistic"), independent=False)) < BAND


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_the_exact_chain_of_auto_agrees_with_nuts(name):
    posterior = private(name, exact=True)
    assert posterior.quality.method == "auto: a chain with exact accept tests on a surrogate"
    assert largest(z_scores(posterior.draws, nuts(name), independent=False)) < BAND


# ---------------------------------------------------------------------- the setting is what it is said to be


@pytest.mark.slow
@pytest.mark.parametrize("name", GAUSSIAN)
def test_posteriors_are_gaussian_enough(name):
    """The mean's first correction for skewness, in posterior sds of the unconstrained parameters."""
    from studies import exact

    model, _, _, rows = case(name)
    model = row_model(model)
    with exact_arithmetic():
        potential = exact.potential_of(model, rows)
        mode, covariance = exact.find_mode(potential, np.zeros(model.dimension))
        shift = exact.skewness_shift(potential, mode, covariance) / np.sqrt(np.diag(covariance))
    assert np.max(np.abs(shift)) < SKEWNESS


# ---------------------------------------------------------------------- twins


def transformed(draws, shift=0.0, factor=1.0):
    """All draws moved by so many sds, and spread by a factor."""
    found = {}
    for name, values in draws.items():
        mean, sd = values.mean(axis=(0, 1)), values.std(axis=(0, 1))
        found[name] = mean + shift * sd + factor * (values - mean)
    return found


@pytest.mark.parametrize("name", by_name)
@pytest.mark.parametrize("change", [{"shift": 0.5}, {"factor": 1.5}, {"factor": 0.6}], ids=["shift", "wide", "narrow"])
def test_twin_a_reference_that_is_shifted_or_of_another_width(name, change):
    assert largest(z_scores(private(name).draws, transformed(nuts(name), **change))) > BAND


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("logistic", 2.0),
        *[
            pytest.param(name, factor, marks=pytest.mark.slow)
            # (Counts say more than outcomes of 0 and 1: there a wider prior hardly moves the posterior.)
            for name, factor in (
                ("linear", 0.5),
                ("linear", 2.0),
                ("poisson", 0.5),
                ("logistic with units", 0.5),
                ("logistic with units", 2.0),
            )
        ],
    ],
)
def test_twin_another_prior(name, factor):
    assert largest(z_scores(private(name).draws, nuts(name, factor * PRIOR_SCALE))) > BAND
