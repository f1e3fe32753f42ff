"""The fused integer sums equal the plain formula, in whatever order and on however many devices."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from dpmcmc.curator import Curator, NoNoiseNotPrivate, integers
from dpmcmc.curator import arithmetic as curator_module
from dpmcmc.curator.placement import COMPILER_OPTIONS, largest_tile
from dpmcmc.curator.tiles import Tile
from dpmcmc.queries import (
    ClipCount,
    Curvature,
    FisherInformation,
    Gradient,
    LogRatio,
    NormQuantile,
    PaidDraws,
    ScoreMoments,
)
from dpmcmc.queries.lattice import MAX_TILE_ROWS
from tests.curator.cases import (
    CASES,
    by_name,
    can_answer,
    exact_total,
    noise_free,
    plain_log_likelihoods,
    plain_scores,
    regressions_by_name,
    replace_records,
    skewed,
)

NUM_RECORDS = 5003
CHAINS = 3
CLIP = 1.3
QUERIES = {
    "gradient": Gradient(CLIP, 2.0),
    "log_ratio": LogRatio(0.8, noise_multiplier=1.5),
    "quantile": NormQuantile(0.9, 3.0),
    "score_moments": ScoreMoments(CLIP, 2.0, 2.0),
    "clip_count": ClipCount(CLIP, 2.0),
}
IN_COORDINATES = (Gradient(CLIP, 2.0), Curvature(CLIP, 2.0), FisherInformation(CLIP, 2.0))


def in_float32(records):
    return jax.tree.map(lambda column: column.astype(np.float32) if column.dtype.kind == "f" else column, records)


def parameters(case, seed=0, spread=0.3):
    generator = np.random.default_rng(seed)
    shape = (CHAINS, case.model.dimension)
    theta = generator.normal(size=shape) * spread
    return theta, theta + generator.normal(size=shape) * 0.1


def all_totals(case, records, **options):
    curator = noise_free(case, records, **options)
    theta, proposal = parameters(case)
    return {
        name: exact_total(curator, query, theta, proposal if name == "log_ratio" else None)
        for name, query in QUERIES.items()
    }


def clip_rows(vectors, bound):
    norm = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors * np.minimum(1.0, bound / np.where(norm > 0, norm, 1.0))


@pytest.mark.parametrize("case", **by_name)
def test_sums_equal_the_plain_formula(case):
    """Gradient, log-ratio, moments and counts against NumPy on per-record autodiff."""
    records = case.good_records(NUM_RECORDS)
    curator = noise_free(case, records)
    theta, proposal = parameters(case)
    released = {
        name: curator.ask(query, theta, proposal if name == "log_ratio" else None) for name, query in QUERIES.items()
    }
    for chain in range(CHAINS):
        scores = plain_scores(case.model, records, theta[chain])
        norms = np.linalg.norm(scores, axis=1)
        gradient = clip_rows(scores, CLIP).sum(axis=0)
        # Regressions round each record's coefficient to 2^-17 of the clip and its row to 2^-21: errors add up
        # like a random walk. 8 sd of that.
        tolerance = 8 * CLIP * 2.0**-17 * np.sqrt(NUM_RECORDS)
        np.testing.assert_allclose(released["gradient"].value[chain], gradient, rtol=1e-6, atol=tolerance)

        difference = plain_log_likelihoods(case.model, records, proposal[chain])
        difference = difference - plain_log_likelihoods(case.model, records, theta[chain])
        bound = 0.8 * np.linalg.norm(proposal[chain] - theta[chain])
        ratio = np.clip(difference, -bound, bound).sum()
        np.testing.assert_allclose(released["log_ratio"].value[chain], ratio, atol=1e-7)

        moments = released["score_moments"].value
        centred = clip_rows(scores - moments.score_sum[chain] / NUM_RECORDS, CLIP)
        second = centred.T @ centred
        np.testing.assert_allclose(moments.second_moment[chain], second, atol=1e-4 * CLIP**2 * np.sqrt(NUM_RECORDS))

        assert released["clip_count"].value[chain] == np.sum(norms > CLIP)
        histogram = released["quantile"].value.histogram[chain]
        assert histogram.sum() == NUM_RECORDS
        estimate = released["quantile"].value.estimate[chain]
        exact = np.quantile(norms, 0.9)
        assert exact <= estimate * (1 + 1e-12)
        assert estimate <= 2 * exact or estimate == QUERIES["quantile"].edges[0]


@pytest.mark.parametrize("case", **regressions_by_name)
def test_closed_form_sums_equal_autodiff_sums(case):
    """The regression kernel against the autodiff kernel, on unclipped and on clipped records."""
    records = case.good_records(NUM_RECORDS, seed=3)
    theta, _ = parameters(case, seed=4)
    curator = noise_free(case, records)
    for clip in (0.2, 50.0):
        closed = curator.ask(Gradient(clip, 2.0), theta).value
        scores = np.stack([clip_rows(plain_scores(case.model, records, one), clip).sum(axis=0) for one in theta])
        np.testing.assert_allclose(closed, scores, rtol=1e-5, atol=8 * clip * 2.0**-17 * np.sqrt(NUM_RECORDS))


def test_twin_a_wrong_residual_is_caught(monkeypatch):
    case = next(case for case in CASES if case.name == "logistic")
    original = type(case.model).score_at
    monkeypatch.setattr(
        type(case.model),
        "score_at",
        lambda self, eta, y, extra=None: (1.001 * original(self, eta, y, extra)[0], None),
    )
    with pytest.raises(AssertionError):
        test_sums_equal_the_plain_formula(case)


@pytest.mark.parametrize("case", **by_name)
def test_sums_do_not_depend_on_row_order(case):
    records = case.good_records(NUM_RECORDS)
    reference = all_totals(case, records)
    order = np.random.default_rng(9).permutation(NUM_RECORDS)
    if isinstance(records, dict):
        permuted = {name: column[order] for name, column in records.items()}
    else:
        permuted = records[order]
    totals = all_totals(case, permuted)
    for name in QUERIES:
        assert np.array_equal(totals[name], reference[name]), name


def _digest(num_devices):
    """Totals of six models as one hash: both kernels, both precisions, with groups, some in other coordinates."""
    digest = hashlib.sha256()
    double, single = ("linear", "negative-binomial-groups", "student"), ("logistic", "gaussian", "banana")
    for case in CASES:
        if case.name in double + single:
            records = case.good_records(10_001, seed=2)
            curator = noise_free(case, in_float32(records) if case.name in single else records, devices=num_devices)
            theta, proposal = parameters(case)
            for name in ("gradient", "log_ratio"):
                total = exact_total(curator, QUERIES[name], theta, proposal if name == "log_ratio" else None)
                digest.update(total.tobytes())
            for query in IN_COORDINATES if case.name in ("linear", "gaussian") else ():
                if can_answer(case.model, query):
                    coordinates = skewed(case.model.dimension)
                    digest.update(exact_total(curator, query, theta, coordinates=coordinates).tobytes())
    return digest.hexdigest()


def test_sums_do_not_depend_on_the_number_of_devices():
    """1, 2, 3 and 8 devices agree bit for bit (a process of its own: the flag is read when JAX starts)."""
    script = (
        "from tests.curator.test_sums import _digest; import jax; assert len(jax.devices()) == 8; "
        "print([_digest(k) for k in (1, 2, 3, 8)])"
    )
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    result = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    hashes = eval(result.stdout)  # a list of strings, printed by the line above
    assert hashes == [_digest(1)] * 4


@pytest.mark.parametrize("case", **by_name)
def test_a_bad_record_contributes_zero_and_changes_nothing_else(case):
    """NaN, ±inf and overflow in one row give the same sums as that row's quantity being absent."""
    good = case.good_records(40)
    curator = noise_free(case, good)
    theta, _ = parameters(case)
    query = QUERIES["gradient"]

    def with_first_row(value):
        if not isinstance(good, dict):
            matrix = good.copy()
            matrix[0] = value
            return matrix
        columns = {name: column.copy() for name, column in good.items()}
        columns["X"][0] = value
        columns["y"][0] = value
        return columns

    totals = []
    for value in (np.nan, np.inf, -np.inf):
        replace_records(curator, with_first_row(value))
        totals.append(exact_total(curator, query, theta))
    assert np.array_equal(totals[0], totals[1])
    assert np.array_equal(totals[0], totals[2])
    # ... and that is the sum of the others: take it away from the full sum, the first row's own is left.
    replace_records(curator, good)
    own = exact_total(curator, query, theta) - totals[0]
    scores = np.stack([plain_scores(case.model, good, one)[0] for one in theta])
    spacing = query.spacing(query.lattice(40, case.model.dimension))
    np.testing.assert_allclose(own * spacing, clip_rows(scores, CLIP), atol=CLIP * 2.0**-15)


