"""Runs that crash and go on, in one process: what is asked, charged, kept and returned, for every sampler.

A crash is an error that nothing handles, at the moment where a part is written to the checkpoint (before: what was
released is lost; after: it is kept). `tests/cli/test_resume.py` kills real processes.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import warnings

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.curator import Curator, ExactNoise, SeededNoiseNotPrivate
from dpmcmc.curator.payment import Random
from dpmcmc.data import Units
from dpmcmc.errors import (
    CheckpointError,
    DPMCMCWarning,
    LedgerError,
    QueryError,
    RunError,
)
from dpmcmc.inference import chains
from dpmcmc.inference.checkpoint import CHARGES, CHECKPOINT, Checkpoint
from dpmcmc.inference.checkpoint import _hash as checkpoint_hash
from dpmcmc.models import UnitModel
from tests import faults
from tests.cli import people
from tests.inference import test_auto, test_sampling, test_stepwise, test_units
from tests.inference.test_sampling import DATA, DELTA, MODEL, START
from tests.streams import stream_of

FILES = ["posterior.nc", "privacy.json", "privacy.txt", "report.html", "summary.csv"]


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
BLOCKS["thinned"] = Case(MODEL, DATA, sampler=SAMPLERS["penalty"], num_steps=61, thin=3, num_warmup=2, init=START)
BLOCKS["started at values"] = Case(
    MODEL, DATA, sampler=SAMPLERS["penalty"], num_steps=40, init={"mean": START}, check_records=False
)
NOT_PRIVATE = {
    "hmc": Case(MODEL, DATA, sampler=dpmcmc.HMC(0.02, 4), num_steps=40, init=START, epsilon=None, delta=None),
    "rwmh": Case(MODEL, DATA, sampler=dpmcmc.RWMH(0.05), num_steps=40, init=START, epsilon=None, delta=None),
    "seeded penalty": Case(MODEL, DATA, sampler=SAMPLERS["penalty"], seed=5, init=START),
    "seeded laplace": Case(MODEL, DATA, sampler=dpmcmc.DPLaplace(), epsilon=20.0, seed=5),
    "seeded surrogate": Case(
        test_stepwise.MODEL, test_stepwise.DATA, sampler=test_stepwise.SAMPLER, seed=5, num_steps=9
    ),
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
        # Chains start at (1, −1), next to the posterior; if nothing held them there, the mean of four would be off by
        # less than 0.4 (0.05 in each of 234 steps): this is more than 7 sds of that.
        assert np.max(np.abs(posterior.draws["mean"].mean(axis=(0, 1)) - [1.0, -1.0])) < 3.0


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
    charged, stated = run.answers + answers_of_steps(case, run), sum(statement.queries.values())
    # (A proposal of a chain that is no move is answered, too, costs nothing and is not stated.)
    assert charged == stated or (case.options.get("exact") and stated <= charged <= stated + 0.1 * charged)
    assert asked.count("invalid_count") == case.options.get("check_records", True)
    assert statement.epsilon <= run.epsilon
    if run.kind == "gaussian":
        assert run.spent <= statement.mu <= float(run.spent) * (1 + 1e-9)
        assert statement.ledger["mu_after"] == statement.mu
        assert faults.delta_of(run.spent, statement.epsilon) <= statement.delta


VARIANTS = ("hmc-position", "hmc-momentum", "penalty-guided", "sgld-poisson", "laplace started")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in VARIANTS else ()) for name in (*BLOCKS, *ASKING)],
)
def test_a_run_that_crashes_again_and_again(name, tmp_path, monkeypatch):
    check_crashes({**BLOCKS, **ASKING}[name], True, tmp_path, monkeypatch, OFTEN)


@pytest.mark.parametrize("name", ["hmc-cached", "laplace", "surrogate hmc"])
def test_what_was_written_is_not_lost(name, tmp_path, monkeypatch):
    """The same, where the process dies just after a part was written."""
    check_crashes({**BLOCKS, **ASKING}[name], False, tmp_path, monkeypatch, OFTEN)


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


@pytest.mark.parametrize("name", NOT_PRIVATE)
def test_runs_that_are_not_private_go_on_too(name, tmp_path, monkeypatch):
    case, folder = NOT_PRIVATE[name], tmp_path / "run"
    crashes = faults.Crashes(monkeypatch)
    posterior = crashes.survived(lambda: case.begin(folder), lambda: case.go_on(folder), (3, 2, 4, 5))
    assert_complete(folder, posterior)
    assert_sane(posterior)
    assert not posterior.privacy.private
    posterior.privacy.check()
    if case.options.get("num_steps") and not case.options["epsilon"]:
        assert posterior.num_draws == case.options["num_steps"] // 2  # nothing was charged, so that nothing is lost


# ------------------------------------------------------------------ what a checkpoint changes: nothing


@pytest.mark.parametrize("name", ["seeded penalty", "seeded laplace", "seeded surrogate"])
def test_a_checkpoint_does_not_change_the_draws(name, tmp_path):
    case = NOT_PRIVATE[name]
    with_one, without = case.begin(tmp_path / "run"), case.begin(None)
    for parameter, values in without.draws.items():
        assert np.array_equal(with_one.draws[parameter], values)
    assert with_one.privacy == without.privacy
    assert sorted(os.listdir(tmp_path / "run")) == FILES


def test_a_ledger_does_not_change_the_plan_and_a_run_without_says_that_it_stands_alone(tmp_path):
    case, place = BLOCKS["penalty"], tmp_path / "people.ledger"
    dpmcmc.Ledger.create(place, epsilon=8.0, delta=DELTA)
    with_one, without = case.begin(None, ledger=place), case.begin(tmp_path / "run")
    assert with_one.num_draws == without.num_draws
    assert with_one.privacy.queries == without.privacy.queries
    assert without.privacy.ledger is None
    assert with_one.privacy.ledger["total_epsilon"] == 8.0
    assert "stands alone" in " ".join(without.privacy.to_text().split())
    assert "stands alone" not in " ".join(with_one.privacy.to_text().split())


# ------------------------------------------------------------------ fresh momenta, proposals and accept tests


def keys_of(name, folder, monkeypatch, crashes):
    """The public keys that blocks of steps were run with, of all processes."""
    used, compile_run = [], chains.compile_run

    def watched(*arguments):
        program = compile_run(*arguments)

        class Run:
            out_shapes = program.run.out_shapes

            def __call__(self, inputs, state, key, *rest):
                used.append(tuple(np.asarray(jax.random.key_data(key)).tolist()))
                return program.run(inputs, state, key, *rest)

        return program._replace(run=Run())

    monkeypatch.setattr(chains, "compile_run", watched)
    case = {**BLOCKS, **NOT_PRIVATE}[name]
    crashes.survived(lambda: case.begin(folder), lambda: case.go_on(folder), (4, 4, 4))
    return used


@pytest.mark.parametrize("name", ["penalty", "seeded penalty", "hmc"])
def test_no_key_of_a_block_is_used_twice(name, tmp_path, monkeypatch):
    """Also not the key of the block that was lost: who has seen the noisy ratios could tell what they were."""
    used = keys_of(name, tmp_path / "run", monkeypatch, faults.Crashes(monkeypatch))
    assert len(used) > 10
    assert len(set(used)) == len(used)


def test_twin_a_key_that_came_again_would_be_noticed(tmp_path, monkeypatch):
    one = jax.random.wrap_key_data(np.array([1, 2], np.uint32), impl="threefry2x32")
    monkeypatch.setattr(Curator, "public_key", property(lambda curator: one))
    used = keys_of("penalty", tmp_path / "run", monkeypatch, faults.Crashes(monkeypatch))
    assert len(set(used)) < len(used)


@pytest.mark.parametrize("name", ["surrogate hmc", "seeded surrogate"])
def test_proposals_after_a_resume_are_fresh(name, tmp_path, monkeypatch):
    """Of one crash in the same place, a copy of the folder taken before goes on elsewhere."""
    case = {**ASKING, **NOT_PRIVATE}[name]
    crashes = faults.Crashes(monkeypatch)
    assert crashes.at(5, True, lambda: case.begin(tmp_path / "run")) is None
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    proposals = []
    for folder in (tmp_path / "run", tmp_path / "copy"):
        asked = []
        with monkeypatch.context() as patch:
            ask = Curator.ask
            patch.setattr(
                Curator,
                "ask",
                lambda curator, query, theta, proposal=None, asked=asked, ask=ask, **options: (
                    asked.append(np.asarray(proposal)) or ask(curator, query, theta, proposal, **options)
                ),
            )
            case.go_on(folder)
        proposals.append(asked[0])
    assert not np.any(proposals[0] == proposals[1])


def test_seeded_noise_after_a_resume_is_other_noise(tmp_path, monkeypatch):
    """The same noise on two answers would cancel in their difference."""
    drawn, draw = [], SeededNoiseNotPrivate.draw

    def watched(source, *arguments):
        noise = draw(source, *arguments)
        drawn.append(np.asarray(noise).ravel())
        return noise

    monkeypatch.setattr(SeededNoiseNotPrivate, "draw", watched)
    case, crashes = NOT_PRIVATE["seeded laplace"], faults.Crashes(monkeypatch)
    crashes.survived(lambda: case.begin(tmp_path / "run"), lambda: case.go_on(tmp_path / "run"), (5, 5, 5))
    large = [tuple(noise.tolist()) for noise in drawn if len(noise) > 1 and np.max(np.abs(noise)) > 1e6]
    assert len(large) > 10
    assert len(set(large)) == len(large)


# ------------------------------------------------------------------ what is refused


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """A run that has crashed in the middle, with a ledger: case, folder and ledger."""
    case, place = BLOCKS["penalty"], tmp_path / "people.ledger"
    dpmcmc.Ledger.create(place, epsilon=9.0, delta=DELTA)
    crashes = faults.Crashes(monkeypatch)
    assert crashes.at(9, True, lambda: case.begin(tmp_path / "run", ledger=place)) is None
    monkeypatch.undo()
    return case, tmp_path / "run", place


OTHER_DATA = DATA.copy()
OTHER_DATA[17, 1] += 1e-9


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ({"model": dpmcmc.models.GaussianMean(np.eye(2))}, CheckpointError, "another model"),
        ({"model": dpmcmc.models.GaussianMean(np.eye(3)), "data": np.zeros((500, 3))}, CheckpointError, "dimension"),
        ({"data": DATA[:-1]}, CheckpointError, "num_records: 500 was begun with, and now it is 499"),
        ({"data": OTHER_DATA}, LedgerError, "the data are not those"),
        ({"data": DATA[::-1]}, LedgerError, "the data are not those"),
        ({"ledger": "other"}, CheckpointError, "does not know the run"),
        ({"ledger": "none"}, LedgerError, "there is no such file"),
    ],
    ids=["model", "dimension", "fewer", "one value", "order", "another ledger", "no ledger"],
)
def test_what_is_not_the_run_is_refused_and_the_run_can_still_go_on(what, error, words, stopped, tmp_path):
    case, folder, place = stopped
    dpmcmc.Ledger.create(tmp_path / "other.ledger", epsilon=9.0, delta=DELTA)
    options = dict(what)
    if "ledger" in options:
        options["ledger"] = tmp_path / f"{options['ledger']}.ledger"
    before = faults.audit(place)
    with pytest.raises(error, match=words):
        case.go_on(folder, **options)
    after = faults.audit(place)
    assert after.spent == before.spent
    assert not faults.audit(tmp_path / "other.ledger").runs
    posterior = case.go_on(folder)
    assert_complete(folder, posterior)
    posterior.privacy.check()


def test_a_ledger_that_lacks_charges_of_what_is_kept_is_noticed(stopped, tmp_path):
    """An older copy that was put back: the blocks that were released since are in no book any more."""
    case, folder, place = stopped
    whole = place.read_bytes()
    number = max(charge.number for charge in dpmcmc.Ledger(place).account(1).charges)
    with contextlib.closing(sqlite3.connect(place)) as connection, connection:
        connection.execute("DELETE FROM dpmcmc_ledger WHERE number >= ?", (number - 3,))
    dpmcmc.Ledger(place).verify()  # which cannot know
    with pytest.raises(CheckpointError, match="lacks charges"):
        case.go_on(folder)
    place.write_bytes(whole)
    assert_complete(folder, case.go_on(folder))


def test_of_a_folder_that_was_copied_the_last_to_go_on_is_charged(stopped, tmp_path, monkeypatch):
    case, folder, place = stopped
    shutil.copytree(folder, tmp_path / "copy")
    pay, others = Curator.pay, []

    def pay_beside(curator, *arguments):
        if not others:  # in the middle of one, the other goes on
            others.append(1)
            others.append(case.go_on(tmp_path / "copy"))
        return pay(curator, *arguments)

    monkeypatch.setattr(Curator, "pay", pay_beside)
    with pytest.raises(RunError, match=r"another process has gone on|has ended"):
        case.go_on(folder)
    assert others[1].privacy.private
    (run,) = faults.audit(place).runs.values()
    assert faults.delta_of(run.spent, case.options["epsilon"]) <= DELTA


def edit_facts(folder, change):
    """Edit what the run is, and make the hashes fit, as somebody would who knows how."""
    head = "0" * 64
    with contextlib.closing(sqlite3.connect(folder / CHECKPOINT)) as connection, connection:
        for number, kind, text, arrays in connection.execute(
            "SELECT number, kind, header, arrays FROM parts"
        ).fetchall():
            if number == 1:
                facts = json.loads(text)
                change(facts)
                text = json.dumps(facts)
            head = checkpoint_hash(head, kind, text, arrays)
            connection.execute("UPDATE parts SET header = ?, hash = ? WHERE number = ?", (text, head, number))


def without_noise(facts):
    facts["sampler"] = {"class": "RWMH", "fields": {"proposal_scale": 0.05}}
    facts["settings"] |= {"epsilon": None, "delta": None, "num_steps": 40}


EDITS = {
    "a larger budget": lambda facts: facts["settings"].update(epsilon=50.0),
    "more steps": lambda facts: facts["settings"].update(num_steps=10**9),
    "more chains": lambda facts: facts["settings"].update(num_chains=2**31 - 1),
    "a seed": lambda facts: facts["settings"].update(seed=5),
    "no noise": without_noise,
    "other moves": lambda facts: facts["sampler"]["fields"].update(proposal_scale=0.06),
    "other public keys": lambda facts: facts.update(key=[1, 2]),
    "another table": lambda facts: facts.update(command={"file": "other.csv"}),
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with a ledger"])
def test_a_run_whose_settings_were_edited_is_refused(alone, stopped, tmp_path, monkeypatch):
    """All hashes of the checkpoint fit, and the ledger knows the run as it was begun. No record is looked at."""
    case, folder, place = stopped
    if alone:
        folder = tmp_path / "alone"
        assert faults.Crashes(monkeypatch).at(9, True, lambda: case.begin(folder)) is None
        monkeypatch.undo()
        place = folder / CHARGES
    whole, spent = (folder / CHECKPOINT).read_bytes(), faults.audit(place).spent
    for name, edit in EDITS.items():
        edit_facts(folder, edit)
        with monkeypatch.context() as patch:
            patch.setattr(Curator, "__init__", lambda *_, **__: pytest.fail("records were looked at"))
            # (A ledger is for private runs only, whoever knows them.)
            other = not alone and name in ("a seed", "no noise")
            with pytest.raises(QueryError if other else CheckpointError, match="not private" if other else "edited"):
                case.go_on(folder)
        assert faults.audit(place).spent == spent
        (folder / CHECKPOINT).write_bytes(whole)
    assert_complete(folder, case.go_on(folder))  # twin: as it was, it goes on


def test_a_run_that_was_charged_and_has_lost_its_ledger_is_refused(tmp_path, monkeypatch):
    case, folder = BLOCKS["penalty"], tmp_path / "run"
    assert faults.Crashes(monkeypatch).at(9, True, lambda: case.begin(folder)) is None
    monkeypatch.undo()
    (folder / CHARGES).rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="does not know the run"):
        case.go_on(folder)
    assert not (folder / CHARGES).exists()
    (tmp_path / "elsewhere").rename(folder / CHARGES)
    assert_complete(folder, case.go_on(folder))


def test_a_run_that_stands_alone_keeps_no_fingerprint(tmp_path, monkeypatch):
    """In its folder lies the key, too: together they would tell a guess of the data from another."""
    case = BLOCKS["penalty"]
    assert faults.Crashes(monkeypatch).at(5, True, lambda: case.begin(tmp_path / "run")) is None
    monkeypatch.undo()
    assert dpmcmc.Ledger(tmp_path / "run" / CHARGES).status().num_records == ()
    case.go_on(tmp_path / "run")


def test_two_at_once(stopped):
    case, folder, place = stopped
    other = Checkpoint(folder)
    before = faults.audit(place).num_entries
    with pytest.raises(CheckpointError, match="another process is at the run"):
        case.go_on(folder)
    assert faults.audit(place).num_entries == before
    other.close()
    assert_complete(folder, case.go_on(folder))


def test_a_complete_run_is_returned_and_nothing_else(tmp_path):
    case, folder = BLOCKS["penalty"], tmp_path / "run"
    posterior = case.begin(folder)
    again = dpmcmc.resume(folder)
    assert np.array_equal(again.draws["mean"], posterior.draws["mean"])
    assert again.privacy == posterior.privacy


@pytest.mark.parametrize(
    ("own", "where"),
    [
        *[(own, where) for own in (True, False) for where in ("before closing", "before removing", "before tidying")],
        (True, "between"),  # the checkpoint and the charges that the run has kept for itself
    ],
)
def test_killed_while_it_was_finishing(own, where, tmp_path, monkeypatch):
    """Results are written, then the run is ended in the books, then its checkpoint is removed: a kill in between."""
    case, folder, place = BLOCKS["penalty"], tmp_path / "run", tmp_path / "people.ledger"
    dpmcmc.Ledger.create(place, epsilon=9.0, delta=DELTA)
    from dpmcmc.inference import books, checkpoint
    from dpmcmc.privacy.ledger import Account

    remove, calls = checkpoint.remove_database, []

    def crash(*_):
        raise faults.Crash

    def crash_at(number, path):
        calls.append(path)
        return crash() if len(calls) == number else remove(path)

    targets = {
        "before closing": (Account, "close", crash),
        "before removing": (checkpoint, "remove_database", lambda path: crash_at(1, path)),
        "between": (checkpoint, "remove_database", lambda path: crash_at(2, path)),
        "before tidying": (books, "tidy", crash),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*targets[where])
        patch.setattr(books.Books, "give_up", lambda self, how: self.checkpoint.close())
        with pytest.raises(faults.Crash):
            case.begin(folder, ledger=None if own else place)
    spent = None if own else faults.audit(place).spent
    (folder / ".posterior.nc.0123.tmp").write_bytes(b"half")
    posterior = case.go_on(folder)
    assert_complete(folder, posterior)
    posterior.privacy.check()
    if not own:
        found = faults.audit(place)
        assert found.spent == spent
        assert [run.how for run in found.runs.values()] == ["complete"]


# ------------------------------------------------------------------ errors and interruptions


@pytest.mark.parametrize("name", ["penalty", "laplace", "surrogate hmc"])
def test_an_interrupted_run_says_how_to_go_on(name, tmp_path, monkeypatch):
    case, folder = {**BLOCKS, **ASKING}[name], tmp_path / "run"
    append, count = Checkpoint.append, []

    def interrupt(checkpoint, *arguments):
        append(checkpoint, *arguments)
        count.append(1)
        if len(count) == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "append", interrupt)
        with pytest.raises(KeyboardInterrupt, match=f"what was charged counts; go on with `dpmcmc resume {folder}`"):
            case.begin(folder)
    assert sorted(os.listdir(folder)) == [CHARGES, CHECKPOINT]
    assert all((folder / file).stat().st_mode & 0o777 == 0o600 for file in os.listdir(folder))
    assert_complete(folder, case.go_on(folder))


def test_an_interruption_before_the_first_charge_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    case, place = BLOCKS["penalty"], tmp_path / "people.ledger"
    dpmcmc.Ledger.create(place, epsilon=9.0, delta=DELTA)
    with monkeypatch.context() as patch:
        patch.setattr(chains, "compile_run", interrupt)
        with pytest.raises(KeyboardInterrupt, match=r"nothing was spent$"):
            case.begin(tmp_path / "run", ledger=place)
    assert sorted(os.listdir(tmp_path)) == ["people.ledger"]
    assert dpmcmc.Ledger(place).status().mu_held == 0.0


@pytest.mark.parametrize("name", ["penalty", "laplace", "surrogate hmc"])
def test_a_checkpoint_that_cannot_be_written(name, tmp_path, monkeypatch):
    """A full disk: the run ends with a clear error, what was charged counts, and it goes on when there is room."""
    import sqlite3

    case, folder, place = {**BLOCKS, **ASKING}[name], tmp_path / "run", tmp_path / "people.ledger"
    dpmcmc.Ledger.create(place, epsilon=case.options["epsilon"], delta=DELTA)
    connect, count = sqlite3.connect, []

    class Full:
        def __init__(self, connection):
            self.connection = connection

        def __getattr__(self, name):
            return getattr(self.connection, name)

        def execute(self, text, *arguments):
            if text.startswith("INSERT"):
                count.append(1)
                if len(count) > 5:
                    raise sqlite3.OperationalError("database or disk is full")
            return self.connection.execute(text, *arguments)

    with monkeypatch.context() as patch:
        from dpmcmc.inference import checkpoint

        def opened(place, **options):
            connection = connect(place, **options)
            return Full(connection) if CHECKPOINT in str(place) else connection

        patch.setattr(checkpoint.sqlite3, "connect", opened)
        with pytest.raises(RunError, match=r"the disk is full.*go on with `dpmcmc resume"):
            case.begin(folder, ledger=place)
    posterior = case.go_on(folder)
    assert_complete(folder, posterior)
    posterior.privacy.check()
    run = faults.audit(place).runs[1]
    assert run.spent <= posterior.privacy.mu


def test_a_ledger_that_cannot_be_written_in_the_middle(tmp_path, monkeypatch):
    case, folder, place = BLOCKS["penalty"], tmp_path / "run", tmp_path / "people.ledger"
    dpmcmc.Ledger.create(place, epsilon=9.0, delta=DELTA)
    from dpmcmc.privacy.storage import Storage

    append, count = Storage.append, []

    def locked(storage, *arguments, **options):
        count.append(1)
        if len(count) > 6:
            raise LedgerError("the ledger could not be written: another process has it locked; try again later")
        return append(storage, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "append", locked)
        with pytest.raises(RunError, match=r"locked; try again later.*go on with `dpmcmc resume"):
            case.begin(folder, ledger=place)
    posterior = case.go_on(folder)
    assert_complete(folder, posterior)
    assert not any("lost" in kind for kind in posterior.privacy.queries)


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_ledger_that_cannot_be_written_in_the_end(checkpointed, tmp_path, monkeypatch):
    """The draws are paid for, and not lost."""
    case, folder, place = BLOCKS["penalty"], tmp_path / "run", tmp_path / "people.ledger"
    dpmcmc.Ledger.create(place, epsilon=9.0, delta=DELTA)
    from dpmcmc.privacy.ledger import Account

    def fail(*_):
        raise LedgerError("the ledger is locked; try again later")

    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(Account, "close", fail)
        posterior = dpmcmc.sample(
            MODEL, DATA, ledger=place, checkpoint=folder if checkpointed else None, **case.options
        )
    assert posterior.num_draws > 1
    told = next(str(one.message) for one in caught if "is locked" in str(one.message))
    assert ("dpmcmc resume" if checkpointed else "dpmcmc ledger close") in told
    if checkpointed:
        assert_complete(folder, case.go_on(folder))


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_ledger_that_cannot_be_read_in_the_end(checkpointed, tmp_path, monkeypatch):
    case, folder, place = BLOCKS["penalty"], tmp_path / "run", tmp_path / "people.ledger"
    dpmcmc.Ledger.create(place, epsilon=9.0, delta=DELTA)
    from dpmcmc.privacy.ledger import Account

    def fail(*_):
        raise LedgerError("the ledger is locked; try again later")

    with monkeypatch.context() as patch:
        patch.setattr(Account, "standing", fail)
        with pytest.raises(RunError, match="the run is done, but the ledger is locked") as caught:
            case.begin(folder if checkpointed else None, ledger=place)
    assert caught.value.posterior.num_draws > 1
    if checkpointed:
        assert_complete(folder, case.go_on(folder))


def test_all_of_it_lost(tmp_path, monkeypatch):
    """Crashes until nothing is left of the budget and there is no draw: an error that says so, not a result."""
    case = Case(MODEL, DATA, sampler=SAMPLERS["penalty"], epsilon=1.6, init=START)
    folder, place = tmp_path / "run", tmp_path / "people.ledger"
    dpmcmc.Ledger.create(place, epsilon=1.6, delta=DELTA)
    crashes = faults.Crashes(monkeypatch)
    assert crashes.at(4, True, lambda: case.begin(folder, ledger=place)) is None
    told = ""
    for _ in range(60):
        try:
            assert crashes.at(2 if "start" in crashes.written else 3, True, lambda: case.go_on(folder)) is None
        except RunError as error:
            told = str(error)
            break
    assert "have cost what would have paid for the first draw" in told
    assert "go on with" not in told
    assert faults.audit(place).runs[1].how == "failed"


# ------------------------------------------------------------------ what kinds of data


def test_a_stream_that_fails_at_the_start_leaves_no_start_to_go_on_with(tmp_path, monkeypatch):
    """What was answered then has noise and no records in it. The first gradient is asked for again, and paid again."""
    people.write_parquet(tmp_path / "people.parquet", {"a": DATA[:, 0], "b": DATA[:, 1]})
    data, folder = stream_of(tmp_path / "people.parquet", ["a", "b"]), tmp_path / "run"
    case = Case(MODEL, data, sampler=SAMPLERS["hmc-cached"], num_steps=4, init=START, check_records=False)
    pay = Curator.pay

    def gone(*_):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:

        def fail_from_now_on(curator, *arguments):
            patch.setattr(type(data), "chunks", gone)
            return pay(curator, *arguments)

        patch.setattr(Curator, "pay", fail_from_now_on)
        with pytest.raises(RunError, match="could not be read"):
            case.begin(folder)
    kept = Checkpoint(folder)
    kept.close()
    assert [part.kind for part in kept.parts] == ["facts"]
    (run,) = faults.audit(folder / CHARGES).runs.values()
    assert run.kinds["start"] == 1
    posterior = case.go_on(folder)
    assert_complete(folder, posterior)
    posterior.privacy.check()
    (gradient,) = {part for part in posterior.privacy.queries.items() if part[0] == "gradient"}
    per_step = case.options["sampler"].queries(len(DATA)).gradients_per_step
    assert gradient[1] == 4 * (2 + 4 * per_step)  # both starts are stated


def test_a_stream_goes_on(tmp_path, monkeypatch):
    people.write_parquet(tmp_path / "people.parquet", {"a": DATA[:, 0], "b": DATA[:, 1]})
    data = stream_of(tmp_path / "people.parquet", ["a", "b"])
    case = Case(MODEL, data, sampler=SAMPLERS["penalty"], num_steps=20)
    crashes = faults.Crashes(monkeypatch)
    posterior = crashes.survived(lambda: case.begin(tmp_path / "run"), lambda: case.go_on(tmp_path / "run"), (3, 4, 5))
    assert_complete(tmp_path / "run", posterior)
    posterior.privacy.check()


def test_units_of_several_rows_go_on(tmp_path, monkeypatch):
    ids = np.repeat(np.arange(250), 2)
    model, data = UnitModel(test_units.OWN, 2), Units.of(ids, 2).stack({"x": DATA[:, 0]})
    case = Case(model, data, sampler=test_units.SAMPLERS["DPPenalty"], num_steps=20)
    crashes = faults.Crashes(monkeypatch)
    posterior = crashes.survived(lambda: case.begin(tmp_path / "run"), lambda: case.go_on(tmp_path / "run"), (3, 4, 5))
    assert_complete(tmp_path / "run", posterior)
    posterior.privacy.check()
    assert posterior.privacy.num_records == 250


# ------------------------------------------------------------------ what a checkpoint holds


RECOGNISABLE = 123456.789


def everything_in(folder):
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def forms(value):
    """A number as it could stand in a file."""
    texts = (repr(float(value)), repr(int(value)))
    kinds = (np.float64(value), np.float32(value), np.int64(value), np.int32(value))
    return [text.encode() for text in texts] + [
        order for kind in kinds for order in (kind.tobytes(), kind.tobytes()[::-1])
    ]


@pytest.mark.parametrize("name", ["penalty", "laplace", "surrogate hmc"])
def test_no_record_and_no_noise_is_in_the_folder(name, tmp_path, monkeypatch):
    """A value of a record, and every integer of noise that was drawn, in all ways in which they could be written."""
    case, noise, draw = {**BLOCKS, **ASKING}[name], [], ExactNoise.draw
    data = case.data.copy()
    data[17, 0] = RECOGNISABLE
    case = Case(case.model, data, **case.options)

    def watched(source, *arguments):
        drawn = draw(source, *arguments)
        noise.extend(np.asarray(drawn).ravel().tolist())
        return drawn

    monkeypatch.setattr(ExactNoise, "draw", watched)
    crashes = faults.Crashes(monkeypatch)
    assert crashes.at(9, False, lambda: case.begin(tmp_path / "run")) is None
    content = everything_in(tmp_path / "run")
    assert not [form for form in forms(RECOGNISABLE) if form in content]
    large = [value for value in noise if abs(value) > 1 << 24]
    assert len(large) >= 5
    assert not [value for value in large if str(value).encode() in content or np.int64(value).tobytes() in content]


def test_no_secret_batch_is_in_the_folder(tmp_path, monkeypatch):
    """Neither the key of a batch nor how many records each chain's has, as they were drawn."""
    case, secrets_drawn, batches = BLOCKS["sgld-poisson"], [], Random.batches

    def watched(random, *arguments):
        drawn = batches(random, *arguments)
        keys = np.asarray(jax.random.key_data(drawn.key)).reshape(-1, 2)
        sizes = np.asarray(drawn.size).reshape(-1, 4)
        secrets_drawn.extend([row.tobytes() for row in (*keys, *sizes)])
        return drawn

    monkeypatch.setattr(Random, "batches", watched)
    crashes = faults.Crashes(monkeypatch)
    assert crashes.at(6, False, lambda: case.begin(tmp_path / "run")) is None
    assert "block" in crashes.written
    content = everything_in(tmp_path / "run")
    assert not [one for one in secrets_drawn if one in content]
    # Twin: written down, nearly all would be found (a few lie across two pages of the file).
    checkpoint = Checkpoint(tmp_path / "run")
    checkpoint.append("leak", {}, {"batch": np.frombuffer(b"".join(secrets_drawn), np.uint32)})
    checkpoint.close()
    content = everything_in(tmp_path / "run")
    assert len(secrets_drawn) > 10
    assert np.mean([one in content for one in secrets_drawn]) > 0.8


