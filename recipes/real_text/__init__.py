"""Corpora from real text, measured with the demo model."""
