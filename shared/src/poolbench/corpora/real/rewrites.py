"""Rewrite a positive passage of a matched concept into its negative by rules.

Reference: the construction rules of PoolBench's matched concepts. Deletions that would leave a broken verb group
(`might go`) are replaced by the unhedged form instead.
"""

import re
from collections.abc import Callable, Sequence

Rewrite = Callable[[str], str]

_MAX_CLAUSE = 14
_OPENING = r"(?:(?<=^)|(?<=[.!?]\s)|(?<=[.!?][\"'”’)]\s)|(?<=\n))"

_HEDGES: tuple[tuple[str, str], ...] = (
    (r"\bI think\b,?(?: that\b)?", ""),
    (r"\b(?:seems|appears) to be\b", "is"),
    (r"\b(?:seems|appears) to\b", "does"),
    (r"\bseems(?: that| as if| like)?\b", "is"),
    (r"\b(?:could|might) (?:possibly |perhaps )?be\b", "will be"),
    (r"\bmight\b", "will"),
    (r"\b(?:is|are) (?:more |most |very )?likely to\b", "will"),
    (r"\b(?:was|were) (?:more |most |very )?likely to\b", "would"),
    (r"\b(?:more |most |very )?likely to\b", "bound to"),
    (r",? ?\b(?:more |most |very )?(?:perhaps|maybe|possibly|arguably|likely)\b,?", ""),
)
_CAUSES = ((r",? ?\b(?:because(?: of)?|since|therefore|consequently|due to)\b,?", ""),)
_CONTRASTS = ((r",? ?\b(?:however|although|despite(?: the fact that)?|nevertheless|whereas)\b,?", ""),)
_CONDITIONS = (
    (rf"{_OPENING}(?:If|Unless|In case|Given that|Provided that)\b(?: [^\s,.;:!?]+){{1,{_MAX_CLAUSE}}}, ", ""),
    (r",? ?\b(?:unless|provided,? that|given that|on condition that|in case|(?<!as )if)\b,?", ""),
)
_NEGATORS = (
    (r"\bcannot\b|\bcan['’]t\b", "can"),
    (r"\bwon['’]t\b", "will"),
    (r"\bshan['’]t\b", "shall"),
    (r"\bain['’]t\b", "is"),
    (r"(?<=\w)n['’]t\b", ""),
    (r"\bwithout\b", "with"),
    (r"\bnobody\b", "somebody"),
    (r"\bnothing\b", "something"),
    (r"\bnowhere\b", "somewhere"),
    (r"\bnone\b", "some"),
    (r"\bneither\b", "either"),
    (r"\bnor\b", "or"),
    (r"\bno longer\b", "still"),
    (r"\bno\b", "some"),
    (r" ?\b(?:not|never)\b", ""),
)
_LEGAL = (
    (r"\bpursuant to\b", "under"),
    (r"\bpursuant\b", "following"),
    (r"\bnotwithstanding\b", "despite"),
    (r"\bwhereas\b", "while"),
    (r"\btherein\b", "in it"),
    (r"\bthereof\b", "of it"),
    (r"\bthereto\b", "to it"),
    (r"\bhereto\b", "to this"),
    (r"\bherein\b", "here"),
    (r"\baforementioned\b", "named"),
    (r"\bforthwith\b", "at once"),
    (r"\bheretofore\b", "before now"),
    (r" ?\bhereby\b", ""),
    (r"\bprior to\b", "before"),
    (r"\bshall\b", "will"),
)


# Marks where something was deleted, until the gap is closed; no text of the archives holds it.
_GAP = "\x00"


def _in_case_of(replacement: str) -> Callable[[re.Match[str]], str]:
    """Return a substitution in the case of what it replaces, or the gap mark for a deletion."""

    def replace(match: re.Match[str]) -> str:
        words = match[0].strip(" ,")
        if not replacement:
            return _GAP
        if words.isupper() and len(words) > 1:
            return replacement.upper()
        return replacement[:1].upper() + replacement[1:] if words[:1].isupper() else replacement

    return replace


def close_gaps(text: str) -> str:
    """Repair spaces, marks and capitals where something was deleted, and nowhere else.

    Other repairs would make the class of a passage readable from unrelated places.
    """
    text = re.sub(rf"(?: *{_GAP})+", _GAP, text)
    text = re.sub(rf"(^|\n){_GAP}[ ,;]*(\w)", lambda found: found[1] + found[2].upper(), text)
    text = re.sub(rf"([.!?][\"'”’)]*){_GAP}[ ,;]*(\w)", lambda found: f"{found[1]} {found[2].upper()}", text)
    text = re.sub(rf"([(\[\"“‘\n]){_GAP} *", r"\1", text)
    text = re.sub(rf"{_GAP} *(?=[.;:!?)\]\n]|$)", "", text)
    return re.sub(rf"{_GAP}(?: *,)? *", " ", text).strip()


def by_rules(rules: Sequence[tuple[str, str]]) -> Rewrite:
    """Return a rewrite that applies the rules in order, in either case, and closes the gaps."""
    compiled = [(re.compile(pattern, re.IGNORECASE), _in_case_of(text)) for pattern, text in rules]

    def rewrite(text: str) -> str:
        for pattern, replacement in compiled:
            text = pattern.sub(replacement, text)
        return close_gaps(text)

    return rewrite


REWRITES: dict[str, Rewrite] = {
    "hedging": by_rules(_HEDGES),
    "causation": by_rules(_CAUSES),
    "contrast": by_rules(_CONTRASTS),
    "conditionality": by_rules(_CONDITIONS),
    "negation_density": by_rules(_NEGATORS),
    "legal_formality": by_rules(_LEGAL),
}