def shapes_in(folder):
    """All of a checkpoint but the numbers that were released, and what is random anyway."""
    checkpoint = Checkpoint(folder)
    checkpoint.close()
    headers = [
        {name: part.header[name] for name in part.header if name not in ("key", *RELEASED)} for part in checkpoint.parts
    ]
    arrays = [{name: (array.shape, array.dtype) for name, array in part.arrays.items()} for part in checkpoint.parts]
    return [part.kind for part in checkpoint.parts], headers, arrays, (folder / CHECKPOINT).stat().st_size


RELEASED = ("estimate", "noise_sd")


@pytest.mark.parametrize("name", ["seeded penalty", "seeded laplace"])
@pytest.mark.parametrize("record", [[np.nan, 1.0], [1e300, -1e300], [0.0, 0.0]], ids=["missing", "huge", "zero"])
def test_a_neighbour_changes_nothing_but_releases(name, record, tmp_path, monkeypatch):
    """Kinds, headers, shapes and the size of the file are the same, whatever one record is."""
    case, found = NOT_PRIVATE[name], []
    crashes = faults.Crashes(monkeypatch)
    for number in range(2):
        data = case.data.copy()
        if number:
            data[17] = record
        folder = tmp_path / str(number)
        options = case.options | {"check_records": False}
        assert crashes.at(9, False, lambda: Case(case.model, data, **options).begin(folder)) is None  # noqa: B023
        found.append(shapes_in(folder))
    assert found[0] == found[1]


