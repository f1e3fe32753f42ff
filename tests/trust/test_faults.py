"""`trust.faults`: a small sample of it, and planted bugs that it must count as not survived."""

import json
from pathlib import Path

import numpy as np
import pytest

from dpmcmc.curator import curator
from dpmcmc.results import folder
from trust import books, faults

KIND = "dp-laplace"


@pytest.fixture
def lab(tmp_path):
    return faults.Lab(tmp_path / "runs", np.random.default_rng())


BOTH = faults.exception_in_a_block, faults.checkpoint_corrupted
ONE = (
    faults.exception_in_the_noise,
    faults.out_of_memory,
    faults.exception_in_a_result,
    faults.clock_jumps,
    faults.ledger_locked,
    faults.ledger_corrupted,
    faults.folder_gone,
)


@pytest.mark.parametrize(
    ("attempt", "kind"), [*[(attempt, KIND) for attempt in BOTH + ONE], *[(attempt, "dp-penalty") for attempt in BOTH]]
)
def test_a_fault_is_survived(attempt, kind, lab):
    assert attempt(lab, kind) == []


@pytest.mark.parametrize("attempt", [faults.disk_full, faults.read_only])
def test_a_disk_that_is_full_or_read_only(attempt, lab):
    try:
        assert attempt(lab, KIND) == []
    except faults.NotTried as reason:
        pytest.skip(f"NOT TESTED: {reason}")


def late_charges(original):
    """A ledger entry that is written after the block: each charge is made when the next one is due."""
    due = []

    def spend(*arguments):
        if due:
            original(*due.pop())
        due.append(arguments)

    return spend


def test_twin_a_charge_that_comes_after_the_look_is_noticed(lab):
    with faults.patched(curator, "_spend", late_charges):
        row = faults.try_fault(faults.Fault("late", faults.exception_in_a_block, (), 1, 1), lab, [KIND], 1)
    assert (row.tried, row.survived) == (1, 0)
    assert any("came before its charge" in problem for problem in row.problems)


def test_twin_a_result_that_is_written_in_place_is_noticed(lab):
    """Not beside it and then moved: a crash in the middle leaves half of a file."""

    def in_place(_):
        def write(target, content):
            Path(target).write_bytes(content[: len(content) // 2])
            raise faults.Crash

        return write

    life = lab.life(KIND)
    with faults.no_tidying(), faults.patched(folder, "replace_file", in_place):
        ending = life.begin()
    assert any("half written" in problem for problem in life.problems(ending, killed=True))


def test_twin_a_release_that_was_never_charged_is_noticed(lab):
    life = lab.stopped(KIND)
    assert life.books_problems() == []
    entries = books.audit(life.ledger).entries
    with faults.patched(books, "audit", lambda _: lambda path: books.Audit(1.0, 1.0, {}, 0)):
        assert entries
        assert any("was not charged" in problem for problem in life.books_problems())


def test_twin_a_traceback_and_a_foreign_text_are_noticed(lab):
    life = lab.stopped(KIND)
    ending = faults.told(lambda: {}["Johannes-1234"])
    assert len(life.problems(ending)) == 2
    assert life.problems(faults.Ending(1, "one\ntwo")) == ["more than one line: one\ntwo"]
    assert life.problems(faults.Ending(77, "why")) == ["exit code 77: why"]
    assert life.problems(faults.Ending(1)) == ["it did not say why it ended"]


def test_the_figures_are_written(tmp_path, monkeypatch, capsys):
    """Of a fault that is survived, and of one that is not."""
    made = faults.Fault("made", faults.checkpoint_corrupted, (KIND,), 1, 2)
    monkeypatch.setattr(faults, "FAULTS", (made, faults.Fault("fatal", lambda *_: ["it is gone"], (KIND,), 1, 1)))
    target = tmp_path / "faults.json"
    assert faults.main(["--fast", "--only", "made", "--json", str(target)]) == 0
    assert json.loads(target.read_text()) == {
        "tried": 2,
        "survived": 2,
        "faults": {"made": {"tried": 2, "survived": 2}},
    }
    assert faults.main(["--fast", "--only", "fatal"]) == 1
    assert "it is gone" in capsys.readouterr().out


@pytest.mark.slow
def test_all_of_it(tmp_path, capsys):
    assert faults.main(["--fast"]) == 0, capsys.readouterr().out
