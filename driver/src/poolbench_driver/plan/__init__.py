"""The plan: pure functions from configuration and present artifacts to frozen stages of keys and tasks."""

from poolbench_driver.plan.plan import PoolBenchPlan, SteeringStages, make_plan
from poolbench_driver.plan.scope import Scope
from poolbench_driver.plan.stage import Plan, Stage
from poolbench_driver.plan.steering import NULLS, UNSTEERED

__all__ = ["NULLS", "UNSTEERED", "Plan", "PoolBenchPlan", "Scope", "Stage", "SteeringStages", "make_plan"]
