"""Import published scorers, one request per concept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolbench.concepts import CONCEPTS, withheld
from poolbench.errors import InputError
from poolbench_driver.cluster.services import ServiceError, Services

LABEL_NEEDED = "label_needed"

#: From the service's question to the label that means the concept.
Ask = Callable[[str], str]


@dataclass(frozen=True)
class Imported:
    """The result for one concept's scorer; `error` if it failed."""

    concept: str
    answer: dict[str, Any]
    error: str | None = None


def concepts_at(source: str, concepts: str | None) -> list[str]:
    """Return the named concepts, else those with a subfolder in a local folder; raise InputError without any."""
    if concepts is not None:
        return [CONCEPTS.get(name.strip()).id for name in concepts.split(",") if name.strip()]
    concept_ids = [one.id for one in CONCEPTS.all() if (Path(source) / one.id / "config.json").is_file()]
    if not concept_ids:
        raise InputError(f"{source} is not a folder with one folder per concept; name the concepts with --concepts a,b")
    sensitive = withheld(concept_ids)
    return [name for name in concept_ids if name not in sensitive]


def import_scorers(
    services: Services, concepts: Sequence[str], settings: dict[str, Any], ask: Ask | None
) -> Iterator[Imported]:
    """Import one scorer after the other; report failures and go on with the rest.

    Args:
        settings: Fields of the service's request besides the concept.
        ask: Asks a person for the label that means a concept, if the service needs it; None fails.
    """
    for concept in concepts:
        try:
            yield Imported(concept, _import(services, {**settings, "concept": concept}, ask))
        except ServiceError as error:
            yield Imported(concept, {}, str(error))


def _import(services: Services, body: dict[str, Any], ask: Ask | None) -> dict[str, Any]:
    try:
        return services.post("scorer", "import", body)
    except ServiceError as error:
        if error.code != LABEL_NEEDED or ask is None:
            raise
        return services.post("scorer", "import", {**body, "positive_label": ask(str(error))})
