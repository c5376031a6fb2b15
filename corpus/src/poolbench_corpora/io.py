"""Read and write the published corpus layout, `{concept}/{split}_{class}.jsonl`, as PASSAGES tables.

One record per line: `id, text, label, domain, token_count, matched_pair_id, split`, and as our extension
`doc_id, source, licence, revision, signal`, and `attribution` where texts name whom to credit. A published corpus lacks
the extension: its documents are then inferred by `poolbench_corpora.near`.

The corpus that ships has one table per concept in place of the six files, `{concept}/passages.parquet`, with the same
fields, all with `attribution`. Its manifest names the hash of each table. Texts under share-alike licences lie below
`share_alike/`.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from poolbench.concepts import CONCEPTS, refuse_sensitive
from poolbench.contracts.tables import PASSAGES
from poolbench.errors import CorpusError
from poolbench_corpora.near import infer_documents
from poolbench_corpora.partition import PARTITION_VERSION
from poolbench_corpora.reading import SentFile, records

MANIFEST_NAME = "manifest.json"
TABLE_NAME = "passages.parquet"
#: Folder of the concepts whose texts have a share-alike licence.
SHARE_ALIKE = "share_alike"


class TableFacts(BaseModel):
    """The facts of a manifest about the table of one concept."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    sha256: str
    verdict: str  # of the audit: pass, confounded or short
    reasons: tuple[str, ...] = ()  # why the verdict is not `pass`
    labels: str = ""  # how passages were labelled


class SourceFacts(BaseModel):
    """The facts of a manifest about a source of texts."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    origin: str  # repository and commit, or package and version
    licence: str
    passages: int


class CorpusManifest(BaseModel):
    """The origin of a corpus: sources, settings and tables; it lies beside the folders of its concepts."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    revision: str  # name of this state of the corpus; enters the artifact keys
    tokenizer: str  # tokenizer that measured `token_count`, or `words` for words and punctuation
    window: tuple[int, int]  # smallest and largest number of tokens asked for
    partition_version: int = PARTITION_VERSION  # the document partition of its splits; 0 for splits made elsewhere
    inferred_documents: bool = False  # whether `doc_id` was inferred from shared 8-grams
    recipe: str = ""  # the command or function that made it
    min_domains: Mapping[str, int] = {}  # by concept: domains of each split, if its sources have fewer than it asks for
    tables: Mapping[str, TableFacts] = {}  # by path below the folder; only a corpus of tables has some
    sources: Mapping[str, SourceFacts] = {}  # by name


def read_manifest(folder: Path) -> CorpusManifest | None:
    """Return the manifest of a corpus folder, or None if it has no manifest.

    Raise CorpusError if the manifest cannot be read.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        return None
    try:
        return CorpusManifest.model_validate_json(path.read_text("utf-8"))
    except ValidationError as error:
        raise CorpusError(f"{path}: {error.errors()[0]['msg']}") from None
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 at byte {error.start}; convert it") from None


def window_of(tables: Sequence[pa.Table]) -> tuple[int, int]:
    """Return the smallest and the largest number of tokens in tables of PASSAGES.

    Both are 0 if no number of tokens is known.
    """
    counts = [count for table in tables for count in table["token_count"].to_pylist() if count is not None]
    return (min(counts), max(counts)) if counts else (0, 0)


def joined_manifest(folder: Path, concepts: Iterable[str], manifest: CorpusManifest) -> CorpusManifest:
    """Return the manifest of a folder after corpora of `concepts` are added or replaced.

    Raises:
        CorpusError: The tokens of the folder's other concepts were counted with another tokenizer.
    """
    before = read_manifest(folder)
    others = {entry.id for entry in CONCEPTS.all() if concept_folder(folder, entry.id).is_dir()} - set(concepts)
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
        min_domains={name: number for name, number in before.min_domains.items() if name in others}
        | {**manifest.min_domains},
        tables=before.tables,
        sources=before.sources,
    )


def _both(first: str, second: str, sign: str) -> str:
    """Join two lists in text form, each part once."""
    return sign.join(dict.fromkeys([*first.split(sign), *second.split(sign)]))


def concept_folder(folder: Path, concept: str) -> Path:
    """Return the folder of a concept's passages in a corpus folder. It need not exist."""
    apart = folder / SHARE_ALIKE / concept
    return apart if apart.is_dir() else folder / concept


