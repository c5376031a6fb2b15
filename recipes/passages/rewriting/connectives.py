"""Connectives of cause and contrast deleted, or replaced by `and` and `with`, which state neither."""

from recipes.passages.rewriting.clauses import DETERMINER, PRONOUN, coordinated, dropped_adverb
from recipes.passages.rewriting.engine import Rewriter, Step, decline, substitution

from poolbench.concepts import CONCEPTS
from poolbench.word_rules import seed_pattern

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w*\.?"
_DATE = (
    rf"(?:(?:about|around|at least|early|late|the) )*(?:{_MONTH} (?:of )?)?(?:[\dX]{{1,2}}(?:st|nd|rd|th)?,? )?"
    r"(?:XX/XX/[\dX]+|\d{1,2}/\d{1,2}/\d+|\d{4}(?:['’]?s)?|XXXX)(?!['’\w])(?! [a-z]+s\b)"
)
_DUE = r"payments?|amounts?|sums?|balances?|money|monies|funds|debts?|respect|credit|fees?|wages|benefits|refunds?"
_SCHEDULED = "arrive|expire|start|begin|come|be|go|leave|meet|retire|end|take|open|appear|pay|return|receive|make|run"
_TEMPORAL = (
    substitution(r"\b(?:first|last|most|largest|highest|lowest)\b[^,.;]*\bsince\b", decline),
    substitution(rf"\b(?:ever )?since ({_DATE})", r"from \1 on"),
    substitution(r"\bsince ((?:the )?(?:Python|version|Django|Debian|Kubernetes|v)[ \d.]*\d)", r"from \1 on"),
    substitution(r"\bsince (?=the (?:epoch|beginning|start|creation)\b)", "from "),
    substitution(r"\bsince then\b", "from then on"),
    substitution(r"\bever since(?=[.,;:!?)]|$)", "from then on"),
    substitution(r"\blong since\b", "long ago"),
    substitution(r"\b(time|years?|days?|months?|weeks?|hours?) since(?=[.,;:!?)]|$)", r"\1 ago"),
    substitution(r"\b(has|have|['’]ve) since (?=\w+(?:ed|en|wn|ne|un|de|id)\b)", r"\1 now "),
    substitution(r"\bhad since (?=\w+(?:ed|en|wn|ne|un|de|id)\b)", "had by then "),
    substitution(r"(?<=\w) since(?=[.;:!?)])", " after that"),
    # With a perfect tense `since` states a time, which neither `and` nor a preposition does.
    substitution(r"\b(?:has|have|had|['’]ve|first|last|ever|time|long|years?|months?|days?)\b(?=[^.;:?!]*\bsince\b)"
                 r"(?![^.;:?!]*, since\b)", decline),
    substitution(r"^(\W*)since (?=[^,]*, [^.;]*\b(?:has|have|had|['’]ve) (?:\w+ )?(?:been|\w+ed|become|"
                 r"made)\b)", decline),
    substitution(r"\bever since\b", decline),
    substitution(r"\bsince (?:\w+ )?(?:last|first|previous|start|beginning|end|time|day|early|late|year|original)\b",
                 decline),
)  # fmt: skip
_CAUSE_STEPS: list[Step] = [
    substitution(r"\b(?:because of|due to|owing to) the fact that\b", "because"),
    substitution(rf"\b(?:{_DUE}|is|are|was|were) (?:then |now |still )?due to (?={PRONOUN}\b|me\b|us\b|"
                 rf"him\b|them\b)", decline),
    substitution(rf"\b(?:{_DUE}) due to\b", decline),
    substitution(rf"\b(is|are|was|were|be|been|being) due to (?=(?:{_SCHEDULED})\b)", r"\1 to "),
    substitution(r"\b(is|are|was|were|be|been|being|not|it['’]s)"
                 r"((?: \w+ly| also)?(?: only)?(?: in (?:large |great )?part)?) (?:due to|because of)\b",
                 r"\1\2 linked to"),
    substitution(r"\b(?:because of|due to) (?=what|how|why|which|whom|doing|being|not)", decline),
    substitution(r"\b(?:mainly |mostly |largely |partly |primarily |simply |just |only |solely |"
                 r"merely )?(?:because of|due to)\b",
                 "with"),
    *_TEMPORAL,
    substitution(r"\breasons? therefore\b|\btherefore(?=[;.])", decline),
    substitution(r",? ?\b(and|or|so|but),? (?:therefore|consequently),?(?= )", r" \1"),
    dropped_adverb("therefore|consequently"),
    substitution(r"\b(?:not|n['’]t|never|no) (?:[^,.;]+ )?(?:just|only|simply|merely|solely) because\b", decline),
    substitution(r"^(\W*)(?:this|that|it)(?: is|['’]s) (?:simply |just |only |mainly |"
                 r"partly )?because (?![^.;]*\b(?:that|,)\b)", r"\1"),
    substitution(r"\b(reasons?(?: \w+){0,6} (?:is|was|are)) (?:simply |just )?because\b", r"\1 that"),
    coordinated("because"),
    substitution(rf"(?<!,) since (?!{PRONOUN}\b|{DETERMINER}\b|(?-i:[A-Z])|\w+s\b|\w+ing\b)", decline),
    coordinated("since"),
]  # fmt: skip

