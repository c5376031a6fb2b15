"""Vectors under names of models: an OpenAI client steers by the model's name alone."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_steerer.http.served import ServedRecords, ServedVectors
from poolbench_steerer.steered_names import SteeredName

pytestmark = pytest.mark.lane(name="engines")

LAYER, NORM = 2, 60.0
CHAT = [{"role": "user", "content": "The river"}]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def address(host: Any, serve: Any, store: Path) -> Iterator[str]:
    with serve(host, store) as address:
        yield address


@pytest.fixture(scope="module")
def body(tiny_model: Path, unit_vectors: np.ndarray) -> dict[str, Any]:
    edit = {"vector": unit_vectors[0].tolist(), "layer": LAYER, "strength": 1.0, "residual_norm": NORM}
    return {"name": "tide", "model": str(tiny_model), "strength": 0.6, "steering": {"edits": [edit]}}


@pytest.fixture(scope="module")
def name(http: httpx.Client, body: dict[str, Any], tiny_model: Path) -> str:
    served = http.post("/served", json=body)
    assert served.status_code == 200, served.text
    assert served.json()["id"] == f"{tiny_model}+tide@.6" and served.json()["layers"] == [LAYER]
    return f"{tiny_model}+tide"


def explicit(strength: float, body: dict[str, Any]) -> dict[str, Any]:
    return {"steering": {**body["steering"]["edits"][0], "strength": strength}}


def test_models_are_listed_with_their_vectors(client, name, tiny_model) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert listed[f"{name}@.6"].model_extra["root"] == str(tiny_model)
    assert client.models.retrieve(name).id == name
    with pytest.raises(openai.NotFoundError, match=r"did you mean .*tide@\.6"):
        client.models.retrieve(f"{tiny_model}+tied@.6")


@pytest.mark.parametrize(("suffix", "strength"), [("", 0.6), ("@.6", 0.6), ("@-1.25", -1.25), ("@0", 0.0)])
def test_a_completion_is_steered_by_its_models_name_as_by_the_field(
    client, name, body, tiny_model, model_ref, suffix, strength
) -> None:
    """That the field steers as hooks in Transformers do is tested with the engine."""
    from poolbench_steerer.tokens import tokens_of

    prompt = list(tokens_of(model_ref).encode("The river"))
    options: dict[str, Any] = {"prompt": prompt, "max_tokens": 8, "temperature": 0.0, "logprobs": 0}
    extra = {"ignore_eos": True}
    by_name = client.completions.create(model=name + suffix, extra_body=extra, **options)
    by_field = client.completions.create(model=str(tiny_model), extra_body=extra | explicit(strength, body), **options)
    assert SteeredName.parse(by_name.model) == SteeredName(str(tiny_model), "tide", strength)
    assert by_name.choices[0].text == by_field.choices[0].text
    receipts = [answer.choices[0].model_extra["steering_receipt"] for answer in (by_name, by_field)]
    assert receipts[0] == receipts[1] and receipts[0]["positions_expected"] == (8 if strength else 0)
    logprobs = by_name.choices[0].logprobs.token_logprobs
    np.testing.assert_allclose(logprobs, by_field.choices[0].logprobs.token_logprobs, atol=1e-5)
    streamed = list(client.completions.create(model=name + suffix, stream=True, extra_body=extra, **options))
    assert "".join(chunk.choices[0].text for chunk in streamed) == by_name.choices[0].text
    assert streamed[-1].choices[0].model_extra["steering_receipt"] == receipts[0]


def test_a_chat_is_steered_by_its_models_name(client, name, body, tiny_model) -> None:
    options: dict[str, Any] = {"messages": CHAT, "max_tokens": 8, "temperature": 0.0}
    by_name = client.chat.completions.create(model=f"{name}@1.5", **options)
    by_field = client.chat.completions.create(model=str(tiny_model), extra_body=explicit(1.5, body), **options)
    plain = client.chat.completions.create(model=str(tiny_model), **options)
    assert by_name.choices[0].message.content == by_field.choices[0].message.content
    assert by_name.choices[0].message.content != plain.choices[0].message.content
    assert by_name.choices[0].model_extra["steering_receipt"]["positions_changed"] > 0
    chunks = list(client.chat.completions.create(model=f"{name}@1.5", stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == by_name.choices[0].message.content


@pytest.mark.parametrize(("suffix", "is_exceeded"), [("", False), ("@.35", False), ("@.6", True), ("@-.1", True)])
def test_a_receipt_names_the_limit_of_its_vector(http, client, body, tiny_model, suffix, is_exceeded) -> None:
    limit = {"strength": 0.35, "wrong_way": 0.2, "fall": 0.1, "perplexity_ratio": 1.5, "alpha": 0.05}
    served = http.post("/served", json=body | {"name": "limited", "strength": 0.2, "limit": limit})
    assert served.status_code == 200, served.text
    answer = client.completions.create(model=f"{tiny_model}+limited{suffix}", prompt="The river", max_tokens=4)
    receipt = answer.choices[0].model_extra["steering_receipt"]
    assert receipt["limit"] == limit | {"is_exceeded": is_exceeded}
    http.delete("/served", params={"id": f"{tiny_model}+limited"})


def test_a_null_limit_covers_no_strength(http, client, body, tiny_model) -> None:
    levels = {"wrong_way": 0.2, "fall": 0.1, "perplexity_ratio": 1.5, "alpha": 0.05}
    http.post("/served", json=body | {"name": "unknown", "limit": levels | {"strength": None}})
    answer = client.completions.create(model=f"{tiny_model}+unknown@.1", prompt="The river", max_tokens=4)
    limit = answer.choices[0].model_extra["steering_receipt"]["limit"]
    assert limit == levels | {"strength": None, "is_exceeded": True}
    http.delete("/served", params={"id": f"{tiny_model}+unknown"})
    wrong = http.post("/served", json=body | {"name": "wrong", "limit": levels | {"strength": -1}})
    assert wrong.status_code == 422


def test_names_outlive_the_replica_and_are_removed(host, http, name, body, store, client, tiny_model) -> None:
    assert http.get("/served").json()["served"][0] == {
        "id": f"{name}@.6", "model": str(tiny_model), "name": "tide", "strength": 0.6, "layers": [LAYER],
    }  # fmt: skip
    replica = ServedVectors(host, ServedRecords(lambda: Artifacts(FolderStore(store))))
    assert [facts["id"] for facts in replica.facts()] == [f"{name}@.6"]
    second = http.post("/served", json=body | {"name": "mill", "strength": 2}).json()["id"]
    assert second == f"{tiny_model}+mill@2"
    assert http.delete("/served", params={"id": second}).json() == http.get("/served").json()
    assert http.delete("/served", params={"id": second}).status_code == 404
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model=second, prompt="The")


def test_a_damaged_record_is_left_out_and_can_be_removed(http, name, body, store, tiny_model) -> None:
    before = set(store.glob("served/vectors/*"))
    http.post("/served", json=body | {"name": "broken"})
    (record,) = {*store.glob("served/vectors/*")} - before
    record.write_text("{}")
    assert [facts["name"] for facts in http.get("/served").json()["served"]] == ["tide"]
    answer = http.post("/v1/completions", json={"model": f"{tiny_model}+broken", "prompt": "The"})
    assert answer.status_code == 503 and "serve it again" in answer.json()["error"]["message"]
    assert http.delete("/served", params={"id": f"{tiny_model}+broken"}).status_code == 200


def edited(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    edit = body["steering"]["edits"][0] | fields
    return body | {"steering": {"edits": [edit]}}


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"vector": [1.0] * 255}, 400, "255"),
        ({"vector": [0.0] * 256}, 400, "zero|norm|length"),
        ({"layer": 6}, 400, "layer 6"),
        ({"vector": None, "vector_id": "x"}, 400, "needs the numbers"),
        ({"strength": 1e8}, 400, "beyond"),
    ],
)
def test_what_does_not_fit_is_refused(http, body, fields, status, said) -> None:
    answer = http.post("/served", json=edited(body | {"name": "other"}, **fields))
    assert answer.status_code == status and re.search(said, answer.json()["error"]["message"]), answer.text
    assert all(facts["name"] != "other" for facts in http.get("/served").json()["served"])


def test_another_revision_and_a_second_steering_are_refused(http, client, name, body, store, tiny_model) -> None:
    answer = http.post("/served", json=body | {"name": "other", "model_revision": "local-0"})
    assert answer.status_code == 400 and "it is of revision local-0" in answer.json()["error"]["message"]
    assert http.post("/served", json=body | {"name": "a/b"}).status_code == 422
    nan = http.post("/served", content=str(edited(body, vector=[float("nan")] * 256)).replace("'", '"'))
    assert nan.status_code == 422
    with pytest.raises(openai.BadRequestError, match="steered already"):
        client.completions.create(model=name, prompt="The", extra_body=explicit(1.0, body))
    with pytest.raises(openai.BadRequestError, match="beyond"):
        client.completions.create(model=f"{name}@99999999999", prompt="The")
    (record,) = store.glob("served/vectors/*")
    before = record.read_text()
    record.write_text(before.replace('"model_revision":"', '"model_revision":"x'))
    with pytest.raises(openai.BadRequestError, match="serve it again"):
        client.completions.create(model=name, prompt="The")
    record.write_text(before)


def test_a_condition_reads_a_served_vector_by_name(client, http, name, body, tiny_model) -> None:
    """Whole or short; a vector of another model, an unknown name, and one with several layers are refused."""
    steering = explicit(1.0, body)["steering"]

    def ask(read: Any, **bound: float) -> Any:
        extra = {"steering": steering | {"where": {"read": read, **bound}}, "ignore_eos": True}
        return client.completions.create(model=str(tiny_model), prompt="The", max_tokens=4, extra_body=extra)

    for read in (name, "tide"):
        always, never = (ask(read, above=bound).choices[0].model_extra["steering_receipt"] for bound in (-1e6, 1e6))
        assert (always["where"]["positions_spared"], never["where"]["positions_spared"]) == (0, 4)
        assert always["where"]["layer"] == LAYER
    edits = [edit | {"layer": layer} for layer in (1, 2) for edit in body["steering"]["edits"]]
    assert http.post("/served", json=body | {"name": "two", "steering": {"edits": edits}}).status_code == 200
    for read, said in ((f"{name}d", "tided"), ("demo+tide", "is a vector of demo"), ("two", "several vectors")):
        with pytest.raises(openai.APIStatusError, match=said) as refused:
            ask(read, above=0.0)
        assert refused.value.status_code in (400, 404)
    http.delete("/served", params={"id": f"{tiny_model}+two"})


@pytest.fixture(scope="module")
def probe(http: httpx.Client, tiny_model: Path, unit_vectors: np.ndarray) -> dict[str, Any]:
    body = {
        "concept": "contrast", "strategy": "A1_mean", "layer": 4, "weights": (2.5 * unit_vectors[3]).tolist(),
        "offset": -0.75, "run": "run-1", "model": str(tiny_model),
    }  # fmt: skip
    for strategy in ("A2_max", "L3_entity", "A7_random", "P1_last_token", "W1_first_k:k=3", "mine", "A1_mean"):
        served = http.post("/served/probes", json=body | {"strategy": strategy})
        assert served.status_code == 200, served.text
    return body


@torch.inference_mode()
def states_by_hand(folder: Path, ids: list[int], layer: int) -> np.ndarray:
    """The output of a block at each position, by Transformers."""
    model, streams = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), []
    model.model.layers[layer].register_forward_hook(
        lambda _module, _inputs, output: streams.append(output[0] if isinstance(output, tuple) else output)
    )
    model(torch.tensor([ids]))
    return streams[0].reshape(len(ids), -1).double().numpy()


def test_a_probe_is_read_by_name_and_pooled_as_transformers_does(
    http, probe, tiny_model, model_ref, unit_vectors
) -> None:
    from poolbench_steerer.tokens import tokens_of

    prompt = list(tokens_of(model_ref).encode("The river"))
    body = {"model": str(tiny_model), "prompt": prompt, "max_tokens": 8, "temperature": 0.0, "ignore_eos": True}

    def read(strategy: str, **more: Any) -> dict[str, Any]:
        reading = {"concept": "contrast", "strategy": strategy, "probe": True}
        answer = http.post("/v1/completions", json=body | {"reading": reading} | more)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["reading"]

    greedy = list(prompt)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    with torch.inference_mode():
        for _ in range(8):
            greedy.append(int(model(torch.tensor([greedy])).logits[0, -1].argmax()))
    states = states_by_hand(tiny_model, greedy[:-1], 4)
    weights = 2.5 * unit_vectors[3].astype(np.float64)
    by_position = states @ weights - 0.75
    expected = by_position[len(prompt) - 1 :]
    mean = read("A1_mean")
    np.testing.assert_allclose(mean["scores"], expected, atol=1e-4)
    assert mean["probe"] == {"concept": "contrast", "strategy": "A1_mean", "layer": 4, "run": "run-1"}
    assert (mean["layer"], mean["direction"], mean["pooled"]["reason"]) == (4, None, None)
    pooled_state = states[len(prompt) - 1 :].mean(axis=0)
    assert mean["pooled"]["value"] == pytest.approx(pooled_state @ weights - 0.75, abs=1e-4)
    assert read("P1_last_token")["pooled"]["value"] == pytest.approx(expected[-1], abs=1e-4)
    assert read("W1_first_k:k=3")["pooled"]["value"] == pytest.approx(expected[:3].mean(), abs=1e-4)
    reasons = {
        "A2_max": "each number",
        "L3_entity": "needs annotation",
        "A7_random": "id of the passage",
        "mine": "unknown",
    }
    for strategy, reason in reasons.items():
        pooled = read(strategy)["pooled"]
        assert pooled["value"] is None and reason in pooled["reason"]
    with_prompt = read("A1_mean", echo=True)
    assert with_prompt["scores"][0] is None
    assert with_prompt["pooled"]["value"] == pytest.approx(mean["pooled"]["value"], abs=1e-4)
    np.testing.assert_allclose(with_prompt["scores"][1:], by_position, atol=1e-4)


def test_a_chat_and_its_stream_read_the_probe_that_was_served_last(client, probe, tiny_model) -> None:
    options: dict[str, Any] = {"model": str(tiny_model), "messages": CHAT, "max_tokens": 6, "temperature": 0.0}
    extra = {"reading": [{"concept": "contrast", "probe": True}, {"concept": "contrast", "layer": 4, "probe": True}]}
    (choice,) = client.chat.completions.create(extra_body=extra, **options).choices
    first, second = choice.model_extra["reading"]
    assert first == second and first["probe"]["strategy"] == "A1_mean" and first["pooled"]["value"] is not None
    parts = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, extra_body=extra, **options)]
    read = [part.model_extra["reading"][0] for part in parts]
    np.testing.assert_allclose([score for part in read for score in part["scores"]], first["scores"], atol=1e-5)
    assert read[-1]["pooled"]["value"] == pytest.approx(first["pooled"]["value"], abs=1e-5)
    assert all("pooled" not in part for part in read[:-1])


@pytest.mark.parametrize(
    ("reading", "error", "said"),
    [
        ({"concept": "modality", "probe": True}, openai.NotFoundError, "vectors serve-probe modality"),
        ({"concept": "contrast", "layer": 2, "probe": True}, openai.NotFoundError, "no such probe"),
        ({"concept": "contrast", "offset": 1.0, "probe": True}, openai.BadRequestError, "the probe has one"),
        ({"vector_id": "x", "layer": 1, "probe": True}, openai.BadRequestError, "for a concept"),
    ],
)
def test_probes_that_are_not_served_are_refused(client, probe, tiny_model, reading, error, said) -> None:
    with pytest.raises(error, match=said):
        client.completions.create(model=str(tiny_model), prompt="The", extra_body={"reading": reading})


def test_probes_that_do_not_fit_are_refused(http, probe) -> None:
    for fields in ({"weights": [1.0] * 8}, {"layer": 6}, {"weights": [0.0] * 256}, {"model_revision": "local-0"}):
        assert http.post("/served/probes", json=probe | fields).status_code == 400, fields
    assert all(facts["name"] == "tide" for facts in http.get("/served").json()["served"])
