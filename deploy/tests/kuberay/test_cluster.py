"""The command that applies deploy/kuberay, and its overlays and Secrets."""

import base64
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from deploy.kuberay import cluster, credentials
from deploy.kuberay.cluster import REMOVED_KINDS
from deploy.tests.rendered import S3, needs_kubectl

from poolbench.contracts.wire import SERVICES, Exit
from poolbench.errors import ConfigError, EndpointError

STAND_IN = """#!{python} -IS
import json, pathlib, subprocess, sys
arguments, folder = sys.argv[1:], pathlib.Path(__file__).parent
arguments.remove("--namespace=poolbench")
if arguments[:2] == ["config", "current-context"]:
    sys.exit(print("somewhere"))
sent = "" if sys.stdin.isatty() else sys.stdin.read()
kustomize = [argument for argument in arguments if argument.startswith("--kustomize=")]
if kustomize:
    sent = subprocess.run(
        [{kubectl!r}, "kustomize", kustomize[0].partition("=")[2]], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
with (folder / "sent.jsonl").open("a") as log:
    log.write(json.dumps([arguments, sent]) + "\\n")
answers = json.loads((folder / "answers.json").read_text())
for key, answer in answers.items():
    if " ".join(arguments).startswith(key):
        if answer.startswith("error"):
            sys.exit(answer)
        print(answer)
        break
else:
    if arguments[0] == "exec":  # a pod is this machine
        sys.exit(subprocess.run(arguments[arguments.index("--") + 1 :]).returncode)
"""
NO_SECRETS = json.dumps({"items": []})


class Client:
    """The stand-in: what it answers and what it was sent."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capfd = folder, capfd
        file = folder / "kubectl"
        file.write_text(STAND_IN.format(python=sys.executable, kubectl=shutil.which("kubectl")))
        file.chmod(0o700)
        self.answer()

    def answer(self, **answers: str) -> None:
        """What commands print, by how they begin."""
        (self.folder / "answers.json").write_text(json.dumps({**answers, "get secret": NO_SECRETS}))

    def sent(self) -> list[tuple[list[str], list[dict[str, Any]]]]:
        lines = (self.folder / "sent.jsonl").read_text().splitlines()
        return [(arguments, list(yaml.safe_load_all(text))) for arguments, text in map(json.loads, lines)]

    def run(self, *arguments: str, **variables: str) -> SimpleNamespace:
        """Call the command with the stand-in on the path."""
        return called(self.capfd, *arguments, PATH=f"{self.folder}{os.pathsep}{os.environ['PATH']}", **variables)


def called(capfd: pytest.CaptureFixture[str], *arguments: str, **variables: str) -> SimpleNamespace:
    """Call the command in this process; return its exit code, and what it and its programs print."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("POOLBENCH_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["cluster", *arguments])
        code = cluster.main()
    shown = capfd.readouterr()
    return SimpleNamespace(returncode=code, stdout=shown.out, stderr=shown.err)


