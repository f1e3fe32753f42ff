"""By what a data set is recognised: a fingerprint of each column, under a key that stays with who compares them.

All records go into a fingerprint: with the key one could try guesses of a whole column. So they go to a ledger, which is
kept as the data are, and nowhere else.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcmc.entries import number_of, plain
from dpmcmc.sources import Entries, code_entries

__all__ = ["digests", "keyed_marks"]


def digests(pieces: Iterable[Mapping[str, Entries]]) -> dict[str, bytes]:
    """Return a digest of each column, of entries in order however they are cut into pieces. Secret, without a key."""
    hashes: dict[str, Any] = {}
    for piece in pieces:
        for name, entries in piece.items():
            if isinstance(entries, np.ndarray) and entries.dtype.kind in "biuf":
                tokens = _tokens(entries)
            else:
                tokens = code_entries(entries, _tokens)
            own = hashes.setdefault(name, hashlib.sha256(str(tokens.shape[1:]).encode()))
            own.update(np.ascontiguousarray(tokens).view(np.uint8).tobytes())
    return {name: own.digest() for name, own in hashes.items()}


def keyed_marks(key: bytes, found: Mapping[str, bytes]) -> dict[str, str]:
    """Return names and digests of columns under a key."""

    def mark(*parts: bytes) -> str:
        return hmac.new(key, b"\0".join(parts), hashlib.sha256).hexdigest()

    return {mark(b"name", name.encode()): mark(b"column", name.encode(), own) for name, own in found.items()}


def _tokens(entries: NDArray[Any]) -> NDArray[np.float64]:
    """Return a number for each entry: itself, or eight bytes of a hash where it is none. Never an error."""
    if entries.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            numbers = entries.astype(np.float64) + 0.0  # no −0.0
        numbers[np.isnan(numbers)] = np.nan  # of all NaNs, one
        return numbers
    return np.array([_token(entry) for entry in entries.tolist()], np.float64)


def _token(entry: Any) -> float:
    value = plain(entry)
    number = number_of(value)
    if not isinstance(value, str) or number == number:
        return number + 0.0
    if not value:
        return np.nan  # as what is missing
    return float(np.frombuffer(hashlib.sha256(value.encode("utf-8", "replace")).digest()[:8], np.int64)[0])
