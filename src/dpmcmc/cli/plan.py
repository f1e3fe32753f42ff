"""`dpmcmc plan`: what a budget buys, without any data."""

import importlib.util
import io
import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmcmc.cli.shared import (
    JsonOption,
    SamplerName,
    Scheme,
    UsageError,
    given_fields,
    listed,
    number,
    print_json,
    with_option_groups,
)

if TYPE_CHECKING:
    from dpmcmc import LaplacePlan, Plan, PlanCurve

EXAMPLES = (
    "**Examples**\n\n"
    "The paper's banana at ε = 4:  `dpmcmc plan --preset paper-banana --num-records 100000 --epsilon 4`\n\n"
    "The same, another sampler:  `dpmcmc plan --preset paper-banana --sampler dp-penalty --num-records 100000 "
    "--epsilon 4`\n\n"
    "Your own settings:  `dpmcmc plan --sampler dp-hmc --num-leapfrog 10 --ratio-noise-multiplier 32 "
    "--gradient-noise-multiplier 170 --num-records 50000 --epsilon 2 --delta 1e-6`\n\n"
    "How wide intervals become:  `dpmcmc plan --sampler auto --dimension 12 --num-records 50000 --epsilon 1`\n\n"
    "The same over a range of ε and n, drawn:  `dpmcmc plan --sampler auto --dimension 12 --num-records 50000 "
    "--epsilon 1 --curve plan.png`"
)
_METROPOLIS, _HMC, _PENALTY = "dp-hmc and dp-penalty", "dp-hmc", "dp-penalty"
_MINIBATCH = "dp-sgld and dp-sgnht"
_CURVE = "auto and dp-laplace: a range of ε and n"
_PICTURES = (".png", ".pdf", ".svg")


class Preset(StrEnum):
    """The models of the paper's experiments."""

    paper_banana = "paper-banana"
    paper_gaussian = "paper-gaussian"


class Update(StrEnum):
    """What a proposal of dp-penalty moves."""

    all_components = "all"
    one_component = "one_component"
    guided = "guided"


class Leapfrog(StrEnum):
    """Ways to save a gradient, or not."""

    position_first = "position_first"
    momentum_first = "momentum_first"
    cached = "cached"


class _SamplerKind(NamedTuple):
    """A sampler's class, and which options it has.

    The number of steps depends on ``priced`` only. The class wants the others too: ``free`` has the value that stands
    in for each of them if it is not given, or None where the class has a default of its own.
    """

    class_name: str
    priced: tuple[str, ...]
    free: dict[str, float | None]


_DIMENSIONS = {Preset.paper_banana: 2, Preset.paper_gaussian: 10}
_SAMPLERS = {
    SamplerName.dp_hmc: _SamplerKind(
        "DPHMC",
        ("num_leapfrog", "ratio_noise_multiplier", "gradient_noise_multiplier"),
        {"step_size": 1.0, "ratio_bound": 1.0, "gradient_clip_norm": 1.0, "leapfrog": None},
    ),
    SamplerName.dp_penalty: _SamplerKind(
        "DPPenalty", ("ratio_noise_multiplier",), {"proposal_scale": 1.0, "ratio_bound": 1.0, "update": None}
    ),
    SamplerName.dp_sgld: _SamplerKind(
        "DPSGLD", ("batch_size", "gradient_clip_norm", "step_size"), {"temperature": None, "sampling": None}
    ),
    SamplerName.dp_sgnht: _SamplerKind(
        "DPSGNHT", ("batch_size", "gradient_clip_norm", "step_size", "diffusion"), {"sampling": None}
    ),
    SamplerName.dp_laplace: _SamplerKind("DPLaplace", (), {}),
    SamplerName.auto: _SamplerKind("auto", (), {}),
}
# What they find follows the data: there are no settings, and no steps to count.
_WITHOUT_SETTINGS = (SamplerName.auto, SamplerName.dp_laplace)


