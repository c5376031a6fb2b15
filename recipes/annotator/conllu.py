"""CoNLL-U: sentences of words with their surface text.

Only `# newdoc id`, `# text` and token lines are read: GUM's other comments hold summaries written by
people and language models, which are not part of the treebank.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

NEW_DOCUMENT = "# newdoc id = "
TEXT = "# text = "


@dataclass(frozen=True)
class Word:
    """One syntactic word; `head` is an index in the sentence, the root's own for the root."""

    form: str
    lemma: str
    upos: str
    head: int
    dep: str
    space_after: bool
    misc: str


@dataclass
class Sentence:
    """A sentence of one document; `entities` are `(start, end, label)` word spans, if known."""

    doc_id: str
    words: list[Word]
    entities: list[tuple[int, int, str]] = field(default_factory=list)


def read_conllu(text: str, *, source: str) -> Iterator[Sentence]:
    """Yield sentences with `doc_id` = `<source>/<document>`; empty nodes are left out."""
    document = ""
    surface, rows = "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith(NEW_DOCUMENT):
            document = line[len(NEW_DOCUMENT) :].strip()
        elif line.startswith(TEXT):
            surface = line[len(TEXT) :]
        elif line and not line.startswith("#"):
            rows.append(line.split("\t"))
        elif not line and rows:
            words = _words(rows, surface)
            if words:
                yield Sentence(f"{source}/{document}", words)
            surface, rows = "", []


def _words(rows: list[list[str]], surface: str) -> list[Word]:
    """Place words in the sentence's surface text; return none if a form cannot be found there.

    Forms of a multiword token (`do` + `n't`) are consecutive pieces of its surface form, so looking each
    form up from the end of the last one gives the right spaces without a rule for multiword tokens.
    """
    syntactic = [row for row in rows if row[0].isdigit()]
    position, words = 0, []
    for index, row in enumerate(syntactic):
        start = surface.find(row[1], position)
        if start < 0 or surface[position:start].strip():
            return []
        position = start + len(row[1])
        space = index + 1 < len(syntactic) and surface[position : position + 1].isspace()
        head = int(row[6]) - 1 if row[6] != "0" else index
        words.append(Word(row[1], row[2], row[3], head, row[7], space, row[9]))
    return words
