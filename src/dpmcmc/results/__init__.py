"""What a user is handed: the posterior draws with their privacy statement, to summarise, plot, save and load.

Nothing here sees a record; it holds released quantities only, and refuses to hold others.
"""

from dpmcmc.results.diagnostics import RecordCheck
from dpmcmc.results.posterior import Posterior
from dpmcmc.results.quality import Quality
from dpmcmc.results.report import Picture, html_report
from dpmcmc.results.spending import Spend
from dpmcmc.results.table import summary_table

__all__ = ["Picture", "Posterior", "Quality", "RecordCheck", "Spend", "html_report", "summary_table"]
