"""The leak hunt: all that a private run lets out is the same for two neighbouring data sets, but for what is released.

Each run is made twice: on a data set, and on one in which a single record is another (extreme, NaN, missing, text, a
unit of 1000 rows, …). Production code runs, of the private type; only the operating system's randomness and clock are
planted, so that both runs draw the same noise, and the one function that adds noise to secret sums (`noised`) is given
the same sums both times, after the run's own were computed (`watching.Releases`). A release is then the same for both,
by construction, and what follows from releases too. So everything that still differs has reached the outside without
noise, and there must be nothing: not a bit of a result, a file, a log line, a warning, an error, a cache (see
`watching`). Twins plant leaks of all these kinds, and the same comparison finds each.

What counts as outside: everything but wall times, and the fingerprints in a ledger. These are made of all records
under a key of 256 bits that the ledger holds; docs/budgets.md declares them, and that a ledger is kept as the data are.
They are computed, and then planted as well; a test of their own shows where they are when they are not: in the ledger,
and, under its chain of hashes, in the one hash by which a statement knows it.
"""

import contextlib
import json
import logging
import os
import pathlib
import re
import shutil
import sys
import warnings
from dataclasses import replace

import jax
import numpy as np
import numpyro
import pytest
from jax.experimental.compilation_cache import compilation_cache

import dpmcmc
from dpmcmc import cli
from dpmcmc.curator import Curator, passes, preparation
from dpmcmc.data import marks_of
from dpmcmc.errors import DataError
from dpmcmc.inference import chains
from dpmcmc.inference.checkpoint import Checkpoint
from dpmcmc.queries import LogRatio
from dpmcmc.queries.release import noised
from tests.inference import test_auto
from tests.leaks import watching
from tests.leaks.neighbours import LINES, NOT_STREAMED, NUMBERS, SAMPLERS, SCHEMA, SOURCES, sampled
from tests.leaks.watching import differences


@pytest.fixture(scope="module")
def hunt(tmp_path_factory):
    """Randomness is planted for the module; programs that hold the seam are forgotten before and after it."""
    with pytest.MonkeyPatch.context() as patch:
        yield watching.Hunt(tmp_path_factory.mktemp("hunt") / "work", patch)
    passes.forget()


class Pair:
    """A run on the first data set, and the same on its neighbours."""

    def __init__(self, hunt, source, act, *, warm=True):
        self._hunt, self._source, self._act, self._warm = hunt, SOURCES[source], act, warm

    def _watch(self, kind):
        record = None if kind is None else self._source.kinds[kind]
        return self._hunt.watch(lambda: self._source.write(record), self._act)

    def first(self):
        if self._warm:
            self._hunt.releases.record()
            self._watch(None)  # compiles, loads and caches what there is
        self._hunt.releases.record()
        return self._watch(None)

    def neighbour(self, kind):
        self._hunt.releases.replay()
        return self._watch(kind)

    def found(self, kinds=None):
        """What differs, by kind of record."""
        first = self.first()
        assert len(first) > 1000
        found = {kind: differences(first, self.neighbour(kind)) for kind in kinds or self._source.kinds}
        return first, {kind: different for kind, different in found.items() if different}


def assert_private(first):
    assert first["error"] == "list of 0"
    assert first["result[object].[privacy].[private]"] == "bool True"
    assert "private: exact discrete Gaussian noise" in first["result[object].[privacy].[mode]"]


# ------------------------------------------------------------------ samplers × sources × kinds of record

# Here every source with every other kind of record (so that two or more have each kind), and every sampler with some
# of both; `test_all_of_them` has the whole product.
SOME = {source: list(SOURCES[source].kinds)[number % 2 :: 2] for number, source in enumerate(SOURCES)}
SOME["stream"] = ["extreme", "missing"]  # whose programs are compiled for each run


@contextlib.contextmanager
def touchy():
    """All that a user may have switched on to be told of NaN, overflow and values outside a distribution's support."""
    with np.errstate(all="raise"), jax.debug_nans(True), numpyro.validation_enabled():
        yield


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_and_record(source, hunt):
    def act(raw):
        with touchy():
            return sampled("DPPenalty", source, raw)

    first, found = Pair(hunt, source, act).found(SOME[source])
    assert_private(first)
    assert not found


