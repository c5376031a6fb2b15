"""Pods of deploy/kuberay: PodSecurity `restricted`, who may talk to whom, and who gets which Secret."""

from typing import Any

import pytest
from deploy.tests.rendered import (
    OVERLAYS,
    container,
    environment,
    needs_kubectl,
    one,
    pod_templates,
    ray_cluster,
    rendered,
)

pytestmark = [needs_kubectl, pytest.mark.parametrize("overlay", OVERLAYS)]


def test_every_pod_is_restricted(overlay: str) -> None:
    labels = one(overlay, "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for component, template in pod_templates(overlay).items():
        security = template["spec"]["securityContext"]
        assert security["runAsNonRoot"] is True and security["runAsUser"] > 0, component
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, component
        for one_container in template["spec"]["containers"]:
            assert_restricted(one_container["securityContext"])
        assert not template["spec"].keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert all(not volume.keys() & {"hostPath"} for volume in template["spec"].get("volumes", []))
    assert_restricted(ray_cluster(overlay)["autoscalerOptions"]["securityContext"])


def assert_restricted(security: dict[str, Any]) -> None:
    assert security == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True,
    }  # fmt: skip


def test_what_pods_write_has_a_volume(overlay: str) -> None:
    for component, template in pod_templates(overlay).items():
        mounts = {mount["mountPath"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
        assert ("/data" if component == "redis" else "/tmp") in mounts, component
        if component != "redis":
            assert environment(overlay, component)[0]["HOME"] == "/tmp"
    assert ray_cluster(overlay)["autoscalerOptions"]["volumeMounts"] == [{"name": "tmp", "mountPath": "/tmp"}]


def test_kubernetes_adds_no_variables_of_its_own(overlay: str) -> None:
    """Its service POOLBENCH_SERVE_SVC_PORT would be a variable that PoolBench refuses."""
    assert all(each["spec"]["enableServiceLinks"] is False for each in pod_templates(overlay).values())


def test_only_the_head_holds_a_token_of_kubernetes(overlay: str) -> None:
    holders = [
        name for name, each in pod_templates(overlay).items() if each["spec"].get("automountServiceAccountToken", True)
    ]
    assert holders == ["head"]


def test_the_head_gets_no_credentials_of_the_object_store(overlay: str) -> None:
    for component in pod_templates(overlay):
        _, secrets = environment(overlay, component)
        expected = {"poolbench-services": False, "poolbench-s3": False}
        if component == "head":
            expected = {"poolbench-services": False}
        if component == "redis":
            expected = {}
        assert {name: optional for name, optional in secrets.items() if name != "poolbench-hub"} == expected, component
        assert secrets.get("poolbench-hub", True) is True


def test_secrets_are_files_that_follow_a_change(overlay: str) -> None:
    """A variable, or a file that is mounted alone, keeps its value until the pod restarts."""
    for component, template in pod_templates(overlay).items():
        if component == "redis":
            continue
        own = container(overlay, component)
        assert all(source["secretRef"]["name"] == "poolbench-hub" for source in own["envFrom"] if "secretRef" in source)
        (mount,) = [mount for mount in own["volumeMounts"] if mount["name"] == "secrets"]
        assert mount["readOnly"] is True and "subPath" not in mount
        assert environment(overlay, component)[0]["POOLBENCH_SECRETS"] == mount["mountPath"]
        (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == "secrets"]
        assert volume["projected"]["defaultMode"] == 0o440 and template["spec"]["securityContext"]["fsGroup"] == 10001


def test_no_secret_is_in_the_objects(overlay: str) -> None:
    assert not [each for each in rendered(overlay) if each["kind"] == "Secret"]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a selector of Kubernetes matches these labels."""
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )


def allowed(overlay: str, sender: str, receiver: str, port: int) -> bool:
    """Whether the policies let a pod of one component open a connection to another's port."""
    labels = {name: each["metadata"]["labels"] for name, each in pod_templates(overlay).items()}
    return passes(overlay, "Egress", labels[sender], labels[receiver], port) and passes(
        overlay, "Ingress", labels[receiver], labels[sender], port
    )


def passes(overlay: str, direction: str, own: dict[str, str], other: dict[str, str] | None, port: int) -> bool:
    """Whether a policy of this direction lets traffic pass; `other` is None for an address outside of the cluster."""
    key, peers = {"Egress": ("egress", "to"), "Ingress": ("ingress", "from")}[direction]
    policies = [each["spec"] for each in rendered(overlay) if each["kind"] == "NetworkPolicy"]
    chosen = [each for each in policies if direction in each["policyTypes"] and selects(each["podSelector"], own)]
    assert chosen, "no policy: everything would pass"
    for rule in (rule for policy in chosen for rule in policy.get(key, [])):
        if "ports" in rule and port not in [each["port"] for each in rule["ports"]]:
            continue
        if peers not in rule:
            return True
        local = [peer for peer in rule[peers] if "namespaceSelector" not in peer or peer["namespaceSelector"] == {}]
        if other is not None and any(selects(peer.get("podSelector", {}), other) for peer in local):
            return True
    return False


def test_connections_that_work_needs(overlay: str) -> None:
    workers = [name for name in pod_templates(overlay) if name not in ("head", "redis", "driver")]
    for worker in workers:
        assert allowed(overlay, worker, "head", 6379) and allowed(overlay, "head", worker, 10002), worker
        assert allowed(overlay, worker, workers[0], 31000) and allowed(overlay, worker, "redis", 6379), worker
    assert allowed(overlay, "head", "redis", 6379) and allowed(overlay, "driver", "redis", 6379)
    assert allowed(overlay, "driver", "head", 8000)
    labels = {name: each["metadata"]["labels"] for name, each in pod_templates(overlay).items()}
    for name in (*workers, "driver"):
        assert passes(overlay, "Egress", labels[name], None, 443), name
    assert passes(overlay, "Ingress", labels["head"], {"app.kubernetes.io/name": "kuberay-operator"}, 8265)
    for name in (*workers, "head"):
        assert passes(overlay, "Ingress", labels[name], {"app.kubernetes.io/name": "prometheus"}, 8080), name


def test_connections_that_nothing_needs(overlay: str) -> None:
    labels = {name: each["metadata"]["labels"] for name, each in pod_templates(overlay).items()}
    assert not allowed(overlay, "driver", "head", 6379) and not allowed(overlay, "driver", "head", 8265)
    assert not any(allowed(overlay, "redis", name, 8000) for name in labels)
    assert not any(passes(overlay, "Egress", labels[name], None, 80) for name in labels)
    assert not passes(overlay, "Egress", labels["redis"], None, 443)
    stranger = {"app.kubernetes.io/name": "stranger"}
    for name, own in labels.items():
        assert not any(passes(overlay, "Ingress", own, stranger, port) for port in (6379, 8000, 8080, 8265)), name
    assert not passes(overlay, "Ingress", labels["head"], {"app.kubernetes.io/name": "prometheus"}, 8000)


def test_redis_has_a_password_a_log_and_a_volume(overlay: str) -> None:
    redis = container(overlay, "redis")
    assert redis["command"][:2] == ["redis-server", "/etc/redis/redis.conf"]
    assert redis["command"][redis["command"].index("--appendonly") + 1] == "yes"
    claims = one(overlay, "StatefulSet", "redis")["spec"]["volumeClaimTemplates"]
    assert [claim["metadata"]["name"] for claim in claims] == ["data"]
