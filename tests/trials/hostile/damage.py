"""Damaging the files of artifacts: flipped bytes, missing ends, other files' bytes, edited manifests."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poolbench.storage.artifacts import folder_of


@dataclass(frozen=True)
class Damage:
    """One damaged file."""

    key: str
    path: Path
    way: str

    @property
    def shown(self) -> str:
        """The damage in one line."""
        return f"{self.way}: {self.key}/{self.path.name}"


def files_of(store: Path, keys: list[str]) -> list[tuple[str, Path]]:
    """Every file of the artifacts, in an order that depends on their keys and names alone.

    Where an earlier round deleted a manifest, files of that attempt are left that nothing reads: they do not count.
    """
    found = []
    for key in keys:
        folder = store / folder_of(key)
        attempt = _attempt(folder / "manifest.json")
        files = (path for path in sorted(folder.rglob("*"), key=lambda path: path.name) if path.is_file())
        found += [(key, path) for path in files if path.parent == folder or path.is_relative_to(folder / attempt)]
    return found


def _attempt(manifest: Path) -> str:
    try:
        return str(json.loads(manifest.read_bytes())["attempt"])
    except (OSError, ValueError, KeyError):
        return "none"


def damage_files(files: list[tuple[str, Path]], count: int, rng: random.Random) -> list[Damage]:
    """Damages that many of the files, each in a way that is drawn for it."""
    chosen = rng.sample(files, min(count, len(files)))
    return [Damage(key, path, _damage(path, files, rng)) for key, path in chosen]


def _damage(path: Path, files: list[tuple[str, Path]], rng: random.Random) -> str:
    ways = [*_ANY, *_MANIFEST] if path.name == "manifest.json" else list(_ANY)
    name = rng.choice(ways)
    if name == "swapped":
        _swap(path, rng.choice(files)[1])
    elif name in _MANIFEST:
        _edit(path, _MANIFEST[name])
    else:
        data = path.read_bytes() if path.exists() else b""
        made = _ANY[name](data, rng)
        _replace(path, made)
    return name


def _replace(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(data)


def _swap(one: Path, other: Path) -> None:
    """Exchanges two files; each is whole, and neither is what its place says."""
    first, second = (path.read_bytes() if path.exists() else b"" for path in (one, other))
    one.write_bytes(second)
    if other.exists():
        other.write_bytes(first)


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    try:
        manifest = json.loads(path.read_bytes())
        change(manifest)
        path.write_text(json.dumps(manifest))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        path.write_bytes(b"{")  # it was damaged already, by an exchange


def _flip(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return b"\x00"
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _first_file(manifest: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = next(iter(manifest["files"].values()))
    return entry


_ANY: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "flipped": _flip,
    "truncated": lambda data, rng: data[: rng.randrange(len(data))] if data else b"",
    "emptied": lambda data, rng: b"",
    "deleted": lambda data, rng: None,
    "extended": lambda data, rng: data + rng.randbytes(rng.choice((1, 1000))),
    "garbage": lambda data, rng: rng.randbytes(max(len(data), 1)),
    "swapped": lambda data, rng: data,
}
_MANIFEST: dict[str, Callable[[dict[str, Any]], None]] = {
    "other hash": lambda manifest: _first_file(manifest).update(sha256="0" * 64),
    "other size": lambda manifest: _first_file(manifest).update(num_bytes=1),
    "path outside": lambda manifest: _first_file(manifest).update(path="../../../../etc/passwd"),
    "other rows": lambda manifest: manifest.update(num_rows=10**9),
    "other key": lambda manifest: manifest.update(key="x"),
    "other version": lambda manifest: manifest.update(schema_version=99),
    "no files": lambda manifest: manifest.update(files={}),
    "field more": lambda manifest: manifest.update(x=1),
    "meta edited": lambda manifest: manifest["meta"].update(model_revision="x"),
    "no object": lambda manifest: manifest.clear(),
}
