"""Long work of every service ends at its next step once nobody waits for it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from poolbench.cancellation import Work, WorkCancelledError, working


class Counting(Work):
    """Is cancelled at its n-th check."""

    def __init__(self, ends_at: int) -> None:
        super().__init__()
        self.ends_at = ends_at
        self.num_checks = 0

    def check(self) -> None:
        self.num_checks += 1
        if self.num_checks == self.ends_at:
            self.cancel("the client has gone")
        super().check()


def _probe() -> None:
    from poolbench_prober.answers import answer_probe
    from poolbench_prober.requests import ProbeRequest

    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(40, 8)).tolist(), [i % 2 for i in range(40)]
    answer_probe(ProbeRequest.model_validate({"vectors": vectors, "labels": labels, "params": {"folds": 2}}))


def _annotate() -> None:
    from poolbench_pooler.config import AnnotateRequest
    from poolbench_pooler.service import create

    create().annotate_texts(AnnotateRequest(texts=["The harbour was quiet.", "Ships came.", "It rained."]))


def _pool() -> None:
    from poolbench_pooler.config import PoolRequest
    from poolbench_pooler.service import create

    states: dict[str, Any] = {"hidden_states": [[1.0, 2.0]] * 3, "strategies": ["A1_mean"]}
    create().pool_states(PoolRequest.model_validate(states))


def _embed() -> None:
    from poolbench_extractor.config import EmbedRequest
    from poolbench_extractor.service import create

    create().embed(EmbedRequest(texts=["A text."], model="demo", strategy="A1_mean", layer=2))


def _permute() -> None:
    from poolbench.statistics.paired import paired_permutation_test

    paired_permutation_test(np.random.default_rng(0).normal(size=200), num_resamples=100_000)


@pytest.mark.parametrize(("work", "ends_at"), [(_probe, 30), (_annotate, 2), (_pool, 1), (_embed, 1), (_permute, 2)])
def test_work_ends_in_the_middle(work: Callable[[], None], ends_at: int) -> None:
    counting = Counting(ends_at)
    with working(counting), pytest.raises(WorkCancelledError, match="gone"):
        work()
    assert counting.num_checks == ends_at


def test_work_that_is_wanted_is_not_changed() -> None:
    """The checks are there, and do nothing."""
    counting = Counting(0)
    with working(counting):
        _probe()
    assert counting.num_checks > 30
