"""An official table beside a run: its cells paired with ours, and the settings of the run that repeats it."""

from poolbench_driver.suites.poolbench.reproduction.cells import ComparedCell, RunRows, compare_cells
from poolbench_driver.suites.poolbench.reproduction.render import cell_rows, check_rows, disagreement_rows, summary_rows
from poolbench_driver.suites.poolbench.reproduction.settings import num_steered_texts, published_settings

__all__ = [
    "ComparedCell",
    "RunRows",
    "cell_rows",
    "check_rows",
    "compare_cells",
    "disagreement_rows",
    "num_steered_texts",
    "published_settings",
    "summary_rows",
]