CAUSATION = Rewriter(seed_pattern(CONCEPTS.get("causation")), _CAUSE_STEPS)

_DEGREE = (
    "much|many|long|little|small|great|far|hard|often|slight|slightly|large|strong|good|bad|well|short|high|low|"
    "faint|brief|poor|rich|old|young|trivial|imperfect|imperfectly|remote|true|deep|it may|you look|else"
)
_CONTRAST_STEPS: list[Step] = [
    substitution(r"^(\W*)however: ", r"\1"),
    substitution(r"\bhowever \w+(?=[,.;!?)]|$| [-–—])", decline),
    substitution(rf"\bhowever (?:{_DEGREE})\b", decline),
    substitution(
        r"(?<=\w) however (?=(?:that|to|in|use|have|has|had|is|are|was|were|do|does|did|will|can|may|be|"
        r"still|no|could|would|not)\b)",
        " ",
    ),
    substitution(r"(?<![,;:.!?(\-–—\"“‘'])(?<!\bbut)(?<!\band)(?<=\w) however (?!,)", decline),
    substitution(r"^(\W*)However (?=you\b|they may|we may|he may|she may|it may|I may|to\b)", decline),
    substitution(r"\bdespite (?:of )?the fact that\b", "although"),
    substitution(
        r"\b(?:in despite|despite (?:him|her|my|your|our|them|it)sel\w+|despite (?:what|how|that,))\b", decline
    ),
    substitution(r"(?<=\w) despite (?=(?:not )?(?:\w+ly )?\w+ing\b(?! of\b))", " while "),
    substitution(
        r"(?:^|(?<=[\"“(])|(?<=[,;:] )|(?<= and )|"
        r"(?<=^However, ))despite (?=(?:not )?(?:\w+ly )?\w+ing\b(?! of\b))",
        "",
    ),
    substitution(r"\bdespite\b", "with"),
    substitution(r",? ?\b(?:and|but),? (?:nevertheless|however),?(?= )", ", and"),
    dropped_adverb("however|nevertheless"),
    substitution(r"(?<=, )(?:and |but )?although (?=(?:with|in|at|on|for|by|not|from|of|to)\b)|(?<=\()although ", ""),
    substitution(r"(?<=[\w)\]])(?<!\bthat)(?<!\band)(?<!\bbut)(?<!\byet),? whereas,? (?=\w)", ", and "),
    substitution(r"(?<=[;—–]) whereas (?=\w)", ""),
    coordinated("although|whereas"),
]

CONTRAST = Rewriter(seed_pattern(CONCEPTS.get("contrast")), _CONTRAST_STEPS)
