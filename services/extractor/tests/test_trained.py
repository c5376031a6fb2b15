"""A vector trained by gradient: its loss against the model by hand, its gradient against finite differences."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from poolbench.contracts.tables import PASSAGES, table_from_rows, vector_matrix
from poolbench.errors import CellError, LayerError
from poolbench.statuses import Status
from poolbench.steps.extractor import TRAINED_DIRECTION, TrainedParams
from poolbench.storage import Artifacts, open_store
from poolbench.worker.taskio import TaskIO
from poolbench_extractor.encode import DEFAULT_READING, PassageTexts, encode
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.service import create
from poolbench_extractor.trained import PairBatch, _order, trained_direction

from .conftest import CONFIGS, make_decoder
from .test_damage import by_hand

LAYER, BETA = 1, 0.1
#: Pairs that differ in one word.
TEXTS = [(f"{start} rain fell, rain again.", f"{start} stone lay, stone again.") for start in ("Here", "There", "Then")]


def passages(texts: list[tuple[str, str]] = TEXTS, matched: bool = True) -> pa.Table:
    rows = [
        {"passage_id": f"{side}{n}", "text": text, "label": label, "pair_id": f"{n}" if matched else None}
        for n, pair in enumerate(texts)
        for side, label, text in zip("ab", (1, 0), pair, strict=True)
    ]
    return table_from_rows(rows, PASSAGES)


def batch_of(decoder: Decoder) -> PairBatch:
    encoded = encode(decoder, PassageTexts([f"{n}" for n in range(6)], [text for pair in TEXTS for text in pair]))
    return PairBatch.of(decoder, list(zip(encoded[::2], encoded[1::2], strict=True)), LAYER, DEFAULT_READING)


def log_likelihood(decoder: Decoder, text: str, delta: torch.Tensor) -> float:
    """Sum over the tokens behind the BOS, with a hook on the block."""
    return by_hand(decoder.model, decoder.blocks[LAYER], decoder.tokenizer(text)["input_ids"], 1, delta)[0]


def test_margins_are_those_of_the_model_with_a_hook(decoder: Decoder) -> None:
    delta = torch.randn(decoder.width, generator=torch.Generator().manual_seed(0))
    batch = batch_of(decoder)
    with decoder.lock, torch.no_grad():
        margins = batch.margins(delta, BETA)
    for margin, pair in zip(margins.tolist(), TEXTS, strict=True):
        ratios = [log_likelihood(decoder, text, delta) - log_likelihood(decoder, text, 0 * delta) for text in pair]
        assert margin == pytest.approx(BETA * (ratios[0] - ratios[1]), rel=1e-3, abs=1e-4)


def test_the_gradient_equals_finite_differences(decoder: Decoder) -> None:
    batch, delta = batch_of(decoder), torch.full((decoder.width,), 0.3)
    delta[::3] = -0.5

    def loss(at: torch.Tensor) -> torch.Tensor:
        return -torch.nn.functional.logsigmoid(batch.margins(at, BETA)).mean()

    with decoder.lock:
        at = delta.clone().requires_grad_()
        loss(at).backward()  # type: ignore[no-untyped-call]
        gradient = at.grad
        assert gradient is not None and gradient.abs().max() > 1e-3
        for seed in range(3):
            along = torch.randn(decoder.width, generator=torch.Generator().manual_seed(seed))
            with torch.no_grad():
                slope = (loss(delta + 0.02 * along) - loss(delta - 0.02 * along)) / 0.04
            assert float(slope) == pytest.approx(float(gradient @ along), rel=0.02, abs=2e-3 * float(gradient.norm()))


def test_the_loss_falls_and_other_pairs_follow(llama: Decoder) -> None:
    params = TrainedParams(model="tiny", layer=LAYER, num_steps=40, learning_rate=0.02, beta=BETA)
    direction, losses = trained_direction(llama, passages(), params)
    assert losses[0] == pytest.approx(np.log(2)) and losses[-1] < 0.6 * losses[0]
    assert np.linalg.norm(direction.vector) == pytest.approx(1) and direction.raw_norm > 0
    again, _ = trained_direction(llama, passages(), params)
    np.testing.assert_array_equal(direction.vector, again.vector)
    unmatched, _ = trained_direction(llama, passages(matched=False), params)
    np.testing.assert_array_equal(direction.vector, unmatched.vector)  # in the order of their ids they are the same
    delta = torch.tensor(direction.vector * direction.raw_norm, dtype=torch.float32)
    rises = [
        log_likelihood(llama, f"Again {rest}", delta) - log_likelihood(llama, f"Again {rest}", 0 * delta)
        for rest in ("rain fell, rain.", "stone lay, stone.")
    ]
    assert rises[0] - rises[1] > 1


def test_each_pair_comes_once_before_any_comes_again() -> None:
    params = TrainedParams(model="tiny", layer=0, num_steps=10, num_pairs=2)
    numbers = [number for step in _order(5, params) for number in step]
    assert len(numbers) == 20
    assert all(sorted(numbers[start : start + 5]) == [0, 1, 2, 3, 4] for start in range(0, 20, 5))
    assert [len(step) for step in _order(1, params)] == [2] * 10


def test_what_cannot_be_trained_is_refused_with_its_reason() -> None:
    decoder = make_decoder(CONFIGS["llama"])
    params = TrainedParams(model="tiny", layer=LAYER)
    with pytest.raises(LayerError, match="layer 9 is out of range"):
        trained_direction(decoder, passages(), TrainedParams(model="tiny", layer=9))
    long = [("rain " * 200, "A stone."), ("a", "b")]  # beyond the window; without a token to predict
    for table in (passages(long), passages().slice(0, 1)):
        with pytest.raises(CellError, match="form a pair") as refused:
            trained_direction(decoder, table, params)
        assert refused.value.status == Status.TOO_FEW
    headless = Decoder(decoder.model, decoder.tokenizer, decoder.blocks, "local", False, has_head=False)
    with pytest.raises(CellError, match="no language-model head"):
        trained_direction(headless, passages(), params)


def test_the_task_writes_a_table_of_directions(tmp_path: Path, saved_llama: Path) -> None:
    store = Artifacts(open_store(str(tmp_path / "store")))
    store.write_table("passages.1", passages())
    params = TrainedParams(model=str(saved_llama), layer=LAYER, num_steps=2)
    task = TRAINED_DIRECTION.task(params, {"passages": "passages.1"}, ["directions"])
    io = TaskIO(task, store)
    create().handlers[task.kind](task, io)
    table = store.read_table(task.outputs["directions"])
    assert table["direction_id"].to_pylist() == ["trained"] and table["status"].to_pylist() == ["ok"]
    assert np.linalg.norm(vector_matrix(table["vector"])) == pytest.approx(1, rel=1e-6)
