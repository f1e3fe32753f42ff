"""The privacy statement: what a run guaranteed, to whom, and how it was accounted for, in a form that can be published.

It holds public numbers only: all that is needed to compute its ε again, which `recomputed_epsilon` does. It never
plays anything down: a run that was seeded, or that added no noise, says "not private" wherever the statement is shown.
"""

from __future__ import annotations

import copy
import json
import math
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from importlib import metadata
from typing import Any, get_args

from dpmcmc.errors import QueryError
from dpmcmc.privacy import disclosure
from dpmcmc.privacy.budget import Budget
from dpmcmc.privacy.curve import guarantee_curve
from dpmcmc.privacy.exact import rounded_up
from dpmcmc.privacy.fields import as_count, as_items, as_number, as_present
from dpmcmc.privacy.gaussian import delta_of_gaussians, gaussian_cost, gaussian_epsilon
from dpmcmc.privacy.standing import checked_ledger, ledger_contradictions
from dpmcmc.privacy.subsampled import Scheme, subsampled_epsilon

__all__ = ["NOISE_FREE_MODE", "PRIVATE_MODE", "SEEDED_MODE", "PrivacyStatement", "installed_versions"]

PRIVATE_MODE = "private: exact discrete Gaussian noise (OpenDP)"
SEEDED_MODE = "not private: seeded"
NOISE_FREE_MODE = "not private: no noise"

BATCH_KIND = "batch_gradient"
_BATCH_FIELDS = ("batch_size", "sampling_prob", "sampling", "noise_ratio")
_LATER_FIELDS = {"adaptive", "ledger"}  # statements of earlier versions lack them
_UNITS = ("one row", "all rows of one ")
# What ε may differ by when it is computed again, on another machine, say.
_ROUNDING = 1e-9

_PACKAGES = ("dpmcmc", "jax", "numpyro", "opendp", "dp-accounting", "numpy")


