"""Folders and files that commands leave for people: checked beforehand, written whole or not at all.

It writes the bytes that it is given and knows nothing of what they mean. Pictures share their look from here.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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


class NewFolder:
    """A folder that appears with all that is in it, or not at all.

    Files are written into ``stage``, a folder beside the target (in the nearest folder above it that exists), and
    :meth:`put_in_place` renames that. So all that could forbid it is tried before anything is spent. As a context, it
    leaves nothing behind if it was not put in place (or kept).

    Parameters
    ----------
    target
        The folder to be; it must not exist, or be empty.
    overwrite
        Whether a folder may be replaced that holds nothing but ``known_files``.
    known_files
        The names that files of an earlier run have.

    Raises
    ------
    OutputError
        It cannot be made; nothing was computed.
    """

    def __init__(self, target: Path, *, overwrite: bool = False, known_files: Collection[str] = ()) -> None:
        self.target = target.resolve()
        self._overwrite = overwrite
        self._kept = False
        shown = str(target)
        try:
            if self.target.exists():
                self._check_existing(shown, known_files)
            above = next(folder for folder in self.target.parents if folder.exists())
            self.stage = above / f".{self.target.name}.{secrets.token_hex(4)}.unfinished"
            self.stage.mkdir()
            self.stage.joinpath("test").write_bytes(b"test")
            self.stage.joinpath("test").unlink()
        except OSError as error:
            raise OutputError(
                f"cannot write the folder {shown!r} ({error.strerror}); nothing was computed, choose another --out"
            ) from None

    def _check_existing(self, shown: str, known_files: Collection[str]) -> None:
        if not self.target.is_dir():
            raise OutputError(f"{shown!r} is a file, not a folder; nothing was computed, choose another --out")
        if Path.cwd().is_relative_to(self.target) or os.path.ismount(self.target):
            raise OutputError(
                f"{shown!r} is where you are, or a drive, and cannot be put in place as a whole; nothing was "
                "computed, choose a new folder inside of it as --out"
            )
        names = sorted(path.name for path in self.target.iterdir())
        if names and not self._overwrite:
            raise OutputError(
                f"the folder {shown!r} is not empty; nothing was computed, choose another --out, or give --overwrite "
                "to replace an earlier run"
            )
        others = [name for name in names if name not in known_files]
        if others:
            raise OutputError(
                f"the folder {shown!r} holds {others[0]!r}, which is not of an earlier run, so that it is not "
                "replaced; nothing was computed, choose another --out"
            )

    def put_in_place(self) -> None:
        """Let the folder appear under its name, in place of an earlier one.

        Raises
        ------
        OSError
            It could not; what was there is there, and ``stage`` is kept.
        """
        self._kept = True
        self.target.parent.mkdir(parents=True, exist_ok=True)
        earlier = self.target.with_name(f"{self.stage.name}.replaced")
        replaces = self.target.exists() and self._overwrite
        if replaces:
            os.rename(self.target, earlier)
        elif self.target.exists():
            self.target.rmdir()  # it is empty, or an error says that it is no longer
        try:
            os.rename(self.stage, self.target)
        except OSError:
            if replaces:
                os.rename(earlier, self.target)
            raise
        if replaces:
            shutil.rmtree(earlier, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._kept:
            shutil.rmtree(self.stage, ignore_errors=True)
