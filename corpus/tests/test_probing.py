"""Probing data, planted sets, and sets as passages: checks, groups, splits, and what is refused."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench_corpora.probing import (
    PROBING_INSTANCES,
    PROBING_PASSAGES,
    PROBING_SETS,
    Note,
    ProbingData,
    ProbingSet,
    ProbingSets,
    Sample,
    Span,
    as_passages,
    bags_of_words,
    probing_data,
    shared_passages,
)
from poolbench_corpora.probing.catalog import suite_sets
from poolbench_corpora.probing.data import MAX_CHARACTERS
from poolbench_corpora.probing.readers.grammar import plural
from poolbench_corpora.probing.readers.tables import MAX_LITERAL, read_list
from poolbench_corpora.probing.samples import MAX_NOTES, choose, whole

FIELDS = {
    "id": "mine", "type": "syntax", "phenomenon": "p", "input": "text", "source": "s", "revision": "1",
    "licence": "CC0", "citation": "c", "fidelity": "same", "reader": "table",
}  # fmt: skip


def a_set(**fields: object) -> ProbingSet:
    return ProbingSet.model_validate(FIELDS | fields)


def a_sample(name: str, text: str = "Some text.", **fields: object) -> Sample:
    return Sample(name, whole(text), **{"label": "a", "where": f"file, line {name}"} | fields)


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (Sample("1", (Span("abc", 1, 4),), label="a", where="f, line 2"), "f, line 2: span 1-4 lies outside"),
        (Sample("1", (Span("abc", -1, 2),), label="a"), "lies outside"),
        (Sample("1", (Span("abc", 2, 2),), label="a"), "lies outside"),
        (Sample("1", (Span("a \n b", 1, 4),), label="a"), "no characters but spaces"),
        (a_sample("1", "x" * (MAX_CHARACTERS + 1)), "at most 20,000"),
        (a_sample("1", ""), "lies outside"),
        (a_sample("1", "a \ud800 b"), "surrogate"),
        (a_sample("1", label=""), "label is empty"),
        (a_sample("1", split="validation"), "none of train, dev, test"),
        (a_sample("1", second=whole("b")), "another number of texts"),
        (Sample("1", (Span("a b", 0, 1), Span("a b", 2, 3)), label="a"), "several pieces"),
    ],
)
def test_a_wrong_sample_becomes_a_note(sample: Sample, reason: str) -> None:
    definition = a_set()
    data = probing_data(definition, [sample, a_sample("last")])
    assert data.instances["instance_id"].to_pylist() == ["mine/last"]
    assert len(data.notes) == 1 and reason in str(data.notes[0])


def test_the_second_of_two_equal_ids_is_left_out() -> None:
    data = probing_data(a_set(), [a_sample("1", "one"), a_sample("1", "two"), a_sample("2", "three")])
    assert data.passages["text"].to_pylist() == ["one", "three"]
    assert "occurs twice" in str(data.notes[0])


def test_notes_are_counted_beyond_a_bound() -> None:
    data = probing_data(a_set(), [a_sample(str(n), label="") for n in range(MAX_NOTES + 7)] + [a_sample("last")])
    assert len(data.notes) == MAX_NOTES + 1 and str(data.notes[-1]) == "7 more notes"


def test_a_label_that_train_lacks_is_noted_and_kept() -> None:
    samples = [a_sample("1", split="train"), a_sample("2", split="test", label="b"), a_sample("3", split="dev")]
    data = probing_data(a_set(), samples)
    assert data.instances["label"].to_pylist() == ["a", "b", "a"]
    assert [str(note) for note in data.notes] == ["mine: label 'b' of 1 dev or test instances does not occur in train"]


def test_an_empty_set_is_an_error_with_the_first_reason() -> None:
    with pytest.raises(CorpusError, match="'mine' has no instances; file, line 1: the label is empty"):
        probing_data(a_set(), [a_sample("1", label="")])
    with pytest.raises(CorpusError, match=r"has no instances$"):
        probing_data(a_set(), [])


def test_values() -> None:
    samples = [a_sample("1", value=2.5), a_sample("2", label="many")]
    data = probing_data(a_set(task="values"), samples)
    assert data.instances["value"].to_pylist() == [2.5] and data.instances["label"].to_pylist() == [None]
    assert "'many' is not a number" in str(data.notes[0])


def test_equal_texts_and_spans_are_one_passage_in_all_sets() -> None:
    pieces = (Span("a b c", 0, 1), Span("a b c", 4, 5))
    first = probing_data(a_set(), [a_sample("1", "a b c"), a_sample("2", "a b c"), a_sample("3", "b")])
    second = probing_data(
        a_set(id="other", input="span_pieces"), [Sample("1", pieces, label="a"), Sample("2", whole("a b c"), label="b")]
    )
    assert first.passages.num_rows == 2 and second.passages.num_rows == 3
    shared = shared_passages([first, second])
    spans = [(row["text"], row["span"]["start"], row["span"]["end"]) for row in shared.to_pylist()]
    assert spans == [("a b c", 0, 1), ("a b c", 0, 5), ("a b c", 4, 5), ("b", 0, 1)]
    assert second.instances["first"][1].as_py() == first.instances["first"][0].as_py()
    assert shared_passages([]).num_rows == 0


def test_choice_keeps_groups_splits_and_labels() -> None:
    samples = [
        a_sample(f"{split}-{number}-{member}", label=label, group=f"{split}-{number}", split=split)
        for split, size in (("train", 700), ("dev", 100), ("test", 200))
        for number in range(size)
        for label in ["rare" if number % 10 == 0 else "common"]
        for member in (1, 2)
    ]
    chosen = choose(samples, 200)
    assert len(chosen) == 200 and chosen == sorted(chosen, key=samples.index)
    assert set(Counter(sample.group for sample in chosen).values()) == {2}
    assert Counter(sample.split for sample in chosen) == {"train": 140, "dev": 20, "test": 40}
    assert Counter(sample.label for sample in chosen) == {"common": 180, "rare": 20}
    assert chosen == choose(samples, 200) != choose(samples, 200, seed="1")
    assert set(chosen) < set(choose(samples, 400))
    balanced = choose(samples, 10_000, balanced=True)
    assert Counter((sample.split, sample.label) for sample in balanced) == {
        (split, label): count
        for split, count in (("train", 140), ("dev", 20), ("test", 40))
        for label in ("common", "rare")
    }


def test_choice_keeps_the_range_of_values() -> None:
    samples = [a_sample(str(number), value=float(number % 100)) for number in range(2000)]
    chosen = choose(samples, 100)
    assert Counter(sample.value // 10 for sample in chosen if sample.value is not None) == dict.fromkeys(range(10), 10)


def test_a_group_that_does_not_fit_is_passed_over() -> None:
    samples = [a_sample(str(n), group="large") for n in range(9)] + [a_sample("small")]
    assert [sample.id for sample in choose(samples, 5)] == ["small"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("['a']", ["a"]),
        ("('it\\'s', \"b [c, (d\")", ["it's", "b [c, (d"]),
        (" [('w', 0, 3, 4), ('v', 1, -1, 12)] ", [("w", 0, 3, 4), ("v", 1, -1, 12)]),
        ("[['w', 0, 3, 4]]", [["w", 0, 3, 4]]),
        ("['\\u00e9\\n']", ["é\n"]),
        ("[]", []),
    ],
)
def test_lists_are_read(text: str, value: list[object]) -> None:
    assert read_list(text, "f, line 2") == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "[__import__('os')]",
        "['a'.upper()]",
        "[x for x in 'a']",
        "['a' * 1000000000]",
        "[9 ** 9 ** 9]",
        "[1 + 1]",
        "[f'{1}']",
        "[b'a']",
        "{'a': 1}",
        "{'a'}",
        "[True]",
        "[1e9]",
        "[0x10]",
        "[12345678901]",
        "[- - 1]",
        "[lambda: 1]",
        "'a text'",
        "12",
        "['a",
        "['a]",
        "['a', ]]",
        "[1 2]",
        "",
        "nan",
        "[" * 100_000,
        "[" * 5 + "]" * 5,
        "(" * 50_000 + ")" * 50_000,
        "['a'" + ", 'a'" * MAX_LITERAL,
        "['" + "\\" * 99_999 + "']",
        "['\\x']",
    ],
)
def test_nothing_else_is_read(text: str) -> None:
    with pytest.raises(CorpusError, match=r"^f, line 2: ") as error:
        read_list(text, "f, line 2")
    assert len(str(error.value)) < 300


def test_unknown_names_offer_the_nearest() -> None:
    sets = PROBING_SETS
    with pytest.raises(UnknownNameError, match="did you mean planted-depth"):
        sets.get("planted-dept")
    with pytest.raises(UnknownNameError, match="did you mean"):
        sets.choose(["planted-bigrm-*"])
    assert [each.id for each in sets.choose(["planted-p*", "planted-pos", "planted-depth"])] == [
        "planted-pos", "planted-depth",
    ]  # fmt: skip


def test_a_set_that_cannot_be_read_becomes_a_note(tmp_path: Path) -> None:
    sets = ProbingSets()
    lost = sets.get("ud-upos").model_copy(update={"folder": tmp_path})
    found, notes = sets.read_all([lost, sets.get("planted-pos")])
    assert list(found) == ["planted-pos"]
    assert [note.where for note in notes] == ["ud-upos"] and isinstance(notes[0], Note)


def test_the_public_suite_is_listed() -> None:
    suite = suite_sets().values()
    assert len(suite) == 208
    assert Counter(each.input for each in suite) == {"text": 125, "span_pair": 46, "span": 32, "text_pair": 5}
    assert Counter(each.type for each in suite) == {
        "syntax": 75, "semantics": 67, "discourse": 28, "reasoning": 19, "morphology": 19,
    }  # fmt: skip
    ids = {each.id for each in suite}
    stands_for = {each.stands_for for each in ProbingSets().all()} - {None}
    assert stands_for <= ids and all(each.source for each in suite)
    assert {each.id for each in ProbingSets().absent()} >= {"olmpics-size_comparison", "rst-edu-type", "ner"}


def test_sets_of_one_source_name_it_alike() -> None:
    by_source: dict[str, set[tuple[str, str]]] = {}
    for each in ProbingSets().all():
        by_source.setdefault(each.source, set()).add((each.revision, each.licence))
    assert all(len(found) == 1 for found in by_source.values())


def test_own_sets(tmp_path: Path) -> None:
    lines = [f"{key}: {value}" for key, value in FIELDS.items()]
    (tmp_path / "mine.yaml").write_text("\n".join([*lines, "parameters: {file: mine.csv}"]))
    (tmp_path / "mine.csv").write_text("label,text\na,One.\nb,Two.\n")
    sets = ProbingSets(tmp_path)
    assert sets.read(sets.get("mine")).instances["label"].to_pylist() == ["a", "b"]
    (tmp_path / "again.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="'mine' is taken"):
        ProbingSets(tmp_path).all()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("type: phonology", "type: Input should be"),
        ("colour: red", "colour: Extra inputs"),
        ("id: ../mine", "id: String should match"),
        ("max_instances: 0", "max_instances: Input should be"),
    ],
)
def test_wrong_definitions_name_file_and_field(tmp_path: Path, line: str, reason: str) -> None:
    fields = {**FIELDS, line.partition(":")[0]: line.partition(": ")[2]}
    (tmp_path / "mine.yaml").write_text("\n".join(f"{key}: {value}" for key, value in fields.items()))
    with pytest.raises(ConfigError, match="mine.yaml: " + reason):
        ProbingSets(tmp_path).all()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"reader": "tabel"}, UnknownNameError),
        ({"parameters": {"files": "a.csv"}}, ConfigError),
        ({"parameters": {"file": "../a.csv"}}, ConfigError),
        ({"parameters": {"file": "/etc/hostname"}}, ConfigError),
        ({"parameters": {"file": "none.csv"}}, CorpusError),
        ({"reader": "grammar", "parameters": {"groups": 0}}, ConfigError),
    ],
)
def test_wrong_readers_and_parameters(tmp_path: Path, fields: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        ProbingSets().read(a_set(folder=tmp_path, **fields))


def rows_of(samples: Iterable[Sample], seed: int = 0, **fields: Any) -> list[dict[str, Any]]:
    """Return the passages of both splits."""
    definition = ProbingSet.model_validate(FIELDS | fields)
    found = as_passages(definition, probing_data(definition, samples), seed)
    assert list(found) == ["train", "test"]
    for split, table in found.items():
        assert set(table["split"].to_pylist()) == {split}
    return [row for table in found.values() for row in table.to_pylist()]


def sample(number: int, label: str, split: str | None = None, group: str = "") -> Sample:
    return Sample(str(number), whole(f"Text {number}."), label=label, split=split, group=group)


def test_given_splits_stay_and_dev_is_left_out() -> None:
    """Of the labels no and yes, yes is positive; the two texts of a group of both labels are a pair."""
    splits = ("train", "train", "dev", "test")
    rows = rows_of(
        sample(2 * n + side, label, split, f"g{n}")
        for n, split in enumerate(splits)
        for side, label in enumerate(("yes", "no"))
    )
    found = [(row["passage_id"], row["label"], row["split"], row["doc_id"], row["text"]) for row in rows]
    assert found == [
        ("mine/0", 1, "train", "mine/g0", "Text 0."), ("mine/1", 0, "train", "mine/g0", "Text 1."),
        ("mine/2", 1, "train", "mine/g1", "Text 2."), ("mine/3", 0, "train", "mine/g1", "Text 3."),
        ("mine/6", 1, "test", "mine/g3", "Text 6."), ("mine/7", 0, "test", "mine/g3", "Text 7."),
    ]  # fmt: skip
    assert [row["pair_id"] for row in rows] == [row["doc_id"] for row in rows]
    assert {(row["concept"], row["domain"], row["licence"]) for row in rows} == {("mine", "mine", "CC0")}


def test_drawn_splits_keep_groups_whole_in_the_shares_of_a_probing_task() -> None:
    """30 groups of four texts: 70 % of the texts are train and 20 % test; another seed draws others."""
    samples = [sample(n, "ab"[n % 2], group=f"g{n // 4}") for n in range(120)]
    rows = rows_of(samples, seed=3)
    members = {split: {row["doc_id"] for row in rows if row["split"] == split} for split in ("train", "test")}
    assert {split: len(groups) for split, groups in members.items()} == {"train": 21, "test": 6}
    assert not members["train"] & members["test"] and len(rows) == 4 * 27
    assert {row["pair_id"] for row in rows} == {None}  # a group of four is not a pair
    assert rows == rows_of(samples, seed=3) != rows_of(samples, seed=4)


TEN = [sample(n, "ab"[n % 2]) for n in range(10)]


@pytest.mark.parametrize(
    ("samples", "fields", "reason"),
    [
        ([*TEN, sample(10, "c")], {}, r"mine: it has 3 labels \(a, b, c\), and two are read"),
        ([sample(n, str(n)) for n in range(9)], {}, r"9 labels \(0, 1, 2, 3, 4, \.\.\.\)"),
        ([sample(n, "a") for n in range(9)], {}, r"1 labels \(a\)"),
        ([Sample("1", whole("a"), value=1.0)], {"task": "values"}, "asks for values"),
        ([Sample("1", whole("a"), whole("b"), label="a")], {"input": "text_pair"}, "its input is text_pair"),
        ([Sample("1", (Span("a b", 0, 1),), label="a")], {"input": "span"}, "its input is span, and whole texts"),
        ([sample(n, "ab"[n % 2], "train") for n in range(9)], {}, "has no test instances"),
        ([sample(n, "ab"[n % 2], "test") for n in range(9)], {}, "has no train instances"),
        ([*TEN, sample(10, "a", "train")], {}, "no split"),
        ([sample(n, "ab"[n % 2], ("train", "test")[n % 2], "g") for n in range(4)], {}, "a group lies in several"),
    ],
)
def test_other_sets_are_refused_with_the_reason(samples: list[Sample], fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(CorpusError, match=reason):
        rows_of(samples, **fields)


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


def test_bags_of_words_by_hand() -> None:
    """Two train texts: `a` is in both (idf 1), `b` and `!` in one (idf 1 + ln 1.5). A test text has no say."""
    samples = [
        a_sample("1", "A b", split="train", label="x"),
        a_sample("2", "a a!", split="train", label="y"),
        a_sample("3", "b c c", split="test"),
    ]
    data = probing_data(a_set(), samples)
    rare = 1 + math.log(1.5)
    first, second = math.hypot(1, rare), math.hypot(2, rare)  # the columns are !, a, b
    expected = np.array([[0, 1 / first, rare / first], [rare / second, 2 / second, 0], [0, 0, 1]])
    np.testing.assert_allclose(bags_of_words(data, 10), expected, rtol=1e-6)
    reduced = bags_of_words(data, 2)  # on the singular vectors of the first two rows, whose signs are free
    singular = np.linalg.svd(expected[:2])[2][:2]
    np.testing.assert_allclose(reduced @ reduced.T, expected @ singular.T @ singular @ expected.T, atol=1e-6)


def test_dimensions_that_train_lacks_are_left_out() -> None:
    """Four train texts of two kinds have two dimensions, however many are asked for."""
    texts = ["a b c d e", "a b c d f"] * 2
    samples = [a_sample(f"{n}", text, split="train") for n, text in enumerate(texts)]
    bags = bags_of_words(probing_data(a_set(), [*samples, a_sample("last", "e f a", split="test")]), 5)
    assert bags.shape == (5, 2) and np.abs(bags[0] - bags[1]).max() > 0.1


def test_bags_of_words_of_spans_and_pairs() -> None:
    text = "the cat saw a dog"
    pieces = Sample("1", (Span(text, 4, 7), Span(text, 14, 17)), label="x", split="train")
    words = bags_of_words(probing_data(a_set(input="span_pieces"), [pieces]), 10)
    np.testing.assert_allclose(words, [[0.5**0.5, 0.5**0.5]], rtol=1e-6)  # cat, dog
    pair = Sample("1", (Span(text, 4, 7),), (Span(text, 14, 17),), label="x", split="train")
    sides = bags_of_words(probing_data(a_set(input="span_pair"), [pair]), 10)
    np.testing.assert_allclose(sides, [[1, 0, 0, 1]])  # cat of the first, dog of the second
