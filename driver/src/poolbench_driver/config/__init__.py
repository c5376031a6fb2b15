"""The settings of a run: those that every suite has, and those of suites that read passages of concepts."""

from poolbench_driver.config.assignments import Assignment, read_assignments
from poolbench_driver.config.concepts import (
    NO_FOLDER,
    OF_STEERING,
    ConceptsConfig,
    CorpusConfig,
    SaeConfig,
    of_concepts,
)
from poolbench_driver.config.run import RunConfig

__all__ = [
    "NO_FOLDER",
    "OF_STEERING",
    "Assignment",
    "ConceptsConfig",
    "CorpusConfig",
    "RunConfig",
    "SaeConfig",
    "of_concepts",
    "read_assignments",
]
