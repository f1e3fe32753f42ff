"""``dpmcmc.sample`` as a user meets it."""

import contextlib
import gc
import logging
import math
import os
import signal
import warnings
import weakref

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.curator import Curator, ExactNoise, NoNoiseNotPrivate, Order
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.errors import (
    BudgetExceededError,
    DataError,
    DPMCMCWarning,
    ModelError,
    NotPrivateError,
    QueryError,
    RunError,
)
from dpmcmc.inference import blocks, chains, endings

MODEL = dpmcmc.models.GaussianMean(np.array([[1.0, 0.3], [0.3, 0.5]]), prior_scale=2.0)
NUM_RECORDS = 500
DATA = np.random.default_rng(1).normal(loc=[1.0, -1.0], size=(NUM_RECORDS, 2))
START = np.tile([1.0, -1.0], (4, 1))
DELTA = 1e-6

SAMPLERS = {
    "hmc-position": dpmcmc.DPHMC(0.02, 4, 3.0, 3.0, 10.0, 20.0),
    "hmc-momentum": dpmcmc.DPHMC(0.02, 4, 3.0, 3.0, 10.0, 20.0, leapfrog="momentum_first"),
    "hmc-cached": dpmcmc.DPHMC(0.02, 4, 3.0, 3.0, 10.0, 20.0, leapfrog="cached"),
    "penalty": dpmcmc.DPPenalty(0.05, 3.0, 20.0),
    "penalty-guided": dpmcmc.DPPenalty([0.05, 0.03], 3.0, 20.0, update="guided"),
    "sgld": dpmcmc.DPSGLD(50, 3.0, 1e-5),
    "sgld-poisson": dpmcmc.DPSGLD(50, 3.0, 1e-5, sampling="poisson"),
    "sgnht": dpmcmc.DPSGNHT(50, 3.0, 1e-3, 10.0),
}


def run(sampler, epsilon=8.0, **options):
    return dpmcmc.sample(MODEL, DATA, epsilon=epsilon, delta=DELTA, sampler=sampler, init=START, **options)


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())
def test_a_private_run(sampler):
    plan = dpmcmc.plan(sampler, num_records=NUM_RECORDS, epsilon=8.0, delta=DELTA)
    num_steps = min(plan.num_steps, 37)
    posterior = run(sampler, num_steps=num_steps)
    assert posterior.draws["mean"].shape == (4, num_steps - num_steps // 2, 2)
    assert np.all(np.isfinite(posterior.draws["mean"]))
    statement = posterior.privacy
    assert statement.private
    assert (statement.budget_epsilon, statement.delta, statement.num_records) == (8.0, DELTA, NUM_RECORDS)
    assert statement.epsilon < 8.0 or num_steps == plan.num_steps
    assert not statement.interrupted
    queries = sampler.queries(NUM_RECORDS)
    gradients = 4 * (num_steps * queries.gradients_per_step + queries.gradients_at_start)
    counts = {"invalid_count": 1, "log_ratio": 4 * num_steps * queries.log_ratios_per_step}
    counts["gradient" if statement.mu is not None else "batch_gradient"] = gradients
    assert statement.queries == {kind: count for kind, count in counts.items() if count}
    assert posterior.record_check.num_records == NUM_RECORDS
    assert abs(posterior.record_check.estimate) < 6 * posterior.record_check.noise_sd  # 0 of them; fails 1 in 5e8
    statement.check()
    assert statement.recomputed_epsilon() <= statement.epsilon


def test_the_budget_decides_the_number_of_steps():
    sampler = SAMPLERS["penalty"]
    plan = dpmcmc.plan(sampler, num_records=NUM_RECORDS, epsilon=8.0, delta=DELTA)
    posterior = run(sampler, num_warmup=0)
    assert posterior.num_draws == plan.num_steps
    assert posterior.privacy.mu <= plan.mu_total
    assert posterior.privacy.mu + 5 * plan.mu_per_step > plan.mu_total
    assert posterior.privacy.epsilon == 8.0
    with pytest.raises(QueryError, match="num_steps"):
        run(sampler, num_steps=plan.num_steps + 1)


def test_thinning_and_warmup():
    posterior = run(SAMPLERS["penalty"], num_steps=20, thin=3, num_warmup=2, seed=1)
    assert posterior.draws["mean"].shape == (4, 4, 2)
    assert posterior.warmup_draws["mean"].shape == (4, 2, 2)
    # 20 steps hold 6 draws of 3; the last two steps are not run, and not paid for.
    assert posterior.privacy.queries == {"log_ratio": 4 * 18, "invalid_count": 1}


def test_thinned_draws_are_every_third_of_the_same_chain(monkeypatch):
    """Thinning changes what is kept, not the algorithm: acceptance is the mean over the steps between."""
    posterior = run(SAMPLERS["penalty"], num_steps=30, thin=3, num_warmup=0, seed=1)
    accepted = posterior.sample_stats["acceptance_rate"] * 3
    assert np.allclose(accepted, np.rint(accepted))


@pytest.mark.parametrize("name", ["hmc-cached", "penalty-guided", "sgld", "sgld-poisson"])
def test_seeded_runs_repeat_and_say_so(name):
    first, again = (run(SAMPLERS[name], num_steps=12, seed=5) for _ in range(2))
    other = run(SAMPLERS[name], num_steps=12, seed=6)
    assert np.array_equal(first.draws["mean"], again.draws["mean"])
    assert not np.array_equal(first.draws["mean"], other.draws["mean"])
    assert first.privacy.mode == "not private: seeded"
    assert not first.privacy.private
    assert "not private: seeded" in str(first)


def test_private_runs_do_not_repeat():
    first, second = (run(SAMPLERS["sgld"], num_steps=12) for _ in range(2))
    assert not np.array_equal(first.draws["mean"], second.draws["mean"])


def test_research_samplers_take_no_budget():
    posterior = dpmcmc.sample(MODEL, DATA, sampler=dpmcmc.HMC(0.02, 5), num_steps=30, init=START)
    assert posterior.privacy.mode == "not private: no noise"
    assert not posterior.privacy.private
    with pytest.raises(QueryError, match="not private"):
        run(dpmcmc.RWMH(0.1), num_steps=10)
    with pytest.raises(QueryError, match="num_steps is required"):
        dpmcmc.sample(MODEL, DATA, sampler=dpmcmc.RWMH(0.1), init=START)


def test_starting_points():
    sampler = SAMPLERS["penalty"]
    from_prior = dpmcmc.sample(MODEL, DATA, epsilon=8.0, delta=DELTA, sampler=sampler, num_steps=4)
    assert from_prior.num_chains == 4
    named = dpmcmc.sample(
        MODEL, DATA, epsilon=8.0, delta=DELTA, sampler=sampler, num_steps=4, init={"mean": START}, seed=3
    )
    plain = run(sampler, num_steps=4, seed=3)
    assert np.array_equal(named.draws["mean"], plain.draws["mean"])


def test_constrained_parameters_and_a_numpyro_model():
    import numpyro
    from numpyro import distributions as dist

    def model(x, y):
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(slope * x, scale), obs=y)

    generator = np.random.default_rng(0)
    x = generator.normal(size=300)
    data = {"x": x, "y": x + generator.normal(size=300)}
    posterior = dpmcmc.sample(
        dpmcmc.from_numpyro(model, data), data, epsilon=5.0, delta=DELTA, sampler=SAMPLERS["penalty"], num_steps=30
    )
    assert set(posterior.draws) == {"slope", "scale"}
    assert np.all(posterior.draws["scale"] > 0)