def test_a_zero_score_stays_zero():
    case = next(case for case in CASES if case.name == "gaussian")
    curator = noise_free(case, np.zeros((10, 2)))
    assert not exact_total(curator, QUERIES["gradient"], np.zeros(2)).any()


def test_float_rows_and_chains_are_independent():
    """A chain's sums do not depend on which other chains are asked for in the same pass, beyond rounding."""
    case = next(case for case in CASES if case.name == "banana")
    curator = noise_free(case, case.good_records(300))
    theta, _ = parameters(case)
    together = curator.ask(QUERIES["gradient"], theta).value
    alone = np.stack([curator.ask(QUERIES["gradient"], one).value for one in theta])
    np.testing.assert_allclose(together, alone, rtol=1e-9)


def test_the_bound_is_enforced_on_the_integers(monkeypatch):
    """Even with the margin of the scaling taken away, no integer vector longer than K passes."""
    import jax.numpy as jnp

    monkeypatch.setattr(integers, "_UNIT_ROUNDOFF", {"float32": 0.0, "float64": 0.0})
    generator = np.random.default_rng(0)
    tile = Tile(jnp.ones(20_000, dtype=bool), here=jnp.asarray(True))
    for precision, bound in (("float32", 2.0**6), ("float32", 2.0**20), ("float64", 2.0**6), ("float64", 2.0**40)):
        with jax.enable_x64(True):
            vectors = list(jnp.asarray(generator.normal(size=(7, 20_000)) * 100, precision))
            spacing, limit = jnp.asarray(1 / bound, precision), jnp.asarray(bound, precision)
            clipped = jax.jit(lambda *args: integers.clip_to_lattice(lambda: args[0], *args[1:]))(
                vectors, spacing, limit, tile
            )
        lengths = [sum(int(v) ** 2 for v in row) for row in np.asarray(clipped).T]
        assert 0.9 * int(bound) ** 2 < max(lengths) <= int(bound) ** 2


