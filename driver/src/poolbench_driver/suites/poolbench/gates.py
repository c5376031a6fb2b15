"""What the rows of scorers show: gates, and the score ranges that are the unit of D3."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from poolbench.contracts import Row
from poolbench.contracts.measures import GatedScorer
from poolbench.statuses import Status
from poolbench.steps.scorer import GateParams
from poolbench_driver.contract.verification import Check, State

#: The parts of a gate, as `judge_scorer` of the scorer names them.
_PARTS = {("a", None, None), ("b", None, None), *product("c", ("shuffled", "looping"), ("both", "negatives"))}


def check_gates(rows: Sequence[Row], scorers: Collection[str]) -> Check:
    """Return the check `scorers`. The check fails if the rows of a gate contradict one another.

    Otherwise the check of a run with scorers is `unchecked`: gates and score ranges follow from scores of held-out
    passages, and a bundle holds no such scores.
    """
    problems, ranges = list[str](), list[str]()
    for name in sorted(scorers):
        of_scorer = [row for row in rows if row["scorer"] == name and row["metric"].startswith("scorer.")]
        problems += [f"scorer of {name}: {problem}" for problem in _contradictions(of_scorer)]
        scorer = GatedScorer.from_gate(name, [*of_scorer])
        ranges.append(f"{name} {scorer.status if scorer.reason else f'{scorer.score_range:.3f}'}")
    if problems or not ranges:
        return Check.of("scorers", problems, "the run has no scorer")
    note = f"only a rerun measures gates and score ranges, the unit of D3; the bundle says {', '.join(ranges)}"
    return Check("scorers", State.UNCHECKED, note)


def _contradictions(rows: Sequence[Row]) -> Iterator[str]:
    """Yield contradictions between a scorer's verdict and its other rows."""
    parts, verdicts = dict[tuple[str, str | None, str | None], bool](), list[float]()
    for row in rows:
        params = json.loads(row["params"] or "{}")
        if row["metric"] == "scorer.gate" and params.get("part") == "verdict":
            verdicts.append(row["value"])
        elif row["metric"] == "scorer.gate":
            parts[params.get("part"), params.get("texts"), params.get("of")] = _passes(row, params)
        elif row["metric"].endswith("_mean") and row["value"] is not None and not 0 <= row["value"] <= 1:
            yield f"{row['metric']} is {row['value']:g}"
    passed = parts.keys() == _PARTS and all(parts.values())
    if verdicts != [float(passed)]:
        yield f"its gate has the verdict {', '.join(map(str, verdicts))}, and its parts give {float(passed)}"


def _passes(row: Row, params: Mapping[str, Any]) -> bool:
    """Return whether a part of a gate passes by the default limits, or cannot be judged because of too few texts."""
    if row["status"] == Status.TOO_FEW and params.get("rule") is not None:
        return True  # the model's texts hold too little of the concept to judge the scorer by
    if row["value"] is None or row["ci_low"] is None:
        return False
    if params["part"] == "a":
        return bool(row["ci_low"] >= GateParams().min_corpus_auroc)
    if params["part"] == "b":
        return bool(row["ci_low"] > GateParams().min_continuation_auroc)
    return bool(row["ci_high"] <= GateParams().max_degenerate_level)
