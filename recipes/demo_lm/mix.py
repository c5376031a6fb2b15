"""Training and held-out texts of the demo language model."""

import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recipes.demo_lm.carried import carried_documents, carriers
from recipes.passages.documents import SOURCES, Document, read_documents

from poolbench_corpora.partition import document_of, split_of
from poolbench_corpora.planted import lm_documents
from poolbench_corpora.planted.signals import planted_concepts

CAP_BYTES = 6_000_000
CAPS_BYTES = {"novels": 20_000_000}
HELD_OUT_PERCENT = 4
# The Manually Annotated Sub-Corpus mixes licences; everything else that is permissive is used.
EXCLUDED = frozenset({"masc"})
# The concepts of the default run are met twice as often, so that steering has a direction to move.
EMPHASISED = ("causation", "contrast", "conditionality", "negation_density")
NUM_PLAIN = 3


@dataclass(frozen=True)
class Mix:
    """Training and held-out texts of one kind (real or planted), with the bytes each source gives."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    source_bytes: dict[str, int]


def is_held_out(doc_id: str) -> bool:
    """Return whether a document of the `lm` share is held out; parts follow their document."""
    digest = hashlib.sha256(f"held-out:{document_of(doc_id)}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < HELD_OUT_PERCENT


def _share(documents: Sequence[Document], cap_bytes: int, seed: int) -> list[Document]:
    """Return the `lm` documents of one source in a shuffled order, up to the cap."""
    candidates = [document for document in documents if split_of(document.doc_id) == "lm"]
    random.Random(seed).shuffle(candidates)
    share: list[Document] = []
    for document in candidates:
        cap_bytes -= len(document.text.encode())
        if cap_bytes < 0:
            break
        share.append(document)
    return share


def _without_ends(documents: Iterable[Document]) -> Iterator[Document]:
    """Cut the last 4 % of novels, which no model is trained on.

    Novels are few and long, so none is held out whole. Their ends are not judged on either, because short
    sentences of whole novels are carriers.
    """
    for document in documents:
        cut = document.text.rfind("\n\n", 0, int(len(document.text) * (1 - HELD_OUT_PERCENT / 100)))
        yield replace(document, text=document.text[:cut])


def real_mix(archives: str | Path | None, seed: int) -> Mix:
    """Return permissive real text of the `lm` share, each source under its cap."""
    train: list[str] = []
    held_out: list[str] = []
    source_bytes: dict[str, int] = {}
    for source in SOURCES.values():
        if not source.permissive or source.name in EXCLUDED:
            continue
        documents = _share(read_documents(source.name, archives), CAPS_BYTES.get(source.name, CAP_BYTES), seed)
        if source.name == "novels":
            documents = list(_without_ends(documents))
        kept_out = [] if source.name == "novels" else [d for d in documents if is_held_out(d.doc_id)]
        train_documents = [document for document in documents if document not in kept_out]
        train += [document.text for document in train_documents]
        held_out += [document.text for document in kept_out]
        source_bytes[source.name] = sum(len(document.text.encode()) for document in train_documents)
    return Mix(tuple(train), tuple(held_out), source_bytes)


def planted_mix(num_documents: int, seed: int) -> Mix:
    """Return planted text for the language model (its grammar shares no carrier with the corpora)."""
    cycle = (*planted_concepts(), *EMPHASISED, *[None] * NUM_PLAIN)
    documents = list(lm_documents(seed, num_documents, cycle))
    held_out = [document for document in documents if is_held_out(document.doc_id)]
    train = [document for document in documents if not is_held_out(document.doc_id)]
    num_bytes = sum(len(document.text.encode()) for document in train)
    return Mix(
        tuple(document.text for document in train),
        tuple(document.text for document in held_out),
        {"planted-lm": num_bytes},
    )


def carried_mix(archives: str | Path | None, num_documents: int, seed: int) -> Mix:
    """Return planted markers on short real sentences; a held-out document gives held-out carriers."""
    parts: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
    for source in SOURCES.values():
        if not source.permissive or source.name in EXCLUDED:
            continue
        documents = _share(read_documents(source.name, archives), CAPS_BYTES.get(source.name, CAP_BYTES), seed)
        for document in documents:
            parts[is_held_out(document.doc_id)].append((document.doc_id, document.text))
    texts = {
        held_out: tuple(
            text for _, text in carried_documents(tuple(carriers(part)), _held_out_part(num_documents, held_out), seed)
        )
        for held_out, part in parts.items()
    }
    num_bytes = sum(len(text.encode()) for text in texts[False])
    return Mix(texts[False], texts[True], {"planted on real carriers": num_bytes})


def _held_out_part(num_documents: int, held_out: bool) -> int:
    part = num_documents * HELD_OUT_PERCENT // 100
    return part if held_out else num_documents - part
