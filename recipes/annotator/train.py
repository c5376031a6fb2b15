"""Train the two halves and assemble them into one pipeline."""

import json
import shutil
from pathlib import Path
from typing import Any

import spacy
import srsly
from spacy.cli.init_config import fill_config
from spacy.cli.train import train as spacy_train
from spacy.language import Language

HERE = Path(__file__).parent
HALVES = ("tree", "entity")
VERSION = "1.0.0"
NAME = "poolbench_annotator"


def train_half(half: str, work: Path, *, max_steps: int, seed: int) -> Path:
    """Train `tree` or `entity` from `<half>-{train,dev}.spacy` in `work`; return the folder of the best model."""
    overrides = {
        "paths.train": str(work / f"{half}-train.spacy"),
        "paths.dev": str(work / f"{half}-dev.spacy"),
        "training.max_steps": max_steps + 1,  # a step is evaluated when the next one begins
        "system.seed": seed,
    }
    if half == "entity":
        overrides["paths.tree"] = str(work / "tree" / "model-best")
    filled = work / f"{half}.cfg"
    spacy.util.load_config(HERE / f"{half}.cfg", overrides=overrides).to_disk(filled)
    fill_config(filled, filled)
    spacy_train(filled, work / half)
    return work / half / "model-best"


def assemble(tree: Path, entity: Path, output: Path) -> Language:
    """Assemble both halves, each with its own tok2vec, into one pipeline saved to `output`."""
    nlp = spacy.load(tree)
    recogniser = spacy.load(entity)
    recogniser.replace_listeners("tok2vec", "ner", ["model.tok2vec"])
    nlp.add_pipe("ner", source=recogniser)
    nlp.meta.update({"name": NAME, "version": VERSION, "license": "CC BY-SA 4.0", "author": "PoolBench"})
    nlp.meta["description"] = "Small English pipeline: UPOS, lemmas, UD dependencies, sentences, entities"
    nlp.meta.pop("performance", None)
    nlp.config["paths"] = dict.fromkeys(nlp.config["paths"])  # of the machine that trained
    if output.exists():
        shutil.rmtree(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    nlp.to_disk(output)
    (output / "vocab" / "strings.json").write_text(json.dumps(needed_strings(nlp), ensure_ascii=False), "utf-8")
    return spacy.load(output)


def needed_strings(nlp: Language) -> list[str]:
    """Return the strings that decoding needs: labels, and what the lemmatizer's edits insert and remove.

    spaCy would save every word that it ever saw, and the training texts hold names of private persons.
    """
    strings = {*spacy.blank("en").vocab.strings, *(label for labels in nlp.pipe_labels.values() for label in labels)}
    store = nlp.vocab.strings
    lemmatizer: Any = nlp.get_pipe("trainable_lemmatizer")
    for tree in srsly.msgpack_loads(lemmatizer.trees.to_bytes())["trees"]:
        strings |= {store[tree[key]] for key in ("orig", "subst") if tree.get(key)}
    return sorted(strings)
