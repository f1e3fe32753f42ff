"""What the benchmark ran on: processor, memory, versions, load. No host name, no user, no path."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

Fact = str | float | None
"""A number or a text about the machine; None if it cannot be found out."""

_PACKAGES = ("dpmcmc", "jax", "jaxlib", "blackjax", "numpy", "opendp")


def describe() -> dict[str, Fact]:
    """Return the machine's description. Call it before measuring, so that the load is that of other programs."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on all systems
    return {
        "cpu": _cpu(),
        "cores": len(affinity(0)) if affinity is not None else os.cpu_count(),
        "memory_gb": _memory_gb(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
        "commit": _commit(),
        "load_average_at_start": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def memory_in_use() -> tuple[int, int]:
    """Return the bytes of this process that are resident now, and the most there have been.

    From ``/proc`` where there is one: the peak that ``getrusage`` tells includes, on Linux, that of the process that
    started this one. Elsewhere both are the peak so far.
    """
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return tuple(1024 * int(lines[name].split()[0]) for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
    return peak, peak


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return _output("sysctl", "-n", "machdep.cpu.brand_string") or platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (AttributeError, OSError, ValueError):
        return None


def _commit() -> str | None:
    """Return the commit that this file belongs to, with + if files were changed; None if it is not in a repository."""
    here = Path(__file__).resolve()
    git = ("git", "-C", str(here.parent))
    if _output(*git, "ls-files", str(here)) is None:
        return None
    commit = _output(*git, "rev-parse", "--short=12", "HEAD")
    return commit and commit + ("+" if _output(*git, "status", "--porcelain") else "")


def _output(*command: str) -> str | None:
    """Return what a command prints; None if it cannot be run or prints nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
