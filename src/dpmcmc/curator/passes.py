"""Passes over the records, as compiled code: sums, the noise added to them, and the oracle that a sampler is handed.

Nothing here holds a record, a budget or a source of noise: records and noise come in as arguments. What is compiled for
one set of records can therefore be kept and used again for any other of the same shapes (:func:`passes_for`); settings
such as clip norms are inputs of the compiled code, not part of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from dpmcmc.curator import records as placement
from dpmcmc.curator import sums
from dpmcmc.curator.batches import Batch
from dpmcmc.curator.oracle import AnyRelease, Moments, NotPrivateRelease, Oracle, Quantile, Release
from dpmcmc.curator.queries import (
    BatchGradient,
    ClipCount,
    Gradient,
    GradientNumbers,
    InvalidCount,
    LogRatio,
    NormQuantile,
    Query,
    RatioGeometry,
    RatioNumbers,
    ScoreMoments,
)
from dpmcmc.errors import QueryError
from dpmcmc.models import Model, RegressionModel, allowed
from dpmcmc.models.model import trace_prior

# Below this lattice (tests of coarse lattices only) the regressions' closed form has no room.
_CLOSED_FORM_BOUND = 2**28
# So many sets of compiled programs are kept.
_MAX_KEPT = 8

# bind(records, numbers=None) -> Oracle; without numbers, those of the query are constants of the program
Bind = Callable[..., Oracle]


class Passes:
    """How records of one shape go through compiled code, for one model.

    Parameters
    ----------
    model
        The model.
    prepared
        Prepared records, of which only shapes and dtypes are used.
    layout
        Where the rows lie.
    kernel
        How the model is evaluated.
    private, multiplier
        Whether releases are private, and the factor on the stated noise sd (0 where no noise is added).
    stream_total
        For records that do not fit into memory: leaves compiled code and returns their sums.

    Attributes
    ----------
    compiled
        Programs that were compiled for these passes, by whoever asked for them.
    """

    def __init__(
        self,
        model: Model,
        prepared: Any,
        layout: placement.Layout,
        kernel: sums.Kernel,
        *,
        private: bool,
        multiplier: float,
        stream_total: Callable[..., jax.Array] | None,
    ) -> None:
        self.model, self.layout, self.private, self.multiplier = model, layout, private, multiplier
        self.num_records = sum(layout.counts)
        self.kernel = kernel
        self.compiled: dict[Hashable, Any] = {}
        self._structure = structure_of(prepared)
        self._stream_total = stream_total

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self.layout.mesh

    @property
    def streams(self) -> bool:
        """Whether the records are read again for every question."""
        return self._stream_total is not None

    @cached_property
    def _plain_kernel(self) -> sums.Kernel:
        closed = isinstance(self.kernel, sums.RegressionKernel)
        return sums.AutodiffKernel(self.model, self._structure) if closed else self.kernel

    def keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what is kept under a key, made now if there is nothing yet."""
        if key not in self.compiled:
            self.compiled[key] = make()
        return self.compiled[key]

    # ------------------------------------------------------------------ secret: exact sums over the records

    def total(
        self, records: Any, query: Query, theta: jax.Array, proposal: jax.Array | None, *public: Any
    ) -> jax.Array:
        """Return the un-noised integer sums. Secret: no caller may let them out without noise."""
        if self._stream_total is not None:
            return self._stream_total(query, theta, proposal, *public)
        return self.tile_total(records, query, theta, proposal, *public)

    def tile_total(
        self, records: Any, query: Query, theta: jax.Array, proposal: jax.Array | None, *public: Any
    ) -> jax.Array:
        """Return the same for records that are in memory."""
        kernel = self._kernel_for(query)
        arguments = [theta, *([] if proposal is None else [proposal]), *public]
        tile_sum = _tile_sum(query, kernel, proposal is not None)
        gradient = proposal is None and not isinstance(query, InvalidCount)
        return self._add_up(records, kernel, tile_sum, *map(jnp.asarray, arguments), gradient=gradient)

    def compiled_total(self, records: Any, query: Query, theta: Any, proposal: Any, public: tuple[Any, ...]) -> Any:
        """Return ``total(records, theta, proposal, public)``, compiled once for each kind and number of chains."""
        arguments = records, theta, proposal, public
        shapes = tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(arguments[1:]))
        key = ("total", query.kind, type(self._kernel_for(query)), proposal is None, shapes)

        def total(records: Any, theta: Any, proposal: Any, public: tuple[Any, ...]) -> jax.Array:
            return self.tile_total(records, query, theta, proposal, *public)

        compiled = jax.jit(total, compiler_options=placement.COMPILER_OPTIONS)
        return self.keep(key, lambda: compiled.lower(*arguments).compile())

    def _kernel_for(self, query: Query | BatchGradient) -> sums.Kernel:
        """Return the model's kernel, or plain differentiation where a test's lattice is too coarse for it."""
        coarse = isinstance(query, Gradient | BatchGradient) and self._lattice(query).bound < _CLOSED_FORM_BOUND
        return self._plain_kernel if coarse else self.kernel

    def _lattice(self, query: Any) -> Any:
        return query.lattice(self.num_records, self.model.dimension)

    def _gradient_numbers(self, query: Gradient | BatchGradient) -> GradientNumbers:
        return GradientNumbers.of(query, self.num_records, self.model.dimension)

    def _add_up(
        self, records: Any, kernel: sums.Kernel, tile_sum: Callable[..., Any], *public: jax.Array, **options: Any
    ) -> jax.Array:
        return placement.sum_over_tiles(self.mesh, kernel, self.num_records, tile_sum, records, *public, **options)

    # ------------------------------------------------------------------ noised: what may leave

    def answer(
        self,
        query: Query,
        theta: Any,
        proposal: Any,
        noise: list[Any],
        total: Callable[..., Any],
        geometry: RatioGeometry | None = None,
        numbers: GradientNumbers | RatioNumbers | None = None,
    ) -> AnyRelease:
        """Add noise to the sums. Serves the host (``total`` runs compiled) and compiled code (it is traced).

        ``geometry`` and ``numbers`` are the query's own public numbers, where the caller has them already.
        """
        chains = len(theta)
        lattice = self._lattice(query)
        mu: Any = np.full(chains, query.mu)
        sd: Any
        value: Any
        match query:
            case Gradient():
                chosen = self._gradient_numbers(query) if numbers is None else numbers
                assert isinstance(chosen, GradientNumbers)
                value = chosen.spacing * _noised(total(query, theta, None, chosen.spacing, chosen.bound), noise[0])
                sd = chosen.noise_sd * np.ones(chains)
            case LogRatio():
                assert numbers is None or isinstance(numbers, RatioNumbers)
                if geometry is None:
                    geometry = query.geometry(jnp.asarray(theta), jnp.asarray(proposal), lattice, numbers)
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
                first = self.answer(query.sum_query, theta, None, noise[1:], total)
                bound = 2.0 ** query.vector_bits(self.num_records)
                spacing = query.l2_clip_norm / bound
                matrix = total(query, theta, None, first.value / self.num_records, spacing, bound)
                value = Moments(first.value, spacing**2 * _add_symmetric(matrix, noise[0]))
                sd = Moments(first.noise_sd, np.full(chains, spacing**2 * lattice.noise_scale))
            case ClipCount() | InvalidCount():
                threshold = [query.threshold] if isinstance(query, ClipCount) else []
                counts = total(query, theta, proposal, *threshold) * lattice.bound
                value = _noised(counts, noise[0][:, 0]) / lattice.bound
                sd = np.full(chains, lattice.noise_scale / lattice.bound)
        release_type = Release if self.private else NotPrivateRelease
        return release_type(value, jax.tree.map(lambda leaf: leaf * self.multiplier, sd), mu)

    def answer_batch(
        self, records: Any, query: BatchGradient, theta: jax.Array, batch: Batch, noise: jax.Array, numbers: Any = None
    ) -> AnyRelease:
        """Answer with a noised sum over a secret random batch, in compiled code."""
        chosen = self._gradient_numbers(query) if numbers is None else numbers
        spacing, bound = jnp.asarray(chosen.spacing), jnp.asarray(chosen.bound)
        kernel = self._kernel_for(query)
        total = placement.sum_over_batches(
            self.layout,
            kernel,
            query.rows(self.num_records),
            lambda tile, one_theta: kernel.gradient_sum(tile, one_theta, spacing, bound),
            records,
            theta,
            batch,
        )
        release_type = Release if self.private else NotPrivateRelease
        sd = jnp.full(len(theta), chosen.noise_sd * self.multiplier)
        return release_type(spacing * _noised(total, noise), sd, np.full(len(theta), np.nan))

    # ------------------------------------------------------------------ oracles

    def oracle_numbers(self, gradient: Gradient | BatchGradient | None, log_ratio: LogRatio | None) -> Any:
        """Return the numbers of the queries that an oracle takes as inputs: a tree of floats."""
        return (
            None if gradient is None else self._gradient_numbers(gradient),
            None if log_ratio is None else log_ratio.numbers(self._lattice(log_ratio)),
        )

    def oracle_structure(self, gradient: Gradient | BatchGradient | None, log_ratio: LogRatio | None) -> Hashable:
        """Return all else that a compiled oracle depends on."""
        batch = (gradient.rows(self.num_records),) if isinstance(gradient, BatchGradient) else ()
        kernel = None if gradient is None else type(self._kernel_for(gradient))
        bound = log_ratio.bound if log_ratio is not None and callable(log_ratio.bound) else None
        constant_sd = log_ratio is not None and log_ratio.noise_sd is not None
        return type(gradient), batch, kernel, type(log_ratio), bound, constant_sd

    def oracle(self, gradient: Gradient | BatchGradient | None, log_ratio: LogRatio | None) -> Bind:
        """Return ``bind(records, numbers=None) -> Oracle``, to be called inside a compiled block.

        The caller charges the budget for the whole block beforehand, draws the noise that the oracle's functions take
        (``noise_scale`` of the queries' lattices) and compiles with ``COMPILER_OPTIONS``. See :class:`Oracle`.
        """

        def bind(records: Any, numbers: Any = None) -> Oracle:
            total = partial(self.total, records)
            gradient_numbers, ratio_numbers = (None, None) if numbers is None else numbers

            def answer_gradient(theta: jax.Array, noise: jax.Array) -> AnyRelease:
                if not isinstance(gradient, Gradient):
                    raise QueryError("this sampler declared no gradient query, so its oracle answers none")
                return self.answer(gradient, theta, None, [noise], total, numbers=gradient_numbers)

            def answer_log_ratio(theta: jax.Array, proposal: jax.Array, noise: jax.Array) -> AnyRelease:
                if log_ratio is None:
                    raise QueryError("this sampler declared no log-ratio query, so its oracle answers none")
                return self.answer(log_ratio, theta, proposal, [noise[:, None]], total, numbers=ratio_numbers)

            def answer_batch_gradient(theta: jax.Array, batch: Batch, noise: jax.Array) -> AnyRelease:
                if self.streams:
                    raise QueryError("minibatch samplers look up random rows; load the records into memory for them")
                if not isinstance(gradient, BatchGradient):
                    raise QueryError("this sampler declared no batch gradient, so its oracle answers none")
                return self.answer_batch(records, gradient, theta, batch, noise, gradient_numbers)

            return Oracle(answer_gradient, answer_log_ratio, answer_batch_gradient)

        return bind

    def noise_free_queries(
        self, gradient_clip: float | None, ratio_clip: float | None
    ) -> tuple[Gradient | None, LogRatio | None]:
        """Return the queries whose lattices the noise-free oracle uses. Their noise is never drawn."""
        return (
            None if gradient_clip is None else Gradient(gradient_clip, 1.0),
            None if ratio_clip is None else LogRatio(ratio_clip, noise_multiplier=1.0),
        )

    def noise_free_oracle_not_private(self, gradient_clip: float | None, ratio_clip: float | None) -> Bind:
        """Like ``oracle``, with no noise, for research samplers; None: no clipping."""
        queries = gradient_query, ratio_query = self.noise_free_queries(gradient_clip, ratio_clip)

        def bind(records: Any, numbers: Any = None) -> Oracle:
            add_up = partial(self._add_up, records, self.kernel)
            gradient_numbers, ratio_numbers = self.oracle_numbers(*queries) if numbers is None else numbers

            def clipped_gradient(*public: jax.Array) -> jax.Array:
                clip = partial(add_up, self.kernel.gradient_sum, *public, gradient=True, dtype=jnp.int64)
                if not isinstance(self.kernel, sums.AutodiffKernel):
                    return clip()
                total = add_up(self.kernel.gradient_sum_not_private, *public, gradient=True, dtype=jnp.int64)
                return jax.lax.cond(jnp.all(total[:, -1] == 0), lambda: total[:, :-1], clip)

            def gradient(theta: jax.Array, noise: jax.Array) -> AnyRelease:
                if gradient_query is None:
                    plain = partial(sums.plain_gradient_sum, self.kernel)
                    value = add_up(plain, theta, gradient=True, dtype=jnp.float64)
                else:
                    # The sums of private runs, which are faster; their lattice is far below what a gradient needs.
                    spacing, bound = jnp.asarray(gradient_numbers.spacing), jnp.asarray(gradient_numbers.bound)
                    value = spacing * clipped_gradient(theta, spacing, bound)
                return NotPrivateRelease(value, jnp.zeros(len(theta)), jnp.zeros(len(theta)))

            def log_ratio(theta: jax.Array, proposal: jax.Array, noise: jax.Array) -> AnyRelease:
                zeros = jnp.zeros(len(theta))
                if ratio_query is None:
                    plain = partial(sums.plain_ratio_sum, self.kernel)
                    total = add_up(plain, theta, proposal, gradient=False, dtype=jnp.float64)
                    return NotPrivateRelease(total, zeros, zeros, clipped=zeros)
                geometry = ratio_query.geometry(theta, proposal, self._lattice(ratio_query), ratio_numbers)
                public = theta, proposal, geometry.spacing, geometry.bound
                counted = partial(sums.counted_ratio_sum, self.kernel)
                total = add_up(counted, *public, gradient=False, dtype=jnp.int64)
                clipped = total[:, 1] / self.num_records
                return NotPrivateRelease(geometry.spacing * total[:, 0], zeros, zeros, clipped=clipped)

            def no_batches(theta: jax.Array, batch: Batch, noise: jax.Array) -> AnyRelease:
                raise QueryError("the noise-free oracle has no batches")

            return Oracle(gradient, log_ratio, no_batches)

        return bind


