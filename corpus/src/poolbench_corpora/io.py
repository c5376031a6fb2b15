"""Read and write the published corpus layout, `{concept}/{split}_{class}.jsonl`, as PASSAGES tables.

One record per line: `id, text, label, domain, token_count, matched_pair_id, split`, and as our extension
`doc_id, source, licence, revision, signal`. A published corpus lacks the extension: its documents are then
inferred by `poolbench_corpora.near`.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from poolbench.concepts import CONCEPTS, refuse_sensitive
from poolbench.contracts.tables import PASSAGES
from poolbench.errors import CorpusError
from poolbench_corpora.near import infer_documents
from poolbench_corpora.partition import PARTITION_VERSION
from poolbench_corpora.reading import records

MANIFEST_NAME = "manifest.json"


class CorpusManifest(BaseModel):
    """How a corpus was made; lies beside its concept folders."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    revision: str  # name of this state of the corpus; enters the artifact keys
    tokenizer: str  # tokenizer that measured `token_count`, or `words` for words and punctuation
    window: tuple[int, int]  # smallest and largest number of tokens asked for
    partition_version: int = PARTITION_VERSION  # the document partition of its splits; 0 for splits made elsewhere
    inferred_documents: bool = False  # whether `doc_id` was inferred from shared 8-grams
    recipe: str = ""  # the command or function that made it


def read_manifest(folder: Path) -> CorpusManifest | None:
    """Return the manifest of a corpus folder, None without one. Raise CorpusError if it cannot be read."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        return CorpusManifest.model_validate_json(path.read_text("utf-8"))
    except ValidationError as error:
        raise CorpusError(f"{path}: {error.errors()[0]['msg']}") from None
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 at byte {error.start}; convert it") from None


def joined_manifest(folder: Path, concepts: Iterable[str], manifest: CorpusManifest) -> CorpusManifest:
    """Return the manifest of a folder after the corpora of some concepts are added to it, or replaced in it.

    Raises:
        CorpusError: The other concepts of the folder were measured with another tokenizer.
    """
    before = read_manifest(folder)
    others = {entry.id for entry in CONCEPTS.all() if (folder / entry.id).is_dir()} - set(concepts)
    if before is None or not others:
        return manifest
    if before.tokenizer != manifest.tokenizer:
        raise CorpusError(
            f"{folder} holds {', '.join(sorted(others))}, measured with {before.tokenizer}, and these texts were "
            f"measured with {manifest.tokenizer}: name another folder, or the tokenizer if it is the same"
        )
    same_partition = before.partition_version == manifest.partition_version
    return CorpusManifest(
        revision=_both(before.revision, manifest.revision, ", "),
        tokenizer=manifest.tokenizer,
        window=(min(before.window[0], manifest.window[0]), max(before.window[1], manifest.window[1])),
        partition_version=manifest.partition_version if same_partition else 0,
        inferred_documents=before.inferred_documents or manifest.inferred_documents,
        recipe=_both(before.recipe, manifest.recipe, "; "),
    )


def _both(first: str, second: str, sign: str) -> str:
    """Return two lists as one, each part once."""
    return sign.join(dict.fromkeys([*first.split(sign), *second.split(sign)]))


def folder_files(folder: Path) -> list[Path]:
    """Return a corpus folder's JSONL files in order; raise CorpusError if it has none."""
    if files := sorted(folder.rglob("*.jsonl")):
        return files
    raise CorpusError(f"corpus {folder}: no such folder, or no .jsonl file in it; use 'planted', 'real' or a folder")


def folder_digest(folder: Path, look: Callable[[bytes], None] = lambda content: None) -> str:
    """Return a hash of the names and bytes of a folder's JSONL files, each of which is also shown to `look`."""
    total = hashlib.sha256()
    for file in folder_files(folder):
        content = file.read_bytes()
        look(content)
        total.update(file.relative_to(folder).as_posix().encode() + b"\0" + hashlib.sha256(content).digest())
    return total.hexdigest()[:16]


CORPUS_SPLITS = ("train", "test", "scorer")
CLASSES = {"pos": 1, "neg": 0}
_REQUIRED_SPLITS = ("train", "test")


class Span(BaseModel):
    """A character range."""

    start: int = Field(ge=0, lt=2**31)
    end: int = Field(ge=0, lt=2**31)


