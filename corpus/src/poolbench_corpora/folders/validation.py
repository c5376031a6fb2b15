"""Validate corpora in a folder: the construction rules, and the audit of confounds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from poolbench.concepts import CONCEPTS
from poolbench_corpora.audit import Audit, Verdict, audit
from poolbench_corpora.checks import Finding, validate_corpus
from poolbench_corpora.folders.importing import concepts_in
from poolbench_corpora.io import read_concept, read_manifest


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
