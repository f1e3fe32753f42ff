"""A privacy audit that anyone can run: how well can the production code's answers be told apart, on the worst data?

An attacker who knows everything but one record is given answers for two data sets that differ in that record, and
guesses which it was. How often he is right bounds the true privacy loss from below, whatever the package says of
itself. All data here are made up; nothing of this is used by a run on records of people.
"""

from dpmcmc.audit.bounds import Finding
from dpmcmc.audit.neighbours import QUERIES
from dpmcmc.audit.program import Effort, Report, audit
from dpmcmc.audit.runs import SAMPLERS

__all__ = ["QUERIES", "SAMPLERS", "Effort", "Finding", "Report", "audit"]
