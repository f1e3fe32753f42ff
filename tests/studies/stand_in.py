"""A stand-in for DP-Laplace, so that the study's machinery is tested without it: draws with noise of a known size."""

import math
import os
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import numpy as np

from dpmcmc.errors import BudgetExceededError
from studies import laplace

REFUSED_BELOW = 0.5  # ε at which the stand-in refuses
_finish_cell = laplace.finish_cell


@dataclass(frozen=True)
class StandIn:
    """Settings that print."""

    noise: float = 0.3


def sample(cell, case, noise=0.3, shift=0.0, spread=1.0):
    """Draw from N(mean + C(noise·z + shift), (1 + noise²)·spread²·cov), z fixed by the run's seed; C Cᵀ = cov."""
    if cell.epsilon < REFUSED_BELOW:
        raise BudgetExceededError(f"epsilon = {cell.epsilon} is too small")
    reference = case.reference()
    factor = np.linalg.cholesky(reference.cov)
    generator = np.random.default_rng(cell.run_seed)
    center = reference.mean + factor @ (noise * generator.standard_normal(case.dimension) + shift)
    standard = generator.standard_normal((2000, case.dimension))
    points = center + spread * math.hypot(1.0, noise) * standard @ factor.T
    with jax.enable_x64(True):
        draws = {name: np.asarray(value)[None] for name, value in jax.vmap(case.model.constrain)(points).items()}
    privacy = SimpleNamespace(private=False, mode="not private: seeded", versions={"dpmcmc": "0", "jax": "0"})
    flagged = abs(shift) > 5.0
    quality = SimpleNamespace(
        flagged=flagged,
        reasons=("did not converge",) * flagged,
        converged=not flagged,
        noise_share={"all": np.array(0.5)},
        clipped_share=0.0,
        rounds=7,
    )
    return SimpleNamespace(draws=draws, privacy=privacy, quality=quality)


def finish_cell(cell, folder, commit):
    """Do what a worker does, with the stand-in; a worker is another process, where nothing is patched yet."""
    laplace.make_sampler, laplace.sample = StandIn, sample
    (folder / f"ran-{cell.case}-{cell.repeat}-{os.getpid()}").touch()
    return _finish_cell(cell, folder, commit)
