"""How much one task may generate."""

from __future__ import annotations

from poolbench.contracts.bounds import require_at_most

#: Texts, and new tokens, of one task.
MAX_TEXTS, MAX_TASK_TOKENS = 1_000_000, 100_000_000
_REMEDY = "plan smaller tasks"


def require_affordable(num_texts: int, max_tokens: int) -> None:
    """Refuse a task that would generate too much, before its texts are planned.

    Raises:
        TooLargeError: Naming the number and the limit.
    """
    require_at_most("texts (prompts x directions x strengths x samples)", num_texts, MAX_TEXTS, _REMEDY)
    require_at_most("new tokens (texts x max_tokens)", num_texts * max_tokens, MAX_TASK_TOKENS, _REMEDY)
