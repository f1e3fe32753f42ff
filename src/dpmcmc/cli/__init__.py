"""The command line: what a table is (`schema`), a private posterior of it (`sample`), what a budget means (`account`),
what it buys (`plan`), how it lasts (`ledger`), going on after a crash (`resume`), the page of a run (`report`), whether
the claims stand (`audit`), and private runs to look at (`demo`).

It uses the package's public interface only. Each command has a file of its own here. Heavy modules are imported inside
the commands, so that help texts come at once; every error is one line on stderr, never a traceback. Exit codes: 0 done,
1 failed after the run had begun, 2 bad input (nothing spent), 3 budget refused (nothing spent), 130 interrupted.
"""

import sys
from typing import Annotated, Any, NoReturn

_NOTHING_SPENT = "Interrupted; nothing was spent."

try:
    import typer
    from typer.core import TyperGroup

    from dpmcmc.cli import account, audit, demo, ledger, plan, report, resume, sample, schema
    from dpmcmc.cli.shared import UnexpectedError, UsageError
except KeyboardInterrupt:  # Ctrl-C may well come before there is a command line to handle it
    print(_NOTHING_SPENT, file=sys.stderr)
    raise SystemExit(130) from None
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in ("typer", "rich"):
        raise
    raise SystemExit("Error: the command line needs Typer and Rich; pip install 'dpmcmc[cli]'") from None

# Commands of earlier versions, and what to type instead.
_MOVED = {"benchmark": "python -m benchmarks", "reproduce": "python -m studies"}


class _Commands(TyperGroup):
    """The commands, with every expected error turned into one line and an exit code."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the options."""
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt:
            _stop_interrupted(_NOTHING_SPENT)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; say where one has gone that is no longer here."""
        if args[0] in _MOVED:
            raise UsageError(f"`dpmcmc {args[0]}` is now `{_MOVED[args[0]]}` in the repository; run that there")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; the exit codes are those above."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            _stop(str(error), 2)
        except UnexpectedError as error:
            _stop(str(error), 1)
        except KeyboardInterrupt as interrupt:
            # `dpmcmc.sample` says what it had spent.
            unknown = "Interrupted; no result was written."
            samples = ctx.invoked_subcommand in ("demo", "resume", "sample")
            _stop_interrupted(str(interrupt) or (unknown if samples else _NOTHING_SPENT))
        except Exception as error:
            from dpmcmc.errors import BudgetExceededError, DPMCMCError, ResultError, RunError
            from dpmcmc.output import WriteError

            if not isinstance(error, DPMCMCError):
                raise
            # All others are raised before anything is spent.
            late = isinstance(error, ResultError | RunError | WriteError)
            _stop(str(error), 3 if isinstance(error, BudgetExceededError) else 1 if late else 2)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(schema.commands)
app.command(epilog=sample.EXAMPLES)(sample.sample)
app.command(epilog=resume.EXAMPLES)(resume.resume)
app.add_typer(ledger.commands)
app.command(epilog=report.EXAMPLES)(report.report)
app.command(epilog=account.EXAMPLES)(account.account)
app.command(epilog=plan.EXAMPLES)(plan.plan)
app.command(epilog=audit.EXAMPLES)(audit.audit)
app.command(epilog=demo.EXAMPLES)(demo.demo)


def main() -> None:
    """Run the command line. The entry point of the `dpmcmc` script."""
    app()


def _stop_interrupted(message: str) -> NoReturn:
    line = " ".join(message.split())
    typer.echo(line[:1].upper() + line[1:], err=True)
    raise typer.Exit(130) from None


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(f"Error: {' '.join(message.split())}", err=True)
    raise typer.Exit(code) from None


def _show_version(wanted: bool) -> None:
    if wanted:
        import dpmcmc

        typer.echo(f"dpmcmc {dpmcmc.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Differentially private Bayesian inference by MCMC.

    Posterior draws that may be published: every number that leaves the data is an exactly noised sum, paid for from
    a budget (ε, δ). Neighbouring data sets differ in one row (replace one), and one row is one person; or, if the
    schema says so, in all rows of one person.

    Start with `dpmcmc demo`, then `dpmcmc sample` a table of yours. Each command has its own `--help` with examples.
    """
