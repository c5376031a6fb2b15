"""Damage of steering on given texts, and the lens of a direction: against the model by hand, with a hook."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from poolbench.contracts.tables import CALIBRATION, directions_schema, table_from_rows
from poolbench.errors import InputError, LayerError
from poolbench.steps.extractor import STEERED_TEXTS, DamageParams
from poolbench.storage import Artifacts
from poolbench_extractor.config import BatchLimits
from poolbench_extractor.damage import Edit, damage, edits_of, lens
from poolbench_extractor.encode import PassageTexts, Reading
from poolbench_extractor.models.decoder import Decoder

from .conftest import CONFIGS, FURTHER, TEXTS, make_decoder, passages_of, run


def unit(width: int, seed: int = 0) -> torch.Tensor:
    vector = torch.randn(width, generator=torch.Generator().manual_seed(seed))
    return vector / vector.norm()


def by_hand(
    model: Any, block: torch.nn.Module, ids: Sequence[int], first: int, delta: torch.Tensor | None
) -> tuple[float, int, torch.Tensor]:
    """Log-likelihood of the tokens from position `first` on, their number, and the log-probabilities before them."""

    def add(_module: Any, _args: Any, output: Any) -> Any:
        return (output[0] + delta, *output[1:]) if isinstance(output, tuple) else output + delta

    handle = block.register_forward_hook(add) if delta is not None else None
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([list(ids)])).logits[0].float()
    if handle is not None:
        handle.remove()
    log_p = logits.log_softmax(-1)[first - 1 : -1]
    targets = torch.tensor(list(ids[first:]))
    return float(log_p.gather(1, targets[:, None]).double().sum()), len(targets), log_p


def check(decoder: Decoder, texts: Sequence[str], layer: int, strengths: Sequence[float], first: int) -> pa.Table:
    vector = unit(decoder.width)
    edits = [Edit("C1", vector, strength, 3 * strength) for strength in strengths]
    passages = passages_of(texts)
    table, _ = damage(decoder, passages, edits, layer)
    rows = table.to_pylist()
    assert [row["direction_id"] for row in rows] == ["unsteered"] * len(texts) + ["C1"] * len(texts) * len(strengths)
    for row in rows:
        ids = decoder.tokenizer(texts[int(row["passage_id"][1:])])["input_ids"]
        _, _, base = by_hand(decoder.model, decoder.blocks[layer], ids, first, None)
        delta = row["alpha"] * vector
        total, count, log_q = by_hand(decoder.model, decoder.blocks[layer], ids, first, delta)
        kl = float((base.exp() * (base - log_q)).sum(-1).mean())
        assert row["num_tokens"] == count and row["status"] == "ok"
        assert row["log_likelihood"] == pytest.approx(total, rel=1e-5, abs=1e-4)
        assert row["kl"] == pytest.approx(kl, rel=1e-4, abs=1e-6)
    return table


def test_likelihood_and_divergence_are_those_of_the_model_with_a_hook(decoder: Decoder) -> None:
    table = check(decoder, TEXTS, layer=1, strengths=(0.5, 1.0), first=1)
    kl = np.array(table["kl"]).reshape(3, len(TEXTS))
    assert (kl[0] == 0).all() and (kl[1] > 1e-4).all() and kl[2].mean() > kl[1].mean()


def test_batches_and_other_edits_change_nothing(llama: Decoder) -> None:
    passages, vector = passages_of(TEXTS), unit(llama.width)
    one, two = Edit("C1", vector, 1.0, 2.0), Edit("C3", unit(llama.width, 1), 1.0, 5.0)
    together = damage(llama, passages, [one, two], 1)[0].slice(0, 2 * len(TEXTS))
    apart, _ = damage(llama, passages, [one], 1, reading=Reading(limits=BatchLimits(max_passages=1)))
    left, _ = damage(llama, passages, [one], 1, reading=Reading(limits=BatchLimits(padding_side="left")))
    for other in (apart, left):
        assert other["passage_id"] == together["passage_id"]
        for column in ("log_likelihood", "kl"):
            np.testing.assert_allclose(other[column], together[column], rtol=1e-4, atol=1e-6)


def test_texts_and_models_without_a_figure_have_a_reason() -> None:
    decoder = make_decoder(CONFIGS["llama"])
    passages = PassageTexts(["one", "long", "fine"], ["a", "word " * 200, "Rain fell."], bare=[True, False, False])
    table, _ = damage(decoder, passages, [Edit("C1", unit(decoder.width), 1.0, 1.0)], 0)
    assert table["status"].to_pylist() == ["too_few", "failed", "ok"] * 2
    assert "no token to predict" in table["reason"][0].as_py() and "window" in table["reason"][1].as_py()
    decoder = make_decoder(CONFIGS["llama"])
    decoder.backbone.norm = torch.nn.Identity()
    (row,) = lens(decoder, "C1", unit(decoder.width)).to_pylist()
    assert row["status"] == "not_implemented" and "lacks a norm" in row["reason"] and row["value"] is None


def lens_by_hand(name: str, decoder: Decoder, vector: torch.Tensor) -> np.ndarray:
    norms = {"llama": "norm", "gemma2": "norm", "gpt2": "ln_f", "neox": "final_layer_norm", "opt": "final_layer_norm"}
    norm = getattr(decoder.backbone, norms[name])
    weight = 1 + norm.weight if name == "gemma2" else norm.weight
    centred = vector if name in ("llama", "gemma2") else vector - vector.mean()
    logits = decoder.model.get_output_embeddings().weight @ (weight * centred)
    return (logits - logits.mean()).detach().numpy()


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "neox", "opt"])
def test_the_lens_is_the_unembedding_with_the_norm_folded_in(name: str) -> None:
    decoder = make_decoder((CONFIGS | FURTHER)[name])
    generator = torch.Generator().manual_seed(3)
    for parameter in decoder.backbone.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    vector = unit(decoder.width)
    rows = lens(decoder, "C1", vector).to_pylist()
    expected = lens_by_hand(name, decoder, vector)[: len(decoder.tokenizer)]
    order = np.argsort(-expected)
    assert [row["token_id"] for row in rows if row["promoted"]] == order[:10].tolist()
    assert [row["token_id"] for row in rows if not row["promoted"]] == order[::-1][:10].tolist()
    for row in rows:
        assert row["value"] == pytest.approx(expected[row["token_id"]], abs=1e-4) and row["strength"] is None
        assert row["token"] == decoder.tokenizer.decode([row["token_id"]])


def test_the_measured_change_of_logits_is_that_of_the_texts(llama: Decoder) -> None:
    vector = unit(llama.width)
    passages = PassageTexts(["a", "b"], TEXTS[:2])
    _, tokens = damage(llama, passages, [Edit("C1", vector, 0.5, 4.0)], 3)
    changes = []
    for text in TEXTS[:2]:
        ids = torch.tensor([llama.tokenizer(text)["input_ids"]])
        before = llama.model(input_ids=ids).logits[0]
        handle = llama.blocks[3].register_forward_hook(lambda _m, _a, output: output + 4.0 * vector)
        changes.append((llama.model(input_ids=ids).logits[0] - before)[:-1].detach().double())
        handle.remove()
    expected = torch.cat(changes).mean(0)
    expected -= expected.mean()
    for row in tokens.to_pylist():
        assert row["value"] == pytest.approx(float(expected[row["token_id"]]), abs=1e-4) and row["strength"] == 0.5
    first = tokens.to_pylist()[0]
    assert first["token_id"] == int(expected[: len(llama.tokenizer)].argmax())


@pytest.fixture
def artifacts(artifacts: Artifacts) -> Artifacts:
    directions = [
        {"direction_id": "C1", "vector": unit(32).tolist()},
        {"direction_id": "C3", "vector": None, "status": "failed", "reason": "zero"},
    ]
    artifacts.write_table("directions.1", table_from_rows(directions, directions_schema(32)))
    norms = [{"layer": 1, "median_residual_norm": 2.0, "num_tokens": 9}]
    artifacts.write_table("calibration.1", table_from_rows(norms, CALIBRATION))
    return artifacts


def made(artifacts: Artifacts, model: Path, **params: Any) -> dict[str, pa.Table]:
    inputs = {"passages": "corpus.passages.1", "directions": "directions.1", "calibration": "calibration.1"}
    settings = DamageParams(model=str(model), **params)
    task = STEERED_TEXTS.task(settings, inputs, ["damage", "lens"])
    run(task, artifacts)
    return {role: artifacts.read_table(key) for role, key in task.outputs.items()}


def test_the_task_writes_both_tables(artifacts: Artifacts, saved_llama: Path) -> None:
    tables = made(artifacts, saved_llama, layer=1, strengths=(0.0, 0.25, 1.5))
    assert tables["damage"].num_rows == 3 * len(TEXTS)
    assert sorted(set(tables["damage"]["alpha"].to_pylist())) == [0.0, 0.5, 3.0]
    assert set(tables["lens"]["strength"].to_pylist()) == {None, 0.25, 1.5}
    with pytest.raises(InputError, match="C3 is null or not finite"):
        made(artifacts, saved_llama, layer=1, strengths=(1.0,), direction_ids=("C3",))
    with pytest.raises(InputError, match="has no C9; it has C1, C3"):
        made(artifacts, saved_llama, layer=1, strengths=(1.0,), direction_ids=("C9",))
    with pytest.raises(InputError, match="calibration has no layer 2; it has 1"):
        made(artifacts, saved_llama, layer=2, strengths=(1.0,))
    with pytest.raises(LayerError, match="layer 44 is out of range"):
        made(artifacts, saved_llama, layer=44, strengths=(1.0,), alpha_unit="absolute")


def test_strength_0_is_no_edit() -> None:
    table = table_from_rows([{"direction_id": "C1", "vector": [1.0, 0.0]}], directions_schema(2))
    assert [edit.alpha for edit in edits_of(table, ["C1"], [0.0, 0.5, -1.0], 4.0)] == [2.0, -4.0]
