"""Hedges deleted, or replaced by the plain form of the verb."""

import re

from recipes.passages.rewriting.clauses import DETERMINER, PRONOUN
from recipes.passages.rewriting.engine import GAP, Rewriter, Step, decline, substitution
from recipes.passages.rewriting.verbs import is_base_form, third_person

from poolbench.concepts import CONCEPTS
from poolbench.word_rules import seed_pattern

_PAST = re.compile(r"\b(?:was|were|had|did|said|would|could|came|went|thought|knew|told|\w+[^aeiou]ed)\b", re.I)
_PRESENT = re.compile(r"\b(?:is|are|may|will|must|don['’]t|doesn['’]t)\b|['’](?:s|re|ll)\b", re.I)
_START = r"(?:^|(?<=[\"“‘(])|(?<=[;:,] )|(?<=-- )|(?<=— )|(?<=– )|(?<= and )|(?<= but )|(?<=^But )|(?<=^And ))"
_CLAUSE = rf"(?:{PRONOUN}|{DETERMINER}|(?-i:[A-Z]\w+))\b(?! (?:best|better|right|proper|fit|of)\b)"
_VERB = r"(?:is|was|['’]s|will|would|must|can|should|has|had|may|does|did|ought|makes?|takes?|needs?|depends)\b"
_SAY_SO = rf"(?:(?=(?!it\b){_CLAUSE})|(?=it ?{_VERB}))"


def _would(match: re.Match[str]) -> str:
    """Return `would` in a sentence of the past, else `will`."""
    around = match.string[: match.start()] + match.string[match.end() :]
    return "would" if _PAST.search(around) and not _PRESENT.search(around) else "will"


def _inflected(match: re.Match[str]) -> str:
    if not is_base_form(match[1]):
        return decline(match)
    return third_person(match[1])


def _adverb(match: re.Match[str]) -> str:
    """Delete an adverb with the commas on both sides, or without any."""
    left, right = match[1], match[3]
    before, rest = match.string[: match.start()].rstrip(), match.string[match.end() :]
    if re.match(r"\s*(?:[.;:!?)]|$)", rest) or not re.search(r"\w", before) or before[-1:] in '("“‘;:—–-':
        return GAP if not (before[-1:].isalnum() and left) or re.match(r"\s*(?:[.;:!?)]|$)", rest) else "," + GAP
    if (left and right) or re.match(r"\s*[-–—]", rest):
        return GAP
    return ("," if left or right else "") + " " + GAP


_MIGHT: list[Step] = [
    substitution(r"\b(?:his|her|their|its|my|our|your|own|the|of|all|and|with|by|military|full) might\b", decline),
    substitution(
        r"\bmight(?=[,.;:?!)]|$| as well| of\b| not(?:[,.;]|$))|\bmight(?:n['’]t| (?:or|and|but|almost) )", decline
    ),
    substitution(r"\b(?:if|wonder|whether)\b[^,;.]*\b(?:might|could be)\b|\bwell might\b", decline),
    substitution(rf"^(\W*)might (?={PRONOUN}\b)", decline),
    substitution(r"\bmight (?:perhaps |possibly |well |also |very well |even )?have (?!to\b)", "would have "),
    substitution(r"\b(?:so )?that ((?:\w+ ){1,3})might\b", r"that \1could"),
    substitution(r"\bmight (?:well |very well )?(?=\w)", lambda match: _would(match) + " "),
    substitution(r"\b(?:as|than) (?:\w+ )*could be\b|\bcould be(?=[,.;:?!)]|$)", decline),
    substitution(r"\bcould be\b", lambda match: _would(match) + " be"),
]
_SEEMS: list[Step] = [
    substitution(
        r"\b(?:as|than|how|so|what|where|which|though) it (?:seems|appears)\b|\bseems (?:as|though|not)\b", decline
    ),
    substitution(r",? it seems(?: to me)?,", ""),
    substitution(r",? it (?:now )?seems(?: to me)?(?=[.;!])", ""),
    substitution(rf"{_START}it (?:now |also |therefore )?seems (?:to me )?that ", ""),
    substitution(rf"{_START}it seems (?:to me )?(?!(?:an?|no|such|most|all|that|only|to)\b)(?={_CLAUSE})", ""),
    substitution(r"\b(?:seems|appears) to me to be\b", "is"),
    substitution(r"\bseems to me\b", "is"),
    substitution(r"\bappears to (?:me|us|him|her|them|you|the|a|an|this|that)\b", decline),
    substitution(r"\b(?:seems|appears) to have\b", "has"),
    substitution(r"\b(?:seems|appears) to (\w+)\b", _inflected),
    substitution(r"\bseems(?=[,.;:?!)]|$)|\bseems (?:that|he|she|they|we|I)\b", decline),
    substitution(r"\bseems\b", "is"),
]
_THINK: list[Step] = [
    substitution(r",? I think(?=[.;!)]|$)", ""),
    substitution(r", I think,", ""),
    substitution(rf"{_START}I think,? that (?={_CLAUSE})", ""),
    substitution(rf"{_START}I think,? {_SAY_SO}", ""),
]
_LIKELY: list[Step] = [
    substitution(
        r"\b(?:as|how|equally|so|too|less|least|only|seemed|seem|not|n['’]t|hardly|scarcely|un|"
        r"than) (?:very )?likely\b",
        decline,
    ),
    substitution(r"\bmore likely(?=.*\bthan\b)|\blikely (?:as|than|or)\b", decline),
    substitution(r"\b(?:is|was) it likely|(?<!is )(?<!are )(?<!was )(?<!were )\bmost likely to\b", decline),
    substitution(rf"{_START}it is (?:very |quite |highly |more than |also )?likely that ", ""),
    substitution(
        r"\b(is|are)((?: also| still| therefore)?) (?:more |most |very |highly )?likely to\b(?! not)", r"will\2"
    ),
    substitution(r"\b(was|were)((?: also| still| therefore)?) (?:more |most |very |highly )?likely to\b", r"would\2"),
    substitution(r"\b(?:be|been|being|seems?|becomes?|make\w*) (?:\w+ )?likely\b", decline),
    substitution(r"(?<=\w) (?:more |most |very )?likely to\b", " that will"),
    substitution(r"\b(?:is|are|was|were) (?:more |most |very )?likely(?= that|[,.;])", decline),
    substitution(r"(?<=\w) (?:more |most |very )?likely(?=[,.;:])", decline),
    substitution(r"\b(?:more |most |very )?likely\b ?", ""),
]
_ADVERBS: list[Step] = [
    substitution(r"\b(?:perhaps|maybe|possibly|arguably) not(?=[.?!]|$)|\bas possibly\b", decline),
    substitution(r"^\W*(?:perhaps|maybe|possibly),?(?: (?:not|so|because|if|when|a|an|in|for|as|even|by|"
                 r"with|or|to)\b|[-–—.?!])", decline),
    substitution(r"(,?) ?\b(perhaps|maybe|possibly|arguably)\b(,?)", _adverb),
]  # fmt: skip

HEDGING = Rewriter(seed_pattern(CONCEPTS.get("hedging")), [*_MIGHT, *_SEEMS, *_THINK, *_LIKELY, *_ADVERBS])
