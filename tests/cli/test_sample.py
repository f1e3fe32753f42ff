"""`dpmcmc sample`: one table by every way in, what it prints and writes, how it ends, and that nothing leaks."""

import csv
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

import dpmcmc
from dpmcmc import cli
from dpmcmc.errors import DPMCMCWarning, RunError
from dpmcmc.inference import tuned
from dpmcmc.inference.checkpoint import tidy
from dpmcmc.privacy import PrivacyStatement
from dpmcmc.privacy.statement import PRIVATE_MODE
from dpmcmc.results import Quality
from dpmcmc.results.folder import write_run
from tests.cli import people
from tests.cli.running import RUNNER, run

FILES = ["posterior.nc", "privacy.json", "privacy.txt", "report.html", "summary.csv"]


@pytest.fixture
def folder(tmp_path):
    """A folder with a table and its schema, as a user would have them."""
    people.write_csv(tmp_path / "people.csv", people.columns())
    people.write_schema(tmp_path / "people.schema.yaml")
    return tmp_path


@pytest.fixture
def sample_stub(monkeypatch):
    """Replace `dpmcmc.sample`, which takes its time; return the list of its calls."""
    calls = []

    def sample(model, records, **options):
        calls.append({"model": model, "records": records, **options})
        draws = np.random.default_rng(1).normal(size=(options["num_chains"], 50, model.dimension))
        number = records.num_records
        checkpoint = options["checkpoint"].begin({}, {})
        posterior = dpmcmc.Posterior(
            draws={"theta": draws},
            privacy=PrivacyStatement(
                private=True,
                mode=PRIVATE_MODE,
                epsilon=options["epsilon"],
                delta=options["delta"],
                mu=10 / (2 * 17.0**2),
                lattice_epsilon=1e-9,
                lattice_delta=1e-25,
                num_records=number,
                queries={"gradient": 10},
                noise_multipliers={"gradient": 17.0},
                accountant="Gaussian composition",
            ),
            sampler="auto",
            model="a model",
            quality=Quality(
                method="auto: a Gaussian (DP-Laplace)",
                converged=True,
                rounds=3,
                noise_share={"theta": np.full(model.dimension, 0.25)},
                independent_draws=True,
            ),
        )
        write_run(posterior, checkpoint.folder)
        checkpoint.remove()
        tidy(checkpoint.folder)
        return posterior

    monkeypatch.setattr(dpmcmc, "sample", sample)
    return calls


def draws(posterior):
    return {name: np.asarray(values) for name, values in posterior.draws.items()}


