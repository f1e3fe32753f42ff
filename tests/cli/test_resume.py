"""`dpmcmc sample`, `resume` and `ledger` when things go wrong: real processes that are killed, disks that are full.

What is added up is added up by `tests.faults`, which knows nothing of the package.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import dpmcmc
from dpmcmc.inference.checkpoint import CHARGES, CHECKPOINT, Checkpoint
from dpmcmc.privacy import storage
from tests import faults
from tests.cli import people
from tests.cli.running import answer, refusal, run

FILES = ["posterior.nc", "privacy.json", "privacy.txt", "report.html", "summary.csv"]
EPSILON, DELTA = 60, 1e-4


@pytest.fixture
def folder(tmp_path):
    """A table, its schema, and a ledger whose total is one run of `people.arguments`."""
    return furnished(tmp_path)


def furnished(folder, epsilon=EPSILON):
    people.write_csv(folder / "people.csv", people.columns())
    people.write_schema(folder / "people.schema.yaml")
    run("ledger", "create", folder / "people.ledger", "--epsilon", epsilon, "--delta", DELTA)
    return folder


def sampling(folder, **changes):
    """Arguments of a run with the ledger, by the sampler that is quickest."""
    return people.arguments(folder, **({"sampler": "dp-laplace", "ledger": folder / "people.ledger"} | changes))


def assert_complete(place, ledger=None, run_number=1):
    """The folder is whole, the statement checks itself, and the ledger, added up, says the same."""
    assert sorted(os.listdir(place)) == FILES
    posterior = dpmcmc.Posterior.load(place / "posterior.nc")
    statement = posterior.privacy
    statement.check()
    assert json.loads((place / "privacy.json").read_text())["mu"] == statement.mu
    assert all(np.all(np.isfinite(values)) for values in posterior.draws.values())
    if ledger is not None:
        charged = faults.audit(ledger).runs[run_number]
        assert charged.how == "complete"
        assert charged.spent <= statement.mu <= float(charged.spent) * (1 + 1e-9)
        assert charged.answers == sum(statement.queries.values())
    return posterior


# ------------------------------------------------------------------ kill -9


def start(arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "dpmcmc.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def charges_in(ledger):
    try:
        with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=0.1)) as connection:
            return connection.execute("SELECT COUNT(*) FROM dpmcmc_ledger WHERE kind = 'charge'").fetchone()[0]
    except sqlite3.Error:
        return 0


def send(process, signal_number, *, after=None, charges=None, ledger=None, file=None, limit=120.0):
    """Send a signal so many seconds after the start, or when the ledger has so many charges, or a file is there."""
    end = time.monotonic() + limit
    due = None if after is None else time.monotonic() + after
    while process.poll() is None and time.monotonic() < end:
        if due is not None and time.monotonic() >= due:
            break
        if charges is not None and charges_in(ledger) >= charges:
            break
        if file is not None and file.exists():
            break
        time.sleep(0.001)
    if process.poll() is None:
        process.send_signal(signal_number)
    output, errors = process.communicate(timeout=limit)
    return process.returncode, output, errors


class Life:
    """A run that is killed and goes on, in real processes."""

    def __init__(self, folder):
        self.folder, self.place, self.ledger = folder, folder / "run", folder / "people.ledger"
        self.kills, self.begun, self.done = 0, False, False

    @property
    def command(self):
        return ["resume", self.place] if self.begun else sampling(self.folder)

    def kill(self, **when):
        """Kill one process of it; see that nothing was forgotten, and nothing half written."""
        before = charges_in(self.ledger)
        code, _, errors = send(start(self.command), signal.SIGKILL, ledger=self.ledger, **when)
        if code == 0:
            self.done = True
            return
        if code == -signal.SIGKILL:
            self.kills += 1
        else:  # it has said that there is nothing to go on with
            assert code == 2, errors
            assert re.search("there is no folder|there is no run|before it had begun", errors), errors
            assert charges_in(self.ledger) == before == 0
        faults.audit(self.ledger)
        self.begun = code == -signal.SIGKILL and (self.begun or self.place.exists())
        posterior = self.place / "posterior.nc"
        if posterior.exists():
            dpmcmc.Posterior.load(posterior)

    def finish(self):
        """Let it come to its end, and add up."""
        for _ in range(3):
            if self.done:
                break
            self.kill(after=300.0)
        assert self.done
        assert_complete(self.place, self.ledger)
        # (This test's own looks at the ledger, which may not write, leave its log.)
        names = [name for name in sorted(os.listdir(self.folder)) if not name.startswith("people.ledger-")]
        assert names == ["people.csv", "people.ledger", "people.schema.yaml", "run"]


def test_kill_at_some_moments(folder):
    """While it imports, compiles, asks (three times, two of them of a resumed process) and writes its results."""
    life = Life(folder)
    life.kill(after=0.4)
    life.kill(file=life.place / CHECKPOINT)
    life.kill(charges=4)
    life.kill(charges=charges_in(life.ledger) + 3)
    life.kill(charges=charges_in(life.ledger) + 20)
    life.kill(file=life.place / "posterior.nc")
    assert life.kills >= 5  # (the last may come too late)
    life.finish()


@pytest.mark.slow
def test_kill_at_fifty_random_moments(tmp_path):
    """Half of them at any time from the start on, half between two charges; some hit a run that was resumed."""
    generator = np.random.default_rng()
    kills = number = resumed = 0
    while kills < 50:
        number += 1
        place = tmp_path / str(number)
        place.mkdir()
        life = Life(furnished(place))
        for _ in range(int(generator.integers(1, 5))):
            was_begun, before = life.begun, life.kills
            if generator.uniform() < 0.5:
                life.kill(after=generator.uniform(0.0, 6.0))
            else:
                life.kill(charges=charges_in(life.ledger) + int(generator.integers(1, 40)))
            resumed += was_begun and life.kills > before
            if life.done:
                break
        kills += life.kills
        life.finish()
    print(f"{kills} kills of {number} runs, {resumed} of them after a resume")
    assert resumed


def test_twin_charges_that_were_forgotten_would_be_noticed(folder):
    """By the sums, and, where an entry is just left out, by the chain of hashes."""
    run(*sampling(folder))
    ledger = folder / "people.ledger"
    assert_complete(folder / "run", ledger)
    with contextlib.closing(sqlite3.connect(ledger)) as connection, connection:
        (number,) = connection.execute("SELECT MAX(number) FROM dpmcmc_ledger WHERE kind = 'charge'").fetchone()
        connection.execute("DELETE FROM dpmcmc_ledger WHERE number = ?", (number,))
    with pytest.raises(AssertionError):
        faults.audit(ledger)
    found, whole = json.loads((folder / "run" / "privacy.json").read_text()), faults.delta_of
    assert whole(found["mu"], EPSILON) <= DELTA < whole(found["mu"] * 1.2, EPSILON)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_run_that_goes_on(number, folder):
    ledger = folder / "people.ledger"
    code, output, errors = send(start(sampling(folder, quiet=True)), number, charges=5, ledger=ledger)
    assert code == 130, errors
    assert output == ""
    (line,) = errors.splitlines()
    assert line.startswith("Interrupted before there were any draws; what was charged counts")
    assert f"go on with `dpmcmc resume {folder / 'run'}`" in line
    assert sorted(os.listdir(folder / "run")) == [CHECKPOINT]
    spent = faults.audit(ledger).spent
    assert spent > 0
    result = run("resume", folder / "run")
    assert "What was spent and released" in result.stdout
    assert_complete(folder / "run", ledger)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A folder with a run that was killed after some charges."""
    folder = furnished(tmp_path_factory.mktemp("killed"))
    code, *_ = send(start(sampling(folder)), signal.SIGKILL, charges=5, ledger=folder / "people.ledger")
    assert code == -signal.SIGKILL
    return folder


