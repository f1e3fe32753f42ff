"""`dpmcmc demo adult`: a private logistic regression on the Adult data, beside the one without noise.

It goes the way that `dpmcmc sample` goes: a table, its public schema, a formula, (ε, δ). The Adult data are public,
which is the only reason why the page may also show what is not private; nothing here is meant for other data.
"""

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

import dpmcmc
from dpmcmc.data.tables import OpenRecords
from dpmcmc.errors import DPMCMCWarning, QueryError
from dpmcmc.output import WriteError, replace_file
from dpmcmc.results import report as parts
from dpmcmc.results.folder import RUN_FILES, write_run
from dpmcmc.results.table import SummaryRows

DEFAULT_EPSILON = 2.0
DELTA = 1e-6
FORMULA = (
    "income ~ age + education_num + hours_per_week + log1p(capital_gain) + log1p(capital_loss)"
    " + C(relationship) + C(sex)"
)
CITATION = (
    "Becker, B. and Kohavi, R. (1996), Adult, UCI Machine Learning Repository, https://doi.org/10.24432/C5XW20, CC BY "
    "4.0. The records are of the United States census of 1994."
)
_PRIOR_SCALE = 2.5
_LEVEL = 0.9
_NORMAL_QUANTILE = 1.6448536269514722  # of 0.95
_PAGE = "index.html"


# -------------------------------------------------------------------------------------------------------- run


@dataclass(frozen=True)
class Settings:
    """What the demonstration runs.

    Attributes
    ----------
    epsilon, delta
        The privacy budget.
    seed
        For a repeatable run, which is not private.
    """

    epsilon: float = DEFAULT_EPSILON
    delta: float = DELTA
    seed: int | None = None


class Interval(NamedTuple):
    """Ends and middle of the central 90 % of what is known about a coefficient."""

    low: float
    middle: float
    high: float

    @property
    def width(self) -> float:
        """Its length."""
        return self.high - self.low


@dataclass(frozen=True)
class Outcome:
    """A finished run and, because the records are public, what it would be without noise.

    Attributes
    ----------
    settings
        What was run.
    posterior
        What `dpmcmc.sample` returned.
    exact_not_private
        Mean and sd of each coefficient without noise, the intercept first.
    seconds
        Time of reading, compiling and sampling.
    """

    settings: Settings
    posterior: dpmcmc.Posterior
    exact_not_private: tuple[NDArray[np.float64], NDArray[np.float64]]
    seconds: float

    @property
    def names(self) -> list[str]:
        """The coefficients by the formula's names."""
        (dimension,) = self.posterior.dims["coefficients"]
        return ["intercept", *map(str, self.posterior.coords[dimension])]

    @property
    def draws(self) -> NDArray[np.float64]:
        """All draws, of the intercept and of the coefficients side by side."""
        draws = self.posterior.draws
        return np.column_stack([draws["intercept"].reshape(-1), draws["coefficients"].reshape(-1, len(self.names) - 1)])

    @property
    def intervals(self) -> list[tuple[str, Interval, Interval]]:
        """Name, private interval and interval without noise of each coefficient."""
        tail = 0.5 * (1.0 - _LEVEL)
        private = np.quantile(self.draws, (tail, 0.5, 1.0 - tail), axis=0).T.tolist()
        mean, sd = self.exact_not_private
        return [
            (
                name,
                Interval(*own),
                Interval(center - _NORMAL_QUANTILE * width, center, center + _NORMAL_QUANTILE * width),
            )
            for name, own, center, width in zip(self.names, private, mean.tolist(), sd.tolist(), strict=True)
        ]


def description(settings: Settings, num_records: int) -> list[str]:
    """Say in a few lines what is about to happen."""
    noise = "exact noise" if settings.seed is None else f"noise from seed {settings.seed} (NOT private)"
    return [
        f"{num_records:,} people of the census of 1994, with the schema that comes with them: bounds and levels are "
        "known without looking.",
        f"A logistic regression: {FORMULA}",
        f"The default sampler, auto, with {noise}: no settings but ε = {settings.epsilon:g} and δ = "
        f"{settings.delta:g}.",
        "As these data are public, the same regression without noise is computed too, to compare.",
    ]