@pytest.mark.parametrize(
    ("sampler", "source", "kinds"),
    [
        ("auto", "csv", ["too short"]),
        ("DPLaplace", "pandas", ["text", "missing"]),
        ("DPHMC", "array", ["NaN", "extreme", "denormal"]),
        ("DPPenalty", "persons", ["1000 rows", "missing"]),
        ("DPSGLD", "float32 array", ["infinite", "extreme"]),
        ("DPSGNHT", "lists", ["huge integer", "of another type"]),
        ("SurrogateHMC", "frame of numbers", ["zero", "infinite"]),
    ],
)
def test_every_sampler_with_a_folder(sampler, source, kinds, hunt):
    first, found = Pair(hunt, source, lambda raw: sampled(sampler, source, raw, checkpoint="run")).found(kinds)
    assert_private(first)
    assert first["files[run/posterior.nc]"].startswith("bytes")
    assert first["files[run/report.html]"].startswith("bytes")
    assert any("checkpoint.db" in way for way in first if way.startswith("removed"))
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_all_of_them(sampler, source, hunt):
    """With a ledger; minibatch samplers, which need something set apart there, without."""
    if source == "stream" and sampler in NOT_STREAMED:
        pytest.skip("looks up random rows")
    minibatches = sampler in NOT_STREAMED

    def act(raw):
        if not minibatches:
            dpmcmc.Ledger.create("people.ledger", epsilon=400.0, delta=1e-4)
        return sampled(sampler, source, raw, ledger=None if minibatches else "people.ledger")

    first, found = Pair(hunt, source, act).found()
    assert_private(first)
    assert not found


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True], ids=["surrogate", "chain"])
def test_the_other_endings_of_auto(exact, hunt):
    """Of a banana-shaped posterior `auto` returns a curved surrogate, or runs a chain on it."""
    ending = test_auto.CHAIN if exact else test_auto.SURROGATE
    records = {"first": None, "NaN": np.nan, "extreme": 1e300, "infinite": -np.inf}

    def watched(kind):
        def write():
            data = np.array(test_auto.RECORDS)
            data[17] = data[17] if records[kind] is None else records[kind]
            return data

        options = {"epsilon": test_auto.EPSILON, "delta": test_auto.DELTA, "num_steps": 20, "exact": exact}
        return hunt.watch(write, lambda data: dpmcmc.sample(test_auto.BANANA, data, checkpoint="run", **options))

    hunt.releases.record()
    watched("first")
    hunt.releases.record()
    first = watched("first")
    assert_private(first)
    assert ending in first["result[forms][1]"]
    for kind in ("NaN", "extreme", "infinite"):
        hunt.releases.replay()
        assert not differences(first, watched(kind)), kind


@pytest.mark.parametrize(
    "sampler", ["DPPenalty", *(pytest.param(name, marks=pytest.mark.slow) for name in ("DPHMC", "DPSGLD", "DPLaplace"))]
)
def test_programs_are_compiled_and_cached_on_disk_alike(sampler, hunt, tmp_path):
    """Nothing is kept from the first run: JAX compiles the same, and its cache on disk gets files of the same names."""
    found, before = [], jax.config.jax_compilation_cache_dir
    least = jax.config.jax_persistent_cache_min_compile_time_secs
    try:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        for number, record in enumerate((None, NUMBERS["extreme"])):
            (hunt.releases.replay if number else hunt.releases.record)()
            place = tmp_path / "jax-cache"
            jax.config.update("jax_compilation_cache_dir", str(place))
            compilation_cache.reset_cache()
            jax.clear_caches()
            passes.forget()
            act = hunt.watch(lambda: SOURCES["array"].write(record), lambda raw: sampled(sampler, "array", raw))  # noqa: B023
            names = sorted(path.name for path in place.iterdir() if not path.name.endswith("-atime"))
            found.append((act, names))
            shutil.rmtree(place)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
        compilation_cache.reset_cache()
        passes.forget()
    (first, names), (second, other_names) = found
    assert_private(first)
    assert len(names) > 5
    assert names == other_names
    assert [text for way, text in first.items() if "passes._kept" in way and text.startswith("program")]
    assert not differences(first, second)


