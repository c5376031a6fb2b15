"""The settings of a run: those that every suite has, and those of suites that read passages of concepts."""

from poolbench_driver.config.assignments import Assignment, read_assignments
from poolbench_driver.config.concepts import (
    NO_FOLDER,
    SCORERS,
    ConceptsConfig,
    CorpusConfig,
    CorpusSource,
    PassagesSource,
    ReadingConfig,
    SaeConfig,
    as_concepts,
    of_concepts,
    scorer_settings,
)
from poolbench_driver.config.run import DEFAULT_SUITE, SIZES_OF_PASSAGES, RunConfig

__all__ = [
    "DEFAULT_SUITE",
    "NO_FOLDER",
    "SCORERS",
    "SIZES_OF_PASSAGES",
    "Assignment",
    "ConceptsConfig",
    "CorpusConfig",
    "CorpusSource",
    "PassagesSource",
    "ReadingConfig",
    "RunConfig",
    "SaeConfig",
    "as_concepts",
    "of_concepts",
    "read_assignments",
    "scorer_settings",
]
