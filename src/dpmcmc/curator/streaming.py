"""Records that do not fit into memory: read again for every question, chunk by chunk, also from compiled code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from numpy.typing import NDArray

from dpmcmc.curator import placement, preparation
from dpmcmc.curator.arithmetic import exact_arithmetic
from dpmcmc.curator.passes import Passes, structure_of
from dpmcmc.data import Stream
from dpmcmc.errors import DataError, DPMCMCError, RunError
from dpmcmc.models import Model
from dpmcmc.queries import Query

# About as many rows are in memory at a time (twice: the next ones are read beside).
CHUNK_ROWS = 2**18


class StreamedRecords:
    """A stream as the curator uses it: chunks of one shape, prepared and padded.

    Parameters
    ----------
    model, stream
        Whose records, and where they come from.
    """

    def __init__(self, model: Model, stream: Stream) -> None:
        self._model, self._stream = model, stream
        self._error = ""
        self._structure: Any = None
        # A whole number of tiles: a function of the number of records.
        unit = 2 * placement.largest_tile(stream.num_records)
        self._rows = max(1, CHUNK_ROWS // unit) * unit

    def first(self) -> Any:
        """Return the first chunk, prepared, for its shapes and dtypes."""
        problem: DPMCMCError | None = None
        try:
            chunks = self._stream.chunks(self._rows)
            first, _ = preparation.prepare(self._model, _floating(next(chunks)))
            chunks.close()  # type: ignore[attr-defined]
        except DPMCMCError as error:
            problem = error
        except Exception as error:
            problem = DataError(f"the records could not be read ({type(error).__name__}); check the file or the stream")
        if problem is not None:  # raised outside the handler: a reader's own text could quote a value
            raise problem from None
        self._structure = structure_of(first)
        return first

    def shapes(self, passes: Passes, first: Any) -> Any:
        """Return shapes and dtypes of a padded chunk."""
        rows = min(self._rows, self._stream.num_records)
        return structure_of(placement.pad_rows(passes.kernel, first, rows, self._rows))

    def total(self, passes: Passes, compiled: Any, *arguments: Any) -> NDArray[np.int64]:
        """Return the un-noised integer sums over all chunks. Secret.

        A reader's own error could quote a value, and compiled code would print it. So it goes no further than this: the
        sum is then 0, and whoever asked finds the error in :meth:`raise_error`.
        """
        total = np.zeros(compiled.out_info.shape, np.int64)
        try:
            for chunk in [] if self._error else self._stream.chunks(self._rows):
                prepared, count = preparation.prepare(self._model, _floating(chunk))
                # One entry may make a chunk of another dtype; it is brought to that of the first.
                prepared = jax.tree.map(lambda column, like: column.astype(like.dtype), prepared, self._structure)
                padded = placement.pad_rows(passes.kernel, prepared, count, self._rows)
                total = total + np.asarray(compiled(padded, *arguments))
        except Exception as error:
            known = isinstance(error, DPMCMCError)
            self._error = str(error) if known else f"the records could not be read ({type(error).__name__})"
        return np.zeros_like(total) if self._error else total

    def raise_error(self) -> None:
        """Raise if records could not be read; what was answered since then is worthless."""
        if self._error:
            raise RunError(self._error)


def _floating(chunk: Any) -> Any:
    """Make arrays of integers and booleans floating: with a value missing, a later chunk would be so too."""

    def convert(column: Any) -> Any:
        is_whole = isinstance(column, np.ndarray) and column.dtype.kind in "biu"
        return column.astype(np.float64) if is_whole else column

    return {name: convert(column) for name, column in chunk.items()} if isinstance(chunk, Mapping) else convert(chunk)


def call_back(
    host_total: Callable[..., NDArray[np.int64]],
    shape: tuple[int, ...],
    query: Query,
    theta: jax.Array,
    proposal: jax.Array | None,
    *public: Any,
) -> jax.Array:
    """Leave compiled code, add up all chunks, and come back with integers. They are noised inside, as always."""

    two = proposal is not None  # (the arrays are those of a trace, which what is called must not keep)

    def from_host(*words: Any) -> NDArray[np.uint32]:
        def work() -> NDArray[np.int64]:
            with exact_arithmetic():
                values = [np.asarray(one).view(np.float64)[..., 0] for one in words]
                return host_total(query, values[0], values[1] if two else None, *values[1 + two :])

        # In a thread of its own: compiled code may not be run from within compiled code's own thread.
        with ThreadPoolExecutor(max_workers=1) as beside:
            return beside.submit(work).result()[..., None].view(np.uint32)

    # As words of 32 bits: JAX calls back from a thread of its own, in which 64 bits may be switched off.
    arguments = [jnp.asarray(one) for one in (theta, *([] if proposal is None else [proposal]), *public)]
    words = [jax.lax.bitcast_convert_type(one.astype(jnp.float64), jnp.uint32) for one in arguments]
    result = io_callback(from_host, jax.ShapeDtypeStruct((*shape, 2), jnp.uint32), *words)
    return jax.lax.bitcast_convert_type(result, jnp.int64)


def refuse_several_devices(num_devices: int) -> None:
    """Streams are read by one process, onto one device."""
    if jax.process_count() > 1 or num_devices > 1:
        raise DataError("streamed records are read by one process onto one device; leave devices out")
