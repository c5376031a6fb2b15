"""Sections of a configuration: their base class, what a user says about a concept, and how YAML is read."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from poolbench.contracts.bounds import CONCEPT_PATTERN, Flag, Label, Name, Seed
from poolbench.errors import ConfigError

#: Seed words, and triggers, of one concept.
MAX_WORDS = 1_000
_MAX_VALUES = 100_000
_MAX_YAML = 1_000_000  # characters of a file of settings


class StrictModel(BaseModel):
    """A configuration section: unknown keys are errors, values never change.

    A string below a field is its description, which `run --suite NAME --help` shows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ConceptSettings(StrictModel):
    """The settings of one concept.

    Attributes:
        id: Name for `--concepts`.
        definition: What makes a passage positive.
        neighbours: Concepts of D3, the linguistically distant one first; none, one or two.
        seed_words: Words that no negative should contain.
        triggers: Lemmas that express the concept, for strategies that use a lexicon of the concept.
        sensitive: Whether its passages, vectors and texts are restricted.
        licence: Licence of the texts that name none.
        seed: Seed of the split into train, test and scorer.
    """

    id: str = Field(min_length=2, max_length=40, pattern=CONCEPT_PATTERN)
    definition: Label = ""
    neighbours: tuple[Name, ...] = Field((), max_length=2)
    seed_words: tuple[Name, ...] = Field((), max_length=MAX_WORDS)
    triggers: tuple[Name, ...] = Field((), max_length=MAX_WORDS)
    sensitive: Flag = False
    licence: Label = ""
    seed: Seed = 0


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Return the settings in a YAML file by name.

    Raises:
        ConfigError: The file is not YAML, is not UTF-8, is too large or does not hold a mapping. The message calls the
            file `what`.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_YAML + 1)
        if len(text) > _MAX_YAML:
            raise ConfigError(f"{what} {path}: settings may have at most {_MAX_YAML:,} characters")
        values = yaml.safe_load(text) or {}
        _require_few_values(values)
    except RecursionError:
        raise ConfigError(f"{what} {path}: too many levels") from None
    except (OSError, ValueError, yaml.YAMLError) as error:  # the second for dates and numbers that cannot be
        raise ConfigError(f"{what} {path}: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{what} {path}: expected a mapping of settings, got {type(values).__name__}")
    return {str(field): value for field, value in values.items()}


def _require_few_values(root: Any) -> None:
    """Raise ValueError for more than `_MAX_VALUES` values. A few lines of aliases can stand for billions."""
    todo, seen = [root], 0
    while todo:
        value = todo.pop()
        seen += 1
        if seen > _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES:,} values, aliases included")
        if isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            todo += value