def test_the_bound_is_enforced_on_the_integers_of_matrices(monkeypatch):
    """The same for vectors that are one array, where numbers off a diagonal count twice."""
    import jax.numpy as jnp

    monkeypatch.setattr(integers, "_UNIT_ROUNDOFF", {"float32": 0.0, "float64": 0.0})
    generator = np.random.default_rng(0)
    tile = Tile(jnp.ones(20_000, dtype=bool), here=jnp.asarray(True))
    for bound in (2.0**6, 2.0**40):
        for weights in (None, np.array([1.0, 2.0, 2.0, 1.0, 2.0, 1.0])):
            with jax.enable_x64(True):
                vectors = jnp.asarray(generator.normal(size=(1, 6, 20_000)) * 100)
                clip = jax.jit(lambda vectors, *rest, w=weights: integers.clip_stacked(lambda: vectors, *rest, w))
                clipped = np.asarray(clip(vectors, jnp.asarray(1 / bound), jnp.asarray(bound), tile))
            each = np.ones(6) if weights is None else weights
            lengths = [sum(int(w) * int(v) ** 2 for w, v in zip(each, row, strict=True)) for row in clipped[0].T]
            assert 0.9 * int(bound) ** 2 < max(lengths) <= int(bound) ** 2


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_integers_are_added_without_wrapping_around(precision):
    """A whole tile of the longest contributions, all in one direction: the sum needs more than 32 bits."""
    import jax.numpy as jnp

    bits = integers.CONTRIBUTION_BITS[precision]
    with jax.enable_x64(True):
        kind = jnp.int32 if precision == "float32" else jnp.int64
        longest = jnp.full((2, MAX_TILE_ROWS), 2**bits, kind)
        up, down = integers.add_integers([longest, -longest], bits)
    assert np.array_equal(up, [2**bits * MAX_TILE_ROWS] * 2)
    assert np.array_equal(down, [-(2**bits) * MAX_TILE_ROWS] * 2)


