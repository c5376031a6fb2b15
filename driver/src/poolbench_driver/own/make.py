"""From a definition to a concept with passages, and what is to be said about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from poolbench.concepts import CONCEPTS, Concept, Neighbours
from poolbench.corpora.own import OwnTexts, Remark, Text, build_own, read_pairs, read_texts, review, revision_of
from poolbench.corpora.real.rewriting import REWRITES
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench_driver.own.definition import Definition


@dataclass(frozen=True)
class Made:
    """A concept that is ready to be registered."""

    concept: Concept
    passages: pa.Table  # PASSAGES
    remarks: Sequence[Remark]

    @property
    def usable(self) -> bool:
        """Return whether anything can be measured with it."""
        return all(remark.level != "error" for remark in self.remarks)

    def sizes(self) -> list[dict[str, object]]:
        """Return the number of passages and documents by split and class."""
        rows = self.passages.select(["split", "label", "doc_id"]).to_pylist()
        found: list[dict[str, object]] = []
        for split in ("train", "test", "scorer"):
            own = [row for row in rows if row["split"] == split]
            positives = sum(row["label"] for row in own)
            found.append(
                {
                    "split": split,
                    "positives": positives,
                    "negatives": len(own) - positives,
                    "documents": len({row["doc_id"] for row in own}),
                }
            )
        return found


def make(definition: Definition) -> Made:
    """Read the files of a definition, split and check them.

    Raises:
        ConfigError: A neighbour or rewriter does not exist, or no texts are named.
        CorpusError: A file is malformed; the message names file and line.
    """
    neighbours = _neighbours(definition)
    texts = _texts(definition)
    passages = build_own(definition.id, texts, seed=definition.seed)
    counts = passages["token_count"].to_pylist()
    concept = Concept(
        id=definition.id,
        family="own",
        summary=definition.definition.partition(". ")[0] or f"Concept {definition.id} of the user.",
        definition=definition.definition,
        construction="Passages of the user.",
        matched_pairs=passages["pair_id"].null_count == 0,
        neighbours=neighbours,
        seed_words=definition.seed_words,
        triggers=definition.triggers,
        sensitive=definition.sensitive,
        token_window=(min(counts), max(counts)),
        min_source_domains=1,
        corpus=revision_of(passages),
    )
    return Made(concept, passages, [*review(concept, passages), *_repeats(texts)])


def _neighbours(definition: Definition) -> Neighbours:
    names = definition.neighbours
    if definition.id in names or len(set(names)) < len(names):
        raise ConfigError(f"neighbours {', '.join(names)}: name two different concepts, other than {definition.id}")
    return Neighbours(*(CONCEPTS.get(name).id for name in names))


def _texts(definition: Definition) -> OwnTexts:
    positives, negatives = (
        read_texts(Path(file)) if file else [] for file in (definition.positives, definition.negatives)
    )
    pairs = read_pairs(Path(definition.pairs)) if definition.pairs else []
    if not (positives or pairs):
        raise ConfigError(f"concept {definition.id} names no texts; give positives and negatives, or pairs")
    if definition.rewriter:
        if negatives:
            raise ConfigError("a rewriter makes the negatives; give either `rewriter` or `negatives`")
        pairs, positives = [*pairs, *_rewritten(definition.rewriter, positives)], []
    return OwnTexts(positives, negatives, pairs, definition.licence)


def _rewritten(name: str, positives: Sequence[Text]) -> list[tuple[Text, Text]]:
    """Return each positive with its rewrite. Raise CorpusError where the rewriter changes nothing or declines."""
    if name not in REWRITES:
        raise UnknownNameError("rewriter", name, REWRITES)
    pairs, declined, unchanged = [], [], []
    for text in positives:
        negative = REWRITES[name](text.text)
        if negative is None:
            declined.append(text.where)
        elif negative == text.text:
            unchanged.append(text.where)
        else:
            pairs.append((text, replace(text, text=negative)))
    for places, fault in (
        (unchanged, "finds nothing to delete in it"),
        (declined, "cannot rewrite it without damage to a sentence"),
    ):
        if places:
            raise CorpusError(
                f"{places[0]}: rewriter {name} {fault} ({len(places) - 1} more texts have the same fault); "
                "remove these positives or write their negatives yourself"
            )
    return pairs


def _repeats(texts: OwnTexts) -> list[Remark]:
    if not texts.repeated:
        return []
    return [Remark("warning", f"{len(texts.repeated)} repeated texts are left out, such as {texts.repeated[0]}")]
