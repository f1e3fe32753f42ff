"""The paper's figures, drawn from tables of results, as PDF and PNG.

Colours are those of Okabe and Ito, which all common kinds of colour vision tell apart, and no colour carries a meaning
alone: order, hatching, line style or marker say the same. Draws only; computes nothing that a statement rests on.
"""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray
from scipy.stats import gaussian_kde

from dpmcmc.models import Banana
from dpmcmc.output import INK, LINE, MUTED, PICTURE_STYLE, replace_file
from studies import settings
from studies.tables import MEASURES, Table

Array = NDArray[np.float64]

_BLUE, _ORANGE, _GREEN, _VERMILLION, _PURPLE, _SKY = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
)
STYLE: Any = PICTURE_STYLE | {"legend.fontsize": 9}  # Any, as matplotlib's stubs differ between versions
_COLOURS = {
    "dp-hmc": _BLUE,
    "dp-penalty": _ORANGE,
    "dp-sgld": _GREEN,
    "dp-sgnht": _PURPLE,
    "dp-hmc-default": _SKY,
    "dp-sgld-t1": _VERMILLION,
    "dp-sgld-tight": _GREEN,
    "dp-sgld-t1-tight": _VERMILLION,
    "dp-sgnht-tight": _PURPLE,
}
_SPARE_COLOURS = (_VERMILLION, "#000000", "#f0e442")  # for rows that are added later
_TITLES = {"banana": "Banana", "gaussian": "Gaussian, d = 10"}
_AXES = {
    "mmd": "MMD to the exact posterior",
    "mean_error": "Distance of the means (units of θ)",
    "max_r_hat": "Largest split R̂",
    "acceptance": "Acceptance rate",
    "ratios_clipped": "Log-ratios clipped (fraction)",
    "gradients_clipped": "Gradients clipped (fraction)",
}
_LOGARITHMIC = ("mmd", "mean_error", "max_r_hat")


