"""The seven measurements and their sizes.

A measurement times its contestants alternately (see ``timing``) and adds to :class:`Results` the times and what is
computed from them: the figures, mostly ratios of median times. The targets of the figures are in ``report``.
"""

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpmcmc
from benchmarks import contestants as side
from benchmarks import machine
from benchmarks.contestants import Contestant
from benchmarks.problems import MODELS, PROBLEMS, Problem, banana, logistic
from benchmarks.timing import Pace, Timing, interleave, ratio
from dpmcmc.curator import Curator, ExactNoise, NoNoiseNotPrivate
from dpmcmc.errors import DPMCMCError

# With at least this many records the time per record should be constant. With fewer, the fixed cost of a call shows.
_GROWTH_FROM = 100_000
# With at least this many chains one draw of BlackJAX takes so long that the fixed cost of a call does not matter, and
# one draw in a call is enough.
_MANY_CHAINS = 16
# One of the paper's budgets. It pays for more steps than are run, and the accountant needs only seconds for it.
_SGLD_EPSILON = 4.0
# The folder that holds this package, for the processes that are started.
_ROOT = Path(__file__).resolve().parents[1]
_FULL_PACE = Pace(min_rounds=7, max_rounds=31, seconds=8.0)


class MissingPeerError(DPMCMCError):
    """A package that dpmcmc is compared with is not installed."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Parameters
    ----------
    models, num_records, chains
        Gradients and draws are measured for every model with every number of chains, on this many records.
    num_leapfrog
        Leapfrog steps of a draw of HMC.
    draws_per_block
        Draws of each chain in one call of compiled code. The time of a call is divided by it.
    pace
        Number of rounds of each comparison.
    noise_models, noise_blocks, noise_draws
        For the runs with and without exact noise: the models, the number of blocks, and the draws in each block.
    scaling_records
        Numbers of records for which a gradient is timed, with the smallest number of ``chains``.
    scaling_chains
        Numbers of chains for which a gradient is timed, on ``num_records`` records.
    plain_limit
        Plain JAX is timed only up to this product of chains and records: it stores chains × records × dimension
        numbers, which may not fit into memory.
    devices
        Numbers of devices over which the records are spread.
    memory_records, memory_chains
        Size of the run whose memory is measured.
    batch_size
        Records in a batch of DP-SGLD.
    sgld_steps
        Steps of DP-SGLD in one call of compiled code.
    sgld_run_steps
        Steps of DP-SGLD in a whole run of ``dpmcmc.sample`` with exact noise; 0 for no such run.
    fast
        Whether the results are marked as those of ``--fast``.
    """

    models: tuple[str, ...] = MODELS
    num_records: int = 100_000
    chains: tuple[int, ...] = (4, 40)
    num_leapfrog: int = 10
    draws_per_block: int = 5
    pace: Pace = _FULL_PACE
    noise_models: tuple[str, ...] = ("logistic", "banana")
    noise_blocks: int = 16
    noise_draws: int = 3
    scaling_records: tuple[int, ...] = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
    plain_limit: int = 6_400_000
    scaling_chains: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    devices: tuple[int, ...] = (1, 2)
    memory_records: int = 1_000_000
    memory_chains: int = 40
    batch_size: int = 1000
    sgld_steps: int = 4000
    sgld_run_steps: int = 40_000
    fast: bool = False


FULL = Sizes()
FAST = Sizes(
    draws_per_block=2,
    pace=Pace(min_rounds=2, max_rounds=11, seconds=1.0),
    noise_models=("logistic",),
    noise_blocks=8,
    noise_draws=2,
    scaling_records=(10_000, 100_000, 1_000_000),
    plain_limit=800_000,
    scaling_chains=(1, 64),
    memory_records=200_000,
    sgld_steps=1000,
    sgld_run_steps=0,
    fast=True,
)


