"""Tables of samples, and imports of the public suite and of SentEval, on small files written here."""

import csv
import io
import json
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from poolbench.errors import CorpusError
from poolbench_corpora.probing import (
    ProbingData,
    ProbingSet,
    ProbingSets,
    import_senteval,
    import_suite,
    importing,
    probing_data,
)
from poolbench_corpora.probing.readers import samples_of

FIELDS = {
    "id": "mine", "type": "syntax", "phenomenon": "p", "source": "s", "revision": "1", "licence": "CC0",
    "citation": "c", "fidelity": "same", "reader": "table",
}  # fmt: skip
COLUMNS = ("", "id", "inputs", "context", "label", "set-0")


def read(folder: Path, content: str, *, file: str = "mine.csv", **fields: object) -> ProbingData:
    """The tables of a set whose file has this content."""
    (folder / file).write_text(content, "utf-8")
    values: dict[str, Any] = FIELDS | {"input": "text", "parameters": {"file": file}, "folder": folder} | fields
    definition = ProbingSet.model_validate(values)
    return probing_data(definition, samples_of(definition))


def suite_csv(rows: Sequence[Sequence[object]], columns: Sequence[str] = COLUMNS) -> str:
    """A table as the public suite writes it; cells of a row in the order of `COLUMNS`."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    writer.writerows([[row[COLUMNS.index(name)] for name in columns] for row in rows])
    return out.getvalue()


def write_set(folder: Path, name: str, kind: str, rows: Sequence[Sequence[object]], **config: object) -> Path:
    """A folder of one set of the public suite."""
    place = folder / name
    place.mkdir(parents=True)
    (place / "samples.csv").write_text(suite_csv(rows), "utf-8")
    values = {"probe_task_type": kind, "probe_name": name, "num_labels": 2, "control_task_type": "NONE", **config}
    (place / "config-none.yaml").write_text(json.dumps(values), "utf-8")
    return place


TEXTS = [
    (0, "t1", "['It\\'s here.']", "", 1, "train"),
    (1, "t2", '["She said \\"no\\"."]', "", 0, "dev"),
    (2, "t3", "['Gone, all gone.']", "", 1, "test"),
]


def passages(data: ProbingData) -> list[list[tuple[str, str]]]:
    """Text and words of the spans of each instance."""
    rows = {row["passage_id"]: row for row in data.passages.to_pylist()}
    return [
        [(rows[p]["text"], rows[p]["text"][slice(*rows[p]["span"].values())]) for p in first + second]
        for first, second in zip(data.instances["first"].to_pylist(), data.instances["second"].to_pylist(), strict=True)
    ]


def test_texts_of_the_suite(tmp_path: Path) -> None:
    data = read(tmp_path, suite_csv(TEXTS))
    assert data.instances["instance_id"].to_pylist() == ["mine/t1", "mine/t2", "mine/t3"]
    assert data.passages["text"].to_pylist() == ["It's here.", 'She said "no".', "Gone, all gone."]
    assert data.instances["label"].to_pylist() == ["1", "0", "1"]
    assert data.instances["split"].to_pylist() == ["train", "dev", "test"]
    assert not data.notes or "does not occur in train" in str(data.notes[0])
    other = read(tmp_path, suite_csv(TEXTS, ("set-0", "label", "inputs", "id", "context", "")))
    assert other.instances.equals(data.instances) and other.passages.equals(data.passages)
    bare = read(tmp_path, suite_csv(TEXTS, ("inputs", "label")))
    assert bare.instances["split"].to_pylist() == [None] * 3 and not bare.notes
    assert bare.instances["instance_id"].to_pylist() == ["mine/0", "mine/1", "mine/2"]


CONTEXT = "['The old man left.', 'He slept.']"


@pytest.mark.parametrize(
    ("kind", "inputs", "expected"),
    [
        ("span", "[('old man', 0, 4, 11)]", [("The old man left.", "old man")]),
        (
            "span_pair",
            "[('man', 0, 8, 11), ('He', 1, 0, 2)]",
            [("The old man left.", "man"), ("He slept.", "He")],
        ),
        (
            "span_pieces",
            "[('The', 0, 0, 3, 0), ('left', 0, 12, 16, 0)]",
            [("The old man left.", "The"), ("The old man left.", "left")],
        ),
        (
            "span_pair",  # of pieces
            "[('The', 0, 0, 3, 0), ('He', 1, 0, 2, 1), ('left', 0, 12, 16, 0)]",
            [("The old man left.", "The"), ("The old man left.", "left"), ("He slept.", "He")],
        ),
        ("text_pair", "['One.', 'Two.']", [("One.", "One."), ("Two.", "Two.")]),
    ],
)
def test_spans_of_the_suite(tmp_path: Path, kind: str, inputs: str, expected: list[tuple[str, str]]) -> None:
    data = read(tmp_path, suite_csv([(0, "a", inputs, CONTEXT, "x", "train")]), input=kind)
    assert passages(data) == [expected]
    words = {"span": "old man", "span_pieces": "the left"}
    assert data.instances["word"].to_pylist() == [words.get(kind)]


@pytest.mark.parametrize(
    ("kind", "inputs", "context", "reason"),
    [
        ("span", "[('man', 0, 8, 99)]", CONTEXT, "span 8-99 lies outside its text of 17 characters"),
        ("span", "[('man', 2, 8, 11)]", CONTEXT, "there is no context 2"),
        ("span", "[('man', -1, 8, 11)]", CONTEXT, "there is no context -1"),
        ("span", "[('man', 0, 8, '11')]", CONTEXT, "not whole numbers"),
        ("span", "[('man', 0, 8)]", CONTEXT, "a span has characters"),
        ("span", "[('man', 0, 8, 11)]", "", "is not a list"),
        ("span", "[('He', 1, 0, 2), ('man', 0, 8, 11)]", CONTEXT, "2 texts or spans"),
        ("span_pair", "[('man', 0, 8, 11)]", CONTEXT, "1 texts or spans"),
        ("text", "[1]", "", "1 is not a text"),
        ("text", "['One.', 'Two.']", "", "2 texts or spans"),
        ("text", "[]", "", "0 texts or spans"),
        ("text", "[exec('import os')]", "", "is not part of a list"),
    ],
)
def test_wrong_rows_are_noted_with_file_and_line(
    tmp_path: Path, kind: str, inputs: str, context: str, reason: str
) -> None:
    right = {"span": "[('man', 0, 8, 11)]", "span_pair": "[('man', 0, 8, 11), ('He', 1, 0, 2)]", "text": "['Yes.']"}
    rows = [(0, "a", inputs, context, "x", "train"), (1, "b", right[kind], CONTEXT, "x", "train")]
    data = read(tmp_path, suite_csv(rows), input=kind)
    assert data.instances["instance_id"].to_pylist() == ["mine/b"]
    assert len(data.notes) == 1
    assert str(data.notes[0]).startswith(f"{tmp_path}/mine.csv, line 2: ") and reason in str(data.notes[0])


def test_own_tables(tmp_path: Path) -> None:
    lines = 'text,span,label,group,word\nThe old man left.,4:7 12:16,yes,g1,Old\n"No, he did.",,no,g1,\n'
    data = read(tmp_path, lines, input="span_pieces")
    assert passages(data) == [
        [("The old man left.", "old"), ("The old man left.", "left")],
        [("No, he did.", "No, he did.")],
    ]
    assert data.instances["word"].to_pylist() == ["old", "no, he did."]
    assert set(data.instances["group"].to_pylist()) == {"mine/g1"}
    pair = {"text": "A b.", "span": "2:3", "text_2": "C d.", "span_2": "0:1", "label": 2.5, "split": "test"}
    data = read(tmp_path, json.dumps(pair) + "\n", file="mine.jsonl", input="span_pair", task="values")
    assert passages(data) == [[("A b.", "b"), ("C d.", "C")]]
    assert data.instances["value"].to_pylist() == [2.5] and data.instances["split"].to_pylist() == ["test"]


@pytest.mark.parametrize("span", ["4", "4:", "a:b", "4-7", ":", "4:7:9", "-1:2", "4:" + "9" * 30])
def test_wrong_spans_of_own_tables(tmp_path: Path, span: str) -> None:
    data = read(tmp_path, f"text,span,label\nThe old man.,{span},a\nThe old man.,4:7,a\n", input="span")
    assert data.instances.num_rows == 1
    assert "line 2: span " in str(data.notes[0]) and "start:end" in str(data.notes[0])


@pytest.mark.parametrize("label", ["nan", "inf", "-inf", "many", ""])
def test_values_are_finite_numbers(tmp_path: Path, label: str) -> None:
    data = read(tmp_path, f"text,label\nOne.,{label}\nTwo.,-1.5\n", task="values")
    assert data.instances["value"].to_pylist() == [-1.5] and "is not a number" in str(data.notes[0])


def test_a_table_without_texts_is_refused_with_its_columns(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="line 2: no column 'text' or 'inputs'; the columns are words, label"):
        read(tmp_path, "words,label\nOne.,a\n")


def download(folder: Path) -> Path:
    """A small download of the suite: every kind of input, and sets that cannot be read."""
    span = [(0, 1, "[('man', 0, 8, 11)]", CONTEXT, "NOUN", "train"), (1, 2, "[('x', 0, 8, 99)]", CONTEXT, "X", "train")]
    pair = [(0, 1, "[('man', 0, 8, 11), ('He', 1, 0, 2)]", CONTEXT, 0.5, "train")]
    pieces = [(0, 1, "[('The', 0, 0, 3, 0), ('left', 0, 12, 16, 0)]", CONTEXT, "a", "train")]
    write_set(folder, "senteval-past_present", "SENTENCE", TEXTS)
    write_set(folder, "upos", "SENTENCE_TOKENS", span, num_labels=17)
    write_set(folder, "protoroles-awareness", "SENTENCE_TOKENS", pair, num_labels=1)
    write_set(folder, "negation-spans", "SENTENCE_SPANS", pieces)
    write_set(folder, "next-sentence-prediction", "SENTENCE_PAIR_BI", [(0, 1, "['One.', 'Two.']", "", 1, "train")])
    write_set(folder, "joined", "SENTENCE_PAIR_CROSS", [(0, 1, "['One.', 'Two.']", "", 1, "train")])
    write_set(folder, "empty", "SENTENCE", [])
    (write_set(folder, "no-config", "SENTENCE", TEXTS) / "config-none.yaml").unlink()
    return folder


def test_import_of_a_folder(tmp_path: Path) -> None:
    done = import_suite(download(tmp_path / "from"), tmp_path / "to")
    assert done.sets == [
        "negation-spans", "next-sentence-prediction", "protoroles-awareness", "senteval-past_present", "upos",
    ]  # fmt: skip
    reasons = {note.where: note.reason for note in done.notes}
    assert "no such set" in reasons["negation-spans"]
    assert "SENTENCE_PAIR_CROSS" in reasons["joined"]
    assert "no texts" in reasons["empty"] and "No such file" in reasons["no-config"]
    assert [note.reason for note in done.notes if "upos" in note.where] == [
        "span 8-99 lies outside its text of 17 characters"
    ]
    sets = ProbingSets(tmp_path / "to")
    found, notes = sets.read_all(map(sets.get, done.sets))
    assert list(found) == done.sets and not notes
    kinds = {name: (sets.get(name).type, sets.get(name).input, sets.get(name).task) for name in done.sets}
    assert kinds == {
        "negation-spans": ("syntax", "span_pieces", "classes"),
        "next-sentence-prediction": ("discourse", "text_pair", "classes"),
        "protoroles-awareness": ("semantics", "span_pair", "values"),
        "senteval-past_present": ("semantics", "text", "classes"),
        "upos": ("syntax", "span", "classes"),
    }
    assert sets.get("senteval-past_present").phenomenon == "tense"
    assert found["senteval-past_present"].instances["split"].to_pylist() == ["train", "dev", "test"]
    assert {each.id for each in ProbingSets().absent()} - {each.id for each in sets.absent()} == {
        "next-sentence-prediction", "protoroles-awareness", "senteval-past_present",
    }  # fmt: skip


def zipped(folder: Path, path: Path, extra: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*.*")):
            archive.write(file, f"holmes/{file.relative_to(folder)}")
        for name, content in extra.items():
            archive.writestr(name, content)
    return path


def test_import_of_a_zip_archive(tmp_path: Path) -> None:
    folder = download(tmp_path / "from")
    hostile = {
        "../outside/samples.csv": "a",
        "/absolute/samples.csv": "a",
        "holmes/..\\windows\\samples.csv": "a",
        "C:/drive/samples.csv": "a",
        "__MACOSX/upos/samples.csv": "a",
        "holmes/upos/other.py": "raise SystemExit",
    }
    done = import_suite(zipped(folder, tmp_path / "a.zip", hostile), tmp_path / "into" / "to")
    assert done.sets == import_suite(folder, tmp_path / "again").sets
    outside = [note for note in done.notes if "leads outside" in note.reason]
    assert len(outside) == 4 and all(note.where == str(tmp_path / "a.zip") for note in outside)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "again", "from", "into"]
    written = {str(path.relative_to(tmp_path / "into" / "to")) for path in (tmp_path / "into" / "to").rglob("*.*")}
    assert written == {f"{name}{end}" for name in done.sets for end in (".yaml", "/samples.csv")}
    for name in done.sets:
        here, there = (tmp_path / place / name / "samples.csv" for place in ("into/to", "again"))
        assert here.read_bytes() == there.read_bytes()


def test_a_damaged_archive(tmp_path: Path) -> None:
    path = zipped(download(tmp_path / "from"), tmp_path / "a.zip", {})
    content = bytearray(path.read_bytes())
    start = content.index(b"samples.csv") + 12
    content[start : start + 20] = b"\xff" * 20
    path.write_bytes(content)
    with pytest.raises(CorpusError, match="neither a folder nor a zip"):
        import_suite(path, tmp_path / "to")


def test_two_folders_of_one_name(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_set(tmp_path / "from" / folder, "passive", "SENTENCE", TEXTS)
    done = import_suite(tmp_path / "from", tmp_path / "to")
    assert done.sets == ["passive"]
    assert "b/passive: another folder has this name" in str(done.notes[-1])


def test_an_archive_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(download(tmp_path / "from"), tmp_path / "a.zip", {"holmes/large/samples.csv": "x" * 5000})
    monkeypatch.setattr(importing, "MAX_FILE", 4000)
    with pytest.raises(CorpusError, match=r"entry 'holmes/large/samples.csv': more than 4,000 bytes"):
        import_suite(path, tmp_path / "to")
    monkeypatch.setattr(importing, "MAX_ENTRIES", 3)
    with pytest.raises(CorpusError, match="at most 3 are read"):
        import_suite(path, tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())


def test_sources_that_are_no_download(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK no archive")
    for name, reason in (("a.zip", "neither a folder nor a zip"), ("none.zip", "neither a folder"), (".", "no folder")):
        with pytest.raises(CorpusError, match=reason):
            import_suite(tmp_path / name, tmp_path / "to")


def test_import_of_senteval(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    lines = "tr\tPAST\tIt went .\nte\tPRES\tIt goes .\nxx\tPRES\tIt goes .\nva\tPAST\nva\tPAST\tIt ran .\n"
    (tmp_path / "from" / "past_present.txt").write_text(lines, "utf-8")
    done = import_senteval(tmp_path / "from", tmp_path / "to")
    assert done.sets == ["senteval-past_present"]
    assert [note.where.rpartition(", ")[2] for note in done.notes] == ["line 3", "line 4", "senteval-past_present"]
    sets = ProbingSets(tmp_path / "to")
    data = sets.read(sets.get("senteval-past_present"))
    assert data.instances["split"].to_pylist() == ["train", "test", "dev"]
    assert data.instances["label"].to_pylist() == ["PAST", "PRES", "PAST"]
    assert data.passages["text"].to_pylist() == ["It went .", "It goes .", "It ran ."]
    assert sets.get("senteval-past_present").type == "semantics"
    with pytest.raises(CorpusError, match="no task of SentEval"):
        import_senteval(tmp_path, tmp_path / "to")


def lines_of(rows: Sequence[dict[str, Any]]) -> str:
    """As `json.dumps` writes rows of a data frame: NaN stays NaN."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_missing_labels_are_no_class(tmp_path: Path) -> None:
    """In every way that exporters write them; each row is named with its line."""
    labels = ["ask", "tell", math.nan, None, "", "nan", "<NA>", "ask"]
    rows = [{"text": f"Text {n}.", "label": label} for n, label in enumerate(labels)]
    data = read(tmp_path, lines_of(rows), file="m.jsonl")
    assert data.instances["label"].to_pylist() == ["ask", "tell", "ask"]
    assert [str(note) for note in data.notes] == [
        f"{tmp_path}/m.jsonl, line {number}: the label is empty" for number in (3, 4, 5, 6, 7)
    ]


