"""Things that go wrong, for tests; and a ledger added up by other means than the package's own.

`python -m tests.faults people.ledger` prints the sums: SQLite, fractions and the normal distribution, no dpmcmc.
"""

import collections
import contextlib
import hashlib
import json
import math
import sqlite3
import sys
from dataclasses import dataclass, field
from fractions import Fraction

# ------------------------------------------------------------------ adding up


@dataclass
class AuditedRun:
    """What one run was granted and charged."""

    kind: str
    epsilon: float
    delta: float
    spent: Fraction = Fraction(0)
    answers: int = 0
    steps: int = 0
    kinds: collections.Counter = field(default_factory=collections.Counter)
    how: str | None = None


@dataclass
class Audit:
    """What a ledger says, added up."""

    epsilon: float
    delta: float
    runs: dict[int, AuditedRun]
    num_entries: int

    @property
    def spent(self):
        return sum((run.spent for run in self.runs.values()), Fraction(0))


def audit(path):
    """Read a ledger as anybody could who has its file; see that its entries are a chain, and add its charges up."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT number, time, kind, payload, previous, hash FROM dpmcmc_ledger ORDER BY number"
        ).fetchall()
    head, found = "0" * 64, None
    for place, (number, time, kind, payload, previous, own) in enumerate(rows, 1):
        assert (number, previous) == (place, head)
        text = json.dumps([number, time, kind, payload, previous], ensure_ascii=False, separators=(",", ":"))
        assert own == hashlib.sha256(text.encode()).hexdigest()
        head, values = own, json.loads(payload)
        if kind == "create":
            found = Audit(values["epsilon"], values["delta"], {}, len(rows))
        elif kind == "open":
            found.runs[values["run"]] = AuditedRun(values["kind"], values["epsilon"], values["delta"])
        elif kind == "charge":
            run = found.runs[values["run"]]
            run.spent += Fraction(values["spent"]) if values["meter"] == "mu" else 0
            run.kinds[values["what"]["kind"]] += 1
            run.answers += values["what"].get("answers", 0)
            run.steps += values["what"].get("steps", 0)
        elif kind == "close":
            found.runs[values["run"]].how = values["how"]
    assert delta_of(found.spent, found.epsilon) <= found.delta
    for run in found.runs.values():
        assert run.kind != "gaussian" or delta_of(run.spent, run.epsilon) <= run.delta
    return found


def delta_of(mu, epsilon):
    """δ(ε) of Gaussian queries that cost μ = Σ 1/(2τ²) together, by the formula of Balle & Wang (2018)."""
    if mu == 0:
        return 0.0
    apart = math.sqrt(2.0 * float(mu))
    return _normal_cdf(apart / 2 - epsilon / apart) - math.exp(epsilon) * _normal_cdf(-apart / 2 - epsilon / apart)


def _normal_cdf(value):
    return 0.5 * math.erfc(-value / math.sqrt(2.0))


def main(paths):
    for path in paths:
        found = audit(path)
        print(f"{path}: {found.num_entries} entries, {len(found.runs)} runs, μ = {float(found.spent):.6g}")
        for number, run in found.runs.items():
            print(f"  run {number}: μ = {float(run.spent):.6g}, {run.answers} answers, {run.how or 'may go on'}")


# ------------------------------------------------------------------ crashes


class Crash(BaseException):
    """The process would be gone here."""


class Crashes:
    """Ends a run where its n-th part is written down, as a kill would: nothing is tidied up but the lock.

    Attributes
    ----------
    written, lost
        Kinds of parts that were written down, and of those that were about to be.
    """

    def __init__(self, monkeypatch):
        from dpmcmc.inference.books import Books
        from dpmcmc.inference.checkpoint import Checkpoint

        self.written, self.lost = [], []
        self._at, self._before, self._count = None, True, 0
        append, give_up = Checkpoint.append, Books.give_up

        def counted(checkpoint, kind, header, arrays):
            self._count += 1
            if self._count == self._at and self._before:
                self.lost.append(kind)
                raise Crash
            append(checkpoint, kind, header, arrays)
            self.written.append(kind)
            if self._count == self._at:
                raise Crash

        def only_closed(books, how):
            if not isinstance(sys.exc_info()[1], Crash):
                give_up(books, how)
            elif books.checkpoint is not None:
                books.checkpoint.close()

        monkeypatch.setattr(Checkpoint, "append", counted)
        monkeypatch.setattr(Books, "give_up", only_closed)

    def at(self, number, before, function):
        """Call a function that crashes at its n-th part; return None, or what it returns if it was done before."""
        self._at, self._before, self._count = number, before, 0
        try:
            return function()
        except Crash:
            return None
        finally:
            self._at = None

    def survived(self, begin, go_on, numbers, before=True):
        """Begin, crash, go on, crash, …, and in the end go on to the end; return what comes out."""
        result, function = None, begin
        for number in numbers:
            result = self.at(number, before, function)
            function = go_on
        return go_on() if result is None else result


if __name__ == "__main__":
    main(sys.argv[1:])
