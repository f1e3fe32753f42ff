"""A posterior as one page of HTML: what was found, how far to trust it, what was guaranteed. Nothing is fetched.

Shows released quantities only, which the posterior holds; a run that was not private says so at the top. The page
follows the reader's light or dark theme, needs no scripts, and fits a phone. Pictures may be given as bytes.

`html_report` makes a whole page. For a page with contents of its own, such as the demo's, `html_page` puts parts
together. The other functions make these parts: each escapes the texts that it is given and returns `Html`.
"""

import base64
import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import Template
from typing import Any

from dpmcmc.errors import ResultError
from dpmcmc.privacy import PrivacyStatement
from dpmcmc.privacy.statement import NOISE_FREE_MODE, SEEDED_MODE
from dpmcmc.results import sections
from dpmcmc.results.markup import Html, cell, code, heading, note, number_text, paragraph, short, table
from dpmcmc.results.page import PAGE
from dpmcmc.results.posterior import Posterior
from dpmcmc.results.quality import as_percent
from dpmcmc.results.table import SummaryRows, summary_rows

__all__ = [
    "COLOURS",
    "Html",
    "IntervalRow",
    "Picture",
    "code",
    "figure",
    "heading",
    "html_page",
    "html_report",
    "intervals",
    "note",
    "paragraph",
    "statement",
    "statement_rows",
    "summary",
    "trust",
    "warning_notes",
]

COLOURS = {"ink": "#1b1f24", "muted": "#59636e", "line": "#d0d7de", "private": "#0072b2", "exact": "#e69f00"}
"""Colours by role, from the palette of Okabe and Ito (told apart by all common kinds of colour vision).

Where an SVG picture uses one of them, the page puts a variable of its style in, so that the picture follows the theme.
"""


@dataclass(frozen=True)
class Picture:
    """A picture for a page.

    Parameters
    ----------
    name
        A word that no other picture of the page has.
    content
        SVG (it becomes part of the page as it is, so give your own only) or PNG.
    label
        What it shows, for readers who cannot see it.
    caption
        The text below.
    wide
        Whether it takes the page's full width, or that of a column of text.
    """

    name: str
    content: bytes
    label: str
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class IntervalRow:
    """A quantity, and two intervals for it.

    Parameters
    ----------
    name
        What it is.
    private, exact
        Low end, middle and high end: of what was released, and of what only public data may show beside it.
    """

    name: str
    private: tuple[float, float, float]
    exact: tuple[float, float, float]


def html_report(
    posterior: Posterior, *, title: str | None = None, lead: str = "", pictures: Sequence[Picture] = ()
) -> str:
    """Return a posterior as one page of HTML that needs no other file.

    Parameters
    ----------
    posterior
        What `dpmcmc.sample` returned.
    title, lead
        The heading, by default the model's name, and a sentence below it, by default the formula if there is one.
    pictures
        Pictures of the draws.
    """
    shown = summary_rows(sections.in_data_units(posterior))
    shown = SummaryRows(shown.columns, [(sections.short_name(name), values) for name, values in shown.rows])
    if not lead and posterior.design is not None:
        lead = posterior.design.formula
    parts = [figure(picture) for picture in pictures]
    if posterior.quality is None:
        parts.append(warning_notes(posterior))
    else:
        by_auto = posterior.sampler == "auto"
        parts += [heading("What auto chose, and how far to trust this" if by_auto else "How far to trust this")]
        parts.append(trust(posterior))
    parts += [
        sections.parameters(posterior),
        heading("Summary"),
        summary(shown),
        sections.distributions(posterior),
        sections.chains(posterior, shown),
        heading("What was spent and released"),
        statement(posterior),
        sections.course(posterior),
        sections.guarantee(posterior.privacy),
        sections.ledger(posterior.privacy),
        sections.statement_texts(posterior.privacy),
    ]
    title = title or f"Posterior of {posterior.model}"
    return html_page(posterior, [part for part in parts if part], title=title, lead=lead)


def html_page(posterior: Posterior, parts: Iterable[Html], *, title: str, lead: str = "", footer: str = "") -> str:
    """Return a page: title, whether the run was private, its main numbers, and then the given parts.

    Parameters
    ----------
    posterior
        What the page is about.
    parts
        What stands below the numbers, in this order.
    title, lead
        The heading, and a sentence below it.
    footer
        What stands before the versions of the software at the end.
    """
    privacy = posterior.privacy
    versions = ", ".join(f"{name} {version}" for name, version in privacy.versions.items())
    return Template(PAGE).substitute(
        title=html.escape(title),
        lead=html.escape(lead),
        banner=_banner(posterior),
        tiles="".join(
            f"<div><dd>{html.escape(value)}</dd><dt>{html.escape(label)}</dt></div>"
            for value, label in _tiles(posterior)
        ),
        parts="\n".join(parts),
        footer=html.escape(f"{footer} {versions}".strip()),
    )


