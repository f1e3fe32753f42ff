"""One cell: what it is filed under, what it shares with others, its row, and what it must never be called."""

import itertools
import json
import math

import numpy as np
import pytest

import dpmcmc
from studies import cells, settings, tables
from studies.cells import Cell

SMALL = 2000


def test_names_and_seeds_tell_cells_apart():
    first = Cell("comparison", "banana", "dp-hmc", 4.0, 0)
    others = [
        Cell("comparison", "gaussian", "dp-hmc", 4.0, 0),
        Cell("comparison", "banana", "dp-hmc-default", 4.0, 0),
        Cell("comparison", "banana", "dp-hmc", 6.0, 0),
        Cell("comparison", "banana", "dp-hmc", 4.0, 1),
        Cell("comparison", "banana", "dp-hmc", 4.0, 0, num_records=SMALL),
        Cell("comparison", "banana", "dp-hmc", 4.0, 0, seed=1),
        Cell("clipping", "banana", "hmc", 0.1, 0),
    ]
    assert len({cell.name for cell in [first, *others]}) == 8
    assert len({cell.run_seed for cell in [first, *others]}) == 8
    assert first.name.startswith("comparison-banana-dp-hmc-4-00-")
    assert Cell.from_dict(json.loads(json.dumps(first.specification()))) == first


def test_a_change_of_settings_changes_the_name(monkeypatch):
    cell = Cell("comparison", "banana", "dp-penalty", 4.0, 0)
    before = cell.name, cell.run_seed
    changed = settings.Row("DP-penalty", "dp-penalty", changes={"proposal_scale": 0.07}, in_paper=True)
    monkeypatch.setitem(settings.ROWS, "dp-penalty", changed)
    assert cell.run_seed == before[1]
    assert cell.name != before[0]


def test_data_reference_and_starting_points():
    """One data set for all repeats; starting points that depend on the repeat alone, as wide as the posterior."""
    problem = cells.make_problem("gaussian", SMALL, 0)
    assert problem.data.shape == (SMALL, 10)
    assert problem.reference.shape == (1000, 10)
    np.testing.assert_array_equal(problem.data, cells.make_problem.__wrapped__("gaussian", SMALL, 0).data)
    assert np.any(problem.data != cells.make_problem.__wrapped__("gaussian", SMALL, 1).data)
    starts = np.array([problem.start(repeat) for repeat in range(200)])
    assert len(np.unique(starts[:, 0, 0])) == 200
    center = np.eye(10)[1] * 3.0
    # 800 starting points: the mean of each coordinate has a standard error of s/28, its sd one of s/40.
    spread = problem.reference.std(axis=0).mean()
    assert np.all(np.abs(starts.mean(axis=(0, 1)) - center) < 5.0 * spread / math.sqrt(800))
    assert np.all(np.abs(starts.std(axis=(0, 1)) - spread) < 5.0 * spread / math.sqrt(1600))


@pytest.fixture(scope="module")
def penalty():
    cell = Cell("comparison", "banana", "dp-penalty", 15.0, 1, SMALL)
    return cell, *cells.run_cell(cell, "abc")


