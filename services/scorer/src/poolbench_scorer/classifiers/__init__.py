"""BERT classifiers: find and load them, cut texts into windows, score texts, list the scorers of a store."""