@dataclass
class Results:
    """What was measured.

    Attributes
    ----------
    sizes
        How much was measured.
    machine
        What it was measured on.
    figures
        Numbers computed from the times. Those of :func:`required_keys` are always there, under the same names.
    timings
        Times by "measurement.case.contestant", as in "gradient.banana.4.dpmcmc".
    stages
        Seconds that each measurement took, including compilation.
    """

    sizes: Sizes
    machine: dict[str, machine.Fact]
    figures: dict[str, float] = field(default_factory=dict)
    timings: dict[str, Timing] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Return how long all of it took."""
        return sum(self.stages.values())

    def compare(self, name: str, contestants: Mapping[str, Contestant], **parts: int) -> dict[str, Timing]:
        """Time contestants alternately, keep the times under ``name``, and return them by contestant.

        ``parts`` gives, by contestant, the number of equal parts (draws, steps) of one call; the time of one part is
        kept.
        """
        timings = interleave(contestants, self.sizes.pace)
        timings = {contestant: timing.per(parts.get(contestant, 1)) for contestant, timing in timings.items()}
        self.timings.update({f"{name}.{contestant}": timing for contestant, timing in timings.items()})
        return timings

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: every figure under a key of its own, the times under ``detail``."""
        return {
            **self.figures,
            **{f"machine.{name}": value for name, value in self.machine.items()},
            "fast": self.sizes.fast,
            "seconds": self.seconds,
            "seconds_by_stage": self.stages,
            "sizes": asdict(self.sizes) | {"pace": self.sizes.pace._asdict()},
            "detail": {name: timing.to_dict() for name, timing in self.timings.items()},
        }


def required_keys(sizes: Sizes = FULL) -> list[str]:
    """Return the names of the figures that every run has.

    Examples
    --------
    >>> required_keys()[-4:]
    ['noise_overhead', 'memory_mb_above_data', 'time_per_record_growth', 'sgld_steps_per_second']
    """
    by_chains = [f"{model}.{chains}" for model in sizes.models for chains in sizes.chains]
    return [
        *(f"gradient_speedup.{key}" for key in by_chains),
        *(f"draw_vs_blackjax.{key}" for key in by_chains),
        *(f"draw_vs_floor.{model}" for model in sizes.models),
        "noise_overhead",
        "memory_mb_above_data",
        "time_per_record_growth",
        "sgld_steps_per_second",
    ]


def require_peer() -> None:
    """Refuse to start without BlackJAX."""
    if importlib.util.find_spec("blackjax") is None:
        raise MissingPeerError(
            "blackjax is not installed, and the benchmark compares with it; pip install -e '.[bench]'"
        )


Report = Callable[[str, int, int], None]


def run(sizes: Sizes = FULL, report: Report = lambda title, done, total: None) -> Results:
    """Measure everything.

    Parameters
    ----------
    sizes
        ``FULL`` (about ten minutes on two cores), ``FAST`` (within two), or others.
    report
        Called before each measurement with its title, the number of measurements done and the number of all.

    Raises
    ------
    MissingPeerError
        BlackJAX is not installed. Raised before anything is measured.
    """
    require_peer()
    results = Results(sizes, machine.describe())
    stages: list[tuple[str, Callable[[Results], None]]] = [
        # First, while this process takes little memory.
        ("memory", measure_memory),
        ("devices", measure_devices),
        *((f"gradients and draws: {model}", _measure_model(model)) for model in sizes.models),
        ("exact noise on and off", measure_noise),
        ("time against records", measure_records),
        ("time against chains", measure_chains),
        ("DP-SGLD", measure_sgld),
    ]
    for done, (title, measure) in enumerate(stages):
        report(title, done, len(stages))
        begin = time.perf_counter()
        measure(results)
        results.stages[title] = time.perf_counter() - begin
    return results


# ------------------------------------------------------------------------------------ 1 to 3: gradients and draws


def _measure_model(name: str) -> Callable[[Results], None]:
    """Return the measurement of one model's gradients and draws."""

    def measure(results: Results) -> None:
        problem = PROBLEMS[name](results.sizes.num_records)
        curator = side.curator_of(problem)
        for chains in results.sizes.chains:
            measure_gradient(results, problem, curator, chains)
            measure_draw(results, problem, curator, chains)
        results.figures[f"draw_vs_floor.{name}"] = results.figures[f"draw_vs_floor.{name}.{max(results.sizes.chains)}"]

    return measure


