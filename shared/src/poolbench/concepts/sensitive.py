"""What may leave the store: everything but what belongs to sensitive concepts."""

from collections.abc import Iterable

from poolbench.concepts.registry import CONCEPTS
from poolbench.contracts.keys import is_restricted
from poolbench.errors import RestrictedError


def require_exportable(concepts: Iterable[str], keys: Iterable[str] = ()) -> None:
    """Refuses an export, or an answer to a request, that would hold something of a sensitive concept.

    Args:
        concepts: Ids of the concepts whose passages, vectors or texts are asked for.
        keys: Artifacts that are read for it; a key is restricted by anything that it was made from.

    Raises:
        RestrictedError: Naming the sensitive ones.
        UnknownConceptError: With the nearest valid names.
    """
    sensitive = [name for name in dict.fromkeys(concepts) if CONCEPTS.get(name).sensitive]
    if sensitive:
        what = "a sensitive concept" if len(sensitive) == 1 else "sensitive concepts"
        raise RestrictedError(
            f"{', '.join(sensitive)}: {what}, of which nothing but scores leaves the store; leave it out"
        )
    if restricted := sorted(filter(is_restricted, keys)):
        raise RestrictedError(f"{restricted[0]} was made from passages of a sensitive concept and stays in the store")


def exportable(concepts: Iterable[str]) -> list[str]:
    """Those of the concepts that may be exported, for an export that was asked for without naming any."""
    return [name for name in dict.fromkeys(concepts) if not CONCEPTS.get(name).sensitive]
