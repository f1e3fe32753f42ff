"""The ledger: a budget (ε, δ) for a data set that outlives every run, and all that was ever charged to it.

Entries are only added, each with the hash of the one before; what is left follows from them and from nothing else, and
every process that opens a ledger computes it anew, by the rules below. It counts public costs, and sees no data: of a
data set it keeps keyed fingerprints. Why sums of costs that follow earlier releases are valid: `docs/accounting.md`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, get_args

from dpmcmc.errors import BudgetExceededError, DPMCMCError, LedgerError, NotPrivateError, QueryError
from dpmcmc.privacy.budget import Budget, StepBudget
from dpmcmc.privacy.exact import check_number, exact_cost, rounded_down, rounded_up
from dpmcmc.privacy.gaussian import check_delta
from dpmcmc.privacy.subsampled import Scheme

if TYPE_CHECKING:
    from dpmcmc.privacy.storage import Row, Storage

__all__ = ["Account", "Batches", "Charge", "Ledger", "LedgerStatus", "Marks", "RunStatus"]

_FORMAT = 1
_GENESIS = "0" * 64
# By how much a total may differ where it is computed on another machine: allowed to what is read, not to what is new.
_LEEWAY = Fraction(1.0 + 1e-9)
# A cost in an entry: no exponents, which could stand for more digits than there is memory.
_COST = re.compile(r"[0-9]+(/[0-9]+)?", re.ASCII)
Kind = Literal["gaussian", "minibatch"]
Meter = Literal["mu", "steps", "check"]


class Marks(NamedTuple):
    """What a data set is recognised by: its number of records, and keyed fingerprints of columns by those of names."""

    num_records: int
    columns: dict[str, str]


class Batches(NamedTuple):
    """What a minibatch run may do: so many steps, of this noise and sampling, and a record check that is set apart.

    Attributes
    ----------
    steps
        Steps of all chains together.
    noise_ratio, sampling_prob, scheme
        As for `subsampled_steps`.
    check_epsilon, check_delta
        What of the run's ε and δ pays for its record check, a Gaussian query; the steps have the rest.
    """

    steps: int
    noise_ratio: float
    sampling_prob: float
    scheme: str
    check_epsilon: float = 0.0
    check_delta: float = 0.0

    @property
    def check_limit(self) -> Fraction:
        """Gaussian cost that the record check may have."""
        if self.check_epsilon <= 0.0 or self.check_delta <= 0.0:
            return Fraction(0)
        return Fraction(_gaussian_total(self.check_epsilon, self.check_delta)[0])


class Charge(NamedTuple):
    """One charge of a run: what it was for, in which currency, and how much.

    Attributes
    ----------
    number
        Of the entry.
    meter
        "mu" (Gaussian cost), "steps" (of a minibatch run) or "check" (μ of its record check, which is set apart).
    what
        What was paid for: kinds of queries with their numbers, and whatever is needed to state them.
    """

    number: int
    meter: str
    spent: Fraction
    lattice_epsilon: Fraction
    lattice_delta: Fraction
    what: dict[str, Any]


@dataclass
class RunStatus:
    """A run in a ledger.

    Attributes
    ----------
    run
        Its number.
    kind
        "gaussian": each of its charges counts as it is. "minibatch": all of its (ε, δ) counts from its first charge on.
    epsilon, delta
        What it was granted.
    limit
        What this pays for: Gaussian cost, or of a minibatch run steps.
    batches
        Of a minibatch run, what its steps and its record check follow from.
    unit
        Whom it protects: the name of the column that tells persons apart, or "row".
    part
        How often it was resumed: only the last process that did so can charge it.
    hold
        Whether that is kept for it.
    sampler, model
        What they are called.
    begun, ended
        When, in UTC; ended is None while it may go on.
    how
        How it ended: "complete", "interrupted", "failed" or "given up"; "" while it may go on.
    spent
        Gaussian cost μ that was charged.
    held
        Gaussian cost that is kept for it until it ends.
    num_charges
        How many charges there were.
    """

    run: int
    kind: str
    epsilon: float
    delta: float
    sampler: str
    model: str
    num_records: int
    begun: str
    limit: Fraction
    hold: bool
    same_people: bool
    batches: Batches | None = None
    unit: str = "row"
    part: int = 0
    token: str = field(default="", repr=False)
    ended: str | None = None
    how: str = ""
    spent: Fraction = Fraction(0)
    charges: list[Charge] = field(default_factory=list, repr=False)

    @property
    def num_charges(self) -> int:
        """How many charges there were."""
        return len(self.charges)

    @property
    def open(self) -> bool:
        """Whether it may go on."""
        return self.ended is None

    @property
    def held(self) -> Fraction:
        """What is still kept for it."""
        return self.limit - self.spent if self.open and self.hold and self.kind == "gaussian" else Fraction(0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "run": self.run,
            "kind": self.kind,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "sampler": self.sampler,
            "model": self.model,
            "num_records": self.num_records,
            "begun": self.begun,
            "ended": self.ended,
            "how": self.how,
            "mu_spent": rounded_up(self.spent),
            "mu_held": rounded_up(self.held),
            "num_charges": self.num_charges,
            "num_resumes": self.part,
            "unit": self.unit,
            "same_people": self.same_people,
        }


@dataclass(frozen=True)
class LedgerStatus:
    """How a ledger stands.

    Attributes
    ----------
    epsilon, delta
        The total, for all that is ever released about these people.
    mu_total, mu_spent, mu_held
        Gaussian cost that may be spent in all, was spent (rounded up), and is kept for runs that may go on.
    apart_epsilon, apart_delta, apart_used_epsilon, apart_used_delta
        What is set apart for minibatch runs and others, and what of it is used (simple composition).
    fixed
        Whether the parting into the two is final: from the first Gaussian charge on.
    left_epsilon
        The largest ε that one more Gaussian run could have at ``delta``; 0 if none.
    head
        Hash of the last entry. Written down elsewhere (it stands in every privacy statement), it shows later whether
        the ledger was cut short.
    """

    place: str
    name: str
    epsilon: float
    delta: float
    mu_total: float
    mu_spent: float
    mu_held: float
    apart_epsilon: float
    apart_delta: float
    apart_used_epsilon: float
    apart_used_delta: float
    fixed: bool
    left_epsilon: float
    num_records: tuple[int, ...]
    num_entries: int
    head: str
    runs: tuple[RunStatus, ...]
    reserves: tuple[dict[str, Any], ...]

    @property
    def mu_left(self) -> float:
        """Gaussian cost that nobody has spent or holds, rounded down."""
        left = Fraction(self.mu_total) - Fraction(self.mu_spent) - Fraction(self.mu_held)
        return rounded_down(max(Fraction(0), left))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("runs", "reserves")}
        return values | {
            "num_records": list(self.num_records),
            "mu_left": self.mu_left,
            "reserves": list(self.reserves),
            "runs": [run.to_dict() for run in self.runs],
        }


class Ledger:
    """A budget for a data set: one file (or database), shared by all runs on these people, now and later.

    Parameters
    ----------
    place
        The name of an SQLite file that :meth:`create` (or ``dpmcmc ledger create``) made, or a URL of PostgreSQL.

    Raises
    ------
    LedgerError
        There is none, it cannot be read, or it was edited.

    Notes
    -----
    Gaussian runs share one μ: the filter of :class:`~dpmcmc.Budget` over all of them together. Minibatch runs are set
    apart with an (ε, δ) of their own (simple composition). How the total is parted into the two must not follow what
    was released, so it is final once the first Gaussian charge is made: who will want minibatch runs later sets
    something apart first (:meth:`reserve`).

    Keep the file as you keep the data: it holds the key of the fingerprints. It is on a local disk (SQLite's
    write-ahead log does not work over a network); several machines share a PostgreSQL database. Copy it while no run is
    on, with the files ``-wal`` and ``-shm`` if a process that died has left them: they hold the last entries.

    The hashes show accidents and careless edits: an entry that was changed, left out, moved or put in. They do not bind
    who may write the file and sets out to deceive: a ledger whose last entries were removed, that was replaced by an
    older copy of itself, or that was written anew with all its hashes is as good as any by itself. Such a thing shows
    where a head is known from elsewhere (every privacy statement has one): ``verify(head=…)``, for what came before it.
    A process that has a ledger open notices when what it has read is no longer there.

    Examples
    --------
    >>> import tempfile, os
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = Ledger.create(os.path.join(folder.name, "people.ledger"), epsilon=2.0, delta=1e-6)
    >>> status = ledger.status()
    >>> status.left_epsilon, status.mu_spent
    (2.0, 0.0)
    >>> folder.cleanup()
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        from dpmcmc.privacy.storage import Storage  # SQLAlchemy takes a moment to load

        self._begin(Storage(place))
        self._storage.check()
        self.refresh()

    def _begin(self, storage: Storage) -> None:
        self._storage, self._state = storage, _State()
        self._lock, self._process = threading.RLock(), os.getpid()

    @classmethod
    def create(cls, place: str | os.PathLike[str], *, epsilon: float, delta: float, name: str | None = None) -> Ledger:
        """Make a ledger with a total that never changes.

        Parameters
        ----------
        place
            A new file, which only its owner can read; or a URL of PostgreSQL (one ledger in a database or schema).
        epsilon, delta
            The total, for everything that is ever released about these people through this ledger.
        name
            What to call the data set in statements, which are public. Default: the file's name without its ending.
        """
        from dpmcmc.privacy.storage import Storage, path_of

        epsilon, delta = check_number("epsilon", epsilon, above=0.0), check_delta(delta)
        if _gaussian_total(epsilon, delta)[0] <= 0.0:
            raise QueryError(f"epsilon = {epsilon!r}, delta = {delta!r} pays for nothing at all; give a larger total")
        path = path_of(place)
        called = (path.stem[:200] if path is not None else "") if name is None else name
        if not isinstance(called, str) or len(called) > 200:
            raise QueryError("name is not a short text; give at most 200 characters")
        payload = {
            "format": _FORMAT,
            "epsilon": epsilon,
            "delta": delta,
            "name": called,
            "key": secrets.token_hex(32),
        }
        first = _State().entry("create", payload)
        ledger = cls.__new__(cls)
        ledger._begin(Storage(place, first=first))
        ledger._state.absorb(first)
        return ledger

    # ------------------------------------------------------------------------------------------------- looking

    @property
    def place(self) -> str:
        """Where it is; of a URL without the password."""
        return self._storage.place

    @property
    def epsilon(self) -> float:
        """ε of the total."""
        return self._state.epsilon

    @property
    def delta(self) -> float:
        """δ of the total."""
        return self._state.delta

    @property
    def key(self) -> bytes:
        """The key of the fingerprints. Secret: it belongs nowhere but in the ledger."""
        return bytes.fromhex(self._state.key)

    def __repr__(self) -> str:
        return f"Ledger({self.place!r}, epsilon={self.epsilon!r}, delta={self.delta!r})"

    def refresh(self) -> None:
        """Read what other processes have added."""
        with self._lock:
            self._check_process()
            self._catch_up(self._storage.rows_from(self._state.number))
            if not self._state.number:
                raise LedgerError(f"the ledger {self.place!r} has no entries any more; restore it from a copy")

    def _catch_up(self, rows: list[Row]) -> None:
        """Take in new entries, behind the last that was known."""
        if self._state.number:
            if not rows or (rows[0].number, rows[0].hash) != (self._state.number, self._state.head):
                raise LedgerError(
                    f"the ledger {self.place!r} has no longer the entry {self._state.number} that was read before: it "
                    "was cut short, or replaced; restore it from a copy that has all entries"
                )
            rows = rows[1:]
        for row in rows:
            self._state.absorb(row)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise NotPrivateError("this ledger was opened in another process; open it in each process")

    def status(self) -> LedgerStatus:
        """Return how it stands now."""
        with self._lock:
            self.refresh()
            return self._state.status(self.place)

    def verify(self, head: str | None = None) -> LedgerStatus:
        """Compute everything again from the first entry on: hashes, rules, sums and what they mean as (ε, δ).

        Parameters
        ----------
        head
            The hash of an entry that must be there: of a privacy statement, say. So a ledger that was cut short shows.

        Raises
        ------
        LedgerError
            An entry was edited, left out, or could not have been made by the rules.
        """
        with self._lock:
            self.refresh()
            self._storage.check()
            state = _State()
            hashes = set()
            for row in self._storage.rows_from(0):
                state.absorb(row)
                hashes.add(row.hash)
            if self._state.head not in hashes or (head is not None and head not in hashes):
                missing = self._state.head if head is None else str(head)
                raise LedgerError(
                    f"the ledger {self.place!r} has no entry with the hash {missing[:16]}…: it was cut short, or is "
                    "another one; restore it from a copy that has all entries"
                )
            state.check_sums()
            return state.status(self.place)

    # ------------------------------------------------------------------------------------------------- writing

    def reserve(self, epsilon: float, delta: float = 0.0, *, note: str = "", used: bool = False) -> None:
        """Set a part of the total aside, by simple composition: for minibatch runs, or for releases by other means.

        Parameters
        ----------
        epsilon, delta
            How much.
        note
            What for.
        used
            Whether it counts as used at once: something was released, or will be, outside of this package.

        Raises
        ------
        BudgetExceededError
            It does not fit; or something Gaussian was charged already, so that the parting is final.
        """
        epsilon, delta = check_number("epsilon", epsilon, at_least=0.0), check_number("delta", delta, at_least=0.0)
        if epsilon == 0.0 and delta == 0.0:
            raise QueryError("epsilon and delta are both 0; give what is to be set aside")
        if not isinstance(note, str) or len(note) > 500:
            raise QueryError("note is not a short text; give at most 500 characters")
        self._append("reserve", {"epsilon": epsilon, "delta": delta, "note": note, "used": bool(used)})

    def open_run(
        self,
        kind: Kind,
        epsilon: float,
        delta: float,
        *,
        hold: bool = True,
        batches: Batches | None = None,
        unit: str = "row",
        sampler: str = "",
        model: str = "",
        marks: Callable[[bytes], Marks] | None = None,
        same_people: bool = False,
        token: str = "",
    ) -> Account:
        """Begin a run: see that the data are these people's and that there is room, and keep that room for it.

        Parameters
        ----------
        kind
            "gaussian" or "minibatch".
        epsilon, delta
            What the run is granted.
        hold
            Whether all of that is kept for the run until it ends, so that no other can take it on the way; if not, each
            charge takes what is left then.
        batches
            Of a minibatch run, what it may do; required there.
        unit
            Whom the run protects: the column that tells persons apart, or "row". The same for all runs of a ledger: a
            total over several would be a promise to nobody.
        sampler, model
            What they are called.
        marks
            Computes the marks of the data, given the key.
        same_people
            Data that were not seen before are about the same people: the decision of a person, written down.
        token
            A text by which to find the run again (:meth:`run_of`).

        Raises
        ------
        BudgetExceededError
            There is no room; it says what there would be room for.
        LedgerError
            The data were not seen before, and nobody said that they are the same people's.
        """
        epsilon, delta = check_number("epsilon", epsilon, above=0.0), check_delta(delta)
        if (batches is None) != (kind != "minibatch"):
            raise QueryError(f"kind = {kind!r}, batches = {batches!r}; minibatch runs, and no others, have batches")
        limit = Fraction(0 if batches is None else batches.steps)
        if kind == "gaussian":
            limit = Fraction(_gaussian_total(epsilon, delta)[0])
            if limit <= 0:
                raise QueryError(f"epsilon = {epsilon!r}, delta = {delta!r} pays for nothing at all; give more")
        found = None if marks is None else marks(self.key)

        def payload(state: _State) -> dict[str, Any]:
            return {
                "run": len(state.runs) + 1,
                "kind": kind,
                "epsilon": epsilon,
                "delta": delta,
                "limit": str(limit),
                "hold": bool(hold),
                "batches": None if batches is None else list(batches),
                "unit": unit[:200],
                "sampler": sampler[:200],
                "model": model[:200],
                "records": None if found is None else found.num_records,
                "columns": {} if found is None else found.columns,
                "same_people": bool(same_people),
                "token": token,
            }

        return Account(self, json.loads(self._append("open", payload).payload)["run"])

    def run_of(self, token: str) -> int | None:
        """Return the run that was opened with a token; None if there is none."""
        self.refresh()
        return next((number for number, run in self._state.runs.items() if token and run.token == token), None)

    def is_open(self, run: int) -> bool:
        """Whether a run may go on, as of the last entry that was read."""
        return self._state.runs[run].open

    def account(self, run: int) -> Account:
        """Return the account of a run that may go on."""
        self.refresh()
        status = self._state.runs.get(run)
        if status is None:
            raise LedgerError(f"the ledger {self.place!r} has no run {run}; it has {len(self._state.runs)}")
        if not status.open:
            raise LedgerError(f"run {run} of the ledger {self.place!r} has ended ({status.how}); begin another")
        return Account(self, run)

    def close_run(self, run: int, how: str = "given up") -> None:
        """End a run, so that what is held for it and not spent is free for others. It can then not go on."""
        self._append("close", {"run": run, "how": how})

    def close(self) -> None:
        """Let go of the file or the database."""
        self._storage.close()

    def _append(self, kind: str, payload: Any, *, patience: float | None = None) -> Row:
        """Add an entry if the rules allow it, durably; ``payload`` may be a function of how things stand."""
        from dpmcmc.privacy.storage import PATIENCE

        with self._lock:
            self._check_process()

            def decide(rows: list[Row]) -> Row:
                self._catch_up(rows)
                return self._state.entry(kind, payload(self._state) if callable(payload) else payload)

            row = self._storage.append(self._state.number, decide, patience=PATIENCE if patience is None else patience)
            self._state.absorb(row)
            return row

    def __reduce__(self) -> NoReturn:
        raise NotPrivateError("a Ledger cannot be copied or pickled; open it again by its name")


