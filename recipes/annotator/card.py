"""The model card and the metrics file that are shipped with the pipeline."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOURCES = (
    ("UD English EWT", "UniversalDependencies/UD_English-EWT", "CC BY-SA 4.0", "tags, lemmas, trees"),
    ("GUM (permissive genres)", "amir-zeldes/gum", "CC BY 4.0; texts CC BY or CC BY-SA", "all"),
    (
        "UNER English EWT",
        "UniversalNER/UNER_English-EWT",
        "CC BY-SA 4.0",
        "entities: dev part trains, test part judges",
    ),
    ("wikigold", "Balasuriya et al. 2009", "CC BY 4.0", "entities"),
    ("WNUT17", "Derczynski et al. 2017", "CC BY 4.0", "entities"),
    ("Broad Twitter Corpus", "Derczynski et al. 2016", "CC BY 4.0", "entities"),
    ("SEC filings", "Salinas Alvarado et al. 2015", "CC BY 3.0", "entities"),
)

HEADER = """# English annotation pipeline

A small spaCy pipeline: words, UPOS, lemmas, Universal Dependencies (with subtypes), sentence boundaries
from the parser, and entities of type PER, ORG, LOC. Hash embeddings, no pretrained vectors,
{size_mb} MB on disk. It loads offline with `spacy.load("assets/annotator")`.

Made by `{command}`
(see `recipes/annotator/README.md`) with spaCy {spacy_version}, seed {seed}, in optimiser steps of about 1,000 words;
trained on {tree_words} words with trees and {entity_words} words with entities (UNER's dev part counted three
times). Only documents of the partition's `annotator` share were trained on.{note}

## Held-out accuracy

From raw text, words found by the pipeline's own tokenizer. UPOS and lemma: accuracy over words that align
with a gold word. UAS, LAS: without punctuation, labels with subtypes, unaligned words are misses. Sentences
and entities: F1 of exact spans. Official test documents; none was trained on or used to choose the model.

"""

LICENCE = """## Data and licence

The pipeline is released under CC BY-SA 4.0 (https://creativecommons.org/licenses/by-sa/4.0/), the terms of
UD English EWT, from which it is made. Attribution is due to the authors of:

"""

LIMITS = """
## Limits

- Entities are persons, organisations and places. The sets disagree on products, works, nationalities and user
  names, so those were masked in training; the pipeline finds them by chance only.
- GUM's entities are derived from its mentions by rule (proper nouns inside person, organization and place
  mentions).
- English web, news, academic, court and biographical prose; lower-cased text is covered by augmentation only.
- The parser is greedy and small: long sentences lose most.
"""


def write_card(folder: Path, report: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any]) -> None:
    """Write `card.md` and `metrics.json` from the report, by test set and measure, and the values of `HEADER`."""
    size_mb = round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6, 1)
    fields = {"note": "", **facts, "size_mb": size_mb}
    metrics = json.dumps({"facts": fields, "test": report}, indent=2, ensure_ascii=False)
    (folder / "metrics.json").write_text(metrics + "\n", encoding="utf-8")
    text = HEADER.format(**fields) + _scores(report) + "\n" + LICENCE + _sources() + LIMITS
    (folder / "card.md").write_text(text, encoding="utf-8")


def _scores(report: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| test set | measure | value |", "|---|---|---|"]
    for name, measures in report.items():
        lines += [f"| {name} | {measure} | {value} |" for measure, value in measures.items()]
    return "\n".join(lines) + "\n"


def _sources() -> str:
    lines = ["| data | source | licence | used for |", "|---|---|---|---|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in SOURCES)]) + "\n"
