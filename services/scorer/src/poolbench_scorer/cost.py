"""The cost of training and scoring, computed from sizes before a model reads any text."""

from collections.abc import Iterable
from dataclasses import dataclass

from poolbench.contracts.bounds import require_at_most
from poolbench.steps.scorer import TrainParams

#: Epochs where none are named and mode or device decide.
_MOST_EPOCHS = 6


@dataclass(frozen=True)
class Limits:
    """The cost allowed for one request or task."""

    windows: int  # windows that are trained on; mode head keeps the states of all of them, up to 200 kB each
    steps: int  # windows times epochs
    characters: int
    resamples: int  # resamples times texts
    remedy: str


REQUEST = Limits(20_000, 200_000, 20_000_000, 50_000_000, "send less at a time, or make it a run")
TASK = Limits(200_000, 20_000_000, 1_000_000_000, 500_000_000, "plan smaller tasks")


def require_training(num_passages: int, params: TrainParams, limits: Limits) -> None:
    """Raise TooLargeError, with the number and the limit, if a training would cost too much."""
    # An import trains nothing, and scores windows of the validation passages alone.
    windows = num_passages * (1 if params.mode == "import" else 1 + params.num_windows)
    steps = windows * (params.epochs or _MOST_EPOCHS)
    resamples = num_passages * params.num_bootstrap
    require_at_most("windows (passages x (1 + num_windows))", windows, limits.windows, limits.remedy)
    require_at_most("windows x epochs", steps, limits.steps, limits.remedy)
    require_at_most("passages x num_bootstrap", resamples, limits.resamples, limits.remedy)


def require_scoring(texts: Iterable[str | None], limits: Limits) -> None:
    """Raise TooLargeError, with the number and the limit, if the texts are too long together."""
    require_at_most("characters in texts", sum(len(text or "") for text in texts), limits.characters, limits.remedy)
