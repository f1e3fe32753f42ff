"""Arrays of a Parquet file, streamed through a `Table`, as the records of a model that takes a matrix."""

import numpy as np

from dpmcmc import Field, Schema, Table
from dpmcmc.data.table import TableStream

BOUND = 1e6  # wide: nothing is clamped


def stream_of(path, fields, dtype="float64"):
    """Columns of a file: ``{"X": [name, …], "y": name}``, or a list of names for one array."""
    of = fields if isinstance(fields, dict) else {"": fields}
    names = list(
        dict.fromkeys(name for group in of.values() for name in ([group] if isinstance(group, str) else group))
    )
    schema = Schema([Field(name, "number", minimum=-BOUND, maximum=BOUND) for name in names])

    def build(clean):
        arrays = {
            field: clean[group] if isinstance(group, str) else np.stack([clean[name] for name in group], axis=1)
            for field, group in of.items()
        }
        arrays = {field: array.astype(dtype) for field, array in arrays.items()}
        return arrays if isinstance(fields, dict) else arrays[""]

    return TableStream(Table(path, schema, stream=True), names, build)
