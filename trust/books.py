"""A ledger, and what a run has kept, added up by other means than the package's own.

SQLite, hashes, fractions and the normal distribution; no dpmcmc. `python -m trust.books people.ledger` prints the sums.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import math
import os
import sqlite3
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

__all__ = ["Audit", "AuditedRun", "audit", "charges_in", "delta_of", "releases_in"]


@dataclass
class AuditedRun:
    """What one run was granted and charged; ``entries`` are the numbers of its charges."""

    kind: str
    epsilon: float
    delta: float
    spent: Fraction = Fraction(0)
    answers: int = 0
    steps: int = 0
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    how: str | None = None
    entries: set[int] = field(default_factory=set)


@dataclass
class Audit:
    """What a ledger says, added up."""

    epsilon: float
    delta: float
    runs: dict[int, AuditedRun]
    num_entries: int

    @property
    def spent(self) -> Fraction:
        """Return the μ of all runs."""
        return sum((run.spent for run in self.runs.values()), Fraction(0))

    @property
    def entries(self) -> set[int]:
        """Return the numbers of all charges."""
        return set().union(*(run.entries for run in self.runs.values()))


def _read_only(path: str | os.PathLike[str]) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0))


def audit(path: str | os.PathLike[str]) -> Audit:
    """Read a ledger as anybody could who has its file; see that its entries are a chain, and add its charges up."""
    with _read_only(path) as connection:
        rows = connection.execute(
            "SELECT number, time, kind, payload, previous, hash FROM dpmcmc_ledger ORDER BY number"
        ).fetchall()
    head, found = "0" * 64, Audit(0.0, 0.0, {}, len(rows))
    for place, (number, time, kind, payload, previous, own) in enumerate(rows, 1):
        assert (number, previous) == (place, head), "the entries are no chain"
        text = json.dumps([number, time, kind, payload, previous], ensure_ascii=False, separators=(",", ":"))
        assert own == hashlib.sha256(text.encode()).hexdigest(), "an entry was edited"
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
            run.entries.add(number)
        elif kind == "close":
            found.runs[values["run"]].how = values["how"]
    assert delta_of(found.spent, found.epsilon) <= found.delta, "more than the total was charged"
    for run in found.runs.values():
        within = run.kind != "gaussian" or delta_of(run.spent, run.epsilon) <= run.delta
        assert within, "a run was charged more than it was granted"
    return found


def charges_in(path: str | os.PathLike[str]) -> int:
    """Return how many charges a ledger has; 0 if it cannot be read just now."""
    try:
        with _read_only(path) as connection:
            text = "SELECT COUNT(*) FROM dpmcmc_ledger WHERE kind = 'charge'"
            return int(connection.execute(text).fetchone()[0])
    except sqlite3.Error:
        return 0


def releases_in(checkpoint: Path) -> list[int]:
    """Return, for each release that a checkpoint holds, the number of the charge that has paid for it (0: free)."""
    if not checkpoint.exists():
        return []
    with _read_only(checkpoint) as connection:
        rows = connection.execute("SELECT kind, header FROM parts ORDER BY number").fetchall()
    return [int(json.loads(header)["entry"]) for kind, header in rows if kind in ("answer", "start", "block", "check")]


def delta_of(mu: Fraction | float, epsilon: float) -> float:
    """δ(ε) of Gaussian queries that cost μ = Σ 1/(2τ²) together, by the formula of Balle & Wang (2018)."""
    if mu == 0:
        return 0.0
    apart = math.sqrt(2.0 * float(mu))
    return _normal_cdf(apart / 2 - epsilon / apart) - math.exp(epsilon) * _normal_cdf(-apart / 2 - epsilon / apart)


def _normal_cdf(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2.0))


def main(paths: list[str]) -> None:
    """Print what some ledgers add up to."""
    for path in paths:
        found = audit(path)
        print(f"{path}: {found.num_entries} entries, {len(found.runs)} runs, μ = {float(found.spent):.6g}")
        for number, run in found.runs.items():
            print(f"  run {number}: μ = {float(run.spent):.6g}, {run.answers} answers, {run.how or 'may go on'}")


if __name__ == "__main__":
    main(sys.argv[1:])