@dataclass(frozen=True)
class RunOptions:
    """The options about the run as a whole."""

    num_records: Annotated[int, typer.Option(help="Number of rows n (public).", min=2)]
    epsilon: Annotated[float, typer.Option(help="Privacy parameter ε of the whole run.")]
    delta: Annotated[
        float | None, typer.Option(help="Privacy parameter δ. Default: 0.1 / num-records.", show_default=False)
    ] = None
    num_chains: Annotated[
        int, typer.Option(help="Chains; they share the budget. (auto and dp-laplace have none.)", min=1)
    ] = 4
    dimension: Annotated[
        int | None,
        typer.Option(
            help="Number of unconstrained parameters: the acceptance is then predicted. A preset knows it; auto and "
            "dp-laplace need it.",
            min=1,
            show_default=False,
        ),
    ] = None
    check_records: Annotated[
        bool, typer.Option(help="Whether the run counts, with noise, the records that are of no use.")
    ] = True
    sampler: Annotated[
        SamplerName | None,
        typer.Option(help="The sampler. Default with a preset: dp-hmc.", show_default=False, case_sensitive=False),
    ] = None
    preset: Annotated[
        Preset | None,
        typer.Option(
            help="Start from the paper's settings, noise scaled with √n; other options override them.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True)
class CurveOptions:
    """The options of a plan over a range of ε and of n."""

    curve: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw how wide intervals become, from a sixteenth to sixteen times of this ε and of this n, into a "
            "new .png, .pdf or .svg file.",
            show_default=False,
            rich_help_panel=_CURVE,
        ),
    ] = None
    width: Annotated[
        float | None,
        typer.Option(
            help="Say which ε and which n it takes for intervals at most so many times as wide as without noise. "
            "Default with --curve: 1.5.",
            show_default=False,
            rich_help_panel=_CURVE,
        ),
    ] = None


@dataclass(frozen=True)
class SamplerOptions:
    """The settings of all samplers; which of them a sampler has, `_SAMPLERS` knows."""

    ratio_noise_multiplier: Annotated[
        float | None,
        typer.Option(help="τ of the accept test's log-ratio.", show_default=False, rich_help_panel=_METROPOLIS),
    ] = None
    ratio_bound: Annotated[
        float | None,
        typer.Option(
            help="Clip bound of log-ratios (no effect on the price).", show_default=False, rich_help_panel=_METROPOLIS
        ),
    ] = None
    num_leapfrog: Annotated[
        int | None, typer.Option(help="Leapfrog steps L.", min=1, show_default=False, rich_help_panel=_HMC)
    ] = None
    gradient_noise_multiplier: Annotated[
        float | None, typer.Option(help="τ of each gradient.", show_default=False, rich_help_panel=_HMC)
    ] = None
    leapfrog: Annotated[
        Leapfrog | None,
        typer.Option(
            help="L gradients an iteration (position_first, the default; cached) or L + 1 (momentum_first, the paper).",
            show_default=False,
            rich_help_panel=_HMC,
        ),
    ] = None
    proposal_scale: Annotated[
        float | None,
        typer.Option(help="Proposal sd (no effect on the price).", show_default=False, rich_help_panel=_PENALTY),
    ] = None
    update: Annotated[
        Update | None,
        typer.Option(help="Which components a proposal moves.", show_default=False, rich_help_panel=_PENALTY),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(help="Records in a batch.", min=1, show_default=False, rich_help_panel=_MINIBATCH),
    ] = None
    gradient_clip_norm: Annotated[
        float | None,
        typer.Option(
            help="Clip norm of a record's gradient (for dp-hmc: no effect on the price).",
            show_default=False,
            rich_help_panel=_MINIBATCH,
        ),
    ] = None
    step_size: Annotated[
        float | None,
        typer.Option(
            help="Step size h (for dp-hmc: no effect on the price).", show_default=False, rich_help_panel=_MINIBATCH
        ),
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            help="1 samples the posterior; the paper's released code amounts to 0.5, and so do its presets.",
            show_default=False,
            rich_help_panel=_MINIBATCH,
        ),
    ] = None
    sampling: Annotated[
        Scheme | None,
        typer.Option(
            help="How batches are drawn. Default: without_replacement.", show_default=False, rich_help_panel=_MINIBATCH
        ),
    ] = None
    diffusion: Annotated[
        float | None, typer.Option(help="A of dp-sgnht.", show_default=False, rich_help_panel=_MINIBATCH)
    ] = None


@with_option_groups
def plan(run: RunOptions, curve: CurveOptions, settings: SamplerOptions, as_json: JsonOption = False) -> None:
    """Show what a budget buys, without any data: iterations; for auto and dp-laplace, the width of intervals.

    Nothing is spent and nothing is read. Noise multipliers τ are noise sd / sensitivity; useful ones grow with √n, so
    that the same accuracy costs less the more people there are.
    """
    import dpmcmc

    name, options = _sampler_options(run, settings)
    delta = 0.1 / run.num_records if run.delta is None else run.delta
    if name in _WITHOUT_SETTINGS:
        _plan_laplace(name, run, curve, delta, as_json)
        return
    if given_fields(curve):
        raise UsageError(f"{listed(given_fields(curve))} is for auto and dp-laplace, not for {name}; leave it out")
    class_name, _, free = _SAMPLERS[name]
    stand_ins = {option: value for option, value in free.items() if value is not None}
    dimension = run.dimension
    if dimension is not None:
        missing = [option for option in stand_ins if option not in options]
        if missing:
            raise UsageError(f"to predict the acceptance {name} needs {listed(missing)}; give it, or no --dimension")
    elif run.preset is not None:
        dimension = _DIMENSIONS[run.preset]
    bought = dpmcmc.plan(
        getattr(dpmcmc, class_name)(**(stand_ins | options)),
        num_records=run.num_records,
        epsilon=run.epsilon,
        delta=delta,
        num_chains=run.num_chains,
        dimension=dimension,
        check_records=run.check_records,
    )
    if as_json:
        print_json(_as_json(name, options, bought))
    else:
        _show(class_name, options, bought)


