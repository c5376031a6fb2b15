"""`python -m deploy.kuberay.cluster up|down|status|run|fetch`: PoolBench on the Kubernetes of the current context.

`run ...` passes its arguments to `poolbench-driver`, which runs as a Job. `fetch` copies its runs to `runs/` here.
Each command is a short list of `kubectl` commands, whose output and errors are kubectl's own.
"""

import argparse
import json
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from deploy.kuberay import credentials
from deploy.kuberay.credentials import NAMESPACE
from deploy.local.state import REPOSITORY
from poolbench.contracts.wire import SERVICES, Exit
from poolbench.errors import ConfigError, EndpointError, PoolbenchError
from poolbench.settings import refuse_unknown

FOLDER = REPOSITORY / "deploy" / "kuberay"
RUNS_FOLDER = "/app/runs"
_APPLY = ("apply", "--server-side", "--force-conflicts", "--field-manager=poolbench")
_READY_TIMEOUT, _START_TIMEOUT = "30m", "15m"  # images have several GB
_POLL_S = 2
#: What `down` removes after the RayService: neither the namespace nor Secrets and volumes.
REMOVED_KINDS = "cronjob,job,statefulset,service,configmap,networkpolicy,poddisruptionbudget"


def kubectl(*arguments: str, documents: Iterable[Mapping[str, Any]] = ()) -> None:
    """Run a command in the namespace; `documents` go to its standard input. Raise EndpointError if it fails."""
    _kubectl(*arguments, documents=documents, stdout=None)


def read(*arguments: str) -> str:
    """Return what a command prints. Raise EndpointError if it fails."""
    return _kubectl(*arguments, stdout=subprocess.PIPE)


def _kubectl(*arguments: str, documents: Iterable[Mapping[str, Any]] = (), stdout: int | None) -> str:
    reply = subprocess.run(
        ["kubectl", f"--namespace={NAMESPACE}", *arguments],
        input=yaml.safe_dump_all(list(documents)),
        stdout=stdout,
        text=True,
        check=False,
    )
    if reply.returncode:
        raise EndpointError(f"kubectl {' '.join(arguments[:2])} ended with {reply.returncode}; its message is above")
    return reply.stdout or ""


def overlay_folder(name: str) -> Path:
    """Return the folder of a shipped overlay, or of one's own. Raise ConfigError if there is none."""
    for folder in (FOLDER / "overlays" / name, Path(name).expanduser()):
        if name and (folder / "kustomization.yaml").is_file():
            return folder
    shipped = ", ".join(sorted(file.parent.name for file in (FOLDER / "overlays").glob("*/kustomization.yaml")))
    raise ConfigError(f"overlay {name!r} is unknown: use {shipped}, or a folder that holds a kustomization.yaml")


def up(overlay: Path) -> None:
    """Create namespace, Secrets and all objects of the overlay, and wait until the services are ready."""
    values = credentials.wanted(credentials.decoded(json.loads(read("get", "secret", "--output=json"))["items"]))
    port = credentials.store_port(values[credentials.S3][credentials.ENDPOINT])
    kubectl(*_APPLY, f"--filename={FOLDER / 'base' / 'namespace.yaml'}")
    kubectl(*_APPLY, "--filename=-", documents=credentials.documents(values))
    kubectl(*_APPLY, f"--kustomize={overlay}")
    change = [{"op": "replace", "path": "/spec/egress/0/ports/0/port", "value": port}]
    kubectl("patch", "networkpolicy", "object-store", "--type=json", f"--patch={json.dumps(change)}")
    print(f"waiting; `kubectl --namespace {NAMESPACE} get pods --watch` shows how far it is", flush=True)
    application = "jsonpath={{.status.activeServiceStatus.applicationStatuses.{}.status}}=RUNNING"
    # While KubeRay upgrades, the active cluster is still the old one.
    for condition in ("condition=Ready", "condition=UpgradeInProgress=False", *map(application.format, SERVICES)):
        kubectl("wait", "rayservice/poolbench", f"--for={condition}", f"--timeout={_READY_TIMEOUT}")
    print(f"reach it: kubectl --namespace {NAMESPACE} port-forward service/poolbench-head-svc 8000:8000")


def down() -> None:
    """Remove pods and services; namespace, Secrets and volumes stay."""
    # First, because KubeRay then removes the head's state from Redis, and needs Redis and its network for that.
    kubectl("delete", "rayservice", "poolbench", "--ignore-not-found")
    label = "ray.io/originated-from-cr-name=poolbench"
    # KubeRay gives the clean-up of the head's state 5 minutes.
    kubectl("wait", "raycluster", f"--selector={label}", "--for=delete", "--timeout=400s")
    kubectl("delete", REMOVED_KINDS, "--selector=app.kubernetes.io/name=poolbench")
    print(f"Secrets, queue and runs stay; `kubectl delete namespace {NAMESPACE}` removes them")


