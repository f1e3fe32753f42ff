"""The settings under which everything in the private room is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Double precision for what runs inside, and none of JAX's switches that report on values.

    ``jax_debug_nans`` raises when some record yields a NaN, which would reveal that there is one; so do NumPy's
    floating-point warnings. Without compilation a model's own Python code would see records. A matrix product of
    integers must not be rounded, whatever precision the user has set.
    """
    with (
        jax.enable_x64(True),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.default_matmul_precision("highest"),
        np.errstate(all="ignore"),
    ):
        yield
