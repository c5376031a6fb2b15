"""Readers of the archives: each yields the samples of one kind of source."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from recipes.probing_sets.readers import comparisons, gum, pairs, rhetoric, scope, sentences, treebank

from poolbench_corpora.probing.readers import Read

_READERS: dict[str, Read] = {
    "blimp": pairs.read_blimp,
    "zorro": pairs.read_zorro,
    "words": treebank.read_words,
    "sentences": sentences.read_sentences,
    "next_sentences": sentences.read_next_sentences,
    "entities": gum.read_entities,
    "coreference": gum.read_coreference,
    "bridging": gum.read_bridging,
    "relations": gum.read_relations,
    "order": gum.read_order,
    "rhetoric": rhetoric.read_rhetoric,
    "scope": scope.read_scope,
    "comparisons": comparisons.read_comparisons,
}
MEMBERS: dict[str, Callable[[Path | None], list[str]]] = {
    "blimp": pairs.blimp_members,
    "zorro": pairs.zorro_members,
}
"""What lists the members of a family, by its reader."""


def readers(archives: Path | None) -> Mapping[str, Read]:
    """Return the readers of a folder of archives by name; without one, of POOLBENCH_REAL_TEXT."""
    return {name: partial(read, archives=archives) for name, read in _READERS.items()}
