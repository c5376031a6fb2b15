"""The card of the shipped corpus."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from recipes.passages.documents import get_source
from recipes.real_corpus.shipping import COMMAND, FIELDS, Shipped

from poolbench_corpora.io import CORPUS_SPLITS, SHARE_ALIKE

_COLUMNS = 100
_CONTENT = {
    "id": "id of the passage, unique in its concept",
    "text": "the passage",
    "label": "1 if it expresses the concept, 0 if not",
    "split": "train, test or scorer; a document is in one of them",
    "matched_pair_id": "the same for a positive and the negative made of it; null without pairs",
    "doc_id": "source and document",
    "domain": "kind of text; of bureaucratic its matter, which is one",
    "source": "name of the source, as below",
    "licence": "licence of the text",
    "attribution": "whom to credit: author or publisher, and work",
    "token_count": "words and marks",
}
_ABSENT = {
    "imdb_sentiment": "film reviews: their authors did not license them",
    "toxicity": "comments of a forum: their authors did not license them",
    "depression": "the sources have no such texts",
}
_LEFT_OUT = (
    "Named-entity sets that rest on closed corpora, the Manually Annotated Sub-Corpus (its open licence is none of "
    "those below), and the few Python Enhancement Proposals that state no licence are left out too."
)


def card(shipped: Sequence[Shipped]) -> str:
    """Return the card as Markdown."""
    parts = [
        "# Real text\n",
        _wrapped(
            "Short passages of real text with and without concepts, to probe the hidden states of language models. "
            "`poolbench-driver run --corpus real` measures on them. They were chosen from openly licensed texts by "
            f"rules, so labels are weak. `{COMMAND}` makes this folder from the archives; the same archives give the "
            "same bytes."
        ),
        "\n## Concepts (positive and negative passages together)\n",
        f"| concept | {' | '.join(CORPUS_SPLITS)} | labels | audit |",
        f"|---|{'---|' * (len(CORPUS_SPLITS) + 2)}",
        *map(_row, shipped),
        "",
        _wrapped(
            "Passages have 40 to 80 tokens (words and marks). Where a concept has pairs, the passage lies around the "
            "place where the members differ, at a drawn distance from it; other passages are any stretch of their "
            "document. Requests (deference) are whole, with 8 to 128 tokens. Members of pairs, and positives and "
            "negatives without pairs, are chosen so that length, marks, capitals and readability tell the classes "
            "apart as little as the texts allow. The audit (`poolbench-driver corpus validate`) says what still does; "
            "a concept that it calls confounded is in no default."
        ),
        "\n## Left out\n",
        "| concept | reason |",
        "|---|---|",
        *(f"| {concept} | {reason} |" for concept, reason in _ABSENT.items()),
        "",
        _wrapped(_LEFT_OUT),
        "\n## Files\n",
        _wrapped(
            "Each concept is one table, `<concept>/passages.parquet` (zstd). Texts under share-alike licences are "
            f"below `{SHARE_ALIKE}/`, under their own licence. `manifest.json` has the SHA-256, labels and verdict of "
            "each table, and origin with commit, licence and number of passages of each source. `licences/` has "
            "notices that two licences ask for."
        ),
        "\n| field | content |",
        "|---|---|",
        *(f"| `{name}` | {_CONTENT[name]} |" for name in FIELDS.names),
        "\n```python",
        "import pyarrow.parquet as pq",
        "",
        'rows = pq.read_table("assets/real_corpus/hedging/passages.parquet").to_pylist()',
        'train = [(row["text"], row["label"]) for row in rows if row["split"] == "train"]',
        "```",
        "\n## Sources and licences\n",
        "| source | origin | licence | passages |",
        "|---|---|---|---|",
        *_sources(shipped),
        "",
        _wrapped(
            "Texts are cut from their sources, and markup is removed. The negative of a pair is changed further: its "
            "seed words are deleted or replaced by rules. Labels and choice are under the licence of this repository, "
            "Apache-2.0, which is also that of keps."
        ),
    ]
    return "\n".join(parts) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _COLUMNS, break_long_words=False, break_on_hyphens=False)


def _row(one: Shipped) -> str:
    counts = Counter(row["split"] for row in one.rows)
    verdict = one.facts.verdict + (f": {'; '.join(one.facts.reasons)}" if one.facts.reasons else "")
    sizes = " | ".join(f"{counts[split]:,}" for split in CORPUS_SPLITS)
    return f"| {one.concept} | {sizes} | {one.rule.how} | {verdict} |"


def _sources(shipped: Sequence[Shipped]) -> Iterator[str]:
    counts = Counter(row["source"] for one in shipped for row in one.rows)
    for name in sorted(counts):
        source = get_source(name)
        yield f"| {name} | {source.origin} | {source.licence} | {counts[name]:,} |"
