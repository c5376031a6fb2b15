"""``POST /embed``, and encoders as modules of sentence-transformers, which are saved and loaded again."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from services.extractor.tests.conftest import TEXTS, WORDS
from services.extractor.tests.test_encoder import annotate

from poolbench.contracts.tables import ANNOTATIONS, table_from_rows, vector_matrix
from poolbench.contracts.wire import ARROW_STREAM
from poolbench.errors import ConfigError
from poolbench.pooling.batch import Request
from poolbench.pooling.kept import words_by_passage
from poolbench_extractor.core import extract
from poolbench_extractor.embedding.texts import text_id
from poolbench_extractor.encode import PassageTexts
from poolbench_extractor.encoder import PoolingEncoder
from poolbench_extractor.models.decoder import Decoder


def ask(client: TestClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/embed", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ask_arrow(client: TestClient, body: dict[str, Any]) -> pa.Table:
    answer = client.post("/embed", json=body, headers={"Accept": ARROW_STREAM})
    assert answer.status_code == 200 and answer.headers["content-type"] == ARROW_STREAM
    return pa.ipc.open_stream(answer.content).read_all()


def test_one_text_that_fails_does_not_take_the_others(client: TestClient, body: dict[str, Any]) -> None:
    alone = ask(client, body)["vectors"]
    mixed = ask(client, {**body, "texts": ["", *body["texts"], "long " * 400]})
    assert mixed["num_failed"] == 2 and mixed["vectors"][0] is None and mixed["vectors"][-1] is None
    assert mixed["status"] == ["failed", *["ok"] * len(alone), "failed"]
    assert "no real token" in mixed["reason"][0] and "the window is 128" in mixed["reason"][-1]
    np.testing.assert_allclose(mixed["vectors"][1:-1], alone, rtol=1e-5, atol=1e-6)


def test_json_and_arrow_carry_the_same(client: TestClient, body: dict[str, Any]) -> None:
    body = {**body, "texts": [*body["texts"], ""], "strategy": "W2_last_k", "params": {"k": 3}}
    as_json, table = ask(client, body), ask_arrow(client, body)
    expected = [[np.nan] * 32 if row is None else row for row in as_json["vectors"]]
    np.testing.assert_array_equal(vector_matrix(table["vector"]), np.asarray(expected, dtype=np.float32))
    assert table["status"].to_pylist() == as_json["status"] and table["passage_id"].to_pylist() == as_json["ids"]
    notes = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
    assert notes["params"] == '{"k": 3}' and as_json["params"] == {"k": 3}
    assert (notes["layer"], as_json["layer"], notes["strategy_version"]) == ("1", 1, "1")
    assert notes["model_revision"] == as_json["model_revision"] and as_json["model_revision"].startswith("local-")
    assert notes["dtype"] == "float32"


def test_ids_name_texts_for_strategies_that_draw(client: TestClient, body: dict[str, Any], llama: Decoder) -> None:
    ids = [f"p{index}" for index in range(len(body["texts"]))]
    pooled = extract(llama, PassageTexts(ids, body["texts"]), {1: [Request.of("A7_random")]})["A7_random/1"]
    named = ask(client, {**body, "strategy": "A7_random", "ids": [*ids[:-1], None]})
    assert named["ids"] == [*ids[:-1], text_id(body["texts"][-1])]
    np.testing.assert_allclose(named["vectors"][:-1], vector_matrix(pooled["vector"])[:-1], rtol=1e-5, atol=1e-6)


def test_annotations_go_to_the_linguistic_strategies(client: TestClient, body: dict[str, Any], llama: Decoder) -> None:
    texts = ["one two", "two one"]
    rows = [{"passage_id": "0", **WORDS}, {"passage_id": "1", **WORDS}]
    words = words_by_passage(table_from_rows(rows, ANNOTATIONS))
    wanted = {1: [Request.of("L1_pos_filtered")]}
    direct = extract(llama, PassageTexts(["0", "1"], texts, words), wanted)["L1_pos_filtered/1"]
    answer = ask(client, {**body, "strategy": "L1_pos_filtered", "texts": texts, "annotations": rows})
    np.testing.assert_allclose(answer["vectors"], vector_matrix(direct["vector"]), rtol=1e-5, atol=1e-6)
    assert answer["applied"] == [True, True] and answer["token_share"][0] < 1


@pytest.mark.parametrize(
    ("change", "status", "expected"),
    [
        ({"strategy": "L1_pos_filtered"}, 400, "POST /pooler/annotate"),
        ({"strategy": "L1_pos_filtered", "annotations": [WORDS]}, 400, "1 entries for 5 texts"),
        ({"strategy": "L1_pos_filtered", "annotations": [{}] * 5}, 422, "annotations.0.word_start: Field required"),
        ({"strategy": "L1_pos_filtered", "annotations": [{**WORDS, "head": [1]}] * 5}, 400, "differ in length"),
        (
            {"strategy": "L1_pos_filtered", "annotations": [{**WORDS, "head": ["x", 1]}] * 5},
            422,
            "annotations.0.head.0",
        ),
        ({"strategy": "L1_pos_filtered", "annotations": [{**WORDS, "head": [0, 2]}] * 5}, 400, "from 0 to 1"),
        (
            {"strategy": "L1_pos_filtered", "annotations": [{**WORDS, "word_end": [3, 2**70]}] * 5},
            422,
            "word_end.1",
        ),
        ({"strategy": "S4_sif"}, 400, "train passages of all concepts"),
        ({"ids": ["a", "a", "b", "c", "d"]}, 400, "stands for two texts"),
        ({"layer": 4}, 400, "blocks 0..3"),
        ({"texts": []}, 422, "texts"),
    ],
)
def test_refusals_say_what_to_do(
    client: TestClient, body: dict[str, Any], change: dict[str, Any], status: int, expected: str
) -> None:
    for headers in ({}, {"Accept": ARROW_STREAM}):
        answer = client.post("/embed", json={**body, **change}, headers=headers)
        assert answer.status_code == status, answer.text
        assert expected in answer.json()["error"]["message"]


def test_a_saved_encoder_gives_the_same_vectors(saved_llama: Path, tmp_path: Path) -> None:
    """Also through the library's own class, which asks whether the code of the module is trusted."""
    prompts = {"query": "It says: "}
    encoder = PoolingEncoder(str(saved_llama), "W2_last_k", 2, params={"k": 3}, prompts=prompts, max_seq_length=20)
    vectors = encoder.encode(TEXTS, prompt_name="query")
    encoder.save(str(tmp_path / "saved"))
    assert sum(file.stat().st_size for file in (tmp_path / "saved").rglob("*")) < 100_000  # no weights
    again = SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True)
    np.testing.assert_array_equal(again.encode(TEXTS, prompt_name="query"), vectors)
    assert again.max_seq_length == 20
    for card in (encoder.model_card_data, again.model_card_data):
        assert card.base_model_revision == again[0].decoder.revision
        assert str(card.model_name).startswith("poolbench/") and str(card.model_name).endswith("-W2_last_k-2")


def test_what_a_saved_encoder_needs_is_checked(llama: Decoder, saved_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not loaded by name"):
        PoolingEncoder(llama).save(str(tmp_path / "of a decoder"))
    with pytest.raises(ConfigError, match="annotations, which are not saved"):
        PoolingEncoder(str(saved_llama), "L1_pos_filtered", annotate=annotate).save(str(tmp_path / "annotated"))
    copy = shutil.copytree(saved_llama, tmp_path / "model")
    PoolingEncoder(str(copy)).save(str(tmp_path / "saved"))
    weights = load_file(copy / "model.safetensors")
    save_file({name: tensor * 2 for name, tensor in weights.items()}, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="other weights than when the encoder was saved"):
        SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True)
