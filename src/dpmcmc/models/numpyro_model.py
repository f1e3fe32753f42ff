"""Takes a NumPyro model apart into a prior and a per-record likelihood, or says which site forbids it.

A NumPyro model is a program over the whole data set; privacy per record needs a product over records. This
module traces the model on one made-up row and on a few, and refuses it unless every observation belongs to
exactly one row. It uses the shapes and dtypes of the data only: no value of a record is looked at.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from numpyro import handlers
from numpyro.primitives import Messenger

from dpmcmc.data.table import Table
from dpmcmc.data.tables import Records, copy_records
from dpmcmc.errors import DataError, ModelError
from dpmcmc.models.allowed import in_one_line
from dpmcmc.models.model import Model
from dpmcmc.models.parameters import Parameter, ParameterSpace

__all__ = ["NumpyroModel", "from_numpyro"]

# Two numbers of made-up rows: what has the size of the data has both, what is hard-coded has only one.
_NUM_ROWS = 3
_OTHER_NUM_ROWS = 5
_NUM_TRIALS = 16
_WHOLE_ARRAY = "data"  # the name under which a single array is handled internally

Columns = dict[str, Any]


class NumpyroModel(Model):
    """A :class:`Model` made by :func:`from_numpyro`; its records must have the columns it was made for."""

    def __init__(self, *arguments: Any, columns: dict[str, jax.ShapeDtypeStruct], is_array: bool, **options: Any):
        super().__init__(*arguments, **options)
        self._columns = columns
        self._is_array = is_array

    def prepare_records(self, data: Any) -> tuple[Records, int]:
        """Copy data into records and compare names and shapes with those of `data_like`.

        Where the model was made for integers or booleans, a column of any numeric dtype will do: a record whose value
        is none of the declared dtype's (missing, not whole, out of range) has a NaN log-likelihood.
        """
        records, num_records = copy_records(data)
        if isinstance(records, dict) == self._is_array:
            expected = "one array" if self._is_array else f"a mapping with the columns {list(self._columns)}"
            raise DataError(f"data must be {expected}, as the data_like that the model was made for.")
        given = records if isinstance(records, dict) else {_WHOLE_ARRAY: records}
        if set(given) != set(self._columns):
            raise DataError(
                f"data has the columns {list(given)}, but the model was made for {list(self._columns)}; add "
                "the missing and drop the other columns."
            )
        prepared = {}
        for name, like in self._columns.items():
            column = given[name]
            if column.shape[1:] != like.shape[1:]:
                raise DataError(
                    f"column {name!r} has shape {column.shape}, but the model was made for rows of shape "
                    f"{like.shape[1:]}; reshape the column or make the model anew."
                )
            # The model was checked with a floating column here; narrow integers could overflow in it. The other way
            # round (columns of tables and of Parquet files are floating), the log-likelihood casts.
            widen = like.dtype.kind == "f" and column.dtype.kind != "f"
            prepared[name] = column.astype(np.float64) if widen else column
        return (prepared[_WHOLE_ARRAY] if self._is_array else prepared), num_records


def from_numpyro(
    model_fn: Callable[..., Any],
    data_like: Any,
    *,
    fixed: Mapping[str, Any] | None = None,
    name: str | None = None,
    predict: Callable[[dict[str, jax.Array], Any], Any] | None = None,
) -> NumpyroModel:
    """Make a private-ready :class:`Model` of a NumPyro model.

    The model must have the form p(φ) Π_i p(x_i | φ): latent sites outside, and all observations inside,
    exactly one plate over the records whose size is the number of rows. Per record, the log-likelihood is

        log p(x_i | φ) = Σ over observed sites of scale × log_prob (with masks),

    traced on the one-row columns x_i[None]; the log-prior is the same sum over the latent sites.

    Parameters
    ----------
    model_fn
        Called as `model_fn(**columns, **fixed)`, or `model_fn(array, **fixed)` if `data_like` is an array.
    data_like
        The data, or anything with the same columns, shapes and dtypes, such as one of `jax.ShapeDtypeStruct`.
        Values are never used. Of a :class:`dpmcmc.Table` the model gets all columns, coded by the schema: categories
        are integers, the places of their levels, to look up with (`effects[clinic]`), and all else is floating.
        Columns of other tables count as floating, integers and booleans too, because one may be missing; for a model
        that needs integers, give `jax.ShapeDtypeStruct((n,), int)`. (Either way a record whose integer is missing
        counts as nothing.)
    fixed
        Public constants to pass by name.
    name
        A name for reports.
    predict
        As in :class:`Model`.

    Raises
    ------
    ModelError
        If the model is not a product over records or cannot be sampled on unconstrained space. The message
        names the site, the reason and the remedy.

    Notes
    -----
    That no row mixes with another is tested on made-up rows at random parameters: replacing one row must not
    change the log-likelihood of another row or the log-prior, and a row must have the same log-likelihood
    alone as among others. This finds honest mistakes; it is not a proof against a model written to deceive
    it. Even then the curator's bound holds, as it only ever evaluates one row at a time.

    A `handlers.scale` around a latent site scales its log-density on the constrained space only. (NumPyro's
    `potential_energy` scales the log-Jacobian as well, which makes the target depend on the coordinates.)

    Examples
    --------
    >>> import jax, numpyro
    >>> import jax.numpy as jnp
    >>> from numpyro import distributions as dist
    >>> def model_fn(x):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    ...     scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    ...     with numpyro.plate("records", x.shape[0]):
    ...         numpyro.sample("x", dist.Normal(mean, scale), obs=x)
    >>> model = from_numpyro(model_fn, {"x": jax.ShapeDtypeStruct((100,), jnp.float32)})
    >>> model.parameters["scale"].support, model.dimension
    (Positive(lower_bound=0.0), 2)
    """
    if not callable(model_fn):
        raise ModelError(f"model_fn is {type(model_fn).__name__}; give a NumPyro model function.")
    columns, is_array, of_tables = _describe(data_like)
    program = _Program(model_fn, is_array, dict(fixed or {}))
    # The checks are numerical, so that they are done in double precision whatever the ambient one.
    with jax.enable_x64(True):
        with _floating_columns_explained(of_tables, is_array):
            parameters, record_plate = _check_structure(program, columns)
            _check_rows(program, columns, parameters, record_plate)
        made_up = _first_trial(_made_up_rows(np.random.default_rng(0), columns, 1, 1))
        # The prior does not depend on it (that was checked), but the model wants a row to run.
        one_row = {column: np.asarray(value) for column, value in made_up.items()}

    def log_likelihood(values: dict[str, jax.Array], record: Any) -> jax.Array:
        given = {_WHOLE_ARRAY: record} if is_array else record
        cast = {column: _as_declared(jnp.asarray(given[column]), like.dtype) for column, like in columns.items()}
        sites = program.run({column: value[None] for column, (value, _) in cast.items()}, values)
        total = _total(site for site in sites.values() if site["is_observed"])
        for _, one_or_nan in cast.values():
            # Multiplied, not selected: a selection would give the derivative zero instead of NaN.
            total = total if one_or_nan is None else total * one_or_nan.astype(total.dtype)
        return total

    @jax.jit
    def log_prior(values: dict[str, jax.Array], row: Columns) -> jax.Array:
        sites = program.run(row, values)
        return _total(site for site in sites.values() if not site["is_observed"])

    @jax.jit
    def sample_prior(key: jax.Array, row: Columns) -> dict[str, jax.Array]:
        sites = program.run(row, {}, key)
        return {site: sites[site]["value"] for site in parameters}

    return NumpyroModel(
        # Traced even when called eagerly, so that NumPyro's validation sees no value of a record.
        jax.jit(log_likelihood),
        lambda values: log_prior(values, _as_ambient(one_row)),
        parameters,
        sample_prior=lambda key: sample_prior(key, _as_ambient(one_row)),
        name=name or getattr(model_fn, "__name__", None),
        predict=predict,
        columns=columns,
        is_array=is_array,
    )


def _as_declared(value: jax.Array, declared: Any) -> tuple[jax.Array, jax.Array | None]:
    """Cast to a declared integer or boolean dtype, and 1 if that is exact, NaN if not; None where nothing is cast."""
    dtype = jax.dtypes.canonicalize_dtype(declared)
    if dtype.kind == "f" or value.dtype == dtype:
        return value, None
    lowest, beyond = (0, 2) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max + 1)
    # Both bounds are powers of two, or zero: any floating dtype has them.
    number = value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(jnp.result_type(float))
    exact = (number >= float(lowest)) & (number < float(beyond)) & (number == jnp.floor(number))
    cast = jnp.where(exact, value, jnp.zeros_like(value)).astype(dtype)
    return cast, jnp.where(jnp.all(exact), 1.0, jnp.nan)


class _Recorder(Messenger):  # type: ignore[misc]
    """Outermost handler: remembers plates and refuses, by name, the primitives that cannot be private."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__(fn)
        self.plates: dict[str, int] = {}

    def process_message(self, msg: Any) -> None:
        kind, name = msg["type"], msg.get("name")
        if kind == "plate":
            size, subsample_size = msg["args"]
            if subsample_size is not None:
                raise ModelError(
                    f"plate {name!r} has a subsample_size; remove it: the private samplers subsample by themselves."
                )
            if self.plates.setdefault(name, size) != size:
                raise ModelError(f"plate {name!r} is used with two sizes; give the two plates different names.")
        elif kind == "param":
            raise ModelError(
                f"site {name!r} is a numpyro.param, which has no prior; use numpyro.sample with a prior, or "
                "pass a constant through fixed."
            )
        elif kind == "mutable":
            raise ModelError(f"site {name!r} is numpyro.mutable state, which depends on other rows; remove it.")
        elif kind == "control_flow":
            raise ModelError(
                "the model uses numpyro's scan or cond, whose sites cannot be taken apart by record; use plates."
            )
        elif kind == "prng_key":
            raise ModelError("the model calls numpyro.prng_key; a likelihood may not be random: use a latent site.")
        elif kind == "sample" and not msg["is_observed"]:
            distribution = type(_base(msg["fn"])).__name__
            if distribution == "ImproperUniform":
                raise ModelError(f"site {name!r} has an improper prior; give it a proper distribution.")
            if msg["fn"].is_discrete:
                raise ModelError(
                    f"site {name!r} is a discrete latent variable ({distribution}); sum it out, for example "
                    "with a mixture distribution."
                )


