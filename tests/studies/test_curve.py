"""The study of the planning curve: its measures on draws that are known, its verdicts on made-up tables, its files."""

import json
import math

import numpy as np
import pytest

import dpmcmc
from studies import cells, commands, curve, curve_results, page, runner
from studies.laplace_cases import Reference
from tests.studies.test_commands import refusal, run

PLAN = dpmcmc.plan("auto", num_records=20_000, epsilon=1.0, delta=cells.DELTA, dimension=3)
LOW, HIGH = PLAN.interval_widening
SDS = np.array([0.1, 1.0, 10.0])
REFERENCE = Reference(np.zeros(3), np.diag(SDS**2), np.zeros(3), np.diag(SDS**2), np.zeros(3), "exact", 1.0)


def draws(widenings, shift=0.0, number=20_000):
    """Draws whose means and sds are exactly these, in sds of the reference."""
    points = np.random.default_rng(5).standard_normal((number, 3))
    points = (points - points.mean(axis=0)) / points.std(axis=0, ddof=1)
    return SDS * (shift + points * widenings)


def row(widenings, shift=0.0, number=20_000):
    """The row of a run with these draws, beside its plan."""
    of_run = {"num_records": 20_000, "epsilon": 1.0, "dimension": 3, "refused": 0.0, "num_draws": float(number)}
    return curve.compared(of_run | curve.measures(draws(widenings, shift, number), REFERENCE))


class TestMeasures:
    @pytest.mark.parametrize(
        ("widenings", "beside"),
        [
            ([1.1, 1.2, 1.05], 0.0),
            ([0.9, 1.2, 0.9], -1.0),  # the median decides
            ([1.2, 9.0, 9.0], 1.0),
            ([0.99 * LOW] * 3, 0.0),  # within three standard errors of 20,000 draws, 1.5 %
            ([0.98 * LOW] * 3, -1.0),
            ([1.01 * HIGH] * 3, 0.0),
            ([1.02 * HIGH] * 3, 1.0),
        ],
    )
    def test_known_widths(self, widenings, beside):
        found = row(widenings)
        assert found["widening"] == pytest.approx(np.median(widenings), rel=1e-9)
        assert found["beside"] == beside
        assert (found["predicted_low"], found["predicted_high"]) == (LOW, HIGH)
        assert [float(word) for word in found["widenings"].split()] == pytest.approx(widenings, rel=1e-4)
        assert (found["rms_error"], found["coverage"]) == (pytest.approx(0.0, abs=1e-12), 1.0)

    @pytest.mark.parametrize("factor", [1.5, 4.0, 6.0])
    def test_the_factor_with_which_the_plan_would_be_right(self, factor):
        found = row([math.hypot(1.0, factor * PLAN.noise_sd[0] / 1.5)] * 3)
        assert found["clip_factor"] == pytest.approx(factor, rel=1e-9)

    def test_errors(self):
        found = row([1.1] * 3, shift=np.array([0.0, 3.0, 4.0]))
        assert found["rms_error"] == pytest.approx(5.0 / math.sqrt(3.0))
        assert found["coverage"] == pytest.approx(1.0 / 3.0)
        assert found["coordinates_in_band"] == 1.0

    def test_draws_that_are_not_finite_are_above(self):
        found = row([1.1, 1.1, math.inf])
        assert found["beside"] == 1.0
        assert math.isnan(found["widening"])


def test_cases():
    names = curve.case_names()
    assert len(set(names)) == len(names) == 32
    assert {curve.kind_of(name) for name in names} == set(curve.KINDS)
    assert set(curve.FAST) <= set(names)
    for kind in ("logistic", "linear", "poisson", "skewed", "heavy"):
        case = curve.make_curve_case(f"{kind}-d4-5k", 3)
        assert (case.num_records, case.dimension, case.seed) == (5_000, 4, 3)
        again, other = (curve.make_curve_case.__wrapped__(case.name, seed) for seed in (3, 4))
        assert again.digest == case.digest != other.digest
    adult = curve.make_curve_case("adult-12k")
    assert (adult.num_records, adult.dimension) == (12_000, 14)


# ------------------------------------------------------------------------------------------------------ tables


