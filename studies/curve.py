"""The study of the planning curve: does the plan, which looks at no data, say how wide intervals become?

One cell is one run of DP-Laplace or `auto` on one case, whose widths are compared with the band that the plan gives
beforehand, from benign to skewed data. The records are synthetic or the public Adult data, and every run is seeded,
hence marked as not private.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import dpmcmc
from dpmcmc.errors import BudgetExceededError, QueryError
from studies.cells import DELTA, Array, CaseCell, Result, quality_of, sample_quietly, unconstrained, write_row
from studies.laplace import references
from studies.laplace_cases import Case, Reference, make_case, reference_file, regression_case

EPSILONS = (0.5, 1.0, 2.0, 4.0)
SAMPLERS = ("dp-laplace", "auto")
KINDS = {
    "logistic": "logistic, bounded features",
    "linear": "linear, bounded features",
    "poisson": "Poisson, bounded features",
    "skewed": "linear, exponential features",
    "heavy": "linear, log-normal features",
    "adult": "Adult, logistic",
}
"""The first two are benign, the next two skewed, "heavy" is more than that; what Adult is nobody knows beforehand."""
SIZES = {"5k": 5_000, "20k": 20_000, "80k": 80_000}
DIMENSIONS = (4, 12)
ADULT = {"adult-12k": 12_000, "adult-48k": None}
FAST = ("logistic-d4-20k", "heavy-d4-20k")
"""The cases of a quick look."""
NUM_DRAWS = 5_000
"""Of each of four chains. The draws are independent and free: their number decides how exactly widths are known."""
CERTAIN = 3.0
"""A width is outside of the band if it is so by more than so many standard errors of the draws' sd."""

# To be increased when a change of the code makes earlier results of the same settings worthless.
_FORMAT = 1


def case_names() -> list[str]:
    """Return the names of all cases."""
    kinds = [kind for kind in KINDS if kind != "adult"]
    return [*(f"{kind}-d{d}-{size}" for kind in kinds for d in DIMENSIONS for size in SIZES), *ADULT]


def kind_of(case: str) -> str:
    """Return the kind of a case, a key of :data:`KINDS`."""
    return case.split("-", 1)[0]


@lru_cache(maxsize=4)
def make_curve_case(name: str, seed: int = 0) -> Case:
    """Return a case by its name; the same name and seed give the same records.

    Examples
    --------
    >>> case = make_curve_case("skewed-d4-5k")
    >>> case.num_records, case.dimension
    (5000, 4)
    """
    if name not in case_names():
        raise QueryError(f"case {name!r} is unknown; give one of {', '.join(case_names())}")
    generator = np.random.default_rng((seed, *b"curve-", *name.encode()))
    if name in ADULT:
        return _adult_case(name, ADULT[name], generator, seed)
    kind, dimension, size = name.split("-")
    return replace(_synthetic_case(name, kind, int(dimension[1:]), SIZES[size], generator), seed=seed)


def _synthetic_case(name: str, kind: str, dimension: int, num_records: int, generator: np.random.Generator) -> Case:
    """Return a regression with an intercept, ``dimension`` unconstrained coordinates and independent features.

    Features are uniform on [−1, 1]; of kind "skewed" they are exponential, of kind "heavy" exp(N(0, 1)). The effects
    have random signs, and a size that does not let the predictor's variance grow with d.
    """
    family = "linear" if kind in ("skewed", "heavy") else kind
    number = dimension - 1 - (family == "linear")  # a linear regression has a noise scale
    if kind == "skewed":
        features = generator.standard_exponential((num_records, number))
    elif kind == "heavy":
        features = np.exp(generator.standard_normal((num_records, number)))
    else:
        features = generator.uniform(-1.0, 1.0, (num_records, number))
    effects = generator.choice([-1.0, 1.0], number) * generator.uniform(0.5, 1.5, number) / math.sqrt(number)
    truth = np.append(0.5, effects)
    return regression_case(name, "curve", family, features, truth, generator, chains=False)


