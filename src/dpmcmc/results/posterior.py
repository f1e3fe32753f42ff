"""The posterior draws of a run, with the privacy statement that goes wherever they go.

Holds released quantities only: draws, acceptance rates, step sizes, and what a sampler made of its releases to say how
good the result is (`Quality`). It never sees a record, and refuses log-likelihoods, energies, fractions of clipped
records of each draw and anything else that was not released. (A run without noise is not private anyway, and says so;
it may keep its fractions of clipped log-ratios.)
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmcmc.design import Design
from dpmcmc.errors import DPMCMCWarning, NotPrivateError, ResultError
from dpmcmc.privacy.statement import NOISE_FREE_MODE, PrivacyStatement
from dpmcmc.results import arviz_bridge
from dpmcmc.results.diagnostics import RecordCheck, problems, without_still_entries
from dpmcmc.results.files import check_path, read_tree, write_tree
from dpmcmc.results.original_scale import original_draws, original_quality
from dpmcmc.results.quality import INDEPENDENT_NOTE, Quality
from dpmcmc.results.spending import Spend, checked_spending
from dpmcmc.schema import Schema

if TYPE_CHECKING:
    from pathlib import Path

    import pandas
    from xarray import DataTree

    from dpmcmc.results.predictions import Predictions

__all__ = ["RELEASED_STATS", "Posterior"]

RELEASED_STATS = ("acceptance_rate", "step_size")
"""What a sampler may report of each iteration beside the draw, by ArviZ's names: all of it was released."""
NOISE_FREE_STATS = (*RELEASED_STATS, "ratios_clipped")
"""The same for a run without noise, and for no other: neither a private nor a seeded one."""

