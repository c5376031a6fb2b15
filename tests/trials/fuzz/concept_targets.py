"""Concepts of users in the object store: their definitions under fuzz."""

import json
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.trials.fuzz.mutate import hostile_name, mutated_json
from tests.trials.fuzz.target import Target
from tests.trials.hostile.values import encode

from poolbench.concepts import Concept, Neighbours
from poolbench.errors import PoolbenchError
from poolbench.library import Library
from poolbench.storage.folder import FolderStore
from poolbench_corpora.own import OwnTexts, Text, build_own, revision_of

_MINE = "concepts/mine/concept.json"


@cache
def _stored() -> tuple[bytes, bytes]:
    """Return the definition and the passages of a concept, as the store has them."""
    texts = OwnTexts(*([Text(f"Text {n} of class {label}.", "") for n in range(12)] for label in (1, 0)))
    passages = build_own("mine", texts)
    fields = {"summary": "Mine.", "definition": "It is mine.", "construction": "By hand.", "matched_pairs": False}
    neighbours = Neighbours("hedging", "narrative")
    concept = Concept(id="mine", family="own", neighbours=neighbours, corpus=revision_of(passages), **fields)  # type: ignore[arg-type]
    with TemporaryDirectory() as folder:
        library = Library(FolderStore(Path(folder)))
        library.add(concept, passages)
        return library.store.get(_MINE), library.store.get(f"concepts/mine/{concept.corpus}.arrow")


def _make_definition(rng: random.Random) -> bytes:
    """Definitions that are damaged, and whole ones whose revision, id or neighbours lead elsewhere."""
    if rng.random() < 0.6:
        return mutated_json(_stored()[0], rng)
    fields = json.loads(_stored()[0])
    name = hostile_name(rng)
    change = {"corpus": name, "id": name, "sensitive": True, "neighbours": {"linguistically_distant": name}}
    chosen = rng.choice(sorted(change))
    try:
        return json.dumps({**fields, chosen: change[chosen]}).encode()
    except ValueError:  # a lone surrogate
        return encode(fields)


def _read_definition(data: bytes, folder: Path) -> None:
    """Find the concept as a service does, read its passages, list all, and remove it."""
    library = Library(FolderStore(folder))
    (folder / _MINE).parent.mkdir(parents=True)
    (folder / _MINE).write_bytes(data)
    (folder / f"concepts/mine/{json.loads(_stored()[0])['corpus']}.arrow").write_bytes(_stored()[1])
    for read in (library.all, lambda: _passages_of(library), lambda: library.remove("mine")):
        try:
            read()
        except PoolbenchError as error:
            assert str(error)


def _passages_of(library: Library) -> None:
    concept = library.find("mine")
    if concept is not None:
        library.passages(concept)


TARGETS = (Target("stored concept", _make_definition, _read_definition),)
