"""BERT classifiers: loading, cutting texts into windows, scoring texts, and listing the scorers of a store."""
