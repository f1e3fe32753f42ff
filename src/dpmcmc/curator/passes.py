"""Passes over the records, as compiled code: sums, the noise added to them, and the oracle that a sampler is handed.

Nothing here holds a record, a budget or a source of noise: records and noise come in as arguments. What is compiled for
one set of records can therefore be kept and used again for any other of the same shapes (:func:`passes_for`); settings
such as clip norms are inputs of the compiled code, not part of it.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpmcmc.curator import kernels, placement
from dpmcmc.curator.batches import Batch
from dpmcmc.errors import QueryError
from dpmcmc.models import Model, RegressionModel, UnitModel, allowed
from dpmcmc.models.model import trace_prior
from dpmcmc.models.units import row_model
from dpmcmc.queries import AnyRelease, BatchGradient, Gradient, LogRatio, NotPrivateRelease, Oracle, Query, Release
from dpmcmc.queries.base import Noise, Question
from dpmcmc.queries.paid import PaidDraws, unpack
from dpmcmc.queries.release import noised

# Below this lattice (tests of coarse lattices only) the regressions' closed form has no room.
_CLOSED_FORM_BOUND = 2**28
# So many sets of compiled programs are kept.
_MAX_KEPT = 8


class Binding(NamedTuple):
    """An oracle that waits for records.

    Attributes
    ----------
    bind
        ``bind(records, numbers) -> Oracle``, inside compiled code.
    numbers
        The settings of its queries, which are inputs of the compiled code.
    structure
        All else that the compiled code depends on.
    """

    bind: Callable[[Any, Any], Oracle]
    numbers: Any
    structure: Hashable

    def __call__(self, records: Any) -> Oracle:
        """Bind with the settings as constants."""
        return self.bind(records, self.numbers)


class Way(NamedTuple):
    """How a question from the host goes through the records, beside its parameters.

    Attributes
    ----------
    matrix
        C of the coordinates that it is asked in, an input of the compiled code; None: θ itself.
    kernel
        One that knows second derivatives; None: the usual one.
    """

    matrix: Any = None
    kernel: kernels.TileKernel | None = None


PLAIN = Way()


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
    traced, constrain
        The model's log-likelihood and transforms, traced and checked: its own code is not run again.
    private, multiplier
        Whether releases are private, and the factor on the stated noise sd (0 where no noise is added).
    stream_total
        For records that do not fit into memory: leaves compiled code and returns their sums.
    """

    def __init__(
        self,
        model: Model,
        prepared: Any,
        layout: placement.Layout,
        kernel: kernels.TileKernel,
        *,
        traced: allowed.Traced,
        constrain: Callable[[jax.Array], dict[str, jax.Array]],
        private: bool,
        multiplier: float,
        stream_total: Callable[..., jax.Array] | None,
    ) -> None:
        self.dimension, self.layout, self.kernel = model.dimension, layout, kernel
        self._plain = (model, structure_of(prepared), traced)
        self.private, self.multiplier = private, multiplier
        self.constrain = jax.jit(jax.vmap(jax.vmap(constrain)))
        self.num_records = sum(layout.counts)
        self._compiled: dict[Hashable, Any] = {}
        self._with_curvature: dict[Hashable, kernels.TileKernel] = {}
        self._stream_total = stream_total

    @property
    def mesh(self) -> Mesh:
        """The devices."""
        return self.layout.mesh

    @property
    def replicated(self) -> NamedSharding:
        """How a public array lies on the devices: a copy on each."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def streams(self) -> bool:
        """Whether the records are read again for every question."""
        return self._stream_total is not None

    @cached_property
    def _plain_kernel(self) -> kernels.TileKernel:
        closed = isinstance(self.kernel, kernels.RegressionKernel)
        return kernels.AutodiffKernel(*self._plain) if closed else self.kernel

    def digest(self) -> str:
        """Return a hash of what the model computes, by which a later process knows it again (with the same JAX)."""
        model, _, traced = self._plain
        own = hashlib.sha256()
        for program in (*traced, *trace_prior(model)):
            # (Functions that are named in a program have an address.)
            own.update(re.sub(r"0x[0-9a-f]+", "", str(program.jaxpr)).encode())
            for constant in program.consts:
                own.update(np.asarray(constant).tobytes())
        return own.hexdigest()

    def keep(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return what was compiled under a key, now if there is nothing yet. For streams nothing is kept for later."""
        if key not in self._compiled:
            self._compiled[key] = make()
        return self._compiled[key]

    # ------------------------------------------------------------------ secret: exact sums over the records

    def total(
        self, records: Any, query: Query, theta: jax.Array, proposal: jax.Array | None, *public: Any
    ) -> jax.Array:
        """Return the un-noised integer sums. Secret: no caller may let them out without noise."""
        if self._stream_total is not None:
            return self._stream_total(query, theta, proposal, *public)
        return self.tile_total(records, query, theta, proposal, *public)

    def tile_total(
        self, records: Any, query: Query, theta: jax.Array, proposal: jax.Array | None, *public: Any, way: Way = PLAIN
    ) -> jax.Array:
        """Return the same for records that are in memory."""
        kernel = self._kernel_for(query, way)
        second = query.differentiates_twice and kernel.family is None
        width = max(query.width(self.dimension), self.dimension**2 if second else 1)
        coordinates = [] if way.matrix is None else [way.matrix]
        if coordinates:
            width = max(width, self.dimension)

        def tile_sum(tile: Any, theta: jax.Array, *rest: jax.Array) -> Any:
            matrix, rest = (rest[0], rest[1:]) if coordinates else (None, rest)
            return query.tile_sum(kernels.view_of(kernel, matrix))(tile, theta, *rest)

        arguments = [theta, *coordinates, *([] if proposal is None else [proposal]), *public]
        gradient = query.differentiates and proposal is None
        return self.add_up(records, kernel, tile_sum, *map(jnp.asarray, arguments), gradient=gradient, width=width)

    def compiled_total(
        self, records: Any, query: Query, theta: Any, proposal: Any, public: tuple[Any, ...], way: Way = PLAIN
    ) -> Any:
        """Return ``total(records, theta, proposal, public, matrix)``, compiled once for each kind and chains."""
        arguments = records, theta, proposal, public, way.matrix
        shapes = tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree.leaves(arguments[1:]))
        # The kernel itself: there are few, and they live as long as these passes.
        kernel = self._kernel_for(query, way)
        key = ("total", type(query), query.structure, kernel, proposal is None, way.matrix is None, shapes)

        def total(records: Any, theta: Any, proposal: Any, public: tuple[Any, ...], matrix: Any) -> jax.Array:
            return self.tile_total(records, query, theta, proposal, *public, way=way._replace(matrix=matrix))

        options = placement.COMPILER_OPTIONS
        return self.keep(key, lambda: jax.jit(total, compiler_options=options).lower(*arguments).compile())

    def with_curvature(self, model: Model) -> kernels.TileKernel | None:
        """Trace and check a model's second derivatives; return a kernel that knows them (None: a closed form does).

        The same kernel for programs that compute the same.
        """
        if not isinstance(self.kernel, kernels.AutodiffKernel | kernels.UnitKernel) or self.kernel.family is not None:
            return None
        closed = kernels.trace_curvature(model, self._plain[1])
        _refuse_captured_data(model, self.layout, log_likelihood=(closed,))
        key = allowed.fingerprint(closed)
        return self._with_curvature.setdefault(key, self.kernel.with_curvature(closed))

    def _kernel_for(self, query: Query | BatchGradient, way: Way = PLAIN) -> kernels.TileKernel:
        """Return the model's kernel, or plain differentiation where a test's lattice is too coarse for it."""
        if way.kernel is not None:
            return way.kernel
        coarse = isinstance(query, Gradient | BatchGradient) and self._lattice(query).bound < _CLOSED_FORM_BOUND
        return self._plain_kernel if coarse else self.kernel

    def _lattice(self, query: Any) -> Any:
        return query.lattice(self.num_records, self.dimension)

    def add_up(
        self, records: Any, kernel: kernels.TileKernel, tile_sum: Callable[..., Any], *public: jax.Array, **options: Any
    ) -> jax.Array:
        """Add up one function of a tile over all tiles and devices. Secret, like ``total``."""
        return placement.sum_over_tiles(self.mesh, kernel, self.num_records, tile_sum, records, *public, **options)

    # ------------------------------------------------------------------ noised: what may leave

    def answer(
        self, query: Query, theta: Any, proposal: Any, noise: Noise, total: Callable[..., Any], public: Any
    ) -> AnyRelease:
        """Release a query. Serves the host (``total`` runs compiled) and compiled code (it is traced)."""
        question = Question(theta, proposal, public, self.num_records)
        value, noise_sd, mu = query.release(total, question, noise)
        release_type = Release if self.private else NotPrivateRelease
        return release_type(value, jax.tree.map(lambda leaf: leaf * self.multiplier, noise_sd), mu)

    def _answer_batch(
        self, records: Any, query: BatchGradient, theta: jax.Array, batch: Batch, noise: jax.Array, numbers: Any
    ) -> AnyRelease:
        spacing, bound = jnp.asarray(numbers.spacing), jnp.asarray(numbers.bound)
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
        noise_sd = jnp.full(len(theta), numbers.noise_sd * self.multiplier)
        return release_type(spacing * noised(total, noise), noise_sd, np.full(len(theta), np.nan))

    def oracle(self, gradient: Gradient | BatchGradient | None, log_ratio: LogRatio | None) -> Binding:
        """Return an oracle that answers these queries with noise that was paid for, and no others."""

        def bind(records: Any, numbers: Any) -> Oracle:
            total = partial(self.total, records)
            gradient_numbers, ratio_numbers = numbers

            def answer_gradient(theta: jax.Array, noise: PaidDraws) -> AnyRelease:
                if not isinstance(gradient, Gradient):
                    raise QueryError("this sampler declared no gradient query, so its oracle answers none")
                return self.answer(gradient, theta, None, [unpack(noise)], total, gradient_numbers)

            def answer_log_ratio(theta: jax.Array, proposal: jax.Array, noise: PaidDraws) -> AnyRelease:
                if log_ratio is None:
                    raise QueryError("this sampler declared no log-ratio query, so its oracle answers none")
                public = log_ratio.public(theta, proposal, ratio_numbers)
                return self.answer(log_ratio, theta, proposal, [unpack(noise)[:, None]], total, public)

            def answer_batch_gradient(theta: jax.Array, batch: Batch, noise: PaidDraws) -> AnyRelease:
                if self.streams:
                    raise QueryError("minibatch samplers look up random rows; load the records into memory for them")
                if not isinstance(gradient, BatchGradient):
                    raise QueryError("this sampler declared no batch gradient, so its oracle answers none")
                return self._answer_batch(records, gradient, theta, batch, unpack(noise), gradient_numbers)

            return Oracle(answer_gradient, answer_log_ratio, answer_batch_gradient)

        return Binding(bind, self.numbers_of(gradient, log_ratio), self._structure_of(gradient, log_ratio))

    def numbers_of(self, *queries: Any) -> Any:
        """Return the settings of queries that compiled code takes as inputs."""
        sizes = self.num_records, self.dimension
        return tuple(None if query is None else query.numbers(*sizes) for query in queries)

    def _structure_of(self, gradient: Gradient | BatchGradient | None, log_ratio: LogRatio | None) -> Hashable:
        batch = (gradient.rows(self.num_records),) if isinstance(gradient, BatchGradient) else ()
        kernel = None if gradient is None else type(self._kernel_for(gradient))
        bound = log_ratio.bound if log_ratio is not None and callable(log_ratio.bound) else None
        constant_sd = log_ratio is not None and log_ratio.noise_sd is not None
        return type(gradient), batch, kernel, type(log_ratio), bound, constant_sd


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
    closed_form = kernels.has_closed_form(model)
    traced = kernels.trace(model, prepared)
    prior = trace_prior(model)
    theta = jax.ShapeDtypeStruct((model.dimension,), jnp.float64)
    constrain, names = allowed.trace("the transforms of the parameters", model.constrain, theta)
    _refuse_captured_data(model, layout, log_likelihood=traced, log_prior=prior, transforms=(constrain,))

    def make() -> Passes:
        kernel = kernels.make_kernel(model, prepared, traced)
        return Passes(
            model,
            prepared,
            layout,
            kernel,
            traced=traced,
            constrain=_as_function(constrain, names),
            private=private,
            multiplier=multiplier,
            stream_total=stream_total,
        )

    if stream_total is not None:
        return make()
    key = (
        type(model) is UnitModel,
        _family(row_model(model)) if closed_form else None,
        tuple(map(allowed.fingerprint, traced)),
        tuple(map(allowed.fingerprint, (*prior, constrain))),
        jax.tree.structure(names),
        _structure_key(prepared),
        (tuple(layout.counts), layout.held, tuple(device.id for device in layout.mesh.devices)),
        (private, multiplier),
    )
    if key not in _kept:
        _kept[key] = make()
        while len(_kept) > _MAX_KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key]


