"""What the paper says, checked on a table of results: holds, or does not hold, with the numbers.

Functions of tables. A statement for which the runs are missing is reported as not tested, never as holding.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from studies import settings
from studies.tables import Table, median_of, number, quantile

BAR = "a bar of this project"
"""Who claims what the project set itself."""

_NUM_SKEWED_RECORDS = 100_000
_SKEWED_FRACTIONS = (0.05, 0.01, 0.001)
_UNCLIPPED = 1e-3


@dataclass(frozen=True)
class Statement:
    """A statement and what became of it.

    Attributes
    ----------
    text
        What is claimed.
    by
        Who claims it: the paper, or nobody (a check beside it).
    holds
        None if there are no runs to test it with.
    numbers
        What was found, one line for each comparison.
    """

    text: str
    by: str
    holds: bool | None
    numbers: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Return "holds", "does not hold" or "not tested"."""
        return "not tested" if self.holds is None else "holds" if self.holds else "does not hold"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self) | {"verdict": self.verdict}

    def __str__(self) -> str:
        return "\n".join([f"{self.verdict.upper()}: {self.text} ({self.by})", *(f"  {line}" for line in self.numbers)])


def checked(text: str, found: Iterable[tuple[str, bool]], by: str = BAR) -> Statement:
    """Return a statement that holds if all of its lines do; it is not tested if there are none."""
    lines = list(found)
    numbers = tuple(f"{text_of_line}: {'yes' if holds else 'NO'}" for text_of_line, holds in lines)
    return Statement(text, by, all(holds for _, holds in lines) if lines else None, numbers)


def of_comparison(table: Table) -> list[Statement]:
    """Check what the paper says about its comparison."""
    paper = [
        accept_tests_win(table, "dp-sgld", "dp-sgnht", "the paper"),
        penalty_is_worst(table),
        langevin_is_best(table),
    ]
    others = [
        ("dp-sgld-t1", "dp-sgnht", "dp-hmc"),
        ("dp-sgld-tight", "dp-sgnht-tight", "dp-hmc"),
        ("dp-sgld-t1-tight", "dp-sgnht-tight", "dp-hmc"),
        ("dp-sgld", "dp-sgnht", "dp-hmc-default"),
    ]
    present = set(table["sampler"])
    chosen = [names for names in others if present.issuperset(names)]
    return paper + [accept_tests_win(table, two, three, "a check beside the paper", one) for two, three, one in chosen]


def _levels(table: Table, model: str, names: Sequence[str]) -> list[float]:
    """Return the ε at which all of these algorithms were run."""
    ran = [set(table.loc[(table["model"] == model) & (table["sampler"] == name), "epsilon"]) for name in names]
    return sorted(set.intersection(*ran))


def _medians(table: Table, model: str, names: Sequence[str], epsilon: float, measure: str = "mmd") -> dict[str, float]:
    return {name: median_of(table, measure, model=model, sampler=name, epsilon=epsilon) for name in names}


def _listed(medians: dict[str, float]) -> str:
    return ", ".join(f"{settings.ROWS[name].label} {number(value)}" for name, value in medians.items())


def accept_tests_win(table: Table, langevin: str, thermostat: str, by: str, hmc: str = "dp-hmc") -> Statement:
    """Check that on the banana the worse of DP-HMC and DP-penalty beats the better of two others, for ε ≥ 8."""
    tested, untested = (hmc, "dp-penalty"), (langevin, thermostat)
    lines, verdicts = [], []
    for epsilon in _levels(table, "banana", (*tested, *untested)):
        if epsilon < 8.0:
            continue
        with_test = _medians(table, "banana", tested, epsilon)
        without = _medians(table, "banana", untested, epsilon)
        verdicts.append(max(with_test.values()) < min(without.values()))
        errors = _medians(table, "banana", (*tested, *untested), epsilon, "mean_error")
        lines.append(
            f"ε = {epsilon:g}: median MMD {_listed(with_test)}; {_listed(without)}: {_yes(verdicts[-1])}. "
            f"Mean error {', '.join(map(number, errors.values()))}"
        )
    winners, losers = (" and ".join(settings.ROWS[name].label for name in pair) for pair in (tested, untested))
    text = f"On the banana {winners} beat {losers} for ε ≥ 8"
    return Statement(text, by, all(verdicts) if verdicts else None, _counted(verdicts, lines))


def _counted(verdicts: Sequence[bool], lines: Sequence[str]) -> tuple[str, ...]:
    """Put before the lines at how many budgets a statement holds: medians of ten runs change places by chance."""
    return (f"at {sum(verdicts)} of {len(verdicts)} budgets, by medians", *lines) if verdicts else ()


def _extreme_on_the_gaussian(table: Table, name: str, text: str, *, worst: bool) -> Statement:
    paper = [row for row, described in settings.ROWS.items() if described.in_paper]
    lines, verdicts = [], []
    for epsilon in _levels(table, "gaussian", paper):
        medians = _medians(table, "gaussian", paper, epsilon)
        others = [value for row, value in medians.items() if row != name]
        verdicts.append(medians[name] > max(others) if worst else medians[name] < min(others))
        lines.append(f"ε = {epsilon:g}: median MMD {_listed(medians)}: {_yes(verdicts[-1])}")
    return Statement(text, "the paper", all(verdicts) if verdicts else None, _counted(verdicts, lines))


