"""The study of DP-Laplace: one cell is one run on one case, measured against the posterior without noise.

A cell is a few plain values, as in :mod:`studies.cells`, and its results are filed in the same way. The records are
synthetic or public and every run is seeded, hence marked as not private.
"""

import functools
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

import dpmcmc
from dpmcmc.errors import BudgetExceededError
from dpmcmc.models import GaussianMean
from studies import discrepancy
from studies.cells import (
    DELTA,
    Array,
    CaseCell,
    Result,
    quality_of,
    sample_quietly,
    unconstrained,
    write_row,
)
from studies.laplace_cases import Case, Floor, Reference, case_names, make_case, reference_file

EPSILONS: dict[str, tuple[float, ...]] = {
    "adult": (1.0, 2.0, 4.0),
    "gaussian": (2.0, 4.0, 8.0, 15.0),
    "aside": (1.0, 2.0, 4.0),
    "hard": (1.0, 4.0),
    "sweep": (1.0, 4.0),
}
"""The budgets at which the cases of each group are run."""
FAST = ("adult", "gaussian-away", "linear-all-20k", "logistic-plain-20k", "logistic-d5-20k")
"""The cases of a quick look."""
NUM_COMPARED = 1000
"""Draws of a run, and exact ones, between which the MMD is taken."""

# To be increased when a change of the code makes earlier results of the same settings worthless.
_FORMAT = 1
_WIDTH_OF_90 = 2.0 * 1.6448536269514722  # of a normal distribution's central interval, in sds


@dataclass(frozen=True)
class LaplaceCell(CaseCell):
    """A run of DP-Laplace on one of :func:`~studies.laplace_cases.case_names`. Repeats differ in the noise alone."""

    study: ClassVar[str] = "laplace"

    def specification(self) -> dict[str, Any]:
        """Return plain values that a result is filed under: the same ones mean the same run."""
        return asdict(self) | {"study": "laplace", "sampler": repr(make_sampler()), "delta": DELTA, "format": _FORMAT}

    def work(self) -> float:
        """Return about how much there is to compute; cells of one case are equal, so that they follow each other."""
        return 1.0 + 1e-3 * case_names().index(self.case)


@dataclass(frozen=True)
class ReferenceCell:
    """The reference of a case, computed before its runs so that no two of them do it.

    Attributes
    ----------
    case, seed
        As in :class:`LaplaceCell`.
    repeat
        Always 0.
    """

    case: str
    seed: int = 0
    repeat: int = 0

    def __str__(self) -> str:
        return f"reference of {self.case}"

    def work(self) -> float:
        """Return about how many seconds it takes."""
        if self.case.startswith(("gaussian", "logistic-d", "linear-d")) or self.case.endswith("50k"):
            return 5.0
        return 180.0 if self.case.startswith("negative-binomial") else 30.0


def make_sampler() -> Any:
    """Return the sampler with its defaults: the study is about what nobody had to tune."""
    return dpmcmc.DPLaplace()


# ------------------------------------------------------------------------------------------------------- run


def run_cell(cell: LaplaceCell, folder: Path, commit: str | None = None) -> Result:
    """Run a cell and return its row of results."""
    case = make_case(cell.case, cell.seed)
    reference = case.reference(references(folder))
    floor = find_floor(cell.case, cell.epsilon, cell.seed, folder)
    row: Result = {
        "case": case.name,
        "group": case.group,
        "epsilon": cell.epsilon,
        "repeat": cell.repeat,
        "num_records": case.num_records,
        "dimension": case.dimension,
        "floor": floor.noise,
        "floor_bounded": floor.noise_bounded,
        "floor_bias": floor.clip_bias,
        "method": reference.method,
        "study_seed": cell.seed,
        "seed": cell.run_seed,
        "commit": commit or "",
    }
    began = time.perf_counter()
    try:
        posterior = sample(cell, case)
    except BudgetExceededError as error:  # it says beforehand that the budget does not suffice
        return row | _NOTHING | {"refused": 1.0, "reasons": str(error), "seconds": time.perf_counter() - began}
    row["seconds"] = time.perf_counter() - began
    points = unconstrained(case.model, posterior)
    quality = quality_of(posterior)
    row |= measures(points, reference, floor.noise, floor.noise_bounded) | mmd(case, points, cell.run_seed)
    row |= {
        "refused": 0.0,
        "flagged": float(quality.flagged),
        "reasons": "; ".join(quality.reasons),
        "converged": float(quality.converged),
        "noise_share": max((float(np.max(share)) for share in quality.noise_share.values() if share.size), default=0.0),
        "clipped_share": math.nan if quality.clipped_share is None else float(quality.clipped_share),
        "rounds": float(quality.rounds),
        "num_draws": float(len(points)),
        "privacy": posterior.privacy.mode,
        "dpmcmc": posterior.privacy.versions["dpmcmc"],
        "jax": posterior.privacy.versions["jax"],
    }
    return row


