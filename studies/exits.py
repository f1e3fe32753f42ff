"""How commands end: an expected error is one line on stderr and an exit code, never a traceback."""

from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from dpmcmc.errors import DPMCMCError, QueryError

NOTHING_SPENT = "Interrupted; nothing was spent."


class _OneLineErrors:
    """The exit codes: 2 for bad input, 1 for other errors of the package, 130 for Ctrl-C."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Read the options."""
        try:
            return super().make_context(*arguments, **options)  # type: ignore[misc]
        except KeyboardInterrupt:
            _stop(NOTHING_SPENT, 130)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        except KeyboardInterrupt as interrupt:
            message = str(interrupt) or NOTHING_SPENT  # `dpmcmc.sample` says what it had spent
            _stop(message[:1].upper() + message[1:], 130)
        except DPMCMCError as error:
            _stop(f"Error: {error}", 2 if isinstance(error, QueryError) else 1)


class Command(_OneLineErrors, TyperCommand):
    """A single command."""


class Commands(_OneLineErrors, TyperGroup):
    """A group of commands."""


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(" ".join(message.split()), err=True)
    raise typer.Exit(code) from None
