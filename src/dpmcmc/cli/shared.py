"""What the commands share: groups of options, numbers for people, JSON for programs, errors and how they are told."""

import functools
import inspect
import json
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, get_type_hints

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (all digits) instead of a table.")]


class UsageError(Exception):
    """Options that do not go together. The message names the remedy."""


class UnexpectedError(Exception):
    """An error that is not this package's. Its own text is not told: it could quote a record."""


class SamplerName(StrEnum):
    """The samplers by their names on the command line."""

    auto = "auto"
    dp_hmc = "dp-hmc"
    dp_penalty = "dp-penalty"
    dp_sgld = "dp-sgld"
    dp_sgnht = "dp-sgnht"
    dp_laplace = "dp-laplace"


class Scheme(StrEnum):
    """How batches are drawn."""

    without_replacement = "without_replacement"
    poisson = "poisson"


@contextmanager
def errors_told(debug: bool, spent: Callable[[], str]) -> Iterator[None]:
    """Let errors through that are meant to be read; make `UnexpectedError` of others, without their text.

    Parameters
    ----------
    debug
        Whether to print where an error came from, too: files, lines and code, never the text of a foreign error.
    spent
        Says, for an unexpected error, what was spent.
    """
    unexpected = ""
    try:
        yield
    except (KeyboardInterrupt, typer.Exit):
        raise
    except Exception as error:
        if debug:
            typer.echo(traceback_without_values(error), err=True, nl=False)
        if _is_own(error):
            raise
        unexpected = (
            "there was not enough memory"
            if isinstance(error, MemoryError)
            else (f"an error of type {type(error).__name__}, which should not be")
        )
    # Outside of the handler, so that the foreign error is not even kept as its context.
    if unexpected:
        hint = "" if debug else "; --debug shows where"
        raise UnexpectedError(f"{unexpected}{hint} (its text may quote a record and is not shown); {spent()}")


def traceback_without_values(error: BaseException) -> str:
    """Return the traceback of an error and of those that led to it, with the texts of this package's errors only."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    lines = ["Traceback (most recent call last; texts of errors that are not dpmcmc's are left out):\n"]
    for one in reversed(chain):
        lines += traceback.format_tb(one.__traceback__)
        lines.append(f"{type(one).__name__}: {one}\n" if _is_own(one) else f"{type(one).__name__}\n")
    return "".join(lines)


def _is_own(error: BaseException) -> bool:
    from dpmcmc.errors import DPMCMCError

    return isinstance(error, DPMCMCError | UsageError)


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take dataclasses whose fields are options.

    Typer looks at a function's signature and knows no dataclasses. The function that is returned shows it a signature
    with the fields in place of each dataclass, and makes the dataclass from what Typer found.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        group = groups.get(name)
        if group is None:
            shown.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        types = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = parameter.empty if field.default is MISSING else field.default
            shown.append(
                inspect.Parameter(field.name, parameter.KEYWORD_ONLY, default=default, annotation=types[field.name])
            )

    @functools.wraps(command)
    def run(**options: Any) -> None:
        for name, group in groups.items():
            options[name] = group(**{field.name: options.pop(field.name) for field in fields(group)})
        command(**options)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return run


def given_fields(group: Any) -> dict[str, Any]:
    """Return the options of a group that were given, by name; members of enumerations as their texts."""
    values = {field.name: getattr(group, field.name) for field in fields(group)}
    return {
        name: value.value if isinstance(value, StrEnum) else value
        for name, value in values.items()
        if value is not None
    }


def listed(names: Iterable[str]) -> str:
    """Return the names of options as they are typed."""
    return ", ".join("--" + name.replace("_", "-") for name in names)


def number(value: Any) -> str:
    """Write a number so that a person can read it."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def print_json(answer: Mapping[str, Any]) -> None:
    """Print an answer for programs: all digits, and never NaN, which is no JSON."""
    typer.echo(json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False))