@pytest.fixture
def stopped(killed, tmp_path):
    """A copy of that run and of its ledger: the folder, and what `resume` takes."""
    shutil.copytree(killed / "run", tmp_path / "run")
    for path in killed.glob("people.ledger*"):
        shutil.copy(path, tmp_path / path.name)
    return tmp_path, ["resume", tmp_path / "run", "--ledger", tmp_path / "people.ledger"]


def test_two_resumes_at_once(stopped):
    folder, command = stopped
    first, second = start(command), start(command)
    results = [process.communicate(timeout=120) for process in (first, second)]
    codes = [first.returncode, second.returncode]
    assert sorted(codes) == [0, 2], results
    told = results[codes.index(2)][1].splitlines()[-1]
    assert re.search("another process is at the run|has just ended", told)
    assert_complete(folder / "run", folder / "people.ledger")


def test_a_resume_beside_a_run_that_is_at_it(stopped):
    folder, command = stopped
    other = Checkpoint(folder / "run")
    entries = faults.audit(folder / "people.ledger").num_entries
    result = run(*command, code=2)
    assert "another process is at the run" in result.stderr.splitlines()[-1]
    assert faults.audit(folder / "people.ledger").num_entries == entries
    other.close()
    run(*command)
    assert_complete(folder / "run", folder / "people.ledger")