def test_twin_a_record_would_be_found(tmp_path, monkeypatch):
    case, crashes = BLOCKS["penalty"], faults.Crashes(monkeypatch)
    assert crashes.at(9, False, lambda: case.begin(tmp_path / "run")) is None
    checkpoint = Checkpoint(tmp_path / "run")
    checkpoint.append("leak", {}, {"record": np.array([1.0, RECOGNISABLE])})
    checkpoint.append("leak", {"noise": 1 << 40}, {})
    checkpoint.close()
    content = everything_in(tmp_path / "run")
    assert [form for form in forms(RECOGNISABLE) if form in content]
    assert str(1 << 40).encode() in content


# ------------------------------------------------------------------ damage


def damaged(content, number, generator):
    """A copy of a file with something wrong: bits, bytes, zeros, the end cut off, or two pages exchanged."""
    copy = bytearray(content)
    # Every other one in the header, or the first page, where a byte matters more.
    place = int(generator.integers(0, len(content) if number % 2 else 4096))
    kind = number % 5
    if kind == 0:
        copy[place] ^= 1 << int(generator.integers(0, 8))
    elif kind == 1:
        copy[place : place + 16] = bytes(len(copy[place : place + 16]))
    elif kind == 2:
        del copy[int(generator.integers(0, len(content))) :]
    elif kind == 3:
        copy[place] = int(generator.integers(0, 256))
    else:
        one, other = (4096 * int(page) for page in generator.integers(0, len(content) // 4096, 2))
        copy[one : one + 4096], copy[other : other + 4096] = content[other : other + 4096], content[one : one + 4096]
    return bytes(copy)


@pytest.mark.parametrize("name", ["penalty", "laplace"])
def test_a_damaged_checkpoint_is_refused_or_does_no_harm(name, tmp_path, monkeypatch):
    """200 ways to damage it: the run goes on rightly, or there is a `CheckpointError`. Never anything else."""
    case, place = {**BLOCKS, **ASKING}[name], tmp_path / "people.ledger"
    dpmcmc.Ledger.create(place, epsilon=case.options["epsilon"], delta=DELTA)
    assert faults.Crashes(monkeypatch).at(8, True, lambda: case.begin(tmp_path / "run", ledger=place)) is None
    monkeypatch.undo()
    content, ledger = (tmp_path / "run" / CHECKPOINT).read_bytes(), place.read_bytes()
    original, generator = contents(tmp_path / "run"), np.random.default_rng(1)
    spent = faults.audit(place).spent
    refused = unharmed = 0
    folder = tmp_path / "damaged"
    for number in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / CHECKPOINT).write_bytes(damaged(content, number, generator))
        try:
            same = contents(folder) == original
            unharmed += same
            if same and unharmed > 3:
                continue
            posterior = case.go_on(folder)
        except CheckpointError:
            refused += 1
            assert faults.audit(place).spent == spent
            continue
        posterior.privacy.check()
        assert faults.audit(place).runs[1].spent <= posterior.privacy.mu
        place.write_bytes(ledger)
    assert refused > 20
    assert unharmed > 5


def contents(folder):
    checkpoint = Checkpoint(folder)
    checkpoint.close()
    return [(part.kind, part.header) for part in checkpoint.parts]
