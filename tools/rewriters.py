"""Draw sentences of real text, rewrite them, measure the rewrites, and write their tables and their page.

Run `.venv/bin/python tools/rewriters.py` with POOLBENCH_REAL_TEXT set (two minutes on one core). It writes

- `corpus/tests/data/rewriters/<concept>.yaml`: the cases of the table test, with source and licence;
- `docs/results/rewriters.md`: the figures, and pairs to read;
- the figures as JSON, where `--json FILE` names a file.

Sentences come from sources whose licence permits shipping short quotations, complaints of consumers left out.
Read the pairs after a change of a rule: no figure finds every sentence that an editor would refuse.
"""

import argparse
import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml
from rewriters_page import page

from poolbench.texts import count_words
from poolbench_corpora.real import SOURCES, read_documents
from poolbench_corpora.real.rewriting import REWRITERS_REVISION, REWRITES
from poolbench_corpora.real.weak_labels import weak_labels
from poolbench_corpora.real.windows import sentences

REPOSITORY = Path(__file__).resolve().parents[1]
TABLES = REPOSITORY / "corpus" / "tests" / "data" / "rewriters"
PAGE = REPOSITORY / "docs" / "results" / "rewriters.md"
NUM_MEASURED = 400  # sentences with a marker, for each concept
NUM_REWRITTEN, NUM_DECLINED = 42, 8  # cases of a table
NUM_PAIRS = 20  # pairs on the page, for each concept
LENGTH = (8, 40)  # words of a sentence
_SENTENCE = re.compile(r"[\"“‘(]?[A-Z][^\n]*[a-z)][.!?][\"”’)]?")
_CUT = re.compile(r"\b(?:Fig|Figs|al|St|Lt|No|vs|etc|Gen|Res|Sec|Mr|Mrs|Dr)\.$")  # the end of no sentence
_NOT_SHIPPED = ("cfpb_complaints",)

Figures = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A sentence of a document and its rewrite, None where the rewriter declines."""

    document: str
    text: str
    rewritten: str | None


def drawn(concept: str, number: int, seed: int) -> list[Case]:
    """Return `number` sentences with a marker, sources in turn, and their rewrites."""
    rewriter = REWRITES[concept]
    names = [name for name in weak_labels()[concept].positives.sources if name not in _NOT_SHIPPED]
    sources = [_marked(name, concept, seed) for name in names if SOURCES[name].permissive]
    found: dict[str, Case] = {}
    while sources and len(found) < number:
        for source in list(sources):
            document, text = next(source, ("", ""))
            if not text:
                sources.remove(source)
            elif text not in found:
                found[text] = Case(document, text, rewriter(text))
    return list(found.values())[:number]


def _marked(source: str, concept: str, seed: int) -> Iterator[tuple[str, str]]:
    """Yield document and sentence with a marker, in an order that the seed gives, one sentence per document."""
    rng, markers = Random(f"{source}:{concept}:{seed}"), REWRITES[concept].markers
    documents = list(read_documents(source))
    for document in rng.sample(documents, len(documents)):
        texts = [document.text[start:end] for start, end in sentences(document.text)]
        fitting = [text for text in texts if _fits(text) and markers.search(text)]
        for text in rng.sample(fitting, min(len(fitting), max(1, NUM_MEASURED // len(documents)))):
            yield document.doc_id, text


def _fits(text: str) -> bool:
    """Return whether a text is one whole sentence of a length that can be read at a glance."""
    whole = _SENTENCE.fullmatch(text) and not _CUT.search(text) and text.count("(") == text.count(")")
    return bool(whole) and LENGTH[0] <= count_words(text) <= LENGTH[1]


class Perplexity:
    """Perplexity of a text under the demo language model."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = REPOSITORY / "assets" / "demo_lm"
        self._torch = torch
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def __call__(self, text: str) -> float:
        """Return exp of the mean loss per token, the first token of the sentence included."""
        torch = self._torch
        start = self._tokenizer.bos_token_id
        tokens = torch.tensor([[start, *self._tokenizer(text, add_special_tokens=False)["input_ids"]]])
        with torch.no_grad():
            logits = self._model(tokens).logits[0, :-1]
        return float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:]).exp())


def figures_of(concept: str, cases: Sequence[Case], perplexity: Perplexity) -> Figures:
    """Return the figures of one concept: counts, markers left, and the perplexity ratio (rewritten / original)."""
    pairs = [(case.text, case.rewritten) for case in cases if case.rewritten is not None]
    ratios = [perplexity(new) / perplexity(old) for old, new in pairs]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "sentences": len(cases),
        "rewritten": len(pairs),
        "markers_left": sum(REWRITES[concept].markers.search(new) is not None for _, new in pairs),
        "perplexity_ratio": {"median": round(median, 3), "quartiles": [round(low, 3), round(high, 3)]},
    }


def table_of(concept: str, cases: Sequence[Case]) -> str:
    """Return the table of one concept as YAML."""
    chosen = [
        *[case for case in cases if case.rewritten is not None][:NUM_REWRITTEN],
        *[case for case in cases if case.rewritten is None][:NUM_DECLINED],
    ]
    used = sorted({case.document.partition("/")[0] for case in chosen})
    content = {
        "concept": concept,
        "sources": {name: {"origin": SOURCES[name].origin, "licence": SOURCES[name].licence} for name in used},
        "cases": [{"document": case.document, "text": case.text, "rewritten": case.rewritten} for case in chosen],
    }
    head = f"# Written by tools/rewriters.py ({REWRITERS_REVISION}): sentences of real text, null where it declines.\n"
    return head + yaml.safe_dump(content, allow_unicode=True, sort_keys=False, width=110)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other sentences")
    options = parser.parse_args()
    perplexity, figures, pairs = Perplexity(), {}, {}
    TABLES.mkdir(parents=True, exist_ok=True)
    for concept in sorted(REWRITES):
        cases = drawn(concept, NUM_MEASURED, options.seed)
        figures[concept] = figures_of(concept, cases, perplexity)
        pairs[concept] = [(case.document, case.text, case.rewritten) for case in cases if case.rewritten is not None]
        (TABLES / f"{concept}.yaml").write_text(table_of(concept, cases), "utf-8")
        print(concept, json.dumps(figures[concept]), flush=True)
    PAGE.write_text(page(figures, pairs, NUM_PAIRS), "utf-8")
    if options.json:
        options.json.write_text(json.dumps({"revision": REWRITERS_REVISION, "concepts": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
