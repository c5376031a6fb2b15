"""Concept scores of texts: BERT classifiers, their training, their validity gate, and scoring at speed."""
