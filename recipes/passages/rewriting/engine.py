"""Apply the rules of a rewriter sentence by sentence, and decline what they cannot rewrite well."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recipes.passages.windows import sentences

Rewrite = Callable[[str], str | None]
"""From a passage to its rewrite, or None where the rewriter declines."""


class DeclinedError(Exception):
    """A sentence that the rules cannot rewrite without damage."""


Step = Callable[[str], str]
"""From a sentence to a sentence; raises DeclinedError."""

GAP = "\x00"
"""Marks where something was deleted, until the gap is closed; no text of the archives holds it."""

_DOUBLED = re.compile(r"(?i)\b(\w+) \1\b|[,;:]\s*[,;:.!?](?!\.)|\s[,;](?=\s)|  ")
_FIRST_LETTER = re.compile(r"^\W*([^\W\d_])")
_A = re.compile(r"\b([Aa])n? \x00 ?(\w+)")
_VOWEL = re.compile(r"(?i)(?!uni|use|usu|one\b|eu)[aeiou]|hono|hour|heir")


def decline(_: re.Match[str]) -> str:
    """Decline the sentence: the replacement of a pattern that no rule rewrites well."""
    raise DeclinedError


def close_gaps(text: str) -> str:
    """Repair articles, spaces, marks and capitals where something was deleted, and nowhere else.

    Other repairs would make the class of a passage readable from unrelated places.
    """
    text = re.sub(rf"(?: *{GAP})+", f" {GAP}", text)
    text = _A.sub(lambda found: f"{found[1]}{'n' if _VOWEL.match(found[2]) else ''} {GAP}{found[2]}", text)
    text = re.sub(rf"^((?:\W|{GAP})*?) ?{GAP}[ ,;]*", r"\1", text)
    text = re.sub(rf"([(\[\"“‘\n]) ?{GAP}[ ,]*(\w)", lambda found: found[1] + found[2], text)
    text = re.sub(rf" {GAP} *(?=[.,;:!?)\]\n”’]|$)", "", text)
    return re.sub(rf" ?{GAP} *", " ", text)


def substitution(pattern: str, replacement: str | Callable[[re.Match[str]], str]) -> Step:
    """Return a step that replaces a pattern in either case; the replacement takes the case of what it replaces.

    Args:
        replacement: A template with groups, an empty string for a deletion, or a function of the match.
    """
    compiled = re.compile(pattern, re.IGNORECASE)

    def replace(match: re.Match[str]) -> str:
        new = replacement(match) if callable(replacement) else match.expand(replacement)
        if not new:
            return GAP
        old = match[0].strip()
        if old.isupper() and len(old) > 2:
            return new.upper()
        return new[:1].upper() + new[1:] if old[:1].isupper() and old[:2] != "I " else new

    return lambda sentence: compiled.sub(replace, sentence)


@dataclass(frozen=True)
class Rewriter:
    """The rules of one concept; calling it rewrites a passage."""

    markers: re.Pattern[str]  # what no rewrite may contain
    steps: Sequence[Step]  # applied in order to each sentence with a marker

    def __call__(self, text: str) -> str | None:
        """Return the text without markers, or None if a sentence cannot be rewritten well."""
        parts, position = [], 0
        for start, end in sentences(text):
            sentence = self.sentence(text[start:end])
            if sentence is None:
                return None
            parts += [text[position:start], sentence]
            position = end
        return "".join(parts) + text[position:]

    def sentence(self, old: str) -> str | None:
        """Return one sentence without markers, or None if it cannot be rewritten well."""
        if not self.markers.search(old):
            return old
        new = old
        try:
            for step in self.steps:
                new = step(new)
        except DeclinedError:
            return None
        new = _with_capital(old, close_gaps(new).strip())
        return None if self.markers.search(new) or not _sound(old, new) else new


def _with_capital(old: str, new: str) -> str:
    """Return the new sentence with a capital at its start, where the old one has one."""
    before, after = _FIRST_LETTER.match(old), _FIRST_LETTER.match(new)
    if before and after and before[1].isupper():
        place = after.start(1)
        return new[:place] + new[place].upper() + new[place + 1 :]
    return new


def _sound(old: str, new: str) -> bool:
    """Return whether a rewrite keeps the end of its sentence, is not a fragment, and doubles no word or mark."""
    if re.search(r"\w", old[-1:]) is None and old[-1:] != new[-1:]:
        return False
    doubled = [len(_DOUBLED.findall(text)) for text in (old, new)]
    return doubled[1] <= doubled[0] and len(re.findall(r"\w+", new)) >= 2
