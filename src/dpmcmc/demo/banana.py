"""`dpmcmc demo banana`: the default sampler and the paper's DP-HMC on its banana model, and one page that shows both.

Each run has a budget of its own, so that the page is no single release. It uses the package's public interface only.
The records are synthetic, which is the only reason why it may also show the exact posterior; nothing here is meant for
real data.
"""

import io
import math
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist
from scipy.special import ndtri

import dpmcmc
from dpmcmc.errors import BudgetExceededError, DPMCMCWarning, QueryError, ResultError
from dpmcmc.output import PICTURE_STYLE, WriteError, replace_file
from dpmcmc.presets import paper_settings
from dpmcmc.results import report as parts
from dpmcmc.results.table import SummaryRows
from dpmcmc.results.table import summary_rows as rows_of

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError:
    raise ResultError("the demo draws with Matplotlib; install it with pip install 'dpmcmc[cli]'") from None

DEFAULT_EPSILON = 4.0
"""Of each of the two runs."""

DEFAULT_NUM_RECORDS = 100_000
"""The paper's."""
_NUM_CHAINS = 4
_MIN_STEPS = 4
_NUM_EXACT_DRAWS = 100_000
_NUM_COMPARED = 1000
_TRUE_PARAMETER = (0.0, 3.0)
_REGIONS = (0.99, 0.9, 0.5)
# The prior is all but flat, so that its centre says nothing. As in `python -m studies auto`.
_AUTO_START = (
    "It starts one unit from the true parameter in a random direction, many posterior sds away: given, not taken from "
    "the data."
)
_GOOD_R_HAT = 1.05
_GOOD_REACH = 0.8


# -------------------------------------------------------------------------------------------------------- run


@dataclass(frozen=True)
class Settings:
    """What the demonstration runs.

    Attributes
    ----------
    epsilon
        Privacy parameter ε of each of the two runs.
    num_records
        n; δ is 0.1/n as in the paper.
    seed
        For a repeatable run, which is not private.
    """

    epsilon: float = DEFAULT_EPSILON
    num_records: int = DEFAULT_NUM_RECORDS
    seed: int | None = None

    @property
    def delta(self) -> float:
        """δ = 0.1/n, as in the paper."""
        return 0.1 / self.num_records

    @property
    def sampler_arguments(self) -> dict[str, Any]:
        """The paper's settings of DP-HMC; for another n the step follows the posterior's width, 1/√n."""
        arguments = paper_settings("paper-banana", "dp-hmc", self.num_records)
        arguments["step_size"] *= math.sqrt(DEFAULT_NUM_RECORDS / self.num_records)
        return arguments

    @property
    def start_scale(self) -> float:
        """The sd s of DP-HMC's starting points: the mean of the two posterior sds when the data mean is the true one.

        A function of n and of the model's constants only: for S = 1/(n/σ² + 1/σ₀²) the sds are √S₁ and
        √(S₂ + 2a²S₁²). (The paper takes the sds of the reference posterior, which looks at the data.)
        """
        model = dpmcmc.models.Banana()
        first, second = 1.0 / (self.num_records / np.array(model.variances) + 1.0 / model.prior_variance)
        return float(0.5 * (math.sqrt(first) + math.sqrt(second + 2.0 * (model.curvature * first) ** 2)))


