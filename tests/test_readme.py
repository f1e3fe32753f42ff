"""The README's Python runs as it is printed there, and comes near the exact posterior."""

import math
import re
from pathlib import Path

import numpy as np
from jax.scipy.stats import norm

import dpmcmc
from tests.exact import LIMIT, distance, moments

README = Path(__file__).parents[1] / "README.md"


def examples():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_first_example_runs_and_is_near_the_exact_mode(capsys):
    """The centre is off by noise that the draws know of: five numbers within 6 of their sds; false failures: 1e-8."""
    namespace = {}
    exec(examples()[0], namespace)
    printed = capsys.readouterr().out
    assert "noise_share" in printed
    assert "Fit: auto: a Gaussian" in printed  # not "converged": one run in hundreds is flagged for nothing
    draws, data = namespace["posterior"].draws, namespace["records"].records
    found = np.column_stack([draws["intercept"].ravel(), draws["coefficients"].reshape(-1, 4)])
    exact = logistic_mode(np.column_stack([np.ones(len(data["y"])), data["X"]]), data["y"])
    apart = np.abs(found.mean(axis=0) - [exact, exact * [1, 1, 0.7, 1, 1]]) / found.std(axis=0)
    assert apart[0].max() < 6.0
    assert apart[1].max() > 6.0  # the twin: a coefficient that is off by 30 % would be noticed


def logistic_mode(design, outcome, prior_scale=2.5):
    """By Newton's method."""
    theta = np.zeros(design.shape[1])
    for _ in range(30):
        chance = 1.0 / (1.0 + np.exp(-design @ theta))
        curvature = (design * (chance * (1.0 - chance))[:, None]).T @ design + np.eye(len(theta)) / prior_scale**2
        theta = theta + np.linalg.solve(curvature, design.T @ (outcome - chance) - theta / prior_scale**2)
    return theta


def test_the_other_examples_run(tmp_path, monkeypatch, capsys):
    """The private posterior's mean and sd against the exact ones; false failures: 1e-5, see `LIMIT`."""
    monkeypatch.chdir(tmp_path)
    _, first, second = examples()
    namespace = {}
    exec(first, namespace)
    assert (tmp_path / "posterior.nc").exists()
    printed = capsys.readouterr().out
    assert "mean" in printed
    assert "PRIVATE" in printed
    data, posterior = namespace["data"], namespace["posterior"]

    def log_density(theta):
        return -2.5 * np.log1p((data - theta[0]) ** 2 / 4.0).sum() - 0.5 * (theta[0] / 10.0) ** 2

    (mean,), (sd,) = moments(log_density, [1.0])
    assert distance(posterior.draws["center"], mean, sd) < LIMIT
    generator = np.random.default_rng(0)
    namespace |= {"X": generator.normal(size=(50, 3)), "y": generator.integers(0, 2, 50)}
    exec(second, namespace)
    assert namespace["model"].dimension == 3


def test_twin_a_clip_bound_that_cuts_a_skewed_score_is_noticed():
    """As the README once had it: a bound of 2 cuts 7 % of the log-ratios, all of which say that the scale is larger."""
    data = np.random.default_rng(0).normal(1.0, 2.0, size=20_000)
    model = dpmcmc.Model(
        log_likelihood=lambda p, x: norm.logpdf(x, p["mean"], p["scale"]),
        log_prior=lambda p: norm.logpdf(p["mean"], 0.0, 10.0) + norm.logpdf(p["scale"], 0.0, 10.0),
        parameters={"mean": "real", "scale": "positive"},
    )
    posterior = dpmcmc.sample(
        model,
        data,
        epsilon=4.0,
        delta=1e-6,
        sampler=dpmcmc.DPPenalty(
            proposal_scale=0.01, ratio_bound=2.0, ratio_noise_multiplier=0.2 * math.sqrt(len(data))
        ),
        init=np.tile([1.0, 0.7], (4, 1)),
        seed=0,
    )

    def log_density(theta):
        mean, log_scale = theta
        likelihood = -0.5 * np.sum((data - mean) ** 2) / math.exp(2 * log_scale) - len(data) * log_scale
        return likelihood - 0.5 * (mean / 10.0) ** 2 - 0.5 * math.exp(2 * log_scale) / 100.0 + log_scale

    means, sds = moments(log_density, [data.mean(), math.log(data.std())])
    assert distance(np.log(posterior.draws["scale"]), means[1], sds[1]) > 2 * LIMIT


def test_one_percent_clipped_is_three_posterior_sds():
    """Of an exponential likelihood, without chance: scores 1 - x at the quantiles, those beyond 1 % clipped."""
    num_records = 100_000
    x = -np.log1p(-(np.arange(num_records) + 0.5) / num_records)
    bound = np.quantile(np.abs(1.0 - x), 0.99)
    low, high = -1.0, 1.0  # of the log-rate, at which the clipped scores 1 - rate · x add up to 0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.clip(1 - np.exp(middle) * x, -bound, bound).sum() > 0 else (low, middle)
    posterior_sd = 1 / math.sqrt(num_records)
    assert 3.0 < low / posterior_sd < 4.0


def test_the_commands_run():
    from typer.testing import CliRunner

    from dpmcmc.cli import app

    lines = re.findall(r"^dpmcmc ((?:plan|account) [^#\n]*)", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        assert CliRunner().invoke(app, line.split()).exit_code == 0


def test_the_two_commands_come_first():
    text = README.read_text(encoding="utf-8")
    assert text.index("make demo") < text.index("make test") < text.index("```python")
