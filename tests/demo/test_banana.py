"""The demonstration: what it runs, the files it leaves and what its page says; sampling itself is stubbed."""

import json
import re
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

import dpmcmc
from dpmcmc import cli, output
from dpmcmc.demo import banana as demo
from dpmcmc.errors import ResultError
from dpmcmc.privacy import PrivacyStatement
from dpmcmc.privacy.statement import PRIVATE_MODE, SEEDED_MODE
from dpmcmc.results import Quality
from dpmcmc.results.report import COLOURS
from tests.results.pages import Page

MU = 1234 / (2 * 17.25**2) + 40 / (2 * 35.0**2)
FILES = {"posterior.nc", "dp-hmc.nc", "posterior.png", "index.html"}


@pytest.fixture
def sample_stub(monkeypatch):
    """Replace `dpmcmc.sample`; return the list of its calls."""
    calls = []

    def sample(model, data, **arguments):
        calls.append({"model": model, "data": data, **arguments})
        draws = np.random.default_rng(1).normal([0.0, 3.0], [0.1, 0.3], (arguments.get("num_chains", 4), 10, 2))
        seeded, is_auto = arguments.get("seed") is not None, "sampler" not in arguments
        return dpmcmc.Posterior(
            draws={"theta": draws},
            sample_stats={} if is_auto else {"acceptance_rate": np.full(draws.shape[:2], 0.5)},
            privacy=PrivacyStatement(
                private=not seeded,
                mode=SEEDED_MODE if seeded else PRIVATE_MODE,
                epsilon=arguments["epsilon"],
                delta=arguments["delta"],
                mu=MU,
                lattice_epsilon=1e-9,
                lattice_delta=1e-25,
                num_records=len(data),
                queries={"gradient": 1234, "log_ratio": 40},
                noise_multipliers={"gradient": 17.25, "log_ratio": 35.0},
                accountant="Gaussian <composition> & filter",
            ),
            sampler="auto" if is_auto else "DP-HMC",
            model="Banana",
            quality=Quality(
                method="auto: a curved surrogate",
                converged=True,
                rounds=9,
                noise_share={"theta": np.array([0.1, 0.2])},
                independent_draws=True,
            )
            if is_auto
            else None,
        )

    monkeypatch.setattr(dpmcmc, "sample", sample)
    return calls


def small(seed=None):
    return demo.Settings(epsilon=15.0, num_records=2000, seed=seed)


def test_settings_are_those_of_the_paper():
    assert demo.Settings().delta == 1e-6
    assert demo.Settings().sampler_arguments == {
        "step_size": 0.006,
        "num_leapfrog": 25,
        "ratio_bound": 0.1,
        "gradient_clip_norm": 0.05,
        "ratio_noise_multiplier": pytest.approx(31.6227766),
        "gradient_noise_multiplier": pytest.approx(173.9252713),
    }


def test_start_scale_is_the_mean_posterior_sd_at_the_true_parameter():
    """The mean of 1e5 draws' sds is within 5 % of it: they are off by about 1 % (data) and 0.5 % (draws)."""
    import jax

    model = dpmcmc.models.Banana()
    straight = np.array([0.0, 3.0]) + np.sqrt(1 / (100_000 / np.array(model.variances) + 1 / 1000)) * np.asarray(
        jax.random.normal(jax.random.key(0), (100_000, 2))
    )
    sds = np.std([straight[:, 0], straight[:, 1] - 20 * straight[:, 0] ** 2], axis=1)
    assert demo.Settings().start_scale == pytest.approx(sds.mean(), rel=0.05)


def test_run_hands_over_the_settings(sample_stub):
    outcome = demo.run(small(seed=7), progress=False)
    auto, paper = sample_stub
    for call in (auto, paper):
        assert call["data"].shape == (2000, 2)
        assert (call["epsilon"], call["delta"], call["seed"], call["progress"]) == (15.0, 0.1 / 2000, 7, False)
    assert "sampler" not in auto  # the default
    assert np.linalg.norm(auto["init"] - [0.0, 3.0]) == pytest.approx(1.0)
    assert np.array_equal(auto["data"], paper["data"])
    assert paper["init"].shape == (4, 2)
    assert paper["sampler"] == dpmcmc.DPHMC(**small().sampler_arguments)
    assert outcome.exact_not_private.draws.shape[1] == 2


