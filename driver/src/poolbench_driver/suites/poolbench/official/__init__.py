"""The official result tables of the reference, and their arithmetic."""

from poolbench_driver.suites.poolbench.official.checks import check_table, d1_board, same_cells
from poolbench_driver.suites.poolbench.official.tables import (
    TABLES,
    Cell,
    Column,
    OfficialModel,
    OfficialStrategy,
    OfficialTable,
    official_table,
)
from poolbench_driver.suites.poolbench.official.verdict import Check, Disagreement, Meaning

__all__ = [
    "TABLES",
    "Cell",
    "Check",
    "Column",
    "Disagreement",
    "Meaning",
    "OfficialModel",
    "OfficialStrategy",
    "OfficialTable",
    "check_table",
    "d1_board",
    "official_table",
    "same_cells",
]
