"""Power, training size and pilots: published figures, enumeration one by one, simulation, hand computations."""

import math

import numpy as np
import pytest
from scipy import stats

from poolbench.statistics.inputs import StatisticError
from poolbench_driver.statistics.mcnemar import mcnemar_power, mcnemar_size, mcnemar_test, mean_power, shares_of
from poolbench_driver.statistics.paired_power import paired_power, paired_size
from poolbench_driver.statistics.pilots import SizePilot, recommended_size, rotation_interval, size_power
from poolbench_driver.statistics.training_size import (
    num_parameters,
    recommend_training_size,
    required_training_size,
    total_size,
)


def enumerated(p01, p10, n, alpha):
    """Power, type-M and type-S by going through every table of n passages."""
    right = wrong = magnitude = 0.0
    for n01 in range(n + 1):
        for n10 in range(n + 1 - n01):
            if stats.binomtest(n01, n01 + n10).pvalue > alpha if n01 + n10 else True:
                continue
            chance = stats.multinomial.pmf([n01, n10, n - n01 - n10], n, [p01, p10, max(0.0, 1 - p01 - p10)])
            right += chance * ((n01 - n10) * (p01 - p10) > 0)
            wrong += chance * ((n01 - n10) * (p01 - p10) < 0)
            magnitude += chance * abs(n01 - n10) / n
    return right, magnitude / (right + wrong) / abs(p01 - p10), wrong / (right + wrong)


def test_power_by_published_values_by_symmetry_and_where_there_is_none():
    found = mcnemar_power(0.0225, 0.0025, 500, 0.05)
    assert found.power == pytest.approx(0.7976, abs=5e-5)
    assert found.type_m == pytest.approx(1.1158, abs=5e-5)
    assert mcnemar_power(0.05, 0.02, 200, 0.05) == pytest.approx(mcnemar_power(0.02, 0.05, 200, 0.05))
    powers = [mcnemar_power(0.05, 0.02, n, 0.05).power for n in (100, 400, 1600, 100_000)]
    assert powers == sorted(powers) and powers[-1] == pytest.approx(1)
    found = mcnemar_power(0.5, 0.1, 3, 0.05)  # three heads have p .25
    assert found.power == 0 and math.isnan(found.type_m)


@pytest.mark.parametrize(
    ("p01", "p10", "n", "alpha"),
    [(0.3, 0.1, 25, 0.05), (0.1, 0.3, 25, 0.1), (0.2, 0.15, 30, 0.2), (0.9, 0.1, 20, 0.05)],
)
def test_power_agrees_with_every_table(p01, p10, n, alpha):
    assert mcnemar_power(p01, p10, n, alpha) == pytest.approx(enumerated(p01, p10, n, alpha), rel=1e-9)


def test_power_refuses_what_has_none():
    with pytest.raises(StatisticError) as caught:
        mcnemar_power(0.1, 0.1, 100, 0.05)
    assert caught.value.status == "no_effect"
    with pytest.raises(StatisticError, match="at least one passage"):
        mcnemar_power(0.1, 0.2, 0, 0.05)
    with pytest.raises(ValueError, match="up to 1,000,000,000 passages"):
        mcnemar_power(0.1, 0.2, 10**15)
    for wrong in ((0.7, 0.6, 10, 0.05), (-0.1, 0.2, 10, 0.05), (0.1, 0.2, 10, 1.5), (np.nan, 0.2, 10, 0.05)):
        with pytest.raises(ValueError, match=r"probabilities|alpha"):
            mcnemar_power(*wrong)


@pytest.mark.parametrize(
    ("effect", "width", "expected"), [(42 / 320, 768, 22263), (63 / 1280, 768, 158315), (62 / 960, 4096, 95156)]
)
def test_published_sizes(effect, width, expected):
    assert required_training_size(effect, width, "published") == expected
    assert required_training_size(-effect, width, "published") == expected


def test_only_the_corrected_size_depends_on_the_number_of_classes():
    """The paper prints 95,156 for a task with six classes: its |F| is (d + 1) 2^32."""
    assert required_training_size(62 / 960, 4096, "published", num_outputs=6) == 95156
    bound = 2 * (math.log(2) + 32 * 6 * 4097 * math.log(2) + math.log(1e8)) / (31 / 960) ** 2
    assert required_training_size(62 / 960, 4096, num_outputs=6) == math.floor(bound)


