"""What the commands share: groups of options, numbers for people, JSON for programs, the error for wrong usage."""

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, get_type_hints

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON (all digits) instead of a table.")]


class UsageError(Exception):
    """Options that do not go together. The message names the remedy."""


class Scheme(StrEnum):
    """How batches are drawn."""

    without_replacement = "without_replacement"
    poisson = "poisson"


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