def _sampler_options(run: RunOptions, settings: SamplerOptions) -> tuple[SamplerName, dict[str, Any]]:
    """Return the sampler and its options: those of the preset, overridden by those given."""
    if run.sampler is None and run.preset is None:
        raise UsageError(f"give --sampler ({', '.join(SamplerName)}) or --preset ({', '.join(Preset)})")
    name = SamplerName.dp_hmc if run.sampler is None else run.sampler
    kind, given = _SAMPLERS[name], given_fields(settings)
    foreign = [option for option in given if option not in kind.priced and option not in kind.free]
    if foreign:
        raise UsageError(f"{listed(foreign)} does not belong to {name}; leave it out or choose another --sampler")
    options = given
    if run.preset is not None:
        if name in _WITHOUT_SETTINGS:
            raise UsageError(f"--preset has no settings for {name}, which needs none; give --dimension instead")
        from dpmcmc.presets import paper_settings

        options = paper_settings(run.preset.value, name.value, run.num_records) | given
    missing = [option for option in kind.priced if option not in options]
    if missing:
        raise UsageError(f"{name} needs {listed(missing)}; give it, or a --preset")
    return name, options


def _plan_laplace(name: SamplerName, run: RunOptions, options: CurveOptions, delta: float, as_json: bool) -> None:
    if run.dimension is None:
        raise UsageError(f"{name} needs --dimension, the number of unconstrained parameters; give it")
    if options.curve is not None:
        _check_picture(options.curve)
    import dpmcmc

    sampler: Literal["auto"] | dpmcmc.DPLaplace = "auto" if name == SamplerName.auto else dpmcmc.DPLaplace()
    bought = dpmcmc.plan(
        sampler, num_records=run.num_records, epsilon=run.epsilon, delta=delta, dimension=run.dimension
    )
    curve = None
    if given_fields(options):
        width = {} if options.width is None else {"width": options.width}
        curve = dpmcmc.plan_curve(
            sampler,
            num_records=run.num_records,
            epsilon=run.epsilon,
            delta=run.delta,
            dimension=run.dimension,
            **width,
        )
    if curve is not None and options.curve is not None:
        _write_picture(curve, options.curve)
    if as_json:
        answer: dict[str, Any] = {
            "sampler": name.value,
            "settings": {},
            "num_records": bought.num_records,
            "epsilon": bought.epsilon,
            "delta": bought.delta,
            "plan": bought.to_dict(),
        }
        if curve is not None:
            answer["curve"] = curve.to_dict()
            answer["files"] = [] if options.curve is None else [str(options.curve)]
        print_json(answer)
        return
    console = Console()
    _show_laplace(console, _SAMPLERS[name].class_name, bought)
    if curve is not None:
        _show_curve(console, curve)
    _show_end(console, bought.notes)
    if options.curve is not None:
        console.print(Text(f"Written: {options.curve}"), soft_wrap=True)


def _check_picture(target: Path) -> None:
    """Refuse a picture that could not be drawn or written, before anything is worked out."""
    if target.suffix.lower() not in _PICTURES:
        raise UsageError(f"--curve is {str(target)!r}, which is no picture; end it with .png, .pdf or .svg")
    if not target.parent.is_dir():
        raise UsageError(f"--curve is {str(target)!r}, but there is no folder {str(target.parent)!r}; make it first")
    if target.exists() or target.is_symlink():
        raise UsageError(f"--curve is {str(target)!r}, which is there already; give another name")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--curve draws with Matplotlib; install it with pip install 'dpmcmc[cli]'")


def _write_picture(curve: "PlanCurve", target: Path) -> None:
    import matplotlib

    from dpmcmc.output import PICTURE_STYLE, replace_file

    kind = target.suffix.lower().removeprefix(".")
    options: dict[str, dict[str, Any]] = {
        "png": {"dpi": 200, "metadata": {"Software": None}},
        "pdf": {"metadata": {"CreationDate": None}},
        "svg": {"metadata": {"Date": None}},
    }
    style: Any = PICTURE_STYLE | {"svg.hashsalt": "plan"}  # the same picture in every run
    with matplotlib.rc_context(style):
        buffer = io.BytesIO()
        curve.plot().savefig(buffer, format=kind, facecolor="white", **options[kind])
    try:
        replace_file(target, buffer.getvalue())
    except OSError as error:
        raise UsageError(f"cannot write {str(target)!r} ({error.strerror}); give another --curve") from None


