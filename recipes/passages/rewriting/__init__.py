"""Rewrite a positive passage of a matched concept into its negative by rules.

Reference: the construction rules of PoolBench's matched concepts. Where a deletion would leave a broken sentence
(`might go`, `We left because it rained`), the marker is replaced by a form that does not express the concept.
Where no rule rewrites a sentence well, the rewriter declines the passage.
"""

from recipes.passages.rewriting.conditionality import CONDITIONALITY
from recipes.passages.rewriting.connectives import CAUSATION, CONTRAST
from recipes.passages.rewriting.engine import Rewrite, Rewriter
from recipes.passages.rewriting.hedging import HEDGING
from recipes.passages.rewriting.legal import LEGAL_FORMALITY
from recipes.passages.rewriting.negation import NEGATION_DENSITY

REWRITERS_REVISION = "rewriters-2"
"""Changes whenever a rule changes the rewrite of any text."""

REWRITES: dict[str, Rewriter] = {
    "hedging": HEDGING,
    "causation": CAUSATION,
    "contrast": CONTRAST,
    "conditionality": CONDITIONALITY,
    "negation_density": NEGATION_DENSITY,
    "legal_formality": LEGAL_FORMALITY,
}
