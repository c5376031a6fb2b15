"""Packed weights: by hand, and scores of a scorer of packed weights."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from services.scorer.tests.conftest import load

from poolbench.model_folders.bases import find_base
from poolbench.steps.scorer import WEIGHTS
from poolbench_scorer.classifiers.scoring import score_texts
from poolbench_scorer.training.packing import GROUP, pack, unpack
from poolbench_scorer.training.shipped import base_tensors
from poolbench_scorer.training.train import Trained


def test_differences_are_rounded_to_the_127th_part_of_the_largest_of_their_group() -> None:
    base = {"layer.weight": torch.full((2, GROUP), 5.0), "layer.bias": torch.zeros(3)}
    trained = {"layer.weight": base["layer.weight"].clone(), "layer.bias": torch.tensor([1.0, 0.5, -2.0])}
    trained["layer.weight"][0, :3] += torch.tensor([127.0, -40.4, 40.6])  # a scale of 1; the other row is as before
    packed = pack(save_tensors(trained), base)
    assert load_tensors(packed)["layer.weight"].dtype == torch.int8
    weights = load_tensors(unpack(packed, base))
    assert weights["layer.weight"][0, :4].tolist() == [132.0, -35.0, 46.0, 5.0]
    assert torch.equal(weights["layer.weight"][1], base["layer.weight"][1])
    assert weights["layer.bias"].tolist() == [1.0, 0.5, -2.0]


def test_scores_of_packed_weights_agree(minilm_training: Trained, test_passages: pa.Table) -> None:
    base, weights = base_tensors(find_base("minilm")), minilm_training.files[WEIGHTS]
    packed = pack(weights, base)
    unpacked = Trained({**minilm_training.files, WEIGHTS: unpack(packed, base)}, minilm_training.measures)
    assert load_tensors(unpacked.files[WEIGHTS]).keys() == load_tensors(weights).keys()
    assert len(packed) < 0.27 * len(weights)
    texts = test_passages["text"].to_pylist()
    before, after = (score_texts({"s": load(trained)}, texts)["s"] for trained in (minilm_training, unpacked))
    assert np.ptp(before) > 0.5 and after == pytest.approx(before, abs=1e-3)