def test_a_row(penalty):
    cell, row, draws = penalty
    assert set(tables.columns("comparison")) <= set(row)
    assert draws.shape == (4, row["iterations_per_chain"] - row["iterations_per_chain"] // 2, 2)
    assert row["iterations"] == 4 * row["iterations_per_chain"]
    assert row["kept_draws"] == draws.shape[0] * draws.shape[1]
    assert (row["epsilon"], row["repeat"], row["num_records"]) == (15.0, 1, SMALL)
    assert (row["sampler"], row["label"], row["accountant"]) == ("dp-penalty", "DP-penalty", "gaussian")
    assert (row["seed"], row["study_seed"], row["commit"]) == (cell.run_seed, 0, "abc")
    assert row["privacy"] == "not private: seeded"
    for name in ("mmd", "mean_error", "max_r_hat", "acceptance", "ratios_clipped"):
        assert math.isfinite(row[name])
    assert math.isnan(row["gradients_clipped"])
    assert 0.0 < row["ratios_clipped"] < 1.0
    assert 0.0 < row["seconds_sampling"] <= row["seconds"]


def test_clipped_ratios_are_those_of_the_accepted_moves(penalty):
    cell, row, draws = penalty
    data, bound = cells.make_problem("banana", SMALL, 0).data, cell.sampler.ratio_bound

    def log_likelihood(theta):
        location = np.array([theta[0], theta[1] + 20.0 * theta[0] ** 2])
        return -0.5 * np.sum((data - location) ** 2 / [2000.0, 2500.0], axis=1)

    fractions = [
        np.mean(np.abs(log_likelihood(after) - log_likelihood(before)) > bound * np.linalg.norm(after - before))
        for chain in draws
        for before, after in itertools.pairwise(chain)
        if np.any(before != after)
    ]
    assert len(fractions) <= 160  # so that none was left out
    assert row["ratios_clipped"] == pytest.approx(np.mean(fractions), abs=1e-12)


def test_files(penalty, tmp_path, monkeypatch):
    cell, row, draws = penalty
    monkeypatch.setattr(cells, "run_cell", lambda cell, commit: (row, draws))
    (tmp_path / "cells").mkdir()
    assert not cells.is_finished(tmp_path, cell)
    cells.finish_cell(cell, tmp_path, "abc")
    assert cells.is_finished(tmp_path, cell)
    found, read = cells.read_row(cells.result_file(tmp_path, cell))
    assert found == cell
    assert all(read[name] == value or (math.isnan(read[name]) and math.isnan(value)) for name, value in row.items())
    np.testing.assert_allclose(cells.read_draws(tmp_path, cell), draws, rtol=1e-6)
    assert [file.suffix for file in sorted((tmp_path / "cells").iterdir())] == [".json", ".npz"]
    table, _ = tables.collect(tmp_path, "comparison", SMALL, 0)
    assert list(table) == tables.columns("comparison")
    assert len(table) == 1
    assert_nothing_collected(tmp_path, seed=1)
    cells.result_file(tmp_path, cell).write_text("{half a fi")
    assert not cells.is_finished(tmp_path, cell)


def assert_nothing_collected(folder, seed):
    table, found = tables.collect(folder, "comparison", SMALL, seed)
    assert table.empty
    assert found == []


def test_results_of_other_settings_are_left_out(penalty, tmp_path, monkeypatch):
    cell, row, draws = penalty
    monkeypatch.setattr(cells, "run_cell", lambda cell, commit: (row, draws))
    (tmp_path / "cells").mkdir()
    cells.finish_cell(cell, tmp_path, None)
    monkeypatch.setattr(cells, "_FORMAT", 99)
    assert not cells.is_finished(tmp_path, cell)
    assert_nothing_collected(tmp_path, seed=0)


def test_a_cell_without_noise(monkeypatch):
    """RWMH reports the clipped ratios of all proposals: between none at a large bound and all at a tiny one."""
    short = settings.ClippingSettings(
        (0.01, 10.0), settings.HMCSettings(0.01, 2, 10.0, 20), settings.RWMHSettings(0.3, 200)
    )
    monkeypatch.setitem(settings.CLIPPING, "banana", short)
    rows = {
        bound: cells.run_cell(Cell("clipping", "banana", "rwmh", bound, 0, SMALL))[0] for bound in (0.001, 0.1, 1e9)
    }
    assert rows[1e9]["ratios_clipped"] == 0.0
    assert 0.0 < rows[0.1]["ratios_clipped"] < rows[0.001]["ratios_clipped"] <= 1.0
    assert rows[0.1]["privacy"] == "not private: no noise"
    assert set(tables.columns("clipping")) <= set(rows[0.1])
    assert rows[0.1]["iterations_per_chain"] == 200


def test_an_interrupted_run_is_no_result(monkeypatch, penalty):
    """`sample` returns what it has on Ctrl-C: such a run is shorter than planned."""
    whole = dpmcmc.sample
    monkeypatch.setattr(
        dpmcmc, "sample", lambda *arguments, **options: whole(*arguments, **(options | {"num_steps": 50}))
    )
    with pytest.raises(cells.CellError, match="interrupted"):
        cells.run_cell(penalty[0])


def test_a_budget_that_buys_too_little_says_so():
    with pytest.raises(dpmcmc.errors.QueryError, match=r"epsilon = 0.5 and 2,000 records buy dp-hmc 0 iterations"):
        Cell("comparison", "banana", "dp-hmc", 0.5, 0, SMALL).steps()


def test_draws_that_diverged_have_no_distance():
    draws = np.full((4, 10, 2), np.nan)
    assert all(math.isnan(value) for value in cells.scores(draws, np.zeros((10, 2)), 1).values())


@pytest.mark.parametrize("model", settings.MODELS)
def test_work_is_about_in_proportion(model):
    """Longer runs are known to be longer; the estimate for batches is within a tenth of what is run at ε = 4."""
    work = {eps: Cell("comparison", model, "dp-sgld", eps, 0).work() for eps in (2.0, 4.0, 15.0)}
    assert work[2.0] < work[4.0] < work[15.0]
    steps, _ = Cell("comparison", model, "dp-sgld", 4.0, 0).steps()
    dimension = settings.make_model(model).dimension
    expected = 4 * steps * 1000 * cells._BATCH_WEIGHT * dimension
    assert work[4.0] - cells._FIXED_WORK == pytest.approx(expected, rel=0.1)
