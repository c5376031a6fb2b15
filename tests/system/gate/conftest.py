"""The five services behind their HTTP applications, in this process; none of them loads a model for these tests."""

import pytest
from fastapi.testclient import TestClient

from poolbench.http.api import build_api
from poolbench.library.concepts import Library
from poolbench.settings import SteererSettings
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.service import Service
from poolbench_extractor.service import create as extractor
from poolbench_pooler.service import PoolerService
from poolbench_prober.service import create as prober
from poolbench_scorer.service import ScorerService
from poolbench_steerer.host import EngineHost
from poolbench_steerer.service import SteererService

TOKEN = "only-for-this-test"


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    return Artifacts(FolderStore(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def services(artifacts: Artifacts) -> dict[str, Service]:
    made: list[Service] = [
        extractor(),
        PoolerService(lambda: Library(artifacts.store)),
        prober(),
        ScorerService(lambda: artifacts),
        SteererService(EngineHost(SteererSettings())),
    ]
    return {service.name: service for service in made}


@pytest.fixture(scope="module")
def clients(services: dict[str, Service]) -> dict[str, TestClient]:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    return {
        name: TestClient(build_api(service, TOKEN), headers=headers, raise_server_exceptions=False)
        for name, service in services.items()
    }