# ------------------------------------------------------------------ runs that are refused, fail, or go on later


def fails_at(number, error, patch):
    """Let the n-th look at the records of the next run raise, with a text that quotes them all."""
    looks = []
    total, run = Curator._host_total, Curator._run

    def broken(real):
        def look(curator, *arguments, **options):
            looks.append(None)
            if len(looks) == number:
                raise error(str(jax.tree.map(np.asarray, curator._records)))
            return real(curator, *arguments, **options)

        return look

    patch.setattr(Curator, "_host_total", broken(total))
    patch.setattr(Curator, "_run", broken(run))


@pytest.mark.parametrize(
    ("sampler", "number", "error"),
    [("DPPenalty", 1, MemoryError), ("DPPenalty", 4, ValueError), ("DPLaplace", 3, KeyboardInterrupt)],
)
def test_a_run_that_fails_and_goes_on(sampler, number, error, hunt):
    """An error from the depths that quotes all records: nothing of it is told. Then the run goes on."""

    def act(raw):
        said = []
        with pytest.MonkeyPatch.context() as patch:
            fails_at(number, error, patch)
            try:
                sampled(sampler, "lists", raw, checkpoint="run")
            except BaseException as raised:
                said.append(watching._told(raised))
        kept = {path.name: watching.content(path) for path in sorted(pathlib.Path("run").iterdir())}
        model, records = SOURCES["lists"].read(raw)
        return said, kept, dpmcmc.resume("run", model, records)

    first, found = Pair(hunt, "lists", act).found(["missing"])
    assert first["result[0]"] == "list of 1"
    assert "array" not in first["result[0][0][0][1]"]
    assert "result[1][checkpoint.db]" in first
    assert not found


@pytest.mark.parametrize("sampler", ["DPPenalty", "DPSGLD"])
def test_a_run_that_is_cut_short(sampler, hunt):
    """Without a folder the draws so far come back, with a warning that says why."""

    def act(raw):
        with pytest.MonkeyPatch.context() as patch:
            fails_at(4, ValueError, patch)
            return sampled(sampler, "lists", raw)

    first, found = Pair(hunt, "lists", act).found(["missing"])
    assert first["result[object].[privacy].[interrupted]"] == "bool True"
    assert any("ValueError" in text for way, text in first.items() if way.startswith("warnings"))
    assert not found


def test_a_stream_that_cannot_be_read(hunt):
    """A reader whose error quotes an entry, in the middle of a run."""

    def act(raw):
        reads = []
        model, records = SOURCES["stream"].read(raw)
        chunks = records.chunks

        def broken(rows):
            reads.append(None)
            for chunk in chunks(rows):
                if len(reads) == 3:
                    raise ValueError(str(chunk))
                yield chunk

        records.chunks = broken
        options = {"sampler": SAMPLERS["DPPenalty"], "epsilon": 300.0, "delta": 1e-5, "num_chains": 2, "num_steps": 4}
        return dpmcmc.sample(model, records, **options)

    first, found = Pair(hunt, "stream", act).found(["extreme"])
    assert "could not be read (ValueError)" in first["error[0][1]"]
    assert not found


@pytest.mark.parametrize("refused", ["by the ledger", "by the plan", "by the sampler"])
def test_a_run_that_is_refused(refused, hunt):
    options = {
        "by the ledger": {"ledger": "people.ledger"},
        "by the plan": {"epsilon": 1e-3},
        "by the sampler": {"num_steps": 10**6},
    }[refused]

    def act(raw):
        dpmcmc.Ledger.create("people.ledger", epsilon=0.5, delta=1e-6)
        return sampled("DPHMC", "lists", raw, **options)

    first, found = Pair(hunt, "lists", act).found(["extreme", "missing", "text"])
    assert first["error"] == "list of 1"
    assert not found


