"""The summary as rows for pages and tables, and as a table for a terminal.

Shows what :meth:`Posterior.summary` returns and computes nothing of its own; a run that was not private says so in the
title. The table for a terminal needs Rich, which the extra `cli` installs.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpmcmc.errors import DPMCMCWarning, ResultError
from dpmcmc.results.posterior import Posterior
from dpmcmc.results.quality import as_percent

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["SummaryRows", "summary_rows", "summary_table"]


# So that names and numbers fit in 80 characters; `summary()` has all.
_LEFT_OUT = ("mcse_sd", "ess_tail")
# Of independent draws they are what they are for any such draws, good fit or bad.
_LEFT_OUT_IF_INDEPENDENT = (*_LEFT_OUT, "ess_bulk", "r_hat")
_SHORT = {"mcse_mean": "mcse", "ess_bulk": "ess", "noise_share": "noise"}


class SummaryRows(NamedTuple):
    """Names of the columns, and for each parameter its name and its numbers in these columns."""

    columns: list[str]
    rows: list[tuple[str, list[float]]]

    def column(self, name: str) -> list[float]:
        """Return the numbers of one column."""
        place = self.columns.index(name)
        return [values[place] for _, values in self.rows]


def summary_rows(posterior: Posterior) -> SummaryRows:
    """Return the main columns of the summary. Its warnings are not given here: ``posterior.warnings`` has them.

    Of independent draws, these are the share of noise (``noise_share``, from 0 to 1) and no R̂ and ESS.
    """
    left_out = _LEFT_OUT if posterior.of_chains else _LEFT_OUT_IF_INDEPENDENT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)
        summary = posterior.summary(round_to="none").drop(columns=list(left_out), errors="ignore")
    numbers = summary.to_numpy(np.float64).tolist()
    return SummaryRows(
        [str(column) for column in summary.columns],
        [(str(name), values) for name, values in zip(summary.index, numbers, strict=True)],
    )


def summary_table(posterior: Posterior) -> Table:
    """Return the main columns of the summary for ``rich.print``, with privacy, quality and warnings below."""
    try:
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        raise ResultError("summary_table needs Rich; install it with pip install 'dpmcmc[cli]'") from None

    # Text, not str: Rich would take "beta[age]" for a style and hide the label.
    title = f"{posterior.model}, {posterior.sampler}: {posterior.size_text}"
    if not posterior.privacy.private:
        title = f"NOT PRIVATE ({posterior.privacy.mode})\n{title}"
    quality = [f"{label}: {text}" for label, text in posterior.quality_rows]
    caption = Text("\n".join([*str(posterior.privacy).splitlines()[:2], *quality]))
    for warning in posterior.warnings:
        caption.append(f"\nWarning: {warning}", style="bold red")
    table = Table(
        title=Text(title, style="bold" if posterior.privacy.private else "bold red"),
        caption=caption,
        box=None,
        padding=(0, 2, 0, 0),
    )
    summary = summary_rows(posterior)
    table.add_column("parameter", overflow="fold")
    for column in summary.columns:
        table.add_column(Text(_SHORT.get(column, column)), justify="right", no_wrap=True)
    for name, values in summary.rows:
        table.add_row(Text(name), *(_cell(*cell) for cell in zip(summary.columns, values, strict=True)))
    return table


def _cell(column: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    if column == "noise_share":
        return as_percent(value)
    if column.startswith("ess"):
        return f"{value:.0f}"
    return f"{value:.3f}" if column == "r_hat" else f"{value:.3g}"
