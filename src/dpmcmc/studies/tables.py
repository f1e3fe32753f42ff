"""The results of a study as tables: every run in one row, and medians with quartiles of the repeats.

Reads finished cells and writes files. It runs nothing.
"""

import csv
import importlib.util
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmcmc.output import replace_file
from dpmcmc.studies import settings
from dpmcmc.studies.cells import Cell, read_row

Table = list[dict[str, Any]]

MEASURES = {
    "mmd": "MMD",
    "mean_error": "Mean error",
    "max_r_hat": "Largest split R̂",
    "acceptance": "Acceptance",
    "ratios_clipped": "Clipped log-ratios",
    "gradients_clipped": "Clipped gradients",
}
"""What is measured of each run, and what to call it."""

_FIRST = ("model", "sampler", "label", "in_paper", "accountant", "temperature")
_LAST = (
    "repeat",
    *MEASURES,
    "iterations",
    "iterations_per_chain",
    "thin",
    "kept_draws",
    "seconds",
    "seconds_sampling",
    "num_records",
    "study_seed",
    "seed",
    "privacy",
    "dpmcmc",
    "jax",
    "commit",
)
LEVELS = {"comparison": "epsilon", "clipping": "bound"}
"""What each study varies."""


def columns(study: str) -> list[str]:
    """Return the names of the columns of a study's table."""
    return [*_FIRST, LEVELS[study], *_LAST]


def collect(folder: Path, study: str, num_records: int, seed: int) -> tuple[Table, list[Cell]]:
    """Return the rows and cells of all finished runs of a study, in the order of models, algorithms and levels."""
    found = []
    for path in (folder / "cells").glob(f"{study}-*.json"):
        finished = read_row(path)
        if finished is not None and (finished[0].num_records, finished[0].seed) == (num_records, seed):
            found.append(finished)
    names = [*settings.ROWS, *settings.CLIPPING_ROWS]

    def place(item: tuple[Cell, dict[str, Any]]) -> tuple[Any, ...]:
        cell = item[0]
        return settings.MODELS.index(cell.model), names.index(cell.row), cell.level, cell.repeat

    found.sort(key=place)
    return [{name: row[name] for name in columns(study)} for _, row in found], [cell for cell, _ in found]


def quantile(values: Iterable[float], probability: float) -> float:
    """Return a quantile in which a run without a value (a chain that diverged) counts as the worst."""
    array = np.array([math.inf if math.isnan(value) else value for value in values], np.float64)
    if not len(array):
        return math.nan
    return float(np.quantile(array, probability, method="linear" if np.all(np.isfinite(array)) else "higher"))


def summarise(table: Table, study: str) -> Table:
    """Return median and quartiles over the repeats, for every model, algorithm and level."""
    groups: dict[tuple[Any, ...], Table] = {}
    for row in table:
        groups.setdefault((row["model"], row["sampler"], row[LEVELS[study]]), []).append(row)
    summary = []
    for (model, sampler, level), rows in groups.items():
        line = {"model": model, "sampler": sampler, "label": rows[0]["label"], LEVELS[study]: level}
        line |= {"runs": len(rows), "iterations_per_chain": rows[0]["iterations_per_chain"]}
        for name in MEASURES:
            values = [row[name] for row in rows]
            known = not all(map(math.isnan, values))
            for suffix, probability in (("median", 0.5), ("lower_quartile", 0.25), ("upper_quartile", 0.75)):
                line[f"{name}_{suffix}"] = quantile(values, probability) if known else math.nan
        line["seconds"] = sum(row["seconds"] for row in rows)
        summary.append(line)
    return summary


def median_of(table: Table, measure: str, **where: Any) -> float:
    """Return the median of a measure over the rows with these values; NaN if there are none."""
    chosen = [row[measure] for row in table if all(row[name] == value for name, value in where.items())]
    return quantile(chosen, 0.5)


# ------------------------------------------------------------------------------------------------------ files


def write_csv(path: Path, table: Table) -> None:
    """Write a table as CSV; what has no value is left empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(table[0]), lineterminator="\n")
    writer.writeheader()
    for row in table:
        writer.writerow({name: "" if _missing(value) else value for name, value in row.items()})
    replace_file(path, text.getvalue().encode())


def write_parquet(path: Path, table: Table) -> bool:
    """Write a table as Parquet if pyarrow is installed; return whether it is."""
    if importlib.util.find_spec("pyarrow") is None:
        return False
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), buffer)
    replace_file(path, buffer.getvalue())
    return True


def markdown(table: Table, study: str, measure: str, model: str) -> str:
    """Return a table of median and quartiles: a line for each algorithm, a column for each level."""
    rows = [row for row in summarise(table, study) if row["model"] == model]
    level, levels = LEVELS[study], sorted({row[LEVELS[study]] for row in rows})
    symbol = "ε" if study == "comparison" else "b"
    lines = []
    for label in dict.fromkeys(row["label"] for row in rows):
        cells = {row[level]: row for row in rows if row["label"] == label}
        runs = sorted({row["runs"] for row in cells.values()})
        counted = "–".join(str(number) for number in dict.fromkeys((runs[0], runs[-1])))
        lines.append([label, counted, *(_with_quartiles(cells.get(value), measure) for value in levels)])
    return markdown_table(["", "runs", *(f"{symbol} = {value:g}" for value in levels)], lines)


def iterations_markdown(table: Table, study: str, model: str) -> str:
    """Return a table of the iterations of each chain."""
    rows = [row for row in table if row["model"] == model]
    level, levels = LEVELS[study], sorted({row[LEVELS[study]] for row in rows})
    lines = []
    for label in dict.fromkeys(row["label"] for row in rows):
        counts = {row[level]: row["iterations_per_chain"] for row in rows if row["label"] == label}
        lines.append([label, *(f"{counts[value]:,}" if value in counts else "–" for value in levels)])
    symbol = "ε" if study == "comparison" else "b"
    return markdown_table(["", *(f"{symbol} = {value:g}" for value in levels)], lines)


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, numbers to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def _with_quartiles(row: dict[str, Any] | None, measure: str) -> str:
    if row is None or _missing(row[f"{measure}_median"]):
        return "–"
    median, lower, upper = (number(row[f"{measure}_{name}"]) for name in ("median", "lower_quartile", "upper_quartile"))
    return median if row["runs"] == 1 else f"{median} ({lower}–{upper})"


def number(value: float) -> str:
    """Write a measured value with three digits."""
    if not math.isfinite(value):
        return "diverged"
    return f"{value:.3g}" if abs(value) < 1e-3 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def _missing(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