def test_fingerprints_are_in_the_ledger_and_nowhere_else(hunt, monkeypatch):
    """They are made of the records and differ. Outside the ledger there is nothing of them but hashes of its entries.

    Its key, without which these say nothing, is in no other place; an application that logs its SQL does not get it.
    """
    monkeypatch.setattr("dpmcmc.inference.books.marks_of", marks_of)
    opened = []

    def act(raw):
        dpmcmc.Ledger.create("people.ledger", epsilon=400.0, delta=1e-4)
        posterior = sampled("DPPenalty", "lists", raw, checkpoint="run", ledger="people.ledger")
        rows = watching.content("people.ledger")[2]["dpmcmc_ledger"]
        opened.append({row[2]: json.loads(row[3]) for row in reversed(rows)})
        return posterior

    pair = Pair(hunt, "lists", act)
    first, second = pair.first(), pair.neighbour("missing")
    assert_private(first)
    marks, others = (found["open"]["columns"] for found in opened[-2:])
    assert len(marks) == 4  # columns
    assert marks.keys() == others.keys()
    assert not set(marks.values()) & set(others.values())
    different = differences(first, second)
    assert {way for way in different if way.startswith("files[people.ledger]")}
    without_hashes = [
        {way: re.sub(r"[0-9a-f]{64}", "<hash>", text) for way, text in found.items()} for found in (first, second)
    ]
    assert not differences(*without_hashes)
    secrets = [opened[-1]["create"]["key"], *marks.values(), *others.values()]
    assert all(len(secret) == 64 for secret in secrets)
    elsewhere = [text for found in (first, second) for way, text in found.items() if "people.ledger" not in way]
    assert not [secret for secret in secrets if any(secret in text for text in elsewhere)]


def test_twin_a_ledger_whose_sql_is_logged(hunt, monkeypatch):
    """Without the filter that storage sets, who logs SQL at DEBUG reads the key."""
    logger = logging.getLogger("sqlalchemy.engine.Engine.dpmcmc")
    assert logger.filters

    def act(raw):
        dpmcmc.Ledger.create("people.ledger", epsilon=400.0, delta=1e-4)
        dpmcmc.Ledger("people.ledger").verify()
        return json.loads(watching.content("people.ledger")[2]["dpmcmc_ledger"][0][3])["key"]

    for filters, is_found in ((logger.filters, False), ([], True)):
        monkeypatch.setattr(logger, "filters", filters)
        found = hunt.watch(lambda: None, act)
        key = found["result"].removeprefix("str ").strip("'")
        assert len(key) == 64
        assert any(key in text for way, text in found.items() if way.startswith("logged")) == is_found


# ------------------------------------------------------------------ the command line


def command(source, *more):
    words = ["sample", source, "--schema", "people.schema.yaml", "--formula", "income ~ age + hours + C(school)"]
    return [*words, "--epsilon", "300", "--delta", "1e-5", "--out", "run", *more]


def with_schema(write):
    def written():
        pathlib.Path("people.schema.yaml").write_text(json.dumps(SCHEMA.to_dict()), encoding="utf-8")
        return write()

    return written


COMMANDS = {
    "text": ["--sampler", "dp-laplace"],
    "JSON, ledger": ["--json", "--ledger", "people.ledger"],
    "refused": ["--sampler", "dp-laplace", "--exact"],
}


@pytest.mark.parametrize("options", COMMANDS)
def test_the_command(options, hunt, monkeypatch):
    """Exit code, both streams and all files of `dpmcmc sample`, for any line of a CSV file."""
    monkeypatch.setenv("COLUMNS", "200")
    source = SOURCES["csv"]

    def act(raw):
        dpmcmc.Ledger.create("people.ledger", epsilon=400.0, delta=1e-4)
        cli.app(command(raw, *COMMANDS[options]))

    def watched(kind):
        line = None if kind is None else LINES[kind]
        return hunt.watch(with_schema(lambda: source.write(line)), act, terminal=False)

    hunt.releases.record()
    watched(None)
    hunt.releases.record()
    first = watched(None)
    assert first["error[0][1]"] == ("str '2'" if options == "refused" else "str '0'")
    assert ("files[run/posterior.nc]" in first) == (options != "refused")
    for kind in ("extreme", "not UTF-8"):
        hunt.releases.replay()
        assert not differences(first, watched(kind)), kind


