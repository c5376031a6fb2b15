"""Fetch the front-end files of others again: `python -m recipes.front`."""
