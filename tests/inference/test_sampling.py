"""``dpmcmc.sample`` as a user meets it."""

import math

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.curator import Curator, NoNoiseNotPrivate
from dpmcmc.curator.curator import exact_arithmetic
from dpmcmc.errors import BudgetExceededError, DataError, ModelError, QueryError
from dpmcmc.inference import blocks, sampling

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
    assert (statement.epsilon, statement.delta, statement.num_records) == (8.0, DELTA, NUM_RECORDS)
    expected = {kind: count * num_steps // plan.num_steps for kind, count in plan.queries.items()}
    if sampler.queries(NUM_RECORDS).gradients_at_start:
        expected["gradient"] = 4 * (num_steps * 4 + 1)
    assert statement.queries == expected
    if statement.mu is not None:
        start = 4 * sampler.queries(NUM_RECORDS).gradients_at_start * 0.5 / 20.0**2
        assert statement.mu == pytest.approx(4 * num_steps * plan.mu_per_step + start, rel=1e-9)


def test_the_budget_decides_the_number_of_steps():
    sampler = SAMPLERS["penalty"]
    plan = dpmcmc.plan(sampler, num_records=NUM_RECORDS, epsilon=8.0, delta=DELTA)
    posterior = run(sampler, num_warmup=0)
    assert posterior.num_draws == plan.num_steps
    assert posterior.privacy.mu <= plan.mu_total
    assert posterior.privacy.mu + 4 * plan.mu_per_step > plan.mu_total
    with pytest.raises(QueryError, match="num_steps"):
        run(sampler, num_steps=plan.num_steps + 1)


def test_thinning_and_warmup():
    posterior = run(SAMPLERS["penalty"], num_steps=20, thin=3, num_warmup=2, seed=1)
    assert posterior.draws["mean"].shape == (4, 4, 2)
    assert posterior.warmup_draws["mean"].shape == (4, 2, 2)
    # 20 steps hold 6 draws of 3; the last two steps are not run, and not paid for.
    assert posterior.privacy.queries == {"log_ratio": 4 * 18}


def test_thinned_draws_are_every_third_of_the_same_chain(monkeypatch):
    """Thinning changes what is kept, not the algorithm: acceptance is the mean over the steps between."""
    posterior = run(SAMPLERS["penalty"], num_steps=30, thin=3, num_warmup=0, seed=1)
    accepted = posterior.sample_stats["acceptance"] * 3
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
    first, second = (run(SAMPLERS["penalty"], num_steps=12) for _ in range(2))
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


def test_ctrl_c_returns_what_is_done_and_what_it_cost(monkeypatch):
    seen = []

    def interrupting(steps, info, budget):
        seen.append(steps)
        if len(seen) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(sampling, "no_progress", interrupting)
    posterior = run(SAMPLERS["penalty"], num_warmup=0)
    assert posterior.num_draws == sum(seen)
    assert posterior.privacy.queries == {"log_ratio": 4 * sum(seen)}
    assert posterior.privacy.mu == pytest.approx(4 * sum(seen) * 0.5 / 20.0**2, rel=1e-9)


def test_ctrl_c_before_the_first_block_is_an_interrupt(monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(sampling, "draw_noise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(SAMPLERS["penalty"])


def test_a_block_is_charged_before_it_runs(monkeypatch):
    """If the first block dies, its budget is gone, and nothing was returned."""
    charges = []
    original = sampling._charge
    monkeypatch.setattr(sampling, "_charge", lambda *a, **k: (charges.append(k), original(*a, **k)))

    def broken(*arguments):
        def fail(*inner):
            assert charges, "ran before it was charged"
            raise RuntimeError("device lost")

        return fail

    monkeypatch.setattr(sampling, "compile_block", broken)
    with pytest.raises(RuntimeError, match="device lost"):
        run(SAMPLERS["penalty"])
    assert len(charges) == 1


def compiled_run(sampler, num_steps, data=DATA):
    """The compiled block of a run and its arguments."""
    with exact_arithmetic():
        curator = Curator(MODEL, data, noise=NoNoiseNotPrivate())
        queries = sampler.queries(len(data))
        shape = blocks.choose_shape(4, num_steps, 1)
        bind = curator.oracle(queries.gradient, queries.log_ratio)
        kernel = sampler.kernel(MODEL, len(data))
        block = blocks.compile_block(bind, kernel, shape, curator.replicated)
        random = blocks.Random(0)
        start = blocks.compile_start(bind, kernel, curator.replicated)
        state = start(curator.secret_records, random.public_key, START, np.zeros((0, 4, 2), np.int64))
        noises = [blocks.draw_noise(curator, queries, random, shape, k) for k in range(shape.num_blocks)]
    return curator, block, shape, state, random.public_key, noises


@pytest.mark.parametrize("name", ["hmc-position", "penalty", "sgld"])
def test_one_compilation_per_run_shape(name):
    """157 steps: 53 blocks, the last one short."""
    curator, block, shape, state, key, noises = compiled_run(SAMPLERS[name], 157)
    assert shape.draws_in(shape.num_blocks - 1) < shape.draws_per_block
    with exact_arithmetic():
        for number, noise in enumerate(noises):
            active = jax.numpy.asarray(shape.draws_in(number))
            state, _, _ = block(curator.secret_records, state, key, noise, active)
    assert block._cache_size() == 1


def test_the_data_are_not_a_constant_of_the_compiled_code():
    marked = DATA.copy()
    marked[7] = 271828.182845
    curator, block, _, state, key, noises = compiled_run(SAMPLERS["hmc-position"], 20, marked)
    with exact_arithmetic():
        text = block.lower(curator.secret_records, state, key, noises[0], jax.numpy.asarray(1)).as_text()
    assert "271828" not in text
    assert "2.718281828" not in text
    # Twin: closed over instead of passed in, they would be found.
    with exact_arithmetic():
        twin = jax.jit(lambda theta: (theta - marked).sum()).lower(jax.numpy.zeros(2)).as_text()
    assert "271828" in twin or 'dense<"0x' in twin


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
    ({"sampler": "auto"}, QueryError, "sampler"),
    ({"sampler": dpmcmc.DPPenalty([0.1, 0.1, 0.1], 1.0, 5.0)}, ModelError, "proposal_scale"),
    ({"sampler": dpmcmc.DPHMC(0.1, 2, 1.0, 1.0, 5.0, 5.0, mass_matrix=np.eye(3))}, QueryError, "mass_matrix"),
    ({"sampler": dpmcmc.DPHMC(0.1, 2, 1.0, 1.0, 5.0, 5.0, mass_matrix=-np.eye(2))}, QueryError, "mass_matrix"),
    ({"sampler": dpmcmc.DPSGLD(501, 1.0, 1e-5)}, QueryError, "batch_size"),
    ({"data": DATA[:1]}, DataError, "1 row"),
    ({"data": DATA[:0]}, DataError, "row"),
    ({"data": np.array([["Ann"]] * 5)}, DataError, "numeric"),
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
        (dpmcmc.DPHMC, (0.1, 2, 1.0, 1.0, math.inf, 5.0), "ratio_noise"),
        (dpmcmc.DPHMC, (0.1, 2, 1.0, 1.0, 5.0, 5.0, None, "leap"), "leapfrog"),
        (dpmcmc.DPPenalty, (-0.1, 1.0, 5.0), "proposal_scale"),
        (dpmcmc.DPPenalty, (0.1, 1.0, 5.0, "some"), "update"),
        (dpmcmc.DPSGLD, (0, 1.0, 1.0), "batch_size"),
        (dpmcmc.DPSGLD, (10, 1.0, 1.0, 0.0), "temperature"),
        (dpmcmc.DPSGNHT, (10, 1.0, 1.0, -1.0), "diffusion"),
        (dpmcmc.HMC, (0.1, 2, 0.0), "ratio_clip"),
        (dpmcmc.RWMH, (0.1, -1.0), "ratio_clip"),
    ],
)
def test_bad_settings(sampler, arguments, names):
    with pytest.raises(QueryError, match=names):
        sampler(*arguments)
