"""`python -m tests.hostile.stranger HOST:PORT...`: what a machine without any token gets from the ports of others.

It prints a JSON list of findings. `intrude` calls it on a machine of `tests.servers.nodes`.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.servers.nodes import Nodes

_TIMEOUT_S = 5.0
#: Paths that answer without a token, as SECURITY.md says.
_OPEN = re.compile(r"^/(metrics|-/healthz|api/healthz|api/local_raylet_healthz|[a-z]+/health)$")
_PATHS = (
    "/", "/metrics", "/-/healthz", "/-/routes", "/docs", "/openapi.json", "/prober/health", "/prober/docs",
    "/prober/openapi.json", "/api/version", "/api/jobs/", "/api/serve/applications/", "/api/cluster_status",
    "/nodes?view=summary", "/logs", "/api/v0/logs", "/api/local_raylet_healthz", "/api/healthz",
    "/api/actors/kill", "/worker/traceback",
)  # fmt: skip
_POSTS = ("/api/jobs/", "/prober/probe", "/steerer/generate", "/api/serve/applications/")
#: Calls that Ray's servers know. Bytes of no message are enough: a server that checks a token refuses them before.
_CALLS = (
    "ray.rpc.InternalKVGcsService/InternalKVKeys", "ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "ray.rpc.JobInfoGcsService/GetAllJobInfo", "ray.rpc.ActorInfoGcsService/GetAllActorInfo",
    "ray.rpc.NodeManagerService/GetNodeStats", "ray.rpc.NodeManagerService/RequestWorkerLease",
    "ray.rpc.CoreWorkerService/GetCoreWorkerStats", "ray.rpc.CoreWorkerService/PushTask",
    "ray.rpc.ObjectManagerService/Pull", "ray.rpc.LogService/ListLogs", "ray.rpc.JobAgentService/InitializeJob",
    "ray.serve.RayServeAPIService/ListApplications", "grpc.health.v1.Health/Check",
)  # fmt: skip
_HARMLESS = ("grpc.health.v1.Health/Check", "ray.serve.RayServeAPIService/ListApplications")


def intrude(nodes: Nodes, machine: str) -> list[str]:
    """Return findings of a machine of the network that has no token, about all ports of all others."""
    places = [f"{other.address}:{port}" for other in nodes.machines.values() for port in _ports(other)]
    plain = {name: value for name, value in nodes.desk.environment.items() if "TOKEN" not in name}
    command = [sys.executable, "-m", "tests.hostile.stranger", *places]
    done = nodes.machines[machine].call(command, env=plain, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    tokens = [nodes.environment[name] for name in ("RAY_AUTH_TOKEN", "POOLBENCH_TOKEN")]
    return found + ["an answer holds a token"] * any(token in done.stdout for token in tokens)


def _ports(machine: Any) -> list[int]:
    """Return the ports of a machine that listen beyond its loopback."""
    lines = machine.call(["ss", "-H", "-t", "-l", "-n"]).stdout.splitlines()
    addresses = [line.split()[3].rpartition(":") for line in lines]
    return sorted({int(port) for host, _, port in addresses if not host.startswith("127.") and host != "[::1]"})


def main() -> None:
    """Try every place, and print what it gave."""
    findings, summary = list[str](), dict[str, str]()
    for place in sys.argv[1:]:
        host, _, port = place.rpartition(":")
        found, spoke = try_port(host, int(port))
        summary[place] = spoke
        findings += [f"{place} ({spoke}): {each}" for each in found]
    print(json.dumps(summary))
    print(json.dumps(findings))


def try_port(host: str, port: int) -> tuple[list[str], str]:
    """Return findings of one port, and which protocol it speaks."""
    if redis := _redis(host, port):
        return ([] if "NOAUTH" in redis else [f"Redis answered {redis!r}"]), "redis"
    found = list(_http(host, port))
    if any(status for _, status, _ in found):
        return [f"{call} gave {status} {body[:80]!r}" for call, status, body in found if _is_open(call, status)], "http"
    return list(_grpc(host, port)), "grpc or none"


def _is_open(call: str, status: int) -> bool:
    method, path = call.split()
    return 200 <= status < 300 and not (method == "GET" and _OPEN.match(path))


def _redis(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as connection:
            connection.settimeout(1.0)
            connection.sendall(b"PING\r\n")
            answer = connection.recv(200).decode("utf-8", "replace")
    except OSError:
        return ""
    return answer if answer.startswith(("+", "-")) else ""


def _http(host: str, port: int) -> Iterator[tuple[str, int, bytes]]:
    """Yield each request with status and body; 0 where nothing of HTTP came back."""
    for method, paths in (("GET", _PATHS), ("POST", _POSTS)):
        for path in paths:
            connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
            try:
                body = b'{"entrypoint": "true"}' if method == "POST" else None
                connection.request(method, path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                yield f"{method} {path}", answer.status, answer.read(1 << 20)
            except (OSError, http.client.HTTPException):
                yield f"{method} {path}", 0, b""
                if (method, path) == ("GET", _PATHS[0]):  # it speaks something else
                    return
            finally:
                connection.close()


def _grpc(host: str, port: int) -> Iterator[str]:
    """Yield the calls that a server of gRPC does for us."""
    import grpc

    with grpc.insecure_channel(f"{host}:{port}") as channel:
        for name in _CALLS:
            try:
                answer = channel.unary_unary(f"/{name}")(b"", timeout=_TIMEOUT_S)
            except grpc.RpcError as error:
                if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):  # no gRPC
                    return
                continue
            if name not in _HARMLESS:
                yield f"{name} was done, with {len(answer)} bytes"


if __name__ == "__main__":
    main()
