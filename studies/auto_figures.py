"""The figures of the study of ``auto``: MMD against the budget, and draws over the exact posterior.

As in :mod:`studies.figures`, no colour carries a meaning alone. Draws only; computes nothing that a statement rests on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpmcmc.output import INK, MUTED
from studies.auto import AutoCell
from studies.auto_cases import case_names, make_case
from studies.auto_results import MMD_BARS
from studies.cells import Array, read_draws
from studies.figures import STYLE, logarithmic
from studies.laplace import references
from studies.laplace_figures import draw_bar, set_epsilon_axis
from studies.tables import Table, paper_medians

_BLUE, _VERMILLION = "#0072b2", "#d55e00"
SHOWN = ("banana", "ring", "two-modes", "product", "funnel", "cubic", "sine", "boundary")
"""The cases whose draws are shown."""


class Draws(NamedTuple):
    """Draws of a run and exact ones, number × d each, and what is said of the run."""

    found: Array
    exact: Array
    title: str


def mmd_figure(table: Table, paper_page: Path) -> Figure:
    """Draw the MMD against ε on the paper's models; every run is a dot."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 3.9), layout="constrained")
        for axis, case in zip(figure.subplots(1, 2, sharey=True), case_names("paper"), strict=True):
            rows = table[table["case"] == case]
            looks = {"mmd": ("auto", _BLUE, "o"), "mmd_exact": ("other exact draws", MUTED, "s")}
            for place, (measure, (label, colour, marker)) in enumerate(looks.items()):
                shift = 1.0 + 0.04 * (place - 0.5)
                axis.plot(rows["epsilon"] * shift, rows[measure], marker, color=colour, markersize=2.0, alpha=0.6)
                medians = rows.groupby("epsilon")[measure].median()
                axis.plot(medians.index * shift, medians, f"{marker}-", color=colour, markersize=5.5, label=label)
            levels = set(rows["epsilon"])
            paper = {k: v for k, v in paper_medians(paper_page, case, "DP-HMC").items() if k in levels}
            if paper:
                label = "DP-HMC, tuned by hand"
                axis.plot(list(paper), list(paper.values()), "x:", color=_VERMILLION, markersize=6, label=label)
            draw_bar(axis, {epsilon: bar for epsilon, bar in MMD_BARS[case].items() if epsilon in levels})
            set_epsilon_axis(axis, rows)
            axis.set_title(case.capitalize())
            if len(rows):
                logarithmic(axis)
        first = figure.axes[0]
        first.set_ylabel("MMD to the exact posterior")
        figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def shapes_figure(draws: Mapping[str, Draws]) -> Figure:
    """Draw the first two coordinates: exact draws below, those of a run above."""
    with matplotlib.rc_context(STYLE):
        columns = min(4, len(draws))
        rows = -(-len(draws) // columns)
        figure = Figure(figsize=(2.6 * columns, 2.6 * rows + 0.4), layout="constrained")
        axes = np.atleast_1d(figure.subplots(rows, columns)).ravel()
        for axis, item in zip(axes, draws.values(), strict=False):
            _scatter(axis, item)
        for axis in axes[len(draws) :]:
            axis.set_axis_off()
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def read_shown(folder: Path, table: Table, seed: int) -> dict[str, Draws]:
    """Return the kept draws of the first run of each case that is shown, at the smallest ε that it was run with."""
    found = {}
    for name in SHOWN:
        rows = table[(table["case"] == name) & (table["repeat"] == 0) & (table["refused"] == 0.0)]
        if not len(rows):
            continue
        row = rows.loc[rows["epsilon"].idxmin()]
        cell = AutoCell(name, float(row["epsilon"]), 0, seed)
        exact = make_case(name, seed).reference(references(folder)).draws[:1000]
        flag = ", flagged" if row["flagged"] else ""
        title = f"{name}, ε = {row['epsilon']:g}\nMMD {row['mmd']:.3f}{flag}"
        found[name] = Draws(read_draws(folder, cell), exact, title)
    return found


def _scatter(axis: Axes, item: Draws) -> None:
    """Draw one panel; its bounds are those of the exact draws, with room for others."""
    axis.plot(item.exact[:, 0], item.exact[:, 1], "s", color=MUTED, markersize=1.6, alpha=0.5, label="exact draws")
    axis.plot(item.found[:, 0], item.found[:, 1], "o", color=_BLUE, markersize=1.2, alpha=0.6, label="auto")
    low, high = np.quantile(item.exact[:, :2], (0.001, 0.999), axis=0)
    room = 0.35 * (high - low)
    axis.set_xlim(low[0] - room[0], high[0] + room[0])
    axis.set_ylim(low[1] - room[1], high[1] + room[1])
    axis.set_title(item.title, fontsize=8, color=INK)
    axis.tick_params(labelsize=6)
