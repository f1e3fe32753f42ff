"""The results of the study of DP-Laplace: tables, and what they say about the bars that were set beforehand.

Reads finished cells and tables of them. It runs nothing.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from dpmcmc.output import replace_file
from studies import tables
from studies.cells import cells_of_cases
from studies.laplace import EPSILONS, LaplaceCell
from studies.laplace_cases import AXES, FAMILIES, SWEEP_DIMENSIONS, case_names
from studies.statements import BAR, Statement, checked
from studies.tables import (
    Table,
    markdown_table,
    number,
    optional,
    paper_medians,
    percent,
    quantile,
    quartiles,
    share,
    spread,
)

COLUMNS = (
    "case",
    "group",
    "epsilon",
    "repeat",
    "num_records",
    "dimension",
    "rms_error",
    "worst_error",
    "coverage",
    "width_ratio",
    "width_ratio_bounded",
    "reported",
    "error_in_reported",
    "wrong",
    "mmd",
    "mmd_exact",
    "flagged",
    "refused",
    "converged",
    "noise_share",
    "clipped_share",
    "rounds",
    "floor",
    "floor_bounded",
    "floor_bias",
    "num_draws",
    "seconds",
    "method",
    "reasons",
    "errors",
    "study_seed",
    "seed",
    "privacy",
    "dpmcmc",
    "jax",
    "commit",
)
ADULT_RMS = {1.0: 1.0, 2.0: 0.62, 4.0: 0.38}
"""Median RMS error on Adult, in reference sds, by ε."""
LOWEST_COVERAGE, LARGEST_WIDTH = 0.85, 1.3
GAUSSIAN_MMD = {2.0: 0.055, 4.0: 0.03, 8.0: 0.02, 15.0: 0.02}
LARGEST_BIAS = 0.3
"""In reference sds, where a run is not flagged."""
QUOTED_ADULT = ("DP-VI with d3p (given by others, not measured here)", {1.0: 2.3, 2.0: 1.7, 4.0: 1.0})
"""RMS errors of another package that were given to the project; neither its settings nor its data were seen here."""

_QUARTILES = ("rms_error", "worst_error", "width_ratio", "width_ratio_bounded", "reported", "mmd", "mmd_exact")
_FEWEST_RUNS = 5  # for a bias: of fewer, nothing can be said
_CERTAINTY = 0.999


# ------------------------------------------------------------------------------------------------------ tables


def collect(folder: Path, seed: int) -> Table:
    """Return the table of all finished runs, in the order of the cases."""
    return tables.collect_cases(folder, LaplaceCell, case_names(), COLUMNS, seed)


def cells_of(names: Sequence[str], epsilons: Sequence[float] | None, repeats: int, seed: int) -> list[LaplaceCell]:
    """Return the cells of these cases: at these budgets, or at those of each case's group."""
    groups = {name: EPSILONS[group] for group in EPSILONS for name in case_names(group)}
    return cells_of_cases(LaplaceCell, names, epsilons, groups, repeats, seed)


def summarise(table: Table) -> Table:
    """Return one row for each case and ε: medians and quartiles, coverage, bias, and what became of the flag."""
    lines = []
    for (case, epsilon), rows in table.groupby(["case", "epsilon"], sort=False):
        first = rows.iloc[0]
        line: dict[str, object] = {
            "case": case,
            "group": first["group"],
            "epsilon": epsilon,
            "num_records": first["num_records"],
            "dimension": first["dimension"],
            "runs": len(rows),
            "floor": first["floor"],
            "floor_bounded": first["floor_bounded"],
            "floor_bias": first["floor_bias"],
            "method": first["method"],
        }
        line |= quartiles(rows, _QUARTILES)
        line["coverage"] = float(rows["coverage"].mean())
        line |= {**bias(rows), **flag_counts(rows)}
        line["seconds_median"] = float(rows["seconds"].median())
        lines.append(line)
    return pd.DataFrame(lines)


def errors_of(rows: Table) -> np.ndarray:
    """Return the errors of the runs that were not flagged, runs × coordinates, in reference sds."""
    texts = rows.loc[(rows["flagged"] == 0.0) & (rows["errors"] != ""), "errors"]
    return np.array([[float(word) for word in text.split()] for text in texts], np.float64)


