"""The results of the study of ``auto``: tables, and what they say about the bars that were set beforehand.

Reads finished cells and tables of them. It runs nothing.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpmcmc.output import replace_file
from studies import settings, tables
from studies.auto import EPSILONS, AutoCell
from studies.auto_cases import case_names
from studies.cells import cells_of_cases
from studies.laplace_results import accuracy_statements
from studies.statements import BAR, Statement, checked
from studies.tables import Table, markdown_table, number, optional, paper_medians, percent, quantile, quartiles, spread

COLUMNS = (
    "case",
    "group",
    "epsilon",
    "repeat",
    "num_records",
    "dimension",
    "mmd",
    "mmd_exact",
    "rms_error",
    "worst_error",
    "sd_ratio",
    "sd_worst",
    "mass",
    "coverage",
    "returned",
    "flagged",
    "refused",
    "releases",
    "num_draws",
    "ess",
    "mu",
    "seconds",
    "processor_seconds",
    "method",
    "reasons",
    "notes",
    "study_seed",
    "seed",
    "privacy",
    "dpmcmc",
    "jax",
    "commit",
)
MMD_BARS = {
    "banana": {2.0: 0.025, 4.0: 0.025, 8.0: 0.025, 15.0: 0.022},
    "gaussian": {2.0: 0.05, 4.0: 0.028, 8.0: 0.02, 15.0: 0.02},
}
"""Median MMD on the paper's models, by ε."""
BAD_MMD, GOOD_MMD = 0.1, 0.05
"""From here on a run is bad, and up to here it is good: a flag there is a false alarm."""
MOST_MISSED = 1.0 / 20.0
"""Share of runs that may be bad without being flagged, on the shapes."""
LEAST_MASS, MOST_MASS = 0.87, 0.93
"""What the 90 % intervals may hold of the exact posterior."""
LARGEST_ERROR, LARGEST_SD_ERROR = 0.15, 0.05
"""With a million records: of the means, in exact sds, and of the sds, relative."""
COLD_SECONDS = 30.0
RETURNED_BEGIN, RETURNED_END = "<!-- returned: begin -->", "<!-- returned: end -->"
"""What stands between these in docs/auto.md is shown by docs/samplers.md, too."""
_KINDS = {"a Gaussian": "Gaussian", "a curved surrogate": "surrogate", "a chain": "chain"}
"""What `auto` returns, as `posterior.quality.method` begins after "auto: ", and the titles of columns."""

_QUARTILES = (
    "mmd",
    "mmd_exact",
    "rms_error",
    "worst_error",
    "sd_ratio",
    "sd_worst",
    "mass",
    "releases",
    "ess",
    "ess_per_mu",
    "processor_seconds",
)


# ------------------------------------------------------------------------------------------------------ tables


def collect(folder: Path, seed: int) -> Table:
    """Return the table of all finished runs, in the order of the cases."""
    return tables.collect_cases(folder, AutoCell, case_names(), COLUMNS, seed)


def cells_of(names: Sequence[str], epsilons: Sequence[float] | None, repeats: int, seed: int) -> list[AutoCell]:
    """Return the cells of these cases: at these budgets, or at those of each case's group."""
    groups = {name: EPSILONS[group] for group in EPSILONS for name in case_names(group)}
    return cells_of_cases(AutoCell, names, epsilons, groups, repeats, seed)


def bad(table: Table) -> "pd.Series[bool]":
    """Return which runs gave draws that are far from the posterior, or not finite; refused ones gave none."""
    return (table["refused"] == 0.0) & ~(table["mmd"] <= BAD_MMD)


def missed(table: Table) -> "pd.Series[bool]":
    """Return which runs are bad and were not flagged."""
    return bad(table) & (table["flagged"] == 0.0)


def false_alarms(table: Table) -> "pd.Series[bool]":
    """Return which runs are good and were flagged."""
    return (table["flagged"] == 1.0) & (table["mmd"] < GOOD_MMD)


