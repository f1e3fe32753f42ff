"""The errors and warnings of dpmcmc. None of them ever carries a value taken from a record.

Every message names what was wrong and the remedy. All errors but `RunError` are raised before any privacy budget is
spent.
"""

from typing import Any

_LONGEST = 2000  # characters of a message


class DPMCMCError(Exception):
    """Base class of all errors of this package. A message that would fill the screen is cut short."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 4 :]}"


class ModelError(DPMCMCError, ValueError):
    """The model cannot be used: it is not a product over records, or its functions have the wrong shape."""


class DataError(DPMCMCError, ValueError):
    """The records do not have the public shape, columns or types that the model asks for."""


class SchemaError(DPMCMCError, ValueError):
    """A schema says what cannot be, or leaves out what is needed; or file and schema do not fit in names and types."""


class QueryError(DPMCMCError, ValueError):
    """A query, a parameter vector or a privacy argument is out of its range."""


class BudgetExceededError(DPMCMCError):
    """The privacy budget does not allow this query. Nothing was spent and nothing was computed."""


class NotPrivateError(DPMCMCError):
    """A result that is not private was about to be treated as if it were."""


class ResultError(DPMCMCError, ValueError):
    """Draws do not fit together, or a file is not a posterior of this package or cannot be written."""


class LedgerError(DPMCMCError):
    """A ledger cannot be opened, read or written, was edited, or belongs to other data."""


class CheckpointError(DPMCMCError):
    """A run cannot be begun in a folder, or not be gone on with: it is damaged, in use, or of another model or data."""


class RunError(DPMCMCError):
    """A run failed after it had begun to spend, and there are no draws to return; it says what is spent.

    Attributes
    ----------
    unconstrained_draws
        The draws as they are (draws × chains × unconstrained parameters), if only the last step failed; else None.
    posterior
        The result, if only the ledger could not be read in the end, or what there is of it, if one of several processes
        has failed; else None.
    """

    def __init__(self, message: str, unconstrained_draws: Any = None, posterior: Any = None) -> None:
        super().__init__(message)
        self.unconstrained_draws, self.posterior = unconstrained_draws, posterior


class DPMCMCWarning(UserWarning):
    """A run has a problem that its released quantities show: nothing moved, chains disagree, too few draws.

    Attributes
    ----------
    posterior
        The result, where warnings are turned into errors and `sample` could not return it.
    """

    posterior: Any = None
