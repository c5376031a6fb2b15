"""What training and scoring may cost, by sizes alone."""

import pytest

from poolbench.errors import TooLargeError
from poolbench.steps.scorer import TrainParams
from poolbench_scorer.cost import Limits, require_scoring, require_training

LIMITS = Limits(windows=40, steps=100, characters=10, resamples=4000, remedy="send less")


@pytest.mark.parametrize(
    ("num_passages", "params", "said"),
    [
        (10, {"num_windows": 3, "epochs": 2, "num_bootstrap": 100}, None),
        (11, {"num_windows": 3, "epochs": 2, "num_bootstrap": 100}, r"windows .*: 44; the limit is 40; send less"),
        (10, {"num_windows": 3, "epochs": 3, "num_bootstrap": 100}, r"windows x epochs: 120;"),
        (10, {"num_windows": 3, "epochs": 2, "num_bootstrap": 401}, r"passages x num_bootstrap: 4,010;"),
        (40, {"num_windows": 3, "epochs": 2, "num_bootstrap": 100, "mode": "import"}, None),
    ],
)
def test_a_training_is_refused_by_windows_steps_and_resamples(num_passages, params, said) -> None:
    params = TrainParams(concept="contrast", **params)
    if said is None:
        require_training(num_passages, params, LIMITS)
    else:
        with pytest.raises(TooLargeError, match=said):
            require_training(num_passages, params, LIMITS)


def test_texts_are_counted_together() -> None:
    require_scoring(["12345", None, "67890"], LIMITS)
    with pytest.raises(TooLargeError, match="characters in texts: 11;"):
        require_scoring(["12345", "678901"], LIMITS)
