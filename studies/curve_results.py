"""The results of the study of the planning curve: how wide intervals became, beside the band that was planned.

Reads finished cells and tables of them, and draws. It runs nothing.
"""

from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from dpmcmc.output import INK, MUTED, replace_file
from studies import tables
from studies.cells import Result, read_row_of
from studies.curve import KINDS, SAMPLERS, CurveCell, case_names, compared
from studies.figures import STYLE, logarithmic
from studies.statements import Statement, checked
from studies.tables import Table, markdown_table, number, percent, quantile, share

COLUMNS = (
    "case",
    "kind",
    "sampler",
    "epsilon",
    "repeat",
    "num_records",
    "dimension",
    "predicted_low",
    "predicted_high",
    "noise_benign",
    "noise_skewed",
    "feasible",
    "widening",
    "beside",
    "clip_factor",
    "coordinates_in_band",
    "rms_error",
    "coverage",
    "refused",
    "flagged",
    "num_draws",
    "seconds",
    "method",
    "reasons",
    "returned",
    "widenings",
    "study_seed",
    "seed",
    "privacy",
    "dpmcmc",
    "jax",
    "commit",
)
SMALLEST_SHARE = 0.9
"""Of the runs without a flag, so many should be in the band."""
_LABELS = {"dp-laplace": "DPLaplace", "auto": "auto"}


# ------------------------------------------------------------------------------------------------------ tables


def collect(folder: Path, seed: int) -> Table:
    """Return the table of all finished runs: by case, sampler, ε and repeat."""
    found: list[Result] = []
    for path in (folder / "cells").glob(f"{CurveCell.study}-*.json"):
        finished = read_row_of(CurveCell.from_dict, path)
        if finished is not None and finished[0].seed == seed:
            found.append(compared(finished[1]))
    cases = case_names()

    def place(row: Result) -> tuple[object, ...]:
        return cases.index(str(row["case"])), SAMPLERS.index(str(row["sampler"])), row["epsilon"], row["repeat"]

    found.sort(key=place)
    return pd.DataFrame(found, columns=list(COLUMNS))


def summarise(table: Table) -> Table:
    """Return one row for each kind of data and sampler: what became of the runs, and which κ would have been right."""
    lines = []
    for (kind, sampler), rows in table.groupby(["kind", "sampler"], sort=False):
        ran = rows[rows["refused"] == 0.0]
        trusted = ran[ran["flagged"] == 0.0]
        line: dict[str, object] = {
            "kind": kind,
            "sampler": sampler,
            "runs": len(rows),
            "refused": int((rows["refused"] == 1.0).sum()),
            "flagged": int(len(ran) - len(trusted)),
            "trusted": len(trusted),
        }
        for name, side in {"below": -1.0, "inside": 0.0, "above": 1.0}.items():
            line[name] = int((trusted["beside"] == side).sum())
            line[f"{name}_flagged"] = int(((ran["beside"] == side) & (ran["flagged"] == 1.0)).sum())
        line["coordinates_in_band"] = float(trusted["coordinates_in_band"].mean())
        for name, probability in {"low": 0.05, "median": 0.5, "high": 0.95}.items():
            line[f"clip_factor_{name}"] = quantile(trusted["clip_factor"], probability)
        line["coverage"] = float(trusted["coverage"].mean())
        lines.append(line)
    return pd.DataFrame(lines)


def sections(table: Table, paper_page: Path) -> list[str]:
    """Return titles and tables in Markdown. (``paper_page`` is for the other studies.)"""
    parts = ["### Runs in the planned band", _band_markdown(summarise(table))]
    for kind, title in KINDS.items():
        rows = table[table["kind"] == kind]
        if len(rows):
            parts += [f"### {title}: how many times as wide", _widths_markdown(rows)]
    return parts


def _band_markdown(summary: Table) -> str:
    head = ["", "runs", "refused", "flagged", "not flagged", "below", "in the band", "above", "coordinates in the band"]
    head += ["κ: median (5–95 %)", "flagged: in the band", "mean in 90 %"]
    lines = []
    for _, row in summary.iterrows():
        factors = [number(row[f"clip_factor_{name}"]) for name in ("median", "low", "high")]
        lines.append(
            [
                f"{KINDS[row['kind']]}, {_LABELS[row['sampler']]}",
                *(str(row[name]) for name in ("runs", "refused", "flagged", "trusted", "below")),
                share(row["inside"], row["trusted"]),
                str(row["above"]),
                percent(row["coordinates_in_band"]),
                f"{factors[0]} ({factors[1]}–{factors[2]})" if row["trusted"] else "–",
                share(row["inside_flagged"], row["flagged"]),
                percent(row["coverage"]),
            ]
        )
    return markdown_table(head, lines)


def _widths_markdown(table: Table) -> str:
    """Return for each size and ε the planned band, and the median of what the samplers gave; stars mean flags."""
    levels = sorted(table["epsilon"].unique())
    head = ["d", "n"]
    for level in levels:
        head += [f"ε = {level:g}: planned", *(_LABELS[sampler] for sampler in SAMPLERS)]
    lines = []
    for _, of_case in table.groupby("case", sort=False):
        first = of_case.iloc[0]
        line = [str(first["dimension"]), f"{first['num_records']:,}"]
        for level in levels:
            rows = of_case[of_case["epsilon"] == level]
            line.append(_planned(rows))
            line += [_measured(rows[rows["sampler"] == sampler]) for sampler in SAMPLERS]
        lines.append(line)
    return markdown_table(head, lines)


def _planned(rows: Table) -> str:
    if not len(rows):
        return "–"
    first = rows.iloc[0]
    return f"{first['predicted_low']:.3g}–{first['predicted_high']:.3g}" if first["feasible"] else "cannot work"


