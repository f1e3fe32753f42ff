"""The study of ``sampler="auto"``: one cell is one run on one case, measured against draws from the exact posterior.

Nothing is tuned and every release is charged. The records are synthetic or public and every run is seeded, hence marked
as not private.
"""

import math
import os
import subprocess
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import dpmcmc
from dpmcmc.errors import BudgetExceededError, DPMCMCWarning
from dpmcmc.presets import paper_settings
from dpmcmc.results import Quality
from studies import discrepancy
from studies.auto_cases import Case, case_names, data_repeat, make_case, reference_file
from studies.cells import (
    DELTA,
    Array,
    CaseCell,
    CellError,
    Result,
    read_row_of,
    sample_quietly,
    unconstrained,
    write_draws,
    write_row,
)
from studies.laplace import references

EPSILONS: dict[str, tuple[float, ...]] = {
    "paper": (2.0, 4.0, 8.0, 15.0),
    "adult": (1.0, 2.0, 4.0),
    "large": (8.0,),
    "shapes": (4.0, 15.0),
    "chains": (4.0, 15.0),
}
"""The budgets at which the cases of each group are run."""
FAST = ("banana", "gaussian", "ring", "two-modes", "misspecified", "curved-5d")
"""The cases of a quick look."""
TIMED = ("banana", "adult")
"""The cases whose time is taken from a cold start, at ε = 4."""
NUM_COMPARED = 1000
"""Draws of a run, and exact ones, between which the MMD is taken."""

# To be increased when a change of the code makes earlier results of the same settings worthless.
_FORMAT = 1


def make_sampler() -> Any:
    """Return the sampler: the one that a user gets who says nothing."""
    return "auto"


@dataclass(frozen=True)
class AutoCell(CaseCell):
    """A run of ``auto`` on one of :func:`~studies.auto_cases.case_names`.

    Repeats differ in noise and start, and most also in the records.
    """

    study: ClassVar[str] = "auto"

    def specification(self) -> dict[str, Any]:
        """Return plain values that a result is filed under: the same ones mean the same run."""
        return asdict(self) | {"study": "auto", "sampler": repr(make_sampler()), "delta": DELTA, "format": _FORMAT}

    def work(self) -> float:
        """Return about how much there is to compute; cells of one case follow each other."""
        return (5.0 if self.case == "logistic-1m" else 1.0) + 1e-3 * case_names().index(self.case)


@dataclass(frozen=True)
class ExactCell:
    """The exact draws of a case, computed before its runs so that no two of them do it.

    Attributes
    ----------
    case, repeat, seed
        As in :class:`AutoCell`; the repeat is the one that the records are of.
    """

    case: str
    repeat: int
    seed: int = 0

    def __str__(self) -> str:
        return f"exact draws of {self.case} {self.repeat + 1}"

    def work(self) -> float:
        """Return about how many seconds it takes."""
        return 2.0 if data_repeat(self.case, 1) else 60.0


@dataclass(frozen=True)
class ColdCell(AutoCell):
    """A run in a process of its own on all cores, without anything that was compiled before: its time is taken."""

    study: ClassVar[str] = "cold"


def exact_cells(cells: list[AutoCell]) -> list[ExactCell]:
    """Return what has to be known before these cells can be run, each once."""
    return list(dict.fromkeys(ExactCell(cell.case, data_repeat(cell.case, cell.repeat), cell.seed) for cell in cells))


# ------------------------------------------------------------------------------------------------------- run


def sample(cell: AutoCell, case: Case) -> dpmcmc.Posterior:
    """Run the sampler of a cell."""
    if case.way == "dp-hmc":
        settings = paper_settings("paper-banana", "dp-hmc", case.num_records)
        sampler = dpmcmc.DPHMC(**settings, leapfrog="momentum_first", jitter="halton_from_zero")  # type: ignore[arg-type]
        return sample_quietly(case, sampler, cell)
    return sample_quietly(case, make_sampler(), cell, exact=case.way == "exact")


def run_cell(cell: AutoCell, folder: Path, commit: str | None = None) -> tuple[Result, Array | None]:
    """Run a cell; return its row of results and the draws that were compared, None if the run was refused."""
    case = make_case(cell.case, cell.seed, cell.repeat)
    reference = case.reference(references(folder))
    row: Result = {
        "case": case.name,
        "group": case.group,
        "epsilon": cell.epsilon,
        "repeat": cell.repeat,
        "num_records": case.num_records,
        "dimension": case.dimension,
        "method": reference.method,
        "study_seed": cell.seed,
        "seed": cell.run_seed,
        "commit": commit or "",
    }
    began, worked = time.perf_counter(), time.process_time()
    try:
        posterior = sample(cell, case)
    except BudgetExceededError as error:  # it says beforehand that the budget does not suffice
        return row | _NOTHING | {"reasons": str(error), "seconds": time.perf_counter() - began}, None
    row |= {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - worked}
    points = unconstrained(case.model, posterior)
    # A chain of the paper's has only warnings to say of itself.
    quality = posterior.quality or Quality(
        method=posterior.sampler.split("(")[0],
        converged=True,
        rounds=0,
        reasons=posterior.warnings,
        independent_draws=False,
    )
    generator = np.random.default_rng((cell.run_seed, 3))
    chosen = points[generator.permutation(len(points))[:NUM_COMPARED]]
    row |= measures(points, reference.draws) | mmd(chosen, reference.draws, generator)
    row |= {
        "returned": quality.method,
        "refused": 0.0,
        "flagged": float(quality.flagged),
        "reasons": "; ".join(quality.reasons),
        "notes": "; ".join(quality.notes),
        "releases": float(sum(posterior.privacy.queries.values())),
        "num_draws": float(len(points)),
        "ess": smallest_ess(posterior),
        "mu": posterior.privacy.mu or math.nan,
        "privacy": posterior.privacy.mode,
        "dpmcmc": posterior.privacy.versions["dpmcmc"],
        "jax": posterior.privacy.versions["jax"],
    }
    return row, chosen


