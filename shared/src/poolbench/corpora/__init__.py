"""Corpora: the document partition, planted and published corpora, their validation, and the openings."""
