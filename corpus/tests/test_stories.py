"""Pairs of stories: tags, files, the catalogue, and the planted ones."""

import json
import math
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poolbench.contracts.tables import PASSAGES, STORIES
from poolbench.errors import ConfigError, CorpusError, UnknownNameError
from poolbench_corpora.io import CorpusManifest, write_corpus
from poolbench_corpora.planted import build_planted
from poolbench_corpora.planted.grammar import load_lexicon
from poolbench_corpora.stories import (
    STORY_PASSAGES,
    StoriesData,
    StoryCatalog,
    import_stories,
    parse_tags,
    read_stories,
)
from poolbench_corpora.stories.catalog import planted_subjects
from poolbench_corpora.stories.data import MAX_CHARACTERS

HIGH, LOW = "A <subject>very hot</subject> day.", "A <subject>cold</subject> day."


def test_tags_become_ranges() -> None:
    found = parse_tags("It was <subject>hot</subject>, <SUBJECT>very hot</Subject>.")
    assert found.text == "It was hot, very hot."
    assert [found.text[start:end] for start, end in found.marks] == ["hot", "very hot"]
    whole = "It was <subject>hot</subject>, <SUBJECT>very hot</Subject>."
    assert [whole[start:end] for start, end in found.marks_with_tags] == ["hot", "very hot"]
    assert parse_tags("plain < text >").marks == ()


@pytest.mark.parametrize(
    ("story", "message"),
    [
        ("a <subject>b", "<subject> at character 2 has no </subject> after it"),
        ("a b</subject> c", "</subject> at character 3 has no <subject> before it"),
        ("<subject>a <subject>b</subject></subject>", "<subject> at character 11 stands inside another one"),
        ("a <subject></subject> b", "ends at character 11 is marked but has no word"),
        ("a <subject> </subject> b", "has no word"),
    ],
)
def test_wrong_tags_are_named_with_their_place(story: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        parse_tags(story)


def jsonl(path: Path, *records: object) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n", "utf-8")
    return path


def row(subject: str = "heat", story1: str = HIGH, story2: str = LOW, **more: object) -> dict[str, object]:
    return {"subject": subject, "story1": story1, "story2": story2, **more}


def texts(data: StoriesData) -> dict[str, tuple[str, list[str]]]:
    """Text and marked words of each passage."""
    return {
        each["passage_id"]: (each["text"], [each["text"][mark["start"] : mark["end"]] for mark in each["marks"]])
        for each in data.passages.to_pylist()
    }


def test_rows_of_a_file_by_each_protocol(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "s.jsonl", row(), row("love", "She <subject>loves</subject> it.", "She leaves it."))
    corrected, published = (read_stories(path, protocol=name) for name in ("corrected", "published"))
    assert corrected.rows.schema == STORIES and corrected.passages.schema == STORY_PASSAGES and not corrected.notes
    assert corrected.rows["subject"].to_pylist() == ["heat", "love"]
    first, second = (texts(corrected)[corrected.rows[side][0].as_py()] for side in ("first", "second"))
    assert first == ("A very hot day.", ["very hot"]) and second == ("A cold day.", ["cold"])
    assert texts(corrected)[corrected.rows["second"][1].as_py()] == ("She leaves it.", [])
    assert texts(published)[published.rows["first"][0].as_py()] == (HIGH, ["very hot"])


def test_equal_stories_are_one_passage_and_numbers_of_rows_are_those_of_the_source(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "s.jsonl", row(), {"story1": "x"}, row("cold", LOW, HIGH))
    data = read_stories(path)
    assert data.rows["row_id"].to_pylist() == ["000000", "000002"] and data.passages.num_rows == 2
    # The same text with other marks is another passage.
    other = read_stories(jsonl(tmp_path / "t.jsonl", row(), row("cold", "A very <subject>hot</subject> day.", LOW)))
    assert other.passages.num_rows == 3


def test_columns_of_the_public_sets(tmp_path: Path) -> None:
    public = {"story0": "x", "story1": HIGH, "story2": LOW, "subject": "an id", "subject_title": "heat"}
    pq.write_table(pa.Table.from_pylist([public, {**public, "subject_title": "love"}]), tmp_path / "train-0.parquet")
    assert read_stories(tmp_path).rows["subject"].to_pylist() == ["heat", "love"]
    path = jsonl(tmp_path / "v3.jsonl", {"subject": "heat", "story1": HIGH, "story2": LOW})
    assert read_stories(str(path)).rows["subject"].to_pylist() == ["heat"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"subject": "a", "story1": "b"}, "no 'story2'; the record has subject, story1"),
        ({"story1": "a", "story2": "b"}, "no 'subject_title' or 'subject'"),
        (row(story2=" "), "'story2' is empty or no text"),
        (row("nan"), "'subject' is empty or no text"),
        (row(story2=math.nan), "'story2' is empty or no text"),  # type: ignore[arg-type]
        (row(story1=3), "'story1' is empty or no text"),  # type: ignore[arg-type]
        (row(story1="a <subject>b"), "has no </subject> after it"),
        (row(story2=HIGH), "both stories are the same text"),
        (row(story1="a" * (MAX_CHARACTERS + 1)), "20,001 characters; at most 20,000"),
        (row(story1="a \ud800"), "lone surrogate"),
    ],
)
def test_a_wrong_row_is_a_note_and_the_rest_goes_on(tmp_path: Path, record: object, reason: str) -> None:
    path = jsonl(tmp_path / "s.jsonl", row(), record, row("love"))
    data = read_stories(path)
    assert data.rows["subject"].to_pylist() == ["heat", "love"]
    (note,) = data.notes
    assert str(note).startswith(f"{path}, line 2: ") and reason in str(note)


