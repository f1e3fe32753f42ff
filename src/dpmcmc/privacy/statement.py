"""The privacy statement: what a run guaranteed, to whom, and how it was accounted for, in a form that can be published.

It holds public numbers only and computes none of them. It never softens: a run that was seeded, or that added no
noise, says "not private" wherever the statement is shown.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import metadata
from typing import Any

from dpmcmc.errors import QueryError

__all__ = ["NOISE_FREE_MODE", "PRIVATE_MODE", "SEEDED_MODE", "PrivacyStatement", "installed_versions"]

PRIVATE_MODE = "private: exact discrete Gaussian noise (OpenDP)"
SEEDED_MODE = "not private: seeded"
NOISE_FREE_MODE = "not private: no noise"

_PACKAGES = ("dpmcmc", "jax", "numpyro", "opendp", "dp-accounting", "numpy")


def installed_versions() -> dict[str, str]:
    """Return the versions of what the guarantee rests on; a package that is not installed is left out.

    Examples
    --------
    >>> "python" in installed_versions()
    True
    """
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    versions["python"] = platform.python_version()
    return versions


@dataclass(frozen=True, kw_only=True)
class PrivacyStatement:
    r"""What was guaranteed for everything that a run released.

    The guarantee, if there is one: for any two tables D and D' that differ in one row (replaced by any other), and any
    set A of outputs,

    .. math:: P(\text{output}(D) \in A) \le e^{ε} P(\text{output}(D') \in A) + δ.

    Parameters
    ----------
    private
        Whether the guarantee holds. Requires ``epsilon``, ``delta`` and a mode that starts with "private".
    mode
        :data:`PRIVATE_MODE`, :data:`SEEDED_MODE` or :data:`NOISE_FREE_MODE`.
    epsilon, delta
        The guarantee for everything released. In a run that is not private: what was accounted for, or None.
    mu
        The Gaussian cost spent; None for the subsampled accountant, or if no noise was added.
    unit_of_privacy, neighboring_relation
        To whom, and against what, the guarantee is given.
    num_records
        Number of rows, which is public under "replace one".
    queries
        Number of answered queries by kind.
    noise_multipliers
        Noise sd / sensitivity by kind of query.
    accountant
        How the costs were added up.
    versions
        Versions of the software, by default those installed.

    Examples
    --------
    >>> statement = PrivacyStatement(
    ...     private=False, mode=SEEDED_MODE, epsilon=1.0, delta=1e-6, num_records=1000, queries={"gradient": 20},
    ...     noise_multipliers={"gradient": 12.5}, accountant="Gaussian composition",
    ... )
    >>> print(str(statement).splitlines()[0])
    NOT PRIVATE (not private: seeded)
    >>> PrivacyStatement.from_json(statement.to_json()) == statement
    True
    """

    private: bool
    mode: str
    epsilon: float | None
    delta: float | None
    mu: float | None = None
    unit_of_privacy: str = "one row"
    neighboring_relation: str = "replace one"
    num_records: int
    queries: dict[str, int] = field(default_factory=dict)
    noise_multipliers: dict[str, float] = field(default_factory=dict)
    accountant: str
    versions: dict[str, str] = field(default_factory=installed_versions)

    def __post_init__(self) -> None:
        _check_mode(self.private, self.mode)
        for name in ("unit_of_privacy", "neighboring_relation", "accountant"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise QueryError(f"{name} is {getattr(self, name)!r}; give a short text")
        normalised: dict[str, Any] = {
            "private": bool(self.private),
            "epsilon": _number("epsilon", self.epsilon, above=0.0),
            "delta": _number("delta", self.delta, above=0.0, below=1.0),
            "mu": _number("mu", self.mu, least=0.0),
            "num_records": _count("num_records", self.num_records, least=1),
            "queries": {kind: _count(f"queries[{kind!r}]", number) for kind, number in _items("queries", self.queries)},
            "noise_multipliers": {
                kind: _number(f"noise_multipliers[{kind!r}]", value, least=0.0)
                for kind, value in _items("noise_multipliers", self.noise_multipliers)
            },
            "versions": {package: str(version) for package, version in _items("versions", self.versions)},
        }
        if None in normalised["noise_multipliers"].values():
            raise QueryError("noise_multipliers holds None; leave kinds of query without noise out, or give 0.0")
        if self.private and (self.epsilon is None or self.delta is None):
            raise QueryError(
                f"a private run must state epsilon and delta, got epsilon={self.epsilon!r} and delta={self.delta!r}; "
                "if nothing was guaranteed, set private=False and a mode that starts with 'not private'"
            )
        if self.private and 0.0 in normalised["noise_multipliers"].values():
            raise QueryError(
                "a private run cannot have a noise multiplier of 0; set private=False if no noise was added"
            )
        for name, value in normalised.items():
            object.__setattr__(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain Python values; changing them does not change the statement."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}

    def to_json(self) -> str:
        """Return the statement as one JSON object, from which :meth:`from_json` restores it exactly."""
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> PrivacyStatement:
        """Restore a statement that :meth:`to_json` wrote; anything else is refused."""
        try:
            values = json.loads(text)
        except (TypeError, ValueError):
            raise QueryError("the text is not JSON; give what PrivacyStatement.to_json returned") from None
        names = {item.name for item in fields(cls)}
        if not isinstance(values, dict) or set(values) != names:
            raise QueryError(
                f"the JSON is not a privacy statement, which has exactly the fields {sorted(names)}; "
                "give what PrivacyStatement.to_json returned"
            )
        return cls(**values)

    def __str__(self) -> str:
        lines = [f"{'PRIVATE' if self.private else 'NOT PRIVATE'} ({self.mode})", self._guarantee()]
        cost = "" if self.mu is None else f"; Gaussian cost spent: μ = {self.mu!r}"
        lines.append(f"Accountant: {self.accountant}{cost}")
        kinds = list(dict.fromkeys([*self.queries, *self.noise_multipliers]))
        lines.append("Queries: " + ("; ".join(self._query_line(kind) for kind in kinds) if kinds else "none"))
        lines.append("Versions: " + ", ".join(f"{package} {version}" for package, version in self.versions.items()))
        return "\n".join(lines)

    def _guarantee(self) -> str:
        # repr, not rounded: a rounded ε could state more than was guaranteed.
        numbers = f"ε = {self.epsilon!r}, δ = {self.delta!r}"
        if self.private:
            return (
                f"Everything released together is (ε, δ)-differentially private with {numbers}, for the unit of "
                f"privacy: {self.unit_of_privacy}, of {self.num_records}; neighbouring relation: "
                f"{self.neighboring_relation}."
            )
        reason = {
            SEEDED_MODE: "the noise came from a seed, and who knows the seed can take it off again",
            NOISE_FREE_MODE: "no noise was added",
        }.get(self.mode, self.mode)
        accounted = "" if self.epsilon is None else f" The budget accounted for ({numbers}) is not a guarantee."
        return f"Nothing is guaranteed to anyone in the {self.num_records} rows: {reason}.{accounted}"

    def _query_line(self, kind: str) -> str:
        multiplier = self.noise_multipliers.get(kind)
        noise = "" if multiplier is None else f" (noise multiplier {multiplier:.6g})"
        return f"{self.queries.get(kind, 0)} {kind}{noise}"


def _check_mode(private: bool, mode: str) -> None:
    prefix = "private" if private else "not private"
    if not isinstance(mode, str) or not mode.startswith(prefix):
        raise QueryError(f"mode is {mode!r} with private={private}; it must start with {prefix!r}")


def _number(
    name: str, value: float | None, *, above: float = -math.inf, least: float = -math.inf, below: float = math.inf
) -> float | None:
    """Return ``value`` as a float if it is finite and in range; None stays None."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or not above < number < below or number < least:
        limit = f"above {above}" if above > -math.inf else f"at least {least}"
        raise QueryError(
            f"{name} is {value!r}; give a finite number {limit}" + (f" and below {below}" if below < math.inf else "")
        )
    return number


def _count(name: str, value: int, *, least: int = 0) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise QueryError(f"{name} is {value!r}; give a whole number of at least {least}") from None
    if isinstance(value, bool) or number != value or number < least:
        raise QueryError(f"{name} is {value!r}; give a whole number of at least {least}")
    return number


def _items(name: str, value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise QueryError(f"{name} is a {type(value).__name__}; give a dict whose keys are texts")
    return list(value.items())
