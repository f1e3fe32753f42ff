"""The study of coverage: data sets, what is counted, filed and said, with a stand-in for the samplers."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dpmcmc
from dpmcmc.errors import BudgetExceededError, QueryError
from studies import cells, commands, coverage, coverage_cases, coverage_results, page, runner, tables
from studies.coverage import CoverageCell, measures
from studies.coverage_cases import KINDS, POSTERIOR, SAMPLERS, Reference, compute_reference, make_data_set, make_sampler
from studies.exact import NoReferenceError

RUNNER = CliRunner()
DOCS = Path(__file__).resolve().parents[2] / "docs"


def reference_of(mean, sd):
    """A normal posterior without noise, by coordinate."""
    mean, sd = np.asarray(mean, float), np.asarray(sd, float)
    return Reference(mean, sd, quantiles_of(mean, sd), np.stack([mean, mean]), "made up")


def quantiles_of(mean, sd):
    """Ends of the central 50 % and 90 % intervals of normals."""
    return np.array([mean + z * sd for z in (-1.6449, -0.6745, 0.6745, 1.6449)])


# --------------------------------------------------------------------------------------------------- data sets


def test_data_sets_follow_from_their_number():
    first, other = make_data_set("logistic", 0), make_data_set("logistic", 1)
    make_data_set.cache_clear()
    again = make_data_set("logistic", 0)
    np.testing.assert_array_equal(first.truth, again.truth)
    np.testing.assert_array_equal(first.data["y"], again.data["y"])
    assert not np.any(first.truth == other.truth)
    assert not np.any(first.truth == make_data_set("logistic", 0, seed=1).truth)
    with pytest.raises(QueryError, match="kind 'logit' is unknown; give one of logistic"):
        make_data_set("logit", 0)


def test_parameters_are_drawn_from_the_prior():
    """Prior N(0, 1): the mean square of 300 numbers, of 60 data sets, is off 1 by 0.41 less than once in 1e5 (χ²)."""
    truths = np.array([make_data_set("logistic", number).truth for number in range(60)])
    assert np.mean(truths**2) == pytest.approx(1.0, abs=0.41)
    assert np.mean((0.3 * truths) ** 2) != pytest.approx(1.0, abs=0.41)  # the twin: a narrower design


def test_the_posterior_without_noise():
    """Linear regression by its formula: least squares and (XᵀX)⁻¹σ², from which a weak prior takes next to nothing."""
    made = make_data_set("linear", 0)
    found = compute_reference("linear", 0)
    design = np.column_stack([np.ones(len(made.data["y"])), made.data["X"]])
    inverse = np.linalg.inv(design.T @ design)
    estimate = inverse @ design.T @ made.data["y"]
    scale = np.std(made.data["y"] - design @ estimate)
    sds = scale * np.sqrt(np.diag(inverse))
    np.testing.assert_allclose(found.mean[:4], estimate, atol=0.02 * sds.min())
    np.testing.assert_allclose(found.sd[:4], sds, rtol=0.02)
    np.testing.assert_allclose(found.mean[4], math.log(scale), atol=0.05 * found.sd[4])
    np.testing.assert_allclose(found.sd[4], math.sqrt(0.5 / 10_000), rtol=0.02)
    np.testing.assert_allclose(found.quantiles, quantiles_of(found.mean, found.sd), atol=0.05 * found.sd.max())


def test_a_posterior_that_is_not_nearly_gaussian_has_no_such_reference(monkeypatch):
    kind = coverage_cases.kind_of("banana")
    bent = next(number for number in range(40) if abs(make_data_set("banana", number).truth[0]) < 0.3)
    compute_reference("banana", bent)  # by its formula
    monkeypatch.setattr(coverage_cases, "kind_of", lambda name: dataclasses.replace(kind, draw=None))
    with pytest.raises(NoReferenceError, match="% of as many draws, too few"):
        compute_reference("banana", bent)


def test_weighted_quantiles():
    """Of points whose weights make another normal of them: those of that one."""
    points = np.linspace(-6.0, 8.0, 20_001)[:, None]
    weights = np.exp(-0.5 * (points[:, 0] - 1.0) ** 2)
    found = coverage_cases.weighted_quantiles(points, weights / weights.sum(), (0.05, 0.25, 0.75, 0.95))
    np.testing.assert_allclose(found, quantiles_of(np.ones(1), np.ones(1)), atol=1e-3)


@pytest.mark.parametrize("epsilon", coverage.EPSILONS)
def test_settings_are_what_the_budget_buys(epsilon):
    """As many steps as were meant, no accept test with more noise than was meant."""
    clip, widths = coverage_cases.scales_of("banana")
    for name, steps in {"dp-penalty": 200, "dp-hmc": 50, "dp-sgld": 200, "dp-sgnht": 200}.items():
        sampler = make_sampler("banana", name, epsilon)
        plan = dpmcmc.plan(sampler, num_records=20_000, epsilon=epsilon, delta=1e-6, num_chains=2, dimension=2)
        assert steps <= plan.num_steps < (1.05 * steps if name in ("dp-penalty", "dp-hmc") else 10**5)
        if name == "dp-penalty":
            move = np.linalg.norm(sampler.proposal_scale)
            assert 2.0 * clip * sampler.ratio_noise_multiplier * move <= 1.0 + 1e-9
            np.testing.assert_allclose(sampler.proposal_scale / widths, sampler.proposal_scale[0] / widths[0])
    assert make_sampler("banana", "auto", epsilon) == "auto"
    with pytest.raises(QueryError, match="sampler 'nuts' is unknown; give one of auto"):
        make_sampler("banana", "nuts", epsilon)


# ---------------------------------------------------------------------------------------------------- measures


def test_measures_by_hand():
    reference = reference_of([0.0, 10.0, 0.0, 0.0], [1.0, 2.0, 1.0, 1.0])
    center, sd = np.array([0.0, 12.0, 5.0, 1.0]), np.array([1.0, 2.0, 2.0, 1.0])
    truth = np.array([0.5, 10.0, 5.0, 0.0])
    found = measures(center, quantiles_of(center, sd), truth, reference)
    # The truth is 0.5, 1, 0 and 1 reported sds from the centre, the mean without noise 0, 1, 2.5 and 1.
    assert (found["truth_50"], found["truth_90"]) == (0.5, 1.0)
    assert (found["mean_50"], found["mean_90"]) == (0.25, 0.75)
    assert found["width"] == pytest.approx(1.0)  # of 1, 1, 2 and 1
    assert found["rms_error"] == pytest.approx(math.sqrt((0.0 + 1.0 + 25.0 + 1.0) / 4.0))
    assert found["errors"] == "0 1 5 1"


def test_an_interval_that_is_not_finite_holds_nothing():
    reference = reference_of([0.0, 0.0], [1.0, 1.0])
    quantiles = quantiles_of(np.zeros(2), np.ones(2))
    quantiles[3, 1] = math.inf
    found = measures(np.zeros(2), quantiles, np.zeros(2), reference)
    assert (found["truth_50"], found["truth_90"]) == (1.0, 0.5)
    assert math.isnan(found["width"])
    assert math.isnan(found["rms_error"])


# ------------------------------------------------------------------------------------------------------- cells


@pytest.fixture
def stand_in(monkeypatch):
    """A sampler that draws from a normal around the mean of the posterior without noise."""

    def sample(cell, made, reference):
        if cell.epsilon < 0.5:
            raise BudgetExceededError("epsilon is too small")
        generator = np.random.default_rng(cell.run_seed)
        points = reference.mean + reference.sd * generator.standard_normal((2, 500, len(reference.mean)))
        with jax.enable_x64(True):
            draws = {
                name: np.asarray(value) for name, value in jax.vmap(jax.vmap(made.model.constrain))(points).items()
            }
        privacy = SimpleNamespace(private=False, mode="not private: seeded", versions={"dpmcmc": "0", "jax": "0"})
        warned = ("R̂ is 2",) if cell.sampler == "dp-hmc" else ()
        return SimpleNamespace(
            draws=draws, privacy=privacy, quality=None, warnings=warned, acceptance_rate=0.5, of_chains=False
        )

    monkeypatch.setattr(coverage, "sample", sample)


def test_cells_are_filed_and_read_again(stand_in, tmp_path):
    """A run needs the posterior without noise; both are filed under their settings, and runs that are refused too."""
    (tmp_path / "cells").mkdir()
    cell = CoverageCell("banana", 4.0, 0, sampler="dp-hmc")
    with pytest.raises(cells.CellError, match="without noise of banana 1 is not there"):
        coverage.finish_cell(cell, tmp_path, None)
    exact = coverage.posterior_cell(cell)
    row = coverage.finish_cell(exact, tmp_path, "abc")
    assert (row["mean_90"], row["width"], row["warned"], row["method"]) == (1.0, 1.0, 0.0, "exact")
    found = coverage.read_reference(cell, tmp_path)
    expected = compute_reference("banana", 0)
    for one, other in zip(found[:-1], expected[:-1], strict=True):
        np.testing.assert_array_equal(one, other)
    assert not cells.has_result(tmp_path, cell)
    row = coverage.finish_cell(cell, tmp_path, "abc")
    assert set(row) == set(coverage_results.COLUMNS)
    assert (row["warned"], row["reasons"], row["refused"], row["mean_90"]) == (1.0, "R̂ is 2", 0.0, 1.0)
    refused = dataclasses.replace(cell, epsilon=0.1)
    row = coverage.finish_cell(refused, tmp_path, "abc")
    assert set(row) == set(coverage_results.COLUMNS)
    assert (row["refused"], row["warned"], row["reasons"]) == (1.0, 0.0, "epsilon is too small")
    for done in (exact, cell, refused):
        assert cells.has_result(tmp_path, done)
    for changes in ({"repeat": 1}, {"sampler": "dp-penalty"}, {"epsilon": 1.0}, {"seed": 1}):
        assert not cells.has_result(tmp_path, dataclasses.replace(cell, **changes))
    table = coverage_results.collect(tmp_path, 0)
    assert list(zip(table["sampler"], table["epsilon"], strict=True)) == [
        (POSTERIOR, math.inf),
        ("dp-hmc", 0.1),
        ("dp-hmc", 4.0),
    ]
    assert coverage_results.collect(tmp_path, 1).empty
    coverage_results.write_tables(tmp_path, table)
    pd.testing.assert_frame_equal(tables.read_csv(tmp_path / "results.csv"), table, check_dtype=False)
    assert page.read_table(tmp_path)[0] == "coverage"


def test_only_what_is_missing_is_run(tmp_path):
    """A second call of the runner runs nothing; of more data sets, only the new ones are missing."""
    (tmp_path / "cells").mkdir()
    these = [CoverageCell("banana", math.inf, number, sampler=POSTERIOR) for number in range(3)]
    for cell in these[:2]:
        coverage.finish_cell(cell, tmp_path, None)
    again = runner.run_cells(these[:2], tmp_path, work=coverage.finish_cell, finished=cells.has_result)
    assert (again.skipped, again.finished, again.failed) == (2, 0, [])
    assert [cell.repeat for cell in these if not cells.has_result(tmp_path, cell)] == [2]


def test_a_stopped_study_is_balanced():
    """Cells are taken in the order of their work: ten data sets of each kind with all samplers before the next ten."""
    these = coverage.cells_of(list(SAMPLERS), [1.0, 4.0], 150, 0)
    assert len(these) == len(SAMPLERS) * 2 * 150
    of_a_kind = [cell.name for cell in these if cell.case == "banana"]
    assert len(set(of_a_kind)) == len(of_a_kind)
    these.sort(key=lambda cell: (cell.work(), -cell.repeat), reverse=True)
    half = these[: len(these) // 3]
    assert {cell.repeat for cell in half} == set(range(10))
    counts = pd.Series([(cell.case, cell.sampler, cell.epsilon) for cell in half]).value_counts()
    assert set(counts) == {10}
    assert len(counts) == len(KINDS) * len(SAMPLERS) * 2


# ------------------------------------------------------------------------------------------- tables, statements


def row_of(sampler, epsilon, number, **changes):
    row = dict.fromkeys(coverage_results.COLUMNS, 1.0)
    row |= {"case": KINDS[number % len(KINDS)], "sampler": sampler, "epsilon": epsilon, "repeat": number // len(KINDS)}
    row |= {"num_records": 10_000, "dimension": 2, "refused": 0.0, "warned": 0.0, "study_seed": 0, "seed": number}
    row |= dict.fromkeys(("truth_50", "mean_50"), 0.5) | dict.fromkeys(("truth_90", "mean_90"), 1.0)
    row |= dict.fromkeys(("reasons", "returned", "errors", "privacy", "dpmcmc", "jax", "commit"), "")
    return row | {"method": "exact", "privacy": "not private: seeded"} | changes


def table_of(*rows):
    return pd.DataFrame(list(rows), columns=list(coverage_results.COLUMNS))


def test_counts_by_hand():
    """Four data sets: one refused, one warned of; shares are over data sets, with the error of a mean of those."""
    refused = dict.fromkeys(("truth_50", "truth_90", "mean_50", "mean_90", "width", "rms_error"), math.nan)
    table = table_of(
        row_of("dp-hmc", 1.0, 0, truth_90=1.0, width=1.0),
        row_of("dp-hmc", 1.0, 1, truth_90=0.5, width=2.0, errors="-7 1 -7"),
        row_of("dp-hmc", 1.0, 2, truth_90=0.0, width=9.0, warned=1.0, reasons="R̂ is 2; Privacy noise"),
        row_of("dp-hmc", 1.0, 5, refused=1.0, **refused),
    )
    summary = coverage_results.summarise(table)
    row = summary[summary["case"] == "all"].iloc[0]
    assert (row["runs"], row["refused"], row["warned"], row["not_warned"]) == (4, 1, 1, 2)
    assert row["truth_90"] == pytest.approx(0.5)
    assert row["truth_90_error"] == pytest.approx(0.5 / math.sqrt(3.0))
    assert row["truth_90_not_warned"] == pytest.approx(0.75)
    assert row["truth_90_not_warned_error"] == pytest.approx(math.sqrt(0.125) / math.sqrt(2.0))
    assert row["width_median"] == 2.0
    assert row["missed"] == 0
    assert _missed(table, rms_error=5.0) == 2  # not the one that was warned of
    assert _missed(table, rms_error=3.0) == 1  # more than twice a width of 1, less than twice one of 2
    assert _missed(table, rms_error=math.nan) == 2  # nothing that is finite
    text = "\n".join(coverage_results.sections(table, DOCS))
    whole = (
        "| DPHMC, ε = 1 | 4 | 1 | 1 | 50.0 ± 0.0 % | 50.0 ± 28.9 % | 50.0 ± 0.0 % | 100.0 ± 0.0 % | 2.000 | 1.000 | "
    )
    assert whole + "50.0 ± 0.0 % | 75.0 ± 25.0 % | 0 | 1 | 1.0 |" in text
    assert "| DPHMC, ε = 1 | 100.0 % (0 + 1 refused) | 50.0 % (0) | 0.0 % (1) |" in text
    assert "| DPHMC, ε = 1 | 1 | 1 | 1 | 0 |" in text
    assert (
        "| DPHMC, ε = 1 | 5.000 – 5.000 | 7.000 – 7.000 |" in text
    )  # linear; no data set of the other kind with a scale
    assert "nan" not in text


def _missed(table, **changes):
    summary = coverage_results.summarise(table.assign(**changes))
    return summary[summary["case"] == "all"].iloc[0]["missed"]


def verdicts(table):
    return [statement.verdict for statement in coverage_results.statements_of(table)]


def test_statements_hold_and_fail():
    assert verdicts(table_of()) == ["not tested"] * 5
    nominal = [row_of(POSTERIOR, math.inf, n, truth_50=float(n % 2), truth_90=float(n % 10 != 0)) for n in range(100)]
    assert verdicts(table_of(*nominal))[0] == "holds"
    assert verdicts(table_of(*(row | {"truth_90": row["truth_50"]} for row in nominal)))[0] == "does not hold"
    good = [row_of("auto", 1.0, n, truth_50=float(n % 2), truth_90=0.8 + 0.2 * (n % 2)) for n in range(20)]
    low = [row_of("auto", 1.0, n, truth_90=0.86) for n in range(20)]
    bad = [row_of("auto", 1.0, n, truth_90=0.8) for n in range(20)]
    warned = [row | {"warned": 1.0} for row in bad]
    assert verdicts(table_of(*good)) == ["not tested", "holds", "holds", "not tested", "holds"]
    assert verdicts(table_of(*low)) == ["not tested", "holds", "does not hold", "not tested", "holds"]
    assert verdicts(table_of(*bad)) == ["not tested", "does not hold", "does not hold", "not tested", "does not hold"]
    assert verdicts(table_of(*warned)) == ["not tested"] * 4 + ["does not hold"]
    chain = [row | {"sampler": "dp-sgld"} for row in bad]
    assert verdicts(table_of(*chain)) == ["not tested"] * 3 + ["does not hold", "not tested"]
    assert verdicts(table_of(*chain[1:])) == ["not tested"] * 5  # too few


@pytest.mark.parametrize(("aware", "verdict"), [(True, "holds"), (False, "does not hold")])
def test_intervals_that_leave_the_noise_out_cover_less(aware, verdict):
    """Centres with noise of one posterior sd: intervals that know of it cover 90 %, others (the twin) 75.5 %.

    Of 400 × 5 independent numbers, the bar of 85 % is 7.5 standard errors below the one and 9.9 above the other: a
    false verdict comes less than once in 1e12.
    """
    generator = np.random.default_rng(0)
    reference = reference_of(np.zeros(5), np.ones(5))
    rows = []
    for number in range(400):
        center = generator.standard_normal(5)
        quantiles = quantiles_of(center, np.full(5, math.sqrt(2.0) if aware else 1.0))
        rows.append(row_of("auto", 1.0, number) | measures(center, quantiles, generator.standard_normal(5), reference))
    table = table_of(*rows)
    assert verdicts(table)[1] == verdict
    summary = coverage_results.summarise(table).iloc[0]
    expected = 0.9 if aware else 0.7552
    # The standard error over data sets is that of independent numbers, since here they are.
    assert summary["truth_90_error"] == pytest.approx(math.sqrt(expected * (1.0 - expected) / 2000), rel=0.3)
    assert "| auto, ε = 1 | 400 | 0 | 0 | " in coverage_results.sections(table, DOCS)[1]
    assert str(coverage_results.share_of(table["truth_90"])) in coverage_results.sections(table, DOCS)[1]


# ---------------------------------------------------------------------------------------------------- commands


def run(*arguments, code=0):
    result = RUNNER.invoke(commands.app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def asked(monkeypatch):
    """Cells that are asked for, none of which is run."""
    found = []
    monkeypatch.setattr(commands, "_coverage_study", lambda cells, out, jobs, seed: found.extend(cells))
    return found


def test_what_is_run(asked, tmp_path):
    run("coverage", "--out", tmp_path)
    assert len(asked) == 200 * 2 * len(SAMPLERS)
    assert pd.Series([cell.case for cell in asked]).value_counts().nunique() == 1
    asked.clear()
    run(
        "coverage",
        "--out",
        tmp_path,
        "--fast",
        "--sampler",
        "auto",
        "--sampler",
        "dp-sgld",
        "--epsilon",
        2,
        "--seed",
        3,
    )
    assert len(asked) == 10 * 2
    assert {(cell.sampler, cell.epsilon, cell.seed) for cell in asked} == {("auto", 2.0, 3), ("dp-sgld", 2.0, 3)}
    asked.clear()
    run("coverage", "--out", tmp_path, "--data-sets", 3, "--sampler", "auto", "--epsilon", 1)
    assert [(cell.case, cell.repeat) for cell in asked] == [(kind, 0) for kind in KINDS[:3]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data-sets", 0], "--data-sets is 0; give a whole number from 1 to 9999"),
        (["--sampler", "nuts"], "--sampler is 'nuts', which is unknown; give one of auto, dp-laplace"),
        (["--epsilon", -1], "--epsilon is -1.0; give positive finite numbers"),
    ],
)
def test_refusals(arguments, words, asked, tmp_path):
    lines = run("coverage", "--out", tmp_path, *arguments, code=2).stderr.splitlines()
    assert len(lines) == 1
    assert words in lines[0]
    assert asked == []


def test_the_page(tmp_path):
    """From a finished folder; it counts runs, and not the posteriors that they are compared with."""
    posteriors = [row_of(POSTERIOR, math.inf, number, privacy="") for number in range(5)]
    table = table_of(*posteriors, *(row_of("auto", epsilon, number) for epsilon in (1.0, 4.0) for number in range(5)))
    out = tmp_path / "out"
    out.mkdir()
    commands._coverage_files(out, table)
    commands._log(out, "coverage", 10, runner.Outcome(finished=10, seconds=3600.0))
    target = tmp_path / "coverage.md"
    target.write_text(f"before\n\n{page.BEGIN}\nof last time\n{page.END}\n\nafter\n")
    run("report", out, "--to", target)
    text = target.read_text()
    assert "of last time" not in text
    assert "10 runs of 10000 records, study seed 0; not private: seeded" in text
    assert "| the posterior without noise | 5 | 0 | 0 | 50.0 ± 0.0 % | 100.0 ± 0.0 % | – | – |" in text
    assert "| auto, ε = 4 | 5 | 0 | 0 |" in text
    assert {item["verdict"] for item in json.loads((out / "statements.json").read_text())} >= {
        "not tested",
        "does not hold",
    }
    assert not (tmp_path / "coverage").exists()  # no figures


def test_the_page_has_its_markers():
    text = (DOCS / "coverage.md").read_text()
    assert text.count(page.BEGIN) == text.count(page.END) == 1


@pytest.mark.slow
def test_a_study_from_beginning_to_end(tmp_path):
    """Two data sets in a worker, with real samplers; the second time nothing is run."""
    options = ["--out", tmp_path / "out", "--data-sets", 2, "--epsilon", 4, "--workers", 1]
    options += ["--sampler", "dp-laplace", "--sampler", "dp-penalty-started"]
    result = run("coverage", *options)
    assert "4 runs on synthetic and public records" in result.stderr
    table = tables.read_csv(tmp_path / "out" / "results.csv")
    assert list(table["sampler"]) == [POSTERIOR] * 2 + ["dp-laplace"] * 2 + ["dp-penalty-started"] * 2
    assert set(table.loc[table["sampler"] != POSTERIOR, "privacy"]) == {"not private: seeded"}
    runs = table[table["sampler"] == "dp-laplace"]
    assert (runs["rms_error"] < 10.0).all()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").iterdir()}
    run("coverage", *options)
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").iterdir()}
