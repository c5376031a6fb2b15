"""A run's steered texts as a release: one Parquet file per concept, a dataset card and a manifest."""

from poolbench_driver.release.release import export_steered_outputs, releasable_concepts

__all__ = ["export_steered_outputs", "releasable_concepts"]