def check(settings: Settings, num_records: int) -> None:
    """Refuse a budget that buys nothing worth looking at."""
    plan = dpmcmc.plan("auto", num_records=num_records, epsilon=settings.epsilon, delta=settings.delta, dimension=12)
    if not plan.feasible:
        raise QueryError(f"{'; '.join(plan.notes)}; raise --epsilon")


def run(settings: Settings, table: Any, *, progress: bool = True) -> Outcome:
    """Sample privately, then compute the same without noise."""
    began = time.perf_counter()
    model, records = dpmcmc.regression(FORMULA, table, prior_scale=_PRIOR_SCALE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)  # `posterior.warnings` is shown with the results
        posterior = dpmcmc.sample(
            model, records, epsilon=settings.epsilon, delta=settings.delta, seed=settings.seed, progress=progress
        )
    seconds = time.perf_counter() - began
    assert isinstance(records, OpenRecords)
    columns: Any = records.records
    rows = np.column_stack([np.ones(len(columns["y"])), columns["X"]])
    return Outcome(settings, posterior, gaussian_posterior_not_private(rows, columns["y"]), seconds)


def gaussian_posterior_not_private(
    rows: NDArray[np.float64], outcome: NDArray[np.float64], prior_scale: float = _PRIOR_SCALE
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return mean and sds of a logistic regression's Gaussian posterior, by Newton's method. Not private.

    The Gaussian at the mode θ̂ of :math:`\sum_i \log p(y_i | x_i, θ) - \|θ\|²/(2s²)`, with the curvature there: with
    tens of thousands of records for a dozen coefficients, next to the exact posterior.
    """
    keep = np.isfinite(rows).all(axis=1) & np.isfinite(outcome)  # the others count as nothing
    rows, outcome = rows[keep], outcome[keep]
    theta = np.zeros(rows.shape[1])
    for _ in range(50):
        chance = expit(rows @ theta)
        curvature = (rows * (chance * (1.0 - chance))[:, None]).T @ rows + np.eye(len(theta)) / prior_scale**2
        step = np.linalg.solve(curvature, rows.T @ (outcome - chance) - theta / prior_scale**2)
        theta = theta + step
        if np.abs(step).max() < 1e-10:
            break
    return theta, np.sqrt(np.diag(np.linalg.inv(curvature)))


# ---------------------------------------------------------------------------------------------------- numbers


def comparison_rows(outcome: Outcome) -> SummaryRows:
    """Return private means and intervals, those without noise, how much wider they are, and how much is noise."""
    quality = outcome.posterior.quality
    shares = [np.nan] * len(outcome.names)
    if quality is not None and quality.independent_draws:
        shares = [float(quality.noise_share["intercept"]), *quality.noise_share["coefficients"].tolist()]
    columns = ["mean", "5\u00a0%", "95\u00a0%", "exact 5\u00a0%", "exact 95\u00a0%", "times as wide", "noise_share"]
    means = outcome.draws.mean(axis=0).tolist()
    return SummaryRows(
        columns,
        [
            (name, [mean, own.low, own.high, exact.low, exact.high, own.width / exact.width, share])
            for (name, own, exact), mean, share in zip(outcome.intervals, means, shares, strict=True)
        ],
    )


def report(outcome: Outcome) -> dict[str, Any]:
    """Return what is particular to the demonstration as plain values for JSON."""
    return {
        "formula": FORMULA,
        "seconds": round(outcome.seconds, 1),
        "intervals": {
            name: {"private": list(own), "without_noise": list(exact)} for name, own, exact in outcome.intervals
        },
    }


# ------------------------------------------------------------------------------------------------------ files


def write(outcome: Outcome, folder: Path) -> dict[Path, str]:
    """Write the files of a run and the page, each of them whole or not at all; return what they are."""
    try:
        write_run(outcome.posterior, folder, overwrite=True)
        replace_file(folder / _PAGE, page(outcome).encode())
    except OSError as error:
        raise WriteError(
            f"cannot write into {str(folder)!r} ({error.strerror}); make room or choose another --out"
        ) from None
    files = {folder / name: what for name, what in RUN_FILES.items()}
    return files | {folder / _PAGE: "the page: open it in a browser"}


def command_line(settings: Settings) -> str:
    """Return what to type for a table of one's own."""
    return (
        "dpmcmc schema draft people.parquet > people.schema.yaml   # names and types; you fill in bounds and levels\n"
        "dpmcmc sample people.parquet --schema people.schema.yaml \\\n"
        '    --formula "income ~ age + C(education)" --family logistic \\\n'
        f"    --epsilon {settings.epsilon:g} --delta {settings.delta:g} --out run"
    )


def code_lines(settings: Settings) -> str:
    """Return the lines of Python that made the draws, ready to be copied."""
    seeded = "" if settings.seed is None else f", seed={settings.seed}"
    before, _, after = FORMULA.partition(" + log1p(capital_gain)")
    return "\n".join(
        [
            "import dpmcmc",
            "",
            "table = dpmcmc.data.adult()  # with its schema",
            "model, records = dpmcmc.regression(",
            f'    "{before}"',
            f'    " + log1p(capital_gain){after}",',
            "    table,",
            ")",
            f"posterior = dpmcmc.sample(model, records, epsilon={settings.epsilon!r}, delta={settings.delta!r}"
            f"{seeded})",
            "print(posterior.summary(), posterior.quality, posterior.privacy)",
        ]
    )


def page(outcome: Outcome) -> str:
    """Return the page: HTML with everything inside, nothing fetched from anywhere."""
    posterior, settings = outcome.posterior, outcome.settings
    privacy = posterior.privacy
    word = "private" if privacy.private else "seeded, NOT private"
    quality = posterior.quality
    rows = [parts.IntervalRow(name, own, exact) for name, own, exact in outcome.intervals]
    return parts.html_page(
        posterior,
        [
            parts.intervals(
                rows,
                private=f"90 % intervals, {word}: ε = {privacy.epsilon:g}",
                exact="without noise (not private)",
                caption="Coefficients of a logistic regression of income above 50,000 dollars a year, with columns "
                "coded by the public schema: a number by its centre and scale, a level against the first one. Lines "
                "across mark the middle. Private intervals hold all that is not known, the privacy noise included.",
            ),
            parts.note(
                "All that is orange is not private. It can be shown here because the Adult data are public: anyone can "
                "compute it. With a table that is secret the page would end at the blue, and nobody could look up how "
                "near it is."
            ),
            parts.heading("The intervals"),
            parts.summary(comparison_rows(outcome)),
            parts.paragraph(
                "“exact” is without noise: the Gaussian at the mode, which with so many records is next to exact. A "
                "coefficient of which few people tell can be wider than its share of noise says, and differs from run "
                "to run. One reason is that records with extreme features are weighted down; the notes below say how "
                "many were."
            ),
            parts.heading("What auto chose, and how far to trust it"),
            parts.trust(posterior) if quality is not None else parts.warning_notes(posterior),
            parts.heading("What was spent and released"),
            parts.statement(posterior),
            parts.heading("The code"),
            parts.code(code_lines(settings)),
            parts.paragraph("The same from the command line, for a table of your own:"),
            parts.code(command_line(settings)),
            parts.heading("The data"),
            parts.paragraph(CITATION),
        ],
        title="A private regression on the Adult data" if privacy.private else "A regression on the Adult data",
        lead=f"{privacy.num_records:,} people, {len(outcome.names)} coefficients, ε = {privacy.epsilon:g} and δ = "
        f"{privacy.delta:g}: what was coded, and how, follows from a public schema; what was asked of the records came "
        "back with noise.",
        footer=f"Made by dpmcmc demo in {outcome.seconds:.0f} s.",
    )
