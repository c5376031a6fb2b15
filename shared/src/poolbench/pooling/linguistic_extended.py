"""Extended linguistic strategies: words tied to the concept's triggers, first subwords, subject-verb-object."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from poolbench.contracts.bounds import Label
from poolbench.errors import CellError
from poolbench.pooling.context import TokenContext, Weights, first_tokens_of_words
from poolbench.pooling.registry import STRATEGIES
from poolbench.pooling.relations import to_universal
from poolbench.statuses import Status

#: A concept's trigger lemmas.
Triggers = Annotated[Sequence[Label], Field(max_length=1000)]
#: Arcs whose two ends L8 selects; passive subjects count as subjects.
SUBJECT_AND_OBJECT = frozenset({"nsubj", "obj"})


@STRATEGIES.register(
    "L2_dependency_trigger",
    version=1,
    family="linguistic",
    summary="mean over tokens of words that are, or whose head is, in a trigger phrase of the concept",
    needs=("annotation",),
    reference="the published code's L2 as it was meant, kept apart: positives alone hold triggers by construction",
    board="extended",
    uses_concept_lexicon=True,
)
def dependency_trigger(context: TokenContext, *, triggers: Triggers = ()) -> Weights:
    """Average the tokens of words whose incoming arc touches a trigger. Raise CellError without triggers.

    An arc (word, head) touches a trigger if either end lies in a run of words whose lower-case lemmas are the trigger's
    words. A root is its own head.
    """
    phrases = [phrase for phrase in (trigger.lower().split() for trigger in triggers) if phrase]
    if not phrases:
        raise CellError(Status.FAILED, "L2_dependency_trigger needs the concept's words in its parameter 'triggers'")
    words = context.annotation()
    lemmas = [lemma.lower() for lemma in words.lemma]
    touched = {  # words inside a run of lemmas that is one of the phrases
        word
        for phrase in phrases
        for start in range(len(lemmas) - len(phrase) + 1)
        if list(lemmas[start : start + len(phrase)]) == list(phrase)
        for word in range(start, start + len(phrase))
    }
    return context.mean_of(context.real_tokens_of([w in touched or h in touched for w, h in enumerate(words.head)]))


@STRATEGIES.register(
    "L7_subword_root",
    version=1,
    family="linguistic",
    summary="mean over the first token of each word that is not punctuation",
    needs=("annotation",),
    reference="Devlin et al. 2019, BERT, section 5.3: a word is represented by its first subword",
    board="extended",
)
def subword_root(context: TokenContext) -> Weights:
    """Average the first real token of every word whose tag is not PUNCT, so that long words count once."""
    words = context.annotation()
    word_indices = [index for index, tag in enumerate(words.upos) if tag != "PUNCT"]
    first = first_tokens_of_words(context.offsets[context.real], words.start[word_indices], words.end[word_indices])
    return context.mean_of(context.real[first])


@STRATEGIES.register(
    "L8_svo",
    version=1,
    family="linguistic",
    summary="mean over tokens of subjects (nsubj), direct objects (obj) and their heads",
    needs=("annotation",),
    reference="core arguments: de Marneffe et al. 2021, Universal Dependencies, Computational Linguistics 47(2)",
    board="extended",
)
def subject_verb_object(context: TokenContext) -> Weights:
    """Average the tokens of both ends of nsubj and obj arcs (the single words, not the phrases they head).

    Raise CellError for a label of no known scheme.
    """
    words = context.annotation()
    arguments = [w for w, label in enumerate(words.dep) if to_universal(label) in SUBJECT_AND_OBJECT]
    ends = {*arguments, *(words.head[word] for word in arguments)}
    return context.mean_of(context.real_tokens_of([word in ends for word in range(len(words.dep))]))