def test_corrected_size_counts_every_weight_and_no_effect_has_none():
    bound = 2 * (math.log(2) + 32 * 769 * math.log(2) + math.log(1e8)) / (0.13125 / 2) ** 2
    assert required_training_size(0.13125, 768, "corrected") == math.floor(bound)
    assert required_training_size(0.13125, 768, "corrected") > 300 * required_training_size(0.13125, 768, "published")
    assert required_training_size(1.9e-5, 768, "published") is None
    assert required_training_size(2.1e-5, 768, "published") is not None
    assert recommend_training_size(0.0, 768).status == "no_effect"


def test_parameters_by_hand_and_the_published_size_of_an_mlp():
    """Footnote 6 of Zhu et al. (2022): 801,472 for logistic regression on BERT's 768 numbers, 851,578 for its MLP."""
    assert (num_parameters(768), num_parameters(768, num_outputs=5)) == (769, 3845)
    assert (num_parameters(768, 20), num_parameters(767, 21, num_outputs=5)) == (15401, 21 * 768 + 5 * 22)
    assert required_training_size(7 / 320, 768, "published") == 801_472
    assert required_training_size(7 / 320, 768, "published", hidden=20) == 851_578
    others = [required_training_size(7 / 320, 768, "published", hidden=hidden) for hidden in (19, 21)]
    assert 851_578 not in others
    assert recommend_training_size(7 / 320, 768, "published", hidden=20).num_train == 851_578


@pytest.mark.parametrize(
    ("criterion", "num_risks", "largest_loss"), [("accuracy", 1, 1), ("control", 2, 1), ("code-length", 1, 2)]
)
@pytest.mark.parametrize("hidden", [None, 20])
def test_at_the_bound_hoeffdings_inequality_leaves_a_chance_of_1e_8(criterion, num_risks, largest_loss, hidden):
    effect, log_probes = 0.02, math.log(num_parameters(768, hidden)) + 32 * math.log(2)
    size = required_training_size(effect, 768, "published", hidden=hidden, criterion=criterion)
    accuracy = effect / 2 / num_risks
    log_chance = math.log(2 * num_risks) + log_probes - 2 * size * accuracy**2 / (2 * largest_loss) ** 2
    assert log_chance == pytest.approx(math.log(1e-8), abs=1e-3)


@pytest.mark.parametrize(
    "wrong", [(1.5, 8, "published"), (math.nan, 8, "published"), (0.1, 0, "published"), (0.1, 8, "old")]
)
def test_size_refuses(wrong):
    with pytest.raises(ValueError, match=r"effect|width|protocol"):
        required_training_size(*wrong)
    with pytest.raises(StatisticError):
        recommend_training_size(*wrong)


def test_collapsed_comparison_is_null():
    found = recommend_training_size(0.02, 768, interval=(-0.01, 0.05), power=0.4)
    assert (found.num_train, found.num_total, found.status) == (None, None, "collapsed")
    assert recommend_training_size(0.02, 768, interval=(0.01, 0.03), power=0.4).status == "ok"
    assert recommend_training_size(0.02, 768, interval=(-0.01, 0.05), power=0.9).status == "ok"


def test_totals_of_splits_and_sizes_that_overflow():
    assert total_size(100) == 150
    assert total_size(22263) == 33395  # 33394.5: no half passages
    assert total_size(70, (7, 1, 2)) == 100
    with pytest.raises(ValueError, match="positive shares"):
        total_size(10, (4, 0, 1))
    with pytest.raises(ValueError, match="width"):
        required_training_size(0.1, math.inf)
    with pytest.raises(ValueError, match="millionth"):
        total_size(10, (1e-308, 1e308))
    with pytest.raises(StatisticError) as caught:
        recommend_training_size(0.1, 8, interval=(math.nan, math.nan), power=0.1)
    assert caught.value.status == "non_finite"


@pytest.mark.parametrize("n", range(1, 13))
@pytest.mark.parametrize("alpha", [0.0625, 0.125, 0.21875, 0.25, 0.5])
def test_power_at_a_level_that_p_can_equal(n, alpha):
    """Levels such as 2 / 2^5 are p-values that occur; the test counts them as significant, and so must its power."""
    expected = enumerated(0.3, 0.1, n, alpha)[:1] if 2 / 2**n <= alpha else (0.0,)
    assert mcnemar_power(0.3, 0.1, n, alpha)[:1] == pytest.approx(expected)