class Account:
    """What one run does with a ledger: it charges, durably, before it looks at a record."""

    def __init__(self, ledger: Ledger, run: int) -> None:
        self.ledger, self.run = ledger, run
        self._part = self.status.part

    @property
    def status(self) -> RunStatus:
        """How the run stands, as of the last entry that was read."""
        return self.ledger._state.runs[self.run]

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All charges of the run, in order."""
        return tuple(self.status.charges)

    def spent(self, meter: Meter) -> tuple[Fraction, Fraction, Fraction]:
        """Return what the run has spent, and of the slack of discrete noise ε and δ."""
        own = [charge for charge in self.charges if charge.meter == meter]
        return (
            sum((charge.spent for charge in own), Fraction(0)),
            sum((charge.lattice_epsilon for charge in own), Fraction(0)),
            sum((charge.lattice_delta for charge in own), Fraction(0)),
        )

    def charge(
        self,
        meter: Meter,
        spent: Fraction,
        lattice_epsilon: Fraction = Fraction(0),
        lattice_delta: Fraction = Fraction(0),
        what: Mapping[str, Any] | None = None,
    ) -> int:
        """Charge the run; when this returns, the charge is on disk. Return the number of the entry.

        Raises
        ------
        BudgetExceededError
            The ledger does not allow it. Nothing was charged.
        LedgerError
            The ledger could not be written. (It may have been: if a database was lost in the very moment.)
        """
        from dpmcmc.privacy.storage import PATIENCE_ON_THE_WAY

        payload = {
            "run": self.run,
            "part": self._part,
            "meter": meter,
            "spent": str(exact_cost("spent", spent)),
            "lattice_epsilon": str(exact_cost("lattice_epsilon", lattice_epsilon)),
            "lattice_delta": str(exact_cost("lattice_delta", lattice_delta)),
            "what": dict(what or {}),
        }
        return self.ledger._append("charge", payload, patience=PATIENCE_ON_THE_WAY).number

    def note_resumed(self, marks: Callable[[bytes], Marks] | None = None) -> None:
        """Write down that the run goes on here; its data must be those that the ledger knows.

        From then on no other process can charge the run: of a folder that was copied, or that two machines see, the
        last to go on does.
        """
        found = None if marks is None else marks(self.ledger.key)
        payload = {
            "run": self.run,
            "records": None if found is None else found.num_records,
            "columns": {} if found is None else found.columns,
        }
        self.ledger._append("resume", payload)
        self._part = self.status.part

    def close(self, how: str) -> None:
        """End the run."""
        self.ledger.close_run(self.run, how)

    def standing(self, delta: float | None = None) -> dict[str, Any]:
        """Return the ledger's total before and after this run, for its privacy statement."""
        self.ledger.refresh()
        state, own = self.ledger._state, self.status
        apart = (own.epsilon, own.delta) if own.kind == "minibatch" and own.charges else (0.0, 0.0)
        used = state.used_epsilon, state.used_delta
        mu_total, _, _ = state.pool()
        return {
            "name": state.name,
            "run": self.run,
            "total_epsilon": state.epsilon,
            "total_delta": state.delta,
            "mu_total": rounded_down(mu_total),
            "mu_before": rounded_up(state.spent - own.spent),
            "mu_after": rounded_up(state.spent),
            "apart_epsilon_before": rounded_up(used[0] - Fraction(apart[0])),
            "apart_delta_before": rounded_up(used[1] - Fraction(apart[1])),
            "apart_epsilon_after": rounded_up(used[0]),
            "apart_delta_after": rounded_up(used[1]),
            "left_epsilon": affordable_epsilon(state.free + own.held, state.delta if delta is None else delta),
            "left_delta": state.delta if delta is None else delta,
            "head": state.head,
        }


