"""D2 and D3 against independent computations: loops for matrices, scipy for correlations, simulation for chance."""

import numpy as np
import pytest
from scipy import stats

from poolbench.contracts.measures import GatedScorer, Measure
from poolbench.contracts.tables import FLUENCY, SCORES, TEXTS, table_from_rows
from poolbench.statistics.bootstrap import bootstrap_counts
from poolbench.statistics.response import ResponseGrid, SteeredTables, response_grids, split_openings
from poolbench_driver.suites.poolbench.d2 import d2_measures, excess_measures, published_d2
from poolbench_driver.suites.poolbench.d3 import ScorerPair, published_d3
from poolbench_driver.suites.poolbench.measures.response import SteeringRules
from poolbench_driver.suites.poolbench.steered import CellTexts

STRENGTHS = (0.06, 0.125, 0.25, 0.5)
CURVE = ("d2.scp", "d2.scp_1", "d2.response_area", "d2.best_gain")


def tables(
    cells: dict[tuple[str, int, float], dict[str, float]], samples: int = 1, shift: float = 0.0
) -> SteeredTables:
    """Tables from scores by (direction, opening, strength) and scorer; samples differ by ``shift`` around them."""
    texts, scores, fluency = [], [], []
    for (key, opening, strength), by_scorer in cells.items():
        for sample in range(samples):
            name, offset = f"{key}|{opening}|{strength}|{sample}", shift * (sample - (samples - 1) / 2)
            num_tokens = 20 * (sample + 1)
            texts.append(
                {"text_id": name, "prompt_id": f"p{opening:02d}", "direction_key": key, "strength": strength,
                 "num_tokens": num_tokens, "repeated_4grams": 0.1 * sample}
            )  # fmt: skip
            fluency.append({"text_id": name, "mean_nll": 2.0 + sample, "num_tokens": num_tokens})
            scores += [{"text_id": name, "scorer": s, "score": v + offset} for s, v in by_scorer.items()]
    return SteeredTables(
        table_from_rows(texts, TEXTS), table_from_rows(scores, SCORES), table_from_rows(fluency, FLUENCY)
    )


def random_curves(num_openings: int, seed: int, slope: float = 0.2) -> tuple[np.ndarray, SteeredTables, SteeredTables]:
    """Scores [P, 1 + S] of a noisy rising curve, and the same as steered and unsteered tables."""
    rng = np.random.default_rng(seed)
    strengths = np.array([0.0, *STRENGTHS])
    score_PS = 0.4 + slope * strengths + rng.normal(scale=0.05, size=(num_openings, len(strengths)))
    at = {s: n for n, s in enumerate(strengths)}
    cells = {("C1", p, s): {"x": score_PS[p, at[s]]} for p in range(num_openings) for s in STRENGTHS}
    baseline = {("unsteered", p, 0.0): {"x": score_PS[p, 0]} for p in range(num_openings)}
    return score_PS, tables(cells), tables(baseline)


def by_metric(measures: list[Measure]) -> dict[str, Measure]:
    return {measure.metric: measure for measure in measures}


def figures_of(rows_PS: np.ndarray) -> dict[str, float]:
    """SCP, SCP_1 and area of the mean of some rows, one sum at a time."""
    curve = [sum(row[s] for row in rows_PS) / len(rows_PS) for s in range(rows_PS.shape[1])]
    strengths = [0.0, *STRENGTHS]
    area = sum(
        (strengths[n + 1] - strengths[n]) * (curve[n] + curve[n + 1] - 2 * curve[0]) / 2 for n in range(len(STRENGTHS))
    )
    return {
        "d2.scp": stats.spearmanr(strengths, curve).statistic,
        "d2.scp_1": curve[2] - curve[0],
        "d2.response_area": area / strengths[-1],
    }


def halves(num_openings: int, seed: int) -> list[np.ndarray]:
    """Return the rows of both halves of the openings p00, p01..."""
    return [np.array([int(name[1:]) for name in half]) for half in split_openings(openings(num_openings), seed)]


def openings(number: int) -> list[str]:
    return [f"p{p:02d}" for p in range(number)]


