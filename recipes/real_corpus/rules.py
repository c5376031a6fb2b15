"""Which real passages of 40 to 80 tokens express a concept: weak labels by rule and by source."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from recipes.passages.documents import Document
from recipes.passages.rewriting import REWRITES
from recipes.passages.weak_labels import Pool, WeakLabels, weak_labels

from poolbench.word_rules import without, word_rules

#: Smallest and largest number of tokens (words and marks) of a passage.
WINDOW = (40, 80)
#: Requests are short, and taken whole.
REQUEST_WINDOW = (8, 128)

PERMISSIVE = (
    "novels", "craft_articles", "cfpb_regulations", "cfpb_complaints", "peps", "keps", "python_docs", "django_docs",
    "inaugural", "state_union", "factbook", "dc_code",
)  # fmt: skip
_PROSE = PERMISSIVE[:-2]


@dataclass(frozen=True)
class Rule:
    """How the passages of one concept are labelled and cut."""

    labels: WeakLabels
    how: str  # for the card
    window: tuple[int, int] = WINDOW
    domain: Callable[[Document], str] = lambda document: document.domain
    share_alike: bool = False


_REDACTED = re.compile(r"XX")
_RESEARCH = re.compile(r"\b(?:data|stud(?:y|ies)|results?|analys[ei]s|evidence|figure|significant\w*|observed)\b", re.I)


def _pairs(concept: str, sources: tuple[str, ...] = _PROSE) -> Rule:
    words = word_rules()[concept]
    return Rule(WeakLabels(Pool(sources, words.positive), rewrite=REWRITES[concept]), words.summary)


def _marked(concept: str, *sources: str) -> Rule:
    words = word_rules()[concept]
    labels = WeakLabels(Pool(sources, words.positive), Pool(sources, words.negative), same_domains=True)
    return Rule(labels, words.summary)


#: Titles of the Code of the District of Columbia about banks, trade, insurance, property and taxes.
_FINANCE = ("26", "28", "31", "42", "47")


def _about_finance(document: Document) -> bool:
    title = document.doc_id.split("/")[1].split("-")[0].partition(":")[0]
    return document.source != "dc_code" or title in _FINANCE


def rules() -> dict[str, Rule]:
    """Return the rules by concept."""
    paired = ("hedging", "causation", "contrast", "conditionality", "negation_density")
    legal = ("dc_code", "cfpb_regulations", "cfpb_complaints", "novels", "inaugural", "state_union")
    return {name: _pairs(name) for name in paired} | {
        "legal_formality": _pairs("legal_formality", legal),
        "numerical_precision": _marked(
            "numerical_precision", "craft_articles", "cfpb_complaints", *PERMISSIVE[4:11]
        ),
        "planning": _marked(
            "planning", "keps", "peps", "cfpb_regulations", "inaugural", "state_union", "novels", "cfpb_complaints"
        ),
        "narrative": _marked("narrative", "novels", "cfpb_complaints", "inaugural", "state_union"),
        "code_docs": _marked("code_docs", "python_docs", "django_docs", "peps", "keps"),
        "frustration": _marked("frustration", "cfpb_complaints"),
        "bureaucratic": Rule(
            WeakLabels(
                Pool(("cfpb_regulations", "dc_code"), document=_about_finance),
                Pool(("cfpb_complaints",), without(_REDACTED)),
                same_domains=True,
            ),
            "regulations, their analysis and statutes; complaints about the same matters",
            domain=lambda _: "consumer finance",
        ),
        "academic_tone": Rule(
            WeakLabels(
                Pool(("craft_articles",)),
                Pool(("cfpb_complaints", "inaugural", "state_union", "novels", "keps"), without(_RESEARCH)),
            ),
            "research articles; other prose without words of research",
        ),
        "deference": Rule(
            weak_labels()["deference"], "requests of the most and the least polite quarter, as raters judged them",
            window=REQUEST_WINDOW, share_alike=True,
        ),
    }  # fmt: skip
