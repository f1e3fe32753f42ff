"""The pages on the studies: finished ones are written into a page between two markers.

The text around the markers is written by hand and left alone; what stands between them comes from results alone.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpmcmc.errors import QueryError
from dpmcmc.output import OutputError, replace_file
from studies import auto_results, coverage_results, curve_results, laplace_results, tables
from studies.coverage_cases import POSTERIOR
from studies.tables import Table

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
ROW_BEGIN, ROW_END = "<!-- auto: begin -->", "<!-- auto: end -->"
"""Where the page of the reproduction shows the default sampler in the paper's experiment."""
_FIGURES = {
    "figure1": "Figure 1. MMD and mean error against ε. Boxes: quartiles; whiskers: all runs; dots: single runs.",
    "figure1_full_banana": "Figure 1 in full, banana. Dotted: R̂ = 1.05; the guideline of 20 %.",
    "figure1_full_gaussian": "Figure 1 in full, Gaussian.",
    "figure1_variants": "Temperatures and accountants of the minibatch samplers. Diamonds: a single run, empty under "
    "the tight accountant.",
    "figure2": "Figure 2. The banana's posterior at ε = 15: marginals, and regions of 50 and 90 %, of the best, median "
    "and worst run by MMD.",
    "figure3": "Figure 3. Clipping without noise: MMD against the bound and against the fraction clipped.",
    "laplace_accuracy": "Error against ε: dots are runs, lines go through the medians, dotted lines are the floor (one "
    "score sum with the whole budget), dashes the bars.",
    "auto_mmd": "MMD against ε: dots are runs, lines go through the medians, dashes are the bars.",
    "auto_shapes": "Draws of one run each over exact ones, first two coordinates.",
    "curve_band": "Widths of intervals, a dot for each run, over the planned bands from benign data (line) to skewed "
    "ones. What is wider than five times is drawn at five.",
    "laplace_dimension": "Error of the mean and reported sd against the dimension, medians over the runs.",
}
_SHOWN = {
    "comparison": ("mmd", "mean_error", "max_r_hat", "acceptance", "ratios_clipped", "gradients_clipped"),
    "clipping": ("mmd", "ratios_clipped", "max_r_hat"),
}


