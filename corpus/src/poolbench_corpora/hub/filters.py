"""Tests of passages by name: which passages of a dataset are of a class.

The tests of matched and numeric concepts are those of the archives (`poolbench_corpora.real.weak_labels`), so that
both corpora mean the same.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from poolbench.concepts import CONCEPTS
from poolbench_corpora.checks.rules import seed_pattern
from poolbench_corpora.real.weak_labels import PassageTest, always, at_least, weak_labels, without

_LINK_OR_CODE = re.compile(r"https?://|```|^ {4}\S", re.M)
_TECHNICAL = re.compile(
    r"\b(software|program(?:s|ming)?|python|java(?:script)?|api|database|server|install(?:ed|ing)?|compil\w+|debug\w*|"
    r"algorithms?|function call|source code|command line|operating system|open[- ]source)\b",
    re.I,
)
_ADMINISTRATIVE = re.compile(
    r"\b(shall|pursuant|section|subsection|paragraph|secretary|commission|agenc(?:y|ies)|department|regulations?|"
    r"provisions?|authori[sz]\w+|requirements?|compliance|directive|amend\w*)\b",
    re.I,
)
_FICTION = re.compile(
    r"\b(novels?|films?|movies?|episodes?|protagonist|plot|fictional|manga|anime|television series)\b", re.I
)
_DISTRESS = re.compile(
    r"\b(depress\w*|suicid\w*|anxi\w+|therap\w+|hopeless\w*|self[- ]harm\w*|medicat\w+|mental health|panic attacks?)\b",
    re.I,
)


def _both_classes(concept: str) -> tuple[PassageTest, PassageTest]:
    """Return the archives' tests of positives and negatives."""
    labels = weak_labels()[concept]
    return labels.positives.passage, labels.negatives.passage if labels.negatives else always


#: From a concept's id to the test.
FILTERS: Mapping[str, Callable[[str], PassageTest]] = MappingProxyType(
    {
        "any": lambda _: always,
        "markers": lambda concept: _both_classes(concept)[0],
        "no_markers": lambda concept: _both_classes(concept)[1],
        "seed_words": lambda concept: at_least(seed_pattern(CONCEPTS.get(concept)), 1),
        "no_seed_words": lambda concept: without(seed_pattern(CONCEPTS.get(concept))),
        "no_links": lambda _: without(_LINK_OR_CODE),
        "no_code": lambda _: without(re.compile("`")),
        "technical": lambda _: at_least(_TECHNICAL, 1),
        "administrative": lambda _: at_least(_ADMINISTRATIVE, 4),
        "no_fiction": lambda _: without(_FICTION),
        "no_distress": lambda _: without(_DISTRESS),
    }
)