def _adult_case(name: str, num_records: int | None, generator: np.random.Generator, seed: int) -> Case:
    """Return the Adult data, coded from what everybody knows, or a random part of them."""
    case = make_case("adult")
    if num_records is None:
        return replace(case, name=name, group="curve", seed=seed)
    rows = np.sort(generator.choice(case.num_records, num_records, replace=False))
    data = {column: values[rows] for column, values in case.data.items()}
    return replace(case, name=name, group="curve", data=data, seed=seed)


# ------------------------------------------------------------------------------------------------------ cells


@dataclass(frozen=True)
class CurveCell(CaseCell):
    """A run of a sampler on one of :func:`case_names`. Repeats differ in the noise alone.

    Attributes
    ----------
    sampler
        One of :data:`SAMPLERS`.
    """

    sampler: str = "dp-laplace"

    study: ClassVar[str] = "curve"

    def specification(self) -> dict[str, Any]:
        """Return plain values that a result is filed under: the same ones mean the same run."""
        return asdict(self) | {"study": self.study, "delta": DELTA, "draws": NUM_DRAWS, "format": _FORMAT}

    @property
    def name(self) -> str:
        """Name of the cell's file: readable, and different for different settings."""
        return f"{self.study}-{self.case}-{self.sampler}-{self.epsilon:g}-{self.repeat:02d}-{self.digest}"

    def __str__(self) -> str:
        return f"{self.case}, {self.sampler} ε = {self.epsilon:g} repeat {self.repeat + 1}"

    def work(self) -> float:
        """Return about how much there is to compute; cells of one case are equal, so that they follow each other."""
        return 1.0 + 1e-3 * case_names().index(self.case) + 1e-4 * SAMPLERS.index(self.sampler)


