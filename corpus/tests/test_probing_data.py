"""Tables of probing data: checks of samples, choice of whole groups, notes; and literals."""

from collections import Counter
from pathlib import Path

import pytest

from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench_corpora.probing import (
    PROBING_SETS,
    Note,
    ProbingSet,
    ProbingSets,
    Sample,
    Span,
    probing_data,
    shared_passages,
)
from poolbench_corpora.probing.catalog import suite_sets
from poolbench_corpora.probing.data import MAX_CHARACTERS
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


def test_families_ask_for_the_archives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POOLBENCH_REAL_TEXT", raising=False)
    sets = ProbingSets()
    assert not [each for each in sets.all() if each.id.startswith("blimp")]
    with pytest.raises(CorpusError, match="POOLBENCH_REAL_TEXT"):
        sets.choose(["blimp-*"])
    with pytest.raises(CorpusError, match="POOLBENCH_REAL_TEXT"):
        sets.get("zorro-irregular-verb")
    found, notes = sets.read_all([sets.get("ud-upos"), sets.get("planted-pos")])
    assert list(found) == ["planted-pos"]
    assert [note.where for note in notes] == ["ud-upos"] and isinstance(notes[0], Note)


def test_sets_whose_archive_is_not_here_are_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POOLBENCH_REAL_TEXT", raising=False)
    sets = ProbingSets()
    assert {each.id.partition("-")[0] for each in sets.all() if sets.is_here(each)} == {"planted"}
    assert {each.id.partition("-")[0] for each in sets.all() if not sets.is_here(each)} == {"ewt", "gum", "ud"}
    assert {"upos", "xpos", "dep"} <= {each.id for each in sets.absent()}
    (tmp_path / "probing").mkdir()
    assert not sets_of(tmp_path, "ud-upos") and len(ProbingSets(archives=tmp_path).absent()) == 208
    (tmp_path / "parsing.tar.xz").touch()
    assert sets_of(tmp_path, "ud-upos") and sets_of(tmp_path, "gum-bridging")


def sets_of(archives: Path, name: str) -> bool:
    sets = ProbingSets(archives=archives)
    return next(sets.is_here(each) for each in sets.all() if each.id == name)


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
