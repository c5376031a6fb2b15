"""Probing sets: what a representation knows about language, as instances of texts and spans with labels.

A set is a definition (`sets/<id>.yaml`) whose reader yields samples; `probing_data` checks them, chooses as many as the
definition allows, and returns the tables of distinct passages and of instances.
"""

from poolbench_corpora.probing.bag_of_words import bags_of_words
from poolbench_corpora.probing.catalog import PROBING_SETS, ProbingSets, suite_sets
from poolbench_corpora.probing.data import (
    PROBING_INSTANCES,
    PROBING_PASSAGES,
    ProbingData,
    as_passages,
    example_rows,
    passage_id,
    passages_of,
    probing_data,
    seeded_groups,
    shared_passages,
    with_splits,
)
from poolbench_corpora.probing.importing import import_senteval, import_suite
from poolbench_corpora.probing.readers import samples_of
from poolbench_corpora.probing.samples import Note, ProbingSet, Sample, Span
from poolbench_corpora.probing.shipped import are_shipped, shipped_folders
from poolbench_corpora.probing.word_order import without_order
