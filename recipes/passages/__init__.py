"""Corpora of real text: readers of archives and of datasets, rules that label passages, and rewriters."""

from recipes.passages import sources as _sources