def fail_in_block(monkeypatch, number, error, before=lambda: None):
    """Let a block of the next run raise, after it was charged."""
    original = chains.compile_run

    def compile_run(*arguments):
        program, calls = original(*arguments), []

        def failing(*inputs):
            calls.append(None)
            if len(calls) == number:
                before()
                raise error
            return program.run(*inputs)

        return program._replace(run=failing)

    monkeypatch.setattr(chains, "compile_run", compile_run)


FAILURES = [
    (KeyboardInterrupt(), "it was interrupted"),
    (BudgetExceededError("mu = 3 was asked"), "BudgetExceededError: mu = 3 was asked"),
    (RunError("about 90% of the records count as nothing"), "because about 90% of the records count as nothing"),
    (MemoryError(), "not enough memory"),
    (RuntimeError("RESOURCE_EXHAUSTED: out of memory"), "not enough memory"),
    (RuntimeError("could not convert 'Johannes-1234'"), "of an error of type RuntimeError"),
]


@pytest.mark.parametrize(("error", "reason"), FAILURES, ids=[type(e).__name__ + r[-6:] for e, r in FAILURES])
def test_no_exception_costs_paid_draws(error, reason, monkeypatch):
    """Whatever ends a run, what is done comes back: charged, marked, with a warning that says why."""
    fail_in_block(monkeypatch, 4, error)
    with pytest.warns(DPMCMCWarning) as caught:
        posterior = run(SAMPLERS["penalty"], num_warmup=0)
    texts = [str(warning.message) for warning in caught]
    ended = next(text for text in texts if "the run ended" in text)
    assert reason in ended
    assert not any("Johannes" in text for text in texts)
    plan = dpmcmc.plan(SAMPLERS["penalty"], num_records=NUM_RECORDS, epsilon=8.0, delta=DELTA)
    shape = blocks.choose_shape(4, plan.num_steps, 1)
    assert posterior.num_draws == 3 * shape.draws_per_block
    statement = posterior.privacy
    assert statement.interrupted
    assert statement.epsilon == 8.0
    assert "interrupted" in str(statement).lower()
    # The fourth block was charged, and counts.
    assert statement.queries["log_ratio"] == 4 * 4 * shape.draws_per_block
    statement.check()


