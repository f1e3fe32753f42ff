"""Trees of arrays on disk, as netCDF: whole or not at all, and without pickle in either direction.

A failed save leaves what was there before. The file is made in memory and then written as plain bytes, because HDF5
brings the whole process down (draws and all) when the disk is full. It may do the same when a file is damaged. So a
hash stands behind the last byte that HDF5 looks at, and is checked before HDF5 sees any. It shows damage, not intent.
"""

from __future__ import annotations

import hashlib
import io
import os
import uuid
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from dpmcmc.errors import ResultError

if TYPE_CHECKING:
    from xarray import DataTree

__all__ = ["check_path", "read_tree", "sealed", "write_tree"]

_SEAL = b"\ndpmcmc sha256 "


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` if it ends in ".nc", else raise."""
    target = Path(path)
    if target.suffix == ".zarr":
        raise ResultError(f"path is {str(target)!r}; Zarr is neither written nor read, end it with '.nc' (netCDF)")
    if target.suffix != ".nc":
        raise ResultError(f"path is {str(target)!r}; end it with '.nc' (netCDF)")
    return target


def write_tree(tree: DataTree, path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Write ``tree`` to ``path``; an earlier file is replaced, if at all, in one step, once the new one is on disk."""
    target = check_path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the directory {str(target.parent)!r} does not exist; create it first")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        _write_bytes(sealed(bytes(tree.to_netcdf(None, engine="h5netcdf"))), temporary)
        if not overwrite and os.path.lexists(target):  # another process may have been faster
            raise ResultError(f"{str(target)!r} has come into being meanwhile; save to another path")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    _synchronise_directory(target.parent)
    return target


def read_tree(path: str | os.PathLike[str]) -> DataTree:
    """Return the tree stored in ``path``, fully in memory; what cannot be read is refused with a plain error."""
    source = check_path(path)
    if not source.exists():
        raise FileNotFoundError(f"there is no file {str(source)!r}; check the path")
    import xarray  # takes seconds

    content = source.read_bytes()
    end = content.rfind(_SEAL, max(0, len(content) - len(_SEAL) - 64))
    # (Files of earlier versions have no seal.)
    if end >= 0 and sealed(content[:end]) != content:
        raise ResultError(f"{str(source)!r} is damaged: its bytes are not those that were written")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what xarray finds odd; what matters is checked by whoever asked
            with xarray.open_datatree(io.BytesIO(content), engine="h5netcdf") as tree:
                return tree.load()
    except Exception as error:  # a damaged file makes HDF5 raise nearly anything
        raise ResultError(f"{str(source)!r} cannot be read as netCDF: it is damaged or another kind") from error


def sealed(content: bytes) -> bytes:
    """Return a file's content with a hash of it at its end, which netCDF does not look at."""
    return content + _SEAL + hashlib.sha256(content).hexdigest().encode()


def _write_bytes(content: bytes | memoryview, path: Path) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _synchronise_directory(directory: Path) -> None:
    """Make the new name durable where the operating system can; Windows cannot open directories."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
