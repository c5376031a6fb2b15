"""The store that a broker belongs to. Tasks name artifacts by key, so two clusters with one broker need one store.

The first process that works with a broker writes which store it uses. One with another store refuses to start.
"""

import os
import secrets
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from poolbench.errors import BrokerError, ConfigError
from poolbench.queue.broker import Broker
from poolbench.queue.strict import shown_text
from poolbench.settings import PlaceSettings

KEY = "poolbench:owner"
FILE = "owner.json"


class Owner(BaseModel):
    """The store of the cluster that a broker belongs to."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    store_id: str
    store_uri: str  # as the process that wrote it reaches the store; for people


def require_owner(broker: Broker, owner: Owner) -> None:
    """Make `owner` the owner of a broker without one; raise ConfigError if the broker belongs to another store.

    Raise BrokerError if the broker cannot be reached.
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