def affordable_epsilon(mu: Fraction, delta: float, most: float = 1e4) -> float:
    """Return the largest ε, rounded down to four digits, whose Gaussian budget at ``delta`` is at most ``mu``.

    0 if that is below a billionth of ``most``.
    """
    low, high = 1e-9 * most, most
    if mu <= 0 or low <= 0.0 or _gaussian_total(low, delta)[0] > mu:
        return 0.0
    if _gaussian_total(high, delta)[0] <= mu:
        return most
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _gaussian_total(middle, delta)[0] <= mu else (low, middle)
    unit = 10.0 ** (math.floor(math.log10(low)) - 3)
    for candidate in (round(low / unit) * unit, math.floor(low / unit) * unit):
        epsilon = float(f"{candidate:.4g}")
        if epsilon > 0.0 and _gaussian_total(epsilon, delta)[0] <= mu:
            return epsilon
    return 0.0


@lru_cache(256)
def _gaussian_total(epsilon: float, delta: float) -> tuple[float, Fraction, Fraction]:
    """Return what a Gaussian budget may spend: μ, and of the slack of discrete noise ε and δ."""
    budget = Budget(epsilon, delta)
    budget.reserve_lattice()
    _, lattice_epsilon, lattice_delta = budget.room
    return budget.total, lattice_epsilon, lattice_delta


