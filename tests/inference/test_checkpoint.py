"""The folder of a run and its checkpoint: made under a lock, only ever added to, read whole or not at all."""

import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest

import dpmcmc
from dpmcmc.errors import CheckpointError
from dpmcmc.inference import checkpoint as module
from dpmcmc.inference.checkpoint import CHARGES, CHECKPOINT, Checkpoint, RunFolder, tidy
from dpmcmc.output import OutputError
from dpmcmc.results.folder import RUN_FILES


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def begun(place, **options):
    return RunFolder(place, **options).begin({"what": "a run"}, {"init": np.arange(3.0)})


@pytest.fixture
def earlier(tmp_path, monkeypatch):
    """A folder that looks like an earlier run."""
    place = tmp_path / "run"
    place.mkdir()
    for name in RUN_FILES:
        (place / name).write_text(f"earlier {name}")
    monkeypatch.setattr(module, "_is_a_run", lambda folder: True)
    return place


def assert_earlier(place):
    assert names(place) == sorted(RUN_FILES)
    assert all((place / name).read_text() == f"earlier {name}" for name in RUN_FILES)


class TestRunFolder:
    @pytest.mark.parametrize("target", ["run", "deep/er/run", "empty"])
    def test_it_is_made_when_the_run_begins(self, target, tmp_path):
        (tmp_path / "empty").mkdir()
        folder = RunFolder(tmp_path / target)
        assert names(tmp_path) == ["empty"]
        checkpoint = folder.begin({}, {})
        assert names(tmp_path / target) == [CHECKPOINT, f"{CHECKPOINT}-journal"]
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / target).iterdir())
        folder.discard(checkpoint)
        assert names(tmp_path) == ["empty"]
        assert names(tmp_path / "empty") == []

    def test_a_link_to_a_folder_is_followed(self, tmp_path):
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        begun(tmp_path / "link").close()
        assert names(tmp_path / "real") == [CHECKPOINT]

    def test_what_is_there_is_not_replaced_without_a_word(self, earlier, tmp_path):
        with pytest.raises(OutputError, match="is not empty"):
            RunFolder(earlier)
        (earlier / "notes").write_text("years of work")
        with pytest.raises(OutputError, match="'notes', which is not of an earlier run"):
            RunFolder(earlier, overwrite=True)
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="is a file"):
            RunFolder(tmp_path / "file")

    def test_an_earlier_run_is_set_aside_until_the_end(self, earlier):
        folder = RunFolder(earlier, overwrite=True)
        assert_earlier(earlier)
        checkpoint = folder.begin({}, {})
        assert not (earlier / "posterior.nc").exists()
        folder.discard(checkpoint)
        assert_earlier(earlier)
        checkpoint = RunFolder(earlier, overwrite=True).begin({}, {})
        checkpoint.remove()
        tidy(earlier)
        assert names(earlier) == []

    @pytest.mark.parametrize("where", ["append", "replace"])
    def test_an_earlier_run_is_put_back_if_the_new_one_cannot_begin(self, where, earlier, monkeypatch):
        folder, replace, calls = RunFolder(earlier, overwrite=True), os.replace, []

        def full(*_):
            raise CheckpointError("the disk is full")

        def busy(source, target):
            calls.append(source)
            if len(calls) == 3:
                raise OSError(16, "Device or resource busy")
            replace(source, target)

        if where == "append":
            monkeypatch.setattr(Checkpoint, "append", full)
        else:
            monkeypatch.setattr(os, "replace", busy)
        with pytest.raises((CheckpointError, OutputError)):
            folder.begin({}, {})
        assert_earlier(earlier)

    def test_of_two_that_begin_at_once_one_does(self, tmp_path):
        first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
        checkpoint = first.begin({"who": "first"}, {})
        with pytest.raises((OutputError, CheckpointError)):
            second.begin({"who": "second"}, {})
        checkpoint.append("block", {}, {})
        checkpoint.close()
        with pytest.raises(OutputError, match="not complete"):
            second.begin({"who": "second"}, {})
        again = Checkpoint(tmp_path / "run")
        assert [part.kind for part in again.parts] == ["facts", "block"]
        assert again.facts["who"] == "first"

    def test_two_in_the_moment_in_which_nothing_is_written_yet(self, tmp_path, monkeypatch):
        """One has made the file and holds it; the other looks just then, and must not take it for a left-over."""
        folder, refused = RunFolder(tmp_path / "run"), []
        append = Checkpoint.append
        script = (
            "import sys\nfrom dpmcmc.inference.checkpoint import RunFolder\n"
            "try:\n    RunFolder(sys.argv[1]).begin({'who': 'second'}, {})\n"
            "except Exception as error:\n    print(type(error).__name__)"
        )

        def slow(checkpoint, *arguments):
            ran = subprocess.run([sys.executable, "-c", script, tmp_path / "run"], capture_output=True, text=True)
            refused.append(ran.stdout.strip())
            append(checkpoint, *arguments)

        monkeypatch.setattr(Checkpoint, "append", slow)
        checkpoint = folder.begin({"who": "first"}, {})
        checkpoint.close()
        monkeypatch.undo()
        assert refused == ["OutputError"] or refused == ["CheckpointError"]
        assert Checkpoint(tmp_path / "run").facts["who"] == "first"

    @pytest.mark.parametrize("left", [(), (CHARGES,), (f"{CHECKPOINT}-journal", CHARGES, ".dpmcmc-test-17")])
    def test_what_a_kill_before_the_beginning_has_left_is_in_nobodys_way(self, left, tmp_path):
        (tmp_path / "run").mkdir()
        for name in (CHECKPOINT, *left):
            (tmp_path / "run" / name).write_bytes(b"")
        nothing = Checkpoint(tmp_path / "run")
        with pytest.raises(CheckpointError, match="ended before it had begun, and nothing was spent"):
            _ = nothing.facts
        nothing.close()
        checkpoint = begun(tmp_path / "run")
        assert checkpoint.facts["what"] == "a run"
        assert not (tmp_path / "run" / CHARGES).exists()

    def test_a_ledger_of_somebody_else_is_never_removed(self, tmp_path):
        """Whatever it is called: with it would go what was spent."""
        (tmp_path / "run").mkdir()
        dpmcmc.Ledger.create(tmp_path / "run" / CHARGES, epsilon=1.0, delta=1e-6)
        for overwrite in (False, True):
            with pytest.raises(OutputError, match=r"is not empty|not of an earlier run"):
                RunFolder(tmp_path / "run", overwrite=overwrite)
        (tmp_path / "run" / CHECKPOINT).write_bytes(b"")
        with pytest.raises(OutputError, match="is not empty"):
            RunFolder(tmp_path / "run")
        tidy(tmp_path / "run")
        assert dpmcmc.Ledger(tmp_path / "run" / CHARGES).epsilon == 1.0

    def test_a_run_that_goes_on_is_never_replaced(self, tmp_path):
        begun(tmp_path / "run").close()
        for overwrite in (False, True):
            with pytest.raises(OutputError, match="go on with it by `dpmcmc resume"):
                RunFolder(tmp_path / "run", overwrite=overwrite)