def test_published_stories_keep_wrong_tags_and_have_no_marks(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "s.jsonl", row(story1="a <subject>b"), row("love"))
    data = read_stories(path, protocol="published")
    assert data.rows.num_rows == 2
    assert texts(data)[data.rows["first"][0].as_py()] == ("a <subject>b", [])
    (note,) = data.notes
    assert "line 1" in str(note) and "the story has no marks" in str(note)


def test_many_notes_are_counted(tmp_path: Path) -> None:
    data = read_stories(jsonl(tmp_path / "s.jsonl", row(), *[{"story1": "a"}] * 70, row("love")))
    assert len(data.notes) == 51 and str(data.notes[-1]) == "20 more notes"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no such file"):
        read_stories(str(tmp_path / "absent.jsonl"))
    with pytest.raises(CorpusError, match=r"s\.jsonl has no pair of stories; .*line 1: no 'story2'"):
        read_stories(jsonl(tmp_path / "s.jsonl", {"story1": "a", "subject": "b"}))


def test_the_catalogue_knows_what_is_here(tmp_path: Path) -> None:
    jsonl(tmp_path / "mine.jsonl", row(), row("love"))
    public = tmp_path / "GulkoA" / "contrastive-stories-v4"
    public.mkdir(parents=True)
    jsonl(public / "train.jsonl", row(), row("love", subject_title="joy"))
    jsonl(tmp_path / "GulkoA__contrastive-stories-v2.jsonl", row(), row("love"))
    found = {each.name: each for each in StoryCatalog(tmp_path).all()}
    public_names = [f"contrastive-stories-v{number}" for number in (1, 2, 3, 4)]
    assert list(found) == ["planted", "real", *public_names, "mine"]
    present = {name for name, each in found.items() if each.is_present}
    assert present == {"planted", "real", "mine", "contrastive-stories-v2", "contrastive-stories-v4"}
    assert (found["contrastive-stories-v4"].num_subjects, found["contrastive-stories-v4"].num_rows) == (1000, 5000)
    folders = (tmp_path,)
    for name in ("contrastive-stories-v4", "GulkoA/contrastive-stories-v4"):
        assert read_stories(name, folders=folders).rows["subject"].to_pylist() == ["heat", "joy"]
    assert read_stories("mine", folders=folders).rows.num_rows == 2
    with pytest.raises(CorpusError, match="contrastive-stories-v1 is not here: download GulkoA/"):
        read_stories("contrastive-stories-v1", folders=folders)
    with pytest.raises(UnknownNameError, match=r"set of stories 'mime'; did you mean mine"):
        read_stories("mime", folders=folders)


def test_a_folder_of_that_name_does_not_hide_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planted").mkdir()
    assert read_stories("planted").rows.num_rows == 48


def test_real_stories_are_pairs_of_the_concepts_that_pass_their_audit() -> None:
    subjects = Counter(read_stories("real").rows["subject"].to_pylist())
    assert len(subjects) == 13 and "academic_tone" not in subjects
    assert subjects["hedging"] == 1000  # 700 pairs of train and 300 of test


def test_without_the_corpus_that_ships_real_stories_say_where_it_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POOLBENCH_ASSETS", str(tmp_path / "nowhere"))
    assert not next(each for each in StoryCatalog().all() if each.name == "real").is_present
    with pytest.raises(ConfigError, match="set POOLBENCH_ASSETS to the assets/ of a checkout"):
        read_stories("real")


