"""Compare what was expected of each strategy with what was found."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from poolbench.contracts import Row
from poolbench.statuses import Status
from poolbench_driver.contract.abilities import Conclusion
from poolbench_driver.suites.planted.signals import SIGNALS, Signal

#: AUROC that a strategy must reach where it has to win, and must not exceed where it has to lose. By the definitions
#: the one is 1 and the other .5; the rest is left to the noise of the states and to the number of passages.
WIN, LOSE = 0.9, 0.66
#: A strategy that has no value for one of these reasons cannot read the signal. Any other missing value is a failure.
_UNREADABLE = frozenset({Status.COLLAPSED, Status.NO_COVERAGE, Status.CLASS_DEPENDENT_COVERAGE})
METRIC = "d1.auroc"
_FILE = "planted.json"
_HEAD = "| signal | block | strategy | expected | found | |\n|---|---|---|---|---|---|"

Expected = Literal["win", "lose"]


@dataclass(frozen=True)
class SignalVerdict:
    """The expected result of a strategy on one signal, with the measured AUROC and whether the expectation holds."""

    signal: str
    block: int
    strategy: str
    expected: Expected
    value: float | None  # AUROC
    status: str
    holds: bool

    @property
    def found(self) -> str:
        """Return the AUROC as text, or the status of the result if the AUROC is null."""
        return self.status if self.value is None else f"{self.value:.3f}"

    def __str__(self) -> str:
        return f"{self.strategy} must {self.expected} on {self.signal} and has {self.found}"


def judge(rows: Iterable[Mapping[str, Any]], strategies: Iterable[str] | None = None) -> list[SignalVerdict]:
    """Return a verdict for every expectation about the requested strategies.

    Args:
        rows: Result rows with `metric`, `concept`, `layer`, `strategy`, `value` and `status`. Rows of any metric other
            than `d1.auroc` are ignored.
        strategies: Requested strategies. If a requested strategy has no row, its expectation fails. None means all
            strategies in the rows.
    """
    rows_by_cell = {
        (str(row["concept"]), int(row["layer"]), str(row["strategy"])): row for row in rows if row["metric"] == METRIC
    }
    strategy_ids = {strategy for _, _, strategy in rows_by_cell} if strategies is None else set(strategies)
    return [
        _verdict(signal, strategy, expected, rows_by_cell.get((signal.concept, signal.block, strategy)))
        for signal in SIGNALS
        for expected, strategy in expectations(signal)
        if strategy in strategy_ids
    ]


def expectations(signal: Signal) -> list[tuple[Expected, str]]:
    """Return pairs of expected result (`win` or `lose`) and strategy for a signal."""
    return [*(("win", name) for name in signal.wins), *(("lose", name) for name in signal.loses)]


def _verdict(signal: Signal, strategy: str, expected: Expected, row: Mapping[str, Any] | None) -> SignalVerdict:
    value, status = (row["value"], str(row["status"])) if row is not None else (None, "not measured")
    if value is None:
        holds = expected == "lose" and status in _UNREADABLE
    else:
        holds = value >= WIN if expected == "win" else value <= LOSE
    return SignalVerdict(signal.id, signal.block, strategy, expected, value, status, holds)


def conclude(rows: Sequence[Row], strategies: Sequence[str] | None) -> Conclusion:
    """Judge a run. Return the failed expectations, and a table of all expectations with their measured values."""
    verdicts = judge(rows, strategies)
    listed = [asdict(verdict) | {"found": verdict.found} for verdict in verdicts]
    wrong = [verdict for verdict in verdicts if not verdict.holds]
    count = f"{len(verdicts) - len(wrong)} of {len(verdicts)} expectations hold"
    return Conclusion([str(verdict) for verdict in wrong], f"{_table(verdicts)}\n{count}", {_FILE: listed})


def _table(verdicts: Sequence[SignalVerdict]) -> str:
    rows = [
        f"| {verdict.signal} | {verdict.block} | {verdict.strategy} | {verdict.expected} | {verdict.found} "
        f"| {'' if verdict.holds else 'WRONG'} |"
        for verdict in verdicts
    ]
    return "\n".join([_HEAD, *rows])