@pytest.fixture
def client(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Client:
    return Client(tmp_path, capfd)


def test_without_kubectl_one_line_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = called(capfd, "up", PATH=str(tmp_path))
    assert done.returncode == Exit.USAGE and done.stdout.count("\n") == 1 and not done.stderr
    assert "kubectl is not installed" in done.stdout and "kubernetes-client" in done.stdout


@needs_kubectl
def test_up_applies_namespace_secrets_and_objects_in_this_order_and_waits(client: Client) -> None:
    done = client.run("--overlay", "gpu-4", "up", **S3)
    assert done.returncode == Exit.DONE, done.stdout + done.stderr
    applied = [documents for arguments, documents in client.sent() if arguments[0] == "apply"]
    assert {one["kind"] for one in applied[1]} == {"Secret"} and "RayService" in {one["kind"] for one in applied[2]}
    secrets = {one["metadata"]["name"]: one["stringData"] for one in applied[1]}
    assert set(secrets) == {"poolbench-ray", "poolbench-redis", "poolbench-services", "poolbench-s3"}
    assert secrets["poolbench-redis"]["password"] in secrets["poolbench-services"]["POOLBENCH_BROKER"]
    assert secrets["poolbench-s3"] == S3 and secrets["poolbench-services"]["POOLBENCH_STORE"] == "s3://poolbench"
    (patch,) = (arguments for arguments, _ in client.sent() if arguments[0] == "patch")
    change = [{"op": "replace", "path": "/spec/egress/0/ports/0/port", "value": 9000}]
    assert patch[1:3] == ["networkpolicy", "object-store"] and patch[-1] == f"--patch={json.dumps(change)}"
    (policy,) = (one for one in applied[2] if one["metadata"]["name"] == "object-store")
    assert policy["spec"]["egress"] == [{"ports": [{"protocol": "TCP", "port": 443}]}]  # which the patch replaces
    waits = " ".join(arguments[2] for arguments, _ in client.sent() if arguments[0] == "wait")
    assert "condition=Ready" in waits and all(f".{name}.status}}=RUNNING" in waits for name in SERVICES)
    assert "port-forward" in done.stdout
    for values in secrets.values():  # neither printed nor in an argument
        hidden = [value for value in values.values() if len(value) > 30]
        assert not [value for value in hidden if value in done.stdout + str([words for words, _ in client.sent()])]


@needs_kubectl
def test_up_names_what_is_missing(client: Client) -> None:
    done = client.run("up")
    assert done.returncode == Exit.USAGE and "POOLBENCH_S3_ENDPOINT, POOLBENCH_S3_ACCESS_KEY" in done.stdout
    client.answer(apply="error: the server said no")
    done = client.run("up", **S3)
    assert done.returncode == Exit.USAGE and "the server said no" in done.stderr and "Traceback" not in done.stderr


@needs_kubectl
def test_down_removes_the_services_first_and_keeps_data(client: Client) -> None:
    assert client.run("down").returncode == Exit.DONE
    first, second, third = (arguments for arguments, _ in client.sent() if arguments[0] in ("delete", "wait"))
    assert first[:3] == ["delete", "rayservice", "poolbench"]
    assert second[:2] == ["wait", "raycluster"] and "--for=delete" in second
    assert third[:2] == ["delete", REMOVED_KINDS]


@needs_kubectl
def test_run_starts_a_job_and_returns_its_exit_code(client: Client) -> None:
    template = {"spec": {"template": {"spec": {"containers": [{"name": "driver", "args": ["run"]}]}}}}
    client.answer(
        **{"create job": json.dumps(template), "get job": "Failed", "logs": "hello", "get pod": str(int(Exit.FAILURES))}
    )
    done = client.run("run", "run", "--preset", "demo", "--limit", "2")
    assert done.returncode == Exit.FAILURES and done.stdout.count("hello") == 1
    (sent,) = (documents[0] for arguments, documents in client.sent() if arguments[:2] == ["create", "--filename=-"])
    (container,) = sent["spec"]["template"]["spec"]["containers"]
    assert container == {"name": "driver", "args": ["run", "--preset", "demo", "--limit", "2"]}


@needs_kubectl
def test_fetch_unpacks_the_runs_and_removes_its_job(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "volume"
    (volume / "demo").mkdir(parents=True)
    (volume / "latest").symlink_to("demo")
    monkeypatch.setattr(cluster, "RUNS_FOLDER", str(volume))
    template = {"spec": {"template": {"spec": {"containers": [{"name": "driver"}]}}}}
    client.answer(**{"create job": json.dumps(template)})
    monkeypatch.setenv("PATH", f"{client.folder}{os.pathsep}{os.environ['PATH']}")
    cluster.fetch(tmp_path / "runs")
    assert (tmp_path / "runs" / "latest").readlink() == Path("demo")
    shutil.rmtree(volume)
    with pytest.raises(EndpointError, match="try `fetch` again"):
        cluster.fetch(tmp_path / "runs")
    commands = [arguments[:2] for arguments, _ in client.sent()]
    assert commands.count(["delete", "job"]) == 2


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
