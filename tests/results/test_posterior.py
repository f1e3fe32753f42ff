"""The posterior keeps its shapes, refuses what was not released, and says "not private" wherever it is shown."""

import io
import json
import logging
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import xarray

from dpmcmc.errors import DPMCMCWarning, NotPrivateError, ResultError
from dpmcmc.privacy import PrivacyStatement
from dpmcmc.results import arviz_bridge, summary_table
from tests.results.cases import STATEMENTS, assert_same, group_names, make_posterior

NOT_PRIVATE = {"seeded": "not private: seeded", "noise-free": "not private: no noise"}


def test_shapes_and_counts():
    posterior = make_posterior(num_chains=3, num_draws=7, num_warmup=5)
    assert (posterior.num_chains, posterior.num_draws, posterior.num_warmup) == (3, 7, 5)
    assert posterior.draws["sigma"].shape == (3, 7)
    assert posterior.draws["beta"].shape == (3, 7, 3)
    assert posterior.warmup_draws["covariance"].shape == (3, 5, 2, 2)


def test_acceptance_rate_is_that_after_warm_up():
    accepted, rejected = np.ones((4, 50), bool), np.zeros((4, 20), bool)
    posterior = make_posterior(sample_stats={"acceptance_rate": accepted}, warmup_stats={"acceptance_rate": rejected})
    assert posterior.acceptance_rate == 1.0
    assert make_posterior(sample_stats={}).acceptance_rate is None


def test_draws_cannot_be_changed():
    posterior = make_posterior()
    with pytest.raises(ValueError, match="read-only"):
        posterior.draws["sigma"][0, 0] = 1.0
    with pytest.raises(TypeError):
        posterior.sample_stats["energy"] = np.zeros((4, 50))
    with pytest.raises(AttributeError):
        posterior.privacy = STATEMENTS["private"]


@pytest.mark.parametrize("name", ["energy", "log_likelihood", "lp", "clip_fraction"])
@pytest.mark.parametrize("group", ["sample_stats", "warmup_stats"])
@pytest.mark.parametrize("kind", ["private", "seeded"])
def test_statistics_that_were_not_released_are_refused(name, group, kind):
    number = 50 if group == "sample_stats" else 20
    with pytest.raises(NotPrivateError, match=name):
        make_posterior(kind, **{group: {name: np.zeros((4, number))}})


@pytest.mark.parametrize(
    "changes",
    [
        {"draws": {}},
        {"draws": {"x": np.zeros(5)}},
        {"draws": {"x": np.zeros((2, 0))}},
        {"draws": {"x": np.zeros((2, 5)), "y": np.zeros((2, 6))}},
        {"draws": {"x": np.full((2, 5), None)}},
        {"draws": {"": np.zeros((2, 5))}},
        {"warmup_draws": {"sigma": np.zeros((4, 20))}},
        {
            "warmup_draws": {
                "sigma": np.zeros((3, 2)),
                "beta": np.zeros((3, 2, 3)),
                "covariance": np.zeros((3, 2, 2, 2)),
            }
        },
        {
            "warmup_draws": {
                "sigma": np.zeros((4, 2)),
                "beta": np.zeros((4, 2, 5)),
                "covariance": np.zeros((4, 2, 2, 2)),
            }
        },
        {"sample_stats": {"acceptance_rate": np.zeros((4, 49))}},
        {"sample_stats": {"step_size": np.zeros(4)}},
        {"dims": {"beta": ["a", "b"]}},
        {"dims": {"beta": ["draw"]}, "coords": {}},
        {"dims": {"gamma": ["a"]}, "coords": {}},
        {"dims": {"covariance": ["a", "a"]}, "coords": {}},
        {"dims": {"beta": ["a"], "covariance": ["a", "b"]}, "coords": {}},
        {"dims": {"beta": ["a/b"]}, "coords": {}},
        {"coords": {"coefficient": ["age"]}},
        {"coords": {"other": ["age"]}},
        {"privacy": "private"},
    ],
)
def test_what_does_not_fit_is_refused(changes):
    with pytest.raises(ResultError):
        make_posterior(**changes)


