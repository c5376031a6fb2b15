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

CARD, MANIFEST, CHECKSUMS, CROISSANT = "README.md", "manifest.json", "SHA256SUMS", "croissant.json"
#: Fields of the records of a file by name: the type in Croissant, and what it says.
RecordFields = Mapping[str, tuple[str, str]]
_FORMATS = {".jsonl": "application/jsonlines", ".parquet": "application/x-parquet"}
_TERMS = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet", "format"),
    *("includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex"),
    *("repeated", "replace", "samplingRate", "separator", "source", "subField", "transform"),
)


def sha256_of(file: Path) -> str:
    """Return the SHA-256 of a file in hex, read in pieces."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_below(folder: Path) -> list[str]:
    """Return the sorted paths of all files below a folder, relative to the folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def write_checksums(folder: Path, sums: Mapping[str, str]) -> None:
    """Write the file `SHA256SUMS`, which `sha256sum -c` reads, from hashes by path."""
    (folder / CHECKSUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()), "utf-8")


def render_card(
    header: Iterable[str], title: str, lead: str, facts: Mapping[str, str], sections: Iterable[str] = ()
) -> str:
    """Return a dataset card: a YAML header for dataset hubs, a title, a paragraph, a table of facts, further lines."""
    rows = [f"| {name} | {value} |" for name, value in facts.items()]
    lines = ["---", *header, "---", f"# {title}", "", lead, "", "| | |", "|---|---|", *rows, *sections]
    return "\n".join(lines) + "\n"


def require_same(output: Path, identity: Mapping[str, str], mark: str = CHECKSUMS) -> None:
    """Raise InputError unless `output` is absent, is empty, or holds an earlier copy of the same release.

    Such a folder has the file `mark`, and its manifest has the fields of `identity` with equal values.
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
    """Yield a new folder beside `output`. If the block succeeds, the folder replaces `output`. Otherwise remove it."""
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
    """Write card, manifest and checksums into the folder of a release. Return the manifest.

    Args:
        facts: Fields of the manifest. The field `missing` lists the parts that the source lacks.
        entries: Further manifest fields of each file, by its path. The size and the SHA-256 of all files are added.
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


def croissant(
    name: str, description: str, licences: Sequence[str], version: str, files: Mapping[str, tuple[str, RecordFields]]
) -> str:
    """Return the metadata of a dataset as JSON in the Croissant 1.0 format.

    Args:
        files: SHA-256 and fields of each JSONL or Parquet file, by its path.

    Reference: MLCommons, Croissant 1.0 (https://docs.mlcommons.org/croissant/docs/croissant-spec-1.0.html).
    """
    content = {
        "@context": _context(),
        "@type": "sc:Dataset",
        "name": name,
        "description": description,
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "license": list(licences),
        "version": version,
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": file,
                "name": file,
                "contentUrl": file,
                "encodingFormat": _FORMATS[Path(file).suffix],
                "sha256": digest,
            }
            for file, (digest, _) in files.items()
        ],
        "recordSet": [_record_set(file, fields) for file, (_, fields) in files.items()],
    }
    return json.dumps(content, indent=1) + "\n"


def _record_set(file: str, fields: RecordFields) -> dict[str, Any]:
    record_id = file.rpartition(".")[0]
    return {
        "@type": "cr:RecordSet",
        "@id": record_id,
        "name": record_id,
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{record_id}/{name}",
                "name": name,
                "description": description,
                "dataType": kind,
                "source": {"fileObject": {"@id": file}, "extract": {"column": name}},
            }
            for name, (kind, description) in fields.items()
        ],
    }


def _context() -> dict[str, Any]:
    """Return the context that the specification gives for JSON-LD."""
    return {
        "@language": "en",
        "@vocab": "https://schema.org/",
        "cr": "http://mlcommons.org/croissant/",
        "rai": "http://mlcommons.org/croissant/RAI/",
        "dct": "http://purl.org/dc/terms/",
        "sc": "https://schema.org/",
        **{term: f"cr:{term}" for term in _TERMS},
        "conformsTo": "dct:conformsTo",
        "data": {"@id": "cr:data", "@type": "@json"},
        "examples": {"@id": "cr:examples", "@type": "@json"},
        "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    }


def hub_header(
    licence: str, configs: Sequence[tuple[str, str]] = (), tags: Sequence[str] = (), **more: str
) -> list[str]:
    """Return the YAML lines of a card: licence, language, tags, and the files of each configuration."""
    lines = [f"license: {licence}", "language: en", *(f"{name}: {value}" for name, value in more.items())]
    lines += ["tags:", *(f"- {tag}" for tag in tags)] if tags else []
    if configs:
        lines.append("configs:")
    return lines + [line for name, file in configs for line in (f"- config_name: {name}", f"  data_files: {file}")]


def _remove_leftovers(output: Path) -> None:
    """Remove the folders that killed exports left beside `output`.

    If a killed export had moved the earlier release away, move the release back.
    """
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
    """Return whether a process with this id exists on this machine, whichever user owns the process."""
    with suppress(ProcessLookupError, OverflowError):
        with suppress(PermissionError):
            os.kill(pid, 0)
        return True
    return False
