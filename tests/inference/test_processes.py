"""Several processes, of which one fails, hangs or is killed: the others stop with an error and do not wait for ever.

`Watch` is tried with a stand-in for JAX's coordination service, and then with real processes. As a program this file is
one of those processes, `python -m tests.inference.test_processes PORT PROCESS FAULT ...`, or starts both: `both FAULT`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.curator import Curator, placement, processes
from dpmcmc.errors import QueryError, RunError

ROOT = Path(__file__).parents[2]


# ------------------------------------------------------------------ one process's view, with a stand-in


class Board:
    """What JAX's coordination service keeps, in this process."""

    def __init__(self):
        self.values, self.changed, self.gone = {}, threading.Condition(), False

    def _check(self):
        if self.gone:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: socket closed")

    def key_value_set(self, key, value, allow_overwrite=False):
        self._check()
        with self.changed:
            assert allow_overwrite or key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def key_value_dir_get(self, key):
        self._check()
        return [(name, value) for name, value in self.values.items() if name.startswith(key)]

    def key_value_delete(self, key):
        self._check()
        with self.changed:
            self.values = {name: value for name, value in self.values.items() if not name.startswith(key)}

    def blocking_key_value_get(self, key, milliseconds):
        self._check()
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, milliseconds / 1000):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: nothing came")
            return self.values[key]


@pytest.fixture
def watches(monkeypatch):
    """Three processes at the beginning of a run; they look and beat often."""
    monkeypatch.setattr(processes, "_BEAT", 0.02)
    monkeypatch.setattr(processes, "_LOOK_AGAIN", 0.02)
    board = Board()
    made = [processes.Watch(board, process, 3, run=1) for process in range(3)]
    for watch in made:
        watch.begin()
    yield board, made
    for watch in made:
        watch.end("done")


def all_meet(watches, brought=("", "", "")):
    """Let processes meet, each in a thread; return what each raised."""
    raised = [None] * len(watches)

    def meet(place):
        try:
            watches[place].meet(brought[place])
        except Exception as error:
            raised[place] = error

    threads = [threading.Thread(target=meet, args=(place,)) for place in range(len(watches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()
    return raised


def test_all_meet_again_and_again_and_leave_nothing_behind(watches):
    board, made = watches
    for _ in range(50):
        assert all_meet(made) == [None] * 3
    assert len(board.values) < 10


def test_one_that_has_failed_stops_the_others(watches):
    _, made = watches
    assert all_meet(made) == [None] * 3
    made[2].end(made[2].state_after(ValueError("Johannes-1234")))
    errors = all_meet(made[:2])
    assert [type(error) for error in errors] == [RunError, RunError]
    assert any("process 2 has failed (ValueError" in str(error) for error in errors)
    assert not any("Johannes" in str(error) for error in errors)
    assert made[0].state_after(errors[0]) == "stopped"


def test_one_that_was_interrupted_is_called_that(watches):
    _, made = watches
    made[1].end(made[1].state_after(KeyboardInterrupt()))
    assert "process 1 was interrupted" in str(all_meet([made[0]])[0])


def test_one_that_is_silent_stops_the_others(watches, monkeypatch):
    _, made = watches
    assert all_meet(made) == [None] * 3
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    made[1]._over.set()  # its thread gives no more signs, and nothing was said
    (error,) = all_meet([made[0]])
    assert "process 1 has given no sign of life" in str(error)


def test_twin_one_that_is_slow_is_waited_for(watches, monkeypatch):
    """Many times as long as another would be that gives no signs."""
    _, made = watches
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    waiting = threading.Thread(target=made[0].meet)
    waiting.start()
    other = threading.Thread(target=made[2].meet)
    other.start()
    time.sleep(1.0)
    assert waiting.is_alive()
    made[1].meet()
    waiting.join(timeout=30)
    other.join(timeout=30)
    assert not waiting.is_alive()
    assert not other.is_alive()


def test_process_0_is_gone(watches):
    board, made = watches
    board.gone = True
    assert "process 0 cannot be reached" in str(all_meet([made[1]])[0])


@pytest.mark.parametrize("hangs", ["key_value_dir_get", "key_value_set"])
def test_process_0_does_not_answer(watches, monkeypatch, hangs):
    """Messages to it hang, for ever; what is said in the end, too."""
    board, made = watches
    monkeypatch.setattr(board, hangs, lambda *_, **__: threading.Event().wait())
    monkeypatch.setattr(processes, "PATIENCE", 0.3)
    monkeypatch.setattr(processes, "_LAST_WORD", 0.3)
    assert "process 0 has not answered" in str(all_meet([made[1]])[0])
    made[1].end("stopped")


def test_other_arguments_are_refused_everywhere(watches):
    _, made = watches
    errors = all_meet(made, ("one", "one", "two"))
    assert [type(error) for error in errors] == [QueryError] * 3
    assert all("process 2 was given another model or other arguments" in str(error) for error in errors)


def test_one_that_has_finished_is_not_waited_for(watches):
    _, made = watches
    made[1].end("done")
    assert "process 1 has finished this run, and this one has not" in str(all_meet([made[0]])[0])


@pytest.mark.parametrize(("needs_others", "ended"), [(True, True), (False, False)])
def test_a_process_that_does_not_come_out_of_a_collective_is_ended(watches, monkeypatch, capfd, needs_others, ended):
    _, made = watches
    codes = []
    monkeypatch.setattr(processes, "GRACE", 0.1)
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), made[0]._over.set()))
    for watch in made:
        watch.needs_others = watch is made[0] and needs_others
    made[1].end("failed ValueError")
    time.sleep(1.0)
    assert codes[:1] == ([processes.EXIT_CODE] if ended else [])
    told = capfd.readouterr().err
    assert ("this process ends, because process 1 has failed (ValueError" in told) == ended


