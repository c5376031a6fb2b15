"""Run the driver as a Job, and copy the runs from its volume."""

import subprocess
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.kuberay import kubectl, manifests
from deploy.kuberay.kubectl import NAMESPACE, Document
from deploy.kuberay.progress import pod_state
from poolbench.errors import EndpointError

START_TIMEOUT_S = 900
_POLL_S = 2
_ENDED = ("Succeeded", "Failed")


def run(documents: Sequence[Document], arguments: Sequence[str], note: Callable[[str], None]) -> int:
    """Run `poolbench-driver` with these arguments in the cluster, show its output, and return its exit code.

    A driver whose node is drained is started again by the Job, and followed again.
    """
    job = manifests.driver_job(documents, arguments)
    name = kubectl.call("create", "--filename=-", "--output=name", documents=[job]).strip().rpartition("/")[2]
    note(f"job {name}; to stop it: kubectl --namespace {NAMESPACE} delete job {name}")
    followed: set[str] = set()
    while (pod := _next_pod(name, followed, note)) is not None:
        lines = "--tail=0" if pod in followed else "--tail=-1"  # a connection that broke is taken up again
        followed.add(pod)
        subprocess.run(["kubectl", "logs", "--follow", lines, f"--namespace={NAMESPACE}", pod], check=False)
        time.sleep(_POLL_S)
    return _exit_code(name)


def fetch(documents: Sequence[Document], folder: Path, note: Callable[[str], None]) -> None:
    """Copy the runs from the cluster's volume into a folder here."""
    pod = manifests.runs_pod(documents)
    _remove(manifests.RUNS_POD)
    kubectl.call("create", "--filename=-", documents=[pod])
    try:
        _await_running(manifests.RUNS_POD, note)
        folder.mkdir(parents=True, exist_ok=True)
        inside = ["tar", "-C", manifests.RUNS_FOLDER, "-cf", "-", "."]
        command = ["kubectl", "exec", f"--namespace={NAMESPACE}", manifests.RUNS_POD, "--", *inside]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as sender:
            _extract(sender, folder)
    finally:
        _remove(manifests.RUNS_POD)
    note(f"runs      in {folder}")


def _extract(sender: subprocess.Popen[bytes], folder: Path) -> None:
    """Unpack the archive that a process writes; nothing is written outside of the folder. Raise EndpointError."""
    try:
        with tarfile.open(fileobj=sender.stdout, mode="r|") as archive:
            archive.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise EndpointError(f"the runs cannot be copied to {folder}: {error}; try `fetch` again") from error
    if code := sender.wait():
        raise EndpointError(f"the runs cannot be copied to {folder}: kubectl exec ended with {code}; try `fetch` again")


def _next_pod(job: str, followed: set[str], note: Callable[[str], None]) -> str | None:
    """Wait for a pod of the Job that runs, or whose output was not shown yet; None once the Job has ended.

    Raises:
        EndpointError: No pod starts in time.
    """
    deadline, last_state = time.monotonic() + START_TIMEOUT_S, ""
    while True:
        ended, phases = _has_ended(job), {pod["metadata"]["name"]: pod for pod in _pods(job)}
        for name, pod in phases.items():
            phase = pod.get("status", {}).get("phase")
            if phase == "Running" or (phase in _ENDED and name not in followed):
                return name
        if ended:
            return None
        state = next((pod_state(pod) for name, pod in phases.items() if name not in followed), "no pod yet")
        if time.monotonic() > deadline:
            raise EndpointError(f"job {job} did not start within {START_TIMEOUT_S} s: {state}")
        if state != last_state and not followed:
            note(f"job {job}: {state}")
        last_state = state
        time.sleep(_POLL_S)


def _exit_code(job: str) -> int:
    """Return the exit code of the Job's last container; 1 where the Job was ended from outside."""
    codes = [
        status["state"]["terminated"]["exitCode"]
        for pod in sorted(_pods(job), key=lambda pod: pod["metadata"].get("creationTimestamp", ""))
        for status in pod.get("status", {}).get("containerStatuses", [])
        if "terminated" in status.get("state", {})
    ]
    return int(codes[-1]) if codes else 1


def _has_ended(job: str) -> bool:
    """Return whether the Job has completed, has failed, or was deleted."""
    objects = kubectl.get("job", job)
    conditions = objects[0].get("status", {}).get("conditions", []) if objects else []
    return not objects or any(one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in conditions)


def _pods(job: str) -> list[Document]:
    return kubectl.get("pod", selector=f"job-name={job}")


def _await_running(pod: str, note: Callable[[str], None]) -> None:
    deadline, last_state = time.monotonic() + START_TIMEOUT_S, ""
    while True:
        pods = kubectl.get("pod", pod)
        state = pod_state(pods[0]) if pods else "absent"
        if state == "Running":
            return
        if time.monotonic() > deadline:
            raise EndpointError(f"pod {pod} did not start within {START_TIMEOUT_S} s: {state}")
        if state != last_state:
            note(f"pod {pod}: {state}")
        last_state = state
        time.sleep(_POLL_S)


def _remove(pod: str) -> None:
    kubectl.call("delete", "pod", pod, f"--namespace={NAMESPACE}", "--ignore-not-found", "--grace-period=1")
