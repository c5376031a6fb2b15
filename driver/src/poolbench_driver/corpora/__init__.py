"""Passages and prompts: their sources, the local steps that store them, and corpora as folders."""

from poolbench_driver.corpora.sources import LocalStep

__all__ = ["LocalStep"]