def figure(picture: Picture) -> Html:
    """Return a picture with its caption."""
    kind = "" if picture.wide else ' class="narrow"'
    if picture.content.startswith(b"\x89PNG"):
        encoded = base64.b64encode(picture.content).decode("ascii")
        drawing = f'<img alt="{html.escape(picture.label)}" src="data:image/png;base64,{encoded}">'
    elif b"<svg" in picture.content:
        drawing = _inline_svg(picture)
    else:
        raise ResultError(f"content of the picture {picture.name!r} is neither SVG nor PNG; give one of these")
    return Html(f"<figure{kind}>{drawing}\n<figcaption>{html.escape(picture.caption)}</figcaption></figure>")


def intervals(rows: Sequence[IntervalRow], *, private: str, exact: str, caption: str) -> Html:
    """Return pairs of intervals on one axis, drawn with boxes of HTML so that words stay readable on any screen.

    Parameters
    ----------
    rows
        From the top down.
    private, exact
        What the two are called in the legend.
    caption
        The text below.
    """
    values = [0.0, *(value for row in rows for three in (row.private, row.exact) for value in three)]
    low, high = min(values), max(values)
    low, high = low - 0.03 * (high - low or 1.0), high + 0.03 * (high - low or 1.0)

    def percent(value: float) -> str:
        return f"{100.0 * (value - low) / (high - low):.2f}%"

    def bar(kind: str, three: tuple[float, float, float]) -> str:
        start, middle, end = three
        width = f"{100.0 * (end - start) / (high - low):.2f}%"
        return (
            f'<span class="bar {kind}" style="left: {percent(start)}; width: {width}"></span>'
            f'<span class="dot {kind}" style="left: {percent(middle)}"></span>'
        )

    def words(kind: str, three: tuple[float, float, float]) -> str:
        return f"{kind}: {short(three[0])} to {short(three[2])}"

    drawn = "".join(
        f'<div class="row"><span class="name">{html.escape(row.name)}</span>'
        f'<span class="track" role="img" style="--zero: {percent(0.0)}" aria-label="'
        f'{html.escape(words(private, row.private) + "; " + words(exact, row.exact))}">'
        f"{bar('private', row.private)}{bar('exact', row.exact)}</span></div>"
        for row in rows
    )
    ticks = "".join(
        f'<span style="left: {percent(value)}">{html.escape(f"{value:g}".replace("-", "−"))}</span>'
        for value in _ticks(low, high)
    )
    legend = "".join(
        f'<span><i class="{kind}"></i>{html.escape(text)}</span>'
        for kind, text in (("private", private), ("exact", exact))
    )
    return Html(
        f'<figure><div class="intervals"><div class="legend">{legend}</div>{drawn}'
        f'<div class="row ticks" aria-hidden="true"><span class="name"></span><span class="track">{ticks}</span></div>'
        f"</div>\n<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers between the ends."""
    rough = (high - low) / 8.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1.0, 2.0, 5.0, 10.0) if times * power >= rough)
    return [round(place * step, 12) for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


_HEADS = {"noise_share": "privacy noise", "mcse_mean": "MCSE", "ess_bulk": "ESS", "r_hat": "R̂"}


def summary(numbers: SummaryRows) -> Html:
    """Return a table with a row of numbers for each parameter; shares of noise are drawn as bars, too."""
    head = [_HEADS.get(column, column) for column in numbers.columns]
    rows = [
        (name, [_share(value) if column == "noise_share" else cell(short(value)) for column, value in own])
        for name, own in ((name, zip(numbers.columns, values, strict=True)) for name, values in numbers.rows)
    ]
    return table(["", *head], rows, "numbers")


def trust(posterior: Posterior) -> Html:
    """Return how far the result is to be trusted: the verdict, all warnings, and what is known; else nothing."""
    quality = posterior.quality
    if quality is None:
        return Html("")
    if quality.flagged:
        verdict = '<p class="flag">Not as it stands. Why, and what helps:</p>'
    else:
        verdict = f'<p class="badge">The checks of {html.escape(quality.method)} found nothing against this result.</p>'
    rows = [(label, [cell(text)]) for label, text in posterior.quality_rows]
    return Html(verdict + warning_notes(posterior) + table([], rows, "statement"))


def warning_notes(posterior: Posterior) -> Html:
    """Return what is wrong with the run; nothing if nothing is."""
    return Html(
        "".join(
            f'<p class="warning" role="alert"><strong>Warning.</strong> {html.escape(text)}</p>'
            for text in posterior.warnings
        )
    )


def statement(posterior: Posterior) -> Html:
    """Return what was spent and released, as a table."""
    return table([], [(label, [cell(value)]) for label, value in statement_rows(posterior)], "statement")


def statement_rows(posterior: Posterior) -> list[tuple[str, str]]:
    """Return what was spent and released, as pairs of label and text; what was asked often, by kind."""
    privacy = posterior.privacy
    no = "NO: seeded noise can be repeated" if privacy.mode == SEEDED_MODE else "NO: there was no noise"
    rows = [("Private", "yes" if privacy.private else no), ("Mode", privacy.mode)]
    if privacy.epsilon is not None:
        label = "Spent" if privacy.private else "Accounted for, no guarantee"
        rows.append((label, f"ε = {privacy.epsilon:g}, δ = {privacy.delta:g}"))
    if privacy.mu is not None:
        rows.append(("Gaussian cost", f"μ = {privacy.mu:.6g}"))
    rows += [
        ("Unit of privacy", privacy.unit_of_privacy),
        ("Neighbouring data", privacy.neighboring_relation),
        ("Number of records (public)", f"{privacy.num_records:,}"),
    ]
    for kind, (number, multipliers) in privacy.by_kind().items():
        noise = ""
        if multipliers:
            low, high = (f"{one:.4g}" for one in (min(multipliers), max(multipliers)))
            noise = f", noise multiplier τ = {low}" if low == high else f", noise multipliers τ = {low} to {high}"
        rows.append((f"Released: {kind.replace('_', '-')}", f"{number:,} {_sums(privacy, number)}{noise}"))
    if posterior.acceptance_rate is not None:
        rows.append(("Acceptance rate", f"{posterior.acceptance_rate:.2f}"))
    rows.append(("Accountant", privacy.accountant))
    if privacy.epsilon is not None:
        rows.append(("Ledger", _ledger_in_short(privacy.ledger)))
    return rows


def _ledger_in_short(ledger: dict[str, Any] | None) -> str:
    if ledger is None:
        return "none: this run stands alone, and other releases about the same people add to it"
    name = f"{ledger['name']}, " if ledger["name"] else ""
    return (
        f"{name}run {ledger['run']}; of ε = {ledger['total_epsilon']:g}, δ = {ledger['total_delta']:g} for all runs, a "
        f"further one could have ε = {ledger['left_epsilon']:g} at δ = {ledger['left_delta']:g}"
    )


def _tiles(posterior: Posterior) -> list[tuple[str, str]]:
    """Return the main numbers of a run, each with its label."""
    privacy = posterior.privacy
    spent = "spent" if privacy.private else "if not seeded" if privacy.mode == SEEDED_MODE else "accounted for"
    tiles = []
    if privacy.epsilon is not None and privacy.delta is not None:
        tiles += [(f"{privacy.epsilon:g}", f"ε {spent}"), (number_text(privacy.delta), f"δ {spent}")]
    num_draws = posterior.num_chains * posterior.num_draws
    draws = f"draws in {posterior.num_chains} chains" if posterior.of_chains else "draws"
    tiles += [(f"{privacy.num_records:,}", "records"), (f"{num_draws:,}", draws)]
    if posterior.acceptance_rate is not None:
        tiles.append((f"{posterior.acceptance_rate:.2f}", "acceptance"))
    if privacy.queries:
        released = sum(privacy.queries.values())
        tiles.append((f"{released:,}", f"{_sums(privacy, released)} released"))
    worst = None if posterior.quality is None else posterior.quality.worst_noise()
    if worst is not None:
        tiles.append((as_percent(worst[1]), "of an interval is noise, at worst"))
    return tiles


def _sums(privacy: PrivacyStatement, number: int) -> str:
    sums = "sum" if number == 1 else "sums"
    return f"{sums} without noise" if privacy.mode == NOISE_FREE_MODE else f"noisy {sums}"


def _banner(posterior: Posterior) -> str:
    flagged = posterior.quality is not None and posterior.quality.flagged
    flag = "<strong>Flagged.</strong> Do not trust this result as it stands; the reasons are below."
    return _privacy_banner(posterior.privacy) + (f'<p class="warning" role="alert">{flag}</p>' if flagged else "")


def _privacy_banner(privacy: PrivacyStatement) -> str:
    if privacy.private:
        return '<p class="badge">Private: exact noise, every sum paid for before it was computed</p>'
    seeded = "Who knows the seed can take the noise off again. " if privacy.mode == SEEDED_MODE else ""
    mode = html.escape(privacy.mode[:1].upper() + privacy.mode[1:])
    return (
        f'<p class="warning" role="alert"><strong>{mode}.</strong> {seeded}'
        "For reproducible research on data that are not secret only.</p>"
    )


def _inline_svg(picture: Picture) -> str:
    """Return the drawing in the page's colours and of the page's width, with identifiers that are its own."""
    drawing = picture.content.decode("utf-8")
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r'\bid="', f'id="{picture.name}-', drawing)
    drawing = re.sub(r'href="#', f'href="#{picture.name}-', drawing)
    drawing = drawing.replace("url(#", f"url(#{picture.name}-")
    for role, colour in COLOURS.items():
        drawing = drawing.replace(colour, f"var(--{role})")
    drawing = re.sub(r' width="[\d.]+pt"', "", drawing, count=1)
    drawing = re.sub(r' height="[\d.]+pt"', "", drawing, count=1)
    return drawing.replace("<svg", f'<svg role="img" aria-label="{html.escape(picture.label)}"', 1)


def _share(value: float) -> Html:
    """Return a cell with a share as a number, and as a bar on its left."""
    return Html(f'<td class="share" style="--share: {value:.3f}">{html.escape(as_percent(value))}</td>')
