"""Charts as SVG inside a page: intervals, densities, traces, ranks, the privacy curve, the course of spending.

Drawn by hand, so that no drawing package is needed, and in the variables of the page's style, so that they follow its
theme. Each takes numbers that were released and returns one drawing with a label for readers who cannot see it.
Numbers that are not finite are left out; nothing that draws can contain makes a chart fail.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmcmc.results.markup import Html, number_text, power_of_ten
from dpmcmc.results.spending import Spend

__all__ = [
    "MAX_CHAINS",
    "Interval",
    "captioned",
    "density",
    "grid",
    "interval_groups",
    "interval_of",
    "intervals",
    "ledger_bar",
    "privacy_curve",
    "ranks",
    "spending_course",
    "trace",
]

Array = NDArray[np.float64]

MAX_CHAINS = 8
"""So many chains are drawn; more could not be told apart."""
_HUGE = 1e290  # beyond it differences overflow
_WIDTH, _HEIGHT = 280.0, 120.0
_MOST_POINTS = 300  # of a line


class Interval(NamedTuple):
    """What is drawn as a bar: a name, both ends and the middle; NaN if there is no finite draw."""

    name: str
    low: float
    middle: float
    high: float

    @property
    def extent(self) -> float:
        """How far from zero it goes; 0 if it is not known."""
        return max(abs(self.low), abs(self.high)) if math.isfinite(self.middle) else 0.0


def captioned(drawing: Html, caption: str, kind: str = "") -> Html:
    """Return a figure with its caption."""
    shown = f' class="{kind}"' if kind else ""
    return Html(f"<figure{shown}>{drawing}\n<figcaption>{html.escape(caption)}</figcaption></figure>")


def grid(figures: Sequence[Html]) -> Html:
    """Return figures side by side, as many as there is room for."""
    return Html('<div class="grid">' + "\n".join(figures) + "</div>")


def interval_of(name: str, draws: ArrayLike, level: float = 0.9) -> Interval:
    """Return the median and the central interval of draws."""
    values = _finite(draws)
    if not values.size:
        return Interval(name, math.nan, math.nan, math.nan)
    tail = 0.5 * (1.0 - level)
    low, middle, high = (float(end) for end in np.quantile(values, (tail, 0.5, 1.0 - tail)))
    return Interval(name, low, middle, high)


# --------------------------------------------------------------------------------------------------- intervals


def interval_groups(rows: Sequence[Interval], most: int = 4) -> list[list[Interval]]:
    """Put intervals that can be read on one axis together: those that go a tenth as far from zero, or farther.

    The groups come from the largest to the smallest; in a group rows stand in their order.
    """
    limits: list[float] = []
    for row in sorted(rows, key=lambda row: row.extent, reverse=True):
        if not limits or (row.extent < limits[-1] / 10.0 and row.extent > 0.0 and len(limits) < most):
            limits.append(row.extent)
    groups: list[list[Interval]] = [[] for _ in limits]
    for row in rows:
        place = max((place for place, limit in enumerate(limits) if row.extent <= limit), default=0)
        groups[place if row.extent > 0.0 else -1].append(row)
    return [group for group in groups if group]


def intervals(rows: Sequence[Interval]) -> Html:
    """Return intervals on one axis, with their numbers, as boxes of HTML: words stay readable on any screen."""
    ends = [end for row in rows for end in row[1:] if math.isfinite(end)] or [0.0]
    # Zero is worth its room unless all bars would shrink to points beside it.
    far = min(map(abs, ends)) > 4.0 * (max(ends) - min(ends)) > 0.0
    low, high = _limits(ends if far else [0.0, *ends], 0.04)
    zero = "" if far else f' style="--zero: {100.0 * (0.0 - low) / (high - low):.2f}%"'

    def place(value: float) -> str:
        return f"{100.0 * (value - low) / (high - low):.2f}%"

    drawn = []
    for row in rows:
        known = math.isfinite(row.middle)
        words = _in_words(row) if known else "no finite draws"
        bar = (
            f'<span class="bar private" style="left: {place(row.low)}; '
            f'width: {100.0 * (row.high - row.low) / (high - low):.2f}%"></span>'
            f'<span class="dot private" style="left: {place(row.middle)}"></span>'
        )
        drawn.append(
            f'<div class="row"><span class="name">{html.escape(row.name)}</span><span class="track" role="img"{zero} '
            f'aria-label="{html.escape(f"{row.name}: {words}")}">{bar if known else ""}</span>'
            f'<span class="words">{words}</span></div>'
        )
    ticks = "".join(
        f'<span style="left: {place(value)}">{text}</span>'
        for value, text in _ticks(low, high, 6)
        if 0.02 <= (value - low) / (high - low) <= 0.98
    )
    return Html(
        f'<div class="intervals single">{"".join(drawn)}<div class="row ticks" aria-hidden="true">'
        f'<span class="name"></span><span class="track">{ticks}</span><span class="words"></span></div></div>'
    )


def _in_words(row: Interval) -> str:
    """Return median and ends with as many digits as it takes to tell the ends apart."""
    width = row.high - row.low
    digits = 3 if width <= 0.0 else min(9, max(3, math.ceil(math.log10(max(row.extent / width, 1.0))) + 1))
    low, middle, high = (number_text(value, digits) for value in row[1:])
    return f"{middle} ({low} to {high})"


# ------------------------------------------------------------------------------------------- draws of one entry


def density(name: str, draws: ArrayLike) -> Html:
    """Return a smoothed density of draws, the central 90 % of it filled, a line at the median."""
    values = _finite(draws)
    if not values.size:
        return _only_words(name, "no finite draws")
    ends = np.quantile(values, (0.002, 0.998))
    if np.ptp(values) <= 1e-13 * float(np.abs(values).max(initial=1.0)) or ends[0] == ends[1]:
        return _only_words(name, f"all draws are {_three(float(np.median(values)))}")
    low, high = _limits(ends.tolist(), 0.08)
    places, heights = _smoothed(values, low, high)
    own = interval_of(name, values)
    frame = _Frame(low, high, 0.0, 1.08 * float(heights.max()), left=6.0, right=6.0, bottom=20.0)
    inside = (places >= own.low) & (places <= own.high)
    parts = [frame.area(places, heights, "soft")]
    if inside.sum() > 1:
        parts.append(frame.area(places[inside], heights[inside], "filled"))
    parts.append(frame.line(places, heights, "stroke"))
    if low < 0.0 < high:
        parts.append(frame.vertical(0.0, "zero"))
    parts += [frame.vertical(own.middle, "middle"), frame.bottom_axis()]
    return _svg(
        f"Density of {name}: median {_three(own.middle)}, 90 % between {_three(own.low)} and {_three(own.high)}", parts
    )


def trace(name: str, draws: ArrayLike) -> Html:
    """Return the course of each chain (chains × draws), of the first ones if there are many."""
    chains = np.asarray(draws, np.float64)[:MAX_CHAINS]
    values = _finite(chains)
    if not values.size:
        return _only_words(name, "no finite draws")
    low, high = _limits([float(values.min()), float(values.max())], 0.05)
    number = chains.shape[1]
    frame = _Frame(1.0, max(2.0, float(number)), low, high, left=60.0, right=8.0, bottom=20.0)
    parts = [frame.left_axis(), frame.bottom_axis(whole=True)]
    for place, chain in enumerate(np.where(np.isfinite(chains), np.clip(chains, -_HUGE, _HUGE), np.nan)):
        steps, heights = _thinned(chain)
        keep = np.isfinite(heights)
        kind = f"chain chain-{place % 4 + 1}"
        if keep.sum() == 1:
            parts.append(frame.point(float(steps[keep][0]), float(heights[keep][0]), kind))
        elif keep.any():
            parts.append(frame.line(steps[keep], heights[keep], kind))
    return _svg(f"Trace of {name}: {len(chains)} chains over {number} draws, {_three(low)} to {_three(high)}", parts)


def ranks(name: str, draws: ArrayLike) -> Html:
    """Return for each chain how its draws are spread over the ranks of all draws; even bars mean agreement."""
    chains = np.asarray(draws, np.float64)
    if chains.shape[0] < 2 or chains.shape[1] < 8:
        return _only_words(name, "ranks need two chains of eight draws")
    if not np.isfinite(chains).all():
        return _only_words(name, "no ranks: some draws are not finite")
    if chains.min() == chains.max():
        return _only_words(name, "no ranks: the draws never change")
    num_bins = int(min(16, max(4, chains.shape[1] // 8)))
    _, places, ties = np.unique(chains.reshape(-1), return_inverse=True, return_counts=True)
    order = (np.cumsum(ties) - 0.5 * (ties - 1.0))[places].reshape(chains.shape)  # the same draws share a rank
    shown = order[:MAX_CHAINS]
    edges = np.linspace(0.5, chains.size + 0.5, num_bins + 1)
    counts = np.array([np.histogram(own, edges)[0] for own in shown], np.float64)
    even = chains.shape[1] / num_bins
    top = max(2.0 * even, float(counts.max()))
    strip = max(13.0, (_HEIGHT - 26.0) / len(shown))
    height = strip * len(shown) + 26.0
    left, width = 60.0, (_WIDTH - 68.0) / num_bins
    parts = []
    for place, own in enumerate(counts):
        bottom = 6.0 + strip * (place + 1)
        for bin_place, count in enumerate(own):
            size = (strip - 2.0) * count / top
            parts.append(
                f'<rect class="bars chain-{place % 4 + 1}" x="{left + width * bin_place:.1f}" y="{bottom - size:.1f}" '
                f'width="{width - 1.0:.1f}" height="{size:.1f}"/>'
            )
        expected = bottom - (strip - 2.0) * even / top
        parts.append(f'<path class="zero" d="M{left:.1f} {expected:.1f}H{_WIDTH - 8.0:.1f}"/>')
        parts.append(_text(left - 6.0, bottom - 0.5 * strip + 4.0, str(place + 1), "end"))
    parts.append(_text(left, height - 5.0, "lowest", "start"))
    parts.append(_text(_WIDTH - 8.0, height - 5.0, "highest", "end"))
    spread = float(np.abs(counts / even - 1.0).max())
    return _svg(
        f"Ranks of {name} in {len(shown)} chains: the most uneven bar differs by {100.0 * spread:.0f} % from even",
        parts,
        height=height,
    )


# ------------------------------------------------------------------------------------------------- the guarantee


def privacy_curve(points: Sequence[tuple[float, float]], stated: tuple[float, float]) -> Html:
    """Return δ against ε, with δ in powers of ten, and the stated pair on it."""
    epsilons = np.array([epsilon for epsilon, _ in points])
    logs = np.log10(np.maximum([delta for _, delta in points], 1e-300))
    low, high = math.floor(float(logs.min())), min(0, math.ceil(float(logs.max())))
    frame = _Frame(
        0.0, float(epsilons.max()), float(low), float(max(high, low + 1)), 48.0, 12.0, 36.0, width=380.0, height=240.0
    )
    step = max(1, math.ceil((high - low) / 6))
    parts = [
        frame.horizontal(float(power), power_of_ten(power) if power else "1") for power in range(high, low - 1, -step)
    ]
    parts += [
        frame.bottom_axis(about=6),
        frame.line(epsilons, logs, "stroke"),
        frame.point(stated[0], math.log10(stated[1]), "stated"),
    ]
    x, y = frame.x(stated[0]), frame.y(math.log10(stated[1]))
    words = f"ε = {number_text(stated[0], 4)}, δ = {number_text(stated[1], 3)}"
    parts += [
        _text(x + 8.0, y - 8.0, words, "start", "strong"),
        _text(frame.middle, 236.0, "ε, privacy loss", "middle"),
        _text(4.0, 12.0, "δ", "start"),
    ]
    return _svg(f"Privacy curve: δ falls as ε grows; the stated pair is {words}", parts, width=380.0, height=240.0)


def spending_course(entries: Sequence[Spend]) -> Html:
    """Return the share of the budget that was spent, against the number of answers."""
    answers = np.cumsum([0, *(entry.answers for entry in entries)], dtype=np.float64)
    shares = np.array([0.0, *(entry.share for entry in entries)])
    frame = _Frame(0.0, max(1.0, float(answers[-1])), 0.0, 1.0, 48.0, 12.0, 36.0, width=380.0, height=200.0)
    parts = [frame.horizontal(share, f"{100 * share:.0f} %") for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    # A slope from entry to entry: what the single answers of an entry have cost is not known.
    kept = np.unique(np.linspace(0, len(answers) - 1, min(len(answers), _MOST_POINTS)).round().astype(int))
    parts += [
        frame.area(answers[kept], shares[kept], "soft"),
        frame.line(answers[kept], shares[kept], "stroke"),
        frame.bottom_axis(about=5, whole=True),
        _text(frame.middle, 196.0, "answers of the curator", "middle"),
    ]
    label = f"Budget spent over {int(answers[-1]):,} answers: {100.0 * float(shares[-1]):.3g} % at the end"
    return _svg(label, parts, width=380.0, height=200.0)


def ledger_bar(before: float, after: float, total: float, what: str) -> Html:
    """Return how much of a total was spent before and by this run, and what is left, as a bar with a legend."""
    whole = total if total > 0.0 else 1.0
    shares = {
        "earlier runs": ("earlier", min(1.0, before / whole)),
        "this run": ("own", max(0.0, min(1.0, after / whole) - min(1.0, before / whole))),
        "left": ("left", max(0.0, 1.0 - after / whole)),
    }
    bars = "".join(
        f'<span class="{kind}" style="width: {100.0 * share:.3f}%"></span>' for kind, share in shares.values()
    )
    words = [f"{name} {100.0 * share:.3g} %" for name, (_, share) in shares.items()]
    legend = "".join(
        f'<span><i class="{kind}"></i>{html.escape(text)}</span>'
        for (kind, _), text in zip(shares.values(), words, strict=True)
    )
    return Html(
        f'<div class="ledger"><div class="total" role="img" aria-label="{html.escape(what)}: {", ".join(words)}">{bars}'
        f'</div><div class="legend" aria-hidden="true">{legend}</div></div>'
    )


# ---------------------------------------------------------------------------------------------------- drawing


class _Frame:
    """Where numbers are on a drawing: the axes' ends and the margins around them."""

    def __init__(
        self,
        low: float,
        high: float,
        bottom_value: float,
        top_value: float,
        left: float,
        right: float,
        bottom: float,
        *,
        width: float = _WIDTH,
        height: float = _HEIGHT,
    ) -> None:
        self._low, self._high, self._bottom_value, self._top_value = low, high, bottom_value, top_value
        self._left, self._right, self._top, self._bottom = left, width - right, 10.0, height - bottom
        self._width = width

    @property
    def middle(self) -> float:
        """The middle of the drawing, from left to right."""
        return 0.5 * (self._left + self._right)

    def x(self, value: float) -> float:
        """Return the place of a number from the left."""
        return self._left + (self._right - self._left) * (value - self._low) / (self._high - self._low)

    def y(self, value: float) -> float:
        """Return the place of a number from the top."""
        share = (value - self._bottom_value) / (self._top_value - self._bottom_value)
        return self._bottom - (self._bottom - self._top) * share

    def _points(self, places: Array, heights: Array) -> str:
        return "L".join(
            f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in zip(places.tolist(), heights.tolist(), strict=True)
        )

    def line(self, places: Array, heights: Array, kind: str) -> str:
        return f'<path class="{kind}" d="M{self._points(places, heights)}"/>'

    def area(self, places: Array, heights: Array, kind: str) -> str:
        first, last = self.x(float(places[0])), self.x(float(places[-1]))
        return (
            f'<path class="{kind}" d="M{first:.1f} {self._bottom:.1f}L{self._points(places, heights)}'
            f'L{last:.1f} {self._bottom:.1f}Z"/>'
        )

    def point(self, place: float, height: float, kind: str) -> str:
        return f'<circle class="{kind}" cx="{self.x(place):.1f}" cy="{self.y(height):.1f}" r="4"/>'

    def vertical(self, place: float, kind: str) -> str:
        return f'<path class="{kind}" d="M{self.x(place):.1f} {self._top:.1f}V{self._bottom:.1f}"/>'

    def horizontal(self, height: float, text: str) -> str:
        level = self.y(height)
        line = f'<path class="rule" d="M{self._left:.1f} {level:.1f}H{self._right:.1f}"/>'
        return line + _text(self._left - 6.0, level + 4.0, text, "end")

    def bottom_axis(self, about: int = 4, whole: bool = False) -> str:
        drawn = [f'<path class="axis" d="M{self._left:.1f} {self._bottom:.1f}H{self._right:.1f}"/>']
        found = _ticks(self._low, self._high, about, whole=whole)
        inside = [(value, text) for value, text in found if self._has_room(self.x(value), text)]
        found = inside if len(inside) > 1 else found
        while len(found) > 2 and self.x(found[1][0]) - self.x(found[0][0]) < 7.0 * max(len(text) for _, text in found):
            found = found[::2]
        for value, text in found:
            place = self.x(value)
            anchor = "middle" if self._has_room(place, text) else "start" if place < self.middle else "end"
            drawn.append(f'<path class="axis" d="M{place:.1f} {self._bottom:.1f}v3"/>')
            drawn.append(_text(place, self._bottom + 14.0, text, anchor))
        return "".join(drawn)

    def _has_room(self, place: float, text: str) -> bool:
        """Whether a text around this place stays on the drawing."""
        half = 3.4 * len(text)
        return half <= place <= self._width - half

    def left_axis(self) -> str:
        return "".join(
            self.horizontal(value, text) for value, text in _ticks(self._bottom_value, self._top_value, 4, most=7)
        )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    shown = f' class="{kind}"' if kind else ""
    return f'<text{shown} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(label: str, parts: Sequence[str], *, width: float = _WIDTH, height: float = _HEIGHT) -> Html:
    return Html(
        f'<svg class="chart" role="img" aria-label="{html.escape(label)}" viewBox="0 0 {width:g} {height:g}">'
        + "".join(parts)
        + "</svg>"
    )