def bias(rows: Table) -> dict[str, float]:
    """Return the mean errors over the runs of one case and ε that were not flagged.

    With b the means over the runs, s their standard errors, q the 99.9 % quantile of Student's t:

    - bias_rms: √(mean over the coordinates of b² − s²), in which the noise of b is taken off;
    - bias_worst and bias_worst_error: the b of largest |b| and its s;
    - bias_at_least, bias_at_most: max(|b| − q·s) and max(|b| + q·s), what the largest bias certainly exceeds or not.

    NaN of fewer than five runs.
    """
    errors = errors_of(rows)
    names = ("bias_rms", "bias_worst", "bias_worst_error", "bias_at_least", "bias_at_most")
    if len(errors) < _FEWEST_RUNS:
        return dict.fromkeys(names, math.nan)
    means = errors.mean(axis=0)
    standard_errors = errors.std(axis=0, ddof=1) / math.sqrt(len(errors))
    margin = float(student.ppf(_CERTAINTY, len(errors) - 1)) * standard_errors
    worst = int(np.argmax(np.abs(means)))
    values = (
        math.sqrt(max(0.0, float(np.mean(means**2 - standard_errors**2)))),
        float(means[worst]),
        float(standard_errors[worst]),
        max(0.0, float(np.max(np.abs(means) - margin))),
        float(np.max(np.abs(means) + margin)),
    )
    return dict(zip(names, values, strict=True))


def flag_counts(rows: Table) -> dict[str, int]:
    """Return how many runs were flagged, refused, wrong, wrong and not flagged (missed), flagged and right (false)."""
    flagged, refused, wrong = (rows[name] == 1.0 for name in ("flagged", "refused", "wrong"))
    return {
        "flagged": int(flagged.sum()),
        "refused": int(refused.sum()),
        "wrong": int(wrong.sum()),
        "missed": int((wrong & ~flagged).sum()),
        "false_alarms": int((flagged & ~refused & ~wrong).sum()),
    }


# ---------------------------------------------------------------------------------------------------- markdown


def sections(table: Table, paper_page: Path) -> list[str]:
    """Return titles and tables in Markdown, for the parts of the study that were run."""
    summary = summarise(table)
    parts: list[str] = []
    for group, title in {"adult": "Adult, logistic regression", "aside": "Data that nothing was tuned on"}.items():
        rows = summary[summary["group"] == group]
        if len(rows):
            parts += [f"### {title}", _accuracy_markdown(rows, quoted=group == "adult")]
    if (summary["group"] == "gaussian").any():
        parts += ["### The paper's Gaussian, d = 10: MMD", gaussian_markdown(summary, paper_page)]
    rows = summary[summary["group"] == "hard"]
    for family in FAMILIES:
        of_family = rows[rows["case"].str.startswith(f"{family}-")]
        if len(of_family):
            parts += [f"### Hard cases: {family.replace('-', ' ')}", _hard_markdown(of_family, family)]
    rows = summary[summary["group"] == "sweep"]
    if len(rows):
        parts += ["### Dimension", _sweep_markdown(rows)]
    return [*parts, "### The flag", _flag_markdown(table)]


def _accuracy_markdown(summary: Table, quoted: bool) -> str:
    head = ["", "runs", "RMS error", "worst", "coverage", "width", "width, bounded", "floor", "floor's bias"]
    head += ["bias", "flagged", "s"]
    lines = []
    for _, row in summary.iterrows():
        lines.append(
            [
                f"{row['case']}, ε = {row['epsilon']:g}",
                str(row["runs"]),
                spread(row, "rms_error"),
                spread(row, "worst_error"),
                percent(row["coverage"]),
                optional(row["width_ratio_median"], ".2f"),
                optional(row["width_ratio_bounded_median"], ".2f"),
                f"{row['floor']:.2f}",
                f"{row['floor_bias']:.2f}",
                _bias_text(row),
                str(row["flagged"]),
                f"{row['seconds_median']:.1f}",
            ]
        )
    if quoted:
        label, values = QUOTED_ADULT
        lines += [[f"{label}, ε = {epsilon:g}", "", f"{value:g}", *[""] * 9] for epsilon, value in values.items()]
    return markdown_table(head, lines)


def _bias_text(row: "pd.Series[float]") -> str:
    if math.isnan(row["bias_worst"]):
        return "–"
    return f"{row['bias_worst']:+.2f} ± {row['bias_worst_error']:.2f}"


