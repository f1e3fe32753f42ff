"""Seeded draws of every sampler are those of the code before the house was redrawn (vectors/seeded_draws.npz).

On the machine where they were made they are equal bit for bit; another processor may round differently, so that here
they are compared to 1e-9.
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc

VECTORS = np.load(Path(__file__).parents[1] / "vectors" / "seeded_draws.npz")
GENERATOR = np.random.default_rng(0)
NUM_RECORDS = 3000
X = GENERATOR.normal(size=(NUM_RECORDS, 3))
Y = (GENERATOR.random(NUM_RECORDS) < 0.4).astype(float)
GENERATOR.poisson(2.0, NUM_RECORDS), GENERATOR.normal(size=NUM_RECORDS)  # the vectors' script drew these too
PAIRS = GENERATOR.normal(size=(NUM_RECORDS, 2))
STUDENT = dpmcmc.Model(
    lambda p, x: -2.5 * jnp.log1p((x - p["m"]) ** 2 / 4).sum() - jnp.log(p["s"]),
    lambda p: -(p["m"] ** 2).sum() - p["s"],
    {"m": (2,), "s": "positive"},
)
PROBLEMS = {"log": (dpmcmc.models.LogisticRegression(3), {"X": X, "y": Y}), "st": (STUDENT, PAIRS)}
HMC = {"ratio_bound": 2.0, "gradient_clip_norm": 2.0, "ratio_noise_multiplier": 20.0, "gradient_noise_multiplier": 30.0}
SAMPLERS = {
    "hmc_pf": dpmcmc.DPHMC(0.01, 3, **HMC),
    "hmc_mf": dpmcmc.DPHMC(0.01, 3, **HMC, leapfrog="momentum_first", jitter="halton_from_zero"),
    "hmc_c": dpmcmc.DPHMC(0.01, 2, **HMC, leapfrog="cached", jitter=None),
    "pen": dpmcmc.DPPenalty(0.01, 2.0, 20.0),
    "ocu": dpmcmc.DPPenalty(0.01, 2.0, 20.0, update="one_component"),
    "gui": dpmcmc.DPPenalty(0.01, 2.0, 20.0, update="guided"),
    "sgld": dpmcmc.DPSGLD(100, 1.0, 1e-5),
    "sgldp": dpmcmc.DPSGLD(100, 1.0, 1e-5, sampling="poisson"),
    "sgnht": dpmcmc.DPSGNHT(100, 1.0, 1e-4, 10.0),
    "HMC": dpmcmc.HMC(0.01, 3),
    "HMCc": dpmcmc.HMC(0.01, 3, ratio_bound=1.0, gradient_clip_norm=1.0),
    "RWMH": dpmcmc.RWMH(0.01),
    "RWMHc": dpmcmc.RWMH(0.01, ratio_bound=0.5),
}


@pytest.mark.parametrize("name", sorted({key.rpartition("/")[0] for key in VECTORS.files}))
def test_seeded_draws_have_not_changed(name):
    problem, sampler = name.split("/")
    model, data = PROBLEMS[problem]
    budget = {"epsilon": 20.0, "delta": 1e-5} if SAMPLERS[sampler].private else {}
    posterior = dpmcmc.sample(
        model,
        data,
        sampler=SAMPLERS[sampler],
        num_chains=2,
        num_steps=7,
        seed=3,
        init=np.full((2, model.dimension), 0.1),
        check_records=False,
        **budget,
    )
    for parameter, draws in posterior.draws.items():
        np.testing.assert_allclose(draws, VECTORS[f"{name}/{parameter}"], rtol=1e-9, atol=1e-12)