_FORMAT = 6
# A file of format 3 knows nothing of quality, one of format 4 nothing of a design, and one of format 5 of spending.
_READABLE_FORMATS = (3, 4, 5, 6)
_SAMPLE_DIMENSIONS = ("chain", "draw")
_GROUPS = ("posterior", "sample_stats", "warmup_posterior", "warmup_sample_stats")
# The options of `arviz.summary` that say which rows a table has, and what they are called.
_ROW_OPTIONS = ("var_names", "filter_vars", "group", "coords", "labeller", "order", "index_origin", "sample_dims")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Posterior:
    """Draws from the posterior, in constrained space, and what may be said about them.

    Parameters
    ----------
    draws
        By parameter: array of shape chains × draws × the parameter's own, after warm-up. Read-only.
    warmup_draws
        The same for the warm-up; empty, or with 0 draws, if there was none.
    sample_stats, warmup_stats
        ``"acceptance_rate"`` and ``"step_size"``, each chains × draws. Any other name is refused, but for
        ``"ratios_clipped"`` of a run without noise.
    privacy
        What was guaranteed.
    sampler, model
        What to call them.
    dims, coords
        Names of the parameters' own dimensions, and labels along these, as in ArviZ:
        ``dims={"beta": ["coefficient"]}, coords={"coefficient": ["age", "income"]}``.
    record_check
        The released, noised count of records that counted as nothing; None if none was released.
    quality
        How far the result is to be trusted, of a sampler that can tell (`DPLaplace`); else None.
    design
        Formula and schema of a regression that :func:`dpmcmc.regression` made; else None. With them :meth:`predict` and
        :meth:`on_original_scale` work, also of a file.
    schema
        Schema of the table that a user's own model was sampled with; else None.
    spending
        How the budget was spent, in the order in which it was; empty if it is not known.
    predictor
        The model's ``predict``, for a user's own model. A function is not written to files.

    Raises
    ------
    NotPrivateError
        A statistic other than acceptance rate and step size was given.
    ResultError
        Shapes, names or labels do not fit together.

    Examples
    --------
    >>> from dpmcmc.privacy.statement import SEEDED_MODE
    >>> privacy = PrivacyStatement(private=False, mode=SEEDED_MODE, epsilon=1.0, delta=1e-6, num_records=100,
    ...                            accountant="Gaussian composition")
    >>> draws = {"beta": np.zeros((4, 100, 3))}
    >>> posterior = Posterior(draws=draws, privacy=privacy, sampler="DP-HMC", model="logistic")
    >>> posterior
    Posterior(model='logistic', sampler='DP-HMC', 4 chains × 100 draws, not private: seeded, 1 warning)
    >>> posterior.warnings[0][:46]
    '4 of 4 chains did not move at all in 100 draws'
    """

    draws: Mapping[str, np.ndarray]
    warmup_draws: Mapping[str, np.ndarray] = field(default_factory=dict)
    sample_stats: Mapping[str, np.ndarray] = field(default_factory=dict)
    warmup_stats: Mapping[str, np.ndarray] = field(default_factory=dict)
    privacy: PrivacyStatement
    sampler: str
    model: str
    dims: Mapping[str, Sequence[str]] = field(default_factory=dict)
    coords: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    record_check: RecordCheck | None = None
    quality: Quality | None = None
    design: Design | None = None
    schema: Schema | None = None
    spending: tuple[Spend, ...] = ()
    predictor: Callable[[dict[str, Any], Any], Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.privacy, PrivacyStatement):
            raise ResultError(f"privacy is a {type(self.privacy).__name__}; give a PrivacyStatement")
        if self.record_check is not None and self.record_check.num_records != self.privacy.num_records:
            raise ResultError(
                f"record_check is about {self.record_check.num_records} records and privacy about "
                f"{self.privacy.num_records}; they must agree"
            )
        draws = _arrays("draws", self.draws)
        if not draws:
            raise ResultError("draws is empty; give at least one parameter")
        chains, num_draws = _leading_shape("draws", draws)
        if chains < 1 or num_draws < 1:
            raise ResultError(f"draws has {chains} chains × {num_draws} draws; there must be at least one of each")
        warmup = _arrays("warmup_draws", self.warmup_draws)
        if not warmup:
            warmup = {name: np.empty((chains, 0, *value.shape[2:]), value.dtype) for name, value in draws.items()}
        warmup_chains, num_warmup = _leading_shape("warmup_draws", warmup)
        same_names = set(warmup) == set(draws)
        if warmup_chains != chains or not same_names or any(warmup[k].shape[2:] != draws[k].shape[2:] for k in draws):
            raise ResultError("warmup_draws must have the chains, parameters and parameter shapes of draws")
        dims, coords = _check_labels(draws, self.dims, self.coords)
        _check_design(self.design, draws)
        _check_quality(self.quality, draws)
        object.__setattr__(self, "spending", checked_spending(self.spending))
        checked: dict[str, dict[str, Any]] = {
            "draws": draws,
            "warmup_draws": {name: warmup[name] for name in draws},
            "sample_stats": _stats("sample_stats", self.sample_stats, (chains, num_draws), self.privacy),
            "warmup_stats": _stats("warmup_stats", self.warmup_stats, (chains, num_warmup), self.privacy),
            "dims": dims,
            "coords": coords,
        }
        for name, value in checked.items():
            object.__setattr__(self, name, MappingProxyType(_read_only(value)))
        if self.quality is not None:
            object.__setattr__(self, "quality", replace(self.quality, dims=self.dims, coords=self.coords))

    @property
    def num_chains(self) -> int:
        """Number of chains."""
        return int(next(iter(self.draws.values())).shape[0])

    @property
    def num_draws(self) -> int:
        """Number of draws of each chain after warm-up."""
        return int(next(iter(self.draws.values())).shape[1])

    @property
    def num_warmup(self) -> int:
        """Number of warm-up draws of each chain that were kept."""
        return int(next(iter(self.warmup_draws.values())).shape[1])

    @property
    def acceptance_rate(self) -> float | None:
        """Mean acceptance over chains and draws after warm-up; None for a sampler that accepts everything untested."""
        acceptance = self.sample_stats.get("acceptance_rate")
        return None if acceptance is None else float(np.mean(acceptance))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the run as far as released quantities tell, with the remedies; empty if nothing is."""
        return problems(self)

    @property
    def of_chains(self) -> bool:
        """Whether the draws are those of chains; if not, they are in no order, and (nearly) independent."""
        return self.quality is None or not self.quality.independent_draws

    @property
    def size_text(self) -> str:
        """How many draws there are, in words."""
        if self.of_chains:
            return f"{self.num_chains} chains × {self.num_draws} draws"
        return f"{self.num_chains * self.num_draws:,} draws"

    @property
    def quality_rows(self) -> list[tuple[str, str]]:
        """What ``quality`` says, as label and text, without the reasons, which are among the warnings."""
        if self.quality is None:
            return []
        return self.quality.rows(self.privacy)

    def summary(self, **options: Any) -> pandas.DataFrame:
        """Return mean, sd, interval, MCSE, ESS and R̂ of every parameter, by :func:`arviz.summary`.

        What cannot be estimated (R̂ of one chain, ESS of fewer than four draws, both of draws that never moved) is NaN.
        ``attrs`` of the table hold the privacy statement and the warnings, each of which is also given as a
        :class:`~dpmcmc.errors.DPMCMCWarning`; if the run was not private, the name of its index says so, which shows
        wherever the table is printed or written to CSV.

        If there is a ``quality``, ``attrs`` hold it too, as JSON. If the draws are independent, the table (but for
        ``fmt="long"`` and ``"xarray"``) has a column ``noise_share``, the share of each sd that is privacy noise, and
        ``attrs["notes"]`` say that R̂ and ESS are those of independent draws.

        Intervals hold 94 % (``hdi_3%`` to ``hdi_97%``), with ArviZ 0.x and 1.x alike.

        Parameters
        ----------
        **options
            Passed to :func:`arviz.summary`, for example ``kind="diagnostics"`` or ``round_to=4``.
        """
        moved = without_still_entries(self.draws)
        with arviz_bridge.quiet():
            table = arviz_bridge.summarise(self.to_arviz(), **options)
            if moved is not None:
                other = arviz_bridge.summarise(_rebuild(self._fields() | {"draws": moved}).to_arviz(), **options)
                table = _with_errors_of(other, table, options.get("fmt", "wide"))
            if not self.of_chains and options.get("fmt", "wide") == "wide":
                table["noise_share"] = self._noise_column(options)
        table.attrs.update(_privacy_attributes(self.privacy), warnings=self.warnings)
        if self.quality is not None:
            table.attrs["quality"] = self.quality.to_json()
            table.attrs["notes"] = () if self.of_chains else (f"The draws are {INDEPENDENT_NOTE}.",)
        if not self.privacy.private and hasattr(table, "columns"):  # fmt="xarray" has attributes only
            table.index.name = self.privacy.mode
        for text in self.warnings:
            warnings.warn(text, DPMCMCWarning, stacklevel=2)
        return table

    def to_arviz(self) -> Any:
        """Return the draws for ArviZ: an ``InferenceData`` (ArviZ 0.x) or an ``xarray.DataTree`` (1.x).

        Groups: ``posterior``, ``sample_stats``, and if warm-up was kept ``warmup_posterior`` and
        ``warmup_sample_stats``. The root and every group carry the attributes ``privacy`` (the statement as JSON),
        ``private`` (1 or 0) and ``mode``; the root also has ``quality`` (JSON, null if there is none). A parameter
        whose name ArviZ cannot hold (with "/", say) is renamed.
        """
        variables = self._variable_names()
        groups = {
            "posterior": {variables[name]: value for name, value in self.draws.items()},
            "sample_stats": self.sample_stats,
            "warmup_posterior": {variables[name]: value for name, value in self.warmup_draws.items()},
            "warmup_sample_stats": self.warmup_stats,
        }
        kept = {
            group: values
            for group, values in groups.items()
            if values and (self.num_warmup or not group.startswith("warmup"))
        }
        renamed = {variable: name for name, variable in variables.items() if variable != name}
        data = arviz_bridge.build(
            kept,
            dims={variables[name]: names for name, names in self.dims.items()},
            coords=self.coords,
            attributes=_privacy_attributes(self.privacy),
        )
        data.attrs.update(
            dpmcmc_format=_FORMAT,
            inference_library="dpmcmc",
            model=self.model,
            sampler=self.sampler,
            parameters=json.dumps(list(self.draws)),
            renamed_parameters=json.dumps(renamed),
            record_check=json.dumps(None if self.record_check is None else asdict(self.record_check)),
            quality="null" if self.quality is None else self.quality.to_json(),
            design=json.dumps(None if self.design is None else self.design.to_dict()),
            schema=json.dumps(None if self.schema is None else self.schema.to_dict()),
            spending=json.dumps(self.spending),
        )
        return data

    def on_original_scale(self) -> Posterior:
        """Return the same draws with coefficients in the data's units: years of age, not halves of its range.

        A linear map of the draws of a regression that :func:`dpmcmc.regression` made. If y is the linear predictor in
        coded numbers z = (x − centre)/scale, this is the same y in x. Where that needs a term that the formula lacks
        (``hours:C(sex)`` without ``C(sex)``, a formula without intercept), the term is there as an induced one, after
        those of the formula. Of a linear regression the response, ``noise_scale`` and effects of groups are in the
        data's units, too.

        Raises
        ------
        ResultError
            There is no formula: the model was not made by ``dpmcmc.regression``, or this is on the original scale.
        """
        if self.design is None:
            raise ResultError(
                "there is no formula and schema with these draws; sample a model that dpmcmc.regression made (and call "
                "on_original_scale once only)"
            )
        scale = self.design.original()
        values = self._fields() | {
            "draws": original_draws(self.draws, scale),
            "warmup_draws": original_draws(self.warmup_draws, scale),
            "dims": {**self.dims, **({"coefficients": ("feature",)} if scale.columns else {})},
            "coords": {**self.coords, **({"feature": scale.columns} if scale.columns else {})},
            "model": f"{self.model}, in the data's units",
            "design": None,
        }
        if self.quality is not None:
            values["quality"] = original_quality(self.quality, self.draws, scale)
        return Posterior(**values)

    def predict(self, rows: Any, *, level: float = 0.9, seed: int | None = None) -> Predictions:
        """Predict mean and outcome at *public* rows, in the data's units; costs no budget.

        Parameters
        ----------
        rows
            Rows that are not secret, with the columns of the formula's right side (and of the groups): anything that
            :class:`dpmcmc.Table` takes. They are coded by the schema, as the records were: clamped to the bounds, and
            NaN comes out where a value is missing. For a user's own :class:`dpmcmc.Model` with a ``predict``: what its
            records look like, or such rows if it was sampled with a table.
        level
            Probability of the intervals in :meth:`Predictions.summary`.
        seed
            For outcomes that can be repeated.

        Raises
        ------
        ResultError
            There is neither a formula nor a function to predict with.
        """
        from dpmcmc.results import predictions

        if self.design is not None:
            return predictions.predict_by_design(self.draws, self.design, rows, level, seed, self.privacy)
        if self.predictor is None:
            raise ResultError(
                "there is nothing to predict with: give the model a function, Model(..., predict=...), and sample it "
                "(no file holds a function); or make it by dpmcmc.regression, and predict before on_original_scale"
            )
        return predictions.predict_by_function(self.draws, self.predictor, self.schema, rows, level, seed, self.privacy)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> Path:
        """Write everything to ``path``, a netCDF file (".nc"). :meth:`load` restores it exactly.

        An error, a full disk for one, leaves neither half a file nor a damaged earlier one. ArviZ reads these files
        too. Returns the path.

        Parameters
        ----------
        path
            Where to; the folder must exist.
        overwrite
            Replace an earlier posterior there. By default what exists is left alone, because draws that were paid for
            cannot be made again; and anything but a posterior is left alone in any case.

        Raises
        ------
        ResultError
            The path exists, or has another suffix.
        """
        target = check_path(path)
        if os.path.lexists(target):
            if not overwrite:
                raise ResultError(
                    f"{str(target)!r} exists and may hold draws that were paid for; save to another path, or give "
                    "overwrite=True to replace an earlier posterior"
                )
            _require_posterior(target)
        return write_tree(arviz_bridge.as_tree(self.to_arviz()), target, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Posterior:
        """Return the posterior that :meth:`save` wrote to ``path``.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        ResultError
            The file is damaged, is not a posterior of dpmcmc, or says two things that cannot both be true.
        NotPrivateError
            It holds a statistic that may not have been released.
        """
        tree = read_tree(path)
        if not _is_posterior(tree):
            raise ResultError(
                f"{os.fspath(path)!r} is not a posterior of dpmcmc; give a file that Posterior.save wrote"
            )
        written = tree.attrs["dpmcmc_format"]
        if not isinstance(written, int | np.integer) or written not in _READABLE_FORMATS:
            shown = " ".join(str(written).split())
            raise ResultError(
                f"{os.fspath(path)!r} was written by another version of dpmcmc (format {shown}; this one reads "
                f"{_READABLE_FORMATS[0]} to {_FORMAT}); load it with that version"
            )
        try:
            return _from_tree(tree)
        except NotPrivateError:
            raise
        except Exception as error:  # what is not as it was written fails in its own way; the file holds no secrets
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ResultError(f"{os.fspath(path)!r} is not a posterior as dpmcmc writes it: {reason}") from error

    def __repr__(self) -> str:
        number = len(self.warnings)
        found = f", {number} warning{'s' if number > 1 else ''}" if number else ""
        return (
            f"Posterior(model={self.model!r}, sampler={self.sampler!r}, {self.size_text}, {self.privacy.mode}{found})"
        )

    def __str__(self) -> str:
        acceptance = "" if self.acceptance_rate is None else f", acceptance {self.acceptance_rate:.3f}"
        parameters = ", ".join(f"{name} {list(v.shape[2:])}" if v.ndim > 2 else name for name, v in self.draws.items())
        return "\n".join(
            [
                f"Posterior of {self.model} by {self.sampler}",
                self.size_text + (f" after {self.num_warmup} of warm-up{acceptance}" if self.of_chains else ""),
                f"Parameters: {parameters}",
                *str(self.privacy).splitlines()[:2],
                *(f"{label}: {text}" for label, text in self.quality_rows),
                *(f"Warning: {text}" for text in self.warnings),
            ]
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Let processes hand posteriors to each other: read-only mappings cannot be sent as they are."""
        return _rebuild, (self._fields() | {"predictor": None},)  # a function may not be sent

    def _fields(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {k: dict(v) if isinstance(v, MappingProxyType) else v for k, v in values.items()}

    def _noise_column(self, options: Mapping[str, Any]) -> np.ndarray:
        """Return the shares of noise, one for each row that ArviZ makes of the same parameters with these options."""
        assert self.quality is not None
        few = (1, 4)
        shares = {name: np.broadcast_to(own, (*few, *own.shape)) for name, own in self.quality.noise_share.items()}
        bare = {"draws": shares, "warmup_draws": {}, "sample_stats": {}, "warmup_stats": {}}
        rows = {name: value for name, value in options.items() if name in _ROW_OPTIONS}
        table = arviz_bridge.summarise(
            _rebuild(self._fields() | bare).to_arviz(), kind="stats", round_to="none", **rows
        )
        column, digits = table["mean"].to_numpy(np.float64), options.get("round_to")
        return column if digits == "none" else column.round(digits if isinstance(digits, int) else 3)

    def _variable_names(self) -> dict[str, str]:
        """Give each parameter a name that xarray can hold: without "/", and not that of a dimension."""
        # ArviZ looks dimensions up by name in every group, so a parameter with labels may not share a statistic's name.
        taken = {*_SAMPLE_DIMENSIONS, *(name for names in self.dims.values() for name in names)}
        taken.update(name for name in NOISE_FREE_STATS if name in self.dims)
        variables: dict[str, str] = {}
        for name in self.draws:
            variable = name.replace("/", ".")
            while variable in taken or (variable != name and variable in self.draws):
                variable += "_"
            taken.add(variable)
            variables[name] = variable
        return variables


def _is_posterior(tree: DataTree) -> bool:
    return "dpmcmc_format" in tree.attrs and "posterior" in tree.children


def _require_posterior(path: Path) -> None:
    """Refuse to overwrite anything but a posterior of any version of this package."""
    try:
        known = _is_posterior(read_tree(path))
    except (OSError, ResultError):
        known = False
    if not known:
        raise ResultError(f"{str(path)!r} is not a posterior of dpmcmc and is not overwritten; choose another path")


def _from_tree(tree: DataTree) -> Posterior:
    _check_agreement(tree)
    group_values = {
        group: {str(name): variable.values for name, variable in node.data_vars.items()}
        for group, node in tree.children.items()
    }
    renamed = json.loads(tree.attrs["renamed_parameters"])
    original_order = json.loads(tree.attrs["parameters"])
    record_check = json.loads(tree.attrs["record_check"])
    quality = json.loads(tree.attrs["quality"]) if tree.attrs["dpmcmc_format"] > 3 else None
    described = tree.attrs["dpmcmc_format"] > 4
    design, schema = (json.loads(tree.attrs[name]) if described else None for name in ("design", "schema"))
    spending = json.loads(tree.attrs["spending"]) if tree.attrs["dpmcmc_format"] > 5 else ()
    variables = {name: name for name in original_order} | {name: variable for variable, name in renamed.items()}
    dims: dict[str, list[str]] = {}
    coords: dict[str, list[Any]] = {}
    for name, variable in variables.items():
        array = tree.children["posterior"].dataset[variable]
        own = [str(dimension) for dimension in array.dims[2:]]
        if own != [f"{variable}_dim_{axis}" for axis in range(len(own))]:
            dims[name] = own
            labels = {dimension: array.coords[dimension].values.tolist() for dimension in own}
            coords.update({key: values for key, values in labels.items() if values != list(range(len(values)))})
    for group in ("posterior", "warmup_posterior"):
        unknown = set(group_values.get(group, {})) - set(variables.values())
        if unknown:
            raise ResultError(f"its {group} holds {sorted(unknown)}, which are not among its parameters")
    warmup = group_values.get("warmup_posterior", {})
    return Posterior(
        draws={name: group_values["posterior"][variable] for name, variable in variables.items()},
        warmup_draws={name: warmup[variable] for name, variable in variables.items()} if warmup else {},
        sample_stats=group_values.get("sample_stats", {}),
        warmup_stats=group_values.get("warmup_sample_stats", {}),
        privacy=PrivacyStatement.from_json(tree.attrs["privacy"]),
        sampler=tree.attrs["sampler"],
        model=tree.attrs["model"],
        dims=dims,
        coords=coords,
        record_check=None if record_check is None else RecordCheck(**record_check),
        quality=None if quality is None else Quality.from_dict(quality),
        design=None if design is None else Design.from_dict(design),
        schema=None if schema is None else Schema.from_dict(schema),
        spending=spending,
    )


def _check_agreement(tree: DataTree) -> None:
    """Refuse a file of which one place says other things about privacy than another, or with groups of others."""
    unknown = set(tree.children) - set(_GROUPS)
    if unknown:
        raise ResultError(f"it has the groups {sorted(unknown)}, which Posterior.save does not write")
    statement = PrivacyStatement.from_json(tree.attrs["privacy"])
    statement.check()
    expected = {"private": int(statement.private), "mode": statement.mode}
    for place, node in {"root": tree, **tree.children}.items():
        differing = [name for name, value in expected.items() if node.attrs.get(name) != value]
        # Compared as statements: one of an earlier version has fewer fields.
        if not differing and PrivacyStatement.from_json(node.attrs["privacy"]) != statement:
            differing = ["privacy"]
        if differing:
            raise ResultError(f"what its {place} says about {differing} is not what its privacy statement says")
    for group, node in tree.children.items():
        like = tree.children.get("warmup_posterior") if group.startswith("warmup") else tree.children["posterior"]
        if like is None or any(node.sizes[name] != like.sizes[name] for name in _SAMPLE_DIMENSIONS):
            raise ResultError(f"its {group} does not have the chains and draws of the draws that it belongs to")


def _privacy_attributes(privacy: PrivacyStatement) -> dict[str, Any]:
    # An int, because netCDF attributes cannot be booleans.
    # The fields alone: what is derived from them is not stored beside every group of draws.
    return {"privacy": privacy.to_json(derived=False), "private": int(privacy.private), "mode": privacy.mode}


def _with_errors_of(other: Any, table: Any, fmt: str) -> Any:
    """Return a summary with MCSE, ESS and R̂ of another one; where they stand depends on ``fmt``."""
    errors = ("mcse_", "ess_", "r_hat")
    if fmt == "xarray":
        named = [str(name).startswith(errors) for name in table["metric"].values]
        return table.where(~table["metric"].isin(table["metric"].values[named]), other)
    if fmt == "long":
        rows = np.array([str(name).startswith(errors) for name in table.index])
        return table.mask(np.broadcast_to(rows[:, None], table.shape), other)
    columns = [name for name in table.columns if str(name).startswith(errors)]
    table[columns] = other[columns]
    return table


def _rebuild(values: dict[str, Any]) -> Posterior:
    return Posterior(**values)


def _arrays(argument: str, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return ``values`` as NumPy arrays of at least chains × draws, of the same leading shape."""
    arrays = {}
    for name, value in values.items():
        array = np.asarray(value)
        if not isinstance(name, str) or not name:
            raise ResultError(f"{argument} has the name {name!r}; names are non-empty texts")
        if array.ndim < 2 or array.dtype.kind not in "fiub":
            raise ResultError(
                f"{argument}[{name!r}] has shape {array.shape} and type {array.dtype}; "
                "give numbers of shape chains × draws × the parameter's own"
            )
        arrays[name] = array
    return arrays


def _leading_shape(argument: str, arrays: Mapping[str, np.ndarray]) -> tuple[int, int]:
    shapes = {name: array.shape[:2] for name, array in arrays.items()}
    if len(set(shapes.values())) > 1:
        raise ResultError(f"{argument} has different numbers of chains × draws: {shapes}; they must agree")
    chains, num_draws = next(iter(shapes.values()))
    return int(chains), int(num_draws)


def _stats(
    argument: str, values: Mapping[str, Any], shape: tuple[int, int], privacy: PrivacyStatement
) -> dict[str, np.ndarray]:
    allowed = NOISE_FREE_STATS if privacy.mode == NOISE_FREE_MODE and not privacy.private else RELEASED_STATS
    refused = [name for name in values if name not in allowed]
    if refused:
        raise NotPrivateError(
            f"{argument} has {refused}, which may not have been released; only {list(allowed)} can be kept"
        )
    arrays = _arrays(argument, values)
    for name, array in arrays.items():
        if array.shape != shape:
            raise ResultError(f"{argument}[{name!r}] has shape {array.shape}; the draws have {shape} (chains × draws)")
    return arrays


def _check_labels(
    draws: Mapping[str, np.ndarray], dims: Mapping[str, Sequence[str]], coords: Mapping[str, Sequence[Any]]
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[Any, ...]]]:
    """Return ``dims`` and ``coords`` as tuples if they fit the draws, and each other."""
    sizes: dict[str, int] = {}
    for name, names in dims.items():
        if name not in draws:
            raise ResultError(f"dims has {name!r}, which is not a parameter; the parameters are {list(draws)}")
        shape = draws[name].shape[2:]
        if len(names) != len(shape) or len(set(names)) != len(names) or set(names) & set(_SAMPLE_DIMENSIONS):
            raise ResultError(
                f"dims[{name!r}] is {list(names)}; the parameter has shape {shape}, so give as many different names, "
                f"other than {list(_SAMPLE_DIMENSIONS)}"
            )
        for dimension, size in zip(names, shape, strict=True):
            if not dimension or "/" in dimension:
                raise ResultError(f"dims[{name!r}] has the name {dimension!r}; give a name without '/'")
            if sizes.setdefault(dimension, size) != size:
                raise ResultError(f"dims gives {dimension!r} the sizes {sizes[dimension]} and {size}; use two names")
    for dimension, labels in coords.items():
        if dimension not in sizes:
            raise ResultError(f"coords has {dimension!r}, which dims does not name; dims names {sorted(sizes)}")
        if len(labels) != sizes[dimension]:
            raise ResultError(f"coords[{dimension!r}] has {len(labels)} labels for {sizes[dimension]} entries")
    return (
        {name: tuple(names) for name, names in dims.items()},
        {dimension: tuple(np.asarray(labels).tolist()) for dimension, labels in coords.items()},
    )


def _check_quality(quality: Quality | None, draws: Mapping[str, np.ndarray]) -> None:
    if quality is None:
        return
    if not isinstance(quality, Quality):
        raise ResultError(f"quality is a {type(quality).__name__}; give a Quality")
    known = {name: shares.shape for name, shares in quality.noise_share.items()}
    wanted = {name: value.shape[2:] for name, value in draws.items()}
    if known != wanted:
        raise ResultError(
            f"the noise_share of quality has the parameters and shapes {known}; give those of the draws, {wanted}"
        )


def _check_design(design: Design | None, draws: Mapping[str, np.ndarray]) -> None:
    if design is None:
        return
    known = draws["coefficients"].shape[2:] if "coefficients" in draws else None
    intercept = draws["intercept"].shape[2:] == () if "intercept" in draws else None  # one number a draw, if any
    if known != (len(design.columns),) or intercept != (True if design.intercept else None):
        raise ResultError(
            f"the formula {design.formula!r} has {len(design.columns)} coefficients and "
            f"{'an' if design.intercept else 'no'} intercept, which the draws have not; give the draws of that formula"
        )


def _read_only(values: dict[str, Any]) -> dict[str, Any]:
    """Return the same with arrays as read-only views; nothing is copied."""
    views = dict(values)
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            views[name] = value.view()
            views[name].flags.writeable = False
    return views
