"""`dpmcmc resume`: go on with a run that was stopped."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from dpmcmc.cli.modelling import ModelOptions, model_and_records
from dpmcmc.cli.shared import UsageError, errors_told, with_option_groups
from dpmcmc.cli.showing import ShowOptions, sampling_shown

EXAMPLES = (
    "**Examples**\n\n"
    "After a crash, Ctrl-C, or an error that has gone:  `dpmcmc resume run`\n\n"
    "With a ledger whose URL has a password:  `dpmcmc resume run --ledger postgresql://user:password@host/people`\n\n"
    "**Exit codes**: 0 done; 2 cannot go on, nothing more spent; 1 failed again; 130 interrupted again."
)


@with_option_groups
def resume(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="What --out of `dpmcmc sample` was.", show_default=False)
    ],
    show: ShowOptions,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="The run's ledger, if it has moved, or is a URL with a password (which no file keeps).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Go on with a run that was stopped, with what is left of its budget.

    What was released is kept and not asked again. What was charged counts, also where a crash has lost an answer. The
    table and a file of --model must be where they were. Of a run that is complete, it shows the result.
    """
    with errors_told(show.debug, lambda: "what was charged counts"):
        _go_on(folder, show, ledger)


def _go_on(folder: Path, show: ShowOptions, ledger: str | None) -> None:
    import dpmcmc
    from dpmcmc.errors import DPMCMCWarning
    from dpmcmc.inference.checkpoint import Checkpoint, is_complete

    with sampling_shown(show, folder) as draw:
        if is_complete(folder):
            show.say(f"The run in {folder} is complete; nothing is left to do.")
            draw(lambda: dpmcmc.resume(folder))
            return
        checkpoint = Checkpoint(folder)
        command: dict[str, Any] | None = checkpoint.facts["command"]
        checkpoint.close()
        if command is None:
            raise UsageError(
                f"the run in {str(folder)!r} was begun in Python, where its model is; go on with "
                "dpmcmc.resume(folder, model, data)"
            )
        file, schema = Path(command["file"]), dpmcmc.Schema.from_dict(command["schema"])
        show.say(f"Going on with {folder}: reading {file}.")
        if file.exists() and file.stat().st_mtime_ns != command["changed"]:
            warnings.warn(
                f"{str(file)!r} was changed since this run was begun; if its records are others, the result mixes two "
                "tables: begin another run then",
                DPMCMCWarning,
                stacklevel=1,
            )
        model, records = model_and_records(file, schema, ModelOptions.from_dict(command["model"]), command["stream"])
        draw(lambda: dpmcmc.resume(folder, model, records, ledger=ledger, progress=not show.quiet))