def write_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PDF and PNG; return both paths."""
    written = []
    with matplotlib.rc_context(STYLE):
        FigureCanvasAgg(figure)
        endings: dict[str, dict[str, Any]] = {"pdf": {"metadata": {"CreationDate": None}}, "png": {"dpi": 200}}
        for ending, options in endings.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format=ending, facecolor="white", **options)
            target = path.with_suffix(f".{ending}")
            replace_file(target, buffer.getvalue())
            written.append(target)
    return written


# ------------------------------------------------------------------------------------------------- comparison


def comparison_figure(table: Table, kind: str = "main") -> Figure:
    """Draw MMD and mean error against ε as box plots for each algorithm: the paper's figure 1.

    ``kind`` is "main" (the paper's algorithms and this package's own) or "variants" (temperatures and accountants of
    the minibatch samplers).
    """
    chosen = rows_of(table, kind)
    if kind == "variants":  # only budgets at which there are any
        variants = [name for name, row in settings.ROWS.items() if row.figure == kind]
        table = table[table["epsilon"].isin(table.loc[table["sampler"].isin(variants), "epsilon"])]
    models = [model for model in settings.MODELS if model in set(table["model"])]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.0, 0.7 + 2.9 * len(models)), layout="constrained")
        axes = figure.subplots(len(models), 2, squeeze=False)
        for line, model in zip(axes, models, strict=True):
            for axis, measure in zip(line, ("mmd", "mean_error"), strict=True):
                _boxes(axis, table, model, measure, chosen)
                axis.set_title(_TITLES[model])
        _legend(figure, chosen, columns=3)
    return figure


def full_figure(table: Table, model: str) -> Figure:
    """Draw everything that is measured against ε, in six panels: the fuller version of figure 1 for one model."""
    chosen = rows_of(table, "main")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.0, 8.4), layout="constrained")
        axes = figure.subplots(3, 2)
        for axis, measure in zip(axes.T.ravel(), MEASURES, strict=True):
            _boxes(axis, table, model, measure, chosen)
        figure.suptitle(_TITLES[model], fontsize=11)
        _legend(figure, chosen, columns=3)
    return figure


def rows_of(table: Table, kind: str) -> list[str]:
    """Return the algorithms of the table that belong into a figure, in the order of the settings."""
    present = set(table["sampler"])
    if kind == "variants":
        minibatch = [name for name in settings.ROWS if settings.ROWS[name].accountant != "gaussian" and name in present]
        return sorted(minibatch, key=lambda name: settings.ROWS[name].sampler)
    return [name for name, row in settings.ROWS.items() if name in present and row.figure == "main"]


def _boxes(axis: Axes, table: Table, model: str, measure: str, chosen: Sequence[str]) -> None:
    """Draw boxes side by side at each ε, and every run as a dot."""
    rows = table[(table["model"] == model) & table["sampler"].isin(chosen)]
    levels = sorted(rows["epsilon"].unique())
    width = min(0.2, 0.8 / max(1, len(chosen)))
    any_value = False
    for place, name in enumerate(chosen):
        values, positions = [], []
        for position, level in enumerate(levels):
            runs = rows.loc[(rows["sampler"] == name) & (rows["epsilon"] == level), measure]
            runs = runs[np.isfinite(runs)].to_numpy()
            if len(runs):
                values.append(runs)
                positions.append(position + (place - (len(chosen) - 1) / 2) * width)
        if values:
            any_value = True
            _boxes_of(axis, name, positions, values, width)
    for edge in range(len(levels) - 1):
        axis.axvline(edge + 0.5, color=LINE, linewidth=0.6, zorder=0)
    axis.set_xlim(-0.5, max(0.5, len(levels) - 0.5))
    axis.set_xticks(range(len(levels)), [f"{level:g}" for level in levels])
    axis.tick_params(axis="x", length=0)
    axis.set_xlabel("Privacy budget ε")
    axis.set_ylabel(_AXES[measure])
    if any_value:
        _set_scale(axis, measure)
    else:
        axis.text(0.5, 0.5, "no values", transform=axis.transAxes, ha="center", color=MUTED)


def _boxes_of(axis: Axes, name: str, positions: Sequence[float], values: Sequence[Array], width: float) -> None:
    """Draw the boxes and dots of one algorithm, at each position the runs there."""
    look = _look(name)
    axis.boxplot(
        values,
        positions=positions,
        widths=0.82 * width,
        patch_artist=True,
        whis=(0, 100),
        showcaps=False,
        manage_ticks=False,
        boxprops=look | {"linewidth": 0.8},
        medianprops={"color": INK, "linewidth": 1.3},
        whiskerprops={"color": look["edgecolor"], "linewidth": 0.9},
    )
    beside = [
        center + 0.18 * width * np.linspace(-1.0, 1.0, len(runs))
        for center, runs in zip(positions, values, strict=True)
    ]
    # A single run has no box to show its colour: a diamond, empty under the tight accountant.
    single = [(center, runs[0]) for center, runs in zip(positions, values, strict=True) if len(runs) == 1]
    face = "white" if settings.ROWS[name].accountant == "own" else look["edgecolor"]
    if single:
        axis.plot(*zip(*single, strict=True), "D", color=look["edgecolor"], markerfacecolor=face, markersize=5.5)
    dots = {"color": look["edgecolor"], "markersize": 1.6, "alpha": 0.8, "markeredgewidth": 0}
    axis.plot(np.concatenate(beside), np.concatenate(values), "o", **dots)


def _set_scale(axis: Axes, measure: str) -> None:
    """Choose the vertical scale for a measure, and draw the value that it should stay below, if there is one."""
    if measure in _LOGARITHMIC:
        logarithmic(axis)
        if measure == "max_r_hat":
            axis.axhline(1.05, color=MUTED, linewidth=0.8, linestyle=":")
            axis.set_ylim(bottom=0.98)
    elif measure == "acceptance":
        axis.set_ylim(0.0, 1.0)
    else:
        axis.set_ylim(0.0, None)
        axis.axhline(settings.CLIPPED_GUIDELINE, color=MUTED, linewidth=0.8, linestyle=":")
        axis.set_ylim(0.0, max(axis.get_ylim()[1], 1.15 * settings.CLIPPED_GUIDELINE))


def _look(name: str) -> dict[str, Any]:
    """Return the face, edge and hatching of an algorithm: hatched where the paper does not have it."""
    colour = _COLOURS.get(name, _SPARE_COLOURS[len(name) % len(_SPARE_COLOURS)])
    row = settings.ROWS[name]
    face = (*matplotlib.colors.to_rgb(colour), 0.55 if row.in_paper else 0.22)
    hatch = "////" if row.accountant == "own" else "" if row.in_paper else "...."
    return {"facecolor": face, "edgecolor": colour, "hatch": hatch}


def _legend(figure: Figure, chosen: Sequence[str], columns: int) -> None:
    patches = [Patch(**_look(name), label=settings.ROWS[name].label) for name in chosen]
    figure.legend(handles=patches, loc="outside lower center", ncols=min(columns, len(patches)), columnspacing=2.0)


def logarithmic(axis: Axes) -> None:
    """Make the vertical axis logarithmic with plain numbers, and enough of them."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    steps = {4.0: (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0), 12.0: (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)}
    steps |= {300.0: (1.0, 2.0, 5.0), math.inf: (1.0,)}
    subs = next(chosen for ratio, chosen in steps.items() if high / low < ratio)
    axis.yaxis.set_major_locator(LogLocator(base=10.0, subs=subs, numticks=12))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(axis="y", color=LINE, linewidth=0.5, alpha=0.7)
    axis.set_axisbelow(True)


