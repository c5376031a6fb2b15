"""The steerer does what its OpenAPI document says: schemathesis with all checks on the shared engine, and streams."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save
from tests.servers.conformance import AUTHORIZATION, answer, document, examples, violations
from tests.servers.services import serving
from tests.waiting import PATIENCE_S

from poolbench.storage import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_steerer.service import SteererService

pytestmark = pytest.mark.lane(name="gate")


@pytest.fixture(scope="module")
def address(host: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The steerer behind a real server; requests that name no model find the shared engine's."""
    host.load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # as in the cluster
        # The largest requests that the document allows would keep this small engine busy for minutes.
        patch.setattr(host, "config", host.config.model_copy(update={"max_pending_texts": 64}))
        store = FolderStore(tmp_path_factory.mktemp("store"))
        with serving({"steerer": SteererService(host, lambda: Artifacts(store))}) as address:
            yield address


def test_every_check_passes(address: str) -> None:
    report = violations(address, "steerer")
    assert not report, report


def test_the_examples_of_the_document_work(address: str) -> None:
    schema = document(address, "steerer")
    found = examples(schema)
    assert {"/generate", "/perplexity", "/v1/completions"} <= {path for path, _ in found}
    for path, body in found:
        got = answer(schema, path, body)
        assert got.status_code == 200, (path, got.text)


def test_steered_texts_and_their_log_probabilities_are_as_documented(address: str) -> None:
    schema = document(address, "steerer")
    steering = {"edits": [{"vector": [0.5] * 256, "layer": 2, "alpha": 1.0}]}
    texts = answer(schema, "/generate", {"prompts": ["The river"], "max_tokens": 3, "steering": steering})
    assert texts.status_code == 200, texts.text
    reading = {"vector": [0.5] * 256, "layer": 3}
    for read in (reading, [reading, reading]):
        body = {"prompt": "The river", "max_tokens": 3, "logprobs": 2, "steering": steering, "reading": read}
        whole = answer(schema, "/v1/completions", body)
        assert whole.status_code == 200, whole.text


def test_vectors_are_registered_as_safetensors_and_listed(address: str) -> None:
    schema = document(address, "steerer")
    data = save({"mean": np.ones(256, dtype=np.float32)})
    got = answer(schema, "/vectors", data, media_type="application/vnd.safetensors")
    assert got.json()["labels"].keys() == {"mean"}
    assert schema["/vectors"]["GET"].Case().call_and_validate(headers=AUTHORIZATION).json()["vectors"]


def test_errors_under_v1_have_the_form_of_the_openai_api(address: str) -> None:
    described = httpx.get(f"{address}/steerer/openapi.json", timeout=PATIENCE_S).json()
    for path, operations in described["paths"].items():
        expected = "OpenAIErrorBody" if path.startswith("/v1") else "ErrorBody"
        for operation in operations.values():
            for status, response in operation["responses"].items():
                named = response["content"]["application/json"]["schema"]
                known = status == "200" or path == "/health"
                assert known or named == {"$ref": f"#/components/schemas/{expected}"}, (path, status)
    assert "422" not in described["paths"]["/v1/completions"]["post"]["responses"]