# -------------------------------------------------------------------------------------------------- measures


def smallest_ess(posterior: dpmcmc.Posterior) -> float:
    """Return the smallest bulk ESS of any entry."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)
        return float(posterior.summary()["ess_bulk"].min())


_MEASURES = ("rms_error", "worst_error", "sd_ratio", "sd_worst", "mass", "coverage")
_NOTHING: Result = {
    **dict.fromkeys(
        (*_MEASURES, "mmd", "mmd_exact", "releases", "num_draws", "ess", "mu", "processor_seconds"), math.nan
    ),
    **{"returned": "refused", "refused": 1.0, "flagged": 1.0, "notes": "", "privacy": "", "dpmcmc": "", "jax": ""},
}
"""The row of a run that was refused: it counts as flagged."""


def measures(points: Array, exact: Array) -> Result:
    """Return how draws × d compare with draws from the exact posterior, coordinate by coordinate.

    With e the errors of the means and r the ratios of the sds, both relative to the exact draws' sds:

    - rms_error √(Σe²/d), worst_error max|e|;
    - sd_ratio: the median of r; sd_worst: the r farthest from 1, on a logarithmic scale;
    - mass: the part of the exact draws inside the central 90 % interval of the run, on average over the coordinates;
    - coverage: share of coordinates whose 90 % interval holds the exact draws' mean.
    """
    if not np.all(np.isfinite(points)):
        return dict.fromkeys(_MEASURES, math.nan)
    errors = (points.mean(axis=0) - exact.mean(axis=0)) / exact.std(axis=0)
    ratios = points.std(axis=0) / exact.std(axis=0)
    low, high = np.quantile(points, (0.05, 0.95), axis=0)
    center = exact.mean(axis=0)
    with np.errstate(divide="ignore"):
        farthest = int(np.argmax(np.abs(np.log(ratios))))
    return {
        "rms_error": float(np.sqrt(np.mean(errors**2))),
        "worst_error": float(np.max(np.abs(errors))),
        "sd_ratio": float(np.median(ratios)),
        "sd_worst": float(ratios[farthest]),
        "mass": float(np.mean((low <= exact) & (exact <= high))),
        "coverage": float(np.mean((low <= center) & (center <= high))),
    }


def mmd(points: Array, exact: Array, generator: np.random.Generator) -> Result:
    """Return the paper's measure between a run's draws and exact ones, and between exact ones and others."""
    order = generator.permutation(len(exact))
    first, others = exact[order[:NUM_COMPARED]], exact[order[NUM_COMPARED : 2 * NUM_COMPARED]]
    finite = bool(np.all(np.isfinite(points)))
    return {
        "mmd": discrepancy.compare(points, first, generator) if finite else math.nan,
        "mmd_exact": discrepancy.compare(others, first, generator),
    }


# ------------------------------------------------------------------------------------------------------ files


def keeps_draws(cell: AutoCell) -> bool:
    """Return whether a figure may show the draws of this cell."""
    return cell.repeat == 0


def finish_cell(cell: AutoCell, folder: Path, commit: str | None) -> Result:
    """Run a cell and file its row, which is there as a whole or not at all."""
    row, draws = run_cell(cell, folder, commit)
    if draws is not None and keeps_draws(cell):
        write_draws(folder, cell, draws)
    write_row(folder, cell, row)
    return row


def finish_exact(cell: ExactCell, folder: Path, commit: str | None) -> Result:
    """Draw from an exact posterior and file the draws."""
    began = time.perf_counter()
    make_case(cell.case, cell.seed, cell.repeat).reference(references(folder))
    return {"seconds": time.perf_counter() - began}


def has_exact(folder: Path, cell: ExactCell) -> bool:
    """Return whether exact draws are filed. (If they are those of other records, the runs will draw them again.)"""
    return reference_file(references(folder), cell.case, cell.seed, cell.repeat).exists()


# -------------------------------------------------------------------------------------------------- cold starts

_COLD = """
import os, time
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, range(os.cpu_count()))
from studies import auto
from studies.auto_cases import make_case
cell = auto.ColdCell({case!r}, {epsilon!r}, {repeat!r}, {seed!r})
case = make_case(cell.case, cell.seed, cell.repeat)
began = time.perf_counter()
auto.sample(cell, case)
print(time.perf_counter() - began)
"""


def finish_cold(cell: ColdCell, folder: Path, commit: str | None) -> Result:
    """Time a run from its first line on, compiling included, in a new process that finds nothing compiled."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "OMP_", "OPENB"))}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", _COLD.format(**asdict(cell))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CellError(f"the timed run failed: {done.stderr.strip().splitlines()[-1]}")
    row: Result = {"case": cell.case, "epsilon": cell.epsilon, "seconds": float(done.stdout), "commit": commit or ""}
    write_row(folder, cell, row)
    return row


def cold_seconds(folder: Path, seed: int) -> dict[str, float]:
    """Return the median time of a cold start by case, of those that were timed."""
    found: dict[str, list[float]] = {}
    for path in sorted((folder / "cells").glob("cold-*.json")):
        finished = read_row_of(ColdCell.from_dict, path)
        if finished is not None and finished[0].seed == seed:
            found.setdefault(finished[0].case, []).append(float(finished[1]["seconds"]))
    return {case: float(np.median(seconds)) for case, seconds in found.items()}