def test_what_is_checked_is_what_is_added():
    """The rounded coordinates are results of a conditional in the compiled code: stored, never computed again."""
    case = next(case for case in CASES if case.name == "banana")
    curator = noise_free(case, in_float32(case.good_records(NUM_RECORDS)))
    theta, _ = parameters(case)
    with curator_module.exact_arithmetic():
        bind = curator.oracle(QUERIES["gradient"], None)
        compiled = jax.jit(
            lambda records, theta, noise: bind(records).gradient(theta, PaidDraws(noise)).value,
            compiler_options=COMPILER_OPTIONS,
        ).lower(curator._records, theta, np.zeros(theta.shape, np.int64))
        text = compiled.compile().as_text()
    rows = largest_tile(NUM_RECORDS)
    stored = f"f32[{CHAINS},{rows}]"
    assert re.search(rf"\({re.escape(stored)}[^=]*{re.escape(stored)}[^=]*\) conditional\(", text)


@pytest.mark.parametrize("case", **by_name)
def test_float32_sums_are_those_of_float64_to_float32_precision(case):
    """Same records, both precisions: gradients to 1e-5 of the clip a record, log-ratios as the docs state them."""
    records = in_float32(case.good_records(NUM_RECORDS))
    double = jax.tree.map(lambda column: column.astype(np.float64) if column.dtype.kind == "f" else column, records)
    theta, proposal = parameters(case)
    answers = []
    for data in (records, double):
        curator = noise_free(case, data)
        gradient = curator.ask(QUERIES["gradient"], theta).value
        answers.append((gradient, curator.ask(QUERIES["log_ratio"], theta, proposal).value))
    largest = max(np.abs(plain_log_likelihoods(case.model, double, one)).max() for one in (*theta, *proposal))
    assert np.abs(answers[0][0] - answers[1][0]).max() < 1e-5 * CLIP * NUM_RECORDS
    # A record's log-likelihood is off by a few units in its 24th bit; these errors add up like a random walk.
    bound = 64 * 2.0**-24 * largest * np.sqrt(NUM_RECORDS)
    assert np.abs(answers[0][1] - answers[1][1]).max() < bound < 0.05
    if case.model.float32_suffices:
        assert np.abs(answers[0][1] - answers[1][1]).max() > 0.0, "float32 was not used"


@pytest.mark.parametrize("name", ["gaussian", "banana", "logistic"])
@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_noise_free_gradients_are_those_of_private_runs_without_the_noise(name, precision):
    """Where no record is clipped, research runs take a shorter way; the sums are the same, bit for bit."""
    case = next(case for case in CASES if case.name == name)
    records = jax.tree.map(
        lambda column: column.astype(precision) if column.dtype.kind == "f" else column, case.good_records(NUM_RECORDS)
    )
    curator = noise_free(case, records)
    theta, _ = parameters(case)
    for clip in (1e-3, CLIP, 1e3):  # all, some and none are clipped
        query = Gradient(clip, 1.0)
        noise = np.zeros(theta.shape, np.int64)
        released = []
        with curator_module.exact_arithmetic():
            for bind in (curator.oracle(query, None), curator.noise_free_oracle_not_private(clip, None)):
                compiled = jax.jit(
                    lambda records, theta, noise, bind=bind: bind(records).gradient(theta, PaidDraws(noise)).value,
                    compiler_options=COMPILER_OPTIONS,
                )
                released.append(np.asarray(compiled(curator._records, theta, noise)))
        assert np.array_equal(*released), clip
        assert released[0].any()


