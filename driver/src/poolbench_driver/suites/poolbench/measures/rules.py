"""Settings of D2 and D3."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SteeringRules:
    """Settings of the D2 and D3 figures; all of them enter the rows or are fixed by the metric version."""

    reference_strength: float = 0.125  # strength of `d2.scp_1` and `d2.fluency`, in the run's unit of strength
    null_strengths: tuple[float, ...] = (0.0, 0.06, 0.125, 0.25)  # of the null directions and excess figures
    min_perplexity_ratio: float = 0.67  # smallest perplexity ratio of a fluent strength (loops are cheap)
    max_perplexity_ratio: float = 1.5  # largest perplexity ratio of a fluent strength
    max_added_repetition: float = 0.1  # bound on the added share of repeated 4-grams of a fluent strength
    num_bootstrap: int = 1000  # paired resamples of the openings
    seed: int = 0  # seed of the resamples and of the halves of the openings
    level: float = 0.95  # level of the intervals
    direction: str = "C1"  # construction method of the steering directions