def test_mcnemar_is_the_exact_binomial_test():
    """By hand: of 8 discordant pairs one is for the first, 2 (1 + 8) / 2^8; and each p-value by scipy's own test."""
    assert mcnemar_test(1, 7) == pytest.approx(18 / 256)
    counts = np.random.default_rng(0).integers(0, 12, (50, 2))
    expected = [stats.binomtest(a, a + b).pvalue if a + b else 1.0 for a, b in counts.tolist()]
    assert mcnemar_test(*counts.T) == pytest.approx(expected)
    assert mcnemar_test(0, 0) == 1.0 and mcnemar_test(3, 3) == 1.0
    with pytest.raises(ValueError, match="negative"):
        mcnemar_test(-1, 3)


def test_shares_of_a_planned_difference_by_hand():
    assert shares_of(0.1, 0.3) == pytest.approx((0.2, 0.1))
    assert shares_of(-0.4, 0.3) == pytest.approx((0.0, 0.4))  # a discordance of .4 is the least for it


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([(0.0225, 0.0025)], 503),
        ([(0.0025, 0.0225)], 503),
        ([(0.3, 0.0)], 25),
        ([(0.2, 0.1), (0.1, 0.1)], None),  # half of the pilots have no power
        ([(0.2, 0.1)] * 4 + [(0.1, 0.11)], None),  # one of five has another sign
        ([(0.1001, 0.1)], None),  # more passages than are tried
    ],
)
def test_the_smallest_number_of_passages_with_power(shares: list[tuple[float, float]], expected: int | None) -> None:
    assert mcnemar_size(shares) == expected
    for power in (0.0, 1.0):
        with pytest.raises(ValueError, match=f"a power lies between 0 and 1, got {power}"):
            mcnemar_size(shares, power)


@pytest.mark.parametrize("shares", [(0.7, 0.3), (0.6, 0.4), (0.42, 0.58), (0.66, 0.33), (0.9, 0.1), (1.0, 0.0)])
@pytest.mark.parametrize(("power", "alpha"), [(0.8, 0.05), (0.2, 0.2), (0.95, 0.01)])
def test_no_smaller_number_is_enough_where_nearly_all_passages_are_discordant(
    shares: tuple[float, float], power: float, alpha: float
) -> None:
    """By going through all numbers; (.7, .3) has a power of .8 with 49 passages, not with 50, and again with 51."""
    expected = next(n for n in range(1, 700) if mcnemar_power(*shares, n, alpha).power >= power)
    assert mcnemar_size([shares], power, alpha) == expected


def test_the_power_of_several_pilots_is_the_mean_of_each() -> None:
    shares = [(0.2, 0.1), (0.3, 0.1), (0.25, 0.2)]
    n = mcnemar_size(shares, 0.6)
    assert n is not None
    before, after = (np.mean([mcnemar_power(*pair, count).power for pair in shares]) for count in (n - 1, n))
    assert before < 0.6 <= after


@pytest.mark.parametrize(
    ("effect", "n", "power"),
    [
        (0.2, 17, 0.11823607969684446), (0.5, 4, 0.10808323726269475), (0.5, 34, 0.8077766855149761),
        (1.0, 6, 0.5068166814068775), (1.5, 2, 0.1325694841468087), (0.05, 3000, 0.781648199028625),
    ],
)  # fmt: skip
def test_power_of_the_paired_t_test_is_that_of_statsmodels(effect: float, n: int, power: float) -> None:
    """statsmodels 0.15, `TTestPower().power(effect, n, .025, alternative="larger")`: the tail of the right sign."""
    assert paired_power(effect, n) == pytest.approx(power, abs=1e-9)
    assert paired_power(-effect, n) == paired_power(effect, n)


@pytest.mark.parametrize(("effect", "size"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (2.0, 5), (5.0, 3)])
def test_the_smallest_number_of_pairs_is_that_of_statsmodels(effect: float, size: int) -> None:
    """`TTestPower().solve_power` gives 198.15, 33.37, 14.30, 9.94, 4.22 and 2.49."""
    assert paired_size(effect) == size
    assert paired_power(effect, size) >= 0.8 and (size == 2 or paired_power(effect, size - 1) < 0.8)


