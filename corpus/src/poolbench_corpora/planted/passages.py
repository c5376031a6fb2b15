"""Compose sentences into passages within a token window, alone or as matched pairs."""

from dataclasses import dataclass
from random import Random

from poolbench.errors import CorpusError
from poolbench_corpora.planted.grammar import Sentence, Writer, join
from poolbench_corpora.planted.lexicon import Domain, Lexicon
from poolbench_corpora.planted.signals import PLACEMENTS, Signal, distractors, neutral
from poolbench_corpora.text import MAX_PAIR_DIFFERENCE, TokenCounter, token_difference

_PLAIN = "{clause}."
#: Of the sentences without the concept: those of other concepts, and of none in the same form.
_DISTRACTORS, _SCORER_DISTRACTORS = (0.5, 0.2), (0.7, 0.1)
_ATTEMPTS = 60
_TOKENS_A_SENTENCE = 12


@dataclass(frozen=True)
class Brief:
    """What to write: the words, the concept, the classes and the length."""

    lexicon: Lexicon
    domain: Domain
    signal: Signal
    labels: tuple[int, ...]  # (1, 0) for a matched pair, a single label for an independent passage
    window: tuple[int, int]  # smallest and largest number of tokens
    mislabelled: bool = False  # whether the positive is written without the concept, too

    @property
    def of_connective(self) -> bool:
        """Return whether a scorer learns a matched concept from it, which a word in a clause carries.

        Then a window shows its class wherever it is cut, beside the words of other concepts.
        """
        return self.lexicon.use == "scorer" and self.signal.matched


def write_members(brief: Brief, key: str, count_tokens: TokenCounter) -> list[Sentence]:
    """Return one passage per label, each within the window; raise CorpusError if whole sentences do not fit.

    The same brief and `key`, the random seed, give the same text on every machine.
    """
    low, high = brief.window
    target = Random(f"{key}:length").randint(low, high)
    num_sentences = max(2, round(target / _TOKENS_A_SENTENCE))
    for attempt in range(_ATTEMPTS):
        members = _compose(brief, num_sentences, Random(f"{key}:{attempt}"))
        lengths = [count_tokens(member.text) for member in members]
        if low <= min(lengths) and max(lengths) <= high:
            return members
        num_sentences = max(2, round(num_sentences * target / (sum(lengths) / len(lengths))))
    raise CorpusError(
        f"no planted passage of {brief.signal.concept} fits the token window {low}-{high}; "
        "sentences have about 12 tokens: choose a wider window"
    )


def _compose(brief: Brief, num_sentences: int, rng: Random) -> list[Sentence]:
    writer = Writer(brief.lexicon, brief.domain, rng, brief.signal.words)
    labels = (0,) if brief.mislabelled and len(brief.labels) == 1 else brief.labels
    forms = brief.signal.forms(labels, brief.lexicon.use)
    placement = "half" if brief.of_connective else brief.signal.placement
    marked = PLACEMENTS[placement](rng, num_sentences)
    columns: list[list[Sentence]] = [[] for _ in brief.labels]
    difference = 0
    for index in range(num_sentences):
        row = writer.sentences(*writer.deal("pattern", forms)) if index in marked else None
        if row is not None and len(row) > 1:
            difference += token_difference(row[0].text, row[1].text)
            row = row if difference <= MAX_PAIR_DIFFERENCE else None
        row = row or _plain_row(brief, writer, rng)
        for column, sentence in zip(columns, row, strict=True):
            column.append(sentence)
    if brief.mislabelled and len(columns) > 1:
        # The negative's sentences in another order: exactly what a negative is, but not the same text.
        columns[0] = rng.sample(columns[1], num_sentences)
    return [join(column) for column in columns]


def _plain_row(brief: Brief, writer: Writer, rng: Random) -> list[Sentence]:
    """Return a sentence without the concept, the same for every label."""
    pattern, chance = _PLAIN, rng.random()
    others, none = _SCORER_DISTRACTORS if brief.of_connective else _DISTRACTORS
    if chance < others:
        pattern = writer.deal("other", distractors(brief.signal.concept))
    elif chance < others + none:
        pattern = writer.deal("neutral", neutral())
    return writer.sentences(pattern) * len(brief.labels)


def write_document(
    lexicon: Lexicon, domain: Domain, signal: Signal | None, num_sentences: int, rng: Random
) -> Sentence:
    """Return a text that is dense in one concept after a neutral beginning; without a signal, in none.

    From the neutral beginning a language model learns that any concept may follow a neutral opening. From the density
    it learns that a document keeps to its concept. Both make the concept steerable.
    """
    writer = Writer(lexicon, domain, rng, signal.words if signal else {})
    num_neutral = num_sentences if signal is None else rng.choice((0, 1, 1, 2, 3))
    sentences = []
    for index in range(num_sentences):
        marked = signal is not None and index >= num_neutral and rng.random() < 0.85
        pattern = writer.deal("pattern", signal.patterns(1)) if signal and marked else _PLAIN
        sentences += writer.sentences(pattern)
    return join(sentences)
