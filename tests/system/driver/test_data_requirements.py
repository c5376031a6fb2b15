"""What the recommended size of pilots promises, with probes of the prober."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from poolbench.steps.prober import PilotParams
from poolbench_driver.statistics.mcnemar import mcnemar_test
from poolbench_driver.statistics.pilots import recommended_size
from poolbench_driver.suites.data_requirements.size_comparison import SizeComparison, compare_sizes
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing import Targets, pilot_answers


def planted(rng: np.random.Generator, count: int, spread: float = 0.7) -> tuple[Targets, np.ndarray]:
    """A task of two classes that six numbers decide but for noise; every sixth example is test, the next one dev."""
    vectors = rng.standard_normal((count, 6))
    codes = (vectors.sum(axis=1) / np.sqrt(6) + spread * rng.standard_normal(count) > 0).astype(int)
    splits = np.array(["test", "dev", "train", "train", "train", "train"])[np.arange(count) % 6]
    return Targets(tuple(f"{n:07}" for n in range(count)), ("a", "b"), codes, np.arange(count), splits), vectors


def sides(task: tuple[Targets, np.ndarray], noise: float, **params: Any) -> list[pa.Table]:
    targets, vectors = task
    common = {"c_values": (1.0,), **params}
    return [
        pilot_answers(targets, PooledVectors.from_matrix(vectors), PilotParams(noise=at, **common))
        for at in (0.0, noise)
    ]


@pytest.mark.lane(name="simulations")
def test_the_recommended_size_keeps_its_promise_and_half_of_it_does_not() -> None:
    """Of 450 repetitions with fresh data, .8 find the difference at the size that pilots recommend."""
    kept, halved = [], []
    for number, noise in enumerate((0.8, 1.0, 1.2)):
        rng = np.random.default_rng(number)
        pilots = sides(planted(rng, 60_000), noise, sizes=(600, 1200, 2400), seeds=tuple(range(100)))
        compared = [at for at in compare_sizes(*pilots, 0.05).values() if isinstance(at, SizeComparison)]
        size = recommended_size([at.pilot for at in compared])
        assert size is not None and 600 < size < 2400
        for powers, count, repetitions in ((kept, size, 150), (halved, size // 2, 100)):
            found = 0
            for repetition in range(repetitions):
                fresh = planted(np.random.default_rng((number, count, repetition)), count)
                rights = [
                    table["right"].to_numpy(zero_copy_only=False).astype(bool)
                    for table in sides(fresh, noise, sizes=(count,), seeds=(repetition,), folds=1)
                ]
                only_first, only_second = int((rights[0] & ~rights[1]).sum()), int((~rights[0] & rights[1]).sum())
                found += only_first > only_second and float(mcnemar_test(only_first, only_second)) <= 0.05
            powers.append(found / repetitions)
    assert np.mean(kept) == pytest.approx(0.8, abs=0.05), kept
    assert max(halved) < 0.7, halved
