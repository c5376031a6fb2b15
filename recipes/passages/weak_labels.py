"""Weak labels by source and rule: which real passages are positive or negative for a concept."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from recipes.passages.documents import Document
from recipes.passages.rewriting import REWRITES, Rewrite

from poolbench.concepts import CONCEPTS
from poolbench.word_rules import NEGATORS, NUMBER, VAGUE, TextTest, at_least, both, seed_pattern, without

DocumentTest = Callable[[Document], bool]

MIN_MARKERS = 2
"""Seed words that a positive of a matched concept has at least."""


def always(_: object) -> bool:
    """Accept everything."""
    return True


@dataclass(frozen=True)
class Pool:
    """Sources of the passages of one class, and tests on document and passage."""

    sources: tuple[str, ...]
    passage: TextTest = always
    document: DocumentTest = always


@dataclass(frozen=True)
class WeakLabels:
    """How a concept's real corpus is made."""

    positives: Pool  # pool of the positives
    negatives: Pool | None = None  # pool of the negatives; None for matched concepts, whose negatives are rewrites
    rewrite: Rewrite | None = None  # from a positive to its negative; None for independent concepts
    same_domains: bool = False  # take as many positives as negatives from each domain, so that it carries no label


def labelled(name: str, value: str) -> DocumentTest:
    """Return a test for documents with that label."""
    return lambda document: document.label(name) == value


def _rated(low: float, high: float) -> DocumentTest:
    return lambda document: low <= float(document.label("politeness")) <= high


_PROSE = (
    "novels", "craft_articles", "cfpb_regulations", "cfpb_complaints", "peps", "keps", "python_docs", "django_docs",
    "inaugural", "state_union", "debian_handbook", "wikitext2_test",
)  # fmt: skip
_LEGAL = ("dc_code", "cfpb_regulations", "cfpb_complaints", "novels", "inaugural", "state_union")
_IF = re.compile(r"\bif\b|\bunless\b|\bprovided that\b|\bgiven that\b|\bon condition that\b|\bin case\b", re.I)
_PLANS = re.compile(r"\b(plans?|planned|goals?|will|intend(?:s|ed)?|propos\w+|next|strategy|implement\w*)\b", re.I)
_POLITE, _IMPOLITE = 0.55, -0.55


def _matched(concept: str, sources: tuple[str, ...], test: TextTest | None = None) -> WeakLabels:
    test = test or at_least(seed_pattern(CONCEPTS.get(concept)), MIN_MARKERS)
    return WeakLabels(Pool(sources, test), rewrite=REWRITES[concept])


def weak_labels() -> dict[str, WeakLabels]:
    """Return the rules per concept; concepts that the archives cannot serve are absent."""
    seeds = {name: seed_pattern(CONCEPTS.get(name)) for name in ("conditionality", "planning", "legal_formality")}
    return {
        "hedging": _matched("hedging", _PROSE),
        "causation": _matched("causation", _PROSE),
        "contrast": _matched("contrast", _PROSE),
        "conditionality": _matched("conditionality", _PROSE, at_least(_IF, MIN_MARKERS)),
        "negation_density": _matched("negation_density", _PROSE, at_least(NEGATORS, 3)),
        "legal_formality": _matched("legal_formality", _LEGAL, at_least(seeds["legal_formality"], 1)),
        # Statutes and regulations are left out: their numbers count paragraphs.
        "numerical_precision": WeakLabels(
            Pool(_NUMERIC, at_least(NUMBER, 4)),
            Pool(_NUMERIC, both(without(NUMBER), at_least(VAGUE, 1))),
            same_domains=True,
        ),
        "academic_tone": WeakLabels(
            Pool(("craft_articles",)), Pool(("cfpb_complaints", "movie_reviews", "masc", "freedombox_manual"))
        ),
        "code_docs": WeakLabels(
            Pool(("python_docs", "django_docs")), Pool(("peps", "keps", "debian_handbook", "freedombox_manual"))
        ),
        "bureaucratic": WeakLabels(
            Pool(("cfpb_regulations",)), Pool(("cfpb_complaints", "movie_reviews", "debian_handbook"))
        ),
        "narrative": WeakLabels(Pool(("novels",)), Pool(("wikitext2_test", "factbook", "craft_articles"))),
        "planning": WeakLabels(
            Pool(("keps",), at_least(_PLANS, 5)),
            Pool(("python_docs", "django_docs", "factbook", "craft_articles"), without(seeds["planning"])),
        ),
        "imdb_sentiment": WeakLabels(
            Pool(("movie_reviews",), document=labelled("sentiment", "pos")),
            Pool(("movie_reviews",), document=labelled("sentiment", "neg")),
        ),
        "deference": WeakLabels(
            Pool(("politeness",), document=_rated(_POLITE, 9)), Pool(("politeness",), document=_rated(-9, _IMPOLITE))
        ),
        "toxicity": WeakLabels(
            Pool(("goemotions",), document=labelled("emotion", "hostile")),
            Pool(("goemotions",), document=labelled("emotion", "neutral")),
        ),
    }


_NUMERIC = (
    "craft_articles", "cfpb_complaints", "state_union", "inaugural", "peps", "keps", "python_docs", "django_docs",
    "wikitext2_test", "factbook",
)  # fmt: skip