def installed_versions() -> dict[str, str]:
    """Return the versions of what the guarantee rests on; a package that is not installed is left out.

    Examples
    --------
    >>> "python" in installed_versions()
    True
    """
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    versions["python"] = platform.python_version()
    return versions


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    r"""What was guaranteed for everything that a run released.

    The guarantee, if there is one: for any two tables D and D' that differ in one unit of privacy (one row, or all rows
    of one person, replaced by any other), and any set A of outputs,

    .. math:: P(\text{output}(D) \in A) \le e^{ε} P(\text{output}(D') \in A) + δ.

    Parameters
    ----------
    private
        Whether the guarantee holds. Requires ``epsilon``, ``delta`` and a mode that starts with "private".
    mode
        :data:`PRIVATE_MODE`, :data:`SEEDED_MODE` or :data:`NOISE_FREE_MODE`.
    epsilon, delta
        The guarantee for everything released. In a run that is not private: what was accounted for, or None.
    budget_epsilon
        The ε that was granted, at the same δ; by default ``epsilon``. What is stated may be less if fewer steps than it
        pays for were fixed beforehand.
    interrupted
        Whether the run was stopped on its way. All of the budget then counts as spent, since an ε read off at a
        stop would not be valid.
    mu
        The Gaussian cost spent, Σ 1/(2τ²); None for the subsampled accountant, or if no noise was added.
    lattice_epsilon, lattice_delta
        What discrete noise adds to the ε and δ of Gaussian noise, in the whole run (see `Budget`).
    unit_of_privacy, neighboring_relation
        To whom, and against what, the guarantee is given: "one row …", or "all rows of one …" whoever has several.
    num_records
        Number of units of privacy, which is public under "replace one".
    queries
        Number of answered queries by kind. An adaptive run that asks one kind with several noise multipliers has an
        entry for each, of any name but "batch_gradient": "gradient (round 1)", "gradient (final)".
    noise_multipliers
        Noise sd / sensitivity, by the same names. Batches have a noise ratio instead, see ``batches``.
    batches
        For queries of kind "batch_gradient": ``batch_size``, ``sampling_prob`` (batch size / number of records),
        ``sampling`` ("without_replacement" or "poisson") and ``noise_ratio`` (noise sd on the batch sum / clip norm).
    set_apart
        Kinds of query that have an ``epsilon`` and ``delta`` of their own, a part of the whole (simple composition).
    accountant
        How the costs were added up.
    adaptive
        One sentence: what was chosen by looking at earlier releases, and what was fixed beforehand.
    ledger
        What the ledger held before and after this run, or None if the run stands alone. Exactly these keys: ``name``
        (maybe ""), ``run`` (from 1), ``total_epsilon`` and ``total_delta`` (of all runs), ``mu_total``, ``mu_before``
        and ``mu_after`` (Gaussian cost: that may be spent in all, spent by earlier runs, spent now),
        ``apart_epsilon_before``, ``apart_delta_before``, ``apart_epsilon_after`` and ``apart_delta_after`` (set apart
        by simple composition, for batches say), ``left_epsilon`` at ``left_delta`` (the most that a further run could
        have), ``head`` (hash of its last entry).
    versions
        Versions of the software, by default those installed.

    Examples
    --------
    >>> statement = PrivacyStatement(
    ...     private=False, mode=SEEDED_MODE, epsilon=1.0, delta=1e-6, num_records=1000, queries={"gradient": 20},
    ...     noise_multipliers={"gradient": 12.5}, accountant="Gaussian composition",
    ... )
    >>> print(str(statement).splitlines()[0])
    NOT PRIVATE (not private: seeded)
    >>> PrivacyStatement.from_json(statement.to_json()) == statement
    True
    """

    private: bool
    mode: str
    epsilon: float | None
    delta: float | None
    budget_epsilon: float | None = None
    interrupted: bool = False
    mu: float | None = None
    lattice_epsilon: float = 0.0
    lattice_delta: float = 0.0
    unit_of_privacy: str = "one row of the table, which stands for one person"
    neighboring_relation: str = "replace one"
    num_records: int
    queries: dict[str, int] = field(default_factory=dict)
    noise_multipliers: dict[str, float] = field(default_factory=dict)
    batches: dict[str, Any] | None = None
    set_apart: dict[str, dict[str, float]] = field(default_factory=dict)
    accountant: str
    adaptive: str = ""
    ledger: dict[str, Any] | None = None
    versions: dict[str, str] = field(default_factory=installed_versions)

    def __post_init__(self) -> None:
        _check_mode(self.private, self.mode)
        for name in ("unit_of_privacy", "neighboring_relation", "accountant"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise QueryError(f"{name} is {getattr(self, name)!r}; give a short text")
        if not isinstance(self.adaptive, str):
            raise QueryError(f"adaptive is {self.adaptive!r}; give a sentence, or '' if it is not known")
        normalised: dict[str, Any] = {
            "private": bool(self.private),
            "epsilon": as_number("epsilon", self.epsilon, above=0.0),
            "delta": as_number("delta", self.delta, above=0.0, below=1.0),
            "budget_epsilon": as_number(
                "budget_epsilon", self.epsilon if self.budget_epsilon is None else self.budget_epsilon, above=0.0
            ),
            "interrupted": bool(self.interrupted),
            "mu": as_number("mu", self.mu, least=0.0),
            "lattice_epsilon": as_number("lattice_epsilon", self.lattice_epsilon, least=0.0),
            "lattice_delta": as_number("lattice_delta", self.lattice_delta, least=0.0, below=1.0),
            "num_records": as_count("num_records", self.num_records, least=1),
            "queries": {
                kind: as_count(f"queries[{kind!r}]", number) for kind, number in as_items("queries", self.queries)
            },
            "noise_multipliers": {
                kind: as_number(f"noise_multipliers[{kind!r}]", value, least=0.0)
                for kind, value in as_items("noise_multipliers", self.noise_multipliers)
            },
            "batches": None if self.batches is None else _checked_batches(self.batches),
            "set_apart": {kind: _checked_part(kind, part) for kind, part in as_items("set_apart", self.set_apart)},
            "ledger": None if self.ledger is None else checked_ledger(self.ledger),
            "versions": {package: str(version) for package, version in as_items("versions", self.versions)},
        }
        if normalised["lattice_epsilon"] is None or normalised["lattice_delta"] is None:
            raise QueryError("lattice_epsilon or lattice_delta is None; give the slack of discrete noise, or 0.0")
        if None in normalised["noise_multipliers"].values():
            raise QueryError("noise_multipliers holds None; leave kinds of query without noise out, or give 0.0")
        if self.private and (self.epsilon is None or self.delta is None):
            raise QueryError(
                f"a private run must state epsilon and delta, got epsilon={self.epsilon!r} and delta={self.delta!r}; "
                "if nothing was guaranteed, set private=False and a mode that starts with 'not private'"
            )
        if self.private and 0.0 in normalised["noise_multipliers"].values():
            raise QueryError(
                "a private run cannot have a noise multiplier of 0; set private=False if no noise was added"
            )
        for name, value in normalised.items():
            object.__setattr__(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain Python values; changing them does not change the statement."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return copy.deepcopy(values)

    def by_kind(self) -> dict[str, tuple[int, tuple[float, ...]]]:
        """Return how often each kind was asked, and with which noise multipliers; "gradient (1)" counts as "gradient".

        For readers: an adaptive run has dozens of entries.
        """
        together: dict[str, list[str]] = {}
        for entry in dict.fromkeys([*self.queries, *self.noise_multipliers]):
            together.setdefault(re.sub(r" \(\d+\)$", "", entry), []).append(entry)
        return {
            kind: (
                sum(self.queries.get(entry, 0) for entry in entries),
                tuple(self.noise_multipliers[entry] for entry in entries if entry in self.noise_multipliers),
            )
            for kind, entries in together.items()
        }

    def curve(self) -> list[tuple[float, float]]:
        """Return pairs (ε, δ), each of which holds for everything released; see :func:`~dpmcmc.privacy.curve`.

        It is the curve of what was granted, and goes through the stated pair. Empty if there was no budget. In a run
        that is not private it is what was accounted for.
        """
        return list(self._curve)

    @cached_property
    def _curve(self) -> tuple[tuple[float, float], ...]:
        return tuple(guarantee_curve(self))

    @property
    def mechanism(self) -> str:
        """How the released numbers were protected, in sentences."""
        return disclosure.mechanism(self)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must be true for the guarantee to hold, beyond what the software checks."""
        return disclosure.assumptions(self)

    @property
    def not_protected(self) -> tuple[str, ...]:
        """What the guarantee does not cover."""
        return disclosure.not_protected(self)

    def sections(self) -> tuple[disclosure.Section, ...]:
        """Return the statement in sentences, in sections with headings, by the terms of NIST SP 800-226."""
        return disclosure.sections(self)

    def derived(self) -> dict[str, Any]:
        """Return what follows from the fields, as plain values for JSON. It is never stored as a claim of its own."""
        try:
            recomputed = self.recomputed_epsilon()
        except QueryError:
            recomputed = None
        return {
            "recomputed_epsilon": recomputed,
            "curve": [list(pair) for pair in self.curve()],
            "trust_model": "central",
            "mechanism": self.mechanism,
            "assumptions": list(self.assumptions),
            "not_protected": list(self.not_protected),
            "stands_alone": self.ledger is None,
        }

    def to_json(self, *, indent: int | None = None, derived: bool = True) -> str:
        """Return the statement as one JSON object, from which :meth:`from_json` restores it exactly.

        It has the fields, and under the key "derived" what follows from them (:meth:`derived`).

        Parameters
        ----------
        indent
            Spaces before nested lines, for people; by default all is one line.
        derived
            Whether to add what follows from the fields.
        """
        values = self.to_dict() | ({"derived": self.derived()} if derived else {})
        return json.dumps(values, allow_nan=False, ensure_ascii=False, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> PrivacyStatement:
        """Restore a statement that :meth:`to_json` wrote; anything else is refused.

        What stands under "derived" is not read: it is derived again from the fields, whenever it is asked for. The
        fields ``adaptive`` and ``ledger`` may be missing, as in statements of earlier versions.
        """
        try:
            values = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise QueryError("the text is not JSON; give what PrivacyStatement.to_json returned") from None
        names = {item.name for item in fields(cls)}
        known = values.keys() - {"derived"} if isinstance(values, dict) else set()
        if not names - _LATER_FIELDS <= known <= names:
            raise QueryError(
                f"the JSON is not a privacy statement, which has exactly the fields {sorted(names)}; "
                "give what PrivacyStatement.to_json returned"
            )
        return cls(**{name: values[name] for name in known})

    def recomputed_epsilon(self) -> float:
        """Return the ε at the stated δ that follows from queries, noise, batches and slack alone, on the safe side.

        With r and d the slack of discrete noise and (ε', δ') what is set apart, it is ε₀ + r + Σ ε', where ε₀ belongs
        to δ₀ = (δ − Σ δ' − d)·e^{−r/2} on the accountant's curve: of μ, or of so many batches.

        Raises
        ------
        QueryError
            If there is no δ, or a kind of query has no noise, or nothing is left of δ.
        """
        if self.delta is None:
            raise QueryError("the statement has no delta, so no epsilon follows; the run had no budget")
        apart = self.set_apart.values()
        delta = Fraction(self.delta) - sum(Fraction(part["delta"]) for part in apart) - Fraction(self.lattice_delta)
        if delta <= 0:
            raise QueryError("lattice_delta and what is set apart leave nothing of delta; the statement is not valid")
        left = delta_of_gaussians(delta, Fraction(self.lattice_epsilon))
        if self.batches is None:
            epsilon = gaussian_epsilon(self._gaussian_cost(), left)
        else:
            epsilon = subsampled_epsilon(
                self.batches["noise_ratio"],
                self.batches["sampling_prob"],
                self.queries.get(BATCH_KIND, 0),
                left,
                self.batches["sampling"],
            )
        others = Fraction(self.lattice_epsilon) + sum(Fraction(part["epsilon"]) for part in apart)
        return rounded_up(Fraction(epsilon) + others)

    def _gaussian_cost(self) -> float:
        """Return Σ 1/(2τ²) over the queries to all records that the common budget pays for."""
        kinds = [kind for kind in self.queries if kind != BATCH_KIND and kind not in self.set_apart]
        missing = [kind for kind in kinds if not self.noise_multipliers.get(kind)]
        if missing:
            raise QueryError(f"noise_multipliers lacks {', '.join(missing)}, so the cost does not follow; add it")
        costs = (self.queries[kind] * Fraction(gaussian_cost(self.noise_multipliers[kind])) for kind in kinds)
        return rounded_up(sum(costs, Fraction(0)))

    def check(self) -> None:
        """Compute the statement again from its parts.

        Raises
        ------
        QueryError
            If the fields contradict each other: the queries, by their number and noise, cost more than is stated, ...
        """
        for contradiction in self._contradictions():
            raise QueryError(f"the privacy statement contradicts itself: {contradiction}")

    def _contradictions(self) -> Iterator[str]:
        yield from ledger_contradictions(self)
        if self.epsilon is None or self.delta is None:
            if self.mu is not None or self.batches or self.set_apart or self.queries or self.noise_multipliers:
                yield "it lists costs or queries, but has no epsilon and delta"
            if self.accountant != "none":
                yield f"accountant is {self.accountant!r}, but there was nothing to account for: 'none'"
            return
        budget = self.epsilon if self.budget_epsilon is None else self.budget_epsilon
        if self.epsilon > budget:
            yield f"epsilon = {self.epsilon!r} is more than budget_epsilon = {budget!r}, which was granted"
        if self.interrupted and self.epsilon != budget:
            yield "an interrupted run must state all of budget_epsilon: an epsilon read off at a stop is not valid"
        if self.neighboring_relation != "replace one" or not self.unit_of_privacy.startswith(_UNITS):
            yield "the accountants hold for one row, or all rows of one unit, and neighbours by 'replace one' only"
        yield from self._contradictions_of_queries()
        answered = sum(number for kind, number in self.queries.items() if kind not in self.set_apart)
        if answered and not (self.lattice_epsilon > 0.0 and self.lattice_delta > 0.0):
            yield "lattice_epsilon and lattice_delta cannot be 0, for discrete noise has such a slack"
        recomputed = self.recomputed_epsilon()
        if recomputed > self.epsilon * (1.0 + _ROUNDING):
            yield f"its queries have epsilon = {recomputed!r}, more than is stated: {self.epsilon!r}"

    def _contradictions_of_queries(self) -> Iterator[str]:
        kinds = {kind for kind in self.queries if kind != BATCH_KIND}
        if kinds != set(self.noise_multipliers):
            yield (
                f"queries has the kinds {sorted(kinds)} (besides batches), but noise_multipliers "
                f"{sorted(self.noise_multipliers)}"
            )
        for kind, part in self.set_apart.items():
            if kind not in kinds:
                yield f"set_apart has {kind}, which is not among the queries"
            else:
                own = Budget(part["epsilon"], part["delta"])
                own.reserve_lattice()
                if not own.can_spend(self.queries[kind] * Fraction(gaussian_cost(self.noise_multipliers[kind]))):
                    yield f"what is set apart for {kind} does not pay for it"
        if (self.batches is None) != (BATCH_KIND not in self.queries):
            yield f"batches must be described if, and only if, there are queries of kind {BATCH_KIND}"
        if self.batches is None:
            if not self.accountant.startswith("Gaussian"):
                yield f"accountant is {self.accountant!r}, but the queries are Gaussian"
            if self.mu is None or not math.isclose(self.mu, self._gaussian_cost(), rel_tol=1e-12):
                yield f"mu = {self.mu!r}, but the queries cost {self._gaussian_cost()!r}"
            return
        size, prob = self.batches["batch_size"], self.batches["sampling_prob"]
        if size > self.num_records or not math.isclose(prob, size / self.num_records, rel_tol=1e-12):
            yield f"batches of {size} out of {self.num_records} records do not have sampling_prob = {prob!r}"
        sampling = self.batches["sampling"].replace("_", " ")
        if not self.accountant.startswith("subsampled") or sampling not in self.accountant.lower():
            yield f"accountant is {self.accountant!r}, but batches are drawn {sampling}"
        if self.mu is not None or kinds - set(self.set_apart):
            yield "queries to all records are no part of the subsampled accountant; they must be set apart, and mu None"

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """Return the statement for people: in two lines what is guaranteed, then all of it, in sections."""
        first = [f"{'PRIVATE' if self.private else 'NOT PRIVATE'} ({self.mode})", self._guarantee()]
        return disclosure.as_text(self, first)

    def _guarantee(self) -> str:
        # repr, not rounded: a rounded ε could state more than was guaranteed.
        numbers = f"ε = {self.epsilon!r}, δ = {self.delta!r}"
        if self.private:
            return (
                f"Everything released together is (ε, δ)-differentially private with {numbers}, for the unit of "
                f"privacy: {self.unit_of_privacy}, of {self.num_records}; neighbouring relation: "
                f"{self.neighboring_relation}."
            )
        reason = {
            SEEDED_MODE: "the noise came from a seed, and who knows the seed can take it off again",
            NOISE_FREE_MODE: "no noise was added",
        }.get(self.mode, self.mode)
        accounted = "" if self.epsilon is None else f" The budget accounted for ({numbers}) is not a guarantee."
        return f"Nothing is guaranteed to anyone in the {self.num_records} records: {reason}.{accounted}"


def _check_mode(private: bool, mode: str) -> None:
    prefix = "private" if private else "not private"
    if not isinstance(mode, str) or not mode.startswith(prefix):
        raise QueryError(f"mode is {mode!r} with private={private}; it must start with {prefix!r}")


def _checked_batches(batches: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(as_items("batches", batches))
    if set(values) != set(_BATCH_FIELDS):
        raise QueryError(f"batches has the keys {sorted(values)}; give exactly {', '.join(_BATCH_FIELDS)}")
    if values["sampling"] not in get_args(Scheme):
        raise QueryError(f"batches['sampling'] is {values['sampling']!r}; give one of {get_args(Scheme)}")
    return {
        "batch_size": as_count("batches['batch_size']", values["batch_size"], least=1),
        "sampling_prob": as_present("batches['sampling_prob']", values["sampling_prob"], above=0.0),
        "sampling": values["sampling"],
        "noise_ratio": as_present("batches['noise_ratio']", values["noise_ratio"], above=0.0),
    }


def _checked_part(kind: str, part: Mapping[str, Any]) -> dict[str, float]:
    values = dict(as_items(f"set_apart[{kind!r}]", part))
    if set(values) != {"epsilon", "delta"}:
        raise QueryError(f"set_apart[{kind!r}] has the keys {sorted(values)}; give exactly epsilon and delta")
    return {
        name: as_present(f"set_apart[{kind!r}][{name!r}]", values[name], above=0.0) for name in ("epsilon", "delta")
    }
