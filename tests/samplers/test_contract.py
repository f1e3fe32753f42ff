"""The contract of all samplers: what a kernel may ask, return and reuse. One parametrised test for each clause."""

from collections import Counter
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.curator import Curator
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.queries import BatchGradient, NotPrivateRelease, Oracle, PaidNoise
from dpmcmc.samplers import DPHMC, DPSGLD, DPSGNHT, HMC, RWMH, DPPenalty, Kernel
from tests.samplers.targets import (
    GRADIENT_CLIP,
    RATIO_CLIP,
    RECORDS,
    SKEWED,
    compile_chains,
    direct_oracle,
    draw_noise,
    paying,
    seeded,
)

CHAINS, NUM_RECORDS, DIMENSION = 5, len(RECORDS), 2
LEAPFROGS = ("position_first", "momentum_first", "cached")
UPDATES = ("all", "one_component", "guided")
SAMPLINGS = ("without_replacement", "poisson")
SAMPLERS = {
    **{
        f"DPHMC-{leapfrog}": DPHMC(0.2, 4, RATIO_CLIP, GRADIENT_CLIP, 0.3, 0.2, leapfrog=leapfrog)
        for leapfrog in LEAPFROGS
    },
    **{f"DPPenalty-{update}": DPPenalty(0.3, RATIO_CLIP, 0.3, update=update) for update in UPDATES},
    **{f"DPSGLD-{sampling}": DPSGLD(2, GRADIENT_CLIP, 0.01, sampling=sampling) for sampling in SAMPLINGS},
    **{f"DPSGNHT-{sampling}": DPSGNHT(2, GRADIENT_CLIP, 0.05, 2.0, sampling=sampling) for sampling in SAMPLINGS},
    "HMC": HMC(0.2, 4),
    "RWMH": RWMH(0.3),
}
METROPOLIS = [name for name in SAMPLERS if "SG" not in name]
each_sampler = pytest.mark.parametrize("name", SAMPLERS)
each_metropolis_sampler = pytest.mark.parametrize("name", METROPOLIS)


def kernel_of(name):
    with exact_arithmetic():
        return SAMPLERS[name].kernel(SKEWED, NUM_RECORDS)


def oracle_of(name):
    queries = SAMPLERS[name].queries(NUM_RECORDS)
    return direct_oracle(SKEWED, RECORDS, queries.gradient, queries.log_ratio)


def noise_of(name, steps, seed=1):
    return draw_noise(seeded(seed), SAMPLERS[name].queries(NUM_RECORDS), NUM_RECORDS, CHAINS, DIMENSION, steps)


def one_step_noise(noise, step=0):
    return jax.tree.map(lambda leaf: leaf[step], noise)


def start_positions():
    return 0.3 * np.random.default_rng(1).normal(size=(CHAINS, DIMENSION))


@cache
def one_step(name):
    """Start and first step of a sampler: state before, state after, info."""
    kernel, oracle, (start, steps) = kernel_of(name), oracle_of(name), noise_of(name, 1)
    with exact_arithmetic():
        before = kernel.init(jax.random.key(1), jnp.asarray(start_positions()), oracle, start)
        after, info = jax.jit(lambda key, state, noise: kernel.step(key, state, oracle, noise))(
            jax.random.key(2), before, one_step_noise(steps)
        )
    return before, after, info


# ---------------------------------------------------------------------- queries


class Asked:
    """An oracle that counts: how often each function is executed, and with which noise."""

    def __init__(self, oracle):
        self.count = Counter()
        self.noise = []
        self.oracle = Oracle(*(self._counting(kind, getattr(oracle, kind)) for kind in Oracle._fields))

    def _counting(self, kind, answer):
        def counted(*arguments):
            self.count[kind] += 1
            self.noise.append((kind, np.asarray(arguments[-1])))
            return answer(*arguments)

        return counted


def declared(queries, steps, at_start):
    """What the declaration says for so many steps."""
    kind = "batch_gradient" if isinstance(queries.gradient, BatchGradient) else "gradient"
    number = steps * queries.gradients_per_step + (queries.gradients_at_start if at_start else 0)
    return +Counter({kind: number, "log_ratio": steps * queries.log_ratios_per_step})


