"""Named-entity sets: CoNLL-style files, UNER's iob2 and the entity column of GUM, all as PER, ORG, LOC.

The sets disagree about everything else (products, works, nationalities, user names), so those spans are
marked `UNKNOWN`: the recogniser learns neither that they are entities nor that they are not.
"""

import itertools
import re
from collections.abc import Iterator

from recipes.annotator.conllu import Sentence, Word

UNKNOWN = "?"
TYPES = {
    "PER": "PER",
    "person": "PER",
    "ORG": "ORG",
    "corporation": "ORG",
    "organization": "ORG",
    "LOC": "LOC",
    "location": "LOC",
    "place": "LOC",
}
SENTENCES_PER_BLOCK = 20
CONNECTORS = {"of", "the", "for", "de", "da", "van", "von", "del", "-", "&", "."}
NO_SPACE_BEFORE = re.compile(r"^(?:[.,;:!?%)\]}]+|n't|'(?:s|re|ve|ll|d|m)|''|\.\.\.)$", re.IGNORECASE)
NO_SPACE_AFTER = re.compile(r"^(?:[(\[{$#@£€]|``)$")


def read_conll(text: str, *, source: str) -> Iterator[Sentence]:
    """Yield sentences of a file with one token per line, label last, blank line between sentences.

    The sets have no common document boundaries, so a block of consecutive sentences stands for a
    document: `<source>/block-0007`.
    """
    number, rows = 0, []
    for line in [*text.splitlines(), ""]:
        parts = line.split()
        if len(parts) >= 2 and parts[0] != "-DOCSTART-":
            rows.append((parts[0], parts[-1]))
        elif not parts and rows:
            yield _sentence(rows, f"{source}/block-{number // SENTENCES_PER_BLOCK:04d}")
            number, rows = number + 1, []


def _sentence(rows: list[tuple[str, str]], doc_id: str) -> Sentence:
    forms = [form for form, _ in rows]
    words = [Word(form, "", "", 0, "", space, "") for form, space in zip(forms, spaces(forms), strict=True)]
    return Sentence(doc_id, words, list(spans([label for _, label in rows])))


def spaces(forms: list[str]) -> list[bool]:
    """Return whether a space follows each token of a text that was stored without its spaces."""
    followers = [*forms[1:], ""]
    return [
        bool(after) and not NO_SPACE_BEFORE.match(after) and not NO_SPACE_AFTER.match(form)
        for form, after in zip(forms, followers, strict=True)
    ]


def spans(labels: list[str]) -> Iterator[tuple[int, int, str]]:
    """Yield `(start, end, type)` of IOB1 or IOB2 labels (`I-` after another type opens a span too)."""
    start, kind = 0, ""
    for index, label in enumerate([*labels, "O"]):
        prefix, _, name = label.partition("-")
        if kind and (prefix != "I" or name != kind):
            yield start, index, TYPES.get(kind, UNKNOWN)
            kind = ""
        if prefix in ("B", "I") and name and not kind:
            start, kind = index, name


def drop_roles(sentence: Sentence) -> Sentence:
    """Mark one-word persons and organisations as unknown: SEC holds `Lender`, `Borrower`, `Bank`."""
    entities = [
        (start, end, UNKNOWN if kind != "LOC" and end - start == 1 else kind) for start, end, kind in sentence.entities
    ]
    return Sentence(sentence.doc_id, sentence.words, entities)


def drop_user_names(sentence: Sentence) -> Sentence:
    """Mark spans with `@` or `#` as unknown: the Twitter sets disagree on user names and hashtags."""
    forms = [word.form for word in sentence.words]
    marked = {i for i, form in enumerate(forms) if form.startswith(("@", "#"))}
    marked |= {i + 1 for i in marked if forms[i] in ("@", "#") and i + 1 < len(forms)}
    names = [span for span in sentence.entities if not marked & set(range(span[0], span[1]))]
    return Sentence(sentence.doc_id, sentence.words, names + [(i, i + 1, UNKNOWN) for i in sorted(marked)])


def read_iob2(text: str, documents: dict[str, list[Sentence]]) -> Iterator[Sentence]:
    """Yield the treebank's sentences with the entities of a UNER file, if both have the same words."""
    document, rows = "", []
    for line in [*text.splitlines(), ""]:
        if line.startswith("# newdoc id = "):
            document = line.removeprefix("# newdoc id = ").strip()
        elif line and not line.startswith("#"):
            rows.append(line.split("\t"))
        elif not line and rows:
            forms = [row[1] for row in rows]
            for sentence in documents.get(document, []):
                if [word.form for word in sentence.words] == forms:
                    yield Sentence(f"uner/{document}", sentence.words, list(spans([row[2] for row in rows])))
                    break
            rows = []


OPEN_OR_CLOSE = re.compile(r"\((\d+)-([a-z]+)[^()]*?(?=[()]|$)|(\d+)\)|\)")


def gum_entities(sentence: Sentence) -> Sentence:
    """Return the names among GUM's mentions of persons, organizations and places.

    GUM annotates every mention, nested, pronouns and common nouns included. A mention that is made of proper
    nouns and connectors only (`University of Durham`) is a name. In the rest, a run of proper nouns
    takes the type of the innermost mention around it, and is unknown outside of those three types.
    """
    words = sentence.words
    proper = [word.upos == "PROPN" for word in words]
    taken = [False] * len(words)
    entities = []
    mentions = sorted(_mentions(words), key=lambda mention: mention[0] - mention[1])
    for outer, end, kind in mentions:
        start = outer + (words[outer].upos == "DET")
        name = all(proper[i] or words[i].form in CONNECTORS for i in range(start, end))
        bounded = end > start and proper[start] and proper[end - 1]
        if kind in TYPES and name and bounded and not any(taken[start:end]):
            entities.append((start, end, TYPES[kind]))
            taken[start:end] = [True] * (end - start)
    inner = [""] * len(words)
    for start, end, kind in mentions:
        inner[start:end] = [kind] * (end - start)
    open_kinds = [kind if p and not t else None for kind, p, t in zip(inner, proper, taken, strict=True)]
    return Sentence(sentence.doc_id, words, sorted(entities + list(_runs(open_kinds))))


def _runs(kinds: list[str | None]) -> Iterator[tuple[int, int, str]]:
    """Yield maximal runs of one mention type; `None` belongs to no run."""
    position = 0
    for kind, group in itertools.groupby(kinds):
        length = len(list(group))
        if kind is not None:
            yield position, position + length, TYPES.get(kind, UNKNOWN)
        position += length


def _mentions(words: list[Word]) -> Iterator[tuple[int, int, str]]:
    """Yield `(start, end, type)` of GUM's bracketed mentions."""
    pending: list[tuple[str, int, str]] = []
    for index, word in enumerate(words):
        cell = next((p[7:] for p in word.misc.split("|") if p.startswith("Entity=")), "")
        for match in OPEN_OR_CLOSE.finditer(cell):
            if match.group(1):
                pending.append((match.group(1), index, match.group(2)))
                continue
            opened = next((p for p in reversed(pending) if match.group(3) in (None, p[0])), None)
            if opened:
                pending.remove(opened)
                yield opened[1], index + 1, opened[2]