def test_noise_free_ratios_are_those_of_private_runs_without_the_noise():
    """And the fraction that was clipped is that of the plain formula."""
    case = next(case for case in CASES if case.name == "gaussian")
    records = in_float32(case.good_records(NUM_RECORDS))
    curator = noise_free(case, records)
    theta, proposal = parameters(case)
    for clip in (0.8, 1e3, None):
        with curator_module.exact_arithmetic():
            bind = curator.noise_free_oracle_not_private(None, clip)
            compiled = jax.jit(
                lambda records, theta, proposal, bind=bind: bind(records).log_ratio(theta, proposal, 0),
                compiler_options=COMPILER_OPTIONS,
            )
            released = compiled(curator._records, theta, proposal)
        if clip is not None:
            expected = curator.ask(LogRatio(clip, noise_multiplier=1.0), theta, proposal).value
            np.testing.assert_allclose(released.value, expected, rtol=1e-12)
        for chain in range(CHAINS):
            ratios = plain_log_likelihoods(case.model, records, proposal[chain])
            ratios = ratios - plain_log_likelihoods(case.model, records, theta[chain])
            bound = (clip or np.inf) * np.linalg.norm(proposal[chain] - theta[chain])
            if clip is None:
                np.testing.assert_allclose(released.value[chain], ratios.sum(), rtol=1e-4)
            fraction = np.mean(np.abs(ratios) > bound)
            assert abs(float(released.clipped[chain]) - fraction) <= 2 / NUM_RECORDS  # rounding at the bound itself
        assert np.any(np.asarray(released.clipped) > 0.0) == (clip == 0.8)


@pytest.mark.parametrize("name", ["logistic", "poisson-groups"])
@pytest.mark.parametrize(("precision", "huge"), [(np.float32, 1e33), (np.float64, 1e305)])
def test_a_record_that_overflows_takes_no_other_record_with_it(name, precision, huge):
    """A residual of 0 times a factor that overflows is NaN, which must not reach the matrix product."""
    case = next(case for case in CASES if case.name == name)
    records = case.good_records(200)
    records = {key: column.astype(precision) if column.dtype.kind == "f" else column for key, column in records.items()}
    theta = np.zeros((1, case.model.dimension))
    outcome = 1.0
    if name == "logistic":
        theta[0, 1] = 1.0  # the linear predictor is huge: the outcome is certain
    query = Gradient(1.0, 2.0)
    totals = []
    for value in (0.0, huge):
        columns = {key: column.copy() for key, column in records.items()}
        columns["X"][0] = 0.0
        columns["X"][0, 0] = value
        columns["y"][0] = outcome
        totals.append(exact_total(noise_free(case, columns), query, theta))
    bound = query.lattice(200, case.model.dimension).bound
    assert np.linalg.norm((totals[1] - totals[0]).astype(float)) <= 2 * bound
    assert np.linalg.norm(totals[0].astype(float)) > 3 * bound  # what would be lost


def test_a_model_derived_from_a_regression_is_not_trusted_with_rows():
    """Its score could mix the rows of a tile; only the package's own families skip one-record differentiation."""
    from dpmcmc.models import LogisticRegression

    class Mixing(LogisticRegression):
        def score_at(self, eta, y, extra=None):
            residual, extra = super().score_at(eta, y, extra)
            return residual - residual.mean(), extra

    records = {"X": np.random.default_rng(0).normal(size=(300, 2)), "y": np.ones(300)}
    theta = np.zeros(3)
    derived, own = (
        noise_free_of(kind(2), records).ask(Gradient(1.0, 2.0), theta) for kind in (Mixing, LogisticRegression)
    )
    np.testing.assert_allclose(derived.value, own.value, rtol=1e-4, atol=1e-3)
    assert abs(float(own.value[0])) > 50


def noise_free_of(model, records):
    return Curator(model, records, noise=NoNoiseNotPrivate())