def summarise(table: Table) -> Table:
    """Return one row for each case and ε: medians and quartiles, and what became of the flag."""
    lines = []
    for (case, epsilon), rows in table.groupby(["case", "epsilon"], sort=False):
        first = rows.iloc[0]
        line: dict[str, object] = {"case": case, "group": first["group"], "epsilon": epsilon}
        line |= {"num_records": first["num_records"], "dimension": first["dimension"], "runs": len(rows)}
        line |= quartiles(rows[rows["refused"] == 0.0].assign(ess_per_mu=rows["ess"] / rows["mu"]), _QUARTILES)
        line["mmd_worst"] = quantile(rows.loc[rows["refused"] == 0.0, "mmd"], 1.0)
        line["mass"], line["coverage"] = float(rows["mass"].mean()), float(rows["coverage"].mean())
        line["returned"] = ", ".join(f"{name} {count}" for name, count in rows["returned"].value_counts().items())
        line |= flag_counts(rows)
        line["method"] = first["method"]
        lines.append(line)
    return pd.DataFrame(lines)


def flag_counts(rows: Table) -> dict[str, int]:
    """Return how many runs were flagged, refused, bad, bad and not flagged (missed), good and flagged (false)."""
    return {
        "flagged": int((rows["flagged"] == 1.0).sum()),
        "refused": int((rows["refused"] == 1.0).sum()),
        "bad": int(bad(rows).sum()),
        "missed": int(missed(rows).sum()),
        "false_alarms": int(false_alarms(rows).sum()),
    }


# ---------------------------------------------------------------------------------------------------- markdown


def sections(table: Table, paper_page: Path) -> list[str]:
    """Return titles and tables in Markdown, for the parts of the study that were run."""
    summary = summarise(table)
    parts: list[str] = []
    for case in case_names("paper"):
        if (summary["case"] == case).any():
            parts += [f"### {case}: MMD, median (quartiles)", paper_markdown(summary, case, paper_page)]
    titles = {
        "paper": "The paper's models: intervals, flags and costs",
        "adult": "Adult, logistic regression",
        "large": "A million records, logistic regression",
    }
    for group, title in titles.items():
        rows = summary[summary["group"] == group]
        if len(rows):
            parts += [f"### {title}", _accuracy_markdown(rows)]
    rows = summary[summary["group"] == "shapes"]
    if len(rows):
        parts += ["### Shapes that the surrogate was not made for", _shapes_markdown(rows)]
    rows = summary[summary["group"] == "chains"]
    if len(rows):
        parts += ["### Chains: `exact=True`, and the paper's DP-HMC", _chains_markdown(rows)]
    parts += ["### What was returned, by case", f"{RETURNED_BEGIN}\n\n{returned_markdown(table)}\n\n{RETURNED_END}"]
    return [*parts, "### The flag, by what was returned", _flag_markdown(table), *_missed_markdown(table)]


def paper_markdown(summary: Table, case: str, paper_page: Path) -> str:
    """Return the MMD of ``auto``, of exact draws and of the paper's samplers, which are quoted from their page."""
    rows = summary[summary["case"] == case]
    found = {row["epsilon"]: row for _, row in rows.iterrows()}
    levels = sorted(found)
    runs = "–".join(str(count) for count in sorted({row["runs"] for row in found.values()}))
    lines = [["auto", runs, *(spread(found[level], "mmd") for level in levels)]]
    lines.append(["other exact draws", runs, *(spread(found[level], "mmd_exact") for level in levels)])
    for row in settings.ROWS.values():
        if row.in_paper:
            medians = paper_medians(paper_page, case, row.label)
            cells = [number(medians[level]) if level in medians else "–" for level in levels]
            lines.append([f"{row.label}, tuned by hand (reproduction.md)", "10" if medians else "", *cells])
    bars = MMD_BARS[case]
    lines.append(["bar", "", *(f"{bars[level]:g}" if level in bars else "–" for level in levels)])
    return markdown_table(["", "runs", *(f"ε = {level:g}" for level in levels)], lines)


def _chains_markdown(summary: Table) -> str:
    """Return how near exact chains come, and how many effective draws a unit of μ buys."""
    head = ["", "runs", "MMD", "exact draws", "RMS error", "sd ratio", "smallest ESS", "ESS / μ", "flagged"]
    lines = [
        [
            f"{row['case']}, ε = {row['epsilon']:g}",
            str(row["runs"]),
            *(spread(row, measure) for measure in ("mmd", "mmd_exact", "rms_error")),
            optional(row["sd_ratio_median"], ".2f"),
            *(optional(row[f"{name}_median"], ".0f") for name in ("ess", "ess_per_mu")),
            str(row["flagged"]),
        ]
        for _, row in summary.iterrows()
    ]
    return markdown_table(head, lines)


