"""The sections of a report: what a posterior holds, drawn and said in plain words.

Each takes a posterior and returns a part of the page, empty where there is nothing to show. All of it follows from
released quantities; there are no times, since running time is not protected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dpmcmc.privacy import PrivacyStatement
from dpmcmc.results import charts
from dpmcmc.results.markup import Html, cell, heading, joined, listing, paragraph, table
from dpmcmc.results.posterior import Posterior
from dpmcmc.results.quality import as_percent, entry_label
from dpmcmc.results.table import SummaryRows

__all__ = [
    "chains",
    "course",
    "distributions",
    "guarantee",
    "in_data_units",
    "ledger",
    "parameters",
    "short_name",
    "statement_texts",
]

MOST_DRAWN = 12
"""So many parameters are drawn one by one; all of them have their interval."""
_TRACE_SAID = "Above, the course of each chain over its draws, a colour for each."


class Entry(NamedTuple):
    """One number of the posterior: its name, and its draws (chains × draws)."""

    name: str
    draws: np.ndarray


def in_data_units(posterior: Posterior) -> Posterior:
    """Return the posterior with coefficients in the data's units, if there is a formula that says how."""
    return posterior if posterior.design is None else posterior.on_original_scale()


def entries(posterior: Posterior) -> Iterator[Entry]:
    """Return all numbers of a posterior; coefficients go by their column's name."""
    for name, draws in posterior.draws.items():
        for index in np.ndindex(draws.shape[2:]):
            label = entry_label(name, index, posterior.dims, posterior.coords)
            yield Entry(short_name(label), draws[(slice(None), slice(None), *index)])


def short_name(label: str) -> str:
    """Return a coefficient's name without the word: "coefficients[age]" is "age"; a number stays."""
    return re.sub(r"^coefficients\[(.*[^\d ,].*)\]$", r"\1", label)


def parameters(posterior: Posterior) -> Html:
    """Return the intervals of all parameters."""
    shown = in_data_units(posterior)
    rows = [charts.interval_of(entry.name, entry.draws) for entry in entries(shown)]
    groups = charts.interval_groups(rows)
    units = (
        "A coefficient is the change for one more unit of its column as it stands in the data, or for a level against "
        "the first one. "
        if posterior.design is not None
        else ""
    )
    axes = f"They are drawn on {len(groups)} axes, by their size. " if len(groups) > 1 else ""
    noise = "What privacy noise adds to the uncertainty is included. " if not posterior.of_chains else ""
    caption = (
        "Bars hold the central 90 % of the draws, lines across mark the median; a thin line from row to row is zero. "
        f"{axes}{units}{noise}Beside each bar: median (5 % to 95 %)."
    )
    drawn = Html("".join(charts.intervals(group) for group in groups))
    return joined(
        [heading("Coefficients" if posterior.design is not None else "Parameters"), charts.captioned(drawn, caption)]
    )


def distributions(posterior: Posterior) -> Html:
    """Return the density of each parameter, of the first ones if there are many."""
    found = list(entries(in_data_units(posterior)))
    drawn = [charts.captioned(charts.density(one.name, one.draws), one.name, "small") for one in found[:MOST_DRAWN]]
    words = "The darker part holds the central 90 %; the line is the median, and a dashed line is zero. " + _first_only(
        found
    )
    return joined([heading("Distributions"), paragraph(words.strip()), charts.grid(drawn)])


def chains(posterior: Posterior, summary: SummaryRows) -> Html:
    """Return traces and ranks, and what R̂ and ESS mean under a budget; of independent draws, why there are none."""
    if not posterior.of_chains:
        return joined(
            [
                heading("R̂, ESS and traces"),
                paragraph(
                    "There are none. The draws are independent of each other, or nearly so: R̂ would be 1 and the "
                    "effective sample size the number of draws, however good or bad the fit is. Whether the fit can be "
                    "trusted is said above."
                ),
            ]
        )
    found = list(entries(in_data_units(posterior)))
    drawn = []
    for one in found[:MOST_DRAWN]:
        ranks = charts.ranks(one.name, one.draws) if posterior.num_chains > 1 else Html("")
        drawn.append(charts.captioned(Html(charts.trace(one.name, one.draws) + ranks), one.name, "small pair"))
    number = posterior.num_chains
    shown = f"The first {charts.MAX_CHAINS} of {number} chains are drawn. " if number > charts.MAX_CHAINS else ""
    ranks_said = (
        "Below it, the ranks: for each chain, how many of its draws are among the lowest to the highest of all; bars "
        "near the dashed line mean that the chains agree. "
        if number > 1
        else ""
    )
    return joined(
        [
            heading("Chains: R̂, ESS and traces"),
            *(paragraph(text) for text in _diagnostics_in_words(posterior, summary)),
            paragraph(f"{_TRACE_SAID} {ranks_said}{shown}{_first_only(found)}".strip()),
            charts.grid(drawn),
        ]
    )


