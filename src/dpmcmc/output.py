"""Folders and files that commands leave for people: checked beforehand, written whole or not at all.

It writes the bytes that it is given and knows nothing of what they mean. Pictures share their look from here.
"""

import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from dpmcmc.errors import DPMCMCError

# Colours of text and lines, and the look of all pictures; a picture adds what is its own.
INK, MUTED, LINE = "#1b1f24", "#59636e", "#d0d7de"
PICTURE_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,
}


class OutputError(DPMCMCError):
    """The folder for the results cannot be written."""


class WriteError(OutputError):
    """What was computed, and maybe paid for, could not be written where it should; it says where it is."""


def prepare_folder(folder: Path, option: str = "--out") -> None:
    """Make the folder and try to write into it, before anything is computed or spent; ``option`` says who named it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".dpmcmc-"):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write into {str(folder)!r} ({error.strerror}); nothing was computed, choose another {option}"
        ) from None


def replace_file(target: Path, content: bytes) -> None:
    """Write a temporary file beside the target and move it there."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
