"""The settings: the paper's iteration counts come out, and those of its accountant."""

import json
from pathlib import Path

import pytest

import dpmcmc
from studies import settings
from studies.cells import Cell, authors_steps

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "accounting.json").read_text())
AUTHORS = VECTORS["max_iterations_delta1e-6_q0.01"]["rows"]
BATCHES = {
    "SGLD-gauss": [("gaussian", "dp-sgld")],
    "SGNHT-gauss": [("gaussian", "dp-sgnht")],
    "SGLD-banana": [("banana", "dp-sgld"), ("banana", "dp-sgnht")],
}
TOTALS = {  # method and paper: iterations in all chains at ε = 4 and 15
    ("banana", "dp-hmc"): (377, 3569),
    ("gaussian", "dp-hmc"): (227, 2154),
    ("banana", "dp-penalty"): (2028, 19180),
    ("gaussian", "dp-penalty"): (175, 1659),
}


@pytest.mark.parametrize(("model", "row"), TOTALS)
def test_iterations_are_the_papers(model, row):
    for epsilon, total in zip((4.0, 15.0), TOTALS[model, row], strict=True):
        steps, thin = Cell("comparison", model, row, epsilon, 0).steps()
        assert total // 4 - 1 <= steps <= total // 4
        assert thin == 1


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("epsilon", [2, 4, 8, 15])
def test_the_papers_accountant(name, epsilon):
    """What the authors' own library says, up to the search tolerance of the vectors (0.05 %) and one iteration."""
    expected = AUTHORS[name][str(epsilon)][0]
    for model, row in BATCHES[name]:
        sampler = settings.make_sampler(settings.ROWS[row], model, settings.NUM_RECORDS)
        batch = sampler.queries(settings.NUM_RECORDS).gradient
        assert batch.noise_ratio / 2 == pytest.approx(AUTHORS[name]["sigma"], rel=1e-12)
        found = authors_steps(batch.noise_ratio, 0.01, float(epsilon), 1e-6)
        assert abs(found - expected) <= 5e-4 * expected + 1


@pytest.mark.parametrize(("model", "row", "thin"), [("gaussian", "dp-sgld", 1), ("banana", "dp-sgnht", 5)])
def test_minibatch_rows_at_epsilon_4(model, row, thin):
    """The paper's count is within what this package's accountant allows, and chains are thinned to about 5000."""
    cell = Cell("comparison", model, row, 4.0, 0)
    own = Cell("comparison", model, f"{row}-tight", 4.0, 0)
    steps, own_steps = cell.steps(), own.steps()
    assert steps[1] == thin
    assert 1.5 * steps[0] < own_steps[0]
    for number, kept in (steps, own_steps):
        assert 5000 <= number // kept < 10_000 or kept == 1


def test_rows():
    paper = [name for name, row in settings.ROWS.items() if row.in_paper]
    assert paper == ["dp-hmc", "dp-penalty", "dp-sgld", "dp-sgnht"]
    assert len({row.label for row in settings.ROWS.values()}) == len(settings.ROWS)
    hmc = settings.make_sampler(settings.ROWS["dp-hmc"], "banana", settings.NUM_RECORDS)
    assert (hmc.leapfrog, hmc.jitter, hmc.num_leapfrog) == ("momentum_first", "halton_from_zero", 25)
    default = settings.make_sampler(settings.ROWS["dp-hmc-default"], "banana", settings.NUM_RECORDS)
    assert (default.leapfrog, default.jitter) == ("position_first", "halton")
    temperatures = {
        name: settings.make_sampler(row, "gaussian", settings.NUM_RECORDS).temperature
        for name, row in settings.ROWS.items()
        if row.sampler == "dp-sgld"
    }
    assert temperatures == {"dp-sgld": 0.5, "dp-sgld-t1": 1.0, "dp-sgld-tight": 0.5, "dp-sgld-t1-tight": 1.0}


@pytest.mark.parametrize("model", settings.MODELS)
def test_another_number_of_records_scales_moves_and_batches(model):
    def arguments(row, num_records):
        return settings.make_sampler(settings.ROWS[row], model, num_records)

    assert arguments("dp-sgld", 1000).batch_size == 10
    assert arguments("dp-hmc", 1000).step_size == pytest.approx(10.0 * arguments("dp-hmc", 100_000).step_size)
    ratio = arguments("dp-penalty", 1000).proposal_scale / arguments("dp-penalty", 100_000).proposal_scale
    assert ratio == pytest.approx(10.0)


def test_clipping_settings():
    sampler, steps = settings.make_clipping_sampler("hmc", "banana", 0.05, settings.NUM_RECORDS)
    expected = dpmcmc.HMC(
        0.01, 100, ratio_bound=0.05, gradient_clip_norm=10.0, leapfrog="momentum_first", jitter="halton_from_zero"
    )
    assert (sampler, steps) == (expected, 1000)
    sampler, steps = settings.make_clipping_sampler("rwmh", "gaussian", 5.0, settings.NUM_RECORDS)
    assert (sampler, steps) == (dpmcmc.RWMH(0.0007, ratio_bound=5.0), 25_000)
    assert all(len(described.bounds) == 9 for described in settings.CLIPPING.values())
