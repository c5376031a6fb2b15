"""States while the model runs without some directions at a layer: against the model by hand, with a hook."""

from pathlib import Path

import numpy as np
import torch
from services.extractor.tests.conftest import TEXTS, passages_of

from poolbench.contracts.tables import directions_schema, table_from_rows, vector_matrix
from poolbench.pooling.batch import Request
from poolbench.steps.base import StrategyParam
from poolbench.steps.extractor import EXTRACT, STATES, VECTORS, ExtractParams
from poolbench.storage import Artifacts
from poolbench.worker.taskio import TaskIO
from poolbench_extractor.core import extract
from poolbench_extractor.encode import Reading
from poolbench_extractor.erasing import Erased
from poolbench_extractor.models.decoder import Decoder
from poolbench_extractor.models.load import load_decoder
from poolbench_extractor.service import create

LAYER, LATER = 1, 2


def directions(width: int):
    numbers = np.random.default_rng(0).normal(size=(2, width)).astype(np.float32)
    rows = [{"direction_id": f"{n}", "vector": vector.tolist()} for n, vector in enumerate(numbers)]
    return table_from_rows(rows, directions_schema(width))


def by_hand(decoder: Decoder, text: str, layer: int) -> np.ndarray:
    """Mean state behind the BOS at a layer, while block LAYER loses both directions by least squares."""
    basis = torch.tensor(vector_matrix(directions(decoder.width)["vector"]))

    def erase(hidden: torch.Tensor) -> torch.Tensor:
        return hidden - torch.linalg.lstsq(basis.T, hidden[0].T).solution.T @ basis

    hook = decoder.blocks[LAYER].register_forward_hook(
        lambda _m, _a, out: (erase(out[0]), *out[1:]) if isinstance(out, tuple) else erase(out)
    )
    kept = []
    second = decoder.blocks[layer].register_forward_hook(
        lambda _m, _a, out: kept.append(out[0] if isinstance(out, tuple) else out)
    )
    with torch.no_grad():
        decoder.backbone(input_ids=torch.tensor([decoder.tokenizer(text)["input_ids"]]))
    hook.remove()
    second.remove()
    return kept[0][0, 1:].mean(0).numpy()


def test_later_states_are_those_of_the_model_with_a_hook(any_decoder: Decoder) -> None:
    erased = Erased.of(LAYER, directions(any_decoder.width))
    passages = passages_of(TEXTS)
    requests = {layer: [Request.of("A1_mean")] for layer in (LAYER - 1, LAYER, LATER)}
    reading = Reading(erased=erased)
    tables = extract(any_decoder, passages, requests, reading=reading)
    whole = extract(any_decoder, passages, requests)
    matrices = {role: vector_matrix(table["vector"]) for role, table in tables.items()}
    for layer in (LAYER, LATER):
        expected = np.stack([by_hand(any_decoder, text, layer) for text in TEXTS])
        np.testing.assert_allclose(matrices[f"A1_mean/{layer}"], expected, rtol=1e-3, atol=1e-4)
        assert np.abs(matrices[f"A1_mean/{layer}"] - vector_matrix(whole[f"A1_mean/{layer}"]["vector"])).max() > 0.01
    assert np.abs(matrices[f"A1_mean/{LAYER}"] @ erased.basis_rD.numpy().T).max() < 1e-4
    before = f"A1_mean/{LAYER - 1}"
    np.testing.assert_array_equal(matrices[before], vector_matrix(whole[before]["vector"]))


def test_what_is_erased_enters_keys_and_nothing_else_moves() -> None:
    settings = {"model": "demo", "layers": [LATER], "strategies": [StrategyParam(id="A1_mean")]}
    inputs, erased = {"passages": "texts.1"}, {"passages": "texts.1", "directions": "directions.1"}
    whole, without = ExtractParams(**settings), ExtractParams(**settings, erased_layer=LAYER)
    for role in (VECTORS("A1_mean", LATER), STATES(LATER)):
        keys = {
            EXTRACT.key(role, params, some)
            for params, some in (
                (whole, inputs),
                (without, erased),
                (without, erased | {"directions": "directions.2"}),
                (without.model_copy(update={"erased_layer": 0}), erased),
            )
        }
        assert len(keys) == 4


def test_the_task_reads_the_directions(artifacts: Artifacts, saved_llama: Path) -> None:
    artifacts.write_table("directions.1", directions(32))
    settings = {"model": str(saved_llama), "layers": [LATER], "strategies": [StrategyParam(id="A1_mean")]}
    role = VECTORS("A1_mean", LATER)
    task = EXTRACT.task(
        ExtractParams(**settings, erased_layer=LAYER),
        {"passages": "corpus.passages.1", "directions": "directions.1"},
        [role],
    )
    service = create()
    service.handlers[task.kind](task, TaskIO(task, artifacts))
    decoder = load_decoder(ExtractParams(**settings).reference())
    vectors = vector_matrix(artifacts.read_table(task.outputs[role])["vector"])
    np.testing.assert_allclose(vectors[0], by_hand(decoder, TEXTS[0], LATER), rtol=1e-3, atol=1e-4)