def made_up(widening=1.1, flagged=0.0, epsilons=(0.5, 1.0)):
    """A table as the study leaves it; at ε = 0.5 the larger dimension cannot work."""
    rows = []
    for cell in curve.cells_of(["logistic-d4-5k", "heavy-d12-5k"], curve.SAMPLERS, epsilons, 2, 0):
        d = 4 if cell.case.startswith("logistic") else 12
        plan = dpmcmc.plan("auto", num_records=5_000, epsilon=cell.epsilon, delta=cells.DELTA, dimension=d)
        row = dict.fromkeys(curve_results.COLUMNS, "") | {
            "case": cell.case,
            "kind": curve.kind_of(cell.case),
            "sampler": cell.sampler,
            "epsilon": cell.epsilon,
            "repeat": cell.repeat,
            "num_records": 5_000,
            "dimension": d,
            "study_seed": 0,
            "seed": cell.run_seed,
            "privacy": "seeded, not private",
            "seconds": 1.0,
        }
        if plan.feasible:
            points = np.random.default_rng(1).standard_normal((20_000, d)) * widening
            eye = np.eye(d)
            reference = Reference(np.zeros(d), eye, np.zeros(d), eye, np.zeros(d), "exact", 1.0)
            row |= curve.measures(points, reference) | {"refused": 0.0, "flagged": flagged, "num_draws": 20_000.0}
        else:
            row |= curve._REFUSED
        rows.append(curve.compared(row))
    return curve_results.pd.DataFrame(rows, columns=list(curve_results.COLUMNS))


def test_verdicts():
    refusals, bands = curve_results.statements_of(made_up(widening=1.3, epsilons=(0.5, 4.0)))
    assert refusals.holds
    assert bands.holds is False  # at ε = 4 and d = 4 such intervals are wider than planned
    assert curve_results.statements_of(made_up(epsilons=(1.0,)))[1].holds
    table = made_up()
    table.loc[table["feasible"] == 0.0, "refused"] = 0.0
    assert curve_results.statements_of(table)[0].holds is False
    table = made_up()
    table.loc[table["feasible"].idxmax(), "refused"] = 1.0
    assert curve_results.statements_of(table)[0].holds is False
    flagged = curve_results.statements_of(made_up(widening=9.0, flagged=1.0, epsilons=(1.0,)))[1]
    assert flagged.holds is None  # nothing was promised of flagged runs
    assert all(statement.holds is None for statement in curve_results.statements_of(made_up().head(0)))


def test_files_and_page(tmp_path):
    folder, target = tmp_path / "curve", tmp_path / "planning.md"
    folder.mkdir()
    table = made_up()
    commands._curve_files(folder, table)
    commands._log(folder, "curve", len(table), runner.Outcome(finished=len(table), seconds=60.0))
    assert json.loads((folder / "statements.json").read_text())[0]["holds"]
    target.write_text(f"before\n\n{page.BEGIN}\n{page.END}\n\nafter\n")
    written = page.write_page([folder], target)
    text = target.read_text(encoding="utf-8")
    assert page.read_table(folder)[0] == "curve"
    for words in ("before", "after", "### Runs in the planned band", "cannot work", "refused", "logistic, bounded"):
        assert words in text, words
    assert {path.name for path in written} == {"planning.md", "curve_band.png", "curve_band.pdf"}
    assert (tmp_path / "planning" / "curve_band.png").read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------------------------------------------- commands


@pytest.fixture
def no_runs(monkeypatch):
    asked = []

    def run_cells(these, folder, **options):
        asked.extend(these)
        return runner.Outcome(finished=len(these))

    monkeypatch.setattr(runner, "run_cells", run_cells)
    return asked


def test_what_is_run(no_runs, tmp_path):
    run("curve", "--out", tmp_path)
    assert len(no_runs) == 32 + 32 * 2 * 4 * 2
    assert isinstance(no_runs[0], curve.CurveReferenceCell)
    no_runs.clear()
    run("curve", "--out", tmp_path, "--fast", "--repeats", 1)
    assert {cell.case for cell in no_runs} == set(curve.FAST)
    assert len(no_runs) == 2 + 2 * 2 * 2
    no_runs.clear()
    run("curve", "--out", tmp_path, "--cases", "poisson", "--cases", "adult-*", "--epsilon", 2, "--repeats", 1)
    assert len(no_runs) == 8 + 8 * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cases", "banana"], "one of the groups logistic, linear, poisson, skewed, heavy, adult"),
        (["--epsilon", 0], "--epsilon is 0.0"),
        (["--repeats", 0], "--repeats is 0"),
    ],
)
def test_refusals(arguments, words, no_runs, tmp_path):
    assert words in refusal("curve", "--out", tmp_path, *arguments)
    assert no_runs == []


def test_cells_are_told_apart_and_rebuilt():
    these = curve.cells_of(curve.case_names(), curve.SAMPLERS, None, 3, 0)
    assert len({cell.name for cell in these}) == len({cell.run_seed for cell in these}) == len(these)
    assert curve.CurveCell.from_dict(these[5].specification()) == these[5]


@pytest.mark.slow
def test_a_cell_is_run_and_filed(tmp_path):
    cell = curve.CurveCell("logistic-d4-5k", 4.0, 0)
    (tmp_path / "cells").mkdir()
    row = curve.finish_cell(cell, tmp_path, "commit")
    (found,) = curve_results.collect(tmp_path, 0).to_dict("records")
    assert found["widening"] == row["widening"]
    assert (found["refused"], found["feasible"]) == (0.0, 1.0)
    assert "not private" in found["privacy"]
    assert curve_results.collect(tmp_path, 1).empty
