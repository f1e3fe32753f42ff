"""What one entry of a table says, whoever read it: "7" of a CSV file, 7 of Parquet and 7.0 of pandas are the same.

Every function takes one entry, returns for all of them and never raises: an error would tell of a value.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np

__all__ = ["identity_of", "number_of", "number_of_text", "plain", "word_of"]

_WORDS = {"true": 1.0, "false": 0.0}


def plain(entry: Any) -> str | bool | int | float | None:
    """Return an entry as plain Python; None for what is missing or is neither text nor number."""
    try:
        if isinstance(entry, str):
            return str(entry).strip()
        if isinstance(entry, bytes):
            return entry.decode("utf-8", "replace").strip()
        if isinstance(entry, bool | np.bool_):
            return bool(entry)
        if isinstance(entry, int | np.integer) and not isinstance(entry, np.timedelta64):
            return int(entry)
        if isinstance(entry, float | np.floating | Decimal):
            number = float(entry)
            return None if math.isnan(number) else number
    except Exception:  # a signalling NaN, for example
        return None
    return None


def number_of(value: str | bool | int | float | None) -> float:
    """Return the number that a plain entry is or reads as; NaN if it is none."""
    if isinstance(value, str):
        return number_of_text(value)
    if value is None:
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a whole number beyond the largest float
        return math.inf if value > 0 else -math.inf


def number_of_text(text: str) -> float:
    """Return the number that a text reads as (the words true and false are 1 and 0); NaN if it is none."""
    text = text.strip()
    word = _WORDS.get(text.lower())
    if word is not None:
        return word
    try:
        return math.nan if "_" in text else float(text)  # Python takes 1_000 for a number
    except ValueError:
        return math.nan


def word_of(value: Any) -> str | None:
    """Return "true" or "false" if a plain entry says that, else None."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.lower() in _WORDS:
        return value.lower()
    return None


def identity_of(value: str | bool | int | float | None) -> str:
    """Return the text by which a plain entry of an identifier is told from others; "" if it is missing.

    Readers make 7 and 7.0 of one another, so that both are "7".
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    try:
        text = "" if value is None else str(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits in decimals
        text = hex(value)  # type: ignore[arg-type]
    whole, point, zeros = text.partition(".")
    return whole if point and whole.removeprefix("-").isdigit() and not zeros.strip("0") else text
