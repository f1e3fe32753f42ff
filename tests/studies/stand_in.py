"""Stand-ins for DP-Laplace and for auto, so that the studies' machinery is tested without them."""

import math
import os
from dataclasses import dataclass
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd

from dpmcmc.errors import BudgetExceededError
from studies import auto, laplace

REFUSED_BELOW = 0.5  # ε at which the stand-in refuses
_finish_cell = laplace.finish_cell
_finish_auto_cell = auto.finish_cell


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
    return posterior_of(case, points, flagged=abs(shift) > 5.0)


def sample_auto(cell, case, shift=0.0):
    """Draw from the exact posterior, shifted by so many sds in every coordinate; flagged beyond one."""
    if cell.epsilon < REFUSED_BELOW:
        raise BudgetExceededError(f"epsilon = {cell.epsilon} is too small")
    exact = case.reference().draws[:2000]
    return posterior_of(case, exact + shift * exact.std(axis=0), flagged=abs(shift) > 1.0)


def posterior_of(case, points, flagged):
    """Return what a run returns, as far as the studies look at it."""
    with jax.enable_x64(True):
        draws = {name: np.asarray(value)[None] for name, value in jax.vmap(case.model.constrain)(points).items()}
    privacy = SimpleNamespace(private=False, mode="not private: seeded", mu=0.3, versions={"dpmcmc": "0", "jax": "0"})
    privacy.queries = {"gradient": 5, "clip_count": 7}
    quality = SimpleNamespace(
        method="stand-in",
        flagged=flagged,
        reasons=("did not converge",) * flagged,
        notes=(),
        converged=not flagged,
        noise_share={"all": np.array(0.5)},
        clipped_share=0.0,
        rounds=7,
    )
    summary = pd.DataFrame({"ess_bulk": [float(len(next(iter(draws.values()))[0]))]})
    return SimpleNamespace(draws=draws, privacy=privacy, quality=quality, warnings=(), summary=lambda: summary)


def finish_cell(cell, folder, commit):
    """Do what a worker does, with the stand-in; a worker is another process, where nothing is patched yet."""
    laplace.make_sampler, laplace.sample = StandIn, sample
    (folder / f"ran-{cell.case}-{cell.repeat}-{os.getpid()}").touch()
    return _finish_cell(cell, folder, commit)


def finish_auto_cell(cell, folder, commit):
    """Do the same for the study of auto."""
    auto.sample = sample_auto
    (folder / f"ran-{cell.case}-{cell.repeat}-{os.getpid()}").touch()
    return _finish_auto_cell(cell, folder, commit)
