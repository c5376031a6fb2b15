"""Planted probing sets: labels, spans, groups, and what a vector without order can know."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from poolbench_corpora.probing import PROBING_INSTANCES, PROBING_PASSAGES, ProbingData, ProbingSet, ProbingSets
from poolbench_corpora.probing.readers.grammar import plural

SETS = ProbingSets()
PLANTED = SETS.choose(["planted-*"])


def rows(data: ProbingData) -> list[tuple[dict, list[str], list[str]]]:
    """Each instance with its texts and with the words of its spans."""
    passages = {row["passage_id"]: row for row in data.passages.to_pylist()}
    found = []
    for instance in data.instances.to_pylist():
        used = [passages[name] for name in instance["first"] + instance["second"]]
        spans = [row["text"][row["span"]["start"] : row["span"]["end"]] for row in used]
        found.append((instance, [row["text"] for row in used], spans))
    return found


def bags(name: str) -> dict[str, Counter[str]]:
    """How often each word occurs in the sentences of each class, without capitals and punctuation."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for instance, texts, _ in rows(SETS.read(SETS.get(name))):
        counts[instance["label"]].update(" ".join(texts).lower().replace(".", "").replace(",", "").split())
    return dict(counts)


def test_fifteen_sets_cover_all_types() -> None:
    assert len(PLANTED) == 15
    assert Counter(each.type for each in PLANTED).keys() == {
        "syntax", "morphology", "semantics", "reasoning", "discourse",
    }  # fmt: skip
    assert {each.input for each in PLANTED} == {"text", "text_pair", "span", "span_pieces", "span_pair"}
    assert [each.id for each in PLANTED if each.task == "values"] == ["planted-depth"]


@pytest.mark.parametrize("definition", PLANTED, ids=lambda each: each.id)
def test_set_is_sound(definition: ProbingSet) -> None:
    data = SETS.read(definition)
    assert not data.notes
    assert data.passages.schema == PROBING_PASSAGES and data.instances.schema == PROBING_INSTANCES
    assert 200 <= data.instances.num_rows <= 400
    targets = Counter(data.instances["value" if definition.task == "values" else "label"].to_pylist())
    assert None not in targets and len(set(targets.values())) == 1  # as many of each label
    keys = [(row["text"], *row["span"].values()) for row in data.passages.to_pylist()]
    assert len(set(keys)) == len(keys) == len(set(data.passages["passage_id"].to_pylist()))
    for row in data.passages.to_pylist():
        start, end = row["span"].values()
        assert not row["text"][start - 1 : start].isalnum() and not row["text"][end : end + 1].isalnum()  # whole words
    for instance, texts, spans in rows(data):
        assert all(len(text.split()) <= 25 and text[0].isupper() and text.endswith(".") for text in texts)
        whole = definition.input in ("text", "text_pair")
        for text, span in zip(texts, spans, strict=True):
            assert (span == text) is whole
        assert len(instance["second"]) == definition.input.endswith("_pair")
        assert len(instance["first"]) == (2 if definition.input == "span_pieces" else 1)
        spanned = definition.input in ("span", "span_pieces")
        assert instance["word"] == (" ".join(spans).lower() if spanned else None)
    sizes = Counter(data.instances["group"].to_pylist())
    assert len(set(sizes.values())) == 1  # whole groups


def test_reading_twice_gives_the_same() -> None:
    for definition in PLANTED:
        first, second = SETS.read(definition), ProbingSets().read(definition)
        assert first.passages.equals(second.passages) and first.instances.equals(second.instances)


@pytest.mark.parametrize("name", ["planted-bigram-shift", "planted-role", "planted-agreement", "planted-comparison"])
def test_both_classes_have_the_same_words(name: str) -> None:
    """A linear probe on the mean of static word vectors is at chance."""
    first, second = bags(name).values()
    assert first == second


def test_a_shifted_sentence_has_the_words_of_its_original() -> None:
    groups = defaultdict(list)
    for instance, texts, _ in rows(SETS.read(SETS.get("planted-bigram-shift"))):
        groups[instance["group"]].append(texts[0].split(" "))
    for original, shifted in groups.values():
        different = [place for place, words in enumerate(zip(original, shifted, strict=True)) if words[0] != words[1]]
        start = different[0]
        assert different == [start, start + 1] and 0 < start < len(original) - 2
        assert original[start : start + 2] == shifted[start : start + 2][::-1]


def test_random_labels_depend_on_nothing() -> None:
    data = SETS.read(SETS.get("planted-random"))
    labels = data.instances["label"].to_pylist()
    changes = sum(first != second for first, second in pairwise(labels))
    assert 115 <= changes <= 185  # of 299; 150 expected, standard deviation 8.7
    by_domain = [Counter(labels[start::4]) for start in range(4)]
    assert all(20 <= counts["1"] <= 55 for counts in by_domain)  # of 75


def test_depth_counts_clauses() -> None:
    for instance, texts, _ in rows(SETS.read(SETS.get("planted-depth"))):
        assert instance["value"] == texts[0].split().count("that")


def test_plurals() -> None:
    assert [plural(noun) for noun in ("mayor", "secretary", "nurseryman", "customs clerk")] == [
        "mayors", "secretaries", "nurserymen", "customs clerks",
    ]  # fmt: skip
