"""Negators flipped or dropped; the verb takes the form that it has without `do`."""

import re

from recipes.passages.rewriting.clauses import PRONOUN
from recipes.passages.rewriting.engine import Rewriter, Step, decline, substitution
from recipes.passages.rewriting.verbs import is_base_form, past, third_person

from poolbench.word_rules import NEGATORS

_AUXILIARY = (
    r"(?:is|are|was|were|am|be|been|being|has|have|had|will|would|shall|should|can|could|may|might|must|ought|need)"
)
_SHORT = r"(?:['’](?:s|re|m|ve|ll|d))"
# Words after a negation that have another form, or another meaning, in a statement.
_POLAR = (
    r"any(?:more|how|way)?|ever|yet|either|at all|much|until|till|nor|but|longer|only|necessarily|even|"
    r"least|less|more|merely|just|"
    r"simply|so|too|very|all|every\w*|quite|always|both|because|unlike|help|mind|matter|care|in the least|long|far|"
    r"alone|once|unless|exactly|really|solely|entirely|mere|doubt|particularly"
)
_BEFORE_STOP = r"(?= ?[,.;:?!)\-–—\"”’]|$| -| and\b| or\b)"


def _third(match: re.Match[str]) -> str:
    return third_person(match[1]) if is_base_form(match[1]) else decline(match)


def _past(match: re.Match[str]) -> str:
    if not is_base_form(match[1]):
        return decline(match)
    return past(match[1]) or f"did {match[1]}"


def _plain(match: re.Match[str]) -> str:
    return match[1] if is_base_form(match[1]) else decline(match)


_DECLINED: list[Step] = [
    substitution(r"\b(?:if|or|why|whether|than|but|rather|certainly|perhaps|whether or) not\b", decline),
    substitution(rf"n['’]t (?:{PRONOUN}|the|this|that|these|those|my|your|his)\b", decline),
    substitution(rf"(?:\bnot|n['’]t|\bcannot|\bnever)(?: (?:{_POLAR}))\b|\bnever an?\b", decline),
    substitution(rf"(?:\bnot|n['’]t|\bcannot){_BEFORE_STOP}", decline),
    substitution(r"(?:\bnot|n['’]t|\bcannot|\bnever|\bno|\bnone|\bnothing|\bnobody)\b[^.;:?!]*"
                 r"\b(?:but|until|till|ever|yet|either|unless|at all|whatever|much|except|rather|nor|"
                 r"let alone|any longer)\b",
                 decline),
    substitution(r"\bain['’]t\b|\bshan['’]t\b|n['’]t not\b|\bnot un\w+\b|\bdo not,|\bneed(?:n['’]t| not)\b|"
                 r"\bdare", decline),
    substitution(r"\bno (?:matter|sooner|less|more|doubt|better|wonder|means|way|good|use|idea|account|fewer|later|"
                 r"worse|end|need|\d|question|mistake|time|harm|fault|objection|exception|and|or|greater|"
                 r"earlier)\b", decline),
    substitution(r"\bno(?=[.;:?)\-–—\"”]|$)|\b(?:or|and|but|a|yes|to|with|of|is|are|for|say|said|oh|"
                 r"by) no(?=[,.])|\bno, ", decline),
    substitution(r"\bnothing (?:but|more|less|of the|like|else|to do|in common|to say|short)\b|"
                 r"\bfor nothing\b", decline),
    substitution(r"\bnone (?:but|the|too|so|other|is|was|has)\b|\bnone of (?:[^,.;]+ )?(?:is|was|has)\b|"
                 r"\bnone(?=[`'\"=)])", decline),
    substitution(r"^(\W*)(?:never|nor|neither|nowhere|not)\b|, (?:nor|never|neither|not)\b|"
                 r"\bnever(?:[,.;:?!]|$| mind| to\b)", decline),
    substitution(r"\b(?:or|but|and|as|now or) never\b|\bneither(?! [\w ]{1,40} nor\b)|\bnor\b(?=.*\bnor\b)", decline),
    substitution(r"\bwithout(?=[,.;:?!)]|$)| without (?:doubt|question|fail|exception|regard|prejudice|"
                 r"delay|limitation)\b", decline),
    substitution(r"(?-i:\bNO\b|\bNo\. ?\d|\bNone\b(?! of)|\bNOT\b|\bNOTHING\b|\bNEVER\b)", decline),
]  # fmt: skip
_NEGATOR = r"(?:\b(?:not|never|no|without|cannot|nobody|nothing|none|nor|neither)\b|n['’]t\b)"
_ANY = r"any(one|body|thing|where|)"
_FLIPPED: list[Step] = [
    substitution(r"\bany (?:more|longer|account|means)\b|\bno little\b|\blittle or no\b", decline),
    substitution(r"\bany (?:\w+er|worse)\b(?<!other)(?<!number)(?<!user)", decline),
    *[substitution(rf"({_NEGATOR}[^,.;:?!]*?) {_ANY}\b(?! (?:case|rate|event)\b)", r"\1 some\2")] * 2,
    substitution(r"\bwithout (?=(?:warning|meaning|understanding|building|training|funding|pricing|reasoning|hearing|"
                 r"feeling|anything|something|bearing|spring|king|being a)\b)", "with "),
    substitution(r"\bwithout (?=\w+ing\b)(?!\w*thing)", "while "),
    substitution(r"\bwithout\b", "with"),
    substitution(r"\b(?:do not|don['’]t) (\w+)\b", _plain),
    substitution(r"\b(?:does not|doesn['’]t) (\w+)\b", _third),
    substitution(r"\b(?:did not|didn['’]t) (\w+)\b", _past),
    substitution(r"\b(?:cannot|can['’]t|can not)\b", "can"),
    substitution(r"\bwon['’]t\b", "will"),
    substitution(r"\b(is|are|was|were|has|have|had|would|could|should|must|might)n['’]t\b", r"\1"),
    substitution(rf"\b({_AUXILIARY}|\w+{_SHORT}) (?:not|never)\b(?= \w)", r"\1"),
    substitution(rf"\b({_AUXILIARY} (?:{PRONOUN}|also|therefore|still|thus|now)) not\b", r"\1"),
    substitution(r"\bnot (?=to \w+)", ""),
    substitution(rf"\b({PRONOUN}|who|which|that|(?-i:[A-Z]\w+)) never (?=\w+)", r"\1 "),
    substitution(r"\bno one\b", "someone"),
    substitution(r"\bnobody\b", "somebody"),
    substitution(r"\bnothing\b", "something"),
    substitution(r"\bnowhere\b", "somewhere"),
    substitution(r"\bnone of\b", "some of"),
    substitution(r"\bneither ([\w ]{1,40}) nor\b", r"either \1 or"),
    substitution(r"\bno longer\b", "still"),
    substitution(r"\bno such\b", "such"),
    substitution(r"\bno (further|other)\b", r"some \1"),
    substitution(r"^no, ", "yes, "),
    substitution(r"\bno (?=\w)", "some "),
]  # fmt: skip

NEGATION_DENSITY = Rewriter(NEGATORS, [*_DECLINED, *_FLIPPED])
