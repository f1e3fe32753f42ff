"""One cell of a study: one run of one algorithm, what it is compared with, and its row of results.

A cell is a few plain values; data, reference, starting points, seeds and settings are computed from them. So it can be
run in any process, in any order and at any time. The data are synthetic; every run is seeded or without noise and
hence marked as not private.
"""

import functools
import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import jax
import numpy as np
from numpy.typing import NDArray

import dpmcmc
from dpmcmc import privacy
from dpmcmc.curator import NoNoiseNotPrivate
from dpmcmc.errors import BudgetExceededError, DPMCMCError, DPMCMCWarning, QueryError
from dpmcmc.output import replace_file
from dpmcmc.queries import BatchGradient, ClipCount
from dpmcmc.results import Quality
from studies import discrepancy, settings

Array = NDArray[np.float64]
Result = dict[str, str | float | bool]
"""What is found for a cell: plain values, by the names of the columns of ``tables.columns``."""

# To be increased when a change of the code makes earlier results of the same settings worthless.
_FORMAT = 1
DELTA = 1e-6
"""δ of the studies of cases."""
# Kept draws of each chain at which clipped gradients are counted, and moves of all chains for clipped ratios.
_NUM_CLIP_STATES = 40
_NUM_CLIP_MOVES = 160
_MIN_STEPS = 4
# `Cell.work` counts 1 for each coordinate of each record in a pass over all records. A record of a random batch counts
# more, because it has to be chosen and fetched; and every run takes seconds to be compiled, whatever its length.
_BATCH_WEIGHT = 10.0
_FIXED_WORK = 4e9


class CellError(DPMCMCError):
    """A cell's run did not do what it should."""


