"""The metrics of the suite CE-Bench."""

from poolbench_driver.contract.suite import BoardSpec, MetricInfo

PRIMARY, HELD_OUT = "ce.interpretability", "ce.held_out"
MINUS_L0, LOG_WIDTH = "ce.minus_l0", "ce.log_width"
RECOVERED = "ce.loss_recovered"
CONTRASTIVE, INDEPENDENT, EXCESS, PAPER = "ce.contrastive", "ce.independent", "ce.interpretability.excess", "ce.paper"
L0, WIDTH, UNEXPLAINED, DENSE = "ce.l0", "ce.num_features", "ce.unexplained_variance", "ce.dense_share"

#: Metrics of concepts and sets whose figures are of the test split.
ON_TEST = ("d1.auroc_test", "sparse.auroc_test")
METRICS = (
    MetricInfo(PRIMARY, "max z of abs(V1 - V2) + abs(I1 - I2), over the square root of d", True, 0, variants=True),
    MetricInfo("ce.contrastive", "max z of abs(V1 - V2), over the square root of d", True, 0, variants=True),
    MetricInfo("ce.independent", "max z of abs(I1 - I2), over the square root of d", True, 0, variants=True),
    MetricInfo(HELD_OUT, "share of right pairs, by the feature chosen on the subject's other rows", True, 0, 1),
    MetricInfo("ce.paper", "contrastive + independent - .25 L0, as published", True),
    MetricInfo(MINUS_L0, "minus the number of features per token: a score of size alone", True, None, 0),
    MetricInfo(LOG_WIDTH, "log2 of the number of features: a score of size alone", True, 0),
    MetricInfo("ce.l0", "features per token that are not zero", None, 0),
    MetricInfo("ce.num_features", "number d of features", None, 1),
    MetricInfo("ce.unexplained_variance", "squared error of the reconstruction over the variance", False, 0),
    MetricInfo("sparse.auroc", "AUROC out of fold of a probe of k features", True, 0, 1),
    MetricInfo("sparse.auroc_test", "AUROC on the test split of a probe of k features", True, 0, 1),
    MetricInfo("sparse.seed_spread", "standard deviation of sparse.auroc over seeds of folds", False, 0),
    MetricInfo("ce.dead_share", "share of features that are zero on all tokens of the stories", False, 0, 1),
    MetricInfo(RECOVERED, "share of the loss from zeros for states that the reconstruction avoids", True),
    MetricInfo("ce.dense_share", "share of features that are active on over a tenth of the tokens", None, 0, 1),
)
BOARD = BoardSpec(
    ranked=(PRIMARY, HELD_OUT, MINUS_L0, LOG_WIDTH),
    shown=(PRIMARY, HELD_OUT, "ce.contrastive", "ce.independent", "ce.l0", "ce.unexplained_variance", RECOVERED),
    entrant="entrant",
    block="task",
    averaged=False,
)
