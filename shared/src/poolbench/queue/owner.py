"""The store that a broker belongs to. Tasks name artifacts by key, so two clusters with one broker need one store.

The first process that works with a broker writes which store it uses. One with another store refuses to start.
"""

import os
import secrets
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from poolbench.errors import BrokerError, ConfigError
from poolbench.queue.broker import Broker
from poolbench.queue.files import read_file
from poolbench.queue.strict import shown_text
from poolbench.settings import PlaceSettings

KEY = "poolbench:owner"
FILE = "owner.json"
_MAX_BYTES = 4096


class Owner(BaseModel):
    """The store of the cluster that a broker belongs to."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    store_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    store_uri: str = Field(max_length=1000)  # as the process that wrote it reaches the store; for people


def require_owner(broker: Broker, owner: Owner) -> None:
    """Make `owner` the owner of a broker without one; raise ConfigError if the broker belongs to another store.

    Raise BrokerError if the broker cannot be reached.
    """
    place = _place(broker)
    for _ in range(2):  # the second time for a record that could not be read and was removed
        found = place.write_once(owner.model_dump_json().encode())
        try:
            other = Owner.model_validate_json(found)
        except ValidationError:  # other programs may write into a broker; nothing says that it is not ours
            place.remove()
            continue
        if other.store_id != owner.store_id:
            raise ConfigError(
                f"the broker {broker.shown} belongs to the cluster with the store {shown_text(other.store_uri)}, not "
                f"to {owner.store_uri}: set {PlaceSettings.variable('broker')} to a Redis database or folder of its "
                "own, or, if that cluster is gone, take the broker over with `poolbench-driver claim-broker`"
            )
        return


def claim(broker: Broker, owner: Owner) -> None:
    """Make `owner` the owner of a broker, whatever its owner was. Raise BrokerError if it cannot be reached."""
    place = _place(broker)
    place.remove()
    place.write_once(owner.model_dump_json().encode())


class _Place(Protocol):
    """Where a broker keeps the record of its owner."""

    def write_once(self, record: bytes) -> bytes:
        """Write a record if there is none; return the one that is there now."""

    def remove(self) -> None:
        """Remove the record."""


def _place(broker: Broker) -> _Place:
    return _File(broker.folder / FILE) if broker.is_folder else _RedisKey(broker)


class _File:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write_once(self, record: bytes) -> bytes:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = self._path.with_name(f".{secrets.token_hex(8)}.partial")
        partial.write_bytes(record)
        try:
            os.link(partial, self._path)  # whole, or not at all
        except FileExistsError:
            found = read_file(self._path, _MAX_BYTES)
            return found if isinstance(found, bytes) else b""
        finally:
            partial.unlink()
        return record

    def remove(self) -> None:
        if os.path.lexists(self._path):
            self._path.rename(self._path.with_name(f"{FILE}.{secrets.token_hex(4)}.aside"))


class _RedisKey:
    def __init__(self, broker: Broker) -> None:
        self._broker, self._client = broker, broker.redis_client()

    def write_once(self, record: bytes) -> bytes:
        self._call("set", KEY, record, nx=True)
        return bytes(self._call("eval", _READ, 1, KEY, _MAX_BYTES) or b"")

    def remove(self) -> None:
        self._call("delete", KEY)

    def _call(self, command: str, *arguments: Any, **options: Any) -> Any:
        import redis

        try:
            return getattr(self._client, command)(*arguments, **options)
        except redis.RedisError as error:
            raise BrokerError(self._broker.explained(error)) from error


# Another program may have written something else there, of any size.
_READ = """
if redis.call('type', KEYS[1]).ok ~= 'string' or redis.call('strlen', KEYS[1]) > tonumber(ARGV[1]) then return '' end
return redis.call('get', KEYS[1])
"""