def test_what_is_no_text_is_no_passage(tmp_path: Path) -> None:
    odd = [None, math.nan, "", "nan", 42, ["a", "b"], True]
    rows = [{"text": text, "label": "ask"} for text in odd]
    data = read(tmp_path, lines_of([*rows, {"text": "Why?", "label": "ask"}, {"label": "ask"}]), file="m.jsonl")
    assert data.passages["text"].to_pylist() == ["Why?"]
    assert [str(note).partition(", ")[2].partition(":")[0] for note in data.notes] == [
        f"line {number}" for number in (*range(1, 8), 9)
    ]
    pair = {"text": "A b.", "text_2": math.nan, "label": 1}
    with pytest.raises(CorpusError, match="'text_2' is empty or missing"):
        read(tmp_path, lines_of([pair]), file="m.jsonl", input="text_pair")


def test_rows_without_group_are_no_group(tmp_path: Path) -> None:
    groups = ["g", math.nan, None, "nan", "", 1.0, 1]
    rows = [{"text": f"Text {n}.", "label": "ask", "group": group} for n, group in enumerate(groups)]
    data = read(tmp_path, lines_of(rows), file="m.jsonl")
    assert data.instances["group"].to_pylist() == ["mine/g", "mine/1", "mine/2", "mine/3", "mine/4", "mine/1", "mine/1"]
    assert [str(note) for note in data.notes] == [
        "mine: 4 instances have no group, and others have: each is a group of its own"
    ]


