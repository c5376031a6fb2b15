"""The contracts between driver and services: keys, tables, tasks and results. All else stands on them."""

from poolbench.contracts.keys import derive_key, is_restricted
from poolbench.contracts.results import RESULT_SCHEMA, cell_id, results_digest
from poolbench.contracts.tasks import STEP_VERSIONS, Task

__all__ = ["RESULT_SCHEMA", "STEP_VERSIONS", "Task", "cell_id", "derive_key", "is_restricted", "results_digest"]