@dataclass(frozen=True)
class ExactPosterior:
    """The banana posterior in closed form: θ = (u₁, u₂ − a u₁²), u Gaussian. Not private.

    Attributes
    ----------
    center, scale
        Mean and standard deviations of u.
    curvature
        a.
    draws
        Independent draws of θ, draws × 2.
    """

    center: NDArray[np.float64]
    scale: NDArray[np.float64]
    curvature: float
    draws: NDArray[np.float64]

    def region(self, probability: float) -> NDArray[np.float64]:
        """Return the outline of the smallest region of this probability: the bend keeps areas, so a bent ellipse."""
        angle = np.linspace(0.0, 2.0 * np.pi, 721)
        circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        straight = self.center + math.sqrt(-2.0 * math.log1p(-probability)) * self.scale * circle
        return np.stack([straight[:, 0], straight[:, 1] - self.curvature * straight[:, 0] ** 2], axis=1)

    def marginal(self, coordinate: int, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the density of θ₁ (Gaussian) or of θ₂ (the mean over u₁ of the density of u₂ at θ₂ + a u₁²)."""
        if coordinate == 0:
            return _normal_density(points, self.center[0], self.scale[0])
        nodes = self.center[0] + self.scale[0] * ndtri((np.arange(1000) + 0.5) / 1000)
        shifted = points[:, None] + self.curvature * nodes**2
        return _normal_density(shifted, self.center[1], self.scale[1]).mean(axis=1)


def _normal_density(points: NDArray[np.float64], mean: float, scale: float) -> NDArray[np.float64]:
    return np.exp(-0.5 * ((points - mean) / scale) ** 2) / (scale * math.sqrt(2.0 * math.pi))


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes
    ----------
    name
        What the pictures call it.
    posterior
        What `dpmcmc.sample` returned.
    draws
        Its draws, chains × draws × 2.
    seconds
        Time of sampling, compilation included.
    """

    name: str
    posterior: dpmcmc.Posterior
    draws: NDArray[np.float64]
    seconds: float

    @property
    def some_draws(self) -> NDArray[np.float64]:
        """So many of the draws, evenly spaced, as are shown and compared: draws × 2."""
        draws = self.draws.reshape(-1, 2)
        return draws[np.linspace(0, len(draws) - 1, min(_NUM_COMPARED, len(draws))).astype(int)]


@dataclass(frozen=True)
class Outcome:
    """Two finished runs and, because the records are synthetic, the exact posterior beside them.

    Attributes
    ----------
    settings
        What was run.
    auto, paper
        The default sampler, which has no settings; DP-HMC with the paper's settings.
    exact_not_private
        What only synthetic data may show.
    """

    settings: Settings
    auto: Run
    paper: Run
    exact_not_private: ExactPosterior


def planned(settings: Settings) -> dpmcmc.Plan:
    """Return what the budget buys DP-HMC; refuse a budget that buys either sampler nothing worth looking at."""
    public: dict[str, Any] = {
        "num_records": settings.num_records,
        "epsilon": settings.epsilon,
        "delta": settings.delta,
        "dimension": 2,
    }
    try:
        bought = dpmcmc.plan(dpmcmc.DPHMC(**settings.sampler_arguments), num_chains=_NUM_CHAINS, **public)
        num_steps = bought.num_steps
    except BudgetExceededError:
        num_steps = 0
    if num_steps < _MIN_STEPS:
        raise QueryError(
            f"epsilon = {settings.epsilon:g} and {settings.num_records:,} records buy {num_steps} iterations in "
            f"each chain, too few to show; raise --epsilon or --num-records"
        )
    without_settings = dpmcmc.plan("auto", **public)
    if not without_settings.feasible:
        raise QueryError(f"{'; '.join(without_settings.notes)}; raise --epsilon or --num-records")
    return bought


def description(settings: Settings, bought: dpmcmc.Plan) -> list[str]:
    """Say in a few lines what is about to happen."""
    noise = "exact noise" if settings.seed is None else f"noise from seed {settings.seed} (NOT private)"
    return [
        f"{settings.num_records:,} synthetic records are drawn from the model with true parameter (0, 3).",
        f"First the default sampler, auto, with {noise}: no settings but ε = {settings.epsilon:g} and "
        f"δ = {settings.delta:g}. {_AUTO_START}",
        f"Then the paper's DP-HMC with the paper's settings: the same ε buys {bought.num_steps:,} iterations in each "
        f"of {_NUM_CHAINS} chains. They start at the true parameter + N(0, {settings.start_scale:.2g}²), as in the "
        "paper: given, not taken from the data.",
        separate_runs_note(settings),
        "As the data are synthetic, the exact posterior is drawn too, to compare. Real data would not allow that.",
    ]


def separate_runs_note(settings: Settings) -> str:
    """Say that two budgets are spent."""
    return (
        f"These are two separate runs on synthetic data, each with a budget of its own of ε = {settings.epsilon:g}: a "
        f"comparison, and not one release. On real data both together would be of ε = {2.0 * settings.epsilon:g}."
    )


def run(settings: Settings, *, progress: bool = True) -> Outcome:
    """Generate records, sample privately in both ways, and draw the exact posterior for comparison."""
    # A seeded run's noise comes from the seed itself, so that data and starting points take another stream.
    generator = np.random.default_rng(None if settings.seed is None else (settings.seed, 1))
    data_key, exact_key = jax.random.split(jax.random.key(int(generator.integers(2**32))))
    model = dpmcmc.models.Banana()
    data = model.generate(data_key, settings.num_records, _TRUE_PARAMETER)
    start = np.array(_TRUE_PARAMETER) + settings.start_scale * generator.standard_normal((_NUM_CHAINS, 2))

    def timed(name: str, **arguments: Any) -> Run:
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DPMCMCWarning)  # `posterior.warnings` is shown with the results
            posterior = dpmcmc.sample(
                model,
                data,
                epsilon=settings.epsilon,
                delta=settings.delta,
                num_chains=_NUM_CHAINS,
                progress=progress,
                seed=settings.seed,
                **arguments,
            )
        draws = np.asarray(posterior.draws["theta"], np.float64)
        return Run(name, posterior, draws, time.perf_counter() - began)

    auto = timed("auto", init=_unit_away(generator))
    paper = timed("DP-HMC", sampler=dpmcmc.DPHMC(**settings.sampler_arguments), init=start)
    center, scale = model.straight_posterior_not_private(data)
    exact_draws = model.sample_posterior_not_private(exact_key, data, _NUM_EXACT_DRAWS)
    return Outcome(settings, auto, paper, ExactPosterior(center, scale, model.curvature, exact_draws))


