"""No strategy separates classes by its own fallback: states without a signal, and strategies that find something
to select in one class only. Their vectors do separate the classes, so the cells must be nulls."""

import numpy as np
import pytest
import torch

from poolbench.directions import DirectionContext, compute_direction
from poolbench.pooling import STRATEGIES, TokenContext, Words
from poolbench.pooling.batch import Request, Weighing, pool_layer
from poolbench.statistics.auroc import auroc
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.vectors import PooledVectors

WIDTH, TRIGGER = 6, "because"
COLUMNS = ("start", "end", "head", "sentence", "clause", "keyword")
NO_WORDS = Words(**{name: np.zeros(0, dtype=int) for name in COLUMNS}, upos=[], dep=[], lemma=[], entity=[])
#: The first of two words has all that strategies look for, except clause arcs, which are the second's.
TWO_WORDS = Words(
    start=np.array([0, 1]), end=np.array([1, 2]), upos=["NOUN", "PUNCT"], dep=["nsubj", "advcl"], head=[0, 1],
    lemma=[TRIGGER, "."], entity=["LOC", ""], sentence=np.zeros(2, dtype=int), clause=np.zeros(2, dtype=int),
    keyword=np.array([True, False]),
)  # fmt: skip
READERS = [spec.id for spec in STRATEGIES.all() if spec.reads_annotations]
#: Windows that are longer than the negatives and shorter than the positives, in tokens.
WINDOWS = {
    "W1_first_k": (16, 24),
    "W2_last_k": (16, 24),
    "W3_middle_k": (16, 24),
    "W2_last_4": (4, 12),
    "W2_last_8": (8, 16),
    "W4_hierarchical": (3, 12),
}


def pooled(passages, strategy_id, lengths=(30, 30), inflow=(1.0, 1.0)):
    """Vectors [n, D] of states that drift with position, the same in both classes, and what applied [n]."""
    rng = np.random.default_rng(5)
    contexts, states, signals = [], [], []
    for passage_id, label in zip(passages.ids, passages.labels, strict=True):
        length = lengths[label]
        offsets = np.stack([np.arange(length), np.arange(1, length + 1)], axis=1)
        words = TWO_WORDS if label else NO_WORDS
        contexts.append(TokenContext(passage_id, offsets, np.zeros(length, dtype=bool), words=words))
        states.append(torch.from_numpy(rng.normal(size=(length, WIDTH)).astype(np.float32)))
        states[-1][:, 0] += torch.linspace(8, 0, length)
        first = np.r_[inflow[label], np.zeros(length - 1)]
        signals.append({"inflow": first})
    spec = next(spec for spec in STRATEGIES.all() if spec.id == strategy_id)
    request = Request.of(strategy_id, spec.params_for([TRIGGER]))
    vectors_BSD, outcomes, _ = pool_layer(states, Weighing.of(contexts, [request]), signals)
    return vectors_BSD[:, 0], [row[0].applied for row in outcomes]


def statuses(train, params, make_vectors_table, matrix, applied):
    vectors = PooledVectors.from_table(make_vectors_table(train.ids, matrix, applied), train.ids)
    result = probe_cell(Design.build(train, None, params), vectors, None, params)
    assert all(measure.value is None for measure in result.measures)
    return {measure.status for measure in result.measures}


@pytest.mark.parametrize("strategy_id", READERS)
def test_what_only_one_class_can_select_is_no_result(train, params, make_vectors_table, strategy_id):
    matrix, applied = pooled(train, strategy_id)
    assert applied == [label == 1 for label in train.labels]
    direction = compute_direction("C1", DirectionContext(matrix, train.labels, np.empty((0, 2), dtype=int)))
    assert auroc(train.labels, matrix @ direction.vector) > 0.95, "the fallback would carry the label"
    assert statuses(train, params, make_vectors_table, matrix, applied) == {"class_dependent_coverage"}


@pytest.mark.parametrize("strategy_id", WINDOWS)
def test_windows_that_only_one_class_exceeds_are_no_result(train, params, make_vectors_table, strategy_id):
    matrix, applied = pooled(train, strategy_id, lengths=WINDOWS[strategy_id])
    assert applied == [label == 1 for label in train.labels]
    assert statuses(train, params, make_vectors_table, matrix, applied) == {"class_dependent_coverage"}


def test_attention_that_only_one_class_receives_is_no_result(train, params, make_vectors_table):
    matrix, applied = pooled(train, "S1_attention", inflow=(0.0, 1.0))
    assert applied == [label == 1 for label in train.labels]
    assert statuses(train, params, make_vectors_table, matrix, applied) == {"class_dependent_coverage"}


def test_every_strategy_that_may_fall_back_on_length_is_here():
    windows = {spec.id for spec in STRATEGIES.all() if spec.family == "window"}
    assert windows == set(WINDOWS)
