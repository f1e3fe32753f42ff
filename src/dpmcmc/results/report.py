"""A posterior as one page of HTML: what was guaranteed, the summary, its warnings, pictures. Nothing is fetched.

Shows released quantities only, which the posterior holds; a run that was not private says so at the top. It draws no
pictures: whoever has some gives them as bytes. The page follows the reader's light or dark theme.

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
from typing import NewType

from dpmcmc.errors import ResultError
from dpmcmc.privacy import PrivacyStatement
from dpmcmc.privacy.statement import NOISE_FREE_MODE, SEEDED_MODE
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

Html = NewType("Html", str)
"""A part of a page: its texts are escaped."""

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
        The heading, by default the model's name, and a sentence below it.
    pictures
        Pictures of the draws.
    """
    parts = [figure(picture) for picture in pictures]
    if posterior.quality is not None:
        parts += [heading("How far to trust this"), trust(posterior)]
    parts += [heading("Summary"), summary(summary_rows(posterior))]
    if posterior.quality is None:
        parts.append(warning_notes(posterior))
    parts += [heading("What was spent and released"), statement(posterior)]
    return html_page(posterior, parts, title=title or f"Posterior of {posterior.model}", lead=lead)


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
    return Template(_PAGE).substitute(
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


def heading(text: str) -> Html:
    """Return the heading of a section."""
    return Html(f"<h2>{html.escape(text)}</h2>")


def paragraph(text: str) -> Html:
    """Return a paragraph."""
    return Html(f"<p>{html.escape(text)}</p>")


def code(text: str) -> Html:
    """Return lines of code."""
    return Html(f"<pre><code>{html.escape(text)}</code></pre>")


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


def note(text: str) -> Html:
    """Return a paragraph that stands out: what is orange on the page, and why it may be there."""
    return Html(f'<p class="note">{html.escape(text)}</p>')


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
        return f"{kind}: {_short(three[0])} to {_short(three[2])}"

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


def summary(table: SummaryRows) -> Html:
    """Return a table with a row of numbers for each parameter; shares of noise are drawn as bars, too."""
    head = ["privacy noise" if column == "noise_share" else column for column in table.columns]
    rows = [
        (name, [_share(value) if column == "noise_share" else _cell(_short(value)) for column, value in own])
        for name, own in ((name, zip(table.columns, values, strict=True)) for name, values in table.rows)
    ]
    return _table(["", *head], rows, "numbers")


def trust(posterior: Posterior) -> Html:
    """Return how far the result is to be trusted: the verdict, all warnings, and what is known; else nothing."""
    quality = posterior.quality
    if quality is None:
        return Html("")
    if quality.flagged:
        verdict = '<p class="flag">Not as it stands. Why, and what helps:</p>'
    else:
        verdict = f'<p class="badge">The checks of {html.escape(quality.method)} found nothing against this result.</p>'
    rows = [(label, [_cell(text)]) for label, text in posterior.quality_rows]
    return Html(verdict + warning_notes(posterior) + _table([], rows, "statement"))


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
    return _table([], [(label, [_cell(value)]) for label, value in statement_rows(posterior)], "statement")


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
    return [*rows, ("Accountant", privacy.accountant)]


def _tiles(posterior: Posterior) -> list[tuple[str, str]]:
    """Return the main numbers of a run, each with its label."""
    privacy = posterior.privacy
    spent = "spent" if privacy.private else "if not seeded" if privacy.mode == SEEDED_MODE else "accounted for"
    tiles = []
    if privacy.epsilon is not None:
        tiles += [(f"{privacy.epsilon:g}", f"ε {spent}"), (f"{privacy.delta:g}", f"δ {spent}")]
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


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _cell(text: str) -> Html:
    return Html(f"<td>{html.escape(text)}</td>")


def _share(value: float) -> Html:
    """Return a cell with a share as a number, and as a bar on its left."""
    return Html(f'<td class="share" style="--share: {value:.3f}">{html.escape(as_percent(value))}</td>')


def _table(head: list[str], rows: list[tuple[str, list[Html]]], kind: str) -> Html:
    header = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "".join(f'<tr><th scope="row">{html.escape(first)}</th>' + "".join(cells) + "</tr>" for first, cells in rows)
    return Html(
        f'<div class="scroll"><table class="{kind}">'
        + (f"<thead><tr>{header}</tr></thead>" if head else "")
        + f"<tbody>{body}</tbody></table></div>"
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title · dpmcmc</title>
<style>
:root { color-scheme: light dark; --paper: #ffffff; --panel: #f6f8fa; --ink: #1b1f24; --muted: #59636e; --line: #d0d7de;
  --private: #0072b2; --exact: #e69f00; --good: #00664a; --bad: #b3261e; --bad-panel: #fdecea; }
@media (prefers-color-scheme: dark) { :root { --paper: #0f1419; --panel: #171d24; --ink: #e6edf3; --muted: #9aa7b4;
  --line: #303a45; --private: #6cc3f5; --exact: #e69f00; --good: #4fd1a5; --bad: #ff8a80; --bad-panel: #3a1512; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
p { margin: .5rem 0; max-width: 46rem; }
.lead { font-size: 1.08rem; color: var(--muted); }
.badge { color: var(--good); font-weight: 600; }
.flag { color: var(--bad); font-weight: 600; }
.warning { max-width: none; color: var(--bad); background: var(--bad-panel); border-left: 4px solid var(--bad);
  padding: .75rem 1rem; }
.note { border-left: 4px solid var(--exact); padding: .1rem 0 .1rem 1rem; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.2rem, 1fr)); gap: .75rem; margin: 1.5rem 0; }
dl div { background: var(--panel); border-radius: .5rem; padding: .7rem .9rem; display: flex; flex-direction: column; }
dd { margin: 0; font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; }
dt { color: var(--muted); font-size: .85rem; }
figure { margin: 1.5rem 0; }
figure svg, figure img { display: block; width: 100%; height: auto; }
figure.narrow svg, figure.narrow img { max-width: 46rem; margin: 0 auto; }
figcaption { color: var(--muted); font-size: .92rem; margin-top: .5rem; max-width: 46rem; }
figure.narrow figcaption { margin-left: auto; margin-right: auto; }
.intervals .legend { display: flex; flex-wrap: wrap; gap: .2rem 1.5rem; font-size: .92rem; margin-bottom: .75rem; }
.intervals .legend i { display: inline-block; width: 1.6rem; height: .5rem; border-radius: .25rem; margin-right: .5rem;
  vertical-align: middle; }
.intervals .row { display: grid; grid-template-columns: 15rem 1fr; gap: .75rem; align-items: center; }
.intervals .name { font-size: .92rem; overflow-wrap: anywhere; }
.intervals .track { position: relative; display: block; height: 2.1rem; border-bottom: 1px solid var(--line);
  background: linear-gradient(var(--muted), var(--muted)) no-repeat var(--zero, -9rem) 0 / 1px 100%; }
.intervals .bar { position: absolute; height: .5rem; border-radius: .25rem; min-width: 2px; }
.intervals .dot { position: absolute; width: 2px; height: .9rem; margin-left: -1px; background: var(--ink); }
.intervals .private { background-color: var(--private); }
.intervals .exact { background-color: var(--exact); }
.intervals .bar.private { top: .4rem; } .intervals .dot.private { top: .2rem; background: var(--ink); }
.intervals .bar.exact { top: 1.25rem; } .intervals .dot.exact { top: 1.05rem; background: var(--ink); }
.intervals .ticks .track { height: 1.5rem; border: 0; font-size: .82rem; color: var(--muted); }
.intervals .ticks .track span { position: absolute; top: .2rem; transform: translateX(-50%); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { padding: .4rem .7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { color: var(--muted); font-weight: 500; border-bottom: 1.5px solid var(--muted); }
tbody th { font-weight: 500; white-space: nowrap; }
.numbers th:not(:first-child), .numbers td { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
.numbers .share { min-width: 10.5rem; background: linear-gradient(var(--private), var(--private)) no-repeat .9rem 50% /
  calc(var(--share) * 5.5rem) .6rem, linear-gradient(var(--line), var(--line)) no-repeat .9rem 50% / 5.5rem .6rem; }
.numbers thead th { white-space: normal !important; }
.statement th { color: var(--muted); width: 16rem; }
pre { background: var(--panel); border-radius: .5rem; padding: 1rem; overflow-x: auto; font-size: .84rem;
  line-height: 1.5; }
footer { margin-top: 3rem; color: var(--muted); font-size: .85rem; }
@media (max-width: 40rem) { .intervals .row { grid-template-columns: 1fr; gap: 0; margin-top: .35rem; }
  .statement th { width: 30%; white-space: normal; } }
@media print { .intervals * { print-color-adjust: exact; } main { padding: 0; } figure, table { break-inside: avoid; } }
</style>
</head>
<body>
<main>
<h1>$title</h1>
<p class="lead">$lead</p>
$banner
<dl>$tiles</dl>
$parts
<footer>$footer</footer>
</main>
</body>
</html>
"""
