"""The private room. It holds the records, is the only code that sees them, and answers with noised sums.

Order of every answer: check the question, draw the noise, charge the budget, and only then look at the
records. Nothing else comes out: no count, no error text, no shape and no control flow depends on a record's
values. (Running time is not protected: arithmetic on denormal numbers takes longer.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from numpy.typing import ArrayLike, NDArray

from dpmcmc.curator import records as placement
from dpmcmc.curator import sums
from dpmcmc.curator.batches import Batch
from dpmcmc.curator.noise import ExactNoise, NoiseSource
from dpmcmc.curator.oracle import AnyRelease, Moments, NotPrivateRelease, Oracle, Quantile, Release
from dpmcmc.curator.queries import (
    BatchGradient,
    ClipCount,
    Gradient,
    LogRatio,
    NormQuantile,
    Query,
    RatioGeometry,
    ScoreMoments,
)
from dpmcmc.errors import DataError, ModelError, NotPrivateError, QueryError
from dpmcmc.models import Model
from dpmcmc.privacy import Budget, StepBudget

# Below this lattice (tests of coarse lattices only) the regressions' closed form has no room.
_CLOSED_FORM_BOUND = 2**28
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
    """What a question costs, all chains together."""

    mu: float
    lattice_epsilon: float
    lattice_delta: float


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
        with exact_arithmetic():
            if self._stream is None:
                prepared, count = model.prepare_records(data)
            else:
                prepared, count = self._first_chunk(self._stream)
            counts = placement.rows_of_processes(count)
            self.num_records = sum(counts)
            if self.num_records < 2:
                raise DataError("data has 1 row; privacy by noise needs many people, give at least 2 rows")
            model.check(prepared)
            self._layout = placement.Layout.choose(counts, self._mesh)
            self._kernel = sums.make_kernel(model, prepared)
            closed = isinstance(self._kernel, sums.RegressionKernel)
            self._plain_kernel = sums.AutodiffKernel(model, prepared) if closed else self._kernel
            if self._stream is None:
                self._records = placement.place(self._kernel, prepared, self._layout)
            else:
                self._records = {}
                rows = self._rows_of_a_chunk()
                chunk = placement.pad_rows(self._kernel, prepared, min(rows, self.num_records), rows)
                self._chunk_shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), chunk)
        self._budget = self._check_budget(budget)
        self._compiled: dict[Any, Callable[..., Any]] = {}

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
        with exact_arithmetic():
            # Several processes must ask the same question: that of the first.
            batch, other = placement.agree(self._check_question(query, theta, proposal))
            # Evaluated once: what is charged is what is answered, even if a user's bound is not a pure function.
            geometry = self._geometry(query, batch, other)
            cost = self._cost(query, len(batch), geometry)
            # Several processes answer with the same noise: that of the first.
            noise = placement.agree(self._draw(query, len(batch)))
            if self.budget is not None:
                self.budget.spend(cost.mu, lattice_epsilon=cost.lattice_epsilon, lattice_delta=cost.lattice_delta)
            release = self._answer(query, batch, other, noise, self._host_total, geometry)
            release = jax.tree.map(np.asarray, release)
        return release if np.ndim(theta) == 2 else jax.tree.map(lambda leaf: leaf[0], release)

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

    def _cost(self, query: Query, chains: int, geometry: RatioGeometry | None) -> Cost:
        lattices = [query.lattice(self.num_records, self.model.dimension)]
        if isinstance(query, ScoreMoments):
            lattices.append(query.sum_query.lattice(self.num_records, self.model.dimension))
        if geometry is not None:
            mu = float(np.sum(np.asarray(geometry.mu)))
        else:
            assert query.mu is not None
            mu = chains * query.mu
        return Cost(
            mu,
            chains * sum(lattice.lattice_epsilon for lattice in lattices),
            chains * sum(lattice.lattice_delta for lattice in lattices),
        )

    def _draw(self, query: Query, chains: int) -> list[NDArray[np.int64]]:
        dimension = self.model.dimension
        lattice = query.lattice(self.num_records, dimension)
        noise = [self.noise.draw(lattice.noise_scale, (chains, lattice.numbers))]
        if isinstance(query, ScoreMoments):
            first = query.sum_query.lattice(self.num_records, dimension)
            noise.append(self.noise.draw(first.noise_scale, (chains, first.numbers)))
        return noise

    def _answer(
        self,
        query: Query,
        theta: Any,
        proposal: Any,
        noise: list[Any],
        total: Callable[..., Any],
        geometry: RatioGeometry | None = None,
    ) -> AnyRelease:
        """Add noise to the sums. Serves the host (``total`` runs compiled) and compiled code (it is traced)."""
        chains = len(theta)
        lattice = query.lattice(self.num_records, self.model.dimension)
        mu: Any = np.full(chains, query.mu)
        sd: Any
        value: Any
        match query:
            case Gradient():
                spacing = query.spacing(lattice)
                value = spacing * _noised(total(query, theta, None, spacing, float(lattice.bound)), noise[0])
                sd = np.full(chains, spacing * lattice.noise_scale)
            case LogRatio():
                if geometry is None:
                    geometry = query.geometry(jnp.asarray(theta), jnp.asarray(proposal), lattice)
                secret = total(query, theta, proposal, geometry.spacing, geometry.bound)
                value = geometry.spacing * _noised(secret, noise[0][:, 0])
                sd, mu = geometry.noise_sd, geometry.mu
            case NormQuantile():
                edges = np.asarray(query.edges)
                counts = total(query, theta, proposal, edges) * lattice.bound
                histogram = _noised(counts, noise[0]) / lattice.bound
                estimate = _read_quantile(histogram, edges, query.quantile * self.num_records)
                value = Quantile(estimate, histogram, np.broadcast_to(edges, (chains, len(edges))))
                sd = np.full(chains, lattice.noise_scale / lattice.bound)
            case ScoreMoments():
                first = self._answer(query.sum_query, theta, None, noise[1:], total)
                bound = 2.0 ** query.vector_bits(self.num_records)
                spacing = query.l2_clip_norm / bound
                matrix = total(query, theta, None, first.value / self.num_records, spacing, bound)
                value = Moments(first.value, spacing**2 * _add_symmetric(matrix, noise[0]))
                sd = Moments(first.noise_sd, np.full(chains, spacing**2 * lattice.noise_scale))
            case ClipCount():
                counts = total(query, theta, proposal, query.threshold) * lattice.bound
                value = _noised(counts, noise[0][:, 0]) / lattice.bound
                sd = np.full(chains, lattice.noise_scale / lattice.bound)
        release_type = Release if self.private else NotPrivateRelease
        return release_type(value, jax.tree.map(lambda leaf: leaf * self.noise.multiplier, sd), mu)

    # ------------------------------------------------------------------ secret: exact sums over the records

    def _traced_total(
        self, records: Any, query: Query, theta: jax.Array, proposal: jax.Array | None, *public: Any
    ) -> jax.Array:
        """Return the un-noised integer sums. Secret: no caller may let them out without noise."""
        if self._stream is not None:
            return self._traced_stream_total(query, theta, proposal, *public)
        return self._tile_total(records, query, theta, proposal, *public)

    def _tile_total(
        self, records: Any, query: Query, theta: jax.Array, proposal: jax.Array | None, *public: Any
    ) -> jax.Array:
        kernel = self._kernel_for(query)
        arguments = [theta, *([] if proposal is None else [proposal]), *public]
        tile_sum = _tile_sum(query, kernel, proposal is not None)
        return placement.sum_over_tiles(
            self._mesh,
            kernel,
            self.num_records,
            tile_sum,
            records,
            *map(jnp.asarray, arguments),
            gradient=proposal is None,
        )

    def _kernel_for(self, query: Query) -> sums.Kernel:
        """Return the model's kernel, or plain differentiation where a test's lattice is too coarse for it."""
        coarse = isinstance(query, Gradient) and query.lattice(self.num_records, 1).bound < _CLOSED_FORM_BOUND
        return self._plain_kernel if coarse else self._kernel

    def _host_total(self, query: Query, theta: Any, proposal: Any, *public: Any) -> NDArray[np.int64]:
        """Return the same, compiled once for each kind of question and number of chains."""
        key = (
            query.kind,
            len(theta),
            proposal is None,
            type(self._kernel_for(query)),
            *map(np.shape, public),
        )
        if key not in self._compiled:
            self._compiled[key] = jax.jit(
                lambda records, theta, proposal, public: self._tile_total(records, query, theta, proposal, *public),
                compiler_options=placement.COMPILER_OPTIONS,
            )
        if self._stream is None:
            return np.asarray(self._compiled[key](self._records, theta, proposal, public))
        total: Any = 0
        rows = self._rows_of_a_chunk()
        for chunk in self._stream.chunks(rows):
            prepared, count = self.model.prepare_records(chunk)
            padded = placement.pad_rows(self._kernel, prepared, count, rows)
            total = total + np.asarray(self._compiled[key](padded, theta, proposal, public))
        return np.asarray(total)

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
        first, _ = self.model.prepare_records(next(chunks))
        chunks.close()  # type: ignore[attr-defined]
        return first, stream.num_records

    def _traced_stream_total(
        self, query: Query, theta: jax.Array, proposal: jax.Array | None, *public: Any
    ) -> jax.Array:
        """Leave compiled code, add up all chunks, and come back with integers. They are noised inside, as always."""

        def from_host(*arguments: Any) -> NDArray[np.int64]:
            def work() -> NDArray[np.int64]:
                with exact_arithmetic():
                    values = [np.asarray(argument) for argument in arguments]
                    other = values[1] if proposal is not None else None
                    return self._host_total(query, values[0], other, *values[1 + (proposal is not None) :])

            # In a thread of its own: compiled code may not be run from within compiled code's own thread.
            with ThreadPoolExecutor(max_workers=1) as beside:
                return beside.submit(work).result()

        arguments = [jnp.asarray(argument) for argument in (theta, *([] if proposal is None else [proposal]), *public)]
        shape = jax.eval_shape(
            lambda records, theta, proposal, public: self._tile_total(records, query, theta, proposal, *public),
            self._chunk_shapes,
            theta,
            proposal,
            public,
        )
        result: jax.Array = io_callback(from_host, shape, *arguments)
        return result

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

    def oracle(self, gradient: Gradient | BatchGradient | None, log_ratio: LogRatio | None) -> Callable[[Any], Oracle]:
        """Return ``bind(records) -> Oracle``, to be called on traced records inside a compiled block.

        The caller charges the budget for the whole block beforehand, draws the noise that the oracle's functions take
        (``noise_scale`` of the queries' lattices) and compiles with ``COMPILER_OPTIONS``. See :class:`Oracle`.
        """

        def bind(records: Any) -> Oracle:
            total = partial(self._traced_total, records)

            def answer_gradient(theta: jax.Array, noise: jax.Array) -> AnyRelease:
                if not isinstance(gradient, Gradient):
                    raise QueryError("this sampler declared no gradient query, so its oracle answers none")
                return self._answer(gradient, theta, None, [noise], total)

            def answer_log_ratio(theta: jax.Array, proposal: jax.Array, noise: jax.Array) -> AnyRelease:
                if log_ratio is None:
                    raise QueryError("this sampler declared no log-ratio query, so its oracle answers none")
                return self._answer(log_ratio, theta, proposal, [noise[:, None]], total)

            def answer_batch_gradient(theta: jax.Array, batch: Batch, noise: jax.Array) -> AnyRelease:
                if self._stream is not None:
                    raise QueryError("minibatch samplers look up random rows; load the records into memory for them")
                if not isinstance(gradient, BatchGradient):
                    raise QueryError("this sampler declared no batch gradient, so its oracle answers none")
                return self._answer_batch(records, gradient, theta, batch, noise)

            return Oracle(answer_gradient, answer_log_ratio, answer_batch_gradient)

        return bind

    def _answer_batch(
        self, records: Any, query: BatchGradient, theta: jax.Array, batch: Batch, noise: jax.Array
    ) -> AnyRelease:
        lattice = query.lattice(self.num_records, self.model.dimension)
        spacing, bound = jnp.asarray(query.spacing(lattice)), jnp.asarray(float(lattice.bound))
        kernel = self._kernel if lattice.bound >= _CLOSED_FORM_BOUND else self._plain_kernel
        total = placement.sum_over_batches(
            self._layout,
            kernel,
            query.rows(self.num_records),
            lambda tile, one_theta: kernel.gradient_sum(tile, one_theta, spacing, bound),
            records,
            theta,
            batch,
        )
        release_type = Release if self.private else NotPrivateRelease
        sd = np.full(len(theta), query.spacing(lattice) * lattice.noise_scale * self.noise.multiplier)
        return release_type(spacing * _noised(total, noise), sd, np.full(len(theta), np.nan))

    def noise_free_oracle_not_private(
        self, gradient_clip: float | None, ratio_clip: float | None
    ) -> Callable[[Any], Oracle]:
        """Like ``oracle``, with no noise, for research samplers; None: no clipping.

        Refused by a private curator.
        """
        if self.private:
            raise NotPrivateError("a private curator has no noise-free oracle; use noise=NoNoiseNotPrivate()")
        if self._stream is not None:
            raise QueryError("samplers without noise need the records in memory; load the file first")

        def bind(records: Any) -> Oracle:
            def add_up(
                tile_sum: Callable[..., Any], *public: jax.Array, gradient: bool, dtype: Any = jnp.float64
            ) -> jax.Array:
                return placement.sum_over_tiles(
                    self._mesh,
                    self._kernel,
                    self.num_records,
                    tile_sum,
                    records,
                    *public,
                    gradient=gradient,
                    dtype=dtype,
                )

            def clipped_gradient(*public: jax.Array) -> jax.Array:
                clip = partial(add_up, self._kernel.gradient_sum, *public, gradient=True, dtype=jnp.int64)
                if not isinstance(self._kernel, sums.AutodiffKernel):
                    return clip()
                total = add_up(self._kernel.gradient_sum_not_private, *public, gradient=True, dtype=jnp.int64)
                return jax.lax.cond(jnp.all(total[:, -1] == 0), lambda: total[:, :-1], clip)

            def gradient(theta: jax.Array, noise: jax.Array) -> AnyRelease:
                if gradient_clip is None:
                    value = add_up(partial(sums.plain_gradient_sum, self._kernel), theta, gradient=True)
                else:
                    # The sums of private runs, which are faster; their lattice is far below what a gradient needs.
                    query = Gradient(gradient_clip, 1.0)
                    lattice = query.lattice(self.num_records, self.model.dimension)
                    spacing = query.spacing(lattice)
                    public = theta, jnp.asarray(spacing), jnp.asarray(float(lattice.bound))
                    value = spacing * clipped_gradient(*public)
                return NotPrivateRelease(value, jnp.zeros(len(theta)), jnp.zeros(len(theta)))

            def log_ratio(theta: jax.Array, proposal: jax.Array, noise: jax.Array) -> AnyRelease:
                zeros = jnp.zeros(len(theta))
                if ratio_clip is None:
                    total = add_up(partial(sums.plain_ratio_sum, self._kernel), theta, proposal, gradient=False)
                    return NotPrivateRelease(total, zeros, zeros, clipped=zeros)
                query = LogRatio(ratio_clip, noise_multiplier=1.0)
                geometry = query.geometry(theta, proposal, query.lattice(self.num_records))
                public = theta, proposal, geometry.spacing, geometry.bound
                counted = partial(sums.counted_ratio_sum, self._kernel)
                total = add_up(counted, *public, gradient=False, dtype=jnp.int64)
                clipped = total[:, 1] / self.num_records
                return NotPrivateRelease(geometry.spacing * total[:, 0], zeros, zeros, clipped=clipped)

            def no_batches(theta: jax.Array, batch: Batch, noise: jax.Array) -> AnyRelease:
                raise QueryError("the noise-free oracle has no batches")

            return Oracle(gradient, log_ratio, no_batches)

        return bind


def _tile_sum(query: Query, kernel: sums.Kernel, with_proposal: bool) -> Callable[..., jax.Array]:
    """Return the function that sums one tile for this kind of query; its arguments after the tile are public."""
    match query:
        case Gradient():
            return kernel.gradient_sum
        case LogRatio():

            def log_ratio(
                tile: sums.Tile, theta: jax.Array, proposal: jax.Array, spacing: jax.Array, bound: jax.Array
            ) -> jax.Array:
                return sums.ratio_sum(sums.log_ratios(kernel, tile, theta, proposal), spacing, bound, tile["real"])

            return log_ratio
        case ScoreMoments():

            def second_moment(
                tile: sums.Tile, theta: jax.Array, center: jax.Array, spacing: jax.Array, bound: jax.Array
            ) -> jax.Array:
                def centred() -> list[jax.Array]:
                    scores = kernel.scores(tile, theta)
                    return [score.astype(jnp.float64) - center[:, j, None] for j, score in enumerate(scores)]

                integers = sums.clip_to_lattice(centred, spacing, bound, tile)
                vectors = jnp.stack(integers, axis=1).astype(jnp.float64)
                return jnp.einsum("cib,cjb->cij", vectors, vectors)

            return second_moment
        case NormQuantile():

            def histogram(tile: sums.Tile, theta: jax.Array, *rest: jax.Array) -> jax.Array:
                size, counts = sums.magnitudes(kernel, tile, theta, rest[0] if with_proposal else None)
                position = jnp.sum(size[..., None] >= rest[-1], axis=-1)
                bins = position[..., None] == jnp.arange(rest[-1].size + 1)
                return jnp.sum(jnp.where(counts[..., None], bins, False), axis=-2)

            return histogram
        case ClipCount():

            def count(tile: sums.Tile, theta: jax.Array, *rest: jax.Array) -> jax.Array:
                size, counts = sums.magnitudes(kernel, tile, theta, rest[0] if with_proposal else None)
                return jnp.sum(counts & (size > rest[-1]), axis=-1)

            return count


def _read_quantile(histogram: NDArray[Any], edges: NDArray[Any], target: float) -> NDArray[Any]:
    """Return the upper edge of the bin where the noisy cumulated count first reaches ``target``; the last if none."""
    cumulated = np.cumsum(histogram, axis=-1)[:, : len(edges)]
    reached = cumulated >= target
    first = np.where(reached.any(axis=-1), reached.argmax(axis=-1), len(edges) - 1)
    return np.asarray(edges[first])


def _noised(total: Any, noise: Any) -> Any:
    """Add noise to secret integers, one draw for each: shapes must agree, so that no draw is ever used twice."""
    if total.shape != noise.shape:
        raise QueryError(f"noise of shape {noise.shape} does not fit sums of shape {total.shape}; nothing was released")
    return total + noise


def _add_symmetric(matrix: Any, noise: Any) -> NDArray[np.int64]:
    """Add one draw of noise to each entry of the upper triangle, and mirror it."""
    row, column = np.triu_indices(matrix.shape[-1])
    noisy = np.zeros(matrix.shape, np.int64)
    noisy[:, row, column] = _noised(matrix[:, row, column], noise)
    noisy[:, column, row] = noisy[:, row, column]
    return noisy