@pytest.mark.slow
def test_two_runs_into_one_folder_at_once(tmp_path):
    folder = furnished(tmp_path, epsilon=200)
    processes = [start(sampling(folder)) for _ in range(2)]
    results = [process.communicate(timeout=120) for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 2], results
    found = faults.audit(folder / "people.ledger")
    assert len(found.runs) == 1
    assert_complete(folder / "run", folder / "people.ledger")


def test_a_folder_with_a_run_that_goes_on_is_not_taken(stopped, killed):
    folder, _ = stopped
    for options in ({}, {"overwrite": True}):
        line = refusal(*sampling(killed, out=folder / "run", quiet=True, **options))
        assert f"go on with it by `dpmcmc resume {folder / 'run'}`" in line


# ------------------------------------------------------------------ disks


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 4 MB of its own; skipped where none may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip("no disk can be mounted here (are you root?), so that full and read-only ones are NOT tested")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(disk, left):
    """Fill a disk but for so many bytes."""
    free = shutil.disk_usage(disk).free
    (disk / "filler").write_bytes(bytes(max(0, free - left)))


def test_a_disk_that_becomes_full_under_the_run(small_disk, tmp_path):
    folder = furnished(tmp_path)
    fill(small_disk, 60_000)
    result = run(*sampling(folder, out=small_disk / "run"), code=1)
    line = result.stderr.splitlines()[-1]
    assert "the disk is full" in line
    assert f"go on with `dpmcmc resume {small_disk / 'run'}`" in line
    again = run("resume", small_disk / "run", code=1)
    assert "full" in again.stderr
    (small_disk / "filler").unlink()
    run("resume", small_disk / "run")
    assert_complete(small_disk / "run", folder / "people.ledger")


def test_a_disk_that_is_full_from_the_start(small_disk, tmp_path):
    folder = furnished(tmp_path)
    fill(small_disk, 0)
    line = run(*sampling(folder, out=small_disk / "run"), code=2).stderr.splitlines()[-1]
    assert re.search("No space left|disk is full", line)
    (small_disk / "filler").unlink()
    run(*sampling(folder, out=small_disk / "run"))
    assert_complete(small_disk / "run", folder / "people.ledger")