class _Program:
    """The user's model, called the right way under handlers."""

    def __init__(self, model_fn: Callable[..., Any], is_array: bool, fixed: dict[str, Any]) -> None:
        self.model_fn = model_fn
        self.is_array = is_array
        self.fixed = fixed

    def run(
        self, columns: Columns, values: Mapping[str, Any], key: jax.Array | None = None
    ) -> dict[str, dict[str, Any]]:
        """Trace the model with the given latent values and return its sample sites."""
        return self.run_with_plates(columns, values, key)[0]

    def run_with_plates(
        self, columns: Columns, values: Mapping[str, Any], key: jax.Array | None = None
    ) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
        """Also return the plates and their sizes."""
        model = handlers.substitute(self.model_fn, data=dict(values))
        if key is not None:
            model = handlers.seed(model, key)
        recorder = _Recorder(model)
        tracer = handlers.trace(recorder)
        arguments = (columns[_WHOLE_ARRAY],) if self.is_array else ()
        named = {} if self.is_array else columns
        try:
            trace = tracer.get_trace(*arguments, **named, **self.fixed)
        except ModelError:
            raise
        except Exception as error:
            # Made-up data and tracers hold no values of records, so that the cause may be shown.
            _explain(error, recorder.plates, len(next(iter(columns.values()))))
        return {name: site for name, site in trace.items() if site["type"] == "sample"}, recorder.plates


