"""The planted suite: texts and a model where the definitions alone say which strategies read a signal.

`words` has the vectors, `signals` what is expected, `passages` the texts, `judge` the comparison.
"""

from poolbench.suites.planted.judge import METRIC, Verdict, judge
from poolbench.suites.planted.passages import NUM_PAIRS, NUM_TEST_PAIRS, all_passages, planted_passages
from poolbench.suites.planted.signals import SIGNALS, TEXTS, Signal, concept_id, judged_strategies

__all__ = [
    "METRIC",
    "NUM_PAIRS",
    "NUM_TEST_PAIRS",
    "SIGNALS",
    "TEXTS",
    "Signal",
    "Verdict",
    "all_passages",
    "concept_id",
    "judge",
    "judged_strategies",
    "planted_passages",
]
