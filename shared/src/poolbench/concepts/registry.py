"""The registry of concepts: the project's own and those of entry points."""

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
    by_id=True,
)
