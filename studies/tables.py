"""The results of a study as pandas tables: one row for each run, and medians with quartiles over the repeats.

Reads finished cells and writes files. It runs nothing.
"""

import importlib.util
import io
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd

from dpmcmc.output import replace_file
from studies import settings
from studies.cells import CaseCell, Cell, Result, read_row, read_row_of

Table: TypeAlias = pd.DataFrame
"""One row for each run, with the columns of :func:`columns`."""

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
_SYMBOLS = {"comparison": "ε", "clipping": "b"}
# How the columns of a written table are read again; all others are real numbers.
_TEXTS = [
    *("model", "sampler", "label", "in_paper", "accountant", "privacy", "dpmcmc", "jax", "commit"),
    *("case", "group", "method", "reasons", "errors"),  # of the studies of cases
    *("returned", "notes"),
    *("kind", "widenings"),
]
_WHOLE = [
    *("repeat", "iterations", "iterations_per_chain", "thin", "kept_draws", "num_records", "study_seed", "seed"),
    "dimension",
]
_QUANTILES = {"median": 0.5, "lower_quartile": 0.25, "upper_quartile": 0.75}


def columns(study: str) -> list[str]:
    """Return the names of the columns of a study's table."""
    return [*_FIRST, LEVELS[study], *_LAST]


def collect(folder: Path, study: str, num_records: int, seed: int) -> tuple[Table, list[Cell]]:
    """Return the table of all finished runs of a study and their cells, by model, algorithm, level and repeat."""
    found: list[tuple[Cell, Result]] = []
    for path in (folder / "cells").glob(f"{study}-*.json"):
        finished = read_row(path)
        if finished is not None and (finished[0].num_records, finished[0].seed) == (num_records, seed):
            found.append(finished)
    names = [*settings.ROWS, *settings.CLIPPING_ROWS]

    def place(item: tuple[Cell, Result]) -> tuple[int, int, float, int]:
        cell, _ = item
        return settings.MODELS.index(cell.model), names.index(cell.row), cell.level, cell.repeat

    found.sort(key=place)
    return pd.DataFrame([row for _, row in found], columns=columns(study)), [cell for cell, _ in found]


def collect_cases(folder: Path, kind: type[CaseCell], cases: Sequence[str], names: Sequence[str], seed: int) -> Table:
    """Return the table of all finished runs of a study of cases, in their order; ``names`` are those of its columns."""
    found: list[Result] = []
    for path in (folder / "cells").glob(f"{kind.study}-*.json"):
        finished = read_row_of(kind.from_dict, path)
        if finished is not None and finished[0].seed == seed and finished[0].case in cases:
            found.append(finished[1])
    found.sort(key=lambda row: (cases.index(str(row["case"])), row["epsilon"], row["repeat"]))
    return pd.DataFrame(found, columns=list(names))


def quantile(values: Iterable[float], probability: float) -> float:
    """Return a quantile in which a run without a value (a chain that diverged) counts as the worst."""
    array = np.array(list(values), np.float64)
    if not len(array):
        return math.nan
    array[np.isnan(array)] = math.inf
    return float(np.quantile(array, probability, method="linear" if np.all(np.isfinite(array)) else "higher"))


def summarise(table: Table, study: str) -> pd.DataFrame:
    """Return median and quartiles over the repeats, one row for each model, algorithm and level."""
    keys = ["model", "sampler", LEVELS[study]]
    groups = table.groupby(keys, sort=False)
    found = {
        "label": groups["label"].first(),
        "runs": groups.size(),
        "iterations_per_chain": groups["iterations_per_chain"].first(),
    }
    for measure in MEASURES:
        for name, probability in _QUANTILES.items():
            found[f"{measure}_{name}"] = groups[measure].agg(_known_quantile, probability)
    found["seconds"] = groups["seconds"].sum()
    return pd.DataFrame(found).reset_index()[["model", "sampler", "label", LEVELS[study], *list(found)[1:]]]


def _known_quantile(values: pd.Series, probability: float) -> float:
    """Return a quantile, or NaN if no run has a value: the algorithm has no such measure."""
    return quantile(values, probability) if values.notna().any() else math.nan


def quartiles(rows: Table, measures: Sequence[str]) -> dict[str, float]:
    """Return median and quartiles of measures; NaN of one that no run has."""
    return {
        f"{measure}_{name}": _known_quantile(rows[measure], probability)
        for measure in measures
        for name, probability in _QUANTILES.items()
    }


def median_of(table: Table, measure: str, **where: str | float) -> float:
    """Return the median of a measure over the rows with these values; NaN if there are none."""
    for name, value in where.items():
        table = table[table[name] == value]
    return quantile(table[measure], 0.5)


