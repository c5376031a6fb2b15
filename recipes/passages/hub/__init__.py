"""Corpora from the datasets that the PoolBench card names, read from a hub or from copies of them."""

from recipes.passages.hub.build import HUB_REVISION, build_hub
from recipes.passages.hub.catalog import datasets, recipes
from recipes.passages.hub.documents import reader_of
