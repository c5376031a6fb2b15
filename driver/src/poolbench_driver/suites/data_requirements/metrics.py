"""The metrics of the suite."""

from poolbench_driver.contract.suite import BoardSpec, MetricInfo

DIFFERENCE, POWER, RECOMMENDED = "data.difference", "data.power", "data.recommended"
TEST_SIZE, BOUND, PUBLISHED, MARGIN = "data.test_size", "data.bound", "data.bound_published", "data.margin"
TYPE_M, TYPE_S = "data.type_m", "data.type_s"

METRICS = (
    MetricInfo(DIFFERENCE, "accuracy of the second configuration minus that of the first, largest sample", None, -1, 1),
    MetricInfo(POWER, "probability that McNemar's test finds the difference, with one fold of it as test", True, 0, 1),
    MetricInfo(RECOMMENDED, "smallest number of examples, of all splits, whose test has a power of .8", False, 1),
    MetricInfo(TEST_SIZE, "smallest number of test examples with a power of .8, after training on all", False, 1),
    MetricInfo(TYPE_M, "how many times too large a significant difference is on average", False, 1),
    MetricInfo(TYPE_S, "probability that a significant difference has the wrong sign", False, 0, 1),
    MetricInfo(BOUND, "training examples after which no probe can be off by half of the difference", False, 1),
    MetricInfo(PUBLISHED, "the same bound as published, which counts fewer probes than there are", False, 1),
    MetricInfo(MARGIN, "training examples of the bound for each one that is recommended", None, 0),
)
BOARD = BoardSpec(
    ranked=(POWER,),
    shown=(RECOMMENDED, POWER, DIFFERENCE),
    entrant="entrant",
    block="task",
    averaged=False,
    competing=False,
)