class PlainCell:
    """Base of a cell, which is a frozen dataclass of a few plain values."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Rebuild a cell from its specification."""
        return cls(**{item.name: values[item.name] for item in fields(cls)})  # type: ignore[arg-type]

    @property
    def run_seed(self) -> int:
        """Seed of this run: 32 bits that depend on all that a cell is."""
        text = json.dumps(asdict(self), sort_keys=True)  # type: ignore[call-overload]
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])

    def specification(self) -> dict[str, Any]:
        """Return plain values that a result is filed under: the same ones mean the same run."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Name of the cell's files: readable, and different for different settings."""
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """Eight digits that change with the specification."""
        return hashlib.sha256(json.dumps(self.specification(), sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class CaseCell(PlainCell):
    """One run on a case: a model with its records and an exact answer.

    Attributes
    ----------
    case
        Name of the case.
    epsilon
        The budget; δ is 1e-6.
    repeat
        Number of the repeat, from 0.
    seed
        Of the whole study.
    """

    case: str
    epsilon: float
    repeat: int
    seed: int = 0

    study: ClassVar[str]
    """Name of the study."""

    @property
    def name(self) -> str:
        """Name of the cell's file: readable, and different for different settings."""
        return f"{self.study}-{self.case}-{self.epsilon:g}-{self.repeat:02d}-{self.digest}"

    def __str__(self) -> str:
        return f"{self.case} ε = {self.epsilon:g} repeat {self.repeat + 1}"


AnyCaseCell = TypeVar("AnyCaseCell", bound=CaseCell)


def cells_of_cases(
    kind: type[AnyCaseCell],
    names: Sequence[str],
    epsilons: Sequence[float] | None,
    otherwise: Mapping[str, Sequence[float]],
    repeats: int,
    seed: int,
) -> list[AnyCaseCell]:
    """Return the cells of these cases: at these budgets, or ``otherwise`` at those of each case."""
    return [
        kind(name, epsilon, repeat, seed)
        for name in names
        for epsilon in epsilons or otherwise[name]
        for repeat in range(repeats)
    ]


class AnyCase(Protocol):
    """What a run has to know of a case."""

    @property
    def model(self) -> dpmcmc.Model:
        """The model."""

    @property
    def data(self) -> Any:
        """Its records."""

    @property
    def init(self) -> Array | None:
        """Where the run starts, an unconstrained vector; None: where the sampler starts by itself."""


def sample_quietly(case: AnyCase, sampler: Any, cell: CaseCell, **more: Any) -> dpmcmc.Posterior:
    """Run a sampler on a case, seeded; what it would warn of is in the study's tables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)
        return dpmcmc.sample(
            case.model,
            case.data,
            epsilon=cell.epsilon,
            delta=DELTA,
            sampler=sampler,
            seed=cell.run_seed,
            init=case.init,
            progress=False,
            **more,
        )


def unconstrained(model: dpmcmc.Model, posterior: dpmcmc.Posterior) -> Array:
    """Return the draws of a run that is not private, draws × d, in unconstrained space, one chain after the other."""
    if posterior.privacy.private:
        raise CellError("a run of a study must not be called private")
    flat = {name: np.asarray(value, np.float64) for name, value in posterior.draws.items()}
    flat = {name: value.reshape(math.prod(value.shape[:2]), *value.shape[2:]) for name, value in flat.items()}
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(model.unconstrain)(flat), np.float64)


def quality_of(posterior: dpmcmc.Posterior) -> Quality:
    """Return what a run says of itself."""
    if posterior.quality is None:
        raise CellError("the run says nothing about its quality")
    return posterior.quality


@dataclass(frozen=True)
class Cell(PlainCell):
    """What to run.

    Attributes
    ----------
    study
        "comparison" or "clipping".
    model
        "banana" or "gaussian".
    row
        The algorithm: a key of :data:`~studies.settings.ROWS`, or "hmc" or "rwmh" in the study of clipping.
    level
        What is varied: ε, or the clip bound.
    repeat
        Number of the repeat, from 0. It decides the starting points.
    num_records
        n; the paper has 100,000.
    seed
        Of the whole study.
    """

    study: Literal["comparison", "clipping"]
    model: str
    row: str
    level: float
    repeat: int
    num_records: int = settings.NUM_RECORDS
    seed: int = 0

    @property
    def delta(self) -> float:
        """δ = 0.1/n, as in the paper."""
        return 0.1 / self.num_records

    @property
    def in_paper(self) -> bool:
        """Whether the paper has such a run."""
        return self.study == "clipping" or settings.ROWS[self.row].in_paper

    @property
    def label(self) -> str:
        """What a reader is shown for the algorithm."""
        return settings.CLIPPING_ROWS[self.row] if self.study == "clipping" else settings.ROWS[self.row].label

    @property
    def accountant(self) -> Literal["none"] | settings.Accountant:
        """Who counts the iterations that the budget buys; "none" where there is no budget."""
        return "none" if self.study == "clipping" else settings.ROWS[self.row].accountant

    @property
    def sampler(self) -> settings.Sampler:
        """The sampler with its settings."""
        if self.study == "clipping":
            return settings.make_clipping_sampler(self.row, self.model, self.level, self.num_records)[0]
        return settings.make_sampler(settings.ROWS[self.row], self.model, self.num_records)

    def specification(self) -> dict[str, Any]:
        """Return plain values that a result is filed under: the same ones mean the same run."""
        return asdict(self) | {"sampler": repr(self.sampler), "accountant": self.accountant, "format": _FORMAT}

    @property
    def name(self) -> str:
        """Name of the cell's files: readable, and different for different settings."""
        return f"{self.study}-{self.model}-{self.row}-{self.level:g}-{self.repeat:02d}-{self.digest}"

    def __str__(self) -> str:
        varied = "ε" if self.study == "comparison" else "bound"
        return f"{self.model} {self.row} {varied} = {self.level:g} repeat {self.repeat + 1}"

    def work(self) -> float:
        """Return about how much there is to compute: the longest runs come first, and the time left is foreseen."""
        accountant = self.accountant
        if accountant in ("authors", "own"):
            batch = self._batch()
            total = privacy.gaussian_mu(self.level, self.delta)
            steps = total * (batch.noise_ratio * self.num_records / batch.batch_size) ** 2 / 2.0  # the central limit
            steps *= 0.25 if accountant == "authors" else 1.0
            each = _BATCH_WEIGHT * batch.batch_size
        else:
            queries = self.sampler.queries(self.num_records)
            each = float((queries.gradients_per_step + queries.log_ratios_per_step) * self.num_records)
            steps = settings.NUM_CHAINS * (self.steps()[0] if accountant == "none" else self._plan().num_steps)
        return _FIXED_WORK + float(steps * each * settings.make_model(self.model).dimension)

    def _batch(self) -> BatchGradient:
        """Return what a minibatch sampler asks in a step."""
        query = self.sampler.queries(self.num_records).gradient
        assert isinstance(query, BatchGradient)
        return query

    def _plan(self) -> dpmcmc.Plan:
        return dpmcmc.plan(
            self.sampler,
            num_records=self.num_records,
            epsilon=self.level,
            delta=self.delta,
            num_chains=settings.NUM_CHAINS,
            dimension=settings.make_model(self.model).dimension,
            check_records=False,  # as in the paper: all of the budget goes into the steps
        )

    def steps(self) -> tuple[int, int]:
        """Return the number of steps of each chain, and how many of them make one draw."""
        if self.study == "clipping":
            return settings.make_clipping_sampler(self.row, self.model, self.level, self.num_records)[1], 1
        accountant = self.accountant
        if accountant == "authors":
            batch = self._batch()
            total = authors_steps(batch.noise_ratio, batch.batch_size / self.num_records, self.level, self.delta)
            steps = total // settings.NUM_CHAINS
        else:
            try:
                steps = self._plan().num_steps
            except BudgetExceededError:
                steps = 0
        if steps < _MIN_STEPS:
            raise QueryError(
                f"epsilon = {self.level:g} and {self.num_records:,} records buy {self.row} {steps} iterations in each "
                f"chain, too few to compare; raise --epsilon or --records"
            )
        return steps, 1 if accountant == "gaussian" else max(1, steps // settings.THINNED_TO)


@functools.lru_cache(maxsize=64)
def authors_steps(noise_ratio: float, sampling_prob: float, epsilon: float, delta: float) -> int:
    """Return the number of iterations, of all chains together, that the paper's accountant grants.

    They called ``fourier_accountant.get_delta_S`` with sigma = noise/(2C): the curve of Poisson batches, components at
    ±C about 0, with half the noise. The batches of their runs, and of these, are drawn without replacement, for which
    that is no proven curve. But the number is lower than what the project's accountant allows for such batches, so
    that (ε, δ) covers the run.

    Parameters
    ----------
    noise_ratio
        Noise sd on the sum over the batch / clip norm.
    sampling_prob
        Batch size / number of records.
    epsilon, delta
        The budget.
    """
    return privacy.subsampled_steps(noise_ratio / 2.0, sampling_prob, epsilon, delta, scheme="poisson")


# --------------------------------------------------------------------------------------------- what is compared


@dataclass(frozen=True)
class Problem:
    """A model with the study's one data set, and exact posterior draws. As in the paper's code, all repeats share both.

    Attributes
    ----------
    model, data
        The model and its synthetic records.
    reference
        Exact posterior draws. Not private.
    seed
        Of the whole study.
    """

    model: settings.Model
    data: NDArray[np.floating]
    reference: Array
    seed: int

    def start(self, repeat: int) -> Array:
        """Return the starting points of a repeat: true parameter + N(0, s²), s the mean of the reference's sds.

        The same ones for every algorithm and level.
        """
        center = np.zeros(self.model.dimension)
        center[1] = 3.0
        generator = np.random.default_rng((self.seed, 2, repeat))
        noise = generator.standard_normal((settings.NUM_CHAINS, self.model.dimension))
        return center + self.reference.std(axis=0).mean() * noise


@functools.lru_cache(maxsize=2)
def make_problem(model: str, num_records: int, seed: int) -> Problem:
    """Generate the records of a study and draw from their exact posterior."""
    built = settings.make_model(model)
    generator = np.random.default_rng((seed, 1, settings.MODELS.index(model)))
    data_key, reference_key = (jax.random.key(int(word)) for word in generator.integers(2**31, size=2))
    # In float32, which is faster; the reference posterior is that of the same numbers.
    data = built.generate(data_key, num_records).astype(np.float32)
    return Problem(built, data, built.sample_posterior_not_private(reference_key, data, settings.NUM_REFERENCE), seed)


@functools.lru_cache(maxsize=2)  # what it has compiled for one cell serves the next
def _counting_curator_not_private(model: str, num_records: int, seed: int) -> dpmcmc.Curator:
    """Return a curator without noise over a study's synthetic records, to count what was clipped."""
    problem = make_problem(model, num_records, seed)
    return dpmcmc.Curator(problem.model, problem.data, noise=NoNoiseNotPrivate())


# -------------------------------------------------------------------------------------------------------- run


def run_cell(cell: Cell, commit: str | None = None) -> tuple[Result, Array]:
    """Run a cell; return its row of results and the kept draws, chains × draws × d."""
    began = time.perf_counter()
    problem = make_problem(cell.model, cell.num_records, cell.seed)
    num_steps, thin = cell.steps()
    sampling_began = time.perf_counter()
    posterior = _sample(cell, problem, num_steps, thin)
    sampling_seconds = time.perf_counter() - sampling_began
    (draws,) = (np.asarray(value, np.float64) for value in posterior.draws.values())
    ratios, gradients = clipped_fractions(cell, posterior, draws, thin)
    row = asdict(cell)
    row["epsilon" if cell.study == "comparison" else "bound"] = row.pop("level")
    row["sampler"] = row.pop("row")
    temperature = getattr(cell.sampler, "temperature", math.nan)
    row |= {
        "label": cell.label,
        "in_paper": cell.in_paper,
        "accountant": cell.accountant,
        "temperature": temperature,
        **scores(draws, problem.reference, cell.run_seed),
        "acceptance": _over_all_steps(posterior, "acceptance_rate"),
        "ratios_clipped": ratios,
        "gradients_clipped": gradients,
        "iterations": settings.NUM_CHAINS * num_steps,
        "iterations_per_chain": num_steps,
        "thin": thin,
        "kept_draws": draws.shape[0] * draws.shape[1],
        "seconds": time.perf_counter() - began,
        "seconds_sampling": sampling_seconds,
        "study_seed": cell.seed,
        "seed": cell.run_seed,
        "privacy": posterior.privacy.mode,
        "dpmcmc": posterior.privacy.versions["dpmcmc"],
        "jax": posterior.privacy.versions["jax"],
        "commit": commit or "",
    }
    return row, draws


def _sample(cell: Cell, problem: Problem, num_steps: int, thin: int) -> dpmcmc.Posterior:
    """Run the sampler of a cell; refuse a run that was interrupted."""
    epsilon, delta = (None, None) if cell.study == "clipping" else (cell.level, cell.delta)
    with warnings.catch_warnings():
        # What it would warn of is in the study's tables: R̂, acceptance, distance to the exact posterior.
        warnings.simplefilter("ignore", DPMCMCWarning)
        posterior = dpmcmc.sample(
            problem.model,
            problem.data,
            sampler=cell.sampler,
            epsilon=epsilon,
            delta=delta,
            num_chains=settings.NUM_CHAINS,
            num_steps=num_steps,
            init=problem.start(cell.repeat),
            thin=thin,
            progress=False,
            seed=cell.run_seed,
            check_records=False,
        )
    if posterior.privacy.private:
        raise CellError("a run of a study must not be called private")
    if posterior.num_draws + posterior.num_warmup != num_steps // thin:  # `sample` returns what it has on Ctrl-C
        raise CellError("the run was interrupted")
    return posterior


def scores(draws: Array, reference: Array, seed: int) -> dict[str, float]:
    """Return how far chains × draws × d are from the reference, all chains together, and how far from each other."""
    points = draws.reshape(-1, draws.shape[-1])
    if not np.all(np.isfinite(points)):  # a chain that diverged has no distance
        return {"mmd": math.nan, "mean_error": math.nan, "max_r_hat": math.nan}
    return {
        "mmd": discrepancy.compare(points, reference, np.random.default_rng((seed, 3))),
        "mean_error": discrepancy.mean_error(points, reference),
        "max_r_hat": discrepancy.max_split_r_hat(draws),
    }


def _over_all_steps(posterior: dpmcmc.Posterior, name: str) -> float:
    """Return the mean of a statistic over all steps, warm-up included, as in the paper's code."""
    if name not in posterior.sample_stats:
        return math.nan
    return float(np.concatenate([posterior.warmup_stats[name], posterior.sample_stats[name]], axis=1).mean())


def clipped_fractions(cell: Cell, posterior: dpmcmc.Posterior, draws: Array, thin: int) -> tuple[float, float]:
    """Return the fractions of log-ratios and of gradients that were clipped. Not private: the data are synthetic.

    A sampler without noise reports how many ratios of each proposal were clipped. A sampler with noise reports nothing
    of the kind; a curator without noise counts afterwards: gradients at some of the kept draws, ratios over some of the
    accepted moves. (Rejected proposals are not kept, and if draws are thinned the moves between them are not either.)
    """
    gradient_clip_norm: float | None = getattr(cell.sampler, "gradient_clip_norm", None)
    ratio_bound: float | None = getattr(cell.sampler, "ratio_bound", None)
    curator = _counting_curator_not_private(cell.model, cell.num_records, cell.seed)
    ratios = gradients = math.nan
    places = np.linspace(0, draws.shape[1] - 1, _NUM_CLIP_STATES).astype(int)
    states = draws[:, places].reshape(-1, draws.shape[-1])
    if gradient_clip_norm is not None and np.all(np.isfinite(states)):
        count = curator.ask(ClipCount(gradient_clip_norm, noise_sd=1.0), states).value
        gradients = float(np.mean(count)) / cell.num_records
    if cell.study == "clipping":
        ratios = _over_all_steps(posterior, "ratios_clipped")
    elif ratio_bound is not None and thin == 1:
        before, after = draws[:, :-1].reshape(-1, draws.shape[-1]), draws[:, 1:].reshape(-1, draws.shape[-1])
        moves = np.flatnonzero(np.any(before != after, axis=1))
        chosen = moves[np.linspace(0, len(moves) - 1, min(_NUM_CLIP_MOVES, len(moves))).astype(int)]
        counts = []
        for move in chosen:
            threshold = ratio_bound * float(np.linalg.norm(after[move] - before[move]))
            query = ClipCount(threshold, noise_sd=1.0, of="log_ratio")
            counts.append(float(curator.ask(query, before[move], after[move]).value))
        ratios = float(np.mean(counts)) / cell.num_records if counts else math.nan
    return ratios, gradients


# ------------------------------------------------------------------------------------------------------ files


class Named(Protocol):
    """A cell of any study: its results are filed under its name and its specification."""

    @property
    def name(self) -> str:
        """Name of the cell's files."""

    def specification(self) -> dict[str, Any]:
        """Return plain values that a result is filed under."""


AnyCell = TypeVar("AnyCell", bound=Named)


def result_file(folder: Path, cell: Named) -> Path:
    """Return where the result of a cell is kept."""
    return folder / "cells" / f"{cell.name}.json"


def draws_file(folder: Path, cell: Named) -> Path:
    """Return where the kept draws of a cell are, if they are kept."""
    return result_file(folder, cell).with_suffix(".npz")


def keeps_draws(cell: Cell) -> bool:
    """Return whether a figure will show the draws of this cell."""
    return cell.study == "comparison" and cell.model == "banana" and cell.level == settings.POSTERIOR_EPSILON


def finish_cell(cell: Cell, folder: Path, commit: str | None) -> Result:
    """Run a cell and write its result, which is there as a whole or not at all; return the row."""
    row, draws = run_cell(cell, commit)
    if keeps_draws(cell):
        write_draws(folder, cell, draws)
    write_row(folder, cell, row)
    return row


def write_draws(folder: Path, cell: Named, draws: Array) -> None:
    """File the draws of a cell."""
    partial = draws_file(folder, cell).with_suffix(".partial.npz")
    np.savez_compressed(partial, draws=draws.astype(np.float32))
    partial.replace(draws_file(folder, cell))


def write_row(folder: Path, cell: Named, row: Result) -> None:
    """File the row of a cell; NaN is written as null."""
    plain = {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}
    content = {"specification": cell.specification(), "row": plain}
    replace_file(result_file(folder, cell), json.dumps(content, indent=1, ensure_ascii=False).encode())


def read_row(path: Path) -> tuple[Cell, Result] | None:
    """Return a finished cell and its row; None if the file is damaged or the settings have changed since."""
    return read_row_of(Cell.from_dict, path)


def read_row_of(rebuild: Callable[[dict[str, Any]], AnyCell], path: Path) -> tuple[AnyCell, Result] | None:
    """Do the same as :func:`read_row` for the cells that ``rebuild`` makes from a specification."""
    try:
        content = json.loads(path.read_bytes())
        cell = rebuild(content["specification"])
        if cell.specification() != content["specification"]:
            return None
        row = {name: math.nan if value is None else value for name, value in content["row"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cell, row


def has_result(folder: Path, cell: PlainCell) -> bool:
    """Return whether there is a row of exactly this cell."""
    found = read_row_of(type(cell).from_dict, result_file(folder, cell))
    return found is not None and found[0] == cell


def is_finished(folder: Path, cell: Cell) -> bool:
    """Return whether there is a result of exactly this cell."""
    return has_result(folder, cell) and (not keeps_draws(cell) or draws_file(folder, cell).exists())


def read_draws(folder: Path, cell: Named) -> Array:
    """Return the kept draws of a cell, as they were filed: of a chain, chains × draws × d."""
    with np.load(draws_file(folder, cell)) as archive:
        return np.asarray(archive["draws"], np.float64)
