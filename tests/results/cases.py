"""Posteriors to test with: small, with a scalar, a vector and a matrix; private, seeded and noise-free."""

import numpy as np

from dpmcmc.privacy.statement import NOISE_FREE_MODE, PRIVATE_MODE, SEEDED_MODE, PrivacyStatement
from dpmcmc.results import Posterior, Quality

STATEMENTS = {
    "private": PrivacyStatement(
        private=True,
        mode=PRIVATE_MODE,
        epsilon=1.0,
        delta=1e-6,
        mu=1200 / (2 * 312.5**2) + 100 / (2 * 80.0**2),
        lattice_epsilon=1e-9,
        lattice_delta=1e-25,
        num_records=1000,
        queries={"gradient": 1200, "log_ratio": 100},
        noise_multipliers={"gradient": 312.5, "log_ratio": 80.0},
        accountant="Gaussian composition (exact)",
    ),
    "seeded": PrivacyStatement(
        private=False,
        mode=SEEDED_MODE,
        epsilon=1.0,
        delta=1e-6,
        mu=1200 / (2 * 312.5**2),
        lattice_epsilon=1e-9,
        lattice_delta=1e-25,
        num_records=1000,
        queries={"gradient": 1200},
        noise_multipliers={"gradient": 312.5},
        accountant="Gaussian composition (exact)",
    ),
    "noise-free": PrivacyStatement(
        private=False, mode=NOISE_FREE_MODE, epsilon=None, delta=None, num_records=1000, accountant="none"
    ),
}


def make_posterior(kind="seeded", *, num_chains=4, num_draws=50, num_warmup=20, constant=False, **changes):
    rng = np.random.default_rng(20240501)
    shapes = {"sigma": (), "beta": (3,), "covariance": (2, 2)}

    def sample(number):
        return {
            name: np.ones((num_chains, number, *shape)) if constant else rng.normal(size=(num_chains, number, *shape))
            for name, shape in shapes.items()
        }

    def stats(number):
        shape = num_chains, number
        return {"acceptance_rate": rng.random(shape) < 0.8, "step_size": np.full(shape, 0.1)}

    values = {
        "draws": sample(num_draws),
        "warmup_draws": sample(num_warmup),
        "sample_stats": stats(num_draws),
        "warmup_stats": stats(num_warmup),
        "privacy": STATEMENTS[kind],
        "sampler": "DP-HMC (10 leapfrog steps)",
        "model": "logistic regression",
        "dims": {"beta": ["coefficient"]},
        "coords": {"coefficient": ["intercept", "age", "größe"]},
    }
    return Posterior(**(values | changes))


REASON = "The fit did not converge in 12 rounds: the centre is not known. Use a larger budget."


def make_quality(**changes):
    values = {
        "method": "DP-Laplace",
        "converged": True,
        "rounds": 7,
        "noise_share": {"sigma": 0.1 + 0.2, "beta": [0.0, 0.6, 0.05], "covariance": [[0.0, 0.1], [0.1, 1 / 3]]},
        "independent_draws": True,
    }
    return Quality(**(values | changes))


FLAGGED = {
    "converged": False,
    "reasons": (REASON, "A direction was floored. Use more records."),
    "notes": ("Two columns are nearly the same.",),
    "prior_only": ("beta[größe]", "0.9·beta[age] − 0.4·sigma"),
    "clipped_share": -0.001,
    "clipped_share_sd": 0.002,
}


def fitted(quality=None, kind="private", **changes):
    """A posterior of independent draws, with a quality."""
    plain = {"warmup_draws": {}, "sample_stats": {}, "warmup_stats": {}, "quality": quality or make_quality()}
    return make_posterior(kind, **(plain | changes))


def assert_same(first, second):
    """Every array, label and word agrees exactly, types included."""
    for group in ("draws", "warmup_draws", "sample_stats", "warmup_stats"):
        left, right = getattr(first, group), getattr(second, group)
        assert set(left) == set(right), group
        for name in left:
            assert left[name].dtype == right[name].dtype, (group, name)
            np.testing.assert_array_equal(left[name], right[name], err_msg=f"{group}[{name}]")
    assert list(first.draws) == list(second.draws)
    for name in ("privacy", "sampler", "model", "record_check", "quality", "spending"):
        assert getattr(first, name) == getattr(second, name)
    assert dict(first.dims) == dict(second.dims)
    assert dict(first.coords) == dict(second.coords)


def group_names(data):
    """Names of the groups, of an InferenceData (ArviZ 0.x) or a DataTree (1.x)."""
    return set(data.children) if hasattr(data, "children") else set(data.groups())
