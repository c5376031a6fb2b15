"""Shared by every service adapter: claiming a task, reading inputs, committing outputs, errors, HTTP."""

from poolbench.runtime.settings import ClusterSettings
from poolbench.runtime.taskio import TaskIO

__all__ = ["ClusterSettings", "TaskIO"]
