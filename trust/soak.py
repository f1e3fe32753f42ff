"""A soak: two hours of runs in one process, after which memory, file handles and threads must be where they were.

``python -m trust.soak`` goes round a list of operations: every private sampler, every kind of source, ledgers,
checkpoints, crashes and what follows them, results read again, refusals. After each round it looks at the process, and
in the end it judges whether anything has grown since the warm-up (`judge`). The form of every result is checked, too.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

# The bounds, stated before anything was measured. A round is some 30 calls of the package. What one of them could keep
# by mistake is at least the draws of a run (4 chains × 1000 draws × 2 numbers × 8 bytes = 64 kB), records (8 to 100 kB)
# or a compiled program (about 1 MB). 50 kB a round is less than one of the former in each round.
MAX_MB_PER_ROUND = 0.05
# What an allocator keeps goes up and down by some MB between rounds, so that few rounds can show no such slope; what
# was added in all must be less than thirty compiled programs.
MAX_MB_IN_ALL = 32.0
WARM_UP = 0.1  # the part of the rounds that is not judged: libraries load, caches fill
LEAST_WARM_UP = 2  # rounds
# Fewer judged rounds than this say nothing about a slope.
LEAST_JUDGED = 5
# Large arrays straight from the system and back to it, and one heap for all threads (glibc): what is measured is then
# what is held. Left to itself the allocator keeps holes of tens of MB between what is in use, now here and now there.
ALLOCATOR = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}

Operation = Callable[["Place"], None]


# ------------------------------------------------------------------ what is measured


@dataclass(frozen=True)
class Reading:
    """What the process holds after a round.

    Attributes
    ----------
    megabytes
        Resident memory after garbage collection, without what the allocator keeps for later (where glibc can tell).
    handles, threads
        Open file handles, threads of Python.
    left_over
        Files in the temporary folder that were not there when the soak began.
    programs
        Compiled programs that the package keeps.
    """

    round: int
    seconds: float
    megabytes: float
    handles: int
    threads: int
    left_over: int
    programs: int


def read_process(number: int, seconds: float, temporary: Path) -> Reading:
    """Look at this process. Linux only."""
    from dpmcmc.curator import passes

    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what is free goes back, so that what is held remains
    status = Path("/proc/self/status").read_text(encoding="ascii")
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return Reading(
        round=number,
        seconds=seconds,
        megabytes=int(resident.split()[1]) / 1024,
        handles=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
        left_over=sum(len(files) for _, _, files in os.walk(temporary)),
        programs=sum(len(kept._compiled) for kept in passes._kept.values()),
    )


# ------------------------------------------------------------------ the judgement


@dataclass(frozen=True)
class Verdict:
    """What has grown since the warm-up."""

    rounds: int
    judged: int
    megabytes_at_first: float
    megabytes_at_last: float
    megabytes_per_round: float
    handles_grown: int
    threads_grown: int
    left_over_grown: int
    programs_grown: int
    problems: tuple[str, ...]

    @property
    def flat(self) -> bool:
        """Whether nothing has grown."""
        return not self.problems


def judge(readings: Sequence[Reading]) -> Verdict:
    """Say what has grown since the warm-up.

    Memory: the median of the last fifth of the judged rounds less that of the first fifth is at most `MAX_MB_IN_ALL`,
    and the slope (Theil and Sen: the median over all pairs of rounds, which a few odd rounds do not move) at most
    `MAX_MB_PER_ROUND`, unless the whole rise is less than 2 MB, which is what a page table or an arena does by chance.
    All else is counted and must not grow at all: the most in the last fifth is at most that of the first half.

    Parameters
    ----------
    readings
        One a round, in order.

    Returns
    -------
    Verdict
    """
    judged = list(readings[max(LEAST_WARM_UP, int(WARM_UP * len(readings))) :])
    if len(judged) < LEAST_JUDGED:
        raise ValueError(f"{len(judged)} rounds after the warm-up say nothing; soak for longer")
    fifth = max(1, len(judged) // 5)
    first, last = judged[:fifth], judged[-fifth:]
    at_first, at_last = (statistics.median(one.megabytes for one in part) for part in (first, last))
    slope = statistics.median(
        (after.megabytes - before.megabytes) / (after.round - before.round)
        for place, before in enumerate(judged)
        for after in judged[place + 1 :]
    )
    problems = []
    if at_last - at_first > MAX_MB_IN_ALL:
        problems.append(f"memory has grown by {at_last - at_first:.1f} MB (at most {MAX_MB_IN_ALL:g})")
    if slope > MAX_MB_PER_ROUND and slope * len(judged) > 2.0:
        problems.append(f"memory grows by {slope:.3f} MB a round (at most {MAX_MB_PER_ROUND:g})")

    def grown(name: str, what: str) -> int:
        early = max(getattr(one, name) for one in judged[: max(fifth, len(judged) // 2)])
        late = max(getattr(one, name) for one in last)
        if late > early:
            problems.append(f"{what}: {early} in the first half, {late} at the end")
        return int(late - early)

    counted = {
        "handles_grown": grown("handles", "open file handles"),
        "threads_grown": grown("threads", "threads"),
        "left_over_grown": grown("left_over", "files left in the temporary folder"),
        "programs_grown": grown("programs", "compiled programs"),
    }
    return Verdict(len(readings), len(judged), at_first, at_last, slope, **counted, problems=tuple(problems))


# ------------------------------------------------------------------ what is done in a round


class Place:
    """A folder for one operation, gone afterwards, and the number of the round."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.round = folder, number

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


