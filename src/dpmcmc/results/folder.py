"""A run as files for people and programs: the draws, the privacy statement, the summary and the report."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

from dpmcmc.errors import DPMCMCWarning
from dpmcmc.output import replace_file
from dpmcmc.results.posterior import Posterior
from dpmcmc.results.report import html_report

__all__ = ["POSTERIOR", "REPORT", "RUN_FILES", "write_report", "write_run"]

POSTERIOR, PRIVACY, STATEMENT, SUMMARY = "posterior.nc", "privacy.json", "privacy.txt", "summary.csv"
REPORT = "report.html"
RUN_FILES = {
    POSTERIOR: "the draws, an ArviZ file",
    PRIVACY: "what was guaranteed and spent, for programs",
    STATEMENT: "the same in sentences",
    SUMMARY: "the summary, all digits",
    REPORT: "all of it on one page: open it in a browser",
}
"""The files of a run, and what they are."""


def write_run(posterior: Posterior, folder: Path, *, overwrite: bool = False) -> None:
    """Write the files of a run (`RUN_FILES`), each whole or not at all.

    Parameters
    ----------
    posterior
        What `dpmcmc.sample` returned.
    folder
        Where to; it must exist.
    overwrite
        Replace those of an earlier run.
    """
    posterior.save(folder / POSTERIOR, overwrite=overwrite)  # first: it cannot be made again
    replace_file(folder / PRIVACY, f"{posterior.privacy.to_json(indent=2)}\n".encode())
    replace_file(folder / STATEMENT, f"{posterior.privacy.to_text()}\n".encode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)  # they are those of the posterior, and shown with it
        table = posterior.summary(round_to="none")
    text = io.StringIO()
    # If the run was not private, the name of the index says so.
    table.to_csv(text, index_label=table.index.name or "parameter", lineterminator="\n")
    replace_file(folder / SUMMARY, text.getvalue().encode())
    write_report(posterior, folder / REPORT)


def write_report(posterior: Posterior, target: Path) -> None:
    """Write the page to ``target``, whole or not at all; an earlier one there is replaced."""
    replace_file(target, html_report(posterior).encode())
