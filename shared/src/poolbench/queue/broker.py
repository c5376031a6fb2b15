"""The broker, and the Celery settings that producers and consumers share.

Celery and Kombu are imported when an application is made: a client may know a broker's address and not have them.
"""

import os
import secrets
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from poolbench.errors import BrokerError, ConfigError
from poolbench.queue.affinity import Affinity
from poolbench.queue.envelope import shown_text
from poolbench.queue.letters import DeadLetter, Stored
from poolbench.settings import BrokerSettings, PlaceSettings

if TYPE_CHECKING:
    from celery import Celery

VISIBILITY_TIMEOUT_S = 12 * 3600
"""Redis redelivers after this long. It must exceed the longest task, and be the same for every queue of a
Redis database, because the shortest one applies to all; leases are what notice a dead worker sooner."""

SETTINGS: dict[str, Any] = {
    "task_serializer": "json",
    "result_serializer": "json",
    "accept_content": ["json"],
    "task_ignore_result": True,
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "task_create_missing_queues": True,
    "worker_prefetch_multiplier": 1,
    "worker_send_task_events": False,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
    "worker_enable_remote_control": False,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "broker_connection_retry_on_startup": True,
}


#: Answers of a server that runs, but not as we need it. Clients give them as text only.
_REFUSALS = {
    "invalid username-password": "refuses the password",
    "Authentication required": "requires a password",
    "client already authenticated": "requires a password",
    "without any password configured": "has no password, but one was given",
    "no permissions": "allows this user too little",
    "read only replica": "is a read-only replica",
    "unable to persist": "cannot write its snapshots, and refuses writes",
    "used memory": "has no memory left (maxmemory)",
    "Protocol Error": "is not a Redis server",
    "DB index is out of range": "has no database of this number",
}
KEY = "poolbench:owner"
FILE = "owner.json"


class Spool(Protocol):
    """The messages and dead letters of all queues, by name of the queue."""

    def count(self, queue: str, limit: int | None = None) -> int:
        """Return the number of waiting messages, including messages that cannot be parsed. Stop counting at `limit`."""

    def waiting(self, queue: str) -> Iterator[bytes]:
        """Yield the waiting messages, oldest first."""

    def oldest(self, queue: str) -> float | None:
        """Return when the oldest waiting message was sent, in seconds since the epoch, or None if this is unknown."""

    def bury(self, queue: str, letter: DeadLetter) -> None:
        """Add a dead letter."""

    def count_dead(self, queue: str) -> int:
        """Return the number of dead letters."""

    def dead_letters(self, queue: str, limit: int | None) -> Iterator[Stored]:
        """Yield the newest `limit` dead letters, oldest first."""

    def has_dead(self, queue: str, stored: Stored) -> bool:
        """Return whether a dead letter is still there."""

    def remove_dead(self, queue: str, stored: Stored) -> bool:
        """Remove a dead letter. If several callers remove it at once, exactly one of them gets True."""

    def clear(self, queue: str) -> int:
        """Remove all messages and dead letters of a queue. Return how many were removed."""