def test_an_interrupted_run_of_fixed_length_states_the_budget(monkeypatch):
    """An odometer read at such a stop is not valid: the granted ε is stated, though fewer steps were fixed."""
    fail_in_block(monkeypatch, 2, KeyboardInterrupt())
    with pytest.warns(DPMCMCWarning, match="interrupted"):
        posterior = run(SAMPLERS["penalty"], num_steps=40, num_warmup=0)
    assert posterior.privacy.epsilon == 8.0
    monkeypatch.undo()
    assert run(SAMPLERS["penalty"], num_steps=40).privacy.epsilon < 8.0


@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, "the whole budget counts as spent"),
        (RuntimeError("quotes 'Johannes-1234'"), RunError, "of an error of type RuntimeError"),
    ],
)
def test_a_first_block_that_fails_says_what_is_spent(raised, expected, text, monkeypatch):
    """A block is charged before it runs: there is nothing to return, and the error says so."""
    charges = []
    original = dpmcmc.Budget.spend

    def spend(self, mu, **options):
        charges.append(mu)
        original(self, mu, **options)

    monkeypatch.setattr(dpmcmc.Budget, "spend", spend)
    fail_in_block(monkeypatch, 1, raised, lambda: charges or pytest.fail("ran before it was charged"))
    with pytest.raises(expected, match=text) as caught:
        run(SAMPLERS["penalty"])
    assert sum(map(bool, charges)) == 2  # the record check, and the block
    assert "Johannes" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("place", ["compile_run", "starting_points"])
