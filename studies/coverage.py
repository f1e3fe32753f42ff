"""The study of coverage: one cell is one run of one sampler on one data set, and what its intervals hold.

The parameters of every data set are a draw from the prior, so that intervals of a calibrated method hold them as often
as they say. The records are synthetic and every run is seeded, hence marked as not private.
"""

import json
import math
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import dpmcmc
from dpmcmc.errors import BudgetExceededError, DPMCMCWarning
from studies.cells import (
    DELTA,
    Array,
    CaseCell,
    CellError,
    Result,
    read_row_of,
    result_file,
    sample_quietly,
    unconstrained,
    write_row,
)
from studies.coverage_cases import (
    KINDS,
    LEVELS,
    NUM_CHAINS,
    POSTERIOR,
    PROBABILITIES,
    SAMPLERS,
    STARTED_IN_THE_POSTERIOR,
    DataSet,
    Reference,
    compute_reference,
    kind_of,
    make_data_set,
    make_sampler,
)

EPSILONS = (1.0, 4.0)
NUM_DATA_SETS = 200
FAST_DATA_SETS = 10
"""Data sets of a quick look."""

# To be increased when a change of the code makes earlier results of the same settings worthless.
_FORMAT = 1


@dataclass(frozen=True)
class CoverageCell(CaseCell):
    """A run of a sampler on a data set: ``case`` is its kind, ``repeat`` its number among those.

    Attributes
    ----------
    sampler
        A key of :data:`~studies.coverage_cases.SAMPLERS`; or "posterior", the posterior without noise, at ε = ∞.
    """

    sampler: str = "auto"

    study: ClassVar[str] = "coverage"

    def specification(self) -> dict[str, Any]:
        """Return plain values that a result is filed under: the same ones mean the same run."""
        settings = "" if self.sampler == POSTERIOR else repr(make_sampler(self.case, self.sampler, self.epsilon))
        return asdict(self) | {"study": self.study, "settings": settings, "delta": DELTA, "format": _FORMAT}

    @property
    def name(self) -> str:
        """Name of the cell's file: readable, and different for different settings."""
        return f"{self.study}-{self.case}-{self.sampler}-{self.epsilon:g}-{self.repeat:02d}-{self.digest}"

    def __str__(self) -> str:
        return f"{self.case} {self.repeat + 1}, {self.sampler} ε = {self.epsilon:g}"

    def work(self) -> float:
        """Return about how much there is to compute.

        Ten data sets of each kind come after the other, so that what is done of a study that was stopped is balanced;
        among them, runs that share compiled code follow each other.
        """
        place = [POSTERIOR, *SAMPLERS].index(self.sampler) * len(KINDS) + KINDS.index(self.case)
        return 1.0 - 1e-3 * (self.repeat // 10) + 1e-6 * (2 * place + (self.epsilon > 2.0))


def cells_of(samplers: list[str], epsilons: list[float], data_sets: int, seed: int) -> list[CoverageCell]:
    """Return the cells of so many data sets, which take the kinds in turn."""
    return [
        CoverageCell(KINDS[place % len(KINDS)], epsilon, place // len(KINDS), seed, sampler)
        for sampler in samplers
        for epsilon in epsilons
        for place in range(data_sets)
    ]


# ------------------------------------------------------------------------------------------------------- run


def run_cell(cell: CoverageCell, folder: Path, commit: str | None = None) -> Result:
    """Run a cell and return its row of results."""
    made = make_data_set(cell.case, cell.repeat, cell.seed)
    row: Result = {
        "case": cell.case,
        "sampler": cell.sampler,
        "epsilon": cell.epsilon,
        "repeat": cell.repeat,
        "num_records": kind_of(cell.case).num_records,
        "dimension": made.model.dimension,
        "study_seed": cell.seed,
        "seed": cell.run_seed,
        "commit": commit or "",
    }
    began, worked = time.perf_counter(), time.process_time()
    if cell.sampler == POSTERIOR:
        found = compute_reference(cell.case, cell.repeat, cell.seed)
        row |= _OF_NO_RUN | measures(found.mean, found.quantiles, made.truth, found)
        return row | {"reference": _to_text(found), "method": found.method, "seconds": time.perf_counter() - began}
    reference = read_reference(cell, folder)
    row["method"] = reference.method
    try:
        posterior = sample(cell, made, reference)
    except BudgetExceededError as error:  # it says beforehand that the budget does not suffice
        return row | _REFUSED | {"reasons": str(error), "seconds": time.perf_counter() - began}
    row |= {"seconds": time.perf_counter() - began, "processor_seconds": time.process_time() - worked}
    points = unconstrained(made.model, posterior)
    reasons = posterior.warnings
    row |= measures(points.mean(axis=0), np.quantile(points, PROBABILITIES, axis=0), made.truth, reference)
    row |= {
        "refused": 0.0,
        "warned": float(bool(reasons)),
        "reasons": "; ".join(reasons),
        "returned": "" if posterior.quality is None else posterior.quality.method,
        "num_draws": float(len(points)),
        "ess": _smallest_ess(posterior),
        "acceptance": math.nan if posterior.acceptance_rate is None else float(posterior.acceptance_rate),
        "privacy": posterior.privacy.mode,
        "dpmcmc": posterior.privacy.versions["dpmcmc"],
        "jax": posterior.privacy.versions["jax"],
    }
    return row


def sample(cell: CoverageCell, made: DataSet, reference: Reference) -> dpmcmc.Posterior:
    """Run the sampler of a cell."""
    sampler = make_sampler(cell.case, cell.sampler, cell.epsilon)
    if cell.sampler in ("auto", "dp-laplace"):
        return sample_quietly(made, sampler, cell)
    if cell.sampler.endswith(STARTED_IN_THE_POSTERIOR):
        made = made._replace(init=reference.starts)
    return sample_quietly(made, sampler, cell, num_chains=NUM_CHAINS)


def _smallest_ess(posterior: dpmcmc.Posterior) -> float:
    """Return the smallest bulk ESS of any entry of chains; NaN where draws are no chain's."""
    if not posterior.of_chains:
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)
        return float(posterior.summary()["ess_bulk"].min())


# -------------------------------------------------------------------------------------------------- measures

_MEASURES = (*(f"{what}_{level}" for what in ("truth", "mean") for level in LEVELS), "width", "rms_error")
_OF_NO_RUN: Result = {
    **dict.fromkeys(("refused", "warned"), 0.0),
    **dict.fromkeys(("num_draws", "ess", "acceptance", "processor_seconds"), math.nan),
    **dict.fromkeys(("reasons", "returned", "privacy", "dpmcmc", "jax"), ""),
}
_REFUSED: Result = dict.fromkeys(_MEASURES, math.nan) | _OF_NO_RUN | {"refused": 1.0, "errors": ""}
"""The row of a run that was refused: it has no intervals."""


def measures(center: Array, quantiles: Array, truth: Array, reference: Reference) -> Result:
    """Return what the intervals of a run hold.

    - truth_50, truth_90: share of the d coordinates whose central interval holds the true parameter;
    - mean_50, mean_90: share whose interval holds the mean of the posterior without noise;
    - width: median over the coordinates of the 90 % interval's width / that of the posterior without noise;
    - rms_error: of the means, in sds of the posterior without noise; errors: of each coordinate.

    An interval that is not finite holds nothing.

    Parameters
    ----------
    center, quantiles
        Means of the draws, d, and quantiles at :data:`~studies.coverage_cases.PROBABILITIES`, 4 × d.
    """
    found: Result = {}
    for name, target in {"truth": truth, "mean": reference.mean}.items():
        for level, (low, high) in zip(LEVELS, ((1, 2), (0, 3)), strict=True):
            inside = (quantiles[low] <= target) & (target <= quantiles[high])
            found[f"{name}_{level}"] = float(np.mean(inside & np.isfinite(quantiles[high] - quantiles[low])))
    widths = (quantiles[3] - quantiles[0]) / (reference.quantiles[3] - reference.quantiles[0])
    errors = (center - reference.mean) / reference.sd
    finite = bool(np.all(np.isfinite(widths)) and np.all(np.isfinite(errors)))
    found["width"] = float(np.median(widths)) if finite else math.nan
    found["rms_error"] = float(np.sqrt(np.mean(errors**2))) if finite else math.nan
    found["errors"] = " ".join(f"{error:.5g}" for error in errors)
    return found


# ------------------------------------------------------------------------------------------------------ files


def _to_text(reference: Reference) -> str:
    return json.dumps({name: np.asarray(value).tolist() for name, value in reference._asdict().items()})


def posterior_cell(cell: CoverageCell) -> CoverageCell:
    """Return the cell of the posterior without noise that a run is compared with."""
    return CoverageCell(cell.case, math.inf, cell.repeat, cell.seed, POSTERIOR)


def read_reference(cell: CoverageCell, folder: Path) -> Reference:
    """Return the posterior without noise, which must be filed."""
    found = read_row_of(CoverageCell.from_dict, result_file(folder, posterior_cell(cell)))
    if found is None:
        raise CellError(f"the posterior without noise of {cell.case} {cell.repeat + 1} is not there")
    values: dict[str, Any] = json.loads(str(found[1]["reference"]))
    arrays: dict[str, Any] = {name: np.array(value) for name, value in values.items() if name != "method"}
    return Reference(**arrays, method=values["method"])


def finish_cell(cell: CoverageCell, folder: Path, commit: str | None) -> Result:
    """Run a cell and file its row, which is there as a whole or not at all."""
    row = run_cell(cell, folder, commit)
    write_row(folder, cell, row)
    return row