def _explain(error: Exception, plates: dict[str, int], num_rows: int) -> NoReturn:
    fixed_size = [f"{name!r} of size {size}" for name, size in plates.items() if size != num_rows]
    hint = (
        f" Perhaps a plate has a hard-coded size: the model was run with {num_rows} rows and has the "
        f"plate(s) {', '.join(fixed_size)}; write numpyro.plate(name, X.shape[0]) for the records."
        if fixed_size
        else ""
    )
    raise ModelError(
        f"the NumPyro model failed on made-up data of {num_rows} row(s): {in_one_line(error)}.{hint} It must run for "
        "any number of rows, under jax.jit."
    ) from error


@contextmanager
def _user_errors() -> Iterator[None]:
    """Turn what the user's distributions raise (in log_prob, under jit) into a ModelError."""
    try:
        yield
    except (ModelError, DataError):
        raise
    except Exception as error:
        raise ModelError(
            f"the NumPyro model failed while its log-density was computed on made-up data: {in_one_line(error)}. Check "
            "the shapes of its sites and plates."
        ) from error


@contextmanager
def _floating_columns_explained(of_tables: list[str], is_array: bool) -> Iterator[None]:
    """Say, where the user's model failed, that columns of tables are floating whatever they were."""
    try:
        yield
    except ModelError as error:
        if not of_tables or error.__cause__ is None:  # a refusal has no cause
            raise
        columns = "It is a series" if is_array else f"Its columns {of_tables} are of a table"
        example = "jax.ShapeDtypeStruct((n,), int)"
        example = example if is_array else f'{{"{of_tables[0]}": {example}, ...}}'
        raise ModelError(
            f"{error} About data_like: {columns}, where integers and booleans count as floating, because one may be "
            f"missing. If the model needs integers, give data_like={example}, or cast inside the model."
        ) from error.__cause__


