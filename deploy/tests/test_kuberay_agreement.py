"""deploy/kuberay agrees with the compose file, the Dockerfile, deploy/serve.yaml and the local cluster."""

import re
from typing import Any

import pytest
import yaml
from deploy.docker import compose
from deploy.environment import FIXED
from deploy.kuberay import credentials
from deploy.local.apps import options
from deploy.local.state import REPOSITORY
from deploy.tests.rendered import (
    GPUS,
    OVERLAYS,
    PLACES,
    S3,
    container,
    environment,
    groups,
    needs_kubectl,
    one,
    pod_templates,
    ray_cluster,
    serve_config,
)

from poolbench.contracts.wire import SERVICES
from poolbench.http.gate import CALLBACK, CALLBACK_VARIABLE
from poolbench.runtime.serve import AppOptions
from poolbench.settings import Settings

pytestmark = needs_kubectl
COMPOSE = yaml.safe_load((compose.FOLDER / "compose.yaml").read_text("utf-8"))["services"]
SERVE = yaml.safe_load((REPOSITORY / "deploy" / "serve.yaml").read_text("utf-8"))
#: Variables of the compose file that Kubernetes has in another form: KubeRay sets the first two (authOptions), each
#: pod has a memory limit of its own, models by folder would need a volume, and a collector of traces a NetworkPolicy.
ELSEWHERE = {
    "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "POOLBENCH_SHARED_MACHINE", "POOLBENCH_MEMORY_GIB",
    "POOLBENCH_MODEL_FOLDERS", "POOLBENCH_TRACES", "POOLBENCH_HTTP_DEADLINE_S", "POOLBENCH_TOKEN_NEXT",
    # gcsFaultToleranceOptions of the RayService
    "RAY_REDIS_ADDRESS", "RAY_REDIS_PASSWORD_PATH", "RAY_external_storage_namespace", "REDIS_PASSWORD",
}  # fmt: skip


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """The Secrets that `up` makes where the environment has all credentials."""
    for name, value in {**S3, "POOLBENCH_SENSITIVE": "true"}.items():
        monkeypatch.setenv(name, value)
    return credentials.wanted({})


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_applications_are_those_of_the_serve_file(overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve.schema import ServeDeploySchema

    monkeypatch.delenv("POOLBENCH_STEERER_TENSOR_PARALLEL", raising=False)
    config, chosen = serve_config(overlay), options(min(1, GPUS[overlay]))  # every GPU is shared as a single one is
    if GPUS[overlay] > 1:
        chosen = {name: chosen.get(name, {}) | {"max_replicas": places} for name, places in PLACES[overlay].items()}
    ServeDeploySchema.model_validate(config)
    expected = [{**app, "args": app["args"] | chosen.get(app["name"], {})} for app in SERVE["applications"]]
    assert config == SERVE | {"applications": expected}
    for application in config["applications"]:
        AppOptions.model_validate(application["args"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_replicas_find_places(overlay: str) -> None:
    """Every replica asks for one place, and for GPUs that a pod of its group has."""
    offered = groups(overlay).values()
    for application in serve_config(overlay)["applications"]:
        asked = AppOptions.model_validate(application["args"])
        fitting = [group for group in offered if int(group["resources"].get(asked.service, 0)) >= 1]
        limits = [group["template"]["spec"]["containers"][0]["resources"]["limits"] for group in fitting]
        assert all(float(limit.get("nvidia.com/gpu", 0)) >= asked.num_gpus for limit in limits)
        assert sum(group["maxReplicas"] for group in fitting) == (asked.max_replicas or asked.num_replicas)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_images_are_those_that_the_dockerfile_builds(overlay: str) -> None:
    text = (compose.FOLDER / "Dockerfile").read_text("utf-8")
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    version = re.search(
        r'^version = "(.*)"$', (REPOSITORY / "shared" / "pyproject.toml").read_text("utf-8"), re.MULTILINE
    )
    assert version is not None
    for component in pod_templates(overlay):
        image = container(overlay, component)["image"]
        if component == "redis":
            assert image in COMPOSE["redis"]["image"]
            continue
        name, _, tag = image.partition(":")
        assert name == f"poolbench/{component}" and component in targets
        assert tag == f"{version[1]}-{'gpu' if GPUS[overlay] else 'cpu'}"
        assert component == "gpu" or COMPOSE[component]["image"] == name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_variables_are_those_of_the_compose_file(overlay: str, secrets: dict[str, dict[str, str]]) -> None:
    names = {name: name for name in SERVICES if name in pod_templates(overlay)} | {"driver": "driver", "head": "head"}
    for component, in_compose in names.items():
        values, sources = environment(overlay, component)
        given = values | {name: value for source in sources for name, value in secrets.get(source, {}).items()}
        there: dict[str, Any] = COMPOSE[in_compose]["environment"]
        mounted = {each if isinstance(each, str) else each["target"] for each in COMPOSE[in_compose]["secrets"]}
        assert (set(there) | mounted) - set(given) - ELSEWHERE == set(), component
        for name, value in there.items():
            if "$" not in value and name in values and name not in ("HOME", "POOLBENCH_HTTP"):
                assert values[name] == value, name


@pytest.mark.parametrize("component", ["head", "steerer"])
def test_what_every_process_must_have_is_set(component: str) -> None:
    """KubeRay starts Ray itself: manifests and image set what `deploy.nodes` sets elsewhere."""
    image = re.search(r"^ENV (.*?)[^\\]$", (compose.FOLDER / "Dockerfile").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert image is not None
    given = dict(re.findall(r"(\w+)=(\S+)", image[0])) | environment("cpu", component)[0]
    assert {name: given.get(name) for name in FIXED} == FIXED


def test_values_that_code_has_too(secrets: dict[str, dict[str, str]]) -> None:
    values, _ = environment("cpu", "head")
    assert values[CALLBACK_VARIABLE] == CALLBACK
    assert values["HF_HUB_OFFLINE"] == "1" and environment("gpu-4", "gpu")[0]["HF_HUB_OFFLINE"] == "0"
    assert secrets[credentials.SERVICES]["POOLBENCH_BROKER"].endswith("@redis:6379/1")
    named = one("cpu", "RayService")["metadata"]["name"]
    assert environment("cpu", "driver")[0]["POOLBENCH_HTTP"] == f"http://{named}-head-svc:8000"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_variable_is_a_setting(overlay: str, secrets: dict[str, dict[str, str]]) -> None:
    known = {model.variable(field) for model in Settings.models for field in model.model_fields}
    given = {name for component in pod_templates(overlay) for name in environment(overlay, component)[0]}
    given |= {name for values in secrets.values() for name in values}
    assert {name for name in given if name.startswith("POOLBENCH_")} <= known


def test_ray_has_the_version_of_the_pins() -> None:
    for profile in ("cpu", "gpu"):
        pins = (REPOSITORY / "requirements" / f"{profile}.txt").read_text("utf-8").splitlines()
        assert f"ray=={ray_cluster('cpu')['rayVersion']}" in [line.split()[0] for line in pins]


def test_memory_suits_what_a_replica_may_use() -> None:
    """A pod's limit leaves a replica what the local cluster's share of the documented 12 GB would."""
    for name in SERVICES:
        limit = container("cpu", name)["resources"]["limits"]["memory"]
        assert int(limit.removesuffix("Gi")) >= (8 if name == "steerer" else 6)
