"""A run that went wrong says so, with numbers and a remedy, wherever it is shown; a good one says nothing."""

import io
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

from dpmcmc.errors import DPMCMCWarning, ResultError
from dpmcmc.results import RecordCheck, summary_table
from dpmcmc.results.diagnostics import problems
from tests.results.cases import STATEMENTS, make_posterior


def normal(*shape):
    return np.random.default_rng(7).normal(size=shape)


def posterior_of(draws, *, acceptance=0.5, **changes):
    """A posterior of one parameter `x`, or of the given ones, without warm-up."""
    draws = draws if isinstance(draws, dict) else {"x": draws}
    shape = next(iter(draws.values())).shape[:2]
    empty = {"warmup_draws": {}, "warmup_stats": {}, "dims": {}, "coords": {}}
    stats = {} if acceptance is None else {"acceptance_rate": np.full(shape, acceptance)}
    return make_posterior(**({"draws": draws, "sample_stats": stats} | empty | changes))


def random_walk(num_chains, num_draws):
    return np.cumsum(normal(num_chains, num_draws), axis=1)


def far_apart(num_chains=4, num_draws=500):
    return normal(num_chains, num_draws) + 10.0 * np.arange(num_chains)[:, None]


def one_stuck():
    draws = normal(4, 500)
    draws[2] = 1.0
    return draws


def one_coordinate_stuck():
    draws = normal(4, 500, 3)
    draws[:, :, 1] = 0.0
    return draws


def bad_records(estimate, noise_sd=50.0):
    return RecordCheck(estimate=estimate, noise_sd=noise_sd, num_records=10_000)