@dataclass(frozen=True)
class Broker:
    """A parsed broker address: `filesystem:///absolute/folder` or `redis[s]://[:password@]host:port/db`."""

    url: str

    def __post_init__(self) -> None:
        scheme = urlsplit(self.url).scheme
        if scheme not in ("filesystem", "redis", "rediss"):
            raise ConfigError(
                f"unknown broker {self.shown!r} (POOLBENCH_BROKER): use filesystem:///absolute/folder "
                "or redis://host:port/db, rediss:// for TLS"
            )
        if any(name.startswith("ssl") for name in parse_qs(urlsplit(self.url).query, keep_blank_values=True)):
            raise ConfigError(
                f"broker {self.shown!r} (POOLBENCH_BROKER) has options of TLS: the certificate is always checked; name "
                f"your authority in {BrokerSettings.variable('ca_file')}"
            )
        if self.is_folder and not self.folder.is_absolute():
            raise ConfigError(f"the folder of broker {self.url!r} must be absolute, as in filesystem:///var/queue")

    @property
    def is_folder(self) -> bool:
        """Return whether the queue is a folder of this machine rather than a Redis server."""
        return urlsplit(self.url).scheme == "filesystem"

    def tls_options(self) -> dict[str, Any]:
        """Return the options of a TLS connection, or no options for other connections.

        Raise ConfigError if the CA file is missing. Kombu does not check a certificate unless it is asked to, so both
        clients get these options.
        """
        if urlsplit(self.url).scheme != "rediss":
            return {}
        options: dict[str, Any] = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
        if (file := BrokerSettings.load().ca_file) is not None:
            if not file.is_file():
                raise ConfigError(f"{BrokerSettings.variable('ca_file')} is {str(file)!r}, which is not a file")
            options["ssl_ca_certs"] = str(file)
        return options

    def redis_client(self) -> Any:
        """Return a client of the Redis server."""
        import redis

        return redis.Redis.from_url(self.url, socket_connect_timeout=5, socket_timeout=10, **self.tls_options())

    def explained(self, error: Exception) -> str:
        """Return a message that says why an operation on the broker failed, and what to do."""
        cause, variable = str(error), PlaceSettings.variable("broker")
        for mark, why in _REFUSALS.items():
            if mark in cause:
                return f"the broker {self.shown} {why} ({cause}): correct {variable}"
        return (
            f"the broker {self.shown} does not answer ({cause}): start it with `make cluster-up`, or correct {variable}"
        )

    @property
    def folder(self) -> Path:
        """Return the root folder of a folder broker."""
        return Path(self.url.removeprefix("filesystem://"))

    @property
    def kind(self) -> str:
        """Return `folder` or `redis`."""
        return "folder" if self.is_folder else "redis"

    @property
    def shown(self) -> str:
        """Return the broker's address without its password, for people and logs."""
        if self.is_folder:
            return self.url
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    @property
    def celery_url(self) -> str:
        """Return the address in Celery's form."""
        from poolbench.queue import folder

        return f"{folder.SCHEME}://" if self.is_folder else self.url

    def transport_options(self) -> dict[str, Any]:
        """Return the options of the Celery transport."""
        if self.is_folder:
            from poolbench.queue import folder

            return folder.transport_options(self.folder)
        return {
            "visibility_timeout": VISIBILITY_TIMEOUT_S,
            "unacked_restore_interval": 2,
            "unacked_restore_throttle": 1,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
        }

    def spool(self) -> Spool:
        """Return the messages and dead letters in the broker."""
        if self.is_folder:
            from poolbench.queue import folder

            return folder.FolderSpool(self.folder)
        from poolbench.queue.lists import RedisSpool

        return RedisSpool(self.redis_client())

    def celery_app(self, affinity: Affinity | None = None) -> "Celery":
        """Return a Celery application without a result store.

        Args:
            affinity: The choice of a consumer among the waiting tasks. None takes the first task.
        """
        from celery import Celery
        from kombu.transport import TRANSPORT_ALIASES

        TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), "poolbench.queue.redis_transport:Transport"))
        app = Celery("poolbench", broker=self.celery_url, backend="disabled://", set_as_current=False)
        options = self.transport_options() | {"affinity": affinity}
        app.conf.update(SETTINGS, broker_transport_options=options)
        if tls := self.tls_options():
            app.conf.broker_use_ssl = tls
        return app


class Owner(BaseModel):
    """The store of the cluster that a broker belongs to: that of the first process which worked with it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    store_id: str
    store_uri: str  # as the process that wrote it reaches the store; for people


def require_owner(broker: Broker, owner: Owner) -> None:
    """Make `owner` the owner of a broker that has no owner yet.

    Raises:
        ConfigError: The broker belongs to another store.
        BrokerError: The broker cannot be reached.
    """
    place = f"the file {broker.folder / FILE}" if broker.is_folder else f"the Redis key {KEY}"
    write_once = _write_file_once if broker.is_folder else _write_key_once
    try:
        recorded = Owner.model_validate_json(write_once(broker, owner.model_dump_json().encode()))
    except ValidationError:
        raise ConfigError(f"{place} of the broker {broker.shown} names no store: remove it") from None
    if recorded.store_id != owner.store_id:
        raise ConfigError(
            f"the broker {broker.shown} belongs to the cluster with the store {shown_text(recorded.store_uri)}, not to "
            f"{owner.store_uri}: set {PlaceSettings.variable('broker')} to a Redis database or folder of its own, or, "
            f"if that cluster is gone, empty the broker and remove {place}"
        )


def _write_file_once(broker: Broker, record: bytes) -> bytes:
    """Write a record if there is none; return the one that is there now."""
    path: Path = broker.folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    partial.write_bytes(record)
    try:
        os.link(partial, path)  # whole, or not at all
    except FileExistsError:
        return path.read_bytes()
    finally:
        partial.unlink()
    return record


def _write_key_once(broker: Broker, record: bytes) -> bytes:
    """Write a record if there is none; return the one that is there now."""
    import redis

    client = broker.redis_client()
    try:
        client.set(KEY, record, nx=True)
        return bytes(client.get(KEY))
    except redis.RedisError as error:
        raise BrokerError(broker.explained(error)) from error
