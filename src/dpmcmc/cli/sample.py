"""`dpmcmc sample`: from a table and its public schema to a private posterior, in a folder."""

import contextlib
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from dpmcmc.cli.schema import FileArgument, SchemaOption
from dpmcmc.cli.shared import SamplerName, UsageError, errors_told, listed, print_json, with_option_groups
from dpmcmc.cli.showing import as_json, show_files, show_posterior

if TYPE_CHECKING:
    from dpmcmc import Model, Posterior, Schema
    from dpmcmc.output import NewFolder

EXAMPLES = (
    "**Examples**\n\n"
    "A schema to fill in:  `dpmcmc schema draft people.parquet > people.schema.yaml`\n\n"
    'A regression:  `dpmcmc sample people.parquet --schema people.schema.yaml --formula "income ~ age + C(education)" '
    "--epsilon 2 --delta 1e-6 --out run`\n\n"
    "Your own model:  `dpmcmc sample people.csv --schema people.schema.yaml --model mymodel.py:model --epsilon 2 "
    "--delta 1e-6 --out run`\n\n"
    "**Exit codes**: 0 done; 2 bad input and 3 budget refused, nothing spent; 1 failed after the run had begun; "
    "130 interrupted."
)
_CLASSES = {
    SamplerName.dp_hmc: "DPHMC",
    SamplerName.dp_penalty: "DPPenalty",
    SamplerName.dp_sgld: "DPSGLD",
    SamplerName.dp_sgnht: "DPSGNHT",
}
_NOTHING_SPENT = "nothing was spent"
# What their texts say is made of names in the code.
_TOLD_ERRORS = (SyntaxError, ImportError, NameError, AttributeError)
_MODEL, _RUN, _SHOWN = "The model: a formula, or a file", "The run", "What is shown"


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


@dataclass(frozen=True)
class BudgetOptions:
    """What may be spent."""

    epsilon: Annotated[float, typer.Option(help="Privacy parameter ε of all that comes out.", show_default=False)]
    delta: Annotated[
        float, typer.Option(help="Privacy parameter δ: well below 1/n, for example 1e-6.", show_default=False)
    ]


@dataclass(frozen=True)
class RunOptions:
    """How it is sampled."""

    sampler: Annotated[
        SamplerName,
        typer.Option(
            metavar="auto|dp-laplace",
            help="auto looks at the posterior and takes what fits. (Those that need settings: in Python.)",
            case_sensitive=False,
            rich_help_panel=_RUN,
        ),
    ] = SamplerName.auto
    num_chains: Annotated[int, typer.Option(help="Chains of draws.", min=1, rich_help_panel=_RUN)] = 4
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="For auto: run a chain with exact accept tests in any case.", rich_help_panel=_RUN
        ),
    ] = False
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Read a Parquet file piece by piece, again and again.", rich_help_panel=_RUN),
    ] = False
    seed: Annotated[
        int | None,
        typer.Option(
            help="Repeatable noise. A seeded run is not private and is marked so.",
            min=0,
            show_default=False,
            rich_help_panel=_RUN,
        ),
    ] = None


