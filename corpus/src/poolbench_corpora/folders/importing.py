"""Corpora as folders of JSONL files: which concepts they have, how they are imported, and how they are validated."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from poolbench.concepts import CONCEPTS, refuse_sensitive, withheld
from poolbench.errors import CorpusError
from poolbench_corpora.audit import Audit, Verdict, audit
from poolbench_corpora.checks import Finding, validate_corpus
from poolbench_corpora.folders.building import window_of
from poolbench_corpora.io import (
    CorpusManifest,
    folder_digest,
    joined_manifest,
    read_concept,
    read_manifest,
    write_corpus,
)
from poolbench_corpora.near import has_inferred_documents
from poolbench_corpora.own import OwnTexts, build_own, revision_of


def import_folder(folder: Path, output: Path, concepts: str | None, tokenizer: str) -> None:
    """Read the published layout and write it with documents and manifest."""
    names = importable_concepts(folder, concepts)
    tables = [read_concept(folder, name) for name in names]
    passages = pa.concat_tables(tables)
    manifest = CorpusManifest(
        revision=folder_digest(folder),
        tokenizer=tokenizer,
        window=window_of(tables),
        partition_version=0,
        inferred_documents=has_inferred_documents(passages),
        recipe="poolbench-driver corpus import",
    )
    joined = joined_manifest(output, pc.unique(passages["concept"]).to_pylist(), manifest)
    write_corpus(passages, output, joined)
    print(f"{passages.num_rows} passages of {len(tables)} concepts written to {output}")


def importable_concepts(folder: Path, text: str | None) -> list[str]:
    """Return the requested concepts, or those in a corpus folder but the sensitive ones, which are named.

    Raises:
        RestrictedError: A sensitive one is requested.
        CorpusError: There is none.
    """
    names = concepts_in(folder, text)
    if text is None and (sensitive := withheld(names)):
        print(f"left out, because they are sensitive (POOLBENCH_SENSITIVE=true takes them): {', '.join(sensitive)}")
        names = [name for name in names if name not in sensitive]
    refuse_sensitive(names)
    if not names:
        raise CorpusError(f"corpus {folder} has no concept that may leave it")
    return names


def import_table(output: Path, concept: str, texts: OwnTexts) -> None:
    """Write the texts of a table as the corpus of one concept, split by document where they name no split."""
    name = CONCEPTS.get(concept).id
    refuse_sensitive([name])
    passages = build_own(name, texts)
    manifest = CorpusManifest(
        revision=revision_of(passages),
        tokenizer="words",
        window=window_of([passages]),
        partition_version=0,
        inferred_documents=any(not text.document for text in (*texts.positives, *texts.negatives)),
        recipe="poolbench-driver corpus import",
    )
    write_corpus(passages, output, joined_manifest(output, [name], manifest))
    repeated = f"; {len(texts.repeated)} repeated texts left out" if texts.repeated else ""
    print(f"{passages.num_rows} passages of {name} written to {output}{repeated}")


def writable_concepts(text: str | None) -> list[str]:
    """Return the requested concepts, or all that may leave the store; raise RestrictedError for a sensitive one."""
    names = [concept.id for concept in CONCEPTS.all()]
    if text is None:
        sensitive = withheld(names)
        return [name for name in names if name not in sensitive]
    ids = [CONCEPTS.get(name).id for name in _split(text)]
    refuse_sensitive(ids)
    return ids


def concepts_in(folder: Path, text: str | None) -> list[str]:
    """Return the requested concepts, or those in a corpus folder; raise CorpusError if it has none."""
    if not folder.is_dir():
        raise CorpusError(f"corpus {folder}: no such folder")
    if text is not None:
        return [CONCEPTS.get(name).id for name in _split(text)]
    ids = [concept.id for concept in CONCEPTS.all()]
    names = [name for name in ids if (folder / name).is_dir()]
    if not names:
        raise CorpusError(f"corpus {folder}: no folder named after a concept ({', '.join(ids)})")
    return names


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


@dataclass(frozen=True)
class Validation:
    """What was found about the corpus of one concept."""

    concept: str
    num_passages: int
    findings: Sequence[Finding]
    audit: Audit

    @property
    def is_valid(self) -> bool:
        """Return whether no rule is broken and the audit passes."""
        return not self.findings and self.audit.verdict is Verdict.PASS

    def to_dict(self) -> dict[str, Any]:
        """Return the validation as JSON has it."""
        findings = [{**asdict(finding), "passages": list(finding.passages)} for finding in self.findings]
        summary = {"concept": self.concept, "num_passages": self.num_passages, "valid": self.is_valid}
        return {**summary, "findings": findings, **self.audit.to_dict()}


def validate_folder(folder: Path, concepts: str | None, *, as_json: bool = False) -> int:
    """Check the construction rules and audit confounds; return 1 if a rule is broken or a verdict is not `pass`."""
    reports = []
    for validation in validations(folder, concepts):
        reports.append(validation)
        if not as_json:
            _show(validation)
    valid = all(validation.is_valid for validation in reports)
    if as_json:
        summary = {"folder": str(folder), "valid": valid, "concepts": [report.to_dict() for report in reports]}
        print(json.dumps(summary, indent=1, ensure_ascii=False))
    return 0 if valid else 1


def validations(folder: Path, concepts: str | None) -> Iterator[Validation]:
    """Yield the validation of each requested concept, or of all in a corpus folder."""
    manifest = read_manifest(folder)
    for name in concepts_in(folder, concepts):
        passages = read_concept(folder, name)
        findings = validate_corpus(passages, window=manifest.window if manifest else None)
        yield Validation(name, passages.num_rows, findings, audit(CONCEPTS.get(name), passages))


def _show(validation: Validation) -> None:
    findings, check = validation.findings, validation.audit
    rules = f"{len(findings)} findings" if findings else "ok"
    print(f"{validation.concept}: {rules}, {check.verdict}")
    for finding in findings:
        print(f"  {finding.rule}: {finding.message} {' '.join(finding.passages)}")
    for reason in check.reasons:
        print(f"  {check.verdict}: {reason}")
    figures = (
        f"{figure.name} {figure.status if figure.auroc is None else f'{figure.auroc:.2f}'}" for figure in check.figures
    )
    print(f"  AUROC: {', '.join(figures)}")
