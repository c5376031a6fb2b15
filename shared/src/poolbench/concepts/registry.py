"""Finds concepts by name: the project's own and those of entry points."""

from functools import cache
from importlib.metadata import entry_points
from importlib.resources import files

from poolbench.concepts.concept import Concept, parse_concept
from poolbench.errors import ConfigError, UnknownConceptError

ENTRY_POINT_GROUP = "poolbench.concepts"
"""An entry point of this group names a `Concept`, or a function without arguments that returns one."""


def get_concept(name: str) -> Concept:
    """The concept of that id.

    Raises:
        UnknownConceptError: With the nearest valid names.
    """
    concepts = _registry()
    if name not in concepts:
        raise UnknownConceptError(name, concepts)
    return concepts[name]


def list_concepts() -> list[Concept]:
    """All concepts, ordered by id."""
    return [concept for _, concept in sorted(_registry().items())]


@cache
def _registry() -> dict[str, Concept]:
    folder = files("poolbench.concepts").joinpath("definitions")
    found: dict[str, Concept] = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            _register(found, parse_concept(entry.read_text("utf-8"), entry.name))
    for point in entry_points(group=ENTRY_POINT_GROUP):
        loaded = point.load()
        concept = loaded() if callable(loaded) and not isinstance(loaded, Concept) else loaded
        if not isinstance(concept, Concept):
            raise ConfigError(f"entry point {point.value} of {ENTRY_POINT_GROUP} is not a Concept: {concept!r}")
        _register(found, concept)
    return found


def _register(found: dict[str, Concept], concept: Concept) -> None:
    if concept.id in found:
        raise ConfigError(f"concept {concept.id!r} is registered twice; rename one of the two")
    found[concept.id] = concept