def test_a_disk_that_is_full_in_the_end(small_disk, tmp_path):
    """The checkpoint has room, the results have not."""
    folder = furnished(tmp_path)
    fill(small_disk, 300_000)
    result = run(*sampling(folder, out=small_disk / "run"), code=1)
    assert "the run is done, but" in result.stderr
    assert "What was spent and released" in result.stdout
    spent = faults.audit(folder / "people.ledger").spent
    (small_disk / "filler").unlink()
    run("resume", small_disk / "run")
    assert_complete(small_disk / "run", folder / "people.ledger")
    assert faults.audit(folder / "people.ledger").spent == spent


def test_a_disk_that_becomes_full_under_the_ledger(small_disk, tmp_path):
    folder = furnished(tmp_path)
    shutil.move(folder / "people.ledger", small_disk / "people.ledger")
    fill(small_disk, 60_000)
    command = sampling(folder, ledger=small_disk / "people.ledger")
    result = run(*command, code=1)
    line = result.stderr.splitlines()[-1]
    assert "the disk is full; make room" in line
    assert f"go on with `dpmcmc resume {folder / 'run'}`" in line
    (small_disk / "filler").unlink()
    run("resume", folder / "run")
    assert_complete(folder / "run", small_disk / "people.ledger")


def remount(disk, how):
    subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


def test_a_read_only_folder_or_ledger(small_disk, tmp_path):
    folder = furnished(tmp_path)
    shutil.copy(folder / "people.ledger", small_disk / "people.ledger")
    remount(small_disk, "ro")
    for changes in ({"out": small_disk / "run"}, {"ledger": small_disk / "people.ledger"}):
        line = run(*sampling(folder, **changes), code=2).stderr.splitlines()[-1]
        assert re.search("Read-only|is read-only; change the permissions", line), line
    assert faults.audit(folder / "people.ledger").spent == 0
    assert not (folder / "run").exists()
    remount(small_disk, "rw")


def test_a_folder_that_became_read_only(small_disk, stopped):
    folder, command = stopped
    shutil.move(folder / "run", small_disk / "run")
    remount(small_disk, "ro")
    spent = faults.audit(folder / "people.ledger").spent
    command = ["resume", small_disk / "run", "--ledger", folder / "people.ledger"]
    assert "read-only" in run(*command, code=2).stderr
    assert faults.audit(folder / "people.ledger").spent == spent
    remount(small_disk, "rw")
    run(*command)
    assert_complete(small_disk / "run", folder / "people.ledger")


# ------------------------------------------------------------------ a ledger that somebody else has


class Holder:
    """Somebody who has a ledger locked."""

    def __init__(self, path):
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("BEGIN EXCLUSIVE")

    def let_go(self):
        self._connection.execute("ROLLBACK")
        self._connection.close()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(storage, "PATIENCE", 0.2)
    monkeypatch.setattr(storage, "PATIENCE_ON_THE_WAY", 0.3)


@pytest.mark.usefixtures("impatient")
def test_a_ledger_that_is_locked_before_the_run(folder):
    other = Holder(folder / "people.ledger")
    line = run(*sampling(folder), code=2).stderr.splitlines()[-1]
    assert "another process has it locked; try again later" in line
    assert not (folder / "run").exists()
    other.let_go()
    run(*sampling(folder))
    assert_complete(folder / "run", folder / "people.ledger")


def lock_at(monkeypatch, ledger, number):
    """Let somebody lock the ledger when the n-th part of a run is written; return the list that will hold them."""
    holders, count, append = [], [], Checkpoint.append

    def watched(checkpoint, *arguments):
        append(checkpoint, *arguments)
        count.append(1)
        if len(count) == number:
            holders.append(Holder(ledger))

    monkeypatch.setattr(Checkpoint, "append", watched)
    return holders


@pytest.mark.usefixtures("impatient")
def test_a_ledger_that_is_locked_in_the_middle_for_too_long(folder, monkeypatch):
    ledger = folder / "people.ledger"
    holders = lock_at(monkeypatch, ledger, 10)
    line = run(*sampling(folder), code=1).stderr.splitlines()[-1]
    assert "another process has it locked; try again later" in line
    assert f"go on with `dpmcmc resume {folder / 'run'}`" in line
    holders[0].let_go()
    run("resume", folder / "run")
    posterior = assert_complete(folder / "run", ledger)
    assert not any("lost" in kind for kind in posterior.privacy.queries)