def _unit_away(generator: np.random.Generator) -> NDArray[np.float64]:
    direction = generator.standard_normal(2)
    return np.asarray(np.array(_TRUE_PARAMETER) + direction / np.linalg.norm(direction))


# ---------------------------------------------------------------------------------------------------- numbers


def summary_rows(outcome: Outcome, run: Run) -> SummaryRows:
    """Return a run's summary with the exact posterior's mean and sd beside it."""
    columns, rows = rows_of(run.posterior)
    exact = outcome.exact_not_private.draws
    known = np.stack([exact.mean(axis=0), exact.std(axis=0)], axis=1).tolist()
    return SummaryRows(
        [*columns, "exact mean", "exact sd"],
        [(name, [*values, *own]) for (name, values), own in zip(rows, known, strict=True)],
    )


def discrepancy(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    r"""Return the maximum mean discrepancy of two samples: its unbiased estimate, Gaussian kernel of median width.

    Source: Gretton, Borgwardt, Rasch, Schölkopf and Smola (2012), "A kernel two-sample test", equation 3.
    """
    across = cdist(first, second, "sqeuclidean")
    width = float(np.median(across))
    within = [float(np.exp(-0.5 * pdist(points, "sqeuclidean") / width).mean()) for points in (first, second)]
    return math.sqrt(abs(sum(within) - 2.0 * float(np.exp(-0.5 * across / width).mean())))


def comparison_rows(outcome: Outcome) -> SummaryRows:
    """Return how far each run's draws are from the exact posterior; exact draws show what is too small to be seen."""
    exact = outcome.exact_not_private.draws
    reference, others = exact[:_NUM_COMPARED], exact[_NUM_COMPARED : 2 * _NUM_COMPARED]
    rows: list[tuple[str, list[float]]] = []
    for run in (outcome.auto, outcome.paper):
        number = run.draws.shape[0] * run.draws.shape[1]
        rows.append((run.name, [discrepancy(run.some_draws, reference), number, run.seconds]))
    rows.append(("exact draws", [discrepancy(others, reference), len(exact), math.nan]))
    return SummaryRows(["MMD to the exact posterior", "draws", "seconds"], rows)


def comparison_note() -> str:
    """Say what the comparison is."""
    return (
        f"MMD: maximum mean discrepancy between (at most) {_NUM_COMPARED:,} draws of the run and as many exact ones; 0 "
        "is the same distribution. Exact draws against others show below what nothing can be seen."
    )


def mixing_note(outcome: Outcome) -> str:
    """Say whether DP-HMC's chains agree (if not, `posterior.warnings` says it), and how much they cover."""
    summary = summary_rows(outcome, outcome.paper)
    worst = np.max(summary.column("r_hat"))
    reach = np.min(np.divide(summary.column("sd"), summary.column("exact sd")))
    agreement = f"R̂ is {worst:.2f} at most: the chains agree with each other. " if worst <= _GOOD_R_HAT else ""
    coverage = (
        "they cover the width of the posterior"
        if reach >= _GOOD_REACH
        else f"the narrowest sd is {reach:.0%} of the exact one, so they have not reached all of the banana's arms"
    )
    return f"{agreement}Against the exact posterior: {coverage}."


def report(outcome: Outcome, files: dict[Path, str]) -> dict[str, Any]:
    """Return both runs as plain values for JSON."""
    distances = dict(comparison_rows(outcome).rows)
    return {
        "private": bool(outcome.auto.posterior.privacy.private),
        "num_records": outcome.settings.num_records,
        "seed": outcome.settings.seed,
        "note": separate_runs_note(outcome.settings),
        "auto": _run_report(outcome, outcome.auto) | {"mmd": distances["auto"][0]},
        "dp_hmc": _run_report(outcome, outcome.paper) | {"mmd": distances["DP-HMC"][0]},
        "exact_mmd": distances["exact draws"][0],
        "files": [str(path) for path in files],
    }


def _run_report(outcome: Outcome, run: Run) -> dict[str, Any]:
    privacy = run.posterior.privacy
    columns, rows = summary_rows(outcome, run)
    return {
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "mu": privacy.mu,
        "queries": {str(kind): int(number) for kind, number in privacy.queries.items()},
        "num_chains": run.draws.shape[0],
        "num_draws": run.draws.shape[1],
        "acceptance_rate": run.posterior.acceptance_rate,
        "method": None if run.posterior.quality is None else run.posterior.quality.method,
        "warnings": list(run.posterior.warnings),
        "summary": {
            name: {
                column: value if math.isfinite(value) else None for column, value in zip(columns, values, strict=True)
            }
            for name, values in rows
        },
        "seconds": round(run.seconds, 1),
    }


# ------------------------------------------------------------------------------------------------------ files


def write(outcome: Outcome, folder: Path) -> dict[Path, str]:
    """Write the draws, the picture and the page, each of them whole or not at all; return what they are."""
    files = {
        folder / "posterior.nc": "the draws of auto, an ArviZ file",
        folder / "dp-hmc.nc": "the draws of DP-HMC",
        folder / "posterior.png": "the picture",
        folder / "index.html": "the page: open it in a browser",
    }
    draws, paper_draws, picture, web_page = files
    try:
        # First, as it cannot be made again; it writes all or nothing by itself.
        outcome.auto.posterior.save(draws, overwrite=True)
        outcome.paper.posterior.save(paper_draws, overwrite=True)
        replace_file(picture, _as_png(posterior_figure(outcome)))
        replace_file(web_page, page(outcome).encode())
    except OSError as error:
        raise WriteError(
            f"cannot write into {str(folder)!r} ({error.strerror}); make room or choose another --out"
        ) from None
    return files


# --------------------------------------------------------------------------------------------------- pictures

_PRIVATE, _EXACT = parts.COLOURS["private"], parts.COLOURS["exact"]
_STYLE: Any = PICTURE_STYLE | {  # Any, as matplotlib's stubs differ between versions
    "font.size": 10,
    "axes.labelsize": 11,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9.5,
    "svg.fonttype": "path",
}
_NAMES = ("θ₁", "θ₂")
# How the marginal of each parameter is drawn: along the top, and along the right side.
_MARGINALS: tuple[tuple[str, Literal["vertical", "horizontal"]], ...] = (
    ("fill_between", "vertical"),
    ("fill_betweenx", "horizontal"),
)


def _word(outcome: Outcome) -> str:
    return "private" if outcome.auto.posterior.privacy.private else "seeded, NOT private"


def _limits(outcome: Outcome) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the corners of a box that holds all draws and the largest region, with a margin."""
    everything = np.concatenate(
        [
            *(run.draws.reshape(-1, 2) for run in (outcome.auto, outcome.paper)),
            outcome.exact_not_private.region(_REGIONS[0]),
        ]
    )
    low, high = everything.min(axis=0), everything.max(axis=0)
    return low - 0.04 * (high - low), high + 0.04 * (high - low)


def posterior_figure(outcome: Outcome) -> Figure:
    """Draw the private draws of both runs over the exact posterior's regions, each with both marginals."""
    low, high = _limits(outcome)
    distances = dict(comparison_rows(outcome).rows)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(11.0, 5.6), layout="constrained")
        grid = figure.add_gridspec(
            2, 4, width_ratios=(4, 0.9, 4, 0.9), height_ratios=(0.9, 4), wspace=0.03, hspace=0.03
        )
        for place, run in enumerate((outcome.auto, outcome.paper)):
            plane = figure.add_subplot(grid[1, 2 * place])
            for strength, probability in enumerate(_REGIONS):
                outline = outcome.exact_not_private.region(probability)
                plane.fill(*outline.T, facecolor=_EXACT, alpha=0.16 + 0.1 * strength, linewidth=0)
                plane.plot(*outline.T, color=_EXACT, linewidth=1.1)
            plane.plot(*run.some_draws.T, "o", color=_PRIVATE, alpha=0.45, markersize=2.4, markeredgewidth=0)
            plane.set(xlabel=_NAMES[0], xlim=(low[0], high[0]), ylim=(low[1], high[1]))
            if place == 0:
                plane.set_ylabel(_NAMES[1])
                # For the legend only: one entry for both planes.
                plane.plot([], [], "o", color=_PRIVATE, markersize=4, label=f"draws ({_word(outcome)})")
                plane.fill([], [], facecolor=_EXACT, alpha=0.5, label="exact posterior: 50, 90, 99 % (not private)")
            else:
                plane.tick_params(labelleft=False)
            top = figure.add_subplot(grid[0, 2 * place], sharex=plane)
            privacy = run.posterior.privacy
            top.set_title(f"{run.name}, ε = {privacy.epsilon:g}: MMD {distances[run.name][0]:.3f}", loc="left")
            right = figure.add_subplot(grid[1, 2 * place + 1], sharey=plane)
            _draw_marginals(outcome, run, top, right)
        figure.legend(loc="outside lower center", ncols=2, handletextpad=0.5, columnspacing=2.5)
    return figure