def write_page(folders: Sequence[Path], page: Path) -> list[Path]:
    """Write finished studies into a page; return the files written."""
    try:
        text = page.read_text(encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot read {str(page)!r} ({error.strerror}); give a page with the markers") from None
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise QueryError(f"{str(page)!r} does not have one line {BEGIN} and after it one line {END}; add them")
    pictures = page.parent / page.stem
    parts, written = [], []
    for folder in folders:
        study, table = read_table(folder)
        parts.append(_cases_section(folder, study, table, page) if "case" in table else _section(folder, study, table))
        for name, caption in _FIGURES.items():
            if (folder / f"{name}.png").exists():
                pictures.mkdir(exist_ok=True)
                for ending in ("png", "pdf"):
                    written.append(pictures / f"{name}.{ending}")
                    shutil.copyfile(folder / f"{name}.{ending}", written[-1])
                link = f"{pictures.name}/{name}"
                parts.append(f"![{caption}]({link}.png)\n\n{caption} ([PDF]({link}.pdf))")
        if study == "auto":
            written += _write_row(page, table)
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    replace_file(page, ("\n\n".join([before, *parts, after])).encode())
    return [page, *written]


def _write_row(page: Path, table: Table) -> list[Path]:
    """Put the default sampler's row into the page of the reproduction beside, if that has a place for it."""
    other = page.parent / "reproduction.md"
    text = other.read_text(encoding="utf-8") if other.exists() else ""
    if text.count(ROW_BEGIN) != 1 or text.count(ROW_END) != 1 or other == page:
        return []
    summary = auto_results.summarise(table)
    parts = [
        f"**{case}**: MMD, median (quartiles)\n\n{auto_results.paper_markdown(summary, case, other)}"
        for case in auto_results.MMD_BARS
        if (summary["case"] == case).any()
    ]
    link = f"{page.stem}/auto_mmd"
    parts.append(f"![{_FIGURES['auto_mmd']}]({link}.png)\n\n{_FIGURES['auto_mmd']} ([PDF]({link}.pdf))")
    before, after = text[: text.index(ROW_BEGIN) + len(ROW_BEGIN)], text[text.index(ROW_END) :]
    replace_file(other, "\n\n".join([before, *parts, after]).encode())
    return [other]


def read_table(folder: Path) -> tuple[str, Table]:
    """Return which study a folder holds, and its table."""
    try:
        table = tables.read_csv(folder / "results.csv")
    except OSError as error:
        raise QueryError(
            f"{str(folder)!r} has no results.csv ({error.strerror}); give a folder that `python -m studies` has written"
        ) from None
    marks = {
        "widening": "curve",
        "truth_90": "coverage",
        "returned": "auto",
        "case": "laplace",
        "epsilon": "comparison",
    }
    return next((study for column, study in marks.items() if column in table), "clipping"), table


def _section(folder: Path, study: str, table: Table) -> str:
    """Return the results of one study as Markdown."""
    parts = [f"## Results: {study}", _provenance(folder, table), "### Statements", _statements(folder)]
    for model in table["model"].unique():
        for measure in _SHOWN[study]:
            parts.append(f"### {model}: {tables.MEASURES[measure]}, median (quartiles)")
            parts.append(tables.markdown(table, study, measure, model))
        parts += [f"### {model}: iterations of each chain", tables.iterations_markdown(table, study, model)]
    parts += ["### Where the time went", _times(table)]
    return "\n\n".join(parts)


def _cases_section(folder: Path, study: str, table: Table, page: Path) -> str:
    """Return the results of a study of cases as Markdown."""
    runs = table[table["sampler"] != POSTERIOR] if study == "coverage" else table
    parts = ["## Results", _provenance(folder, runs), "### Statements", _statements(folder)]
    sections = {
        "auto": auto_results.sections,
        "coverage": coverage_results.sections,
        "curve": curve_results.sections,
    }.get(study, laplace_results.sections)
    return "\n\n".join([*parts, *sections(table, page.parent / "reproduction.md")])


def _provenance(folder: Path, table: Table) -> str:
    def listed(name: str) -> str:
        return ", ".join(str(value) for value in table[name].unique() if value != "") or "unknown"

    invocations = [json.loads(line) for line in (folder / "invocations.jsonl").read_text().splitlines()]
    hours = sum(entry["seconds"] for entry in invocations) / 3600.0
    work = table["seconds"].sum() / 3600.0
    return (
        f"{len(table)} runs of {_range(table['num_records'])} records, study seed {listed('study_seed')}; "
        f"{listed('privacy')}. Commit {listed('commit')}, "
        f"dpmcmc {listed('dpmcmc')}, jax {listed('jax')}. Wall-clock time {hours:.2f} h in {len(invocations)} "
        f"invocation{'s' if len(invocations) > 1 else ''}; the runs add up to {work:.2f} core hours."
    )


def _range(counts: "pd.Series[int]") -> str:
    values = sorted(counts.unique())
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _statements(folder: Path) -> str:
    parts = []
    for statement in json.loads((folder / "statements.json").read_text(encoding="utf-8")):
        parts.append(f"**{statement['verdict'].capitalize()}**: {statement['text']} ({statement['by']}).\n")
        parts += [f"- {line}" for line in statement["numbers"]]
        parts.append("")
    return "\n".join(parts).rstrip()


def _times(table: Table) -> str:
    lines = []
    for (model, label), rows in table.groupby(["model", "label"], sort=False):
        steps, seconds, sampling = rows[["iterations_per_chain", "seconds", "seconds_sampling"]].sum()
        lines.append([f"{model}, {label}", str(len(rows)), *(f"{value:,.0f}" for value in (steps, seconds, sampling))])
    return tables.markdown_table(["", "runs", "steps of 4 chains", "core seconds", "of them sampling"], lines)
