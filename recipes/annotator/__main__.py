"""`python -m recipes.annotator`: convert, train, assemble, evaluate, write the card."""

import argparse
import sys
import tempfile
from pathlib import Path

import spacy
from recipes.annotator import archive, docs, sources
from recipes.annotator.card import write_card
from recipes.annotator.evaluate import evaluate
from recipes.annotator.train import HALVES, assemble, train_half
from spacy.vocab import Vocab

from poolbench.config import assets_folder

STEPS = {"tree": 3000, "entity": 1400}


def main() -> int:
    """Run the recipe."""
    arguments = _arguments()
    try:
        members = archive.read_members(arguments.archives)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    work = arguments.work or Path(tempfile.mkdtemp(prefix="annotator-"))
    parts = {"tree": sources.treebanks(members), "entity": sources.entity_sets(members)}
    num_words = convert(parts, work)
    steps = {"tree": arguments.tree_steps, "entity": arguments.entity_steps}
    best = {half: work / half / "model-best" for half in HALVES}
    for half in HALVES:
        if arguments.retrain or not best[half].is_dir():
            train_half(half, work, max_steps=steps[half], seed=arguments.seed)
    nlp = assemble(best["tree"], best["entity"], arguments.output)
    report = evaluate(nlp, parts["tree"], parts["entity"])
    facts = {
        "command": f"python -m recipes.annotator --tree-steps {steps['tree']} --entity-steps {steps['entity']}",
        "spacy_version": spacy.__version__,
        "seed": arguments.seed,
        **{f"{half}_steps": steps[half] for half in HALVES},
        **{f"{half}_words": num_words[half] for half in HALVES},
    }
    write_card(arguments.output, report, facts)
    print((arguments.output / "card.md").read_text("utf-8"))
    return 0


def convert(parts: dict[str, sources.Parts], work: Path) -> dict[str, int]:
    """Write `<half>-{train,dev}.spacy` below `work`; return the number of training words by half."""
    work.mkdir(parents=True, exist_ok=True)
    to_docs = {"tree": docs.tree_docs, "entity": docs.entity_docs}
    vocab = Vocab()
    num_words = {}
    for half, part in parts.items():
        train = to_docs[half](part.train, vocab)
        docs.save(train, str(work / f"{half}-train.spacy"))
        docs.save(to_docs[half](part.dev, vocab), str(work / f"{half}-dev.spacy"))
        num_words[half] = sum(len(doc) for doc in train)
    return num_words


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.annotator", description=__doc__)
    parser.add_argument(
        "--archives", type=Path, default=None, help="folder of archives; by default POOLBENCH_REAL_TEXT"
    )
    parser.add_argument("--output", type=Path, default=None, help="by default assets/annotator")
    parser.add_argument("--work", type=Path, default=None, help="keeps data and trained halves")
    parser.add_argument("--retrain", action="store_true", help="train again what --work holds")
    parser.add_argument("--tree-steps", type=int, default=STEPS["tree"])
    parser.add_argument("--entity-steps", type=int, default=STEPS["entity"])
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.output = arguments.output or assets_folder() / "annotator"
    return arguments


if __name__ == "__main__":
    sys.exit(main())
