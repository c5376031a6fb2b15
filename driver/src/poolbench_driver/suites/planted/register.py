"""The concepts of the planted suite in the object store."""

import pyarrow as pa

from poolbench.concepts import Concept, Neighbours
from poolbench.library.concepts import attach
from poolbench.storage.base import ObjectStore
from poolbench_corpora.own import revision_of
from poolbench_corpora.places.passages import TEXTS, concept_id, planted_passages
from poolbench_driver.suites.planted.signals import SIGNALS


def register(store: ObjectStore) -> None:
    """Add the concepts of the suite to the store, for all services. Outdated concepts are replaced."""
    library = attach(store)
    for name in TEXTS:
        passages = planted_passages(name)
        concept = _concept(name, passages)
        stored_concept = library.find(concept.id)
        if stored_concept is not None and stored_concept.corpus == concept.corpus:
            continue
        if stored_concept is not None:
            library.remove(concept.id)
        library.add(concept, passages)


def _concept(name: str, passages: pa.Table) -> Concept:
    signal = next(signal for signal in SIGNALS if signal.id == name)
    counts = passages["token_count"].to_pylist()
    return Concept(
        id=concept_id(name),
        family="own",
        summary=f"Planted suite: {signal.summary}.",
        definition=f"Planted suite: {signal.summary}.",
        construction="Pairs of passages that differ in the signal alone.",
        matched_pairs=True,
        neighbours=Neighbours(),
        token_window=(min(counts), max(counts)),
        min_source_domains=1,
        corpus=revision_of(passages),
    )