def _measured(rows: Table) -> str:
    if not len(rows):
        return "–"
    if (rows["refused"] == 1.0).all():
        return "refused"
    return number(quantile(rows["widening"], 0.5)) + "*" * int((rows["flagged"] == 1.0).sum())


# -------------------------------------------------------------------------------------------------- statements


def statements_of(table: Table) -> list[Statement]:
    """Check what the plan says beforehand against what came out."""
    return [
        checked("What the plan says cannot work is refused, and nothing else is", _refusals(table)),
        checked(
            f"Runs without a flag: in ≥ {percent(SMALLEST_SHARE)} of them the median coordinate's interval is within "
            "the planned band",
            _bands(table),
        ),
    ]


def _refusals(table: Table) -> Iterator[tuple[str, bool]]:
    if len(table):
        impossible = table["feasible"] == 0.0
        refused = table["refused"] == 1.0
        yield (
            f"{share(int((impossible & refused).sum()), int(impossible.sum()))} refused",
            bool(refused[impossible].all()),
        )
        yield (
            f"{share(int((~impossible & refused).sum()), int((~impossible).sum()))} others",
            not refused[~impossible].any(),
        )


def _bands(table: Table) -> Iterator[tuple[str, bool]]:
    if not len(table):
        return
    for _, row in summarise(table).iterrows():
        if row["trusted"]:
            inside = row["inside"] / row["trusted"]
            text = f"{KINDS[row['kind']]}, {_LABELS[row['sampler']]}: {share(row['inside'], row['trusted'])}"
            text += f", {row['below']} below, {row['above']} above"
            yield text, inside >= SMALLEST_SHARE


# ------------------------------------------------------------------------------------------------------ figure

_COLOURS = {"dp-laplace": "#0072b2", "auto": "#d55e00"}
_MARKERS = {"dp-laplace": "o", "auto": "^"}
_HIGHEST = 5.0


def band_figure(table: Table) -> Figure:
    """Draw what was measured over the bands, one panel for each kind of data; empty markers are flagged.

    The noise of benign data is the horizontal axis: nearly all that the plan knows of n, d and ε is in it.
    """
    kinds = [kind for kind in KINDS if (table["kind"] == kind).any()]
    ran = table[(table["refused"] == 0.0) & np.isfinite(table["widening"])]
    with matplotlib.rc_context(STYLE):
        columns = min(3, len(kinds))
        rows_of_panels = -(-len(kinds) // columns)
        figure = Figure(figsize=(3.2 * columns + 0.4, 3.0 * rows_of_panels + 0.6), layout="constrained")
        panels = figure.subplots(rows_of_panels, columns, sharex=True, sharey=True, squeeze=False)
        axes = list(panels.flat)[: len(kinds)]
        for unused in list(panels.flat)[len(kinds) :]:
            unused.set_visible(False)
        possible = table.loc[table["feasible"] >= table["feasible"].max(), "noise_benign"]
        noise = np.geomspace(possible.min() / 1.3, possible.max() * 1.3, 200)
        for axis, kind in zip(axes, kinds, strict=True):
            settings = table[(table["kind"] == kind) & (table["feasible"] == 1.0)].drop_duplicates("noise_benign")
            ends = settings["predicted_low"], settings["predicted_high"].clip(upper=_HIGHEST)
            axis.vlines(settings["noise_benign"], *ends, color="0.83", linewidth=7)
            axis.plot(noise, np.hypot(1.0, noise), color=MUTED, linewidth=0.9)
            for shift, sampler in zip((0.97, 1.03), SAMPLERS, strict=True):
                rows = ran[(ran["kind"] == kind) & (ran["sampler"] == sampler)]
                heights = rows["widening"].clip(upper=_HIGHEST)
                faces = ["white" if flagged else _COLOURS[sampler] for flagged in rows["flagged"] == 1.0]
                axis.scatter(
                    rows["noise_benign"] * shift,
                    heights,
                    s=16,
                    marker=_MARKERS[sampler],
                    c=faces,
                    edgecolors=_COLOURS[sampler],
                    linewidths=0.8,
                    zorder=3,
                )
            axis.set_title(KINDS[kind], fontsize=9.5)
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.set_xlim(noise[0], noise[-1])
        axes[0].set_ylim(0.94, _HIGHEST * 1.06)
        for axis in axes:
            logarithmic(axis)
        for axis in panels[:, 0]:
            axis.set_ylabel("times as wide as without noise")
        for axis in panels[-1, :]:
            axis.set_xlabel("planned noise, benign data (posterior sds)")
        handles: list[Line2D | Patch] = [
            Line2D([], [], linestyle="", marker=_MARKERS[name], color=_COLOURS[name], label=_LABELS[name], markersize=5)
            for name in SAMPLERS
        ]
        handles += [
            Line2D([], [], linestyle="", marker="o", color=INK, markerfacecolor="white", label="flagged", markersize=5),
            Patch(facecolor="0.83", label="planned, from benign to skewed data"),
            Line2D([], [], color=MUTED, label="benign data"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=5, columnspacing=1.5)
    return figure


# ------------------------------------------------------------------------------------------------------- files


def write_tables(folder: Path, table: Table) -> None:
    """Write the runs and the summary of them, as CSV, Parquet and Markdown."""
    tables.write_csv(folder / "results.csv", table)
    tables.write_parquet(folder / "results.parquet", table)
    tables.write_csv(folder / "summary.csv", summarise(table))
    head = ["# What was planned, and what came out", "Synthetic and public data, seeded runs: not private."]
    replace_file(folder / "summary.md", ("\n\n".join([*head, *sections(table, folder)]) + "\n").encode())
