"""The construction rules of concept corpora, one small function each, and their application.

Findings name passages by id and never quote them: passages of sensitive concepts must not be shown.
"""

import pyarrow as pa

from poolbench.concepts import CONCEPTS
from poolbench_corpora.checks import rules
from poolbench_corpora.checks.base import CHECKS, Corpus, Finding, grouped

__all__ = ["CHECKS", "Finding", "rules", "validate_corpus"]


def validate_corpus(passages: pa.Table, *, window: tuple[int, int] | None = None) -> list[Finding]:
    """Return all findings of all rules; none means a valid corpus. Each concept's own window is the default."""
    findings: list[Finding] = []
    for name, rows in grouped(passages.to_pylist(), "concept").items():
        concept = CONCEPTS.get(name)
        corpus = Corpus(concept, window or concept.token_window, tuple(rows))
        for check in CHECKS.values():
            findings += check(corpus)
    return findings