# ------------------------------------------------------------------------------------------------------ files


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV; what has no value is left empty."""
    replace_file(path, table.to_csv(index=False, lineterminator="\n").encode())


def read_csv(path: Path) -> Table:
    """Read what :func:`write_csv` wrote: texts as texts, numbers to the last digit, an empty number as NaN."""
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    for name in table.columns.difference(_TEXTS):
        # Not by `read_csv`, which in some versions of pandas gets the last digit wrong.
        table[name] = table[name].replace("", "nan").astype(int if name in _WHOLE else float)
    return table


def write_parquet(path: Path, table: pd.DataFrame) -> bool:
    """Write a table as Parquet if pyarrow is installed; return whether it is."""
    if importlib.util.find_spec("pyarrow") is None:
        return False
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    # Row by row, because pandas would add its own version to the file and turn NaN into null.
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table.to_dict("records")), buffer)
    replace_file(path, buffer.getvalue())
    return True


def markdown(table: Table, study: str, measure: str, model: str) -> str:
    """Return a table of median and quartiles: a line for each algorithm, a column for each level."""
    summary = summarise(table[table["model"] == model], study)
    levels = sorted(summary[LEVELS[study]].unique())
    lines = []
    for label, rows in summary.groupby("label", sort=False):
        counts = dict.fromkeys((rows["runs"].min(), rows["runs"].max()))
        cells = {row[LEVELS[study]]: _with_quartiles(row, measure) for row in rows.to_dict("records")}
        lines.append([label, "–".join(map(str, counts)), *(cells.get(level, "–") for level in levels)])
    return markdown_table(["", "runs", *(f"{_SYMBOLS[study]} = {level:g}" for level in levels)], lines)


def iterations_markdown(table: Table, study: str, model: str) -> str:
    """Return a table of the iterations of each chain."""
    table = table[table["model"] == model]
    levels = sorted(table[LEVELS[study]].unique())
    lines = []
    for label, rows in table.groupby("label", sort=False):
        counts = dict(zip(rows[LEVELS[study]], rows["iterations_per_chain"], strict=True))
        lines.append([label, *(f"{counts[level]:,}" if level in counts else "–" for level in levels)])
    return markdown_table(["", *(f"{_SYMBOLS[study]} = {level:g}" for level in levels)], lines)


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, numbers to the right."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *lines])


def _with_quartiles(row: dict[str, float], measure: str) -> str:
    """Write the median of a measure, and the quartiles if there is more than one run."""
    if math.isnan(row[f"{measure}_median"]):
        return "–"
    median, lower, upper = (number(row[f"{measure}_{name}"]) for name in _QUANTILES)
    return median if row["runs"] == 1 else f"{median} ({lower}–{upper})"


def number(value: float) -> str:
    """Write a measured value with three digits."""
    if not math.isfinite(value):
        return "diverged"
    return f"{value:.3g}" if abs(value) < 1e-3 else f"{value:.2f}" if abs(value) >= 10 else f"{value:.3f}"


def spread(row: "pd.Series[float]", measure: str) -> str:
    """Write median and quartiles of a row of a summary."""
    median, low, high = (row[f"{measure}_{name}"] for name in ("median", "lower_quartile", "upper_quartile"))
    if math.isnan(median):
        return "–"
    return number(median) if row["runs"] == 1 else f"{number(median)} ({number(low)}–{number(high)})"


def optional(value: float, form: str) -> str:
    """Write a number, or a dash if there is none."""
    return "–" if math.isnan(value) else format(value, form)


def percent(value: float, digits: int = 0) -> str:
    """Write a share of a whole as per cent."""
    return "–" if math.isnan(value) else f"{100.0 * value:.{digits}f} %"


def share(count: float, of: float) -> str:
    """Write how many of how many."""
    return f"{count:g} of {of:g}"


def paper_medians(page: Path, model: str, label: str) -> dict[float, float]:
    """Return the median MMD of a row of the paper's figure 1, by ε, from the page of the reproduction."""
    try:
        lines = page.read_text(encoding="utf-8").splitlines()
        head = next(place for place, line in enumerate(lines) if line.startswith(f"### {model}: MMD"))
        table = lines[head + 2 :]
        levels = [float(found) for found in re.findall(r"ε = ([\d.]+)", table[0])]
        row = next(line for line in table if line.startswith(f"| {label} |"))
        cells = [cell.split()[0] for cell in row.strip("| ").split(" | ")[2:]]
        return dict(zip(levels, map(float, cells), strict=True))
    except (OSError, StopIteration, ValueError, IndexError):
        return {}
