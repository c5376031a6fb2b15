"""Why figures of a run are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from poolbench.contracts import Row
from poolbench.statuses import Status


def null_reasons(rows: Sequence[Row]) -> list[Row]:
    """Return how many cells are null, by metric family and status, with an example of the reason."""
    counts: Counter[tuple[str, str]] = Counter()
    reasons: dict[tuple[str, str], str] = {}
    for row in rows:
        if row["status"] != Status.OK:
            key = (row["metric"].split(".")[0], row["status"])
            counts[key] += 1
            reasons.setdefault(key, row["reason"] or "")
    return [{"family": k[0], "status": k[1], "count": n, "reason": reasons[k]} for k, n in counts.most_common()]
