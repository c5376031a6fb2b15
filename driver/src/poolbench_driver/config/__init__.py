"""The settings of a run: those that every suite has, and those of suites that read passages of concepts."""

from poolbench_driver.config.assignments import Assignment, read_assignments
from poolbench_driver.config.concepts import (
    NO_FOLDER,
    OF_STEERING,
    SCORERS,
    ConceptsConfig,
    CorpusConfig,
    SaeConfig,
    of_concepts,
    scorer_settings,
)
from poolbench_driver.config.run import DEFAULT_SUITE, RunConfig

__all__ = [
    "DEFAULT_SUITE",
    "NO_FOLDER",
    "OF_STEERING",
    "SCORERS",
    "Assignment",
    "ConceptsConfig",
    "CorpusConfig",
    "RunConfig",
    "SaeConfig",
    "of_concepts",
    "read_assignments",
    "scorer_settings",
]
