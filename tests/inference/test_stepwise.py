"""Chains that pay for each step as it comes: what is asked, charged, refused, returned, and survived."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest
import scipy.stats

import dpmcmc
from dpmcmc.curator import Curator, NoNoiseNotPrivate, SeededNoiseNotPrivate
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.errors import BudgetExceededError, DPMCMCWarning, QueryError, RunError
from dpmcmc.inference import stepwise
from dpmcmc.inference.stepwise import BUDGET, INTERRUPTED, STEPS, run_chain
from dpmcmc.samplers.surrogate_hmc import Proposal, accept
from dpmcmc.surrogate import Form, Surrogate
from tests.inference.test_sampling import count_compilations
from tests.inference.test_scale import as_text, in_a_process
from tests.streams import stream_of

COVARIANCE = np.array([[1.0, 0.3], [0.3, 0.5]])
MODEL = dpmcmc.models.GaussianMean(COVARIANCE, prior_scale=2.0)
NUM_RECORDS, CHAINS, DELTA = 20_000, 4, 1e-6
DATA = np.random.default_rng(1).multivariate_normal([1.0, -1.0], COVARIANCE, NUM_RECORDS)
MEAN, POSTERIOR = MODEL.posterior_not_private(DATA)
ROOT = np.linalg.cholesky(POSTERIOR)
KEY = jax.random.wrap_key_data(np.array([1, 2], np.uint32), impl="threefry2x32")


def surrogate(shift=0.0, width=1.0, bend=0.0):
    """The posterior itself, or one that lies elsewhere (in sds), is wider or bends."""
    weights = [[shift, 1.0, 0.0, 0.0, 0.0, 0.0], [-shift, 0.0, 1.0, bend, 0.0, 0.0]]
    return Surrogate(Form(2, 2, 2), MEAN, ROOT, np.array(weights) / width)


def sampler(kappa=5.0, **settings):
    parts = {name: settings.pop(name) for name in ("shift", "width", "bend") if name in settings}
    return dpmcmc.SurrogateHMC(surrogate(**parts), kappa, **settings)


SAMPLER = sampler()
START = MEAN + np.random.default_rng(2).normal(size=(CHAINS, 2)) @ ROOT.T


def seeded_curator(seed=1, budget=None):
    return Curator(MODEL, DATA, budget, noise=SeededNoiseNotPrivate(seed), seed=seed)


def private_curator(epsilon=8.0):
    budget = dpmcmc.Budget(epsilon, DELTA)
    return Curator(MODEL, DATA, budget), budget


def run(epsilon=8.0, **options):
    settings = {"sampler": SAMPLER, "epsilon": epsilon, "delta": DELTA} | options
    return dpmcmc.sample(MODEL, DATA, **settings)


# ------------------------------------------------------------------ exactness


def test_without_noise_chains_agree_with_the_exact_posterior():
    """2000 chains from 3 sds away, a surrogate that is wrong: KS tests of both whitened coordinates and their product.

    False failures: 1e-6, of which each of three tests has a third.
    """
    data = DATA[:50]
    mean, covariance = MODEL.posterior_not_private(data)
    root = np.linalg.cholesky(covariance)
    curator = Curator(MODEL, data, noise=NoNoiseNotPrivate())
    weights = np.array([[0.4, 1.0, 0.0, 0.0, 0.0, 0.0], [-0.4, 0.0, 1.0, 0.3, 0.0, 0.0]]) / 1.3
    wrong = dpmcmc.SurrogateHMC(Surrogate(Form(2, 2, 2), mean, root, weights), 1000.0)
    start = np.tile(mean + root @ [3.0, 0.0], (2000, 1))
    outcome = run_chain(curator, wrong, start, key=KEY, max_steps=30)
    assert outcome.ended == STEPS
    assert outcome.acceptance > 0.3
    white = np.linalg.solve(root, (outcome.last - mean).T)
    values = [scipy.stats.kstest(row, "norm").pvalue for row in (*white, white.sum(axis=0) / math.sqrt(2.0))]
    assert min(values) > 1e-6 / 3
    # Twin: what the surrogate itself looks like.
    free = np.linalg.solve(root, (stepwise.settled(curator, wrong, start, KEY) - mean).T)
    assert min(scipy.stats.kstest(row, "norm").pvalue for row in free) < 1e-8


def test_a_surrogate_that_fits_is_accepted_as_often_as_the_noise_allows():
    """0.317 at σ = 2, within 4.9 sds (false failures: 1e-6; tests of one chain are nearly independent)."""
    outcome = run_chain(seeded_curator(), SAMPLER, np.tile(START, (16, 1)), key=KEY, max_steps=100)
    assert abs(outcome.sds_below(SAMPLER.ceiling)) < 4.9
    # Twin: one that does not fit is seen.
    poor = sampler(shift=1.5, width=0.5)
    outcome = run_chain(seeded_curator(), poor, np.tile(START, (16, 1)), key=KEY, max_steps=100)
    assert outcome.sds_below(poor.ceiling) > 4.9


# ------------------------------------------------------------------ counting


class Watched:
    """Writes down what happens: charges, passes over the records, noise and releases, in their order."""

    def __init__(self, monkeypatch):
        self.events, self.noise, self.questions, self.releases = [], [], [], []
        spend, total, ask = dpmcmc.Budget.spend, Curator._host_total, Curator.ask
        draw = SeededNoiseNotPrivate.draw

        def watched_spend(budget, mu, **slack):
            self.events.append(("charge", Fraction(mu)))
            return spend(budget, mu, **slack)

        def watched_total(curator, *arguments):
            self.events.append(("records", None))
            return total(curator, *arguments)

        def watched_draw(source, scale, shape):
            self.noise.append(np.asarray(draw(source, scale, shape)))
            return self.noise[-1]

        def watched_ask(curator, query, theta, proposal=None, **options):
            self.questions.append((query, theta, proposal))
            self.releases.append(ask(curator, query, theta, proposal, **options))
            return self.releases[-1]

        monkeypatch.setattr(dpmcmc.Budget, "spend", watched_spend)
        monkeypatch.setattr(Curator, "_host_total", watched_total)
        monkeypatch.setattr(Curator, "ask", watched_ask)
        monkeypatch.setattr(SeededNoiseNotPrivate, "draw", watched_draw)


def test_every_step_is_charged_then_asked_once_with_noise_of_its_own(monkeypatch):
    budget = dpmcmc.Budget(8.0, DELTA)
    curator = seeded_curator(budget=budget)
    watched = Watched(monkeypatch)
    outcome = run_chain(curator, SAMPLER, START, key=KEY)
    assert outcome.ended == BUDGET
    asked = outcome.num_steps
    assert asked > 20
    # In this order, and nothing else; a step that does not fit is refused before the records are looked at.
    charges = [mu for kind, mu in watched.events if kind == "charge"]
    assert [kind for kind, _ in watched.events[: 2 * asked]] == ["charge", "records"] * asked
    assert [kind for kind, _ in watched.events[2 * asked :]] in ([], ["charge"])
    assert outcome.spent == sum(charges[:asked]) == budget.spent_exactly
    # What was charged is what was asked: 2c²/σ², for each chain.
    for (query, theta, proposal), release, mu in zip(
        watched.questions, watched.releases, charges[:asked], strict=False
    ):
        with exact_arithmetic():
            clip = np.asarray(query.clip_bound(np.asarray(theta), np.asarray(proposal)))
        assert float(mu) == pytest.approx(2.0 * np.sum((clip / query.noise_sd) ** 2), rel=1e-8)
        assert sum(map(Fraction, release.mu.tolist())) == mu
        assert np.all(release.noise_sd == pytest.approx(2.0))
    assert outcome.num_answers == outcome.moved.sum() == sum((r.mu > 0).sum() for r in watched.releases)
    # Every draw of noise is in one release: the rest is the sum that a curator without noise gives.
    exact = Curator(MODEL, DATA, noise=NoNoiseNotPrivate())
    numbers = [number for noise in watched.noise[:asked] for number in noise.ravel().tolist()]
    assert len(set(numbers)) == len(numbers) == asked * CHAINS
    noise, releases = list(watched.noise), list(watched.releases)
    for (query, theta, proposal), release, drawn in zip(watched.questions[:asked], releases, noise, strict=False):
        plain = exact.ask(query, theta, proposal)
        spacing = query.numbers(NUM_RECORDS).multiple / query.numbers(NUM_RECORDS).scale ** 2
        np.testing.assert_allclose(release.value - plain.value, spacing * drawn[:, 0], rtol=0, atol=1e-7)


def test_positions_follow_releases_alone(monkeypatch):
    """Each position is the last one or the proposal, by the accept test on what was released."""
    curator = seeded_curator()
    watched = Watched(monkeypatch)
    outcome = run_chain(curator, SAMPLER, START, key=KEY, max_steps=15)
    assert np.array_equal(watched.questions[0][1], START)
    with exact_arithmetic():
        potential = jax.vmap(SAMPLER.surrogate.potential)
        for step, ((_, theta, proposal), release) in enumerate(zip(watched.questions, watched.releases, strict=True)):
            change = potential(np.asarray(proposal)) - potential(np.asarray(theta))
            parts = Proposal(np.asarray(proposal), outcome.moved[step], change, None)
            key = stepwise._key(KEY, step, 1)
            position, accepted = accept(key, np.asarray(theta), parts, release.value, release.noise_sd)
            assert np.array_equal(accepted, outcome.accepted[step])
            np.testing.assert_array_equal(position, outcome.positions[step])
            if step + 1 < outcome.num_steps:
                assert np.array_equal(watched.questions[step + 1][1], outcome.positions[step])


@pytest.mark.parametrize("spend", [1e-6, 0.0537, 0.2, 5.0, math.inf])
def test_a_part_of_the_budget_is_never_overspent(spend):
    curator, budget = private_curator(4.0)
    outcome = run_chain(curator, SAMPLER, START, spend, key=KEY)
    assert outcome.ended == BUDGET
    assert outcome.spent == budget.spent_exactly
    assert outcome.spent <= min(spend, budget.total)
    if spend == 1e-6:  # not one step
        assert outcome.positions.shape == (0, CHAINS, 2)
        assert np.array_equal(outcome.last, START)
        return
    # One more step would not have fitted, and none costs six times the mean.
    mean = float(outcome.spent) / outcome.num_steps
    assert min(spend, budget.total) - float(outcome.spent) < 6.0 * mean


def test_two_parts_share_one_budget():
    """A chain goes on where it was, and never over the budget."""
    curator, budget = private_curator(4.0)
    first = run_chain(curator, SAMPLER, START, 0.1, key=KEY)
    second = run_chain(curator, SAMPLER, first.last, key=jax.random.fold_in(KEY, 1))
    assert first.spent + second.spent == budget.spent_exactly <= Fraction(budget.total)
    assert second.num_steps > first.num_steps


def test_the_same_key_goes_the_same_way():
    first, again = (run_chain(seeded_curator(), SAMPLER, START, key=KEY, max_steps=9) for _ in range(2))
    other = run_chain(seeded_curator(), SAMPLER, START, key=jax.random.fold_in(KEY, 1), max_steps=9)
    thinned = run_chain(seeded_curator(), SAMPLER, START, key=KEY, max_steps=9, thin=3)
    assert np.array_equal(first.positions, again.positions)
    assert not np.array_equal(first.positions, other.positions)
    assert np.array_equal(first.positions[2::3], thinned.positions)
    assert np.array_equal(first.accepted, thinned.accepted)


# ------------------------------------------------------------------ compiled once, before anything is charged


def test_nothing_is_compiled_after_the_first_charge_and_nothing_twice(monkeypatch):
    model = dpmcmc.models.GaussianMean(np.eye(2) * 1.375, prior_scale=3.0)  # used nowhere else
    spend, after = dpmcmc.Budget.spend, []

    def watched(budget, *arguments, **options):
        after.append(len(names))
        return spend(budget, *arguments, **options)

    monkeypatch.setattr(dpmcmc.Budget, "spend", watched)
    options = {"epsilon": 4.0, "delta": DELTA, "num_steps": 7}
    with count_compilations() as names:
        dpmcmc.sample(model, DATA, sampler=SAMPLER, **options)
    assert names
    assert set(after) == {len(names)}
    with count_compilations() as names:  # another surrogate, other settings and another number of draws
        dpmcmc.sample(model, DATA, sampler=sampler(7.0, shift=0.2, noise_sd=1.7, step_size=0.3), **options)
        dpmcmc.sample(model, DATA, sampler=SAMPLER, **options | {"num_steps": 11})
    assert not names
    with count_compilations() as names:  # twin: another form is compiled
        dpmcmc.sample(model, DATA, sampler=sampler(num_leapfrog=3), **options)
    assert "propose" in names


# ------------------------------------------------------------------ sample


def test_a_private_run():
    posterior = run(num_warmup=0)
    statement = posterior.privacy
    assert statement.adaptive.startswith("Where each step of the chain asked, what it cost")
    assert statement.private
    assert (statement.epsilon, statement.delta, statement.num_records) == (8.0, DELTA, NUM_RECORDS)
    statement.check()
    assert statement.recomputed_epsilon() <= 8.0
    assert set(statement.queries) == {"log_ratio", "invalid_count"}
    assert statement.queries["log_ratio"] <= CHAINS * posterior.num_draws
    assert "noise of sd 2 and was charged by its own public clip bound" in " ".join(str(statement).split())
    assert posterior.draws["mean"].shape == (CHAINS, posterior.num_draws, 2)
    assert posterior.acceptance_rate == pytest.approx(0.3, abs=0.2)
    assert "acceptance" in str(posterior)
    assert abs(posterior.record_check.estimate) < 6 * posterior.record_check.noise_sd  # 0 of them; fails 1 in 5e8
    distance = np.linalg.solve(ROOT, (posterior.draws["mean"].reshape(-1, 2) - MEAN).T)
    assert np.all(np.abs(distance.mean(axis=1)) < 3.0)


def test_warmup_thinning_and_number_of_steps():
    posterior = run(num_steps=20, thin=3, num_warmup=2, seed=1)
    assert posterior.draws["mean"].shape == (CHAINS, 4, 2)
    assert posterior.warmup_draws["mean"].shape == (CHAINS, 2, 2)
    # 20 steps hold 6 draws of 3; the last two steps are not run, and not paid for.
    assert posterior.privacy.queries["log_ratio"] <= CHAINS * 18
    assert posterior.privacy.epsilon == 8.0  # never less: where a run stops follows what was released
    accepted = posterior.sample_stats["acceptance_rate"] * 3
    assert np.allclose(accepted, np.rint(accepted))
    assert run(num_steps=9, seed=1).num_warmup == 4


def test_seeded_runs_repeat_and_say_so():
    first, again = (run(num_steps=8, seed=5) for _ in range(2))
    assert np.array_equal(first.draws["mean"], again.draws["mean"])
    assert not np.array_equal(first.draws["mean"], run(num_steps=8, seed=6).draws["mean"])
    assert first.privacy.mode == "not private: seeded"


def test_starting_points_may_be_given():
    posterior = run(num_steps=2, num_warmup=0, seed=1, init={"mean": START})
    still = posterior.sample_stats["acceptance_rate"][:, 0] == 0.0
    assert still.any()
    np.testing.assert_allclose(posterior.draws["mean"][still, 0], START[still])


def test_many_draws_are_brought_to_constrained_space_in_parts():
    curator = seeded_curator()
    theta = np.random.default_rng(1).normal(size=(stepwise._DRAWS_AT_A_TIME + 7, 3, 2))
    with exact_arithmetic():
        np.testing.assert_array_equal(stepwise.constrained(curator, theta)["mean"], theta)


def test_a_surrogate_that_does_not_fit_is_told():
    with pytest.warns(DPMCMCWarning, match=r"of the moves were accepted, where a surrogate that fits leaves 0\.317"):
        run(sampler=sampler(2.0, shift=1.5, width=0.5), epsilon=40.0, num_steps=150, seed=1)


def few_draws(data=DATA, **options):
    settings = {"sampler": SAMPLER, "epsilon": 8.0, "delta": DELTA, "num_steps": 6, "num_warmup": 0, "seed": 3}
    return dpmcmc.sample(MODEL, data, progress=False, **settings | options).draws["mean"]


def test_streamed_draws_are_those_in_memory(tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from dpmcmc.curator import streaming

    monkeypatch.setattr(streaming, "CHUNK_ROWS", 4096)
    other = DATA - 0.05  # twin: other rows give other draws
    draws = []
    for name, records in (("same", DATA), ("other", other)):
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(pyarrow.table({"a": records[:, 0], "b": records[:, 1]}), path, row_group_size=3000)
        draws.append(few_draws(stream_of(path, ["a", "b"])))
    assert np.array_equal(draws[0], few_draws())
    assert not np.array_equal(draws[0], draws[1])


@pytest.mark.slow
def test_draws_do_not_depend_on_devices():
    script = (
        "from tests.inference.test_stepwise import *; import json; "
        "print(json.dumps([as_text(few_draws(devices=k)) for k in (1, 2)]))"
    )
    texts = in_a_process(script, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert texts == [as_text(few_draws())] * 2
    assert as_text(few_draws(seed=4)) not in texts


# ------------------------------------------------------------------ endings


def failing_ask(monkeypatch, number, error):
    """Fail in the so many-th question, after it was charged."""
    total, calls = Curator._host_total, []

    def fail(curator, *arguments):
        calls.append(1)
        if len(calls) == number:
            raise error
        return total(curator, *arguments)

    monkeypatch.setattr(Curator, "_host_total", fail)


@pytest.mark.parametrize(
    ("error", "ended"),
    [(KeyboardInterrupt(), INTERRUPTED), (ValueError("secret 17"), "of an error of type ValueError")],
)
def test_what_is_done_comes_back_whatever_ends_a_chain(error, ended, monkeypatch):
    curator, budget = private_curator()
    failing_ask(monkeypatch, 6, error)
    outcome = run_chain(curator, SAMPLER, START, key=KEY)
    assert outcome.ended == ended
    assert not outcome.complete
    assert len(outcome.positions) == outcome.num_steps == 5
    assert np.array_equal(outcome.positions[-1], outcome.last)
    # The step that failed was paid for, and is not left out.
    assert outcome.spent == budget.spent_exactly
    assert outcome.num_answers > outcome.moved.sum()


def test_ctrl_c_keeps_paid_draws(monkeypatch):
    failing_ask(monkeypatch, 9, KeyboardInterrupt())  # the first is the record check
    with pytest.warns(DPMCMCWarning, match="ended after 7 draws of each chain, because it was interrupted"):
        posterior = run(num_warmup=0)
    assert posterior.num_draws == 7
    assert posterior.privacy.interrupted
    assert posterior.privacy.epsilon == 8.0
    posterior.privacy.check()


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, "before there were any draws; the whole budget counts as spent"),
        (ValueError("secret 17"), RunError, "because of an error of type ValueError; the whole budget counts as spent"),
    ],
)
def test_a_first_step_that_fails_says_what_is_spent(error, expected, text, monkeypatch):
    failing_ask(monkeypatch, 2, error)
    with pytest.raises(expected, match=text) as caught:
        run()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("place", ["prepare_chain", "settled"])
def test_ctrl_c_while_compiling_spends_nothing(place, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    def never(*arguments, **options):
        raise AssertionError("budget was spent")

    monkeypatch.setattr(stepwise, place, interrupted)
    monkeypatch.setattr(dpmcmc.Budget, "spend", never)
    with pytest.raises(KeyboardInterrupt, match="nothing was spent"):
        run()


def test_draws_that_cannot_be_put_together_are_attached_to_the_error(monkeypatch):
    def broken(**arguments):
        raise ValueError("no room")

    monkeypatch.setattr(stepwise, "Posterior", broken)
    with pytest.raises(RunError, match="unconstrained_draws") as caught:
        run(num_steps=5)
    assert caught.value.unconstrained_draws.shape == (5, CHAINS, 2)


# ------------------------------------------------------------------ refused, with nothing spent


ELSEWHERE = Surrogate(Form(3, 3, 1), np.zeros(3), np.eye(3), np.ones((3, 4)))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"epsilon": None}, QueryError, "epsilon and delta are required"),
        ({"num_steps": 2, "thin": 3}, QueryError, "thin = 3 leaves no draw of 2 steps"),
        ({"num_steps": 4, "num_warmup": 4}, QueryError, "num_warmup = 4 must be .* below the 4 draws"),
        ({"num_warmup": -1}, QueryError, "num_warmup = -1 must be a whole number from 0"),
        ({"init": np.zeros((2, 2))}, QueryError, r"init has shape \(2, 2\)"),
        (
            {"sampler": dpmcmc.SurrogateHMC(ELSEWHERE, 1.0)},
            QueryError,
            "the surrogate has 3 dimensions; this model has 2",
        ),
        ({"epsilon": 0.01}, BudgetExceededError, "a draw of 4 chains costs about"),
        ({"thin": 100_000}, BudgetExceededError, "smaller ratio_bound or thin"),
        ({"init": np.full((4, 2), 1e200)}, QueryError, "a starting point has no finite prior density"),
        (
            {"sampler": dpmcmc.SurrogateHMC},
            QueryError,
            r"SurrogateHMC\(\.\.\.\), got the class SurrogateHMC, not called",
        ),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_spent(options, error, text, monkeypatch):
    def never(*arguments, **keywords):
        raise AssertionError("budget was spent")

    monkeypatch.setattr(dpmcmc.Budget, "spend", never)
    with pytest.raises(error, match=text):
        run(**options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"spend": 0.0}, "spend = 0.0 is out of range"),
        ({"spend": math.nan}, "spend = nan is out of range"),
        ({"max_steps": 0}, "max_steps = 0"),
        ({"thin": 0}, "thin = 0"),
        ({"theta": np.zeros((4, 3)), "max_steps": 1}, r"theta has shape \(4, 3\)"),
        ({}, "max_steps is required"),
    ],
)
def test_bad_arguments_of_a_chain(options, text):
    with pytest.raises(QueryError, match=text):
        run_chain(seeded_curator(), SAMPLER, **{"theta": START, "key": KEY} | options)


def test_there_is_no_plan_but_an_estimate():
    """μ·n·σ²/(4κ²d): 1.1728 · 20,000 · 4/(4 · 25 · 2)."""
    with pytest.raises(QueryError, match=r"there is no plan of them.* about 4\.7e\+02 steps in all chains together"):
        dpmcmc.plan(SAMPLER, num_records=NUM_RECORDS, epsilon=8.0, delta=DELTA)
