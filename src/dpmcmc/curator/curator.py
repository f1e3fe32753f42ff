"""The private room. It holds the records, is the only code that sees them, and answers with noised sums.

Order of every answer: check the question, draw the noise, charge the budget, and only then look at the
records. Nothing else comes out: no count, no error text, no shape and no control flow depends on a record's
values. (Running time is not protected: arithmetic on denormal numbers takes longer.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from numpy.typing import ArrayLike, NDArray

from dpmcmc.curator import records as placement
from dpmcmc.curator.noise import ExactNoise, NoiseSource
from dpmcmc.curator.oracle import AnyRelease
from dpmcmc.curator.passes import Bind, Passes, passes_for, structure_of
from dpmcmc.curator.queries import BatchGradient, Gradient, Lattice, LogRatio, Query, RatioGeometry, ScoreMoments
from dpmcmc.errors import DataError, DPMCMCError, ModelError, NotPrivateError, QueryError, RunError
from dpmcmc.models import Model, rowwise
from dpmcmc.privacy import Budget, StepBudget

# About as many rows of streamed records are in memory at a time (twice: the next ones are read beside).
_CHUNK_ROWS = 2**18


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Double precision for what runs inside, and none of JAX's switches that report on values.

    ``jax_debug_nans`` raises when some record yields a NaN, which would reveal that there is one; so do NumPy's
    floating-point warnings. Without compilation a model's own Python code would see records. A matrix product of
    integers must not be rounded, whatever precision the user has set.
    """
    with (
        jax.enable_x64(True),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
        jax.default_matmul_precision("highest"),
        np.errstate(all="ignore"),
    ):
        yield


@runtime_checkable
class Stream(Protocol):
    """Records that are read again for every question, a chunk at a time: see :class:`dpmcmc.data.ParquetRecords`."""

    num_records: int

    def chunks(self, rows: int) -> Iterator[Any]:
        """Yield all records in order, ``rows`` at a time; the last chunk may be shorter."""
        ...


class Cost(NamedTuple):
    """What a question costs, all chains together, exactly."""

    mu: Fraction
    lattice_epsilon: Fraction
    lattice_delta: Fraction


