"""`python -m recipes.real_corpus`: build the corpus of real text that ships, `assets/real_corpus`, from the archives.

It reads the real-text archives in `POOLBENCH_REAL_TEXT`, needs no cluster, and takes about 15 minutes of one core. The
same archives give the same bytes.
"""

import argparse
import shutil
import sys
from pathlib import Path

from recipes.passages.documents import archives_folder, require_sources
from recipes.real_corpus.card import card
from recipes.real_corpus.rules import rules
from recipes.real_corpus.shipping import ship, write

from poolbench.config import REAL_CORPUS, assets_folder
from poolbench.errors import PoolbenchError

CARD = "card.md"


def main() -> int:
    """Build all concepts, then replace the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="folder to write; default: the asset")
    output = parser.parse_args().output or assets_folder() / REAL_CORPUS
    try:
        require_sources(archives_folder())
    except PoolbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    shipped = []
    for concept, rule in sorted(rules().items()):
        shipped.append(ship(concept, rule))
        print(f"{concept}: {len(shipped[-1].rows)} passages, {shipped[-1].facts.verdict}", flush=True)
    shutil.rmtree(output, ignore_errors=True)
    write(output, shipped)
    (output / CARD).write_text(card(shipped), "utf-8")
    print(f"written to {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
