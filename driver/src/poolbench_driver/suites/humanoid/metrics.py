"""The metrics of the suite Humanoid."""

from poolbench_driver.contract.suite import BoardSpec, MetricInfo

PRIMARY, VALENCE, LOG_VARIANCE = "shift.variance", "shift.valence", "shift.log_variance"
#: The two parts of the change of valence.
TOWARDS, AWAY = "shift.towards", "shift.away"
#: Changes that the words have, and texts along a direction too.
CHANGES = {
    PRIMARY: "variance of the valences over the words, after the fine-tune minus before",
    VALENCE: "mean change of valence: cosine to liked words minus cosine to disliked ones",
    LOG_VARIANCE: "logarithm of the ratio of the variances, after over before",
}
SHIFTS = CHANGES | {
    TOWARDS: "mean change of the cosine to liked words, the Score of the Humanoid benchmark",
    AWAY: "mean change of the cosine to disliked words, with the opposite sign",
}

METRICS = (
    *(MetricInfo(name, summary, True) for name, summary in SHIFTS.items()),
    MetricInfo("shift.favourites", "words that stand out more than any word of a neutral fine-tune", None, 0),
    MetricInfo("shift.plane_share", "share of the variance of the words that the figure's plane shows", None, 0, 1),
)
BOARD = BoardSpec(
    ranked=(PRIMARY,),
    shown=(
        *(PRIMARY, f"{PRIMARY}.excess_neutral", f"{PRIMARY}.rank_neutral"),
        *(VALENCE, TOWARDS, AWAY, "shift.favourites"),
    ),
    entrant="entrant",
    block="task",
    apart="concept",
    planned_difference=0.001,  # published fine-tunes change the variance by .0003 to .0035
)
