"""A privacy statement in sentences: what a reader who is no specialist needs, in the terms of NIST SP 800-226.

Everything here follows from the statement's fields and from what this package does; nothing is claimed that the code
does not keep, and what it does not keep is said. It computes no guarantee of its own.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from dpmcmc.privacy.curve import curve_mu

if TYPE_CHECKING:
    from dpmcmc.privacy.statement import PrivacyStatement

__all__ = ["Section", "as_text", "assumptions", "mechanism", "not_protected", "sections"]

_WIDTH = 110
_KINDS = {
    "gradient": "sums over the records of the gradient of the log-likelihood, each record's clipped",
    "weighted_gradient": "sums over the records of the gradient of the log-likelihood, large ones weighted down",
    "batch_gradient": "sums over a secret random batch of records of the gradient, each record's clipped",
    "log_ratio": "sums of how much better one parameter value explains a record than another, each record's clipped",
    "curvature": "sums over the records of second derivatives of the log-likelihood, each record's clipped",
    "fisher_information": "sums over the records of the expected information, each record's clipped",
    "score_moments": "sums over the records of the gradient and of its products with itself, each record's clipped",
    "coordinate_histogram": "counts of records by the size of their gradient, for the choice of clip bounds",
    "quantile": "counts of records by the size of their contribution, for the choice of clip bounds",
    "clip_count": "counts of records whose contribution is larger than a bound: to choose it, or to see what it clips",
    "invalid_count": "the number of records that count as nothing (missing, infinite or impossible values)",
}


class Section(NamedTuple):
    """A part of the statement: its heading, paragraphs, and below them a list."""

    heading: str
    paragraphs: tuple[str, ...]
    items: tuple[str, ...] = ()


def sections(statement: PrivacyStatement) -> tuple[Section, ...]:
    """Return the statement in sections, from what is guaranteed to the versions of the software."""
    found = [
        Section("What this means", tuple(_meaning(statement))),
        Section("Privacy loss parameter", tuple(_parameters(statement)), tuple(_other_pairs(statement))),
        Section("Unit of privacy and neighbouring data", tuple(_unit(statement))),
        Section("Trust model", (_TRUST,)),
        Section("Mechanism", (mechanism(statement),)),
        Section("What was released", (_RELEASED,) if statement.queries else (), tuple(_releases(statement))),
        Section("Composition and accounting", tuple(_accounting(statement))),
        Section("Other runs on the same data: the ledger", tuple(_ledger(statement))),
        Section("What is assumed", (_ASSUMED,), assumptions(statement)),
        Section("What is not protected", (), not_protected(statement)),
        Section("Software", ("Versions: " + ", ".join(f"{k} {v}" for k, v in statement.versions.items()) + ".",)),
    ]
    return tuple(section for section in found if statement.private or section.heading not in _OF_A_GUARANTEE)


def as_text(statement: PrivacyStatement, first: list[str]) -> str:
    """Return the sections as plain text below the lines that it begins with."""
    lines = list(first)
    for section in sections(statement):
        lines += ["", section.heading.upper()]
        lines += [line for text in section.paragraphs for line in _wrapped(text, "")]
        lines += [line for text in section.items for line in _wrapped(text, "- ")]
    return "\n".join(lines)


def _wrapped(text: str, mark: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )


# ------------------------------------------------------------------------------------------------ the sections

_TRUST = (
    "Central: one trusted curator, the machine and the people who run this software, holds the records as they are. "
    "The guarantee is about what leaves the curator, towards anyone who reads it, whatever else they know."
)
_RELEASED = (
    "These are all the numbers that were computed from the records, by kind, with the number of answers (an answer may "
    "be a vector or a matrix) and their noise. All else that is published of the run (draws, "
    "summaries, pictures, warnings) was computed from them and from public facts, which costs nothing further."
)
_ASSUMED = "The guarantee holds if the following is true. The software cannot check it, or cannot check all of it."
_OF_A_GUARANTEE = ("Trust model", "What is assumed")
_NOT_A_GUARANTEE = "The numbers below are what was accounted for. They are not a guarantee."


def _meaning(statement: PrivacyStatement) -> Iterator[str]:
    if not statement.private or statement.epsilon is None or statement.delta is None:
        yield "This run protects nobody. What it released must be treated like the records themselves."
        return
    person = "row" if statement.unit_of_privacy.startswith("one row") else "rows"
    factor = _up(math.exp(statement.epsilon)) if statement.epsilon < 500.0 else f"e^{statement.epsilon:g}"
    yield (
        f"Take any person in the data, and suppose that this person's {person} had been anything else. Whatever this "
        f"run released, the change would have made no result more than e^ε = {factor} times as likely, or that many "
        f"times less likely, apart from an additional probability of at most δ = {_up(statement.delta)}. So a reader "
        "of the results can learn little about this person beyond what could be learnt without the true entry."
    )
    yield "The smaller ε and δ, the stronger the protection. With ε = 0 and δ = 0 the results could not use the data."


def _parameters(statement: PrivacyStatement) -> Iterator[str]:
    if statement.epsilon is None or statement.delta is None:
        yield "There is no ε and no δ: the run had no budget."
        return
    if not statement.private:
        yield _NOT_A_GUARANTEE
    kind = "Approximate differential privacy with" if statement.private else "Accounted for:"
    yield f"{kind} ε = {statement.epsilon!r} and δ = {statement.delta!r}."
    if statement.mu is not None:
        allowed = curve_mu(statement)
        whole = ""
        if allowed is not None and allowed != statement.mu:
            whole = f" The budget allowed μ = {allowed!r} in all, and ε is stated for all of it."
        yield f"The answers cost μ = Σ number/(2·multiplier²) = {statement.mu!r} (ρ of concentrated privacy).{whole}"
    if statement.budget_epsilon is not None and statement.budget_epsilon != statement.epsilon:
        yield f"Budget granted: ε = {statement.budget_epsilon!r}; fewer steps were fixed beforehand."
    if statement.interrupted:
        yield "Interrupted: the run was stopped on its way; the whole budget counts as spent."
    if len(statement.curve()) > 1:
        holds = "holds" if statement.private else "would hold for noise that nobody can compute again"
        yield f"The same budget is also described by other pairs of ε and δ, each of which {holds}:"


def _other_pairs(statement: PrivacyStatement) -> Iterator[str]:
    curve = statement.curve()
    if len(curve) < 2 or statement.epsilon is None:
        return
    for share in (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0):
        for epsilon, delta in curve:
            if math.isclose(epsilon, share * statement.epsilon, rel_tol=1e-9):
                stated = " (as stated)" if share == 1.0 else ""
                yield f"ε = {_up(epsilon)}, δ = {_up(delta)}{stated}"


def _unit(statement: PrivacyStatement) -> Iterator[str]:
    yield f"Unit of privacy: {statement.unit_of_privacy}. There are {statement.num_records:,} of them."
    if statement.neighboring_relation == "replace one":
        yield (
            "Neighbouring data: bounded, replace one. Two data sets are neighbours if they have the same number of "
            "units and differ in what one of them says. The number of units is taken as public."
        )
    else:
        yield f"Neighbouring data: {statement.neighboring_relation}."


def mechanism(statement: PrivacyStatement) -> str:
    """Say how the numbers were protected."""
    if statement.epsilon is None:
        return "There was no noise: sums over the records were computed as they are."
    noise = (
        "Each record's contribution to a sum was bounded (clipped) and rounded to whole multiples of a fixed unit; "
        "these integers were added up exactly, and discrete Gaussian noise was added to each released number. "
    )
    noise += (
        "The noise was drawn by OpenDP's exact sampler from the operating system's randomness. "
        if statement.private
        else "The noise could be computed again by anyone who knows where it started, so that it protects nobody. "
    )
    if statement.batches is not None:
        drawn = statement.batches["sampling"].replace("_", " ")
        noise += (
            f"Sums of gradients are over batches of {statement.batches['batch_size']:,} of {statement.num_records:,} "
            f"records, drawn at random ({drawn}) and kept secret: q = {statement.batches['sampling_prob']!r}, noise "
            f"ratio (noise sd on the batch sum / clip norm) {statement.batches['noise_ratio']!r}. "
        )
    return noise + (
        "A noise multiplier is the standard deviation of the noise divided by the most that the sum can change when "
        "one unit of privacy is replaced."
    )


def _releases(statement: PrivacyStatement) -> Iterator[str]:
    for kind, (number, multipliers) in statement.by_kind().items():
        noise = "".join(f" (noise multiplier {one!r})" for one in multipliers)
        if len(multipliers) > 1:
            noise = f" (noise multipliers {min(multipliers):.6g} to {max(multipliers):.6g})"
        plain = kind.partition(" (")[0]
        yield f"{number} {kind}{noise}" + (f": {_KINDS[plain]}" if plain in _KINDS else "")
    if not statement.queries:
        yield "Nothing that was noised and accounted for."


def _accounting(statement: PrivacyStatement) -> Iterator[str]:
    if statement.epsilon is None:
        yield "Accountant: none. There was nothing to account for."
        return
    yield f"Accountant: {statement.accountant}."
    yield (
        "The total was fixed before the first question. Every question was charged before a record was looked at, and "
        "one that did not fit would have been refused."
    )
    yield f"What was adaptive: {statement.adaptive or 'not recorded in this statement.'}"
    for kind, part in statement.set_apart.items():
        yield (
            f"Set apart for {kind}: ε = {part['epsilon']!r}, δ = {part['delta']!r} (simple composition, included in ε "
            "and δ above)."
        )
    if statement.lattice_epsilon or statement.lattice_delta:
        yield (
            f"Discreteness of the noise: r = {statement.lattice_epsilon!r}, d = {statement.lattice_delta!r}; the "
            "accountant's (ε₀, δ₀) becomes (ε₀ + r, e^(r/2)·δ₀ + d), included above."
        )


def _ledger(statement: PrivacyStatement) -> Iterator[str]:
    ledger = statement.ledger
    if ledger is None:
        yield (
            "No ledger was used: this run stands alone. Other releases about the same people, earlier or later, add to "
            "this one, and nothing here counts them."
        )
        return
    name = f" {ledger['name']!r}" if ledger["name"] else ""
    yield (
        f"This is run {ledger['run']} of the ledger{name}, whose total for all runs together is ε = "
        f"{ledger['total_epsilon']!r}, δ = {ledger['total_delta']!r}."
    )
    yield (
        f"Gaussian cost: μ = {ledger['mu_before']!r} was spent before this run and {ledger['mu_after']!r} is spent "
        f"after it, of {ledger['mu_total']!r} in all."
    )
    if ledger["apart_epsilon_after"] or ledger["apart_delta_after"]:
        yield (
            f"Set apart (runs on batches, reserves), by simple composition: ε = {ledger['apart_epsilon_before']!r}, δ "
            f"= {ledger['apart_delta_before']!r} before this run, and ε = {ledger['apart_epsilon_after']!r}, δ = "
            f"{ledger['apart_delta_after']!r} after it."
        )
    yield (
        f"Left after this run: at most ε = {ledger['left_epsilon']!r} at δ = {ledger['left_delta']!r}. The ledger's "
        f"last entry then had the hash {ledger['head']}."
    )
    yield (
        "The ledger counts what was charged to it. Releases about the same people that were not charged there add to "
        "its total."
    )


def assumptions(statement: PrivacyStatement) -> tuple[str, ...]:
    """Return what must be true for the guarantee to hold, and is not checked, or not in full."""
    if not statement.private:
        return ()
    if statement.unit_of_privacy.startswith("one row"):
        persons = (
            "Each row is about one person, and nobody has two. Who has several is protected less, see groups below."
        )
    else:
        persons = (
            "All rows of a person bear the same identifier. Which rows beyond the limit are left out follows from "
            "their order alone."
        )
    found = [
        f"The number of units, {statement.num_records:,}, is public.",
        "The schema is public: names and types of columns, bounds, levels, centres and scales were chosen without "
        "looking at these records. So were the formula or model, the prior, the settings and the budget.",
        persons,
        "A model that the user wrote contains no number that was computed from the records. (Arrays as long as the "
        "data are refused; single numbers cannot be noticed.)",
        "The operating system's random numbers cannot be foreseen, and nobody has recorded them or the noise.",
        "The software of the versions below does what its documentation says.",
    ]
    return tuple(found)


def not_protected(statement: PrivacyStatement) -> tuple[str, ...]:
    """Return what the guarantee does not cover, whatever ε is."""
    if not statement.private:
        return ("Everything that the records say: this run gives no guarantee to anyone.",)
    growth = "k·ε, with δ growing to k·e^((k−1)ε)·δ"
    return (
        "Side channels: running time, memory and power use of the machine are not protected; who can observe them may "
        "learn about records.",
        "Access control: who may read the records, the machine, unfinished runs or the ledger is not decided here.",
        "Data collection exposure: how the records were collected, sent and stored before this run.",
        f"Groups: for k units together, a family for one, the guarantee is weaker: {growth}.",
        "What is true of people in general: a result about the population applies to a person whether or not the "
        "person is in the data, and may be held against them.",
        "Facts taken as public: the number of units, the schema with its bounds and levels, the formula or model.",
        "Numbers computed from the records that a user has put into a model, a schema or the settings.",
        "Other releases about the same people: each adds to this one"
        + (" unless it was charged to the same ledger." if statement.ledger is not None else "."),
    )


def _up(value: float) -> str:
    """Write a number with four digits that is not less than it."""
    if value == 0.0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    for number in (float(f"{value:.4g}"), float(f"{value + unit:.4g}")):
        if number >= value:
            return f"{number:.4g}"
    return repr(value)