class TestCheckpoint:
    def test_parts_come_back(self, tmp_path):
        checkpoint = begun(tmp_path / "run")
        arrays = {
            "float": np.array([1.5, np.nan, -np.inf]),
            "int": np.array(7),
            "none": np.zeros((0, 2)),
            "whether": np.array([True, False]),
        }
        checkpoint.append("block", {"steps": 3, "text": "é"}, arrays)
        checkpoint.close()
        again = Checkpoint(tmp_path / "run")
        assert again.facts == {"what": "a run", "command": None}
        (part,) = again.of_kind("block")
        assert part.header == {"steps": 3, "text": "é"}
        for name, value in arrays.items():
            assert part.arrays[name].dtype == value.dtype
            assert np.array_equal(part.arrays[name], value, equal_nan=value.dtype.kind == "f")

    def test_nothing_in_it_is_code(self, tmp_path):
        checkpoint = begun(tmp_path / "run")
        with pytest.raises(TypeError, match="numbers only"):
            checkpoint.append("block", {}, {"object": np.array([{"a": 1}], object)})
        with pytest.raises((TypeError, ValueError)):
            checkpoint.append("block", {"function": print}, {})
        with pytest.raises(ValueError, match="JSON"):
            checkpoint.append("block", {"nan": float("nan")}, {})
        checkpoint.append("block", {}, {"number": 1.0})
        assert [part.kind for part in checkpoint.parts] == ["facts", "block"]

    @pytest.mark.parametrize(
        "edit",
        [
            "UPDATE parts SET header = '{}' WHERE number = 2",
            "UPDATE parts SET kind = 'start' WHERE number = 2",
            "UPDATE parts SET arrays = (SELECT arrays FROM parts WHERE number = 3) WHERE number = 2",
            "UPDATE parts SET arrays = NULL WHERE number = 2",
            "UPDATE parts SET header = x'ff00' WHERE number = 2",
            "UPDATE parts SET hash = 7 WHERE number = 3",
            "DELETE FROM parts WHERE number = 2",
            "DELETE FROM parts WHERE number = 1",
            "UPDATE parts SET number = 9 WHERE number = 3",
            "DROP TABLE parts",
            "ALTER TABLE parts ADD COLUMN more TEXT",
            "ALTER TABLE parts DROP COLUMN header",
        ],
    )
    def test_what_was_edited_is_refused(self, edit, tmp_path):
        checkpoint = begun(tmp_path / "run")
        for number in range(2):
            checkpoint.append("block", {"number": number}, {"positions": np.full(3, number)})
        checkpoint.close()
        connection = sqlite3.connect(tmp_path / "run" / CHECKPOINT)
        try:
            connection.execute(edit)
            connection.commit()
        except sqlite3.IntegrityError:
            return  # SQLite itself does not let it
        finally:
            connection.close()
        if "ADD COLUMN" in edit:  # (nothing of ours was touched)
            assert len(Checkpoint(tmp_path / "run").parts) == 3
            return
        with pytest.raises(CheckpointError, match=r"damaged|could not be|before it had begun"):
            _ = Checkpoint(tmp_path / "run").facts

    def test_one_process_at_a_time(self, tmp_path):
        checkpoint = begun(tmp_path / "run")
        script = "import sys; from dpmcmc.inference.checkpoint import Checkpoint; Checkpoint(sys.argv[1])"
        command = [sys.executable, "-c", script, tmp_path / "run"]
        other = subprocess.run(command, capture_output=True, text=True)
        assert "another process is at the run" in other.stderr
        checkpoint.close()
        assert subprocess.run(command, capture_output=True).returncode == 0

    def test_one_that_was_removed_while_it_was_waited_for(self, tmp_path, monkeypatch):
        """Who opened the file before it was removed would go on with what nobody else can see."""
        begun(tmp_path / "run").close()
        connect = sqlite3.connect

        def late(*arguments, **options):
            connection = connect(*arguments, **options)
            connection.execute("SELECT COUNT(*) FROM parts")  # SQLite opens a file when it needs it
            (tmp_path / "run" / CHECKPOINT).unlink()
            return connection

        monkeypatch.setattr(sqlite3, "connect", late)
        with pytest.raises(CheckpointError):
            Checkpoint(tmp_path / "run")
