"""The broker: its address, its messages, and the cluster that it belongs to."""

import os
import secrets
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from poolbench.errors import BrokerError, ConfigError
from poolbench.queue.letters import DeadLetter, Stored
from poolbench.queue.messages import shown_text
from poolbench.settings import BrokerSettings, PlaceSettings

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
    """The messages and dead letters of all queues, by name of the queue. Methods raise `Broker.errors`."""

    def put(self, queue: str, raw: bytes) -> None:
        """Add a message at the end of a queue."""

    def count(self, queue: str, limit: int | None = None) -> int:
        """Return the number of waiting messages, including messages that cannot be parsed. Stop counting at `limit`."""

    def wait(self, queue: str, seconds: float) -> None:
        """Wait until a message may be in the queue, for at most some seconds."""

    def next(self, queue: str, number: int) -> list[Stored]:
        """Return the first messages, oldest first, without removing them."""

    def take(self, queue: str, stored: Stored) -> bool:
        """Remove a message. If several consumers remove it at once, exactly one of them gets True."""

    def bury_message(self, queue: str, stored: Stored, letter: DeadLetter) -> bool:
        """Replace a message by its dead letter. Return False if another consumer has removed the message."""

    def waiting(self, queue: str) -> Iterator[bytes]:
        """Yield all waiting messages, oldest first."""

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

        Raise ConfigError if the CA file is missing.
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

        options = {"socket_connect_timeout": 5, "socket_timeout": 10, "socket_keepalive": True}
        return redis.Redis.from_url(self.url, **options, **self.tls_options())

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Return the classes of the errors that an operation on the broker raises."""
        if self.is_folder:
            return (OSError,)
        import redis

        return (OSError, redis.RedisError)

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

    def spool(self) -> Spool:
        """Return the messages and dead letters in the broker."""
        if self.is_folder:
            from poolbench.queue.folder import FolderSpool

            return FolderSpool(self.folder)
        from poolbench.queue.lists import RedisSpool

        return RedisSpool(self.redis_client())


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
