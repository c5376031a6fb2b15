"""Concepts: their definition and registry."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from poolbench.errors import ConfigError, UnknownConceptError
from poolbench.registry import Registry

Family = Literal["sparse_lexical", "dense_lexical", "syntactic_discourse", "register", "semantic_abstract", "own"]


@dataclass(frozen=True)
class Neighbours:
    """The two concepts that D3 compares a concept with; a concept of a user may name none or one."""

    linguistically_distant: str | None = None
    linguistically_close: str | None = None

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in (self.linguistically_distant, self.linguistically_close) if name is not None])


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class Concept:
    """One concept of the registry."""

    id: str
    family: Family
    summary: str  # one line for listings
    definition: str  # what makes a passage positive
    construction: str  # how negatives are made
    matched_pairs: bool  # whether each negative is a rewrite of a positive
    neighbours: Neighbours  # concepts of D3
    seed_words: tuple[str, ...] = ()  # words and phrases that select positives and that no negative may contain
    triggers: tuple[str, ...] = ()  # lemmas that express the concept, for strategies marked `uses_concept_lexicon`
    sensitive: bool = False  # whether its passages, vectors and texts are restricted
    token_window: tuple[int, int] = (300, 500)  # smallest and largest number of tokens of a published passage
    min_source_domains: int = 3  # how many source domains its corpus needs
    version: int = 1
    reference: str = ""
    corpus: str = ""  # revision of the passages that the concept brings; empty: they come from the run's corpus


_CONCEPT = TypeAdapter(Concept)


def parse_concept(text: str, origin: str) -> Concept:
    """Parse a concept from YAML. Raise ConfigError with the file and each wrong field."""
    try:
        return _CONCEPT.validate_python(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError(f"concept file {origin} is not YAML: {error}") from None
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" for issue in error.errors()]
        raise ConfigError(f"concept file {origin}: {'; '.join(lines)}") from None


ENTRY_POINT_GROUP = "poolbench.concepts"
"""An entry point of this group names a `Concept`, or a function without arguments that returns one."""

CONCEPTS = Registry(
    "concept",
    Concept,
    group=ENTRY_POINT_GROUP,
    built_in=("poolbench.concepts.built_in",),
    unknown=UnknownConceptError,
    by_id=True,
)