def measure_gradient(results: Results, problem: Problem, curator: Curator, chains: int) -> None:
    """1. A private clipped gradient against that of plain JAX, and against the floor."""
    theta = problem.starts(chains)
    timings = results.compare(
        f"gradient.{problem.name}.{chains}",
        {
            "dpmcmc": side.private_gradient(problem, curator, theta),
            "plain_jax": side.plain_gradient(problem, theta),
            **_floors(problem, theta, 1),
        },
    )
    key = f"{problem.name}.{chains}"
    results.figures[f"gradient_speedup.{key}"] = ratio(timings["plain_jax"], timings["dpmcmc"])
    results.figures[f"gradient_vs_floor.{key}"] = ratio(timings["dpmcmc"], timings["floor"])


def measure_draw(results: Results, problem: Problem, curator: Curator, chains: int) -> None:
    """2 and 3. A private draw of DP-HMC against a draw of BlackJAX's HMC, and against the floor."""
    sizes, theta = results.sizes, problem.starts(chains)
    sampler = side.dp_hmc(problem, sizes.num_leapfrog)
    peer_draws = 1 if chains >= _MANY_CHAINS else sizes.draws_per_block
    timings = results.compare(
        f"draw.{problem.name}.{chains}",
        {
            "dpmcmc": side.PrivateDraws(curator, sampler, theta, sizes.draws_per_block),
            "blackjax": side.BlackjaxDraws(problem, theta, sizes.num_leapfrog, peer_draws),
            **_floors(problem, theta, sizes.num_leapfrog),
        },
        dpmcmc=sizes.draws_per_block,
        blackjax=peer_draws,
    )
    key = f"{problem.name}.{chains}"
    results.figures[f"draw_vs_blackjax.{key}"] = ratio(timings["dpmcmc"], timings["blackjax"])
    results.figures[f"draw_vs_floor.{key}"] = ratio(timings["dpmcmc"], timings["floor"])
    if "floor_float64" in timings:
        results.figures[f"draw_vs_floor_float64.{key}"] = ratio(timings["dpmcmc"], timings["floor_float64"])


def _floors(problem: Problem, theta: NDArray[np.float64], num_gradients: int) -> dict[str, Contestant]:
    """Return the floor: the part of the work that every program has to do, however it is written.

    For a regression the matrix products, for the other models reading the data: once for each gradient, and in a draw
    (more than one gradient) once more for the log-ratio.
    """
    if problem.name == "logistic":
        return {
            "floor": side.products(problem, theta, num_gradients),
            "floor_float64": side.products(problem, theta, num_gradients, exact=True),
        }
    return {"floor": side.reads(problem, num_gradients + (num_gradients > 1))}


# ------------------------------------------------------------------------------------------------- 4: exact noise


def measure_noise(results: Results) -> None:
    """4. A run with exact noise against the same run without noise; the figure is that of the slowest model."""
    sizes = results.sizes
    for problem in (PROBLEMS[name](sizes.num_records) for name in sizes.noise_models):
        runs = side.private_runs(
            problem,
            side.dp_hmc(problem, sizes.num_leapfrog),
            problem.starts(min(sizes.chains)),
            sizes.noise_blocks,
            sizes.noise_draws,
            exact=ExactNoise(),
            none=NoNoiseNotPrivate(),
        )
        draws = sizes.noise_blocks * sizes.noise_draws
        timings = results.compare(f"noise.{problem.name}", runs, exact=draws, none=draws)
        results.figures[f"noise_overhead.{problem.name}"] = ratio(timings["exact"], timings["none"])
    results.figures["noise_overhead"] = max(
        value for key, value in results.figures.items() if key.startswith("noise_overhead.")
    )


# ------------------------------------------------------------------------------------------- 5 and 6: memory, scale


def measure_memory(results: Results) -> None:
    """5. Memory of a run beyond that of the data set, in a process of its own; see ``child.memory``."""
    sizes = results.sizes
    # Without the cache of compiled code, because the memory that compiling takes is to be counted.
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    answer = _in_fresh_process("memory", environment, num_records=sizes.memory_records, num_chains=sizes.memory_chains)
    results.figures["memory_mb_above_data"] = answer["above_data_mb"]
    results.figures["memory_mb_data"] = answer["data_mb"]


