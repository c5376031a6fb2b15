"""What a concept is: its definition, how its corpus is built, and what it is compared with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from poolbench.errors import ConfigError

Family = Literal["sparse_lexical", "dense_lexical", "syntactic_discourse", "register", "semantic_abstract"]


@dataclass(frozen=True)
class Neighbours:
    """The two concepts that D3 compares a concept with."""

    linguistically_distant: str
    linguistically_close: str

    def __iter__(self) -> Any:
        return iter((self.linguistically_distant, self.linguistically_close))


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class Concept:
    """One concept of the registry.

    Attributes:
        summary: One line for listings.
        definition: What makes a passage positive.
        construction: How negatives are made.
        matched_pairs: Whether each negative is a rewrite of a positive.
        seed_words: Words and phrases that select positives and that no negative may contain.
        triggers: Lemmas that express the concept, for strategies marked `uses_concept_lexicon`.
        neighbours: Concepts of D3.
        sensitive: Whether its passages, vectors and texts are restricted.
        token_window: Smallest and largest number of tokens of a passage of the published corpus.
        min_source_domains: How many source domains its corpus needs.
    """

    id: str
    family: Family
    summary: str
    definition: str
    construction: str
    matched_pairs: bool
    neighbours: Neighbours
    seed_words: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    sensitive: bool = False
    token_window: tuple[int, int] = (300, 500)
    min_source_domains: int = 3
    version: int = 1
    reference: str = ""


_CONCEPT = TypeAdapter(Concept)


def parse_concept(text: str, origin: str) -> Concept:
    """A concept from YAML.

    Raises:
        ConfigError: Naming the file and each wrong field.
    """
    try:
        return _CONCEPT.validate_python(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError(f"concept file {origin} is not YAML: {error}") from None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in error.errors()]
        raise ConfigError(f"concept file {origin}: {'; '.join(lines)}") from None


def load_concept(path: Path) -> Concept:
    """A concept from a YAML file; for third parties that ship files of their own."""
    return parse_concept(path.read_text("utf-8"), str(path))
