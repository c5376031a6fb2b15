"""Sentences of treebanks with a property of their tree, or with another order of their words."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

from recipes.probing_sets.readers.treebank import Sentence, Treebank, read_treebank

from poolbench.errors import UnknownNameError
from poolbench_corpora.probing.samples import Note, ProbingSet, Sample, whole

_WORDS = range(5, 41)  # numbers of words of the sentences that are read
Property = Callable[[Sentence], str | int | None]  # a label, a number, or None for a sentence without the property
Rewrite = Callable[[Sentence], str | None]  # the text in another order, or None if it cannot be changed


def read_sentences(
    definition: ProbingSet, archives: Path | None, *, treebank: str, label: str
) -> Iterator[Sample | Note]:
    """Yield sentences labelled with one of `PROPERTIES`, or each as it is and as one of `REWRITES` has it.

    Raise UnknownNameError for another label.
    """
    labels = [*PROPERTIES, *REWRITES, "word_content"]
    if label not in labels:
        raise UnknownNameError("label of sentences", label, labels)
    bank = read_treebank(archives, treebank)
    yield from bank.notes()
    make = word_content(bank) if label == "word_content" else PROPERTIES.get(label)
    for sentence in sentences_of_length(bank):
        if make is None:
            yield from _rewritten(sentence, REWRITES[label], label)
        elif (answer := make(sentence)) is not None:
            value = float(answer) if isinstance(answer, int) else None
            yield _sample(sentence, sentence.text, str(answer), value=value)


def read_next_sentences(definition: ProbingSet, archives: Path | None, *, treebank: str) -> Iterator[Sample | Note]:
    """Yield each sentence with the one that follows it, and with another one of the same split."""
    bank = read_treebank(archives, treebank)
    yield from bank.notes()
    others: dict[str | None, list[Sentence]] = {}
    for sentence in sentences_of_length(bank):
        others.setdefault(sentence.split, []).append(sentence)
    for document in bank.documents():
        for before, after in pairwise(document):
            if len(before.words) not in _WORDS or len(after.words) not in _WORDS:
                continue
            drawn = Random(before.id).choice(others[before.split])
            for label, second in (("next", after), ("other", drawn)):
                if label == "next" or drawn.document != before.document:
                    yield _sample(before, before.text, label, suffix=label, second=second.text, group=before.document)


def sentences_of_length(bank: Treebank) -> list[Sentence]:
    """Return the sentences that are neither very short nor very long."""
    return [sentence for sentence in bank.sentences if len(sentence.words) in _WORDS]


def _sample(
    sentence: Sentence,
    text: str,
    label: str,
    *,
    value: float | None = None,
    suffix: str = "",
    second: str = "",
    group: str = "",
) -> Sample:
    return Sample(
        f"{sentence.id}/{suffix}" if suffix else sentence.id,
        whole(text),
        whole(second) if second else (),
        label=label,
        value=value,
        split=sentence.split,
        group=group or sentence.id,
        where=sentence.id,
    )


def _rewritten(sentence: Sentence, rewrite: Rewrite, label: str) -> Iterator[Sample]:
    changed = rewrite(sentence)
    if changed is not None and changed != sentence.text:
        yield _sample(sentence, sentence.text, "original", suffix="original")
        yield _sample(sentence, changed, label, suffix=label)


def _number_of(*relations: str) -> Property:
    """Return the number, `Sing` or `Plur`, of the only noun that stands in one of the relations to the root."""

    def number(sentence: Sentence) -> str | None:
        children = sentence.children(sentence.root(), *relations)
        noun = sentence.words[children[0]] if len(children) == 1 else None
        marked = noun.features.get("Number") if noun and noun.upos == "NOUN" else None
        return marked if marked in ("Sing", "Plur") else None

    return number


def tense(sentence: Sentence) -> str | None:
    """Return the tense of the root or of its auxiliary, whichever is finite; None without exactly one."""
    root = sentence.root()
    verbs = [sentence.words[index] for index in (root, *sentence.children(root, "aux", "aux:pass", "cop"))]
    finite = [word for word in verbs if word.features.get("VerbForm") == "Fin" and "Tense" in word.features]
    return finite[0].features["Tense"] if len(finite) == 1 else None


def voice(sentence: Sentence) -> str | None:
    """Return `passive` for a root with a passive subject, `active` for one with subject and object."""
    root = sentence.root()
    if sentence.children(root, "nsubj:pass"):
        return "passive"
    return "active" if sentence.children(root, "nsubj") and sentence.children(root, "obj") else None


def depth(sentence: Sentence) -> int:
    """Return the number of words on the longest path from the root."""

    def above(index: int) -> int:
        head = sentence.words[index].head
        return 1 if head < 0 else 1 + above(head)

    return max(map(above, range(len(sentence.words))))


def word_content(bank: Treebank, num_words: int = 30) -> Property:
    """Return the function that gives the only one of the most frequent content words which a sentence has."""
    content = ("NOUN", "VERB", "ADJ", "ADV")
    sentences = sentences_of_length(bank)
    count = Counter(
        name for sentence in sentences for name in {w.form.lower() for w in sentence.words if w.upos in content}
    )
    common = {word for word, _ in sorted(count.items(), key=lambda item: (-item[1], item[0]))[:num_words]}

    def only(sentence: Sentence) -> str | None:
        words = common.intersection(word.form.lower() for word in sentence.words)
        return next(iter(words)) if len(words) == 1 else None

    return only


def bigram_shift(sentence: Sentence) -> str | None:
    """Return the text with two neighbouring words exchanged, the first and the last word excluded."""
    words = sentence.text.split(" ")
    places = [
        place
        for place in range(1, len(words) - 2)
        if words[place] != words[place + 1] and words[place].isalpha() and words[place + 1].isalpha()
    ]
    if not places:
        return None
    place = Random(sentence.id).choice(places)
    words[place : place + 2] = words[place + 1], words[place]
    return " ".join(words)


def coordination_inversion(sentence: Sentence) -> str | None:
    """Return the text with its two coordinated clauses exchanged; None unless each has a subject of its own."""
    root, words = sentence.root(), sentence.words
    conjuncts = sentence.children(root, "conj")
    subjects = ("nsubj", "nsubj:pass", "expl")
    if len(conjuncts) != 1 or not sentence.children(root, *subjects) or not sentence.children(conjuncts[0], *subjects):
        return None
    second = sentence.subtree(conjuncts[0])
    joint = sentence.children(conjuncts[0], "cc")
    end = len(words) - (words[-1].upos == "PUNCT")
    if len(joint) != 1 or joint[0] not in second or second != list(range(second[0], second[-1] + 1)):
        return None
    cut = joint[0]
    if (
        second[-1] != end - 1
        or second[0] < cut - 1
        or any(words[index].upos != "PUNCT" for index in second if index < cut)
    ):
        return None
    before = max((index for index in range(cut) if words[index].upos != "PUNCT"), default=-1)
    if before < 2 or cut + 2 >= end:
        return None
    first_clause = sentence.text[words[0].start : words[before].end]
    middle = sentence.text[words[before].end : words[cut + 1].start]
    last_clause = sentence.text[words[cut + 1].start : words[end - 1].end]
    if words[0].upos != "PROPN" and words[0].form != "I":
        first_clause = first_clause[0].lower() + first_clause[1:]
    return f"{last_clause[0].upper()}{last_clause[1:]}{middle}{first_clause}{sentence.text[words[end - 1].end :]}"


PROPERTIES: dict[str, Property] = {
    "subject_number": _number_of("nsubj", "nsubj:pass"),
    "object_number": _number_of("obj"),
    "tense": tense,
    "voice": voice,
    "length": lambda sentence: len(sentence.words),
    "depth": depth,
}
REWRITES: dict[str, Rewrite] = {"shifted": bigram_shift, "inverted": coordination_inversion}
