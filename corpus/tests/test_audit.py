"""The audit finds what is planted; surface features and near-duplicates by hand and against all pairs."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from poolbench.concepts import CONCEPTS
from poolbench.contracts import Row
from poolbench.contracts.tables import PASSAGES
from poolbench.statuses import Status
from poolbench_corpora.audit import Audit, Verdict, audit
from poolbench_corpora.audit.confounds import CONFOUNDS, surface_scores
from poolbench_corpora.audit.training import (
    MARKS,
    TEXT_FEATURES,
    casing,
    length,
    one_hot,
    punctuation,
    readability,
    syllables,
)
from poolbench_corpora.near import infer_documents
from poolbench_corpora.planted import build_planted
from poolbench_corpora.planted.signals import planted_concepts

#: A planted concept whose markers replace words of the same kind, so that nothing else differs between the classes.
CLEAN = "imdb_sentiment"


@pytest.fixture(scope="module")
def clean() -> list[Row]:
    rows = build_planted(CLEAN, seed=0, num_train=200, num_test=60, num_scorer=0).to_pylist()
    return rows


def audited(rows: list[Row], concept: str = CLEAN) -> Audit:
    return audit(CONCEPTS.get(concept), pa.Table.from_pylist(rows, PASSAGES), num_bootstrap=200)


def auroc_of(found: Audit) -> dict[str, float | None]:
    return {figure.name: figure.auroc for figure in found.figures}


def test_a_clean_corpus_passes(clean: list[Row]) -> None:
    found = audited(clean)
    assert (found.verdict, found.reasons) == (Verdict.PASS, ())
    assert all(value is not None and value < 0.6 for name, value in auroc_of(found).items() if name in CONFOUNDS)


def longer(text: str) -> str:
    """The text twice: every rate stays."""
    return f"{text} {text}"


def exclaimed(text: str) -> str:
    return text.replace(".", "!")


def capitalised(text: str) -> str:
    words = text.split(" ")
    return " ".join(word.upper() if number % 9 == 4 else word for number, word in enumerate(words))


def in_more_syllables(text: str) -> str:
    """Two syllables in place of one; words, letters, capitals and marks keep their numbers."""
    return re.sub(r"\bhe\b|\bthe\b", lambda found: {"he": "io", "the": "abo"}[found[0]], text)


PLANTINGS: dict[str, Callable[[Row], Row]] = {
    "length": lambda row: {**row, "text": longer(row["text"])},
    "domain": lambda row: {**row, "domain": "reviews"},
    "punctuation": lambda row: {**row, "text": exclaimed(row["text"])},
    "casing": lambda row: {**row, "text": capitalised(row["text"])},
    "readability": lambda row: {**row, "text": in_more_syllables(row["text"])},
}


@pytest.mark.parametrize("confound", PLANTINGS)
def test_exactly_the_planted_confound_is_found(confound: str, clean: list[Row]) -> None:
    planted = [PLANTINGS[confound](row) if row["label"] == 1 else row for row in clean]
    found = audited(planted)
    assert found.verdict is Verdict.CONFOUNDED
    assert [reason.split()[0] for reason in found.reasons] == [confound]
    assert found.best is not None and found.best.name == confound


def test_copies_across_splits_are_found(clean: list[Row]) -> None:
    train = [row for row in clean if row["split"] == "train"]
    copied = [
        {**row, "text": train[number]["text"] + " And so on."} if row["split"] == "test" and number < 7 else row
        for number, row in enumerate(sorted(clean, key=lambda row: row["split"] != "test"))
    ]
    found = audited(copied)
    assert found.verdict is Verdict.CONFOUNDED
    assert found.reasons == ("7 of 60 test passages share 20% or more of their 8-grams with a train passage",)


def test_a_document_that_swallows_a_corpus_is_found(clean: list[Row]) -> None:
    train = [row for row in clean if row["split"] == "train"]
    swallowed = {row["passage_id"] for row in train[:60]}
    found = audited([{**row, "doc_id": "d/one"} if row["passage_id"] in swallowed else row for row in clean])
    assert found.verdict is Verdict.SHORT
    assert found.reasons == ("one document, or chain of pairs, has 30% of the train passages; at most 20% may be",)


def test_boilerplate_does_not_make_one_document_of_a_corpus(clean: list[Row]) -> None:
    footer = " This page was made by the town library and may be copied by all readers for their own use."
    rows = [{**row, "text": row["text"] + footer, "doc_id": None} for row in clean if row["split"] == "train"]
    inferred = infer_documents(pa.Table.from_pylist(rows, PASSAGES))
    found = audit(CONCEPTS.get(CLEAN), inferred, num_bootstrap=200)
    assert found.training.largest_group < 0.05
    assert (found.verdict, found.reasons) == (Verdict.PASS, ())


def test_few_documents_are_short(clean: list[Row]) -> None:
    train = [row for row in clean if row["split"] == "train"]
    few = audited([row for row in train if row["label"]][:20] + [row for row in train if not row["label"]][:20])
    assert (few.verdict, few.reasons[0].split(";")[0]) == (Verdict.SHORT, "a class has 20 train documents or pairs")
    none = audited([{**row, "doc_id": f"d/{row['label']}"} for row in train])
    assert none.verdict is Verdict.SHORT
    assert none.reasons[0].startswith("D1 cannot be computed: a class has 1 groups")
    assert {figure.status for figure in none.figures} == {Status.TOO_FEW}
    assert none.best is None


def by_hand(found: Audit, model: Any, features: Any) -> float:
    """Out-of-fold AUROC by scikit-learn: pairs inside folds, each fold weighted by its number of pairs."""
    training = found.training
    split = PredefinedSplit(training.folds)
    scores = cross_val_predict(model, features, training.labels, cv=split, method="decision_function")
    values, pairs = [], []
    for fold in np.unique(training.folds):
        labels, own = training.labels[training.folds == fold], scores[training.folds == fold]
        values.append(roc_auc_score(labels, own))
        pairs.append(labels.sum() * (1 - labels).sum())
    return float(np.average(values, weights=pairs))


@pytest.mark.parametrize("concept", planted_concepts())
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.lane(name="series")) for seed in (1, 2))])
def test_only_the_concept_separates_the_classes_of_planted_passages(concept: str, seed: int) -> None:
    passages = build_planted(concept, seed=seed, num_train=200, num_test=60, num_scorer=0)
    found = audit(CONCEPTS.get(concept), passages, num_bootstrap=200)
    assert found.verdict == "pass", found.reasons


@pytest.mark.parametrize("concept", ["contrast", CLEAN])
def test_figures_agree_with_scikit_learn(concept: str) -> None:
    passages = build_planted(concept, seed=3, num_train=120, num_test=20, num_scorer=0)
    found = audit(CONCEPTS.get(concept), passages, num_bootstrap=20)
    own = auroc_of(found)
    texts = found.training.texts
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, tol=1e-8, max_iter=10_000))
    for name, features in TEXT_FEATURES.items():
        assert own[name] == pytest.approx(by_hand(found, probe, features(texts)), abs=2e-3), name
    words = make_pipeline(
        CountVectorizer(binary=True, token_pattern=r"\b\w+\b"), Normalizer(), LogisticRegression(C=10.0, max_iter=1000)
    )
    assert own["words"] == pytest.approx(by_hand(found, words, texts), abs=2e-3)


def test_words_are_read_with_and_without_the_seed_words(clean: list[Row]) -> None:
    rows = build_planted("contrast", seed=0, num_train=200, num_test=0, num_scorer=0).to_pylist()
    negatives = {row["pair_id"]: row["text"] for row in rows if row["label"] == 0}
    for row in rows:
        row["text"] = negatives[row["pair_id"]] + (" However." if row["label"] else "")
    found = auroc_of(audited(rows, "contrast"))
    assert found["words"] == 1.0
    assert found["words_without_seeds"] == 0.5
    without = {figure.name: figure for figure in audited(clean).figures}["words_without_seeds"]
    assert (without.auroc, without.status) == (None, Status.NO_COVERAGE)


def test_json_and_rows_name_no_passage(clean: list[Row]) -> None:
    found = audited(clean)
    shown = repr([*found.rows()]) + repr(found.to_dict())
    assert not any(row["passage_id"] in shown or row["doc_id"] in shown for row in clean)
    assert [check["check"] for check in found.to_dict()["checks"]][-3:] == [
        "near_duplicates",
        "fewest_groups",
        "largest_group",
    ]


@pytest.mark.parametrize("num_domains", [3, 4, 5, 6])
def test_pairs_that_share_their_domain_cannot_be_told_apart_by_it(num_domains: int) -> None:
    """The optimum of such a probe is where it starts.

    In rows of mixed order, the gradient there is not exactly zero but a rounding error, and a Newton solver finds no
    step that lowers the loss: it reports that it did not converge in about half of these draws.
    """
    for seed in range(8):
        rng = np.random.default_rng(seed)
        domains = np.repeat(rng.choice(num_domains, size=80, p=rng.dirichlet(np.ones(num_domains))), 2)
        mixed = rng.permutation(160)
        labels, folds = np.tile([1, 0], 80)[mixed], np.repeat(np.arange(80) % 5, 2)[mixed]
        features = one_hot([f"d{number}" for number in domains[mixed]])
        np.testing.assert_allclose(surface_scores(features, labels, folds), 0.0, atol=1e-9)


@pytest.mark.parametrize(
    ("word", "number"),
    [("cat", 1), ("table", 2), ("the", 1), ("make", 1), ("reading", 2), ("banana", 3), ("beautiful", 3), ("hm", 1)],
)
def test_syllables(word: str, number: int) -> None:
    assert syllables(word) == number


def test_reading_ease_by_hand() -> None:
    # 7 words, 2 sentences; syllables: the 1, cat 1, sat 1, on 1, a 1, table 2, then it-sat: "It" 1 -> 8 of 7 words
    ((ease, per_sentence, per_word),) = readability(["The cat sat on a table. It!"])
    assert (per_sentence, per_word) == pytest.approx((7 / 2, 8 / 7))
    assert ease == pytest.approx(206.835 - 1.015 * 3.5 - 84.6 * 8 / 7)  # 106.597
    ((_, per_sentence, _),) = readability(["It costs 3.50 here now. Yes."])  # the point ends no sentence
    assert per_sentence == pytest.approx(5 / 2)


def test_punctuation_is_counted_per_word() -> None:
    (row,) = punctuation(["Well, “yes” — no; 50 %"])
    counts = dict(zip([*MARKS, "others"], row * 3, strict=True))
    assert {mark: number for mark, number in counts.items() if number} == pytest.approx(
        {",": 1, '"': 2, "-": 1, ";": 1, "others": 1}
    )


def test_casing_by_hand() -> None:
    (row,) = casing(["NASA and Bob saw I"])
    assert row == pytest.approx([6 / 14, 3 / 5, 1 / 5])


def test_length_and_domains() -> None:
    np.testing.assert_allclose(length(["a bc"]), np.log1p([[2, 4]]))
    np.testing.assert_array_equal(one_hot(["b", "a", "b"]), [[0, 1], [1, 0], [0, 1]])


def test_a_text_without_words_has_finite_features() -> None:
    for features in TEXT_FEATURES.values():
        assert np.isfinite(features(["...", "", "12"])).all()
