"""Recipe of the shipped English spaCy pipeline: `python -m recipes.annotator` from the root."""
