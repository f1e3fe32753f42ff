"""The README's Python runs as it is printed there."""

import re
from pathlib import Path

import numpy as np

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    first, second = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    namespace = {}
    exec(first, namespace)
    assert (tmp_path / "posterior.nc").exists()
    printed = capsys.readouterr().out
    assert "mean" in printed
    assert "PRIVATE" in printed
    generator = np.random.default_rng(0)
    namespace |= {"X": generator.normal(size=(50, 3)), "y": generator.integers(0, 2, 50)}
    exec(second, namespace)
    assert namespace["model"].dimension == 3


def test_the_commands_run():
    from typer.testing import CliRunner

    from dpmcmc.cli import app

    lines = re.findall(r"^dpmcmc ((?:plan|account) [^#\n]*)", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        assert CliRunner().invoke(app, line.split()).exit_code == 0


def test_the_two_commands_come_first():
    text = README.read_text(encoding="utf-8")
    assert text.index("make demo") < text.index("make test") < text.index("```python")
