"""`dpmcmc schema`: drafts and checks by names and types, never by values."""

import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from dpmcmc import Schema
from tests.cli.running import refusal, run

FULL = """\
fields:
  - {name: age, type: integer, constraints: {minimum: 0, maximum: 120}}
  - {name: name, type: string, constraints: {enum: [Anna, Otto]}}
"""


@pytest.fixture
def files(tmp_path):
    table = pyarrow.table({"age": [4711], "name": ["secret-4711"], "day": pyarrow.array([0], pyarrow.date32())})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("age,name\n4711,secret-4711\n")
    (tmp_path / "t.schema.yaml").write_text(FULL)
    return tmp_path


@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_a_draft_is_filled_in_and_fits(files, name):
    text = run("schema", "draft", files / name).stdout
    assert "4711" not in text
    draft = Schema.from_yaml(text)
    assert draft.names[:2] == ("age", "name")
    (files / "draft.yaml").write_text(text)
    line = refusal("schema", "check", files / name, "--schema", files / "draft.yaml")
    assert "blanks: field 'age'" in line
    assert "field 'name'" in line
    result = run("schema", "check", files / name, "--schema", files / "t.schema.yaml")
    assert result.stdout == f"{name} fits t.schema.yaml: 2 columns; one row is one person.\n"


def test_check_names_what_does_not_fit(files):
    check = ("schema", "check", files / "t.parquet", "--schema", files / "t.schema.yaml")
    (files / "t.schema.yaml").write_text(FULL.replace("name: age", "name: height"))
    assert "no column 'height'" in refusal(*check)
    (files / "t.schema.yaml").write_text(FULL.replace("name: age", "name: day").replace("name: name", "name: age"))
    line = refusal(*check)
    assert "column 'day' has type date32" in line
    assert "column 'age' has the type integer and the levels 'Anna', 'Otto'" in line
    (files / "t.schema.yaml").write_text(FULL + "dpmcmc: {unit: name, max_rows: 3}\n")
    assert run(*check).stdout.endswith("2 columns; 'name' tells persons apart.\n")
    (files / "t.schema.yaml").write_text("fields: [")
    assert "not plain YAML" in refusal(*check)


def test_files_that_are_none(files):
    assert "does not exist" in refusal("schema", "draft", files / "none.parquet")
    (files / "cut.parquet").write_bytes((files / "t.parquet").read_bytes()[:-9])
    assert "cannot be read as Parquet" in refusal("schema", "draft", files / "cut.parquet")
    (files / "empty.csv").write_text("")
    assert "no names" in refusal("schema", "draft", files / "empty.csv")
    assert "cannot be read" in refusal("schema", "check", files / "t.csv", "--schema", files / "none.yaml")


@pytest.mark.parametrize("arguments", [("--help",), ("schema", "--help"), ("schema", "draft", "t.parquet")])
def test_no_jax_is_imported(files, arguments):
    program = (
        "import sys\nfrom dpmcmc.cli import app\n"
        f"app({list(arguments)!r}, standalone_mode=False)\nprint('imported:', 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=files, capture_output=True, text=True)
    assert done.stdout.endswith("imported: False\n"), done.stderr