def test_alone_there_is_nothing_to_wait_for():
    with processes.together("anything"):
        processes.meet()
        processes.wait_no_more()
        assert processes._current is None


# ------------------------------------------------------------------ real processes

SAMPLER = dpmcmc.DPPenalty(0.05, 4.0, ratio_noise_multiplier=2.0)
LIMITS = {"patience": 8.0, "grace": 3.0, "heartbeat": 30}


def run_once(process, fault):
    """One run of two processes, of which the second has a fault; return what comes out."""
    records = np.random.default_rng(1).normal(size=(400, 2))[process::2]
    if process == 1 and fault == "no rows":
        records = records[:0]
    options = {"num_steps": 40}
    if process == 1 and fault == "other arguments":
        options["num_steps"] = 41
    pay, broadcast = Curator.pay, placement.multihost_utils.broadcast_one_to_all
    count = []

    def faulty(function):
        def call(*arguments):
            count.append(1)
            if len(count) == 20:
                print(json.dumps({"fault at": time.time()}), flush=True)
                if fault == "raises":
                    raise ValueError("Johannes-1234")
                os.kill(os.getpid(), {"killed": 9, "interrupted": signal.SIGINT}.get(fault, signal.SIGSTOP))
            return function(*arguments)

        return call

    if process == 1 and fault in ("raises", "killed", "interrupted", "stopped"):
        Curator.pay = faulty(pay)
    if process == 1 and fault == "stopped in a collective":  # (the others have met it, and are inside)
        placement.multihost_utils.broadcast_one_to_all = faulty(broadcast)
    try:
        options |= {"epsilon": 50.0, "delta": 1e-6, "progress": False, "init": np.zeros((4, 2))}
        posterior = dpmcmc.sample(dpmcmc.models.GaussianMean(np.eye(2)), records, sampler=SAMPLER, **options)
        return {"draws": posterior.num_draws}
    except (Exception, KeyboardInterrupt) as error:
        kept = getattr(error, "posterior", None)
        draws = None if kept is None else kept.num_draws
        return {"error": type(error).__name__, "text": str(error), "draws": draws, "time": time.time()}
    finally:
        Curator.pay, placement.multihost_utils.broadcast_one_to_all = pay, broadcast


def main(port, process, faults):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"localhost:{port}", 2, process, heartbeat_timeout_seconds=LIMITS["heartbeat"], initialization_timeout=120
    )
    processes.PATIENCE, processes.GRACE = LIMITS["patience"], LIMITS["grace"]
    for fault in faults:
        print(json.dumps(run_once(process, fault)), flush=True)
    os._exit(0)  # JAX would wait for one that was killed


def outcomes(*faults):
    """Run two processes; return what each said in each run, and their exit codes."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.inference.test_processes", port, str(process), *faults],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        for process in range(2)
    ]
    try:
        first = started[0].communicate(timeout=300)
        if started[1].poll() is None:
            time.sleep(1.0)
    finally:
        for one in started:
            one.kill()
    second = started[1].communicate()
    said = [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in (first, second)]
    return said, [one.returncode for one in started], [first[1], second[1]]


def test_one_of_two_processes_has_no_rows_and_later_fails_and_is_killed():
    """Three runs of the same two processes, since it is starting them that takes time; and one between that is well."""
    said, codes, errors = outcomes("no rows", "raises", "", "killed")
    assert len(said[0]) == 4, errors
    empty, failed, well, killed = said[0]
    assert empty["error"] == "RunError"
    assert "process 1 has failed (DataError" in empty["text"]
    assert "nothing was spent" in empty["text"]
    assert said[1][0]["text"] == "data has 0 rows; give at least one record."
    assert failed["error"] == "RunError"
    assert "process 1 has failed" in failed["text"]
    assert "the whole budget counts as spent" in failed["text"]
    assert 0 < failed["draws"] < 40
    assert "Johannes" not in json.dumps(said)
    assert well == {"draws": 20}
    assert killed["error"] == "RunError"
    assert 0 < killed["draws"] < 40
    assert codes == [0, -signal.SIGKILL]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("interrupted", "process 1 has failed"),
        ("stopped", "process 1 has given no sign of life for 8 seconds"),
        ("other arguments", "process 1 was given another model or other arguments"),
    ],
)
def test_one_of_two_processes(fault, words):
    said, _, errors = outcomes(fault)
    assert words in said[0][-1]["text"], errors


@pytest.mark.slow
def test_one_of_two_processes_stops_in_a_collective():
    """The other is waiting where nothing in Python can raise: it is ended, with one line that says why."""
    said, codes, errors = outcomes("stopped in a collective")
    assert said[0] == []
    assert codes[0] == processes.EXIT_CODE
    (line,) = [line for line in errors[0].splitlines() if line.startswith("dpmcmc:")]
    assert "this process ends, because process 1 has given no sign of life for 8 seconds" in line


def both(fault):
    """Two processes, for `trust.faults`: whether the first stopped with an error, and how long after the fault."""
    said, codes, _ = outcomes(fault)
    errors = [one for one in said[0] if "error" in one]
    stopped = bool(errors) or codes[0] == processes.EXIT_CODE
    began = [one["fault at"] for one in said[1] if "fault at" in one]
    seconds = errors[0]["time"] - began[0] if errors and began else None
    limit = LIMITS["patience"] + LIMITS["grace"] + 5.0  # (and looking around)
    print(json.dumps({"stopped": stopped, "seconds": seconds, "limit": limit, "said": said}))


if __name__ == "__main__":
    if sys.argv[1] == "both":
        both(sys.argv[2])
    else:
        main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