def status() -> int:
    """Print the RayService and its pods, and the driver's view of services, queues and dead letters."""
    kubectl("get", "rayservice,pods")
    return run(["status"])


def run(arguments: Sequence[str]) -> int:
    """Run `poolbench-driver` with these arguments in the cluster, show its output, and return its exit code.

    A driver whose node is drained is started again by the Job, and followed again.
    """
    job = _start_job(args=list(arguments))
    print(f"job {job}; to stop it: kubectl --namespace {NAMESPACE} delete job {job}", flush=True)
    tail, conditions = "--tail=-1", ""
    while not {"Complete", "Failed"} & set(conditions.split()):
        time.sleep(_POLL_S)
        conditions = read("get", "job", job, "--output=jsonpath={.status.conditions[?(@.status=='True')].type}")
        # There is no log before the container starts. After a lost connection or a drain, only new lines are shown.
        logs = ["kubectl", f"--namespace={NAMESPACE}", "logs", "--follow", tail, f"job/{job}"]
        if subprocess.run(logs, stderr=subprocess.DEVNULL, check=False).returncode == 0:
            tail = "--tail=0"
    codes = "jsonpath={.items[-1:].status.containerStatuses[*].state.terminated.exitCode}"
    pods = ("get", "pod", f"--selector=job-name={job}", "--sort-by=.metadata.creationTimestamp")
    return int(read(*pods, f"--output={codes}") or Exit.FAILURES)


def fetch(folder: Path) -> None:
    """Copy the runs from the cluster's volume into a folder here."""
    job = _start_job(command=["sleep", "3600"], args=[])
    try:
        kubectl("wait", f"job/{job}", "--for=jsonpath={.status.ready}=1", f"--timeout={_START_TIMEOUT}")
        folder.mkdir(parents=True, exist_ok=True)
        # `kubectl cp` would leave out `runs/latest`, which is a link.
        archive = f"kubectl --namespace={NAMESPACE} exec job/{job} -- tar -C {RUNS_FOLDER} -c .".split()
        with subprocess.Popen(archive, stdout=subprocess.PIPE) as sender:
            unpacked = subprocess.run(["tar", "-x", "-C", folder], stdin=sender.stdout, check=False).returncode == 0
        if sender.returncode or not unpacked:
            raise EndpointError(f"the runs cannot be copied to {folder}; try `fetch` again")
    finally:
        kubectl("delete", "job", job, "--ignore-not-found")
    print(f"runs      in {folder}")


def _start_job(**container: list[str]) -> str:
    """Start a Job from the CronJob `driver`, with these fields of its container, and return its name."""
    name = f"driver-{secrets.token_hex(4)}"
    job = json.loads(read("create", "job", name, "--from=cronjob/driver", "--dry-run=client", "--output=json"))
    job["spec"]["template"]["spec"]["containers"][0] |= container
    kubectl("create", "--filename=-", documents=[job])
    return name


def _dispatch(options: argparse.Namespace) -> int:
    if options.arguments and options.command != "run":
        raise ConfigError(f"{options.command} takes no arguments; got {' '.join(options.arguments)!r}")
    refuse_unknown()
    if shutil.which("kubectl") is None:
        raise ConfigError(
            "kubectl is not installed: DEPLOY=kuberay needs it; on Debian: apt-get install kubernetes-client"
        )
    overlay = overlay_folder(options.overlay)
    kubectl("config", "current-context")
    if options.command == "status":
        return status()
    if options.command == "run":
        return run(options.arguments)
    if options.command == "up":
        up(overlay)
    elif options.command == "down":
        down()
    else:
        fetch(REPOSITORY / "runs")
    return Exit.DONE


def main() -> int:
    """Run one command; an error that a user can correct is one line, without a traceback."""
    parser = argparse.ArgumentParser(prog="python -m deploy.kuberay.cluster", description=__doc__)
    parser.add_argument("--overlay", default="cpu", help="name of a folder of overlays/, or a folder of your own")
    parser.add_argument("command", choices=("up", "down", "status", "run", "fetch"))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of poolbench-driver, for `run`")
    try:
        return _dispatch(parser.parse_args())
    except PoolbenchError as error:
        print(f"error {error}", flush=True)
        return Exit.USAGE
    except KeyboardInterrupt:
        print("interrupted; what was started goes on")
        return Exit.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
