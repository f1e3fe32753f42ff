"""Which names are public, and what is wrong with how they are documented."""

import inspect
from importlib import import_module
from typing import Any

MODULES = (
    "dpmcmc",
    "dpmcmc.curator",
    "dpmcmc.data",
    "dpmcmc.errors",
    "dpmcmc.models",
    "dpmcmc.presets",
    "dpmcmc.privacy",
    "dpmcmc.queries",
    "dpmcmc.results",
    "dpmcmc.surrogate",
)


def names() -> dict[str, Any]:
    """Return all public names of the package, each with what it stands for."""
    found = {}
    for module in map(import_module, MODULES):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        for name in getattr(module, "__all__", [name for name in own if not name.startswith("_")]):
            if not inspect.ismodule(getattr(module, name)):
                found[f"{module.__name__}.{name}"] = getattr(module, name)
    return found


def left_out(documented: set[str]) -> list[str]:
    """Say which names stand nowhere among those that are documented; one of several names of a thing is enough."""
    known = names()
    shown = {id(value) for name, value in known.items() if name in documented}
    return [
        f"{name} is public and stands nowhere in the reference"
        for name, value in known.items()
        if id(value) not in shown
    ]


def without_docstring(known: dict[str, Any] | None = None) -> list[str]:
    """Say which names, and which methods and properties of classes, have no docstring."""
    parts = {}
    for name, value in (names() if known is None else known).items():
        parts[name] = value
        if inspect.isclass(value):
            for member, kind in vars(value).items():
                if not member.startswith("_") and (inspect.isfunction(kind) or isinstance(kind, property)):
                    parts[f"{name}.{member}"] = getattr(value, member)
    return [
        f"{name} is public and has no docstring"
        for name, part in parts.items()
        if (callable(part) or isinstance(part, property)) and not inspect.getdoc(part)
    ]
