"""The attacker: knows model, code, both data sets, and every question and answer. Only not which data set it was.

For each answer he has the likelihood ratio of both data sets, which is the best that anyone can do: answers are sums
plus Gaussian noise, and he computes both sums without noise. (Where the stated sd is not that of the noise, or a sum is
not bounded as it should be, his guesses are better than the package claims; that is what the audit looks for.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from dpmcmc.curator import Curator
from dpmcmc.curator.passes import Binding
from dpmcmc.models import Model
from dpmcmc.queries import (
    Affine,
    BatchGradient,
    CoordinateHistogram,
    Gradient,
    LogRatio,
    NormQuantile,
    Oracle,
    Query,
    ScoreMoments,
)
from dpmcmc.queries.curvature import SymmetricMatrix

Array = NDArray[np.float64]


class Answered(NamedTuple):
    """A question and its answer, for all chains.

    Attributes
    ----------
    query, theta, proposal, coordinates
        What was asked: θ is chains × dimension.
    value
        What was released.
    """

    query: Query | BatchGradient
    theta: Array
    proposal: Array | None
    coordinates: Affine | None
    value: Any


_CERTAIN = 1e9


class _KnownNoise:
    """A source that draws what it is told to, and zeros otherwise: for sums that the attacker computes himself."""

    description = "not private: the attacker's own"
    multiplier = 1.0

    def __init__(self) -> None:
        self.coming: list[NDArray[np.int64] | None] = []

    def draw(self, scale: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Return the next of ``coming``."""
        known = self.coming.pop(0) if self.coming else None
        return np.zeros(shape, np.int64) if known is None else known.reshape(shape)


class _Without:
    """One data set, asked without noise."""

    def __init__(self, model: Model, data: Any) -> None:
        self._noise = _KnownNoise()
        self.curator = Curator(model, data, noise=self._noise)

    def parts(self, answered: Answered) -> list[tuple[Array, Array]]:
        """Return what the answer would be without noise, and the noise's stated sd: pairs of chains × numbers."""
        assert isinstance(answered.query, Query)
        arguments = answered.query, answered.theta, answered.proposal
        release = self.curator.ask(*arguments, coordinates=answered.coordinates)
        value = release.value
        if isinstance(answered.query, ScoreMoments):
            # The second part is centred by the first, as that was released: with the noise that it then had.
            first = answered.query.sum_query
            spacing = first.spacing(first.lattice(self.curator.num_records, answered.theta.shape[-1]))
            apart = (np.asarray(answered.value.score_sum) - value.score_sum) / spacing
            self._noise.coming = [None, None, np.rint(apart).astype(np.int64)]
            again = self.curator.ask(*arguments, coordinates=answered.coordinates)
            value = again.value._replace(score_sum=value.score_sum)
        values, sds = _noised_parts(answered.query, value), _noised_parts(answered.query, release.noise_sd)
        return [
            (part, np.broadcast_to(sd.reshape(len(sd), -1), part.shape)) for part, sd in zip(values, sds, strict=True)
        ]


def _noised_parts(query: Any, tree: Any) -> list[Array]:
    """Return what of an answer (or of its sds) has noise of its own, as arrays of chains × numbers."""
    parts = tree if isinstance(query, ScoreMoments) else [tree]
    if isinstance(query, NormQuantile | CoordinateHistogram) and isinstance(tree, tuple):
        parts = [tree.histogram]  # type: ignore[attr-defined]
    matrices = isinstance(query, ScoreMoments | SymmetricMatrix)
    arrays = [np.asarray(part, np.float64) for part in parts]
    # Of a symmetric matrix the upper half: the rest is its mirror image.
    arrays = [part[:, *np.triu_indices(part.shape[-1])] if matrices and part.ndim == 3 else part for part in arrays]
    return [part.reshape(len(part), -1) for part in arrays]


class Attacker:
    """Compares both data sets with what was answered.

    Parameters
    ----------
    model
        The model.
    first, second
        Data sets that differ in one record.
    others
        For sums over random batches: as many records, all of them like those that do not differ (and so alike).
    """

    def __init__(self, model: Model, first: Any, second: Any, others: Any = None) -> None:
        self._both = _Without(model, first), _Without(model, second)
        self._others = None if others is None else _Without(model, others)

    def log_ratios(self, answered: Answered) -> Array:
        """Return ln p(answer | second) − ln p(answer | first) for each chain."""
        if isinstance(answered.query, BatchGradient):
            return self._of_batches(answered)
        first, second = (one.parts(answered) for one in self._both)
        released = _noised_parts(answered.query, answered.value)
        total = np.zeros(len(answered.theta))
        for value, (one, sd), (other, _) in zip(released, first, second, strict=True):
            # A move that goes nowhere has a log-ratio of 0 without noise.
            apart = np.where(sd > 0.0, (one - other) * (one + other - 2.0 * value), 0.0)
            apart = apart / np.where(sd > 0.0, 2.0 * sd**2, 1.0)
            # What is not a number for both tells nothing; for one of them, all.
            told = np.isfinite(one) != np.isfinite(other)
            certain = np.where(np.isfinite(value) == np.isfinite(other), _CERTAIN, -_CERTAIN)
            total += np.sum(np.where(told, certain, np.nan_to_num(apart, posinf=0.0, neginf=0.0)), axis=-1)
        return total

    def _of_batches(self, answered: Answered) -> Array:
        """Return the same for a sum over a secret batch: with probability b/n the record is in it."""
        query = answered.query
        assert isinstance(query, BatchGradient)
        assert self._others is not None, "batches are attacked where all other records are alike"
        whole, number = Gradient(query.l2_clip_norm, 1.0), self._others.curator.num_records
        other = self._others.curator.ask(whole, answered.theta).value / number
        own = [one.curator.ask(whole, answered.theta).value - (number - 1) * other for one in self._both]
        lattice = query.lattice(number, answered.theta.shape[-1])
        sd, inside = query.spacing(lattice) * lattice.noise_scale, query.batch_size / number
        # Of fixed size: it takes the place of another. (Of random size: the others must be 0.)
        rest = query.batch_size * other
        value = np.asarray(answered.value, np.float64)

        def log_density(center: Array) -> Array:
            return np.asarray(-0.5 * np.sum(((value - center) / sd) ** 2, axis=-1))

        out = np.log1p(-inside) + log_density(rest)
        first, second = (np.logaddexp(out, np.log(inside) + log_density(rest - other + one)) for one in own)
        return np.asarray(second - first)


