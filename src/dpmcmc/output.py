"""Folders and files that commands leave for people: checked beforehand, written whole or not at all.

It writes the bytes that it is given and knows nothing of what they mean.
"""

import os
import secrets
import tempfile
from pathlib import Path

from dpmcmc.errors import DPMCMCError


class OutputError(DPMCMCError):
    """The folder for the results cannot be written."""


def prepare_folder(folder: Path) -> None:
    """Make the folder and try to write into it, before anything is computed or spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".dpmcmc-"):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write into {str(folder)!r} ({error.strerror}); nothing was computed, choose another --out"
        ) from None


def replace_file(target: Path, content: bytes) -> None:
    """Write a temporary file beside the target and move it there."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
