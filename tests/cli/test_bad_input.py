"""`dpmcmc sample` with bad input: each kind has its message and exit code; nothing is spent, nothing is written."""

import datetime
import json
import os
from dataclasses import dataclass, field

import pytest

from dpmcmc import Curator, cli
from tests.cli import people
from tests.cli.running import RUNNER


@dataclass
class Case:
    """What is wrong: the schema, a file's content, an option; then a piece of the message, and the exit code."""

    name: str
    words: str
    schema: object = None
    files: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    code: int = 2


def bounds(minimum, maximum):
    return people.schema(age={"constraints": {"minimum": minimum, "maximum": maximum}})


def levels(*values, **ours):
    return people.schema(education={"constraints": {"enum": list(values)}, "dpmcmc": ours})


def with_unit(unit="person_id", **ours):
    return people.schema(dpmcmc={"unit": unit, **ours})


def parquet(**changes):
    """A Parquet file with changed columns."""
    return lambda path: people.write_parquet(path, people.typed(people.columns(40)) | changes)


def truncated(path):
    people.write_parquet(path, people.typed(people.columns(40)))
    path.write_bytes(path.read_bytes()[:-50])


def no_rows(path):
    import pyarrow
    import pyarrow.parquet

    full = pyarrow.table(people.typed(people.columns(40)))
    pyarrow.parquet.write_table(full.slice(0, 0), path)


def same_name_twice(path):
    import pyarrow
    import pyarrow.parquet

    full = pyarrow.table(people.typed(people.columns(40)))
    pyarrow.parquet.write_table(full.append_column("age", full["age"]), path)


HEADER = "age,hours,education,income,visits,person_id\n"
MODEL = """
import dpmcmc
from jax.scipy.stats import norm
model = dpmcmc.Model(
    lambda p, x: norm.logpdf(x["age"], p["m"], 1.0), lambda p: norm.logpdf(p["m"], 0.0, 1.0), {"m": "real"}
)
"""
PARQUET = {"file": "people.parquet"}


def own_model(text, name=":model", **options):
    return {"files": {"mine.py": text}, "options": {"formula": None, "model": f"mine.py{name}", **options}}


