"""The records of an object store that a cluster gives to clients over HTTP, for the code that reads a store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from poolbench.contracts.bounds import RECORD_PATTERN, RECORDS_PATTERN
from poolbench.contracts.wire import RUN_CANCEL, RUNS_FOLDER
from poolbench.errors import ConfigError, NotFoundError, PoolbenchError
from poolbench.storage.base import ObjectInfo

if TYPE_CHECKING:
    from poolbench_driver.cluster.services import Services

_SERVICE = "pooler"


class RemoteRecords:
    """ObjectStore that reads the records of runs, scorers, activations and concepts, and writes one: the end of a run.

    Every other operation raises ConfigError: it needs the object store itself.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self.uri = services.settings.http_address

    def get(self, path: str) -> bytes:
        if not re.fullmatch(RECORD_PATTERN, path):
            self._refuse(path)
        try:
            return self._services.get_bytes(_SERVICE, "record", {"path": path})
        except PoolbenchError as error:
            if error.http_status == 404:
                raise NotFoundError(str(error)) from None
            raise

    def exists(self, path: str) -> bool:
        return any(info.path == path for info in self.list(path))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        yield from (ObjectInfo(**record) for record in self._listed(prefix)["records"])

    def now_s(self, path: str = "") -> float:
        return float(self._listed(path)["now_s"])

    def put(self, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        folder, _, run = path.removesuffix(f"/{RUN_CANCEL}").partition("/")
        if folder != RUNS_FOLDER or not path.endswith(f"/{RUN_CANCEL}"):
            self._refuse(path)
        self._services.post(_SERVICE, "cancel_run", {"run": run})
        return True

    def delete(self, path: str) -> None:
        self._refuse(path)

    def move(self, source: str, target: str) -> bool:
        self._refuse(source)

    def blocked(self, path: str) -> str:
        self._refuse(path)

    def _listed(self, prefix: str) -> dict[str, Any]:
        if not re.fullmatch(RECORDS_PATTERN, prefix):
            self._refuse(prefix)
        return self._services.get(_SERVICE, "records", {"prefix": prefix})

    def _refuse(self, path: str) -> NoReturn:
        raise ConfigError(
            f"this command needs {path or 'all'} of the object store, and {self._services.settings.http_from} has the "
            "address of the services only: set POOLBENCH_STORE and POOLBENCH_BROKER too, or use a machine that has them"
        )