def test_data_are_new_in_every_run_but_for_a_seed(sample_stub):
    for settings in (small(), small(), small(seed=7), small(seed=7)):
        demo.run(settings, progress=False)
    first, second, seeded, again = (call["data"] for call in sample_stub[1::2])
    assert not np.array_equal(first, second)
    assert np.array_equal(seeded, again)
    assert np.array_equal(sample_stub[5]["init"], sample_stub[7]["init"])


def test_exact_regions_and_marginals(sample_stub):
    """A region of probability p holds p of 100,000 exact draws, to within 6 sd (false failures: 1e-8)."""
    exact = demo.run(small(), progress=False).exact_not_private
    theta = exact.draws
    straight = (np.stack([theta[:, 0], theta[:, 1] + 20 * theta[:, 0] ** 2], axis=1) - exact.center) / exact.scale
    for probability in (0.5, 0.9, 0.99):
        outline = exact.region(probability)
        bent = np.stack([outline[:, 0], outline[:, 1] + 20 * outline[:, 0] ** 2], axis=1)
        radius = np.linalg.norm((bent - exact.center) / exact.scale, axis=1)
        assert np.ptp(radius) < 1e-9
        inside = np.mean(np.linalg.norm(straight, axis=1) < radius[0])
        assert abs(inside - probability) < 6 * np.sqrt(probability * (1 - probability) / len(theta))
    for coordinate in range(2):
        points = np.linspace(theta[:, coordinate].min() - 20, theta[:, coordinate].max() + 20, 20_001)
        density = exact.marginal(coordinate, points)
        weights = density * (points[1] - points[0])
        assert weights.sum() == pytest.approx(1.0, abs=1e-3)
        assert points @ weights == pytest.approx(theta[:, coordinate].mean(), abs=0.1 * theta[:, coordinate].std())


def test_command_writes_the_files_and_says_what_was_spent(sample_stub, tmp_path):
    folder = tmp_path / "a" / "b"
    result = CliRunner().invoke(
        cli.app, ["demo", "banana", "--num-records", "2000", "--epsilon", "15", "--out", str(folder)]
    )
    assert result.exit_code == 0, result.output
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / "posterior.png").read_bytes().startswith(b"\x89PNG")
    loaded = dpmcmc.Posterior.load(folder / "posterior.nc")
    assert loaded.privacy.private
    assert (loaded.sampler, dpmcmc.Posterior.load(folder / "dp-hmc.nc").sampler) == ("auto", "DP-HMC")
    for words in (
        "ε = 15: a comparison, and not one release",
        "both together would be of ε = 30",
        "a curved surrogate",
    ):
        assert words in " ".join(result.stdout.split())
    for words in ("synthetic", "MMD", "1,234 noisy sums", "exact mean", "theta[1]", "not taken", "index.html"):
        assert words in " ".join(result.stdout.split())
    assert "NOT PRIVATE" not in result.stdout


def test_a_seeded_run_says_so_everywhere(sample_stub, tmp_path):
    arguments = ["demo", "banana", "--num-records", "2000", "--epsilon", "15", "--seed", "3", "--out", str(tmp_path)]
    result = CliRunner().invoke(cli.app, arguments)
    assert "NOT PRIVATE" in result.stdout
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Not private: seeded." in text
    assert "Private draws" not in text
    assert "seed=3" in text
    report = json.loads(CliRunner().invoke(cli.app, [*arguments, "--json"]).stdout)
    assert report["private"] is False
    assert report["seed"] == 3


def test_json_report(sample_stub, tmp_path):
    result = CliRunner().invoke(
        cli.app, ["demo", "banana", "--num-records", "2000", "--epsilon", "15", "--json", "--out", str(tmp_path)]
    )
    report = json.loads(result.stdout)
    assert {path.rsplit("/")[-1] for path in report["files"]} == FILES
    assert "not one release" in report["note"]
    for name in ("auto", "dp_hmc"):
        assert report[name]["queries"] == {"gradient": 1234, "log_ratio": 40}
        assert set(report[name]["summary"]) == {"theta[0]", "theta[1]"}
        assert report["exact_mmd"] < report[name]["mmd"] < 2.0
    assert report["auto"]["method"] == "auto: a curved surrogate"