def audited_concepts(folder: Path) -> frozenset[str]:
    """Return the concepts of a corpus of tables whose audit has the verdict `pass`.

    Raise CorpusError if the folder has no manifest.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise CorpusError(f"{folder / MANIFEST_NAME} is missing; get the folder again")
    return frozenset(PurePath(name).parent.name for name, facts in manifest.tables.items() if facts.verdict == "pass")


def has_scorer_texts(folder: Path, concept: str) -> bool:
    """Return whether a corpus folder has texts of a concept for scorers.

    Raise CorpusError if the concept's table is damaged or not in the manifest.
    """
    place = concept_folder(folder, concept)
    if (place / TABLE_NAME).is_file():
        content = _whole_table(folder, place / TABLE_NAME)
        rows = records(SentFile(str(place / TABLE_NAME), content))
        return any(values.get("split") == "scorer" for _, values in rows)
    return (place / "scorer_pos.jsonl").is_file()


def folder_files(folder: Path) -> list[Path]:
    """Return the sorted files with passages of a corpus folder.

    Raise CorpusError if the folder has no such file, or lacks a table that its manifest names.
    """
    files = sorted([*folder.rglob("*.jsonl"), *folder.rglob(TABLE_NAME)])
    if not files:
        raise CorpusError(
            f"corpus {folder}: no such folder, or no .jsonl file and no {TABLE_NAME} in it; "
            "use 'planted', 'real' or a folder"
        )
    has_tables = any(file.name == TABLE_NAME for file in files)
    manifest = read_manifest(folder) if has_tables else None
    for name in manifest.tables if manifest else ():
        if folder / name not in files:
            raise CorpusError(f"{folder / name} is missing; get the folder again")
    return files


def folder_digest(folder: Path, look: Callable[[bytes], None] = lambda content: None) -> str:
    """Return a hash of the names and bytes of a folder's files with passages.

    `look` is called with the bytes of each file. Raise CorpusError if the folder has no such file, a table is missing,
    or a table differs from the manifest.
    """
    total = hashlib.sha256()
    for file in folder_files(folder):
        content = _whole_table(folder, file) if file.name == TABLE_NAME else file.read_bytes()
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
    attribution: str | None = None
    revision: str | None = None
    signal: list[Span] = []


def write_corpus(passages: pa.Table, folder: Path, manifest: CorpusManifest) -> None:
    """Write PASSAGES into one folder per concept, and write the manifest. Existing files are replaced.

    If the passages have a column `attribution`, it is written too. Raise RestrictedError if a concept is sensitive,
    unless the operator allows it.
    """
    concepts = pc.unique(passages["concept"]).to_pylist()
    refuse_sensitive(concepts)
    for concept in concepts:
        place = concept_folder(folder, concept)
        place.mkdir(parents=True, exist_ok=True)
        (place / TABLE_NAME).unlink(missing_ok=True)
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
    tables = {path: facts for path, facts in manifest.tables.items() if (folder / path).is_file()}
    sources = manifest.sources if tables else {}
    write_manifest(folder, manifest.model_copy(update={"tables": tables, "sources": sources}))


def write_manifest(folder: Path, manifest: CorpusManifest) -> None:
    """Write the manifest of a corpus folder."""
    absent = {name for name in ("min_domains", "tables", "sources") if not getattr(manifest, name)}
    write_at_once(folder / MANIFEST_NAME, manifest.model_dump_json(indent=2, exclude=absent) + "\n")


def write_at_once(path: Path, content: str) -> None:
    """Write a text file atomically: readers see the old or the new file, even after an interruption."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(content, "utf-8")
    partial.replace(path)


def read_concept(folder: Path, concept: str) -> pa.Table:
    """Return the passages of one concept in a corpus folder.

    Raise CorpusError, with file, line and field where they are known, if the concept is missing or a row is invalid.
    """
    return _read_concept(folder, concept).select(PASSAGES.names)


