"""The summary as a table for a terminal, for the command line.

Shows what :meth:`Posterior.summary` returns and computes nothing of its own; a run that was not private says so in the
title.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from dpmcmc.errors import DPMCMCWarning
from dpmcmc.results.posterior import Posterior

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["summary_table"]


# So that names and numbers fit in 80 characters; `summary()` has all.
_LEFT_OUT = ("mcse_sd", "ess_tail")
_SHORT = {"mcse_mean": "mcse", "ess_bulk": "ess"}


def summary_table(posterior: Posterior) -> Table:
    """Return the main columns of the summary for ``rich.print``, with the privacy statement and warnings below."""
    from rich.table import Table
    from rich.text import Text

    # Text, not str: Rich would take "beta[age]" for a style and hide the label.
    title = f"{posterior.model}, {posterior.sampler}: {posterior.num_chains} chains × {posterior.num_draws} draws"
    if not posterior.privacy.private:
        title = f"NOT PRIVATE ({posterior.privacy.mode})\n{title}"
    caption = Text("\n".join(str(posterior.privacy).splitlines()[:2]))
    for warning in posterior.warnings:
        caption.append(f"\nWarning: {warning}", style="bold red")
    table = Table(
        title=Text(title, style="bold" if posterior.privacy.private else "bold red"),
        caption=caption,
        box=None,
        padding=(0, 2, 0, 0),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)  # they are shown below the table
        summary = posterior.summary(round_to="none").drop(columns=list(_LEFT_OUT))
    table.add_column("parameter", overflow="fold")
    for column in summary.columns:
        table.add_column(Text(_SHORT.get(column, str(column))), justify="right", no_wrap=True)
    for name, row in summary.iterrows():
        table.add_row(Text(str(name)), *(_cell(str(column), float(value)) for column, value in row.items()))
    return table


def _cell(column: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    if column.startswith("ess"):
        return f"{value:.0f}"
    return f"{value:.3f}" if column == "r_hat" else f"{value:.3g}"