def test_values_and_intervals_equal_a_bootstrap_by_loops() -> None:
    rules = SteeringRules(num_bootstrap=200, seed=3)
    score_PS, steered, unsteered = random_curves(7, seed=1)
    found = by_metric(d2_measures(CellTexts(steered, unsteered), GatedScorer("x"), rules))
    drawn: dict[str, list[float]] = {metric: [] for metric in figures_of(score_PS)}
    first, second = halves(7, rules.seed)
    counts = [bootstrap_counts(len(h), 200, rules.seed + n) for n, h in enumerate((first, second))]
    for resample in range(200):
        rows = [
            score_PS[p]
            for h, c in zip((first, second), counts, strict=True)
            for p, k in zip(h, c[resample], strict=True)
            for _ in range(k)
        ]
        for metric, value in figures_of(np.array(rows)).items():
            drawn[metric].append(value)
    width = np.sqrt(7 / 5) * stats.t.ppf(0.975, 5)  # seven openings in two strata
    tail = 100 * stats.norm.sf(width)
    for metric, value in figures_of(score_PS).items():
        assert found[metric].value == pytest.approx(value)
        low, high = np.percentile(drawn[metric], [tail, 100 - tail])
        assert (found[metric].ci_low, found[metric].ci_high) == (pytest.approx(low), pytest.approx(high))


def test_the_gain_by_loops() -> None:
    """The best strength of one half of the openings is not that of all: it is read where it was not chosen."""
    rules = SteeringRules(num_bootstrap=200, seed=3)
    score_PS, steered, unsteered = random_curves(8, seed=0, slope=0.0)
    found = by_metric(d2_measures(CellTexts(steered, unsteered), GatedScorer("x"), rules))["d2.best_gain"]
    choose, read = halves(8, rules.seed)
    best = max(range(5), key=lambda s: score_PS[choose, s].mean())
    assert best not in (0, max(range(5), key=lambda s: score_PS[:, s].mean()))
    assert found.value == pytest.approx(score_PS[read, best].mean() - score_PS[read, 0].mean())
    gains = score_PS[read, best] - score_PS[read, 0]
    counts = bootstrap_counts(len(read), 200, rules.seed + 1)
    drawn = [np.mean([gain for gain, k in zip(gains, row, strict=True) for _ in range(k)]) for row in counts]
    tail = 100 * stats.norm.sf(np.sqrt(4 / 3) * stats.t.ppf(0.975, 3))
    assert (found.ci_low, found.ci_high) == pytest.approx(tuple(np.percentile(drawn, [tail, 100 - tail])))


def test_samples_of_an_opening_are_averaged_and_perplexity_weighs_tokens() -> None:
    cells = {("C1", p, s): {"x": 0.3 + s} for p in range(5) for s in STRENGTHS}
    baseline = tables({("unsteered", p, 0.0): {"x": 0.3} for p in range(5)}, samples=2, shift=0.2)
    (grid,) = response_grids(tables(cells, samples=2, shift=0.2), baseline, "x").values()
    np.testing.assert_allclose(grid.score, np.broadcast_to([0.3, *(0.3 + s for s in STRENGTHS)], (5, 5)))
    assert set(grid.num_tokens.ravel()) == {60}
    np.testing.assert_allclose(grid.nll, (20 * 2 + 40 * 3) / 60)
    np.testing.assert_allclose(grid.repeated, 0.05)


def test_an_opening_that_lacks_one_sample_s_score_is_incomplete() -> None:
    cells = {("C1", p, s): {"x": 0.3} for p in range(5) for s in STRENGTHS}
    steered = tables(cells, samples=2)
    lost = [{**row, "score": None} if row["text_id"] == "C1|0|0.25|1" else row for row in steered.scores.to_pylist()]
    steered = steered._replace(scores=table_from_rows(lost, SCORES))
    baseline = tables({("unsteered", p, 0.0): {"x": 0.3} for p in range(5)}, samples=2)
    (grid,) = response_grids(steered, baseline, "x").values()
    assert grid.openings == ("p01", "p02", "p03", "p04")


def two_scorers(own: float, other: float) -> CellTexts:
    cells = {("C1", p, s): {"x": 0.3 + own * s, "y": 0.4 + other * s} for p in range(5) for s in STRENGTHS}
    return CellTexts(tables(cells), tables({("unsteered", p, 0.0): {"x": 0.3, "y": 0.4} for p in range(5)}))


@pytest.mark.parametrize(
    ("own", "other", "by_correlation", "by_gain"),
    [(0.4, 0.1, 0.0, 0.75), (0.4, -0.1, 2.0, 1.25), (-0.4, 0.1, 2.0, 1.25), (-0.4, -0.2, 0.0, 0.5)],
)
def test_published_d3_is_the_plain_ratio_whatever_its_sign(
    own: float, other: float, by_correlation: float, by_gain: float
) -> None:
    """Where the target falls the ratio still gives a number: why the corrected D3 does not use it."""
    pair = ScorerPair(GatedScorer("x", "scorer_invalid", "b"), GatedScorer("y"), "ld")
    found = published_d3(two_scorers(own, other), pair)
    assert {m.params["scp"]: m.value for m in found} == {
        "d2.scp": pytest.approx(by_correlation),
        "d2.scp_1": pytest.approx(by_gain),
    }
    assert {(m.metric, m.ci_low, m.neighbour) for m in found} == {("d3.ld", None, "y")}


