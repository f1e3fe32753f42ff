"""Runs that crash and go on, in one process: what is asked, charged, kept and returned, for every sampler.

A crash is an error that nothing handles, at the moment where a part is written to the checkpoint (before: what was
released is lost; after: it is kept). `tests/cli/test_resume.py` kills real processes.
"""

import os
import warnings

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.curator import Curator, ExactNoise, SeededNoiseNotPrivate
from dpmcmc.errors import (
    BudgetExceededError,
    CheckpointError,
    DPMCMCError,
    DPMCMCWarning,
    LedgerError,
    QueryError,
    RunError,
)
from dpmcmc.inference import blocks, chains
from dpmcmc.inference.checkpoint import CHARGES, CHECKPOINT, Checkpoint
from tests import faults
from tests.inference import test_auto, test_sampling, test_stepwise
from tests.inference.test_sampling import DATA, DELTA, MODEL, START
from tests.streams import stream_of

FILES = ["posterior.nc", "privacy.json", "privacy.txt", "report.html", "summary.csv"]
TRUTH = MODEL.posterior_not_private(DATA)[0]


class Case:
    """A run: model, data and settings."""

    def __init__(self, model, data, **options):
        self.model, self.data = model, data
        self.options = {"epsilon": 8.0, "delta": DELTA, "progress": False} | options

    @property
    def private(self):
        return self.options["epsilon"] is not None and "seed" not in self.options

    def begin(self, folder, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DPMCMCWarning)
            return dpmcmc.sample(self.model, self.data, checkpoint=folder, **self.options, **options)

    def go_on(self, folder, model=None, data=None, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DPMCMCWarning)
            model, data = model or self.model, self.data if data is None else data
            return dpmcmc.resume(folder, model, data, progress=False, **options)


SAMPLERS = test_sampling.SAMPLERS
BLOCKS = {name: Case(MODEL, DATA, sampler=sampler, init=START) for name, sampler in SAMPLERS.items()}
BLOCKS["thinned"] = Case(MODEL, DATA, sampler=SAMPLERS["penalty"], num_steps=61, thin=3, num_warmup=2)
BLOCKS["started at values"] = Case(
    MODEL, DATA, sampler=SAMPLERS["penalty"], num_steps=40, init={"mean": START}, check_records=False
)
NOT_PRIVATE = {
    "hmc": Case(MODEL, DATA, sampler=dpmcmc.HMC(0.02, 4), num_steps=40, epsilon=None, delta=None),
    "rwmh": Case(MODEL, DATA, sampler=dpmcmc.RWMH(0.05), num_steps=40, epsilon=None, delta=None),
    "seeded penalty": Case(MODEL, DATA, sampler=SAMPLERS["penalty"], seed=5),
    "seeded laplace": Case(MODEL, DATA, sampler=dpmcmc.DPLaplace(), epsilon=20.0, seed=5),
    "seeded surrogate": Case(test_stepwise.MODEL, test_stepwise.DATA, sampler=test_stepwise.SAMPLER, seed=5, num_steps=9),
}
ASKING = {
    "laplace": Case(MODEL, DATA, sampler=dpmcmc.DPLaplace(), epsilon=20.0),
    "laplace started": Case(MODEL, DATA, sampler=dpmcmc.DPLaplace(), epsilon=20.0, init=START[0]),
    "auto, a Gaussian": Case(MODEL, DATA, epsilon=20.0),
    "surrogate hmc": Case(test_stepwise.MODEL, test_stepwise.DATA, sampler=test_stepwise.SAMPLER, epsilon=4.0),
    "surrogate hmc, thinned": Case(
        test_stepwise.MODEL, test_stepwise.DATA, sampler=test_stepwise.SAMPLER, epsilon=4.0, num_steps=7, thin=2
    ),
}
SLOW = {
    "auto, a surrogate": Case(test_auto.BANANA, test_auto.RECORDS, epsilon=15.0),
    "auto, exact": Case(test_auto.BANANA, test_auto.RECORDS, epsilon=15.0, exact=True),
}
KEPT = ("answer", "start", "block", "check")
# At which part each process dies; the second at the first thing that it writes, a third at the second.
OFTEN = (3, 1, 2, 3, 4, 9, 5, 13)


