"""Contrastive connectives deleted, or replaced by `and` and `with`, which state no opposition."""

from poolbench.concepts import CONCEPTS
from poolbench_corpora.checks.rules import seed_pattern
from poolbench_corpora.real.rewriting.clauses import coordinated, dropped_adverb
from poolbench_corpora.real.rewriting.engine import Rewriter, Step, decline, substitution

_DEGREE = (
    "much|many|long|little|small|great|far|hard|often|slight|slightly|large|strong|good|bad|well|short|high|low|"
    "faint|brief|poor|rich|old|young|trivial|imperfect|imperfectly|remote|true|deep|it may|you look|else"
)
_STEPS: list[Step] = [
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

CONTRAST = Rewriter(seed_pattern(CONCEPTS.get("contrast")), _STEPS)
