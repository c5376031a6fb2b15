"""Corpora as folders of JSONL files: which concepts they have, how they are imported, and how they are validated."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from poolbench.concepts import CONCEPTS, refuse_sensitive, withheld
from poolbench.errors import CorpusError
from poolbench_corpora.audit import Audit, Verdict, audit
from poolbench_corpora.checks import Finding, validate_corpus
from poolbench_corpora.io import (
    CorpusManifest,
    concept_folder,
    folder_digest,
    joined_manifest,
    read_concept,
    read_credited,
    read_manifest,
    window_of,
    write_corpus,
)
from poolbench_corpora.near import has_inferred_documents
from poolbench_corpora.own import OwnTexts, build_own, revision_of


def import_folder(folder: Path, output: Path, concepts: str | None, tokenizer: str) -> None:
    """Read a corpus folder in the published layout, and write it with document ids and a manifest."""
    names = importable_concepts(folder, concepts)
    passages, before = read_credited(folder, names), read_manifest(folder)
    manifest = CorpusManifest(
        revision=folder_digest(folder),
        tokenizer=tokenizer,
        window=window_of([passages]),
        partition_version=0,
        inferred_documents=has_inferred_documents(passages),
        recipe="poolbench-driver corpus import",
        min_domains=before.min_domains if before else {},
    )
    joined = joined_manifest(output, pc.unique(passages["concept"]).to_pylist(), manifest)
    write_corpus(passages, output, joined)
    print(f"{passages.num_rows} passages of {len(names)} concepts written to {output}")


def importable_concepts(folder: Path, text: str | None) -> list[str]:
    """Return the requested concepts, or all concepts in a corpus folder that are not sensitive.

    The sensitive concepts that are left out are printed.

    Raises:
        RestrictedError: A requested concept is sensitive.
        CorpusError: The folder does not exist or has no concept to import.
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
    """Write the texts of a table as the corpus of one concept.

    Texts without a split are split by document. Raise RestrictedError if the concept is sensitive.
    """
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
    """Return the requested concepts, or all concepts that may leave the store.

    Raise RestrictedError if a requested concept is sensitive.
    """
    names = [concept.id for concept in CONCEPTS.all()]
    if text is None:
        sensitive = withheld(names)
        return [name for name in names if name not in sensitive]
    ids = [CONCEPTS.get(name).id for name in _split(text)]
    refuse_sensitive(ids)
    return ids


def concepts_in(folder: Path, text: str | None) -> list[str]:
    """Return the requested concepts, or all concepts in a corpus folder.

    Raise CorpusError if the folder does not exist or has no concept.
    """
    if not folder.is_dir():
        raise CorpusError(f"corpus {folder}: no such folder")
    if text is not None:
        return [CONCEPTS.get(name).id for name in _split(text)]
    ids = [concept.id for concept in CONCEPTS.all()]
    names = [name for name in ids if concept_folder(folder, name).is_dir()]
    if not names:
        raise CorpusError(f"corpus {folder}: no folder named after a concept ({', '.join(ids)})")
    return names


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


@dataclass(frozen=True)
class Validation:
    """The findings about the corpus of one concept."""

    concept: str
    num_passages: int
    findings: Sequence[Finding]
    audit: Audit

    @property
    def is_valid(self) -> bool:
        """Return whether no rule is broken and the audit passes."""
        return not self.findings and self.audit.verdict is Verdict.PASS

    def to_dict(self) -> dict[str, Any]:
        """Return the validation as a dictionary for JSON."""
        findings = [{**asdict(finding), "passages": list(finding.passages)} for finding in self.findings]
        summary = {"concept": self.concept, "num_passages": self.num_passages, "valid": self.is_valid}
        return {**summary, "findings": findings, **self.audit.to_dict()}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the validation for a terminal."""
        yield f"{self.concept}: {f'{len(self.findings)} findings' if self.findings else 'ok'}, {self.audit.verdict}"
        for finding in self.findings:
            yield f"  {finding.rule}: {finding.message} {' '.join(finding.passages)}"
        for reason in self.audit.reasons:
            yield f"  {self.audit.verdict}: {reason}"
        aurocs = (f"{one.name} {one.status if one.auroc is None else f'{one.auroc:.2f}'}" for one in self.audit.figures)
        yield f"  AUROC: {', '.join(aurocs)}"


def validations(folder: Path, concepts: str | None) -> Iterator[Validation]:
    """Yield the validation of each requested concept, or of all concepts in a corpus folder."""
    manifest = read_manifest(folder)
    for name in concepts_in(folder, concepts):
        passages = read_concept(folder, name)
        window, min_domains = (manifest.window, manifest.min_domains) if manifest else (None, None)
        findings = validate_corpus(passages, window=window, min_domains=min_domains)
        yield Validation(name, passages.num_rows, findings, audit(CONCEPTS.get(name), passages))