def _as_function(closed: Any, shapes: Any) -> Callable[[jax.Array], Any]:
    """Return traced transforms as a function: the model itself may be changed by whoever holds it."""
    evaluate, structure = core.jaxpr_as_fun(closed), jax.tree.structure(shapes)
    return lambda theta: jax.tree.unflatten(structure, evaluate(theta))


def forget() -> None:
    """Let go of all kept programs."""
    _kept.clear()


def _refuse_captured_data(model: Model, layout: placement.Layout, **functions: tuple[Any, ...]) -> None:
    # A model of ours may have as many parameters as there are records; arrays of that size are its settings.
    public = {model.dimension} if kernels.is_own(model) else set()
    for name, programs in functions.items():
        for program in programs:
            for count in {sum(layout.counts), *layout.counts}:
                allowed.check_constants(name, program, count, public)


def structure_of(prepared: Any) -> Any:
    """Return shapes and dtypes of prepared records, without the records."""
    return jax.tree.map(lambda column: jax.ShapeDtypeStruct(column.shape, column.dtype), prepared)


def _structure_key(prepared: Any) -> Hashable:
    leaves, tree = jax.tree.flatten(structure_of(prepared))
    return tree, tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)


def _family(model: Model) -> Hashable:
    """Return what tells two regressions apart, beside their priors."""
    assert isinstance(model, RegressionModel)
    sizes = (model.num_features, model.intercept, model.num_groups, model.linear_size, model.extra_size)
    return type(model), sizes, model.float32_suffices
