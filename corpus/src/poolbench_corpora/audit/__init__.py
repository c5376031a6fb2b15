"""The audit of a concept's corpus: what a probe could read instead of the concept, and whether splits are apart."""

from poolbench_corpora.audit.audit import Audit, Verdict, audit
