"""Write the tables, the manifest and the licences of the shipped corpus."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from recipes.passages.documents import get_source, read_archive
from recipes.passages.rewriting import REWRITERS_REVISION
from recipes.passages.selection import few_domains
from recipes.real_corpus.rules import Rule
from recipes.real_corpus.selection import RECIPE, ShippedSelection

from poolbench.concepts import CONCEPTS
from poolbench.config import BUDGETS
from poolbench.contracts.tables import PASSAGES
from poolbench_corpora.audit import audit
from poolbench_corpora.io import (
    SHARE_ALIKE,
    TABLE_NAME,
    CorpusManifest,
    SourceFacts,
    TableFacts,
    window_of,
    write_at_once,
    write_manifest,
)
from poolbench_corpora.partition import Split

COMMAND = "python -m recipes.real_corpus"
BUDGET = BUDGETS["card"]
SPLITS: tuple[Split, ...] = ("train", "test", "scorer")
#: Fields of the tables, in their order. Those of a JSONL corpus have the same names.
FIELDS = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("label", pa.int8()),
        ("split", pa.string()),
        ("matched_pair_id", pa.string()),
        ("doc_id", pa.string()),
        ("domain", pa.string()),
        ("source", pa.string()),
        ("licence", pa.string()),
        ("attribution", pa.string()),
        ("token_count", pa.int32()),
    ]
)
_NAMES = {"passage_id": "id", "pair_id": "matched_pair_id"}
#: Columns of few values.
_REPEATED = ["split", "doc_id", "domain", "source", "licence", "attribution"]
#: Notices that licences ask for, as files of the archive.
_NOTICES = {"BSD-3-Clause.txt": "django_docs/copyright", "PSF-2.0.txt": "python_docs/copyright"}

_SHARE_ALIKE_NOTICE = """The texts of this folder are under Creative Commons Attribution-ShareAlike 3.0 Unported:
https://creativecommons.org/licenses/by-sa/3.0/legalcode
The column `attribution` says whom to credit. Texts are as in the source. Labels and choice are under the same licence.
"""

Row = dict[str, Any]


@dataclass(frozen=True)
class Shipped:
    """One concept of the shipped corpus."""

    concept: str
    rule: Rule
    rows: tuple[Row, ...]
    facts: TableFacts
    content: bytes

    @property
    def path(self) -> str:
        """Return the path of the table below the folder."""
        return f"{SHARE_ALIKE}/{self.concept}/{TABLE_NAME}" if self.rule.share_alike else f"{self.concept}/{TABLE_NAME}"


def choose(concept: str, rule: Rule, archives: str | None = None) -> list[Row]:
    """Return the rows of a concept, as many of each split as the card asks for or as there are."""
    selection = ShippedSelection.of(concept, rule, archives)
    return [row for split in SPLITS for row in selection.rows(split, getattr(BUDGET, f"num_{split}") // 2)]


def ship(concept: str, rule: Rule, archives: str | None = None) -> Shipped:
    """Choose and audit the passages of a concept."""
    rows = choose(concept, rule, archives)
    content = table_bytes(rows)
    report = audit(CONCEPTS.get(concept), pa.Table.from_pylist(rows, schema=PASSAGES))
    facts = TableFacts(
        sha256=hashlib.sha256(content).hexdigest(),
        verdict=str(report.verdict),
        reasons=report.reasons,
        labels=rule.how,
    )
    return Shipped(concept, rule, tuple(rows), facts, content)


def table_bytes(rows: Sequence[Row]) -> bytes:
    """Return rows as a Parquet file. Equal rows give equal bytes with one version of pyarrow."""
    renamed = [{_NAMES.get(name, name): value for name, value in row.items()} for row in rows]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_pylist(renamed, schema=FIELDS), sink, compression="zstd", compression_level=19,
        use_dictionary=_REPEATED, data_page_size=1 << 24,
    )  # fmt: skip
    return sink.getvalue().to_pybytes()


def write(folder: Path, shipped: Sequence[Shipped], archives: str | None = None) -> None:
    """Write tables, manifest and licences into a folder."""
    for one in shipped:
        path = folder / one.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(one.content)
    write_manifest(folder, _manifest(shipped))
    licences = folder / "licences"
    licences.mkdir(exist_ok=True)
    files = read_archive(archives or "", "passages")
    for name, source in _NOTICES.items():
        write_at_once(licences / name, files[source].decode("utf-8"))
    write_at_once(folder / SHARE_ALIKE / "LICENCE.txt", _SHARE_ALIKE_NOTICE)


def _manifest(shipped: Sequence[Shipped]) -> CorpusManifest:
    rows = [row for one in shipped for row in one.rows]
    return CorpusManifest(
        revision=f"{RECIPE}, {REWRITERS_REVISION}",
        tokenizer="words",
        window=window_of([pa.Table.from_pylist(rows, schema=PASSAGES)]),
        recipe=COMMAND,
        min_domains={name: few for one in shipped for name, few in few_domains(one.concept, one.rows).items()},
        tables={one.path: one.facts for one in shipped},
        sources=dict(_sources(rows)),
    )


def _sources(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, SourceFacts]]:
    for name, number in sorted(Counter(row["source"] for row in rows).items()):
        source = get_source(name)
        yield name, SourceFacts(origin=source.origin, licence=source.licence, passages=number)
