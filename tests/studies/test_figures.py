"""Every figure is written, as PDF and PNG, also from tables with gaps."""

import math

import pytest

import dpmcmc
from studies import figures, settings
from tests.studies import made_up


def written(figure, folder):
    paths = figures.write_figure(figure, folder / "figure")
    assert [path.suffix for path in paths] == [".pdf", ".png"]
    assert paths[0].read_bytes().startswith(b"%PDF")
    assert paths[1].read_bytes().startswith(b"\x89PNG")


def texts(figure):
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return legends, [axis.get_ylabel() for axis in figure.axes]


def with_gaps():
    table = made_up.comparison()
    table = table[(table["sampler"] != "dp-sgld") | (table["epsilon"] != 8.0)].reset_index(drop=True)
    table.loc[::7, "mmd"] = math.nan
    return table


@pytest.mark.parametrize("table", [made_up.comparison(), with_gaps()], ids=["full", "gaps"])
def test_comparison(table, tmp_path):
    figure = figures.comparison_figure(table)
    legends, labels = texts(figure)
    assert legends == [row.label for row in settings.ROWS.values() if row.figure == "main"]
    assert len(labels) == 4
    written(figure, tmp_path)
    legends, _ = texts(figures.comparison_figure(table, "variants"))
    assert len(legends) == 6


def test_full_version_has_six_panels(tmp_path):
    figure = figures.full_figure(made_up.comparison(), "gaussian")
    assert len(set(texts(figure)[1])) == 6
    written(figure, tmp_path)


def test_posteriors(tmp_path):
    runs = {
        label: {name: made_up.banana_draws(seed) for seed, name in enumerate(("best", "median", "worst"))}
        for label in ("DP-HMC", "DP-penalty")
    }
    runs["DP-penalty"]["worst"][:] = [0.1, 3.0]  # a chain that never moved
    model = dpmcmc.models.Banana()
    data = made_up.banana_draws(5)
    figure = figures.posterior_figure(runs, model, data)
    assert len(figure.axes) == 6
    written(figure, tmp_path)


def test_clipping(tmp_path):
    figure = figures.clipping_figure(made_up.clipping())
    assert len(figure.axes) == 4
    written(figure, tmp_path)
    assert len(figures.clipping_figure(made_up.clipping(models=["banana"])).axes) == 2
