"""The demonstration on the Adult data: what it compares with, its files, its page; and one real run."""

import json
import os

import numpy as np
import pytest
from scipy.optimize import minimize

import dpmcmc
from dpmcmc.demo import adult
from dpmcmc.output import OutputError
from dpmcmc.privacy import PrivacyStatement
from dpmcmc.privacy.statement import PRIVATE_MODE, SEEDED_MODE
from dpmcmc.results import Quality
from tests.cli.running import answer, refusal, run
from tests.results.pages import Page

FILES = {"posterior.nc", "privacy.json", "privacy.txt", "report.html", "summary.csv", "index.html"}
NAMES = ["age", "C(sex)[T.Male]"]


def outcome(seed=None):
    generator = np.random.default_rng(4)
    draws = generator.normal([0.0, 1.0, -1.0], [0.1, 0.2, 0.3], (4, 100, 3))
    posterior = dpmcmc.Posterior(
        draws={"intercept": draws[..., 0], "coefficients": draws[..., 1:]},
        privacy=PrivacyStatement(
            private=seed is None,
            mode=PRIVATE_MODE if seed is None else SEEDED_MODE,
            epsilon=2.0,
            delta=1e-6,
            mu=10 / (2 * 17.0**2),
            lattice_epsilon=1e-9,
            lattice_delta=1e-25,
            num_records=48_842,
            queries={"gradient": 10},
            noise_multipliers={"gradient": 17.0},
            accountant="Gaussian composition",
        ),
        sampler="auto",
        model="logistic regression",
        dims={"coefficients": ("feature",)},
        coords={"feature": NAMES},
        quality=Quality(
            method="auto: a Gaussian (DP-Laplace)",
            converged=True,
            rounds=9,
            noise_share={"intercept": np.array(0.2), "coefficients": np.array([0.1, 0.4])},
            independent_draws=True,
        ),
    )
    exact = np.array([0.0, 1.0, -1.0]), np.array([0.1, 0.1, 0.1])
    return adult.Outcome(adult.Settings(seed=seed), posterior, exact, 12.0)


def test_what_it_compares_with_is_the_posterior_without_noise():
    """Newton's method against a general minimiser, with a record that counts as nothing."""
    generator = np.random.default_rng(0)
    rows = np.column_stack([np.ones(500), generator.normal(size=(500, 2))])
    outcomes = (generator.uniform(size=500) < 1 / (1 + np.exp(-rows @ [0.5, -1.0, 2.0]))).astype(float)

    def minus_log_density(theta):
        return np.logaddexp(0.0, -(2 * outcomes - 1) * (rows @ theta)).sum() + theta @ theta / (2 * 2.5**2)

    found = minimize(minus_log_density, np.zeros(3), options={"gtol": 1e-8})
    spoilt = np.vstack([rows, [1.0, np.nan, 0.0]])
    mean, sd = adult.gaussian_posterior_not_private(spoilt, np.append(outcomes, 1.0))
    np.testing.assert_allclose(mean, found.x, atol=1e-5)
    step, curvature = 1e-4, np.empty((3, 3))
    for row in range(3):
        for column in range(3):
            pair = [
                sign * other * minus_log_density(mean + step * (sign * np.eye(3)[row] + other * np.eye(3)[column]))
                for sign in (1, -1)
                for other in (1, -1)
            ]
            curvature[row, column] = sum(pair) / (4 * step**2)
    np.testing.assert_allclose(sd, np.sqrt(np.diag(np.linalg.inv(curvature))), rtol=1e-4)


def test_intervals():
    (name, private, exact), *_ = outcome().intervals
    assert name == "intercept"
    assert exact == pytest.approx((-0.1645, 0.0, 0.1645), abs=1e-4)
    # The 5 % quantile of 400 draws has a standard error of 0.011: 6 of them.
    assert private.low == pytest.approx(-0.1645, abs=0.07)
    rows = dict(adult.comparison_rows(outcome()).rows)
    assert list(rows) == ["intercept", *NAMES]
    assert rows["age"][-2] == pytest.approx(2.0, rel=0.3)
    assert rows["age"][-1] == 0.1


def test_page():
    text = adult.page(outcome())
    page = Page(text)
    words = " ".join("".join(page.texts).split())
    assert page.links == []  # nothing is fetched
    for piece in (
        "A private regression on the Adult data",
        "because the Adult data are public",
        "48,842",
        "auto: a Gaussian (DP-Laplace)",
        "C(sex)[T.Male]",
        "What was spent and released",
        "https://doi.org/10.24432/C5XW20",
        "dpmcmc sample people.parquet",
    ):
        assert piece in words, piece
    assert "NOT private" not in words
    seeded = " ".join("".join(Page(adult.page(outcome(seed=3))).texts).split())
    assert "seeded, NOT private" in seeded
    assert "seed=3" in seeded
    assert "A private regression" not in seeded


def test_files_and_a_second_demo(tmp_path):
    for _ in range(2):
        files = adult.write(outcome(), tmp_path)
    assert {path.name for path in files} == FILES == set(os.listdir(tmp_path))


def test_a_full_disk_is_a_plain_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(adult, "replace_file", full)
    with pytest.raises(OutputError, match="No space left"):
        adult.write(outcome(), tmp_path)


def test_the_code_on_the_page_has_the_formula():
    program = adult.code_lines(adult.Settings())
    compile(program, "page", "exec")
    formula = "".join(line.strip().strip('",') for line in program.splitlines() if line.startswith('    "'))
    assert formula == adult.FORMULA


def test_wrong_options(tmp_path):
    assert "--num-records is for banana" in refusal("demo", "--num-records", 1000, "--out", tmp_path)
    assert "raise --epsilon" in refusal("demo", "--epsilon", 0.001, "--out", tmp_path)
    assert "epsilon" in refusal("demo", "--epsilon", -1, "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_in_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(adult, "run", lambda settings, table, progress: outcome(settings.seed))
    shown = run("demo", "--out", tmp_path, "--seed", 3).stdout
    for piece in ("48,842 people", "C(sex)[T.Male]", "as wide", "index.html", "NOT PRIVATE", "What was spent"):
        assert piece in shown, piece


@pytest.fixture(scope="module")
def real_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return folder, answer("demo", "--out", folder)


def test_a_real_run_is_near_the_exact_posterior(real_run):
    """Twelve private centres, off by noise that the draws know of: within 6 of their sds; false failures: 3e-8."""
    folder, report = real_run
    assert report["private"] is True
    assert report["epsilon"] == 2.0
    assert set(os.listdir(folder)) == FILES
    posterior = dpmcmc.Posterior.load(folder / "posterior.nc")
    draws = np.column_stack([posterior.draws["intercept"].ravel(), posterior.draws["coefficients"].reshape(4000, -1)])
    assert draws.shape[1] == 12
    exact = np.array([values["without_noise"][1] for values in report["intervals"].values()])
    apart = np.abs(draws.mean(axis=0) - exact) / draws.std(axis=0)
    assert apart.max() < 6.0
    # The twin: coefficients that belong to other columns would be noticed.
    assert (np.abs(draws.mean(axis=0) - np.roll(exact, 1)) / draws.std(axis=0)).max() > 6.0
    Page((folder / "index.html").read_text(encoding="utf-8"))
    assert json.loads((folder / "privacy.json").read_text())["num_records"] == 48_842