class Record(BaseModel):
    """One line of a corpus file."""

    model_config = ConfigDict(extra="ignore", strict=True)

    id: str
    text: str
    label: int
    domain: str = ""
    token_count: int | None = Field(None, ge=-(2**31), lt=2**31)
    matched_pair_id: str | None = None
    split: str | None = None
    doc_id: str | None = None
    source: str | None = None
    licence: str | None = None
    revision: str | None = None
    signal: list[Span] = []


def write_corpus(passages: pa.Table, folder: Path, manifest: CorpusManifest) -> None:
    """Write PASSAGES of any number of concepts, one folder each, and the manifest; existing files are replaced.

    Raise RestrictedError if a concept is sensitive, unless the operator allows it.
    """
    concepts = pc.unique(passages["concept"]).to_pylist()
    refuse_sensitive(concepts)
    for concept in concepts:
        place = folder / concept
        place.mkdir(parents=True, exist_ok=True)
        for split in CORPUS_SPLITS:
            for name, label in CLASSES.items():
                mask = pc.equal(passages["concept"], concept)
                mask = pc.and_(mask, pc.equal(passages["split"], split))
                rows = passages.filter(pc.and_(mask, pc.equal(passages["label"], label))).to_pylist()
                path = place / f"{split}_{name}.jsonl"
                if rows:
                    lines = (_to_line(row, manifest.revision) for row in rows)
                    write_at_once(path, "".join(lines))
                else:
                    path.unlink(missing_ok=True)
    write_manifest(folder, manifest)


def write_manifest(folder: Path, manifest: CorpusManifest) -> None:
    """Write the manifest of a corpus folder."""
    write_at_once(folder / MANIFEST_NAME, manifest.model_dump_json(indent=2) + "\n")


def write_at_once(path: Path, content: str) -> None:
    """Write a text file so that a reader, or an interruption, leaves the old or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(content, "utf-8")
    partial.replace(path)


def read_concept(folder: Path, concept: str) -> pa.Table:
    """Return the passages of one concept of a corpus folder. Raise CorpusError with file, line and field."""
    place = folder / concept
    if not place.is_dir():
        names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        raise CorpusError(f"{folder} has no corpus of {concept!r}; it has: {', '.join(names) or 'none'}")
    rows: list[dict[str, Any]] = []
    for split in CORPUS_SPLITS:
        for name, label in CLASSES.items():
            path = place / f"{split}_{name}.jsonl"
            if path.exists() or split in _REQUIRED_SPLITS:
                rows += _read_file(path, concept, split, label)
    seen: set[str] = set()
    for row in rows:
        if row["passage_id"] in seen:
            raise CorpusError(f"{place}: id {row['passage_id']!r} occurs twice; ids must be unique")
        seen.add(row["passage_id"])
    return infer_documents(pa.Table.from_pylist(rows, schema=PASSAGES))


def _read_file(path: Path, concept: str, split: str, label: int) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise CorpusError(f"{path} is missing; a corpus needs train and test files of both classes")
    for where, values in records(path):
        record = _checked(values, where)
        if record.label != label:
            raise CorpusError(f"{where}: label is {record.label}, this file holds {label}")
        if record.split not in {None, split}:
            raise CorpusError(f"{where}: split is {record.split!r}; this file holds {split!r}")
        yield _to_row(record, concept, split)


def _checked(values: Mapping[str, Any], where: str) -> Record:
    try:
        record = Record.model_validate(values)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, issue['loc'])) or 'record'}: {issue['msg']}" for issue in error.errors()]
        raise CorpusError(f"{where}: {'; '.join(wrong)}") from None
    try:
        "".join(value for value in vars(record).values() if isinstance(value, str)).encode()
    except UnicodeEncodeError:
        raise CorpusError(f"{where}: text with a lone surrogate, which is not valid Unicode; correct it") from None
    if not record.text.strip():
        raise CorpusError(f"{where}: text is empty; remove the record")
    return record


def _to_row(record: Record, concept: str, split: str) -> dict[str, Any]:
    return {
        "passage_id": record.id,
        "concept": concept,
        "split": split,
        "label": record.label,
        "text": record.text,
        "domain": record.domain,
        "doc_id": record.doc_id,
        "pair_id": record.matched_pair_id,
        "source": record.source or "",
        "licence": record.licence or "",
        "token_count": record.token_count,
        "signal": [span.model_dump() for span in record.signal],
    }


def _to_line(row: dict[str, Any], revision: str) -> str:
    names = {"passage_id": "id", "pair_id": "matched_pair_id"}
    record = {names.get(key, key): value for key, value in row.items() if key != "concept"}
    return json.dumps(record | {"revision": revision}, ensure_ascii=False) + "\n"
