"""The runner: finished cells are never run again, a failure stops nothing else, Ctrl-C keeps what is done."""

import json
import os
import secrets
from pathlib import Path

import pytest
from rich.console import Console

from studies import cells, runner
from studies.cells import Cell

CELLS = [Cell("comparison", "banana", "dp-penalty", 2.0, repeat, 1000) for repeat in range(4)]


def note(folder, cell):
    (folder / f"ran-{cell.repeat}-{secrets.token_hex(4)}").touch()


def finish(cell, folder, commit):
    note(folder, cell)
    row = {"mmd": 0.1, "seconds": 0.0, "commit": commit, "cores": len(os.sched_getaffinity(0))}
    row["cache"] = os.environ["JAX_COMPILATION_CACHE_DIR"]
    content = {"specification": cell.specification(), "row": row}
    cells.result_file(folder, cell).write_text(json.dumps(content))
    return row


def stumble(cell, folder, commit):
    """Raise an error in the second cell, and take the whole process down in the third."""
    if cell.repeat == 1:
        note(folder, cell)
        raise ValueError("no such luck")
    if cell.repeat == 2:
        os._exit(7)
    return finish(cell, folder, commit)


def runs(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("ran-*"))


def run(work, folder, these=CELLS, jobs=2):
    console = Console(file=(folder / "log").open("a"), width=200)
    return runner.run_cells(these, folder, jobs=jobs, console=console, work=work)


@pytest.mark.slow
def test_finished_cells_are_never_repeated(tmp_path):
    outcome = run(finish, tmp_path, CELLS[:3])
    assert (outcome.skipped, outcome.finished, outcome.failed) == (0, 3, [])
    outcome = run(finish, tmp_path)
    assert (outcome.skipped, outcome.finished) == (3, 1)
    outcome = run(finish, tmp_path)
    assert (outcome.skipped, outcome.finished) == (4, 0)
    assert runs(tmp_path) == [0, 1, 2, 3]
    _, row = cells.read_row(cells.result_file(tmp_path, CELLS[0]))
    assert row["cores"] == 1  # so that two runs do not fight over the cores
    assert Path(row["cache"]).is_absolute()
    log = (tmp_path / "log").read_text()
    assert log.count("3/3 banana dp-penalty ε = 2 repeat") == 1
    assert log.count("1/1 banana dp-penalty ε = 2 repeat 4: MMD 0.100, 0.0 s; 0 s left") == 1


def test_a_failure_is_reported_and_the_rest_goes_on(tmp_path):
    """An error, and a worker that dies and is replaced."""
    outcome = run(stumble, tmp_path)
    assert outcome.finished == 2
    failed = dict(outcome.failed)
    assert set(failed) == {CELLS[1], CELLS[2]}
    assert failed[CELLS[1]].startswith("ValueError: no such luck (test_runner.py, line")
    assert "ended with code 7" in failed[CELLS[2]]
    assert [cells.is_finished(tmp_path, cell) for cell in CELLS] == [True, False, False, True]
    assert runs(tmp_path) == [0, 1, 3]


@pytest.mark.slow
def test_interrupted(tmp_path, monkeypatch):
    """Ctrl-C after the first cell: it is kept, no process is left, and the next run takes up the others."""
    ready, calls = runner._ready, []

    def interrupted(workers):
        calls.append(workers)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return ready(workers)

    monkeypatch.setattr(runner, "_ready", interrupted)
    outcome = run(finish, tmp_path, jobs=1)
    assert outcome.interrupted
    assert outcome.finished == 1
    assert not calls[0][0]._child.process.is_alive()
    monkeypatch.undo()
    outcome = run(finish, tmp_path, jobs=1)
    assert outcome.skipped >= 1
    assert outcome.skipped + outcome.finished == 4
    assert not outcome.interrupted


def test_the_longest_come_first(tmp_path, monkeypatch):
    handed_out = []

    class Inline:
        """A worker that is no process."""

        def __init__(self, core):
            self.cell = None

        def begin(self, folder, commit, work, cell):
            handed_out.append(cell.level)
            self.cell = cell

        def collect(self):
            cell, self.cell = self.cell, None
            return runner.Answer(cell, {"mmd": 0.0, "seconds": 0.0}, "")

        def end(self, *, kill):
            assert not kill

    monkeypatch.setattr(runner, "_Worker", Inline)
    monkeypatch.setattr(runner, "_ready", lambda busy: busy)
    levels = (4.0, 15.0, 2.0, 8.0)
    run(finish, tmp_path, [Cell("comparison", "banana", "dp-penalty", eps, 0, 1000) for eps in levels], jobs=2)
    assert handed_out == [15.0, 8.0, 4.0, 2.0]


def test_the_environment_is_left_as_it_was(tmp_path):
    before = dict(os.environ)
    with runner._environment(tmp_path):
        assert os.environ["OPENBLAS_NUM_THREADS"]
    assert dict(os.environ) == before


def test_commit_of_this_source_tree():
    commit = runner.current_commit()
    assert (commit is not None) == (Path(runner.__file__).parents[1] / ".git").exists()
    assert commit is None or len(commit.removesuffix("-dirty")) >= 7


@pytest.mark.parametrize(("seconds", "text"), [(3.0, "3 s"), (600.0, "10 min"), (9000.0, "2.5 h")])
def test_durations(seconds, text):
    assert runner._duration(seconds) == text
