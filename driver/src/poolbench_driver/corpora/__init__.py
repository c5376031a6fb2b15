"""Passages and prompts of a run: their sources and the local steps that store them; and corpora to publish."""
