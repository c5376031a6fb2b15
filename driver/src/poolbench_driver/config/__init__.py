"""The settings of a run: those that every suite has, those of suites that read passages of concepts, and budgets."""

from poolbench_driver.config.assignments import Assignment, read_assignments
from poolbench_driver.config.budgets import BUDGETS, Budget, limited
from poolbench_driver.config.concepts import NO_FOLDER, ConceptsConfig, CorpusConfig, SaeConfig, of_concepts
from poolbench_driver.config.run import RunConfig
from poolbench_driver.config.yaml_files import read_yaml

__all__ = [
    "BUDGETS",
    "NO_FOLDER",
    "Assignment",
    "Budget",
    "ConceptsConfig",
    "CorpusConfig",
    "RunConfig",
    "SaeConfig",
    "limited",
    "of_concepts",
    "read_assignments",
    "read_yaml",
]
