"""Strategies over annotated words; none of them looks at the concept's own vocabulary."""

import numpy as np

from poolbench.errors import CellError
from poolbench.pooling.basic import CARD
from poolbench.pooling.context import TokenContext, Weights
from poolbench.pooling.registry import STRATEGIES
from poolbench.pooling.relations import CLAUSE_AND_MODIFIER, to_universal
from poolbench.statuses import Status

CONTENT_TAGS = frozenset({"NOUN", "VERB", "ADJ", "ADV"})


@STRATEGIES.register(
    "L1_pos_filtered",
    version=1,
    family="linguistic",
    summary="mean over tokens of words tagged NOUN, VERB, ADJ or ADV",
    needs=("annotation",),
    reference=CARD,
)
def pos_filtered(context: TokenContext) -> Weights:
    """Average the tokens of content words (UPOS NOUN, VERB, ADJ, ADV)."""
    return context.mean_of(context.real_tokens_of([tag in CONTENT_TAGS for tag in context.annotation().upos]))


@STRATEGIES.register(
    "L2_dependency_rel",
    version=1,
    family="linguistic",
    summary="mean over tokens of words on an arc advcl, mark, cc, conj, case or acl to their head",
    needs=("annotation",),
    reference=CARD + "; without the reference's concept lexicon, which by itself separates the classes",
)
def dependency_rel(context: TokenContext) -> Weights:
    """Average words on an arc advcl, mark, cc, conj, case or acl. Raise CellError for a label of no known scheme."""
    relations = [to_universal(label) for label in context.annotation().dep]
    return context.mean_of(context.real_tokens_of([name in CLAUSE_AND_MODIFIER for name in relations]))


@STRATEGIES.register(
    "L3_entity",
    version=1,
    family="linguistic",
    summary="mean over tokens of named entities",
    needs=("annotation",),
    reference=CARD,
)
def entity(context: TokenContext) -> Weights:
    """Average the tokens of words inside a named entity."""
    return context.mean_of(context.real_tokens_of([bool(kind) for kind in context.annotation().entity]))


@STRATEGIES.register(
    "L4_clause",
    version=1,
    family="linguistic",
    summary="mean within each clause, then over clauses",
    needs=("annotation",),
    reference=CARD,
)
def clause(context: TokenContext) -> Weights:
    """Average clause means."""
    return _mean_of_segments(context, context.annotation().clause)


@STRATEGIES.register(
    "L5_keyword",
    version=1,
    family="linguistic",
    summary="mean over tokens of the 10 words of highest TF-IDF, with document frequencies of train texts",
    needs=("annotation",),
    reference=CARD,
)
def keyword(context: TokenContext) -> Weights:
    """Average the tokens of keywords (document frequencies come from train texts only)."""
    keyword_mask = context.annotation().keyword
    if keyword_mask is None:
        raise CellError(Status.FAILED, "keywords need document frequencies: give idf_texts")
    return context.mean_of(context.real_tokens_of(keyword_mask))


@STRATEGIES.register(
    "L6_sentence",
    version=1,
    family="linguistic",
    summary="mean within each sentence, then over sentences",
    needs=("annotation",),
    reference=CARD,
)
def sentence(context: TokenContext) -> Weights:
    """Average sentence means."""
    return _mean_of_segments(context, context.annotation().sentence)


def _mean_of_segments(context: TokenContext, segment_W: np.ndarray) -> Weights:
    """Average the means of word segments. `segment_W` is the segment of each word, or negative without a segment."""
    if len(segment_W) != len(context.annotation().start):
        name = repr(context.passage_id)
        raise CellError(Status.FAILED, f"passage {name}: segments and words differ in number")
    numbers = np.unique(segment_W[segment_W >= 0])
    return context.mean_of_means([context.real_tokens_of(segment_W == number) for number in numbers])
