"""What a budget buys DP-Laplace: its numbers against the library's own calibration, and remedies that are ones."""

import json
import math
import re

import numpy as np
import pytest
from scipy.integrate import quad

from dpmcmc.errors import BudgetExceededError, QueryError
from dpmcmc.inference.laplace_plan import clip_factors, plan_laplace
from dpmcmc.privacy import Budget, smallest_noise_multiplier

RUN = {"num_records": 100_000, "epsilon": 1.0, "delta": 1e-6, "dimension": 10}


def plan(**changes):
    return plan_laplace(**(RUN | changes))


def test_fields():
    made = plan()
    budget = Budget(1.0, 1e-6)
    budget.reserve_lattice()
    assert (made.sampler, made.mu_total) == ("DP-Laplace", budget.total)
    assert {name: getattr(made, name) for name in RUN} == RUN
    assert made.relative_noise == pytest.approx(10**1.5 / (100_000 * math.sqrt(2 * budget.total)), rel=1e-12)
    assert made.feasible
    assert made.notes == ()
    assert json.loads(json.dumps(made.to_dict(), allow_nan=False)) == made.to_dict()
    assert made.to_dict()["noise_sd"] == list(made.noise_sd)


@pytest.mark.parametrize("case", [{}, {"dimension": 3}, {"num_records": 12_345, "epsilon": 4.0}, {"delta": 1e-9}])
def test_the_noise_is_that_of_one_clipped_score_sum(case):
    """Gaussian scores with the second moments of unit information, noise as the curator would scale it."""
    made = plan(**case)
    n, d = made.num_records, made.dimension
    multiplier = smallest_noise_multiplier(1, 0.75 * made.mu_total)
    norm = math.sqrt(d / n)  # so that n scores of this norm have second moments that add up to one in each direction
    factors = clip_factors(n, d, made.mu_total)
    assert factors[0] == 1.5
    for factor, noise, widening in zip(factors, made.noise_sd, made.interval_widening, strict=True):
        sensitivity = 2.0 * factor * norm
        assert noise == pytest.approx(multiplier * sensitivity, rel=1e-9)
        assert widening == pytest.approx(math.sqrt(1.0 + noise**2), rel=1e-12)


@pytest.mark.parametrize(
    ("n", "d", "mu"), [(20_000, 4, 0.35), (100_000, 10, 0.027), (3_000, 2, 0.03), (10**7, 30, 5.0)]
)
def test_skewed_scores_are_clipped_where_so_many_lie_above(n, d, mu):
    """|Gaussian| × exponential, its tail by quadrature: as many of n records as the rule says are above the bound."""
    bound = math.sqrt(2.0) * clip_factors(n, d, mu)[1]  # in root mean squares, of which √2 is one
    tail = quad(lambda z: math.sqrt(2.0 / math.pi) * math.exp(-0.5 * z * z - bound / z), 1e-9, 40.0, limit=200)[0]
    above = 2.0 * math.sqrt(d / (2.0 * 0.75 * mu))
    assert n * tail == pytest.approx(above, rel=0.1)
    assert n * tail != pytest.approx(2.0 * above, rel=0.1)  # the twin


def test_scores_have_the_norm_that_is_assumed():
    """A Gaussian mean, unit variances: scores x − θ, information n. The mean square norm of d·n terms, within 6 sds."""
    n, d = 20_000, 7
    scores = np.random.default_rng(3).normal(size=(n, d)) / math.sqrt(n)  # in coordinates of unit posterior covariance
    square = np.sum(scores**2, axis=1)
    # Var of a χ²_d/n is 2d/n²: false failures below 2e-9. The twin: d − 1 coordinates would fail.
    allowed = 6.0 * math.sqrt(2 * d) / n / math.sqrt(n)
    assert abs(square.mean() - d / n) < allowed < abs(square.mean() - (d - 1) / n)


def test_more_of_anything_good_helps():
    base = plan().noise_sd[0]
    assert plan(num_records=400_000).noise_sd[0] == pytest.approx(base / 2.0)
    assert plan(dimension=40).noise_sd[0] == pytest.approx(base * 2.0)
    assert plan(epsilon=2.0).noise_sd[0] < base < plan(delta=1e-9).noise_sd[0]
    skewed = plan().noise_sd[1]
    assert plan(num_records=200_000).noise_sd[1] < skewed < plan(num_records=50_000).noise_sd[1]
    assert plan(epsilon=2.0).noise_sd[1] < skewed < plan(dimension=11).noise_sd[1]


INFEASIBLE = [
    {"num_records": 1000},
    {"num_records": 12_000, "dimension": 17},
    {"num_records": 7_000, "epsilon": 3.0, "dimension": 43},
    {"dimension": 300},
    {"epsilon": 0.03},
    {"num_records": 50, "epsilon": 0.5},
    {"num_records": 30, "dimension": 1},
    {"num_records": 900, "delta": 1e-12},
]


@pytest.mark.parametrize("case", INFEASIBLE, ids=str)
def test_what_cannot_work_is_said_with_a_remedy_that_works(case):
    made = plan(**case)
    assert not made.feasible
    assert made.relative_noise > 0.01
    (note,) = made.notes
    assert "cannot work" in note
    records = int(re.search(r"takes ([\d,]+) records", note)[1].replace(",", ""))
    epsilon = float(re.search(r"or epsilon = (\S+)$", note)[1])
    asked = RUN | case
    # Two digits, rounded up: a tenth less must not do.
    for name, value, factor in (("num_records", records, 0.9), ("epsilon", epsilon, 0.9)):
        assert plan(**(case | {name: value})).feasible
        assert value > asked[name]
        assert not plan(**(case | {name: type(value)(factor * value)})).feasible
    fewer = re.search(r"at most ([\d,]+) parameter", note)
    most = int(fewer[1].replace(",", "")) if fewer else 0
    assert most == 0 or plan(**(case | {"dimension": most})).feasible
    assert not plan(**(case | {"dimension": most + 1})).feasible


def test_noise_that_is_larger_than_the_posterior_is_said_with_a_remedy_that_works():
    case = {"num_records": 10**6, "epsilon": 0.01, "dimension": 2}
    made = plan(**case)
    assert made.feasible
    (note,) = made.notes
    assert f"{made.noise_sd[0]:.2g} posterior sds" in note
    records = int(re.search(r"([\d,]+) records", note)[1].replace(",", ""))
    epsilon = float(re.search(r"epsilon = ([\d.]+),", note)[1])
    for remedy in ({"num_records": records}, {"epsilon": epsilon}):
        assert 0.85 < plan(**(case | remedy)).noise_sd[0] <= 1.0


def test_a_delta_that_protects_nobody_is_noted():
    (note,) = plan(delta=1e-5).notes
    assert "at least 1/n" in note


@pytest.mark.parametrize(
    "change",
    [
        {"num_records": 0},
        {"num_records": 1.5},
        {"dimension": 0},
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"delta": 1.0},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(change):
    with pytest.raises(QueryError, match=next(iter(change))):
        plan(**change)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(BudgetExceededError, match="pays for nothing"):
        plan(epsilon=1e-170, delta=1e-300)
