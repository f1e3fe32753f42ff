"""What importing the package costs, beside importing JAX: ``python -m benchmarks.imports``, printed as JSON.

Every import has a fresh process, and the programs take turns. What counts is the processor time of the process (user
and system), since a busy machine stretches the time on the clock. One round before the first fills the caches of the
disk and compiles to byte code; it is not counted.
"""

import json
import os
import subprocess
import sys
import time

from benchmarks.timing import summarise

PROGRAMS = {
    "python": "pass",
    "jax": "import jax",
    "dpmcmc": "import dpmcmc",
    "dpmcmc_used": "import dpmcmc; dpmcmc.sample, dpmcmc.regression, dpmcmc.Posterior",
}


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Return the seconds of each program, as medians over the rounds, and how they compare with JAX's.

    Returns
    -------
    dict
        For each program ``processor`` (seconds of its process), ``clock`` (seconds until it ended), and ``beyond_jax``
        and ``over_jax``: the difference and the ratio of ``processor`` to that of ``import jax``.
    """
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
    for _ in range(rounds + 1):
        for name, program in PROGRAMS.items():
            spent[name].append(_seconds(program))
    figures = {
        name: {
            "processor": summarise([seconds for seconds, _ in counted[1:]]).median,
            "clock": summarise([seconds for _, seconds in counted[1:]]).median,
        }
        for name, counted in spent.items()
    }
    jax = figures["jax"]["processor"]
    for figure in figures.values():
        figure["beyond_jax"] = figure["processor"] - jax
        figure["over_jax"] = figure["processor"] / jax
    return {name: {key: round(value, 3) for key, value in figure.items()} for name, figure in figures.items()}


def _seconds(program: str) -> tuple[float, float]:
    """Return the seconds of processor and clock that a program of its own process takes."""
    start, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-c", program], check=True)
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return processor, time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 9), indent=2))
