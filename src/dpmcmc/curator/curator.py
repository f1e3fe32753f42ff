"""The private room. It holds the records, is the only code that sees them, and answers with noised sums.

There is one door. A question from the host goes through :meth:`Curator.ask`; compiled code gets an oracle, which takes
nothing but noise that :meth:`Curator.pay` has charged for. Nothing else comes out: no count, no error text, no shape
and no control flow depends on a record's values. (Running time is not protected: arithmetic on denormal numbers takes
longer.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpmcmc.curator import placement, preparation, research, streaming
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.curator.kernels import TileKernel
from dpmcmc.curator.noise import ExactNoise, NoiseSource
from dpmcmc.curator.passes import PLAIN, Binding, Passes, Way, passes_for
from dpmcmc.curator.payment import Order, Random, Till
from dpmcmc.data import UnitRecords
from dpmcmc.data.tables import OpenRecords
from dpmcmc.errors import DataError, ModelError, NotPrivateError, QueryError
from dpmcmc.models import LogisticRegression, Model, allowed
from dpmcmc.models.units import open_units
from dpmcmc.privacy import Budget, StepBudget
from dpmcmc.queries import (
    Affine,
    AnyRelease,
    BatchGradient,
    ClipCount,
    CoordinateHistogram,
    Cost,
    Curvature,
    FisherInformation,
    Gradient,
    InvalidCount,
    LogRatio,
    NormQuantile,
    PaidDraws,
    PaidNoise,
    Queries,
    Query,
    ScoreMoments,
    WeightedGradient,
)
from dpmcmc.queries.declared import slack_of_answer

# Exactly these: a class of somebody else's could sum anything.
_KNOWN = (
    Gradient,
    WeightedGradient,
    LogRatio,
    NormQuantile,
    CoordinateHistogram,
    ScoreMoments,
    Curvature,
    FisherInformation,
    ClipCount,
    InvalidCount,
)


class Curator:
    """Holds the records and answers private questions about them.

    Parameters
    ----------
    model
        A :class:`~dpmcmc.models.Model`.
    data
        The records, one row per person: what ``model.prepare_records`` takes, or a stream. At least two rows.
    budget
        Pays for every answer. Required with exact noise.
    noise
        Default: :class:`ExactNoise`. With any other source answers are :class:`NotPrivateRelease`.
    devices
        Number or list of JAX devices over which the records are spread. Default: the first.
    seed
        Of keys and secret batches, for runs that are not private; None: the operating system's randomness.

    Notes
    -----
    Neighbouring data sets differ in one record (replace one), so the number of records is public. A record is a row; of
    a :class:`~dpmcmc.models.UnitModel` it is a unit, all rows of a person.
    """

    def __init__(
        self,
        model: Model,
        data: Any,
        budget: Budget | StepBudget | None = None,
        *,
        noise: NoiseSource | None = None,
        devices: int | Sequence[jax.Device] | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(model, Model):
            raise ModelError(f"model must be a dpmcmc.Model, got {type(model).__name__}; see dpmcmc.from_numpyro")
        self._noise: NoiseSource = ExactNoise() if noise is None else noise
        if self.private and seed is not None:
            raise NotPrivateError(f"seed = {seed!r}, but exact noise takes none: what can be repeated is not private")
        mesh = placement.make_mesh(devices)
        with exact_arithmetic():
            model, source = open_units(model, data)
            self.model = model
            self._stream: streaming.StreamedRecords | None = None
            if isinstance(source, OpenRecords | UnitRecords):
                prepared, count = preparation.prepare(model, source)
            else:
                streaming.refuse_several_devices(mesh.size)
                self._stream = streaming.StreamedRecords(model, source)
                prepared, count = self._stream.first(), source.num_records
            counts = placement.rows_of_processes(count)
            self.num_records = sum(counts)
            if self.num_records < 2:
                raise DataError("data has 1 record; privacy by noise needs many people, give at least 2")
            self._passes = passes_for(
                model,
                prepared,
                placement.Layout.choose(counts, mesh),
                private=self.private,
                multiplier=self._noise.multiplier,
                stream_total=None if self._stream is None else self._call_back,
            )
            if self._stream is None:
                self._records = placement.place(self._passes.kernel, prepared, self._passes.layout)
                self._record_shapes = self._records
            else:
                self._records, self._record_shapes = {}, self._stream.shapes(self._passes, prepared)
            self._random = Random(seed)
        self._budget = self._check_budget(budget)
        self._till = Till(self._noise, self._random, self.num_records, model.dimension, exact_arithmetic)
        self._unused: list[tuple[PaidNoise, Queries]] = []
        self._with_curvature: TileKernel | None = None

    @property
    def noise(self) -> NoiseSource:
        """Where the noise comes from. Fixed for the curator's life, like the budget."""
        return self._noise

    @property
    def private(self) -> bool:
        """Whether answers are private: only with exact noise, no subclass of it, and nothing set on the instance."""
        return type(self._noise) is ExactNoise and not vars(self._noise)

    @property
    def budget(self) -> Budget | StepBudget | None:
        """What pays for the answers."""
        return self._budget

    @property
    def passes(self) -> Passes:
        """The compiled side: programs that hold no records."""
        return self._passes

    @property
    def public_key(self) -> jax.Array:
        """A key for momenta, proposals and accept tests, which need not be secret; the same on all processes."""
        return placement.agree(self._random.public_key)

    def _check_budget(self, budget: Any) -> Budget | StepBudget | None:
        if budget is None and not self.private:
            return None
        # Exactly these: a class derived from them could forget what was spent.
        if type(budget) not in (Budget, StepBudget):
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

    def ask(
        self,
        query: Query,
        theta: ArrayLike,
        proposal: ArrayLike | None = None,
        *,
        coordinates: Affine | None = None,
        paid_by: Budget | None = None,
    ) -> AnyRelease:
        """Answer one question, for one parameter vector or for a batch of chains in one pass over the data.

        Parameters
        ----------
        query
            What to release.
        theta
            Unconstrained parameters, of shape dimension or chains × dimension.
        proposal
            The other end of a log-ratio, of the same shape.
        coordinates
            θ = m + C z: a record's score is then Cᵀ·score and its curvature Cᵀ·H·C, so that clipping, noise, value and
            noise sd are those of z, and a log-ratio's bound b means b‖C⁻¹(θ' − θ)‖. ``theta`` and ``proposal`` stay θ.
        paid_by
            A budget that was set apart from the curator's own, if that one pays for batches only.

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
        budget = self.budget if paid_by is None else paid_by
        if type(budget) is not Budget and (self.private or budget is not None):
            raise QueryError(
                "this curator's budget pays for batch gradients only; give it a dpmcmc.Budget to ask others"
            )
        with exact_arithmetic():
            # Several processes must ask the same question: that of the first.
            coordinates = self._agree_on(self._check_coordinates(coordinates))
            batch, other = placement.agree(self._check_question(query, theta, proposal))
            # Evaluated once: what is charged is what is answered, even if a user's bound is not a pure function.
            public = self._public(query, batch, other, coordinates)
            way = self._way(query, coordinates)
            self._compile(query, batch, other, public, way)
            # Several processes answer with the same noise: that of the first.
            noise = placement.agree(self._draw(query, len(batch)))
            if budget is not None:
                cost = self._cost(query, len(batch), public)
                _spend(budget, cost, {"kind": query.kind, "answers": len(batch)})
            release = self._passes.answer(query, batch, other, noise, partial(self._host_total, way), public)
            self.raise_stream_error()
            release = jax.tree.map(np.asarray, release)
        return release if np.ndim(theta) == 2 else jax.tree.map(lambda leaf: leaf[0], release)

    def cost(
        self,
        query: Query,
        theta: ArrayLike,
        proposal: ArrayLike | None = None,
        *,
        coordinates: Affine | None = None,
    ) -> Cost:
        """Return what ``ask`` with the same arguments would charge. Spends nothing."""
        with exact_arithmetic():
            coordinates = self._check_coordinates(coordinates)
            batch, other = self._check_question(query, theta, proposal)
            return self._cost(query, len(batch), self._public(query, batch, other, coordinates))

    def prepare(
        self,
        query: Query,
        theta: ArrayLike,
        proposal: ArrayLike | None = None,
        *,
        coordinates: Affine | None = None,
    ) -> None:
        """Compile what ``ask`` with the same arguments will run. Looks at no record and spends nothing."""
        with exact_arithmetic():
            coordinates = self._check_coordinates(coordinates)
            batch, other = self._check_question(query, theta, proposal)
            public = self._public(query, batch, other, coordinates)
            self._compile(query, batch, other, public, self._way(query, coordinates))

    def _check_coordinates(self, coordinates: Affine | None) -> Affine | None:
        if coordinates is None:
            return None
        if type(coordinates) is not Affine:
            raise QueryError(
                f"coordinates must be a dpmcmc.queries.Affine(center, matrix), got {type(coordinates).__name__}"
            )
        if coordinates.dimension != self.model.dimension:
            raise QueryError(
                f"coordinates have {coordinates.dimension} dimensions; this model has {self.model.dimension} "
                "unconstrained parameters"
            )
        return coordinates

    def _agree_on(self, coordinates: Affine | None) -> Affine | None:
        """Return the first process's coordinates."""
        if coordinates is None or jax.process_count() == 1:
            return coordinates
        return Affine(*placement.agree((coordinates.center, coordinates.matrix)))

    def _way(self, query: Query, coordinates: Affine | None) -> Way:
        """Choose how to go through the records. Second derivatives are traced when they are first asked for."""
        # Log-likelihoods are the same in all coordinates.
        matrix = None
        if coordinates is not None and query.differentiates and not query.needs_proposal:
            matrix = coordinates.matrix
        if not query.differentiates_twice:
            return Way(matrix)
        if self._with_curvature is None:
            self._with_curvature = self._passes.with_curvature(self.model)
        return Way(matrix, self._with_curvature)

    def _check_question(
        self, query: Query, theta: ArrayLike, proposal: ArrayLike | None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        if type(query) not in _KNOWN:
            raise QueryError(f"query must be one of {[known.__name__ for known in _KNOWN]}, got {type(query).__name__}")
        if set(vars(query)) - {field.name for field in fields(query)}:  # type: ignore[arg-type]
            raise QueryError(f"this {query.kind} query has attributes of its own; make a new one")
        self._check_family(query)
        self._check_bound(query)
        if query.needs_proposal and proposal is None:
            raise QueryError(f"a {query.kind} query of log-ratios needs a proposal; give proposal=...")
        if not query.needs_proposal and proposal is not None:
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

    def _check_family(self, query: Query) -> None:
        """Refuse what this model has no closed form for."""
        family = self._passes.kernel.family
        if query.requires == "regression" and family is None:
            raise QueryError(
                f"a {query.kind} query needs one of the package's regressions, and this model is none; use Curvature"
            )
        if query.requires == "logistic" and family is not LogisticRegression:
            raise QueryError(
                f"this {query.kind} query needs a LogisticRegression, whose scores are bounded by the features; use "
                "Gradient, FisherInformation without weight_bound, or of='gradient'"
            )

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

    def _check_bound(self, query: Query | None) -> None:
        """Refuse a bound that prints, or that has captured the data: it is public, and so is the noise that it sets."""
        if isinstance(query, LogRatio) and callable(query.bound):
            theta = jax.ShapeDtypeStruct((self.model.dimension,), jnp.float64)
            program, _ = allowed.trace("bound", query.bound, theta, theta)
            allowed.refuse_host_access("bound", program)
            allowed.check_constants("bound", program, self.num_records)

    def _public(self, query: Query, theta: Any, proposal: Any, coordinates: Affine | None = None) -> Any:
        """Return the public numbers of a question."""
        public = query.public(theta, proposal, query.numbers(self.num_records, self.model.dimension), coordinates)
        if isinstance(query, LogRatio) and not np.all(np.isfinite(public.spacing) & (np.asarray(public.spacing) >= 0)):
            raise QueryError("bound(theta, proposal) must be finite and non-negative; check the log-ratio's bound")
        return public

    def _cost(self, query: Query, chains: int, public: Any) -> Cost:
        slack = slack_of_answer(query, self.num_records, self.model.dimension)
        return slack.times(chains)._replace(spent=query.cost(public, chains))

    def _draw(self, query: Query, chains: int) -> list[NDArray[np.int64]]:
        lattices = query.lattices(self.num_records, self.model.dimension)
        return [self.noise.draw(lattice.noise_scale, (chains, lattice.numbers)) for lattice in lattices]

    def _compile(self, query: Query, theta: Any, proposal: Any, public: Any, way: Way) -> None:
        """Go the way of an answer with zeros, up to what would be run."""

        def total(query: Query, theta: Any, proposal: Any, *rest: Any) -> NDArray[np.int64]:
            compiled = self._passes.compiled_total(self._record_shapes, query, theta, proposal, rest, way)
            return np.zeros(compiled.out_info.shape, np.int64)

        lattices = query.lattices(self.num_records, self.model.dimension)
        noise = [np.zeros((len(theta), lattice.numbers), np.int64) for lattice in lattices]
        self._passes.answer(query, theta, proposal, noise, total, public)

    # ------------------------------------------------------------------ secret: exact sums over the records

    def _host_total(self, way: Way, query: Query, theta: Any, proposal: Any, *public: Any) -> NDArray[np.int64]:
        """Return the un-noised integer sums. Secret: no caller may let them out without noise."""
        compiled = self._passes.compiled_total(self._record_shapes, query, theta, proposal, public, way)
        if self._stream is not None:
            return self._stream.total(self._passes, compiled, theta, proposal, public, way.matrix)
        return np.asarray(compiled(self._records, theta, proposal, public, way.matrix))

    def _call_back(self, query: Query, theta: jax.Array, proposal: jax.Array | None, *public: Any) -> jax.Array:
        """Return the same from compiled code, for streamed records."""

        def total(records: Any, theta: Any, proposal: Any, public: tuple[Any, ...]) -> jax.Array:
            return self._passes.tile_total(records, query, theta, proposal, *public)

        shape = jax.eval_shape(total, self._record_shapes, theta, proposal, public).shape
        # Weakly: compiled code holds what it calls where no garbage collector sees it. The curator, which holds the
        # compiled code, and with it the table would never be let go.
        found = weakref.ref(self)

        def host_total(*question: Any) -> NDArray[np.int64]:
            curator = found()
            assert curator is not None  # whoever runs its compiled code holds it
            return curator._host_total(PLAIN, *question)

        return streaming.call_back(host_total, shape, query, theta, proposal, *public)

    def raise_stream_error(self) -> None:
        """Raise if streamed records could not be read; what was answered since then is worthless."""
        if self._stream is not None:
            self._stream.raise_error()

    # ------------------------------------------------------------------ questions from compiled code

    def pay(self, order: Order, ahead: Order | None = None) -> PaidNoise:
        """Charge some steps of a sampler and return the noise that their oracle needs. The one way to get any.

        Parameters
        ----------
        order
            What is to be paid for.
        ahead
            What will be paid for next: its noise is drawn beside, and charged when its turn comes.

        Raises
        ------
        BudgetExceededError
            The budget does not allow it. Nothing was spent.
        """
        self._check_order(order)
        with exact_arithmetic():
            paid = self._agree(self._till.take(order, ahead, partial(self._charge, order)))
        self._unused.append((paid, order.queries))
        return paid

    def _check_order(self, order: Order) -> None:
        """Refuse what would be charged wrongly: a class that is not ours, another currency, steps without noise."""
        gradient, log_ratio = order.queries.gradient, order.queries.log_ratio
        if type(gradient) not in (Gradient, BatchGradient, type(None)) or type(log_ratio) not in (LogRatio, type(None)):
            raise QueryError("an order takes Gradient, BatchGradient and LogRatio, and no class derived from them")
        if order.room and not 1 <= order.draws <= order.room:
            raise QueryError(f"an order of {order.draws} draws does not fit a block of {order.room}")
        if isinstance(self.budget, StepBudget):
            if not isinstance(gradient, BatchGradient) or log_ratio is not None:
                raise QueryError("a StepBudget pays for batch gradients only")
            asked = gradient.noise_ratio, gradient.batch_size / self.num_records, gradient.sampling
            if asked != (self.budget.noise_ratio, self.budget.sampling_prob, self.budget.scheme):
                raise QueryError("this StepBudget was made for other batches or another noise")
        elif self.private and isinstance(gradient, BatchGradient):
            raise QueryError("batches are paid for by a StepBudget")

    def _charge(self, order: Order, cost: Cost) -> None:
        # (A sampler that asks nothing at its start has nothing to pay for there.)
        if self.budget is not None and (order.room or any(cost)):
            what = {"kind": "steps", "steps": order.draws * order.thin} if order.room else {"kind": "start"}
            _spend(self.budget, cost, what)

    def stop_drawing(self) -> None:
        """Draw no more noise ahead."""
        self._till.close()

    def oracle(self, gradient: Gradient | BatchGradient | None, log_ratio: LogRatio | None) -> Binding:
        """Return an oracle that answers these queries, to be bound inside compiled code (:meth:`compile`)."""
        with exact_arithmetic():
            self._check_bound(log_ratio)
        return self._passes.oracle(gradient, log_ratio)

    def noise_free_oracle_not_private(self, gradient_clip_norm: float | None, ratio_bound: float | None) -> Binding:
        """Return an oracle without noise, for research samplers; None: no clipping. Refused by a private curator."""
        if self.private:
            raise NotPrivateError("a private curator has no noise-free oracle; use noise=NoNoiseNotPrivate()")
        if self._stream is not None:
            raise QueryError("samplers without noise need the records in memory; load the file first")
        return research.noise_free_oracle(self._passes, gradient_clip_norm, ratio_bound)

    def compile(self, name: Hashable, function: Callable[..., Any], oracle: Binding, *public: Any) -> Program:
        """Compile ``function(oracle, *public)``, or take what was compiled under this name for the same oracle.

        Looks at no record and spends nothing. ``public`` are arrays, or their shapes. The name must tell functions
        apart, and ``function`` must hold no records: it is kept.
        """

        def run(records: Any, numbers: Any, *public: Any) -> Any:
            return function(oracle.bind(records, numbers), *public)

        def make() -> Any:
            compiled = jax.jit(run, out_shardings=self._passes.replicated, compiler_options=placement.COMPILER_OPTIONS)
            return compiled.lower(self._records, self._numbers(oracle), *self._agree(public)).compile()

        with exact_arithmetic():
            return Program(self, self._passes.keep((name, oracle.structure, _shapes_of(public)), make), oracle)

    def blank(self, order: Order) -> PaidNoise:
        """Return zeros of the shapes that ``pay`` would return, to compile with. No oracle that runs takes them."""
        return self._till.draw(order, blank=True)

    def _run(self, compiled: Any, oracle: Binding, public: tuple[Any, ...]) -> Any:
        for leaf in jax.tree.leaves(public, is_leaf=lambda leaf: isinstance(leaf, PaidNoise | PaidDraws)):
            if isinstance(leaf, PaidNoise):
                self._use(leaf, oracle)
            elif isinstance(leaf, PaidDraws):
                raise QueryError("a program takes whole PaidNoise, as Curator.pay returned it, not parts of it")
        with exact_arithmetic():
            return compiled(self._records, self._numbers(oracle), *self._agree(public))

    def _use(self, paid: PaidNoise, oracle: Binding) -> None:
        """Noise that was paid for is used once."""
        for place, (unused, queries) in enumerate(self._unused):
            if unused is paid:
                del self._unused[place]
                if self.private and self._passes.numbers_of(queries.gradient, queries.log_ratio) != oracle.numbers:
                    raise QueryError("this noise was paid for other queries than the oracle's; nothing was released")
                return
        raise QueryError("this noise was not paid for here, or was used before; get some from Curator.pay")

    def _numbers(self, oracle: Binding) -> Any:
        return self._agree(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), oracle.numbers))

    def _agree(self, tree: Any) -> Any:
        """Return the first process's values, replicated on the curator's devices."""
        return placement.agree_everywhere(self._passes.mesh, tree)