def penalty_is_worst(table: Table) -> Statement:
    """Check that on the Gaussian the median MMD of DP-penalty is the largest, at every ε."""
    return _extreme_on_the_gaussian(table, "dp-penalty", "On the Gaussian DP-penalty is the worst", worst=True)


def langevin_is_best(table: Table) -> Statement:
    """Check that on the Gaussian the median MMD of DP-SGLD is the smallest, at every ε."""
    return _extreme_on_the_gaussian(table, "dp-sgld", "On the Gaussian DP-SGLD is the best", worst=False)


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


# --------------------------------------------------------------------------------------------------- clipping


def of_clipping(table: Table) -> list[Statement]:
    """Check what the paper says about clipping, and show beside it where it does not carry over."""
    return [little_clipping_is_harmless(table), skewed_scores_are_safe_too()]


def little_clipping_is_harmless(table: Table) -> Statement:
    """Check that clipping under 20 % of the ratios leaves MMD within the spread of the unclipped runs.

    For each model and algorithm: the runs at bounds that clip under 0.1 % (and those at the largest bound, whatever it
    clips) are the unclipped ones. At every other bound that clips under 20 %, by the median of its runs, the median MMD
    must not exceed the largest MMD of an unclipped run. With 10 runs against 20 that all come from one law, it does so
    about 6 times in 10,000.
    """
    lines, verdicts = [], []
    for (model, algorithm), rows in table.groupby(["model", "sampler"], sort=False):
        label = f"{model}, {settings.CLIPPING_ROWS[algorithm]}"
        clipped = {bound: median_of(runs, "ratios_clipped") for bound, runs in rows.groupby("bound")}
        unclipped = [bound for bound in clipped if clipped[bound] < _UNCLIPPED or bound == max(clipped)]
        values = rows.loc[rows["bound"].isin(unclipped), "mmd"]
        largest = quantile(values, 1.0)
        lines.append(
            f"{label}, unclipped (b ≥ {min(unclipped):g}): median MMD {number(quantile(values, 0.5))}, "
            f"from {number(quantile(values, 0.0))} to {number(largest)}"
        )
        for bound, fraction in clipped.items():
            if bound not in unclipped and fraction < settings.CLIPPED_GUIDELINE:
                median = median_of(rows, "mmd", bound=bound)
                verdicts.append(median <= largest)
                lines.append(
                    f"{label}, b = {bound:g}: {100.0 * fraction:.2g} % clipped, median MMD {number(median)}: "
                    f"{_yes(verdicts[-1])}"
                )
    percent = f"{100.0 * settings.CLIPPED_GUIDELINE:.0f} %"
    text = (
        f"Clipping under {percent} of the log-ratios leaves MMD within the spread of the unclipped runs (these models)"
    )
    return Statement(text, "the paper", all(verdicts) if verdicts else None, tuple(lines))


def skewed_shift(fraction: float, num_records: int = _NUM_SKEWED_RECORDS) -> float:
    """Return by how many posterior sds clipping moves the posterior of an exponential likelihood.

    Records x_i ~ Exp(1), here their n equally likely quantiles; likelihood λ e^{−λx} with φ = ln λ, whose score is
    1 − λx: bounded on one side, long-tailed on the other. A ratio over a short move Δφ is the score times Δφ, so that
    clipping ratios to b|Δφ| clips scores to ±b, and the posterior moves to the root of the clipped score. With b such
    that the given fraction of the records is clipped at the unclipped mode (λ = 1), the shift in sds 1/√n is returned.
    """
    quantiles = (np.arange(num_records) + 0.5) / num_records
    records = -np.log1p(-quantiles)
    records /= records.mean()
    bound = float(np.quantile(np.abs(1.0 - records), 1.0 - fraction))

    def clipped_score(log_rate: float) -> float:
        return float(np.clip(1.0 - math.exp(log_rate) * records, -bound, bound).mean())

    return float(brentq(clipped_score, -1.0, 1.0)) * math.sqrt(num_records)


def skewed_scores_are_safe_too() -> Statement:
    """Show the counter-example: a skewed likelihood, where far less clipping moves the posterior far away."""
    lines, harmless = [], True
    for fraction in _SKEWED_FRACTIONS:
        shift = abs(skewed_shift(fraction))
        harmless &= shift < 1.0
        digits = 1 if shift >= 1.0 else 2
        lines.append(f"{100.0 * fraction:g} % clipped: the posterior moves by {shift:.{digits}f} standard deviations")
    text = (
        f"The same for other models, such as an exponential likelihood with n = {_NUM_SKEWED_RECORDS:,} "
        "(root of the clipped score)"
    )
    return Statement(text, "a check beside the paper", harmless, tuple(lines))
