"""The examples of a run: probing sets, and concepts as sets of passages with two labels."""

from collections.abc import Sequence

import pyarrow as pa

from poolbench.concepts import CONCEPTS
from poolbench.errors import CorpusError
from poolbench.statistics.folds import connected_groups
from poolbench_corpora.probing import PROBING_INSTANCES, ProbingData, Span, passage_id, passages_of, with_splits
from poolbench_driver.config import as_concepts
from poolbench_driver.corpora.sources import chosen_sets, concept_table
from poolbench_driver.suites.data_requirements.config import DataRequirementsConfig


def read_sets(config: DataRequirementsConfig) -> tuple[dict[str, ProbingData], list[str]]:
    """Read the labelled sets by name, and return notes on sets that were left out.

    Raises:
        UnknownNameError: A name is not known. The message has the nearest names.
        CorpusError: No set can be read.
    """
    concepts = {concept.id for concept in CONCEPTS.all()}
    names = [name for name in config.sets if name in concepts]
    patterns = [name for name in config.sets if name not in concepts]
    data, notes = dict[str, ProbingData](), list[str]()
    if patterns:
        catalogue, sets = chosen_sets(patterns, config.corpus.source)
        data, absent = catalogue.read_all(sets, config.seed)
        notes += [str(note) for note in absent]
        notes += [str(note) for set_data in data.values() for note in set_data.notes]
    data |= {name: _of_concept(config, name) for name in names}
    valued = [name for name, set_data in data.items() if set_data.instances["label"].null_count]
    notes += [f"{name}: asks for real values, which are neither right nor wrong" for name in valued]
    data = {name: set_data for name, set_data in data.items() if name not in valued}
    if config.folds == 1:
        data = {name: with_splits(set_data, config.seed) for name, set_data in data.items()}
    if not data:
        raise CorpusError(f"no set with labels can be read: {notes[0] if notes else 'the corpus has none'}")
    return data, notes


def check_names(config: DataRequirementsConfig) -> None:
    """Raise UnknownNameError or CorpusError for a set that is neither a concept nor in the corpus."""
    concepts = {concept.id for concept in CONCEPTS.all()}
    if patterns := [name for name in config.sets if name not in concepts]:
        chosen_sets(patterns, config.corpus.source)


def _of_concept(config: DataRequirementsConfig, name: str) -> ProbingData:
    """Return the train and test passages of a concept; documents and pairs stay whole."""
    source = as_concepts(config, concepts=(name,))
    passages = [row for row in concept_table(source, name).to_pylist() if row["split"] in ("train", "test")]
    groups = connected_groups(*([row[key] for row in passages] for key in ("doc_id", "pair_id")))
    spans = [Span(row["text"], 0, len(row["text"])) for row in passages]
    instances = [
        {
            "instance_id": f"{name}/{row['passage_id']}",
            "first": [passage_id(span)],
            "second": [],
            "label": CONCEPT_LABELS[row["label"]],
            "group": f"{name}/{group}",
        }
        for row, span, group in zip(passages, spans, groups.tolist(), strict=True)
    ]
    return ProbingData(passages_of(spans), pa.Table.from_pylist(instances, PROBING_INSTANCES))


#: Names of the labels of a concept's passages.
CONCEPT_LABELS = ("without", "with")


def sizes_of(config: DataRequirementsConfig, available: int) -> Sequence[int]:
    """Return the sample sizes of a set in ascending order.

    The sizes are those of the settings, or else all examples, a half, a quarter and so on.
    """
    if config.sizes:
        return sorted(config.sizes)
    halves = [available // 2**power for power in range(NUM_SIZES)]
    return sorted(size for size in halves if size == available or size >= FEWEST_OF_A_FOLD * config.folds)


#: Sizes where the run names none, and examples of each fold of the smallest.
NUM_SIZES, FEWEST_OF_A_FOLD = 4, 8
