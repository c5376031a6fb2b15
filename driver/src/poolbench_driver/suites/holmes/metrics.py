"""The metrics of the suite Holmes."""

from poolbench_driver.contract.suite import BoardSpec, MetricInfo

SCORE, RATE = "holmes.score", "holmes.winning_rate"

METRICS = (
    MetricInfo(SCORE, "macro-F1 of a probing set, or Pearson correlation where it asks for values", True, -1, 1),
    MetricInfo(RATE, "share of (probing set, other entrant) pairs won, ties one half", True, 0, 1, variants=True),
)
BOARD = BoardSpec(
    ranked=(SCORE,),
    shown=(SCORE, "probe.selectivity", "probe.compression"),
    entrant="entrant",
    block="task",
    averaged=False,
    block_name="probing set",
)
