"""Lists of words: those whose preference is measured, liked and disliked ones, neutral ones, and templates."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from poolbench.config import asset_path
from poolbench.contracts.keys import digest
from poolbench.errors import ConfigError, shown, unknown_name_message
from poolbench.grouping import grouped
from poolbench.steps.local import PASSAGES, TABLE, PassagesParams
from poolbench_corpora.reading import is_missing, read_document
from poolbench_driver.corpora.sources import LocalStep

#: Stands for the word in a template.
WORD = "{w}"
#: Lists that may not be empty; the others are taken from the shipped file where a file leaves them out.
_NEEDED = ("domain", "positive", "negative")
_TEXTS = ("name", "licence")
_NULL = "tag:yaml.org,2002:null"
#: The template of a bare word.
BARE = -1
#: Name of the word lists of the Humanoid benchmark, and their file.
REFERENCE, _REFERENCE_FILE = "reference", Path(__file__).with_name("reference.yaml")
_SPAN = pa.struct([("start", pa.int32()), ("end", pa.int32())])
_COLUMNS = pa.schema(
    [
        ("passage_id", pa.string()),
        ("text", pa.string()),
        ("span", _SPAN),
        ("word", pa.string()),
        ("group", pa.string()),
        ("template", pa.int32()),
        ("bare", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class WordLists:
    """Words and templates."""

    name: str
    licence: str  # licence of the words; empty where the file has none
    domain: tuple[str, ...]  # words whose preference is measured
    positive: tuple[str, ...]  # words that are liked
    negative: tuple[str, ...]  # words that are disliked
    neutral: tuple[str, ...]  # words whose mean vector is subtracted, so that what all words share does not count
    templates: tuple[str, ...]  # sentences with `{w}` in the place of a word
    notes: tuple[str, ...] = ()  # entries that were left out, each with file, line and reason

    @property
    def revision(self) -> str:
        """Return a hash of everything that is read."""
        return digest(self.table().to_pylist(), 16)

    def table(self) -> pa.Table:
        """Return the texts: each word alone and in every template. Each neutral word is in one template, in turn.

        Columns: passage_id, text, span (the word's characters), word, group, template (-1: the word alone), bare
        (whether it is read without special tokens: a word alone is, as the reference reads it).
        """
        rows = [
            _text(group, word, number, template)
            for group in _NEEDED
            for word in getattr(self, group)
            for number, template in [(BARE, WORD), *enumerate(self.templates)]
        ]
        for index, word in enumerate(self.neutral):
            number = index % len(self.templates)
            rows.append(_text("neutral", word, number, self.templates[number]))
        return pa.Table.from_pylist(rows, _COLUMNS)

    def step(self) -> LocalStep:
        """Return the step that stores the texts."""
        key = PASSAGES.key(TABLE(), PassagesParams(concept="words", split="words", rows=self.revision), {})
        return LocalStep(key, f"words {self.name}", self.table, lambda: self.table().num_rows)


def read_words(file: str | None) -> WordLists:
    """Read the words of a YAML file. None stands for the shipped words, `reference` for the Humanoid benchmark.

    An entry that is given twice, is in two lists, or is not a text is left out with a note.

    Raises:
        ConfigError: With file and line: the file is not YAML, has an unknown list, or an empty one.
    """
    shipped = asset_path("demo_personas") / "words.yaml"
    path = _REFERENCE_FILE if file == REFERENCE else Path(file) if file else shipped
    file_lists, notes = _read(path)
    lists = {name: value for name, value in _read(shipped)[0].items() if name in ("neutral", "templates")} | file_lists
    notes += [note for name, note in _drop_shared(path, lists) if name in file_lists]
    for name in (*_NEEDED, "neutral", "templates"):
        entries, line = lists.get(name, ([], 1))
        if not entries:
            raise ConfigError(
                f"{path}:{line}: the list {name} is {'empty' if name in lists else 'missing'}; give it words"
            )
    if len(lists["domain"][0]) < 2:
        raise ConfigError(f"{path}:{lists['domain'][1]}: domain has one word; a variance needs two or more")
    name, licence = (lists[key][0][0][0] if key in lists else "" for key in _TEXTS)
    domain, positive, negative, neutral, templates = (
        tuple(word for word, _ in lists[key][0]) for key in (*_NEEDED, "neutral", "templates")
    )
    return WordLists(name or path.stem, licence, domain, positive, negative, neutral, templates, tuple(notes))


#: Entries with their lines, and the line of the list.
_Lists = dict[str, tuple[list[tuple[str, int]], int]]


def _read(path: Path) -> tuple[_Lists, list[str]]:
    """Return the lists of a file, and notes on entries that are left out."""
    try:
        root: Any = yaml.compose(read_document(path), yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(
            f"{path}:{mark.line + 1 if mark else 1}: not YAML: {getattr(error, 'problem', error)}"
        ) from None
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}:1: lists of words by name are needed: {', '.join(_NEEDED)}")
    list_names = [field.name for field in fields(WordLists) if field.name != "notes"] + ["version"]
    lists, notes = _Lists(), list[str]()
    for key, value in root.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in lists:
            raise ConfigError(f"{path}:{line}: {name} is there twice; write one {name}")
        if name not in list_names:
            raise ConfigError(f"{path}:{line}: {unknown_name_message('list', name, list_names)}")
        if name in _TEXTS or name == "version":
            if not isinstance(value, yaml.ScalarNode):
                raise ConfigError(f"{path}:{line}: {name} must be a text, got a list; write one text")
            lists[name] = ([(value.value, line)], line)
            continue
        if not isinstance(value, yaml.SequenceNode):
            raise ConfigError(f"{path}:{line}: {name} must be a list, got {shown(value.value)}")
        lists[name] = ([], line)
        for node in value.value:
            reason = _unusable(name, node, [word for word, _ in lists[name][0]])
            if reason:
                notes.append(f"{path}:{node.start_mark.line + 1}: {name}: {reason}: left out")
            else:
                lists[name][0].append((node.value.strip(), node.start_mark.line + 1))
    return lists, notes


def _unusable(name: str, node: Any, before: list[str]) -> str:
    """Return why an entry of a list cannot be used; empty if it can."""
    if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL or is_missing(node.value):
        return "an entry is not a word"
    text = node.value.strip()
    if name == "templates" and text.count(WORD) != 1:
        return f"{text!r} must have {WORD} once"
    return f"{text!r} is there twice" if text in before else ""


def _drop_shared(path: Path, lists: _Lists) -> list[tuple[str, str]]:
    """Leave out words that two lists have: of both, or of the neutral words alone. Return notes with their lists."""
    notes = list[tuple[str, str]]()
    owners = grouped((word, name) for name in _NEEDED for word, _ in lists.get(name, ([], 0))[0])
    for name, (entries, line) in lists.items():
        if name not in (*_NEEDED, "neutral"):
            continue
        others = {word: [other for other in owners.get(word, []) if other != name] for word, _ in entries}
        lists[name] = ([(word, at) for word, at in entries if not others[word]], line)
        notes += [
            (name, f"{path}:{at}: {name}: {word!r} is also in {' and '.join(others[word])}: left out")
            for word, at in entries
            if others[word]
        ]
    return notes


def _text(group: str, word: str, number: int, template: str) -> dict[str, Any]:
    start = template.index(WORD)
    return {
        "passage_id": f"{group}/{word}/{number}",
        "text": template.replace(WORD, word),
        "span": {"start": start, "end": start + len(word)},
        "word": word,
        "group": group,
        "template": number,
        "bare": number == BARE,
    }