def measure_devices(results: Results) -> None:
    """6. A gradient with the records on 1 and on 2 devices of this machine, which share its cores."""
    sizes = results.sizes
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={max(sizes.devices)}".strip()
    answer = _in_fresh_process(
        "devices",
        {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        num_records=sizes.num_records,
        num_chains=min(sizes.chains),
        numbers=list(sizes.devices),
        pace=list(sizes.pace),
    )
    timings = {number: Timing(*values) for number, values in answer.items()}
    results.timings.update({f"devices.{number}.dpmcmc": timing for number, timing in timings.items()})
    results.figures["devices_speedup"] = ratio(timings[str(sizes.devices[0])], timings[str(sizes.devices[-1])])


def _in_fresh_process(
    measurement: str, environment: Mapping[str, str], **arguments: int | list[int] | list[float]
) -> dict[str, Any]:
    """Run one of the measurements of ``child`` in a process of its own; return what it found."""
    command = [sys.executable, "-m", "benchmarks.child", measurement, json.dumps(arguments)]
    # The new process must find this package whatever the working directory is.
    places = [str(_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    known = {**environment, "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(command, env=known, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise DPMCMCError(
            f"measuring {measurement} failed in its own process (exit code {done.returncode}): {last[0]}; "
            "with too little memory use --fast"
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measure_records(results: Results) -> None:
    """6. Time of a gradient against the number of records. All numbers alternate in one loop."""
    sizes = results.sizes
    contestants: dict[str, Contestant] = {}
    for number in sizes.scaling_records:
        problem = logistic(number)
        theta = problem.starts(min(sizes.chains))
        contestants[f"{number}.dpmcmc"] = side.private_gradient(problem, side.curator_of(problem), theta)
        if number * len(theta) <= sizes.plain_limit:
            contestants[f"{number}.plain_jax"] = side.plain_gradient(problem, theta)
    timings = results.compare("records", contestants)
    per_record = [
        timings[f"{number}.dpmcmc"].median / number
        for number in sizes.scaling_records
        if number >= min(_GROWTH_FROM, max(sizes.scaling_records))
    ]
    results.figures["time_per_record_growth"] = max(per_record) / min(per_record)


def measure_chains(results: Results) -> None:
    """6. Time of a gradient against the number of chains. All numbers alternate in one loop."""
    sizes = results.sizes
    problem = logistic(sizes.num_records)
    curator = side.curator_of(problem)
    contestants: dict[str, Contestant] = {}
    for chains in sizes.scaling_chains:
        theta = problem.starts(chains)
        contestants[f"{chains}.dpmcmc"] = side.private_gradient(problem, curator, theta)
        if chains * sizes.num_records <= sizes.plain_limit:
            contestants[f"{chains}.plain_jax"] = side.plain_gradient(problem, theta)
    results.compare("chains", contestants)


# ----------------------------------------------------------------------------------------------------- 7: DP-SGLD


def measure_sgld(results: Results) -> None:
    """7. Steps per second of DP-SGLD on the banana; in one step every chain moves once.

    ``sgld_steps_per_second`` is that of compiled code with noise that was drawn before. Where the sizes ask for it,
    ``sgld_steps_per_second_as_used`` is that of a whole call of ``dpmcmc.sample``: planning, compiling, exact noise.
    """
    sizes = results.sizes
    problem = banana(sizes.num_records)
    theta = problem.starts(min(sizes.chains))
    sampler = dpmcmc.DPSGLD(batch_size=sizes.batch_size, gradient_clip_norm=0.2, step_size=1.0 / sizes.num_records)
    block = side.PrivateDraws(side.curator_of(problem), sampler, theta, sizes.sgld_steps)
    timings = results.compare("sgld", {"block": block}, block=sizes.sgld_steps)
    results.figures["sgld_steps_per_second"] = 1.0 / timings["block"].median
    if not sizes.sgld_run_steps:
        return
    begin = time.perf_counter()
    dpmcmc.sample(
        problem.model,
        problem.records,
        sampler=sampler,
        epsilon=_SGLD_EPSILON,
        delta=side.DELTA,
        num_chains=len(theta),
        num_steps=sizes.sgld_run_steps,
        init=theta,
        progress=False,
    )
    results.figures["sgld_steps_per_second_as_used"] = sizes.sgld_run_steps / (time.perf_counter() - begin)
