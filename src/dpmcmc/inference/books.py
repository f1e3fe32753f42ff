"""What a run writes down so that it outlives its process: charges in a ledger, releases in a checkpoint.

Both may be absent. A run with a checkpoint and no ledger has a ledger of its own in its folder, for its own budget
alone. Nothing here sees a record, but for the fingerprints that a ledger compares.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpmcmc.curator import Curator
from dpmcmc.data import Source, marks_of
from dpmcmc.errors import CheckpointError, DPMCMCError, LedgerError, QueryError
from dpmcmc.inference.checkpoint import (
    CHARGES,
    OWN_CHARGES,
    Checkpoint,
    RunFolder,
    holds_anything,
    is_complete,
    remove_database,
    tidy,
)
from dpmcmc.inference.endings import ALL_SPENT, NOT_WRITTEN, NOTHING_SPENT
from dpmcmc.inference.journal import Journal
from dpmcmc.inference.planning import Funds
from dpmcmc.inference.settings import Settings
from dpmcmc.models.units import unit_name
from dpmcmc.privacy import Budget, Ledger, StepBudget
from dpmcmc.privacy.ledger import Account, Batches, Marks
from dpmcmc.privacy.statement import installed_versions
from dpmcmc.results import Posterior
from dpmcmc.results.folder import POSTERIOR, write_run
from dpmcmc.results.spending import Spend
from dpmcmc.samplers import SAMPLERS, DPLaplace, SurrogateHMC
from dpmcmc.surrogate import Form, Surrogate

_FORMAT = 1
_CLASSES = {known.__name__: known for known in (*SAMPLERS, DPLaplace, SurrogateHMC)}
# Parts of a checkpoint that hold what was paid for.
_PAID = ("answer", "start", "block", "check")
# A page cannot show more.
_MOST_ENTRIES = 300
_PLAIN = bool | int | float | str | None
# Settings that are kept: those that say what the run is, not how it is shown or spread over devices.
_KEPT = ("epsilon", "delta", "num_chains", "num_steps", "num_warmup", "thin", "seed", "check_records")


class Books:
    """The ledger and the folder of one run.

    Parameters
    ----------
    sampler, settings, exact
        What the run is.
    ledger
        A ledger, its name or URL; None: the run stands alone.
    folder
        Where to keep a checkpoint; None: nowhere.
    same_people
        See :meth:`Ledger.open_run`.
    checkpoint
        Of a run that goes on.
    """

    def __init__(
        self,
        sampler: Any,
        settings: Settings,
        exact: bool,
        *,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        folder: RunFolder | None = None,
        same_people: bool = False,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self._sampler, self.settings, self._exact = sampler, settings, exact
        self._folder, self._same_people, self.checkpoint = folder, same_people, checkpoint
        self.resumed = checkpoint is not None
        self.account: Account | None = None
        self._main: Budget | StepBudget | None = None
        self.over = False  # whether nothing is left that could pay for a result
        if (ledger is not None or folder is not None or self.resumed) and jax.process_count() > 1:
            raise QueryError(
                f"ledger and checkpoint do not go with {jax.process_count()} processes yet; run one process, or leave "
                "them out"
            )
        if ledger is not None and (settings.seed is not None or not _is_private(sampler)):
            raise QueryError(
                "a ledger counts private releases, and this run is not private (it is seeded, or adds no noise); leave "
                "the ledger out, or the seed, or take a private sampler"
            )
        if same_people and ledger is None:
            raise QueryError("same_people says something to a ledger, and there is none; give ledger, or leave it out")
        self.ledger = ledger if isinstance(ledger, Ledger) or ledger is None else Ledger(ledger)
        self._stands_alone = self.ledger is None

    @classmethod
    def none(cls) -> Books:
        """Return books in which nothing is written."""
        return cls("auto", Settings(None, None, 1, None, None, 1, None, False, None, None, False), False)

    @property
    def seed(self) -> int | None:
        """Seed of this process's part of a run: not that of an earlier part, whose noise would come again."""
        if self.settings.seed is None or self.checkpoint is None:
            return self.settings.seed
        text = f"{self.settings.seed}/{len(self.checkpoint.of_kind('resume'))}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")

    @property
    def can_resume(self) -> bool:
        """Whether a run that is stopped now can go on later."""
        return self.checkpoint is not None

    @property
    def goes_into_a_folder(self) -> bool:
        """Whether the run has, or will have, a checkpoint."""
        return self._folder is not None or self.checkpoint is not None

    def ended(self) -> Posterior | None:
        """Return the result of a run that was complete but for its last file to be removed; None of any other.

        Raises
        ------
        CheckpointError
            The ledger does not know the run: it is another's, or the run's settings were edited.
        """
        checkpoint = self.checkpoint
        assert checkpoint is not None
        own = checkpoint.folder / CHARGES
        kept = own.exists() and holds_anything(own, "dpmcmc_ledger")
        ledger = self.ledger or (Ledger(own) if kept else None)
        run = None if ledger is None else ledger.run_of(checkpoint.token)
        if run is None and checkpoint.of_kind(*_PAID) and (ledger is not None or _is_private(self._sampler)):
            place = str(own) if ledger is None else ledger.place
            raise CheckpointError(
                f"the ledger {place!r} does not know the run in {checkpoint.shown!r}: it is another's, or the run's "
                "settings were edited; give the right one, or begin another run; nothing was charged"
            )
        complete = checkpoint.folder.joinpath(POSTERIOR).exists()
        if ledger is None or run is None or not complete or ledger.is_open(run):
            return None
        posterior = Posterior.load(checkpoint.folder / POSTERIOR)
        checkpoint.remove()
        tidy(checkpoint.folder)
        return posterior

    def open(self, curator: Curator, source: Source, funds: Funds | None) -> jax.Array:
        """Begin the run in the books, or find it there again. Nothing is charged. Return its public key."""
        key = curator.public_key if self.checkpoint is None else self._find(curator)
        token = secrets.token_hex(16)
        if self._folder is not None and not self.resumed:
            facts, arrays = self._facts(curator, key)
            self.checkpoint = self._folder.begin(facts, arrays)
        if self.checkpoint is not None:
            token = self.checkpoint.token
        self._main = None if funds is None else funds.main
        if funds is None or (self.ledger is None and self.checkpoint is None):
            return key
        if self.ledger is None:
            assert self.checkpoint is not None
            self.ledger = self._own_ledger(self.checkpoint)
        self.account = self._account(self.ledger, curator, source, funds, token)
        steps = isinstance(funds.main, StepBudget)
        funds.main.keep_books(self.account, "steps" if steps else "mu")
        if funds.check is not None and funds.check is not funds.main:
            funds.check.keep_books(self.account, "check")
        return key

    def _own_ledger(self, checkpoint: Checkpoint) -> Ledger:
        place = checkpoint.folder / CHARGES
        if self.resumed and place.exists():
            if holds_anything(place, "dpmcmc_ledger"):
                return Ledger(place)
            remove_database(place)  # killed while it was made, before anything was charged
        epsilon, delta = self.settings.granted
        return Ledger.create(place, epsilon=epsilon, delta=delta, name=OWN_CHARGES)

    def _account(self, ledger: Ledger, curator: Curator, source: Source, funds: Funds, token: str) -> Account:
        def fingerprints(key: bytes) -> Marks:
            return Marks(curator.num_records, marks_of(source, key))

        # A run's own ledger lies in its folder with its key: fingerprints there would be a secret among what is not.
        marks = None if self._stands_alone else fingerprints
        run = ledger.run_of(token)
        if run is not None:
            account = ledger.account(run)
            account.note_resumed(marks)
            return account
        epsilon, delta = self.settings.granted
        return ledger.open_run(
            "minibatch" if isinstance(funds.main, StepBudget) else "gaussian",
            epsilon,
            delta,
            batches=_batches(funds),
            unit=unit_name(curator.model),
            sampler=_name_of(self._sampler),
            model=curator.model.name,
            marks=marks,
            same_people=self._same_people,
            token=token,
        )

    # ------------------------------------------------------------------------------------------------ the facts

    def _facts(self, curator: Curator, key: jax.Array) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        sampler, arrays = _sampler_to_plain(self._sampler)
        init, init_arrays = _init_to_plain(self.settings.init)
        facts = {
            "format": _FORMAT,
            "versions": installed_versions(),
            "sampler": sampler,
            "exact": self._exact,
            "settings": {name: _plain(getattr(self.settings, name)) for name in _KEPT},
            "init": init,
            "model": _model_facts(curator),
            "ledger": None if self.ledger is None else self.ledger.place,
            "same_people": self._same_people,
            "key": np.asarray(jax.random.key_data(key)).tolist(),
        }
        return facts, arrays | init_arrays

    def _find(self, curator: Curator) -> jax.Array:
        """See that this is the run that was begun, and note that it goes on."""
        assert self.checkpoint is not None
        kept, now = self.checkpoint.facts["model"], _model_facts(curator)
        if kept != now:
            different = next(name for name in now if kept.get(name) != now[name])
            shown = (
                ""
                if different == "program"
                else f": {kept.get(different)!r} was begun with, and now it is {now[different]!r}"
            )
            raise CheckpointError(
                f"the run in {self.checkpoint.shown!r} was begun with another model, other data or another version of "
                f"JAX ({different}{shown}); go on with what it was begun with, or begin another run; nothing was "
                "charged"
            )
        self.checkpoint.append("resume", {"number": len(self.checkpoint.of_kind("resume")) + 1}, {})
        words = np.asarray(self.checkpoint.facts["key"], np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")

    def count_all(self, funds: Funds) -> None:
        """Count all that earlier processes were charged, whether or not its answer is known."""
        assert self.account is not None
        for charge in self.account.charges:
            budget = funds.check if charge.meter == "check" else funds.main
            assert budget is not None
            costs = charge.spent, charge.lattice_epsilon, charge.lattice_delta
            budget.count_again(charge.number, *costs, charge.what)
        for budget in (funds.main, funds.check):
            if budget is not None:
                budget.settle()  # (which finds nothing more)

    def spending(self) -> tuple[Spend, ...]:
        """Return the course of the run: what was asked, and what share of its budget was spent after it."""
        if self._main is None or not self._main.total:
            return ()
        course: list[Spend] = []
        steps = 0
        for what, spent in self._main.history:
            kind, number = str(what.get("kind", "answer lost")), int(what.get("steps", what.get("answers", 1)))
            if kind == "steps":
                kind, steps = f"steps {steps + 1} to {steps + number}", steps + number
            course.append(Spend(kind, number, min(1.0, float(spent) / self._main.total)))
        return _shortened(course)

    def journal(self, curator: Curator) -> Journal:
        """Return what asks the questions of the run, one by one."""
        return Journal(curator, self.checkpoint, self.account)

    # --------------------------------------------------------------------------------------------------- the end

    @property
    def charged(self) -> bool:
        """Whether the run was charged anything, now or earlier."""
        return self.account is not None and bool(self.account.charges)

    def what_is_spent(self, something: bool) -> str:
        """Say it, where a run has ended early."""
        if not something:
            return NOTHING_SPENT
        if self.checkpoint is not None:
            return "what was charged counts"
        if self.account is not None:
            return (
                f"what was charged counts in the ledger, and ε = {self.settings.epsilon:g} must be stated for this run"
            )
        return ALL_SPENT

    def standing(self) -> dict[str, Any] | None:
        """Return how the ledger stands, for the statement; None if the run stands alone."""
        if self._stands_alone or self.account is None:
            return None
        return self.account.standing()

    def finish(self, posterior: Posterior) -> str | None:
        """Close the books on a run that is done; return what went wrong with its folder."""
        if self.checkpoint is not None:
            try:
                write_run(posterior, self.checkpoint.folder, overwrite=True)
            except Exception as error:
                reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
                return self._left_open(f"{self.checkpoint.shown!r} could not be written ({reason})")
        if self.account is not None:
            try:
                self.account.close("complete")
            except LedgerError as error:
                return self._left_open(str(error))
        if self.checkpoint is not None:
            self.checkpoint.remove()
            tidy(self.checkpoint.folder)
        return None

    def _left_open(self, problem: str) -> str:
        """Say what is to be done with a run that is done, and whose end could not be written down."""
        if self.checkpoint is None:
            assert self.account is not None
            return (
                f"{NOT_WRITTEN} {problem}; its charges are all there: end it by `dpmcmc ledger close … "
                f"{self.account.run}`, so that others can have what it did not spend"
            )
        self.checkpoint.close()
        return (
            f"{NOT_WRITTEN} {problem}; nothing is lost: `dpmcmc resume {self.checkpoint.shown}` (in Python "
            "dpmcmc.resume) writes it"
        )

    def give_up(self, how: str) -> None:
        """Close the books on a run that has ended without a result.

        One that was charged and has a checkpoint stays open, to go on later; one that was not leaves no trace.
        """
        if self.checkpoint is not None and (self.charged or self.resumed):
            if self.over and self.account is not None:
                with contextlib.suppress(DPMCMCError):
                    self.account.close(how)
            self.checkpoint.close()
            return
        nothing_is_done = self.checkpoint is None or not self.checkpoint.of_kind(*_PAID)
        if self.account is not None:
            with contextlib.suppress(DPMCMCError):  # `dpmcmc ledger show` tells of it, and `close` ends it
                self.account.close(how)
        if not nothing_is_done:
            assert self.checkpoint is not None
            self.checkpoint.close()
        elif self._folder is not None:
            self._folder.discard(self.checkpoint)
        elif self.checkpoint is not None:
            self.checkpoint.close()

    def how_to_go_on(self) -> str:
        """Say how, to be put behind a sentence on what happened; nothing if it cannot go on."""
        if self.account is not None and not self.account.status.open:
            return ""
        if self.over or self.checkpoint is None or not (self.charged or self.checkpoint.of_kind("block", "start")):
            return ""
        return f"; go on with `dpmcmc resume {self.checkpoint.shown}` (in Python dpmcmc.resume): what is done is kept"


def load_settings(checkpoint: Checkpoint, *, progress: bool, devices: Any) -> tuple[Any, Settings, bool]:
    """Return sampler, settings and ``exact`` of a run that was begun."""
    facts, arrays = checkpoint.facts, checkpoint.fact_arrays
    if facts.get("format") != _FORMAT:
        raise CheckpointError(
            f"the run in {checkpoint.shown!r} has format {facts.get('format')!r}, which this version does not read; go "
            "on with the version of dpmcmc that began it"
        )
    try:
        settings = Settings(
            **{name: facts["settings"][name] for name in _KEPT},
            init=_init_from_plain(facts["init"], arrays),
            progress=progress,
            devices=devices,
        )
        return _sampler_from_plain(facts["sampler"], arrays), settings, bool(facts["exact"])
    except Exception:  # of values that are not as they were written, whatever they are
        raise CheckpointError(f"the checkpoint in {checkpoint.shown!r} is damaged; begin another run") from None


def complete_run(folder: str | os.PathLike[str]) -> Posterior | None:
    """Return the posterior of a run that is complete; None if it is not."""
    if not is_complete(folder):
        return None
    with contextlib.suppress(OSError):  # (it may be read-only by now)
        tidy(Path(folder))
    return Posterior.load(os.path.join(folder, POSTERIOR))


def _shortened(course: list[Spend]) -> tuple[Spend, ...]:
    """Put neighbours of the same kind together, so many that not too many entries are left."""
    together = -(-len(course) // _MOST_ENTRIES)
    short: list[Spend] = []
    joined = 0
    for entry in course:
        if short and short[-1].what == entry.what and joined < together:
            short[-1] = Spend(entry.what, short[-1].answers + entry.answers, entry.share)
            joined += 1
        else:
            short.append(entry)
            joined = 1
    return tuple(short)


def _batches(funds: Funds) -> Batches | None:
    """Return what a minibatch run may do, for the ledger's rules; None of other runs."""
    main, check = funds.main, funds.check
    if not isinstance(main, StepBudget):
        return None
    apart = (0.0, 0.0) if check is None else (check.epsilon, check.delta)
    return Batches(int(main.total), main.noise_ratio, main.sampling_prob, main.scheme, *apart)


def _is_private(sampler: Any) -> bool:
    return isinstance(sampler, str) or bool(getattr(sampler, "private", True))


def _name_of(sampler: Any) -> str:
    return sampler if isinstance(sampler, str) else str(sampler.name)


def _model_facts(curator: Curator) -> dict[str, Any]:
    model = curator.model
    return {
        "name": model.name,
        "dimension": model.dimension,
        "parameters": list(model.parameters),
        "num_records": curator.num_records,
        "program": curator.passes.digest(),
    }


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _sampler_to_plain(sampler: Any) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return a sampler's class and settings as plain values and arrays."""
    if isinstance(sampler, str):
        return {"class": sampler}, {}
    values: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for one in fields(sampler):
        value = _plain(getattr(sampler, one.name))
        if isinstance(value, Surrogate):
            values[one.name] = {"form": list(value.form)}
            for part in ("center", "matrix", "weights"):
                arrays[f"sampler.{one.name}.{part}"] = np.asarray(getattr(value, part), np.float64)
        elif isinstance(value, _PLAIN):
            values[one.name] = value
        else:
            values[one.name] = {"array": True}
            arrays[f"sampler.{one.name}"] = np.asarray(value)
    return {"class": type(sampler).__name__, "fields": values}, arrays


def _sampler_from_plain(plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Any:
    if plain["class"] == "auto":
        return "auto"
    values = dict(plain["fields"])
    for name, value in values.items():
        if isinstance(value, dict) and "form" in value:
            center, matrix, weights = (arrays[f"sampler.{name}.{part}"] for part in ("center", "matrix", "weights"))
            form = Form(*value["form"])
            # Before its polynomials are listed: of a form that was edited there may be any number.
            if form.dimension != len(center) or form.num_polynomials != weights.shape[-1]:
                raise ValueError("a surrogate that does not fit its numbers")
            values[name] = Surrogate(form, center, matrix, weights)
        elif isinstance(value, dict):
            values[name] = arrays[f"sampler.{name}"]
    return _CLASSES[plain["class"]](**values)


def _init_to_plain(init: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    if init is None:
        return None, {}
    if isinstance(init, dict):
        return list(init), {f"init.{name}": np.asarray(value) for name, value in init.items()}
    return "array", {"init": np.asarray(init)}


def _init_from_plain(init: Any, arrays: dict[str, NDArray[Any]]) -> Any:
    if init is None:
        return None
    return arrays["init"] if init == "array" else {name: arrays[f"init.{name}"] for name in init}