def count(sampler, name, steps=2):
    """Execute a start and some steps without compilation, where a scan is a loop: what is asked at each stage."""
    kernel = sampler.kernel(SKEWED, NUM_RECORDS)
    start, noise = noise_of(name, steps)
    asked = Asked(oracle_of(name))
    state = kernel.init(jax.random.key(1), jnp.asarray(start_positions()), asked.oracle, start)
    at_start, asked.count = +asked.count, Counter()
    for step in range(steps):
        state, _ = kernel.step(jax.random.key(step + 2), state, asked.oracle, one_step_noise(noise, step))
    return at_start, +asked.count, asked, (start, noise)


@each_sampler
def test_asks_exactly_what_it_declares(name):
    queries = SAMPLERS[name].queries(NUM_RECORDS)
    with exact_arithmetic(), jax.disable_jit():
        at_start, in_steps, _, _ = count(SAMPLERS[name], name)
    assert at_start == declared(queries, 0, at_start=True)
    assert in_steps == declared(queries, 2, at_start=False)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if SAMPLERS[name].private])
def test_every_draw_of_noise_is_used_once(name):
    """Noise used twice would cancel in a difference of two answers; noise left out would leave an answer bare."""
    with exact_arithmetic(), jax.disable_jit():
        _, _, asked, given = count(SAMPLERS[name], name)
    used = sorted(number for _, noise in asked.noise for number in noise.ravel().tolist())
    drawn = [number for noise in given for number in np.ravel(noise.gradient).tolist()]
    drawn += np.ravel(given[1].log_ratio).tolist() if SAMPLERS[name].queries(NUM_RECORDS).log_ratio else []
    assert len(set(drawn)) == len(drawn)
    assert used == sorted(drawn)


def test_twin_the_count_sees_one_gradient_too_many():
    """A kernel that asks L + 1 times where L is declared."""

    class Greedy:
        @staticmethod
        def kernel(model, num_records):
            inner = SAMPLERS["DPHMC-position_first"].kernel(model, num_records)

            def step(key, state, oracle, noise):
                oracle.gradient(state.position, noise.gradient[0])
                return inner.step(key, state, oracle, noise)

            return Kernel(inner.init, step)

    name = "DPHMC-position_first"
    with exact_arithmetic(), jax.disable_jit():
        _, in_steps, asked, given = count(Greedy, name)
    assert in_steps["gradient"] == declared(SAMPLERS[name].queries(NUM_RECORDS), 2, False)["gradient"] + 2
    assert len([kind for kind, _ in asked.noise if kind == "gradient"]) > given[1].gradient.shape[0] * 4


@pytest.mark.parametrize("name", [name for name in SAMPLERS if "SG" in name])
def test_secret_batches_are_handed_on_and_nothing_else(name):
    """Which records are in a batch, and how many, is the oracle's alone: if it looks at neither, nothing follows them.

    Twin: with an oracle that looks, other batches are other steps.
    """
    start, steps = noise_of(name, 3)
    sizes = steps.batch.size % 2 + 1
    others = steps._replace(batch=type(steps.batch)(jax.random.split(jax.random.key(9), 3), sizes))

    def blind(theta, batch, noise):
        return NotPrivateRelease(theta + 1e-20 * noise, 0.0, 0.0)

    for oracle, expected in ((oracle_of(name)._replace(batch_gradient=blind), True), (oracle_of(name), False)):
        run = compile_chains(kernel_of(name), lambda oracle=oracle: oracle)
        one, other = (run(start_positions(), (start, noise), 1).state for noise in (steps, others))
        assert np.array_equal(one.position, other.position) == expected


@each_sampler
def test_asks_the_same_when_compiled(name):
    """Executions inside a compiled scan of three steps, counted by callbacks."""
    kernel, queries, steps = kernel_of(name), SAMPLERS[name].queries(NUM_RECORDS), 3
    counts, plain = Counter(), oracle_of(name)

    def counting(kind):
        def counted(*arguments):
            jax.debug.callback(lambda: counts.update([kind]))
            return getattr(plain, kind)(*arguments)

        return counted

    oracle = Oracle(*map(counting, Oracle._fields))
    compile_chains(kernel, lambda: oracle)(start_positions(), noise_of(name, steps), 1)
    jax.effects_barrier()
    assert +counts == declared(queries, steps, at_start=True)


@each_sampler
def test_private_samplers_declare_noisy_queries(name):
    sampler, queries = SAMPLERS[name], SAMPLERS[name].queries(NUM_RECORDS)
    for query, number in (
        (queries.gradient, queries.gradients_per_step + queries.gradients_at_start),
        (queries.log_ratio, queries.log_ratios_per_step),
    ):
        assert (query is not None) == (sampler.private and number > 0)
        if query is not None:
            assert query.lattice(NUM_RECORDS, DIMENSION).noise_scale >= 1


