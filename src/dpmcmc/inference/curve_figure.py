"""The picture of a planning curve: widths of intervals against ε and against n, for print.

Draws numbers that :mod:`dpmcmc.inference.curve` worked out with no data, and works out none itself but those
between the points of its grid. No colour carries a meaning alone: markers and hatching say the same.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpmcmc.errors import ResultError
from dpmcmc.inference.laplace_plan import LARGEST_RELATIVE_NOISE
from dpmcmc.output import INK, LINE, MUTED, PICTURE_STYLE

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
except ImportError:
    raise ResultError("a curve is drawn with Matplotlib; install it with pip install 'dpmcmc[cli]'") from None

if TYPE_CHECKING:
    from dpmcmc.inference.curve import PlanCurve

__all__ = ["curve_figure"]

Array = NDArray[np.float64]

_STYLE: Any = PICTURE_STYLE | {"legend.fontsize": 9}  # Any, as matplotlib's stubs differ between versions
# Of Okabe and Ito, which all common kinds of colour vision tell apart.
_LOOKS = (("#d55e00", "s"), ("#0072b2", "o"), ("#009e73", "^"))
_TIMES = (0.25, 1.0, 4.0)
"""A line each: so many times what was asked."""
_POINTS = 241
_HIGHEST = 10.0
"""Intervals so many times as wide say nothing; what is wider is not drawn."""
_STRIP = 0.035  # of the height of a panel


class _Band(NamedTuple):
    """What is drawn along one axis: places, ends of the band, and where it cannot work."""

    places: Array
    low: Array
    high: Array
    works: NDArray[np.bool_]


class _Picture(Figure):
    """A figure that a notebook shows although pyplot, which has notebooks told how, knows nothing of it."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def curve_figure(curve: PlanCurve) -> Figure:
    """Draw `PlanCurve.interval_widening` above, `PlanCurve.interval_width` below, against ε and against n."""
    with matplotlib.rc_context(_STYLE):
        figure = _Picture(figsize=(9.6, 7.6), layout="constrained")
        axes = figure.subplots(2, 2, sharex="col", sharey="row")
        for column, against_epsilon in enumerate((True, False)):
            for row, relative_to_asked in enumerate((False, True)):
                axis = axes[row, column]
                for place, times in enumerate(_TIMES):
                    _draw(axis, _band_of(curve, times, against_epsilon, relative_to_asked), place)
                _mark_asked(axis, curve, against_epsilon, relative_to_asked)
            _legend_of_lines(axes[0, column], curve, against_epsilon)
            axes[0, column].set_xscale("log")
            axes[1, column].set_xlabel("Privacy budget ε" if against_epsilon else "Number of records n")
        axes[0, 0].set_ylabel("Intervals: times as wide as\nwithout noise, of as many records")
        axes[1, 0].set_ylabel(f"Intervals: times as wide as\nwithout noise, of {curve.num_records:,} records")
        for axis in axes.flat:
            _finish(axis)
        axes[0, 0].set_ylim(_bottom(1.0, axes[0, 0].get_ylim()[1]), None)
        axes[1, 0].set_ylim(_bottom(_lowest(curve), axes[1, 0].get_ylim()[1]), None)
        delta = "δ = 0.1/n" if curve.delta is None else f"δ = {curve.delta:g}"
        about = ", if the posterior is about Gaussian" if curve.sampler == "auto" else ""
        parameters = f"{curve.dimension:,} parameter{'' if curve.dimension == 1 else 's'}"
        figure.suptitle(f"Expected width of intervals{about}: {curve.sampler}, {parameters}, {delta}", fontsize=10.5)
        figure.legend(handles=_common_handles(curve), loc="outside lower center", ncols=3, columnspacing=2.0)
    return figure


def _band_of(curve: PlanCurve, times: float, against_epsilon: bool, relative_to_asked: bool) -> _Band:
    """Return a band between the points of the grid: noise and ρ are all but straight there on logarithmic axes."""
    along = curve.epsilons if against_epsilon else curve.record_numbers.astype(np.float64)
    across = curve.record_numbers if against_epsilon else curve.epsilons
    asked = curve.num_records if against_epsilon else curve.epsilon
    line = int(np.argmin(np.abs(np.log(across / (times * asked)))))
    chosen = (slice(None), line) if against_epsilon else (line, slice(None))
    grid, first = np.unique(np.log(along), return_index=True)
    noise, relative = curve.noise_sd[chosen][first], curve.relative_noise[chosen][first]
    finite = np.isfinite(relative)
    places = np.linspace(grid[0], grid[-1], _POINTS)
    fine = [
        np.exp(np.interp(places, grid[finite], np.log(values[finite])))
        for values in (noise[:, 0], noise[:, 1], relative)
    ]
    beyond = places < grid[finite][0]  # what pays for nothing
    works = (fine[2] <= LARGEST_RELATIVE_NOISE) & ~beyond
    low, high = (np.hypot(1.0, values) for values in fine[:2])
    if relative_to_asked:
        numbers = float(across[line]) if against_epsilon else np.exp(places)
        shrinking = np.sqrt(curve.num_records / numbers)
        low, high = low * shrinking, high * shrinking
    return _Band(np.exp(places), low, high, works)


