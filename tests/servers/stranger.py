"""Someone on the network without token and password: what he gets from the ports of a cluster.

`python -m tests.servers.stranger ADDRESS:PORT...` prints `{"ADDRESS:PORT": [granted, refused]}` as JSON: what was
answered, whether or not everybody may ask for it, and the ways in which the rest was refused.
"""

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import redis
from tests.poison import QUEUE
from tests.servers import redis as redis_server
from tests.waiting import PATIENCE_S

from poolbench.contracts.wire import HEALTH_PATH, SERVICES, bearer

#: A port that says nothing to any protocol is given up after this time.
_SILENT_S = 20.0
_AT_ONCE = 8
_WRONG = bearer("0" * 64)
#: Pages of the services, of Ray's agents (their jobs run any command), and of metrics.
_PATHS = (
    *("/", "/-/healthz", "/-/routes", "/docs", "/openapi.json", "/metrics", "/logs"),
    *(f"/{name}{HEALTH_PATH}" for name in SERVICES),
    *("/prober/docs", "/prober/metrics", "/steerer/v1/models"),
    *("/api/healthz", "/api/local_raylet_healthz", "/api/version", "/api/serve/applications/"),
    *("/api/job_agent/jobs/", "/get_runtime_envs_info", "/get_or_create_runtime_env"),
)
#: A method of each gRPC service that Ray and Serve open.
_GRPC_METHODS = (
    "ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "ray.rpc.NodeManagerService/GetSystemConfig",
    "ray.rpc.ObjectManagerService/Push",
    "ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "ray.rpc.ReporterService/GetTraceback",
    "ray.rpc.RayletDriver/ClusterInfo",
    "ray.serve.ASGIService/HandleRequest",
)
#: What gRPC says of a method that a server lacks, and of a server that speaks something else.
_NO_ANSWER = {"UNIMPLEMENTED", "UNAVAILABLE"}
#: Commands that a stranger would send to Redis: read, write, run code, learn settings, copy the data, end the server.
_REDIS_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("PING",), ("KEYS", "*"), ("LPUSH", QUEUE, "x"), ("EVAL", "return 1", "0"), ("CONFIG", "GET", "requirepass"),
    ("CONFIG", "SET", "dir", "/tmp"), ("REPLICAOF", "127.0.0.1", "9"), ("FLUSHALL",), ("DEBUG", "SLEEP", "1"),
    ("SHUTDOWN", "NOSAVE"), ("MONITOR",), ("SUBSCRIBE", "x"), ("HELLO", "3"), ("ACL", "LIST"),
)  # fmt: skip
Answers = tuple[list[str], list[str]]


def grpc_answers(target: str, token: str = "") -> set[str]:
    """Return the codes of a server's answers to calls without a token, or with a wrong one."""
    seen, metadata = set(), [("authorization", f"Bearer {token}")] if token else None
    with grpc.insecure_channel(target) as channel:
        for method in _GRPC_METHODS:
            try:
                channel.unary_unary(f"/{method}")(b"", timeout=PATIENCE_S, metadata=metadata)
                seen.add("OK")
            except grpc.RpcError as error:
                seen.add(error.code().name)
    return seen


def ask(target: str) -> Answers:
    """Return what a port grants and how it refuses the rest: by HTTP, as Redis, or by gRPC, whichever it speaks."""
    try:
        spoken = _first_words(target)
    except ConnectionError:  # its process has ended since the ports were listed, as idle ones of Ray do
        return [], ["closed"]
    if spoken:
        if spoken.startswith(b"HTTP") or b"<html" in spoken.lower():
            return _by_http(target)
        if spoken.startswith((b"+PONG", b"-")):
            return _as_redis(target, spoken)
        codes = grpc_answers(target) | grpc_answers(target, "0" * 64)
        granted = codes - {"UNAUTHENTICATED"} - _NO_ANSWER
        return sorted(f"gRPC: {code}" for code in granted), sorted(codes & {"UNAUTHENTICATED"})
    return [], ["silent"]


def _first_words(target: str) -> bytes:
    """Return the start of the answer to a line that is a command of Redis, and nothing of any other protocol."""
    host, _, port = target.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.settimeout(_SILENT_S)
        connection.sendall(b"PING\r\n\r\n")
        try:
            return connection.recv(200)
        except TimeoutError:
            return b""


def _by_http(target: str) -> Answers:
    granted, refused = set(), set()
    # Nothing is verified without TLS; to load the certificates of authorities would take 20 ms.
    with httpx.Client(base_url=f"http://{target}", timeout=PATIENCE_S, verify=False) as client:
        for name, answer in _requests(client):
            if answer.status_code in (401, 403):
                refused.add("401" if answer.status_code == 401 else "403")
            elif answer.text.startswith(("# HELP", "# TYPE")):
                granted.add("metrics")
                break  # whatever the path
            elif answer.is_success or answer.is_server_error:
                granted.add(f"{name}: {answer.status_code}")
    return sorted(granted), sorted(refused)


def _requests(client: httpx.Client) -> Iterator[tuple[str, httpx.Response]]:
    for path in _PATHS:
        for method in ("GET", "POST"):
            for headers in ({}, _WRONG):
                yield f"{method} {path}", client.request(method, path, headers=headers)


def _as_redis(target: str, spoken: bytes) -> Answers:
    if spoken.startswith(b"-NOAUTH"):
        return strangers(f"redis://:{redis_server.PASSWORD}@{target}/0"), ["NOAUTH"]
    return [spoken.decode(errors="replace")], []


def strangers(url: str) -> list[str]:
    """Return what the server does for clients without the password, and with wrong ones."""
    ways = {"no password": "", "a wrong password": ":wrong@", "an unknown user": f"nobody:{redis_server.PASSWORD}@"}
    findings = []
    for name, given in ways.items():
        client = redis.Redis.from_url(url.replace(f":{redis_server.PASSWORD}@", given), socket_timeout=10)
        for command in _REDIS_COMMANDS:
            try:
                answer = client.execute_command(*command)
            except redis.RedisError:
                continue
            findings.append(f"{name}: {' '.join(command)} was answered with {answer!r}")
    return findings


def main(targets: Sequence[str]) -> None:
    """Ask all ports, and print the answers."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        print(json.dumps(dict(zip(targets, threads.map(ask, targets), strict=True))))


if __name__ == "__main__":
    main(sys.argv[1:])