def gaussian_markdown(summary: Table, paper_page: Path) -> str:
    """Return the MMD from both starts, between exact draws, and of the paper's DP-HMC."""
    rows = summary[summary["group"] == "gaussian"]
    levels = sorted(rows["epsilon"].unique())
    labels = {"gaussian": "DP-Laplace, its own start", "gaussian-away": "DP-Laplace, one unit away in each coordinate"}
    lines = []
    for case, label in labels.items():
        found = {row["epsilon"]: row for _, row in rows[rows["case"] == case].iterrows()}
        if found:
            runs = "–".join(str(count) for count in sorted({row["runs"] for row in found.values()}))
            cells = [spread(found[level], "mmd") if level in found else "–" for level in levels]
            lines.append([label, runs, *cells])
    exact = [quantile(rows.loc[rows["epsilon"] == level, "mmd_exact_median"], 0.5) for level in levels]
    lines.append(["other exact draws: no run can be nearer", "", *map(number, exact)])
    paper = paper_medians(paper_page, "gaussian", "DP-HMC")
    cells = [number(paper[level]) if level in paper else "–" for level in levels]
    lines.append(["the paper's DP-HMC, tuned by hand (reproduction.md)", "", *cells])
    lines.append(["bar", "", *(f"{GAUSSIAN_MMD[level]:g}" if level in GAUSSIAN_MMD else "–" for level in levels)])
    return markdown_table(["", "runs", *(f"ε = {level:g}" for level in levels)], lines)


def _hard_markdown(summary: Table, family: str) -> str:
    levels = sorted(summary["epsilon"].unique())
    sizes = sorted({case.rsplit("-", 1)[1] for case in summary["case"]})
    head = ["", "n"]
    for level in levels:
        head += [f"ε = {level:g}: RMS error", "floor", "its bias", "coverage", "bias", "flagged"]
    lines = []
    for axis in AXES:
        for size in sizes:
            line = [axis, size]
            found = {row["epsilon"]: row for _, row in summary[summary["case"] == f"{family}-{axis}-{size}"].iterrows()}
            for level in levels:
                line += _hard_cells(found[level]) if level in found else ["–"] * 6
            if found:
                lines.append(line)
    return markdown_table(head, lines)


def _hard_cells(row: "pd.Series[float]") -> list[str]:
    flagged = share(row["flagged"], row["runs"])
    coverage = percent(row["coverage"])
    floors = [f"{row['floor']:.2f}", f"{row['floor_bias']:.2f}"]
    return [spread(row, "rms_error"), *floors, coverage, _bias_text(row), flagged]


def _sweep_markdown(summary: Table) -> str:
    levels = sorted(summary["epsilon"].unique())
    head = ["", "d"]
    for level in levels:
        head += [f"ε = {level:g}: RMS error", "reported", "coverage", "flagged", "missed", "false"]
    lines = []
    for family in ("logistic", "linear"):
        for size in ("20k", "100k"):
            for dimension in SWEEP_DIMENSIONS:
                name = f"{family}-d{dimension}-{size}"
                found = {row["epsilon"]: row for _, row in summary[summary["case"] == name].iterrows()}
                line = [f"{family}, n = {size}", str(dimension)]
                for level in levels:
                    line += _sweep_cells(found[level]) if level in found else ["–"] * 6
                if found:
                    lines.append(line)
    return markdown_table(head, lines)


def _sweep_cells(row: "pd.Series[float]") -> list[str]:
    flagged = share(row["flagged"], row["runs"])
    counts = [str(row["missed"]), str(row["false_alarms"])]
    reported, coverage = row["reported_median"], percent(row["coverage"])
    return [spread(row, "rms_error"), "–" if math.isnan(reported) else number(reported), coverage, flagged, *counts]


def _flag_markdown(table: Table) -> str:
    lines = []
    for group in table["group"].unique():
        rows = table[table["group"] == group]
        counts = flag_counts(rows)
        names = ("flagged", "refused", "wrong", "missed", "false_alarms")
        lines.append([group, str(len(rows)), *(str(counts[name]) for name in names)])
    return markdown_table(["", "runs", "flagged", "of them refused", "wrong", "missed", "false alarms"], lines)


# -------------------------------------------------------------------------------------------------- statements


def statements_of(table: Table) -> list[Statement]:
    """Check the bars."""
    summary = summarise(table) if len(table) else pd.DataFrame({"case": [], "group": []})
    return [
        *(statement for case in case_names("adult") for statement in adult_statements(summary, case)),
        *(gaussian_statement(summary, case) for case in case_names("gaussian")),
        hard_statement(summary),
        aside_statement(summary),
        flag_statement(table),
    ]


def adult_statements(summary: Table, case: str) -> list[Statement]:
    """Check error, coverage and width on one coding of Adult."""
    return [
        *accuracy_statements(summary, case),
        checked(
            f"{case}: median width of the intervals ≤ {LARGEST_WIDTH:g} × that of the floor",
            (
                (
                    f"ε = {row['epsilon']:g}: {row['width_ratio_median']:.2f}",
                    row["width_ratio_median"] <= LARGEST_WIDTH,
                )
                for _, row in summary[summary["case"] == case].iterrows()
            ),
        ),
    ]


