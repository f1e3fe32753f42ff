"""By what a data set is recognised: a fingerprint of each column, under a key that stays with who compares them.

All records go into a fingerprint: with the key one could try guesses of a whole column. So they go to a ledger, which
is kept as the data are, and nowhere else.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcmc.entries import number_of, plain
from dpmcmc.sources import Entries, code_entries

__all__ = ["digests", "keyed_marks"]

_ROWS = 65536
_MISSING = ("", "nan", "+nan", "-nan")


def digests(pieces: Iterable[Mapping[str, Entries]]) -> dict[str, bytes]:
    """Return a digest of each column, of entries in order however they are cut into pieces. Secret, without a key.

    An entry counts as the double-precision number that it is or reads as, and else as its text: 7 is "7" and 7.0, True
    and "true" are 1, −0.0 is 0, whole numbers beyond 2⁵³ are rounded (two that are neighbours may be alike), and a
    number that was stored in single precision is not the decimal that it was made of. None, NaN, "nan", empty text and
    what is neither text nor number (a date) are all alike.
    """
    hashes: dict[str, Any] = {}
    for piece in pieces:
        for name, entries in piece.items():
            for tokens in _tokens_of(entries):
                own = hashes.setdefault(name, hashlib.sha256(str(tokens.shape[1:]).encode()))
                own.update(tokens.astype("<f8").tobytes())
    return {name: own.digest() for name, own in hashes.items()}


def keyed_marks(key: bytes, found: Mapping[str, bytes]) -> dict[str, str]:
    """Return names and digests of columns under a key."""

    def mark(*parts: bytes) -> str:
        return hmac.new(key, b"\0".join(parts), hashlib.sha256).hexdigest()

    names = {name: name.encode("utf-8", "surrogatepass") for name in found}
    return {mark(b"name", names[name]): mark(b"column", names[name], own) for name, own in found.items()}


def _tokens_of(entries: Entries) -> Iterator[NDArray[np.float64]]:
    if not isinstance(entries, np.ndarray):
        yield code_entries(entries, _tokens)
        return
    for start in range(0, len(entries), _ROWS):  # not a second copy of all of them
        yield _tokens(entries[start : start + _ROWS])


def _tokens(entries: NDArray[Any]) -> NDArray[np.float64]:
    """Return a number for each entry: itself, or eight bytes of a hash where it is none. Never an error."""
    if entries.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            numbers = entries.astype(np.float64) + 0.0  # no −0.0
    else:
        numbers = np.array([_token(entry) for entry in entries.tolist()], np.float64) + 0.0
    numbers[np.isnan(numbers)] = np.nan  # of all NaNs, one
    return numbers


def _token(entry: Any) -> float:
    value = plain(entry)
    number = number_of(value)
    if not isinstance(value, str) or number == number or value.lower() in _MISSING:
        return number
    return float(np.frombuffer(hashlib.sha256(value.encode("utf-8", "replace")).digest()[:8], np.int64)[0])
