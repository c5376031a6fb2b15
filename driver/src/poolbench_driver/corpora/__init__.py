"""Passages and prompts: their sources, the local steps that store them, and corpora as folders."""

from poolbench_driver.corpora.sources import (
    LocalStep,
    absent_concepts,
    at_most,
    calibration_step,
    dataset_identity,
    dataset_revision,
    openings_step,
    passages_step,
)

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
