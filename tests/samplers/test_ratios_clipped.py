"""The fraction of clipped log-ratios: reported without noise, and by no run that has noise, private or seeded."""

import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.curator import Curator, NoNoiseNotPrivate, SeededNoiseNotPrivate
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.errors import NotPrivateError
from dpmcmc.queries import LogRatio, NotPrivateRelease, Release
from dpmcmc.results import Posterior

MODEL = dpmcmc.models.GaussianMean(np.array([[1.0, 0.3], [0.3, 0.5]]), prior_scale=2.0)
DATA = np.random.default_rng(1).normal(size=(500, 2))
START = np.zeros((4, 2))
NOISY = {
    "DPHMC": dpmcmc.DPHMC(0.02, 4, 0.1, 3.0, 10.0, 20.0),
    "DPPenalty": dpmcmc.DPPenalty(0.05, 0.1, 20.0),
}


def ratios(theta, proposal):
    precision = np.linalg.inv(MODEL.covariance)

    def log_likelihood(mean):
        return -0.5 * np.einsum("ni,ij,nj->n", DATA - mean, precision, DATA - mean)

    return log_likelihood(proposal) - log_likelihood(theta)


def test_the_noise_free_oracle_counts():
    curator = Curator(MODEL, DATA, noise=NoNoiseNotPrivate())
    generator = np.random.default_rng(2)
    theta, proposal = generator.normal(size=(3, 2)), generator.normal(size=(3, 2))
    with exact_arithmetic():
        oracle = curator.noise_free_oracle_not_private(None, 1.0)(curator._records)
        release = oracle.log_ratio(jnp.asarray(theta), jnp.asarray(proposal), jnp.zeros(3))
        unclipped = curator.noise_free_oracle_not_private(None, None)(curator._records)
        free = unclipped.log_ratio(jnp.asarray(theta), jnp.asarray(proposal), jnp.zeros(3))
    for chain in range(3):
        values = ratios(theta[chain], proposal[chain])
        bound = np.linalg.norm(proposal[chain] - theta[chain])
        assert release.clipped[chain] == pytest.approx(np.mean(np.abs(values) > bound), abs=1e-12)
        assert release.value[chain] == pytest.approx(np.clip(values, -bound, bound).sum(), rel=1e-9)
        assert free.value[chain] == pytest.approx(values.sum(), rel=1e-9)
    assert np.all(np.asarray(release.clipped) > 0.05)
    assert np.all(np.asarray(free.clipped) == 0.0)


def test_the_type_of_private_releases_has_no_place_for_it():
    assert "clipped" not in Release._fields
    assert NotPrivateRelease(1.0, 2.0, 3.0).clipped is None


def test_seeded_and_noise_free_curators_answer_without_it():
    for noise in (SeededNoiseNotPrivate(1), NoNoiseNotPrivate()):
        curator = Curator(MODEL, DATA, noise=noise)
        assert curator.ask(LogRatio(0.1, noise_multiplier=1.0), np.zeros(2), np.ones(2)).clipped is None


@pytest.mark.parametrize("sampler", [dpmcmc.HMC(0.02, 3, ratio_bound=1.0), dpmcmc.RWMH(0.1, ratio_bound=1.0)])
def test_a_run_without_noise_reports_it(sampler, tmp_path):
    posterior = dpmcmc.sample(MODEL, DATA, sampler=sampler, num_steps=20, init=START, seed=1)
    clipped = posterior.sample_stats["ratios_clipped"]
    assert clipped.shape == (4, 10)
    assert np.all((clipped > 0.0) & (clipped < 1.0))
    assert posterior.warmup_stats["ratios_clipped"].shape == (4, 10)
    loaded = dpmcmc.Posterior.load(posterior.save(tmp_path / "research.nc"))
    np.testing.assert_array_equal(loaded.sample_stats["ratios_clipped"], clipped)


@pytest.mark.parametrize("seed", [None, 1], ids=["private", "seeded"])
@pytest.mark.parametrize("sampler", NOISY.values(), ids=NOISY.keys())
def test_a_run_with_noise_does_not(sampler, seed):
    """Though with this bound nearly every record is clipped."""
    posterior = dpmcmc.sample(
        MODEL, DATA, sampler=sampler, epsilon=8.0, delta=1e-6, num_steps=4, init=START, seed=seed, progress=False
    )
    assert posterior.privacy.private == (seed is None)
    assert "ratios_clipped" not in posterior.sample_stats
    assert "ratios_clipped" not in posterior.warmup_stats


@pytest.mark.parametrize("seed", [None, 1], ids=["private", "seeded"])
def test_a_posterior_with_noise_refuses_it(seed):
    """Twin of the run above: if a sampler reported it, the result would not take it."""
    posterior = dpmcmc.sample(
        MODEL, DATA, sampler=NOISY["DPPenalty"], epsilon=8.0, delta=1e-6, num_steps=4, init=START, seed=seed
    )
    for group in ("sample_stats", "warmup_stats"):
        with pytest.raises(NotPrivateError, match="ratios_clipped"):
            Posterior(
                draws=posterior.draws,
                warmup_draws=posterior.warmup_draws,
                privacy=posterior.privacy,
                sampler="x",
                model="y",
                **{group: {"ratios_clipped": np.zeros((4, 2))}},
            )


def test_jitter_of_the_papers_code_begins_at_zero():
    """Step sizes of both jitters: (0, 1] and (½, 1] of the largest, and each of them evenly."""
    sizes = {}
    for jitter in ("halton_from_zero", "halton"):
        sampler = dpmcmc.HMC(0.01, 1, jitter=jitter)
        posterior = dpmcmc.sample(MODEL, DATA, sampler=sampler, num_steps=64, num_warmup=0, init=START, seed=1)
        sizes[jitter] = posterior.sample_stats["step_size"] / 0.01
    assert 0.0 < sizes["halton_from_zero"].min() < 0.05
    assert 0.5 < sizes["halton"].min() < 0.53
    for values in sizes.values():
        assert 0.97 < values.max() <= 1.0
    np.testing.assert_allclose(sizes["halton_from_zero"], 2.0 * sizes["halton"] - 1.0, rtol=1e-12, atol=1e-12)
    with pytest.raises(dpmcmc.errors.QueryError, match="'halton', 'halton_from_zero', None"):
        dpmcmc.HMC(0.01, 1, jitter="half")
