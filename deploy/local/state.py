"""The state folder: the running cluster, its addresses and its tokens. Only its owner may read it."""

import fcntl
import hashlib
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

import psutil

from poolbench.errors import ConfigError
from poolbench.http.tls import server_files
from poolbench.machine.preflight import PORTS, port_problem
from poolbench.settings import STATE_FOLDER, PlaceSettings, ProcessSettings
from poolbench.settings.access import CLUSTER_FILE, read_cluster

REPOSITORY = Path(__file__).resolve().parents[2]
#: Ray's default; it refuses to start with another port among them.
RAY_WORKER_PORTS = range(10002, 20000)
CLUSTER_ID_VARIABLE = ProcessSettings.variable("cluster_id")


@dataclass
class Cluster:
    """The content of `cluster.json`; every client reads store, broker, http and token_file."""

    cluster_id: str
    http: str
    store: str
    broker: str
    token_file: str
    ray_token_file: str
    ray_port: int
    ray_temp: str
    logs: str
    metrics_port: int  # of Prometheus metrics
    pid: int = 0
    pid_started: float = 0.0

    @property
    def ray_address(self) -> str:
        """Return the address of the Ray head."""
        return f"127.0.0.1:{self.ray_port}"

    @property
    def metrics(self) -> str:
        """Return the address of the metrics."""
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    def runs(self) -> bool:
        """Return whether the recorded head process is still the one that was started, not a reuse of its id."""
        try:
            process = psutil.Process(self.pid)
            alive = process.status() != psutil.STATUS_ZOMBIE
            return self.pid > 0 and alive and self._is_head(process)
        except psutil.NoSuchProcess:
            return False

    def processes(self) -> list[psutil.Process]:
        """Return every live process of this cluster: those of the head's session, and those that carry its id.

        Ray renames its processes over their own environment, so the id alone does not find all of them.
        """
        session = self.pid if self.pid and self._session_is_ours() else None
        members = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if process.status() != psutil.STATUS_ZOMBIE and self._is_member(process, session):
                    members.append(process)
        return members

    def _is_member(self, process: psutil.Process, session: int | None) -> bool:
        if process.pid == os.getpid():
            return False
        if session is not None and os.getsid(process.pid) == session:
            return True
        return process.environ().get(CLUSTER_ID_VARIABLE) == self.cluster_id

    def _session_is_ours(self) -> bool:
        """Return whether the session id was not reused: it stays taken while a member lives."""
        try:
            return self._is_head(psutil.Process(self.pid))
        except psutil.NoSuchProcess:
            return True

    def _is_head(self, process: psutil.Process) -> bool:
        return abs(process.create_time() - self.pid_started) < 1.0


def state_folder() -> Path:
    """Return POOLBENCH_STATE, else `.poolbench` of the repository; made, or closed, for its owner only."""
    state = PlaceSettings.load().state
    folder = state.expanduser().resolve() if state else REPOSITORY / STATE_FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid == os.getuid():
        folder.chmod(0o700)  # another program may have made it for everybody to read
    return folder


@contextmanager
def exclusive(state: Path) -> Iterator[None]:
    """Let one `up` or `down` at a time change the cluster. Raise ConfigError if another one is running."""
    with (state / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another cluster command is running on {state}: wait for it to end") from None
        yield


def load(state: Path) -> Cluster | None:
    """Return the recorded cluster, if the record is complete."""
    recorded = read_cluster(state)
    required = {field.name for field in fields(Cluster) if field.default is MISSING}
    if not required <= recorded.keys():
        return None
    return Cluster(**{field.name: recorded[field.name] for field in fields(Cluster) if field.name in recorded})


def save(state: Path, cluster: Cluster) -> None:
    """Record the cluster, readable by its owner only: a broker address may hold a password."""
    write_private(state / CLUSTER_FILE, json.dumps(asdict(cluster), indent=1))


def forget(state: Path) -> None:
    """Remove the record; data, queue and logs stay."""
    (state / CLUSTER_FILE).unlink(missing_ok=True)


def new_cluster(state: Path) -> Cluster:
    """Plan a cluster: addresses from the environment or below the state folder, ports that are free now."""
    settings, logs = PlaceSettings.load(), state / "logs"
    logs.mkdir(mode=0o700, exist_ok=True)
    logs.chmod(0o700)
    digest = hashlib.sha256(str(state).encode()).hexdigest()[:8]
    http_port = _port(settings, "http_port")
    return Cluster(
        cluster_id=secrets.token_hex(8),
        http=f"{'https' if server_files() else 'http'}://127.0.0.1:{http_port}",
        store=settings.store or str(state / "store"),
        broker=settings.broker.get_secret_value() or f"filesystem://{state / 'queue'}",
        token_file=str(_token_file(state / "token", settings.token.get_secret_value())),
        ray_token_file=str(_token_file(state / "ray_token")),
        ray_port=free_port(),
        # Unix sockets lie in Ray's folder, and their paths may not exceed 107 characters. The folder above is private.
        ray_temp=str(Path(tempfile.gettempdir()) / f"poolbench-{os.getuid()}-{digest}" / "ray"),
        logs=str(logs),
        metrics_port=_metrics_port(settings, http_port),
    )


def free_port() -> int:
    """Return a free TCP port from the kernel's ephemeral range, so outside Ray's worker ports."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    partial.replace(path)


def _token_file(path: Path, wanted: str = "") -> Path:
    if wanted:
        write_private(path, wanted)
    elif not path.exists():
        write_private(path, secrets.token_hex(32))
    return path


def _metrics_port(given: PlaceSettings, http_port: int) -> int:
    variable = given.variable("metrics_port")
    if given.metrics_port in RAY_WORKER_PORTS:
        raise ConfigError(
            f"port {given.metrics_port} ({variable}) is one of those that Ray's workers use, "
            f"{RAY_WORKER_PORTS.start} to {RAY_WORKER_PORTS.stop - 1}: choose another"
        )
    if given.metrics_port == http_port:
        raise ConfigError(f"port {http_port} ({variable}) is also the port of HTTP: choose another")
    return _port(given, "metrics_port", http_port)


def _port(given: PlaceSettings, field: str, *others: int) -> int:
    """Return the port that a setting names; else the usual one, or a free one if that is taken or among `others`."""
    port: int = getattr(given, field)
    variable = given.variable(field)
    usual, _ = PORTS[variable]
    problem = port_problem(port or usual)
    if port and problem:
        raise ConfigError(f"port {port} ({variable}) {problem}: choose another, or stop what uses it")
    return port or (free_port() if problem or usual in others else usual)
