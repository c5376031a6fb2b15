"""From artifacts to the tables of a run: rows by metric, ranks, curves and scores."""

from poolbench_driver.assemble.tables import assemble, why_empty

__all__ = ["assemble", "why_empty"]