# ------------------------------------------------------------------ overhearing runs

_heard: list[Answered] | None = None


@contextmanager
def overheard() -> Iterator[list[Answered]]:
    """Write down every question and answer of the runs inside, those of compiled code too. One at a time.

    It changes nothing that a run does: answers are handed on as they are. For made-up data only: questions and answers
    are private, but a list of them in memory is nobody's business on real ones.
    """
    global _heard
    ask, oracle = Curator.ask, Curator.oracle

    def listening_ask(self: Curator, query: Query, theta: Any, proposal: Any = None, **options: Any) -> Any:
        release = ask(self, query, theta, proposal, **options)
        if _heard is not None and self.private:
            one = np.ndim(theta) == 1
            value = jax.tree.map(lambda leaf: np.asarray(leaf)[None], release.value) if one else release.value
            other = None if proposal is None else np.atleast_2d(np.asarray(proposal, np.float64))
            theta = np.atleast_2d(np.asarray(theta, np.float64))
            _heard.append(Answered(query, theta, other, options.get("coordinates"), value))
        return release

    def listening_oracle(self: Curator, gradient: Any, log_ratio: Any) -> Binding:
        return _listening(oracle(self, gradient, log_ratio), gradient, log_ratio)

    heard: list[Answered] = []
    Curator.ask, Curator.oracle, _heard = listening_ask, listening_oracle, heard  # type: ignore[method-assign]
    try:
        yield heard
    finally:
        Curator.ask, Curator.oracle, _heard = ask, oracle, None  # type: ignore[method-assign]


def _listening(binding: Binding, gradient: Any, log_ratio: Any) -> Binding:
    """Return an oracle that also tells the host what it has answered, from inside compiled code."""

    def bind(records: Any, numbers: Any) -> Oracle:
        inner = binding.bind(records, numbers)

        def answer_gradient(theta: Any, noise: Any) -> Any:
            return _tell(gradient, theta, None, inner.gradient(theta, noise))

        def answer_log_ratio(theta: Any, proposal: Any, noise: Any) -> Any:
            return _tell(log_ratio, theta, proposal, inner.log_ratio(theta, proposal, noise))

        def answer_batch(theta: Any, batch: Any, noise: Any) -> Any:
            return _tell(gradient, theta, None, inner.batch_gradient(theta, batch, noise))

        return Oracle(answer_gradient, answer_log_ratio, answer_batch)

    # The queries stand in the compiled code here: programs for others are others.
    return binding._replace(bind=bind, structure=("overheard", repr(gradient), repr(log_ratio), binding.structure))


def _tell(query: Any, theta: Any, proposal: Any, release: Any) -> Any:
    def hear(theta: Any, proposal: Any, value: Any) -> None:
        if _heard is not None:
            other = None if proposal is None else np.array(proposal)
            _heard.append(Answered(query, np.array(theta), other, None, np.array(value)))

    jax.experimental.io_callback(hear, None, theta, proposal, release.value)
    return release


def attack(attacker: Attacker, heard: list[Answered]) -> float:
    """Return the log-likelihood ratio of all answers of a run together.

    Questions of compiled code come one for each step: those of one kind are put together, and taken so many at a time
    that little has to be compiled.
    """
    total = 0.0
    together: dict[str, list[Answered]] = {}
    for answered in heard:
        if isinstance(answered.query, Gradient | LogRatio | BatchGradient) and answered.coordinates is None:
            together.setdefault(repr(answered.query), []).append(answered)
        else:
            total += float(np.sum(attacker.log_ratios(answered)))
    for same in together.values():
        for part, number in _joined(same):
            total += float(np.sum(attacker.log_ratios(part)[:number]))
    return total


_AT_A_TIME = 64


def _joined(same: list[Answered]) -> Iterator[tuple[Answered, int]]:
    """Return answers to one query, so many in each and the last one repeated, and how many of them are meant."""
    columns = [np.concatenate([one.theta for one in same]), np.concatenate([np.asarray(one.value) for one in same])]
    if same[0].proposal is not None:
        columns.append(np.concatenate([one.proposal for one in same if one.proposal is not None]))
    # Moves that left all bounds were answered by nothing.
    finite = np.all([np.isfinite(column.reshape(len(column), -1)).all(axis=-1) for column in columns], axis=0)
    columns = [column[finite] for column in columns]
    for start in range(0, len(columns[0]), _AT_A_TIME):
        rows = [column[start : start + _AT_A_TIME] for column in columns]
        number = len(rows[0])
        theta, value, *proposal = (
            np.concatenate([row, np.repeat(row[-1:], _AT_A_TIME - number, axis=0)]) for row in rows
        )
        yield Answered(same[0].query, theta, proposal[0] if proposal else None, None, value), number
