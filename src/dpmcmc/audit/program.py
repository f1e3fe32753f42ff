"""The whole audit: which questions and samplers, how many guesses, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from dpmcmc.audit.bounds import ALARM, CONFIDENCE, Finding
from dpmcmc.audit.neighbours import QUERIES
from dpmcmc.audit.questions import audit_pair
from dpmcmc.audit.runs import DELTA, SAMPLERS, audit_runs
from dpmcmc.errors import QueryError

TIGHT = 0.9
"""Share of the price of a single question that must be found: less, and the audit itself would see too little."""
# Runs of these take longer.
_PART_OF_RUNS = {"auto": 0.2, "dp-laplace": 0.5, "surrogate-hmc": 0.3}
_FEWEST_RUNS = 30


@dataclass(frozen=True)
class Effort:
    """How many guesses for each data set: of single questions and of runs, in the worst case and in the others.

    No ``other_runs``: the worst case only.
    """

    questions: int
    other_questions: int
    runs: int
    other_runs: int

    @classmethod
    def full(cls) -> Effort:
        """About half an hour on one core."""
        return cls(40_000, 4_000, 500, 60)

    @classmethod
    def fast(cls) -> Effort:
        """A few minutes."""
        return cls(20_000, 2_000, 120, 0)


@dataclass
class Report:
    """What was found.

    Attributes
    ----------
    queries
        By kind of question and case; the first case is the worst.
    runs
        By sampler, case and what the attacker sees ("white_box", "black_box").
    """

    queries: dict[str, dict[str, Finding]] = field(default_factory=dict)
    runs: dict[str, dict[str, dict[str, Finding]]] = field(default_factory=dict)

    @property
    def exceeded(self) -> list[str]:
        """Names of the claims that are refuted."""
        single = [f"{kind} ({case})" for kind, cases in self.queries.items() for case, f in cases.items() if f.exceeds]
        return single + [
            f"{sampler} ({case}, {box.replace('_', ' ')})"
            for sampler, cases in self.runs.items()
            for case, boxes in cases.items()
            for box, finding in boxes.items()
            if finding.exceeds
        ]

    @property
    def loose(self) -> list[str]:
        """Kinds of questions of whose price less than nine tenths was found."""
        return [kind for kind, cases in self.queries.items() if next(iter(cases.values())).share < TIGHT]

    @property
    def held(self) -> bool:
        """Whether every claim stands, and every question was looked at closely enough."""
        return not self.exceeded and not self.loose

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON: the worst case of each kind, with the others under ``cases``."""
        queries = {
            kind: {**_first(cases).to_dict(), "cases": {name: one.to_dict() for name, one in cases.items()}}
            for kind, cases in self.queries.items()
        }
        runs = {
            sampler: {
                **_first(cases)["white_box"].to_dict(),
                **{box: finding.to_dict() for box, finding in _first(cases).items()},
                "cases": {name: {box: one.to_dict() for box, one in boxes.items()} for name, boxes in cases.items()},
            }
            for sampler, cases in self.runs.items()
        }
        return {
            "confidence": CONFIDENCE,
            "false_alarm": ALARM,
            "delta": DELTA,
            "held": self.held,
            "exceeded": self.exceeded,
            "loose": self.loose,
            "queries": queries,
            "runs": runs,
        }


def _first(cases: dict[str, Any]) -> Any:
    return next(iter(cases.values()))


def audit(
    *,
    queries: Collection[str] | None = None,
    samplers: Collection[str] | None = None,
    effort: Effort | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> Report:
    """Attack single questions and whole runs of the production code, with exact noise, on made-up worst cases.

    Parameters
    ----------
    queries, samplers
        Which of :data:`QUERIES` and :data:`SAMPLERS`. Default: all; if only one of both is given, none of the other.
    effort
        How many guesses. Default: :meth:`Effort.full`.
    tell
        Is told what comes next.

    Raises
    ------
    QueryError
        A name is not known.
    """
    effort = Effort.full() if effort is None else effort
    if queries is None:
        queries = QUERIES if samplers is None else ()
    if samplers is None:
        samplers = SAMPLERS if queries is QUERIES else ()
    for what, names, known in (("query", queries, QUERIES), ("sampler", samplers, SAMPLERS)):
        for name in names:
            if name not in known:
                raise QueryError(f"{what} = {name!r} is not known; take one of {', '.join(known)}")
    report = Report()
    for kind in queries:
        for number, (case, pair) in enumerate(QUERIES[kind]().items()):
            tell(f"{kind}, {case}")
            guesses = effort.other_questions if number else effort.questions
            report.queries.setdefault(kind, {})[case] = audit_pair(pair, guesses, DELTA)
    for sampler in samplers:
        part = _PART_OF_RUNS.get(sampler, 1.0)
        for number, (case, runs) in enumerate(SAMPLERS[sampler]().items()):
            wanted = effort.other_runs if number else effort.runs
            if not wanted:
                continue
            tell(f"runs of {sampler}, {case}")
            guesses = max(_FEWEST_RUNS, round(part * wanted))
            report.runs.setdefault(sampler, {})[case] = audit_runs(runs, guesses)
    return report
