"""What changed between two runs, paired by cell."""

from poolbench_driver.comparison.changes import RunChanges, compare_runs
from poolbench_driver.comparison.pairing import ACROSS, Pairing, join_rows, pair_cells, read_results
from poolbench_driver.comparison.render import as_markdown, as_sentence, as_tables

__all__ = [
    "ACROSS",
    "Pairing",
    "RunChanges",
    "as_markdown",
    "as_sentence",
    "as_tables",
    "compare_runs",
    "join_rows",
    "pair_cells",
    "read_results",
]
