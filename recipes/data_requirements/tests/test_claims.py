"""Claims about data requirements, from comparisons that were made by hand."""

import csv
from pathlib import Path
from typing import Any

import pytest
from recipes.data_requirements.__main__ import LAYER, MODEL, second_sides
from recipes.data_requirements.claims import MLP, PUBLISHED, SCRAMBLED, STATIC, claims_of, claims_table, published_of
from recipes.data_requirements.lengths import LENGTHS
from recipes.data_requirements.models import SHARES

from poolbench_driver.statistics.training_size import required_training_size
from poolbench_driver.suites.data_requirements.config import Configuration, display_name
from poolbench_driver.suites.data_requirements.metrics import DIFFERENCE, POWER, RECOMMENDED
from poolbench_driver.suites.data_requirements.metrics import PUBLISHED as BOUND
from poolbench_driver.suites.data_requirements.report import SetComparison


def comparison(of_set: str, second: str, powers: list[float], recommended: float | None = 600.0) -> SetComparison:
    sizes = [
        {"size": 600 * 2**place, "num_train": 400.0 * 2**place, "num_test": 100.0 * 2**place, "power": power}
        for place, power in enumerate(powers)
    ]
    values: dict[str, float | None] = {
        DIFFERENCE: -0.05, POWER: powers[-1], RECOMMENDED: recommended, BOUND: 40_000.0
    }  # fmt: skip
    figures: dict[str, dict[str, Any]] = {
        name: {"value": value, "ci_low": None, "ci_high": None, "n": 400, "status": "ok" if value else "collapsed"}
        for name, value in values.items()
    }
    return SetComparison(second, of_set, figures, sizes)


COMPARED = [
    comparison("ewt-bigram-shift", SCRAMBLED, [0.5, 0.9, 0.99]),
    comparison("ewt-tense", SCRAMBLED, [0.1, 0.2, 0.3], None),
    comparison("ewt-bigram-shift", STATIC, [0.9, 1.0, 1.0]),
    comparison("ewt-bigram-shift", MLP, [0.1, 0.1, 0.2], None),
    comparison("ewt-coordination-inversion", MLP, [0.1, 0.9, 0.2], None),
]
NOISY = [
    comparison("ewt-tense", f"noise {noise:g}", [low, high, 1.0])
    for noise, low, high in ((0.1, 0.2, 0.5), (1, 0.4, 0.9))
]


def test_claims_are_judged_by_sizes_with_enough_power() -> None:
    claims = list(claims_of(COMPARED, NOISY))
    assert [claim.holds for claim in claims] == [True] * 6
    scrambled, hidden, bound = claims[2], claims[4], claims[5]
    assert scrambled.here == "from 200 test examples on; at no size"
    assert scrambled.published == "from 256 test examples on; from 16,384 test examples on"
    assert hidden.published == hidden.here == "at no size; at no size"  # .9 at one size, and not after it
    assert bound.here == "the bound has 100.0 to 100 times the recommended training examples"  # 40,000 / (600 x 2/3)


def test_claims_that_the_figures_contradict_do_not_hold() -> None:
    reversed_order = [
        comparison("ewt-bigram-shift", SCRAMBLED, [0.1, 0.2], None),
        comparison("ewt-tense", SCRAMBLED, [0.9, 0.9]),
    ]
    falling = [comparison("ewt-tense", "noise 1", [0.9, 0.2]), comparison("ewt-tense", "noise 3", [0.9, 0.1])]
    holds = [claim.holds for claim in claims_of(reversed_order, falling)]
    assert holds == [False, False, False, True]  # without the static words and the MLP


def test_the_table_counts_the_claims_that_hold() -> None:
    text = claims_table(list(claims_of(COMPARED, NOISY)))
    assert "6 hold here" in " ".join(text.split()) and text.count("| yes |") == 6


def test_the_runs_have_the_sides_that_claims_are_about() -> None:
    first, *others = (
        Configuration.model_validate(side).columns(MODEL)
        for side in (f"layer={LAYER}", *second_sides(Path("/models")), f"layer={LAYER},noise=0.01")
    )
    names = [display_name(second, MODEL, first) for second in others]
    assert names[:3] == [f"adapter {name}" for name in SHARES] and names[2:] == [SCRAMBLED, STATIC, MLP, "noise 0.01"]


def test_published_bounds_follow_from_the_published_differences() -> None:
    """Differences are rounded to four decimals, those of the MLP before they were doubled."""
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 95
    for row in rows:
        if not row["num_train"]:
            assert float(row["difference"]) == 0
            continue
        half_a_digit = 1.01e-4 if row["second"] == "mlp-20" else 0.51e-4
        size, most = abs(float(row["difference"])), required_training_size
        assert (most(size + half_a_digit, 768, "published") or 0) <= int(row["num_train"])
        if smallest := most(max(size - half_a_digit, 0.0), 768, "published"):
            assert int(row["num_train"]) <= smallest


@pytest.mark.parametrize(
    ("of_set", "second", "num_test", "bound"),
    [("ewt-bigram-shift", SCRAMBLED, 64, 22_263), (LENGTHS, STATIC, 192, 345_165), ("ewt-tense", "MLP 8", None, None)],
)
def test_published_lines(of_set: str, second: str, num_test: int | None, bound: int | None) -> None:
    lines = published_of(of_set, second)
    assert [(line["num_test"], int(line["num_train"])) for line in lines[:1]] == ([(num_test, bound)] if bound else [])
