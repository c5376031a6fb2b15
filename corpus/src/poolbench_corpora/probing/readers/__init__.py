"""Readers of probing sets: each yields the samples of one kind of source."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path

from poolbench.errors import ConfigError, UnknownNameError
from poolbench_corpora.probing.readers import (
    comparisons,
    grammar,
    gum,
    pairs,
    rhetoric,
    scope,
    sentences,
    tables,
    treebank,
)
from poolbench_corpora.probing.samples import Note, ProbingSet, Sample


@dataclass(frozen=True)
class Reader:
    """How the samples of a set are read, and the members of a family if it reads one."""

    read: Callable[..., Iterator[Sample | Note]]  # from the definition, the archives, and the definition's parameters
    archive: str | None = None  # the real-text archive that it reads
    members: Callable[[Path | None], list[str]] | None = None


READERS: dict[str, Reader] = {
    "grammar": Reader(grammar.read_grammar),
    "blimp": Reader(pairs.read_blimp, pairs.ARCHIVE, pairs.blimp_members),
    "zorro": Reader(pairs.read_zorro, pairs.ARCHIVE, pairs.zorro_members),
    "words": Reader(treebank.read_words, treebank.ARCHIVE),
    "sentences": Reader(sentences.read_sentences, treebank.ARCHIVE),
    "next_sentences": Reader(sentences.read_next_sentences, treebank.ARCHIVE),
    "entities": Reader(gum.read_entities, treebank.ARCHIVE),
    "coreference": Reader(gum.read_coreference, treebank.ARCHIVE),
    "bridging": Reader(gum.read_bridging, treebank.ARCHIVE),
    "relations": Reader(gum.read_relations, treebank.ARCHIVE),
    "order": Reader(gum.read_order, treebank.ARCHIVE),
    "rhetoric": Reader(rhetoric.read_rhetoric, treebank.ARCHIVE),
    "scope": Reader(scope.read_scope, treebank.ARCHIVE),
    "comparisons": Reader(comparisons.read_comparisons),
    "table": Reader(tables.read_table),
    "senteval": Reader(tables.read_senteval),
}
FAMILIES = frozenset(name for name, reader in READERS.items() if reader.members)


def samples_of(definition: ProbingSet, archives: Path | None = None) -> Iterator[Sample | Note]:
    """Return the samples of a set, and notes on what its reader leaves out.

    Raises:
        UnknownNameError: There is no such reader.
        ConfigError: The definition has other parameters than its reader.
        CorpusError: Then or later: the source cannot be read.
    """
    if definition.reader not in READERS:
        raise UnknownNameError("reader of probing sets", definition.reader, READERS)
    read = READERS[definition.reader].read
    try:
        signature(read).bind(definition, archives, **definition.parameters)
    except TypeError as error:
        raise ConfigError(f"probing set {definition.id!r}, reader {definition.reader!r}: {error}") from None
    return read(definition, archives, **definition.parameters)
