"""The study of DP-Laplace: what is measured, filed and said about it, with a stand-in for the sampler."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

import dpmcmc
from studies import cells, commands, laplace, laplace_figures, laplace_results, page, tables
from studies.laplace import LaplaceCell, measures
from studies.laplace_cases import Reference, case_names, make_case
from tests.studies import stand_in

RUNNER = CliRunner()
REPRODUCTION = Path(__file__).resolve().parents[2] / "docs" / "reproduction.md"


@pytest.fixture(autouse=True)
def sampler(monkeypatch):
    monkeypatch.setattr(laplace, "make_sampler", stand_in.StandIn)
    monkeypatch.setattr(laplace, "sample", stand_in.sample)
    laplace.find_floor.cache_clear()


def standard_reference(dimension=10):
    zero, one = np.zeros(dimension), np.eye(dimension)
    return Reference(zero, one, zero, one, zero, "exact", 1.0)


# --------------------------------------------------------------------------------------------------- measures


def test_measures_of_normal_draws():
    """Draws whose errors and sds are known: quantiles, so that nothing is left to chance."""
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    points = np.repeat(norm.ppf(quantiles)[:, None], 10, axis=1) * 2.0
    points[:, 0] += 4.0  # beyond the interval ± 3.29
    points[:, 1] -= 3.0
    found = measures(points, standard_reference(), floor=math.sqrt(3.0), floor_bounded=math.nan)
    assert found["rms_error"] == pytest.approx(math.sqrt(25.0 / 10.0))
    assert found["worst_error"] == pytest.approx(4.0)
    assert found["coverage"] == 0.9
    assert found["width_ratio"] == pytest.approx(1.0, rel=1e-3)  # √(1 + 3) = 2, the sd of the draws
    assert math.isnan(found["width_ratio_bounded"])
    assert found["reported"] == pytest.approx(2.0, rel=1e-3)
    assert found["error_in_reported"] == pytest.approx(math.sqrt(25.0 / 4.0 / 10.0), rel=1e-3)
    assert found["wrong"] == 0.0
    assert [float(word) for word in found["errors"].split()] == pytest.approx([4.0, -3.0, *[0.0] * 8], abs=1e-3)


def test_what_is_wrong():
    generator = np.random.default_rng(0)
    points = generator.standard_normal((4000, 10))
    far, few = points.copy(), points.copy()
    far[:, 0] += 7.0  # one coordinate of ten: 7/√10 > 2
    few[:, :5] += 1.9  # half of the coordinates outside ± 1.64, but 1.9/√2 < 2
    for draws, wrong in ((points, 0.0), (far, 1.0), (few, 1.0)):
        assert measures(draws, standard_reference(), 0.0, math.nan)["wrong"] == wrong
    # Of two coordinates one may be outside by chance.
    assert measures(few[:, 4:6], standard_reference(2), 0.0, math.nan)["wrong"] == 0.0
    points[0, 0] = math.inf
    found = measures(points, standard_reference(), 0.0, math.nan)
    assert found["wrong"] == 1.0
    assert math.isnan(found["rms_error"])


def test_mmd_is_that_of_the_paper():
    """Exact draws are as near as exact draws; draws one sd away in every coordinate are not (the twin)."""
    case = make_case("gaussian-away")
    reference = case.reference()
    generator = np.random.default_rng(0)
    exact = generator.multivariate_normal(reference.mean, reference.cov, 5000)
    near, far = laplace.mmd(case, exact, 1), laplace.mmd(case, exact + reference.sd, 1)
    # Two samples of 1000: √|unbiased estimate| is 0.01 to 0.02; 0.06 is 9 standard errors of its square away.
    assert near["mmd"] < 0.06
    assert near["mmd_exact"] < 0.06
    assert far["mmd"] > 0.3
    assert far["mmd_exact"] == near["mmd_exact"]
    assert math.isnan(laplace.mmd(make_case("linear-d2-20k"), exact, 1)["mmd"])


# ------------------------------------------------------------------------------------------------------ cells


def test_a_cell(tmp_path):
    row = laplace.run_cell(LaplaceCell("linear-d5-20k", 4.0, 0), tmp_path, "abc")
    assert set(row) == set(laplace_results.COLUMNS)
    assert row["rms_error"] < 2.0
    assert row["wrong"] == 0.0
    assert (row["case"], row["group"], row["dimension"], row["num_records"]) == ("linear-d5-20k", "sweep", 5, 20_000)
    assert (row["privacy"], row["refused"], row["flagged"], row["rounds"]) == ("not private: seeded", 0.0, 0.0, 7.0)
    assert row["reported"] == pytest.approx(math.hypot(1.0, 0.3), rel=0.1)  # unconstrained: noise_scale is positive
    assert list((tmp_path / "references").glob("linear-d5-20k-0.json"))


def test_a_refused_run_counts_as_flagged(tmp_path):
    row = laplace.run_cell(LaplaceCell("linear-d2-20k", 0.1, 0), tmp_path)
    assert set(row) == set(laplace_results.COLUMNS)
    assert (row["refused"], row["flagged"], row["errors"]) == (1.0, 1.0, "")
    assert row["reasons"] == "epsilon = 0.1 is too small"
    counts = laplace_results.flag_counts(pd.DataFrame([row]))
    assert counts == {"flagged": 1, "refused": 1, "wrong": 0, "missed": 0, "false_alarms": 0}


def test_a_private_run_is_not_taken(tmp_path, monkeypatch):
    def private(cell, case):
        posterior = stand_in.sample(cell, case)
        posterior.privacy.private = True
        return posterior

    monkeypatch.setattr(laplace, "sample", private)
    with pytest.raises(dpmcmc.errors.DPMCMCError, match="must not be called private"):
        laplace.run_cell(LaplaceCell("linear-d2-20k", 4.0, 0), tmp_path)


def test_results_are_filed_under_their_settings(tmp_path, monkeypatch):
    cell = LaplaceCell("linear-d2-20k", 4.0, 1)
    (tmp_path / "cells").mkdir()
    assert not cells.has_result(tmp_path, cell)
    row = laplace.finish_cell(cell, tmp_path, None)
    assert cells.has_result(tmp_path, cell)
    assert not cells.has_result(tmp_path, dataclasses.replace(cell, repeat=2))
    (path,) = (tmp_path / "cells").glob("*.json")
    found = cells.read_row_of(LaplaceCell.from_dict, path)
    assert found is not None
    assert found[0] == cell
    assert {name: value for name, value in found[1].items() if value == value} == {
        name: value for name, value in row.items() if value == value
    }
    monkeypatch.setattr(laplace, "make_sampler", lambda: stand_in.StandIn(noise=0.4))
    assert cells.read_row_of(LaplaceCell.from_dict, path) is None  # other settings, another run
    assert cell.run_seed != dataclasses.replace(cell, epsilon=2.0).run_seed


@pytest.mark.skipif(not hasattr(dpmcmc, "DPLaplace"), reason="the sampler is not there yet")
def test_a_real_run(tmp_path, monkeypatch):
    """The sampler itself, on an easy case: everything that the study reads is there."""
    monkeypatch.undo()
    row = laplace.run_cell(LaplaceCell("linear-d5-20k", 4.0, 0), tmp_path)
    assert set(row) == set(laplace_results.COLUMNS)
    assert row["refused"] == 0.0
    assert math.isfinite(row["rms_error"])
    assert row["privacy"] != ""


# ------------------------------------------------------------------------------------------- tables, statements


def rows_of(case, epsilon, errors, **changes):
    """Runs of one case with these errors, runs × coordinates; reported sds are 1."""
    group = next(group for group in laplace.EPSILONS if case in case_names(group))
    made = []
    for repeat, line in enumerate(np.atleast_2d(errors)):
        row = dict.fromkeys(laplace_results.COLUMNS, 1.0)
        row |= {"case": case, "group": group, "epsilon": epsilon, "repeat": repeat, "flagged": 0.0, "refused": 0.0}
        row |= {"num_records": 20_000, "dimension": len(line), "wrong": 0.0, "coverage": 0.9, "width_ratio": 1.1}
        row |= {"rms_error": float(np.sqrt(np.mean(line**2))), "worst_error": float(np.max(np.abs(line)))}
        row |= {"errors": " ".join(f"{value:.5g}" for value in line), "mmd": 0.015, "mmd_exact": 0.012, "floor": 0.5}
        row |= {"floor_bias": 0.1}
        row |= {"study_seed": 0, "seed": repeat, "dpmcmc": "0", "jax": "0"}
        row |= {"method": "nuts", "reasons": "", "privacy": "not private: seeded", "commit": "abc"}
        made.append(row | changes)
    return made


def table_of(*groups):
    return pd.DataFrame([row for rows in groups for row in rows], columns=list(laplace_results.COLUMNS))


def test_bias_by_hand():
    generator = np.random.default_rng(0)
    errors = generator.standard_normal((20, 3))
    errors += np.array([0.0, 0.5, -2.0]) - errors.mean(axis=0)
    found = laplace_results.bias(table_of(rows_of("linear-rare-20k", 1.0, errors)))
    standard_errors = errors.std(axis=0, ddof=1) / math.sqrt(20)
    assert found["bias_worst"] == pytest.approx(-2.0, abs=1e-4)
    assert found["bias_worst_error"] == pytest.approx(standard_errors[2], rel=1e-3)
    expected = np.mean(np.array([0.0, 0.25, 4.0]) - standard_errors**2)
    assert found["bias_rms"] == pytest.approx(math.sqrt(expected), rel=1e-3)
    # Student's t with 19 degrees of freedom, 99.9 %: 3.579.
    assert found["bias_at_least"] == pytest.approx(2.0 - 3.579 * standard_errors[2], rel=1e-3)
    flagged = rows_of("linear-rare-20k", 1.0, errors[:4]) + rows_of("linear-rare-20k", 1.0, errors, flagged=1.0)
    assert math.isnan(laplace_results.bias(table_of(flagged))["bias_worst"])  # four runs that count


def verdicts(table):
    return {statement.text: statement.verdict for statement in laplace_results.statements_of(table)}


def verdict(table, start):
    (found,) = (value for text, value in verdicts(table).items() if text.startswith(start))
    return found


def test_statements_hold_and_fail():
    generator = np.random.default_rng(0)
    small = 0.2 * generator.standard_normal((20, 14))
    good = table_of(*(rows_of("adult", epsilon, small) for epsilon in (1.0, 2.0, 4.0)))
    for start in ("adult: median RMS", "adult: 90 %", "adult: median width"):
        assert verdict(good, start) == "holds"
    bad = table_of(rows_of("adult", 4.0, 3.0 * small, coverage=0.84, width_ratio=1.31))
    for start in ("adult: median RMS", "adult: 90 %", "adult: median width"):
        assert verdict(bad, start) == "does not hold"
    assert verdict(bad, "adult-coarse: median RMS") == "not tested"
    gaussian = table_of(rows_of("gaussian-away", 2.0, small[:, :10]))
    assert verdict(gaussian, "gaussian-away: median MMD") == "holds"
    assert verdict(gaussian, "gaussian: median MMD") == "not tested"
    far = table_of(rows_of("gaussian-away", 2.0, small[:, :10], mmd=0.056))
    assert verdict(far, "gaussian-away: median MMD") == "does not hold"
    assert set(verdicts(table_of()).values()) == {"not tested"}


def test_bias_counts_only_if_it_is_certain():
    """Without bias, noise alone never misses the bar; with one sd of it, it does, unless the runs are flagged."""
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((20, 10))
    start = "Hard cases"
    assert verdict(table_of(rows_of("poisson-rare-20k", 1.0, noise)), start) == "holds"
    assert verdict(table_of(rows_of("poisson-rare-20k", 1.0, noise - 3.0)), start) == "does not hold"
    assert verdict(table_of(rows_of("poisson-rare-20k", 1.0, 0.2 * noise + 0.6)), start) == "does not hold"
    assert verdict(table_of(rows_of("poisson-rare-20k", 1.0, noise - 3.0, flagged=1.0)), start) == "not tested"


def test_the_flag():
    line = np.zeros((4, 5))
    table = table_of(
        rows_of("logistic-d5-20k", 1.0, line),
        rows_of("logistic-d5-20k", 4.0, line[:3], wrong=1.0, flagged=1.0),
        rows_of("logistic-d10-20k", 1.0, line[:2], flagged=1.0),
    )
    assert verdict(table, "Dimension sweep") == "holds"
    assert laplace_results.flag_counts(table) == {
        "flagged": 5,
        "refused": 0,
        "wrong": 3,
        "missed": 0,
        "false_alarms": 2,
    }
    missed = table_of(rows_of("logistic-d10-20k", 1.0, line[:1], wrong=1.0))
    assert verdict(missed, "Dimension sweep") == "does not hold"


def test_the_paper_is_quoted_from_its_page(tmp_path):
    medians = tables.paper_medians(REPRODUCTION, "gaussian", "DP-HMC")
    assert [medians[epsilon] for epsilon in (2.0, 4.0, 8.0, 15.0)] == [0.408, 0.322, 0.179, 0.134]
    assert tables.paper_medians(tmp_path / "none.md", "gaussian", "DP-HMC") == {}


def test_figures_and_tables_of_every_group(tmp_path):
    line = 0.3 * np.random.default_rng(0).standard_normal((6, 10))
    names = ("adult", "gaussian", "aside-mixture", "linear-rare-50k", "logistic-d10-20k", "linear-d20-100k")
    table = table_of(*(rows_of(name, epsilon, line) for name in names for epsilon in (1.0, 4.0)))
    table.loc[table["case"] == "linear-d20-100k", ["rms_error", "reported", "errors"]] = [math.nan, math.nan, ""]
    parts = laplace_results.sections(table, REPRODUCTION)
    titles = [part for part in parts if part.startswith("### ")]
    assert len(titles) == 6
    text = "\n".join(parts)
    assert "0.322" in text
    assert "d3p" in text
    assert "not measured here" in text
    assert "nan" not in text
    for figure in (laplace_figures.accuracy_figure(table, REPRODUCTION), laplace_figures.dimension_figure(table)):
        assert figure.axes
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
    monkeypatch.setattr(commands, "_laplace_study", lambda cells, out, jobs, seed: found.extend(cells))
    return found


def test_what_is_run(asked, tmp_path):
    run("laplace", "--out", tmp_path)
    assert len(asked) == 20 * (2 * 3 + 2 * 4 + 3 * 3 + 72 * 2 + 28 * 2)
    asked.clear()
    run("laplace", "--out", tmp_path, "--cases", "adult*", "--cases", "logistic-*-50k", "--epsilon", 2, "--repeats", 1)
    assert [cell.case for cell in asked][:3] == ["adult", "adult-coarse", "logistic-plain-50k"]
    assert {cell.epsilon for cell in asked} == {2.0}
    asked.clear()
    run("laplace", "--out", tmp_path, "--cases", "adult", "--cases", "aside", "--repeats", 1)
    assert {cell.case for cell in asked} == {"adult", *case_names("aside")}
    asked.clear()
    run("laplace", "--out", tmp_path, "--fast", "--repeats", 2)
    assert len(asked) == 2 * len(laplace.FAST)
    assert {cell.epsilon for cell in asked} == {4.0}
    assert set(laplace.FAST) <= set(case_names())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--cases", "adlut"],
            "--cases is 'adlut', which is no case; give a name such as aside-overdispersed, a pattern such as 'adult*'",
        ),
        (["--repeats", 0], "--repeats is 0; give a whole number from 1 to 99"),
        (["--epsilon", -1], "--epsilon is -1.0; give positive finite numbers"),
    ],
)
def test_refusals(arguments, words, asked, tmp_path):
    lines = run("laplace", "--out", tmp_path, *arguments, code=2).stderr.splitlines()
    assert len(lines) == 1
    assert words in lines[0]
    assert asked == []


@pytest.mark.slow
def test_a_study_from_beginning_to_page(tmp_path, monkeypatch):
    """Two cases in two workers, files, resumption, and the page."""
    monkeypatch.setattr(laplace, "finish_cell", stand_in.finish_cell)
    out = tmp_path / "out"
    options = ["--out", out, "--cases", "linear-d2-20k", "--cases", "gaussian-away", "--epsilon", 4, "--workers", 2]
    result = run("laplace", *options, "--repeats", 2)
    assert "HOLDS: gaussian-away: median MMD" in result.output or "DOES NOT HOLD: gaussian-away" in result.output
    names = {path.name for path in out.iterdir()}
    assert names >= {"results.csv", "summary.csv", "summary.md", "statements.txt", "statements.json", "references"}
    assert names >= {"laplace_accuracy.png", "laplace_dimension.png", "invocations.jsonl"}
    table = tables.read_csv(out / "results.csv")
    assert len(table) == 4
    ran = len(list(out.glob("ran-*")))
    run("laplace", *options, "--repeats", 2)
    assert len(list(out.glob("ran-*"))) == ran == 4
    run("laplace", *options, "--repeats", 3)
    assert len(tables.read_csv(out / "results.csv")) == 6
    assert {item["verdict"] for item in json.loads((out / "statements.json").read_text())} >= {"not tested"}

    target = tmp_path / "laplace.md"
    target.write_text(f"before\n\n{page.BEGIN}\nof last time\n{page.END}\n\nafter\n")
    (tmp_path / "reproduction.md").write_text(REPRODUCTION.read_text())
    run("report", out, "--to", target)
    text = target.read_text()
    assert text.startswith("before")
    assert text.rstrip().endswith("after")
    assert "of last time" not in text
    assert "6 runs of 20000 to 100000 records" in text
    assert "### Dimension" in text
    assert "0.322" in text
    assert (tmp_path / "laplace" / "laplace_accuracy.png").exists()


def test_the_page_has_its_markers():
    text = (REPRODUCTION.parent / "laplace.md").read_text()
    assert text.count(page.BEGIN) == text.count(page.END) == 1
