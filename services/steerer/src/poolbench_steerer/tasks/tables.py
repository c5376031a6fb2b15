"""The tables of a task: rows of TEXTS and FLUENCY."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from poolbench.contracts.tables import FLUENCY, SAMPLES, TEXTS, table_from_rows
from poolbench_steerer.plugin.receipts import Receipt
from poolbench_steerer.tasks.plan import PlannedText
from poolbench_steerer.tokens import repeated_4grams


def text_row(planned: PlannedText, text: str, token_ids: Sequence[int], receipt: Receipt | None) -> dict[str, Any]:
    """Return a row of TEXTS, and of SAMPLES where it was sampled."""
    draw = planned.draw
    return {
        **({} if draw is None else draw.columns()),
        "text_id": planned.text_id,
        "prompt_id": planned.prompt.prompt_id,
        "direction_key": planned.direction_key,
        "strength": planned.strength,
        "alpha": planned.alpha,
        "layer": planned.layer,
        "prompt": planned.prompt.text,
        "text": text,
        "token_ids": list(token_ids),
        "num_tokens": len(token_ids),
        "repeated_4grams": repeated_4grams(token_ids),
        "vector_hash": receipt.vector_ids[0] if receipt else None,
        "positions_changed": receipt.positions_changed if receipt else 0,
        "positions_expected": receipt.positions_expected if receipt else 0,
    }


def texts_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return TEXTS from rows; with the columns of SAMPLES where texts were sampled."""
    sampled = any("sample" in row for row in rows)
    return table_from_rows(rows, pa.schema([*TEXTS, *SAMPLES]) if sampled else TEXTS)


def fluency_table(text_ids: Sequence[str], mean_nlls: Sequence[float], counts: Sequence[int]) -> pa.Table:
    """Return FLUENCY: mean negative log-likelihood of each text under the unsteered model, given its prompt."""
    return pa.table({"text_id": text_ids, "mean_nll": mean_nlls, "num_tokens": counts}, schema=FLUENCY)