# ------------------------------------------------------------------------------------------------- posteriors

_RUNS: dict[str, tuple[Literal["-", "--", ":"], str]] = {
    "best": ("-", _GREEN),
    "median": ("--", _BLUE),
    "worst": (":", _VERMILLION),
}
_REGIONS = (0.5, 0.9)
_MAX_KERNEL_DRAWS = 800


class _Straight(NamedTuple):
    """The exact posterior of the banana, which is Gaussian and independent in the straight coordinates.

    Attributes
    ----------
    center, scale
        Means and standard deviations of θ₁ and θ₂ + aθ₁².
    curvature
        a.
    """

    center: Array
    scale: Array
    curvature: float


def posterior_figure(runs: Mapping[str, Mapping[str, Array]], model: Banana, data: NDArray[np.floating]) -> Figure:
    """Draw the banana's posterior beside the best, median and worst run of each algorithm: the paper's figure 2.

    Parameters
    ----------
    runs
        By label of an algorithm: draws × 2 of the "best", "median" and "worst" run by MMD.
    model, data
        The banana model and its synthetic records, for the exact posterior (which is not private).

    Notes
    -----
    Densities are kernel estimates; those of the plane in the straight coordinates (θ₁, θ₂ + aθ₁²), whose map has unit
    Jacobian, because a round kernel would blur the thin banana. Regions hold 50 and 90 % of the probability.
    """
    posterior = _Straight(*model.straight_posterior_not_private(data), model.curvature)
    low, high = _box(posterior)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.35 * len(runs) + 0.6, 6.6), layout="constrained")
        axes = figure.subplots(3, len(runs), squeeze=False, sharex=False, height_ratios=(1.0, 1.0, 1.7))
        for column, (label, draws) in enumerate(runs.items()):
            axes[0, column].set_title(label.replace(", ", ",\n"), fontsize=9.5)
            for coordinate in range(2):
                _marginals(axes[coordinate, column], draws, coordinate, posterior, low, high)
            _plane(axes[2, column], draws, posterior, low, high)
        for line in range(2):
            axes[line, 0].set_ylabel("Density")
            top = max(axis.get_ylim()[1] for axis in axes[line])
            for axis in axes[line]:
                axis.set_ylim(0.0, top)
        axes[2, 0].set_ylabel("θ₂")
        handles: list[Artist] = [Patch(facecolor=_ORANGE, alpha=0.45, label="exact posterior")]
        handles += [
            Line2D([], [], color=colour, linestyle=style, linewidth=1.5, label=f"{name} run")
            for name, (style, colour) in _RUNS.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, columnspacing=2.0)
    return figure


