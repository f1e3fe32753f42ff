"""The questions of a run, one by one: asked, written down with their answers, and after a crash not asked again.

What a run asks next follows its public key and the answers so far. So it goes on, in another process, by going the same
way once more, with the answers that are known; from then on it asks. The proposals, momenta and accept uniforms of what
comes after are drawn with a key of their own.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from dataclasses import replace
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmcmc.curator import Curator
from dpmcmc.errors import CheckpointError
from dpmcmc.inference.checkpoint import Checkpoint, Part
from dpmcmc.privacy import Budget
from dpmcmc.privacy.ledger import Account, Charge
from dpmcmc.queries import Affine, AnyRelease, NotPrivateRelease, Query, Release
from dpmcmc.queries.histogram import Histograms
from dpmcmc.queries.moments import Moments
from dpmcmc.queries.quantile import Quantile

_ANSWER, _SEGMENT = "answer", "segment"
_NOISES = "noise_multiplier", "matrix_noise_multiplier", "noise_sd"
# Prices are rounded up.
_SLACK = 1.0 - 1e-6
_PARTS = "value", "noise_sd", "mu"
# What a release may be made of, beside arrays.
_FORMS: dict[str, Any] = {form.__name__: form for form in (Moments, Histograms, Quantile)}
# The same way on the same machine; another processor, or another version of LAPACK, may have other last digits.
_SAME = 1e-6


class Journal:
    """Asks a curator, and keeps a checkpoint of the answers if there is one.

    Parameters
    ----------
    curator
        Who answers.
    checkpoint
        Where answers are kept, and those of earlier processes are; None: nowhere.
    account
        What was charged, also for answers that were lost.
    """

    def __init__(self, curator: Curator, checkpoint: Checkpoint | None = None, account: Account | None = None) -> None:
        self._curator, self._checkpoint, self._account = curator, checkpoint, account
        self._known: deque[Part] = deque(() if checkpoint is None else checkpoint.of_kind(_ANSWER))
        self._segments: deque[Part] = deque(() if checkpoint is None else checkpoint.of_kind(_SEGMENT))
        self._answers, self._entropy = 0, list[int]()
        self._scale = 1.0
        self._charges: dict[int, Charge] = {}  # of earlier processes, by their entries
        self._generator: tuple[np.random.Generator, list[int]] | None = None
        self._goes_on = checkpoint is not None and bool(checkpoint.of_kind("resume"))
        self.lost: tuple[Charge, ...] = ()
        self._next()

    @property
    def lost_spent(self) -> Fraction:
        """What was charged for answers that a crash has lost, as far as the way went."""
        return sum((charge.spent for charge in self.lost), Fraction(0))

    def lost_answers(self) -> dict[str, tuple[int, float]]:
        """Return number and noise multiplier (that of the mean cost) of lost answers by kind, for the statement."""
        lost: dict[str, tuple[int, Fraction]] = {}
        for charge in self.lost:
            number, spent = lost.get(charge.what["kind"], (0, Fraction(0)))
            lost[charge.what["kind"]] = number + int(charge.what["answers"]), spent + charge.spent
        return {
            f"{kind} (answer lost)": (number, math.sqrt(number / (2.0 * float(spent))))
            for kind, (number, spent) in lost.items()
            if spent > 0
        }

    def fresh(self, key: jax.Array) -> jax.Array:
        """Return a key for what is drawn now: the given one, or, after a resume, one of its own."""
        for number in self._entropy:
            key = jax.random.fold_in(key, np.uint32(number))
        return key

    def generator(self, seeds: list[int]) -> np.random.Generator:
        """Return a generator for what is drawn now, which is seeded anew where the run was resumed."""
        generator = np.random.default_rng([*seeds, *self._entropy])
        self._generator = generator, seeds
        return generator

    def priced(
        self, query: Query, theta: ArrayLike, coordinates: Affine | None = None, proposal: ArrayLike | None = None
    ) -> Query:
        """Return the question as it can be paid for: with more noise, if a crash has cost a part of what was planned.

        A search parts its budget before it asks: what a lost answer has cost is then missing at the end. So all that is
        asked afterwards is lowered in price as what was left was, and never asks for more than is left.
        """
        if self._scale == 1.0:
            return query
        scaled = _noisier(query, self._scale)
        cost = float(self._curator.cost(scaled, theta, proposal, coordinates=coordinates).spent)
        left = self._budget.left * _SLACK
        return scaled if cost <= left else _noisier(scaled, left / cost)

    def ask(
        self,
        query: Query,
        theta: ArrayLike,
        proposal: ArrayLike | None = None,
        *,
        coordinates: Affine | None = None,
    ) -> AnyRelease:
        """Answer as `Curator.ask` does; a question whose answer is known is neither asked nor charged again."""
        if self._known:
            return self._again(query, theta, proposal)
        release = self._curator.ask(query, theta, proposal, coordinates=coordinates)
        if self._checkpoint is not None:
            forms, arrays = _taken_apart(release)
            header = {"kind": query.kind, "entry": self._budget.last_entry, "forms": forms}
            asked = {"theta": theta, **({} if proposal is None else {"proposal": proposal})}
            self._checkpoint.append(_ANSWER, header, asked | arrays)
        self._answers += 1
        return release

    @property
    def _budget(self) -> Budget:
        assert isinstance(self._curator.budget, Budget)
        return self._curator.budget

    def _again(self, query: Query, theta: ArrayLike, proposal: ArrayLike | None) -> AnyRelease:
        """Give a known answer, if it is the answer to this question."""
        part = self._known.popleft()
        asked = {"theta": theta, **({} if proposal is None else {"proposal": proposal})}
        if part.header["kind"] != query.kind or not all(_alike(part.arrays.get(n), v) for n, v in asked.items()):
            raise CheckpointError(
                f"question {self._answers + 1} of this run is another one than when it was begun, so that it cannot go "
                "on here: the model, a version or the processor is another; go on where it was begun"
            )
        self._count(part.header["entry"])
        self._answers += 1
        kind = Release if self._curator.private else NotPrivateRelease
        release: AnyRelease = kind(**_put_together(part))
        self._next()
        return release

    def _count(self, entry: int) -> Charge:
        """Count a charge that is in the books, as it was counted when it was made."""
        if not self._charges and self._account is not None:
            self._charges = {charge.number: charge for charge in self._account.charges}
        if entry not in self._charges:
            raise CheckpointError("an answer was never charged: checkpoint and ledger do not belong together")
        charge = self._charges[entry]
        costs = charge.spent, charge.lattice_epsilon, charge.lattice_delta
        self._budget.count_again(charge.number, *costs, charge.what)
        return charge

    def _next(self) -> None:
        """Where all that is known was gone through, go on from here; where a run was resumed before, do as it did."""
        while self._segments and self._segments[0].header["answers"] == self._answers:
            self._begin_segment(self._segments.popleft().header)
        if self._known or not self._goes_on:
            return
        self._goes_on = False
        assert self._checkpoint is not None
        assert self._account is not None
        answered = {part.header["entry"] for part in self._checkpoint.of_kind(_ANSWER)}
        answered |= {charge.number for charge in self.lost}
        header = {
            "answers": self._answers,
            "entropy": [secrets.randbits(32) for _ in range(4)],
            "lost": [charge.number for charge in self._account.charges if charge.number not in answered],
        }
        self._checkpoint.append(_SEGMENT, header, {})
        self._begin_segment(header)
        self._budget.settle()

    def _begin_segment(self, header: dict[str, Any]) -> None:
        if header["lost"]:
            before = self._budget.left
            self.lost += tuple(self._count(entry) for entry in header["lost"])
            self._scale *= max(self._budget.left, 1e-12 * before) / before
        self._entropy = [*self._entropy, *header["entropy"]]
        if self._generator is not None:
            generator, seeds = self._generator
            generator.bit_generator.state = np.random.default_rng([*seeds, *self._entropy]).bit_generator.state


def _noisier(query: Query, factor: float) -> Query:
    """Return the same question at so many times the price."""
    names = [name for name in _NOISES if getattr(query, name, None) is not None]
    return replace(query, **{name: getattr(query, name) / math.sqrt(factor) for name in names})  # type: ignore[type-var]


def _taken_apart(release: AnyRelease) -> tuple[dict[str, str], dict[str, Any]]:
    """Return which parts of a release have parts of their own, and all of them as arrays."""
    forms: dict[str, str] = {}
    arrays: dict[str, Any] = {}
    for name in _PARTS:
        value = getattr(release, name)
        if isinstance(value, tuple):
            forms[name] = type(value).__name__
            arrays |= {f"{name}.{one}": part for one, part in value._asdict().items()}  # type: ignore[attr-defined]
        else:
            arrays[name] = value
    return forms, arrays


def _put_together(part: Part) -> dict[str, Any]:
    """Return the parts of a release; numbers as numbers."""
    forms, arrays = part.header["forms"], part.arrays
    return {
        name: arrays[name][()]
        if name not in forms
        else _FORMS[forms[name]](*(arrays[f"{name}.{one}"][()] for one in _FORMS[forms[name]]._fields))
        for name in _PARTS
    }


def _alike(kept: NDArray[Any] | None, now: ArrayLike) -> bool:
    now = np.asarray(now)
    return kept is not None and kept.shape == now.shape and bool(np.allclose(kept, now, rtol=_SAME, atol=_SAME))
