"""The rendered objects of deploy/kuberay, and the parts of them that tests look at."""

from __future__ import annotations

import shutil
from functools import cache
from typing import Any

import pytest
import yaml
from deploy.kuberay.manifests import overlay_folder, overlays, render

from poolbench.contracts.wire import SERVICES

OVERLAYS = overlays()
GPUS = {"cpu": 0, "gpu-1": 1, "gpu-4": 4, "gpu-64": 64}
#: Replicas that a service may have: one on each GPU, four probers beside each, and a pooler for each task at once.
PLACES = {
    overlay: {"extractor": gpus, "pooler": poolers, "prober": 4 * gpus, "scorer": gpus, "steerer": gpus}
    for overlay, gpus, poolers in (("gpu-4", 4, 4), ("gpu-64", 64, 34))
}
needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is missing (Debian: kubernetes-client)"
)
Document = dict[str, Any]
#: An object store, as the environment of the command names it.
S3 = {
    "POOLBENCH_S3_ENDPOINT": "http://s3.example.org:9000",
    "POOLBENCH_S3_ACCESS_KEY": "a",
    "POOLBENCH_S3_SECRET_KEY": "b",
}


@cache
def rendered(overlay: str) -> tuple[Document, ...]:
    """The objects of an overlay, made by `kubectl kustomize`."""
    return tuple(render(overlay_folder(overlay)))


def one(overlay: str, kind: str, name: str = "") -> Document:
    """The only object of this kind and name."""
    found = [each for each in rendered(overlay) if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    assert len(found) == 1, (overlay, kind, name)
    return found[0]


def ray_cluster(overlay: str) -> Document:
    """The cluster of the RayService."""
    return dict(one(overlay, "RayService")["spec"]["rayClusterConfig"])


def serve_config(overlay: str) -> Document:
    """The Serve configuration of the RayService."""
    return dict(yaml.safe_load(one(overlay, "RayService")["spec"]["serveConfigV2"]))


def groups(overlay: str) -> dict[str, Document]:
    """The worker groups by name."""
    return {group["groupName"]: group for group in ray_cluster(overlay)["workerGroupSpecs"]}


def pod_templates(overlay: str) -> dict[str, Document]:
    """Every pod template by the component that its label names."""
    cluster = ray_cluster(overlay)
    templates = [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
    templates += [each["spec"]["template"] for each in rendered(overlay) if each["kind"] in ("Job", "StatefulSet")]
    return {template["metadata"]["labels"]["app.kubernetes.io/component"]: template for template in templates}


def container(overlay: str, component: str) -> Document:
    """The container of a component's pod."""
    (found,) = pod_templates(overlay)[component]["spec"]["containers"]
    return dict(found)


def environment(overlay: str, component: str) -> tuple[dict[str, str], dict[str, bool]]:
    """The variables with their values, and the Secrets that bring more, by name with whether each is optional.

    Secrets that bring variables, and Secrets that are mounted as files.
    """
    values, secrets = dict[str, str](), dict[str, bool]()
    for source in container(overlay, component).get("envFrom", []):
        if "configMapRef" in source:
            values |= one(overlay, "ConfigMap", source["configMapRef"]["name"])["data"]
        else:
            secrets[source["secretRef"]["name"]] = source["secretRef"].get("optional", False)
    mounted = {mount["name"] for mount in container(overlay, component).get("volumeMounts", [])}
    for volume in pod_templates(overlay)[component]["spec"].get("volumes", []):
        if volume["name"] in mounted:
            named = [source["secret"] for source in volume.get("projected", {}).get("sources", [])]
            secrets |= {source["name"]: source.get("optional", False) for source in named}
    return values | {
        each["name"]: each.get("value", "") for each in container(overlay, component).get("env", [])
    }, secrets


def ray_service(state: str = "RUNNING", ready: str = "True", **more: Any) -> dict[str, Any]:
    """A RayService as KubeRay reports it."""
    applications = {name: {"status": state, "message": "no place"} for name in SERVICES}
    conditions = [{"type": "Ready", "status": ready, "reason": "NonZeroServeEndpoints"}]
    status = {
        "conditions": conditions,
        "observedGeneration": 2,
        "activeServiceStatus": {"applicationStatuses": applications},
    }
    return {"metadata": {"generation": 2}, "status": status | more}


def pod(name: str, phase: str, code: int | None = None) -> dict[str, Any]:
    """A pod as Kubernetes reports it; with an exit code, one that has ended."""
    ended = [] if code is None else [{"state": {"terminated": {"exitCode": code}}}]
    return {"metadata": {"name": name}, "status": {"phase": phase, "containerStatuses": ended}}