def test_a_ledger_that_is_locked_in_the_middle_is_waited_for(folder, monkeypatch):
    ledger = folder / "people.ledger"
    holders = lock_at(monkeypatch, ledger, 10)
    waited = threading.Event()

    def let_go_later():
        while not holders:
            time.sleep(0.01)
        time.sleep(1.0)
        holders[0].let_go()
        waited.set()

    thread = threading.Thread(target=let_go_later)
    thread.start()
    run(*sampling(folder))
    thread.join()
    assert waited.is_set()
    assert_complete(folder / "run", ledger)


# ------------------------------------------------------------------ a budget that lasts


def test_runs_that_share_a_ledger(tmp_path):
    """The second is told what is left, the third is refused, and what it could have really fits."""
    folder = furnished(tmp_path, epsilon=130)
    ledger = folder / "people.ledger"
    first = run(*sampling(folder, out=folder / "first"))
    second = run(*sampling(folder, out=folder / "second"))
    for number, result in enumerate((first, second), 1):
        posterior = assert_complete(folder / ("first", "second")[number - 1], ledger, number)
        standing = posterior.privacy.ledger
        assert standing["run"] == number
        assert f"{standing['left_epsilon']:g}" in result.stdout
        text = " ".join((folder / ("first", "second")[number - 1] / "privacy.txt").read_text().split())
        assert f"{standing['left_epsilon']:g}" in text
    line = run(*sampling(folder, out=folder / "third"), code=3).stderr.splitlines()[-1]
    could = float(re.search(r"could have ε = ([\d.]+)", line)[1])
    assert not (folder / "third").exists()
    assert len(faults.audit(ledger).runs) == 2
    shown = answer("ledger", "show", ledger)
    assert shown["mu_held"] == 0.0
    too_much = run(*sampling(folder, out=folder / "third", epsilon=could * 1.01), code=3)
    assert "could have" in too_much.stderr
    run(*sampling(folder, out=folder / "third", epsilon=could))
    assert_complete(folder / "third", ledger, 3)
    run("ledger", "verify", ledger, "--statement", folder / "first" / "privacy.json")


def test_without_a_ledger_a_run_stands_alone(folder):
    result = run(*people.arguments(folder, sampler="dp-laplace"))
    assert "stands alone" in " ".join((folder / "run" / "privacy.txt").read_text().split())
    assert "alone" in result.stdout
    assert_complete(folder / "run")


def test_other_data_need_a_word(tmp_path):
    """A correction of one value is not the data that the ledger knows, unless somebody says that it is."""
    folder = furnished(tmp_path, epsilon=200)
    ledger = folder / "people.ledger"
    run(*sampling(folder))
    table = people.columns()
    table["age"][200] = "41" if table["age"][200] != "41" else "42"
    people.write_csv(folder / "people.csv", table)
    spent = faults.audit(ledger).spent
    line = run(*sampling(folder, out=folder / "again"), code=2).stderr.splitlines()[-1]
    assert "--same-people" in line
    assert faults.audit(ledger).spent == spent
    assert not (folder / "again").exists()
    run(*sampling(folder, out=folder / "again", same_people=True))
    assert_complete(folder / "again", ledger, 2)
    assert [one["same_people"] for one in answer("ledger", "show", ledger)["runs"]] == [False, True]


