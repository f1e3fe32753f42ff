"""The benchmark: its figures, that the contestants do the same work, the table and the files. No time is asserted."""

import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import __main__ as command_line
from benchmarks import contestants, imports, machine, measure, profile, report
from benchmarks.problems import MODELS, PROBLEMS, log_density
from benchmarks.timing import Pace, Timing, interleave, ratio, summarise
from dpmcmc.curator.arithmetic import exact_arithmetic

RUNNER = CliRunner()
TINY = measure.Sizes(
    models=("logistic",),
    num_records=2000,
    chains=(2,),
    num_leapfrog=2,
    draws_per_block=2,
    pace=Pace(1, 1, 0.0),
    noise_models=("banana",),
    noise_blocks=2,
    noise_draws=1,
    scaling_records=(1000, 2000),
    plain_limit=4000,
    scaling_chains=(1,),
    memory_records=3000,
    memory_chains=2,
    batch_size=20,
    sgld_steps=5,
    sgld_run_steps=5,
    fast=True,
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Measured in a folder from which the processes that are started have to find the package."""
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        return measure.run(TINY)


# -------------------------------------------------------------------------------------------------------- timing


def fake_clock(times):
    """A clock that shows the given times one after the other."""
    shown = iter(times)
    return lambda: next(shown)


class TestTiming:
    def test_contestants_take_turns(self):
        order = []
        calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
        timings = interleave(calls, Pace(3, 3, 0.0))
        assert "".join(order) == "abc" * 4  # once before, to compile
        assert {timing.rounds for timing in timings.values()} == {3}

    def test_what_was_compiled_ahead_is_not_called_before(self):
        class Ready:
            ready = True
            calls = 0

            def __call__(self):
                self.calls += 1

        contestant = Ready()
        interleave({"a": contestant}, Pace(2, 2, 0.0))
        assert contestant.calls == 2

    def test_a_slow_minute_hits_all_alike(self):
        """Contestant b takes twice as long as a, on a machine that gets slower and slower."""

        def race(*heats):
            now, slowness = [0.0], iter(np.repeat([1.0, 1.0, 2.0, 5.0, 9.0, 9.0], 2))

            def work(seconds):
                def call():
                    now[0] += seconds * next(slowness)

                call.ready = True
                return call

            timings = {}
            for heat in heats:
                contestants = {name: work(seconds) for name, seconds in heat.items()}
                timings |= interleave(contestants, Pace(6 // len(heats), 12, -1.0), clock=lambda: now[0])
            return ratio(timings["b"], timings["a"])

        assert race({"a": 1.0, "b": 2.0}) == pytest.approx(2.0)
        # The twin: one after the other, it is another ratio.
        assert race({"a": 1.0}, {"b": 2.0}) > 3.0

    def test_no_new_round_after_the_time_is_up(self):
        # The begin; then for each round the question whether to go on (from the second on), start and end.
        times = [0.0, 0.0, 4.0, 4.0, 4.0, 9.0, 9.0]
        assert interleave({"a": lambda: None}, Pace(1, 10, 8.0), clock=fake_clock(times))["a"].rounds == 2

    def test_median_and_quartiles(self):
        assert summarise([5.0, 1.0, 3.0, 2.0, 4.0]) == Timing(3.0, 2.0, 4.0, 5)
        assert Timing(3.0, 2.0, 4.0, 5).per(10).to_dict() == {
            "median_ms": pytest.approx(300.0),
            "lower_quartile_ms": pytest.approx(200.0),
            "upper_quartile_ms": pytest.approx(400.0),
            "rounds": 5,
        }


# --------------------------------------------------------------------------------------------------- contestants


@pytest.mark.parametrize("name", MODELS)
class TestBothSides:
    def test_compute_the_same_gradient(self, name):
        problem = PROBLEMS[name](5000)
        theta = problem.starts(3)
        ours = np.asarray(contestants.private_gradient(problem, contestants.curator_of(problem), theta)())
        theirs = np.asarray(contestants.plain_gradient(problem, theta)())
        assert ours.dtype == np.float64
        assert theirs.dtype == np.float32
        # The other side adds in float32. One record left out would show: it has a norm of up to the clip bound.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * problem.num_records * problem.gradient_clip_norm)
        # Some of the records are clipped, and not all of them: else something else would be compared.
        score = jax.grad(problem.log_likelihood)
        norms = jax.vmap(lambda record: jnp.linalg.norm(score(jnp.asarray(theta[0], jnp.float32), record)))(
            problem.records
        )
        assert 0.0 < np.mean(np.asarray(norms) > problem.gradient_clip_norm) < 0.9

    def test_have_the_same_posterior(self, name):
        problem = PROBLEMS[name](300)
        first, second = (jnp.asarray(theta) for theta in problem.starts(2))
        with exact_arithmetic():
            records = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), problem.records)
            theirs = log_density(problem, records)
            first, second = first.astype(jnp.float64), second.astype(jnp.float64)

            def ours(theta):
                values = jax.vmap(problem.model.log_likelihood, (None, 0))(problem.model.constrain(theta), records)
                return jnp.sum(values) + problem.model.unconstrained_log_prior(theta)

            difference = ours(second) - ours(first)
            np.testing.assert_allclose(theirs(second) - theirs(first), difference, rtol=1e-5, atol=1e-5)

    def test_are_given_float32(self, name):
        problem = PROBLEMS[name](100)
        assert {leaf.dtype for leaf in jax.tree.leaves(problem.records)} == {np.dtype(np.float32)}
        assert problem.num_records == 100
        assert problem.starts(3).shape == (3, problem.model.dimension)


def test_the_floor_elsewhere_reads_the_data():
    problem = PROBLEMS["banana"](200)
    values = contestants.reads(problem, 3)()
    np.testing.assert_allclose(values, np.full(3, problem.records.sum(dtype=np.float64)), rtol=1e-4)


def test_the_floor_of_a_regression_is_two_products():
    problem = PROBLEMS["logistic"](200)
    theta, features = problem.starts(2), problem.records["X"].astype(np.float64)
    for exact in (False, True):
        value = contestants.products(problem, theta, 1, exact=exact)()
        assert value.dtype == (np.float64 if exact else np.float32)
        np.testing.assert_allclose(value, theta @ features.T @ features, rtol=1e-4, atol=1e-3)


# ----------------------------------------------------------------------------------------------------------- keys


def test_the_keys_are_these():
    cases = [f"{model}.{chains}" for model in ("logistic", "gaussian", "banana") for chains in (4, 40)]
    assert set(measure.required_keys(measure.FULL)) == {
        *(f"gradient_speedup.{case}" for case in cases),
        *(f"draw_vs_blackjax.{case}" for case in cases),
        *(f"draw_vs_floor.{model}" for model in ("logistic", "gaussian", "banana")),
        "noise_overhead",
        "memory_mb_above_data",
        "time_per_record_growth",
        "sgld_steps_per_second",
    }
    assert measure.required_keys(measure.FAST) == measure.required_keys(measure.FULL)
    assert set(report.TARGETS) <= set(measure.required_keys())


def test_a_run_has_all_keys(results):
    answer = json.loads(report.as_json(results))
    for key in measure.required_keys(TINY):
        assert isinstance(answer[key], float)
        assert np.isfinite(answer[key])
        assert answer[key] > 0.0 or key == "memory_mb_above_data"  # a tiny run fits into what was there before
    assert answer["draw_vs_floor.logistic"] == answer["draw_vs_floor.logistic.2"]
    assert answer["fast"] is True
    assert answer["seconds"] == pytest.approx(sum(answer["seconds_by_stage"].values()))


def test_figures_are_ratios_of_medians(results):
    detail = results.to_dict()["detail"]

    def median(name):
        return detail[name]["median_ms"]

    for key, first, second in (
        ("gradient_speedup.logistic.2", "gradient.logistic.2.plain_jax", "gradient.logistic.2.dpmcmc"),
        ("draw_vs_blackjax.logistic.2", "draw.logistic.2.dpmcmc", "draw.logistic.2.blackjax"),
        ("draw_vs_floor.logistic", "draw.logistic.2.dpmcmc", "draw.logistic.2.floor"),
        ("noise_overhead", "noise.banana.exact", "noise.banana.none"),
    ):
        assert results.figures[key] == pytest.approx(median(first) / median(second))
    assert results.figures["sgld_steps_per_second"] == pytest.approx(1e3 / median("sgld.block"))
    assert "records.2000.plain_jax" in detail
    assert "devices.2.dpmcmc" in detail


def test_the_machine_is_described_and_not_named(results):
    answer = results.to_dict()
    for name in ("cpu", "cores", "memory_gb", "system", "python", "jax", "jaxlib", "blackjax", "dpmcmc", "commit"):
        assert f"machine.{name}" in answer
    assert answer["machine.jax"] == jax.__version__
    text = json.dumps(answer)
    assert str(Path(__file__).parents[2]) not in text
    assert str(Path.home()) not in text
    assert socket.gethostname() not in text or len(socket.gethostname()) < 4


def test_the_profile_names_its_parts(monkeypatch):
    monkeypatch.setattr(profile, "NUM_RECORDS", 1000)
    monkeypatch.setattr(profile, "ROUNDS", 1)
    parts = profile.parts_of_a_gradient(2)
    assert {"cut the tiles out", "+ linear predictors", "+ residuals", "whole gradient"} <= set(parts)
    assert all(value > 0.0 for value in parts.values())


def test_memory_in_use():
    resident, peak = machine.memory_in_use()
    assert 1e6 < resident <= peak


# ---------------------------------------------------------------------------------------------------------- table


def test_the_table(results):
    rows = report.rows(results)
    assert {row.what for row in rows} >= {"logistic, 2 chains", "2 devices", "compiled block"}
    # Nothing is said about a target that was measured at another size.
    assert {row.met for row in rows} == {None}
    at_size = replace(results, sizes=replace(TINY, num_records=100_000, num_leapfrog=10))
    told = {row.what: row for row in report.rows(at_size) if row.target}
    assert told["the worst"].met == (results.figures["noise_overhead"] <= 1.1)
    assert told["the worst"].target == "≤ 1.10×"


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("gradient_speedup.logistic.40", 20.0, 19.9),
        ("draw_vs_blackjax.gaussian.4", 0.5, 0.51),
        ("noise_overhead", 1.0, 1.2),
    ],
)
def test_targets(key, good, bad):
    assert report.TARGETS[key].met_by(good)
    assert not report.TARGETS[key].met_by(bad)


def test_files(results, tmp_path):
    files = report.write(results, tmp_path)
    assert {path.name for path in files} == {"benchmark.json", "benchmark.md", "benchmark.png", "benchmark.pdf"}
    assert set(measure.required_keys(TINY)) <= set(json.loads((tmp_path / "benchmark.json").read_text("utf-8")))
    assert "| what | dpmcmc (ms) |" in (tmp_path / "benchmark.md").read_text("utf-8")
    assert (tmp_path / "benchmark.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "benchmark.pdf").read_bytes().startswith(b"%PDF")


# -------------------------------------------------------------------------------------------------------- command


@pytest.fixture
def given_sizes(results, monkeypatch):
    """Replace the measuring and the writing; return the list of the sizes asked for."""
    asked = []
    monkeypatch.setattr(report, "write", lambda results, folder: {folder / "benchmark.png": "the plot"})
    monkeypatch.setattr(measure, "run", lambda sizes, report: asked.append(sizes) or results)
    return asked


def command(*arguments, code=0):
    answer = RUNNER.invoke(command_line.app, list(map(str, arguments)), env={"COLUMNS": "100"})
    assert answer.exit_code == code, answer.output
    return answer


class TestCommand:
    def test_prints_the_table(self, given_sizes, tmp_path):
        printed = command("--out", tmp_path).stdout
        assert given_sizes == [measure.FULL]
        for text in ("dpmcmc (ms)", "peer (ms)", "ratio", "target", "met", "logistic, 2 chains", "benchmark.png"):
            assert text in printed

    @pytest.mark.parametrize("option", [["--json", "-"], ["--json"]])
    def test_prints_only_json(self, option, given_sizes, tmp_path):
        answer = command("--out", tmp_path, *option, "--fast")
        assert given_sizes == [measure.FAST]
        assert set(measure.required_keys(TINY)) <= set(json.loads(answer.stdout))
        assert json.loads(command("--out", tmp_path, "--fast", *option).stdout) == json.loads(answer.stdout)

    def test_writes_json_to_a_file(self, given_sizes, tmp_path):
        command("--out", tmp_path, "--json", tmp_path / "deep" / "figures.json")
        assert json.loads((tmp_path / "deep" / "figures.json").read_text("utf-8"))["fast"] is True

    def test_without_blackjax_it_says_what_to_install(self, monkeypatch, tmp_path):
        found = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "blackjax" else found(name))
        answer = command("--out", tmp_path / "new", code=1)
        assert answer.stderr.startswith("Error: blackjax is not installed")
        assert "pip install -e '.[bench]'" in answer.stderr
        assert not (tmp_path / "new").exists()
        monkeypatch.chdir(tmp_path)
        assert command(code=1).stderr == answer.stderr  # with no argument at all
        with pytest.raises(measure.MissingPeerError):
            measure.run(TINY)

    def test_errors_are_one_line(self, given_sizes, tmp_path):
        in_the_way = tmp_path / "file"
        in_the_way.write_text("not a folder")
        answer = command("--out", in_the_way, code=1)
        assert answer.stderr.startswith("Error: cannot write into ")
        assert len(answer.stderr.splitlines()) == 1
        assert given_sizes == []
        assert "No such option" in command("--slow", code=2).stderr

    def test_ctrl_c_is_one_line(self, monkeypatch, tmp_path):
        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(measure, "run", interrupted)
        assert command("--out", tmp_path, code=130).stderr == "Interrupted; nothing was spent.\n"

    def test_help_loads_no_jax(self, tmp_path):
        root = str(Path(__file__).parents[2])
        program = """
import runpy, sys
sys.argv = ["benchmarks", "--help"]
try:
    runpy.run_module("benchmarks", run_name="__main__")
except SystemExit as end:
    print(end.code, [name for name in ("jax", "matplotlib", "numpy") if name in sys.modules])
"""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
        answer = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert answer.stdout.splitlines()[-1] == "0 []"
        assert "python -m benchmarks --fast" in answer.stdout


def test_imports_are_compared_with_that_of_jax(monkeypatch):
    """The times are made up: processor and clock of each program, by what it says."""
    seconds = {"pass": (0.1, 0.1), "import jax": (2.0, 4.0), "import dpmcmc": (0.5, 9.0)}
    asked = []
    monkeypatch.setattr(imports, "_seconds", lambda text: asked.append(text) or seconds.get(text, (3.0, 3.0)))
    figures = imports.measure(3)
    assert asked == [*imports.PROGRAMS.values()] * 4  # they take turns
    assert figures["dpmcmc"] == {"processor": 0.5, "clock": 9.0, "beyond_jax": -1.5, "over_jax": 0.25}
    assert (figures["dpmcmc_used"]["beyond_jax"], figures["dpmcmc_used"]["over_jax"]) == (1.0, 1.5)


def test_a_program_takes_the_time_it_takes():
    """A process that computes takes processor time; one that sleeps takes the clock's alone."""
    busy, _ = imports._seconds("import time\nwhile time.process_time() < 1.0: pass")
    idle, clock = imports._seconds("import time; time.sleep(1.0)")
    assert busy >= 1.0 > idle
    assert clock >= 1.0
