"""The benchmark: a private gradient and a private draw against plain JAX, BlackJAX and the machine's floor.

All contestants run in one process, interleaved, on synthetic records; figures are ratios of medians, because the
machine is shared. It looks inside the curator to time it and releases nothing: it is not for real data.
"""

from dpmcmc.benchmarks.measure import FAST, FULL, MissingPeerError, Results, Sizes, require_peer, required_keys, run
from dpmcmc.benchmarks.report import as_json, as_text, machine_text, met_text, rows, write

__all__ = [
    "FAST",
    "FULL",
    "MissingPeerError",
    "Results",
    "Sizes",
    "as_json",
    "as_text",
    "machine_text",
    "met_text",
    "require_peer",
    "required_keys",
    "rows",
    "run",
    "write",
]
