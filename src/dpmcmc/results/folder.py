"""A run as files for people and programs: the draws, the privacy statement and the summary."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path

from dpmcmc.errors import DPMCMCWarning
from dpmcmc.output import replace_file
from dpmcmc.results.posterior import Posterior

__all__ = ["POSTERIOR", "RUN_FILES", "write_run"]

POSTERIOR, PRIVACY, SUMMARY = "posterior.nc", "privacy.json", "summary.csv"
RUN_FILES = {
    POSTERIOR: "the draws, an ArviZ file",
    PRIVACY: "what was guaranteed and spent",
    SUMMARY: "the summary, all digits",
}
"""The files of a run, and what they are."""


def write_run(posterior: Posterior, folder: Path, *, overwrite: bool = False) -> None:
    """Write ``posterior.nc``, ``privacy.json`` and ``summary.csv``, each whole or not at all.

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
    statement = json.dumps(posterior.privacy.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
    replace_file(folder / PRIVACY, f"{statement}\n".encode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DPMCMCWarning)  # they are those of the posterior, and shown with it
        table = posterior.summary(round_to="none")
    text = io.StringIO()
    # If the run was not private, the name of the index says so.
    table.to_csv(text, index_label=table.index.name or "parameter", lineterminator="\n")
    replace_file(folder / SUMMARY, text.getvalue().encode())
