"""Whole runs by `dpmcmc.sample`, private and unseeded, on both data sets of a pair; the attacker guesses once a run.

*White box*: he has overheard every release of the run, those of compiled code too. *Black box*: he sees the draws
that are returned and nothing else; how to read them he has learned from other runs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpmcmc.audit.attacker import Attacker, attack, overheard
from dpmcmc.audit.bounds import Claim, Finding, claimed_of_batches, claimed_of_gaussians, judge
from dpmcmc.audit.questions import says_second
from dpmcmc.data.units import Units
from dpmcmc.errors import DPMCMCWarning
from dpmcmc.inference import sample
from dpmcmc.models import Model
from dpmcmc.privacy import PrivacyStatement
from dpmcmc.privacy.curve import curve_mu
from dpmcmc.results import Posterior
from dpmcmc.samplers import DPHMC, DPSGLD, DPSGNHT, DPLaplace, DPPenalty, SurrogateHMC
from dpmcmc.surrogate import Form, Surrogate

EPSILON, DELTA = 8.0, 1e-6
"""The budget of each run."""
_NUM_RECORDS = 400
_SD = 1.0 / math.sqrt(_NUM_RECORDS)
_HUGE = 1e6
_BATCH_RECORDS, _BATCH_SIZE = 40, 32

# x ~ N(θ, 1): the score x − θ and the log-ratios are as large as a record wants, and of either sign.
_MODEL = Model(
    lambda p, x: -0.5 * (x - p["theta"]) ** 2, lambda p: -0.5 * p["theta"] ** 2, {"theta": "real"}, name="audit"
)


@dataclass(frozen=True)
class Runs:
    """How to run a sampler, and on which data sets.

    Attributes
    ----------
    first, second
        Neighbouring data sets.
    sampler
        With settings for short runs, which the budget just pays for.
    others
        For random batches, see :class:`~dpmcmc.audit.attacker.Attacker`.
    options
        Further arguments of `sample`.
    """

    first: Any
    second: Any
    sampler: Any
    others: Any = None
    options: tuple[tuple[str, Any], ...] = (("init", ((0.0,), (0.0,))),)


def _records(own: float) -> NDArray[np.float64]:
    """Return records as from N(0, 1), with this one instead of the first."""
    records = np.asarray(ndtri((np.arange(_NUM_RECORDS) + 0.5) / _NUM_RECORDS))
    records[0] = own
    return records


def _persons(own: float) -> Any:
    """Return the same by person; the first has 40 rows, of which 5 count."""
    ids = np.concatenate([np.zeros(40, int), np.arange(1, _NUM_RECORDS)])
    records = _records(own)
    return Units.of(ids, max_rows=5).stack(np.concatenate([np.full(40, own), records[1:]]))


def _cases(runs: Runs) -> dict[str, Runs]:
    """Return the worst case, and others: a record that is NaN, and a person of many rows."""
    return {
        "worst": runs,
        "nan": replace(runs, second=_records(math.nan)),
        "unit": replace(runs, first=_persons(_HUGE), second=_persons(-_HUGE)),
    }


def _batches(sampler: Any) -> dict[str, Runs]:
    """Return the worst case for batches of fixed size: all other records at the opposite bound."""
    alike = np.full(_BATCH_RECORDS, -_HUGE)
    second = alike.copy()
    second[0] = _HUGE
    # (The check of the records is paid for apart, by what no batch touches.)
    options = (("init", ((0.0,), (0.0,))), ("check_records", False))
    worst = Runs(alike, second, sampler, others=alike, options=options)
    nan = alike.copy()
    nan[0] = math.nan
    return {"worst": worst, "nan": replace(worst, second=nan)}


def _dp_hmc() -> dict[str, Runs]:
    sampler = DPHMC(
        step_size=_SD,
        num_leapfrog=2,
        ratio_bound=2.0,
        gradient_clip_norm=2.0,
        ratio_noise_multiplier=4.0,
        gradient_noise_multiplier=6.0,
    )
    return _cases(Runs(_records(_HUGE), _records(-_HUGE), sampler))


def _dp_penalty() -> dict[str, Runs]:
    sampler = DPPenalty(proposal_scale=_SD, ratio_bound=2.0, ratio_noise_multiplier=4.0)
    return _cases(Runs(_records(_HUGE), _records(-_HUGE), sampler))


def _surrogate_hmc() -> dict[str, Runs]:
    surrogate = Surrogate(Form(1, 1, 1), np.zeros(1), np.array([[_SD]]), np.array([[0.0, 1.0]]))
    return _cases(Runs(_records(_HUGE), _records(-_HUGE), SurrogateHMC(surrogate, ratio_bound=4.0)))


def _dp_laplace() -> dict[str, Runs]:
    draws = (("num_steps", 50),)
    return _cases(Runs(_records(_HUGE), _records(-_HUGE), DPLaplace(), options=draws))


def _auto() -> dict[str, Runs]:
    draws = (("num_steps", 50),)
    cases = _cases(Runs(_records(_HUGE), _records(-_HUGE), "auto", options=draws))
    chain = replace(cases["worst"], options=(("exact", True),))
    return {**cases, "exact": chain}


SAMPLERS: dict[str, Callable[[], dict[str, Runs]]] = {
    "auto": _auto,
    "dp-laplace": _dp_laplace,
    "dp-hmc": _dp_hmc,
    "dp-penalty": _dp_penalty,
    "surrogate-hmc": _surrogate_hmc,
    "dp-sgld": lambda: _batches(DPSGLD(_BATCH_SIZE, 1.0, 0.0128)),
    "dp-sgnht": lambda: _batches(DPSGNHT(_BATCH_SIZE, 1.0, 0.05, 4.0)),
}
"""Every private sampler, with its cases; the first of each is the worst."""


def audit_runs(runs: Runs, guesses: int) -> dict[str, Finding]:
    """Run so often on each data set, guess each time, and compare with what the statement claims."""
    attacker = Attacker(_MODEL, runs.first, runs.second, runs.others)
    ratios: tuple[list[float], list[float]] = ([], [])
    features: tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]] = ([], [])
    statement: PrivacyStatement | None = None
    for _ in range(guesses):
        for place, data in enumerate((runs.first, runs.second)):
            with overheard() as heard:
                posterior = _sample(runs, data)
            assert posterior.privacy.private, "the audit is of private runs"
            statement = posterior.privacy
            ratios[place].append(attack(attacker, heard))
            features[place].append(_features(posterior))
    assert statement is not None
    claim = _claim_of(statement)
    white = judge((says_second(ratios[0]), says_second(ratios[1])), guesses, claim, DELTA)
    black = judge(_guess_from_draws(*map(np.array, features)), guesses - guesses // 2, claim, DELTA)
    return {"white_box": white, "black_box": black}


def _sample(runs: Runs, data: Any) -> Posterior:
    options = {name: np.array(value) if name == "init" else value for name, value in runs.options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)  # these runs are far too short
        return sample(
            _MODEL,
            data,
            sampler=runs.sampler,
            epsilon=EPSILON,
            delta=DELTA,
            num_chains=2,
            progress=False,
            **options,  # type: ignore[arg-type]
        )


def _claim_of(statement: PrivacyStatement) -> Claim:
    """Return what a run says of itself, in its own statement."""
    if statement.batches is None:
        mu = curve_mu(statement)
        assert mu is not None
        return claimed_of_gaussians(mu)
    batches = statement.batches
    return claimed_of_batches(
        batches["noise_ratio"],
        batches["sampling_prob"],
        statement.queries["batch_gradient"],
        batches["sampling"],
    )


def _features(posterior: Posterior) -> NDArray[np.float64]:
    """Return numbers by which runs could differ: where the draws lie, how wide, how they begin and end."""
    draws = posterior.draws["theta"]
    parts = [np.mean(draws), np.std(draws), *np.quantile(draws, [0.05, 0.25, 0.5, 0.75, 0.95]), *draws[:, -1]]
    if posterior.num_warmup:
        parts += [*posterior.warmup_draws["theta"][:, 0], np.mean(posterior.warmup_draws["theta"])]
    return np.clip(np.nan_to_num(np.array(parts, np.float64)), -1e12, 1e12)


def _guess_from_draws(first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[int, int]:
    """Learn from half of the runs which features tell both apart (a linear discriminant), and guess for the others."""
    half = len(first) // 2
    known = np.concatenate([first[:half], second[:half]])
    center, scale = known.mean(axis=0), known.std(axis=0) + 1e-12
    learned = [(side[:half] - center) / scale for side in (first, second)]
    between = learned[1].mean(axis=0) - learned[0].mean(axis=0)
    within = sum(np.cov(side, rowvar=False) for side in learned) / 2.0 + 0.1 * np.eye(len(center))
    direction = np.linalg.solve(within, between)
    middle = 0.5 * sum(float((side @ direction).mean()) for side in learned)
    said = [says_second(((side[half:] - center) / scale) @ direction - middle) for side in (first, second)]
    return said[0], said[1]
