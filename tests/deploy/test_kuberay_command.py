"""The command that applies deploy/kuberay.

Kustomize is the real one. No Kubernetes runs here: what the API would answer is in files that a stand-in for the other
commands of `kubectl` reads, and it records what it was sent.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.kuberay import manifests
from deploy.local.state import REPOSITORY
from tests.deploy.kuberay import S3, needs_kubectl, pod, ray_service

from poolbench.contracts.wire import Exit

STAND_IN = """#!{python} -IS
import json, os, pathlib, sys
arguments, folder = sys.argv[1:], pathlib.Path(__file__).parent
if arguments[0] == "kustomize":
    os.execv({kubectl!r}, [{kubectl!r}, *arguments])
if arguments[:2] == ["config", "current-context"]:
    sys.exit(print("somewhere"))
sent = "" if sys.stdin.isatty() else sys.stdin.read()
with (folder / "sent.jsonl").open("a") as log:
    log.write(json.dumps([arguments, sent]) + "\\n")
answers = json.loads((folder / "answers.json").read_text())
for key, answer in answers.items():
    if " ".join(arguments).startswith(key):
        if answer.startswith("error"):
            print("E1123 08:00:00.000000 memcache.go] refused", file=sys.stderr)
            sys.exit(answer)
        print(answer)
        break
"""


def job(condition: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": condition, "status": "True"}]}}


class Client:
    """The stand-in: what it answers and what it was sent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        file = folder / "kubectl"
        file.write_text(STAND_IN.format(python=sys.executable, kubectl=shutil.which("kubectl")))
        file.chmod(0o700)
        self.answer(**{"get customresourcedefinition": "there", "get rayservice": json.dumps(ray_service())})

    def answer(self, **answers: str) -> None:
        (self.folder / "answers.json").write_text(json.dumps(answers))

    def sent(self) -> list[tuple[list[str], list[dict[str, Any]]]]:
        lines = (self.folder / "sent.jsonl").read_text().splitlines()
        return [(arguments, list(yaml.safe_load_all(text))) for arguments, text in map(json.loads, lines)]

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("POOLBENCH_")}
        command = [sys.executable, "-m", "deploy.kuberay.cluster", *arguments]
        return subprocess.run(
            command,
            cwd=REPOSITORY,
            env={**environment, "PATH": path, **variables},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def client(tmp_path: Path) -> Client:
    return Client(tmp_path)


def run_without_client(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": path, "KUBECONFIG": "/nowhere"}
    command = [sys.executable, "-m", "deploy.kuberay.cluster", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


def test_without_kubectl_one_line_says_so(tmp_path: Path) -> None:
    done = run_without_client(str(tmp_path), "up")
    assert done.returncode == Exit.USAGE and done.stdout.count("\n") == 1 and not done.stderr
    assert "kubectl is not installed" in done.stdout and "kubernetes-client" in done.stdout


@needs_kubectl
def test_without_a_context_one_line_says_so() -> None:
    done = run_without_client(os.environ["PATH"], "up")
    assert done.returncode == Exit.USAGE and done.stdout.count("\n") == 1 and not done.stderr
    assert "no current context" in done.stdout


@needs_kubectl
def test_up_applies_namespace_secrets_and_objects_in_this_order(client: Client) -> None:
    done = client.run("--overlay", "gpu-4", "up", **S3)
    assert done.returncode == Exit.DONE, done.stdout + done.stderr
    applied = [documents for arguments, documents in client.sent() if arguments[0] == "apply"]
    assert [{one["kind"] for one in documents} for documents in applied[:2]] == [{"Namespace"}, {"Secret"}]
    secrets = {one["metadata"]["name"]: one["stringData"] for one in applied[1]}
    assert set(secrets) == {"poolbench-ray", "poolbench-redis", "poolbench-services", "poolbench-s3"}
    assert secrets["poolbench-redis"]["password"] in secrets["poolbench-services"]["POOLBENCH_BROKER"]
    assert secrets["poolbench-s3"] == S3 and secrets["poolbench-services"]["POOLBENCH_STORE"] == "s3://poolbench"
    kinds = [one["kind"] for one in applied[2]]
    assert "Job" not in kinds and "RayService" in kinds and "ServiceMonitor" in kinds
    (policy,) = manifests.of_kind(applied[2], "NetworkPolicy", "object-store")
    assert policy["spec"]["egress"] == [{"ports": [{"protocol": "TCP", "port": 9000}]}]
    assert "port-forward" in done.stdout
    for values in secrets.values():  # neither printed nor in an argument
        assert not [value for value in values.values() if len(value) > 30 and value in done.stdout]


@needs_kubectl
def test_up_names_what_is_missing(client: Client) -> None:
    done = client.run("up")
    assert done.returncode == Exit.USAGE and "POOLBENCH_S3_ENDPOINT, POOLBENCH_S3_ACCESS_KEY" in done.stdout
    client.answer()
    assert "install the KubeRay operator" in client.run("up", **S3).stdout
    client.answer(get="error: the server said no")
    done = client.run("up", **S3)
    assert "the server said no" in done.stdout and "memcache" not in done.stdout and not done.stderr


@needs_kubectl
def test_down_removes_the_services_first_and_keeps_data(client: Client) -> None:
    items = {"items": [{"metadata": {"name": "poolbench"}}]}
    client.answer(**{"get namespace": json.dumps(items), "get customresourcedefinition": "there"})
    assert client.run("down").returncode == Exit.DONE
    deleted = [(arguments, documents) for arguments, documents in client.sent() if arguments[0] == "delete"]
    assert deleted[0][0][1:3] == ["rayservice", "poolbench"]
    kinds = {one["kind"] for one in deleted[-1][1]}
    assert "StatefulSet" in kinds and not kinds & {"Namespace", "PersistentVolumeClaim", "Secret", "Job", "RayService"}
    client.answer()
    assert "nothing to stop" in client.run("down").stdout


@needs_kubectl
def test_run_starts_a_job_and_returns_its_exit_code(client: Client) -> None:
    created = {"create": "job.batch/driver-x", "get job": json.dumps(job("Failed")), "logs": "hello"}
    client.answer(**created, **{"get pod": json.dumps({"items": [pod("driver-x-1", "Failed", 1)]})})
    done = client.run("run", "run", "--preset", "demo", "--limit", "2")
    assert done.returncode == Exit.FAILURES and "hello" in done.stdout
    (sent,) = (documents[0] for arguments, documents in client.sent() if arguments[0] == "create")
    assert sent["metadata"]["generateName"] == "driver-" and sent["spec"]["suspend"] is False
    assert sent["spec"]["template"]["spec"]["containers"][0]["args"] == ["run", "--preset", "demo", "--limit", "2"]
