"""`python -m studies` as a user meets it: what it refuses, what it writes, and the page made from it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import dpmcmc
from studies import cells, commands, figures, page, runner, settings
from tests.studies import made_up

RUNNER = CliRunner()


def run(*arguments, code=0):
    result = RUNNER.invoke(commands.app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


def refusal(*arguments, code=2):
    lines = run(*arguments, code=code).stderr.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.fixture
def no_runs(monkeypatch):
    """Cells that are asked for, none of which is run."""
    asked = []

    def run_cells(these, folder, *, jobs, console):
        asked.extend(these)
        return runner.Outcome(finished=len(these))

    monkeypatch.setattr(runner, "run_cells", run_cells)
    return asked


def test_what_a_comparison_runs(no_runs, tmp_path):
    run("comparison", "--out", tmp_path)
    assert len(no_runs) == 2 * 7 * (5 * 10 + 4 * 3)
    assert {cell.level for cell in no_runs} == {2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0}
    assert {cell.num_records for cell in no_runs} == {100_000}
    no_runs.clear()
    run("comparison", "--out", tmp_path, "--model", "banana", "--epsilon", 4, "--sampler", "paper", "--repeats", 2)
    assert [(cell.row, cell.repeat) for cell in no_runs] == [
        (row, repeat) for row in made_up.MMD for repeat in range(2)
    ]
    no_runs.clear()
    run("comparison", "--out", tmp_path, "--epsilon", 4, "--sampler", "dp-hmc-default", "--sampler", "dp-hmc")
    assert {cell.row for cell in no_runs} == {"dp-hmc", "dp-hmc-default"}


def test_what_clipping_runs(no_runs, tmp_path):
    run("clipping", "--out", tmp_path)
    assert len(no_runs) == 2 * 2 * 9 * 10
    no_runs.clear()
    run("clipping", "--out", tmp_path, "--algorithm", "rwmh", "--model", "gaussian", "--bound", 5, "--repeats", 2)
    assert [(cell.row, cell.level, cell.repeat) for cell in no_runs] == [("rwmh", 5.0, 0), ("rwmh", 5.0, 1)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["comparison", "--sampler", "dp-hmm"],
            "--sampler is 'dp-hmm', which is unknown; give all, paper, variants, dp-",
        ),
        (["comparison", "--repeats", 0], "--repeats is 0; give a whole number from 1 to 99"),
        (["comparison", "--variant-repeats", -1], "--variant-repeats is -1"),
        (["comparison", "--epsilon", 0], "--epsilon is 0.0; give positive finite numbers"),
        (["comparison", "--epsilon", "nan"], "--epsilon is nan"),
        (["comparison", "--epsilon", 0.01, "--sampler", "dp-hmc"], "too few to compare; raise --epsilon or --records"),
        (["comparison", "--sampler", "dp-sgld-t1", "--variant-repeats", 0], "nothing to run"),
        (["clipping", "--bound", -1], "--bound is -1.0"),
        (["clipping", "--repeats", 0], "--repeats is 0"),
    ],
)
def test_refusals(arguments, words, no_runs, tmp_path):
    assert words in refusal(*arguments, "--out", tmp_path)
    assert no_runs == []


@pytest.mark.parametrize("arguments", [["comparison", "--model", "apple"], ["clipping", "--records", 3], ["clipping"]])
def test_usage_errors(arguments, no_runs):
    assert "--" in run(*arguments, code=2).stderr
    assert no_runs == []


@pytest.mark.parametrize("study", ["comparison", "clipping"])
def test_a_folder_that_is_a_file(study, no_runs, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    assert "choose another --out" in refusal(study, "--out", in_the_way, code=1)
    assert no_runs == []


def finished_folder(folder, study, table):
    """A folder as the command leaves it, from a made-up table."""
    folder.mkdir(parents=True)
    write = commands._comparison_files if study == "comparison" else commands._clipping_files
    these = made_up.cells_of(table, study)
    if study == "comparison":
        (folder / "cells").mkdir()
        for cell in filter(cells.keeps_draws, these):
            draws = made_up.banana_draws(cell.repeat).reshape(4, -1, 2)
            np.savez(cells.draws_file(folder, cell), draws=draws)
    statements = write(folder, table, these)
    commands._log(folder, study, len(table), runner.Outcome(finished=len(table), seconds=3600.0))
    return statements


def test_files_and_page(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "make_problem", lambda *_: cells.Problem(*_banana(), 0))
    monkeypatch.setattr(figures, "write_figure", lambda figure, path: [_touch(path, end) for end in ("pdf", "png")])
    finished_folder(tmp_path / "comparison", "comparison", made_up.comparison(epsilons=(8.0, 15.0), repeats=3))
    finished_folder(tmp_path / "clipping", "clipping", made_up.clipping(repeats=3))
    pictures = ["figure1", "figure1_full_banana", "figure1_full_gaussian", "figure1_variants", "figure2"]
    for name in ("results.csv", "summary.csv", "summary.md", "statements.txt", "statements.json"):
        assert (tmp_path / "comparison" / name).exists()
        assert (tmp_path / "clipping" / name).exists()
    for name in pictures:
        assert (tmp_path / "comparison" / f"{name}.pdf").exists()
    target = tmp_path / "docs" / "reproduction.md"
    target.parent.mkdir()
    target.write_text(f"before\n\n{page.BEGIN}\nold results\n{page.END}\n\nafter\n")
    run("report", tmp_path / "comparison", tmp_path / "clipping", "--to", target)
    text = target.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old results" not in text
    for words in (
        "## Results: comparison",
        "## Results: clipping",
        "**Holds**: On the banana DP-HMC and DP-penalty beat",
        "Wall-clock time 1.00 h in 1 invocation;",
        "Commit abc, dpmcmc 0.1.0",
        "### gaussian: MMD, median (quartiles)",
        "| DP-HMC | 3 | 0.204 (0.202–0.206) |",
        "![Figure 3. ",
        "](reproduction/figure2.png)",
        "### Where the time went",
    ):
        assert words in text
    assert {path.stem for path in (target.parent / "reproduction").glob("*.png")} == {*pictures, "figure3"}
    run("report", tmp_path / "comparison", tmp_path / "clipping", "--to", target)
    assert target.read_text() == text


def _touch(path, ending):
    path.with_suffix(f".{ending}").write_bytes(b"a picture")


def _banana():
    model = dpmcmc.models.Banana()
    data = made_up.banana_draws(9)
    return model, data, data


@pytest.mark.parametrize("text", ["no markers", f"{page.END}\n{page.BEGIN}"])
def test_a_page_without_markers_is_refused(text, tmp_path):
    target = tmp_path / "page.md"
    target.write_text(text)
    assert "measured: begin" in refusal("report", tmp_path, "--to", target)
    assert target.read_text() == text


def test_reports_of_nothing_are_refused(tmp_path):
    assert "cannot read" in refusal("report", tmp_path, "--to", tmp_path / "none.md", code=1)
    target = tmp_path / "page.md"
    target.write_text(f"{page.BEGIN}\n{page.END}\n")
    assert "no results.csv" in refusal("report", tmp_path, "--to", target)


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        ({"interrupted": True, "finished": 1}, 130, "1 of 2 runs are finished and kept; the same command continues"),
        ({"failed": [(made_up.Cell("clipping", "banana", "hmc", 1.0, 0), "why")]}, 1, "failed: banana hmc bound = 1"),
    ],
)
def test_runs_that_do_not_end_well(outcome, code, words, monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "run_cells", lambda *_, **__: runner.Outcome(**outcome))
    result = run("clipping", "--out", tmp_path, "--repeats", 1, "--bound", 1, "--model", "banana", code=code)
    assert words in result.stderr
    (line,) = (tmp_path / "invocations.jsonl").read_text().splitlines()
    assert json.loads(line)["interrupted"] == (code == 130)


def test_help_names_the_commands():
    text = run("--help").stdout
    for name in ("comparison", "clipping", "report", "public Adult data", "nothing here is private"):
        assert name in text


@pytest.mark.parametrize("name", ["pandas", "matplotlib"])
@pytest.mark.parametrize("arguments", [["clipping", "--out", "new"], ["report", "old", "--to", "page.md"]])
def test_a_missing_package_is_named_before_anything_is_run(name, arguments, no_runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked: None if asked == name else found(asked))
    line = refusal(*arguments, code=1)
    assert line == f"Error: {name} is not installed, and the studies need it; pip install -e '.[studies]'"
    assert no_runs == []
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_is_one_line(monkeypatch, tmp_path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_cells", interrupted)
    lines = run("clipping", "--out", tmp_path, code=130).stderr.splitlines()
    assert lines[-1] == "Interrupted; nothing was spent."
    assert len(lines) == 2  # after the announcement of what is run


def test_a_bug_is_not_hidden(monkeypatch, tmp_path):
    def fail(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(runner, "run_cells", fail)
    result = RUNNER.invoke(commands.app, ["clipping", "--out", str(tmp_path)])
    assert isinstance(result.exception, RuntimeError)


ROOT = Path(__file__).parents[2]
HEAVY = ("jax", "numpyro", "scipy", "matplotlib", "arviz", "pandas")


def in_a_process(*arguments, folder, **options):
    """Run Python in another working directory, from which only PYTHONPATH leads to the studies."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False, **options
    )


