"""The metrics of the suite Humanoid."""

from poolbench_driver.contract.suite import BoardSpec, MetricInfo

SHIFTS = {
    "shift.variance": "variance of the valences over the words, after the fine-tune minus before",
    "shift.valence": "mean change of valence: cosine to liked words minus cosine to disliked ones",
    "shift.log_variance": "logarithm of the ratio of the variances, after over before",
}
PRIMARY = "shift.variance"

METRICS = (
    *(MetricInfo(name, summary, True) for name, summary in SHIFTS.items()),
    MetricInfo("shift.favourites", "words that stand out more than any word of a neutral fine-tune", None, 0),
    MetricInfo("shift.plane_share", "share of the variance of the words that the figure's plane shows", None, 0, 1),
)
BOARD = BoardSpec(
    ranked=(PRIMARY,),
    shown=(PRIMARY, f"{PRIMARY}.excess_neutral", f"{PRIMARY}.rank_neutral", "shift.valence", "shift.favourites"),
    entrant="entrant",
    block="task",
    apart="concept",
)
