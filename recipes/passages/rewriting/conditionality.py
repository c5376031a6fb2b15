"""Conditional clauses deleted; an `if` of indirect questions becomes `whether`."""

import re

from recipes.passages.rewriting.clauses import FINITE, PRONOUN, SUBJECT, clause_end, finite_before
from recipes.passages.rewriting.engine import GAP, DeclinedError, Rewriter, Step, decline, substitution

IF = re.compile(r"\bif\b|\bunless\b|\bprovided,? that\b|\bgiven that\b|\bon condition that\b|\bin case\b", re.I)
"""What makes a passage conditional, and what no rewrite contains."""

_MAX_CLAUSE = 16  # words of a clause that may be deleted
_ASK = (
    "ask|asks|asked|asking|see|sees|seeing|know|knows|knew|knowing|wonder|wonders|wondered|wondering|check|checks|"
    "checked|checking|determine|determines|determining|tell|telling|decide|decides|decided|deciding|sure|test|tests|"
    "testing|say|inquire|inquired|enquired|verify|verifies|detect|doubt|doubted|clear|learn|find out|indicates|indicate"
)
_CONDITION = r"(?:only if|even if|if|unless|provided,? that|given that|on condition that|in case)"
_TAGS = "any|ever|anything|anyone|so|possible|necessary|applicable|needed|available|present|desired|not|at all|required"
_AFTER_MAIN = re.compile(rf",? \b{_CONDITION} ", re.IGNORECASE)
_LEAD = r"(?:\W|(?:and|but|so|however|thus|also|finally|moreover|in addition|for example|similarly|note that|then),? )*"
_FRONTED = re.compile(rf"^({_LEAD}){_CONDITION} ", re.IGNORECASE)
# A pronoun that may mean what the deleted clause names; `it is best` means nothing.
_REFERENCE = re.compile(
    r"\W*(?!it (?:is|was|(?:may|might|would|will) be) (?:best|well|possible|necessary|important|recommended|better|"
    r"useful|worth|easy|clear|hard|not necessary|time)\b)"
    r"(?:it|they|he|she|one|its|their|his|her|that|these|those|so|such|neither)\b",
    re.IGNORECASE,
)
_EMBEDDED = re.compile(rf"((?:\b(?:that|and|but|or)|;|—|,? so) ){_CONDITION} ", re.IGNORECASE)
_SHORT = re.compile(
    r"(?:not |set|given|omitted|None|True|False|called|left|specified|present|provided|unset|empty|enabled|"
    r"disabled)\b"
    r"[^,]{0,30}(?=, (?!or\b|and\b))"
)
_END = re.compile(rf"(?=[.;:?!](?:\W|$)|\)|, (?:and|but) {SUBJECT}\b| [—–-]+ |--|$)", re.IGNORECASE)
_OPEN = re.compile(
    r"(?i)(?:\b(?:and|or|but|that|than|as|what|which|who|is|are|was|were|be|been|happens?|not|how|when|where|except|"
    r"of|to|for|by|with|even|only|just|especially|the|a|would|will|could|should|must|may|can|depends?|depending|case|"
    r"cases|error|conditions?|true|none|determined|regardless|like|true|whether|had|better|best|example|"
    r"instance|particular|"
    r"though|namely|say|e\.g\.|i\.e\.)|[:(—–\-])\s*$|\b(?:inquire|enquire|ask|wonder)\w*\b[^,;.]*$"
)


def _main_clause(rest: str) -> str:
    """Return what follows a fronted clause. Raise DeclinedError if its end is not certain or the rest refers to it."""
    short = _SHORT.match(rest)
    comma = short.end() if short else clause_end(rest)
    if comma is None or len(rest[:comma].split()) > _MAX_CLAUSE:
        raise DeclinedError
    main = re.sub(r"^\s*(?:then,? )?", "", rest[comma + 1 :])
    # A name of code takes no capital at the start of a sentence.
    if _REFERENCE.match(main) or re.match(r"\W*[a-z_]\w*[._(\[/=]", main):
        raise DeclinedError
    return main


def _fronted(sentence: str) -> str:
    """Delete a clause that precedes its main clause, at the start of the sentence or after a conjunction or mark."""
    if match := _FRONTED.match(sentence):
        sentence = match[1] + GAP + _main_clause(sentence[match.end() :])
    while match := _EMBEDDED.search(sentence):
        sentence = sentence[: match.end(1)] + _main_clause(sentence[match.end() :])
    return sentence


def _after_main(sentence: str) -> str:
    """Delete the clauses that follow their main clause and end with the sentence or before a mark."""
    while match := _AFTER_MAIN.search(sentence):
        before, rest = sentence[: match.start()], sentence[match.end() :]
        end = _END.search(rest)
        clause = rest[: end.start()] if end else rest
        no_main = not finite_before(before) and len(before.split()) > 3
        if _OPEN.search(before) or no_main or not _is_clause(clause):
            raise DeclinedError
        sentence = before + rest[len(clause) :]
    return sentence


def _is_clause(clause: str) -> bool:
    """Return whether a text is one short clause and nothing else."""
    if re.search(r"[,(\"]", clause) or len(clause.split()) > _MAX_CLAUSE:
        return False
    subject = re.match(rf"(?:{PRONOUN}|otherwise|the|an?|this|you)\b", clause, re.IGNORECASE)
    return subject is not None or FINITE.search(clause) is not None


_STEPS: list[Step] = [
    substitution(r"\bas if\b", "as though"),
    substitution(
        r"((?:\]|\)|\d|Bureau|rule|comment|proposal|also|have|has|had|Act|law|paragraph|it|which|"
        r"statute)),? provided that\b",
        r"\1 stated that",
    ),
    substitution(r"\bin case of (?!.*\bin case of\b)", "with "),
    substitution(
        r"\b(?:what if|if only|if and only if|if not|mind if|as if not|ifs)\b|\bif\b.*\b(?:else|"
        r"otherwise)\b|\bif\b.*:$",
        decline,
    ),
    substitution(
        r"\b(?:else|elif|else-|#|endif|`)if\b|\bif[`(]|\bif-|\bif (?:statement|clause|block|condition)s?\b", decline
    ),
    substitution(rf", ?if (?:{_TAGS}),", ""),
    substitution(rf"(?<=\w),? \(?if (?:{_TAGS})\)?(?=[.;,)]|$)", ""),
    substitution(r" \(if [^()]{1,60}\)", ""),
    substitution(rf"^(\W*)if (?:{_TAGS}), ", r"\1"),
    substitution(rf"\b({_ASK})((?: me| him| her| us| them| you)?) if\b", r"\1\2 whether"),
    substitution(r"\bunless otherwise (?:\w+)(?=[.;])", ""),
    substitution(r"\bin case (?=(?-i:[A-Z])|\d|\w+ing\b|no\b|of the\b.*\bin case of\b)", decline),
    _fronted,
    _after_main,
]

CONDITIONALITY = Rewriter(IF, _STEPS)