CASES = [
    # The schema.
    Case("reversed bounds", "minimum = 90 is not below maximum = 17", bounds(90, 17)),
    Case("equal bounds", "minimum = 30 is not below maximum = 30", bounds(30, 30)),
    Case("infinite bounds", "finite", bounds(17, "inf")),
    Case("bounds that are words", "age", bounds("young", "old")),
    Case("blank bounds", "age", people.schema(age={"constraints": {"minimum": None, "maximum": None}})),
    Case("blank levels", "education", people.schema(education={"constraints": {"enum": None}})),
    Case("blank type", "age", people.schema(age={"type": None, "constraints": None})),
    Case("an unknown type", "'date' is unknown; choose one of number", people.schema(age={"type": "date"})),
    Case("an unknown rule for missing values", "no rule", people.schema(age={"dpmcmc": {"missing": "mean"}})),
    Case("a rule for another type", "no rule", people.schema(age={"dpmcmc": {"missing": "own level"}})),
    Case("a reference that is no level", "reference = 'none'", levels("school", "college", reference="none")),
    Case("a level twice", "name every level once", levels("school", "school")),
    Case("a level that YAML takes for false", "as the table has it: 'no'", levels("school", False)),
    Case("a level that YAML takes for a number", "put it in quotes", levels("school", 12)),
    Case("no levels", "give a list of all levels", levels()),
    Case("a scale of 0", "not positive", people.schema(age={"dpmcmc": {"scale": 0}})),
    Case("a centre that is a word", "center", people.schema(age={"dpmcmc": {"center": "middle"}})),
    Case("an unknown key", "maximun", people.schema(age={"constraints": {"minimum": 1, "maximun": 2}})),
    Case("a field twice", "is there twice", {"fields": [people.SCHEMA["fields"][0]] * 2}),
    Case("no fields", "fields", {"fields": []}),
    Case("a schema that is a list", "schema", ["age", "hours"]),
    Case("a unit that is no column of the schema", "is no field", with_unit("household", max_rows=2)),
    Case("a unit without max_rows", "needs max_rows", with_unit()),
    Case("max_rows of 0", "max_rows = 0", with_unit(max_rows=0)),
    Case("max_rows that is not whole", "max_rows = 2.5", with_unit(max_rows=2.5)),
    Case("max_rows without a unit", "needs a unit", people.schema(dpmcmc={"max_rows": 3})),
    Case("an empty schema", "schema", files={"people.schema.yaml": ""}),
    Case("a schema that is no YAML", "people.schema.yaml", files={"people.schema.yaml": "fields: [a: b: c"}),
    Case("a schema that is no text", "people.schema.yaml", files={"people.schema.yaml": b"\xff\xfe\x00\x01"}),
    Case("no schema file", "there is no such file", options={"schema": "nowhere.yaml"}),
    Case("a schema that is a folder", "is a folder", options={"schema": "."}),
    # The table.
    Case("no file", "there is no such file", options={"file": "nowhere.csv"}),
    Case("a folder", "is a folder", options={"file": "."}),
    Case("a file of another kind", "people.xlsx", files={"people.xlsx": b"PK"}, options={"file": "people.xlsx"}),
    Case("an empty file", "people.csv", files={"people.csv": ""}),
    Case("a header alone", "0 rows", files={"people.csv": HEADER}),
    Case("a header with a name twice", "age", files={"people.csv": "age," + HEADER + "1,1,2,school,true,3,a\n"}),
    Case(
        "a column that is not there",
        "income",
        files={"people.csv": "age,hours,education,visits,person_id\n1,2,c,3,a\n"},
    ),
    Case("an empty Parquet file", "people.parquet", files={"people.parquet": b""}, options=PARQUET),
    Case("a truncated Parquet file", "people.parquet", files={"people.parquet": truncated}, options=PARQUET),
    Case("a Parquet file that is none", "people.parquet", files={"people.parquet": HEADER * 9}, options=PARQUET),
    Case("a Parquet file without rows", "0 rows", files={"people.parquet": no_rows}, options=PARQUET),
    Case("a Parquet column twice", "age", files={"people.parquet": same_name_twice}, options=PARQUET),
    Case(
        "numbers in a column of words",
        "education",
        files={"people.parquet": parquet(education=[3.5] * 40)},
        options=PARQUET,
    ),
    Case(
        "text in a number column",
        "column 'age' is declared as text",
        files={"people.parquet": parquet(age=["old"] * 40)},
        options=PARQUET,
    ),
    Case(
        "dates in a number column",
        "age",
        files={"people.parquet": parquet(age=[datetime.date(1990, 1, 1)] * 40)},
        options=PARQUET,
    ),
    Case("lists in a column", "hours", files={"people.parquet": parquet(hours=[[1.0]] * 40)}, options=PARQUET),
    Case("a CSV file streamed", "Parquet", options={"stream": True}),
    Case(
        "a unit streamed",
        "unit",
        with_unit(max_rows=3),
        files={"people.parquet": parquet()},
        options=PARQUET | {"stream": True},
    ),
    # The formula.
    Case("a formula that names no column", "salary", options={"formula": "income ~ salary"}),
    Case("a response that is no column", "rich", options={"formula": "rich ~ age"}),
    Case("three levels for logistic", "education", options={"formula": "education ~ age"}),
    Case("a number for logistic", "age", options={"formula": "age ~ hours"}),
    Case("a category for linear", "education", options={"formula": "education ~ age", "family": "linear"}),
    Case("a number for poisson", "hours", options={"formula": "hours ~ age", "family": "poisson"}),
    Case("a learned scale", "scale", options={"formula": "income ~ scale(age)"}),
    Case("a learned centre", "center", options={"formula": "income ~ center(age)"}),
    Case("learned polynomials", "poly", options={"formula": "income ~ poly(age, 2)"}),
    Case("learned knots", "knots", options={"formula": "income ~ bs(age, df=4)"}),
    Case("a function that is none of the allowed", "system", options={"formula": "income ~ os.system(age)"}),
    Case("no response", "response", options={"formula": "age + hours"}),
    Case("a formula that cannot be read", "formula", options={"formula": "income ~ age +* hours"}),
    Case("an empty formula", "formula", options={"formula": ""}),
    Case("the response on both sides", "income", options={"formula": "income ~ age + income"}),
    Case("groups that are no column", "state", options={"groups": "state"}),
    Case("groups that are numbers", "age", options={"formula": "income ~ hours", "groups": "age"}),
    Case("a negative prior scale", "prior_scale", options={"prior_scale": -1}),
    Case("a prior scale that is no number", "prior_scale", options={"prior_scale": "nan"}),
    # Options.
    Case("a negative ε", "epsilon", options={"epsilon": -1}),
    Case("ε of 0", "epsilon", options={"epsilon": 0}),
    Case("ε that is no number", "epsilon", options={"epsilon": "nan"}),
    Case("an infinite ε", "epsilon", options={"epsilon": "inf"}),
    Case("ε that is a word", "epsilon", options={"epsilon": "two"}),
    Case("no ε", "epsilon", options={"epsilon": None}),
    Case("δ of 0", "delta", options={"delta": 0}),
    Case("δ of 1", "delta", options={"delta": 1}),
    Case("δ that is no number", "delta", options={"delta": "nan"}),
    Case("no δ", "delta", options={"delta": None}),
    Case("an unknown family", "family", options={"family": "probit"}),
    Case("an unknown sampler", "sampler", options={"sampler": "gibbs"}),
    Case("a sampler that needs settings", "dpmcmc.DPHMC(...)", options={"sampler": "dp-hmc"}),
    Case("exact draws of a Gaussian", "--exact", options={"sampler": "dp-laplace", "exact": True}),
    Case("no chains", "num-chains", options={"num_chains": 0}),
    Case("a negative seed", "seed", options={"seed": -1}),
    Case("an unknown option", "chians", options={"chians": 3}),
    Case("a formula and a model", "both are given", options={"model": "mine.py:model"}),
    Case("neither formula nor model", "neither is given", options={"formula": None}),
    # A model of one's own.
    Case("a family with a model", "--family belongs to a --formula", **own_model(MODEL, family="linear")),
    Case("no model file", "there is no file", options={"formula": None, "model": "nowhere.py:model"}),
    Case("a model file without the name", "it has 'model'", **own_model(MODEL, ":modle")),
    Case("a model file without a model", "neither a dpmcmc.Model nor a function", **own_model("x = 1")),
    Case("a model of another name", "it has 'mine'", **own_model("def mine(age): pass")),
    Case("a model that is none", "of type int", **own_model("model = 3")),
    Case("a model that is a class", "of type type", **own_model("class model: pass")),
    Case("a model file that raises", "line 2 (ValueError)", **own_model("x = 1\nraise ValueError('person 41')")),
    Case("a model file that is no Python", "line 1 (SyntaxError", **own_model("model = = 3")),
    Case("a model file that misses a name", "name 'jnp' is not defined", **own_model("model = jnp.zeros(3)")),
    Case("a model file that misses a package", "No module named", **own_model("import no_such_package")),
    Case("a model file that leaves", "SystemExit", **own_model("import sys\nsys.exit(0)")),
    Case("a model of another column", "salary", **own_model(MODEL.replace('x["age"]', 'x["salary"]'))),
    Case("a NumPyro model of no column", "takes no column", **own_model("def model():\n    pass")),
    Case("a NumPyro model of other columns", "takes 'salary'", **own_model("def model(salary):\n    pass")),
    # The folder.
    Case("a folder that cannot be written", "choose another folder", options={"out": "people.csv/run"}),
    Case("a folder where none can be", "choose another folder", options={"out": "/proc/nobody/run"}),
    Case("a folder that is a file", "is a file", options={"out": "people.csv"}),
    Case("a folder that is not empty", "is not empty", files={"full/notes": "x"}, options={"out": "full"}),
    Case("where one is", "is not empty", options={"out": "."}),
    Case(
        "overwriting other things",
        "holds 'notes'",
        files={"full/notes": "years of work"},
        options={"out": "full", "overwrite": True},
    ),
    Case(
        "overwriting what is no posterior",
        "not of an earlier run",
        files={"full/posterior.nc": "years of work"},
        options={"out": "full", "overwrite": True},
    ),
    # The budget.
    Case("a budget that buys nothing", "epsilon", options={"epsilon": 1e-3}, code=3),
    Case("a budget that buys no Gaussian", "epsilon", options={"epsilon": 0.1, "sampler": "dp-laplace"}, code=3),
    Case(
        "exact draws that the budget does not buy",
        "exact = True",
        files={"people.csv": lambda path: people.write_csv(path, people.columns(400))},
        options={
            "epsilon": 800,
            "exact": True,
            "formula": f"{people.FORMULA} + bs(age, knots={list(range(20, 70, 5))})",
        },
        code=3,
    ),
]