def test_page_is_sound_and_self_contained(sample_stub):
    text = demo.page(demo.run(small(), progress=False))
    page = Page(text)
    assert len(page.ids) == len(set(page.ids)) > 0
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert not re.search(r"url\((?!#)|@import|<script|<link|<img", text)
    shown = "".join(page.texts)
    assert "Gaussian <composition> & filter" in shown
    assert "<composition>" not in text
    for words in (
        "replace one",
        "one row",
        "noise multiplier τ = 17.25",
        f"μ = {MU:.6g}",
        "Acceptance",
        "dpmcmc.DPHMC(",
        "a comparison, and not one release",
        "auto: a curved surrogate",
        "MMD to the exact posterior",
    ):
        assert words in shown
    assert "prefers-color-scheme: dark" in text
    assert text.count("var(--private)") > 40  # the draws follow the theme
    assert COLOURS["private"] not in text.split("</style>")[1]


def test_the_code_of_the_page_makes_the_same_call(sample_stub, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    demo.run(small(seed=5), progress=False)
    exec(demo.code_lines(small(seed=5)), {})
    auto, ours, auto_again, theirs = sample_stub
    for name in ("epsilon", "delta", "num_chains", "seed", "sampler"):
        assert ours[name] == theirs[name]
    for name in ("data", "init"):
        assert np.array_equal(ours[name], theirs[name])
    for name in ("epsilon", "delta", "num_chains", "seed"):
        assert auto[name] == auto_again[name]
    for name in ("data", "init"):
        assert np.array_equal(auto[name], auto_again[name])
    assert (tmp_path / "posterior.nc").exists()
    assert (tmp_path / "dp-hmc.nc").exists()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "page"
    target.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        output.replace_file(target, b"new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_full_disk_is_a_plain_error(sample_stub, tmp_path, monkeypatch):
    outcome = demo.run(small(), progress=False)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(demo, "replace_file", full)
    with pytest.raises(output.OutputError, match="No space left"):
        demo.write(outcome, tmp_path)


@pytest.mark.slow
def test_a_real_run_from_end_to_end(tmp_path):
    arguments = ["demo", "banana", "--num-records", "2000", "--epsilon", "8", "--json", "--out", str(tmp_path)]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["private"] is True
    assert report["auto"]["epsilon"] == report["dp_hmc"]["epsilon"] == 8.0
    assert report["auto"]["method"].startswith("auto: ")
    assert report["dp_hmc"]["queries"]["gradient"] == 25 * report["dp_hmc"]["queries"]["log_ratio"]
    assert {path.name for path in tmp_path.iterdir()} == FILES


def test_mixing_note_compares_with_the_exact_posterior(sample_stub):
    note = demo.mixing_note(demo.run(small(), progress=False))
    assert "have not reached" in note  # the stub's draws are far too narrow for 2000 records


def test_warnings_are_shown_on_the_page_in_the_terminal_and_in_json(sample_stub, tmp_path):
    """The stub's 4 × 10 draws are too few."""
    posterior = demo.run(small(), progress=False).paper.posterior
    assert any("independent ones" in text for text in posterior.warnings)
    arguments = ["demo", "banana", "--num-records", "2000", "--epsilon", "15", "--out", str(tmp_path)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # shown once, not by Python again
        shown = " ".join(CliRunner().invoke(cli.app, arguments).stdout.split())
        page = Page((tmp_path / "index.html").read_text(encoding="utf-8"))
        report = json.loads(CliRunner().invoke(cli.app, [*arguments, "--json"]).stdout)
    assert report["dp_hmc"]["warnings"] == list(posterior.warnings)
    for text in posterior.warnings:
        assert f"Warning: {text}" in shown
        assert text in "".join(page.texts)


def test_a_second_demo_replaces_the_files_of_the_first_and_nothing_else(sample_stub, tmp_path):
    outcome = demo.run(small(), progress=False)
    for _ in range(2):
        demo.write(outcome, tmp_path)
    (tmp_path / "posterior.nc").write_text("years of work")
    with pytest.raises(ResultError, match="not a posterior"):
        demo.write(outcome, tmp_path)
    assert (tmp_path / "posterior.nc").read_text() == "years of work"