def _draw(axis: Axes, band: _Band, place: int) -> None:
    """Draw a band, and a hatched strip at the foot of the panel along what cannot work."""
    colour, marker = _LOOKS[place]
    low, high = (np.where(band.works, ends, np.nan) for ends in (band.low, band.high))
    top = _HIGHEST
    axis.fill_between(band.places, np.minimum(low, top), np.minimum(high, top), color=colour, alpha=0.16, linewidth=0)
    # Markers at other places for each line, and only on the edge of benign data.
    some = slice(5 + 10 * place, None, 30)
    axis.plot(band.places, np.where(low <= top, low, np.nan), color=colour, linewidth=1.4)
    axis.plot(band.places[some], np.where(low <= top, low, np.nan)[some], marker, color=colour, markersize=4.5)
    axis.plot(band.places, np.where(high <= top, high, np.nan), color=colour, linewidth=1.2, linestyle="--")
    if not band.works.all():
        first = band.places[int(np.argmax(band.works))] if band.works.any() else band.places[-1]
        axis.axvspan(
            band.places[0],
            float(first),
            ymin=_STRIP * (2 - place) * 1.15,
            ymax=_STRIP * ((2 - place) * 1.15 + 1.0),
            facecolor="white",
            edgecolor=colour,
            hatch="//////",
            linewidth=0.6,
            zorder=3,
        )


def _mark_asked(axis: Axes, curve: PlanCurve, against_epsilon: bool, relative_to_asked: bool) -> None:
    """Draw what was asked, the width aimed at, and from where on each end of the band of what was asked is below it."""
    asked = curve.epsilon if against_epsilon else curve.num_records
    axis.axvline(asked, color=MUTED, linewidth=0.8, linestyle=":", zorder=0)
    ends = curve.epsilons if against_epsilon else curve.record_numbers
    if not relative_to_asked:
        axis.axhline(curve.width, color=INK, linewidth=0.8, linestyle=(0, (6, 3)), zorder=1)
        needed = curve.epsilon_needed if against_epsilon else curve.records_needed
        band = _band_of(curve, 1.0, against_epsilon, relative_to_asked)
        for value, edge, face in zip(needed, (band.low, band.high), (INK, "white"), strict=True):
            if ends[0] <= value <= ends[-1]:  # where nothing narrower works, it is not on the line
                height = float(np.interp(value, band.places, edge))
                axis.plot([value], [height], "D", color=INK, markerfacecolor=face, markersize=5, zorder=5)
    elif not against_epsilon:
        axis.plot(ends, np.sqrt(curve.num_records / ends), color=INK, linewidth=1.0, linestyle="-.", zorder=4)


def _lowest(curve: PlanCurve) -> float:
    """Return the lowest width in the lower panels: without noise, of the most records."""
    return math.sqrt(curve.num_records / float(curve.record_numbers[-1]))


def _bottom(lowest: float, top: float) -> float:
    """Return where a logarithmic axis must begin so that the strips are below the lowest line."""
    room = 3.0 * 1.15 * _STRIP + 0.03
    return float(lowest * (lowest / top) ** (room / (1.0 - room)))


def _legend_of_lines(axis: Axes, curve: PlanCurve, against_epsilon: bool) -> None:
    labels = [f"n = {max(1, round(times * curve.num_records)):,}" for times in _TIMES]
    if not against_epsilon:
        labels = [f"ε = {times * curve.epsilon:.3g}" for times in _TIMES]
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=4.5, label=label)
        for (colour, marker), label in zip(_LOOKS, labels, strict=True)
    ]
    axis.legend(handles=handles, loc="best")


def _common_handles(curve: PlanCurve) -> list[Line2D | Patch]:
    return [
        Line2D([], [], color=MUTED, linewidth=1.4, label="benign data"),
        Line2D([], [], color=MUTED, linewidth=1.2, linestyle="--", label="skewed data"),
        Patch(
            facecolor="white",
            edgecolor=MUTED,
            hatch="//////",
            linewidth=0.6,
            label=f"cannot work (ρ > {LARGEST_RELATIVE_NOISE:g}), by line",
        ),
        Line2D(
            [],
            [],
            color=INK,
            linewidth=0.8,
            linestyle=(0, (6, 3)),
            marker="D",
            markersize=5,
            label=f"at most {curve.width:g} times as wide (empty: skewed data)",
        ),
        Line2D([], [], color=INK, linewidth=1.0, linestyle="-.", label="without noise"),
        Line2D([], [], color=MUTED, linewidth=0.8, linestyle=":", label="what was asked"),
    ]


def _finish(axis: Axes) -> None:
    """Make axes logarithmic with plain numbers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(FixedLocator([0.25, 0.3, 0.5, 0.7, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0]))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_major_locator(LogLocator(base=10.0, subs=(1.0, 2.0, 5.0), numticks=12))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.margins(x=0.0)
    axis.grid(color=LINE, linewidth=0.5, alpha=0.7)
    axis.set_axisbelow(True)


def _short(value: float) -> str:
    """Write a number of records or an ε in little room."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
