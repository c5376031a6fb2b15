"""Planted-signal corpora: passages written by a grammar, with the positions that carry the concept known.

Three uses share nothing but the concepts' own markers: `corpus` (train and test passages), `lm` (text for the
demo language model) and `scorer` (texts that train Classifier B). Domains, content words, carrier templates,
names and seeds of one use occur in no other.
"""

from poolbench.corpora.planted.build import PLANTED_REVISION, Document, build_planted, lm_documents

__all__ = ["PLANTED_REVISION", "Document", "build_planted", "lm_documents"]