def _draw_marginals(outcome: Outcome, run: Run, top: Axes, right: Axes) -> None:
    low, high = _limits(outcome)
    for coordinate, axis in enumerate((top, right)):
        points = np.linspace(low[coordinate], high[coordinate], 401)
        density = outcome.exact_not_private.marginal(coordinate, points)
        fill, orientation = _MARGINALS[coordinate]
        getattr(axis, fill)(points, density, facecolor=_EXACT, alpha=0.4, linewidth=0)
        axis.hist(
            run.draws[..., coordinate].ravel(),
            bins=points[::13].tolist(),
            density=True,
            orientation=orientation,
            histtype="step",
            color=_PRIVATE,
            linewidth=1.4,
        )
    top.set_ylim(bottom=0.0)
    right.set_xlim(left=0.0)
    top.tick_params(labelbottom=False, left=False, labelleft=False)
    right.tick_params(labelleft=False, bottom=False, labelbottom=False)
    top.spines["left"].set_visible(False)
    right.spines["bottom"].set_visible(False)


def trace_figure(outcome: Outcome) -> Figure:
    """Draw DP-HMC's chains one by one, over the band that holds 95 % of the exact posterior."""
    chains = outcome.paper.draws
    num_chains, num_draws, _ = chains.shape
    bands = np.quantile(outcome.exact_not_private.draws, (0.025, 0.975), axis=0)
    low, high = _limits(outcome)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(9.6, 3.6), layout="constrained")
        axes = figure.subplots(2, num_chains, sharex=True, sharey="row", squeeze=False)
        for chain in range(num_chains):
            for coordinate in range(2):
                axis = axes[coordinate, chain]
                axis.axhspan(*bands[:, coordinate], facecolor=_EXACT, alpha=0.2, linewidth=0)
                axis.plot(np.arange(1, num_draws + 1), chains[chain, :, coordinate], color=_PRIVATE, linewidth=0.8)
                axis.margins(x=0.01)
            axes[0, chain].set_title(f"chain {chain + 1}")
        for coordinate in range(2):
            axes[coordinate, 0].set_ylabel(_NAMES[coordinate])
            axes[coordinate, 0].set_ylim(low[coordinate], high[coordinate])
        figure.supxlabel("iteration after warm-up", fontsize=10)
    return figure


