"""From a budget to draws: the plan of a run, and the run."""

from dpmcmc.inference.curve import PlanCurve, plan_curve
from dpmcmc.inference.laplace_plan import LaplacePlan
from dpmcmc.inference.planning import Plan, plan
from dpmcmc.inference.sampling import resume, sample

__all__ = ["LaplacePlan", "Plan", "PlanCurve", "plan", "plan_curve", "resume", "sample"]
