"""The study of auto: what is measured, filed and said about it, with a stand-in for the sampler."""

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from studies import auto, auto_figures, auto_results, cells, commands, page, tables
from studies.auto import AutoCell, measures, mmd
from studies.auto_cases import case_names
from tests.studies import stand_in

RUNNER = CliRunner()
REPRODUCTION = Path(__file__).resolve().parents[2] / "docs" / "reproduction.md"


@pytest.fixture(autouse=True)
def sampler(monkeypatch):
    monkeypatch.setattr(auto, "sample", stand_in.sample_auto)


# --------------------------------------------------------------------------------------------------- measures


def test_measures_of_normal_draws():
    """Draws whose errors and sds are known: quantiles, so that nothing is left to chance."""
    standard = norm.ppf((np.arange(20_000) + 0.5) / 20_000)
    exact = np.column_stack([standard, 5.0 + 2.0 * standard])
    found = measures(np.column_stack([standard, 9.0 + 1.0 * standard]), exact)
    assert found["rms_error"] == pytest.approx(math.sqrt(2.0), rel=1e-3)  # errors 0 and 2 sds
    assert found["worst_error"] == pytest.approx(2.0, rel=1e-3)
    assert found["sd_ratio"] == pytest.approx(0.75, rel=1e-3)
    assert found["sd_worst"] == pytest.approx(0.5, rel=1e-3)
    assert found["coverage"] == 0.5
    beyond = norm.cdf((9.0 + norm.ppf(0.95) - 5.0) / 2.0) - norm.cdf((9.0 - norm.ppf(0.95) - 5.0) / 2.0)
    assert found["mass"] == pytest.approx((0.9 + beyond) / 2.0, abs=1e-3)
    assert all(math.isnan(value) for value in measures(np.full((3, 2), math.nan), exact).values())


def test_mmd():
    """Exact draws are as near as exact draws, draws one sd away are not (the twin), and what is not finite has none."""
    generator = np.random.default_rng(0)
    exact = generator.standard_normal((6000, 3))
    points = generator.standard_normal((1000, 3))
    near, far = mmd(points, exact, np.random.default_rng(1)), mmd(points + 1.0, exact, np.random.default_rng(1))
    # Two samples of 1000: √|unbiased estimate| is 0.01 to 0.03; 0.09 is beyond 9 standard errors of its square.
    assert near["mmd"] < 0.09
    assert near["mmd_exact"] < 0.09
    assert far["mmd"] > 0.3
    points[0, 0] = math.inf
    assert math.isnan(mmd(points, exact, generator)["mmd"])


# ------------------------------------------------------------------------------------------------------ cells


def test_a_cell(tmp_path):
    row, draws = auto.run_cell(AutoCell("boundary", 4.0, 1), tmp_path, "abc")
    assert set(row) == set(auto_results.COLUMNS)
    assert row["mmd"] < 0.09
    assert row["mass"] == pytest.approx(0.9, abs=0.05)
    assert row["sd_ratio"] == pytest.approx(1.0, abs=0.1)  # unconstrained: one of both is positive
    assert (row["returned"], row["flagged"], row["releases"], row["method"]) == ("stand-in", 0.0, 12.0, "grid")
    assert draws.shape == (1000, 2)
    assert list((tmp_path / "references").glob("boundary-0-01.npz"))


def test_a_refused_run_counts_as_flagged(tmp_path):
    row, draws = auto.run_cell(AutoCell("ring", 0.1, 0), tmp_path)
    assert draws is None
    assert set(row) == set(auto_results.COLUMNS)
    assert (row["returned"], row["refused"], row["reasons"]) == ("refused", 1.0, "epsilon = 0.1 is too small")
    counts = auto_results.flag_counts(pd.DataFrame([row]))
    assert counts == {"flagged": 1, "refused": 1, "bad": 0, "missed": 0, "false_alarms": 0}


