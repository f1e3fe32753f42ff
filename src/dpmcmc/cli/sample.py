"""`dpmcmc sample`: from a table and its public schema to a private posterior, in a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmcmc.cli.modelling import ModelOptions, model_and_records
from dpmcmc.cli.schema import FileArgument, SchemaOption
from dpmcmc.cli.shared import SamplerName, UsageError, errors_told, with_option_groups
from dpmcmc.cli.showing import ShowOptions, sampling_shown

if TYPE_CHECKING:
    from dpmcmc import Posterior

EXAMPLES = (
    "**Examples**\n\n"
    "A schema to fill in:  `dpmcmc schema draft people.parquet > people.schema.yaml`\n\n"
    'A regression:  `dpmcmc sample people.parquet --schema people.schema.yaml --formula "income ~ age + C(education)" '
    "--epsilon 2 --delta 1e-6 --out run`\n\n"
    "Your own model:  `dpmcmc sample people.csv --schema people.schema.yaml --model mymodel.py:model --epsilon 2 "
    "--delta 1e-6 --out run`\n\n"
    "From a budget that lasts:  `dpmcmc ledger create people.ledger --epsilon 4 --delta 1e-6`, then `dpmcmc sample … "
    "--ledger people.ledger`\n\n"
    "After a crash or Ctrl-C:  `dpmcmc resume run`\n\n"
    "**Exit codes**: 0 done; 2 bad input and 3 budget refused, nothing spent; 1 failed after the run had begun; "
    "130 interrupted."
)
_CLASSES = {
    SamplerName.dp_hmc: "DPHMC",
    SamplerName.dp_penalty: "DPPenalty",
    SamplerName.dp_sgld: "DPSGLD",
    SamplerName.dp_sgnht: "DPSGNHT",
}
_RUN = "The run"


@dataclass(frozen=True)
class BudgetOptions:
    """What may be spent."""

    epsilon: Annotated[float, typer.Option(help="Privacy parameter ε of all that comes out.", show_default=False)]
    delta: Annotated[
        float, typer.Option(help="Privacy parameter δ: well below 1/n, for example 1e-6.", show_default=False)
    ]
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="The budget of these people, which all runs on them share: a file that `dpmcmc ledger create` made.",
            show_default=False,
        ),
    ] = None
    same_people: Annotated[
        bool,
        typer.Option(
            "--same-people",
            help="With --ledger: data that it does not know are about the same people. It is written down.",
        ),
    ] = False


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


@with_option_groups
def sample(
    file: FileArgument,
    schema: SchemaOption,
    budget: BudgetOptions,
    out: Annotated[
        Path,
        typer.Option(
            help="A new folder: while the run goes on, what it takes to resume it; then posterior.nc, privacy.json and "
            ".txt, summary.csv, report.html.",
            show_default=False,
        ),
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
    spent: str = "nothing was spent"

    def go(self) -> None:
        """Check, read, sample, write and show."""
        self._check_options()
        import dpmcmc
        from dpmcmc.inference.checkpoint import RunFolder
        from dpmcmc.privacy import Budget, Ledger

        Budget(self.budget.epsilon, self.budget.delta)  # refuses what is out of range
        schema = dpmcmc.Schema.load(self.schema)
        folder = RunFolder(self.out, overwrite=self.overwrite, command=self._command(schema))
        ledger = None if self.budget.ledger is None else Ledger(self.budget.ledger)
        with sampling_shown(self.show, self.out) as draw:
            self.show.say(f"Reading {self.file} by {self.schema}.")
            model, records = model_and_records(self.file, schema, self.model, self.run.stream)
            self.show.say(
                f"{records.num_records:,} records, {model.dimension} parameters; {self.run.sampler}, "
                f"ε = {self.budget.epsilon:g}, δ = {self.budget.delta:g}. Compiling, then sampling."
            )
            self.spent = f"what was charged counts; `dpmcmc resume {self.out}` goes on, if there is a run to go on with"
            draw(lambda: self._sample(model, records, folder, ledger))

    def _sample(self, model: Any, records: Any, folder: Any, ledger: Any) -> "Posterior":
        import dpmcmc

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
            ledger=ledger,
            same_people=self.budget.same_people,
            checkpoint=folder,
        )

    def _command(self, schema: Any) -> dict[str, Any]:
        """Return what `dpmcmc resume` needs to find model and records again."""
        return {
            "file": str(self.file.absolute()),
            # When it was changed last, and not how large it is: that could tell of records.
            "changed": self.file.stat().st_mtime_ns,
            "schema": schema.to_dict(),
            "model": self.model.to_dict(),
            "stream": self.run.stream,
        }

    def _check_options(self) -> None:
        self.model.check()
        if self.run.sampler in _CLASSES:
            name = _CLASSES[self.run.sampler]
            raise UsageError(
                f"--sampler {self.run.sampler} needs settings; use auto or dp-laplace here, or in Python "
                f"dpmcmc.sample(model, records, sampler=dpmcmc.{name}(...), ...)"
            )
        if self.run.exact and self.run.sampler != SamplerName.auto:
            raise UsageError(f"--exact goes with --sampler auto only; leave it out for {self.run.sampler}")
        if self.budget.ledger is not None and self.run.seed is not None:
            raise UsageError("--seed does not go with --ledger: a seeded run is not private; leave one of them out")
        if self.budget.same_people and self.budget.ledger is None:
            raise UsageError("--same-people says something to a --ledger, and there is none; leave it out")
        for option, path in (("FILE", self.file), ("--schema", self.schema)):
            if path.is_dir():
                raise UsageError(f"{option} is {str(path)!r}, which is a folder; give a file")
            if not path.exists():
                raise UsageError(f"{option} is {str(path)!r}, and there is no such file; check the path")
