"""The name of a user's concept moves no figure of D1: the same texts under another name give the same values."""

from __future__ import annotations

import random

import numpy as np
import pyarrow.compute as pc

from poolbench.config import ConceptSettings
from poolbench.contracts.measures import Measure
from poolbench.pooling.context import TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES
from poolbench.steps.prober import ProbeParams
from poolbench_corpora.own import Made, TextFiles, make_concept
from poolbench_corpora.reading import SentFile
from poolbench_driver.corpora.sources import at_most
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors

WORDS = [f"word{number}" for number in range(3000)]
WIDTH = 16


def texts(seed: int, count: int = 90) -> SentFile:
    rng = random.Random(seed)
    lines = ["text", *(" ".join(rng.sample(WORDS, 20)) for _ in range(count))]
    return SentFile("texts.csv", "\n".join(lines).encode())


def split_of(made: Made, split: str) -> Passages:
    """The passages of a split, fewer than it has: a run with a limit chooses."""
    rows = made.passages.filter(pc.equal(made.passages["split"], split))
    return Passages.from_table(at_most(rows, 2 * rows.num_rows // 3))


def random_half(name: str, text: str, label: int) -> np.ndarray:
    """A7, which draws its tokens, of states that depend on the words alone."""
    states_TD = np.stack([np.random.default_rng(int(word[4:])).normal(size=WIDTH) for word in text.split()])
    states_TD[::3, 0] += label
    context = TokenContext(name, np.zeros((len(states_TD), 2), dtype=int), np.zeros(len(states_TD), dtype=bool))
    weights = STRATEGIES.get("A7_random").weigh(context)
    assert isinstance(weights, Weights)
    return np.asarray(weights.values @ states_TD)


def pooled(passages: Passages) -> PooledVectors:
    rows = zip(passages.ids, passages.texts, passages.labels.tolist(), strict=True)
    return PooledVectors.from_matrix(np.stack([random_half(*row) for row in rows]))


def d1(name: str) -> list[Measure]:
    made = make_concept(ConceptSettings(id=name), TextFiles(positives=texts(1), negatives=texts(2)))
    train, test = (split_of(made, split) for split in ("train", "test"))
    params = ProbeParams(num_bootstrap=50, num_permutations=2, fold_seeds=(1,), min_domain_class=5)
    return probe_cell(Design.build(train, test, params), pooled(train), pooled(test), params).measures


def test_the_same_texts_under_another_name_have_the_same_d1() -> None:
    first, second = d1("gratitude"), d1("thanks")
    assert first == second
    assert {m.metric for m in first if m.status == "ok"} >= {"d1.auroc", "d1.auroc_test", "d1.auroc_seed"}
