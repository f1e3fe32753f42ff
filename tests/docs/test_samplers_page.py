"""docs/samplers.md: the run of a sampler with settings of its own comes near the exact posterior."""

import math

import numpy as np
from jax.scipy.stats import norm

import dpmcmc
from tests.docs.pages import cell_with
from tests.exact import LIMIT, distance, moments

PAGE = "samplers.md"


def test_the_run_with_settings_of_its_own_is_near_the_exact_posterior():
    """The private posterior's mean and sd against the exact ones; false failures: 1e-5, see `LIMIT`."""
    namespace = {"dpmcmc": dpmcmc}
    for words in ("dpmcmc.DPPenalty(", "walk = dpmcmc.sample("):
        exec(cell_with(PAGE, words), namespace)
    data, posterior = namespace["values"], namespace["walk"]
    assert posterior.privacy.private

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
