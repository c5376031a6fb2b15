"""The audit of a concept's corpus: what a probe could read instead of the concept, and whether splits are apart."""

from poolbench_corpora.audit.audit import Audit, audit
from poolbench_corpora.audit.verdict import Verdict

__all__ = ["Audit", "Verdict", "audit"]