def test_a_word_that_outlives_a_crash(tmp_path, monkeypatch):
    """Killed after the folder was made and before the ledger knew of the run: resume remembers --same-people."""
    folder = furnished(tmp_path, epsilon=200)
    run(*sampling(folder))
    table = people.columns()
    table["age"][200] = "41" if table["age"][200] != "41" else "42"
    people.write_csv(folder / "people.csv", table)
    command = sampling(folder, out=folder / "again", same_people=True)

    def crash(*_, **__):
        raise faults.Crash

    with monkeypatch.context() as patch:
        patch.setattr(dpmcmc.Ledger, "open_run", crash)
        assert faults.Crashes(patch).at(1000, True, lambda: run(*command)) is None
    assert os.listdir(folder / "again") == [CHECKPOINT]
    run("resume", folder / "again")
    assert_complete(folder / "again", folder / "people.ledger", 2)


@pytest.mark.parametrize("change", ["a value", "fewer rows", "no file", "another column"])
def test_another_table_is_noticed_before_anything_is_spent(change, stopped, killed):
    folder, command = stopped
    original = (killed / "people.csv").read_bytes()
    table = people.columns(399 if change == "fewer rows" else 400)
    if change == "a value":
        table["hours"][17] = "33.25"
    if change == "another column":
        table.pop("age")
    try:
        people.write_csv(killed / "people.csv", table)
        if change == "no file":
            (killed / "people.csv").unlink()
        spent = faults.audit(folder / "people.ledger").spent
        result = run(*command, code=2)
        assert "Traceback" not in result.output
        assert faults.audit(folder / "people.ledger").spent == spent
    finally:
        (killed / "people.csv").write_bytes(original)
    run(*command)
    assert_complete(folder / "run", folder / "people.ledger")


def test_a_file_that_was_changed_is_told_of_where_no_ledger_knows_it(folder, monkeypatch):
    with monkeypatch.context() as patch:
        assert faults.Crashes(patch).at(8, True, lambda: run(*sampling(folder, ledger=None))) is None
    os.utime(folder / "people.csv", ns=(1, 1))
    assert "was changed since this run was begun" in run("resume", folder / "run").output


# ------------------------------------------------------------------ what is no run


def test_a_complete_run_is_shown(folder):
    run(*sampling(folder))
    before = {path.name: path.read_bytes() for path in (folder / "run").iterdir()}
    entries = faults.audit(folder / "people.ledger").num_entries
    result = run("resume", folder / "run")
    assert "is complete; nothing is left to do" in result.stderr
    assert "What was spent and released" in result.stdout
    assert {path.name: path.read_bytes() for path in (folder / "run").iterdir()} == before
    assert faults.audit(folder / "people.ledger").num_entries == entries
    assert answer("resume", folder / "run")["private"] is True


def test_what_is_no_run(tmp_path):
    assert "there is no folder" in refusal("resume", tmp_path / "nowhere")
    assert "there is no run in" in refusal("resume", tmp_path)
    (tmp_path / CHECKPOINT).write_bytes(b"")
    assert "before it had begun" in refusal("resume", tmp_path)
    (tmp_path / CHECKPOINT).write_bytes(b"not a database" * 1000)
    assert "is damaged" in refusal("resume", tmp_path)
    assert sorted(os.listdir(tmp_path)) == [CHECKPOINT]


def test_a_run_of_python(tmp_path, monkeypatch):
    model = dpmcmc.models.GaussianMean(np.eye(2))
    data = np.random.default_rng(1).normal(size=(500, 2))
    crashes = faults.Crashes(monkeypatch)
    options = {"sampler": dpmcmc.DPLaplace(), "epsilon": 20.0, "delta": 1e-6, "progress": False}
    assert crashes.at(9, True, lambda: dpmcmc.sample(model, data, checkpoint=tmp_path / "run", **options)) is None
    assert sorted(os.listdir(tmp_path / "run")) == [CHARGES, CHECKPOINT]
    assert "was begun in Python" in refusal("resume", tmp_path / "run")
    dpmcmc.resume(tmp_path / "run", model, data, progress=False)
    assert_complete(tmp_path / "run")
    run("resume", tmp_path / "run")


# ------------------------------------------------------------------ dpmcmc ledger


