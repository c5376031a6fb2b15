"""Corpora as folders of JSONL files: what the commands `corpus build`, `corpus import` and `corpus validate` do."""
