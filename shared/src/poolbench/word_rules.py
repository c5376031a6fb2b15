"""Rules by which words label a text: it is a positive or a negative of a concept, or neither.

The recipe of the corpus of real text chooses passages by them, and the gate of a scorer labels a model's own texts.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from poolbench.concepts import CONCEPTS, Concept
from poolbench.errors import InputError
from poolbench.texts import count_words

TextTest = Callable[[str], bool]

NEGATORS = re.compile(r"\b(not|no|never|without|cannot|nobody|nothing|neither|none|nor|nowhere)\b|n['’]t\b", re.I)
NUMBER = re.compile(r"(?<!\w)\d[\d.,:/]*")
VAGUE = re.compile(r"\b(some|many|several|few|most|much|plenty|numerous|various|a lot)\b", re.I)
#: Words and marks of the shortest passage, for which the numbers of the rules are.
PASSAGE_WORDS = 40
MIN_NEGATORS = 3
MIN_NUMBERS = 4


@dataclass(frozen=True)
class WordRule:
    """A rule that says which texts of a concept are positive, negative or neither."""

    positive: TextTest
    negative: TextTest
    summary: str  # the rule in words, as the manifest of a corpus states it
    version: int = 1  # raised when the rule labels a text differently

    def label(self, text: str) -> int | None:
        """Return 1 or 0, or None for a text that is neither."""
        if self.positive(text):
            return 1
        return 0 if self.negative(text) else None


def seed_pattern(concept: Concept) -> re.Pattern[str]:
    """Return a pattern of the seed words at word boundaries, in either case and with either apostrophe."""
    words = (re.escape(word).replace("'", "['’]").replace(r"\ ", r"\s+") for word in concept.seed_words)
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.I)


def at_least(pattern: re.Pattern[str], number: int) -> TextTest:
    """Return a test for texts with at least `number` matches.

    For a text shorter than the shortest passage, the required number is reduced in proportion to its length.
    """

    def is_dense(text: str) -> bool:
        share = min(1.0, count_words(text) / PASSAGE_WORDS)
        return sum(1 for _ in pattern.finditer(text)) >= max(1, math.ceil(share * number))

    return is_dense


def at_most(pattern: re.Pattern[str], number: int) -> TextTest:
    """Return a test for texts with at most that many matches."""
    return lambda text: sum(1 for _ in pattern.finditer(text)) <= number


def without(pattern: re.Pattern[str]) -> TextTest:
    """Return a test for texts without a match."""
    return lambda text: pattern.search(text) is None


def both(first: TextTest, second: TextTest) -> TextTest:
    """Return a test that requires both tests."""
    return lambda text: first(text) and second(text)


def _words(*words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.IGNORECASE)


def _any_of(*patterns: re.Pattern[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern.pattern})" for pattern in patterns), re.IGNORECASE)


def _marked(pattern: re.Pattern[str], summary: str, number: int = 1) -> WordRule:
    """Return the rule of a concept that single words carry: `number` of them, or none."""
    return WordRule(at_least(pattern, number), without(pattern), summary)


_IF = _words("if", "unless", "provided that", "given that", "on condition that", "in case")
_GOALS = _words(
    "plan(?:s|ned|ning)?", "intends?", "intended", "intentions?", "goals?", "objectives?", "strateg(?:y|ies)", "aims?",
    "going to", "next steps?", "prepar(?:e|es|ing) to", "propos(?:e|es|ing|als?)", "in order to", "hopes? to",
)  # fmt: skip
_FUTURE = _words("will", "shall", "going to", "next", "then", "first", "later", "until", "future", "steps?", "phases?")
_EVENTS = _words(
    "said", "asked", "replied", "answered", "cried", "told", "went", "came", "took", "looked", "turned", "stood", "sat",
    "saw", "heard", "ran", "gave", "put", "left", "began", "felt", "fell", "rose", "met", "got", "brought", "called",
    "walked", "opened", "closed", "waited", "arrived", "returned", "received", "contacted", "sent", "spoke", "made",
    "became", "found", "held", "kept", "knew", "thought", "paid", "wrote", "stopped", "started", "passed", "followed",
)  # fmt: skip
_PERSONS = _words("he", "she", "they", "him", "her", "them", "his", "i", "me", "my", "we", "us", "our")
_PAST = _words("was", "were", "had", "did", r"(?!indeed|need|speed|proceed|exceed|succeed|indebted)\w{2,}ed")
_QUOTES = re.compile("[\"“”]|(?<!\\w)[‘']|--|—")
_CODE = re.compile(
    r"\w\(\)|\w\.\w+\(|\b\w+_\w+|\b(?:arguments?|parameters?|returns?|raises?|raised|exceptions?|methods?|functions?|"
    r"class(?:es)?|objects?|attributes?|strings?|integers?|modules?|callable|keyword|default)\b"
)
_VENTING = re.compile(
    r"\b(?:frustrat\w+|ridiculous\w*|unacceptabl\w+|absurd\w*|outrag\w+|annoy\w+|fed up|sick of|tired of|disgust\w+|"
    r"infuriat\w+|why won['’]t|nightmare|a joke|waste of|wast(?:ed|ing) my|incompeten\w+|furious|angry|horribl\w+|"
    r"terribl[ey]|worst|pathetic|shame(?:ful)?|insane|crazy|appall\w+|disappoint\w+|upset\w*|ugh|come on|run ?around|"
    r"over and over|rude\w*|unprofessional\w*|hung up|lied|lying|scam\w*|harass\w*|unfair\w*|unethical\w*|stress\w*|"
    r"(?:for|makes) no (?:reason|sense)|never again|no help|how (?:is|can|could) (?:this|that|they|it|an?)|"
    r"why (?:is|are|was|were|would|do|does|did|should|am|can))\b|!!", re.I
)  # fmt: skip


def _seeds(name: str) -> re.Pattern[str]:
    return seed_pattern(CONCEPTS.get(name))


_WITHOUT_SEEDS = "pairs: the negative is the positive without its seed words"


def word_rules() -> dict[str, WordRule]:
    """Return the rules by concept. Concepts that words alone do not decide have none."""
    return {
        **{name: _marked(_seeds(name), _WITHOUT_SEEDS) for name in ("hedging", "causation", "contrast")},
        "legal_formality": _marked(_seeds("legal_formality"), "pairs: plain words for legal terms"),
        "conditionality": _marked(_IF, "pairs: the negative is without its conditions"),
        "negation_density": _marked(NEGATORS, "pairs: every negator flipped or gone", MIN_NEGATORS),
        "numerical_precision": WordRule(
            at_least(NUMBER, MIN_NUMBERS),
            both(without(NUMBER), at_least(VAGUE, 1)),
            "at least 4 numbers; none and a vague quantifier",
        ),
        "planning": WordRule(
            both(at_least(_GOALS, 1), at_least(_FUTURE, 2)),
            without(_any_of(_GOALS, _FUTURE, _seeds("planning"))),
            "words of goals and of future steps; neither",
        ),
        "narrative": WordRule(
            both(at_least(_EVENTS, 3), at_least(_PERSONS, 3)),
            both(at_most(_any_of(_EVENTS, _PAST), 1), without(_QUOTES)),
            "3 events in the past and 3 persons; at most one verb in the past and no speech",
        ),
        "code_docs": _marked(_CODE, "4 names or terms of an interface; none", 4),
        "frustration": _marked(_VENTING, "a word of annoyance; none"),
    }


def word_rule(concept: str, version: int) -> WordRule:
    """Return the word rule of a concept. Raise InputError if there is no rule, or only another version of the rule."""
    rule = word_rules().get(concept)
    if rule is None or rule.version != version:
        here = "none" if rule is None else f"version {rule.version}"
        raise InputError(f"word rule {version} of {concept}: this service has {here}; upgrade driver and services")
    return rule
