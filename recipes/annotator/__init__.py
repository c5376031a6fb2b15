"""How the shipped English spaCy pipeline is made: run ``python -m recipes.annotator`` from the repository root."""
