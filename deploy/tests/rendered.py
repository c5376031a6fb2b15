"""The rendered objects of deploy/kuberay, and the parts of them that tests look at."""

import shutil
import subprocess
from functools import cache
from typing import Any

import pytest
import yaml
from deploy.kuberay.cluster import FOLDER
from tests.pages import tracked

OVERLAYS = [file.parent.name for file in tracked("deploy/kuberay/overlays/*/kustomization.yaml")]
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
    """The objects of an overlay, or of another folder of deploy/kuberay, made by `kubectl kustomize`."""
    folder = FOLDER / "overlays" / overlay if overlay in OVERLAYS else FOLDER / overlay
    text = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True).stdout
    return tuple(document for document in yaml.safe_load_all(text) if document)


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


def driver_job(overlay: str) -> Document:
    """What a Job of the driver is made from."""
    return dict(one(overlay, "CronJob", "driver")["spec"]["jobTemplate"]["spec"])


def pod_templates(overlay: str) -> dict[str, Document]:
    """Every pod template by the component that its label names."""
    cluster = ray_cluster(overlay)
    templates = [cluster["headGroupSpec"]["template"], *(group["template"] for group in cluster["workerGroupSpecs"])]
    templates += [one(overlay, "StatefulSet")["spec"]["template"], driver_job(overlay)["template"]]
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
