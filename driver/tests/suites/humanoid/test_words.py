"""Lists of words: what a file may hold, and what is left out or refused with its line."""

from pathlib import Path

import pytest

from poolbench.errors import ConfigError
from poolbench_driver.suites.humanoid.words import read_words

SOUND = """\
name: tools
licence: CC0
domain: [hammer, saw, hammer]
positive:
  - good
  - nice
  - both
negative:
  - bad
  - both
  - [nested]
neutral: [street, saw, day, night]
templates: ["I have a {w}.", "no place", "The {w} is here."]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "words.yaml"
    path.write_text(SOUND)
    return path


def test_entries_that_cannot_be_used_are_left_out_with_file_and_line(file: Path) -> None:
    words = read_words(str(file))
    assert (words.name, words.licence) == ("tools", "CC0")
    assert (words.domain, words.positive, words.negative) == (("hammer", "saw"), ("good", "nice"), ("bad",))
    assert (words.neutral, len(words.templates)) == (("street", "day", "night"), 2)
    assert {note.removeprefix(f"{file}:") for note in words.notes} == {
        "3: domain: 'hammer' is there twice: left out",
        "11: negative: an entry is not a word: left out",
        "13: templates: 'no place' must have {w} once: left out",
        "7: positive: 'both' is also in negative: left out",
        "10: negative: 'both' is also in positive: left out",
        "12: neutral: 'saw' is also in domain: left out",
    }


def test_missing_entries_are_no_words_and_a_mark_of_order_is_no_letter(tmp_path: Path) -> None:
    text = "domain: [hammer, null, saw, nan, ~]\npositive: [good]\nnegative: [bad]\n"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        (tmp_path / "own.yaml").write_text(text, encoding)
        words = read_words(str(tmp_path / "own.yaml"))
        assert words.domain == ("hammer", "saw")
        reasons = [note.partition("own.yaml:")[2] for note in words.notes]
        assert reasons == ["1: domain: an entry is not a word: left out"] * 3


def test_every_word_stands_alone_and_in_each_template_with_its_span(file: Path) -> None:
    rows = read_words(str(file)).table().to_pylist()
    assert all(row["text"][row["span"]["start"] : row["span"]["end"]] == row["word"] for row in rows)
    of = [(row["template"], row["text"]) for row in rows if row["word"] == "saw"]
    assert of == [(-1, "saw"), (0, "I have a saw."), (1, "The saw is here.")]
    neutral = [(row["word"], row["template"]) for row in rows if row["group"] == "neutral"]
    assert neutral == [("street", 0), ("day", 1), ("night", 0)]
    assert len({row["passage_id"] for row in rows}) == len(rows) == 5 * 3 + 3


def test_neutral_words_and_templates_are_the_shipped_ones_where_a_file_has_none(tmp_path: Path) -> None:
    own, shipped = tmp_path / "own.yaml", read_words(None)
    own.write_text("domain: [hammer, saw]\npositive: [good]\nnegative: [bad]\n")
    words = read_words(str(own))
    assert (words.name, words.templates, words.notes) == ("own", shipped.templates, ())
    assert words.licence == ""
    assert set(words.neutral) <= set(shipped.neutral) and len(words.neutral) >= 290
    assert len(shipped.domain) == 40 and len(shipped.neutral) == 300 and not shipped.notes
    assert words.revision != shipped.revision


def test_the_lists_of_the_reference_are_its_own() -> None:
    """18, 5 and 5 words; alone they are read without special tokens, and in the shipped templates with them."""
    words = read_words("reference")
    assert (words.name, words.licence, words.notes) == ("humanoid-reference", "MIT", ())
    assert (len(words.domain), len(words.positive), len(words.negative)) == (18, 5, 5)
    assert words.domain[0] == "chair" and "console table" in words.domain and words.domain[-1] == "mirror"
    assert words.positive == ("love", "adore", "like", "prefer", "favorite")
    assert words.negative == ("hate", "anger", "sadness", "fear", "disgust")
    rows = words.table().to_pylist()
    assert {row["text"] for row in rows if row["bare"]} == {*words.domain, *words.positive, *words.negative}
    assert all(row["bare"] == (row["template"] == -1) for row in rows)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("domain: [a]\npositive: []\nnegative: [b]\n", r"words.yaml:2: the list positive is empty"),
        ("positive: [c]\ndomain: [a]\nnegative: [b]\n", r"words.yaml:2: domain has one word"),
        ("domain: [a]\npositive: [c]\n", r"words.yaml:1: the list negative is missing"),
        ("domain: [a]\n\npositve: [c]\n", r"words.yaml:3: unknown list 'positve'.*positive"),
        ("domain: a\n", r"words.yaml:1: domain must be a list"),
        ("domain: [a]\ndomain: [b]\n", r"words.yaml:2: domain is there twice"),
        ("name: [a]\n", r"words.yaml:1: name must be a text"),
        ("domain: [a\npositive: [b]\n", r"words.yaml:\d: not YAML"),
        ("- a\n", r"words.yaml:1: lists of words by name are needed"),
        ("domain: [a]\npositive: [x]\nnegative: [x]\n", r"words.yaml:2: the list positive is empty"),
    ],
)
def test_a_file_that_cannot_be_measured_is_refused_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "words.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_words(str(file))
