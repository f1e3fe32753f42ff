"""docs/tables.md runs as it is printed: its Python, its files and its commands, in order, in an empty folder."""

import shlex
from pathlib import Path

from typer.testing import CliRunner

import dpmcmc
from dpmcmc.cli import app
from tests.docs.pages import cells


def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace, written = {}, []
    for magic, text in cells("tables.md"):
        if magic.startswith("%%writefile "):
            written.append(magic.split()[1])
            Path(written[-1]).write_text(text, encoding="utf-8")
        elif magic == "%%bash":
            for line in text.replace("\\\n", " ").splitlines():
                result = CliRunner().invoke(app, shlex.split(line)[1:])
                assert result.exit_code == 0, result.output
        else:
            assert magic == ""
            exec(text, namespace)
    assert written == ["people.schema.yaml"]
    printed = capsys.readouterr().out
    assert "{'age': array([ 34., 100.,  59.]), 'smoker': array([ 1.,  0., nan])}" in printed
    assert printed.count("formula = ") == 7  # all that the page calls refused
    assert "all rows of one 'person', of which at most 3 are used" in printed
    assert set(dpmcmc.Posterior.load("run/posterior.nc").draws) >= {"intercept", "coefficients"}