def accuracy_statements(summary: Table, case: str) -> list[Statement]:
    """Check error and coverage on one coding of Adult."""
    rows = [row for _, row in summary[summary["case"] == case].iterrows()]
    bars = "/".join(f"{bar:g}" for bar in ADULT_RMS.values())
    return [
        checked(
            f"{case}: median RMS error ≤ {bars} reference sds at ε = 1/2/4",
            (
                (f"ε = {row['epsilon']:g}: {row['rms_error_median']:.2f}", row["rms_error_median"] <= bar)
                for row in rows
                if (bar := ADULT_RMS.get(row["epsilon"])) is not None
            ),
        ),
        checked(
            f"{case}: 90 % intervals hold the reference's mean for ≥ {percent(LOWEST_COVERAGE)} of coordinates",
            (
                (f"ε = {row['epsilon']:g}: {percent(row['coverage'], 1)}", row["coverage"] >= LOWEST_COVERAGE)
                for row in rows
            ),
        ),
    ]


def gaussian_statement(summary: Table, case: str) -> Statement:
    """Check the MMD from one start."""
    bars = "/".join(f"{bar:g}" for bar in GAUSSIAN_MMD.values())
    return checked(
        f"{case}: median MMD ≤ {bars} at ε = 2/4/8/15",
        (
            (f"ε = {row['epsilon']:g}: {row['mmd_median']:.3f}", row["mmd_median"] <= bar)
            for _, row in summary[summary["case"] == case].iterrows()
            if (bar := GAUSSIAN_MMD.get(row["epsilon"])) is not None
        ),
    )


def hard_statement(summary: Table) -> Statement:
    """Check the bias of the hard cases: no coordinate's may certainly exceed the bar."""
    rows = summary[summary["group"] == "hard"]
    tested = rows[rows["bias_worst"].notna()] if len(rows) else rows
    text = f"Hard cases: no coordinate is biased by {LARGEST_BIAS:g} reference sds or more where runs are not flagged"
    if not len(tested):
        return Statement(text, BAR, None, ())
    beyond = tested[tested["bias_at_least"] > LARGEST_BIAS]
    lines = [
        f"{len(tested)} of {len(rows)} cases × ε have {_FEWEST_RUNS} runs or more that were not flagged",
        f"certainly below in every coordinate: {int((tested['bias_at_most'] < LARGEST_BIAS).sum())}; certainly beyond "
        f"in some: {len(beyond)} (at {percent(_CERTAINTY, 1)} for each coordinate); the others: too few runs to tell",
    ]
    lines += [
        f"{row['case']}, ε = {row['epsilon']:g}: {_bias_text(row)}; the floor's {row['floor_bias']:.2f}; "
        f"{row['flagged']} of {row['runs']} flagged"
        for _, row in beyond.sort_values("bias_at_least", ascending=False).iterrows()
    ]
    return Statement(text, BAR, not len(beyond), tuple(lines))


def aside_statement(summary: Table) -> Statement:
    """Check coverage where nothing was tuned."""
    rows = summary[summary["group"] == "aside"]
    return checked(
        f"Data that nothing was tuned on: coverage ≥ {percent(LOWEST_COVERAGE)}",
        (
            (
                f"{row['case']}, ε = {row['epsilon']:g}: {percent(row['coverage'], 1)}",
                row["coverage"] >= LOWEST_COVERAGE,
            )
            for _, row in rows.iterrows()
        ),
    )


def flag_statement(table: Table) -> Statement:
    """Say whether every run of the sweep that went wrong was flagged."""
    rows = table[table["group"] == "sweep"]
    text = "Dimension sweep: no run is wrong (error > 2 × reported, or coverage < 60 %) without being flagged"
    if not len(rows):
        return Statement(text, BAR, None, ())
    counts = flag_counts(rows)
    line = (
        f"{len(rows)} runs: {counts['wrong']} wrong, {counts['missed']} of them missed; {counts['flagged']} flagged, "
        f"{counts['refused']} of them refused and {counts['false_alarms']} false alarms"
    )
    return Statement(text, BAR, counts["missed"] == 0, (line,))


# ------------------------------------------------------------------------------------------------------- files


def write_tables(folder: Path, table: Table, paper_page: Path) -> None:
    """Write the runs and the summary of them, as CSV, Parquet and Markdown."""
    tables.write_csv(folder / "results.csv", table)
    tables.write_parquet(folder / "results.parquet", table)
    tables.write_csv(folder / "summary.csv", summarise(table))
    head = ["# DP-Laplace against the posterior without noise", "Synthetic and public data, seeded runs: not private."]
    replace_file(folder / "summary.md", ("\n\n".join([*head, *sections(table, paper_page)]) + "\n").encode())
