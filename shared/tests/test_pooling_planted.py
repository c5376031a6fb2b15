"""Planted signals: where the positions that carry a class are known, the strategy that reads them must win.

States are noise, [T, D]; the positives' states are shifted along one axis at the planted positions. Each
strategy is scored by the AUROC of its difference of means, taken on one half of the passages and read on the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch

from poolbench.pooling import STRATEGIES, TokenContext, Words
from poolbench.pooling.batch import Request, Weighing, pool_layer
from poolbench.pooling.sinks import SinkRule
from poolbench.statistics.auroc import auroc

#: Signals may be as large as sinks here.
INCLUDE = SinkRule(leave_out=False)

NUM, WIDTH = 240, 12
RARE = 0.08
TRIGGER = "because"
GIVEN = {"annotation", "norms", "inflow"}
REQUESTS = [Request.of(spec.id, spec.params_for([TRIGGER])) for spec in STRATEGIES.all() if set(spec.needs) <= GIVEN]


@dataclass(frozen=True)
class Passage:
    """One synthetic passage behind a BOS: states to be changed, and what strategies may look at."""

    context: TokenContext
    label: int
    states: np.ndarray
    inflow: np.ndarray
    rng: np.random.Generator

    @property
    def real(self) -> np.ndarray:
        return self.context.real

    def some(self, count: int = 5) -> np.ndarray:
        """Random real positions."""
        return self.rng.choice(self.real, count, replace=False)

    def shift(self, where: np.ndarray, size: float, axis: int = 0) -> None:
        """Moves the states at ``where`` along an axis in the positives."""
        self.states[where, axis] += size * self.label


def segments(rng: np.random.Generator, num_words: int) -> np.ndarray:
    """Segment numbers [W]: one short segment of 3 words first or last among segments of 12 to 16."""
    lengths = [3]
    while sum(lengths) < num_words:
        lengths.insert(rng.integers(0, 2) * len(lengths), int(rng.integers(12, 17)))
    return np.repeat(np.arange(len(lengths)), lengths)[:num_words]


def words_of(rng: np.random.Generator, num_words: int) -> Words:
    """Random annotation; marked words are rare and there is at least one of each kind."""
    rare = {name: rng.random(num_words) < RARE for name in ("entity", "keyword", "trigger")}
    for flags in rare.values():
        flags[rng.integers(num_words)] = True
    dep = rng.choice(["det", "advcl", "obj"], num_words, p=[1 - 2 * RARE, RARE, RARE])
    dep[rng.choice(num_words, 2, replace=False)] = "advcl", "obj"
    return Words(
        start=np.arange(num_words) * 5,
        end=np.arange(num_words) * 5 + 4,
        upos=list(rng.choice(["NOUN", "DET", "ADP", "PUNCT"], num_words)),
        dep=list(dep),
        head=list(range(num_words)),
        lemma=list(np.where(rare["trigger"], TRIGGER, "other")),
        entity=list(np.where(rare["entity"], "LOC", "")),
        sentence=segments(rng, num_words),
        clause=segments(rng, num_words),
        keyword=rare["keyword"],
    )


def context_of(index: int, num_words: int | None = None) -> TokenContext:
    """Words of one or two tokens behind a BOS."""
    rng = np.random.default_rng([index, 0])
    num_words = num_words or int(rng.integers(36, 49))
    words = words_of(rng, num_words)
    split = rng.random(num_words) < 0.4
    offsets = [(0, 0)]
    for start, end, two in zip(words.start, words.end, split, strict=True):
        offsets += [(start, start + 2), (start + 2, end)] if two else [(start, end)]
    return TokenContext(f"p{index}", np.array(offsets), np.arange(len(offsets)) == 0, words=words)


@cache
def plan_of(lengths: tuple[int | None, int | None] = (None, None)) -> Weighing:
    """Contexts and annotation weights, the same in every case; ``lengths`` are words of negatives and positives."""
    return Weighing.of([context_of(index, lengths[index % 2]) for index in range(NUM)], REQUESTS)


def noise(index: int, context: TokenContext) -> Passage:
    """States of standard deviation 1 and inflow 1 everywhere."""
    rng = np.random.default_rng([index, 1])
    num = context.num_positions
    return Passage(context, index % 2, rng.normal(size=(num, WIDTH)), np.ones(num), rng)


def scores(plant: Callable[[Passage], None], plan: Weighing | None = None) -> dict[str, float]:
    """AUROC of every strategy on passages that ``plant`` changed."""
    plan = plan or plan_of()
    passages = [noise(index, context) for index, context in enumerate(plan.contexts)]
    for item in passages:
        plant(item)
    states = [torch.from_numpy(item.states.astype(np.float32)) for item in passages]
    vectors_BSD, outcomes, _ = pool_layer(states, plan, [{"inflow": item.inflow} for item in passages], INCLUDE)
    fallen = {r.id for row in outcomes for r, outcome in zip(REQUESTS, row, strict=True) if not outcome.applied}
    assert not fallen
    labels = np.array([item.label for item in passages])
    first, second = np.arange(NUM) < NUM // 2, np.arange(NUM) >= NUM // 2
    found = {}
    for column, request in enumerate(REQUESTS):
        x_BD = vectors_BSD[:, column].astype(np.float64)
        direction = x_BD[first & (labels == 1)].mean(0) - x_BD[first & (labels == 0)].mean(0)
        found[request.id] = auroc(labels[second], x_BD[second] @ direction)
    return found


def at_words(flag: Callable[[Words], object], size: float) -> Callable[[Passage], None]:
    """A shift at the tokens of the words that ``flag`` names."""
    return lambda p: p.shift(p.context.real_tokens_of(np.asarray(flag(p.context.words))), size)


def short(column: str) -> Callable[[Words], object]:
    """The words of the shortest segment of a column."""

    def flag(words: Words) -> object:
        numbers = getattr(words, column)
        return numbers == np.argmin(np.bincount(numbers))

    return flag


def first_subwords(p: Passage) -> None:
    starts = set(p.context.words.start[[tag != "PUNCT" for tag in p.context.words.upos]])
    p.shift(np.array([t for t in p.real if p.context.offsets[t, 0] in starts]), 0.45)


def large_norms(p: Passage) -> None:
    where = p.some()
    p.states[where, 1] += 15
    p.shift(where, 1.2)


def attended(p: Passage) -> None:
    where = p.some()
    p.inflow[where] = 10
    p.shift(where, 1.2)


def massive_noise(p: Passage) -> None:
    p.shift(p.real, 0.5)
    p.states[p.some(1)[0]] += p.rng.normal(size=WIDTH) * 60


MEANS = {"A1_mean", "A6_sum", "A10_mean_sqrt_len", "A11_mean_all", "W4_hierarchical"}
#: Where the signal lies, and which strategies may come out first.
CASES: dict[str, tuple[Callable[[Passage], None], set[str]]] = {
    "everywhere": (lambda p: p.shift(p.real, 0.3), MEANS),
    "last token": (lambda p: p.shift(p.real[-1:], 2), {"P1_last_token"}),
    "last 4": (lambda p: p.shift(p.real[-4:], 1.2), {"W2_last_4"}),
    "last 8": (lambda p: p.shift(p.real[-8:], 0.8), {"W2_last_8"}),
    "last 16": (lambda p: p.shift(p.real[-16:], 0.6), {"W2_last_k"}),
    "early": (lambda p: p.shift(p.real[:16], 0.6), {"W1_first_k"}),
    "middle": (lambda p: p.shift(p.real[(len(p.real) - 16) // 2 :][:16], 0.6), {"W3_middle_k"}),
    "first token": (lambda p: p.shift(p.real[:1], 2), {"P3_first_content"}),
    "BOS": (lambda p: p.shift(np.array([0]), 2), {"P2_first_token"}),
    "one massive token": (lambda p: p.shift(p.some(1), 6), {"A2_max"}),
    "one massive token below": (lambda p: p.shift(p.some(1), -6), {"A3_min"}),
    "large norms": (large_norms, {"A4_norm_weighted"}),
    "attended tokens": (attended, {"S1_attention"}),
    "everywhere, under massive noise": (massive_noise, {"A5_median", "A8_unit_mean"}),
    "growing": (lambda p: p.shift(p.real, np.linspace(-0.15, 0.55, len(p.real))), {"A9_position_weighted"}),
    "content words": (at_words(lambda w: [tag == "NOUN" for tag in w.upos], 0.6), {"L1_pos_filtered"}),
    "clause arcs": (at_words(lambda w: [dep == "advcl" for dep in w.dep], 1.5), {"L2_dependency_rel"}),
    "triggers": (at_words(lambda w: [lemma == TRIGGER for lemma in w.lemma], 1.5), {"L2_dependency_trigger"}),
    "entities": (at_words(lambda w: [bool(kind) for kind in w.entity], 1.5), {"L3_entity"}),
    "a short clause": (at_words(short("clause"), 1.5), {"L4_clause"}),
    "keywords": (at_words(lambda w: w.keyword, 1.5), {"L5_keyword"}),
    "a short sentence": (at_words(short("sentence"), 1.5), {"L6_sentence"}),
    "first subwords": (first_subwords, {"L7_subword_root"}),
    "objects": (at_words(lambda w: [dep == "obj" for dep in w.dep], 1.5), {"L8_svo"}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_strategy_that_reads_the_planted_positions_wins(name: str) -> None:
    plant, winners = CASES[name]
    found = scores(plant)
    best = max(found, key=lambda strategy_id: found[strategy_id])
    assert best in winners, sorted(found.items(), key=lambda item: -item[1])[:4]
    assert found[best] > 0.85
    assert found["A1_mean"] < found[best] - 0.03 or "A1_mean" in winners


def test_half_of_the_tokens_hold_less_than_all() -> None:
    found = scores(CASES["everywhere"][0])
    assert 0.7 < found["A7_random"] < found["A1_mean"]


def test_length_is_seen_by_sums_and_not_by_means() -> None:
    def offset(p: Passage) -> None:
        p.states[:] += 1

    found = scores(offset, plan_of((40, 48)))
    assert min(found["A6_sum"], found["A10_mean_sqrt_len"]) > 0.9
    assert abs(found["A1_mean"] - 0.5) < 0.12


def test_without_a_signal_nothing_separates() -> None:
    found = scores(lambda p: None)
    assert len(found) == len(REQUESTS)
    assert max(abs(value - 0.5) for value in found.values()) < 0.17  # 3.2 standard errors of an AUROC of 60 and 60