class _Site(NamedTuple):
    """What is static about a sample site."""

    is_observed: bool
    is_factor: bool
    plates: list[str]
    shape: tuple[int, ...]


class _Outline(NamedTuple):
    """The static form of a model for one number of rows, and the supports of its latent sites."""

    sites: dict[str, _Site]
    plates: dict[str, int]
    supports_on: Callable[[Columns, jax.Array], dict[str, Any]]

    @property
    def latents(self) -> dict[str, _Site]:
        return {name: site for name, site in self.sites.items() if not site.is_observed}


def _outline(program: _Program, rows: Any, key: jax.Array) -> _Outline:
    """Trace the model without running it: shapes and plates need no numbers, and supports only a few."""
    sites: dict[str, _Site] = {}
    plates: dict[str, int] = {}

    def supports(columns: Columns, draw: jax.Array) -> dict[str, Any]:
        found, sizes = program.run_with_plates(columns, {}, draw)
        plates.update(sizes)
        for name, site in found.items():
            sites[name] = _Site(
                is_observed=site["is_observed"],
                is_factor=type(_base(site["fn"])).__name__ == "Unit",
                plates=[frame.name for frame in site["cond_indep_stack"]],
                shape=tuple(jnp.shape(site["value"])),
            )
        # Constraints are pytrees, so that bounds come out as numbers; sampling that no bound needs is pruned.
        return {name: site["fn"].support for name, site in found.items() if not site["is_observed"]}

    compiled = jax.jit(supports)
    with _user_errors():
        jax.eval_shape(compiled, rows, key)
    return _Outline(sites, plates, compiled)