def test_imported_stories_read_alike(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "s.jsonl", row(subject_title="warmth"), {"story1": "a"}, row("love", "I ❤ it.", "No."))
    done = import_stories(source, tmp_path / "stories", "own")
    assert len(done.notes) == 1
    again = read_stories("own", folders=(tmp_path / "stories",))
    assert again.passages.equals(done.passages) and not again.notes
    assert again.rows["subject"].to_pylist() == ["warmth", "love"]
    for name in ("planted", "../x", ""):
        with pytest.raises(ConfigError, match="cannot be the name"):
            import_stories(source, tmp_path, name)


def test_planted_stories_have_two_sides_that_differ_in_marked_words_alone() -> None:
    data = read_stories("planted", seed=1)
    subjects = data.rows["subject"].to_pylist()
    assert len(planted_subjects()) == 12 and {subjects.count(subject) for subject in subjects} == {4}
    assert data.passages.num_rows == 96 and not data.notes
    known = texts(data)
    for pair in data.rows.to_pylist():
        plain = []
        for side in ("first", "second"):
            text, marked = known[pair[side]]
            assert len(marked) == 2 and all(word.strip() == word for word in marked)
            for word in marked:
                text = text.replace(word, "_", 1)
            plain.append(text.lower().replace(" for ", " over ").replace("?", "!"))  # the frames of politeness
        assert plain[0] == plain[1], pair
    words = {word for text, _ in known.values() for word in text.split()}
    assert set(load_lexicon("corpus").domains[0].slots["name"]) & words


def test_planted_stories_depend_on_the_seed_alone() -> None:
    data = read_stories("planted", seed=3)
    assert data.rows.equals(read_stories("planted", seed=3).rows)
    assert not set(texts(data)) & set(texts(read_stories("planted", seed=4)))
    published = read_stories("planted", seed=3, protocol="published")
    without_tags = [parse_tags(text).text for text in published.passages["text"].to_pylist()]
    assert without_tags == data.passages["text"].to_pylist()


def test_a_corpus_gives_pairs_of_its_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [
        build_planted(name, num_train=60, num_test=20, num_scorer=20, seed=0) for name in ("contrast", "toxicity")
    ]
    manifest = CorpusManifest(revision="r", tokenizer="words", window=(1, 500))
    with monkeypatch.context() as allowed:
        allowed.setenv("POOLBENCH_SENSITIVE", "true")
        write_corpus(pa.concat_tables(tables), tmp_path / "corpus", manifest)
    found = read_stories(tmp_path / "corpus")
    assert found.rows.num_rows == 40 and set(found.rows["subject"].to_pylist()) == {"contrast"}
    stories = {each["passage_id"]: each for each in found.passages.to_pylist()}
    known = {each["text"]: each for each in tables[0].to_pylist()}
    for pair in found.rows.to_pylist():
        high, low = (known[stories[pair[side]]["text"]] for side in ("first", "second"))
        assert (high["label"], low["label"]) == (1, 0) and high["pair_id"] == low["pair_id"]
        assert stories[pair["first"]]["marks"] == high["signal"]


def test_passages_without_a_partner_are_paired_within_split_and_domain(tmp_path: Path) -> None:
    rows = build_planted("contrast", num_train=60, num_test=20, num_scorer=20, seed=0).to_pylist()
    unpaired = pa.Table.from_pylist([each | {"pair_id": None} for each in rows], schema=PASSAGES)
    write_corpus(unpaired, tmp_path / "corpus", CorpusManifest(revision="r", tokenizer="words", window=(1, 500)))
    found = read_stories(tmp_path / "corpus")
    stories = {each["passage_id"]: each["text"] for each in found.passages.to_pylist()}
    known = {each["text"]: each for each in rows}
    pairs = [[known[stories[pair[side]]] for side in ("first", "second")] for pair in found.rows.to_pylist()]
    assert len(pairs) > 20
    assert all((high["label"], low["label"]) == (1, 0) for high, low in pairs)
    assert all((high["split"], high["domain"]) == (low["split"], low["domain"]) for high, low in pairs)


def test_the_first_pairs_of_each_subject(tmp_path: Path) -> None:
    heat = [row("heat", f"{n} {HIGH}", f"{n} {LOW}") for n in range(3)]
    file = jsonl(tmp_path / "own.jsonl", *heat, row("calm", HIGH, "0 " + LOW))
    whole, first = read_stories(file), read_stories(file).first_pairs(2)
    assert [(each["subject"], each["row_id"]) for each in first.rows.to_pylist()] == [
        ("heat", "000000"), ("heat", "000001"), ("calm", "000003"),
    ]  # fmt: skip
    assert whole.first_pairs(None) == whole and (whole.passages.num_rows, first.passages.num_rows) == (7, 5)
