"""How far a private result is to be trusted, from released quantities alone, in numbers and in sentences.

A sampler that fits a posterior from noisy sums knows what the noise did: it says here how much of each interval is
noise, which directions only the prior holds, and what speaks against the result. It never sees a record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmcmc.errors import ResultError
from dpmcmc.privacy import PrivacyStatement, gaussian_epsilon, gaussian_mu

__all__ = ["Quality", "as_percent", "entry_label", "share_of_noise"]

SMALL_NOISE_SHARE = 0.1
"""Up to this share of an interval nobody needs advice about the noise."""
INDEPENDENT_NOTE = (
    "independent of each other, or nearly so where they are a surrogate's: R̂ and ESS are those of independent draws, "
    "and say nothing about how good the fit is"
)
_ROUNDING = 1e-9


def share_of_noise(sd_without_noise: ArrayLike, sd_reported: ArrayLike) -> NDArray[np.float64]:
    """Return 1 − sd_without_noise/sd_reported, from 0 to 1; 0 for an entry that does not vary at all.

    Examples
    --------
    >>> share_of_noise([1.0, 1.0, 0.0], [2.5, 1.0, 0.0])
    array([0.6, 0. , 0. ])
    """
    without, reported = np.asarray(sd_without_noise, np.float64), np.asarray(sd_reported, np.float64)
    varies = reported > 0.0
    return np.where(varies, np.clip(1.0 - without / np.where(varies, reported, 1.0), 0.0, 1.0), 0.0)


def entry_label(
    name: str, index: Sequence[int], dims: Mapping[str, Sequence[str]], coords: Mapping[str, Sequence[Any]]
) -> str:
    """Return the name of one entry of a parameter as ArviZ's tables have it: "beta[age]"."""
    own = [
        coords[dimension][place] if dimension in coords else place
        for dimension, place in zip(dims.get(name, ("",) * len(index)), index, strict=True)
    ]
    return f"{name}[{', '.join(map(str, own))}]" if own else name


def as_percent(share: float) -> str:
    """Write a share of a whole as per cent; what is not nothing, or not all, is not rounded to it.

    Examples
    --------
    >>> as_percent(0.604), as_percent(0.0), as_percent(0.0002), as_percent(0.9999)
    ('60 %', '0 %', 'under 1 %', 'over 99 %')
    """
    if 0.0 < share < 0.005:
        return "under 1 %"
    return "over 99 %" if 0.995 <= share < 1.0 else f"{100.0 * share:.0f} %"


