"""Corpora from the datasets that the PoolBench card names, read from a hub or from copies of them."""

from poolbench_corpora.hub.build import HUB_REVISION, build_hub
from poolbench_corpora.hub.catalog import datasets, recipes
from poolbench_corpora.hub.documents import reader_of
