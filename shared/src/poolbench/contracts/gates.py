"""Gate and score range of a concept's scorer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poolbench.errors import CellError
from poolbench.statuses import Status


@dataclass(frozen=True)
class GatedScorer:
    """Gate and score range of a concept's scorer, as D2 and D3 need them."""

    concept: str  # its concept; the value of `scorer` in SCORES
    status: Status = Status.OK  # `ok`, `no_scorer` or `scorer_invalid` (the gate failed)
    reason: str = ""  # why it is not ok
    positive_mean: float = 1.0  # mean score of held-out positive passages cut to generation length
    negative_mean: float = 0.0  # the same for negatives

    @property
    def score_range(self) -> float:
        """Return the score of held-out positives minus negatives, the unit of D3's shifts."""
        return self.positive_mean - self.negative_mean

    @property
    def _why(self) -> str:
        return self.reason or f"the scorer of {self.concept} is {self.status}"

    def require_trained(self) -> None:
        """Raise CellError if there is no scorer. The published protocol accepts a failed gate."""
        if self.status not in (Status.OK, Status.SCORER_INVALID):
            raise CellError(self.status, self._why)

    def require_valid(self) -> None:
        """Raise CellError with the scorer's status unless it passed its gate."""
        if self.status != Status.OK:
            raise CellError(self.status, self._why)
        if not self.score_range > 0:
            raise CellError(
                Status.SCORER_INVALID,
                f"the scorer of {self.concept} scores held-out positives {self.positive_mean:.3f} and "
                f"negatives {self.negative_mean:.3f}; positives must score higher",
            )

    @classmethod
    def from_gate(cls, concept: str, rows: list[Mapping[str, Any]]) -> GatedScorer:
        """Read the scorer of `concept` from MEASURES rows of its gate; `no_scorer` if there are none.

        `scorer.gate` is 1 if the gate is passed; rows with a `part` other than `verdict` in their params are single
        checks. `scorer.positive_mean` and `scorer.negative_mean` hold the mean scores.
        """
        # The rows of single checks have another part.
        parts = ((json.loads(row.get("params") or "{}").get("part", "verdict"), row) for row in rows)
        values = {row["metric"]: row for part, row in parts if part == "verdict"}
        gate = values.get("scorer.gate")
        if gate is None:
            return cls(concept, Status.NO_SCORER, f"no scorer was trained for {concept}")
        if gate["value"] != 1:
            reason = gate["reason"] or f"the scorer of {concept} failed its gate"
            return cls(concept, Status.SCORER_INVALID, reason)
        try:
            means = [float(values[f"scorer.{side}_mean"]["value"]) for side in ("positive", "negative")]
        except (KeyError, TypeError):
            reason = f"the scorer of {concept} has no scores on held-out passages"
            return cls(concept, Status.SCORER_INVALID, reason)
        return cls(concept, positive_mean=means[0], negative_mean=means[1])