# ---------------------------------------------------------------------- states and infos


@each_sampler
def test_shapes_and_dtypes(name):
    before, after, _ = one_step(name)
    np.testing.assert_array_equal(before.position, start_positions())
    assert after.position.shape == (CHAINS, DIMENSION)
    assert after.position.dtype == jnp.float64
    assert np.all(np.isfinite(after.position))
    assert jax.tree.structure(before) == jax.tree.structure(after)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (old.shape, old.dtype) == (new.shape, new.dtype)


@each_sampler
def test_an_info_holds_released_quantities_only(name):
    _, _, info = one_step(name)
    assert set(info._fields) <= {"acceptance_rate", "step_size", "ratios_clipped"}
    assert ("acceptance_rate" in info._fields) == (name in METROPOLIS)
    assert getattr(info, "ratios_clipped", None) is None  # only the curator's noise-free oracle fills it in
    for field in jax.tree.leaves(info):
        assert field.shape == (CHAINS,)
    if "acceptance_rate" in info._fields:
        assert info.acceptance_rate.dtype == bool
    if "step_size" in info._fields:
        sizes = np.asarray(info.step_size)
        assert np.all((sizes > 0) & (sizes <= SAMPLERS[name].step_size))


@each_metropolis_sampler
def test_acceptance_says_which_chains_moved(name):
    before, after, info = one_step(name)
    moved = np.any(np.asarray(before.position) != np.asarray(after.position), axis=1)
    np.testing.assert_array_equal(moved, info.acceptance_rate)


@each_sampler
def test_compiled_scanned_and_repeatable(name):
    """A compiled scan of three steps is bit for bit repeatable and agrees with one step at a time."""
    kernel, oracle, noise = kernel_of(name), oracle_of(name), noise_of(name, 3)
    run = compile_chains(kernel, lambda: oracle)
    first, second = (run(start_positions(), noise, 1) for _ in range(2))
    for one, other in zip(jax.tree.leaves(first.state), jax.tree.leaves(second.state), strict=True):
        np.testing.assert_array_equal(one, other)
    with exact_arithmetic():
        init_key, run_key = jax.random.split(jax.random.key(1))
        state = kernel.init(init_key, jnp.asarray(start_positions()), oracle, noise[0])
        for step, key in enumerate(jax.random.split(run_key, 3)):
            state, _ = kernel.step(key, state, oracle, one_step_noise(noise[1], step))
    np.testing.assert_allclose(first.state.position, state.position, rtol=0, atol=1e-9)
    other_key, other_noise = run(start_positions(), noise, 2), run(start_positions(), noise_of(name, 3, seed=9), 1)
    if "SGLD" not in name:  # all of DP-SGLD's randomness is the noise of its queries
        assert np.any(other_key.state.position != first.state.position)
    if SAMPLERS[name].private:
        assert np.any(other_noise.state.position != first.state.position)


@each_sampler
def test_chains_do_not_touch_each_other(name):
    """Another starting point of the first chain changes the first chain only."""
    kernel, oracle, noise = kernel_of(name), oracle_of(name), noise_of(name, 3)
    run = compile_chains(kernel, lambda: oracle)
    theta = start_positions()
    moved = theta + np.array([[0.1]] + [[0.0]] * (CHAINS - 1))
    one, other = run(theta, noise, 1).state, run(moved, noise, 1).state
    assert np.any(one.position[0] != other.position[0])
    for first, second in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if np.ndim(first):
            np.testing.assert_array_equal(first[1:], second[1:])


@each_sampler
def test_no_key_is_used_twice(name):
    """JAX's own checker of keys, on the start and on a step."""
    kernel, oracle, (start, steps) = kernel_of(name), oracle_of(name), noise_of(name, 1)
    with exact_arithmetic(), jax.debug_key_reuse(True):
        theta = jnp.asarray(start_positions())
        state = jax.jit(lambda key: kernel.init(key, theta, oracle, start))(jax.random.key(1))
        jax.jit(lambda key, noise: kernel.step(key, state, oracle, noise))(jax.random.key(2), one_step_noise(steps))


def test_twin_the_checker_of_keys_sees_reuse():
    def twice(key):
        return jax.random.normal(key) + jax.random.uniform(key)

    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        jax.jit(twice)(jax.random.key(1))