def test_published_figures_without_scorer_or_effect_are_null() -> None:
    steered = two_scorers(0.0, 0.1)
    found = published_d3(steered, ScorerPair(GatedScorer("x"), GatedScorer("y"), "lc"))
    assert {measure.status for measure in found} == {"no_effect"}
    absent = published_d3(steered, ScorerPair(GatedScorer("x"), GatedScorer("y", "no_scorer"), "lc"))
    assert {measure.status for measure in absent} == {"no_scorer"}
    flat = by_metric(published_d2(steered, GatedScorer("x")))
    assert (flat["d2.scp"].status, flat["d2.scp_1"].value) == ("no_effect", 0.0)


NULL_STRENGTHS = np.array([0.0, 0.06, 0.125, 0.25])


def simulated(rng: np.random.Generator, num_openings: int, drift: float, effect: float) -> list[ResponseGrid]:
    """A direction with an effect and 20 without; all drift by chance, and share openings and unsteered texts."""
    unsteered = rng.normal(0.3, 0.15, size=(num_openings, 1)) + rng.normal(0, 0.05, size=(num_openings, 1))

    def grid(slope: float) -> ResponseGrid:
        steered = unsteered + slope * NULL_STRENGTHS[1:] / 0.25 + rng.normal(0, 0.1, size=(num_openings, 3))
        score = np.concatenate([unsteered, steered], axis=1)
        names, ones = openings(num_openings), np.ones_like(score)
        is_first = np.isin(names, split_openings(names, 0)[0])
        return ResponseGrid(tuple(names), NULL_STRENGTHS, score, 2 * ones, 20 * ones, 0 * ones, is_first)

    return [grid(rng.normal(0, drift) + effect), *(grid(rng.normal(0, drift)) for _ in range(20))]


def excesses(metric: str, drift: float, effect: float, times: int) -> tuple[np.ndarray, np.ndarray]:
    """Whether the interval of the excess holds 0, and the rank among the nulls, in each simulation."""
    from poolbench_driver.suites.poolbench.measures.response import CURVE_STATISTICS

    rng, rules = np.random.default_rng(0), SteeringRules(num_bootstrap=200)
    covered, ranks = [], []
    for _ in range(times):
        own, *nulls = simulated(rng, 12, drift, effect)
        excess, rank, _ = excess_measures(metric, CURVE_STATISTICS[metric], own, nulls, rules)
        assert excess.ci_low is not None and excess.ci_high is not None
        covered.append(excess.ci_low <= 0 <= excess.ci_high)
        ranks.append(rank.value)
    return np.array(covered), np.array(ranks)


@pytest.mark.parametrize("drift", [0.0, 0.05], ids=["still", "drifting"])
@pytest.mark.parametrize("metric", ["d2.scp_1", "d2.response_area"])
def test_without_effect_intervals_hold_0_and_ranks_are_uniform(metric: str, drift: float) -> None:
    """Directions without meaning that drift must not look as if they had an effect, either."""
    covered, ranks = excesses(metric, drift, 0.0, times=150)
    assert 0.90 <= covered.mean() <= 0.995
    counts = np.histogram(ranks, bins=[0.5, 5.5, 10.5, 16.5, 21.5])[0]
    expected = np.array([5, 5, 6, 5]) / 21 * len(ranks)
    assert stats.chisquare(counts, expected).pvalue > 0.001


def test_ties_make_the_rank_of_a_correlation_cautious() -> None:
    """Four points have few correlations; a null direction that reaches the value counts against it."""
    covered, ranks = excesses("d2.scp", 0.0, 0.0, times=60)
    assert covered.mean() >= 0.9
    assert (ranks == 1).mean() <= 1 / 21 + 0.06


@pytest.mark.parametrize("metric", CURVE)
def test_a_planted_effect_is_found(metric: str) -> None:
    covered, ranks = excesses(metric, 0.02, 0.4, times=10)
    if metric == "d2.scp":  # bounded by 1, which a drifting null direction reaches too
        assert ranks.mean() <= 8
        return
    assert not covered.any()
    assert set(ranks) == {1.0}
