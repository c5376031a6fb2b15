"""Passages of a run beside those of its corpus here."""

from poolbench.concepts import CONCEPTS
from poolbench_driver.config import ConceptsConfig, CorpusConfig
from poolbench_driver.contract.verification import State
from poolbench_driver.corpora.sources import concept_table, dataset_revision, run_dataset
from poolbench_driver.suites.poolbench.verification import Passages, check_corpus

#: A passage that no corpus has.
FOREIGN: Passages = {"contrast-novels.hardy.tess.003-pos": (1, "0", -1)}


def state(source: str, dataset: str, passages: Passages) -> tuple[State, str]:
    config = ConceptsConfig(corpus=CorpusConfig(source=source))
    row = {"dataset": dataset, "dataset_revision": dataset_revision(run_dataset(config, []))}
    check = check_corpus(config, [row], {("contrast", "test"): passages}, lambda _: None)
    return check.state, check.note


def test_a_run_on_passages_of_archives_is_not_compared_with_the_corpus_that_has_their_name_now() -> None:
    """`real` once meant passages cut from archives; the rows of such runs name `real` as their dataset."""
    for dataset in ("real", "real+own"):
        found, note = state("real", dataset, FOREIGN)
        assert found == State.UNCHECKED and "cut from archives" in note


def test_passages_of_the_corpus_that_ships_are_compared() -> None:
    config = ConceptsConfig(corpus=CorpusConfig(source="real"))
    dataset = run_dataset(config, [CONCEPTS.get("contrast")])["source"]
    assert state("real", dataset, FOREIGN)[0] == State.FAILED
    row = next(row for row in concept_table(config, "contrast").to_pylist() if row["split"] == "test")
    assert state("real", dataset, {row["passage_id"]: (1 - row["label"], "0", -1)})[0] == State.FAILED
