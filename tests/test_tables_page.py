"""docs/tables.md runs as it is printed: its Python, its schema and its commands, in order, in an empty folder."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

import dpmcmc
from dpmcmc.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "tables.md"


def blocks():
    return re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for language, text in blocks():
        if language == "yaml":
            Path("people.schema.yaml").write_text(text, encoding="utf-8")
        elif language == "python" and text.startswith("# mine.py"):
            Path("mine.py").write_text(text, encoding="utf-8")
        elif language == "python":
            exec(text, namespace)
        else:
            for line in text.splitlines():
                result = CliRunner().invoke(app, shlex.split(line)[1:])
                assert result.exit_code == 0, result.output
    printed = capsys.readouterr().out
    assert "{'age': array([ 34., 100.,  59.]), 'smoker': array([ 1.,  0., nan])}" in printed
    assert printed.count("formula = ") == 7  # all that the page calls refused
    assert "all rows of one 'person', of which at most 3 are used" in printed
    assert set(dpmcmc.Posterior.load("mine/posterior.nc").draws) == {"start", "slopes"}
