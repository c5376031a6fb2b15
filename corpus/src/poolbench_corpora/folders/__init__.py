"""Corpora as folders of JSONL files: what the commands `corpus import` and `corpus validate` do."""
