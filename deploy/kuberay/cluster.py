"""`python -m deploy.kuberay.cluster up|down|status|run|fetch`: PoolBench on the Kubernetes of the current context.

`run ...` passes its arguments to `poolbench-driver`, which runs as a Job. `fetch` copies its runs to `runs/` here.
"""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from deploy.kuberay import credentials, jobs, kubectl, manifests, progress
from deploy.kuberay.kubectl import NAMESPACE, Document
from deploy.local.state import REPOSITORY
from poolbench.contracts.wire import SERVICES, Exit
from poolbench.errors import ConfigError, PoolbenchError
from poolbench.settings import PlaceSettings, refuse_unknown

_CONSOLE = Console(soft_wrap=True, highlight=False, markup=False)
_RAY_KIND, _MONITOR_KIND = "rayservices.ray.io", "servicemonitors.monitoring.coreos.com"
_CLEANUP_TIMEOUT_S = 400  # KubeRay gives the clean-up of the head's state in Redis 5 minutes
_OF_RAY_SERVICE = f"ray.io/originated-from-cr-name={progress.RAY_SERVICE}"


def up(documents: Sequence[Document]) -> None:
    """Create namespace, Secrets and all objects of the overlay, and wait until the services are ready."""
    if not kubectl.has_kind(_RAY_KIND):
        raise ConfigError(
            f"the cluster has no kind {_RAY_KIND}: install the KubeRay operator first (docs/kubernetes.md)"
        )
    monitors = kubectl.has_kind(_MONITOR_KIND)
    if not monitors:
        _CONSOLE.print("note: no ServiceMonitor is made, because the Prometheus operator is not installed")
    values = credentials.wanted(credentials.known())
    objects = manifests.to_apply(documents, values[credentials.S3][credentials.ENDPOINT], monitors=monitors)
    kubectl.apply(manifests.of_kind(objects, "Namespace"))
    kubectl.apply(credentials.documents(values))
    for line in kubectl.apply(objects):
        _CONSOLE.print(line)
    _CONSOLE.print("waiting until every service is ready; Ctrl-C stops the waiting only")
    progress.wait(_CONSOLE.print)
    _print_addresses()


def down(documents: Sequence[Document]) -> None:
    """Remove pods and services; namespace, Secrets and volumes stay."""
    if not kubectl.get("namespace", NAMESPACE):
        return _CONSOLE.print("nothing to stop")
    if kubectl.has_kind(_RAY_KIND):
        # First, because KubeRay then removes the head's state from Redis, and needs Redis and its network for that.
        _delete("rayservice", progress.RAY_SERVICE)
        progress.until_gone("raycluster", _OF_RAY_SERVICE, _CLEANUP_TIMEOUT_S)
    _delete("job", "--selector=app.kubernetes.io/component=driver")
    kinds = [one for one in manifests.to_delete(documents) if one["kind"] not in ("RayService", "Job")]
    if not kubectl.has_kind(_MONITOR_KIND):
        kinds = [one for one in kinds if one["kind"] != "ServiceMonitor"]
    kubectl.call("delete", "--ignore-not-found", "--filename=-", documents=kinds)
    _CONSOLE.print(
        f"down; Secrets, queue and runs stay in the namespace {NAMESPACE} (kubectl delete namespace {NAMESPACE} "
        "removes them)"
    )


def status(documents: Sequence[Document]) -> int:
    """Print pods, applications, and the driver's view of services, queues and dead letters."""
    seen = progress.look()
    for name, state in seen.parts.items():
        _CONSOLE.print(f"{name}: {state}")
    return jobs.run(documents, ["status"], _CONSOLE.print) if seen.ready else Exit.FAILURES


def _delete(kind: str, which: str) -> None:
    kubectl.call("delete", kind, which, f"--namespace={NAMESPACE}", "--ignore-not-found")


def _print_addresses() -> None:
    port = PlaceSettings.load().http_port or 8000
    _CONSOLE.print(f"reach it  kubectl --namespace {NAMESPACE} port-forward service/poolbench-head-svc {port}:8000")
    for name in SERVICES:
        _CONSOLE.print(f"{name:9} http://127.0.0.1:{port}/{name}")
    _CONSOLE.print(
        f"tokens    in the Secrets {credentials.SERVICES} and {credentials.RAY} of the namespace {NAMESPACE}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.kuberay.cluster", description=__doc__)
    parser.add_argument("--overlay", default="cpu", help=f"{', '.join(manifests.overlays())}, or a folder of your own")
    parser.add_argument("command", choices=("up", "down", "status", "run", "fetch"))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of poolbench-driver, for `run`")
    return parser


def _dispatch(given: argparse.Namespace) -> int:
    if given.arguments and given.command != "run":
        raise ConfigError(f"{given.command} takes no arguments; got {' '.join(given.arguments)!r}")
    refuse_unknown()
    folder = manifests.overlay_folder(given.overlay)
    context = kubectl.require_context()
    documents = manifests.render(folder)
    if given.command in ("up", "down"):
        _CONSOLE.print(f"overlay {given.overlay} on the context {context}")
    if given.command == "status":
        return status(documents)
    if given.command == "run":
        return jobs.run(documents, given.arguments, _CONSOLE.print)
    if given.command == "fetch":
        jobs.fetch(documents, REPOSITORY / "runs", _CONSOLE.print)
    else:
        {"up": up, "down": down}[given.command](documents)
    return Exit.DONE


def main() -> int:
    """Run one command; an error that a user can correct is one line, without a traceback."""
    arguments = _parser().parse_args()
    try:
        return _dispatch(arguments)
    except PoolbenchError as error:
        _CONSOLE.print(f"error {error}", style="red")
        return Exit.USAGE
    except KeyboardInterrupt:
        _CONSOLE.print("interrupted; what was started goes on")
        return Exit.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
