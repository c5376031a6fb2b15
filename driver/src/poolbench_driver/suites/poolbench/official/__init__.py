"""The official result tables of the reference."""

from poolbench_driver.suites.poolbench.official.tables import (
    TABLES,
    Cell,
    Column,
    OfficialModel,
    OfficialStrategy,
    OfficialTable,
    official_table,
)

__all__ = [
    "TABLES",
    "Cell",
    "Column",
    "OfficialModel",
    "OfficialStrategy",
    "OfficialTable",
    "official_table",
]