STATEMENT = STATEMENTS["private"]
CASES = {
    "nothing accepted": (posterior_of(np.ones((4, 636)), acceptance=0.0), ["acceptance rate is 0", "4 of 4 chains"]),
    "little accepted": (posterior_of(normal(4, 500), acceptance=0.0199), ["rate is 0.02.* lower one of the three"]),
    "stuck at different points": (
        posterior_of(np.broadcast_to(np.arange(4.0)[:, None], (4, 500)), acceptance=None),
        ["4 of 4 chains did not move at all in 500 draws"],
    ),
    "one chain stuck": (posterior_of(one_stuck()), ["1 of 4 chains did not move", r"R̂ is \d.* for x ", "worth"]),
    "one coordinate stuck": (posterior_of(one_coordinate_stuck()), [r"x\[1\] did not move"]),
    "chains apart": (posterior_of(far_apart()), [r"R̂ is \d\.\d{3} for x .*larger budget", "worth . independent"]),
    "few effective draws": (posterior_of(random_walk(4, 40)), ["R̂ is", r"draws of x are worth \d+ independent.* 100 "]),
    "few effective draws a chain": (posterior_of(normal(40, 20)), [r"at least 1000 are wanted"]),
    "one chain": (posterior_of(normal(1, 500)), ["from one chain"]),
    "three draws": (posterior_of(normal(4, 3)), ["Chains of 3 draws"]),
    "ran away": (posterior_of(np.where(np.arange(500) > 400, np.inf, normal(4, 500))), ["ran away.*step size"]),
    "records that count as nothing": (
        posterior_of(
            normal(4, 500),
            privacy=replace(STATEMENT, num_records=10_000),
            record_check=bad_records(1000.0),
        ),
        [r"About 10 % \(± 0\.5 %\) of the records count as nothing.*y coded 1/2.*Check the coding"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_every_problem_is_named_with_its_numbers_and_the_remedy(case):
    posterior, patterns = CASES[case]
    assert len(posterior.warnings) == len(patterns), posterior.warnings
    for text, pattern in zip(posterior.warnings, patterns, strict=True):
        assert re.search(pattern, text), (pattern, text)


def test_a_good_run_has_none():
    assert make_posterior("private", num_draws=500).warnings == ()
    assert "warning" not in repr(make_posterior("private", num_draws=500))


@pytest.mark.parametrize("estimate", [199.0, -100.0, 0.0])
def test_few_bad_records_are_no_problem(estimate):
    """2 % of 10,000 records; then 4 noise sds of 100, which no bad record reaches once in 30,000 runs."""
    privacy = replace(STATEMENT, num_records=10_000)
    for noise_sd, factor in ((10.0, 1.0), (100.0, 2.0)):
        check = bad_records(factor * estimate, noise_sd)
        assert posterior_of(normal(4, 500), privacy=privacy, record_check=check).warnings == ()


def test_an_interrupted_run_says_so():
    (text,) = problems(posterior_of(normal(4, 500), privacy=replace(STATEMENT, interrupted=True)))
    assert "interrupted; each chain has 500 draws" in text


def test_entries_that_the_support_holds_still_are_no_problem():
    """The 0s and 1s of a Cholesky factor; the 1s of a correlation matrix are off by rounding."""
    factor, correlation = np.zeros((4, 500, 2, 2)), np.ones((4, 500, 2, 2))
    factor[..., 0, 0] = 1.0
    factor[..., 1, :] = normal(4, 500, 2)
    correlation[..., 0, 1] = correlation[..., 1, 0] = normal(4, 500)
    correlation[:, ::3, 1, 1] -= 2.0**-53
    posterior = posterior_of({"factor": factor, "correlation": correlation})
    assert posterior.warnings == ()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = posterior.summary()
    still = ["factor[0, 0]", "factor[0, 1]", "correlation[0, 0]", "correlation[1, 1]"]
    assert set(summary.index[summary["ess_bulk"].isna()]) == set(still)
    # The twin: a matrix of which nothing moves, or a vector's entry, is one.
    factor[:] = factor[:, :1]
    assert "did not move" in posterior_of({"factor": factor, "x": normal(4, 500)}).warnings[0]


def test_summary_warns_and_says_nothing_about_draws_that_never_moved():
    posterior = posterior_of(one_coordinate_stuck(), dims={"x": ["k"]}, coords={"k": ["a", "b", "c"]})
    with pytest.warns(DPMCMCWarning, match=r"x\[b\] did not move") as caught:
        summary = posterior.summary()
    assert caught[0].filename == __file__
    assert summary.attrs["warnings"] == posterior.warnings
    assert summary.loc["x[b]", "mean"] == summary.loc["x[b]", "sd"] == 0.0
    errors = ["mcse_mean", "ess_bulk", "ess_tail", "r_hat"]
    assert summary.loc["x[b]", errors].isna().all()
    assert summary.loc[["x[a]", "x[c]"], errors].notna().all(axis=None)
    with pytest.warns(DPMCMCWarning):
        assert "ess_bulk" not in posterior.summary(kind="stats")
    with pytest.warns(DPMCMCWarning):
        long = posterior.summary(fmt="long")
    with pytest.warns(DPMCMCWarning):
        array = posterior.summary(fmt="xarray")
    for name in summary.columns:
        for position, label in enumerate(["x[a]", "x[b]", "x[c]"]):
            for value in (long.loc[name, "x"].to_numpy()[position], array["x"].sel(metric=name).values[position]):
                assert np.isnan(value) == np.isnan(summary.loc[label, name])


@pytest.mark.parametrize("case", CASES)
def test_table_and_texts_show_them(case):
    from rich.console import Console

    posterior, patterns = CASES[case]
    console = Console(file=io.StringIO(), width=80)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        console.print(summary_table(posterior))
    shown = " ".join(console.file.getvalue().split())
    for text in posterior.warnings:
        assert text in shown
        assert text in str(posterior)
    assert f", {len(patterns)} warning{'s' if len(patterns) > 1 else ''})" in repr(posterior)


@pytest.mark.parametrize(
    "change", [{"estimate": np.nan}, {"noise_sd": -1.0}, {"num_records": 0}, {"num_records": 2.5}, {"estimate": "many"}]
)
def test_a_record_check_that_cannot_be_is_refused(change):
    with pytest.raises(ResultError, match=next(iter(change))):
        RecordCheck(**({"estimate": 1.0, "noise_sd": 1.0, "num_records": 10} | change))


def test_a_record_check_of_other_records_is_refused():
    with pytest.raises(ResultError, match="they must agree"):
        make_posterior(record_check=bad_records(3.0))
    assert bad_records(-3.0).share == 0.0
