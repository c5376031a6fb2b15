"""Passages and prompts: where they come from, the local steps that store them, and corpora as folders."""

from poolbench_driver.corpora.sources import absent_concepts, dataset_identity, dataset_revision
from poolbench_driver.corpora.steps import LocalStep, at_most, calibration_step, openings_step, passages_step

__all__ = [
    "LocalStep",
    "absent_concepts",
    "at_most",
    "calibration_step",
    "dataset_identity",
    "dataset_revision",
    "openings_step",
    "passages_step",
]