def test_a_missing_split_is_refused_and_a_missing_span_is_the_whole_text(tmp_path: Path) -> None:
    rows = [{"text": "A b.", "label": "x", "split": "train"}, {"text": "C d.", "label": "y", "split": math.nan}]
    with pytest.raises(CorpusError, match=r"m\.jsonl, line 2 has no split, and others have one"):
        read(tmp_path, lines_of(rows), file="m.jsonl")
    rows = [{"text": "A b.", "label": "x", "span": "2:3"}, {"text": "C d.", "label": "y", "span": math.nan}]
    data = read(tmp_path, lines_of(rows), file="m.jsonl", input="span")
    assert passages(data) == [[("A b.", "b")], [("C d.", "C d.")]]
    assert [note.reason for note in data.notes] == ["no span: the whole text is read"]


def test_classes_that_may_mean_missing_are_said(tmp_path: Path) -> None:
    data = read(tmp_path, "text,label\nOne.,none\nTwo.,N/A\nThree.,a\n")
    assert data.instances["label"].to_pylist() == ["none", "N/A", "a"]
    assert [note.reason for note in data.notes] == [
        "'N/A' is a class of 1 instances; leave the label empty if missing",
        "'none' is a class of 1 instances; leave the label empty if missing",
    ]


def test_lists_of_the_suite_may_be_lists(tmp_path: Path) -> None:
    rows = [{"inputs": ["Yes."], "label": 1}, {"inputs": math.nan, "label": 0}]
    data = read(tmp_path, lines_of(rows), file="m.jsonl")
    assert data.passages["text"].to_pylist() == ["Yes."] and len(data.notes) == 1