@pytest.mark.parametrize("command", [[], ["comparison"], ["clipping"], ["report"]], ids=str)
def test_help_loads_nothing_heavy(command, tmp_path):
    program = f"""
import runpy, sys
sys.argv = ["studies", *{command!r}, "--help"]
try:
    runpy.run_module("studies", run_name="__main__")
except SystemExit as end:
    print(end.code, [name for name in {HEAVY!r} if name in sys.modules])
"""
    result = in_a_process("-c", program, folder=tmp_path)
    assert result.stdout.splitlines()[-1] == "0 []"
    assert "Usage" in result.stdout


@pytest.mark.slow
def test_from_another_working_directory(tmp_path):
    """The command and its worker processes find the packages; a refusal is one line."""
    arguments = ["clipping", "--out", "small", "--model", "banana", "--algorithm", "hmc", "--bound", 1, "--repeats", 1]
    refused = in_a_process("-m", "studies", *arguments[:-1], 0, folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == "Error: --repeats is 0; give a whole number from 1 to 99\n"
    done = in_a_process("-m", "studies", *arguments, "--records", 500, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert page.read_table(tmp_path / "small")[1]["sampler"].tolist() == ["hmc"]


@pytest.mark.slow
def test_from_end_to_end(tmp_path):
    """A real run in a worker process; the second time nothing is run again."""
    arguments = ["comparison", "--out", tmp_path, "--model", "banana", "--sampler", "dp-penalty", "--epsilon", 15]
    arguments += ["--repeats", 1, "--records", 2000]
    first = run(*arguments)
    assert "NOT private" in first.stderr
    assert "The paper has 100,000 records: this is not its experiment." in first.stderr
    assert "NOT TESTED: On the banana" in first.stdout
    study, table = page.read_table(tmp_path)
    assert study == "comparison"
    assert table[["sampler", "repeat", "num_records"]].to_numpy().tolist() == [["dp-penalty", 0, 2000]]
    assert (tmp_path / "figure2.png").exists()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    run(*arguments)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == before
    logged = [json.loads(line) for line in (tmp_path / "invocations.jsonl").read_text().splitlines()]
    assert [(entry["finished"], entry["skipped"]) for entry in logged] == [(1, 0), (0, 1)]


def test_without_variants_there_is_no_figure_of_them(tmp_path):
    names = [name for name, row in settings.ROWS.items() if row.in_paper]
    table = made_up.comparison(names=names, models=["gaussian"])
    these = made_up.cells_of(table, "comparison")
    commands._comparison_files(tmp_path, table, these)
    assert (tmp_path / "figure1.png").exists()
    assert not (tmp_path / "figure1_variants.png").exists()
