"""A little of the fuzz, careless readers that it must report, and what it has found so far."""

import dataclasses
import json
import pickle
import random
import tempfile
import warnings
from pathlib import Path

import pytest
import yaml

import dpmcmc
from dpmcmc.errors import CheckpointError, DPMCMCError, QueryError, ResultError, SchemaError
from dpmcmc.inference.checkpoint import Checkpoint
from dpmcmc.privacy.statement import PrivacyStatement
from dpmcmc.results.files import sealed
from dpmcmc.surrogate import Form
from tests.results.cases import STATEMENTS, make_posterior
from trust.fuzz import __main__ as program
from trust.fuzz import mutations, readers
from trust.fuzz.watching import Watch, observe

# The same inputs each time, so that a change is judged by what it changed: fresh ones are for `make fuzz`. (The
# number says nothing: the first that came to mind.)
SEED = 1
# (Files of HDF5 are read in a process of their own: it may die of them.)
QUICK = {"parquet": 300, "csv": 300, "schema-yaml": 150, "schema-json": 200, "statement": 300, "ledger": 150}


@pytest.fixture(scope="module")
def watch(tmp_path_factory):
    return Watch(tmp_path_factory.mktemp("watched"))


@pytest.fixture(scope="module")
def resumed(watch):
    return readers.READERS["resume"](watch.folder / "resume")


def findings(watch, reader, seed, count):
    found = {}
    for content in reader.corpus:  # what is loaded when it is first needed is loaded now
        path = reader.place(content)
        reader.read(path)
    for number in range(count):
        path = reader.place(reader.input(seed, number))
        outcome = observe(watch, lambda path=path: reader.read(path), (DPMCMCError,))
        assert number >= len(reader.corpus) or outcome.kind == "read", f"a valid file: {outcome}"
        if outcome.kind == "finding":
            found[number] = outcome.what
    return found


@pytest.mark.parametrize("name", QUICK)
def test_a_little_of_the_fuzz(name, watch):
    reader = readers.READERS[name](watch.folder / name)
    assert findings(watch, reader, SEED, QUICK[name]) == {}, f"seed {SEED}"


def test_a_little_of_the_fuzz_of_checkpoints(watch, resumed):
    """What is in it, and going on with it; of one set of stopped runs."""
    assert findings(watch, resumed, SEED, 12) == {}, f"seed {SEED}"
    opened = readers.CheckpointFile.read
    for number in range(12, 200):
        path = resumed.place(resumed.input(SEED, number))
        outcome = observe(watch, lambda path=path: opened(resumed, path), (DPMCMCError,))
        assert outcome.kind != "finding", f"seed {SEED}, input {number}: {outcome}"


@pytest.mark.slow
def test_results_in_a_process_that_may_die(tmp_path):
    result = program.fuzz("result", 40, SEED, tmp_path, commands=2)
    assert result["found"] == {}, f"seed {SEED}"
    assert (result["inputs"], result["commands"]) == (40, 4)
    assert result["read"] > 0
    assert result["refused"] > 0


def test_inputs_follow_from_the_seed(tmp_path):
    for name in ("parquet", "csv", "statement"):
        first, again = (readers.READERS[name](tmp_path / place) for place in ("first", "again"))
        assert [first.input(3, k) for k in range(40)] == [again.input(3, k) for k in range(40)]
        assert [first.input(4, k) for k in range(40)] != [again.input(3, k) for k in range(40)]
        assert len({first.input(3, k) for k in range(40)}) > 30


# ------------------------------------------------------------------ twins: careless readers


class Careless(readers.Reader):
    """Reads YAML with all its tags, pickles, JSON without a look, and formulas as code."""

    name, share, suffix = "careless", 1.0, ".txt"

    def make(self):
        return [b"a: 1"]

    def change(self, content, other, rng):
        return mutations.change_text(content, other, rng)

    def read(self, path):
        yaml.unsafe_load(path.read_text(encoding="utf-8", errors="replace"))


def read_by(watch, function, allowed=(DPMCMCError,)):
    outcome = observe(watch, function, allowed)
    assert outcome.kind == "finding"
    return outcome.what


def test_a_careless_reader_is_reported_by_the_same_inputs(watch):
    """Of 150 changed texts of four letters, some have a tag that runs code; a plain error alone would not be enough."""
    found = findings(watch, Careless(watch.folder / "careless"), 1, 150)
    assert any("canary" in what or "os.system" in what for what in found.values())


@pytest.mark.parametrize("text", [word for word in mutations.CODE if word.startswith("!!python/obj")])
def test_yaml_with_all_its_tags_is_reported(watch, text):
    assert "os." in read_by(watch, lambda: yaml.unsafe_load(text)) or "canary" in "".join(watch.traces())
    watch.traces()
    with pytest.raises(SchemaError):
        dpmcmc.Schema.from_yaml(text)


