"""Finds concepts by name: the project's own and those of entry points."""

from poolbench.concepts.concept import Concept
from poolbench.errors import UnknownConceptError
from poolbench.registry import Registry

ENTRY_POINT_GROUP = "poolbench.concepts"
"""An entry point of this group names a `Concept`, or a function without arguments that returns one."""

CONCEPTS = Registry(
    "concept",
    Concept,
    group=ENTRY_POINT_GROUP,
    built_in=("poolbench.concepts.built_in",),
    unknown=UnknownConceptError,
)


def get_concept(name: str) -> Concept:
    """The concept of that id.

    Raises:
        UnknownConceptError: With the nearest valid names.
    """
    return CONCEPTS.get(name)


def list_concepts() -> list[Concept]:
    """All concepts, ordered by id."""
    return sorted(CONCEPTS.all(), key=lambda concept: concept.id)
