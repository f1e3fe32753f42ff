"""The model of a run from the command line: a formula with its options, or a file of the user's; and its records."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmcmc.cli.shared import UsageError, listed

if TYPE_CHECKING:
    from dpmcmc import Model, Schema

# What their texts say is made of names in the code.
_TOLD_ERRORS = (SyntaxError, ImportError, NameError, AttributeError)
_MODEL = "The model: a formula, or a file"


class Family(StrEnum):
    """Families of regressions."""

    logistic = "logistic"
    linear = "linear"
    poisson = "poisson"
    negative_binomial = "negative_binomial"


@dataclass(frozen=True)
class ModelOptions:
    """What the model is: a formula with its options, or a file."""

    formula: Annotated[
        str | None,
        typer.Option(
            help='A regression: "income ~ age + C(education) + hours:C(sex)". Columns are coded by the schema alone.',
            show_default=False,
            rich_help_panel=_MODEL,
        ),
    ] = None
    family: Annotated[
        Family | None,
        typer.Option(help="What the response is like. Default: logistic.", show_default=False, rich_help_panel=_MODEL),
    ] = None
    prior_scale: Annotated[
        float | None,
        typer.Option(
            help="Sd of the coefficients' normal prior, on coded columns. Default: 2.5.",
            show_default=False,
            rich_help_panel=_MODEL,
        ),
    ] = None
    groups: Annotated[
        str | None,
        typer.Option(
            help="A column of categories, each with an effect of its own.", show_default=False, rich_help_panel=_MODEL
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Instead of a formula: your own dpmcmc.Model, or NumPyro model, of that name. It gets columns as the "
            "schema codes them: numbers within [−1, 1], unless center and scale say otherwise (for counts 0 and 1). "
            "This runs the code in the file.",
            show_default=False,
            rich_help_panel=_MODEL,
        ),
    ] = None

    def check(self) -> None:
        """Refuse options that do not go together."""
        if (self.formula is None) == (self.model is None):
            both = "both are given" if self.model is not None else "neither is given"
            raise UsageError(f"the model is a --formula or a --model, and {both}; give one of them")
        if self.model is not None:
            foreign = [name for name in ("family", "prior_scale", "groups") if getattr(self, name) is not None]
            if foreign:
                raise UsageError(f"{listed(foreign)} belongs to a --formula; leave it out with --model")

    def to_dict(self) -> dict[str, Any]:
        """Return the options that were given, as plain values, with the file's whole name."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if self.family is not None:
            values["family"] = self.family.value
        if self.model is not None:
            path, name = _file_and_name(self.model)
            values["model"] = f"{path.absolute()}:{name}"
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ModelOptions":
        """Return the options that `to_dict` wrote."""
        family = values["family"]
        return cls(**{**values, "family": None if family is None else Family(family)})


def model_and_records(file: Path, schema: "Schema", given: ModelOptions, stream: bool) -> tuple["Model", Any]:
    """Read the table by its schema, and make the model of it."""
    import dpmcmc

    if given.model is not None:
        model = _load_model(given.model)
        if isinstance(model, dpmcmc.Model):
            return model, dpmcmc.Table(file, schema, stream=stream)
        table = dpmcmc.Table(file, _columns_of(model, schema, given.model), stream=stream)
        return dpmcmc.from_numpyro(model, table), table
    table = dpmcmc.Table(file, schema, stream=stream)
    assert given.formula is not None
    options: dict[str, Any] = {
        "family": (given.family or Family.logistic).value,
        "groups": given.groups,
        **({} if given.prior_scale is None else {"prior_scale": given.prior_scale}),
    }
    model, records = dpmcmc.regression(given.formula, table, **options)
    return model, records


def _file_and_name(place: str) -> tuple[Path, str]:
    path, _, name = place.rpartition(":") if ":" in place else (place, "", "model")
    return Path(path), name


def _load_model(place: str) -> Any:
    """Run the file and take the model out of it: a `dpmcmc.Model`, or a function, which is a NumPyro model."""
    import dpmcmc

    path, name = _file_and_name(place)
    found = _run_file(path, place)
    if not hasattr(found, name):
        models = [
            key
            for key, value in vars(found).items()
            if isinstance(value, dpmcmc.Model)
            or (callable(value) and getattr(value, "__module__", "") == found.__name__)
        ]
        there = f"it has {', '.join(map(repr, models))}" if models else "it has neither a dpmcmc.Model nor a function"
        raise UsageError(f"--model is {place!r}, but the file has no {name!r}; {there}: give FILE.py:NAME")
    model = getattr(found, name)
    if isinstance(model, dpmcmc.Model) or (callable(model) and not isinstance(model, type)):
        return model
    raise UsageError(
        f"--model is {place!r}, which is of type {type(model).__name__}; name a dpmcmc.Model, or a NumPyro model (a "
        "function of the schema's columns)"
    )


def _columns_of(function: Callable[..., Any], schema: "Schema", place: str) -> "Schema":
    """Return the schema of the columns that a NumPyro model takes by name, and of the unit; all if it takes any."""
    import inspect

    import dpmcmc

    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return schema
    wanted = [parameter.name for parameter in parameters if parameter.name in schema.names]
    unknown = [one.name for one in parameters if one.default is one.empty and one.name not in wanted]
    if unknown or not wanted:
        what = f"takes {unknown[0]!r}, which is no field of the schema" if unknown else "takes no column"
        raise UsageError(
            f"--model is {place!r}, a function that {what}; a NumPyro model takes columns by their names in the schema"
        )
    descriptor = schema.to_dict()
    descriptor["fields"] = [field for field in descriptor["fields"] if field["name"] in {*wanted, schema.unit}]
    return dpmcmc.Schema.from_dict(descriptor)


def _run_file(path: Path, place: str) -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    if not path.is_file():
        raise UsageError(f"--model is {place!r}, and there is no file {str(path)!r}; give FILE.py:NAME")
    specification = spec_from_file_location("dpmcmc_user_model", path)
    if specification is None or specification.loader is None:
        raise UsageError(f"--model is {place!r}, which is no Python file; give FILE.py:NAME")
    module = module_from_spec(specification)
    sys.modules[specification.name] = module
    sys.path.insert(0, str(path.resolve().parent))  # as for a script: what lies beside it can be imported
    problem = ""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        own = path.resolve()
        lines = [one.tb_lineno for one in _frames(error) if Path(one.tb_frame.f_code.co_filename).resolve() == own]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        text = f": {error.msg if isinstance(error, SyntaxError) else error}" if isinstance(error, _TOLD_ERRORS) else ""
        at = "" if line is None else f" in line {line}"
        problem = f"running {str(path)!r} failed{at} ({type(error).__name__}{text}); correct it"
    if problem:
        raise UsageError(problem)
    return module


def _frames(error: BaseException) -> Iterator[Any]:
    frame = error.__traceback__
    while frame is not None:
        yield frame
        frame = frame.tb_next