def assert_sane(posterior):
    for values in posterior.draws.values():
        assert np.all(np.isfinite(values))
    if "mean" in posterior.draws and posterior.draws["mean"].shape[-1] == 2:
        # Chains start at (1, −1), next to the posterior, and no step of theirs is long.
        assert np.max(np.abs(posterior.draws["mean"].mean(axis=(0, 1)) - [1.0, -1.0])) < 1.0


def assert_complete(folder, posterior):
    assert sorted(os.listdir(folder)) == FILES
    kept = dpmcmc.Posterior.load(folder / "posterior.nc")
    assert kept.privacy == posterior.privacy
    for name, values in posterior.draws.items():
        assert np.array_equal(kept.draws[name], values)


def watched(monkeypatch):
    """Kinds of questions that the curator answers: of each block of steps, "steps"."""
    asked, ask, pay = [], Curator.ask, Curator.pay

    def watched_ask(curator, query, *arguments, **options):
        answer = ask(curator, query, *arguments, **options)
        asked.append(query.kind)  # (the last step of a chain that pays as it goes is refused, and not answered)
        return answer

    def watched_pay(curator, order, *arguments):
        asked.append("steps" if order.draws else "start")
        return pay(curator, order, *arguments)

    monkeypatch.setattr(Curator, "ask", watched_ask)
    monkeypatch.setattr(Curator, "pay", watched_pay)
    return asked


def answers_of_steps(case, run):
    """Gradients and log-ratios of all chains that were charged by the block."""
    sampler = case.options.get("sampler", "auto")
    if not run.steps:
        return 0
    queries = sampler.queries(len(case.data))
    each = queries.gradients_per_step + queries.log_ratios_per_step
    return 4 * (run.steps * each + run.kinds["start"] * queries.gradients_at_start)


def check_books(case, place, posterior, asked, crashes):
    """See that ledger, checkpoint, statement and what was asked tell the same."""
    found = faults.audit(place)
    dpmcmc.Ledger(place).verify(posterior.privacy.ledger["head"])
    (run,) = found.runs.values()
    assert run.how == "complete"
    statement = posterior.privacy
    statement.check()
    assert statement.private
    # Asked as often as it was charged: nothing for free (but starts that ask nothing), nothing twice.
    free = 0 if run.kinds["start"] else asked.count("start")
    assert sum(run.kinds.values()) == len(asked) - free
    assert len(asked) == sum(kind in KEPT for kind in (*crashes.written, *crashes.lost))
    assert run.answers + answers_of_steps(case, run) == sum(statement.queries.values())
    assert asked.count("invalid_count") == case.options.get("check_records", True)
    assert statement.epsilon <= run.epsilon
    if run.kind == "gaussian":
        assert run.spent <= statement.mu <= float(run.spent) * (1 + 1e-9)
        assert statement.ledger["mu_after"] == statement.mu
        assert faults.delta_of(run.spent, statement.epsilon) <= statement.delta


@pytest.mark.parametrize("before", [True, False], ids=["lost", "kept"])
@pytest.mark.parametrize("name", [*BLOCKS, *ASKING])
def test_a_run_that_crashes_again_and_again(name, before, tmp_path, monkeypatch):
    check_crashes({**BLOCKS, **ASKING}[name], before, tmp_path, monkeypatch, OFTEN)


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["lost", "kept"])
@pytest.mark.parametrize("name", SLOW)
def test_a_long_search_that_crashes_again_and_again(name, before, tmp_path, monkeypatch):
    check_crashes(SLOW[name], before, tmp_path, monkeypatch, (*OFTEN, 100, 300, 200, 17, 250, 50))


def check_crashes(case, before, tmp_path, monkeypatch, numbers):
    place, folder = tmp_path / "people.ledger", tmp_path / "run"
    dpmcmc.Ledger.create(place, epsilon=case.options["epsilon"], delta=case.options["delta"])
    asked, crashes = watched(monkeypatch), faults.Crashes(monkeypatch)
    posterior = crashes.survived(
        lambda: case.begin(folder, ledger=place), lambda: case.go_on(folder), numbers, before=before
    )
    check_books(case, place, posterior, asked, crashes)
    assert_complete(folder, posterior)
    assert_sane(posterior)
    assert crashes.written.count("resume") >= 3
    if not before:
        assert not any("lost" in kind for kind in posterior.privacy.queries)
