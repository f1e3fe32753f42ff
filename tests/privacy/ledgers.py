"""A second reader of ledgers, which shares no code with the first: sqlite3, json, hashlib and fractions only."""

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from mpmath import mp, mpf

from tests.privacy.reference import exact_curve

COLUMNS = "number, time, kind, payload, previous, hash"


def rows(path: str | os.PathLike[str]) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {COLUMNS} FROM dpmcmc_ledger ORDER BY number").fetchall()


def execute(path: str | os.PathLike[str], statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement, values)
        connection.commit()


def hash_of(number: int, time: str, kind: str, payload: str, previous: str) -> str:
    text = json.dumps([number, time, kind, payload, previous], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def rewrite(path: str | os.PathLike[str], change: Callable[[list[list[Any]]], list[list[Any]] | None]) -> None:
    """Change entries [kind, payload, time], and number and hash all anew: a forgery without a flaw in its form."""
    entries = [[kind, json.loads(payload), time] for _, time, kind, payload, _, _ in rows(path)]
    entries = change(entries) or entries
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM dpmcmc_ledger")
        previous = "0" * 64
        for number, (kind, payload, time) in enumerate(entries, 1):
            text = payload if isinstance(payload, str) else json.dumps(payload, sort_keys=True, separators=(",", ":"))
            own = hash_of(number, time, kind, text, previous)
            values = number, time, kind, text, previous, own
            connection.execute("INSERT INTO dpmcmc_ledger VALUES (?, ?, ?, ?, ?, ?)", values)
            previous = own
        connection.commit()


@dataclass
class Sums:
    """What the entries of a ledger add up to."""

    epsilon: Fraction
    delta: Fraction
    head: str
    number: int
    mu: Fraction = Fraction(0)
    held: Fraction = Fraction(0)
    lattice: list[Fraction] = field(default_factory=lambda: [Fraction(0), Fraction(0)])
    apart: list[Fraction] = field(default_factory=lambda: [Fraction(0), Fraction(0)])
    used: list[Fraction] = field(default_factory=lambda: [Fraction(0), Fraction(0)])

    def exceeded(self) -> list[str]:
        """What of the promise is broken, if all that is held will be spent and all that is apart used."""
        broken = []
        for place, total in enumerate((self.epsilon, self.delta)):
            if not self.used[place] <= self.apart[place] <= total:
                broken.append(f"apart {place}")
        mu = self.mu + self.held
        if mu:
            with mp.workdps(60):
                # P' ≤ e^{ε₀+r} Q' + e^{r/2} δ₀ + d, see Budget.
                left = self.epsilon - self.apart[0] - self.lattice[0]
                delta, _ = exact_curve(mpf(mu.numerator) / mu.denominator, mpf(left.numerator) / left.denominator)
                r, d = (mpf(one.numerator) / one.denominator for one in self.lattice)
                promised = self.delta - self.apart[1]
                if mp.exp(r / 2) * delta + d > mpf(promised.numerator) / promised.denominator:
                    broken.append("gaussian")
        return broken


def read(path: str | os.PathLike[str]) -> Sums:
    """Check hashes and numbers, and add up."""
    found = rows(path)
    previous, sums = "0" * 64, None
    runs: dict[int, dict[str, Any]] = {}
    for place, (number, time, kind, text, before, own) in enumerate(found, 1):
        assert (number, before) == (place, previous)
        assert own == hash_of(number, time, kind, text, before)
        previous, payload = own, json.loads(text)
        if sums is None:
            assert kind == "create"
            sums = Sums(Fraction(payload["epsilon"]), Fraction(payload["delta"]), own, number)
            continue
        cost = [Fraction(payload.get("epsilon", 0)), Fraction(payload.get("delta", 0))]
        if kind == "reserve":
            assert not sums.mu, "parted after a Gaussian charge"
            sums.apart = [a + b for a, b in zip(sums.apart, cost, strict=True)]
            if payload["used"]:
                sums.used = [a + b for a, b in zip(sums.used, cost, strict=True)]
        elif kind == "open":
            runs[payload["run"]] = payload | {"open": True, "spent": Fraction(0), "charged": False}
            if payload["kind"] == "minibatch":
                waiting = [r for r in runs.values() if r["kind"] == "minibatch" and r["open"] and not r["charged"]]
                for one, name in enumerate(("epsilon", "delta")):
                    needed = sums.used[one] + sum(Fraction(run[name]) for run in waiting)
                    assert needed <= sums.apart[one] or not sums.mu, "parted after a Gaussian charge"
                    sums.apart[one] = max(sums.apart[one], needed)
        elif kind == "close":
            runs[payload["run"]]["open"] = False
        elif kind == "charge":
            run = runs[payload["run"]]
            assert run["open"]
            if run["kind"] == "gaussian":
                run["spent"] += Fraction(payload["spent"])
                sums.mu += Fraction(payload["spent"])
                sums.lattice[0] += Fraction(payload["lattice_epsilon"])
                sums.lattice[1] += Fraction(payload["lattice_delta"])
            elif not run["charged"]:
                sums.used = [a + Fraction(run[name]) for a, name in zip(sums.used, ("epsilon", "delta"), strict=True)]
            run["charged"] = True
    assert sums is not None
    holding = [run for run in runs.values() if run["open"] and run["hold"] and run["kind"] == "gaussian"]
    sums.held = sum((Fraction(run["limit"]) - run["spent"] for run in holding), Fraction(0))
    sums.head, sums.number = previous, len(found)
    return sums


def files_of(path: Path) -> list[Path]:
    return [one for suffix in ("", "-wal", "-shm") if (one := Path(f"{path}{suffix}")).exists()]