_kept: OrderedDict[Hashable, Passes] = OrderedDict()


def passes_for(
    model: Model,
    prepared: Any,
    layout: placement.Layout,
    *,
    private: bool,
    multiplier: float,
    stream_total: Callable[..., jax.Array] | None = None,
) -> Passes:
    """Check a model against these records and return the passes over them, kept ones if the same were made before.

    Models are the same if they compute the same, whatever objects they are. Passes over streamed records are not kept.
    """
    traced = None if sums.has_closed_form(model) else sums.trace(model, prepared)
    prior = trace_prior(model)
    _refuse_captured_data(model, layout, log_likelihood=traced or (), log_prior=prior)

    def make() -> Passes:
        kernel = sums.make_kernel(model, prepared, traced)
        options: dict[str, Any] = {"private": private, "multiplier": multiplier, "stream_total": stream_total}
        return Passes(model, prepared, layout, kernel, **options)

    if stream_total is not None:
        return make()
    theta = jax.ShapeDtypeStruct((model.dimension,), jnp.float64)
    constrain, names = allowed.trace("the transforms of the parameters", model.constrain, theta)
    key = (
        _family(model) if traced is None else tuple(map(allowed.fingerprint, traced)),
        tuple(map(allowed.fingerprint, (*prior, constrain))),
        jax.tree.structure(names),
        structure_key(prepared),
        (tuple(layout.counts), layout.held, tuple(device.id for device in layout.mesh.devices)),
        (private, multiplier),
    )
    if key not in _kept:
        _kept[key] = make()
        while len(_kept) > _MAX_KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key]


