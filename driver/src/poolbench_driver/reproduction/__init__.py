"""An official table beside a run: its cells paired with ours, and the settings of the run that repeats it."""

from poolbench_driver.reproduction.cells import ComparedCell, RunRows, compare_cells
from poolbench_driver.reproduction.needs import GPU_DEVICE, IMPORT_PUBLISHED, NO_FOLDER, Need, hub_cache, needs_of
from poolbench_driver.reproduction.render import cell_rows, check_rows, disagreement_rows, summary_rows
from poolbench_driver.reproduction.settings import num_steered_texts, other_settings, published_settings

__all__ = [
    "GPU_DEVICE",
    "IMPORT_PUBLISHED",
    "NO_FOLDER",
    "ComparedCell",
    "Need",
    "RunRows",
    "cell_rows",
    "check_rows",
    "compare_cells",
    "disagreement_rows",
    "hub_cache",
    "needs_of",
    "num_steered_texts",
    "other_settings",
    "published_settings",
    "summary_rows",
]
