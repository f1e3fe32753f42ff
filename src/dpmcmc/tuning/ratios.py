"""How tightly log-ratios may be clipped along a surrogate, from noised counts of records: the tail-count rule."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dpmcmc.checks import positive
from dpmcmc.errors import QueryError
from dpmcmc.queries import AnyRelease, ClipCount
from dpmcmc.surrogate import Surrogate
from dpmcmc.tuning.fit import Frame, polynomials
from dpmcmc.tuning.questions import multiplier_of

Array = NDArray[np.float64]

# More than this share of clipped log-ratios moves the posterior of skewed data; fewer records than so many sds of a
# count's noise cannot be told from none.
CLIPPED_SHARE, NOISE_SDS = 2e-4, 3.0
# So large a share has shifted a posterior of skewed data by several sds: no result to be trusted as it stands.
LARGEST_SHARE = 0.01
# κ is searched among the powers of 2 with these exponents. (1 is the root mean square of |r|√n/‖Δψ‖ if ψ fits, so that
# no κ below it is of any use.)
EXPONENTS = (0.0, 8.0)
# Counts of a search, all of the same price: an imprecise one would let through what later ones cannot take back.
_NUM_COUNTS = 6
# Of what a later pair may cost, this goes to one count at the κ found so far; the rest is for a search above it.
_CHECK_SHARE = 0.5


class AskCount(Protocol):
    """Answers a count of log-ratios between two parameter vectors, which it charges first."""

    def __call__(self, query: ClipCount, theta: Array, proposal: Array) -> AnyRelease:
        """Return the release."""
        ...


class RatioBound(NamedTuple):
    """κ, and what share of the records is clipped by it at most (about), as far as the noise lets see."""

    value: float
    clipped_share: float


def ratio_bound(
    ask_count: AskCount, surrogate: Surrogate, theta: Any, proposals: Any, num_records: int, mu: float
) -> RatioBound:
    """Find κ, privately: few records' |ln p(x|θ') − ln p(x|θ)| exceed κ‖ψ(θ') − ψ(θ)‖/√n.

    At most about 0.02 % of n, or three noise sds of a count if that is more, for every pair: the first pair's κ is
    bisected by noised counts; each other is counted once at the κ found so far, and only if too many records lie above
    it, bisected upwards from there. What a pair leaves of its share is for those after it.

    Parameters
    ----------
    ask_count
        Charges and answers: ``lambda query, theta, proposal: curator.ask(query, theta, proposal)``.
    surrogate
        ψ.
    theta, proposals
        Some moves as the sampler makes them (about six), each pairs × parameters. Pairs that have not moved are left
        out.
    num_records
        n.
    mu
        Price of all counts together; at most this is spent.

    Returns
    -------
    RatioBound
        With few records or a low price its ``clipped_share`` is more than the harmless 0.02 %: skewed data may then
        shift the posterior, which no acceptance rate shows.

    Notes
    -----
    A search ends at the upper end of its last interval. Where even κ near 2⁸ clips more than is allowed,
    ``clipped_share`` is infinite: the surrogate is nothing like the likelihood.
    """
    mu = positive("mu", mu)
    pairs = _pairs(surrogate, theta, proposals)
    left, exponent, clipped = mu, EXPONENTS[0], 0.0

    def few_above(pair: _Pair, exponent: float, price: float) -> float | None:
        """Count once; return the share of the records that may lie above, or None if more do."""
        nonlocal left
        left -= price
        query = ClipCount(2.0**exponent * pair.size / math.sqrt(num_records), multiplier_of(price), of="log_ratio")
        count = float(ask_count(query, pair.theta, pair.proposal).value)
        allowed = max(CLIPPED_SHARE * num_records, NOISE_SDS * query.noise_sd)
        return None if count > allowed else allowed / num_records

    for place, pair in enumerate(pairs):
        price = left / (len(pairs) - place) * (1.0 - 1e-9)  # (so that no rounding makes it more than there is)
        if place:
            share = few_above(pair, exponent, price * _CHECK_SHARE)
            if share is not None:
                clipped = max(clipped, share)
                continue
            price *= 1.0 - _CHECK_SHARE
        low, high, found = exponent, EXPONENTS[1], math.inf
        for _ in range(_NUM_COUNTS):
            middle = (low + high) / 2.0
            share = few_above(pair, middle, price / _NUM_COUNTS)
            if share is None:
                low = middle
            else:
                high, found = middle, share
        exponent, clipped = high, max(clipped, found)
    return RatioBound(2.0**exponent, clipped)


class _Pair(NamedTuple):
    theta: Array
    proposal: Array
    size: float


def _pairs(surrogate: Surrogate, theta: Any, proposals: Any) -> list[_Pair]:
    theta, proposals = np.asarray(theta, np.float64), np.asarray(proposals, np.float64)
    shape = theta.shape
    if theta.ndim != 2 or shape != proposals.shape or shape[1] != surrogate.form.dimension:
        raise QueryError(
            f"theta has shape {shape}, proposals {proposals.shape}; give both as pairs × {surrogate.form.dimension}"
        )
    # In NumPy, where nothing has to be compiled.
    frame, weights = Frame(surrogate.center, surrogate.matrix), surrogate.weights
    start, end = (polynomials(surrogate.form, frame.to_u(ends))[0] @ weights.T for ends in (theta, proposals))
    sizes = np.linalg.norm(end - start, axis=1)
    pairs = [_Pair(*pair) for pair in zip(theta, proposals, sizes.tolist(), strict=True) if 0.0 < pair[2] < math.inf]
    if not pairs:
        raise QueryError("none of the pairs has moved along the surrogate; give longer moves")
    return pairs
