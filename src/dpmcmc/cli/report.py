"""`dpmcmc report`: the page of a finished run, made again from its draws. Looks at no record and spends nothing."""

from pathlib import Path
from typing import Annotated

import typer

from dpmcmc.cli.shared import UsageError

EXAMPLES = (
    "**Examples**\n\n"
    "The page of a run, as run/report.html:  `dpmcmc report run/`\n\n"
    "Somewhere else:  `dpmcmc report run/ --out page.html`"
)


def report(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The folder that `dpmcmc sample` wrote.", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page; by default report.html in the folder.")
    ] = None,
) -> None:
    """Write a run as one page of HTML that needs no other file: draws, diagnostics, privacy statement, ledger.

    Made from posterior.nc, that is from what was released. An earlier page there is replaced.
    """
    posterior, target = _found(run), out or run / "report.html"
    if target.is_dir():
        raise UsageError(f"{str(target)!r} is a folder; give a file as --out")
    if out is not None and target.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out is {str(target)!r}; end it with .html, so that no other file is replaced by mistake")
    from dpmcmc import Posterior
    from dpmcmc.errors import NotPrivateError, ResultError
    from dpmcmc.results.folder import write_report

    try:
        found = Posterior.load(posterior)
    except (ResultError, NotPrivateError) as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"cannot read {str(posterior)!r} ({error.strerror})") from None
    try:
        write_report(found, target)
    except OSError as error:
        raise UsageError(f"cannot write {str(target)!r} ({error.strerror}); choose another --out") from None
    typer.echo(f"Written: {target} (open it in a browser)")
    if not found.privacy.private:
        typer.echo("NOT PRIVATE: what it shows has no guarantee.", err=True)


def _found(run: Path) -> Path:
    """Return the file with the draws of a run."""
    posterior = run / "posterior.nc"
    if posterior.is_file():
        return posterior
    if not run.exists():
        raise UsageError(f"there is no folder {str(run)!r}; give the folder that `dpmcmc sample` wrote")
    if not run.is_dir():
        raise UsageError(f"{str(run)!r} is not a folder; give the folder of a run, in which posterior.nc is")
    raise UsageError(
        f"the folder {str(run)!r} holds no posterior.nc; if its run is unfinished, go on with `dpmcmc resume {run}`"
    )