def interrupted(at: int, function: Callable[[], Any]) -> None:
    """Stop a run as Ctrl-C would where its n-th part is about to be written: that part is lost, and stays charged."""
    from dpmcmc.inference.checkpoint import Checkpoint

    append, count = Checkpoint.append, 0

    def counted(checkpoint: Any, *arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise KeyboardInterrupt
        append(checkpoint, *arguments)

    with mock.patch.object(Checkpoint, "append", counted):
        try:
            function()
        except KeyboardInterrupt:
            if count < at:  # somebody means it
                raise


def expect(what: bool, text: str) -> None:
    """Raise if a result is not as it must be (unlike assert, with -O too)."""
    if not what:
        raise AssertionError(text)


def refused(kind: type[Exception] | tuple[type[Exception], ...], function: Callable[[], Any]) -> None:
    """Call what must be refused with an error of this kind."""
    try:
        function()
    except kind as error:
        expect(len(str(error)) < 2000, "a refusal is a short text")
    else:
        raise AssertionError(f"{kind} was not raised")


def operations() -> dict[str, Operation]:
    """Return what a round consists of. All data are synthetic and fixed; noise and chains differ between rounds."""
    import numpy as np
    import pandas
    import pyarrow
    import pyarrow.parquet

    import dpmcmc
    from dpmcmc.errors import (
        BudgetExceededError,
        CheckpointError,
        DataError,
        LedgerError,
        QueryError,
        ResultError,
        SchemaError,
    )
    from dpmcmc.results.folder import write_run
    from dpmcmc.surrogate import Form, Surrogate

    generator = np.random.default_rng(20)
    covariance = np.array([[1.0, 0.3], [0.3, 0.5]])
    matrix = generator.multivariate_normal([1.0, -1.0], covariance, 500)
    start = np.tile([1.0, -1.0], (4, 1))
    mean = matrix.mean(axis=0).round(1)
    near = Surrogate(Form(2, 2, 2), mean, 0.002 * np.eye(2), np.eye(2, 6, 1))
    samplers: dict[str, Any] = {
        "DPHMC": dpmcmc.DPHMC(0.02, 4, 3.0, 3.0, 10.0, 20.0),
        "DPPenalty": dpmcmc.DPPenalty(0.05, 3.0, 20.0),
        "DPSGLD": dpmcmc.DPSGLD(50, 3.0, 1e-5),
        "DPSGNHT": dpmcmc.DPSGNHT(50, 3.0, 1e-3, 10.0),
        "SurrogateHMC": dpmcmc.SurrogateHMC(near, 0.5),  # a small bound, so that a few steps are paid for for certain
        "DPLaplace": dpmcmc.DPLaplace(),
        "auto": "auto",
    }

    def model(prior_scale: float = 2.0) -> Any:
        return dpmcmc.models.GaussianMean(covariance, prior_scale=prior_scale)

    rows = 1200
    age, sex = generator.integers(17, 91, rows), generator.choice(["F", "M"], rows)
    smokes = generator.random(rows) < 1 / (1 + np.exp(-(age - 50) / 20 - (sex == "M")))
    columns = {
        "person": generator.permutation(np.arange(rows) % 400).astype(str),
        "age": age,
        "sex": sex,
        "smokes": smokes,
    }
    fields = [
        dpmcmc.Field("age", "integer", minimum=17, maximum=90),
        dpmcmc.Field("sex", "string", levels=["F", "M"]),
        dpmcmc.Field("smokes", "boolean"),
    ]
    schema = dpmcmc.Schema(fields)
    by_person = dpmcmc.Schema([*fields, dpmcmc.Field("person", "string")], unit="person", max_rows=4)

    def check(posterior: Any, num_records: int) -> None:
        """See that a result is a private one whose statement holds when computed again."""
        statement = posterior.privacy
        expect(statement.private and statement.num_records == num_records, "the result is private")
        statement.check()
        expect(statement.recomputed_epsilon() <= statement.epsilon <= statement.budget_epsilon, "ε as stated")
        expect(all(np.isfinite(values).all() for values in posterior.draws.values()), "finite draws")
        expect(len(posterior.summary()) > 0 and len(str(posterior)) > 0, "a summary")

    def sample(*arguments: Any, **options: Any) -> Any:
        settings = {"epsilon": 8.0, "delta": 1e-6, "progress": False} | options
        return dpmcmc.sample(*arguments, **settings)

    def steps(name: str) -> dict[str, Any]:
        chains = name in ("DPHMC", "DPPenalty", "DPSGLD", "DPSGNHT")
        return {"num_steps": 12, "init": start} if chains else {"num_steps": 6} if name == "SurrogateHMC" else {}

    def with_sampler(name: str) -> Operation:
        def run(place: Place) -> None:
            check(sample(model(), matrix, sampler=samplers[name], **steps(name)), len(matrix))

        return run

    def with_crash(name: str) -> Operation:
        """Crash, go on, crash, go on; then read what it left, all against one ledger."""

        def run(place: Place) -> None:
            ledger = dpmcmc.Ledger.create(place / "people.ledger", epsilon=8.0, delta=1e-6)
            book = ledger.place
            ledger.close()
            begin = {"sampler": samplers[name], "checkpoint": place / "run", "ledger": book, **steps(name)}
            interrupted(3 + place.round % 2, lambda: sample(model(), matrix, **begin))
            interrupted(2, lambda: dpmcmc.resume(place / "run", model(), matrix, progress=False))
            posterior = dpmcmc.resume(place / "run", model(), matrix, progress=False)
            check(posterior, len(matrix))
            kept = dpmcmc.Posterior.load(place / "run" / "posterior.nc")
            expect(kept.privacy == posterior.privacy, "what was kept is what was returned")
            expect(dpmcmc.resume(place / "run").privacy == posterior.privacy, "a run that is complete stays so")
            opened = dpmcmc.Ledger(book)
            opened.verify((posterior.privacy.ledger or {})["head"])
            expect(not any(one.open for one in opened.status().runs), "the run is closed")
            opened.close()
            refused(BudgetExceededError, lambda: sample(model(), matrix, sampler=samplers[name], ledger=book))
            refused(Exception, lambda: sample(model(), matrix, **begin))  # the folder is not empty

        return run

    def from_table(make: Callable[[Place], Any], unit: bool = False) -> Operation:
        """A regression by DP-Laplace, predictions, a report, and the result read again."""

        def run(place: Place) -> None:
            table = dpmcmc.Table(make(place), by_person if unit else schema)
            regression, records = dpmcmc.regression("smokes ~ age + C(sex)", table)
            posterior = sample(regression, records, sampler=dpmcmc.DPLaplace(), epsilon=20.0)
            check(posterior, 400 if unit else rows)
            (place / "run").mkdir()
            write_run(posterior, place / "run")
            kept = dpmcmc.Posterior.load(place / "run" / "posterior.nc")
            expect(kept.quality == posterior.quality is not None, "a quality")
            predicted = kept.predict({"age": [20, 60], "sex": ["F", "M"]})
            expect(len(predicted.summary()) == 2, "predictions")
            kept.on_original_scale().summary()

        return run

    def as_csv(place: Place) -> Path:
        pandas.DataFrame(columns).to_csv(place / "people.csv", index=False)
        return place / "people.csv"

    def as_parquet(place: Place) -> Path:
        pyarrow.parquet.write_table(pyarrow.table(columns), place / "people.parquet")
        return place / "people.parquet"

    def streamed(place: Place) -> None:
        """Read for every question; its programs are compiled anew each time and must go."""
        table = dpmcmc.Table(as_parquet(place), schema, stream=True)
        regression, records = dpmcmc.regression("smokes ~ age + C(sex)", table)
        sampler = dpmcmc.DPPenalty(0.05, 3.0, 20.0)
        check(sample(regression, records, sampler=sampler, num_steps=4, init=np.zeros((4, 3))), rows)

    def other_models(place: Place) -> None:
        """Three of twelve models, made anew: more than the package keeps programs of."""
        for number in range(3 * place.round, 3 * place.round + 3):
            other = model(1.0 + 0.1 * (number % 12))
            check(sample(other, matrix, sampler=samplers["DPPenalty"], **steps("DPPenalty")), len(matrix))

    def own_model(place: Place) -> None:
        """A model of a user's own, its functions made anew each time, on units of several rows."""
        import jax.numpy as jnp

        def log_likelihood(parameters: Any, row: Any) -> Any:
            return -0.5 * jnp.square(row["age"] - parameters["centre"])

        def log_prior(parameters: Any) -> Any:
            return -0.5 * jnp.square(parameters["centre"])

        own = dpmcmc.Model(log_likelihood, log_prior, {"centre": ()}, sample_prior=lambda key: {"centre": 0.0})
        schema = dpmcmc.Schema([fields[0], dpmcmc.Field("person", "string")], unit="person", max_rows=4)
        table = dpmcmc.Table({name: columns[name] for name in ("age", "person")}, schema)
        sampler = dpmcmc.DPHMC(0.02, 2, 3.0, 3.0, 30.0, 60.0)
        check(sample(own, table, sampler=sampler, num_steps=4, init=np.zeros((4, 1))), 400)

    def not_private(place: Place) -> None:
        result = dpmcmc.sample(model(), matrix, sampler=dpmcmc.HMC(0.02, 4), num_steps=20, init=start, progress=False)
        expect(not result.privacy.private, "HMC is not private")
        result = sample(model(), matrix, sampler=samplers["DPPenalty"], seed=1, num_steps=5, init=start)
        expect(not result.privacy.private, "a seeded run is not private")

    def bad_input(place: Place) -> None:
        """Refusals of every kind, each of which leaves by an exception."""
        (place / "bad.parquet").write_bytes(b"PAR1" + os.urandom(200) + b"PAR1")
        (place / "bad.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + os.urandom(400))
        (place / "bad.ledger").write_bytes(b"SQLite format 3\x00" + os.urandom(400))
        (place / "bad.csv").write_bytes(b"age,age\n\x00\xff,2\n")
        (place / "bad.yaml").write_text("fields: [{name: age, type: integer")
        (place / "bad-run").mkdir()
        (place / "bad-run" / "checkpoint.db").write_bytes(os.urandom(400))
        refused(DataError, lambda: dpmcmc.Table(place / "bad.parquet", schema))
        refused((DataError, SchemaError), lambda: dpmcmc.Table(place / "bad.csv", schema))
        refused(SchemaError, lambda: dpmcmc.Schema.load(place / "bad.yaml"))
        refused(ResultError, lambda: dpmcmc.Posterior.load(place / "bad.nc"))
        refused(LedgerError, lambda: dpmcmc.Ledger(place / "bad.ledger"))
        refused(CheckpointError, lambda: dpmcmc.resume(place / "bad-run", model(), matrix))
        refused(DataError, lambda: sample(model(), matrix[:, :1], sampler=samplers["DPPenalty"], init=start))
        refused(QueryError, lambda: sample(model(), matrix, epsilon=-1.0))
        refused(QueryError, lambda: sample(model(), matrix, sampler=samplers["DPPenalty"], num_steps=10**9))

    def broken_model(place: Place) -> None:
        """A model that fails while it is traced: the traceback holds frames, which must not stay."""

        def log_likelihood(parameters: Any, row: Any) -> Any:
            raise ZeroDivisionError

        own = dpmcmc.Model(log_likelihood, lambda parameters: parameters["centre"], {"centre": ()})
        refused(
            Exception, lambda: sample(own, {"x": matrix[:, 0]}, init=np.zeros((4, 1)), sampler=samplers["DPPenalty"])
        )

    def shared_ledger(place: Place) -> None:
        """Several runs on one ledger until it refuses."""
        with contextlib.closing(dpmcmc.Ledger.create(place / "people.ledger", epsilon=4.0, delta=1e-5)) as ledger:
            for _ in range(3):
                options = {"epsilon": 1.0, "sampler": samplers["DPPenalty"], "num_steps": 3, "init": start}
                check(sample(model(), matrix, ledger=ledger, **options), len(matrix))
            refused(BudgetExceededError, lambda: sample(model(), matrix, epsilon=4.0, delta=1e-5, ledger=ledger))
            others = {"ledger": ledger, "sampler": samplers["DPPenalty"], "epsilon": 1.0, "init": start}
            refused(LedgerError, lambda: sample(model(), matrix[::-1].copy(), **others))  # of other people
            ledger.verify()

    return {
        **{name: with_sampler(name) for name in samplers},
        **{f"{name}, crashes": with_crash(name) for name in ("DPHMC", "DPSGLD", "SurrogateHMC", "DPLaplace", "auto")},
        "CSV": from_table(as_csv),
        "Parquet": from_table(as_parquet),
        "pandas": from_table(lambda place: pandas.DataFrame(columns)),
        "units": from_table(as_parquet, unit=True),
        "streamed Parquet": streamed,
        "other models": other_models,
        "a model of one's own": own_model,
        "not private": not_private,
        "bad input": bad_input,
        "a broken model": broken_model,
        "a shared ledger": shared_ledger,
    }


# ------------------------------------------------------------------ the loop


def soak(
    work: Mapping[str, Operation],
    folder: Path,
    *,
    seconds: float,
    rounds: int = sys.maxsize,
    say: Callable[[str], None] = print,
    note: Callable[[list[Reading]], Any] = len,
) -> list[Reading]:
    """Go round the operations until the time is over, and look at the process after each round.

    Parameters
    ----------
    work
        The operations, by their names.
    folder
        An empty one. The process's temporary files go there, too, while this runs.
    seconds, rounds
        When to end: a round that was begun is brought to its end.
    say, note
        Told of each round, and given all readings so far.

    Returns
    -------
    list of Reading
    """
    temporary, begun = folder / "temporary", time.monotonic()
    temporary.mkdir()
    readings: list[Reading] = []
    with mock.patch.object(tempfile, "tempdir", str(temporary)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # chains of a few steps have much to warn of
        while len(readings) < rounds and time.monotonic() - begun < seconds:
            for name, operation in work.items():
                own = folder / "operation"
                own.mkdir()
                try:
                    operation(Place(own, len(readings)))
                except Exception as error:
                    error.add_note(f"in the soak's operation {name!r}, round {len(readings)}")
                    raise
                shutil.rmtree(own)
            readings.append(read_process(len(readings), time.monotonic() - begun, temporary))
            now = readings[-1]
            say(
                f"round {now.round}, {now.seconds:.0f} s: {now.megabytes:.1f} MB, {now.handles} handles, "
                f"{now.threads} threads, {now.left_over} files left, {now.programs} programs"
            )
            note(readings)
    return readings


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, print a table, and return 1 if something has grown."""
    parser = argparse.ArgumentParser(prog="python -m trust.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=2.0, help="how long (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all readings and the verdict there")
    parser.add_argument("--only", action="append", metavar="NAME", help="this operation only; may be repeated")
    given = parser.parse_args(arguments)
    work = operations()
    if unknown := set(given.only or ()) - set(work):
        parser.error(f"--only {unknown.pop()!r} is not one of {', '.join(work)}")
    work = {name: operation for name, operation in work.items() if not given.only or name in given.only}

    def note(readings: list[Reading]) -> None:
        if given.json:  # after each round, so that it can be looked at on the way
            report = {"operations": list(work), "readings": [asdict(reading) for reading in readings]}
            with contextlib.suppress(ValueError):  # too few rounds yet
                verdict = judge(readings)
                report["verdict"] = asdict(verdict) | {"flat": verdict.flat}
            given.json.write_text(json.dumps(report, indent=2), encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="dpmcmc-soak-") as folder:
        say = partial(print, flush=True)
        readings = soak(work, Path(folder), seconds=3600 * given.hours, say=say, note=note)
    verdict = judge(readings)
    print(table_of(verdict, readings))
    return 0 if verdict.flat else 1


def table_of(verdict: Verdict, readings: Sequence[Reading]) -> str:
    """Return the verdict as a small table in Markdown."""
    judged = readings[-verdict.judged :]
    lines = [
        f"{verdict.rounds} rounds in {readings[-1].seconds / 60:.0f} minutes, {verdict.judged} after the warm-up",
        "",
        "| | after the warm-up | at the end | bound |",
        "|---|---|---|---|",
        f"| memory, MB | {verdict.megabytes_at_first:.1f} | {verdict.megabytes_at_last:.1f} | + {MAX_MB_IN_ALL:g} |",
        f"| MB a round | | {verdict.megabytes_per_round:.4f} | {MAX_MB_PER_ROUND:g} |",
    ]
    for name, what in (
        ("handles", "file handles"),
        ("threads", "threads"),
        ("left_over", "files left over"),
        ("programs", "compiled programs"),
    ):
        lines.append(f"| {what} | {getattr(judged[0], name)} | {getattr(judged[-1], name)} | + 0 |")
    return "\n".join([*lines, "", "flat" if verdict.flat else f"NOT FLAT: {'; '.join(verdict.problems)}"])


if __name__ == "__main__":
    if not ALLOCATOR.keys() <= os.environ.keys():  # which glibc reads when a process begins
        os.execve(sys.executable, [sys.executable, "-m", "trust.soak", *sys.argv[1:]], {**os.environ, **ALLOCATOR})
    sys.exit(main())