def _check_structure(program: _Program, columns: dict[str, jax.ShapeDtypeStruct]) -> tuple[dict[str, Parameter], str]:
    """Find parameters and the record plate from traces with made-up rows; refuse what has another form."""
    key = jax.random.key(0)
    rows = _first_trial(_made_up_rows(np.random.default_rng(1), columns, 1, _NUM_ROWS))
    more_rows = _first_trial(_made_up_rows(np.random.default_rng(1), columns, 1, _OTHER_NUM_ROWS))
    outline, other = _outline(program, rows, key), _outline(program, more_rows, key)
    record_plate = _record_plate(outline, other)
    for name, site in outline.sites.items():
        inside = record_plate is not None and record_plate in site.plates
        if site.is_observed and not inside:
            _refuse_observation(name, site, outline.plates)
        if not site.is_observed and inside:
            raise ModelError(
                f"site {name!r} is a latent variable per record, inside the record plate {record_plate!r}; "
                "integrate it out, or move it outside the plate."
            )
    if record_plate is None or not any(site.is_observed for site in outline.sites.values()):
        raise ModelError("the model has no observed site; pass obs= to a sample statement inside the record plate.")
    # The real number of rows, by shapes alone: finds a model that behaves otherwise when it is large.
    num_rows = next(iter(columns.values())).shape[0]
    full = _outline(program, columns, key)
    if full.plates.get(record_plate) != num_rows or set(full.sites) != set(outline.sites):
        raise ModelError(
            f"plate {record_plate!r} does not have the size of the data at {num_rows} rows, or the model has "
            "other sites there; make the plate's size the number of rows, X.shape[0]."
        )
    return _parameters(outline, other, rows, key), record_plate


def _record_plate(outline: _Outline, other: _Outline) -> str | None:
    """The one plate that grows with the number of rows; None if there is none."""
    sizes = {name: (size, other.plates.get(name)) for name, size in outline.plates.items()}
    record_plates = [name for name, pair in sizes.items() if pair == (_NUM_ROWS, _OTHER_NUM_ROWS)]
    for name, (size, other_size) in sizes.items():
        if name not in record_plates and size != other_size:
            raise ModelError(
                f"plate {name!r} has a size that depends on the number of rows without being it; make it the "
                "number of rows, X.shape[0]."
            )
    if len(record_plates) > 1:
        raise ModelError(
            f"the model has {len(record_plates)} plates over the records, {record_plates}; put all "
            "observations of a record into one plate."
        )
    return record_plates[0] if record_plates else None


def _refuse_observation(name: str, site: _Site, plates: dict[str, int]) -> NoReturn:
    what = "factor" if site.is_factor else "observed site"
    if site.plates:
        sizes = ", ".join(f"{plate!r} of hard-coded size {plates[plate]}" for plate in site.plates)
        raise ModelError(
            f"{what} {name!r} stands in the plate {sizes}, which is not the number of rows; write "
            "numpyro.plate(name, X.shape[0]) for the records."
        )
    raise ModelError(
        f"{what} {name!r} stands outside the record plate; put it inside "
        "`with numpyro.plate('records', X.shape[0]):` with one entry per row."
    )


def _parameters(outline: _Outline, other: _Outline, rows: Columns, key: jax.Array) -> dict[str, Parameter]:
    """Shapes and supports of the latent sites, which may depend on nothing but constants."""
    if not outline.latents:
        raise ModelError("the model has no latent site, so that there is nothing to infer; add a prior.")
    if set(outline.latents) != set(other.latents):
        raise ModelError("the model's latent sites depend on the number of rows; make them the same.")
    other_rows = {name: _other_values(column) for name, column in rows.items()}
    with _user_errors():
        supports = outline.supports_on(rows, key)
        with_other_rows = outline.supports_on(other_rows, key)
        with_other_draws = outline.supports_on(rows, jax.random.key(1))
    parameters = {}
    for name, site in outline.latents.items():
        other_shape = other.latents[name].shape
        if site.shape != other_shape:
            raise ModelError(
                f"site {name!r} is a latent variable whose shape grows with the number of rows ({site.shape} "
                f"for {_NUM_ROWS} rows, {other_shape} for {_OTHER_NUM_ROWS}), so one per record; integrate "
                "it out."
            )
        if not _same_support(supports[name], with_other_rows[name]):
            raise ModelError(
                f"site {name!r} has a prior whose support depends on the data; state its bounds as constants."
            )
        if not _same_support(supports[name], with_other_draws[name]):
            raise ModelError(
                f"site {name!r} has a support that depends on another latent variable; write it as a "
                "transform of a variable with a fixed support, for example scale * u with u ~ Uniform(0, 1)."
            )
        try:
            parameters[name] = Parameter(site.shape, jax.tree.map(_as_constant, supports[name]))
        except ModelError as error:
            raise ModelError(f"site {name!r} cannot be moved to unconstrained space: {error}") from None
    return parameters