@dataclass(frozen=True)
class CurveReferenceCell:
    """The posterior without noise of a case, computed before its runs so that no two of them do it.

    Attributes
    ----------
    case, seed
        As in :class:`CurveCell`.
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
        return 30.0 if self.case in ADULT else 3.0


def cells_of(
    names: Sequence[str], samplers: Sequence[str], epsilons: Sequence[float] | None, repeats: int, seed: int
) -> list[CurveCell]:
    """Return the cells of these cases, at these budgets or at those of the study."""
    return [
        CurveCell(name, epsilon, repeat, seed, sampler)
        for name in names
        for sampler in samplers
        for epsilon in epsilons or EPSILONS
        for repeat in range(repeats)
    ]


# -------------------------------------------------------------------------------------------------------- run


def run_cell(cell: CurveCell, folder: Path, commit: str | None = None) -> Result:
    """Run a cell and return its row of results."""
    case = make_curve_case(cell.case, cell.seed)
    reference = case.reference(references(folder))
    sampler: Any = "auto" if cell.sampler == "auto" else dpmcmc.DPLaplace()
    row: Result = {
        "case": cell.case,
        "kind": kind_of(cell.case),
        "sampler": cell.sampler,
        "epsilon": cell.epsilon,
        "repeat": cell.repeat,
        "num_records": case.num_records,
        "dimension": case.dimension,
        "method": reference.method,
        "study_seed": cell.seed,
        "seed": cell.run_seed,
        "commit": commit or "",
    }
    began = time.perf_counter()
    try:
        posterior = sample_quietly(case, sampler, cell, num_steps=NUM_DRAWS)
    except BudgetExceededError as error:  # it says beforehand that the budget does not suffice
        return row | _REFUSED | {"reasons": str(error), "seconds": time.perf_counter() - began}
    row["seconds"] = time.perf_counter() - began
    points = unconstrained(case.model, posterior)
    quality = quality_of(posterior)
    row |= measures(points, reference)
    row |= {
        "refused": 0.0,
        "flagged": float(quality.flagged),
        "reasons": "; ".join(quality.reasons),
        "returned": quality.method,
        "num_draws": float(len(points)),
        "privacy": posterior.privacy.mode,
        "dpmcmc": posterior.privacy.versions["dpmcmc"],
        "jax": posterior.privacy.versions["jax"],
    }
    return row


_MEASURES = ("widening", "rms_error", "coverage")
_REFUSED: Result = {
    **dict.fromkeys((*_MEASURES, "num_draws"), math.nan),
    **{"refused": 1.0, "flagged": 1.0, "returned": "", "widenings": "", "privacy": "", "dpmcmc": "", "jax": ""},
}
"""The row of a run that was refused: it has no intervals."""


def measures(points: Array, reference: Reference) -> Result:
    """Return how wide the intervals of draws × d are, compared with those of the posterior without noise.

    The widening of a coordinate is the sd of the draws / the sd of the posterior without noise.

    - widening: the median over the coordinates; widenings: each of them;
    - rms_error: of the means, in sds of the posterior without noise;
    - coverage: share of the coordinates whose central 90 % interval holds the mean without noise.
    """
    if not np.all(np.isfinite(points)):
        return {**dict.fromkeys(_MEASURES, math.nan), "widenings": ""}
    widenings = points.std(axis=0, ddof=1) / reference.sd
    ends = np.quantile(points, (0.05, 0.95), axis=0)
    return {
        "widening": float(np.median(widenings)),
        "rms_error": float(np.sqrt(np.mean(((points.mean(axis=0) - reference.mean) / reference.sd) ** 2))),
        "coverage": float(np.mean((ends[0] <= reference.mean) & (reference.mean <= ends[1]))),
        "widenings": " ".join(f"{value:.5g}" for value in widenings),
    }


def compared(row: Result) -> Result:
    """Return a run's row with what the plan says of it, which is asked anew: a better plan needs no other runs.

    - predicted_low, predicted_high: the band, from benign to skewed data; noise_benign, noise_skewed; feasible;
    - beside: −1, 0 or 1 if the median widening is below, in or above the band, which is made wider on both sides by
      :data:`CERTAIN` standard errors 1/√(2·draws) of a draws' sd; 1 also of draws that are not finite;
    - clip_factor: the κ with which the plan would be right, √(widening² − 1) / (noise of κ = 1); 0 of a widening < 1;
    - coordinates_in_band: share of the coordinates whose own widening is in the band.
    """
    plan = dpmcmc.plan(
        "auto",
        num_records=int(row["num_records"]),
        epsilon=float(row["epsilon"]),
        delta=DELTA,
        dimension=int(row["dimension"]),
    )
    found: Result = {
        "predicted_low": plan.interval_widening[0],
        "predicted_high": plan.interval_widening[1],
        "noise_benign": plan.noise_sd[0],
        "noise_skewed": plan.noise_sd[1],
        "feasible": float(plan.feasible),
        **dict.fromkeys(("beside", "clip_factor", "coordinates_in_band"), math.nan),
    }
    if row["refused"]:
        return row | found
    widening = float(row["widening"])
    if not math.isfinite(widening):
        return row | found | {"beside": 1.0}
    margin = CERTAIN / math.sqrt(2.0 * float(row["num_draws"]))
    low, high = plan.interval_widening[0] * (1.0 - margin), plan.interval_widening[1] * (1.0 + margin)
    widenings = np.array([float(word) for word in str(row["widenings"]).split()])
    return (
        row
        | found
        | {
            "beside": float(widening > high) - float(widening < low),
            "clip_factor": math.sqrt(max(0.0, widening**2 - 1.0)) * _BENIGN_FACTOR / plan.noise_sd[0],
            "coordinates_in_band": float(np.mean((low <= widenings) & (widenings <= high))),
        }
    )


_BENIGN_FACTOR = 1.5  # κ of the plan's noise for benign data


# ------------------------------------------------------------------------------------------------------ files


def finish_cell(cell: CurveCell, folder: Path, commit: str | None) -> Result:
    """Run a cell and file its row, which is there as a whole or not at all."""
    row = run_cell(cell, folder, commit)
    write_row(folder, cell, row)
    return row


def finish_reference(cell: CurveReferenceCell, folder: Path, commit: str | None) -> Result:
    """Compute and file a reference."""
    began = time.perf_counter()
    make_curve_case(cell.case, cell.seed).reference(references(folder))
    return {"seconds": time.perf_counter() - began}


def has_reference(folder: Path, cell: CurveReferenceCell) -> bool:
    """Return whether a reference is filed. (If it is that of other records, the runs will compute it again.)"""
    return reference_file(references(folder), cell.case, cell.seed).exists()
