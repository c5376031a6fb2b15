"""The construction rules of concept corpora, one small function each."""

from poolbench.corpora.checks import rules
from poolbench.corpora.checks.base import CHECKS, Corpus, Finding

__all__ = ["CHECKS", "Corpus", "Finding", "rules"]