class TestLedger:
    @pytest.fixture
    def place(self, tmp_path):
        run("ledger", "create", tmp_path / "people.ledger", "--epsilon", 4, "--delta", 1e-6, "--name", "the people")
        return tmp_path / "people.ledger"

    def test_create(self, place, tmp_path):
        assert place.stat().st_mode & 0o777 == 0o600
        assert "is never replaced" in refusal("ledger", "create", place, "--epsilon", 5, "--delta", 1e-6)
        for epsilon, delta in (("-1", "1e-6"), ("nan", "1e-6"), ("1", "0"), ("1", "2")):
            line = refusal("ledger", "create", tmp_path / "other", f"--epsilon={epsilon}", "--delta", delta)
            assert "epsilon" in line or "delta" in line
        assert sorted(os.listdir(tmp_path)) == ["people.ledger"]

    def test_show(self, place):
        shown = answer("ledger", "show", place)
        assert (shown["name"], shown["epsilon"], shown["left_epsilon"]) == ("the people", 4.0, 4.0)
        each = shown["would_buy"]["epsilon_of_equal_runs"]
        assert 4.0 == each["1"] > each["2"] > 2.0
        text = run("ledger", "show", place).stdout
        assert "Ledger the people" in text
        assert "2 runs of ε" in text

    def test_verify(self, place, tmp_path):
        assert answer("ledger", "verify", place)["verified"] is True
        text = run("ledger", "verify", place).stdout
        assert text.startswith("Ledger the people: 1 entry, each with the hash")  # as in `show`: no path
        with contextlib.closing(sqlite3.connect(place)) as connection, connection:
            connection.execute("UPDATE dpmcmc_ledger SET payload = replace(payload, '4.0', '9.0')")
        line = refusal("ledger", "verify", place)
        assert "entry 1: it was edited" in line
        assert "not as it was written" in refusal("ledger", "show", place)
        assert "cannot be read" in refusal("ledger", "verify", place, "--statement", tmp_path / "nothing.json")

    def test_reserve(self, place):
        text = run("ledger", "reserve", place, "--epsilon", 1, "--delta", 1e-7, "--note", "an older release", "--used")
        assert "ε = 1" in text.stdout
        shown = answer("ledger", "show", place)
        assert shown["apart_used_epsilon"] == 1.0
        assert shown["left_epsilon"] < 4.0
        assert shown["reserves"][0]["note"] == "an older release"
        line = refusal("ledger", "reserve", place, "--epsilon", 4, code=3)
        assert "is left of the total" in line

    def test_close(self, place):
        ledger = dpmcmc.Ledger(place)
        ledger.open_run("gaussian", 3.0, 1e-6)
        assert "holds μ" in run("ledger", "show", place).stdout
        assert answer("ledger", "show", place)["left_epsilon"] < 2.5
        assert "largest ε of a further run is now 4" in run("ledger", "close", place, 1).stdout
        assert "has ended" in refusal("ledger", "close", place, 1)
        assert "there is no run 7" in refusal("ledger", "close", place, 7)

    def test_none(self, tmp_path):
        for command in ("show", "verify"):
            assert "there is no such file" in refusal("ledger", command, tmp_path / "none")
        (tmp_path / "text").write_text("not a ledger " * 1000)
        assert "no ledger at all" in refusal("ledger", "show", tmp_path / "text")

    @pytest.mark.parametrize("command", ["create", "show", "verify", "reserve", "close"])
    def test_help(self, command):
        text = run("ledger", command, "--help").stdout
        assert "FILE|URL" in text
        assert "Examples" in text


def test_a_closed_run_cannot_go_on(stopped):
    folder, command = stopped
    place = folder / "people.ledger"
    assert f"`dpmcmc ledger close {place} 1` frees" in run("ledger", "show", place).stdout
    run("ledger", "close", place, 1)
    assert "frees what it holds" not in run("ledger", "show", place).stdout
    assert "has ended (given up)" in run(*command, code=2).stderr