# ------------------------------------------------------------------ twins: planted leaks are found
#
# Each is a change of the package that lets one bit or one number of the records out, by one way.


def at_the_records(leak):
    """Let something happen with a number that is made of the records, where they are prepared."""

    def plant(patch):
        prepare = preparation.prepare

        def leaky(model, source):
            prepared, count = prepare(model, source)
            leak(float(jax.tree.leaves(prepared)[0][:, 0].sum()))
            return prepared, count

        patch.setattr(preparation, "prepare", leaky)

    return plant


def sum_of(curator):
    leaves = (np.asarray(leaf) for leaf in jax.tree.leaves(curator._records))
    return float(sum(leaf.sum() for leaf in leaves if leaf.dtype.kind == "f"))


def in_the_result(change):
    """Change what is returned, with a number that is made of the records."""

    def plant(patch):
        posterior_of = chains._posterior

        def leaky(run, *arguments):
            return change(posterior_of(run, *arguments), sum_of(run.curator))

        patch.setattr(chains, "_posterior", leaky)

    return plant


def in_compiled_code(patch):
    """Sums of batches, as they are, in a compiled block."""
    patch.setattr(passes, "noised", lambda total, noise: total)


def in_the_checkpoint(patch):
    """A number in the header of a part, in a file that is removed when the run is done."""
    seen, append = [], Checkpoint.append
    at_the_records(seen.append)(patch)
    patch.setattr(
        Checkpoint,
        "append",
        lambda checkpoint, kind, header, arrays: append(checkpoint, kind, header | {"seen": seen[-1]}, arrays),
    )


def in_the_charges(patch):
    """One more answer, properly noised and charged, if a record says so."""
    check = chains._check_records

    def leaky(run):
        if sum_of(run.curator) > 1e3:
            check(run)
        return check(run)

    patch.setattr(chains, "_check_records", leaky)


def _raise(error):
    raise error


def _write_and_remove(value):
    path = pathlib.Path("temporary/there")
    path.write_text(str(value), encoding="utf-8")
    path.unlink()


def _keep_a_program(value):
    kept = next(reversed(passes._kept.values()))
    kept._compiled["leak"] = jax.jit(lambda theta: theta * value).lower(0.0).compile()


def _other_dtype(posterior, value):
    kind = np.float32 if value > 1e3 else np.float64
    return replace(posterior, draws={name: draws.astype(kind) for name, draws in posterior.draws.items()})


def _other_shape(posterior, value):
    last = None if value > 1e3 else -1
    return replace(
        posterior,
        draws={name: draws[:, :last] for name, draws in posterior.draws.items()},
        sample_stats={name: stats[:, :last] for name, stats in posterior.sample_stats.items()},
    )


