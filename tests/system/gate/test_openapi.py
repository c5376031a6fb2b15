"""The services do what their OpenAPI documents say: schemathesis with all checks, and answers of every media type.

The steerer has the same tests beside its engine (services/steerer/tests/test_http_openapi.py).
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from services.scorer.tests.conftest import save_tiny_bert
from tests.servers.conformance import AUTHORIZATION, answer, document, examples, violations
from tests.servers.services import serving
from tests.waiting import PATIENCE_S

import poolbench_extractor.service
import poolbench_prober.service
from poolbench.contracts.wire import ARROW_STREAM
from poolbench.library.concepts import Library
from poolbench.queue import Broker, TaskQueue
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench_pooler.service import PoolerService
from poolbench_scorer.service import ScorerService

pytestmark = pytest.mark.lane(name="gate")

SERVICES = ("extractor", "pooler", "prober", "scorer")
COMMON = {"401", "429", "500", "503", "504"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The four services on the demo model, the shipped annotator, MiniLM's tokenizer and a store of their own."""
    store, queue = Artifacts(FolderStore(tmp_path_factory.mktemp("store"))), tmp_path_factory.mktemp("queue")
    services = {
        "extractor": poolbench_extractor.service.create(),
        "pooler": PoolerService(lambda: Library(store.store), lambda: TaskQueue(Broker(f"filesystem://{queue}"))),
        "prober": poolbench_prober.service.create(),
        "scorer": ScorerService(lambda: store),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # as in the cluster
        patch.setenv("POOLBENCH_MODEL_FOLDERS", str(tmp_path_factory.getbasetemp()))
        with serving(services) as address:
            yield address


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random classifier."""
    return save_tiny_bert(tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="module")
def scorer(address: str, published: Path) -> str:
    """A scorer of ``contrast`` in the store, imported as clients import it: its answer is as documented too."""
    body = {"concept": "contrast", "source": str(published), "subfolder": "", "positive_label": "1"}
    made = answer(document(address, "scorer"), "/import", body)
    assert made.status_code == 200, made.text
    return str(made.json()["scorer"])


@pytest.mark.parametrize("service", SERVICES)
def test_every_check_passes(address: str, scorer: str, service: str) -> None:
    report = violations(address, service)
    assert not report, report


@pytest.mark.parametrize("service", SERVICES)
def test_the_examples_of_the_document_work(address: str, scorer: str, service: str) -> None:
    schema = document(address, service)
    found = examples(schema)
    assert found
    for path, body in found:
        got = answer(schema, path, body)
        assert got.status_code == 200, (path, got.text)


@pytest.mark.parametrize("service", SERVICES)
def test_every_verb_documents_its_token_and_its_errors(address: str, service: str) -> None:
    described = httpx.get(f"{address}/{service}/openapi.json", timeout=PATIENCE_S).json()
    assert described["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for path, operations in described["paths"].items():
        for operation in operations.values():
            if path == "/health":
                assert {} in operation["security"]
                continue
            form, invalid = ("OpenAIErrorBody", set()) if path.startswith("/v1/") else ("ErrorBody", {"422"})
            expected = COMMON | ({"400", "413"} | invalid if "requestBody" in operation else set())
            assert expected <= operation["responses"].keys(), path
            assert operation["security"] == [{"bearer": []}]
            for status, response in operation["responses"].items():
                if status != "200":
                    named = response["content"]["application/json"]["schema"]
                    assert named == {"$ref": f"#/components/schemas/{form}"}, (path, status)
            assert "WWW-Authenticate" in operation["responses"]["401"]["headers"]


def test_vectors_come_as_an_arrow_stream_too(address: str) -> None:
    got = answer(document(address, "extractor"), "/embed", {"texts": ["One."]}, Accept=ARROW_STREAM)
    assert (got.status_code, got.headers["content-type"]) == (200, [ARROW_STREAM])


def test_a_scorer_is_trained_listed_and_scores_with_another(address: str, scorer: str, published: Path) -> None:
    schema = document(address, "scorer")
    texts = [f"The {noun} was {word}" for noun in ("tide", "wind") for word in ("high", "low", "late", "cold", "slow")]
    passages = [
        {"text": text + end, "label": label, "pair_id": text}
        for text in texts
        for end, label in ((". However, nobody sailed.", 1), (" and nobody sailed.", 0))
    ]
    params = {"concept": "contrast", "base": str(published), "mode": "head", "epochs": 1, "num_windows": 1}
    made = answer(schema, "/train", {"params": params, "passages": passages})
    assert made.status_code == 200, made.text
    both = answer(schema, "/score", {"texts": texts, "scorers": [scorer, made.json()["scorer"]]})
    assert len(both.json()["scorers"]) == 2
    assert schema["/scorers"]["GET"].Case().call_and_validate(headers=AUTHORIZATION).json()["scorers"]