def test_text_names_the_run():
    text = str(make_posterior("private"))
    for part in (
        "logistic regression",
        "DP-HMC",
        "4 chains × 50 draws",
        "acceptance 0.",
        "PRIVATE (private",
        "ε = 1.0",
    ):
        assert part in text, part
    assert "NOT PRIVATE" not in text


@pytest.mark.parametrize(("kind", "label"), NOT_PRIVATE.items())
def test_not_private_is_said_everywhere(kind, label):
    posterior = make_posterior(kind)
    data = posterior.to_arviz()
    summary = posterior.summary()
    assert label in repr(posterior)
    assert f"NOT PRIVATE ({label})" in str(posterior)
    assert posterior.privacy.mode == label
    for attributes in (data.attrs, *(data[group].attrs for group in group_names(data)), summary.attrs):
        assert attributes["mode"] == label
        assert attributes["private"] == 0
        assert json.loads(attributes["privacy"])["mode"] == label
    assert label in "\n".join(summary.to_string().splitlines()[:2])
    assert summary.to_csv().startswith(label)
    assert label in posterior.summary(fmt="long").to_string()
    assert posterior.summary(fmt="xarray").attrs["mode"] == label


def test_private_is_not_called_otherwise():
    posterior = make_posterior("private")
    data = posterior.to_arviz()
    assert data.attrs["private"] == data["posterior"].attrs["private"] == 1
    assert PrivacyStatement.from_json(data.attrs["privacy"]) == STATEMENTS["private"]
    for text in (str(posterior), repr(posterior), posterior.summary().to_string(), str(dict(data.attrs))):
        assert "not private" not in text.lower()


def test_arviz_holds_released_quantities_only():
    posterior = make_posterior()
    data = posterior.to_arviz()
    assert group_names(data) == {"posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats"}
    assert set(data["posterior"].data_vars) == set(data["warmup_posterior"].data_vars) == set(posterior.draws)
    for group in ("sample_stats", "warmup_sample_stats"):
        assert set(data[group].data_vars) == {"acceptance_rate", "step_size"}
    np.testing.assert_array_equal(data["posterior"]["beta"].values, posterior.draws["beta"])
    np.testing.assert_array_equal(data["warmup_posterior"]["sigma"].values, posterior.warmup_draws["sigma"])
    assert data["posterior"]["beta"].dims == ("chain", "draw", "coefficient")
    assert list(data["posterior"]["coefficient"].values) == ["intercept", "age", "größe"]


def test_what_is_empty_makes_no_group():
    data = make_posterior(warmup_draws={}, warmup_stats={}, sample_stats={}).to_arviz()
    assert group_names(data) == {"posterior"}


def test_summary_agrees_with_the_draws():
    posterior = make_posterior(num_draws=200)
    summary = posterior.summary(round_to="none")
    assert {"sigma", "beta[age]", "covariance[0, 1]"} <= set(summary.index)
    assert {"mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"} <= set(summary.columns)
    lower, upper = (summary.loc["sigma", name] for name in ("hdi_3%", "hdi_97%"))  # with every ArviZ
    inside = (posterior.draws["sigma"] >= lower) & (posterior.draws["sigma"] <= upper)
    assert inside.mean() == pytest.approx(0.94, abs=2 / inside.size)
    np.testing.assert_allclose(summary.loc["beta[age]", "mean"], posterior.draws["beta"][..., 1].mean(), rtol=1e-12)
    assert np.isfinite(summary.to_numpy()).all()


