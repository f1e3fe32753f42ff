"""The command line: what a budget means (`account`), what it buys (`plan`), and a private run to look at (`demo`).

It uses the package's public interface only and reads no data. Heavy modules are imported inside the commands, so
that help texts come at once; every error is one line on stderr, never a traceback.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

_NOTHING_SPENT = "Interrupted; nothing was spent."

try:
    import typer
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    from typer.core import TyperCommand, TyperGroup

    from dpmcmc.studies.commands import app as reproduce
except KeyboardInterrupt:  # Ctrl-C may well come before there is a command line to handle it
    print(_NOTHING_SPENT, file=sys.stderr)
    raise SystemExit(130) from None

_BISECTION_TOLERANCE = 1e-4


class UsageError(Exception):
    """Options that do not go together. The message names the remedy."""


class _Commands(TyperGroup):
    """The commands, with every expected error turned into one line and an exit code."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the options."""
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt:
            _stop_interrupted(_NOTHING_SPENT)

    def invoke(self, ctx: Any) -> Any:
        """Run the command: 2 for usage errors, 1 for other errors of this package, 130 when interrupted."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            _stop(str(error), 2)
        except KeyboardInterrupt as interrupt:
            # `sample` says what it had spent. Only the demo samples privately.
            unknown = "Interrupted; no result was written."
            _stop_interrupted(str(interrupt) or (unknown if ctx.invoked_subcommand == "demo" else _NOTHING_SPENT))
        except Exception as error:
            from dpmcmc.errors import DPMCMCError, QueryError

            if not isinstance(error, DPMCMCError):
                raise
            _stop(str(error), 2 if isinstance(error, QueryError) else 1)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(reproduce, name="reproduce")


def main() -> None:
    """Run the command line. The entry point of the `dpmcmc` script."""
    app()


def _stop_interrupted(message: str) -> NoReturn:
    line = " ".join(message.split())
    typer.echo(line[:1].upper() + line[1:], err=True)
    raise typer.Exit(130) from None


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(f"Error: {' '.join(message.split())}", err=True)
    raise typer.Exit(code) from None


def _show_version(wanted: bool) -> None:
    if wanted:
        import dpmcmc

        typer.echo(f"dpmcmc {dpmcmc.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Differentially private Bayesian inference by MCMC.

    Posterior draws that may be published: every number that leaves the data is an exactly noised sum, paid for from
    a budget (ε, δ). Neighbouring data sets differ in one row (replace one), and one row is one person.

    Start with `dpmcmc demo`. Each command has its own `--help` with examples.
    """


# ---------------------------------------------------------------------------------------------------- account

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (all digits) instead of a table.")]


class Scheme(StrEnum):
    """How batches are drawn."""

    without_replacement = "without_replacement"
    poisson = "poisson"


