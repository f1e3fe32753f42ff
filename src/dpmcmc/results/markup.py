"""The small parts that pages are made of: headings, paragraphs, tables, lists. Each escapes the texts that it is given.

Knows nothing of posteriors. What comes out is `Html`, so that a text that was not escaped is a type error.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from typing import NewType

__all__ = [
    "Html",
    "cell",
    "code",
    "heading",
    "joined",
    "listing",
    "note",
    "number_text",
    "paragraph",
    "power_of_ten",
    "short",
    "table",
]

Html = NewType("Html", str)
"""A part of a page: its texts are escaped."""


def heading(text: str, level: int = 2) -> Html:
    """Return the heading of a section, or of a part of it."""
    return Html(f"<h{level}>{html.escape(text)}</h{level}>")


def paragraph(text: str, kind: str = "") -> Html:
    """Return a paragraph."""
    shown = f' class="{kind}"' if kind else ""
    return Html(f"<p{shown}>{_unbroken(text)}</p>")


def note(text: str) -> Html:
    """Return a paragraph that stands out: what is orange on the page, and why it may be there."""
    return paragraph(text, "note")


def code(text: str) -> Html:
    """Return lines of code."""
    return Html(f"<pre><code>{html.escape(text)}</code></pre>")


def listing(texts: Iterable[str]) -> Html:
    """Return a list; nothing if it has no entries."""
    entries = "".join(f"<li>{_unbroken(text)}</li>" for text in texts)
    return Html(f"<ul>{entries}</ul>" if entries else "")


def _unbroken(text: str) -> str:
    """Escape a text, and let no line end inside a number such as 1e-06."""
    return re.sub(r"\d[\d.]*e-\d+", r'<span class="unbroken">\g<0></span>', html.escape(text))


def joined(parts: Iterable[Html]) -> Html:
    """Return parts one after the other."""
    return Html("\n".join(parts))


def cell(text: str) -> Html:
    """Return a cell of a table."""
    return Html(f"<td>{html.escape(text)}</td>")


def table(head: Sequence[str], rows: Iterable[tuple[str, Sequence[Html]]], kind: str) -> Html:
    """Return a table whose rows begin with a heading; it scrolls by itself where a screen is too narrow for it."""
    header = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    body = "".join(f'<tr><th scope="row">{html.escape(first)}</th>' + "".join(cells) + "</tr>" for first, cells in rows)
    # Who reads with the keyboard alone must be able to scroll, too.
    scroll = '<div class="scroll" tabindex="0" role="group" aria-label="Table">' if head else '<div class="scroll">'
    return Html(
        f'{scroll}<table class="{kind}">'
        + (f"<thead><tr>{header}</tr></thead>" if head else "")
        + f"<tbody>{body}</tbody></table></div>"
    )


def short(value: float) -> str:
    """Write a number of a table with three digits, or as a whole number."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if 100 <= abs(value) < 1e7 else number_text(value)


def number_text(value: float, digits: int = 3) -> str:
    """Write a number for people: a real minus sign, and powers of ten as such.

    Examples
    --------
    >>> number_text(-0.0312), number_text(1.5e-9), number_text(float("nan"))
    ('−0.0312', '1.5·10⁻⁹', '–')
    """
    if not math.isfinite(value):
        return "–"
    mantissa, letter, exponent = f"{value:.{digits}g}".replace("-", "−").partition("e")
    if not letter:
        return mantissa
    power = power_of_ten(int(exponent.replace("−", "-")))
    return {"1": power, "−1": f"−{power}"}.get(mantissa, f"{mantissa}·{power}")


def power_of_ten(exponent: int) -> str:
    """Write 10 with an exponent.

    Examples
    --------
    >>> power_of_ten(-6)
    '10⁻⁶'
    """
    return "10" + str(exponent).translate(_SUPERSCRIPTS)


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
