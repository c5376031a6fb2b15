"""Scopes of negators and of hedges, by a rule over dependency trees."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.probing_sets.readers.sentences import sentences_of_length
from recipes.probing_sets.readers.treebank import Sentence, read_treebank

from poolbench_corpora.probing.samples import Note, ProbingSet, Sample, word_type

_CONTENT = ("NOUN", "PROPN", "VERB", "ADJ", "ADV")
# Below the word that a cue modifies: what joins its clause to others, and clauses of their own.
_BESIDE = ("cc", "conj", "mark", "advcl", "parataxis", "vocative", "discourse", "list", "punct")
_COMPLEMENTS = ("xcomp", "ccomp", "csubj")


@dataclass(frozen=True)
class Cues:
    """The words that open a scope, by lemma, and those that may do so: sentences with one are not read."""

    of_head: Mapping[str, str]  # lemma to its relation: the scope is that of its head
    of_complement: Sequence[str] = ()  # the scope is that of its clausal complement
    doubtful: Sequence[str] = ()


@dataclass(frozen=True)
class Scope:
    """The only cue of a sentence, and the words inside and outside of its scope, in order; some are neither."""

    cue: int
    inside: tuple[int, ...]
    outside: tuple[int, ...]


def scope(sentence: Sentence, cues: Cues) -> Scope | None:
    """Return the scope of a sentence; None without exactly one cue.

    A cue such as `not` has the scope of the word that it modifies, one such as `seem` that of its clausal complement:
    this word and all below it, the subject included, as in ConanDoyle-neg (Morante & Daelemans 2012). Conjunctions and
    conjuncts of the word, adverbial clauses, and other clauses beside it may be inside or not, and are neither here.
    """
    all_cues = {*cues.of_head, *cues.of_complement, *cues.doubtful}
    lemmas = [word.lemma.lower() for word in sentence.words]
    places = [index for index, lemma in enumerate(lemmas) if lemma in all_cues]
    if len(places) != 1:
        return None
    cue = places[0]
    if lemmas[cue] in cues.of_complement:
        anchors = sentence.children(cue, *_COMPLEMENTS)
    else:
        is_modifier = sentence.words[cue].deprel == cues.of_head.get(lemmas[cue])
        anchors = [sentence.words[cue].head] if is_modifier else []
    if len(anchors) != 1:
        return None
    below = sentence.subtree(anchors[0])
    beside = {index for child in sentence.children(anchors[0], *_BESIDE) for index in sentence.subtree(child)}
    return Scope(
        cue,
        tuple(index for index in below if index not in beside | {cue}),
        tuple(index for index in range(len(sentence.words)) if index not in {*below, cue}),
    )


def read_scope(
    definition: ProbingSet,
    archives: Path | None,
    *,
    treebank: str,
    of_head: Mapping[str, str],
    of_complement: Sequence[str] = (),
    doubtful: Sequence[str] = (),
) -> Iterator[Sample | Note]:
    """Yield content words of sentences with one cue, as many inside of its scope as outside of it.

    Of each part of speech as many are taken on both sides, those that stand nearest to the cue: neither part of speech
    nor word alone tells the sides apart. The other arguments are those of `Cues`.
    """
    bank = read_treebank(archives, treebank)
    yield from bank.notes()
    cues = Cues(of_head, of_complement, doubtful)
    for sentence in sentences_of_length(bank):
        if sides := scope(sentence, cues):
            yield from _samples(sentence, sides)


def _samples(sentence: Sentence, sides: Scope) -> Iterator[Sample]:
    for tag in _CONTENT:
        inside, outside = (
            sorted(
                (index for index in side if sentence.words[index].upos == tag),
                key=lambda index: (abs(index - sides.cue), index),
            )
            for side in (sides.inside, sides.outside)
        )
        for pair in zip(inside, outside, strict=False):  # as many of both, the nearest first
            for label, index in zip(("inside", "outside"), pair, strict=True):
                span = sentence.span(index)
                yield Sample(
                    f"{sentence.id}/{index + 1}",
                    (span,),
                    label=label,
                    split=sentence.split,
                    group=sentence.id,
                    word=word_type(span),
                    where=sentence.id,
                )
