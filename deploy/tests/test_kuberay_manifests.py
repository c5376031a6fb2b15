"""The overlays of deploy/kuberay, rendered by Kustomize and checked by the schemas of Kubernetes and KubeRay."""

from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from deploy.kuberay import cluster
from deploy.tests.rendered import (
    GPUS,
    OVERLAYS,
    PLACES,
    Document,
    groups,
    needs_kubectl,
    one,
    pod_templates,
    ray_cluster,
    rendered,
)

from poolbench.contracts.wire import SERVICES
from poolbench.settings import KuberaySettings

pytestmark = needs_kubectl
KUBERNETES = ("1.30", "1.37")  # the oldest release that the pages name, and the newest that the package has
Schemas = dict[tuple[str, str], Document]
_BUILT_IN = ("v1", "apps/v1", "batch/v1", "policy/v1", "networking.k8s.io/v1")


def test_the_overlays_are_those_that_are_promised() -> None:
    assert set(OVERLAYS) == set(GPUS)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_down_finds_every_object_that_it_removes(overlay: str) -> None:
    left = ("Namespace", "PersistentVolumeClaim", "RayService")  # `down` deletes the RayService by its name
    removed = [each for each in rendered(overlay) if each["kind"] not in left]
    assert {each["kind"].lower() for each in removed} <= set(cluster.REMOVED_KINDS.split(","))
    assert {each["metadata"]["labels"]["app.kubernetes.io/name"] for each in removed} == {"poolbench"}
    assert not {"namespace", "persistentvolumeclaim", "secret"} & set(cluster.REMOVED_KINDS.split(","))


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_accepts_every_object(overlay: str, version: str) -> None:
    others = set()
    for document in rendered(overlay):
        if document["apiVersion"] in _BUILT_IN:
            kubernetes_validate.validate(document, version, strict=True)
        else:
            others.add(document["kind"])
    assert others == {"RayService"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_accepts_every_pod_of_ray(overlay: str) -> None:
    for component, template in pod_templates(overlay).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": component, **template["metadata"]}}
        kubernetes_validate.validate(pod | {"spec": template["spec"]}, KUBERNETES[0], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_operators_accept_their_objects(overlay: str, definitions: Schemas) -> None:
    checked = set()
    for document in rendered(overlay):
        if (key := (document["apiVersion"], document["kind"])) in definitions:
            assert mistakes(document, definitions) == []
            checked.add(key[1])
    assert "RayService" in checked


def test_the_operator_of_prometheus_accepts_its_objects(definitions: Schemas) -> None:
    for document in rendered("prometheus"):
        if (key := (document["apiVersion"], document["kind"])) in definitions:
            assert mistakes(document, definitions) == [], key


@pytest.fixture(scope="module")
def definitions() -> Schemas:
    """The schemas of all CRDs in the folder that a variable names, by version and kind."""
    folder = KuberaySettings.load().crds
    if folder is None:
        pytest.skip("POOLBENCH_KUBERAY_CRDS names no folder with KubeRay's CRDs")
    found = {}
    for file in sorted(folder.glob("*.yaml")):
        for document in yaml.load_all(file.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if document and document["kind"] == "CustomResourceDefinition":
                spec = document["spec"]
                for version in spec["versions"]:
                    schema = strict(version["schema"]["openAPIV3Schema"])
                    schema["properties"]["metadata"] = {"type": "object"}
                    found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def mistakes(document: Document, definitions: Schemas) -> list[str]:
    """What a definition has against an object; fields that it does not know count too."""
    validator = jsonschema.Draft202012Validator(definitions[document["apiVersion"], document["kind"]])
    return [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(document)]


def strict(schema: Any) -> Any:
    """A schema of a definition as JSON Schema: unknown fields are refused, numbers with units may be both."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(value) for name, value in schema.items()}
    if made.pop("x-kubernetes-int-or-string", False):
        made.pop("type", None)
    if made.pop("nullable", False) and "type" in made:
        made["type"] = [made["type"], "null"]
    properties = schema.get("properties")
    if isinstance(properties, dict) and "type" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_autoscaler_reads_the_groups(overlay: str) -> None:
    """Ray's own reader of the cluster, which the autoscaler runs in its container."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

    cluster = {"metadata": {"name": "poolbench", "namespace": "poolbench"}, "spec": ray_cluster(overlay)}
    types = _derive_autoscaling_config_from_ray_cr(cluster)["available_node_types"]
    head = types.pop("headgroup")
    assert head["resources"]["CPU"] == 0 and not set(head["resources"]) & set(SERVICES)
    places = {
        name: sum(kind["resources"].get(name, 0) * kind["max_workers"] for kind in types.values()) for name in SERVICES
    }
    assert places == PLACES.get(overlay, dict.fromkeys(SERVICES, 1))
    assert all(kind["min_workers"] == 1 for kind in types.values())
    assert sum(kind["resources"].get("GPU", 0) * kind["max_workers"] for kind in types.values()) == GPUS[overlay]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_gpus_are_asked_for_where_they_are_used(overlay: str) -> None:
    for name, group in groups(overlay).items():
        spec = group["template"]["spec"]
        limits = spec["containers"][0]["resources"]["limits"]
        uses = GPUS[overlay] > 0 and name in ("extractor", "scorer", "steerer", "gpu")
        assert limits.get("nvidia.com/gpu") == ("1" if uses else None), name
        assert ("affinity" in spec and "tolerations" in spec) == uses, name
    assert "nvidia.com/gpu" not in str(pod_templates(overlay)["head"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_head_is_fault_tolerant_and_scales_by_the_second_autoscaler(overlay: str) -> None:
    of_ray = ray_cluster(overlay)
    assert of_ray["enableInTreeAutoscaling"] is True and of_ray["autoscalerOptions"]["version"] == "v2"
    assert of_ray["gcsFaultToleranceOptions"]["redisAddress"] == "redis:6379"
    assert of_ray["authOptions"] == {"mode": "token", "secretName": "poolbench-ray"}
    budgets = {
        each["metadata"]["name"]: each["spec"] for each in rendered(overlay) if each["kind"] == "PodDisruptionBudget"
    }
    assert set(budgets) == {"head", "redis", "steerer"}
    for budget in budgets.values():
        labels = budget["selector"]["matchLabels"]
        assert any(labels.items() <= each["metadata"]["labels"].items() for each in pod_templates(overlay).values())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_prometheus_finds_every_node_of_ray(overlay: str) -> None:
    service, monitor = one(overlay, "Service", "ray-metrics"), one("prometheus", "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == [
        port["name"] for port in service["spec"]["ports"]
    ]
    for component, template in pod_templates(overlay).items():
        selected = service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        assert selected == (component not in ("redis", "driver")), component
        if selected:
            ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
            assert ports["metrics"] == 8080
