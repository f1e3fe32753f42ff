"""Several processes, locks, full disks and kills: what was charged is in the ledger, and no more than there is."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest

from dpmcmc.errors import LedgerError
from dpmcmc.privacy import storage
from dpmcmc.privacy.ledger import Ledger, affordable_epsilon
from tests.privacy.ledgers import read

DELTA = 1e-6
PROCESS = Path(__file__).parent / "ledger_process.py"


def begin(place, action, start, epsilon, cost=Fraction(0)):
    command = [sys.executable, str(PROCESS), str(place), action, str(start), str(epsilon), str(cost)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends(processes):
    """Wait for all; return the last number that each has printed."""
    said = [process.communicate(timeout=120) for process in processes]
    assert [error for _, error in said if error] == []
    return [int(out.split()[-1]) for out, _ in said]


def total_of(ledger):
    return ledger._state.pool()[0]


# ----------------------------------------------------------------------------------------------------------- races


def test_four_processes_share_ten_blocks(ledger_place):
    ledger = Ledger.create(ledger_place, epsilon=1.0, delta=DELTA)
    start = time.time() + 2.0
    done = ends([begin(ledger_place, "blocks", start, 1.0, total_of(ledger) / 10) for _ in range(4)])
    assert sum(done) == 10
    status = ledger.verify()
    assert status.mu_left == 0.0
    assert sorted(run.num_charges for run in status.runs) == sorted(done)


def test_of_four_processes_that_hold_two_find_room(ledger_place):
    ledger = Ledger.create(ledger_place, epsilon=1.0, delta=DELTA)
    epsilon = affordable_epsilon(total_of(ledger) / 2, DELTA)
    done = ends([begin(ledger_place, "hold", time.time() + 2.0, epsilon) for _ in range(4)])
    assert sorted(done) == [0, 0, 1, 1]
    assert len(ledger.verify().runs) == 2


def test_threads_share_a_ledger(ledger_place):
    ledger = Ledger.create(ledger_place, epsilon=1.0, delta=DELTA)
    account, cost, done = ledger.open_run("gaussian", 1.0, DELTA), total_of(ledger) / 12, []

    def charge():
        for _ in range(3):
            done.append(account.charge("mu", cost))

    threads = [threading.Thread(target=charge) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(3, 15))
    assert ledger.verify().mu_left == 0.0


# ----------------------------------------------------------------------------------------------------------- locks


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(storage, "PATIENCE", 0.3)
    monkeypatch.setattr(storage, "PATIENCE_ON_THE_WAY", 0.3)


class _Lock:
    """Another one who writes, and does not end."""

    def __init__(self, place):
        if "://" in place:
            import psycopg

            self._connection = psycopg.connect(place)
            self._connection.execute("LOCK TABLE dpmcmc_ledger IN EXCLUSIVE MODE")
        else:
            self._connection = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
            self._connection.execute("BEGIN IMMEDIATE")

    def release(self):
        self._connection.rollback()
        self._connection.close()


def test_locked_for_too_long(ledger_place, impatient):
    ledger = Ledger.create(ledger_place, epsilon=1.0, delta=DELTA)
    account = ledger.open_run("gaussian", 0.5, DELTA)
    lock = _Lock(ledger_place)
    begun = time.monotonic()
    for action in (
        lambda: account.charge("mu", Fraction(1, 1000)),
        lambda: ledger.open_run("gaussian", 0.1, DELTA),
        lambda: ledger.reserve(0.1),
    ):
        with pytest.raises(LedgerError, match="another process has it locked; try again later") as caught:
            action()
        assert "\n" not in str(caught.value)
    assert time.monotonic() - begun < 20.0
    assert ledger.status().num_entries == 2  # who only reads need not wait
    lock.release()
    assert ledger.verify().num_entries == 2
    account.charge("mu", Fraction(1, 1000))


def test_locked_for_a_while(ledger_place, monkeypatch):
    ledger = Ledger.create(ledger_place, epsilon=1.0, delta=DELTA)
    account = ledger.open_run("gaussian", 0.5, DELTA)
    lock = _Lock(ledger_place)
    release = threading.Timer(0.7, lock.release)
    begun = time.monotonic()
    release.start()
    account.charge("mu", Fraction(1, 1000))
    assert time.monotonic() - begun > 0.5  # it did wait
    release.join()
    assert ledger.verify().num_entries == 3


def test_patience_is_longer_on_the_way():
    assert storage.PATIENCE_ON_THE_WAY > 2 * storage.PATIENCE >= 10.0


# ------------------------------------------------------------------------------------------------------------ disks


@pytest.fixture
def small_disk():
    """A disk of 200 kB."""
    folder = tempfile.mkdtemp(prefix="dpmcmc-small-disk-")
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "none", folder]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        shutil.rmtree(folder)
        pytest.skip("NOT TESTED on a full disk: mounting a small one takes root; see the test with a limit of pages")
    try:
        yield Path(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        shutil.rmtree(folder)


def _charge_on(account, done, length):
    """Charge until there is no room, at most a thousand times."""
    for _ in range(1000):
        done.append(account.charge("mu", Fraction(1, 10**6), what={"note": "x" * length}))


def test_a_full_disk(small_disk):
    place = small_disk / "people.ledger"
    ledger = Ledger.create(place, epsilon=1.0, delta=DELTA)
    account, done = ledger.open_run("gaussian", 1.0, DELTA), []
    with pytest.raises(LedgerError, match=r"full|cannot be written") as caught:
        _charge_on(account, done, length=5000)
    assert "\n" not in str(caught.value)
    assert len(done) > 3
    # Moved to where there is room, for SQLite needs some to read.
    with tempfile.TemporaryDirectory() as folder:
        for file in small_disk.iterdir():
            shutil.copy(file, folder)
        again = Ledger(Path(folder) / place.name)
        assert again.verify().num_entries == len(done) + 2
        assert read(again.place).mu == Fraction(len(done), 10**6)
        again.account(1).charge("mu", Fraction(1, 10**6))


def test_a_full_disk_leaves_no_half_of_a_new_ledger(small_disk):
    (small_disk / "filler").write_bytes(b"x" * 190_000)
    with pytest.raises(LedgerError, match=r"full|cannot be written"):
        Ledger.create(small_disk / "people.ledger", epsilon=1.0, delta=DELTA)
    assert [file.name for file in small_disk.iterdir()] == ["filler"]


def test_no_more_pages(tmp_path):
    """A full disk, where none can be mounted: SQLite is told that there is no more room."""
    ledger = Ledger.create(tmp_path / "people.ledger", epsilon=1.0, delta=DELTA)
    account, connect = ledger.open_run("gaussian", 1.0, DELTA), ledger._storage._connect

    def limited():
        connection = connect()
        connection.execute("PRAGMA max_page_count = 12")
        return connection

    ledger._storage._engine.pool._creator = limited
    done = []
    with pytest.raises(LedgerError, match="the disk is full; make room"):
        _charge_on(account, done, length=1000)
    assert len(done) > 3
    ledger._storage._engine.pool._creator = connect
    assert ledger.verify().num_entries == len(done) + 2 == read(ledger.place).number
    account.charge("mu", Fraction(1, 10**6), what={"note": "x" * 1000})


# ------------------------------------------------------------------------------------------------------------ kills


def _killed(place, times, seed):
    Ledger.create(place, epsilon=1.0, delta=DELTA)
    cost, generator = Fraction(1, 10**9), random.Random(seed)
    known = 0
    for trial in range(times):
        process = begin(place, "report", 0.0, 1.0, cost)
        first = process.stdout.readline()  # it has begun
        assert first == "1\n", process.stderr.read()
        time.sleep(generator.uniform(0.0, 0.1))
        process.send_signal(signal.SIGKILL)
        # (Not by `communicate`, which would miss what came with the first line and is in the buffer.)
        reported = [1, *(int(line) for line in process.stdout.read().split())]
        process.communicate()
        run = Ledger(place).verify().runs[-1]
        assert run.run == trial + 1
        assert len(reported) <= run.num_charges <= len(reported) + 1
        assert run.spent == run.num_charges * cost
        known += run.num_charges
    if "://" not in str(place):
        assert read(place).mu == known * cost
    assert known > times  # it was not always killed at once


def test_killed_at_any_moment(ledger_place):
    _killed(ledger_place, 6, seed=1)


@pytest.mark.slow
def test_killed_fifty_times(ledger_place):
    _killed(ledger_place, 50, seed=2)


def test_killed_while_it_is_made(tmp_path):
    """There is a whole ledger, or one that says that it is none; never a ledger with half of an entry."""
    script = "import sys; from dpmcmc.privacy.ledger import Ledger; import dpmcmc.privacy.storage; "
    script += "print(1, flush=True); sys.stdin.readline(); Ledger.create(sys.argv[1], epsilon=1.0, delta=1e-6)"
    outcomes, generator = set(), random.Random(3)
    for trial in range(8):
        place = tmp_path / f"people{trial}.ledger"
        command = [sys.executable, "-c", script, str(place)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(generator.uniform(0.0, 0.08))
        process.kill()
        process.communicate()
        if not place.exists():
            outcomes.add("none")
            continue
        try:
            assert Ledger(place).verify().num_entries == 1
            outcomes.add("whole")
        except LedgerError:
            place.unlink()
            outcomes.add("made again")
            assert Ledger.create(place, epsilon=1.0, delta=DELTA).verify().num_entries == 1
    assert outcomes <= {"none", "whole", "made again"}


def test_a_reader_that_stays_does_not_keep_others_from_writing(tmp_path):
    ledger = Ledger.create(tmp_path / "people.ledger", epsilon=1.0, delta=DELTA)
    with closing(sqlite3.connect(ledger.place, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM dpmcmc_ledger").fetchall()
        ledger.open_run("gaussian", 1.0, DELTA).charge("mu", Fraction(1, 1000))
    assert ledger.verify().num_entries == 3
