"""The figures of the study of DP-Laplace, drawn from its table: error against budget, and against dimension.

As in :mod:`studies.figures`, no colour carries a meaning alone. Draws only; computes nothing that a statement rests on.
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpmcmc.output import INK, MUTED
from studies.figures import STYLE, logarithmic
from studies.laplace_cases import SWEEP_DIMENSIONS, case_names
from studies.laplace_results import ADULT_RMS, GAUSSIAN_MMD, summarise
from studies.tables import Table, paper_medians

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_MARKERS = ("o", "s", "D", "^")


def accuracy_figure(table: Table, paper_page: Path) -> Figure:
    """Draw the error against ε on Adult and on the data kept aside, and the Gaussian's MMD; every run is a dot."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.0, 3.9), layout="constrained")
        axes = figure.subplots(1, 3)
        for axis, group, title in zip(
            axes, ("adult", "aside", "gaussian"), ("Adult", "Kept aside", "Gaussian, d = 10"), strict=True
        ):
            measure = "mmd" if group == "gaussian" else "rms_error"
            _against_epsilon(axis, table[table["group"] == group], case_names(group), measure)
            axis.set_title(title)
        axes[0].set_ylabel("RMS error of the mean (reference sds)")
        axes[2].set_ylabel("MMD to the exact posterior")
        draw_bar(axes[0], ADULT_RMS)
        draw_bar(axes[2], GAUSSIAN_MMD)
        medians = paper_medians(paper_page, "gaussian", "DP-HMC")
        paper = {epsilon: value for epsilon, value in medians.items() if epsilon in GAUSSIAN_MMD}
        if paper:
            axes[2].plot(list(paper), list(paper.values()), "x:", color=INK, markersize=6, label="DP-HMC of the paper")
        for axis in axes:
            logarithmic(axis)
            handles, labels = axis.get_legend_handles_labels()
            if handles:
                axis.legend(handles, labels, loc="best", fontsize=8)
    return figure


def _against_epsilon(axis: Axes, table: Table, cases: list[str], measure: str) -> None:
    """Draw all runs beside each other at each ε, a line through the medians, and a dotted line for the floor."""
    for place, case in enumerate(cases):
        rows = table[table["case"] == case]
        if not len(rows):
            continue
        colour, marker = _COLOURS[place], _MARKERS[place]
        shift = 1.0 + 0.05 * (place - (len(cases) - 1) / 2.0)
        axis.plot(rows["epsilon"] * shift, rows[measure], marker, color=colour, markersize=2.0, alpha=0.6)
        medians = rows.groupby("epsilon")[measure].median()
        axis.plot(medians.index * shift, medians, f"{marker}-", color=colour, markersize=5.5, label=case)
        if measure == "rms_error":
            floors = rows.groupby("epsilon")["floor"].first()
            axis.plot(floors.index * shift, floors, ":", color=colour, linewidth=1.2)
    set_epsilon_axis(axis, table)


def set_epsilon_axis(axis: Axes, table: Table) -> None:
    """Make the horizontal axis that of ε, with a mark for each of the table's."""
    levels = sorted(table["epsilon"].unique())
    axis.set_xscale("log")
    axis.set_xticks(levels, [f"{level:g}" for level in levels])
    axis.minorticks_off()
    axis.set_xlabel("Privacy budget ε")


def draw_bar(axis: Axes, bars: dict[float, float]) -> None:
    """Draw what was set as a bar, by ε."""
    axis.plot(list(bars), list(bars.values()), "_", color=INK, markersize=16, markeredgewidth=1.6, label="bar")


def dimension_figure(table: Table) -> Figure:
    """Draw median error (line) and reported sd (dashed) against d; a marker is empty if most runs were flagged."""
    summary = summarise(table[table["group"] == "sweep"])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10.0, 3.9), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        styles: dict[str, int] = {}
        for axis, family in zip(axes, ("logistic", "linear"), strict=True):
            for size in ("20k", "100k"):
                for epsilon in sorted(summary["epsilon"].unique()):
                    names = {f"{family}-d{dimension}-{size}": dimension for dimension in SWEEP_DIMENSIONS}
                    rows = summary[summary["case"].isin(list(names)) & (summary["epsilon"] == epsilon)]
                    rows = rows[np.isfinite(rows["rms_error_median"])]
                    if len(rows):
                        label = f"n = {size}, ε = {epsilon:g}"
                        _against_dimension(axis, rows, styles.setdefault(label, len(styles)))
            axis.set_title(f"{family.capitalize()} regression")
            axis.set_xlabel("Dimension d")
            logarithmic(axis)
        axes[0].set_ylabel("Reference sds")
        handles = [
            Line2D([], [], color=_COLOURS[place % 4], marker=_MARKERS[place % 4], label=label)
            for label, place in styles.items()
        ]
        handles += [
            Line2D([], [], color=MUTED, linestyle="--", label="reported sd"),
            Line2D([], [], color=MUTED, marker="o", markerfacecolor="white", linestyle="", label="mostly flagged"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=6, columnspacing=1.5)
    return figure


def _against_dimension(axis: Axes, rows: Table, place: int) -> None:
    colour, marker = _COLOURS[place % 4], _MARKERS[place % 4]
    axis.plot(rows["dimension"], rows["rms_error_median"], "-", color=colour)
    axis.plot(rows["dimension"], rows["reported_median"], "--", color=colour, linewidth=1.0)
    for _, row in rows.iterrows():
        face = "white" if row["flagged"] > row["runs"] / 2 else colour
        axis.plot(row["dimension"], row["rms_error_median"], marker, color=colour, markerfacecolor=face, markersize=5.5)