def contents(folder):
    return {
        os.path.join(where, name): open(os.path.join(where, name), "rb").read()
        for where, _, names in os.walk(folder)
        for name in names
    }


@pytest.fixture
def no_spending(monkeypatch):
    def never(*_, **__):
        raise AssertionError("something was asked or paid")

    monkeypatch.setattr(Curator, "ask", never)
    monkeypatch.setattr(Curator, "pay", never)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.usefixtures("no_spending")
def test_bad_input(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    people.write_csv(tmp_path / "people.csv", people.columns(40))
    people.write_schema(tmp_path / "people.schema.yaml", people.SCHEMA if case.schema is None else case.schema)
    for name, content in case.files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    names = {"file": "people.csv", "schema": "people.schema.yaml", "out": "run"}
    before = contents(tmp_path)
    command = people.arguments(tmp_path, **(names | case.options))
    result = RUNNER.invoke(cli.app, command, env={"COLUMNS": "200"})
    assert result.exit_code == case.code, result.output
    assert result.stdout == ""
    assert case.words in result.stderr
    assert "Traceback" not in result.output
    assert "person 41" not in result.output
    errors = [line for line in result.stderr.splitlines() if "Error" in line]
    assert len(errors) == 1 or "Usage:" in result.stderr  # typer's own come in a frame
    assert {name: content for name, content in contents(tmp_path).items() if "__pycache__" not in name} == before


def test_there_are_many_kinds():
    assert len({case.name for case in CASES}) == len(CASES) >= 100


@pytest.mark.usefixtures("no_spending")
def test_twin_good_input_spends(tmp_path):
    """What keeps the cases above from spending would be seen: with nothing wrong the curator is asked."""
    people.write_csv(tmp_path / "people.csv", people.columns(400))
    people.write_schema(tmp_path / "people.schema.yaml")
    result = RUNNER.invoke(cli.app, people.arguments(tmp_path, seed=1))
    assert result.exit_code == 1
    assert "AssertionError" in result.stderr
    assert not (tmp_path / "run").exists()


def test_schemas_of_the_cases_are_json():
    for case in CASES:
        json.dumps(case.schema)