def read_credited(folder: Path, concepts: Iterable[str]) -> pa.Table:
    """Return the passages of several concepts in a corpus folder, read as in `read_concept`.

    If at least one passage has an attribution, the table has the column `attribution`.
    """
    passages = pa.concat_tables([_read_concept(folder, name) for name in concepts])
    uncredited = passages["attribution"].null_count == passages.num_rows
    return passages.drop_columns("attribution") if uncredited else passages


def _read_concept(folder: Path, concept: str) -> pa.Table:
    place = concept_folder(folder, concept)
    if not place.is_dir():
        parts = [part for part in (folder, folder / SHARE_ALIKE) if part.is_dir()]
        names = sorted(path.name for part in parts for path in part.iterdir() if path.is_dir() and path not in parts)
        raise CorpusError(f"{folder} has no corpus of {concept!r}; it has: {', '.join(names) or 'none'}")
    rows: list[dict[str, Any]] = []
    if (place / TABLE_NAME).is_file():
        rows += _read_table(folder, place / TABLE_NAME, concept)
    else:
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
    return infer_documents(pa.Table.from_pylist(rows, schema=_CREDITED_PASSAGES))


_CREDITED_PASSAGES = PASSAGES.append(pa.field("attribution", pa.string()))


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


#: Fields that a table needs.
_TABLE_FIELDS = ("id", "text", "label", "split", "domain", "doc_id", "source", "licence", "attribution")
_CREDITED = ("doc_id", "source", "licence", "attribution")


def _read_table(folder: Path, path: Path, concept: str) -> list[dict[str, Any]]:
    content = _whole_table(folder, path)
    rows = []
    for where, values in records(SentFile(str(path), content)):
        if lacking := [name for name in _TABLE_FIELDS if name not in values]:
            raise CorpusError(f"{path} has no column {', '.join(lacking)}; a table needs {', '.join(_TABLE_FIELDS)}")
        if blank := [name for name in _CREDITED if not str(values[name] or "").strip()]:
            raise CorpusError(f"{where}: {', '.join(blank)} is empty; every passage names its source and its licence")
        record = _checked(dict(values), where)
        if record.label not in CLASSES.values():
            raise CorpusError(f"{where}: label is {record.label}; it must be 1 (the concept) or 0")
        if record.split not in CORPUS_SPLITS:
            raise CorpusError(f"{where}: split is {record.split!r}; it must be one of {', '.join(CORPUS_SPLITS)}")
        if str(record.source).startswith("planted-"):
            raise CorpusError(f"{where}: a planted passage; tables hold real text, give planted ones as .jsonl files")
        rows.append(_to_row(record, concept, record.split))
    parts = {(row["split"], row["label"]) for row in rows}
    if absent := [f"{split} {label}" for split in _REQUIRED_SPLITS for label in (1, 0) if (split, label) not in parts]:
        raise CorpusError(
            f"{path} has no passages of {', '.join(absent)}; a corpus needs train and test of both classes"
        )
    return rows


def _whole_table(folder: Path, path: Path) -> bytes:
    """Return the bytes of a table.

    Raise CorpusError if the folder's manifest lacks the table or has another SHA-256 for it.
    """
    content, manifest = path.read_bytes(), read_manifest(folder)
    tables, name = manifest.tables if manifest else {}, path.relative_to(folder).as_posix()
    if tables and name not in tables:
        raise CorpusError(f"{path} is not in {MANIFEST_NAME}, which names the tables of the folder; remove it")
    if tables and tables[name].sha256 != hashlib.sha256(content).hexdigest():
        raise CorpusError(
            f"{path} is damaged or was replaced: its SHA-256 is not the one in {MANIFEST_NAME}; get the folder again"
        )
    return content


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
        "attribution": record.attribution,
        "token_count": record.token_count,
        "signal": [span.model_dump() for span in record.signal],
    }


def _to_line(row: dict[str, Any], revision: str) -> str:
    names = {"passage_id": "id", "pair_id": "matched_pair_id"}
    record = {names.get(key, key): value for key, value in row.items() if key != "concept"}
    return json.dumps(record | {"revision": revision}, ensure_ascii=False) + "\n"