# What is planted, and where it must be found.
TWINS = {
    "a warning": (at_the_records(lambda value: warnings.warn(f"sum {value}", stacklevel=1)), "warnings"),
    "a log line": (at_the_records(logging.getLogger("dpmcmc.anything").debug), "logged"),
    "a log line of another library": (at_the_records(logging.getLogger("jax._src.any").info), "logged"),
    "printed": (at_the_records(print), "printed[stdout]"),
    "printed by compiled code": (at_the_records(lambda value: os.write(2, str(value).encode())), "printed[stderr]"),
    "a file": (at_the_records(lambda value: pathlib.Path("sum").write_text(str(value))), "files[sum]"),
    "a file that is removed": (at_the_records(_write_and_remove), "removed"),
    "the name of a file": (at_the_records(lambda value: pathlib.Path(f"temporary/{value}").touch()), "files"),
    "a folder elsewhere, for a moment": (
        at_the_records(lambda value: [act(f"/tmp/dpmcmc-{value}") for act in (os.mkdir, os.rmdir)]),
        "changes",
    ),
    "an error, or none": (
        at_the_records(lambda value: value > 1e3 and _raise(DataError("the records are no use"))),
        "error",
    ),
    "the text of an error": (at_the_records(lambda value: _raise(DataError(f"{value} is no use"))), "error[0][1]"),
    "an exit code": (at_the_records(lambda value: sys.exit(int(value > 1e3))), "error[0]"),
    "a variable of a module": (
        at_the_records(lambda value: vars(preparation).__setitem__("last", value)),
        "dpmcmc.curator.preparation.last",
    ),
    "the environment": (at_the_records(lambda value: os.environ.__setitem__("LAST", str(value))), "process"),
    "a program that is kept": (at_the_records(_keep_a_program), "dpmcmc.curator.passes._kept"),
    "a diagnostic without noise": (
        in_the_result(lambda posterior, value: replace(posterior, model=f"model, sum {value}")),
        "result[object].[model]",
    ),
    "the last bit of a draw": (
        in_the_result(
            lambda posterior, value: replace(
                posterior, draws={name: np.nextafter(draws, value - 1e3) for name, draws in posterior.draws.items()}
            )
        ),
        "result[object].[draws]",
    ),
    "a dtype": (in_the_result(_other_dtype), "result[object].[draws]"),
    "a shape": (in_the_result(_other_shape), "result[object].[draws]"),
    "compiled code": (in_compiled_code, "result[object].[draws]"),
    "the checkpoint": (in_the_checkpoint, "removed"),
    "the number of charges": (in_the_charges, "removed"),
}


@pytest.mark.parametrize("twin", TWINS)
def test_twin_a_planted_leak_is_found(twin, hunt, monkeypatch):
    plant, where = TWINS[twin]
    if plant is in_compiled_code:
        passes.forget()
    folder, sampler = "run" if where == "removed" else None, "DPSGLD" if plant is in_compiled_code else "DPPenalty"
    pair = Pair(hunt, "array", lambda raw: sampled(sampler, "array", raw, checkpoint=folder), warm=False)
    before = dict(vars(preparation)), dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        _, found = pair.found(["far"])
    for original, now in zip(before, (vars(preparation), os.environ), strict=True):
        for name in set(now) - set(original):
            del now[name]
    if plant is in_compiled_code:
        passes.forget()
    assert [way for way in found["far"] if way.startswith(where)], sorted(found["far"])


def test_twin_without_a_leak_the_same_pair_differs_in_nothing(hunt):
    _, found = Pair(hunt, "array", lambda raw: sampled("DPPenalty", "array", raw, checkpoint="run")).found(["far"])
    assert not found


def test_twin_sums_that_are_not_replayed_are_found(hunt, monkeypatch):
    """The noise alone is the same: what one record does to the sums shows in all that is released."""
    pair = Pair(hunt, "lists", lambda raw: sampled("DPLaplace", "lists", raw))
    first = pair.first()
    hunt.releases.record()
    different = differences(first, pair._watch("missing"))
    assert [way for way in different if way.startswith("result[object].[draws]")]


def test_sums_are_computed_in_compiled_code_all_the_same(hunt):
    """The seam hides them from the releases only: as many operations are compiled with it as without."""
    source, operations = SOURCES["array"], []
    model, records = source.read(source.write(None))
    for with_seam in (True, False):
        passes.forget()
        with pytest.MonkeyPatch.context() as patch:
            if not with_seam:
                patch.setattr("dpmcmc.queries.log_ratio.noised", noised)
            curator = Curator(model, records, dpmcmc.Budget(10.0, 1e-5))
            query = LogRatio(1.0, noise_multiplier=10.0)
            oracle = curator.oracle(None, query)
            theta = np.zeros((2, model.dimension))
            blank = curator.blank(chains.Order(chains.Queries(log_ratio=query, log_ratios_per_step=1), 2, 1, 1, 1))

            def ask(oracle, theta, noise):
                return oracle.log_ratio(theta, theta + 1.0, noise.log_ratio[0, 0]).value

            program = curator.compile(("ask", with_seam), ask, oracle, theta, blank)
            cost = program._compiled.cost_analysis()
            operations.append((cost[0] if isinstance(cost, list) else cost)["flops"])
    passes.forget()
    assert operations[0] >= operations[1] > 0