def _check_rows(
    program: _Program,
    columns: dict[str, jax.ShapeDtypeStruct],
    parameters: dict[str, Parameter],
    record_plate: str,
) -> None:
    """Replace one made-up row at a time: neither another row's log-likelihood nor the prior may move."""
    generator = np.random.default_rng(2)
    space = ParameterSpace(parameters)
    theta = jnp.asarray(generator.normal(size=(_NUM_TRIALS, space.dimension)))
    base = _made_up_rows(generator, columns, _NUM_TRIALS, _NUM_ROWS)
    fresh = _made_up_rows(generator, columns, _NUM_TRIALS, _NUM_ROWS)

    def terms(vector: jax.Array, rows: Columns) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        num_rows = len(next(iter(rows.values())))
        sites = program.run(rows, space.constrain(vector))
        likelihood = {
            name: _by_row(name, site, record_plate, num_rows) for name, site in sites.items() if site["is_observed"]
        }
        prior = {name: _total([site]) for name, site in sites.items() if not site["is_observed"]}
        return likelihood, prior

    def all_terms(vector: jax.Array, rows: Columns, other: Columns) -> Any:
        variants = [other, jax.tree.map(_exaggerated, rows), jax.tree.map(_not_a_number, rows)]
        # (variants × rows) data sets, each with one row replaced; one compiled program evaluates them all.
        replaced = [
            {name: rows[name].at[row].set(variant[name][row]) for name in rows}
            for variant in variants
            for row in range(_NUM_ROWS)
        ]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), rows, *replaced)
        together = jax.vmap(lambda data: terms(vector, data))(stacked)
        one_row_each = {name: rows[name][:, None] for name in rows}
        alone = jax.vmap(lambda data: terms(vector, data))(one_row_each)
        return together, alone

    with _user_errors():
        together, alone = jax.tree.map(np.asarray, jax.jit(jax.vmap(all_terms))(theta, base, fresh))
    _judge_rows(*together, *alone)


def _judge_rows(
    likelihood: dict[str, NDArray[Any]],
    prior: dict[str, NDArray[Any]],
    likelihood_alone: dict[str, NDArray[Any]],
    prior_alone: dict[str, NDArray[Any]],
) -> None:
    """Compare the original rows (place 0 of the second axis) with those where one was replaced, and with rows alone."""
    for name, value in prior.items():
        if not (_same(value, value[:, :1]).all() and _same(value[:, :1], prior_alone[name], loose=True).all()):
            raise ModelError(
                f"site {name!r} has a prior that depends on the data (or on the number of rows); a private "
                "prior must be chosen without the data: use constants, or pass public values through fixed."
            )
    num_variants = (next(iter(likelihood.values())).shape[1] - 1) // _NUM_ROWS
    changed_row = np.tile(np.arange(_NUM_ROWS), num_variants)
    others = changed_row[:, None] != np.arange(_NUM_ROWS)[None, :]
    for name, value in likelihood.items():
        original, replaced = value[:, :1], value[:, 1:]
        mixed = ~_same(replaced, original) & others[None]
        unlike_alone = ~_same(original[:, 0], likelihood_alone[name][:, :, 0], loose=True)
        if mixed.any() or unlike_alone.any():
            raise ModelError(
                f"site {name!r} gives a row a log-likelihood that depends on other rows, on their number or "
                "on the row's position; use only the row's own columns (pass public averages, scales or "
                "counts through fixed)."
            )
        if not np.isfinite(original).any():
            raise ModelError(
                f"site {name!r} has no finite log-likelihood on any of {_NUM_TRIALS * _NUM_ROWS} made-up "
                "rows, so that it cannot be checked that rows do not mix; write this model with dpmcmc's "
                "Model instead."
            )


