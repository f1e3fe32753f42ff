"""What leaves the curator: releases. Public: they hold noisy sums, never records."""

from __future__ import annotations

from typing import Any, NamedTuple

from dpmcmc.errors import NotPrivateError, QueryError


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


def noised(total: Any, noise: Any) -> Any:
    """Add noise to secret integers, one draw for each: shapes must agree, so that no draw is ever used twice."""
    if total.shape != noise.shape:
        raise QueryError(f"noise of shape {noise.shape} does not fit sums of shape {total.shape}; nothing was released")
    return total + noise