@pytest.mark.parametrize(
    "shape",
    [
        {"num_chains": 1},
        {"num_draws": 4},
        {"num_draws": 3},
        {"num_chains": 1, "num_draws": 1},
        {"num_warmup": 0},
        {"constant": True},
    ],
    ids=str,
)
def test_small_runs_are_summarised_without_noise_from_arviz(shape, caplog, capsys):
    posterior = make_posterior(**shape)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DPMCMCWarning)
        summary = posterior.summary()
        table = summary_table(posterior)
    assert not caplog.records
    assert capsys.readouterr().err == ""
    assert len(summary) == table.row_count == 8
    assert np.isfinite(summary["mean"]).all()
    if shape.get("num_chains") == 1:
        assert summary["r_hat"].isna().all()
    if shape.get("constant"):
        assert summary[["r_hat", "ess_bulk", "ess_tail", "mcse_mean"]].isna().all(axis=None)


def test_names_that_files_cannot_hold_are_replaced():
    draws = {name: np.random.default_rng(1).normal(size=(2, 5)) for name in ("a/b", "a.b", "chain")}
    data = make_posterior(draws=draws, warmup_draws={}, sample_stats={}, warmup_stats={}, dims={}, coords={}).to_arviz()
    assert set(data["posterior"].data_vars) == {"a.b", "a.b_", "chain_"}
    np.testing.assert_array_equal(data["posterior"]["a.b"].values, draws["a.b"])
    np.testing.assert_array_equal(data["posterior"]["a.b_"].values, draws["a/b"])


def test_a_parameter_may_be_called_as_a_statistic_or_a_dimension():
    posterior = make_posterior(
        draws={"acceptance_rate": np.zeros((4, 50, 2)), "group": np.ones((4, 50, 2))},
        warmup_draws={},
        warmup_stats={},
        dims={"acceptance_rate": ["group"], "group": ["group"]},
        coords={"group": ["u", "v"]},
    )
    data = posterior.to_arviz()
    assert set(data["posterior"].data_vars) == {"acceptance_rate_", "group_"}
    assert set(data["sample_stats"].data_vars) == {"acceptance_rate", "step_size"}


def test_table_shows_labels_and_privacy():
    from rich.console import Console

    def printed(kind):
        console = Console(file=io.StringIO(), width=80)
        console.print(summary_table(make_posterior(kind)))
        return " ".join(console.file.getvalue().split())

    assert "NOT PRIVATE (not private: seeded)" in printed("seeded")
    assert "NOT PRIVATE" not in printed("private")
    assert "ε = 1.0" in printed("private")
    assert "beta[age]" in printed("private")
    assert "…" not in printed("private")


def test_processes_can_hand_it_on():
    posterior = make_posterior()
    assert_same(pickle.loads(pickle.dumps(posterior)), posterior)


@pytest.mark.parametrize("version", ["1.0.0", "1.3.0", "2.0.0.dev0"])
def test_arviz_1_is_given_one_mapping(version, monkeypatch):
    """ArviZ 1.x needs Python 3.12; its `from_dict` is played here: one mapping in, a DataTree out."""
    calls = []

    def from_dict(data, *, save_warmup=None, coords=None, dims=None):
        calls.append(save_warmup)
        nodes = {}
        for group, variables in data.items():
            nodes[group] = xarray.Dataset(
                {
                    name: (
                        ["chain", "draw", *dims.get(name, [f"{name}_dim_{axis}" for axis in range(value.ndim - 2)])],
                        value,
                    )
                    for name, value in variables.items()
                }
            )
            used = {name: labels for name, labels in coords.items() if name in nodes[group].dims}
            nodes[group] = nodes[group].assign_coords(used)
        return xarray.DataTree.from_dict(nodes)

    monkeypatch.setattr(arviz_bridge, "import_arviz", lambda: SimpleNamespace(__version__=version, from_dict=from_dict))
    data = make_posterior().to_arviz()
    assert calls == [True]
    assert isinstance(data, xarray.DataTree)
    assert arviz_bridge.as_tree(data) is data
    assert group_names(data) == {"posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats"}
    assert data.attrs["mode"] == data["posterior"].attrs["mode"] == "not private: seeded"
