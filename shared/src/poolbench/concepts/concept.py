"""Concepts: their definition and registry, and the one rule for sensitive ones.

Keys of artifacts of sensitive concepts begin with `restricted.`. Before passages, vectors, directions, texts or
scorers are exported, shown on a page or answered over HTTP, `refuse_restricted` is called with their keys; of passages
that have no key yet, `refuse_sensitive` with their concepts. POOLBENCH_SENSITIVE lifts the rule. Scores and figures are
public.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from poolbench.contracts.keys import is_restricted
from poolbench.errors import ConfigError, RestrictedError, UnknownConceptError
from poolbench.registry import Registry
from poolbench.settings import PlaceSettings

Family = Literal["sparse_lexical", "dense_lexical", "syntactic_discourse", "register", "semantic_abstract", "own"]


@dataclass(frozen=True)
class Neighbours:
    """The two neighbours that D3 compares a concept with. A user's concept may have fewer. Iterating yields ids."""

    linguistically_distant: str | None = None
    linguistically_close: str | None = None

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in (self.linguistically_distant, self.linguistically_close) if name is not None])


@validated(frozen=True, config=ConfigDict(extra="forbid"))
class Concept:
    """A concept: its definition, how its passages are made, and its neighbours."""

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
    instruction: str = ""  # what a chat model is asked for as a baseline of steering; empty: its definition
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


def stay(keys: Iterable[str]) -> bool:
    """Return whether any of these artifacts is restricted while the operator does not allow its export."""
    return any(map(is_restricted, keys)) and not PlaceSettings.load().sensitive


def refuse_restricted(what: str, keys: Iterable[str]) -> None:
    """Raise RestrictedError if any of these artifacts must not be exported. The message calls the artifacts `what`."""
    if stay(keys):
        raise _refusal(what)


def refuse_sensitive(concepts: Iterable[str]) -> None:
    """Raise RestrictedError if any of these concepts is sensitive, or UnknownConceptError if a concept is unknown."""
    if names := withheld(concepts):
        raise _refusal(", ".join(names))


def withheld(concepts: Iterable[str]) -> list[str]:
    """Return the sensitive concepts among these, or [] if the operator allows their export."""
    sensitive = [name for name in dict.fromkeys(concepts) if CONCEPTS.get(name).sensitive]
    return [] if PlaceSettings.load().sensitive else sensitive


def _refusal(what: str) -> RestrictedError:
    return RestrictedError(
        f"{what}: passages, vectors, texts and scorers of sensitive concepts stay in the store; leave it out, or allow "
        f"it with {PlaceSettings.variable('sensitive')}=true"
    )
