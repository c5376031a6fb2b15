"""Run `kubectl`, the command-line client of Kubernetes."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from poolbench.errors import ConfigError, EndpointError

NAMESPACE = "poolbench"
Document = dict[str, Any]
_LOG_LINE = re.compile(r"[EWI]\d{4} ")  # kubectl logs every attempt before it says what is wrong


def require_client() -> None:
    """Raise ConfigError if `kubectl` is not installed."""
    if shutil.which("kubectl") is None:
        raise ConfigError(
            "kubectl is not installed: DEPLOY=kuberay needs it; on Debian: apt-get install kubernetes-client"
        )


def require_context() -> str:
    """Return the current context. Raise ConfigError if there is no client or no context."""
    require_client()
    reply = subprocess.run(["kubectl", "config", "current-context"], capture_output=True, text=True, check=False)
    context = reply.stdout.strip()
    if reply.returncode or not context:
        raise ConfigError(
            "kubectl has no current context: choose a cluster with `kubectl config use-context NAME` "
            "(`kubectl config get-contexts` lists the names), or name its file in KUBECONFIG"
        )
    return context


def call(*arguments: str, documents: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return the output of one command; `documents` go to its standard input.

    Raises:
        EndpointError: The command failed; the message holds what it printed, and never a document.
    """
    sent = yaml.safe_dump_all(list(documents))
    done = subprocess.run(["kubectl", *arguments], input=sent, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not _LOG_LINE.match(line)]
        message = "; ".join(lines) or f"exit code {done.returncode}"
        raise EndpointError(f"kubectl {' '.join(arguments[:3])}: {message}")
    return done.stdout


def apply(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """Create or change objects, and return one line per object. What others changed in our fields is set back.

    Kubernetes merges the fields itself (server-side), so that no copy of a Secret is kept in an annotation.
    """
    options = ("--server-side", "--force-conflicts", "--field-manager=poolbench", "--filename=-")
    return call("apply", *options, documents=documents).splitlines()


def get(kind: str, name: str = "", selector: str = "") -> list[Document]:
    """Return the objects of a kind in the namespace, or those of a name or with labels."""
    selection = [name] if name else [f"--selector={selector}"] if selector else []
    output = call("get", kind, *selection, f"--namespace={NAMESPACE}", "--ignore-not-found", "--output=json")
    document = json.loads(output) if output.strip() else {"items": []}
    return list(document["items"]) if "items" in document else [document]


def has_kind(name: str) -> bool:
    """Return whether the cluster knows a kind, given as `<plural>.<group>`."""
    return bool(call("get", "customresourcedefinition", name, "--ignore-not-found", "--output=name").strip())
