"""Models, and records as bad as they come, shared by the tests of the curator."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from numpyro import distributions as dist

import dpmcmc
from dpmcmc import models
from dpmcmc.curator import Curator, NoNoiseNotPrivate, placement
from dpmcmc.curator import arithmetic as curator_module
from dpmcmc.queries import Affine

NASTY = [0.0, -0.0, 5e-324, 1e-300, 1e-30, 1e-3, 0.5, 1.0, -1.0, 3.0, 1e6, -1e6, 1e30, -1e30, 1e300, -1e300]
NASTY += [float("nan"), float("inf"), float("-inf"), 1.7976931348623157e308]
nasty = st.one_of(st.sampled_from(NASTY), st.floats(allow_nan=True, allow_infinity=True))


@dataclass(frozen=True)
class Case:
    """A model and how to make records for it from a matrix of floats (rows × width) of any values."""

    name: str
    model: Any
    width: int

    def records(self, matrix):
        matrix = np.asarray(matrix, dtype=np.float64).reshape(-1, self.width)
        if not isinstance(self.model, models.RegressionModel):
            return matrix
        data = {"X": matrix[:, 1 : 1 + self.model.num_features], "y": matrix[:, 0]}
        if self.model.num_groups:
            code = np.nan_to_num(matrix[:, -1], nan=7.0, posinf=9.0, neginf=-9.0)
            data["group"] = np.clip(code, -5, 10).astype(np.int64)
        return data

    def good_records(self, num_records, seed=0):
        generator = np.random.default_rng(seed)
        matrix = generator.normal(size=(num_records, self.width))
        if isinstance(self.model, models.RegressionModel):
            if isinstance(self.model, models.LogisticRegression):
                matrix[:, 0] = generator.integers(0, 2, num_records)
            elif not isinstance(self.model, models.LinearRegression):
                matrix[:, 0] = generator.poisson(2.0, num_records)
            if self.model.num_groups:
                matrix[:, -1] = generator.integers(0, self.model.num_groups, num_records)
        return self.records(matrix)


def _student_log_likelihood(parameters, row):
    return dist.StudentT(4.0, parameters["mean"], parameters["scale"]).log_prob(row).sum()


def _student_log_prior(parameters):
    return dist.Normal(0, 5).log_prob(parameters["mean"]).sum() + dist.HalfNormal(2).log_prob(parameters["scale"])


STUDENT = dpmcmc.Model(_student_log_likelihood, _student_log_prior, {"mean": (2,), "scale": "positive"}, name="student")

CASES = [
    Case("linear", models.LinearRegression(3), 4),
    Case("logistic", models.LogisticRegression(3), 4),
    Case("logistic-no-intercept", models.LogisticRegression(3, intercept=False), 4),
    Case("poisson-groups", models.PoissonRegression(2, groups=3), 4),
    Case("negative-binomial", models.NegativeBinomialRegression(3), 4),
    Case("negative-binomial-groups", models.NegativeBinomialRegression(2, groups=3), 4),
    Case("gaussian", models.GaussianMean(np.array([[1.0, 0.3], [0.3, 0.5]])), 2),
    Case("banana", models.Banana(), 2),
    Case("student", STUDENT, 2),
]
REGRESSIONS = [case for case in CASES if isinstance(case.model, models.RegressionModel)]
# Variants of families that stand beside these: the longest tests leave them to `make test-all`.
VARIANTS = ("linear", "logistic-no-intercept", "poisson-groups")


def variants_slow(cases):
    """Parameters for a long test, by name; those of variants are slow ones."""
    marks = {name: [pytest.mark.slow] for name in VARIANTS}
    return {"argvalues": [pytest.param(case, marks=marks.get(case.name, []), id=case.name) for case in cases]}


by_name = {"argvalues": CASES, "ids": [case.name for case in CASES]}
regressions_by_name = {"argvalues": REGRESSIONS, "ids": [case.name for case in REGRESSIONS]}


def can_answer(model, query):
    """Whether a query is one that this model answers."""
    if query.requires == "logistic":
        return isinstance(model, models.LogisticRegression)
    return query.requires == "any" or isinstance(model, models.RegressionModel)


def skewed(dimension, condition=1e6, seed=5):
    """Coordinates whose matrix is badly conditioned, in directions that are nobody's axes."""
    generator = np.random.default_rng(seed)
    left, right = (np.linalg.qr(generator.normal(size=(dimension, dimension)))[0] for _ in range(2))
    scales = np.geomspace(condition**-0.5, condition**0.5, dimension)
    return Affine(generator.normal(size=dimension), left * scales @ right)


def noise_free(case, records, **options):
    return Curator(case.model, records, noise=NoNoiseNotPrivate(), **options)


def exact_total(curator, query, theta, proposal=None, coordinates=None):
    """The curator's secret integers for a query, as a NumPy array."""
    with curator_module.exact_arithmetic():
        theta, proposal = curator._check_question(query, theta, proposal)
        way = curator._way(query, coordinates)
        kept = {}

        def total(inner_query, *arguments):
            kept[inner_query.kind] = curator._host_total(way, inner_query, *arguments)
            return kept[inner_query.kind]

        public = curator._public(query, theta, proposal, coordinates)
        curator.passes.answer(query, theta, proposal, curator._draw(query, len(theta)), total, public)
    return kept[query.kind]


def replace_records(curator, records):
    """Give a curator other records of the same shape, so that nothing is compiled again."""
    with curator_module.exact_arithmetic():
        prepared, num_records = curator.model.prepare_records(records)
        assert num_records == curator.num_records
        curator._records = placement.place(curator.passes.kernel, prepared, curator.passes.layout)


def plain_scores(model, records, theta):
    """Per-record gradients by plain autodiff, float64."""
    with jax.enable_x64(True):
        prepared, _ = model.prepare_records(records)
        score = jax.jit(jax.vmap(jax.grad(model.unconstrained_log_likelihood), in_axes=(None, 0)))
        return np.asarray(score(np.asarray(theta, np.float64), prepared))


def plain_curvatures(model, records, theta):
    """Minus the per-record second derivatives by plain autodiff, float64."""
    with jax.enable_x64(True):
        prepared, _ = model.prepare_records(records)
        hessian = jax.jit(jax.vmap(jax.hessian(model.unconstrained_log_likelihood), in_axes=(None, 0)))
        return -np.asarray(hessian(np.asarray(theta, np.float64), prepared))


def plain_log_likelihoods(model, records, theta):
    with jax.enable_x64(True):
        prepared, _ = model.prepare_records(records)
        value = jax.jit(jax.vmap(model.unconstrained_log_likelihood, in_axes=(None, 0)))
        return np.asarray(value(np.asarray(theta, np.float64), prepared))
