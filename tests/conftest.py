"""Shared by all tests: what is compiled once in a test session is not compiled again by another test or process."""

import os
import tempfile
from pathlib import Path

# Read by JAX when it starts, and inherited by the processes that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "dpmcmc-tests-jax-cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