@app.command(
    epilog="**Examples**\n\n"
    "What do ε = 4 and δ = 1e-6 allow?  `dpmcmc account --epsilon 4 --delta 1e-6`\n\n"
    "The noise for 500 queries?  `dpmcmc account --epsilon 4 --delta 1e-6 --num-queries 500`\n\n"
    "ε of 100 queries at τ = 20?  `dpmcmc account --noise-multiplier 20 --num-queries 100 --delta 1e-6`\n\n"
    "How many batches?  `dpmcmc account --sampling-prob 0.01 --noise-ratio 10 --epsilon 4 --delta 1e-6`"
)
def account(
    epsilon: Annotated[float | None, typer.Option(help="Privacy parameter ε.", show_default=False)] = None,
    delta: Annotated[float | None, typer.Option(help="Privacy parameter δ.", show_default=False)] = None,
    mu: Annotated[
        float | None,
        typer.Option(help="Total cost μ of all queries.", show_default=False, rich_help_panel="Queries to all records"),
    ] = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            help="τ of each query: noise sd / sensitivity. One query costs 1/(2τ²).",
            show_default=False,
            rich_help_panel="Queries to all records",
        ),
    ] = None,
    num_queries: Annotated[
        int | None,
        typer.Option(
            help="Number k of queries with the same τ: μ = k/(2τ²). Default: 1, or as many as ε, δ and τ allow.",
            min=1,
            show_default=False,
            rich_help_panel="Queries to all records",
        ),
    ] = None,
    sampling_prob: Annotated[
        float | None,
        typer.Option(
            help="q = batch size / number of records.", show_default=False, rich_help_panel="Queries to random batches"
        ),
    ] = None,
    noise_ratio: Annotated[
        float | None,
        typer.Option(
            help="Noise sd on the sum over the batch / clip norm of one record.",
            show_default=False,
            rich_help_panel="Queries to random batches",
        ),
    ] = None,
    num_steps: Annotated[
        int | None,
        typer.Option(
            help="Number of batches, all chains together.",
            min=1,
            show_default=False,
            rich_help_panel="Queries to random batches",
        ),
    ] = None,
    scheme: Annotated[
        Scheme | None,
        typer.Option(
            help="How batches are drawn. Default: without_replacement (fixed size).",
            show_default=False,
            rich_help_panel="Queries to random batches",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Convert between ε, δ, μ, noise multipliers and numbers of queries.

    **All records** (DP-HMC, DP-penalty): give two of --epsilon, --delta and the cost (--mu, or
    --noise-multiplier with --num-queries); the rest follows. ε, δ and τ together tell how many queries they allow.

    **Random batches** (DP-SGLD, DP-SGNHT): give --sampling-prob and all but one of --noise-ratio,
    --num-steps, --epsilon, --delta; the missing one is computed.

    Neighbouring data sets differ by the replacement of one row. Every answer is on the safe side. τ and k that follow
    from ε and δ include the small reserve for discrete noise (1e-5 of ε, 1e-6 of δ) that every run sets aside.
    """
    batch_options = {
        "sampling-prob": sampling_prob,
        "noise-ratio": noise_ratio,
        "num-steps": num_steps,
        "scheme": scheme,
    }
    full_options = {"mu": mu, "noise-multiplier": noise_multiplier, "num-queries": num_queries}
    if _given(batch_options):
        if _given(full_options):
            raise UsageError(
                f"{_listed(full_options)} is for queries to all records and {_listed(batch_options)} for random "
                "batches; leave one group out"
            )
        answer = _account_batches(epsilon, delta, sampling_prob, noise_ratio, num_steps, scheme)
    else:
        answer = _account_all(epsilon, delta, mu, noise_multiplier, num_queries)
    if as_json:
        _print_json(answer)
        return
    options = {**batch_options, **full_options, "epsilon": epsilon, "delta": delta}
    known = {name.replace("-", "_") for name in _given(options)}
    assumed = {"scheme"} if epsilon and delta and noise_multiplier else {"scheme", "num_queries"}
    reserved = {"noise_multiplier", "num_queries"} if epsilon is not None and delta is not None else set()
    table = Table(box=box.SIMPLE_HEAD, title="Privacy account", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("what it is")
    for name, value in answer.items():
        if name in _MEANINGS:
            symbol, meaning = _MEANINGS[name]
            origin = "" if name in known else "  (assumed)" if name in assumed else "  ← computed"
            if "computed" in origin and name in reserved:
                origin += ", with the reserve for discrete noise"
            table.add_row(symbol, Text(_number(value), "bold green" if "computed" in origin else ""), meaning + origin)
    Console().print(table)


_MEANINGS = {
    "epsilon": ("ε", "privacy parameter"),
    "delta": ("δ", "privacy parameter"),
    "mu": ("μ", "total cost, Σ 1/(2τ²)"),
    "noise_multiplier": ("τ", "noise sd / sensitivity, each query"),
    "num_queries": ("k", "number of queries"),
    "sampling_prob": ("q", "batch size / number of records"),
    "noise_ratio": ("s/C", "noise sd on the batch sum / clip norm"),
    "num_steps": ("N", "number of batches, all chains together"),
    "scheme": ("", "how batches are drawn"),
}


def _account_all(
    epsilon: float | None,
    delta: float | None,
    mu: float | None,
    noise_multiplier: float | None,
    num_queries: int | None,
) -> dict[str, Any]:
    """Solve δ(ε; μ) with μ = k/(2τ²) for what is missing, rounding to the safe side."""
    from dpmcmc import privacy
    from dpmcmc.privacy.exact import rounded_up

    if mu is not None and noise_multiplier is not None:
        raise UsageError("--mu and --noise-multiplier both say what is spent; leave one of them out")
    for name, value in (("--noise-multiplier", noise_multiplier), ("--mu", mu)):
        if value is not None and not 0.0 < value < math.inf:
            raise UsageError(f"{name} is {value}; give a positive finite number")
    if epsilon is not None and delta is not None:
        if mu is not None or (noise_multiplier is not None and num_queries is not None):
            raise UsageError("--epsilon, --delta and the cost are all given, nothing is left to compute; leave one out")
        mu = privacy.gaussian_mu(epsilon, delta)
        budget = privacy.Budget(epsilon, delta)
        budget.reserve_lattice()
        allowance = budget.total
        if noise_multiplier is not None:
            num_queries = math.floor(Fraction(allowance) / Fraction(privacy.gaussian_cost(noise_multiplier)))
    else:
        if mu is None and noise_multiplier is not None:
            mu = rounded_up(Fraction(num_queries or 1) / (2 * Fraction(noise_multiplier) ** 2))
        if mu is None or (epsilon is None and delta is None):
            raise UsageError(
                "give two of --epsilon, --delta and the cost (--mu, or --noise-multiplier with --num-queries); "
                "for random batches give --sampling-prob"
            )
        allowance = mu
        if epsilon is None:
            assert delta is not None
            epsilon = privacy.gaussian_epsilon(mu, delta)
        else:
            delta = privacy.gaussian_delta_bound(mu, epsilon)
    num_queries = 1 if num_queries is None else num_queries
    if noise_multiplier is None:
        noise_multiplier = privacy.smallest_noise_multiplier(num_queries, allowance)
    return {
        "accountant": "gaussian",
        "epsilon": epsilon,
        "delta": delta,
        "mu": mu,
        "noise_multiplier": noise_multiplier,
        "num_queries": num_queries,
        "neighboring_relation": "replace one",
    }


def _account_batches(
    epsilon: float | None,
    delta: float | None,
    sampling_prob: float | None,
    noise_ratio: float | None,
    num_steps: int | None,
    scheme: Scheme | None,
) -> dict[str, Any]:
    """Solve the subsampled curve for the one of ε, δ, number of steps and noise ratio that is missing."""
    from dpmcmc import privacy

    if sampling_prob is None:
        raise UsageError("random batches need --sampling-prob (batch size / number of records); add it")
    unknowns = {"noise-ratio": noise_ratio, "num-steps": num_steps, "epsilon": epsilon, "delta": delta}
    missing = [name for name, value in unknowns.items() if value is None]
    if len(missing) != 1:
        raise UsageError(
            "with --sampling-prob give all but one of --noise-ratio, --num-steps, --epsilon and --delta; "
            + (f"missing: {', '.join('--' + name for name in missing)}" if missing else "all four are given")
        )
    how: Literal["poisson", "without_replacement"] = "poisson" if scheme is Scheme.poisson else "without_replacement"

    def delta_of(ratio: float, steps: int, at_epsilon: float) -> float:
        return privacy.subsampled_delta(ratio, sampling_prob, steps, at_epsilon, scheme=how)

    if epsilon is not None and noise_ratio is not None and num_steps is not None:
        delta = delta_of(noise_ratio, num_steps, epsilon)
    elif epsilon is not None and noise_ratio is not None and delta is not None:
        num_steps = privacy.subsampled_steps(noise_ratio, sampling_prob, epsilon, delta, scheme=how)
    elif noise_ratio is not None and num_steps is not None and delta is not None:
        epsilon = privacy.subsampled_epsilon(noise_ratio, sampling_prob, num_steps, delta, scheme=how)
    elif epsilon is not None and num_steps is not None and delta is not None:
        at_epsilon, steps, target = epsilon, num_steps, delta
        noise_ratio = _smallest_noise_ratio(lambda value: delta_of(value, steps, at_epsilon) <= target)
    return {
        "accountant": "subsampled gaussian",
        "epsilon": epsilon,
        "delta": delta,
        "sampling_prob": sampling_prob,
        "noise_ratio": noise_ratio,
        "num_steps": num_steps,
        "scheme": how,
        "neighboring_relation": "replace one",
    }


def _smallest_noise_ratio(is_safe: Callable[[float], bool]) -> float:
    """Bisect on a logarithmic scale for the smallest safe noise ratio; the answer itself was found safe."""
    low, high = 0.1, 1e6
    if is_safe(low):
        return low
    if not is_safe(high):
        raise UsageError(f"no noise ratio up to {high:g} is enough; give fewer steps, a smaller q or a larger delta")
    while high / low > 1.0 + _BISECTION_TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_safe(middle) else (middle, high)
    return high


# ------------------------------------------------------------------------------------------------------- plan


class SamplerName(StrEnum):
    """The samplers by their names on the command line."""

    dp_hmc = "dp-hmc"
    dp_penalty = "dp-penalty"
    dp_sgld = "dp-sgld"
    dp_sgnht = "dp-sgnht"


class Preset(StrEnum):
    """The models of the paper's experiments."""

    paper_banana = "paper-banana"
    paper_gaussian = "paper-gaussian"


_DIMENSIONS = {Preset.paper_banana: 2, Preset.paper_gaussian: 10}


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


# For each sampler: the class, the options that the price depends on, and those that it does not depend on (with the
# value that stands in for them when they are not given; None leaves the class's own default).
_SAMPLERS: dict[SamplerName, tuple[str, tuple[str, ...], dict[str, float | None]]] = {
    SamplerName.dp_hmc: (
        "DPHMC",
        ("num_leapfrog", "ratio_noise", "gradient_noise"),
        {"step_size": 1.0, "ratio_clip": 1.0, "gradient_clip": 1.0, "leapfrog": None},
    ),
    SamplerName.dp_penalty: ("DPPenalty", ("ratio_noise",), {"proposal_scale": 1.0, "ratio_clip": 1.0, "update": None}),
    SamplerName.dp_sgld: (
        "DPSGLD",
        ("batch_size", "gradient_clip", "step_size"),
        {"temperature": None, "sampling": None},
    ),
    SamplerName.dp_sgnht: ("DPSGNHT", ("batch_size", "gradient_clip", "step_size", "diffusion"), {"sampling": None}),
}


@app.command(
    epilog="**Examples**\n\n"
    "The paper's banana at ε = 4:  `dpmcmc plan --preset paper-banana --num-records 100000 --epsilon 4`\n\n"
    "The same, another sampler:  `dpmcmc plan --preset paper-banana --sampler dp-penalty --num-records 100000 "
    "--epsilon 4`\n\n"
    "Your own settings:  `dpmcmc plan --sampler dp-hmc --num-leapfrog 10 --ratio-noise 32 --gradient-noise 170 "
    "--num-records 50000 --epsilon 2 --delta 1e-6`"
)
def plan(
    num_records: Annotated[int, typer.Option(help="Number of rows n (public).", min=2)],
    epsilon: Annotated[float, typer.Option(help="Privacy parameter ε of the whole run.")],
    delta: Annotated[
        float | None, typer.Option(help="Privacy parameter δ. Default: 0.1 / num-records.", show_default=False)
    ] = None,
    num_chains: Annotated[int, typer.Option(help="Chains; they share the budget.", min=1)] = 4,
    dimension: Annotated[
        int | None,
        typer.Option(
            help="Number of unconstrained parameters: the acceptance is then predicted. A preset knows it.",
            min=1,
            show_default=False,
        ),
    ] = None,
    check_records: Annotated[
        bool, typer.Option(help="Whether the run counts, with noise, the records that are of no use.")
    ] = True,
    sampler: Annotated[
        SamplerName | None, typer.Option(help="The sampler. Default with a preset: dp-hmc.", show_default=False)
    ] = None,
    preset: Annotated[
        Preset | None,
        typer.Option(
            help="Start from the paper's settings, noise scaled with √n; other options override them.",
            show_default=False,
        ),
    ] = None,
    ratio_noise: Annotated[
        float | None,
        typer.Option(
            help="τ of the accept test's log-ratio.", show_default=False, rich_help_panel="dp-hmc and dp-penalty"
        ),
    ] = None,
    ratio_clip: Annotated[
        float | None,
        typer.Option(
            help="Clip bound of log-ratios (no effect on the price).",
            show_default=False,
            rich_help_panel="dp-hmc and dp-penalty",
        ),
    ] = None,
    num_leapfrog: Annotated[
        int | None, typer.Option(help="Leapfrog steps L.", min=1, show_default=False, rich_help_panel="dp-hmc")
    ] = None,
    gradient_noise: Annotated[
        float | None, typer.Option(help="τ of each gradient.", show_default=False, rich_help_panel="dp-hmc")
    ] = None,
    leapfrog: Annotated[
        Leapfrog | None,
        typer.Option(
            help="L gradients an iteration (position_first, the default; cached) or L + 1 (momentum_first, the paper).",
            show_default=False,
            rich_help_panel="dp-hmc",
        ),
    ] = None,
    proposal_scale: Annotated[
        float | None,
        typer.Option(help="Proposal sd (no effect on the price).", show_default=False, rich_help_panel="dp-penalty"),
    ] = None,
    update: Annotated[
        Update | None,
        typer.Option(help="Which components a proposal moves.", show_default=False, rich_help_panel="dp-penalty"),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Records in a batch.", min=1, show_default=False, rich_help_panel="dp-sgld and dp-sgnht"),
    ] = None,
    gradient_clip: Annotated[
        float | None,
        typer.Option(
            help="Clip norm of a record's gradient (for dp-hmc: no effect on the price).",
            show_default=False,
            rich_help_panel="dp-sgld and dp-sgnht",
        ),
    ] = None,
    step_size: Annotated[
        float | None,
        typer.Option(
            help="Step size h (for dp-hmc: no effect on the price).",
            show_default=False,
            rich_help_panel="dp-sgld and dp-sgnht",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="1 samples the posterior; the paper's released code amounts to 0.5, and so do its presets.",
            show_default=False,
            rich_help_panel="dp-sgld and dp-sgnht",
        ),
    ] = None,
    sampling: Annotated[
        Scheme | None,
        typer.Option(
            help="How batches are drawn. Default: without_replacement.",
            show_default=False,
            rich_help_panel="dp-sgld and dp-sgnht",
        ),
    ] = None,
    diffusion: Annotated[
        float | None, typer.Option(help="A of dp-sgnht.", show_default=False, rich_help_panel="dp-sgld and dp-sgnht")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a budget buys: iterations and queries, without any data.

    Nothing is spent and nothing is read. Noise multipliers τ are noise sd / sensitivity; useful ones grow with √n, so
    that the same accuracy costs less the more people there are.
    """
    import dpmcmc

    given = _given(
        {
            "ratio_noise": ratio_noise,
            "ratio_clip": ratio_clip,
            "num_leapfrog": num_leapfrog,
            "gradient_noise": gradient_noise,
            "leapfrog": None if leapfrog is None else leapfrog.value,
            "proposal_scale": proposal_scale,
            "update": None if update is None else update.value,
            "batch_size": batch_size,
            "gradient_clip": gradient_clip,
            "step_size": step_size,
            "temperature": temperature,
            "diffusion": diffusion,
            "sampling": None if sampling is None else sampling.value,
        }
    )
    name, options = _sampler_options(sampler, preset, num_records, given)
    class_name, _, stand_ins = _SAMPLERS[name]
    arguments = {option: value for option, value in stand_ins.items() if value is not None} | options
    if dimension is not None:
        missing = [option for option, value in stand_ins.items() if value is not None and option not in options]
        if missing:
            raise UsageError(f"to predict the acceptance {name} needs {_listed(missing)}; give it, or no --dimension")
    elif preset is not None:
        dimension = _DIMENSIONS[preset]
    delta = 0.1 / num_records if delta is None else delta
    bought = dpmcmc.plan(
        getattr(dpmcmc, class_name)(**arguments),
        num_records=num_records,
        epsilon=epsilon,
        delta=delta,
        num_chains=num_chains,
        dimension=dimension,
        check_records=check_records,
    )
    if as_json:
        _print_json(
            {
                "sampler": name.value,
                "settings": options,
                "num_records": num_records,
                "epsilon": epsilon,
                "delta": delta,
                "num_chains": num_chains,
                "plan": bought.to_dict(),
            }
        )
        return
    console = Console()
    console.print(
        f"With ε = {epsilon:g} and δ = {delta:g}, {num_records:,} records buy {class_name}",
        Text(f"{bought.num_steps:,} iterations", "bold green"),
        f"in each of {num_chains} chains.",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("iterations, all chains together", _number(bought.total_steps))
    for kind, number in bought.queries.items():
        table.add_row(Text(f"{kind.replace('_', '-')} queries, all chains together"), _number(number))
    if bought.mu_total is not None:
        table.add_row("cost μ of an iteration of one chain", _number(bought.mu_per_step))
        table.add_row("cost μ of the whole run", _number(bought.mu_total))
    if bought.predicted_acceptance is not None:
        table.add_row("predicted acceptance, at most about", f"{bought.predicted_acceptance:.2g}")
    for option, value in options.items():
        table.add_row(Text(f"setting: {option.replace('_', ' ')}"), Text(_number(value)))
    console.print(table)
    for note in bought.notes:
        console.print(Text(f"Note: {note}.", "bold yellow"))
    console.print("Nothing was spent: a plan looks at no data.", style="dim")


def _sampler_options(
    sampler: SamplerName | None, preset: Preset | None, num_records: int, given: Mapping[str, Any]
) -> tuple[SamplerName, dict[str, Any]]:
    """Return the sampler and its options: those of the preset, overridden by those given."""
    if sampler is None and preset is None:
        raise UsageError(f"give --sampler ({', '.join(SamplerName)}) or --preset ({', '.join(Preset)})")
    name = SamplerName.dp_hmc if sampler is None else sampler
    _, required, others = _SAMPLERS[name]
    foreign = [option for option in given if option not in required and option not in others]
    if foreign:
        raise UsageError(f"{_listed(foreign)} does not belong to {name}; leave it out or choose another --sampler")
    defaults: dict[str, Any] = {}
    if preset is not None:
        from dpmcmc.studies.settings import paper_settings

        defaults = paper_settings(preset.value, name.value, num_records)
    options = defaults | dict(given)
    missing = [option for option in required if option not in options]
    if missing:
        raise UsageError(f"{name} needs {_listed(missing)}; give it, or a --preset")
    return name, options


# ------------------------------------------------------------------------------------------------------- demo


@app.command(
    epilog="**Examples**\n\n"
    "`dpmcmc demo`   then open dpmcmc-demo/index.html\n\n"
    "`dpmcmc demo --fast --out my-demo`   a smaller budget, in half a minute"
)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; files of an earlier demo are replaced.")] = Path(
        "dpmcmc-demo"
    ),
    epsilon: Annotated[
        float | None,
        typer.Option(help="Privacy parameter ε. Default: 15 as in the paper's figures.", show_default=False),
    ] = None,
    num_records: Annotated[int, typer.Option(help="Number of synthetic records n; δ is 0.1/n.", min=100)] = 100_000,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Repeatable data and noise. A seeded run is not private and is marked so.",
            min=0,
            show_default=False,
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="ε = 4: a tenth of the iterations, a rougher picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON: files, summary, what was spent.")] = False,
) -> None:
    """Run DP-HMC on the paper's banana model and show the private draws over the exact posterior.

    Draws synthetic records, samples with exact noise under the budget, prints the summary and what was spent and
    released, and writes posterior.nc (ArviZ), posterior.png and index.html (one page, self-contained).

    Takes about two minutes on two cores, compilation included.
    """
    if fast and epsilon is not None:
        raise UsageError("--fast sets epsilon = 4, but --epsilon is given too; leave one of them out")
    from dpmcmc import demo as study
    from dpmcmc.output import prepare_folder

    settings = study.Settings(
        epsilon=study.FAST_EPSILON if fast else study.DEFAULT_EPSILON if epsilon is None else epsilon,
        num_records=num_records,
        seed=seed,
    )
    prepare_folder(out)
    bought = study.planned(settings)
    if not as_json:
        console = Console()
        console.print(Text("dpmcmc demo: DP-HMC on the paper's banana model", "bold"))
        points = Table.grid(padding=(0, 1))
        for line in study.description(settings, bought):
            points.add_row(" •", Text(line))
        console.print(points)
        console.print()
    outcome = study.run(settings, progress=not as_json)
    files = study.write(outcome, out)
    if as_json:
        _print_json(study.report(outcome, files))
        return
    console.print(_summary_table(*study.summary_rows(outcome)))
    for warning in outcome.posterior.warnings:
        console.print(Text(f"Warning: {warning}", "bold red"))
    console.print(Text(study.mixing_note(outcome)))
    console.print()
    statement = Table(
        box=box.SIMPLE_HEAD,
        show_header=False,
        title="What was spent and released",
        title_justify="left",
        title_style="bold",
    )
    statement.add_column("", style="dim")
    statement.add_column("")
    for label, value in study.statement_rows(outcome):
        statement.add_row(Text(label), Text(value))
    console.print(statement)
    if not outcome.posterior.privacy.private:
        console.print(Text("NOT PRIVATE: this run was seeded; who knows the seed knows the noise.", "bold red"))
    console.print(Text("Written", "bold"))
    for path, what in files.items():
        console.print(Text(f"  {path}  ({what})"), soft_wrap=True)
    console.print(
        Text(
            "How to read the page: the blue draws should fill the orange regions, and in each chain's trace wander over"
        ),
        Text("the whole orange band."),
    )


def _summary_table(columns: list[str], rows: list[tuple[str, list[float]]]) -> Table:
    """Return the summary with the exact posterior beside it, narrow enough for a terminal of 80 columns."""
    shown = [place for place, name in enumerate(columns) if not name.startswith(("mcse", "hdi", "eti"))]
    table = Table(box=box.SIMPLE_HEAD, title="Summary of the draws", title_justify="left", title_style="bold")
    table.add_column("")
    for place in shown:
        table.add_column(Text(columns[place]), justify="right", overflow="fold")
    for name, values in rows:
        table.add_row(Text(name), *(f"{values[place]:.3g}" for place in shown))
    return table


# -------------------------------------------------------------------------------------------------- benchmark


class _JsonMayStandAlone(TyperCommand):
    """A command whose --json may come without a value, as that of the other commands does: then it is `-`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put in the value that was left out."""
        complete = []
        for argument, following in zip(args, [*args[1:], "--"], strict=False):
            complete.append(argument)
            if argument == "--json" and following.startswith("--"):
                complete.append("-")
        return super().parse_args(ctx, complete)


@app.command(
    cls=_JsonMayStandAlone,
    epilog="**Examples**\n\n"
    "`dpmcmc benchmark`   then look at benchmark/benchmark.png\n\n"
    "`dpmcmc benchmark --fast --json -`   figures only, for a script that follows them over time",
)
def benchmark(
    out: Annotated[
        Path, typer.Option(help="Folder for the table and the plot; files of an earlier benchmark are replaced.")
    ] = Path("benchmark"),
    json_to: Annotated[
        Path | None,
        typer.Option(
            "--json",
            help="Write the JSON to this file too; `-` or nothing: print only JSON, no table.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Smaller sizes, fewer rounds: within two minutes.")] = False,
) -> None:
    """Measure speed and memory against plain JAX, BlackJAX and the machine's floor.

    Synthetic records, all contestants in turns, medians. Writes benchmark.json, benchmark.md, benchmark.png and
    benchmark.pdf. The figures are ratios, but a busy machine blurs them all the same: run it alone.

    Takes about ten minutes on two cores. Needs BlackJAX: pip install 'dpmcmc[bench]'.
    """
    from dpmcmc import benchmarks
    from dpmcmc.output import prepare_folder, replace_file

    benchmarks.require_peer()
    prepare_folder(out)
    only_json = json_to == Path("-")
    if json_to is not None and not only_json:
        prepare_folder(json_to.parent)
    console = Console(stderr=True)
    with console.status("benchmark") as status:  # shown on a terminal only
        results = benchmarks.run(
            benchmarks.FAST if fast else benchmarks.FULL,
            lambda title, done, total: status.update(Text(f"{done}/{total}  {title}")),
        )
    files = benchmarks.write(results, out)
    if only_json:
        typer.echo(benchmarks.as_json(results), nl=False)
        return
    if json_to is not None:
        replace_file(json_to, benchmarks.as_json(results).encode())
        files[json_to] = "the same figures"
    console = Console()
    _print_benchmark(console, results)
    console.print(Text("Written", "bold"))
    for path, what in files.items():
        console.print(Text(f"  {path}  ({what})"), soft_wrap=True)


def _print_benchmark(console: Console, results: Any) -> None:
    from dpmcmc import benchmarks

    console.print(Text(f"Benchmark, n = {results.sizes.num_records:,} unless said otherwise", "bold"))
    for group, rows in groupby(benchmarks.rows(results), key=lambda row: row.group):
        table = Table(box=box.SIMPLE_HEAD, title=Text(group), title_justify="left", width=min(console.width, 100))
        table.add_column("what", ratio=1)
        for name, width in (("dpmcmc (ms)", 11), ("peer (ms)", 9), ("ratio", 8), ("target", 8)):
            table.add_column(name, justify="right", min_width=width)
        table.add_column("met", min_width=3)
        for row in rows:
            times = (benchmarks.as_text(row.ours), benchmarks.as_text(row.peer))
            met = Text(benchmarks.met_text(row.met), "green" if row.met else "bold red")
            table.add_row(*map(Text, (row.what, *times, row.figure, row.target)), met)
        console.print(table)
    console.print(Text(benchmarks.machine_text(results.machine), "dim"))
    if results.sizes.fast:
        console.print(Text("Targets of larger sizes than --fast measures are left open.", "dim"))
    console.print(Text(f"{results.seconds:.0f} seconds.", "dim"))


# ----------------------------------------------------------------------------------------------------- shared


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _listed(options: Any) -> str:
    names = _given(options) if isinstance(options, Mapping) else options
    return ", ".join("--" + name.replace("_", "-") for name in names)


def _number(value: Any) -> str:
    """Write a number so that a person can read it."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def _print_json(answer: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False))


if __name__ == "__main__":
    main()
