"""Check that all nodes of a cluster see the same folders.

A folder that holds the store or the queue must be shared by every node. On a node that has a folder of its own under
the same path, tasks would find no inputs, and artifacts would never be seen by the driver.
"""

import secrets
import socket
from pathlib import Path

from poolbench.errors import AccessDeniedError, ConfigError, NotFoundError
from poolbench.queue.broker import Broker
from poolbench.settings import ClusterSettings, PlaceSettings
from poolbench.storage.folder import FolderStore
from poolbench.storage.opening import folder_of_store

MARK = "folder-id"
"""The file with the id of a folder, in the folder itself."""

STORE, BROKER = "store", "broker"


def folder_ids(settings: ClusterSettings) -> dict[str, str]:
    """Return the ids of the cluster's folders (stores and broker) that this process may read and write, by setting.

    A folder without an id gets an id, and the first writer wins. A service that is reached over the network has no
    folder, and so no id here.
    """
    id_by_name = {name: _id(folder) for name, folder in folders(settings).items()}
    return {name: mark for name, mark in id_by_name.items() if mark}


def folders_here() -> dict[str, str]:
    """Return the ids of the cluster's folders on this node. If this node has no address of the cluster, return none."""
    try:
        return folder_ids(ClusterSettings.load())
    except ConfigError:
        return {}


def folders(settings: ClusterSettings) -> dict[str, Path]:
    """Return the folders among store and broker, by the name of the setting."""
    broker = Broker(settings.broker_url)
    store = folder_of_store(settings.store_uri)
    return ({} if store is None else {STORE: store}) | ({BROKER: broker.folder} if broker.is_folder else {})


def require_shared(settings: ClusterSettings, expected: dict[str, str]) -> None:
    """Raise ConfigError if a folder of this node has another id than expected.

    Args:
        settings: The settings by which this process reaches the cluster.
        expected: Expected ids by the name of the setting, from `folder_ids` of another process. A name that only one
            side has is not compared, because the other side may lack the right to read that folder.
    """
    here, where = folder_ids(settings), folders(settings)
    for name in expected.keys() & here.keys():
        if here[name] != expected[name]:
            raise ConfigError(
                f"{PlaceSettings.variable(name)}: {where[name]} on {socket.gethostname()} is not the folder of the "
                "cluster's other machines; use a folder that all machines share (such as NFS), or an S3 service and "
                "Redis"
            )


def _id(folder: Path) -> str:
    """Return the id of a folder, or an empty string if this process may not read or create it."""
    try:
        store = FolderStore(folder)
        try:
            return store.get(MARK).decode()
        except NotFoundError:
            store.put(MARK, secrets.token_hex(16).encode(), if_absent=True)
            return store.get(MARK).decode()
    except AccessDeniedError:
        return ""
