"""The construction rules of concept corpora, one small function each."""

from poolbench.corpora.checks import content, structure
from poolbench.corpora.checks.base import CHECKS, Corpus, Finding

__all__ = ["CHECKS", "Corpus", "Finding", "content", "structure"]