def _only_words(name: str, words: str) -> Html:
    return _svg(f"{name}: {words}", [_text(6.0, 20.0, words, "start")], height=34.0)


def _three(value: float) -> str:
    return number_text(value, 3)


def _finite(values: ArrayLike) -> Array:
    flat = np.asarray(values, np.float64).reshape(-1)
    return np.clip(flat[np.isfinite(flat)], -_HUGE, _HUGE)


def _limits(values: Sequence[float], margin: float) -> tuple[float, float]:
    """Return ends that hold the values with some room; never the same number twice."""
    low, high = min(values), max(values)
    room = margin * (high - low)
    if high - low <= 1e-13 * max(abs(low), abs(high)):
        room = 0.5 * max(abs(low), abs(high)) or 1.0
    return low - room, high + room


def _ticks(low: float, high: float, about: int, *, whole: bool = False, most: int = 12) -> list[tuple[float, str]]:
    """Return a few round numbers between the ends, with enough digits to tell them apart."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1.0, 2.0, 5.0, 10.0, 20.0) if times * power >= rough * (1.0 - 1e-9))
    step = max(1.0, float(round(step))) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    largest = max(abs(first), abs(last), 1)
    digits = min(15, max(3, math.ceil(math.log10(largest + 1)) + 2))
    values = [place * step for place in range(first, last + 1)][: about + 6]
    found = [(value, f"{value:,.0f}" if whole else number_text(value, digits)) for value in values]
    distinct = len({text for _, text in found}) == len(found)
    fitting = [(value, text) for value, text in found if len(text) <= most and distinct]
    return fitting or [(value, number_text(value)) for value in values[:1]]


def _smoothed(values: Array, low: float, high: float, bins: int = 160) -> tuple[Array, Array]:
    """Return a kernel estimate of the density on a grid: a fine histogram, smoothed by Silverman's rule."""
    counts, edges = np.histogram(values, bins, (low, high))
    scale = float(np.abs(values).max()) or 1.0  # squares of huge numbers overflow
    spread = scale * float(np.std(values / scale)) or (high - low)
    quartiles = np.quantile(values, (0.25, 0.75))
    between = float(quartiles[1] - quartiles[0]) / 1.34
    width = 0.9 * min(spread, between or spread) * values.size**-0.2
    step = (high - low) / bins
    reach = np.arange(-bins, bins + 1) * step / max(width, step)
    kernel = np.exp(-0.5 * reach**2)
    smooth = np.convolve(counts, kernel / kernel.sum())[bins : 2 * bins]
    return 0.5 * (edges[1:] + edges[:-1]), np.maximum(smooth, 0.0)


def _thinned(chain: Array) -> tuple[Array, Array]:
    """Return a course with at most `_MOST_POINTS` points: the lowest and highest of each stretch if it is long."""
    steps = np.arange(1.0, chain.size + 1.0)
    if chain.size <= _MOST_POINTS:
        return steps, chain
    kept: list[int] = []
    for stretch in np.array_split(np.arange(chain.size), _MOST_POINTS // 2):
        own = chain[stretch]
        if np.isfinite(own).any():
            kept += sorted({int(stretch[np.nanargmin(own)]), int(stretch[np.nanargmax(own)])})
    return steps[kept], chain[kept]
