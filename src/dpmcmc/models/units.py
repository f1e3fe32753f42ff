"""The model of a unit: a person with several rows. Its log-likelihood is the sum of those of its rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dpmcmc.checks import count
from dpmcmc.data.source import Source, open_source
from dpmcmc.data.table import Table
from dpmcmc.data.tables import OpenRecords, Records
from dpmcmc.data.units import UnitRecords, Units
from dpmcmc.errors import DataError, ModelError
from dpmcmc.models.model import Model

__all__ = ["UnitModel", "open_units", "row_model", "unit_name", "unit_of_privacy"]


class UnitModel(Model):
    """A model of rows, made one of units of at most ``max_rows`` rows.

        log p(unit | θ) = Σ_j present_j · log p(row_j | θ)

    All that is bounded by unit of privacy (clipped gradients, log-ratios, curvatures, counts) is then bounded for all
    rows of a unit together. A unit without any row that counts is a record that counts as nothing (NaN). Parameters,
    priors, transforms and labels are those of the model of rows.

    Parameters
    ----------
    model
        The model of one row.
    max_rows
        How many rows of a unit count, at most.
    unit
        What the units are called, for the privacy statement: the name of the column of ids. None: every row is a unit
        (then ``max_rows`` is 1).

    Attributes
    ----------
    model, max_rows, unit
        As given.

    Notes
    -----
    A record is ``{"rows": …, "present": …}``: the model's own records with a leading axis of ``max_rows`` entries, and
    which of them are there. :meth:`dpmcmc.data.Units.stack` makes them. The curator evaluates the model of rows, as if
    it stood alone, and adds up by unit.

    Examples
    --------
    >>> import numpy as np
    >>> from dpmcmc.models import LogisticRegression
    >>> model = UnitModel(LogisticRegression(["age"]), max_rows=3, unit="person_id")
    >>> units = Units.of(np.array(["a", "b", "a"]), max_rows=3)
    >>> records, num_records = model.prepare_records(units.stack({"X": np.zeros((3, 1)), "y": np.array([0, 1, 1])}))
    >>> num_records, records["rows"]["X"].shape
    (2, (2, 3, 1))
    >>> unit_of_privacy(model)
    "all rows of one 'person_id', of which at most 3 are used"
    """

    # Only for classes derived from this one, which are differentiated as they are: the rows' own kernel knows better.
    float32_suffices = False

    def __init__(self, model: Model, max_rows: int, unit: str | None = None) -> None:
        if not isinstance(model, Model) or isinstance(model, UnitModel):
            raise ModelError(f"model is a {type(model).__name__}; give a dpmcmc.Model of one row.")
        self.model, self.max_rows, self.unit = model, count("max_rows", max_rows), unit
        super().__init__(
            self._log_likelihood,
            model.log_prior,
            model.parameters,
            sample_prior=model.sample_prior,
            name=model.name,
        )

    @property
    def labels(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Those of the model of rows."""
        return self.model.labels

    def _log_likelihood(self, parameters: dict[str, jax.Array], record: Any) -> jax.Array:
        present = record["present"]
        terms = jax.vmap(self.model.log_likelihood, in_axes=(None, 0))(parameters, record["rows"])
        nobody = ~jnp.any(present)
        total = jnp.sum(jnp.where(present | nobody, terms, 0.0))
        # Multiplied, not selected: a selection would give the derivative zero instead of NaN.
        return total * jnp.where(nobody, jnp.nan, 1.0).astype(total.dtype)

    def prepare_records(self, data: Any) -> tuple[Records, int]:
        """Prepare rows as their model does, all together, and put them back into their units.

        Raises
        ------
        DataError
            The data are neither a :class:`~dpmcmc.data.UnitRecords` of ``max_rows`` rows nor, if every row is a unit,
            plain rows; or they do not fit the model of rows. Never because of a value.
        """
        if not isinstance(data, UnitRecords):
            # With a name the statement speaks of all rows of a person: nobody has put those together.
            if self.max_rows > 1 or self.unit is not None:
                raise DataError(
                    f"data is of type {type(data).__name__}, in which no row is said to be whose; give "
                    "dpmcmc.data.Units.of(ids, max_rows).stack(columns), or a dpmcmc.Table with a unit."
                )
            rows, num_rows = Model.prepare_records(self, data)
            data = Units.one_row_each(num_rows).stack(rows)
        if data.present.shape[1] != self.max_rows:
            raise DataError(
                f"data has units of {data.present.shape[1]} rows, and the model is one of {self.max_rows}; give the "
                "same max_rows to both."
            )
        units, slots = data.present.shape
        flat = jax.tree.map(lambda column: column.reshape(units * slots, *column.shape[2:]), data.rows)
        rows, _ = self.model.prepare_records(OpenRecords(flat, units * slots))
        stacked = jax.tree.map(lambda column: column.reshape(units, slots, *column.shape[1:]), rows)
        prepared: Any = {"rows": stacked, "present": data.present}
        return prepared, units

    def quantities(self, records: Any) -> Any:
        """Return those of the rows."""
        return self.model.quantities(records["rows"])


def row_model(model: Model) -> Model:
    """Return the model of one row: of a :class:`UnitModel` (no class derived from it) the one inside."""
    return model.model if type(model) is UnitModel else model


def open_units(model: Model, data: Any) -> tuple[Model, Source]:
    """Open data, once; a :class:`dpmcmc.Table`, or what is put by unit, makes a model of rows one of units.

    Where every row is a unit, that is what leaves out the rows that count as nothing by the schema's rule, even if the
    model does not look at the column that is missing.

    Raises
    ------
    DataError
        The data cannot be opened, or there are units of several rows and several processes, each with its own part.
    """
    if isinstance(data, Table):
        model = UnitModel(row_model(model), data.schema.max_rows or 1, data.unit)
    elif isinstance(data, UnitRecords) and not isinstance(model, UnitModel):
        model = UnitModel(model, data.present.shape[1])
    several = isinstance(model, UnitModel) and (model.max_rows > 1 or model.unit is not None)
    if several and jax.process_count() > 1:
        raise DataError(
            f"units of several rows do not go with {jax.process_count()} processes: the rows of one unit could lie on "
            "two of them and count twice; run one process."
        )
    return model, open_source(data)


def unit_name(model: Model) -> str:
    """Name whom a model protects, for a ledger: the column that tells persons apart, "unit" if none does, "row"."""
    if not isinstance(model, UnitModel) or (model.unit is None and model.max_rows == 1):
        return "row"
    return "unit" if model.unit is None else model.unit


def unit_of_privacy(model: Model) -> str:
    """Say in words who is protected."""
    if isinstance(model, UnitModel) and model.unit is not None:
        return f"all rows of one {model.unit!r}, of which at most {model.max_rows} are used"
    if isinstance(model, UnitModel) and model.max_rows > 1:
        return f"all rows of one unit, of which at most {model.max_rows} are used"
    return "one row of the table, which stands for one person"