def test_a_module_that_an_input_names_is_reported(watch):
    what = read_by(watch, lambda: yaml.unsafe_load(f"!!python/module:{mutations.CANARY_MODULE}"))
    assert "import of what the input names" in what


def test_a_pickle_is_reported(watch):
    what = read_by(watch, lambda: pickle.loads(mutations.PICKLE))
    assert "pickle.find_class" in what
    assert "canary" in what


def test_text_that_is_run_is_reported(watch):
    assert "exec of code" in read_by(watch, lambda: eval("1 + 1"))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: {}["age"], "KeyError"),
        (lambda: json.loads("["), "JSONDecodeError"),
        (lambda: open(Path(tempfile.gettempdir()) / "dpmcmc-fuzz-elsewhere", "w").close(), "elsewhere"),
        (lambda: warnings.warn("12", stacklevel=1), "UserWarning"),
    ],
)
def test_what_else_is_reported(watch, function, said):
    assert said in read_by(watch, function)


def test_long_texts_and_hangs_are_reported(watch, monkeypatch):
    def fail(text):
        raise ValueError(text)

    assert "3000 characters" in read_by(watch, lambda: fail("x" * 3000), (ValueError,))
    assert "2 lines" in read_by(watch, lambda: fail("x\ny"), (ValueError,))
    monkeypatch.setattr("trust.fuzz.watching.PATIENCE", 0.2)
    assert "longer" in read_by(watch, lambda: [None for _ in iter(int, 1) if False])
    assert observe(watch, lambda: None, ()).kind == "read"
    assert observe(watch, lambda: fail("short"), (ValueError,)).kind == "refused"


# ------------------------------------------------------------------ what was found, and is refused now

DEEP = "[" * 100_000


def test_schemas_that_are_nested_too_deeply_or_are_odd():
    laughs = f"{mutations._LAUGHS}\nfields: *a8"
    for text in (DEEP, "fields: " + DEEP, laughs, "&a [*a]", "!!timestamp 1", "!!int x", "!!bool x", "? {a: b}\n: 1"):
        with pytest.raises(SchemaError) as caught:
            dpmcmc.Schema.from_yaml(text)
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(SchemaError, match="deeply"):
        dpmcmc.Schema._from_text(DEEP, "the schema", is_json=True)
    with pytest.raises(SchemaError, match="list of texts"):
        dpmcmc.Schema.from_dict({**readers.SCHEMA, "missingValues": 5})


def test_statements_that_are_odd():
    with pytest.raises(QueryError, match="not JSON"):
        PrivacyStatement.from_json(DEEP)
    values = json.loads(STATEMENTS["private"].to_json(derived=False))
    with pytest.raises(QueryError, match="lattice"):
        PrivacyStatement.from_json(json.dumps(values | {"lattice_epsilon": None}))


def test_a_budget_beyond_all_numbers_ends():
    assert 0.0 < dpmcmc.privacy.gaussian_mu(1e308, 1e-5) < 1e16


def test_the_polynomials_of_a_form_are_counted():
    for form in (Form(1, 1, 6), Form(3, 3, 4), Form(7, 5, 2), Form(4, 0, 1), Form(5, 2, 3)):
        assert form.num_polynomials == len(form.powers)
    assert Form(2, 2, 10**9).num_polynomials == 0


def test_errors_are_cut_short():
    text = str(SchemaError(f"begin {'x' * 10**6} end"))
    assert len(text) <= 2000
    assert text.startswith("begin")
    assert text.endswith("end")
    assert str(SchemaError("short")) == "short"


def test_a_damaged_result_does_not_get_as_far_as_hdf5(tmp_path, monkeypatch):
    path = make_posterior("private").save(tmp_path / "posterior.nc")
    content = path.read_bytes()
    for place in (0, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ResultError, match="damaged"):
            dpmcmc.Posterior.load(path)
    # Files of earlier versions have no hash, and are read.
    whole = content[: readers._UNSEALED]
    assert sealed(whole) == content
    path.write_bytes(whole)
    assert dpmcmc.Posterior.load(path).privacy == STATEMENTS["private"]


def test_an_intercept_of_several_numbers_is_no_intercept():
    posterior, _ = readers._posteriors()
    draws = dict(posterior.draws) | {"intercept": posterior.draws["coefficients"]}
    with pytest.raises(ResultError, match="an intercept, which the draws have not"):
        dataclasses.replace(posterior, draws=draws, warmup_draws={})


def test_a_checkpoint_whose_header_is_no_mapping(resumed, tmp_path):
    content, folder = resumed.corpus[0], tmp_path / "run"
    folder.mkdir()

    def change(rows):
        rows[0][2] = "[]"
        readers._hash_parts(rows)

    rng = random.Random(3)  # (whose first number keeps the table as it is)
    assert rng.random() > 0.1
    rng = random.Random(3)
    (folder / "checkpoint.db").write_bytes(readers._changed_rows(content, tmp_path, "parts", rng, change))
    with pytest.raises(CheckpointError, match="damaged"):
        Checkpoint(folder)
