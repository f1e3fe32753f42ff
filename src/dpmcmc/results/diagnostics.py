"""What is wrong with a run, in sentences for whoever ran it: each says what was seen, in numbers, and what to do.

Reads released quantities only (draws, acceptance, the noised count of records that counted as nothing), so that its
sentences may be published. It never raises about a run, however bad that was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpmcmc.errors import ResultError
from dpmcmc.results import arviz_bridge
from dpmcmc.results.quality import entry_label

if TYPE_CHECKING:
    from dpmcmc.results.posterior import Posterior

__all__ = ["RecordCheck", "problems", "without_still_entries"]

LOW_ACCEPTANCE = 0.02
"""Below this the chains stand still most of the time."""
HIGH_R_HAT = 1.05
"""Above this the chains disagree about the posterior."""
FEW_EFFECTIVE_DRAWS = 100
FEW_EFFECTIVE_DRAWS_PER_CHAIN = 25
MANY_BAD_RECORDS = 0.02
"""If a larger share of the records counts as nothing, they are probably coded wrongly; a few gaps would be fewer."""
_CERTAIN = 4.0  # noise sds: of 30,000 runs without any such record, one gets this warning by chance
_FEWEST_DRAWS = 4  # ArviZ's own limit


@dataclass(frozen=True, kw_only=True)
class RecordCheck:
    """A noised count of the records that counted as nothing: a value missing or infinite, or an impossible outcome.

    Parameters
    ----------
    estimate
        The count plus noise; may be below 0.
    noise_sd
        Standard deviation of that noise.
    num_records
        Number of rows, which is public.

    Examples
    --------
    >>> RecordCheck(estimate=100.0, noise_sd=5.0, num_records=1000).share
    0.1
    """

    estimate: float
    noise_sd: float
    num_records: int

    def __post_init__(self) -> None:
        for name, kind, least in (
            ("estimate", float, -math.inf),
            ("noise_sd", float, 0.0),
            ("num_records", int, 1),
        ):
            value = getattr(self, name)
            try:
                number = kind(value)
            except (TypeError, ValueError, OverflowError):
                number = math.nan
            if number != value or not math.isfinite(number) or number < least:
                raise ResultError(f"record_check has {name} = {value!r}; give a finite number of at least {least}")
            object.__setattr__(self, name, number)

    @property
    def share(self) -> float:
        """The estimated share of the records, from 0 to 1."""
        return min(max(self.estimate / self.num_records, 0.0), 1.0)


def problems(posterior: Posterior) -> tuple[str, ...]:
    """Return what is wrong with a run, a sentence or two for each problem; nothing if nothing was found.

    Finding nothing proves nothing: chains that all missed a mode, or a posterior that clipping has shifted, look fine
    from here.
    """
    return tuple(_problems(posterior))


def without_still_entries(draws: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]] | None:
    """Return the draws with NaN for each entry that moved in no chain; None if there is no such entry.

    ArviZ takes draws that are all the same for independent ones, and gives them a high ESS; for NaN it gives NaN.
    """
    masks = {name: _still(value).all(axis=0) for name, value in draws.items()}
    if not any(mask.any() for mask in masks.values()):
        return None
    return {name: np.where(masks[name], np.nan, value) for name, value in draws.items()}


def _problems(posterior: Posterior) -> Iterator[str]:
    num_draws, num_chains = posterior.num_draws, posterior.num_chains
    if posterior.privacy.interrupted:
        yield (
            f"The run was interrupted; each chain has {posterior.num_warmup + num_draws:,} draws, warm-up included. "
            "All of the budget counts as spent: another run needs one of its own."
        )
    if posterior.record_check is not None:
        yield from _bad_records(posterior.record_check)
    if posterior.quality is not None:
        yield from posterior.quality.reasons
    acceptance = posterior.acceptance_rate
    if acceptance is not None and acceptance < LOW_ACCEPTANCE:
        yield (
            f"The acceptance rate is {acceptance:.2g}: next to nothing moved. The accept test's noise grows with clip "
            "bound × noise × step, and much noise rejects: lower one of the three."
        )
    if not all(np.isfinite(value).all() for value in posterior.draws.values()):
        yield (
            "Some draws are infinite or not numbers: the fit reaches where the parameters' values overflow. Use a "
            "larger budget or more records, or a tighter prior."
            if not posterior.of_chains
            else "Some draws are infinite or not numbers: the chains ran away. Lower the step size, or start nearer."
        )
        return
    if not posterior.of_chains:  # nothing to be judged: `quality` has said what there is to say
        return
    if num_draws < _FEWEST_DRAWS:
        yield f"Chains of {num_draws} draws are too short to judge. A larger budget, or less noise a step, buys more."
        return
    labels, entries = _entries(posterior)
    still = np.concatenate([_still(value).reshape(num_chains, -1) for value in posterior.draws.values()], axis=1)
    fixed = np.concatenate([_fixed(value).ravel() for value in posterior.draws.values()])
    yield from _still_chains(labels, still | fixed, still & ~fixed, num_draws)
    moving = np.flatnonzero(~still.all(axis=0))
    if moving.size:
        yield from _mixing([labels[place] for place in moving], [entries[place] for place in moving], num_chains)


def _bad_records(check: RecordCheck) -> Iterator[str]:
    if check.estimate > max(MANY_BAD_RECORDS * check.num_records, _CERTAIN * check.noise_sd):
        error = check.noise_sd / check.num_records
        yield (
            f"About {100 * check.share:.3g} % (± {100 * error:.1g} %) of the records count as nothing: a value is "
            "missing or infinite, or an outcome is impossible for the model (for example y coded 1/2 where 0/1 is "
            "meant). Check the coding."
        )


def _still_chains(
    labels: Sequence[str], still: NDArray[np.bool_], stuck: NDArray[np.bool_], num_draws: int
) -> Iterator[str]:
    chains = np.flatnonzero(still.all(axis=1))
    if chains.size:
        yield (
            f"{chains.size} of {len(still)} chains did not move at all in {num_draws:,} draws: they say no more than "
            "where they started. Take shorter steps or less noise, or start nearer."
        )
    entries = np.flatnonzero(np.delete(stuck, chains, axis=0).any(axis=0))
    if entries.size:
        names = ", ".join(labels[entry] for entry in entries[:5])
        names += f" and {entries.size - 5} more" if entries.size > 5 else ""
        yield f"{names} did not move at all in a chain where others did. Take shorter steps there, or more of them."


def _mixing(labels: Sequence[str], entries: Sequence[NDArray[Any]], num_chains: int) -> Iterator[str]:
    arviz = arviz_bridge.import_arviz()
    with arviz_bridge.quiet():
        effective = np.array([arviz.ess(entry) for entry in entries])
        r_hat = np.array([arviz.rhat(entry) for entry in entries]) if num_chains > 1 else np.array([1.0])
        worst, fewest = np.nanmax(r_hat), np.nanmin(effective)
    if num_chains == 1:
        yield "R̂ cannot be computed from one chain, and nothing else tells whether it has settled. Run two or more."
    if worst > HIGH_R_HAT:
        yield (
            f"R̂ is {worst:.3f} for {labels[int(np.nanargmax(r_hat))]} (at most {HIGH_R_HAT} is wanted): the chains "
            "disagree about the posterior. Let them run longer (a larger budget buys more steps), start them nearer, "
            "or tune the steps."
        )
    wanted = max(FEW_EFFECTIVE_DRAWS, FEW_EFFECTIVE_DRAWS_PER_CHAIN * num_chains)
    if fewest < wanted:
        yield (
            f"The draws of {labels[int(np.nanargmin(effective))]} are worth {fewest:.0f} independent ones (at least "
            f"{wanted} are wanted): means are rough, intervals rougher. Let the chains run longer (a larger budget "
            "buys more steps), or tune the steps."
        )


def _still(value: NDArray[Any]) -> NDArray[np.bool_]:
    """Return, by chain and entry, whether the draws (chains × draws × own shape) are all the same up to rounding."""
    low, high = value.min(axis=1).astype(float), value.max(axis=1).astype(float)
    precision = np.finfo(value.dtype).eps if value.dtype.kind == "f" else 0.0
    return np.asarray(high - low <= 8.0 * precision * np.maximum(np.abs(low), np.abs(high)))


def _fixed(value: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which entries the support holds still: the 0s and 1s of Cholesky factors and correlation matrices."""
    if value.ndim < 4:  # not a matrix
        return np.zeros(value.shape[2:], bool)
    still = _still(value).all(axis=0)
    zero_or_one = np.isclose(value[:, 0], 0.0, atol=1e-12) | np.isclose(value[:, 0], 1.0)
    return np.asarray(still & zero_or_one.all(axis=0) & (not still.all()))


def _entries(posterior: Posterior) -> tuple[list[str], list[NDArray[Any]]]:
    """Return every entry of every parameter (chains × draws), and its name as in ArviZ's tables: "beta[age]"."""
    labels, entries = [], []
    for name, value in posterior.draws.items():
        for index in np.ndindex(value.shape[2:]):
            labels.append(entry_label(name, index, posterior.dims, posterior.coords))
            entries.append(value[(slice(None), slice(None), *index)])
    return labels, entries