@dataclass(frozen=True, kw_only=True, eq=False)
class Quality:
    r"""What is known about how good a result is.

    Parameters
    ----------
    method
        What fitted the posterior, "DP-Laplace" for one.
    converged
        Whether it found the posterior's centre. If not, ``reasons`` must say so.
    rounds
        Adaptive rounds of questions that it took.
    reasons
        Why the result should not be trusted as it stands: whole sentences, each with the remedy. Each of them is one of
        the posterior's warnings.
    notes
        What is worth knowing and speaks against nothing.
    noise_share
        By parameter, in the parameter's own shape: the share of the reported standard deviation that is privacy noise,
        1 − sd without noise / sd reported (see `share_of_noise`). At 0.6, the interval would be 40 % as wide without
        noise.
    prior_only
        Directions that only the prior holds, as "coefficients[x3]" or "0.9·coefficients[x3] − 0.4·intercept".
    clipped_share, clipped_share_sd
        The private estimate of the fraction of records that were clipped in the final sums, and the sd of its noise;
        None if there is none. The estimate may be below 0, see `clipped`.
    independent_draws
        Whether the draws are independent of each other, or nearly so, rather than those of chains that asked for every
        step. (Draws from a surrogate come from many short chains on it, in each of which the weights are the same; a
        few of them come twice.)
    dims, coords
        Names and labels as in `Posterior`, which gives them to its quality: by them entries are called in texts. They
        are not part of :meth:`to_dict`, as the posterior has them.

    Raises
    ------
    ResultError
        A field is not what it should be.

    Examples
    --------
    >>> quality = Quality(
    ...     method="DP-Laplace", converged=True, rounds=7, noise_share={"beta": [0.1, 0.6]}, independent_draws=True
    ... )
    >>> quality.flagged
    False
    >>> print(quality.advice(epsilon=1.0, delta=1e-6, num_records=10_000))  # doctest: +NORMALIZE_WHITESPACE
    60 % of the interval of beta[1] is noise: without it, it would be 40 % as wide. To halve the noise relative to the
    posterior's own sd takes 4 times the records (40,000) or ε = 2.12; its share would then be 34 %. (Twice the records
    halve the noise itself, but narrow the posterior too.)
    """

    method: str
    converged: bool
    rounds: int
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    noise_share: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    prior_only: tuple[str, ...] = ()
    clipped_share: float | None = None
    clipped_share_sd: float | None = None
    independent_draws: bool
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)
    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.method, str) or not self.method:
            raise ResultError(f"quality has method = {self.method!r}; give a name, such as 'DP-Laplace'")
        for name in ("converged", "independent_draws"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ResultError(f"quality has {name} = {getattr(self, name)!r}; give True or False")
        checked: dict[str, Any] = {
            "converged": bool(self.converged),
            "independent_draws": bool(self.independent_draws),
            "rounds": _rounds(self.rounds),
            **{name: _texts(name, getattr(self, name)) for name in ("reasons", "notes", "prior_only")},
            "noise_share": _shares(self.noise_share),
            "clipped_share": _finite("clipped_share", self.clipped_share, -math.inf),
            "clipped_share_sd": _finite("clipped_share_sd", self.clipped_share_sd, 0.0),
        }
        if (self.clipped_share is None) != (self.clipped_share_sd is None):
            raise ResultError(
                f"quality has clipped_share = {self.clipped_share!r} and clipped_share_sd = {self.clipped_share_sd!r}; "
                "give both or neither"
            )
        if not checked["converged"] and not checked["reasons"]:
            raise ResultError("quality says that the fit has not converged, but gives no reasons; name it there")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def flagged(self) -> bool:
        """Whether the result should not be trusted as it stands."""
        return bool(self.reasons)

    @property
    def clipped(self) -> float | None:
        """The estimated fraction of clipped records, from 0 to 1; None if there is no estimate."""
        return None if self.clipped_share is None else min(max(self.clipped_share, 0.0), 1.0)

    def worst_noise(self) -> tuple[str, float] | None:
        """Return the entry whose interval has the largest share of noise, and that share; None if none is known."""
        largest = [(name, shares) for name, shares in self.noise_share.items() if shares.size]
        if not largest:
            return None
        name, shares = max(largest, key=lambda item: float(item[1].max()))
        index = [int(place) for place in np.unravel_index(int(shares.argmax()), shares.shape)]
        return entry_label(name, index, self.dims, self.coords), float(shares.max())

    def advice(self, epsilon: float, delta: float, num_records: int) -> str:
        r"""Say how much of the worst interval is privacy noise, and what would halve that noise, as text after a colon.

        A posterior sd is proportional to :math:`1/\sqrt n`. The noise of a sum is the same for any n, and the
        curvature that it is divided by grows with n: the noise on a parameter is proportional to
        :math:`1/(n\sqrt μ)`, that is :math:`s \propto 1/\sqrt{nμ}` in posterior sds. Of the reported
        sd :math:`\sqrt{1+s^2}` it is the share :math:`1 - 1/\sqrt{1+s^2}`. So s is halved by 4n or by 4μ.

        Parameters
        ----------
        epsilon, delta, num_records
            Of the run.
        """
        worst = self.worst_noise()
        if worst is None:
            return "not known"
        label, share = worst
        if share <= SMALL_NOISE_SHARE:
            return f"{_at_most(share)} of an interval ({label}): a larger ε would gain little"
        square = math.inf if share == 1.0 else 1.0 / (1.0 - share) ** 2 - 1.0
        afterwards = 1.0 - 1.0 / math.sqrt(1.0 + square / 4.0)
        larger = gaussian_epsilon(4.0 * gaussian_mu(epsilon, delta), delta)
        return (
            f"{as_percent(share)} of the interval of {label} is noise: without it, it would be "
            f"{as_percent(1.0 - share)} as wide. To halve the noise relative to the posterior's own sd takes 4 times "
            f"the records ({4 * num_records:,}) or ε = {larger:.3g}; its share would then be {as_percent(afterwards)}. "
            "(Twice the records halve the noise itself, but narrow the posterior too.)"
        )

    def rows(self, privacy: PrivacyStatement | None = None) -> list[tuple[str, str]]:
        """Return all but the reasons as pairs of label and text.

        Parameters
        ----------
        privacy
            What was spent; with it the advice says what would halve the noise.
        """
        found = "converged" if self.converged else "did not converge"
        flag = f"flagged ({len(self.reasons)})" if self.flagged else "not flagged"
        rows = [("Fit", f"{self.method} {found} in {_counted(self.rounds, 'round')}; {flag}")]
        worst = self.worst_noise()
        if privacy is not None and privacy.epsilon is not None and privacy.delta is not None:
            run = (privacy.epsilon, privacy.delta, privacy.num_records)
            rows.append(("Privacy noise", self.advice(*run)))
        elif worst is not None:
            rows.append(("Privacy noise", f"{_at_most(worst[1])} of an interval ({worst[0]})"))
        if self.prior_only:
            rows.append(("Held by the prior only", "; ".join(self.prior_only)))
        if self.clipped is not None and self.clipped_share_sd is not None:
            shares = f"about {100.0 * self.clipped:.2g} % (± {100.0 * self.clipped_share_sd:.1g} %)"
            rows.append(("Clipped records", f"{shares} in the final sums"))
        rows += [("Note", note) for note in self.notes]
        return [*rows, ("Draws", INDEPENDENT_NOTE)] if self.independent_draws else rows

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        values = {name: getattr(self, name) for name in _stored_names()}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return plain | {"noise_share": {name: shares.tolist() for name, shares in self.noise_share.items()}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Quality:
        """Restore what :meth:`to_dict` returned; anything else is refused."""
        names = _stored_names()
        if not isinstance(values, Mapping) or set(values) != set(names):
            raise ResultError(f"this is not a quality, which has exactly the fields {sorted(names)}")
        return cls(**values)

    def to_json(self) -> str:
        """Return all of it as one JSON object."""
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False)

    def __str__(self) -> str:
        rows = [*self.rows(), *(("Reason", reason) for reason in self.reasons)]
        return "\n".join(f"{label}: {text}" for label, text in rows)

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, Quality) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """Let processes hand it on: a read-only mapping cannot be sent as it is."""
        return _restored, (self.to_dict(), dict(self.dims), dict(self.coords))


