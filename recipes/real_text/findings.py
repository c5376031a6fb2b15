"""What the tables of a run say about its concepts: which rank strategies, and which figures can be read."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from poolbench.contracts import Row

#: D1 from which a strategy finds the concept in almost every passage.
SATURATED = 0.95
_SHOWN = ("A1_mean", "P1_last_token")


@dataclass(frozen=True)
class Findings:
    """Figures of each concept, means over layers."""

    d1: Mapping[str, Mapping[str, float]]  # AUROC by concept and strategy
    excess: Mapping[str, Mapping[str, float]]  # D1 beyond the best confound, by concept and strategy
    saturated: Sequence[str]  # concepts on which half of the strategies have a D1 of `SATURATED` or more
    verdicts: Mapping[str, int]  # concepts by the audit's verdict
    gated: Sequence[str]  # concepts whose scorer passed its gate

    @property
    def best(self) -> dict[str, str]:
        """Return the strategy with the highest D1 of each concept."""
        return {concept: max(of, key=lambda name: of[name]) for concept, of in sorted(self.d1.items()) if of}

    def lines(self) -> list[list[str]]:
        """Return one line per concept: best strategy, its D1, that of two others, and the highest excess."""
        return [
            [
                concept,
                strategy,
                _text(self.d1[concept].get(strategy)),
                *(_text(self.d1[concept].get(name)) for name in _SHOWN),
                _text(max(self.excess.get(concept, {}).values(), default=None)),
            ]
            for concept, strategy in self.best.items()
        ]


def findings(rows: Iterable[Row], audit: Iterable[Row]) -> Findings:
    """Return what the rows of `results.parquet` and `audit.parquet` say."""
    held = list(rows)
    d1, excess = _means(held, "d1.auroc"), _means(held, "d1.excess_over_confound")
    saturated = [concept for concept, of in sorted(d1.items()) if of and median(of.values()) >= SATURATED]
    verdicts = {row["concept"]: row["verdict"] or "not audited" for row in audit}
    return Findings(d1, excess, saturated, Counter(verdicts.values()), gated(held))


def gated(rows: Iterable[Row]) -> list[str]:
    """Return the concepts whose scorer passed its gate."""
    verdicts = (row for row in rows if row["metric"] == "scorer.gate" and '"verdict"' in row["params"])
    return sorted({row["scorer"] for row in verdicts if row["value"] == 1})


def _means(rows: Iterable[Row], metric: str) -> dict[str, dict[str, float]]:
    """Return the mean over layers of a metric, by concept and strategy."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["metric"] == metric and row["value"] is not None and row["concept"] is not None:
            values[row["concept"]][row["strategy"]].append(row["value"])
    return {concept: {name: fmean(layer_values) for name, layer_values in of.items()} for concept, of in values.items()}


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:z.2f}"