# ---------------------------------------------------------------------- divergence


@each_metropolis_sampler
def test_a_nan_log_ratio_is_a_rejection(name):
    """For the chains that it befalls: the state stays as it is, but for a guided walk's direction and the jitter."""
    kernel, oracle, (start, steps) = kernel_of(name), oracle_of(name), noise_of(name, 1)
    bad = np.arange(CHAINS) < 3

    def log_ratio(theta, proposal, noise):
        release = oracle.log_ratio(theta, proposal, noise)
        return release._replace(value=jnp.where(bad, jnp.nan, 1e3))

    with exact_arithmetic():
        before = kernel.init(jax.random.key(1), jnp.asarray(start_positions()), oracle, start)
        broken = oracle._replace(log_ratio=log_ratio)
        after, info = jax.jit(lambda state, noise: kernel.step(jax.random.key(2), state, broken, noise))(
            before, one_step_noise(steps)
        )
    np.testing.assert_array_equal(info.acceptance_rate, ~bad)
    np.testing.assert_array_equal(after.position[:3], before.position[:3])
    assert np.all(np.any(np.asarray(after.position != before.position)[3:], axis=1))
    if hasattr(after, "gradient"):
        np.testing.assert_array_equal(after.gradient[:3], before.gradient[:3])


@pytest.mark.parametrize("name", [name for name in METROPOLIS if "HMC" in name])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_a_diverged_trajectory_is_a_rejection(name, value):
    """A gradient that is no number, or one that throws the trajectory out of range."""
    kernel, oracle, (start, steps) = kernel_of(name), oracle_of(name), noise_of(name, 1)

    def gradient(theta, noise):
        return NotPrivateRelease(jnp.full_like(theta, value), 0.0, 0.0)

    with exact_arithmetic():
        before = kernel.init(jax.random.key(1), jnp.asarray(start_positions()), oracle, start)
        broken = oracle._replace(gradient=gradient)
        after, info = jax.jit(lambda state, noise: kernel.step(jax.random.key(2), state, broken, noise))(
            before, one_step_noise(steps)
        )
    assert not np.any(info.acceptance_rate)
    np.testing.assert_array_equal(after.position, before.position)
    np.testing.assert_array_equal(after.gradient, before.gradient)


@each_sampler
def test_finite_with_records_that_are_no_numbers(name):
    """Through the real curator, with NaN and infinite records: they count for nothing and harm nobody."""
    sampler, queries = SAMPLERS[name], SAMPLERS[name].queries(NUM_RECORDS)
    records = RECORDS.copy()
    records[1], records[4] = np.nan, [np.inf, -np.inf]
    curator = Curator(SKEWED, records, noise=seeded(1))
    with exact_arithmetic():
        bind = (
            curator.oracle(queries.gradient, queries.log_ratio)
            if sampler.private
            else curator.noise_free_oracle_not_private(None, None)
        )
        oracle = paying(bind(curator._records))
    run = compile_chains(kernel_of(name), lambda: oracle)(start_positions(), noise_of(name, 3), 1)
    for leaf in jax.tree.leaves(run.state):
        assert np.all(np.isfinite(leaf))


# ---------------------------------------------------------------------- the curator's batches


@pytest.mark.parametrize("name", [name for name in SAMPLERS if "SG" in name])
def test_the_curator_gives_what_the_direct_oracle_gives(name):
    """Minibatch samplers through the real curator and through the tests' oracle: same keys, same noise."""
    queries = SAMPLERS[name].queries(NUM_RECORDS)
    curator = Curator(SKEWED, RECORDS, noise=seeded(1))
    with exact_arithmetic():
        real = paying(curator.oracle(queries.gradient, queries.log_ratio)(curator._records))
    answers = [
        compile_chains(kernel_of(name), lambda oracle=oracle: oracle)(start_positions(), noise_of(name, 3), 1)
        for oracle in (real, oracle_of(name))
    ]
    np.testing.assert_allclose(answers[0].state.position, answers[1].state.position, rtol=0, atol=1e-9)


def test_settings_are_plain_values():
    """Settings compare, hash and print: what a result stores of them is enough to build them again."""
    for sampler in SAMPLERS.values():
        assert replace(sampler) == sampler
        assert eval(repr(sampler), {type(sampler).__name__: type(sampler)}) == sampler
    assert PaidNoise(1, 2).batch is None
