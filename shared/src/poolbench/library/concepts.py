"""Concepts of users in the object store: every process that opens the store knows them, without a restart.

A concept is two objects: `concepts/<id>/concept.json` has its definition, `concepts/<id>/<revision>.arrow` its
passages. The definition is written last and only if there is none.
"""

import re
from collections.abc import Iterable

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from poolbench.concepts import CONCEPTS, Concept
from poolbench.contracts.bounds import CONCEPT_PATTERN
from poolbench.contracts.keys import RESTRICTED_PREFIX
from poolbench.contracts.tables import PASSAGES
from poolbench.contracts.wire import CONCEPTS_FOLDER
from poolbench.errors import ConceptTakenError, ConfigError, IntegrityError, NotFoundError, shown
from poolbench.storage.artifacts import table_from_bytes, table_to_bytes
from poolbench.storage.base import ObjectStore

_DEFINITION, _DEFINITIONS = TypeAdapter(Concept), TypeAdapter(list[Concept])
_FILE = "concept.json"
_REVISION = "[0-9a-f]{16}"
_ATTACHED: "list[Library]" = []
#: Concepts of the run that this process reads, by id: the store may have lost them, or others of their names.
_RECALLED: dict[str, Concept] = {}


class Library:
    """The concepts that users have added to an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def find(self, name: str) -> Concept | None:
        """Return the concept with this id, or None if there is no such concept.

        Raise IntegrityError if it is damaged.
        """
        if not re.fullmatch(CONCEPT_PATTERN, name):
            return None
        try:
            concept = _DEFINITION.validate_json(self.store.get(_path(name, _FILE)))
        except NotFoundError:
            return None
        except (ValidationError, RecursionError):
            concept = None
        if concept is None or concept.id != name or not re.fullmatch(_REVISION, concept.corpus):
            raise IntegrityError(
                f"{_path(name, _FILE)} is damaged; `poolbench-driver concept rm {name}` removes the concept"
            )
        return concept

    def all(self) -> list[Concept]:
        """Return all concepts by id."""
        names = [info.path.split("/")[1] for info in self.store.list(_path()) if info.path.endswith(f"/{_FILE}")]
        return [concept for name in names if (concept := self.find(name)) is not None]

    def add(self, concept: Concept, passages: pa.Table) -> None:
        """Store a concept with its PASSAGES. `concept.corpus` is the revision of the passages.

        Raises:
            ConceptTakenError: A concept with this id is in the store or is built in.
            ConfigError: The id is not valid.
        """
        if not re.fullmatch(CONCEPT_PATTERN, concept.id):
            raise ConfigError(f"concept id {concept.id!r}: use 2 to 40 of a-z, 0-9 and _, a letter first")
        if concept.id in {built_in.id for built_in in CONCEPTS.all()}:
            raise ConceptTakenError(f"concept {concept.id} is built in; choose another name")
        if self.find(concept.id) is not None:
            raise ConceptTakenError(_taken(concept.id))
        self.store.put(_passages_path(concept), table_to_bytes(passages))
        definition = _DEFINITION.dump_json(concept, indent=1)
        if not self.store.put(_path(concept.id, _FILE), definition, if_absent=True):
            winner = self.find(concept.id)  # of another process, which took the name meanwhile
            if winner is not None and _passages_path(winner) != _passages_path(concept):
                self.store.delete(_passages_path(concept))
            raise ConceptTakenError(_taken(concept.id))

    def passages(self, concept: Concept) -> pa.Table:
        """Return the PASSAGES of a concept. Raise NotFoundError or IntegrityError if they are gone or damaged."""
        path = _passages_path(concept)
        try:
            table = table_from_bytes(self.store.get(path))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise IntegrityError(f"{path} is damaged ({error}); remove the concept and add it again") from None
        if table.schema != PASSAGES:
            raise IntegrityError(f"{path} holds no passages; remove the concept and add it again")
        return table

    def remove(self, name: str) -> None:
        """Remove a concept. Its definition is removed last. Artifacts that runs have made from its passages stay.

        Raise NotFoundError if the store has no such concept.
        """
        if not re.fullmatch(CONCEPT_PATTERN, name) or not self.store.exists(_path(name, _FILE)):
            here = ", ".join(concept.id for concept in self.all()) or "none"
            raise NotFoundError(f"the store has no concept {shown(name)}; it has {here}")
        for info in [*self.store.list(_path(name))]:
            if not info.path.endswith(f"/{_FILE}"):
                self.store.delete(info.path)
        self.store.delete(_path(name, _FILE))


def attach(store: ObjectStore) -> Library:
    """Let this process find the concepts of an object store by their ids. The last store that is attached counts."""
    library = Library(store)
    _ATTACHED[:] = [library]
    CONCEPTS.find = _find
    return library


def _find(name: str) -> Concept | None:
    return _RECALLED.get(name) or (_ATTACHED[0].find(name) if _ATTACHED else None)


def recall(definitions: bytes) -> None:
    """Let this process find the concepts that a run recorded, until the next call.

    Recorded concepts take precedence over the concepts of the store.

    Args:
        definitions: Return value of `definitions_of`, which is empty for a run without users' concepts.
    """
    _RECALLED.clear()
    _RECALLED.update((concept.id, concept) for concept in _DEFINITIONS.validate_json(definitions or b"[]"))
    CONCEPTS.find = _find


def definitions_of(names: Iterable[str]) -> bytes:
    """Return the definitions of all users' concepts among these concepts and their neighbours.

    Without such concepts, the result is empty.
    """
    measured = [CONCEPTS.get(name) for name in names]
    concept_by_name = {name: CONCEPTS.get(name) for concept in measured for name in (concept.id, *concept.neighbours)}
    user_concepts = [concept for concept in concept_by_name.values() if concept.corpus]
    return _DEFINITIONS.dump_json(user_concepts, indent=1) if user_concepts else b""


def own_passages(concept: Concept) -> pa.Table:
    """Return the PASSAGES of a concept of the attached store. Raise ConfigError before `attach`, or as `passages`."""
    if not _ATTACHED:
        raise ConfigError(f"concept {concept.id} lies in an object store, and this process has opened none")
    return _ATTACHED[0].passages(concept)


def _taken(name: str) -> str:
    return (
        f"the store has a concept {name} already; choose another name, or remove it with "
        f"`poolbench-driver concept rm {name}`"
    )


def _path(name: str = "", file: str = "") -> str:
    return f"{CONCEPTS_FOLDER}/{name}/{file}" if name else f"{CONCEPTS_FOLDER}/"


def _passages_path(concept: Concept) -> str:
    prefix = RESTRICTED_PREFIX if concept.sensitive else ""
    return _path(concept.id, f"{prefix}{concept.corpus}.arrow")
