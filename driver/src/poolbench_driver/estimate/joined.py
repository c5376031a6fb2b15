"""The estimate of several runs, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from poolbench_driver.estimate.estimate import Estimate, StageEstimate
from poolbench_driver.estimate.quantities import Range, total


def joined(found: Sequence[Estimate]) -> Estimate:
    """Return the sum of estimates for one cluster. A quantity that one of them lacks is None."""
    by_kind: dict[str, list[StageEstimate]] = {}
    for stage in (stage for each in found for stage in each.stages):
        by_kind.setdefault(stage.kind, []).append(stage)
    reasons = dict.fromkeys(each.reason for each in found if each.reason)
    elapsed = _sum(each.elapsed_hours for each in found)
    return Estimate(found[0].cluster, tuple(map(_stage, by_kind.values())), elapsed, "; ".join(reasons))


def _stage(stages: Sequence[StageEstimate]) -> StageEstimate:
    sources = {stage.source for stage in stages}
    works = [stage.work for stage in stages]
    return StageEstimate(
        stages[0].kind,
        sum(stage.num_tasks for stage in stages),
        None if None in works else sum(work for work in works if work is not None),
        stages[0].unit,
        sources.pop() if len(sources) == 1 else "none" if "none" in sources else "both",
        next((stage.reason for stage in stages if stage.reason), ""),
        _sum(stage.hours for stage in stages),
        _sum(stage.gpu_hours for stage in stages),
        total(stage.num_bytes for stage in stages),
        _sum(stage.money for stage in stages),
    )


def _sum(found: Iterable[Range | None]) -> Range | None:
    ranges = list(found)
    known = [each for each in ranges if each is not None]
    return total(known) if len(known) == len(ranges) else None