@dataclass(frozen=True)
class ShowOptions:
    """What is printed."""

    as_json: Annotated[
        bool, typer.Option("--json", help="Print only JSON on stdout, all digits.", rich_help_panel=_SHOWN)
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on stderr.", rich_help_panel=_SHOWN)] = False
    debug: Annotated[
        bool,
        typer.Option("--debug", help="With an error, where it came from (never a record).", rich_help_panel=_SHOWN),
    ] = False


@with_option_groups
def sample(
    file: FileArgument,
    schema: SchemaOption,
    budget: BudgetOptions,
    out: Annotated[
        Path,
        typer.Option(help="A new folder for posterior.nc, privacy.json and summary.csv.", show_default=False),
    ],
    model: ModelOptions,
    run: RunOptions,
    show: ShowOptions,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in --out.")] = False,
) -> None:
    """Draw a private posterior of a table.

    The schema is public: bounds, levels, and what becomes of missing values are known without looking at the table.
    Everything in the folder together is (ε, δ)-differentially private. All that can be refused is refused before
    anything is spent.
    """
    command = _Sampling(file, schema, budget, out, model, run, show, overwrite)
    with errors_told(show.debug, lambda: command.spent):
        command.go()


@dataclass
class _Sampling:
    """One run of the command, from its options to its folder."""

    file: Path
    schema: Path
    budget: BudgetOptions
    out: Path
    model: ModelOptions
    run: RunOptions
    show: ShowOptions
    overwrite: bool
    spent: str = _NOTHING_SPENT

    def go(self) -> None:
        """Check, read, sample, write and show."""
        self._check_options()
        from dpmcmc.output import NewFolder, WriteError
        from dpmcmc.privacy import Budget
        from dpmcmc.results.folder import RUN_FILES

        Budget(self.budget.epsilon, self.budget.delta)  # refuses what is out of range
        with NewFolder(self.out, overwrite=self.overwrite, known_files=RUN_FILES) as folder, _warnings_kept() as notes:
            if self.overwrite and folder.target.exists():
                _refuse_unless_a_run(folder.target)
            self._say(f"Reading {self.file} by {self.schema}.")
            model, records = self._model_and_records()
            self._say(
                f"{records.num_records:,} records, {model.dimension} parameters; {self.run.sampler}, "
                f"ε = {self.budget.epsilon:g}, δ = {self.budget.delta:g}. Compiling, then sampling."
            )
            posterior = self._sample(model, records)
            self.spent = f"ε = {self.budget.epsilon:g} was spent"
            problem = _write(posterior, folder)
        try:
            self._show(posterior, tuple(notes), self.out if problem is None else None)
        finally:
            if problem is not None:
                raise WriteError(problem)

    def _check_options(self) -> None:
        given = self.model
        if (given.formula is None) == (given.model is None):
            both = "both are given" if given.model is not None else "neither is given"
            raise UsageError(f"the model is a --formula or a --model, and {both}; give one of them")
        if given.model is not None:
            foreign = [name for name in ("family", "prior_scale", "groups") if getattr(given, name) is not None]
            if foreign:
                raise UsageError(f"{listed(foreign)} belongs to a --formula; leave it out with --model")
        if self.run.sampler in _CLASSES:
            name = _CLASSES[self.run.sampler]
            raise UsageError(
                f"--sampler {self.run.sampler} needs settings; use auto or dp-laplace here, or in Python "
                f"dpmcmc.sample(model, records, sampler=dpmcmc.{name}(...), ...)"
            )
        if self.run.exact and self.run.sampler != SamplerName.auto:
            raise UsageError(f"--exact goes with --sampler auto only; leave it out for {self.run.sampler}")
        for option, path in (("FILE", self.file), ("--schema", self.schema)):
            if path.is_dir():
                raise UsageError(f"{option} is {str(path)!r}, which is a folder; give a file")
            if not path.exists():
                raise UsageError(f"{option} is {str(path)!r}, and there is no such file; check the path")

    def _model_and_records(self) -> tuple["Model", Any]:
        import numpy as np

        import dpmcmc

        schema, given = dpmcmc.Schema.load(self.schema), self.model
        if given.model is not None:
            model = _load_model(given.model)
            if isinstance(model, dpmcmc.Model):
                return model, dpmcmc.Table(self.file, schema, stream=self.run.stream)
            table = dpmcmc.Table(self.file, _columns_of(model, schema, given.model), stream=self.run.stream)
            shapes = {name: np.empty(table.num_records) for name in table.columns}
            return dpmcmc.from_numpyro(model, shapes), table
        table = dpmcmc.Table(self.file, schema, stream=self.run.stream)
        assert given.formula is not None
        options: dict[str, Any] = {
            "family": (given.family or Family.logistic).value,
            "groups": given.groups,
            **({} if given.prior_scale is None else {"prior_scale": given.prior_scale}),
        }
        model, records = dpmcmc.regression(given.formula, table, **options)
        return model, records

    def _sample(self, model: "Model", records: Any) -> "Posterior":
        import dpmcmc
        from dpmcmc.errors import RunError

        self.spent = f"count ε = {self.budget.epsilon:g} as spent"
        try:
            # A model of one's own may print, and stdout is for the result.
            with contextlib.redirect_stdout(sys.stderr):
                return dpmcmc.sample(
                    model,
                    records,
                    sampler=dpmcmc.DPLaplace() if self.run.sampler == SamplerName.dp_laplace else "auto",
                    epsilon=self.budget.epsilon,
                    delta=self.budget.delta,
                    num_chains=self.run.num_chains,
                    exact=self.run.exact,
                    seed=self.run.seed,
                    progress=not self.show.quiet,
                )
        except RunError as error:
            if error.unconstrained_draws is None:
                raise
            import numpy as np

            draws = error.unconstrained_draws
            place = _rescue(lambda folder: np.save(folder / "unconstrained_draws.npy", draws))
            raise RunError(f"{error}; {place}") from None

    def _say(self, line: str) -> None:
        if not self.show.quiet:
            typer.echo(line, err=True)

    def _show(self, posterior: "Posterior", notes: tuple[str, ...], folder: Path | None) -> None:
        if self.show.as_json:
            print_json(as_json(posterior, notes, folder))
            return
        console = Console()
        show_posterior(console, posterior, notes)
        if folder is not None:
            from dpmcmc.results.folder import RUN_FILES

            show_files(console, {folder / name: what for name, what in RUN_FILES.items()})


@contextlib.contextmanager
def _warnings_kept() -> Iterator[list[str]]:
    """Collect this package's warnings. Those of others are dropped: what a library warns of may follow the records."""
    from dpmcmc.errors import DPMCMCWarning

    texts: list[str] = []

    def keep(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if issubclass(category, DPMCMCWarning):
            texts.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", DPMCMCWarning)
        warnings.showwarning = keep
        yield texts


def _load_model(place: str) -> Any:
    """Run the file and take the model out of it: a `dpmcmc.Model`, or a function, which is a NumPyro model."""
    import dpmcmc

    path, _, name = place.rpartition(":") if ":" in place else (place, "", "model")
    found = _run_file(Path(path), place)
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


def _refuse_unless_a_run(folder: Path) -> None:
    """Refuse to replace anything but an earlier run, or an empty folder."""
    import dpmcmc
    from dpmcmc.errors import DPMCMCError
    from dpmcmc.output import OutputError
    from dpmcmc.results.folder import POSTERIOR

    if not any(folder.iterdir()):
        return
    try:
        dpmcmc.Posterior.load(folder / POSTERIOR)
    except (OSError, DPMCMCError):
        raise OutputError(
            f"the folder {str(folder)!r} is not of an earlier run, so that it is not replaced; nothing was computed, "
            "choose another --out"
        ) from None


def _write(posterior: "Posterior", folder: "NewFolder") -> str | None:
    """Write everything and put it in place; return what went wrong and where the draws are then."""
    from dpmcmc.inference.endings import undisturbed
    from dpmcmc.results.folder import write_run

    with undisturbed():
        try:
            write_run(posterior, folder.stage)
        except Exception as error:
            place = _rescue(lambda other: write_run(posterior, other))
            return f"the run is done, but its folder could not be written ({_reason(error)}); {place}"
        try:
            folder.put_in_place()
        except OSError as error:
            return (
                f"the run is done, but {str(folder.target)!r} could not be put in place ({_reason(error)}); its files "
                f"are in {str(folder.stage)!r}"
            )
    return None


def _rescue(write: Callable[[Path], object]) -> str:
    """Write draws that are paid for wherever it works; say where."""
    from dpmcmc.results.folder import POSTERIOR

    for above in (tempfile.gettempdir(), Path.home(), Path.cwd()):
        try:
            folder = Path(tempfile.mkdtemp(prefix="dpmcmc-", dir=above))
        except OSError:
            continue
        try:
            write(folder)
        except Exception:
            if not folder.joinpath(POSTERIOR).exists():  # which is whole, if it is there
                shutil.rmtree(folder, ignore_errors=True)
                continue
        return f"the draws are in {str(folder)!r}"
    return "nor could they be written anywhere else, so that what is printed is all that there is"


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
