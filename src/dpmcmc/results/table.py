"""The summary as a table for a terminal, for the command line.

Shows what :meth:`Posterior.summary` returns and computes nothing of its own; a run that was not private says so in the
title.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpmcmc.results.posterior import Posterior

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["summary_table"]


def summary_table(posterior: Posterior) -> Table:
    """Return the posterior's summary for ``rich.print``; the privacy statement stands below it."""
    from rich.table import Table
    from rich.text import Text

    # Text, not str: Rich would take "beta[age]" for a style and hide the label.
    title = f"{posterior.model}, {posterior.sampler}: {posterior.num_chains} chains × {posterior.num_draws} draws"
    if not posterior.privacy.private:
        title = f"NOT PRIVATE ({posterior.privacy.mode})\n{title}"
    style = "bold" if posterior.privacy.private else "bold red"
    table = Table(title=Text(title, style=style), caption=Text("\n".join(str(posterior.privacy).splitlines()[:2])))
    summary = posterior.summary(round_to="none")
    table.add_column("parameter")
    for column in summary.columns:
        table.add_column(Text(str(column)), justify="right")
    for name, row in summary.iterrows():
        table.add_row(Text(str(name)), *(_cell(str(column), float(value)) for column, value in row.items()))
    return table


def _cell(column: str, value: float) -> str:
    if math.isnan(value):
        return "–"
    if column.startswith("ess"):
        return f"{value:.0f}"
    return f"{value:.3f}" if column == "r_hat" else f"{value:.4g}"
