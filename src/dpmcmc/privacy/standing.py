"""What a ledger held before and after a run, as a privacy statement repeats it: checked, and held against the run.

A ledger keeps the total of all runs on one data set. This module does not read or write one: it knows which numbers a
statement has of it, and which of them cannot all be true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpmcmc.errors import QueryError
from dpmcmc.privacy.exact import rounded_down
from dpmcmc.privacy.fields import as_count, as_items, as_present
from dpmcmc.privacy.gaussian import gaussian_mu

if TYPE_CHECKING:
    from dpmcmc.privacy.statement import PrivacyStatement

__all__ = ["LEDGER_FIELDS", "checked_ledger", "ledger_contradictions"]

_NUMBERS = (
    "total_epsilon",
    "total_delta",
    "mu_total",
    "mu_before",
    "mu_after",
    "apart_epsilon_before",
    "apart_delta_before",
    "apart_epsilon_after",
    "apart_delta_after",
    "left_epsilon",
    "left_delta",
)
LEDGER_FIELDS = ("name", "run", *_NUMBERS, "head")
"""The keys of ``PrivacyStatement.ledger``."""
_ROUNDING = 1e-9


def checked_ledger(ledger: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a statement says of its ledger as plain values, or raise a `QueryError`."""
    values = dict(as_items("ledger", ledger))
    if set(values) != set(LEDGER_FIELDS):
        raise QueryError(f"ledger has the keys {sorted(values)}; give exactly {', '.join(LEDGER_FIELDS)}")
    if not isinstance(values["name"], str):
        raise QueryError(f"ledger['name'] is {values['name']!r}; give a text, '' if it has no name")
    if not isinstance(values["head"], str) or not re.fullmatch(r"[0-9a-f]+", values["head"]):
        raise QueryError(f"ledger['head'] is {values['head']!r}; give the hash of its last entry, in hexadecimal")
    numbers = {name: as_present(f"ledger[{name!r}]", values[name], least=0.0) for name in _NUMBERS}
    run = as_count("ledger['run']", values["run"], least=1)
    return {"name": values["name"], "run": run, **numbers, "head": values["head"]}


def ledger_contradictions(statement: PrivacyStatement) -> Iterator[str]:
    """Say what cannot be true of the ledger, by itself or beside the run that the statement is about."""
    ledger = statement.ledger
    if ledger is None:
        return
    for name in ("mu", "apart_epsilon", "apart_delta"):
        if ledger[f"{name}_after"] < ledger[f"{name}_before"]:
            yield f"its ledger's {name}_after is less than {name}_before, but what was spent stays spent"
    if not _at_least(ledger["mu_total"], ledger["mu_after"]):
        yield f"its ledger has mu_after = {ledger['mu_after']!r}, more than mu_total = {ledger['mu_total']!r}"
    left = [
        Fraction(ledger[f"total_{name}"]) - Fraction(ledger[f"apart_{name}_after"]) for name in ("epsilon", "delta")
    ]
    if min(left) < 0:
        yield "its ledger has set apart more than its total epsilon and delta"
    elif ledger["mu_after"] > 0.0:
        epsilon, delta = (rounded_down(part) for part in left)
        allowed = gaussian_mu(epsilon, min(delta, 1.0 - 1e-9)) if epsilon > 0.0 and delta > 0.0 else 0.0
        if not _at_least(allowed, ledger["mu_after"]):
            yield (
                f"its ledger's epsilon and delta, without what is set apart, allow a Gaussian cost of {allowed!r}, but "
                f"mu_after = {ledger['mu_after']!r}"
            )
    yield from _contradictions_with_the_run(statement, ledger)


def _contradictions_with_the_run(statement: PrivacyStatement, ledger: Mapping[str, Any]) -> Iterator[str]:
    if statement.epsilon is None or statement.delta is None:
        yield "it has a ledger, but no epsilon and delta that could be charged there"
    elif statement.mu is not None:
        if not _at_least(ledger["mu_after"], ledger["mu_before"] + statement.mu):
            charged = ledger["mu_after"] - ledger["mu_before"]
            yield f"the run has cost mu = {statement.mu!r}, but its ledger was charged {charged!r}"
    else:
        for name in ("epsilon", "delta"):
            own = getattr(statement, name) - sum(part[name] for part in statement.set_apart.values())
            if not _at_least(ledger[f"apart_{name}_after"], ledger[f"apart_{name}_before"] + own):
                yield f"the run has {name} = {own!r} by its batches, which its ledger has not set apart"


def _at_least(value: float, bound: float) -> bool:
    return value >= bound * (1.0 - _ROUNDING)
