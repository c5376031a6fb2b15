"""S3 from texts to D1 on the demo model: a head's vectors on the device, heads chosen inside the folds."""

from __future__ import annotations

import pytest

from poolbench.config import resolve_model
from poolbench.contracts.tables import parts_of
from poolbench.pooling.batch import Request
from poolbench.steps.prober import ProbeParams
from poolbench_corpora.planted import build_planted
from poolbench_extractor.core import extract
from poolbench_extractor.encode import PassageTexts as Texts
from poolbench_extractor.models.load import load_decoder
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors

LAYER = 3
PARAMS = ProbeParams(num_bootstrap=50, num_permutations=3, num_control_words=1)


@pytest.fixture(scope="module")
def cells():
    """Design, passages and vectors of S3 by split, of a small planted corpus."""
    corpus = build_planted("causation", seed=0, num_train=40, num_test=20, num_scorer=0)
    decoder = load_decoder(resolve_model("demo"))
    wanted = {LAYER: [Request.of("S3_iti_probe")]}
    splits, tables = {}, {}
    for split in ("train", "test"):
        table = corpus.filter([name == split for name in corpus["split"].to_pylist()])
        splits[split] = Passages.from_table(table)
        tables[split] = extract(decoder, Texts(table["passage_id"].to_pylist(), table["text"].to_pylist()), wanted)
    return Design.build(splits["train"], splits["test"], PARAMS), splits, tables


def probed(cells, strategy):
    design, splits, tables = cells
    train, test = (PooledVectors.from_table(tables[s][f"{strategy}/{LAYER}"], splits[s].ids) for s in ("train", "test"))
    result = probe_cell(design, train, test, PARAMS)
    return result, {measure.metric: measure for measure in result.measures}


def test_heads_become_a_vector_inside_the_folds(cells):
    assert parts_of(cells[2]["train"][f"S3_iti_probe/{LAYER}"]) == (4, "best_heads")
    result, found = probed(cells, "S3_iti_probe")
    assert found["d1.auroc"].status == found["d1.auroc_test"].status == "ok"
    assert found["d1.auroc"].value > 0.65
    assert [len(fold["heads"]) for fold in found["d1.auroc"].details["readouts"]] == [1] * 5
    assert found["d1.auroc_permuted"].value < found["d1.auroc"].value
    assert result.directions["C1"].vector.shape == (256,)