def sample(cell: LaplaceCell, case: Case) -> dpmcmc.Posterior:
    """Run the sampler of a cell."""
    return sample_quietly(case, make_sampler(), cell)


def references(folder: Path) -> Path:
    """Return the folder of a study's references."""
    return folder / "references"


@functools.lru_cache(maxsize=256)
def find_floor(case: str, epsilon: float, seed: int, folder: Path) -> Floor:
    """Return noise and bias of one score sum for the whole budget; see ``Case.floor``."""
    made = make_case(case, seed)
    return made.floor(made.reference(references(folder)), epsilon, DELTA)


# -------------------------------------------------------------------------------------------------- measures

_MEASURES = (
    "rms_error",
    "worst_error",
    "coverage",
    "width_ratio",
    "width_ratio_bounded",
    "reported",
    "error_in_reported",
    "wrong",
    "mmd",
    "mmd_exact",
)
_NO_NUMBERS: Result = dict.fromkeys(_MEASURES, math.nan) | {"errors": ""}
_NOTHING: Result = {
    **_NO_NUMBERS,
    **dict.fromkeys(("converged", "noise_share", "clipped_share", "rounds", "num_draws"), math.nan),
    **{"flagged": 1.0, "privacy": "", "dpmcmc": "", "jax": ""},
}
"""The row of a run that was refused: it counts as flagged."""


def measures(points: Array, reference: Reference, floor: float, floor_bounded: float) -> Result:
    """Return how draws × d compare with the posterior without noise.

    With e the errors of the means of the d coordinates and s the sds of the draws, both in reference sds:

    - rms_error √(Σe²/d), worst_error max|e|;
    - coverage: share of coordinates whose central 90 % interval holds the reference's mean;
    - width_ratio: median over the coordinates of the interval's width / (3.29·√(1 + floor²));
    - reported √(Σs²/d), and error_in_reported √(Σ(e/s)²/d);
    - wrong: 1 if error_in_reported > 2, or coverage < 60 % with d ≥ 5 (of fewer coordinates that happens by chance).
    """
    if not np.all(np.isfinite(points)):
        return _NO_NUMBERS | {"wrong": 1.0}
    errors = (points.mean(axis=0) - reference.mean) / reference.sd
    reported = points.std(axis=0, ddof=1) / reference.sd
    low, high = np.quantile(points, (0.05, 0.95), axis=0)
    coverage = float(np.mean((low <= reference.mean) & (reference.mean <= high)))
    widths = (high - low) / (_WIDTH_OF_90 * reference.sd)
    error_in_reported = _rms(errors / reported)
    return {
        "rms_error": _rms(errors),
        "worst_error": float(np.max(np.abs(errors))),
        "coverage": coverage,
        "width_ratio": float(np.median(widths)) / math.hypot(1.0, floor),
        "width_ratio_bounded": float(np.median(widths)) / math.hypot(1.0, floor_bounded),
        "reported": _rms(reported),
        "error_in_reported": error_in_reported,
        "wrong": float(error_in_reported > 2.0 or (coverage < 0.6 and len(errors) >= 5)),
        "errors": " ".join(f"{error:.5g}" for error in errors),
    }


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def mmd(case: Case, points: Array, seed: int) -> Result:
    """Return the paper's measure between exact draws and the run's, and between exact draws and other exact ones.

    For the Gaussian alone, whose posterior can be drawn from.
    """
    if not isinstance(case.model, GaussianMean) or not np.all(np.isfinite(points)):
        return {"mmd": math.nan, "mmd_exact": math.nan}
    exact, others = (
        case.model.sample_posterior_not_private(key, case.data, NUM_COMPARED)
        for key in (jax.random.key(case.seed), jax.random.fold_in(jax.random.key(case.seed), seed))
    )
    generator = np.random.default_rng((seed, 3))
    chosen = points[generator.permutation(len(points))[:NUM_COMPARED]]
    found = {}
    for name, sample_of in {"mmd": chosen, "mmd_exact": others}.items():
        found[name] = discrepancy.compare(sample_of, exact, generator)
    return dict(found)


# ------------------------------------------------------------------------------------------------------ files


def finish_cell(cell: LaplaceCell, folder: Path, commit: str | None) -> Result:
    """Run a cell and file its row, which is there as a whole or not at all."""
    row = run_cell(cell, folder, commit)
    write_row(folder, cell, row)
    return row


def finish_reference(cell: ReferenceCell, folder: Path, commit: str | None) -> Result:
    """Compute and file a reference."""
    began = time.perf_counter()
    make_case(cell.case, cell.seed).reference(references(folder))
    return {"seconds": time.perf_counter() - began}


def has_reference(folder: Path, cell: ReferenceCell) -> bool:
    """Return whether a reference is filed. (If it is that of other records, the runs will compute it again.)"""
    return reference_file(references(folder), cell.case, cell.seed).exists()
