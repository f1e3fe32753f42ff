"""`dpmcmc account`: convert between ε, δ, the cost μ, noise multipliers and numbers of queries or batches."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpmcmc.cli.shared import (
    JsonOption,
    Scheme,
    UsageError,
    given_fields,
    listed,
    number,
    print_json,
    with_option_groups,
)

Answer = dict[str, float | int | str]

EXAMPLES = (
    "**Examples**\n\n"
    "What do ε = 4 and δ = 1e-6 allow?  `dpmcmc account --epsilon 4 --delta 1e-6`\n\n"
    "The noise for 500 queries?  `dpmcmc account --epsilon 4 --delta 1e-6 --num-queries 500`\n\n"
    "ε of 100 queries at τ = 20?  `dpmcmc account --noise-multiplier 20 --num-queries 100 --delta 1e-6`\n\n"
    "How many batches?  `dpmcmc account --sampling-prob 0.01 --noise-ratio 10 --epsilon 4 --delta 1e-6`"
)
_ALL_RECORDS = "Queries to all records"
_BATCHES = "Queries to random batches"

# For each number of an answer: its symbol, and what it is.
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


@dataclass(frozen=True)
class Guarantee:
    """The options ε and δ."""

    epsilon: Annotated[float | None, typer.Option(help="Privacy parameter ε.", show_default=False)] = None
    delta: Annotated[float | None, typer.Option(help="Privacy parameter δ.", show_default=False)] = None


@dataclass(frozen=True)
class AllRecords:
    """The options about queries to all records."""

    mu: Annotated[
        float | None,
        typer.Option(help="Total cost μ of all queries.", show_default=False, rich_help_panel=_ALL_RECORDS),
    ] = None
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            help="τ of each query: noise sd / sensitivity. One query costs 1/(2τ²).",
            show_default=False,
            rich_help_panel=_ALL_RECORDS,
        ),
    ] = None
    num_queries: Annotated[
        int | None,
        typer.Option(
            help="Number k of queries with the same τ: μ = k/(2τ²). Default: 1, or as many as ε, δ and τ allow.",
            min=1,
            show_default=False,
            rich_help_panel=_ALL_RECORDS,
        ),
    ] = None


@dataclass(frozen=True)
class RandomBatches:
    """The options about queries to random batches."""

    sampling_prob: Annotated[
        float | None,
        typer.Option(help="q = batch size / number of records.", show_default=False, rich_help_panel=_BATCHES),
    ] = None
    noise_ratio: Annotated[
        float | None,
        typer.Option(
            help="Noise sd on the sum over the batch / clip norm of one record.",
            show_default=False,
            rich_help_panel=_BATCHES,
        ),
    ] = None
    num_steps: Annotated[
        int | None,
        typer.Option(
            help="Number of batches, all chains together.", min=1, show_default=False, rich_help_panel=_BATCHES
        ),
    ] = None
    scheme: Annotated[
        Scheme | None,
        typer.Option(
            help="How batches are drawn. Default: without_replacement (fixed size).",
            show_default=False,
            rich_help_panel=_BATCHES,
        ),
    ] = None


@with_option_groups
def account(guarantee: Guarantee, queries: AllRecords, batches: RandomBatches, as_json: JsonOption = False) -> None:
    """Convert between ε, δ, μ, noise multipliers and numbers of queries.

    **All records** (DP-HMC, DP-penalty): give two of --epsilon, --delta and the cost (--mu, or
    --noise-multiplier with --num-queries); the rest follows. ε, δ and τ together tell how many queries they allow.

    **Random batches** (DP-SGLD, DP-SGNHT): give --sampling-prob and all but one of --noise-ratio,
    --num-steps, --epsilon, --delta; the missing one is computed.

    Neighbouring data sets differ by the replacement of one row. Every answer is on the safe side. τ and k that follow
    from ε and δ include the small reserve for discrete noise (1e-5 of ε, 1e-6 of δ) that every run sets aside.
    """
    for_all, for_batches = given_fields(queries), given_fields(batches)
    if for_all and for_batches:
        raise UsageError(
            f"{listed(for_all)} is for queries to all records and {listed(for_batches)} for random "
            "batches; leave one group out"
        )
    answer = solve_batches(guarantee, batches) if for_batches else solve_all_records(guarantee, queries)
    if as_json:
        print_json(answer)
        return
    known = {*given_fields(guarantee), *for_all, *for_batches}
    Console().print(_as_table(answer, known))


def solve_all_records(guarantee: Guarantee, queries: AllRecords) -> Answer:
    """Solve δ(ε; μ) with μ = k/(2τ²) for what is missing, rounding to the safe side."""
    from dpmcmc import privacy

    multiplier, num_queries = queries.noise_multiplier, queries.num_queries
    _check_cost(queries)
    if guarantee.epsilon is not None and guarantee.delta is not None:
        epsilon, delta = guarantee.epsilon, guarantee.delta
        if queries.mu is not None or (multiplier is not None and num_queries is not None):
            raise UsageError("--epsilon, --delta and the cost are all given, nothing is left to compute; leave one out")
        mu = privacy.gaussian_mu(epsilon, delta)
        if multiplier is not None:
            num_queries = privacy.queries_for_noise(epsilon, delta, multiplier)
        else:
            num_queries = num_queries or 1
            multiplier = privacy.noise_for_queries(epsilon, delta, num_queries)
    else:
        num_queries = num_queries or 1
        mu, epsilon, delta = _solve_curve(guarantee, queries)
        if multiplier is None:
            multiplier = privacy.smallest_noise_multiplier(num_queries, mu)
    return {
        "accountant": "gaussian",
        "epsilon": epsilon,
        "delta": delta,
        "mu": mu,
        "noise_multiplier": multiplier,
        "num_queries": num_queries,
        "neighboring_relation": "replace one",
    }


def _check_cost(queries: AllRecords) -> None:
    if queries.mu is not None and queries.noise_multiplier is not None:
        raise UsageError("--mu and --noise-multiplier both say what is spent; leave one of them out")
    for name, value in (("--noise-multiplier", queries.noise_multiplier), ("--mu", queries.mu)):
        if value is not None and not 0.0 < value < math.inf:
            raise UsageError(f"{name} is {value}; give a positive finite number")


def _solve_curve(guarantee: Guarantee, queries: AllRecords) -> tuple[float, float, float]:
    """Return μ, ε and δ from the cost and one of ε and δ."""
    from dpmcmc import privacy
    from dpmcmc.privacy.exact import rounded_up

    mu = queries.mu
    if mu is None and queries.noise_multiplier is not None:
        mu = rounded_up(Fraction(queries.num_queries or 1) / (2 * Fraction(queries.noise_multiplier) ** 2))
    if mu is not None and guarantee.delta is not None:
        return mu, privacy.gaussian_epsilon(mu, guarantee.delta), guarantee.delta
    if mu is not None and guarantee.epsilon is not None:
        return mu, guarantee.epsilon, privacy.gaussian_delta_bound(mu, guarantee.epsilon)
    raise UsageError(
        "give two of --epsilon, --delta and the cost (--mu, or --noise-multiplier with --num-queries); "
        "for random batches give --sampling-prob"
    )


def solve_batches(guarantee: Guarantee, batches: RandomBatches) -> Answer:
    """Solve the subsampled curve for the one of ε, δ, number of steps and noise ratio that is missing."""
    from dpmcmc import privacy

    if batches.sampling_prob is None:
        raise UsageError("random batches need --sampling-prob (batch size / number of records); add it")
    solvers: dict[str, Callable[..., float]] = {
        "noise_ratio": privacy.smallest_noise_ratio,
        "num_steps": privacy.subsampled_steps,
        "epsilon": privacy.subsampled_epsilon,
        "delta": privacy.subsampled_delta,
    }
    known = {"scheme": Scheme.without_replacement.value} | given_fields(guarantee) | given_fields(batches)
    missing = [name for name in solvers if name not in known]
    if len(missing) != 1:
        raise UsageError(
            "with --sampling-prob give all but one of --noise-ratio, --num-steps, --epsilon and --delta; "
            + (f"missing: {listed(missing)}" if missing else "all four are given")
        )
    known[missing[0]] = solvers[missing[0]](**known)
    numbers = ("epsilon", "delta", "sampling_prob", "noise_ratio", "num_steps", "scheme")
    return {
        "accountant": "subsampled gaussian",
        **{name: known[name] for name in numbers},
        "neighboring_relation": "replace one",
    }


def _as_table(answer: Mapping[str, float | int | str], known: Collection[str]) -> Table:
    """Return the answer as a table that tells what was given from what was computed or assumed."""
    assumed = {"scheme"} if {"epsilon", "delta", "noise_multiplier"} <= set(known) else {"scheme", "num_queries"}
    reserved = {"noise_multiplier", "num_queries"} if {"epsilon", "delta"} <= set(known) else set()
    table = Table(box=box.SIMPLE_HEAD, title="Privacy account", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("what it is")
    for name, (symbol, meaning) in _MEANINGS.items():
        if name not in answer:
            continue
        computed = name not in known and name not in assumed
        origin = "" if name in known else "  ← computed" if computed else "  (assumed)"
        if computed and name in reserved:
            origin += ", with the reserve for discrete noise"
        table.add_row(symbol, Text(number(answer[name]), "bold green" if computed else ""), meaning + origin)
    return table