def _accuracy_markdown(summary: Table) -> str:
    head = ["", "runs", "MMD", "RMS error", "worst error", "sd ratio", "worst", "mass", "coverage"]
    head += ["returned", "flagged", "releases", "s"]
    lines = []
    for _, row in summary.iterrows():
        lines.append(
            [
                f"{row['case']}, ε = {row['epsilon']:g}",
                str(row["runs"]),
                *(spread(row, measure) for measure in ("mmd", "rms_error")),
                *(optional(row[f"{name}_median"], ".2f") for name in ("worst_error", "sd_ratio", "sd_worst")),
                optional(row["mass"], ".3f"),
                percent(row["coverage"]),
                row["returned"],
                str(row["flagged"]),
                optional(row["releases_median"], ".0f"),
                optional(row["processor_seconds_median"], ".1f"),
            ]
        )
    return markdown_table(head, lines)


def _shapes_markdown(summary: Table) -> str:
    head = ["", "n", "d", "ε", "runs", "MMD", "worst", "exact", "mass", "returned", "flagged", "missed", "false", "s"]
    lines = []
    for _, row in summary.iterrows():
        lines.append(
            [
                row["case"],
                f"{row['num_records']:,}",
                str(row["dimension"]),
                f"{row['epsilon']:g}",
                str(row["runs"]),
                spread(row, "mmd"),
                "–" if math.isnan(row["mmd_worst"]) else number(row["mmd_worst"]),
                optional(row["mmd_exact_median"], ".3f"),
                optional(row["mass"], ".2f"),
                row["returned"],
                *(str(row[name]) for name in ("flagged", "missed", "false_alarms")),
                optional(row["processor_seconds_median"], ".1f"),
            ]
        )
    return markdown_table(head, lines)


def returned_markdown(table: Table) -> str:
    """Return what ``auto`` returned on each case, how often, and whether it was flagged; all budgets together."""
    head = ["", "n", "d", "ε", "runs", *_KINDS.values(), "refused", "flagged", "missed"]
    own = table["returned"].str.startswith("auto: ") | (table["refused"] == 1.0)  # else it is a sampler of the paper
    lines = []
    for case, rows in table[own].groupby("case", sort=False):
        counts = flag_counts(rows)
        kinds = (int(rows["returned"].str.startswith(f"auto: {kind}").sum()) for kind in _KINDS)
        levels = "–".join(f"{level:g}" for level in sorted({rows["epsilon"].min(), rows["epsilon"].max()}))
        line = [str(case), f"{rows['num_records'].iloc[0]:,}", str(rows["dimension"].iloc[0]), levels, str(len(rows))]
        line += [str(count or "") for count in (*kinds, counts["refused"])]
        lines.append([*line, str(counts["flagged"]), str(counts["missed"])])
    return markdown_table(head, lines)


def _flag_markdown(table: Table) -> str:
    names = ("flagged", "refused", "bad", "missed", "false_alarms")
    lines = []
    for returned in [*sorted(table["returned"].unique()), None]:
        rows = table if returned is None else table[table["returned"] == returned]
        counts = flag_counts(rows)
        lines.append(
            ["total" if returned is None else returned, str(len(rows)), *(str(counts[name]) for name in names)]
        )
    head = ["", "runs", "flagged", "of them refused", f"MMD > {BAD_MMD:g}", "of them missed"]
    return markdown_table([*head, f"flagged, MMD < {GOOD_MMD:g}"], lines)


def _missed_markdown(table: Table) -> list[str]:
    rows = table[missed(table)]
    if not len(rows):
        return []
    lines = [
        [f"{row['case']}, ε = {row['epsilon']:g}, repeat {row['repeat'] + 1}", row["returned"], number(row["mmd"])]
        for _, row in rows.iterrows()
    ]
    return ["### Bad and not flagged", markdown_table(["", "returned", "MMD"], lines)]


# -------------------------------------------------------------------------------------------------- statements