def assert_same_draws(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert np.array_equal(first[name], second[name]), name


class TestOneTableManyWays:
    """A table written by hand, with a missing value, an unknown level and a value out of bounds: the same draws."""

    SEEDED = {"epsilon": 60.0, "delta": 1e-4, "seed": 7, "progress": False}  # noqa: RUF012

    @pytest.fixture(scope="class")
    @classmethod
    def expected(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("csv")
        people.write_csv(folder / "people.csv", people.columns())
        people.write_schema(folder / "people.schema.yaml")
        run(*people.arguments(folder, seed=7))
        return draws(dpmcmc.Posterior.load(folder / "run" / "posterior.nc"))

    def in_python(self, source):
        table = dpmcmc.Table(source, people.SCHEMA)
        model, records = dpmcmc.regression(people.FORMULA, table)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DPMCMCWarning)
            return draws(dpmcmc.sample(model, records, **self.SEEDED))

    def test_parquet_from_the_command_line(self, expected, tmp_path):
        people.write_parquet(tmp_path / "people.parquet", people.typed(people.columns()))
        people.write_schema(tmp_path / "people.schema.yaml")
        run(*people.arguments(tmp_path, file=tmp_path / "people.parquet", seed=7))
        assert_same_draws(draws(dpmcmc.Posterior.load(tmp_path / "run" / "posterior.nc")), expected)

    def test_parquet_streamed(self, expected, tmp_path):
        people.write_parquet(tmp_path / "people.parquet", people.typed(people.columns()))
        people.write_schema(tmp_path / "people.schema.yaml")
        run(*people.arguments(tmp_path, file=tmp_path / "people.parquet", seed=7, stream=True))
        assert_same_draws(draws(dpmcmc.Posterior.load(tmp_path / "run" / "posterior.nc")), expected)

    @pytest.mark.parametrize("kind", ["typed", "texts"])
    def test_pandas(self, kind, expected):
        import pandas

        table = people.columns()
        assert_same_draws(self.in_python(pandas.DataFrame(people.typed(table) if kind == "typed" else table)), expected)

    def test_pandas_by_its_own_reader(self, expected, folder):
        """It makes text of a column where one entry is a word, and floats of integers where one is missing."""
        import pandas

        assert_same_draws(self.in_python(pandas.read_csv(folder / "people.csv")), expected)

    def test_polars(self, expected):
        import polars

        assert_same_draws(self.in_python(polars.DataFrame(people.typed(people.columns()))), expected)

    def test_duckdb(self, expected, tmp_path):
        import duckdb

        path = people.write_parquet(tmp_path / "people.parquet", people.typed(people.columns()))
        assert_same_draws(self.in_python(duckdb.sql(f"SELECT * FROM '{path}'")), expected)

    def test_arrow_and_columns(self, expected):
        import pyarrow

        table = people.typed(people.columns())
        assert_same_draws(self.in_python(pyarrow.table(table)), expected)

    def test_twin_another_seed_or_value_gives_other_draws(self, expected):
        import pyarrow

        changed = people.typed(people.columns())
        changed["age"][100] = 17 if changed["age"][100] > 50 else 90
        others = self.in_python(pyarrow.table(changed))
        assert any(not np.array_equal(others[name], expected[name]) for name in expected)


class TestOutput:
    def test_files_and_table(self, folder, sample_stub):
        result = run(*people.arguments(folder))
        assert sorted(os.listdir(folder / "run")) == FILES
        posterior = dpmcmc.Posterior.load(folder / "run" / "posterior.nc")
        assert PrivacyStatement.from_json((folder / "run" / "privacy.json").read_text()) == posterior.privacy
        rows = list(csv.reader((folder / "run" / "summary.csv").open(encoding="utf-8")))
        assert rows[0][:3] == ["parameter", "mean", "sd"]
        assert float(rows[1][1]) == pytest.approx(posterior.draws["theta"][..., 0].mean(), rel=1e-12)
        shown = result.stdout
        assert "What was spent and released" in shown
        assert "auto: a Gaussian (DP-Laplace) converged in 3 rounds" in shown
        assert "25 %" in shown
        assert str(folder / "run" / "summary.csv") in shown
        assert "400 records" in result.stderr
        assert "Warning" not in result.stderr

    def test_json(self, folder, sample_stub):
        result = run(*people.arguments(folder, json=True, quiet=True))
        answer = json.loads(result.stdout)
        assert result.stderr == ""
        assert answer["private"] is True
        assert answer["num_records"] == 400
        assert answer["method"].startswith("auto: ")
        assert answer["privacy"]["queries"] == {"gradient": 10}
        assert sorted(os.path.basename(path) for path in answer["files"]) == FILES
        assert next(iter(answer["summary"].values()))["noise_share"] == 0.25

    def test_options_reach_the_library(self, folder, sample_stub):
        run(
            *people.arguments(
                folder,
                sampler="dp-laplace",
                num_chains=2,
                seed=3,
                prior_scale=1.5,
                family="logistic",
                groups="person_id",
            )
        )
        (call,) = sample_stub
        assert (call["num_chains"], call["seed"], call["epsilon"], call["delta"]) == (2, 3, 60.0, 1e-4)
        assert call["sampler"] == dpmcmc.DPLaplace()
        assert call["exact"] is False
        assert call["model"].prior_scale == 1.5
        assert call["model"].group_names == ("a", "b", "c")

    def test_an_earlier_run_is_replaced_if_asked(self, folder, sample_stub):
        run(*people.arguments(folder))
        first = (folder / "run" / "posterior.nc").read_bytes()
        run(*people.arguments(folder), code=2)
        assert (folder / "run" / "posterior.nc").read_bytes() == first
        run(*people.arguments(folder, num_chains=2, overwrite=True))
        assert dpmcmc.Posterior.load(folder / "run" / "posterior.nc").num_chains == 2
        assert sorted(os.listdir(folder)) == ["people.csv", "people.schema.yaml", "run"]

    def test_a_seeded_run_says_so_everywhere(self, folder):
        result = run(*people.arguments(folder, seed=7, sampler="dp-laplace"))
        assert "NOT PRIVATE: this run was seeded" in result.stdout
        assert (folder / "run" / "summary.csv").read_text().startswith("not private: seeded,")
        assert json.loads((folder / "run" / "privacy.json").read_text())["private"] is False

    def test_names_are_the_formulas(self, folder):
        answer = json.loads(run(*people.arguments(folder, seed=7, sampler="dp-laplace", json=True)).stdout)
        assert "coefficients[age]" in answer["summary"]
        assert "coefficients[C(education)[T.university]]" in answer["summary"]

    def test_a_unit_of_privacy(self, folder):
        """Two rows a person: the people are counted, and the statement says whom it protects."""
        table = people.columns() | {"person_id": [f"person {row // 2}" for row in range(400)]}
        people.write_csv(folder / "people.csv", table)
        person = {"person_id": {"constraints": None}}
        people.write_schema(
            folder / "people.schema.yaml", people.schema(**person, dpmcmc={"unit": "person_id", "max_rows": 2})
        )
        result = run(*people.arguments(folder, seed=7, sampler="dp-laplace", json=True))
        answer = json.loads(result.stdout)
        assert answer["num_records"] == 200
        assert "person_id" in answer["privacy"]["unit_of_privacy"]
        assert "200 records" in result.stderr
        assert "person 7" not in result.output


NUMPYRO_MODEL = """
import numpyro
import numpyro.distributions as dist

print("reading the model")

def model(age, hours, education, income, visits, person_id):
    rate = numpyro.sample("rate", dist.Normal(0, 1))
    with numpyro.plate("records", age.shape[0]):
        numpyro.sample("visits", dist.Normal(rate, 10.0), obs=visits)
"""
OWN_MODEL = """
import dpmcmc
from beside import prior_sd
from jax.scipy.stats import norm

model = dpmcmc.Model(
    lambda p, x: norm.logpdf(x["visits"], p["rate"], 1.0),
    lambda p: norm.logpdf(p["rate"], 0.0, prior_sd),
    {"rate": "real"},
)
"""


class TestOwnModel:
    @pytest.mark.parametrize("place", ["mine.py:model", "mine.py"])
    def test_a_model(self, place, folder):
        (folder / "mine.py").write_text(OWN_MODEL)
        (folder / "beside.py").write_text("prior_sd = 10.0")
        command = people.arguments(folder, formula=None, model=folder / place, sampler="dp-laplace", seed=1, json=True)
        answer = json.loads(run(*command).stdout)
        assert list(answer["summary"]) == ["rate"]
        visits = np.array([float(text) for text in people.columns()["visits"]])
        coded = (visits - 25) / 25
        # 0.35 is 7 posterior sds of 1/√400.
        assert abs(answer["summary"]["rate"]["mean"] - coded.mean()) < 0.35

    def test_a_numpyro_model_whose_prints_stay_out_of_json(self, folder):
        (folder / "mine.py").write_text(NUMPYRO_MODEL)
        options = {"formula": None, "model": folder / "mine.py:model", "sampler": "dp-laplace"}
        result = run(*people.arguments(folder, **options, seed=1, json=True))
        assert list(json.loads(result.stdout)["summary"]) == ["rate"]
        assert "reading the model" in result.stderr


class TestEndings:
    """What is paid for is not lost, and what is lost is said."""

    def test_results_that_cannot_be_written_are_shown_and_written_later(self, folder, monkeypatch):
        """The disk is full in the end, and δ is so large that there is another warning, which is not the reason."""

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(dpmcmc.Posterior, "save", full)
            result = run(*people.arguments(folder, sampler="dp-laplace", delta=0.01), code=1)
        line = result.stderr.splitlines()[-1]
        assert "No space left on device" in line
        assert "What was spent and released" in result.stdout
        command = line.split("`dpmcmc ")[1].split("`")[0].split()
        assert command == ["resume", str(folder / "run")]
        asked = people.counted(monkeypatch)
        run(*command)
        assert asked == []
        assert sorted(os.listdir(folder / "run")) == FILES

    def test_a_folder_that_came_between_is_left_alone(self, folder, sample_stub, monkeypatch):
        sample = dpmcmc.sample

        def busy(model, records, **options):
            (folder / "run").mkdir()
            (folder / "run" / "notes").write_text("years of work")
            return sample(model, records, **options)

        monkeypatch.setattr(dpmcmc, "sample", busy)
        result = run(*people.arguments(folder), code=2)
        assert "is not empty; nothing was computed" in result.stderr
        assert os.listdir(folder / "run") == ["notes"]

    def test_draws_that_could_not_be_put_together_are_kept(self, folder, monkeypatch):
        """All that was released is in the folder, and a version that can put it together does."""

        def fail(*_):
            raise RunError("the run is done, but", unconstrained_draws=np.zeros((3, 2)))

        with monkeypatch.context() as patch:
            patch.setattr(tuned, "_posterior", fail)
            line = run(*people.arguments(folder, sampler="dp-laplace"), code=1).stderr.splitlines()[-1]
        assert f"go on with `dpmcmc resume {folder / 'run'}`" in line
        asked = people.counted(monkeypatch)
        run("resume", folder / "run")
        assert asked == []
        assert sorted(os.listdir(folder / "run")) == FILES

    def test_an_earlier_run_is_kept_if_the_new_one_fails(self, folder, sample_stub, monkeypatch):
        """Whether it is refused, or fails after it was set aside."""
        run(*people.arguments(folder))
        before = {path.name: path.read_bytes() for path in (folder / "run").iterdir()}
        monkeypatch.undo()
        run(*people.arguments(folder, overwrite=True, epsilon=0.01), code=3)
        assert {path.name: path.read_bytes() for path in (folder / "run").iterdir()} == before

        def fail(*_, **__):
            raise RuntimeError

        monkeypatch.setattr(tuned, "_prepare_chain", fail)
        monkeypatch.setattr(tuned, "_constrained", fail)
        run(*people.arguments(folder, overwrite=True), code=1)
        assert {path.name: path.read_bytes() for path in (folder / "run").iterdir()} == before

    def test_a_lost_run_says_what_was_spent(self, folder, monkeypatch):
        def fail(*_, **__):
            raise RunError("the run ended before there were any draws; the whole budget counts as spent")

        monkeypatch.setattr(dpmcmc, "sample", fail)
        assert "counts as spent" in run(*people.arguments(folder), code=1).stderr
        assert not (folder / "run").exists()

    def test_interrupted(self, folder, monkeypatch):
        def interrupt(*_, **__):
            raise KeyboardInterrupt("interrupted before the first question; nothing was spent")

        monkeypatch.setattr(dpmcmc, "sample", interrupt)
        result = run(*people.arguments(folder), code=130)
        assert result.stderr.splitlines()[-1] == "Interrupted before the first question; nothing was spent"
        assert sorted(os.listdir(folder)) == ["people.csv", "people.schema.yaml"]


def raises_with_a_value(*_, **__):
    try:
        raise KeyError("age 41 of a person")
    except KeyError:
        raise ValueError("could not convert 'age 41 of a person'")  # noqa: B904


class TestDebug:
    @pytest.mark.parametrize("where", ["Table", "sample"])
    def test_no_text_of_a_foreign_error(self, where, folder, monkeypatch):
        monkeypatch.setattr(dpmcmc, where, raises_with_a_value)
        plain = run(*people.arguments(folder), code=1)
        assert "Traceback" not in plain.output
        assert "ValueError" in plain.stderr
        assert "--debug" in plain.stderr
        debug = run(*people.arguments(folder, debug=True), code=1)
        assert "Traceback" in debug.stderr
        assert "in raises_with_a_value" in debug.stderr
        assert "KeyError" in debug.stderr
        for result in (plain, debug):
            assert "41 of a person'\n" not in result.output.replace('"', "'").replace("could not convert 'age ", "")
            assert "ValueError: " not in result.output
            assert "KeyError: " not in result.output
        spent = "nothing was spent" if where == "Table" else "what was charged counts; `dpmcmc resume"
        assert spent in plain.stderr

    def test_an_error_of_ours_with_where_it_came_from(self, folder):
        result = run(*people.arguments(folder, epsilon=-1, debug=True), code=2)
        assert "Traceback" in result.stderr
        assert "budget.py" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("Error: ")


class TestLeaks:
    """Swap one record for any other: all is the same but for what was released."""

    @staticmethod
    def outcome(folder, table, **options):
        """Exit code, both streams, warnings and files of a run in a process of its own."""
        folder.mkdir()
        people.write_csv(folder / "people.csv", table)
        people.write_schema(folder / "people.schema.yaml")
        names = {"file": "people.csv", "schema": "people.schema.yaml", "out": "run"}
        command = people.arguments(folder, **(names | options), seed=7, sampler="dp-laplace")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            before = os.getcwd()
            os.chdir(folder)
            try:
                result = RUNNER.invoke(cli.app, command, env={"COLUMNS": "200"})
            finally:
                os.chdir(before)
        files = sorted(os.listdir(folder / "run")) if (folder / "run").exists() else []
        return result, [str(item.message) for item in caught], files

    @staticmethod
    def shape(value):
        """The keys and types of an answer, without numbers."""
        if isinstance(value, dict):
            return {key: TestLeaks.shape(item) for key, item in value.items()}
        return [TestLeaks.shape(item) for item in value] if isinstance(value, list) else type(value).__name__

    OTHERS = {  # noqa: RUF012
        "as it was": {},
        "all missing": dict.fromkeys(people.columns(), ""),
        "NaN": {"age": "nan", "hours": "NaN", "income": "nan"},
        "an unknown level": {"education": "kindergarten, of the old kind"},
        "out of bounds": {"age": "1e308", "hours": "-1e308"},
        "infinite": {"age": "inf", "hours": "-inf"},
        "text": {"age": "forty", "hours": "full time", "income": "plenty", "visits": "often"},
        "another language": {"education": "学校", "person_id": "é\u0000ü"},
        "a quote": {"education": '"'},
        "very long": {"education": "x" * 10_000},
        "not whole": {"age": "41.5", "income": "0.5"},
    }

    @pytest.fixture(scope="class")
    @classmethod
    def expected(cls, tmp_path_factory):
        return cls.outcome(tmp_path_factory.mktemp("leak") / "one", people.columns(), json=True)

    @pytest.mark.parametrize("other", OTHERS)
    def test_another_record(self, other, expected, tmp_path):
        table = people.columns()
        for name, text in self.OTHERS[other].items():
            table[name][200] = text
        first, first_warnings, first_files = expected
        second, second_warnings, second_files = self.outcome(tmp_path / "two", table, json=True)
        assert first.exit_code == second.exit_code == 0, second.output
        assert first.stderr == second.stderr
        assert first_warnings == second_warnings
        assert first_files == second_files
        answers = [json.loads(result.stdout) for result in (first, second)]
        assert self.shape(answers[0]) == self.shape(answers[1])
        # Public all of it; what differs are means and sds, which are releases.
        for key in ("private", "mode", "model", "sampler", "epsilon", "delta", "num_records", "num_draws", "privacy"):
            assert answers[0][key] == answers[1][key], key

    def test_sizes_of_files(self, tmp_path):
        sizes = set()
        for other in ("as it was", "all missing", "text"):
            table = people.columns()
            for name, text in self.OTHERS[other].items():
                table[name][200] = text
            place = tmp_path / other.replace(" ", "-")
            self.outcome(place, table)
            header = (place / "run" / "summary.csv").read_text(encoding="utf-8").splitlines()
            sizes.add(
                (
                    (place / "run" / "posterior.nc").stat().st_size,
                    (place / "run" / "privacy.json").read_text(encoding="utf-8"),
                    header[0],
                    tuple(line.split(",")[0] for line in header),
                )
            )
        assert len(sizes) == 1

    @pytest.mark.parametrize("other", ["all missing", "text", "an unknown level"])
    def test_a_refusal_is_the_same(self, other, tmp_path):
        """Too small a budget is refused with the same words, whatever the records are."""
        results = []
        for number, table in enumerate((people.columns(), people.columns())):
            if number:
                for name, text in self.OTHERS[other].items():
                    table[name][200] = text
            results.append(self.outcome(tmp_path / str(number), table, epsilon=0.01))
        assert results[0][0].exit_code == results[1][0].exit_code == 3
        assert results[0][0].stderr == results[1][0].stderr
        assert results[0][1:] == results[1][1:]

    def test_the_library_warns_of_nothing_in_a_table(self):
        """Warnings of others are dropped by the command; in Python they would be seen, so there must be none."""
        for other in self.OTHERS.values():
            table = people.columns()
            for name, text in other.items():
                table[name][200] = text
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                dpmcmc.regression(people.FORMULA, dpmcmc.Table(table, people.SCHEMA))


def test_a_whole_run_as_a_user_has_it(folder):
    """The installed command, in a process of its own: exact noise, private."""
    command = [sys.executable, "-m", "dpmcmc.cli", *people.arguments(folder, sampler="dp-laplace", json=True)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["private"] is True
    assert answer["epsilon"] == 60.0
    assert sorted(os.listdir(folder / "run")) == FILES
    assert "Traceback" not in result.stderr
