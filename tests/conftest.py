"""Shared by all tests: what is compiled once in a test session is not compiled again by another test or process."""

import os
import tempfile
from pathlib import Path

# Read by JAX when it starts, and inherited by the processes that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "dpmcmc-tests-jax-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

# Left out where there are tests but no repository around them (`make test-wheel`); beside each a folder or file of the
# repository that it is about. All else must run with an installed package alone.
REPOSITORY = Path(__file__).parents[1]
ABOUT_THE_REPOSITORY = {
    "studies": "studies",
    "benchmarks": "benchmarks",
    "docs": "docs",
    "trust": "trust",
    "test_examples.py": "examples",
    "test_readme.py": "README.md",
    "test_release.py": "pyproject.toml",
}
_LEFT_OUT = [] if (REPOSITORY / "src").is_dir() else list(ABOUT_THE_REPOSITORY)
collect_ignore = _LEFT_OUT


def pytest_terminal_summary(terminalreporter):
    """Say what was left out."""
    here = Path(__file__).parent
    all_files, left = set(here.rglob("test_*.py")), set()
    for name in _LEFT_OUT:
        left |= set((here / name).rglob("test_*.py")) or {here / name}
    if left:
        what = ", ".join(_LEFT_OUT)
        terminalreporter.write_line(
            f"{len(left)} of {len(all_files)} test files left out, which are about the repository's own folders: {what}"
        )