def forget() -> None:
    """Let go of all kept programs."""
    _kept.clear()


def _refuse_captured_data(model: Model, layout: placement.Layout, **functions: tuple[Any, ...]) -> None:
    if sums.is_own(model):
        return
    for name, programs in functions.items():
        for program in programs:
            for count in {sum(layout.counts), *layout.counts}:
                allowed.check_constants(name, program, count)


def structure_of(prepared: Any) -> Any:
    """Return shapes and dtypes of prepared records, without the records."""
    return jax.tree.map(lambda column: jax.ShapeDtypeStruct(column.shape, column.dtype), prepared)


def structure_key(prepared: Any) -> Hashable:
    """Return what tells records of different shapes, dtypes or columns apart."""
    leaves, tree = jax.tree.flatten(structure_of(prepared))
    return tree, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _family(model: Model) -> Hashable:
    """Return what tells two regressions apart, beside their priors."""
    assert isinstance(model, RegressionModel)
    sizes = (model.num_features, model.intercept, model.num_groups, model.linear_size, model.extra_size)
    return type(model), sizes, model.float32_suffices


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
        case InvalidCount():

            def invalid(tile: sums.Tile, theta: jax.Array) -> jax.Array:
                return jnp.sum(tile["real"] & ~jnp.isfinite(kernel.log_likelihood(tile, theta)), axis=-1)

            return invalid


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
