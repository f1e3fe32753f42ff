"""docs/models.md: its models are what it says they are, and its run comes near the exact posterior."""

import math

import numpy as np
from jax.scipy.stats import norm
from scipy import stats

import dpmcmc
from tests.docs.pages import cell_with
from tests.exact import LIMIT, distance, moments

PAGE = "models.md"


def test_the_run_in_plain_jax_is_near_the_exact_posterior(tmp_path, monkeypatch, capsys):
    """The private posterior's mean and sd against the exact ones; false failures: 1e-5, see `LIMIT`."""
    monkeypatch.chdir(tmp_path)
    namespace = {}
    exec(cell_with(PAGE, "dpmcmc.DPPenalty("), namespace)
    assert (tmp_path / "posterior.nc").exists()
    printed = capsys.readouterr().out
    assert "mean" in printed
    assert "PRIVATE" in printed
    data, posterior = namespace["data"], namespace["posterior"]

    def log_density(theta):
        return -2.5 * np.log1p((data - theta[0]) ** 2 / 4.0).sum() - 0.5 * (theta[0] / 10.0) ** 2

    (mean,), (sd,) = moments(log_density, [1.0])
    assert distance(posterior.draws["center"], mean, sd) < LIMIT


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


def test_the_student_regression_is_the_same_in_numpyro_in_jax_and_in_scipy(capsys):
    namespace = {"norm": norm}
    for words in ("dpmcmc.Schema(", "def heavy_tails", "def regression", "student = dpmcmc.Model("):
        exec(cell_with(PAGE, words), namespace)
    assert namespace["votes"].dimension == 3
    exec(cell_with(PAGE, "numpyro_model ="), namespace)
    point, record = namespace["point"], namespace["record"]
    mean = 0.1 + 0.2 * record["age"] + 0.3 * record["smoker"]
    likelihood = stats.t.logpdf(record["pressure"], 4.0, mean, point["scale"])
    prior = stats.norm.logpdf([0.1, 0.2, 0.3], 0.0, 2.5).sum() + stats.halfnorm.logpdf(point["scale"])
    printed = [[float(number) for number in line.split()] for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == 2
    for found in printed:
        np.testing.assert_allclose(found, [likelihood, prior], rtol=1e-4)
    # The twin: another number of degrees of freedom would be noticed.
    assert abs(stats.t.logpdf(record["pressure"], 3.0, mean, point["scale"]) / likelihood - 1.0) > 1e-3


def test_what_may_not_be_computed_is_refused_and_what_is_written_instead_is_not(capsys):
    namespace = {"norm": norm, "np": np, "dpmcmc": dpmcmc}
    exec("import jax\nimport jax.numpy as jnp", namespace)
    exec(cell_with(PAGE, "def moving_average("), namespace)
    said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)
    assert said["moving_average_by_slices"] == "may be computed"
    for name, word in {
        "moving_average": "slices",
        "python_branch": "Python control flow",
        "one_number_too_many": "scalar",
        "printing": "jax.debug.print",
        "eigenvalues": "eigh",
    }.items():
        assert word in said[name] or word in str(said), name
    exec(cell_with(PAGE, "# one for each record"), namespace)
    assert "data that come in this way are not protected" in capsys.readouterr().out
