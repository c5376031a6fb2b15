"""Scorers of a store by name: what a name means, verdicts of gates, damaged records."""

from pathlib import Path

import pytest

from poolbench.errors import IntegrityError
from poolbench.library.scorers import NamedScorer, ScorerRecords, defaults, meant, name_scorer, record_gate
from poolbench.storage.folder import FolderStore


def scorer(key: str, made_s: float, *, requested: bool = False, concept: str = "contrast") -> NamedScorer:
    """Return a scorer that was made at a time."""
    return NamedScorer(concept, "minilm", key, requested, made_s)


def test_a_name_means_the_latest_that_was_asked_for_or_else_the_first_of_a_run() -> None:
    runs = [scorer("first", 1.0), scorer("second", 2.0)]
    assert meant(runs).key == "first"
    asked = [scorer("asked", 3.0, requested=True), scorer("asked again", 4.0, requested=True)]
    assert meant([*runs, *asked]).key == "asked again"
    other = scorer("other", 9.0, concept="hedging")
    assert {one.key for one in defaults([*runs, other])} == {"first", "other"}


def test_a_run_leaves_an_earlier_record_as_it_is_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    name_scorer(store, "scorer.train.1", "contrast", "minilm", requested=True)
    name_scorer(store, "scorer.train.1", "contrast", "minilm", requested=False)
    (found,) = ScorerRecords(store).scorers()
    assert (found.key, found.requested, found.names[0]) == ("scorer.train.1", True, "contrast")
    (record,) = store.list("scorers/")
    store.put(record.path, b"[")
    with pytest.raises(IntegrityError, match="is damaged; train or import that scorer again"):
        ScorerRecords(store).scorers()
    left_out: list[str] = []
    assert not ScorerRecords(store).scorers(left_out.append) and left_out == [record.path]


def test_verdicts_of_gates_are_those_of_one_scorer_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    record_gate(store, "contrast", "scorer.train.1", "scorer.gate.1", passed=True, reason="")
    records = ScorerRecords(store)
    assert records.gate("contrast", "scorer.train.1") == (True, None)
    assert records.gate("contrast", "scorer.train.2") is None and records.gate("hedging", "scorer.train.1") is None
    (record,) = store.list("scorers/contrast/gates/")
    store.put(record.path, b"[]")
    with pytest.raises(IntegrityError, match=r"contrast/gates/.* is damaged; remove it"):
        ScorerRecords(store).gate("contrast", "scorer.train.1")
