"""How the shipped English spaCy pipeline is made: ``python -m recipes.annotator`` from the root."""
