"""The parts of the command that applies deploy/kuberay: overlays, Secrets, and what counts as ready."""

from __future__ import annotations

import base64
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from deploy.kuberay import credentials, jobs, manifests, progress
from tests.deploy.kuberay import S3, needs_kubectl, pod, ray_service, rendered

from poolbench.errors import ConfigError, EndpointError


@pytest.mark.parametrize("given", ["nope", "", "../../base"])
def test_an_unknown_overlay_is_refused(given: str) -> None:
    if given == "../../base":  # a folder, but of no overlay that exists here
        given += "/nowhere"
    with pytest.raises(ConfigError, match="use cpu, gpu-1, gpu-4, gpu-64, or a folder"):
        manifests.overlay_folder(given)


@pytest.mark.parametrize(
    ("endpoint", "port"), [("http://s3.example.org:9000", 9000), ("https://s3.example.org", 443), ("http://s3", 80)]
)
def test_the_port_of_the_object_store(endpoint: str, port: int) -> None:
    assert manifests.store_port(endpoint) == port


@pytest.mark.parametrize(
    ("endpoint", "message"), [("http://localhost:9000", "means the pod itself"), ("s3.example.org", "give http://host")]
)
def test_an_endpoint_that_pods_cannot_use_is_refused(endpoint: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        manifests.store_port(endpoint)
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


@needs_kubectl
def test_the_pod_that_holds_the_runs_gets_no_credentials() -> None:
    found = manifests.runs_pod(rendered("cpu"))
    assert "envFrom" not in str(found) and "'args'" not in str(found) and "secret" not in str(found)
    mounts = {mount["mountPath"] for mount in found["spec"]["containers"][0]["volumeMounts"]}
    assert manifests.RUNS_FOLDER in mounts


def test_runs_are_unpacked_inside_the_folder(tmp_path: Path) -> None:
    source, archive = tmp_path / "source", tmp_path / "runs.tar"
    (source / "demo").mkdir(parents=True)
    (source / "demo" / "state.json").write_text("{}")
    (source / "latest").symlink_to("demo")
    with tarfile.open(archive, "w") as packed:
        packed.add(source, ".")
    with subprocess.Popen(["cat", str(archive)], stdout=subprocess.PIPE) as sender:
        jobs._extract(sender, tmp_path / "runs")
    assert (tmp_path / "runs" / "latest" / "state.json").read_text() == "{}"
    with subprocess.Popen(["echo", "no archive"], stdout=subprocess.PIPE) as sender, pytest.raises(EndpointError):
        jobs._extract(sender, tmp_path / "runs")


@pytest.mark.parametrize(
    ("found", "ready", "failure"),
    [
        (ray_service(), True, ""),
        ({}, False, ""),
        (ray_service(observedGeneration=1), False, ""),
        (ray_service(ready="False"), False, ""),
        (ray_service("DEPLOYING"), False, ""),
        (ray_service("DEPLOY_FAILED"), False, "extractor: no place"),
        (
            ray_service(
                conditions=[{"type": "Ready", "status": "False", "reason": "ValidationFailed", "message": "m"}]
            ),
            False,
            "m",
        ),
        (ray_service(pendingServiceStatus={"applicationStatuses": {"prober": {"status": "DEPLOYING"}}}), False, ""),
    ],
)
def test_what_counts_as_ready(found: dict[str, Any], ready: bool, failure: str) -> None:
    seen = progress.read(found, [])
    assert seen.ready is ready and failure in seen.failure and bool(seen.failure) == bool(failure)


def test_pods_say_what_they_wait_for() -> None:
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    held = {"status": {"phase": "Pending", "containerStatuses": [waiting]}}
    assert progress.pod_state(held) == "Pending - ImagePullBackOff: no such image"
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
    assert (
        progress.pod_state({"status": {"phase": "Pending", "conditions": [unplaced]}})
        == "Pending - Unschedulable: no GPU"
    )
    assert progress.pod_state(pod("x", "Running")) == "Running"


def test_waiting_ends_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([ray_service("DEPLOYING"), ray_service("DEPLOYING"), ray_service()])
    monkeypatch.setattr(progress, "look", lambda: progress.read(next(states), [pod("p", "Running")]))
    lines: list[str] = []
    progress.wait(lines.append, poll_s=0)
    assert sum("prober" in line for line in lines) == 2 and sum("pod p" in line for line in lines) == 1
    monkeypatch.setattr(progress, "look", lambda: progress.read(ray_service("DEPLOYING"), []))
    with pytest.raises(EndpointError, match="not ready after 0 s: application extractor: DEPLOYING"):
        progress.wait(lines.append, timeout_s=0, poll_s=0)


def test_secrets_are_read_as_kubernetes_keeps_them() -> None:
    assert credentials._decoded({"a": base64.b64encode(b"1\n").decode()}) == {"a": "1\n"}