def test_ctrl_c_while_planning_or_compiling_spends_nothing(place, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    def never(*arguments, **options):
        raise AssertionError("budget was spent")

    monkeypatch.setattr(chains, place, interrupted)
    monkeypatch.setattr(dpmcmc.Budget, "spend", never)
    with pytest.raises(KeyboardInterrupt, match="nothing was spent"):
        run(SAMPLERS["penalty"])


def test_everything_is_compiled_before_anything_is_charged(monkeypatch):
    model = dpmcmc.models.GaussianMean(np.eye(2) * 1.25, prior_scale=3.0)  # used nowhere else
    compiled, original = [], dpmcmc.Budget.spend

    def spend(self, *arguments, **options):
        with count_compilations() as inside:
            original(self, *arguments, **options)
        compiled.append(inside)

    monkeypatch.setattr(dpmcmc.Budget, "spend", spend)
    before = count_compilations()
    with before as names:
        posterior = dpmcmc.sample(
            model, DATA, epsilon=8.0, delta=DELTA, sampler=SAMPLERS["hmc-cached"], init=START, num_steps=9
        )
    assert posterior.num_draws
    assert names.count("run") == 2  # the start and the block
    assert "total" in names
    assert not any(compiled)


def test_a_failing_progress_bar_changes_nothing(monkeypatch):
    from dpmcmc.inference import progress

    class Terminal:
        def isatty(self):
            return True

        def write(self, text):
            raise BrokenPipeError

        flush = write

    monkeypatch.setattr(progress.sys, "stderr", Terminal())
    posterior = run(SAMPLERS["penalty"], num_steps=20, num_warmup=0)
    assert posterior.num_draws == 20
    assert not posterior.privacy.interrupted


@pytest.mark.filterwarnings("error::dpmcmc.errors.DPMCMCWarning")
def test_a_warning_that_is_made_an_error_brings_the_draws():
    sampler = dpmcmc.DPPenalty(0.002, 3.0, 20.0)
    with pytest.raises(DPMCMCWarning) as caught:
        run(sampler, num_steps=10)
    assert caught.value.posterior.num_draws == 5


def test_draws_that_cannot_be_put_together_are_attached_to_the_error(monkeypatch):
    def broken(**arguments):
        raise ValueError("no room")

    monkeypatch.setattr(chains, "Posterior", broken)
    with pytest.raises(RunError, match="unconstrained_draws") as caught:
        run(SAMPLERS["penalty"], num_steps=10)
    assert caught.value.unconstrained_draws.shape == (10, 4, 2)


def test_the_start_is_not_paid_again_by_a_second_ctrl_c():
    """While paid draws are put together Ctrl-C waits."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may be told to ignore it
    try:
        with endings.undisturbed():
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def count_compilations():
    """Collect the names of what XLA compiles meanwhile."""
    names = []

    class Handler(logging.Handler):
        def emit(self, record):
            if record.getMessage().startswith("Compiling"):
                names.append(record.getMessage().split()[1].removeprefix("jit(").removesuffix(")"))

    logger, handler = logging.getLogger("jax._src.interpreters.pxla"), Handler(logging.DEBUG)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield names
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


OTHER_SETTINGS = {
    "hmc-position": dpmcmc.DPHMC(0.002, 4, 2.0, 4.0, 11.0, 21.0, mass_matrix=[1.0, 2.0]),
    "hmc-cached": dpmcmc.DPHMC(0.002, 4, 2.0, 4.0, 11.0, 21.0, leapfrog="cached"),
    "penalty": dpmcmc.DPPenalty([0.002, 0.003], 2.0, 21.0),
    "penalty-guided": dpmcmc.DPPenalty(0.002, 2.0, 21.0, update="guided"),
    "sgld": dpmcmc.DPSGLD(50, 2.0, 2e-5, temperature=0.5),
    "sgnht": dpmcmc.DPSGNHT(50, 2.0, 2e-3, 11.0),
}


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_a_second_call_compiles_nothing(name):
    """Same model, shapes and class of sampler: other settings, other data and another seed are inputs."""
    options = {"num_steps": 24, "seed": 1}
    run(SAMPLERS[name], **options)
    with count_compilations() as names:
        run(SAMPLERS[name], **options)
        again = dpmcmc.models.GaussianMean(np.array([[1.0, 0.3], [0.3, 0.5]]), prior_scale=2.0)
        second = dpmcmc.sample(
            again, DATA + 0.1, sampler=OTHER_SETTINGS[name], epsilon=7.0, delta=DELTA, init=START, num_steps=24, seed=2
        )
    assert names == []
    # Twin: the settings are not ignored, and another model is compiled.
    assert not np.array_equal(second.draws["mean"], run(SAMPLERS[name], **options).draws["mean"])
    other = dpmcmc.models.GaussianMean(np.array([[1.0, 0.2], [0.2, 0.5]]), prior_scale=2.0)
    with count_compilations() as names:
        dpmcmc.sample(other, DATA, sampler=SAMPLERS[name], epsilon=8.0, delta=DELTA, init=START, num_steps=24)
    assert names


@pytest.mark.parametrize("sampler", [dpmcmc.HMC(0.02, 3, 1.0, 1.0), dpmcmc.RWMH(0.1, 0.5)], ids=lambda s: s.name)
def test_a_second_call_without_noise_compiles_nothing(sampler):
    for expected in (None, []):
        with count_compilations() as names:
            dpmcmc.sample(MODEL, DATA, sampler=sampler, num_steps=10, init=START)
        assert expected is None or names == expected


def test_a_model_that_has_changed_is_compiled_again():
    """What is kept goes by what a model computes, not by which object it is."""
    model = dpmcmc.Model(lambda p, x: -0.5 * (x - p["m"]) ** 2, lambda p: -0.5 * p["m"] ** 2, {"m": ()})
    options = {"sampler": dpmcmc.RWMH(0.1), "num_steps": 400, "init": np.zeros((4, 1)), "seed": 1}
    first = dpmcmc.sample(model, DATA[:, 0], **options)
    model.log_likelihood = lambda p, x: -0.5 * (x + p["m"]) ** 2
    second = dpmcmc.sample(model, DATA[:, 0], **options)
    assert first.draws["m"].mean() > 0.5
    assert second.draws["m"].mean() < -0.5


def test_kept_programs_hold_no_records():
    """A curator and its records are gone when nobody holds them, though its programs are kept."""
    data = np.random.default_rng(5).normal(size=(700, 2))
    made = []
    original = chains.Curator

    class Watched(original):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.extend(weakref.ref(thing) for thing in (self, *jax.tree.leaves(self._records)))

    chains.Curator = Watched
    try:
        dpmcmc.sample(MODEL, data, epsilon=8.0, delta=DELTA, sampler=SAMPLERS["penalty"], init=START, num_steps=5)
    finally:
        chains.Curator = original
    gc.collect()
    assert made
    assert all(reference() is None for reference in made)


def test_the_data_are_not_a_constant_of_the_compiled_code():
    marked = DATA.copy()
    marked[7] = 271828.182845
    with exact_arithmetic():
        curator = Curator(MODEL, marked, noise=NoNoiseNotPrivate())
        sampler = SAMPLERS["hmc-position"]
        queries = sampler.queries(len(marked))
        inputs = jax.tree.map(np.asarray, sampler.inputs(MODEL, len(marked)))
        shape = blocks.choose_shape(4, 20, 1)
        program = blocks.compile_run(curator, sampler, queries, shape, inputs, jax.numpy.asarray(START))
        text = program.run.as_text()
    assert "271828" not in text
    assert "2.718281828" not in text
    # Twin: closed over instead of passed in, they would be found.
    with exact_arithmetic():
        twin = jax.jit(lambda theta: (theta - marked).sum()).lower(jax.numpy.zeros(2)).as_text()
    assert "271828" in twin or 'dense<"0x' in twin


def test_a_table_coded_wrongly_is_noticed():
    """y as 1/2 where 0/1 is meant, a tenth of X missing: a noised count says so, in a warning with the remedy."""
    generator = np.random.default_rng(0)
    n = 2000
    X = generator.normal(size=(n, 2))
    y = generator.integers(0, 2, n).astype(float)
    model = dpmcmc.models.LogisticRegression(2)
    options = {"epsilon": 8.0, "delta": DELTA, "sampler": SAMPLERS["penalty"], "num_steps": 8}
    options["init"] = np.zeros((4, 3))
    holed = X.copy()
    holed[: n // 10, 1] = np.nan
    for data, share in (({"X": X, "y": y + 1}, np.mean(y == 1)), ({"X": holed, "y": y}, 0.1)):
        with pytest.warns(DPMCMCWarning, match="count as nothing"):
            posterior = dpmcmc.sample(model, data, **options)
        check = posterior.record_check
        # Gaussian noise: off by more than 5 sds in fewer than 1e-6 of the runs.
        assert abs(check.estimate - share * n) < 5 * check.noise_sd
        assert check.noise_sd < 0.02 * n
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dpmcmc.sample(model, {"X": X, "y": y}, **options)
    assert not any("count as nothing" in str(warning.message) for warning in caught)


def test_without_a_record_check_none_is_charged():
    posterior = run(SAMPLERS["penalty"], num_steps=8, check_records=False)
    assert posterior.record_check is None
    assert posterior.privacy.queries == {"log_ratio": 32}


def test_a_delta_of_one_in_n_is_warned_of():
    with pytest.warns(DPMCMCWarning, match="delta"):
        dpmcmc.sample(
            MODEL, DATA, epsilon=8.0, delta=1 / NUM_RECORDS, sampler=SAMPLERS["penalty"], init=START, num_steps=4
        )


def test_numpy_integers_are_whole_numbers():
    posterior = run(SAMPLERS["penalty"], num_steps=np.int64(10), num_warmup=np.int64(3), thin=np.int32(1))
    assert posterior.num_draws == 7


def test_captured_data_are_refused():
    """A likelihood or a prior that closes over the data is a leak that no clipping sees."""
    column = DATA[:, 0]
    shift = jax.numpy.asarray(np.repeat(column, 2))

    def plain(p, x):
        return -0.5 * (x - p["m"]) ** 2

    def prior(p):
        return -0.5 * p["m"] ** 2

    leaks = {
        "likelihood": (lambda p, x: plain(p, x) + p["m"] * column.mean() * jax.numpy.sum(column[:, None]), prior),
        "inner jit": (lambda p, x: jax.jit(lambda m: -jax.numpy.sum((m - shift) ** 2))(p["m"]) + 0 * x, prior),
        "prior": (plain, lambda p: -0.5 * jax.numpy.sum((p["m"] - column) ** 2)),
        "in a loop": (
            lambda p, x: jax.lax.scan(lambda c, e: (c + e * p["m"], None), plain(p, x), jax.numpy.asarray(column))[0],
            prior,
        ),
    }
    for likelihood, log_prior in leaks.values():
        model = dpmcmc.Model(likelihood, log_prior, {"m": ()})
        with pytest.raises(ModelError, match="from outside"):
            dpmcmc.sample(model, column, epsilon=1.0, delta=DELTA, sampler=SAMPLERS["penalty"], init=np.zeros((4, 1)))
    model = dpmcmc.Model(plain, prior, {"m": ()}, sample_prior=lambda key: {"m": jax.numpy.asarray(column).mean()})
    with pytest.raises(ModelError, match="sample_prior"):
        dpmcmc.sample(model, column, epsilon=1.0, delta=DELTA, sampler=SAMPLERS["penalty"])


class _Centred(dpmcmc.Model):
    def prepare_records(self, data):
        records, count = super().prepare_records(data)
        return records - records.mean(axis=0), count


class _Mixed(dpmcmc.models.GaussianMean, _Centred):
    """The package's own method comes first, and calls the other."""


def test_nobody_else_prepares_records():
    """Centring, imputing, cutting off outliers: each lets one record move all others. Classes, mixins, instances."""
    own = _Centred(lambda p, x: -0.5 * (x[0] - p["m"]) ** 2, lambda p: -0.5 * p["m"] ** 2, {"m": ()})
    instance = dpmcmc.models.GaussianMean(np.eye(2))
    instance.prepare_records = lambda data: (np.asarray(data), len(data))
    for model in (own, _Mixed(np.eye(2)), instance):
        with pytest.raises(ModelError, match="prepare_records"):
            Curator(model, DATA, dpmcmc.Budget(1.0, DELTA))


def test_most_records_of_no_use_end_the_run():
    """A column of words: no error may depend on values, but a noised count may end the run before the first step."""
    words = np.array(["yes", "no"] * (NUM_RECORDS // 2))
    model = dpmcmc.Model(lambda p, x: -0.5 * (x - p["m"]) ** 2, lambda p: -0.5 * p["m"] ** 2, {"m": ()})
    with pytest.raises(RunError, match="of the records count as nothing"):
        dpmcmc.sample(model, words, epsilon=8.0, delta=DELTA, sampler=SAMPLERS["penalty"], init=np.zeros((4, 1)))


def test_a_bound_that_holds_the_data_is_refused():
    norms = np.linalg.norm(DATA, axis=1)
    curator = Curator(MODEL, DATA, dpmcmc.Budget(1.0, DELTA))
    query = dpmcmc.queries.LogRatio(
        lambda a, b: jax.numpy.max(jax.numpy.asarray(norms)) * jax.numpy.linalg.norm(a - b), noise_multiplier=50.0
    )
    with pytest.raises(ModelError, match="bound uses an array"):
        curator.ask(query, START[0], START[0] + 0.1)
    with pytest.raises(ModelError, match="bound uses an array"):
        curator.oracle(None, query)
    assert curator.budget.spent == 0.0


def test_a_forked_copy_of_a_budget_is_refused():
    budget = dpmcmc.Budget(1.0, DELTA)
    process = os.fork()
    if process == 0:
        try:
            budget.spend(1e-6)
        except NotPrivateError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7
    budget.spend(1e-6)


def test_nothing_of_a_model_but_its_traced_functions_sees_records():
    """Not `quantities`, which decides the precision; transforms may not return the data; nor is a family believed."""
    column = DATA[:, 0]

    class Centred(dpmcmc.Model):
        def quantities(self, records):
            for leaf in jax.tree.leaves(records):
                assert isinstance(leaf, jax.ShapeDtypeStruct), "records were handed out"
            return records

    class Telling(dpmcmc.Model):
        def constrain(self, theta):
            return {**super().constrain(theta), "residual": jax.numpy.asarray(column)}

    functions = (lambda p, x: -0.5 * (x - p["m"]) ** 2, lambda p: -0.5 * p["m"] ** 2, {"m": ()})
    Curator(Centred(*functions), column, dpmcmc.Budget(1.0, DELTA))
    with pytest.raises(ModelError, match="transforms uses an array"):
        Curator(Telling(*functions), column, dpmcmc.Budget(1.0, DELTA))
    family = dpmcmc.models.LogisticRegression(1, intercept=False)
    family.log_likelihood = lambda p, r: p["coefficients"][0] * jax.numpy.sum(jax.numpy.asarray(column))
    with pytest.raises(ModelError, match="log_likelihood uses an array"):
        Curator(family, {"X": DATA[:, :1], "y": np.zeros(len(DATA))}, dpmcmc.Budget(1.0, DELTA))
    gaussian = dpmcmc.models.GaussianMean(np.eye(2))
    gaussian._squared_distance = lambda mean, record: jax.numpy.sum((mean[0] - jax.numpy.asarray(column)) ** 2)
    with pytest.raises(ModelError, match="log_likelihood uses an array"):
        Curator(gaussian, DATA, dpmcmc.Budget(1.0, DELTA))


def test_what_is_set_on_an_instance_has_no_say():
    budget = dpmcmc.Budget(1.0, DELTA)
    budget.spend = lambda *arguments, **options: None
    curator = Curator(MODEL, DATA, budget)
    curator.ask(dpmcmc.queries.Gradient(1.0, 100.0), START[0])
    assert budget.spent > 0
    query = dpmcmc.queries.Gradient(1.0, 100.0)
    object.__setattr__(query, "cost", lambda *arguments: 0)
    with pytest.raises(QueryError, match="attributes of its own"):
        curator.ask(query, START[0])
    noise = ExactNoise()
    noise.draw = lambda scale, shape: np.zeros(shape, np.int64)
    assert not Curator(MODEL, DATA, noise=noise).private


def test_orders_that_would_be_charged_wrongly_are_refused():
    gradient = dpmcmc.queries.Gradient(1.0, 100.0)
    queries = dpmcmc.queries.Queries(gradient=gradient, gradients_per_step=1)
    curator = Curator(MODEL, DATA, dpmcmc.Budget(1.0, DELTA))
    for order in (Order(queries, 1, 0, 1, 1), Order(queries, 1, 2, 1, 1)):
        with pytest.raises(QueryError, match="does not fit a block"):
            curator.pay(order)
    steps = dpmcmc.privacy.StepBudget(1.0, DELTA, noise_ratio=50.0, sampling_prob=0.1, scheme="without_replacement")
    with pytest.raises(QueryError, match="batch gradients only"):
        Curator(MODEL, DATA, steps).pay(Order(queries, 1, 1, 1, 1))
    other = queries._replace(gradient=dpmcmc.queries.BatchGradient(1.0, 1.0, 500))
    with pytest.raises(QueryError, match="other batches"):
        Curator(MODEL, DATA, steps).pay(Order(other, 1, 1, 1, 1))
    assert curator.budget.spent == steps.spent == 0.0
    # What was paid for one query does not serve another.
    cheap = queries._replace(gradient=dpmcmc.queries.Gradient(1.0, 1e4))

    def run(oracle, theta, noise):
        return oracle.gradient(theta, noise.gradient[0, 0, 0]).value

    theta = np.asarray(START[:1])
    program = curator.compile(
        "test", run, curator.oracle(gradient, None), theta, curator.blank(Order(queries, 1, 1, 1, 1))
    )
    with pytest.raises(QueryError, match="other queries"):
        program(theta, curator.pay(Order(cheap, 1, 1, 1, 1)))
    assert program(theta, curator.pay(Order(queries, 1, 1, 1, 1))).shape == (1, 2)


def test_a_failed_record_check_of_a_minibatch_run_counts_as_spent():
    """It is paid from a budget of its own, which counts too."""
    useless, sampler = np.full((20_000, 2), np.nan), dpmcmc.DPSGLD(50, 3.0, 1e-8)
    with pytest.raises(RunError, match="the whole budget counts as spent"):
        dpmcmc.sample(MODEL, useless, epsilon=8.0, delta=DELTA, sampler=sampler, init=START, num_steps=5)


def test_one_word_does_not_change_the_arithmetic_of_others():
    """A float32 column of a table with one word in it is a column of objects."""
    pandas = pytest.importorskip("pandas")
    plain = pandas.DataFrame({"x": (15 + np.random.default_rng(0).normal(size=2000)).astype(np.float32)})
    spoiled = plain.astype(object)
    spoiled.loc[0, "x"] = "n/a"
    model = dpmcmc.Model(lambda p, r: -0.5 * (r["x"] - p["m"]) ** 2, lambda p: -0.5 * p["m"] ** 2, {"m": ()})
    query = dpmcmc.queries.LogRatio(20.0, noise_multiplier=1.0)
    sums = [
        Curator(model, table, noise=NoNoiseNotPrivate()).ask(query, np.zeros(1), np.array([1e-5])).value
        for table in (plain, spoiled)
    ]
    assert abs(sums[0] - sums[1]) <= 2 * 20.0 * 1e-5


def test_classes_derived_from_queries_and_budgets_are_refused():
    class Free(dpmcmc.queries.Gradient):
        mu = 0.0

    class Forgetful(dpmcmc.Budget):
        def spend(self, *arguments, **options):
            pass

    curator = Curator(MODEL, DATA, dpmcmc.Budget(1.0, DELTA))
    with pytest.raises(QueryError, match="query must be one of"):
        curator.ask(Free(1.0, 1.0), START[0])
    with pytest.raises(QueryError, match="budget must be"):
        Curator(MODEL, DATA, Forgetful(1.0, DELTA))


def test_a_model_that_is_changed_later_changes_nothing_that_is_kept():
    """What is kept for one model is not read off another that computed the same once."""
    generator = np.random.default_rng(0)
    data = {"X": 1e-3 * generator.normal(size=(500, 2)), "y": generator.integers(0, 2, 500).astype(float)}
    query = dpmcmc.queries.Gradient(0.1, 1.0)
    first = dpmcmc.models.LogisticRegression(2)
    before = Curator(first, data, noise=NoNoiseNotPrivate()).ask(query, np.zeros(3)).value
    first.intercept, first.prior_scale = False, 1e-3
    for number in (1, 2):  # the second has to be compiled
        again = Curator(dpmcmc.models.LogisticRegression(2), data, noise=NoNoiseNotPrivate())
        assert np.array_equal(again.ask(query, np.zeros((number, 3))).value[0], before)


def test_a_missing_value_does_not_change_the_arithmetic_of_others():
    """float32 features with an outcome of integers: with one of them missing the outcome is double."""
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(5000, 1)).astype(np.float32), generator.poisson(10_000, 5000).astype(np.int32)
    missing = y.astype(np.float64)
    missing[0] = np.nan
    query = dpmcmc.queries.LogRatio(1.0, noise_multiplier=1.0)
    theta, proposal = np.array([9.21, 0.0]), np.array([9.21001, 0.0])
    sums = [
        Curator(dpmcmc.models.PoissonRegression(1), {"X": X, "y": outcome}, noise=NoNoiseNotPrivate())
        .ask(query, theta, proposal)
        .value
        for outcome in (y, missing)
    ]
    assert abs(sums[0] - sums[1]) <= 2 * 1e-5


def test_silent_when_not_a_terminal(capfd):
    run(SAMPLERS["penalty"], num_steps=8)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_double_precision_stays_inside():
    run(SAMPLERS["penalty"], num_steps=8)
    assert jax.numpy.zeros(1).dtype == jax.numpy.float32


BAD = [
    ({"epsilon": None}, QueryError, "epsilon"),
    ({"epsilon": 0.0}, QueryError, "epsilon"),
    ({"epsilon": 1e-9}, BudgetExceededError, "budget"),
    ({"delta": 1.0}, QueryError, "delta"),
    ({"num_chains": 0}, QueryError, "num_chains"),
    ({"num_steps": 0}, QueryError, "num_steps"),
    ({"num_steps": 2.5}, QueryError, "num_steps"),
    ({"thin": 0}, QueryError, "thin"),
    ({"num_steps": 3, "thin": 5}, QueryError, "thin"),
    ({"num_warmup": -1}, QueryError, "num_warmup"),
    ({"num_steps": 5, "num_warmup": 5}, QueryError, "num_warmup"),
    ({"init": np.zeros((3, 2))}, QueryError, "init"),
    ({"init": np.full((4, 2), np.nan)}, QueryError, "init"),
    ({"init": {"median": START}}, QueryError, "init"),
    ({"seed": -1}, QueryError, "seed"),
    ({"seed": 0.5}, QueryError, "seed"),
    ({"sampler": "automatic"}, QueryError, "sampler"),
    ({"sampler": dpmcmc.DPPenalty([0.1, 0.1, 0.1], 1.0, 5.0)}, ModelError, "proposal_scale"),
    ({"sampler": dpmcmc.DPHMC(0.1, 2, 1.0, 1.0, 5.0, 5.0, mass_matrix=np.eye(3))}, QueryError, "mass_matrix"),
    ({"sampler": dpmcmc.DPHMC(0.1, 2, 1.0, 1.0, 5.0, 5.0, mass_matrix=-np.eye(2))}, QueryError, "mass_matrix"),
    ({"sampler": dpmcmc.DPSGLD(501, 1.0, 1e-5)}, QueryError, "batch_size"),
    ({"data": DATA[:1]}, DataError, "1 record"),
    ({"data": DATA[:0]}, DataError, "row"),
    ({"data": np.array(["2020-01-01"] * 5, "datetime64[D]")}, DataError, "dates"),
    ({"model": "logistic"}, ModelError, "model"),
]


@pytest.mark.parametrize(("change", "error", "names"), BAD, ids=[str(sorted(b[0])) + b[2] for b in BAD])
def test_bad_input_is_refused_before_anything_is_spent(change, error, names, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("budget was spent")

    monkeypatch.setattr(dpmcmc.Budget, "spend", never)
    arguments = {"model": MODEL, "data": DATA, "epsilon": 8.0, "delta": DELTA, "sampler": SAMPLERS["penalty"]}
    arguments = {**arguments, "init": START, **change}
    with pytest.raises(error, match=names):
        dpmcmc.sample(arguments.pop("model"), arguments.pop("data"), **arguments)


@pytest.mark.parametrize(
    ("sampler", "arguments", "names"),
    [
        (dpmcmc.DPHMC, (0.0, 2, 1.0, 1.0, 5.0, 5.0), "step_size"),
        (dpmcmc.DPHMC, (0.1, 0, 1.0, 1.0, 5.0, 5.0), "num_leapfrog"),
        (dpmcmc.DPHMC, (0.1, 2, 1.0, 1.0, math.inf, 5.0), "ratio_noise_multiplier"),
        (dpmcmc.DPHMC, (0.1, 2, 1.0, 1.0, 5.0, 5.0, None, "leap"), "leapfrog"),
        (dpmcmc.DPPenalty, (-0.1, 1.0, 5.0), "proposal_scale"),
        (dpmcmc.DPPenalty, (0.1, 1.0, 5.0, "some"), "update"),
        (dpmcmc.DPSGLD, (0, 1.0, 1.0), "batch_size"),
        (dpmcmc.DPSGLD, (10, 1.0, 1.0, 0.0), "temperature"),
        (dpmcmc.DPSGNHT, (10, 1.0, 1.0, -1.0), "diffusion"),
        (dpmcmc.HMC, (0.1, 2, 0.0), "ratio_bound"),
        (dpmcmc.RWMH, (0.1, -1.0), "ratio_bound"),
    ],
)
def test_bad_settings(sampler, arguments, names):
    with pytest.raises(QueryError, match=names):
        sampler(*arguments)
