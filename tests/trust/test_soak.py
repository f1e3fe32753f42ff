"""The soak: a few quick rounds, and leaks that were planted."""

import gc
import os
import threading

import pytest

import dpmcmc
from trust import soak
from trust.soak import Reading, judge

QUICK = ("DPPenalty", "bad input", "a broken model")


def readings(number=40, **changes):
    """Rounds in which nothing grows but memory goes up and down by a MB; changes are functions of the round."""
    steady = {"megabytes": lambda k: 500.0 + (k * 7 % 5) / 4, "handles": lambda k: 9, "threads": lambda k: 3}
    steady |= {"left_over": lambda k: 0, "programs": lambda k: 40 + k % 3} | changes
    return [
        Reading(round=place, seconds=60.0 * place, **{name: value(place) for name, value in steady.items()})
        for place in range(number)
    ]


def test_nothing_grows():
    assert judge(readings()).flat
    # What the warm-up takes is not judged, and what goes up and comes down again is no leak.
    assert judge(readings(megabytes=lambda k: 500.0 if k > 3 else 100.0 * k)).flat
    assert judge(readings(megabytes=lambda k: 500.0 + 30.0 * (k == 39))).flat
    assert judge(readings(handles=lambda k: 9 + k % 2)).flat


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("megabytes", lambda k: 500.0 + 0.1 * k + (k * 7 % 5) / 4, "MB a round"),
        ("megabytes", lambda k: 500.0 + 40.0 * (k > 30), "grown by 40.0 MB"),
        ("handles", lambda k: 9 + (k > 25), "file handles: 9 in the first half, 10"),
        ("threads", lambda k: 3 + k // 10, "threads"),
        ("left_over", lambda k: k // 7, "temporary folder"),
        ("programs", lambda k: 40 + k // 4, "compiled programs"),
    ],
)
def test_what_grows_is_said(name, value, said):
    verdict = judge(readings(**{name: value}))
    assert not verdict.flat
    assert said in verdict.problems[0]
    assert "NOT FLAT" in soak.table_of(verdict, readings(**{name: value}))


def test_too_few_rounds_say_nothing():
    with pytest.raises(ValueError, match="longer"):
        judge(readings(6))


def test_a_few_quick_rounds(tmp_path):
    """Handles, threads and left-over files only: memory of so few rounds is still that of the warm-up."""
    work = soak.operations()
    found = soak.soak({name: work[name] for name in QUICK}, tmp_path, seconds=3600, rounds=7, say=lambda text: None)
    verdict = judge(found)
    assert verdict.handles_grown <= 0
    assert verdict.threads_grown <= 0
    assert verdict.left_over_grown <= 0
    assert verdict.programs_grown <= 0
    assert min(reading.handles for reading in found) > 0
    assert min(reading.programs for reading in found) > 0


def test_planted_leaks_are_found(tmp_path):
    """Operations that keep a file open, 4 MB, a thread and a temporary file each time."""
    kept, end = [], threading.Event()

    def leak(place):
        import tempfile

        kept.append(open(os.devnull, "rb"))  # noqa: SIM115
        kept.append(bytearray(os.urandom(4 << 20)))
        kept.append(threading.Thread(target=end.wait, daemon=True))
        kept[-1].start()
        tempfile.mkstemp()

    try:
        found = soak.soak({"leak": leak}, tmp_path, seconds=3600, rounds=8, say=lambda text: None)
    finally:
        end.set()
        for one in kept:
            if hasattr(one, "close"):
                one.close()
    verdict = judge(found)
    assert verdict.handles_grown > 0
    assert verdict.threads_grown > 0
    assert verdict.left_over_grown > 0
    assert 3.0 < verdict.megabytes_per_round < 6.0
    assert len(verdict.problems) == 4


def test_a_streamed_run_lets_go_of_its_table(tmp_path):
    """Compiled code holds what it calls where no garbage collector sees it: it must not hold the curator."""
    work = soak.operations()["streamed Parquet"]
    before = count_of(dpmcmc.Table, dpmcmc.Curator)
    work(soak.Place(tmp_path, 0))
    assert count_of(dpmcmc.Table, dpmcmc.Curator) == before


def count_of(*kinds):
    gc.collect()
    return [sum(type(one) is kind for one in gc.get_objects()) for kind in kinds]


def test_an_error_in_an_operation_says_where(tmp_path):
    def fail(place):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        soak.soak({"failing": fail}, tmp_path, seconds=10, say=lambda text: None)
    assert "'failing', round 0" in caught.value.__notes__[0]