def test_pairs_that_all_differ_or_hardly_differ() -> None:
    assert paired_power(math.inf, 2) == 1.0 and paired_size(math.inf) == 2 and paired_size(1e12) == 2
    assert paired_size(0.001) is None and paired_size(0.03, most=100) is None
    assert paired_size(0.5, most=34) == 34 and paired_size(0.5, most=33) is None


@pytest.mark.parametrize(
    ("effect", "n", "reason"), [(0.5, 1, "needs two pairs or more, got 1"), (0.0, 9, "mean difference is 0")]
)
def test_the_paired_t_test_has_no_power_without_pairs_or_difference(effect: float, n: int, reason: str) -> None:
    with pytest.raises(StatisticError, match=reason):
        paired_power(effect, n)


def pilots(*sizes: tuple[int, list[tuple[float, float]]]) -> list[SizePilot]:
    return [SizePilot(size, size / 6, shares) for size, shares in sizes]


def test_the_power_is_the_mean_over_seeds_and_a_seed_of_another_sign_has_none() -> None:
    shares = [(0.2, 0.1), (0.15, 0.1), (0.1, 0.12)]
    expected = (mcnemar_power(0.2, 0.1, 200).power + mcnemar_power(0.15, 0.1, 200).power) / 3
    assert mean_power(shares, 200) == pytest.approx(expected)
    assert mean_power([(0.1, 0.1)], 200) == 0.0


def test_outside_of_the_sizes_the_shares_of_the_nearest_one_count() -> None:
    shares = [(0.2, 0.12)] * 5
    found = recommended_size(pilots((100, [(0.5, 0.5)] * 5), (600, shares)))
    assert found == 6 * mcnemar_size(shares) == 2466
    assert found is not None and size_power(pilots((600, shares)), found) >= 0.8
    assert size_power(pilots((600, shares)), found - 6) < 0.8
    tried = pilots((3000, [(0.4, 0.1)] * 2), (6000, [(0.4, 0.1)] * 2))
    found = recommended_size(tried)
    assert found is not None and found < 3000
    assert found == pytest.approx(6 * mcnemar_size([(0.4, 0.1)]), abs=6)


def test_between_two_sizes_shares_are_interpolated_over_the_logarithm() -> None:
    tried = pilots((300, [(0.2, 0.12), (0.25, 0.14)]), (4800, [(0.3, 0.12), (0.35, 0.14)]))
    halfway = [(0.275, 0.13)]  # the mean over seeds, at 1200: 300 x 4 = 4800 / 4
    assert size_power(tried, 1200) == pytest.approx(mean_power(halfway, 200))
    found = recommended_size(tried)
    assert found is not None and 300 < found < 4800 and size_power(tried, found) >= 0.8
    assert all(size_power(tried, size) < 0.82 for size in range(300, found, 50))
    assert all(size_power(tried, size) > 0.78 for size in range(found, 4800, 200))


def test_only_a_size_from_which_on_the_power_suffices_is_recommended() -> None:
    tried = pilots((1200, [(0.5, 0.1)]), (2400, [(0.2, 0.15)]), (60_000, [(0.2, 0.15)]))
    found = recommended_size(tried)
    assert found is not None and found > 2400
    # Of 49, 50 and 51 passages the first and the last are enough.
    assert recommended_size([SizePilot(50, 50, [(0.7, 0.3)])]) == 51
    assert recommended_size(pilots((600, [(0.2, 0.1), (0.1, 0.2)]))) is None
    assert recommended_size(pilots((600, [(0.1001, 0.1)])), most=10_000) is None


def test_the_interval_of_folds_in_rotation_by_hand() -> None:
    """Nadeau & Bengio: the variance of the mean of J folds is (1 / J + n_test / n_train) s^2."""
    differences = np.array([0.02, 0.04, 0.0, 0.06, 0.03, 0.03])
    deviation = math.sqrt((1 / 6 + 100 / 400) * differences.var(ddof=1))
    low, high = rotation_interval(differences, 100, 400)
    assert (low + high) / 2 == pytest.approx(0.03)
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, 5) * deviation)
    assert rotation_interval(np.array([0.1]), 100, 400) is None
    with pytest.raises(StatisticError):
        rotation_interval(np.array([0.1, math.nan]), 100, 400)