def _show_curve(console: Console, curve: "PlanCurve") -> None:
    """Show some of the grid, and which ε and n it takes for the width that was asked."""
    middle = len(curve.epsilons) // 2
    places = [middle + step for step in (-4, -2, 0, 2, 4)]
    about = " (if the posterior is about Gaussian)" if curve.sampler == "auto" else ""
    console.print(
        f"90 % intervals, times as wide as without noise{about}, for benign to skewed data; no: cannot work:",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for n in curve.record_numbers[places]:
        table.add_column(f"n = {n:,}", justify="right")
    for line in places:
        ends = curve.interval_widening[line, places]
        cells = [f"{low:.2f}–{high:.2f}" if math.isfinite(high) else "no" for low, high in ends]
        table.add_row(f"ε = {curve.epsilons[line]:.3g}", *cells)
    console.print(table)
    (epsilon, skewed_epsilon), (records, skewed_records) = curve.epsilon_needed, curve.records_needed
    console.print(
        f"At most {curve.width:g} times as wide as without noise:\n"
        f"  with {curve.num_records:,} records from ε = {epsilon:g} (benign data) or {skewed_epsilon:g} (skewed data) "
        f"on;\n"
        f"  with ε = {curve.epsilon:g} from {records:,} (benign) or {skewed_records:,} (skewed) records on.",
        highlight=False,
    )


def _show_laplace(console: Console, class_name: str, bought: "LaplacePlan") -> None:
    from dpmcmc.results.quality import as_percent

    console.print(
        f"With ε = {bought.epsilon:g} and δ = {bought.delta:g}, {bought.num_records:,} records and "
        f"{bought.dimension:,} unconstrained parameters:",
        Text(f"{class_name} can work.", "bold green")
        if bought.feasible
        else Text(f"{class_name} cannot work.", "bold red"),
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    if bought.feasible:  # else they mean nothing
        low, high = bought.interval_widening
        shares = [as_percent(1.0 - 1.0 / times) for times in (low, high)]
        where = "" if class_name == "DPLaplace" else " if the posterior is about Gaussian,"
        table.add_row(f"expected{where} for benign to skewed data:", "")
        table.add_row("  90 % intervals, times as wide as without noise", f"{low:.3g} to {high:.3g}")
        table.add_row("  share of noise in an interval", " to ".join(shares))
        table.add_row("  noise on each parameter, in posterior sds", "{:.2g} to {:.2g}".format(*bought.noise_sd))
    table.add_row("relative noise of the curvature (at most 0.01)", f"{bought.relative_noise:.2g}")
    table.add_row("cost μ of the whole run", number(bought.mu_total))
    console.print(table)


def _as_json(name: SamplerName, options: dict[str, Any], bought: "Plan") -> dict[str, Any]:
    return {
        "sampler": name.value,
        "settings": options,
        "num_records": bought.num_records,
        "epsilon": bought.epsilon,
        "delta": bought.delta,
        "num_chains": bought.num_chains,
        "plan": bought.to_dict(),
    }


def _show(class_name: str, options: dict[str, Any], bought: "Plan") -> None:
    console = Console()
    console.print(
        f"With ε = {bought.epsilon:g} and δ = {bought.delta:g}, {bought.num_records:,} records buy {class_name}",
        Text(f"{bought.num_steps:,} iterations", "bold green"),
        f"in each of {bought.num_chains} chains.",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("iterations, all chains together", number(bought.total_steps))
    for kind, answers in bought.queries.items():
        table.add_row(Text(f"{kind.replace('_', '-')} queries, all chains together"), number(answers))
    if bought.mu_total is not None:
        table.add_row("cost μ of an iteration of one chain", number(bought.mu_per_step))
        table.add_row("cost μ of the whole run", number(bought.mu_total))
    if bought.predicted_acceptance is not None:
        table.add_row("predicted acceptance, at most about", f"{bought.predicted_acceptance:.2g}")
    for option, value in options.items():
        table.add_row(Text(f"setting: {option.replace('_', ' ')}"), Text(number(value)))
    console.print(table)
    _show_end(console, bought.notes)


def _show_end(console: Console, notes: tuple[str, ...]) -> None:
    for note in notes:
        console.print(Text(f"Note: {note}.", "bold yellow"))
    console.print("Nothing was spent: a plan looks at no data.", style="dim")