class Curator:
    """Holds the records and answers private questions about them.

    Parameters
    ----------
    model
        A :class:`~dpmcmc.models.Model`.
    data
        The records, one row per person: what ``model.prepare_records`` takes. At least two rows.
    budget
        Pays for every answer. Required with exact noise. May be a function of the (public) number of records.
    noise
        Default: :class:`ExactNoise`. With any other source answers are :class:`NotPrivateRelease`.
    devices
        Number or list of JAX devices over which the records are spread. Default: the first.

    Notes
    -----
    Neighbouring data sets differ in one row (replace one), so the number of rows is public.
    """

    def __init__(
        self,
        model: Model,
        data: Any,
        budget: Budget | StepBudget | Callable[[int], Budget | StepBudget] | None = None,
        *,
        noise: NoiseSource | None = None,
        devices: int | Sequence[jax.Device] | None = None,
    ) -> None:
        if not isinstance(model, Model):
            raise ModelError(f"model must be a dpmcmc.Model, got {type(model).__name__}; see dpmcmc.from_numpyro")
        self._noise: NoiseSource = ExactNoise() if noise is None else noise
        self.model = model
        self._mesh = placement.make_mesh(devices)
        self._stream = data if isinstance(data, Stream) else None
        self._stream_error = ""
        with exact_arithmetic():
            if self._stream is None:
                prepared, count = rowwise.prepare(model, data)
            else:
                prepared, count = self._first_chunk(self._stream)
            counts = placement.rows_of_processes(count)
            self.num_records = sum(counts)
            if self.num_records < 2:
                raise DataError("data has 1 row; privacy by noise needs many people, give at least 2 rows")
            self._passes = passes_for(
                model,
                prepared,
                placement.Layout.choose(counts, self._mesh),
                private=self.private,
                multiplier=self._noise.multiplier,
                stream_total=None if self._stream is None else self._traced_stream_total,
            )
            kernel = self._passes.kernel
            if self._stream is None:
                self._records = placement.place(kernel, prepared, self._passes.layout)
            else:
                self._records = {}
                rows = self._rows_of_a_chunk()
                chunk = placement.pad_rows(kernel, prepared, min(rows, self.num_records), rows)
                self._chunk_shapes = structure_of(chunk)
        self._budget = self._check_budget(budget)

    @property
    def noise(self) -> NoiseSource:
        """Where the noise comes from. Fixed for the curator's life, like the budget."""
        return self._noise

    @property
    def private(self) -> bool:
        """Whether answers are private: only with exact noise, and no subclass of it."""
        return type(self._noise) is ExactNoise

    @property
    def budget(self) -> Budget | StepBudget | None:
        """What pays for the answers."""
        return self._budget

    def _check_budget(self, budget: Any) -> Budget | StepBudget | None:
        if callable(budget):
            budget = budget(self.num_records)
        if budget is None and not self.private:
            return None
        if not isinstance(budget, Budget | StepBudget):
            raise QueryError(
                f"budget must be a dpmcmc.Budget(epsilon, delta), got {type(budget).__name__}; nothing private is free"
            )
        budget.reserve_lattice()
        return budget

    def __repr__(self) -> str:
        return f"Curator(model={self.model.name!r}, num_records={self.num_records}, {self.noise.description})"

    def __reduce__(self) -> NoReturn:
        raise NotPrivateError("a Curator holds the records and cannot be pickled or copied out of its process")

    # ------------------------------------------------------------------ questions from the host

    def ask(self, query: Query, theta: ArrayLike, proposal: ArrayLike | None = None) -> AnyRelease:
        """Answer one question, for one parameter vector or for a batch of chains in one pass over the data.

        Parameters
        ----------
        query
            What to release.
        theta
            Unconstrained parameters, of shape dimension or chains × dimension.
        proposal
            The other end of a log-ratio, of the same shape.

        Returns
        -------
        :class:`Release`, or :class:`NotPrivateRelease` if the noise is not exact.

        Raises
        ------
        QueryError
            The question is malformed. Nothing was spent.
        BudgetExceededError
            The budget does not allow it. Nothing was spent.
        """
        if isinstance(self.budget, StepBudget):
            raise QueryError(
                "this curator's budget pays for batch gradients only; give it a dpmcmc.Budget to ask others"
            )
        return self.ask_from(self.budget, query, theta, proposal)

    def ask_from(
        self, budget: Budget | None, query: Query, theta: ArrayLike, proposal: ArrayLike | None = None
    ) -> AnyRelease:
        """Answer a question that another budget pays for: one that was set apart from the curator's own."""
        if self.private and not isinstance(budget, Budget):
            raise QueryError(f"budget must be a dpmcmc.Budget, got {type(budget).__name__}; nothing private is free")
        with exact_arithmetic():
            # Several processes must ask the same question: that of the first.
            batch, other = placement.agree(self._check_question(query, theta, proposal))
            # Evaluated once: what is charged is what is answered, even if a user's bound is not a pure function.
            geometry = self._geometry(query, batch, other)
            cost = self._cost(query, len(batch), geometry)
            # Several processes answer with the same noise: that of the first.
            noise = placement.agree(self._draw(query, len(batch)))
            self._compile(query, batch, other, geometry)
            if budget is not None:
                budget.spend(cost.mu, lattice_epsilon=cost.lattice_epsilon, lattice_delta=cost.lattice_delta)
            release = self._passes.answer(query, batch, other, noise, self._host_total, geometry)
            self.raise_stream_error()
            release = jax.tree.map(np.asarray, release)
        return release if np.ndim(theta) == 2 else jax.tree.map(lambda leaf: leaf[0], release)

    def compile(self, query: Query, theta: ArrayLike, proposal: ArrayLike | None = None) -> None:
        """Compile what ``ask`` with the same arguments will run. Looks at no record and spends nothing."""
        with exact_arithmetic():
            batch, other = self._check_question(query, theta, proposal)
            self._compile(query, batch, other, self._geometry(query, batch, other))

    def _compile(self, query: Query, theta: Any, proposal: Any, geometry: RatioGeometry | None) -> None:
        def total(query: Query, *arguments: Any) -> NDArray[np.int64]:
            shape = self._compiled_total(query, *arguments).out_info
            return np.zeros(shape.shape, np.int64)

        noise = [np.zeros((len(theta), lattice.numbers), np.int64) for lattice in self._lattices(query)]
        self._passes.answer(query, theta, proposal, noise, total, geometry)

    def cost(self, query: Query, theta: ArrayLike, proposal: ArrayLike | None = None) -> Cost:
        """Return what ``ask`` with the same arguments would charge. Spends nothing."""
        with exact_arithmetic():
            batch, other = self._check_question(query, theta, proposal)
            return self._cost(query, len(batch), self._geometry(query, batch, other))

    def _check_question(
        self, query: Query, theta: ArrayLike, proposal: ArrayLike | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        if not isinstance(query, Query):
            raise QueryError(f"query must be one of {[q.__name__ for q in Query.__args__]}, got {type(query).__name__}")
        wants_proposal = isinstance(query, LogRatio) or getattr(query, "of", "gradient") == "log_ratio"
        if wants_proposal and proposal is None:
            raise QueryError(f"a {query.kind} query of log-ratios needs a proposal; give proposal=...")
        if not wants_proposal and proposal is not None:
            raise QueryError(f"a {query.kind} query of gradients takes no proposal; leave it out")
        batch = self._check_parameters("theta", theta)
        if proposal is None:
            return batch, None
        other = self._check_parameters("proposal", proposal)
        if other.shape != batch.shape or np.ndim(theta) != np.ndim(proposal):
            raise QueryError(
                f"proposal has shape {np.shape(proposal)}, theta {np.shape(theta)}; they must have the same shape"
            )
        return batch, other

    def _check_parameters(self, name: str, value: ArrayLike) -> NDArray[np.float64]:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise QueryError(f"{name} must be numeric, got dtype {array.dtype}")
        if array.ndim not in (1, 2) or array.shape[-1] != self.model.dimension or array.shape[0] == 0:
            raise QueryError(
                f"{name} has shape {array.shape}; this model has {self.model.dimension} unconstrained parameters, "
                f"so give ({self.model.dimension},) or (chains, {self.model.dimension})"
            )
        if not np.all(np.isfinite(array)):
            raise QueryError(f"{name} has NaN or infinite entries; give finite parameters")
        return np.atleast_2d(array.astype(np.float64))

    def _geometry(self, query: Query, theta: Any, proposal: Any) -> RatioGeometry | None:
        """Return the public numbers of a log-ratio; None for other queries."""
        if not isinstance(query, LogRatio):
            return None
        geometry = query.geometry(jnp.asarray(theta), jnp.asarray(proposal), query.lattice(self.num_records))
        if not bool(jnp.all(jnp.isfinite(geometry.spacing) & (geometry.spacing >= 0.0))):
            raise QueryError("bound(theta, proposal) must be finite and non-negative; check the log-ratio's bound")
        return geometry

    def _lattices(self, query: Query) -> list[Lattice]:
        """Return the lattices of what is released together, in the order in which noise is drawn."""
        parts: list[Query] = [query, *([query.sum_query] if isinstance(query, ScoreMoments) else [])]
        return [part.lattice(self.num_records, self.model.dimension) for part in parts]

    def _cost(self, query: Query, chains: int, geometry: RatioGeometry | None) -> Cost:
        lattices = self._lattices(query)
        costs = [query.mu] * chains if geometry is None else np.asarray(geometry.mu).tolist()
        return Cost(
            sum(map(Fraction, costs), Fraction(0)),
            chains * sum((Fraction(lattice.lattice_epsilon) for lattice in lattices), Fraction(0)),
            chains * sum((Fraction(lattice.lattice_delta) for lattice in lattices), Fraction(0)),
        )

    def _draw(self, query: Query, chains: int) -> list[NDArray[np.int64]]:
        return [self.noise.draw(lattice.noise_scale, (chains, lattice.numbers)) for lattice in self._lattices(query)]

    # ------------------------------------------------------------------ secret: exact sums over the records

    def _compiled_total(self, query: Query, theta: Any, proposal: Any, *public: Any) -> Any:
        records = self._records if self._stream is None else self._chunk_shapes
        return self._passes.compiled_total(records, query, theta, proposal, public)

    def _host_total(self, query: Query, theta: Any, proposal: Any, *public: Any) -> NDArray[np.int64]:
        """Return the un-noised integer sums. Secret: no caller may let them out without noise."""
        compiled = self._compiled_total(query, theta, proposal, *public)
        if self._stream is None:
            return np.asarray(compiled(self._records, theta, proposal, public))
        total = np.zeros(compiled.out_info.shape, np.int64)
        rows = self._rows_of_a_chunk()
        # A reader's own error could quote a value, and compiled code would print it. So it goes no further than this:
        # the sum is then 0, and whoever asked finds the error in `raise_stream_error`.
        try:
            for chunk in [] if self._stream_error else self._stream.chunks(rows):
                prepared, count = rowwise.prepare(self.model, chunk)
                padded = placement.pad_rows(self._passes.kernel, prepared, count, rows)
                total = total + np.asarray(compiled(padded, theta, proposal, public))
        except Exception as error:
            known = isinstance(error, DPMCMCError)
            self._stream_error = str(error) if known else f"the records could not be read ({type(error).__name__})"
        return np.zeros_like(total) if self._stream_error else total

    def raise_stream_error(self) -> None:
        """Raise if streamed records could not be read; what was answered since then is worthless."""
        if self._stream_error:
            raise RunError(self._stream_error)

    # ------------------------------------------------------------------ secret: records that do not fit into memory

    def _rows_of_a_chunk(self) -> int:
        """Return a whole number of tiles, about 2^18 rows. A function of the number of records."""
        assert self._stream is not None
        unit = 2 * placement.largest_tile(self._stream.num_records)
        return max(1, _CHUNK_ROWS // unit) * unit

    def _first_chunk(self, stream: Stream) -> tuple[Any, int]:
        """Return the first chunk, for its shapes and dtypes, and the number of all records."""
        if jax.process_count() > 1 or self._mesh.size > 1:
            raise DataError("streamed records are read by one process onto one device; leave devices out")
        if stream.num_records < 1:
            raise DataError("data has 0 rows; give at least one record.")
        chunks = stream.chunks(self._rows_of_a_chunk())
        first, _ = rowwise.prepare(self.model, next(chunks))
        chunks.close()  # type: ignore[attr-defined]
        return first, stream.num_records

    def _traced_stream_total(
        self, query: Query, theta: jax.Array, proposal: jax.Array | None, *public: Any
    ) -> jax.Array:
        """Leave compiled code, add up all chunks, and come back with integers. They are noised inside, as always."""

        def from_host(*words: Any) -> NDArray[np.uint32]:
            def work() -> NDArray[np.int64]:
                with exact_arithmetic():
                    values = [np.asarray(one).view(np.float64)[..., 0] for one in words]
                    other = values[1] if proposal is not None else None
                    return self._host_total(query, values[0], other, *values[1 + (proposal is not None) :])

            # In a thread of its own: compiled code may not be run from within compiled code's own thread.
            with ThreadPoolExecutor(max_workers=1) as beside:
                return beside.submit(work).result()[..., None].view(np.uint32)

        arguments = [jnp.asarray(argument) for argument in (theta, *([] if proposal is None else [proposal]), *public)]
        shape = jax.eval_shape(
            lambda records, theta, proposal, public: self._passes.tile_total(records, query, theta, proposal, *public),
            self._chunk_shapes,
            theta,
            proposal,
            public,
        ).shape
        # As words of 32 bits: JAX calls back from a thread of its own, in which 64 bits may be switched off.
        words = [jax.lax.bitcast_convert_type(one.astype(jnp.float64), jnp.uint32) for one in arguments]
        result = io_callback(from_host, jax.ShapeDtypeStruct((*shape, 2), jnp.uint32), *words)
        return jax.lax.bitcast_convert_type(result, jnp.int64)

    # ------------------------------------------------------------------ questions from compiled code

    @property
    def secret_records(self) -> Any:
        """The placed records, to be passed as an argument to a compiled block that binds an oracle. Nothing else."""
        return self._records

    @property
    def draws_noise(self) -> bool:
        """Whether this process draws the noise: of several, only the first does; it is then agreed upon."""
        return jax.process_index() == 0

    def agree(self, tree: Any) -> Any:
        """Return the first process's values, replicated on the curator's devices."""
        return placement.replicate(self._mesh, placement.agree(tree))

    @property
    def replicated(self) -> jax.sharding.NamedSharding:
        """How a public array lies on the curator's devices: a copy on each."""
        return jax.sharding.NamedSharding(self._mesh, jax.sharding.PartitionSpec())

    @property
    def passes(self) -> Passes:
        """The compiled side: programs that hold no records."""
        return self._passes

    def oracle(self, gradient: Gradient | BatchGradient | None, log_ratio: LogRatio | None) -> Bind:
        """Return ``bind(records) -> Oracle``; see :meth:`dpmcmc.curator.passes.Passes.oracle`."""
        return self._passes.oracle(gradient, log_ratio)

    def noise_free_oracle_not_private(self, gradient_clip: float | None, ratio_clip: float | None) -> Bind:
        """Like ``oracle``, with no noise, for research samplers; None: no clipping.

        Refused by a private curator.
        """
        if self.private:
            raise NotPrivateError("a private curator has no noise-free oracle; use noise=NoNoiseNotPrivate()")
        if self._stream is not None:
            raise QueryError("samplers without noise need the records in memory; load the file first")
        return self._passes.noise_free_oracle_not_private(gradient_clip, ratio_clip)
