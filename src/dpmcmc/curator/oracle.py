"""What leaves the curator: releases, and the oracle that a sampler is handed instead of data.

Samplers import the *types* of this module only. Everything here is public: it holds noisy sums, never records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from dpmcmc.errors import NotPrivateError


class Release(NamedTuple):
    """A private answer: a noised sum, already paid for. May be published.

    Attributes
    ----------
    value
        The noisy answer, in natural units.
    noise_sd
        Standard deviation of the noise in the same units.
    mu
        What the answer cost, for each chain.
    """

    value: Any
    noise_sd: Any
    mu: Any


class NotPrivateRelease(NamedTuple):
    """An answer with no noise, or with seeded noise. Not private; the fields of :class:`Release`, and one more.

    Attributes
    ----------
    clipped
        Fraction of the records whose log-ratio was clipped, for each chain: research only, filled in by the
        noise-free oracle alone. :class:`Release` has no such field and never may.
    """

    value: Any
    noise_sd: Any
    mu: Any
    clipped: Any = None


AnyRelease = Release | NotPrivateRelease


def require_private(release: object) -> Release:
    """Return ``release`` if it is private, else raise: what writes results for publication calls this."""
    if type(release) is not Release:
        raise NotPrivateError(
            f"a {type(release).__name__} is not a private release and cannot be written out as one; "
            "run with exact noise (no seed) to get a Release"
        )
    return release


class Quantile(NamedTuple):
    """Answer to a NormQuantile: the estimate, the noisy histogram that it was read from, and the grid."""

    estimate: Any
    histogram: Any
    edges: Any


class Moments(NamedTuple):
    """Answer to a ScoreMoments query: noisy score sum and noisy centred second-moment matrix."""

    score_sum: Any
    second_moment: Any


class Oracle(NamedTuple):
    """Pure functions, bound to traced records inside compiled code: all that a sampler knows of the data.

    Parameters have shape chains × dimension, noise is integers drawn by the host.

    - ``gradient(theta, noise)``: sum of clipped gradients; noise of the same shape as theta.
    - ``log_ratio(theta, proposal, noise)``: sum of clipped log-likelihood ratios; one number of noise a chain.
    - ``batch_gradient(theta, batch, noise)``: as ``gradient``, over a secret random batch for each chain.
    """

    gradient: Callable[[jax.Array, jax.Array], AnyRelease]
    log_ratio: Callable[[jax.Array, jax.Array, jax.Array], AnyRelease]
    batch_gradient: Callable[[jax.Array, Any, jax.Array], AnyRelease]
