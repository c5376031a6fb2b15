"""The texts of the corpus that ships, for recipes that train on them."""

import random

from poolbench.config import REAL_CORPUS, asset_path
from poolbench_corpora.io import audited_concepts, read_concept


def shipped_texts(*splits: str, seed: int = 0) -> list[str]:
    """Return the passages of some splits (train, test, scorer), each text once, in a seeded order.

    They are of the concepts that pass their audit. Of a matched pair only the positive is among them.
    """
    folder = asset_path(REAL_CORPUS)
    rows = (row for concept in sorted(audited_concepts(folder)) for row in read_concept(folder, concept).to_pylist())
    rows = (row for row in rows if row["split"] in splits and (row["label"] == 1 or not row["pair_id"]))
    texts = list(dict.fromkeys(row["text"] for row in rows))
    random.Random(seed).shuffle(texts)
    return texts