def _by_row(name: str, site: dict[str, Any], record_plate: str, num_rows: int) -> jax.Array:
    """Log-likelihood of a site per row: the record plate's axis is kept and all others are summed."""
    log_prob = _log_prob(site)
    dim = next(frame.dim for frame in site["cond_indep_stack"] if frame.name == record_plate)
    if log_prob.ndim < -dim or log_prob.shape[dim] != num_rows:
        raise ModelError(
            f"site {name!r} has log-probabilities of shape {log_prob.shape}, without one entry per row on "
            f"axis {dim}; give its distribution the batch shape of the record plate."
        )
    return jnp.moveaxis(log_prob, dim, 0).reshape(num_rows, -1).sum(axis=1)


def _log_prob(site: dict[str, Any]) -> jax.Array:
    log_prob = site["fn"].log_prob(site["value"])
    return jnp.asarray(log_prob if site["scale"] is None else site["scale"] * log_prob)


def _total(sites: Any) -> jax.Array:
    return sum((jnp.sum(_log_prob(site)) for site in sites), start=jnp.zeros(()))


def _same(left: NDArray[Any], right: NDArray[Any], loose: bool = False) -> NDArray[np.bool_]:
    """Equal up to round-off, with NaN equal to NaN and infinities to themselves.

    The same program on the same row should give the same bits; only iterative functions differ in the last
    digits. Programs for different numbers of rows (`loose`) may sum in another order.
    """
    precision = 1e-3 if left.dtype == np.float32 else 1e-7
    tolerance = precision if loose else precision * 1e-3
    with np.errstate(invalid="ignore"):
        close = np.abs(left - right) <= tolerance * (1.0 + np.abs(left) + np.abs(right))
    finite = np.isfinite(left) & np.isfinite(right)
    same: NDArray[np.bool_] = np.where(finite, close, (left == right) | (np.isnan(left) & np.isnan(right)))
    return same


def _describe(data_like: Any) -> tuple[dict[str, jax.ShapeDtypeStruct], bool, list[str]]:
    """Shapes and dtypes of the columns, whether there is just one array, and which columns are of tables."""
    if isinstance(data_like, Table):
        coded = {
            name: np.dtype(np.int64 if data_like.schema[name].kind == "category" else np.float64)
            for name in data_like.columns
        }
        of_table = {name: jax.ShapeDtypeStruct((data_like.num_records,), dtype) for name, dtype in coded.items()}
        return of_table, False, [name for name, dtype in coded.items() if dtype.kind == "f"]
    if isinstance(data_like, Mapping):
        is_array = False
        of_tables = [name for name, column in data_like.items() if not _has_plain_dtype(column)]
        copies = {name: copy_records({name: data_like[name]})[0][name] for name in of_tables}
        given: Any = {**data_like, **copies}
    else:
        records = data_like if _has_plain_dtype(data_like) else copy_records(data_like)[0]
        is_array = not isinstance(records, dict)
        given = {_WHOLE_ARRAY: records} if is_array else records
        of_tables = [] if records is data_like else list(given)
    columns = {}
    for name, column in given.items():
        shape, dtype = tuple(column.shape), np.dtype(column.dtype)
        if not shape or shape[0] == 0:
            raise DataError(f"column {name!r} of data_like has shape {shape}; give at least one row.")
        columns[name] = jax.ShapeDtypeStruct(shape, dtype)
    if not columns:
        raise DataError("data_like has no columns; give at least one.")
    if len({column.shape[0] for column in columns.values()}) > 1:
        lengths = {name: column.shape[0] for name, column in columns.items()}
        raise DataError(f"the columns of data_like have different lengths {lengths}; give one entry per record.")
    return columns, is_array, of_tables