def _box(posterior: _Straight) -> tuple[Array, Array]:
    """Return the corners of a box that holds nearly all of the exact posterior, and some room for runs that err."""
    outline = _bent(posterior.center + 2.9 * posterior.scale * _circle(), posterior.curvature)
    low, high = outline.min(axis=0), outline.max(axis=0)
    return low - 0.08 * (high - low), high + 0.08 * (high - low)


def _circle() -> Array:
    angle = np.linspace(0.0, 2.0 * np.pi, 361)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _bent(straight: Array, curvature: float) -> Array:
    return np.stack([straight[..., 0], straight[..., 1] - curvature * straight[..., 0] ** 2], axis=-1)


def _exact_marginal(coordinate: int, points: Array, posterior: _Straight) -> Array:
    """Density of θ₁ (Gaussian) or of θ₂ (the mean over θ₁ of the density of θ₂ + aθ₁²)."""
    center, scale, curvature = posterior
    if coordinate == 0:
        return np.asarray(_normal(points, center[0], scale[0]))
    nodes = center[0] + scale[0] * np.linspace(-5.0, 5.0, 801)
    weights = _normal(nodes, center[0], scale[0])
    values = _normal(points[:, None] + curvature * nodes**2, center[1], scale[1])
    return np.asarray(values @ weights / weights.sum())


def _normal(points: Array, mean: float, scale: float) -> Array:
    return np.asarray(np.exp(-0.5 * ((points - mean) / scale) ** 2) / (scale * math.sqrt(2.0 * math.pi)))


def _marginals(
    axis: Axes, draws: Mapping[str, Array], coordinate: int, posterior: _Straight, low: Array, high: Array
) -> None:
    points = np.linspace(low[coordinate], high[coordinate], 301)
    exact = _exact_marginal(coordinate, points, posterior)
    axis.fill_between(points, exact, facecolor=_ORANGE, alpha=0.45, linewidth=0)
    for name, values in draws.items():
        style, colour = _RUNS[name]
        # Scott's width is meant for Gaussians; it would flatten the spike of θ₂.
        density = _kernel_density(values[:, coordinate], points, (1.0, 0.5)[coordinate])
        axis.plot(points, density, style, color=colour, linewidth=1.3)
    # A run that hardly moved is a needle; do not let it flatten the others.
    axis.set_ylim(0.0, min(axis.get_ylim()[1], 3.5 * exact.max()))
    axis.set_xlim(low[coordinate], high[coordinate])
    axis.set_xlabel(("θ₁", "θ₂")[coordinate])
    axis.tick_params(left=False, labelleft=False)


def _kernel_density(values: Array, points: Array, share: float) -> Array:
    """Return the kernel estimate of the density, of this share of Scott's width."""
    if np.ptp(values) == 0.0:
        return np.zeros_like(points)
    return np.asarray(gaussian_kde(values, bw_method=share * len(values) ** -0.2)(points))


