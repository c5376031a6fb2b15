"""What every service adapter shares: claiming a task, reading inputs, committing outputs, errors, HTTP."""

from poolbench.runtime.service import Handler, Service, load_service
from poolbench.runtime.settings import ClusterSettings
from poolbench.runtime.taskio import TaskIO

__all__ = ["ClusterSettings", "Handler", "Service", "TaskIO", "load_service"]