def _has_plain_dtype(column: Any) -> bool:
    """Whether it is an array, or has a shape and no values, of a dtype that `copy_records` keeps."""
    plain = isinstance(column, np.ndarray | jax.Array) or not hasattr(column, "__array__")
    dtype = getattr(column, "dtype", None)
    return plain and hasattr(column, "shape") and isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def _made_up_rows(
    generator: np.random.Generator, columns: dict[str, jax.ShapeDtypeStruct], num_trials: int, num_rows: int
) -> Columns:
    """Random rows of the right shapes and dtypes, (trials, rows, …), of many kinds so that some are possible.

    An observation may have to be positive, a probability, a class or a composition; trials go through these
    kinds, first the same for all columns and then mixed over the columns.
    """

    def composition(size: tuple[int, ...]) -> NDArray[np.float64]:
        positive = generator.exponential(size=size)
        return positive / positive.sum(axis=-1, keepdims=True) if len(size) > 1 else generator.uniform(size=size)

    kinds: list[Callable[[tuple[int, ...]], NDArray[Any]]] = [
        lambda size: generator.normal(size=size),
        lambda size: generator.exponential(size=size),
        lambda size: generator.uniform(size=size),
        lambda size: generator.integers(0, 2, size=size).astype(float),
        lambda size: generator.integers(0, 5, size=size).astype(float),
        composition,
    ]
    rows = {}
    # Column c takes kind t at first and then kinds that differ between columns, the same in every call.
    choices = np.random.default_rng(3).integers(len(kinds), size=(max(num_trials, 1), len(columns)))
    for trial, column in itertools.product(range(min(num_trials, len(kinds))), range(len(columns))):
        choices[trial, column] = trial
    for position, (name, like) in enumerate(columns.items()):
        size = (num_rows, *like.shape[1:])
        if like.dtype.kind == "f":
            values = [kinds[choices[trial, position]](size) for trial in range(num_trials)]
            rows[name] = jnp.asarray(np.stack(values), jnp.float64)
        else:
            largest = 2 if like.dtype.kind == "b" else 3
            values = [generator.integers(0, 2 if trial % 2 else largest, size=size) for trial in range(num_trials)]
            rows[name] = jnp.asarray(np.stack(values).astype(like.dtype))
    return rows


def _first_trial(rows: Columns) -> Columns:
    return {name: column[0] for name, column in rows.items()}


def _as_ambient(rows: Columns) -> Columns:
    # Converted in NumPy, into a fresh array: JAX may remember the double-precision constant of the old one.
    return {
        name: jnp.asarray(np.array(column, jax.dtypes.canonicalize_dtype(column.dtype)))
        for name, column in rows.items()
    }


def _other_values(column: jax.Array) -> jax.Array:
    """The same shape and dtype with every value changed (and still small)."""
    if column.dtype == jnp.bool_:
        return ~column
    return 1 - column if jnp.issubdtype(column.dtype, jnp.floating) else (column + 1) % 3


def _exaggerated(column: jax.Array) -> jax.Array:
    """Values far outside those of the other rows, so that maxima and thresholds move as well."""
    if column.dtype == jnp.bool_:
        return ~column
    return column * 1e3 + 1e3 if jnp.issubdtype(column.dtype, jnp.floating) else column + 7


def _not_a_number(column: jax.Array) -> jax.Array:
    """NaN spreads through whatever arithmetic a row takes part in; integers have to do with another code."""
    if jnp.issubdtype(column.dtype, jnp.floating):
        return jnp.full_like(column, jnp.nan)
    return _other_values(column)


def _same_support(left: Any, right: Any) -> bool:
    left_leaves, left_tree = jax.tree.flatten(left)
    right_leaves, right_tree = jax.tree.flatten(right)
    return left_tree == right_tree and all(  # type: ignore[operator]
        np.array_equal(a, b) for a, b in zip(left_leaves, right_leaves, strict=True)
    )


def _as_constant(leaf: Any) -> Any:
    """Bounds as Python or NumPy numbers, so that they follow the ambient precision later."""
    array = np.asarray(leaf)
    return array.item() if array.ndim == 0 else array


def _base(distribution: Any) -> Any:
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return distribution
