"""A folder as message broker: one file a message, moved by rename, so that nothing is read half-written."""

import os
import shutil
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps, loads

SCHEME = "poolbenchfolder"
POLL_INTERVAL_S = 0.1


def transport_options(root: Path) -> dict[str, Any]:
    """Transport options for a broker in `root`; creates its folders."""
    options: dict[str, Any] = {"polling_interval": POLL_INTERVAL_S, "store_processed": True}
    names = {
        "data_folder_in": "messages",
        "data_folder_out": "messages",
        "processed_folder": "taken",
        "control_folder": "control",
    }
    for option, name in names.items():
        path = root / name
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        options[option] = str(path)
    return options


def message_files(root: Path, queue: str) -> list[Path]:
    """Messages waiting in `queue`, oldest first."""
    return sorted(path for path in (root / "messages").glob("*.msg") if _queue_of(path.name) == queue)


def read_message(path: Path) -> dict[str, Any] | None:
    """A waiting message, or None when a consumer took it in the meantime."""
    try:
        return dict(loads(path.read_text()))
    except FileNotFoundError:
        return None


def clear(root: Path) -> None:
    """Forget every message and binding below `root`."""
    for name in ("messages", "taken", "control"):
        shutil.rmtree(root / name, ignore_errors=True)


def _queue_of(filename: str) -> str:
    return filename.partition(".")[2].removesuffix(".msg")


class Channel(filesystem.Channel):
    """Kombu's folder channel with atomic writes and reads.

    The stock channel creates a message under its final name before filling it, so a consumer may take an
    empty file and stop on it; and it keeps what it has read in the system's temporary folder.
    """

    def _put(self, queue: str, payload: Any, **kwargs: Any) -> None:  # type: ignore[override]
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex}.{queue}.msg"
        folder = Path(self.data_folder_out)
        partial = folder / f"{name}.partial"
        partial.write_text(dumps(payload))
        os.replace(partial, folder / name)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        for name in sorted(os.listdir(self.data_folder_in)):
            if not name.endswith(".msg") or _queue_of(name) != queue:
                continue
            taken = Path(self.processed_folder) / name
            try:
                os.rename(Path(self.data_folder_in) / name, taken)
            except FileNotFoundError:
                continue  # another consumer was quicker
            payload = loads(taken.read_text())
            taken.unlink()
            return dict(payload)
        raise Empty


class Transport(filesystem.Transport):
    """Folder transport with the atomic channel."""

    Channel = Channel


TRANSPORT_ALIASES[SCHEME] = f"{__name__}:Transport"