def _hash(number: int, time: str, kind: str, payload: str, previous: str) -> str:
    text = json.dumps([number, time, kind, payload, previous], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class _State:
    """How a ledger stands after some entries, and the rules of what may come next."""

    def __init__(self) -> None:
        self.number, self.head = 0, _GENESIS
        self.epsilon = self.delta = 0.0
        self.name = self.key = ""
        self.runs: dict[int, RunStatus] = {}
        self.reserves: list[dict[str, Any]] = []
        self.known: dict[str, set[str]] = {}
        self.num_records: list[int] = []
        # Set apart by simple composition, and what of it is used.
        self.apart_epsilon = self.apart_delta = self.used_epsilon = self.used_delta = Fraction(0)
        # Of Gaussian queries: spent, and of the slack of discrete noise.
        self.spent = self.lattice_epsilon = self.lattice_delta = Fraction(0)
        self.fixed = False
        self._leeway = Fraction(1)

    # ------------------------------------------------------------------------------------------------- entries

    def absorb(self, row: Row) -> None:
        """Take an entry in, or say what is wrong with it."""
        try:
            if row.number != self.number + 1:
                raise LedgerError(f"it follows entry {self.number}: entries are missing")
            if row.previous != self.head:
                raise LedgerError("it does not hold the hash of the one before")
            if row.hash != _hash(row.number, row.time, row.kind, row.payload, row.previous):
                raise LedgerError("it was edited: its hash is another")
            self._leeway = _LEEWAY
            self._step(row.kind, json.loads(row.payload), row.time)()
        except DPMCMCError as error:
            raise LedgerError(f"the ledger is not as it was written: entry {row.number}: {error}") from None
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
            raise LedgerError(f"the ledger is not as it was written: entry {row.number} cannot be read") from None
        finally:
            self._leeway = Fraction(1)
        self.number, self.head = row.number, row.hash

    def entry(self, kind: str, payload: dict[str, Any]) -> Row:
        """Return an entry that may come next, or raise; nothing has changed until it is absorbed."""
        from dpmcmc.privacy.storage import Row

        number, now = self.number + 1, datetime.now(UTC).isoformat(timespec="seconds")
        self._step(kind, payload, now)
        text = json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return Row(number, now, kind, text, self.head, _hash(number, now, kind, text, self.head))

    def _step(self, kind: str, payload: dict[str, Any], time: str) -> Callable[[], None]:
        """Check that an entry may come next, and return what it does; nothing has changed until that is called."""
        steps: dict[str, Callable[[dict[str, Any], str], Callable[[], None]]] = {
            "create": self._create,
            "reserve": self._reserve,
            "open": self._open,
            "charge": self._charge,
            "resume": self._resume,
            "close": self._close,
        }
        if kind not in steps:
            raise LedgerError(f"it is of kind {kind!r}, which this version does not know; use a newer dpmcmc")
        if (kind == "create") != (self.number == 0):
            raise LedgerError("the first entry, and no other, makes the ledger")
        return steps[kind](payload, time)

    def _create(self, payload: dict[str, Any], time: str) -> Callable[[], None]:
        if _get(payload, "format", int) != _FORMAT:
            raise LedgerError(f"it has format {payload['format']}; this version reads {_FORMAT}")
        epsilon, delta = _epsilon_and_delta(payload)
        name, key = _get(payload, "name", str), _get(payload, "key", str)
        if len(bytes.fromhex(key)) != 32:
            raise LedgerError("its key has another length")

        def do() -> None:
            self.epsilon, self.delta, self.name, self.key = epsilon, delta, name, key

        return do

    def _reserve(self, payload: dict[str, Any], time: str) -> Callable[[], None]:
        epsilon, delta = (
            Fraction(check_number(name, _get(payload, name, float), at_least=0.0)) for name in ("epsilon", "delta")
        )
        grow = self._grown(epsilon, delta)
        used, note = _get(payload, "used", bool), _get(payload, "note", str)
        noted = {"time": time, "epsilon": float(epsilon), "delta": float(delta), "note": note}

        def do() -> None:
            grow()
            self.reserves.append(noted | {"used": used})
            if used:
                self.used_epsilon, self.used_delta = self.used_epsilon + epsilon, self.used_delta + delta

        return do

    def _grown(self, epsilon: Fraction, delta: Fraction) -> Callable[[], None]:
        """Set more apart: only before the first Gaussian charge, and as far as nothing is held of it."""
        apart_epsilon, apart_delta = self.apart_epsilon + epsilon, self.apart_delta + delta
        if self.fixed:
            raise BudgetExceededError(
                f"ε = {float(epsilon):.4g}, δ = {float(delta):.4g} cannot be set apart any more: a Gaussian run was "
                "charged, and from then on how the total is parted must not change, for that could follow what was "
                "released; set apart first what minibatch runs and others will need (`dpmcmc ledger reserve`)"
            )
        if apart_epsilon > Fraction(self.epsilon) or apart_delta > Fraction(self.delta):
            left = Fraction(self.epsilon) - self.apart_epsilon, Fraction(self.delta) - self.apart_delta
            raise BudgetExceededError(
                f"ε = {float(epsilon):.6g}, δ = {float(delta):.4g} was to be set apart, and "
                f"ε = {rounded_down(left[0]):.6g}, δ = {rounded_down(left[1]):.4g} is left of the total; ask for less"
            )
        if self.pool(apart_epsilon, apart_delta)[0] * self._leeway < self.held:
            raise BudgetExceededError(
                "what is to be set apart is held by Gaussian runs that have begun; wait until they have ended, or ask "
                "for less"
            )

        def do() -> None:
            self.apart_epsilon, self.apart_delta = apart_epsilon, apart_delta

        return do

    def _open(self, payload: dict[str, Any], time: str) -> Callable[[], None]:
        if _get(payload, "run", int) != len(self.runs) + 1:
            raise LedgerError(f"run {payload['run']} is not the next one")
        epsilon, delta = _epsilon_and_delta(payload)
        run = RunStatus(
            run=payload["run"],
            kind=_get(payload, "kind", str),
            epsilon=epsilon,
            delta=delta,
            sampler=_get(payload, "sampler", str),
            model=_get(payload, "model", str),
            num_records=_get(payload, "records", int, type(None)) or 0,
            begun=time,
            limit=_cost(payload, "limit"),
            hold=_get(payload, "hold", bool),
            batches=_batches(payload),
            unit=_get(payload, "unit", str),
            same_people=_get(payload, "same_people", bool),
            token=_get(payload, "token", str),
        )
        for other in self.runs.values():
            if (other.open or other.charges) and other.unit != run.unit:
                raise LedgerError(
                    f"this run protects {_whom(run.unit)}, and run {other.run} {_whom(other.unit)}; such promises do "
                    "not add up: use the same unit in the schema, or a ledger of its own"
                )
        take: Callable[[], None] = _nothing
        if (run.batches is None) != (run.kind != "minibatch") or (run.batches and run.limit != run.batches.steps):
            raise LedgerError(f"run {run.run} is {run.kind}, and what it may do does not fit that")
        if run.kind == "gaussian":
            if run.limit > Fraction(_gaussian_total(epsilon, delta)[0]) * self._leeway:
                raise LedgerError(f"run {run.run} may spend more than its ε and δ pay for")
            if run.hold and run.limit > self.free:
                raise self._refused(run)
        elif run.kind == "minibatch":
            take = self._taken_apart(run)
        else:
            raise LedgerError(f"run {run.run} is of kind {run.kind!r}, which is none")
        # After the budget: a guess of somebody's data is not told from the data by asking for too much.
        recognise = self._recognised(payload, run.same_people)

        def do() -> None:
            take()
            recognise()
            self.runs[run.run] = run

        return do

    def _refused(self, run: RunStatus) -> BudgetExceededError:
        could = affordable_epsilon(self.free, run.delta, most=run.epsilon)
        held = f" (and {rounded_up(self.held):.4g} is held by runs that may go on)" if self.held else ""
        remedy = (
            f"it could have ε = {could:g} at this δ"
            if could > 0.0
            else "there is room for none at this δ"
            + ("" if self.held else "; what was promised to these people is used up, and no setting changes that")
        )
        return BudgetExceededError(
            f"this run asks for ε = {run.epsilon:g}, δ = {run.delta:g} (μ = {float(run.limit):.4g}), and the ledger "
            f"has μ = {rounded_down(self.free):.4g} left of {rounded_down(self.pool()[0]):.4g}{held}; {remedy}"
        )

    def _taken_apart(self, run: RunStatus) -> Callable[[], None]:
        """Find (ε, δ) for a minibatch run: of what is set apart, or, while that may still be, of the rest."""
        epsilon, delta = Fraction(run.epsilon), Fraction(run.delta)
        taken = [
            other for other in self.runs.values() if other.kind == "minibatch" and other.open and not other.charges
        ]
        free_epsilon = self.apart_epsilon - self.used_epsilon - sum(Fraction(other.epsilon) for other in taken)
        free_delta = self.apart_delta - self.used_delta - sum(Fraction(other.delta) for other in taken)
        more = max(Fraction(0), epsilon - free_epsilon), max(Fraction(0), delta - free_delta)
        if not any(more):
            return _nothing
        if self.fixed:
            raise BudgetExceededError(
                f"this minibatch run asks for ε = {run.epsilon:g}, δ = {run.delta:g}, and of what is set apart for "
                f"such runs ε = {rounded_down(free_epsilon):.4g}, δ = {rounded_down(free_delta):.4g} is left; since a "
                "Gaussian run was charged no more can be set apart (that could follow what was released): ask for "
                'less, or use a Gaussian sampler ("auto", DPLaplace, DPHMC, DPPenalty)'
            )
        return self._grown(*more)

    def _recognised(self, payload: dict[str, Any], same_people: bool) -> Callable[[], None]:
        """See that the data are those of earlier runs, or that somebody said that they are about the same people."""
        columns = _get(payload, "columns", dict)
        columns = {name: _get(columns, name, str) for name in columns}
        records = _get(payload, "records", int, type(None))
        if columns and self.known and not same_people:
            shared = [name for name in columns if name in self.known]
            if records not in self.num_records or not shared or any(columns[n] not in self.known[n] for n in shared):
                changed = "their number of records is another" if records not in self.num_records else "they differ"
                raise LedgerError(
                    f"the data are not those that this ledger knows ({changed}); check the file. If they are about the "
                    "same people (a correction, a later export, other columns), say so: --same-people, or "
                    "same_people=True; other people take a ledger of their own"
                )

        def do() -> None:
            for name, mark in columns.items():
                self.known.setdefault(name, set()).add(mark)
            if columns and records not in self.num_records:
                self.num_records.append(records)

        return do

    def _charge(self, payload: dict[str, Any], time: str) -> Callable[[], None]:
        run = self._open_run(payload)
        charge = Charge(
            self.number + 1,
            _get(payload, "meter", str),
            _cost(payload, "spent"),
            _cost(payload, "lattice_epsilon"),
            _cost(payload, "lattice_delta"),
            _get(payload, "what", dict),
        )
        if (charge.meter == "mu") != (run.kind == "gaussian") or charge.meter not in ("mu", "steps", "check"):
            raise LedgerError(f"run {run.run} is {run.kind} and cannot be charged by {charge.meter!r}")
        if _get(payload, "part", int) != run.part:
            raise LedgerError(f"another process has gone on with run {run.run}; this one can charge it no more")
        if run.batches is not None:
            first = not run.charges
            limit = run.limit if charge.meter == "steps" else run.batches.check_limit * self._leeway
            before = sum((one.spent for one in run.charges if one.meter == charge.meter), Fraction(0))
            if before + charge.spent > limit:
                raise BudgetExceededError(
                    f"{charge.meter} = {float(charge.spent):.4g} was asked, and run {run.run} has "
                    f"{rounded_down(max(Fraction(0), limit - before)):.4g} left of what ε = {run.epsilon:g}, "
                    f"δ = {run.delta:g} pays for; stop here"
                )

            def set_apart() -> None:
                run.charges.append(charge)
                if first:
                    self.used_epsilon += Fraction(run.epsilon)
                    self.used_delta += Fraction(run.delta)

            return set_apart
        total, lattice_epsilon, lattice_delta = self.pool()
        if charge.spent > run.limit - run.spent:
            raise BudgetExceededError(
                f"μ = {float(charge.spent):.4g} was asked, and run {run.run} has "
                f"{rounded_down(run.limit - run.spent):.4g} left of what ε = {run.epsilon:g}, δ = {run.delta:g} pays "
                "for; stop here"
            )
        if not run.hold and charge.spent > self.free:
            raise BudgetExceededError(
                f"μ = {float(charge.spent):.4g} was asked, and the ledger has {rounded_down(self.free):.4g} left of "
                f"{rounded_down(total):.4g}; stop here"
            )
        if (
            self.lattice_epsilon + charge.lattice_epsilon > lattice_epsilon
            or self.lattice_delta + charge.lattice_delta > lattice_delta
        ):
            raise BudgetExceededError("the ledger's reserve for discrete noise is used up; stop here")

        def do() -> None:
            self.fixed = True
            run.charges.append(charge)
            run.spent += charge.spent
            self.spent += charge.spent
            self.lattice_epsilon += charge.lattice_epsilon
            self.lattice_delta += charge.lattice_delta

        return do

    def _resume(self, payload: dict[str, Any], time: str) -> Callable[[], None]:
        run, recognise = self._open_run(payload), self._recognised(payload, False)

        def do() -> None:
            recognise()
            run.part += 1

        return do

    def _close(self, payload: dict[str, Any], time: str) -> Callable[[], None]:
        run, how = self._open_run(payload), _get(payload, "how", str)

        def do() -> None:
            run.ended, run.how = time, how

        return do

    def _open_run(self, payload: dict[str, Any]) -> RunStatus:
        run = self.runs.get(_get(payload, "run", int))
        if run is None:
            raise LedgerError(f"there is no run {payload['run']}; there are {len(self.runs)}")
        if not run.open:
            raise LedgerError(f"run {run.run} has ended ({run.how})")
        return run

    # ---------------------------------------------------------------------------------------------------- sums

    def pool(self, apart_epsilon: Fraction | None = None, apart_delta: Fraction | None = None) -> tuple[Fraction, ...]:
        """Return what all Gaussian runs together may spend: μ, and of the slack of discrete noise ε and δ."""
        epsilon = Fraction(self.epsilon) - (self.apart_epsilon if apart_epsilon is None else apart_epsilon)
        delta = Fraction(self.delta) - (self.apart_delta if apart_delta is None else apart_delta)
        if epsilon <= 0 or delta <= 0 or rounded_down(epsilon) <= 0.0 or rounded_down(delta) <= 0.0:
            return Fraction(0), Fraction(0), Fraction(0)
        total, lattice_epsilon, lattice_delta = _gaussian_total(rounded_down(epsilon), rounded_down(delta))
        return Fraction(total), lattice_epsilon, lattice_delta

    @property
    def held(self) -> Fraction:
        """What is kept for runs that may go on."""
        return sum((run.held for run in self.runs.values()), Fraction(0))

    @property
    def free(self) -> Fraction:
        """Gaussian cost that anybody may take."""
        return max(Fraction(0), self.pool()[0] * self._leeway - self.spent - self.held)

    def check_sums(self) -> None:
        """Add everything up once more, apart from the rules: every run within its grant, all within the total."""
        charges = [charge for run in self.runs.values() for charge in run.charges if charge.meter == "mu"]
        spent = sum((charge.spent for charge in charges), Fraction(0))
        total, lattice_epsilon, lattice_delta = self.pool()
        within = (
            spent == self.spent <= total * _LEEWAY
            and sum((charge.lattice_epsilon for charge in charges), Fraction(0)) <= lattice_epsilon
            and sum((charge.lattice_delta for charge in charges), Fraction(0)) <= lattice_delta
            and self.used_epsilon <= self.apart_epsilon <= Fraction(self.epsilon)
            and self.used_delta <= self.apart_delta <= Fraction(self.delta)
        )
        if not within:
            raise LedgerError("the charges add up to more than the total")
        for run in self.runs.values():
            if run.kind == "gaussian" and run.spent > Fraction(_gaussian_total(run.epsilon, run.delta)[0]) * _LEEWAY:
                raise LedgerError(
                    f"run {run.run} was charged more than ε = {run.epsilon:g}, δ = {run.delta:g} pays for"
                )
            if run.batches is not None and run.limit > _steps_paid(run.epsilon, run.delta, run.batches):
                raise LedgerError(
                    f"run {run.run} may do more steps than ε = {run.epsilon:g}, δ = {run.delta:g} pays for"
                )

    def status(self, place: str) -> LedgerStatus:
        """Return all of it, for people."""
        return LedgerStatus(
            place=place,
            name=self.name,
            epsilon=self.epsilon,
            delta=self.delta,
            mu_total=rounded_down(self.pool()[0]),
            mu_spent=rounded_up(self.spent),
            mu_held=rounded_up(self.held),
            apart_epsilon=rounded_up(self.apart_epsilon),
            apart_delta=rounded_up(self.apart_delta),
            apart_used_epsilon=rounded_up(self.used_epsilon),
            apart_used_delta=rounded_up(self.used_delta),
            fixed=self.fixed,
            left_epsilon=affordable_epsilon(self.free, self.delta, most=self.epsilon),
            num_records=tuple(self.num_records),
            num_entries=self.number,
            head=self.head,
            # Copies: what was looked at does not change, and is not how the ledger counts.
            runs=tuple(replace(run, charges=list(run.charges)) for run in self.runs.values()),
            reserves=tuple(dict(noted) for noted in self.reserves),
        )


@lru_cache(256)
def _steps_paid(epsilon: float, delta: float, batches: Batches) -> float:
    """Return how many steps ε and δ pay for, less what the record check takes; a billionth more of ε, for rounding."""
    left = (
        rounded_down(Fraction(epsilon) * _LEEWAY - Fraction(batches.check_epsilon)),
        rounded_down(Fraction(delta) - Fraction(batches.check_delta)),
    )
    if min(left) <= 0.0:
        return 0.0
    budget = StepBudget(
        *left,
        noise_ratio=batches.noise_ratio,
        sampling_prob=batches.sampling_prob,
        scheme=batches.scheme,  # type: ignore[arg-type]
    )
    budget.reserve_lattice()
    return budget.total


def _whom(unit: str) -> str:
    return "rows" if unit == "row" else f"all rows of one {unit!r}"


def _batches(payload: dict[str, Any]) -> Batches | None:
    if _get(payload, "batches", list, type(None)) is None:
        return None
    steps, noise_ratio, sampling_prob, scheme, check_epsilon, check_delta = payload["batches"]
    numbers = (noise_ratio, sampling_prob, check_epsilon, check_delta)
    if type(steps) is not int or any(type(one) is not float for one in numbers) or scheme not in get_args(Scheme):
        raise LedgerError("what its batches are cannot be read")
    if not (steps >= 1 and 0.0 < sampling_prob <= 1.0 and noise_ratio > 0.0 and min(check_epsilon, check_delta) >= 0.0):
        raise LedgerError("what its batches are cannot be")
    return Batches(steps, noise_ratio, sampling_prob, scheme, check_epsilon, check_delta)


def _get(payload: dict[str, Any], name: str, *types: type) -> Any:
    """Return a value of an entry that has one of these types and none derived from them: True is no number."""
    if type(payload[name]) not in types:
        raise LedgerError(f"its {name!r} is of another type")
    return payload[name]


def _epsilon_and_delta(payload: dict[str, Any]) -> tuple[float, float]:
    epsilon, delta = _get(payload, "epsilon", float), _get(payload, "delta", float)
    return check_number("epsilon", epsilon, above=0.0), check_delta(delta)


def _cost(payload: dict[str, Any], name: str) -> Fraction:
    """Return a cost, which is written as a fraction."""
    text = _get(payload, name, str)
    if not _COST.fullmatch(text):
        raise LedgerError(f"its {name!r} is no cost")
    return Fraction(text)


def _nothing() -> None:
    """Change nothing."""
