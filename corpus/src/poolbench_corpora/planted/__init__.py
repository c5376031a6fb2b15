"""Planted-signal corpora: passages from a grammar, with known positions of the concept.

There are three uses: `corpus` (train and test passages), `lm` (text for the demo language model) and `scorer` (texts
that train Classifier B). They share the markers of the concepts, but no domain, content word, template, name or seed.
"""

from poolbench_corpora.planted.build import MISLABELLED, build_planted, lm_documents
from poolbench_corpora.planted.signals import PLANTED_REVISION, planted_concepts, planted_revision
