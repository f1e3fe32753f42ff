"""Trees of arrays on disk, as netCDF or Zarr: whole or not at all, and without pickle in either direction.

A failed save leaves what was there before. netCDF is made in memory and then written as plain bytes, because HDF5
brings the whole process down (draws and all) when the disk is full.
"""

from __future__ import annotations

import io
import os
import shutil
import uuid
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpmcmc.errors import ResultError

__all__ = ["check_path", "read_tree", "write_tree"]


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if its suffix is one that can be written and read here, else raise."""
    target = Path(path)
    if target.suffix not in (".nc", ".zarr"):
        raise ResultError(f"path is {str(target)!r}; end it with '.nc' (netCDF) or '.zarr' (Zarr)")
    if target.suffix == ".zarr" and find_spec("zarr") is None:
        raise ResultError(f"path is {str(target)!r}, but Zarr is not installed; install 'zarr' or use a '.nc' path")
    return target


def write_tree(tree: Any, path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Write ``tree`` under ``path``; an earlier one is replaced, if at all, once the new one is complete on disk.

    Replacing a netCDF file is atomic. A Zarr store is a directory, which no operating system replaces in one step: the
    old one is moved aside first and moved back if the second step fails.
    """
    target = check_path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the directory {str(target.parent)!r} does not exist; create it first")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        if target.suffix == ".nc":
            _write_bytes(tree.to_netcdf(None, engine="h5netcdf"), temporary)
        else:
            # Format 2 is read by every version of Zarr; its texts need no object codec that could be pickle.
            tree.to_zarr(temporary, mode="w", zarr_format=2, consolidated=True)
        if not overwrite and os.path.lexists(target):  # another process may have been faster
            raise ResultError(f"{str(target)!r} has come into being meanwhile; save to another path")
        _replace(temporary, target)
    except BaseException:
        _remove(temporary)
        raise
    _synchronise_directory(target.parent)
    return target


def read_tree(path: str | os.PathLike[str]) -> Any:
    """Return the tree stored under ``path``, fully in memory; what cannot be read is refused with a plain error."""
    source = check_path(path)
    if not source.exists():
        raise FileNotFoundError(f"there is no file {str(source)!r}; check the path")
    xarray = import_module("xarray")
    if source.suffix == ".nc":
        stored: Any = io.BytesIO(source.read_bytes())
        options: dict[str, Any] = {"engine": "h5netcdf"}
    else:
        # Not by the consolidated description, which was not looked at for pickle.
        _refuse_pickle(source)
        stored, options = source, {"engine": "zarr", "consolidated": False}
    try:
        with xarray.open_datatree(stored, **options) as tree:
            return tree.load()
    except Exception as error:  # a damaged file makes HDF5 and Zarr raise nearly anything
        raise ResultError(
            f"{str(source)!r} cannot be read as {source.suffix[1:]}: it is damaged or another kind"
        ) from error


def _write_bytes(content: Any, path: Path) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _replace(new: Path, target: Path) -> None:
    if not target.is_dir():
        os.replace(new, target)
        return
    aside = new.with_suffix(".old")
    os.replace(target, aside)
    try:
        os.replace(new, target)
    except BaseException:
        os.replace(aside, target)
        raise
    _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _synchronise_directory(directory: Path) -> None:
    """Make the new name durable where the operating system can; Windows cannot open directories."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refuse_pickle(store: Path) -> None:
    """Zarr can hold pickled objects, which run code when read; a posterior has none."""
    for pattern in (".zarray", "zarr.json"):
        for description in store.rglob(pattern):
            if "pickle" in description.read_text(encoding="utf-8", errors="replace"):
                raise ResultError(f"{str(store)!r} holds pickled objects, which dpmcmc neither writes nor reads")
