"""The parts of the command that applies deploy/kuberay: overlays and Secrets."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from deploy.kuberay import cluster, credentials
from tests.deploy.kuberay import S3

from poolbench.errors import ConfigError


@pytest.mark.parametrize("given", ["nope", "", "../../base"])
def test_an_unknown_overlay_is_refused(given: str) -> None:
    if given == "../../base":  # a folder, but of no overlay that exists here
        given += "/nowhere"
    with pytest.raises(ConfigError, match="use cpu, gpu-1, gpu-4, gpu-64, or a folder"):
        cluster.overlay_folder(given)


@pytest.mark.parametrize(
    ("endpoint", "port"), [("http://s3.example.org:9000", 9000), ("https://s3.example.org", 443), ("http://s3", 80)]
)
def test_the_port_of_the_object_store(endpoint: str, port: int) -> None:
    assert credentials.store_port(endpoint) == port


@pytest.mark.parametrize(
    ("endpoint", "message"), [("http://localhost:9000", "means the pod itself"), ("s3.example.org", "give http://host")]
)
def test_an_endpoint_that_pods_cannot_use_is_refused(endpoint: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        credentials.store_port(endpoint)
    assert endpoint in str(refused.value)


def test_a_folder_is_no_store_for_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**S3, "POOLBENCH_STORE": "/data"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"POOLBENCH_STORE is '/data'.*give s3://bucket"):
        credentials.wanted({})


def test_credentials_come_from_keys_or_the_role_of_the_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_S3_ENDPOINT", S3["POOLBENCH_S3_ENDPOINT"])
    with pytest.raises(ConfigError, match="POOLBENCH_S3_ACCESS_KEY, POOLBENCH_S3_SECRET_KEY not set"):
        credentials.wanted({})
    monkeypatch.setenv("POOLBENCH_S3_CREDENTIALS", "role")
    assert set(credentials.wanted({})["poolbench-s3"]) == {"POOLBENCH_S3_ENDPOINT", "POOLBENCH_S3_CREDENTIALS"}
    monkeypatch.setenv("POOLBENCH_S3_CREDENTIALS", "file")
    with pytest.raises(ConfigError, match=r"POOLBENCH_S3_CREDENTIALS is 'file'.*use keys, or role"):
        credentials.wanted({})


def test_secrets_as_files_become_secrets_of_the_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in S3.items():
        (tmp_path / name).write_text(value)
    monkeypatch.setenv("POOLBENCH_SECRETS", str(tmp_path))
    assert credentials.wanted({})["poolbench-s3"] == S3


def test_secrets_are_kept_and_given_values_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3.items():
        monkeypatch.setenv(name, value)
    first = credentials.wanted({})
    listed = []
    for name, values in first.items():
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        listed.append({"metadata": {"name": name}, "data": data})
    assert credentials.decoded([*listed, {"metadata": {"name": "of-another"}}]) == first
    assert credentials.wanted(first) == first
    assert credentials.wanted({})["poolbench-ray"] != first["poolbench-ray"]
    for name in S3:
        monkeypatch.delenv(name)
    monkeypatch.setenv("POOLBENCH_STORE", "s3://other/prefix")
    monkeypatch.setenv("HF_TOKEN", "hf")
    second = credentials.wanted(first)
    assert second["poolbench-s3"] == first["poolbench-s3"]
    assert second["poolbench-services"] == first["poolbench-services"] | {"POOLBENCH_STORE": "s3://other/prefix"}
    assert second["poolbench-hub"] == {"HF_TOKEN": "hf"}