def _as_png(figure: Figure) -> bytes:
    with matplotlib.rc_context(_STYLE):
        FigureCanvasAgg(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=200, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def _as_svg(figure: Figure, name: str) -> bytes:
    # With its own salt every picture has the same identifiers in every run.
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": name}):
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


# ----------------------------------------------------------------------------------------------------- the page


def code_lines(settings: Settings) -> str:
    """Return the lines of Python that made the draws, ready to be copied."""
    values = settings.sampler_arguments
    stream, seeded = ("", "") if settings.seed is None else (f"({settings.seed}, 1)", f", seed={settings.seed}")
    return "\n".join(
        [
            "import math, dpmcmc, jax, numpy as np",
            "",
            f"n = {settings.num_records:_}",
            "model = dpmcmc.models.Banana()",
            f"generator = np.random.default_rng({stream})",
            "data_key, _ = jax.random.split(jax.random.key(int(generator.integers(2**32))))",
            "data = model.generate(data_key, n)",
            f"start = np.array([0.0, 3.0]) + {settings.start_scale!r} * generator.standard_normal(({_NUM_CHAINS}, 2))",
            "direction = generator.standard_normal(2)",
            "unit_away = np.array([0.0, 3.0]) + direction / np.linalg.norm(direction)",
            "",
            f"posterior = dpmcmc.sample(model, data, epsilon={settings.epsilon!r}, delta=0.1 / n,",
            f"                          num_chains={_NUM_CHAINS}, init=unit_away{seeded})",
            'posterior.save("posterior.nc", overwrite=True)',
            "print(posterior.summary(), posterior.quality, posterior.privacy)",
            "",
            "# The paper's DP-HMC, with a budget of its own:",
            "sampler = dpmcmc.DPHMC(",
            f"    step_size={values['step_size']!r}, num_leapfrog={values['num_leapfrog']:g}, "
            f"ratio_bound={values['ratio_bound']:g}, gradient_clip_norm={values['gradient_clip_norm']:g},",
            "    ratio_noise_multiplier=0.10 * math.sqrt(n), gradient_noise_multiplier=0.55 * math.sqrt(n),",
            ")",
            f"paper = dpmcmc.sample(model, data, epsilon={settings.epsilon!r}, delta=0.1 / n, sampler=sampler,",
            f"                      num_chains={_NUM_CHAINS}, init=start{seeded})",
            'paper.save("dp-hmc.nc", overwrite=True)',
        ]
    )


_ORANGE_NOTE = parts.Html(
    '<p class="note">All that is orange is <strong>not private</strong>. It can be shown here because the records are\n'
    "synthetic; with real data the page would end at the blue.</p>"
)


def page(outcome: Outcome) -> str:
    """Return the page: HTML with everything inside, nothing fetched from anywhere."""
    settings, auto, paper = outcome.settings, outcome.auto.posterior, outcome.paper.posterior
    privacy = auto.privacy
    plane = parts.Picture(
        name="plane",
        content=_as_svg(posterior_figure(outcome), "plane"),
        label="Draws of both runs over the regions of the exact posterior, with marginals",
        caption=f"Dots and blue lines: the draws ({_word(outcome)}), of the default sampler on the left and of DP-HMC "
        "on the right. Orange: the exact posterior, its smallest regions that hold 50, 90 and 99 % and its marginals. "
        "A good run fills the regions and follows the marginals.",
        wide=True,
    )
    traces = parts.Picture(
        name="traces",
        content=_as_svg(trace_figure(outcome), "traces"),
        label="Trace of each chain of DP-HMC for both parameters",
        caption="The chains of DP-HMC after warm-up. Orange: the band that holds 95 % of the exact posterior. Flat "
        "stretches are rejected proposals. Draws are computed from releases alone, so that they may be shown.",
        wide=True,
    )
    return parts.html_page(
        auto,
        [
            parts.figure(plane),
            _ORANGE_NOTE,
            parts.paragraph(separate_runs_note(settings)),
            parts.heading("How near they are"),
            parts.summary(comparison_rows(outcome)),
            parts.paragraph(comparison_note()),
            parts.heading("The default sampler: summary"),
            parts.summary(summary_rows(outcome, outcome.auto)),
            parts.paragraph(_AUTO_START),
            parts.heading("The default sampler: how far to trust it"),
            parts.trust(auto) if auto.quality is not None else parts.warning_notes(auto),
            parts.heading("DP-HMC: summary"),
            parts.summary(summary_rows(outcome, outcome.paper)),
            parts.warning_notes(paper),
            parts.paragraph(mixing_note(outcome)),
            parts.figure(traces),
            parts.paragraph(
                f"The chains started at the true parameter (0, 3) + N(0, {settings.start_scale:.2g}²), as in the "
                "paper: given, not taken from the data."
            ),
            parts.heading("DP-HMC: what was spent and released"),
            parts.statement(paper),
            parts.heading("The default sampler: what was spent and released"),
            parts.statement(auto),
            parts.heading("The code"),
            parts.code(code_lines(settings)),
        ],
        title="Private draws over the exact posterior" if privacy.private else "Draws over the exact posterior",
        lead=f"The default sampler, and beside it DP-HMC, on the banana model of Räisä, Koskela and Honkela: "
        f"{privacy.num_records:,} synthetic records, ε = {privacy.epsilon:g} and δ = {privacy.delta:g} for each. The "
        "samplers never saw a record, only noisy sums. The numbers below are the default sampler's.",
        footer=f"Made by dpmcmc demo banana in {outcome.auto.seconds + outcome.paper.seconds:.0f} s of sampling.",
    )
