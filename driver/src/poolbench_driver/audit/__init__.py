"""The audit of a concept's corpus: what a probe could read instead of the concept, and whether splits are apart."""

from poolbench_driver.audit.audit import Audit, audit
from poolbench_driver.audit.verdict import Verdict

__all__ = ["Audit", "Verdict", "audit"]
