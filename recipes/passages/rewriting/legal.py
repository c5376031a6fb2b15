"""Terms of art of legal drafting replaced by plain words."""

from recipes.passages.rewriting.clauses import PRONOUN
from recipes.passages.rewriting.engine import Rewriter, Step, decline, substitution

from poolbench.concepts import CONCEPTS
from poolbench.word_rules import seed_pattern

_STEPS: list[Step] = [
    substitution(r"\bpursuant to\b", "under"),
    substitution(r"\bpursuant thereto\b", "under it"),
    substitution(r"\bpursuant hereto\b", "under this"),
    substitution(r"\bnotwithstanding (?:the fact )?that\b", "although"),
    substitution(r"\bnotwithstanding(?=[,.;:)]|$)", decline),
    substitution(r"\bnotwithstanding\b", "despite"),
    substitution(r"^\W*whereas,", decline),
    substitution(r"\bwhereas\b,? ", "while "),
    substitution(r"\b(contained|described|specified|included|stated|provided|set forth|used|prescribed) therein\b",
                 r"\1 there"),
    substitution(r"\btherein\b", "there"),
    substitution(r"\bthereof\b", "of it"),
    substitution(r"\bthereto\b", "to it"),
    substitution(r"\bthereunder\b", "under it"),
    substitution(r"\bhereto\b", "to this"),
    substitution(r"\bherein\b", "here"),
    substitution(r"\bhereof\b", "of this"),
    substitution(r"\bhereunder\b", "under this"),
    substitution(r"\b(the|this|these|those|said|its|my|our) aforementioned(?= \w)", r"\1 previously mentioned"),
    substitution(r"\baforementioned(?= \w)", "previously mentioned"),
    substitution(r"\bthe aforementioned\b", "the above"),
    substitution(r"\bforthwith\b", "at once"),
    substitution(r"\bas heretofore\b", "as before"),
    substitution(r"\bheretofore\b", "previously"),
    substitution(r" ?\bhereby\b", ""),
    substitution(r"\bprior to\b", "before"),
    substitution(r"\bshall (?=(?:I|we)\b(?!.*\bif\b))", "should "),
    substitution(rf"\bshall (?={PRONOUN}\b)", "will "),
    substitution(r"\bshall\b", "will"),
]  # fmt: skip

LEGAL_FORMALITY = Rewriter(seed_pattern(CONCEPTS.get("legal_formality")), _STEPS)