def _plane(axis: Axes, draws: Mapping[str, Array], posterior: _Straight, low: Array, high: Array) -> None:
    center, scale, curvature = posterior
    for probability in reversed(_REGIONS):
        outline = _bent(center + math.sqrt(-2.0 * math.log1p(-probability)) * scale * _circle(), curvature)
        axis.fill(*outline.T, facecolor=_ORANGE, alpha=0.3, linewidth=0)
    grid = np.stack(np.meshgrid(np.linspace(low[0], high[0], 91), np.linspace(low[1], high[1], 121)), axis=-1)
    for name, values in draws.items():
        style, colour = _RUNS[name]
        thinned = values[:: -(-len(values) // _MAX_KERNEL_DRAWS)]
        straight = _bent(thinned, -curvature)
        if np.linalg.matrix_rank(np.cov(straight.T)) < 2:
            continue
        density = gaussian_kde(straight.T)
        levels = sorted(np.quantile(density(straight.T), [1.0 - probability for probability in _REGIONS]))
        values_on_grid = density(_bent(grid, -curvature).reshape(-1, 2).T).reshape(grid.shape[:2])
        if levels[0] < levels[1]:
            axis.contour(
                grid[..., 0], grid[..., 1], values_on_grid, levels, colors=colour, linestyles=style, linewidths=1.2
            )
    axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel="θ₁")


# --------------------------------------------------------------------------------------------------- clipping

_CLIPPING_LOOKS = {"hmc": ("o", _BLUE, -1), "rwmh": ("^", _VERMILLION, 1)}


def clipping_figure(table: Table) -> Figure:
    """Draw MMD against the clip bound and against the fraction clipped, a point for each run: the paper's figure 3."""
    models = [model for model in settings.MODELS if model in set(table["model"])]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.0, 0.6 + 3.1 * len(models)), layout="constrained")
        axes = figure.subplots(len(models), 2, squeeze=False, sharey="row")
        for (left, right), model in zip(axes, models, strict=True):
            for name, (marker, colour, side) in _CLIPPING_LOOKS.items():
                rows = table[(table["model"] == model) & (table["sampler"] == name)]
                _against_bound(left, rows, marker, colour, side)
                right.plot(
                    100.0 * rows["ratios_clipped"],
                    rows["mmd"],
                    linestyle="",
                    marker=marker,
                    color=colour,
                    alpha=0.6,
                    markersize=4.5,
                    markeredgewidth=0,
                )
            left.set(xscale="log", xlabel="Clip bound b of the log-ratios (per unit of ‖Δθ‖)", ylabel=_AXES["mmd"])
            left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            logarithmic(left)
            right.set(xlabel="Log-ratios clipped (%)", xlim=(-3.0, 103.0))
            right.grid(axis="y", color=LINE, linewidth=0.5, alpha=0.7)
            right.axvline(100.0 * settings.CLIPPED_GUIDELINE, color=MUTED, linewidth=0.9, linestyle=":")
            for axis in (left, right):
                axis.set_title(_TITLES[model])
        handles: list[Artist] = [
            Line2D([], [], linestyle="", marker=marker, color=colour, label=f"{settings.CLIPPING_ROWS[name]}, one run")
            for name, (marker, colour, _) in _CLIPPING_LOOKS.items()
        ]
        handles.append(Line2D([], [], color=INK, linewidth=1.0, label="median of the runs"))
        handles.append(Line2D([], [], color=MUTED, linestyle=":", label="the paper's guideline, 20 %"))
        figure.legend(handles=handles, loc="outside lower center", ncols=4, columnspacing=2.0)
    return figure


def _against_bound(axis: Axes, rows: Table, marker: str, colour: str, side: int) -> None:
    """Draw runs a little to the side of their bound, so that both algorithms are seen, and their medians."""
    places, medians = [], []
    for bound, runs in rows.groupby("bound"):
        values = runs["mmd"][np.isfinite(runs["mmd"])].to_numpy()
        if not len(values):
            continue
        place = bound * 1.06**side
        axis.plot(
            np.full(len(values), place), values, marker, color=colour, alpha=0.6, markersize=4.5, markeredgewidth=0
        )
        places.append(place)
        medians.append(float(np.median(values)))
    axis.plot(places, medians, color=colour, linewidth=1.0, marker="_", markersize=11, markeredgewidth=1.6)
