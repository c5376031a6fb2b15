"""What the cluster reports about itself: pods, applications, and whether all is ready."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.kuberay import kubectl
from deploy.kuberay.kubectl import Document
from poolbench.contracts.wire import SERVICES
from poolbench.errors import EndpointError

RAY_SERVICE = "poolbench"
READY_TIMEOUT_S = 1800  # images have several GB
_POLL_S = 3
_LABEL = "app.kubernetes.io/name=poolbench"
#: Reasons of a RayService that nothing but a change of the object ends.
_FINAL = ("ValidationFailed", "InitializingTimeout")


@dataclass(frozen=True)
class Progress:
    """The state of each part by its name, and why it will not become ready, if that is certain."""

    parts: Mapping[str, str]
    ready: bool
    failure: str = ""


def look() -> Progress:
    """Read the state of pods and applications."""
    services = kubectl.get("rayservice", RAY_SERVICE)
    pods = kubectl.get("pod", selector=_LABEL)
    return read(services[0] if services else {}, pods)


def read(service: Document, pods: list[Document]) -> Progress:
    """Return the progress that a RayService and the pods report."""
    status = service.get("status", {})
    conditions = {one["type"]: one for one in status.get("conditions", [])}
    ready = conditions.get("Ready", {})
    # During an upgrade the pending cluster is the one that is waited for.
    newest = status.get("pendingServiceStatus", {}).get("applicationStatuses")
    applications = newest or status.get("activeServiceStatus", {}).get("applicationStatuses") or {}
    states = {name: applications.get(name, {}).get("status") or "absent" for name in SERVICES}
    seen = status.get("observedGeneration", 0) >= service.get("metadata", {}).get("generation", 1)
    upgrading = conditions.get("UpgradeInProgress", {}).get("status") == "True"
    done = seen and not upgrading and ready.get("status") == "True" and set(states.values()) == {"RUNNING"}
    failed = [f"{name}: {applications[name].get('message', '')}" for name in states if states[name] == "DEPLOY_FAILED"]
    if seen and ready.get("reason") in _FINAL:
        failed.append(f"{ready['reason']}: {ready.get('message', '')}")
    parts = {f"pod {pod['metadata']['name']}": pod_state(pod) for pod in pods}
    return Progress(parts | {f"application {name}": state for name, state in states.items()}, done, "; ".join(failed))


def pod_state(pod: Document) -> str:
    """Return the phase of a pod and what keeps it from the next one."""
    status = pod.get("status", {})
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    waiting: list[dict[str, Any]] = [one["state"]["waiting"] for one in containers if "waiting" in one.get("state", {})]
    reasons = [one for one in waiting if one.get("reason") not in ("ContainerCreating", "PodInitializing")]
    reasons += [one for one in status.get("conditions", []) if one.get("reason") == "Unschedulable"]
    messages = [": ".join(filter(None, (one.get("reason", ""), one.get("message", "")))) for one in reasons]
    if not messages and status.get("phase") == "Running" and not all(one.get("ready") for one in containers[-1:]):
        messages = ["not ready"]
    return " - ".join([status.get("phase", "Unknown"), *messages[:1]])


def wait(note: Callable[[str], None], timeout_s: float = READY_TIMEOUT_S, poll_s: float = _POLL_S) -> None:
    """Wait until all is ready, and print every change. Raise EndpointError if something fails or takes too long."""
    started, states = time.monotonic(), dict[str, str]()
    while True:
        progress, elapsed_s = look(), time.monotonic() - started
        for name, state in progress.parts.items():
            if states.get(name) != state:
                note(f"{elapsed_s:5.0f} s  {name}: {state}")
        states = dict(progress.parts)
        if progress.ready:
            return
        if progress.failure:
            raise EndpointError(f"the services cannot start: {progress.failure}")
        if elapsed_s > timeout_s:
            late = [
                f"{name}: {state}" for name, state in states.items() if state not in ("Running", "RUNNING", "Succeeded")
            ]
            raise EndpointError(f"not ready after {timeout_s:.0f} s: {'; '.join(late) or 'no part is reported'}")
        time.sleep(poll_s)


def until_gone(kind: str, selector: str, timeout_s: float, poll_s: float = _POLL_S) -> None:
    """Wait until no object of this kind is left. Raise EndpointError if it takes too long."""
    deadline = time.monotonic() + timeout_s
    while left := [one["metadata"]["name"] for one in kubectl.get(kind, selector=selector)]:
        if time.monotonic() > deadline:
            raise EndpointError(f"still there after {timeout_s:.0f} s: {kind} {', '.join(left)}")
        time.sleep(poll_s)
