"""What became of the passages that a corpus was chosen from: how many each rule dropped, with examples."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

RULES: Mapping[str, str] = MappingProxyType(
    {
        "empty": "the record has no text",
        "markup": "the text holds HTML",
        "encoding": "the text holds characters that show a wrong encoding, or control characters",
        "long_document": "the document is longer than 1,000,000 characters",
        "label": "the source's own label is that of another class",
        "window": "a run of whole sentences misses the token window",
        "filter": "the passage lacks the markers of its class, or has those of the other",
        "declined": "no rule rewrites one of its sentences without damage",
        "contamination": "the rewrite still has a seed word or marker",
        "rewrite_window": "the rewrite misses the token window",
        "pair_difference": "the rewrite changes nothing, or more tokens than a pair may differ by",
        "near_duplicate": "the passage shares too many 8-grams with one that was chosen before",
        "surplus": "the split of the document was full already",
    }
)
"""Rules that drop passages, in the order in which they are applied."""

_NUM_EXAMPLES = 3
_EXAMPLE_LENGTH = 160


class Yield:
    """Counts the passages of one concept that were chosen, and those that each rule dropped.

    Passages are read until there are enough, so the counts are of those that were looked at.

    Args:
        quoting: Whether examples are kept; passages of sensitive concepts must not be shown.
        progress: Called with the number of documents read so far, after each.
    """

    def __init__(self, *, quoting: bool = True, progress: Callable[[int], None] | None = None) -> None:
        self.chosen = 0
        self.documents: Counter[str] = Counter()  # documents that were read, by source
        self.dropped: Counter[str] = Counter()  # passages (or documents) that a rule dropped
        self.examples: defaultdict[str, list[str]] = defaultdict(list)
        self._quoting = quoting
        self._progress = progress

    def read(self, source: str) -> None:
        """Count a document of a source."""
        self.documents[source] += 1
        if self._progress is not None:
            self._progress(self.documents.total())

    def drop(self, rule: str, text: str) -> None:
        """Count a passage that a rule of `RULES` dropped; keep the first few as examples."""
        if rule not in RULES:
            raise ValueError(f"no rule {rule!r}; there are {', '.join(RULES)}")
        self.dropped[rule] += 1
        if self._quoting and text and len(self.examples[rule]) < _NUM_EXAMPLES:
            self.examples[rule].append(" ".join(text[:_EXAMPLE_LENGTH].split()))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        rules = {
            rule: {"meaning": meaning, "dropped": self.dropped[rule], "examples": self.examples.get(rule, [])}
            for rule, meaning in RULES.items()
            if self.dropped[rule]
        }
        return {"chosen": self.chosen, "documents": dict(sorted(self.documents.items())), "rules": rules}
