"""The objects of an overlay, as the commands send them."""

import copy
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from deploy.kuberay.kubectl import Document, call, require_client
from deploy.local.state import REPOSITORY
from poolbench.errors import ConfigError

FOLDER = REPOSITORY / "deploy" / "kuberay"
DRIVER, STORE_POLICY = "driver", "object-store"
RUNS_POD, RUNS_FOLDER = "runs", "/app/runs"
SECRETS = "secrets"  # name of the volume with the settings that are secret
_FETCH_LIMIT_S = 3600
_PORTS = {"http": 80, "https": 443}


def overlays() -> list[str]:
    """Return the names of the overlays that are shipped."""
    return sorted(file.parent.name for file in (FOLDER / "overlays").glob("*/kustomization.yaml"))


def overlay_folder(name: str) -> Path:
    """Return the folder of a shipped overlay, or of one's own. Raise ConfigError if there is none."""
    for folder in (FOLDER / "overlays" / name, Path(name).expanduser()):
        if name and (folder / "kustomization.yaml").is_file():
            return folder
    raise ConfigError(
        f"overlay {name!r} is unknown: use {', '.join(overlays())}, or a folder that holds a kustomization.yaml"
    )


def render(folder: Path) -> list[Document]:
    """Return the objects that Kustomize makes of a folder. Raise ConfigError without `kubectl`."""
    require_client()
    return [document for document in yaml.safe_load_all(call("kustomize", str(folder))) if document]


def of_kind(documents: Sequence[Document], kind: str, name: str = "") -> list[Document]:
    """Return the objects of a kind, or the one of a name."""
    return [one for one in documents if one["kind"] == kind and name in ("", one["metadata"]["name"])]


def to_apply(documents: Sequence[Document], endpoint: str, *, monitors: bool) -> list[Document]:
    """Return what `up` sends: all but the driver's Job, with the port of the object store.

    Args:
        documents: Objects of an overlay.
        endpoint: Address of the S3 service.
        monitors: Whether the cluster knows the kinds of Prometheus' operator.
    """
    objects = [
        copy.deepcopy(one)
        for one in documents
        if one["kind"] != "Job" and (monitors or not one["apiVersion"].startswith("monitoring.coreos.com/"))
    ]
    for policy in of_kind(objects, "NetworkPolicy", STORE_POLICY):
        policy["spec"]["egress"][0]["ports"] = [{"protocol": "TCP", "port": store_port(endpoint)}]
    return objects


def to_delete(documents: Sequence[Document]) -> list[Document]:
    """Return what `down` removes: neither the namespace nor volumes, so that Secrets, queue and runs stay."""
    return [one for one in documents if one["kind"] not in ("Namespace", "PersistentVolumeClaim")]


def store_port(endpoint: str) -> int:
    """Return the port of an S3 endpoint. Raise ConfigError if it is no address, or one that pods cannot reach."""
    parts = urlsplit(endpoint)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ConfigError(f"POOLBENCH_S3_ENDPOINT is {endpoint!r}: give http://host[:port] or https://host[:port]")
    if parts.hostname in ("localhost", "127.0.0.1", "::1"):
        raise ConfigError(
            f"POOLBENCH_S3_ENDPOINT is {endpoint!r}, which means the pod itself: give an address that pods can reach"
        )
    return parts.port or _PORTS[parts.scheme]


def driver_job(documents: Sequence[Document], arguments: Sequence[str]) -> Document:
    """Return a Job that runs `poolbench-driver` with these arguments; Kubernetes completes its name."""
    job = copy.deepcopy(of_kind(documents, "Job", DRIVER)[0])
    job["metadata"] |= {"generateName": f"{job['metadata'].pop('name')}-"}
    job["spec"]["suspend"] = False
    job["spec"]["template"]["spec"]["containers"][0]["args"] = list(arguments)
    return job


def runs_pod(documents: Sequence[Document]) -> Document:
    """Return a pod that holds the volume of the runs and ends by itself; it gets no credentials."""
    job = of_kind(documents, "Job", DRIVER)[0]
    spec = copy.deepcopy(job["spec"]["template"]["spec"])
    container = spec["containers"][0]
    for name in ("args", "env", "envFrom"):
        container.pop(name, None)
    container["command"] = ["sleep", str(_FETCH_LIMIT_S)]
    for entries in (container["volumeMounts"], spec["volumes"]):
        entries[:] = [entry for entry in entries if entry["name"] != SECRETS]
    metadata = {
        "name": RUNS_POD,
        "namespace": job["metadata"]["namespace"],
        "labels": {"app.kubernetes.io/name": "poolbench"},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
