"""The results of the study of coverage: how often intervals hold what they should, by sampler and budget.

Reads finished cells and tables of them. It runs nothing.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from dpmcmc.output import replace_file
from studies import tables
from studies.cells import Result, read_row_of
from studies.coverage import CoverageCell
from studies.coverage_cases import KINDS, LEVELS, POSTERIOR, SAMPLERS
from studies.laplace_results import LOWEST_COVERAGE
from studies.statements import Statement, checked
from studies.tables import Table, markdown_table, number, optional, percent, quantile

COLUMNS = (
    "case",
    "sampler",
    "epsilon",
    "repeat",
    "num_records",
    "dimension",
    "truth_50",
    "truth_90",
    "mean_50",
    "mean_90",
    "width",
    "rms_error",
    "refused",
    "warned",
    "num_draws",
    "ess",
    "acceptance",
    "seconds",
    "processor_seconds",
    "method",
    "reasons",
    "returned",
    "errors",
    "study_seed",
    "seed",
    "privacy",
    "dpmcmc",
    "jax",
    "commit",
)
_NAMES = {POSTERIOR: "the posterior without noise", **SAMPLERS}
_WITH_SCALE = ("linear", "student")  # kinds whose last coordinate is the logarithm of the noise's scale
_FAR_OFF = 2.0  # widths: a mean that is farther off, on average over the coordinates, is missed if nothing was said
_FEWEST_RUNS = 20  # without a warning: of fewer, nothing is said about coverage
_ERRORS_ALLOWED = 3.0  # standard errors between the posterior without noise and what it promises


class Share(NamedTuple):
    """A share and its standard error over data sets.

    Attributes
    ----------
    value
        Mean over the data sets of the share of a data set's coordinates.
    error
        Sd of these shares / √(their number): coordinates of one data set are dependent, data sets are not. NaN of one.
    number
        Data sets.
    """

    value: float
    error: float
    number: int

    def __str__(self) -> str:
        if not self.number:
            return "–"
        return (
            percent(self.value, 1) if math.isnan(self.error) else f"{100 * self.value:.1f} ± {100 * self.error:.1f} %"
        )


def share_of(shares: "pd.Series[float]") -> Share:
    """Return the mean of the shares of data sets, and its standard error; a refused run has none and is left out."""
    values = shares.dropna().to_numpy(np.float64)
    if not len(values):
        return Share(math.nan, math.nan, 0)
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Share(float(values.mean()), error, len(values))


# ------------------------------------------------------------------------------------------------------ tables


def collect(folder: Path, seed: int) -> Table:
    """Return the table of all finished cells: by sampler, ε, kind and number."""
    found: list[Result] = []
    for path in (folder / "cells").glob(f"{CoverageCell.study}-*.json"):
        finished = read_row_of(CoverageCell.from_dict, path)
        if finished is not None and finished[0].seed == seed:
            found.append(finished[1])
    names = list(_NAMES)

    def place(row: Result) -> tuple[object, ...]:
        return names.index(str(row["sampler"])), row["epsilon"], KINDS.index(str(row["case"])), row["repeat"]

    found.sort(key=place)
    return pd.DataFrame(found, columns=list(COLUMNS))


def summarise(table: Table) -> Table:
    """Return one row for each sampler, ε and kind, and of all kinds together ("all")."""
    lines = []
    for (sampler, epsilon), of_sampler in table.groupby(["sampler", "epsilon"], sort=False):
        groups = {"all": of_sampler} | {case: of_sampler[of_sampler["case"] == case] for case in KINDS}
        for case, rows in groups.items():
            if len(rows):
                lines.append({"sampler": sampler, "epsilon": epsilon, "case": case} | _summary_of(rows))
    return pd.DataFrame(lines)


def _summary_of(rows: Table) -> dict[str, float]:
    line: dict[str, float] = {
        "runs": len(rows),
        "refused": int((rows["refused"] == 1.0).sum()),
        "warned": int((rows["warned"] == 1.0).sum()),
    }
    trusted = rows[(rows["warned"] == 0.0) & (rows["refused"] == 0.0)]
    for ending, part in {"": rows, "_not_warned": trusted}.items():
        for what in ("truth", "mean"):
            for level in LEVELS:
                found = share_of(part[f"{what}_{level}"])
                line |= {f"{what}_{level}{ending}": found.value, f"{what}_{level}{ending}_error": found.error}
    line["not_warned"] = len(trusted)
    line["missed"] = int((~(trusted["rms_error"] <= _FAR_OFF * trusted["width"])).sum())
    answered = rows[rows["refused"] == 0.0]
    line["width_median"] = quantile(answered["width"], 0.5)
    line["rms_error_median"] = quantile(answered["rms_error"], 0.5)
    line["ess_median"] = float(answered["ess"].median())
    line["processor_seconds_median"] = float(rows["processor_seconds"].median())
    return line


def _share(row: "pd.Series[float]", name: str, runs: float) -> Share:
    return Share(row[name], row[f"{name}_error"], int(runs))


def _label(row: "pd.Series[float]") -> str:
    label = _NAMES[str(row["sampler"])]
    return label if math.isinf(row["epsilon"]) else f"{label}, ε = {row['epsilon']:g}"


def sections(table: Table, paper_page: Path) -> list[str]:
    """Return titles and tables in Markdown. (``paper_page`` is for the other studies.)"""
    summary = summarise(table)
    return [
        "### Coverage",
        _coverage_markdown(summary[summary["case"] == "all"]),
        "### The true parameter in 90 % intervals, by kind of data set",
        _kinds_markdown(summary),
        "### Error of coefficients and of the noise's scale, in posterior sds: median – upper quartile",
        _scales_markdown(table),
        "### What the warnings were about",
        _reasons_markdown(table),
    ]


def _coverage_markdown(summary: Table) -> str:
    head = ["", "data sets", "refused", "warned", "truth in 50 %", "truth in 90 %", "mean in 50 %", "mean in 90 %"]
    head += ["width", "error", "not warned: truth in 50 %", "truth in 90 %", "missed", "ESS", "s"]
    lines = []
    for _, row in summary.iterrows():
        answered = row["runs"] - row["refused"]
        shares = [str(_share(row, f"{what}_{level}", answered)) for what in ("truth", "mean") for level in LEVELS]
        if row["sampler"] == POSTERIOR:
            shares[2:] = ["–", "–"]  # an interval holds its own mean
        trusted = [str(_share(row, f"truth_{level}_not_warned", row["not_warned"])) for level in LEVELS]
        counts = [f"{row[name]:g}" for name in ("runs", "refused", "warned")]
        middles = [number(row[name]) if answered else "–" for name in ("width_median", "rms_error_median")]
        ends = [
            f"{row['missed']:g}",
            optional(row["ess_median"], ".0f"),
            optional(row["processor_seconds_median"], ".1f"),
        ]
        lines.append([_label(row), *counts, *shares, *middles, *trusted, *ends])
    return markdown_table(head, lines)


def _kinds_markdown(summary: Table) -> str:
    kinds = [case for case in KINDS if (summary["case"] == case).any()]
    lines = []
    for _, rows in summary.groupby(["sampler", "epsilon"], sort=False):
        found = {row["case"]: row for _, row in rows.iterrows()}
        cells = []
        for case in kinds:
            row = found.get(case)
            if row is None:
                cells.append("–")
                continue
            counts = f"{row['warned']:g}" + (f" + {row['refused']:g} refused" if row["refused"] else "")
            cells.append(f"{_share(row, 'truth_90', row['runs'] - row['refused'])} ({counts})")
        lines.append([_label(rows.iloc[0]), *cells])
    return markdown_table(["(warned, in brackets)", *kinds], lines)


def _scales_markdown(table: Table) -> str:
    """Compare errors where the last coordinate is the logarithm of a scale: clipped scores shift it before others."""
    kinds = [case for case in _WITH_SCALE if (table["case"] == case).any()]
    lines = []
    for (sampler, epsilon), rows in table[table["sampler"] != POSTERIOR].groupby(["sampler", "epsilon"], sort=False):
        line = [f"{_NAMES[str(sampler)]}, ε = {epsilon:g}"]
        for case in kinds:
            texts = rows.loc[(rows["case"] == case) & (rows["errors"] != ""), "errors"]
            errors = np.array([[float(word) for word in text.split()] for text in texts])
            if not len(errors):
                line += ["–", "–"]
                continue
            of_coefficients = np.sqrt(np.mean(errors[:, :-1] ** 2, axis=1))
            for values in (of_coefficients, np.abs(errors[:, -1])):
                line.append(" – ".join(number(quantile(values, probability)) for probability in (0.5, 0.75)))
        lines.append(line)
    return markdown_table(["", *(f"{case}: {what}" for case in kinds for what in ("coefficients", "scale"))], lines)


_TOPICS = {
    "R̂": "R̂ is ",
    "few effective draws": "independent ones (at least",
    "chains that did not move": "did not move at all",
    "chains too short": "too short to judge",
    "low acceptance": "The acceptance rate is",
    "not finite": "infinite or not numbers",
    "clipping": "Clipping may have shifted",
    "noise": "rivacy noise",
    "curvature": "The curvature's noise",
    "another mode": "has another mode",
    "did not settle": "did not settle",
}
"""What a warning is about, by words that stand in it."""


def _reasons_markdown(table: Table) -> str:
    """Count warned runs by what their warnings were about; one run may have several."""
    warned = table[table["warned"] == 1.0]
    used = {
        topic: words for topic, words in _TOPICS.items() if warned["reasons"].str.contains(words, regex=False).any()
    }
    lines = []
    for (sampler, epsilon), rows in table[table["sampler"] != POSTERIOR].groupby(["sampler", "epsilon"], sort=False):
        reasons = rows.loc[rows["warned"] == 1.0, "reasons"]
        hits = {topic: reasons.str.contains(words, regex=False) for topic, words in used.items()}
        other = len(reasons) - int(pd.DataFrame(hits).any(axis=1).sum()) if len(reasons) else 0
        counts = [str(int(hit.sum())) for hit in hits.values()]
        lines.append([f"{_NAMES[str(sampler)]}, ε = {epsilon:g}", str(len(reasons)), *counts, str(other)])
    return markdown_table(["", "warned", *used, "something else only"], lines)


# -------------------------------------------------------------------------------------------------- statements


def statements_of(table: Table) -> list[Statement]:
    """Check the study itself, and the bar for coverage."""
    summary = summarise(table) if len(table) else pd.DataFrame(columns=["sampler", "case"])
    together = summary[summary["case"] == "all"]
    adaptive = together[together["sampler"].isin(["auto", "dp-laplace"])]
    chains = together[~together["sampler"].isin(["auto", "dp-laplace", POSTERIOR])]
    return [
        checked(
            "The posterior without noise: 50 % and 90 % intervals hold the true parameter as often as they say, to "
            f"{_ERRORS_ALLOWED:g} standard errors",
            _nominal(together[together["sampler"] == POSTERIOR]),
            by="a check of the study itself",
        ),
        checked(
            "auto and DPLaplace, runs without a warning: 90 % intervals hold the true parameter for ≥ "
            f"{percent(LOWEST_COVERAGE)} of coordinates",
            _trusted(adaptive),
        ),
        checked(
            "The same: 50 % and 90 % intervals hold the true parameter at least as often as they say, to "
            f"{_ERRORS_ALLOWED:g} standard errors",
            _at_least_nominal(adaptive),
        ),
        checked(
            f"Samplers with chains, where at least {_FEWEST_RUNS} runs have no warning: 90 % intervals hold the true "
            f"parameter for ≥ {percent(LOWEST_COVERAGE)} of coordinates",
            _trusted(chains),
        ),
        checked(
            "auto and DPLaplace, runs with a warning included: 90 % intervals hold the true parameter for ≥ "
            f"{percent(LOWEST_COVERAGE)} of coordinates",
            (
                (f"{_label(row)}: {found}", found.value >= LOWEST_COVERAGE)
                for _, row in adaptive.iterrows()
                if (found := _share(row, "truth_90", row["runs"] - row["refused"])).number
            ),
        ),
    ]


def _nominal(rows: Table) -> Iterator[tuple[str, bool]]:
    for _, row in rows.iterrows():
        for level in LEVELS:
            found = _share(row, f"truth_{level}", row["runs"])
            if not math.isnan(found.error):
                holds = abs(found.value - level / 100.0) <= _ERRORS_ALLOWED * found.error
                yield f"{level} %: {found}, {found.number} data sets", holds


def _trusted(rows: Table) -> Iterator[tuple[str, bool]]:
    for _, row in rows.iterrows():
        found = _share(row, "truth_90_not_warned", row["not_warned"])
        if found.number >= _FEWEST_RUNS:
            yield f"{_label(row)}: {found}, {found.number} runs", found.value >= LOWEST_COVERAGE


def _at_least_nominal(rows: Table) -> Iterator[tuple[str, bool]]:
    for _, row in rows.iterrows():
        for level in LEVELS:
            found = _share(row, f"truth_{level}_not_warned", row["not_warned"])
            if found.number >= _FEWEST_RUNS:
                holds = found.value >= level / 100.0 - _ERRORS_ALLOWED * found.error
                yield f"{_label(row)}, {level} %: {found}, {found.number} runs", holds


# ------------------------------------------------------------------------------------------------------- files


def write_tables(folder: Path, table: Table) -> None:
    """Write the runs and the summary of them, as CSV, Parquet and Markdown."""
    tables.write_csv(folder / "results.csv", table)
    tables.write_parquet(folder / "results.parquet", table)
    tables.write_csv(folder / "summary.csv", summarise(table))
    head = ["# What intervals hold", "Synthetic data, seeded runs: not private."]
    replace_file(folder / "summary.md", ("\n\n".join([*head, *sections(table, folder)]) + "\n").encode())