def test_results_are_filed_under_their_settings(tmp_path, monkeypatch):
    cell = AutoCell("ring", 4.0, 0)
    (tmp_path / "cells").mkdir()
    assert not cells.has_result(tmp_path, cell)
    row = auto.finish_cell(cell, tmp_path, None)
    assert cells.has_result(tmp_path, cell)
    assert not cells.has_result(tmp_path, dataclasses.replace(cell, repeat=2))
    (path,) = (tmp_path / "cells").glob("*.json")
    found = cells.read_row_of(AutoCell.from_dict, path)
    assert found is not None
    assert found == (cell, row)
    monkeypatch.setattr(auto, "make_sampler", lambda: "another")
    assert cells.read_row_of(AutoCell.from_dict, path) is None  # other settings, another run


def test_what_must_be_known_first():
    """Exact draws once for each set of records."""
    wanted = auto_results.cells_of(["ring", "mixture"], [4.0, 15.0], 2, 0)
    assert len(wanted) == 8
    found = [(cell.case, cell.repeat) for cell in auto.exact_cells(wanted)]
    assert found == [("ring", 0), ("ring", 1), ("mixture", 0)]


# ------------------------------------------------------------------------------------------- tables, statements


def rows_of(case, epsilon, distances, **changes):
    """Runs of one case with these MMDs."""
    group = next(group for group in auto.EPSILONS if case in case_names(group))
    made = []
    for repeat, distance in enumerate(distances):
        row = dict.fromkeys(auto_results.COLUMNS, 1.0)
        row |= {"case": case, "group": group, "epsilon": epsilon, "repeat": repeat, "mmd": distance, "mmd_exact": 0.015}
        row |= {"num_records": 20_000, "dimension": 2, "flagged": 0.0, "refused": 0.0, "mass": 0.9, "coverage": 0.9}
        row |= {"rms_error": 0.3, "worst_error": 0.1, "study_seed": 0, "seed": repeat, "dpmcmc": "0", "jax": "0"}
        row |= {"method": "grid", "reasons": "", "notes": "", "returned": "surrogate"}
        row |= {"privacy": "not private: seeded", "commit": "abc"}
        made.append(row | changes)
    return made


def table_of(*groups):
    return pd.DataFrame([row for rows in groups for row in rows], columns=list(auto_results.COLUMNS))


def verdict(table, start, cold=None):
    found = [item.verdict for item in auto_results.statements_of(table, cold or {}) if item.text.startswith(start)]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("start", "good", "bad"),
    [
        ("banana: median", rows_of("banana", 2.0, [0.01, 0.024]), rows_of("banana", 2.0, [0.02, 0.032])),
        ("gaussian: median", rows_of("gaussian", 8.0, [0.02]), rows_of("gaussian", 8.0, [0.021])),
        (
            "The paper's models: no run",
            rows_of("banana", 2.0, [0.2], flagged=1.0),
            rows_of("banana", 2.0, [0.02, 0.11]),
        ),
        (
            "The paper's models: 90 %",
            rows_of("banana", 2.0, [0.02], mass=0.88),
            rows_of("banana", 2.0, [0.02], mass=0.94),
        ),
        ("adult: median", rows_of("adult", 4.0, [0.2]), rows_of("adult", 4.0, [0.2], rms_error=0.39)),
        ("adult: 90 %", rows_of("adult", 4.0, [0.2]), rows_of("adult", 4.0, [0.2], coverage=0.84)),
        ("A million", rows_of("logistic-1m", 8.0, [0.02]), rows_of("logistic-1m", 8.0, [0.02], sd_worst=0.94)),
        ("A million", rows_of("logistic-1m", 8.0, [0.02]), rows_of("logistic-1m", 8.0, [0.02], worst_error=0.16)),
        ("Shapes", rows_of("ring", 4.0, [0.01] * 19 + [0.2]), rows_of("ring", 4.0, [0.01] * 18 + [0.2])),
        ("Shapes", rows_of("ring", 4.0, [0.2], flagged=1.0), rows_of("ring", 4.0, [math.nan])),
    ],
)
def test_statements_hold_and_fail(start, good, bad):
    assert verdict(table_of(good), start) == "holds"
    assert verdict(table_of(bad), start) == "does not hold"
    assert verdict(table_of(), start) == "not tested"


def test_cold_starts():
    assert verdict(table_of(), "A cold start") == "not tested"
    assert verdict(table_of(), "A cold start", {"banana": 29.0}) == "holds"
    assert verdict(table_of(), "A cold start", {"banana": 29.0, "adult": 31.0}) == "does not hold"


