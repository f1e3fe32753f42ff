"""The two measurements that need a process of their own.

Peak memory cannot be reset within a process, and the number of devices is fixed when JAX starts.
Run as ``python -m benchmarks.child NAME ARGUMENTS`` with JSON arguments; prints JSON.
"""

import gc
import json
import sys
from collections.abc import Callable
from typing import Any

import dpmcmc
from benchmarks.contestants import DELTA, EPSILON, curator_of, dp_hmc, private_gradient
from benchmarks.machine import memory_in_use
from benchmarks.problems import Problem, logistic
from benchmarks.timing import Pace, interleave

_SMALL = 2_000


def memory(num_records: int, num_chains: int) -> dict[str, float]:
    """Return the memory of a private run above that of the data set itself, in units of 10⁶ bytes.

    Peak resident memory of ``dpmcmc.sample`` (DP-HMC on the logistic regression, two draws of two leapfrog steps:
    more of them take no more memory), minus what this process had after it had imported everything and run the same on
    2000 records, minus the bytes of the data set as the caller holds it (float32). So the result contains the
    curator's own copy of the records, what it stores with them, and what compiling takes.
    """
    _short_run(logistic(_SMALL), num_chains)
    gc.collect()
    baseline, _ = memory_in_use()
    problem = logistic(num_records)
    _short_run(problem, num_chains)
    _, peak = memory_in_use()
    return {
        "above_data_mb": (peak - baseline - problem.num_bytes) / 1e6,
        "data_mb": problem.num_bytes / 1e6,
        "baseline_mb": baseline / 1e6,
        "peak_mb": peak / 1e6,
    }


def _short_run(problem: Problem, num_chains: int) -> None:
    dpmcmc.sample(
        problem.model,
        problem.records,
        sampler=dp_hmc(problem, num_leapfrog=2),
        epsilon=EPSILON,
        delta=DELTA,
        num_chains=num_chains,
        num_steps=2,
        init=problem.starts(num_chains),
        progress=False,
    )


def devices(num_records: int, num_chains: int, numbers: list[int], pace: list[float]) -> dict[str, list[float]]:
    """Return the fields of the :class:`Timing` of a gradient, with the records spread over each number of devices."""
    problem = logistic(num_records)
    theta = problem.starts(num_chains)
    contestants = {
        str(number): private_gradient(problem, curator_of(problem, devices=number), theta) for number in numbers
    }
    least, most, seconds = pace
    timings = interleave(contestants, Pace(int(least), int(most), seconds))
    return {name: list(timing) for name, timing in timings.items()}


if __name__ == "__main__":
    measurements: dict[str, Callable[..., dict[str, Any]]] = {"memory": memory, "devices": devices}
    print(json.dumps(measurements[sys.argv[1]](**json.loads(sys.argv[2]))))