class Program:
    """Compiled code that asks the curator's records through an oracle. Call it with its public arguments.

    Attributes
    ----------
    out_shapes
        Shapes of what it returns, placed as the next program takes them.
    """

    def __init__(self, curator: Curator, compiled: Any, oracle: Binding) -> None:
        self._curator, self._compiled, self._oracle = curator, compiled, oracle

    def __call__(self, *public: Any) -> Any:
        """Run it. Noise among the arguments must have been paid for, and is used up."""
        return self._curator._run(self._compiled, self._oracle, public)

    @property
    def out_shapes(self) -> Any:
        """Shapes of the results."""
        placed = self._curator.passes.replicated
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed), self._compiled.out_info
        )

    def as_text(self) -> str:
        """Return the compiled code."""
        return str(self._compiled.as_text())


def _spend(budget: Budget | StepBudget, cost: Cost, what: dict[str, Any]) -> None:
    """Charge by the class's own method: an attribute of the instance could do nothing."""
    type(budget).spend(
        budget, cost.spent, lattice_epsilon=cost.lattice_epsilon, lattice_delta=cost.lattice_delta, what=what
    )


def _shapes_of(tree: Any) -> Hashable:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((np.shape(leaf), str(getattr(leaf, "dtype", jnp.result_type(leaf)))) for leaf in leaves)