def test_the_flag():
    table = table_of(
        rows_of("ring", 4.0, [0.01, 0.07, 0.2]),
        rows_of("sine", 4.0, [0.01, 0.07, 0.2], flagged=1.0, returned="chain"),
        rows_of("small-n", 4.0, [math.nan], flagged=1.0, refused=1.0, returned="refused"),
    )
    assert auto_results.flag_counts(table) == {"flagged": 4, "refused": 1, "bad": 2, "missed": 1, "false_alarms": 1}
    text = "\n".join(auto_results.sections(table, REPRODUCTION))
    assert "| chain | 3 | 3 | 0 | 1 | 0 | 1 |" in text
    assert "| total | 7 | 4 | 1 | 2 | 1 | 1 |" in text
    assert "ring, ε = 4, repeat 3 | surrogate | 0.200" in text
    assert "nan" not in text


def test_what_was_returned_is_counted_by_case():
    """All budgets of a case in one row; a sampler of the paper is not ``auto``'s, and a refusal is."""
    gaussian, surrogate = "auto: a Gaussian (DP-Laplace)", "auto: a curved surrogate"
    table = table_of(
        rows_of("ring", 4.0, [0.02, 0.3], returned=surrogate),
        rows_of("ring", 15.0, [0.3], returned=gaussian, flagged=1.0),
        rows_of("small-n", 4.0, [math.nan], returned="refused", refused=1.0, flagged=1.0),
        rows_of("banana-exact", 4.0, [0.02], returned="auto: a chain with exact accept tests on a surrogate"),
        rows_of("banana-dp-hmc", 4.0, [0.3], returned="DPHMC"),
    )
    lines = auto_results.returned_markdown(table).splitlines()
    assert lines[0].startswith("|  | n | d | ε | runs | Gaussian | surrogate | chain | refused | flagged | missed |")
    assert lines[2:] == [
        "| ring | 20,000 | 2 | 4–15 | 3 | 1 | 2 |  |  | 1 | 1 |",
        "| small-n | 20,000 | 2 | 4 | 1 |  |  |  | 1 | 1 | 0 |",
        "| banana-exact | 20,000 | 2 | 4 | 1 |  |  | 1 |  | 0 | 0 |",
    ]


def test_the_tables_of_the_page_agree():
    """What was returned by case, which docs/samplers.md shows, adds up to the page's own counts of the flag."""
    text = (REPRODUCTION.parent / "auto.md").read_text()
    begin, end = auto_results.RETURNED_BEGIN, auto_results.RETURNED_END
    assert text.count(begin) == text.count(end) == 1
    columns = zip(*rows_in(text[text.index(begin) : text.index(end)]), strict=True)
    found = {title: sum(int(entry or 0) for entry in entries) for title, *entries in list(columns)[4:]}
    (_, *names), *lines = rows_in(text[text.index("### The flag, by what was returned") :])
    counts = {line[0]: dict(zip(names, map(int, line[1:]), strict=True)) for line in lines}
    others = [row for kind, row in counts.items() if not kind.startswith(("auto: ", "refused", "total"))]
    total = {name: counts["total"][name] - sum(row[name] for row in others) for name in names}
    assert found["runs"] == total["runs"]
    assert found["flagged"] == total["flagged"]
    assert found["missed"] == total["of them missed"]
    kinds = {"Gaussian": "a Gaussian", "surrogate": "a curved surrogate", "chain": "a chain"}
    for title, kind in kinds.items():
        assert found[title] == sum(row["runs"] for name, row in counts.items() if name.startswith(f"auto: {kind}"))
    assert found["refused"] == counts["refused"]["runs"]


def rows_in(text):
    """Return the entries of the first Markdown table, without its rule."""
    lines = list(itertools.dropwhile(lambda line: not line.startswith("|"), text.splitlines()))
    table = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[entry.strip() for entry in line[1:-1].split("|")] for line in table if not line.startswith("| ---")]