def _at_most(share: float) -> str:
    text = as_percent(share)
    return text if text.startswith("under") else f"at most {text}"


def _stored_names() -> list[str]:
    return [item.name for item in fields(Quality) if item.name not in ("dims", "coords")]


def _restored(values: Mapping[str, Any], dims: dict[str, Any], coords: dict[str, Any]) -> Quality:
    return replace(Quality.from_dict(values), dims=dims, coords=coords)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _rounds(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ResultError(f"quality has rounds = {value!r}; give a whole number of at least 0")
    return int(value)


def _texts(name: str, values: Any) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(v, str) and v for v in values):
        raise ResultError(f"quality has {name} = {values!r}; give a tuple of texts")
    return tuple(values)


def _finite(name: str, value: Any, least: float) -> float | None:
    if value is None:
        return None
    known = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    number = float(value) if known else math.nan
    if not math.isfinite(number) or number < least:
        raise ResultError(f"quality has {name} = {value!r}; give a finite number of at least {least}, or None")
    return number


def _shares(values: Any) -> Mapping[str, NDArray[np.float64]]:
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise ResultError("quality has a noise_share that is no mapping by parameter; give one")
    shares = {}
    for name, value in values.items():
        try:
            array = np.array(value, np.float64)
        except (TypeError, ValueError):
            raise ResultError(
                f"noise_share[{name!r}] is no array of numbers; give one of the parameter's shape"
            ) from None
        if not ((array >= -_ROUNDING) & (array <= 1.0 + _ROUNDING)).all():
            raise ResultError(
                f"noise_share[{name!r}] has values outside of [0, 1]; give 1 − sd without noise / sd reported"
            )
        array = np.asarray(np.clip(array, 0.0, 1.0))
        array.flags.writeable = False
        shares[name] = array
    return MappingProxyType(shares)
