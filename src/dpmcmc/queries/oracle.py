"""The oracle: pure functions that a sampler is handed instead of data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from dpmcmc.queries.paid import PaidDraws
from dpmcmc.queries.release import AnyRelease


class Oracle(NamedTuple):
    """Pure functions, bound to traced records inside compiled code: all that a sampler knows of the data.

    Parameters have shape chains × dimension; noise is what `Curator.pay` returned, and nothing else.

    - ``gradient(theta, noise)``: sum of clipped gradients; noise of the same shape as theta.
    - ``log_ratio(theta, proposal, noise)``: sum of clipped log-likelihood ratios; one number of noise a chain.
    - ``batch_gradient(theta, batch, noise)``: as ``gradient``, over a secret random batch for each chain.
    """

    gradient: Callable[[jax.Array, PaidDraws], AnyRelease]
    log_ratio: Callable[[jax.Array, jax.Array, PaidDraws], AnyRelease]
    batch_gradient: Callable[[jax.Array, Any, PaidDraws], AnyRelease]
