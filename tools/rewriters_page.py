"""The page docs/results/rewriters.md: figures of the rewriters, and pairs to read."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from poolbench_corpora.real import SOURCES

Pair = tuple[str, str, str]
_WORDS = Path(__file__).resolve().parents[1] / "tests" / "words.yaml"

_HEAD = """\
# Rewriters

<!-- Written by tools/rewriters.py. -->

Six concepts have matched pairs: the negative is the positive without the words that express the
concept. A rewriter makes it by rules. Where a deletion would break the sentence, it puts a form
that does not express the concept: *and* for *because*, *with* for *despite*, *saw* for *did not
see*. A conditional clause goes as a whole. Where no rule rewrites a sentence well, the rewriter
declines, and the passage is not used.

Rewrites keep the sentence and change what it claims. A negated sentence becomes its opposite, and a
hedged one becomes plain, so a rewrite may be false. It may also lose a reference across sentences.

This page is made by one command, which needs the real-text archives
([how](../runs.md#corpora)). It also writes the tables of the test
`corpus/tests/test_rewriter_tables.py`:

```console
$ .venv/bin/python tools/rewriters.py
```

## Figures

The sentences are drawn from real text; each has a marker of its concept. The perplexity ratio is
that of the rewritten to the original sentence under the demo language model, sentence by sentence.
No larger model was at hand.

| concept | sentences | rewritten | markers left | perplexity ratio, median | quartiles |
|---|---|---|---|---|---|
"""


def page(figures: Mapping[str, Mapping[str, Any]], pairs: Mapping[str, Sequence[Pair]], number: int) -> str:
    """Return the page, with `number` pairs of each concept."""
    parts = [_HEAD + "\n".join(_row(concept, figures[concept]) for concept in figures)]
    for concept, all_pairs in pairs.items():
        shown = [pair for pair in all_pairs if not _refused(pair)][:number]
        rows = [f"| {_cell(old)} | {_cell(new)} | {document.partition('/')[0]} |" for document, old, new in shown]
        parts.append("\n".join([f"## {concept}", "", "| original | rewritten | source |", "|---|---|---|", *rows]))
    used = sorted({document.partition("/")[0] for found in pairs.values() for document, _, _ in found})
    rows = [f"| {name} | {SOURCES[name].origin} | {SOURCES[name].licence} |" for name in used]
    parts.append("\n".join(["## Sources", "", "| source | origin | licence |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _row(concept: str, figures: Mapping[str, Any]) -> str:
    ratio = figures["perplexity_ratio"]
    low, high = ratio["quartiles"]
    share = f"{figures['rewritten']} ({figures['rewritten'] / figures['sentences']:.0%})"
    left = figures["markers_left"]
    return (
        f"| {concept} | {figures['sentences']} | {share} | {left} | {ratio['median']:.2f} | {low:.2f} to {high:.2f} |"
    )


def _refused(pair: Pair) -> bool:
    """Return whether a sentence holds a word that pages of this repository avoid; the tables hold them all."""
    words = yaml.safe_load(_WORDS.read_text("utf-8"))["words"]
    return any(re.search(word["pattern"], " ".join(pair[1:]), re.IGNORECASE) for word in words)


def _cell(text: str) -> str:
    return re.sub(r"([|<>*_`\[\]#~])", r"\\\1", text)