def test_tables_and_figures_of_every_group(tmp_path):
    names = ("banana", "gaussian", "adult", "logistic-1m", "ring", "small-n")
    table = table_of(*(rows_of(name, epsilon, [0.01, 0.02, 0.03]) for name in names for epsilon in (4.0, 15.0)))
    parts = auto_results.sections(table, REPRODUCTION)
    assert len([part for part in parts if part.startswith("### ")]) == 8
    text = "\n".join(parts)
    assert all(word in text for word in ("0.266", "0.322", "DP-penalty", "DP-SGNHT"))  # of the page on the paper
    assert auto_figures.mmd_figure(table, REPRODUCTION).axes
    draws = auto_figures.Draws(np.random.default_rng(0).standard_normal((50, 2)), np.eye(50, 2), "made up")
    for number in (1, 5):
        assert len(auto_figures.shapes_figure({str(place): draws for place in range(number)}).axes) >= number
    tables.write_csv(tmp_path / "results.csv", table)
    pd.testing.assert_frame_equal(tables.read_csv(tmp_path / "results.csv"), table, check_dtype=False)


# --------------------------------------------------------------------------------------------------- commands


def run(*arguments, code=0):
    result = RUNNER.invoke(commands.app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def asked(monkeypatch):
    """Cells that are asked for, none of which is run."""
    found = []
    monkeypatch.setattr(commands, "_auto_study", lambda cells, out, jobs, seed, timed: found.extend(cells))
    return found


def test_what_is_run(asked, tmp_path):
    run("auto", "--out", tmp_path)
    assert len(asked) == 10 * (2 * 4 + 3 + 1 + 2 * len(case_names("shapes")) + 2 * len(case_names("chains")))
    asked.clear()
    run("auto", "--out", tmp_path, "--cases", "shapes", "--cases", "adult", "--epsilon", 2, "--repeats", 1)
    assert [cell.case for cell in asked] == ["adult", *case_names("shapes")]
    assert {cell.epsilon for cell in asked} == {2.0}
    asked.clear()
    run("auto", "--out", tmp_path, "--fast", "--repeats", 2)
    assert len(asked) == 2 * len(auto.FAST)
    run("auto", "--out", tmp_path, "--cases", "rnig", code=2)


@pytest.mark.slow
def test_a_study_from_beginning_to_page(tmp_path, monkeypatch):
    """Two cases in two workers, files, resumption, and the page."""
    monkeypatch.setattr(auto, "finish_cell", stand_in.finish_auto_cell)
    out = tmp_path / "out"
    options = ["--out", out, "--cases", "ring", "--cases", "banana", "--epsilon", 4, "--workers", 2, "--not-timed"]
    result = run("auto", *options, "--repeats", 2)
    assert "HOLDS: banana: median MMD" in result.output or "DOES NOT HOLD: banana" in result.output
    names = {path.name for path in out.iterdir()}
    assert names >= {"results.csv", "summary.csv", "summary.md", "statements.txt", "statements.json", "references"}
    assert names >= {"auto_mmd.png", "auto_shapes.png", "invocations.jsonl"}
    assert len(tables.read_csv(out / "results.csv")) == 4
    run("auto", *options, "--repeats", 2)
    assert len(list(out.glob("ran-*"))) == 4
    assert {item["verdict"] for item in json.loads((out / "statements.json").read_text())} >= {"not tested"}

    target = tmp_path / "auto.md"
    target.write_text(f"before\n\n{page.BEGIN}\nof last time\n{page.END}\n\nafter\n")
    (tmp_path / "reproduction.md").write_text(REPRODUCTION.read_text())
    run("report", out, "--to", target)
    text = target.read_text()
    assert "of last time" not in text
    assert "4 runs of 50000 to 100000 records" in text
    assert "Shapes that the surrogate was not made for" in text
    assert (tmp_path / "auto" / "auto_shapes.png").exists()
    other = (tmp_path / "reproduction.md").read_text()
    row = other[other.index(page.ROW_BEGIN) : other.index(page.ROW_END)]
    assert "| auto | 2 |" in row
    assert "gaussian" not in row  # which was not run
    assert tables.paper_medians(tmp_path / "reproduction.md", "banana", "DP-HMC")  # found still


def test_the_page_has_its_markers():
    text = (REPRODUCTION.parent / "auto.md").read_text()
    assert text.count(page.BEGIN) == text.count(page.END) == 1
    text = REPRODUCTION.read_text()
    assert text.count(page.ROW_BEGIN) == text.count(page.ROW_END) == 1
