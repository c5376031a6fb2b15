"""Check a concept as a whole by D1: saturation, alarms and collapsed vectors."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from poolbench.contracts import Row
from poolbench.contracts.measures import Measure
from poolbench.statuses import Status

#: AUROC from which a strategy counts as at the ceiling.
CEILING = 0.99


def concept_check_rows(cells: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return rows of `d1.saturation`, `d1.alarms` and `d1.collapses` per concept and layer, without strategy.

    Only corrected rows of `d1.auroc` are read. If most strategies reach .99, the first row carries a flag as its
    reason.
    """
    gathered: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for cell in cells:
        if cell["metric"] == "d1.auroc" and cell["status"] != Status.NOT_IMPLEMENTED:
            gathered[cell["concept"], cell["layer"]].append(cell)
    return [
        {**measure.to_row(), "concept": concept, "layer": layer, "split": "train"}
        for (concept, layer), rows in sorted(gathered.items())
        for measure in _checks(rows)
    ]


def _checks(rows: list[Mapping[str, Any]]) -> list[Measure]:
    auroc_rows = [row for row in rows if row["value"] is not None]
    collapsed = [row["strategy"] for row in rows if row["status"] == Status.COLLAPSED]
    if not auroc_rows:
        reason = "no strategy has an AUROC on this concept"
        measures = [Measure.null(name, Status.TOO_FEW, reason) for name in ("d1.saturation", "d1.alarms")]
    else:
        high = [row["strategy"] for row in auroc_rows if row["value"] >= CEILING]
        alarmed = [row["strategy"] for row in auroc_rows if row["reason"]]  # the reason of a value is its alarm
        measures = [_saturation(high, len(auroc_rows)), _share("d1.alarms", alarmed, len(auroc_rows), _alarms(alarmed))]
    return [*measures, _share("d1.collapses", collapsed, len(rows), None)]


def _saturation(high: list[str], count: int) -> Measure:
    flag = f"saturated: {len(high)} of {count} strategies reach {CEILING}; their order says little"
    return _share("d1.saturation", high, count, flag if 2 * len(high) > count else None)


def _alarms(alarmed: list[str]) -> str | None:
    return f"alarm: below .5 by more than 2 standard errors: {', '.join(sorted(alarmed))}" if alarmed else None


def _share(metric: str, strategies: list[str], count: int, reason: str | None) -> Measure:
    details = {"strategies": sorted(strategies)}
    return Measure.of(metric, len(strategies) / count, n=count, reason=reason, details=details)
