"""A folder to publish: written beside its place and renamed, with a card, a manifest and checksums."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from poolbench.errors import InputError

CARD, MANIFEST, CHECKSUMS = "README.md", "manifest.json", "SHA256SUMS"


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file in hex, read in pieces."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_below(folder: Path) -> list[str]:
    """Return the paths of all files below a folder, relative to it, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def write_checksums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write SHA-256 by path as `SHA256SUMS`, which `sha256sum -c` reads."""
    (folder / CHECKSUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()), "utf-8")


def render_card(
    header: Iterable[str], title: str, lead: str, facts: Mapping[str, str], sections: Iterable[str] = ()
) -> str:
    """Return a card: YAML lines that dataset hubs read, a title, a paragraph, a table of facts, further lines."""
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    lines = ["---", *header, "---", f"# {title}", "", lead, "", "| | |", "|---|---|", *rows, *sections]
    return "\n".join(lines) + "\n"


def require_same(output: Path, identity: Mapping[str, str], mark: str = CHECKSUMS) -> None:
    """Raise InputError unless `output` is absent, empty, or an earlier release: its manifest has these fields.

    A folder without the file `mark` is none.
    """
    if not output.exists():
        return
    if not output.is_dir():
        raise InputError(f"{output} is a file; name a folder for the release")
    if not any(output.iterdir()):
        return
    try:
        (output / mark).stat()
        manifest = json.loads((output / MANIFEST).read_text("utf-8"))
        differing = [
            f"{name} {manifest.get(name)!r}" for name, value in identity.items() if manifest.get(name) != value
        ]
    except (OSError, ValueError, AttributeError):
        raise InputError(f"{output} holds other files; name a new folder, or one that this release lies in") from None
    if differing:
        raise InputError(f"{output} holds another export ({', '.join(differing)}); name a new folder")


@contextmanager
def replacing(output: Path) -> Iterator[Path]:
    """Yield a folder beside `output` that replaces it on success, and is removed otherwise."""
    output.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(output)
    partial, old = (output.with_name(f".{output.name}.{os.getpid()}.{kind}") for kind in ("part", "old"))
    partial.mkdir()
    try:
        yield partial
        if output.exists():
            output.rename(old)
        partial.rename(output)
    finally:
        if old.exists() and not output.exists():
            old.rename(output)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(partial, ignore_errors=True)


def write_release(
    partial: Path, card: str, facts: Mapping[str, Any], entries: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Write card, manifest and checksums beside the files of a release; return the manifest.

    Args:
        facts: Fields of the manifest; `missing` lists what the source lacks.
        entries: Further fields of a file by its path; size and SHA-256 of all files are added.
    """
    (partial / CARD).write_text(card, "utf-8")
    sums = {name: sha256_of(partial / name) for name in files_below(partial)}
    files = {
        name: {**entries.get(name, {}), "bytes": (partial / name).stat().st_size, "sha256": digest}
        for name, digest in sums.items()
    }
    manifest = {**facts, "files": files}
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    write_checksums(partial, {**sums, MANIFEST: sha256_of(partial / MANIFEST)})
    return manifest


def hub_header(licence: str, configs: Sequence[tuple[str, str]] = (), **more: str) -> list[str]:
    """Return the YAML lines of a card: licence, language, and the files of each configuration."""
    lines = [f"license: {licence}", "language: en", *(f"{name}: {value}" for name, value in more.items())]
    if configs:
        lines.append("configs:")
    return lines + [line for name, file in configs for line in (f"- config_name: {name}", f"  data_files: {file}")]


def _remove_leftovers(output: Path) -> None:
    """Remove what killed exports left beside `output`; the earlier release that one of them had moved comes back."""
    for path in output.parent.glob(f".{output.name}.*"):
        pid, _, kind = path.name.removeprefix(f".{output.name}.").partition(".")
        if kind not in ("part", "old") or not pid.isdecimal():
            continue
        if int(pid) != os.getpid() and lives(int(pid)):
            continue
        if kind == "old" and not output.exists():
            path.rename(output)
        else:
            shutil.rmtree(path, ignore_errors=True)


def lives(pid: int) -> bool:
    """Return whether a process of this machine exists, of whatever user."""
    with suppress(ProcessLookupError, OverflowError):
        with suppress(PermissionError):
            os.kill(pid, 0)
        return True
    return False