def statements_of(table: Table, cold: dict[str, float]) -> list[Statement]:
    """Check the bars; ``cold`` has the seconds of cold starts by case."""
    summary = summarise(table) if len(table) else pd.DataFrame({"case": [], "group": [], "epsilon": []})
    return [
        *(mmd_statement(summary, case) for case in MMD_BARS),
        paper_flag_statement(table),
        mass_statement(summary),
        *accuracy_statements(summary, "adult"),
        large_statement(summary),
        shapes_statement(table),
        checked(
            f"A cold start takes at most {COLD_SECONDS:g} seconds",
            ((f"{case}: {seconds:.1f} s", seconds <= COLD_SECONDS) for case, seconds in cold.items()),
        ),
    ]


def mmd_statement(summary: Table, case: str) -> Statement:
    """Check the median MMD on one of the paper's models."""
    bars = MMD_BARS[case]
    texts = ("/".join(f"{value:g}" for value in values) for values in (bars.values(), bars))
    return checked(
        f"{case}: median MMD ≤ {next(texts)} at ε = {next(texts)}",
        (
            (f"ε = {row['epsilon']:g}: {row['mmd_median']:.3f}", row["mmd_median"] <= bars[row["epsilon"]])
            for _, row in summary[summary["case"] == case].iterrows()
            if row["epsilon"] in bars
        ),
    )


def paper_flag_statement(table: Table) -> Statement:
    """Check that no run on the paper's models is bad without being flagged."""
    rows = table[table["group"] == "paper"]
    return checked(
        f"The paper's models: no run has an MMD > {BAD_MMD:g} without a flag",
        ((f"{case}: {missed(own).sum()} of {len(own)}", not missed(own).any()) for case, own in rows.groupby("case")),
    )


def mass_statement(summary: Table) -> Statement:
    """Check what the intervals hold on the paper's models."""
    return checked(
        f"The paper's models: 90 % intervals hold {LEAST_MASS:g} to {MOST_MASS:g} of the exact mass, on average",
        (
            (f"{row['case']}, ε = {row['epsilon']:g}: {row['mass']:.3f}", LEAST_MASS <= row["mass"] <= MOST_MASS)
            for _, row in summary[summary["group"] == "paper"].iterrows()
        ),
    )


def large_statement(summary: Table) -> Statement:
    """Check means and sds with a million records, of the coordinate that is worst, in the median run."""
    return checked(
        f"A million records: means within {LARGEST_ERROR:g} sds, sds within {percent(LARGEST_SD_ERROR)}",
        (
            (
                f"ε = {row['epsilon']:g}: mean {row['worst_error_median']:.3f}, sd × {row['sd_worst_median']:.3f}",
                row["worst_error_median"] <= LARGEST_ERROR and abs(row["sd_worst_median"] - 1.0) <= LARGEST_SD_ERROR,
            )
            for _, row in summary[summary["group"] == "large"].iterrows()
        ),
    )


def shapes_statement(table: Table) -> Statement:
    """Check that bad answers are flagged on the shapes."""
    rows = table[table["group"] == "shapes"]
    text = f"Shapes: an MMD > {BAD_MMD:g} without a flag in at most 1 run of {1.0 / MOST_MISSED:g}"
    if not len(rows):
        return Statement(text, BAR, None, ())
    counts = flag_counts(rows)
    line = (
        f"{rows['case'].nunique()} shapes, {len(rows)} runs: {counts['bad']} bad, {counts['missed']} of them missed; "
        f"{counts['flagged']} flagged, {counts['refused']} of them refused and {counts['false_alarms']} false alarms "
        f"(MMD < {GOOD_MMD:g})"
    )
    return Statement(text, BAR, counts["missed"] <= MOST_MISSED * len(rows), (line,))


# ------------------------------------------------------------------------------------------------------- files


def write_tables(folder: Path, table: Table, paper_page: Path) -> None:
    """Write the runs and the summary of them, as CSV, Parquet and Markdown."""
    tables.write_csv(folder / "results.csv", table)
    tables.write_parquet(folder / "results.parquet", table)
    tables.write_csv(folder / "summary.csv", summarise(table))
    head = ["# The default sampler against exact posteriors", "Synthetic and public data, seeded runs: not private."]
    replace_file(folder / "summary.md", ("\n\n".join([*head, *sections(table, paper_page)]) + "\n").encode())