def _diagnostics_in_words(posterior: Posterior, summary: SummaryRows) -> Iterator[str]:
    yield (
        "R̂ compares the chains with each other: near 1.00 they agree, above about 1.01 they have not yet told the "
        "same story. The effective sample size (ESS) says how many independent draws the chain's draws are worth; "
        "below a few hundred, the ends of intervals are rough."
    )
    yield (
        "Under a privacy budget every step costs, so that the budget, not patience, ends a chain: chains are short, "
        "and R̂ is often higher and ESS lower than one is used to. Noise makes a chain slower, too. More steps, or "
        "less noise, take a larger ε or more records. Neither number shows a bias, by clipping for one."
    )
    said = []
    for column, words, worst in (("r_hat", "the largest R̂ is", max), ("ess_bulk", "the smallest ESS is", min)):
        if column not in summary.columns:
            continue
        known = [
            (v, name) for v, (name, _) in zip(summary.column(column), summary.rows, strict=True) if math.isfinite(v)
        ]
        if known:
            value, name = worst(known)
            said.append(f"{words} {value:.3f} ({name})" if column == "r_hat" else f"{words} {value:,.0f} ({name})")
    size = posterior.num_chains * posterior.num_draws
    yield (
        f"Here {' and '.join(said)}, of {size:,} draws." if said else "Here neither can be estimated from so few draws."
    )


def course(posterior: Posterior) -> Html:
    """Return how the budget was spent from the first answer to the last; nothing if that is not known."""
    spending = posterior.spending
    if not spending:
        return Html("")
    rows, before = [], 0.0
    for entry in spending:
        cells = [cell(f"{entry.answers:,}"), cell(as_percent(entry.share - before)), cell(as_percent(entry.share))]
        rows.append((entry.what.replace("_", "-"), cells))
        before = entry.share
    last = spending[-1].share
    caption = "Share of the run's budget that was spent, from the first answer to the last."
    if last < 0.995:
        caption += f" {as_percent(1.0 - last)} was not used; the guarantee is stated for the whole budget all the same."
    numbers = table(["asked", "answers", "its share", "spent after it"], rows, "numbers")
    folded = Html(f"<details><summary>In numbers ({len(rows)} rows)</summary>{numbers}</details>")
    return joined(
        [
            heading("How the budget was spent"),
            charts.captioned(charts.spending_course(spending), caption, "narrow"),
            folded,
        ]
    )


def guarantee(privacy: PrivacyStatement) -> Html:
    """Return the privacy curve with the stated pair; nothing if there was no budget."""
    points = privacy.curve()
    if privacy.epsilon is None or privacy.delta is None or len(points) < 2:
        return Html("")
    caption = (
        "Every point of the curve holds for everything that this run released: with a smaller ε, a larger δ, and the "
        "other way round. The marked pair is the one that is stated. The curve is that of the budget that was granted."
        if privacy.private
        else "What was accounted for. It is not a guarantee: the noise can be computed again."
    )
    drawing = charts.privacy_curve(points, (privacy.epsilon, privacy.delta))
    return joined([heading("The privacy curve δ(ε)"), charts.captioned(drawing, caption, "narrow")])


def ledger(privacy: PrivacyStatement) -> Html:
    """Return the ledger before and after the run as bars, or that there was none."""
    known = privacy.ledger
    parts = [heading("The ledger: all runs on these data")]
    if known is None:
        parts.append(
            paragraph(
                "No ledger was used: this run stands alone. Other releases about the same people add to this one, and "
                "nothing here counts them."
            )
        )
        return joined(parts)
    name = f" “{known['name']}”" if known["name"] else ""
    caption = (
        f"Run {known['run']} of the ledger{name}. Total for all runs: ε = {known['total_epsilon']:g}, δ = "
        f"{known['total_delta']:g}. A further run could have at most ε = {known['left_epsilon']:.3g} at δ = "
        f"{known['left_delta']:.3g}."
    )
    bars = [charts.ledger_bar(known["mu_before"], known["mu_after"], known["mu_total"], "Gaussian cost μ of the total")]
    if known["apart_epsilon_after"] > 0.0:
        what = "ε set apart, of the total"
        bars.append(paragraph(what + ":"))
        ends = known["apart_epsilon_before"], known["apart_epsilon_after"], known["total_epsilon"]
        bars.append(charts.ledger_bar(*ends, what))
        bars.insert(0, paragraph("Gaussian cost μ, of the total:"))
    return joined([*parts, charts.captioned(Html("".join(bars)), caption)])


def statement_texts(privacy: PrivacyStatement) -> Html:
    """Return the statement in sentences, section by section."""
    parts = [heading("The privacy statement"), paragraph(privacy.to_text().splitlines()[1], "strong")]
    for section in privacy.sections():
        parts.append(heading(section.heading, 3))
        parts += [paragraph(text) for text in section.paragraphs]
        parts.append(listing(section.items))
    return joined(parts)


def _first_only(found: list[Entry]) -> str:
    return "" if len(found) <= MOST_DRAWN else f"The first {MOST_DRAWN} of {len(found)} parameters are drawn."
