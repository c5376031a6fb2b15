"""D2 and D3 by hand on planted curves, and against loops, scipy and simulations of chance."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from poolbench.concepts import CONCEPTS, Neighbours
from poolbench.contracts.measures import GatedScorer
from poolbench.contracts.tables import FLUENCY, SCORES, TEXTS, directions_schema, table_from_rows
from poolbench.errors import CellError, InputError
from poolbench.pooling import STRATEGIES
from poolbench.statistics.bootstrap import bootstrap_counts
from poolbench.statistics.response import ResponseGrid, SteeredTables, split_openings
from poolbench_driver.measures.response import CURVE_STATISTICS, SteeringRules
from poolbench_driver.suites.poolbench.d2 import (
    D2_METRICS,
    d2_measures,
    excess_measures,
    published_d2,
    response_curve,
)
from poolbench_driver.suites.poolbench.d3 import (
    ScorerPair,
    all_d3,
    blank_d3,
    d3_measures,
    d3_rep_measure,
    published_d3,
)
from poolbench_driver.suites.poolbench.steering_results import CellTexts, SteeredCell

STRENGTHS = (0.06, 0.125, 0.25, 0.5)
NULL_STRENGTHS = STRENGTHS[:3]
NULL_KEYS = [f"null_{number:03d}" for number in range(20)]
BOTH = ("causation", "contrast")
RULES = SteeringRules(num_bootstrap=200)
SCORER = GatedScorer("causation", positive_mean=0.9, negative_mean=0.1)
NEIGHBOUR = GatedScorer("contrast", positive_mean=0.7, negative_mean=0.3)


def tables(cells, samples=1, shift=0.0, nll=lambda s: 2.0, repeated=lambda s: 0.0):
    """Tables from scores by (direction, opening, strength) and scorer; samples differ by ``shift`` around them."""
    texts, scores, fluency = [], [], []
    for (key, opening, strength), by_scorer in cells.items():
        for sample in range(samples):
            name, offset = f"{key}|{opening}|{strength}|{sample}", shift * (sample - (samples - 1) / 2)
            num_tokens = 20 * (sample + 1)
            texts.append(
                {"text_id": name, "prompt_id": f"p{opening:02d}", "direction_key": key, "strength": strength,
                 "num_tokens": num_tokens, "repeated_4grams": repeated(strength) + 0.1 * sample}
            )  # fmt: skip
            fluency.append({"text_id": name, "mean_nll": nll(strength) + sample, "num_tokens": num_tokens})
            for scorer, score in by_scorer.items():
                scores.append({"text_id": name, "scorer": scorer, "score": None if score is None else score + offset})
    return SteeredTables(
        table_from_rows(texts, TEXTS), table_from_rows(scores, SCORES), table_from_rows(fluency, FLUENCY)
    )


def make_tables(keys, strengths, score, nll=lambda s: 2.0, repeated=lambda s: 0.0, openings=8, scorers=("causation",)):
    """Tables whose score is ``score(key, opening, strength, scorer)``."""
    cells = {
        (key, opening, strength): {scorer: score(key, opening, strength, scorer) for scorer in scorers}
        for key in keys
        for opening in range(openings)
        for strength in strengths
    }
    return tables(cells, nll=nll, repeated=repeated)


def linear(slope, base=0.2):
    return lambda key, opening, strength, scorer: base + 0.01 * opening + slope * strength


def noisy_null(key, opening, strength, scorer):
    rng = np.random.default_rng([int(key[-3:]), opening, int(strength * 1000)])
    return 0.235 + 0.02 * rng.normal()


@pytest.fixture
def unsteered():
    return make_tables(["unsteered"], (0.0,), linear(0.0))


@pytest.fixture
def nulls():
    return make_tables(NULL_KEYS, NULL_STRENGTHS, noisy_null)


def by_metric(measures):
    return {measure.metric: measure for measure in measures}


def test_figures_of_a_straight_line(unsteered):
    steered = make_tables(["C1"], STRENGTHS, linear(0.8))
    found = by_metric(d2_measures(CellTexts(steered, unsteered), SCORER, RULES))
    assert found["d2.scp"].value == pytest.approx(1)
    assert found["d2.scp_1"].value == pytest.approx(0.8 * 0.125)
    assert found["d2.response_area"].value == pytest.approx(0.8 * 0.5 / 2)
    assert found["d2.best_gain"].value == pytest.approx(0.8 * 0.5)
    assert found["d2.best_strength"].value == 0.5
    assert found["d2.fluency"].value == pytest.approx(1)
    # Every opening has the same gain, so that no resample differs.
    assert found["d2.scp_1"].ci_low == pytest.approx(found["d2.scp_1"].ci_high)
    assert found["d2.scp_1"].num_groups == 8
    assert not any(name.endswith(".excess") for name in found)


@pytest.mark.parametrize(
    ("nll", "repeated"),
    [
        (lambda s: 2.0 + (np.log(1.6) if s == 0.5 else 0), lambda s: 0.0),  # too surprising
        (lambda s: 2.0 + (np.log(0.6) if s == 0.5 else 0), lambda s: 0.0),  # too cheap
        (lambda s: 2.0, lambda s: 0.11 if s == 0.5 else 0.0),  # loops
    ],
)
def test_best_gain_leaves_out_strengths_that_are_not_fluent(unsteered, nll, repeated):
    steered = make_tables(["C1"], STRENGTHS, linear(0.8), nll, repeated)
    found = by_metric(d2_measures(CellTexts(steered, unsteered), SCORER, RULES))
    assert found["d2.best_strength"].value == 0.25
    assert found["d2.best_gain"].value == pytest.approx(0.2)


@pytest.mark.parametrize("is_fluent", [True, False])
def test_rows_count_the_openings_that_they_are_read_on(is_fluent):
    """Of nine openings the strength is chosen on four, and the gain is read on the other five."""
    unsteered, nulls, steered = (
        make_tables(keys, strengths, score, lambda s: 2.0 + (s > 0 and not is_fluent), openings=9)
        for keys, strengths, score in (
            (["unsteered"], (0.0,), linear(0.0)),
            (NULL_KEYS, NULL_STRENGTHS, noisy_null),
            (["C1"], STRENGTHS, linear(0.8)),
        )
    )
    found = by_metric(d2_measures(CellTexts(steered, unsteered, nulls), SCORER, RULES))
    assert found["d2.best_gain"].status == ("ok" if is_fluent else "not_fluent")
    expected = {name: 5 if name.startswith("d2.best_gain") else 9 for name in D2_METRICS} | {"d2.best_strength": 4}
    assert {name: measure.n for name, measure in found.items()} == expected
    assert {name: measure.num_groups for name, measure in found.items()} == expected


def test_where_no_strength_is_fluent_there_is_no_best_one(unsteered, nulls):
    steered = make_tables(["C1"], STRENGTHS, linear(0.8), lambda s: 2.0 + (np.log(1.6) if s else 0))
    found = by_metric(d2_measures(CellTexts(steered, unsteered, nulls), SCORER, RULES))
    unknown = {name for name, measure in found.items() if measure.status == "not_fluent"}
    gains = {f"d2.best_gain{suffix}" for suffix in ("", ".excess", ".null_rank", ".null_p95")}
    assert unknown == {*gains, "d2.best_strength"}
    assert "0.06, 0.125, 0.25, 0.5" in found["d2.best_gain"].reason
    assert found["d2.scp"].value == pytest.approx(1) and found["d2.response_area.excess"].value > 0


def test_a_null_direction_without_a_fluent_strength_gains_nothing(unsteered, nulls):
    broken = make_tables(NULL_KEYS, NULL_STRENGTHS, noisy_null, lambda s: 2.0 + (1.0 if s else 0))
    steered = make_tables(["C1"], STRENGTHS, linear(0.8))
    found = by_metric(d2_measures(CellTexts(steered, unsteered, broken), SCORER, RULES))
    details = found["d2.best_gain.excess"].details
    assert details["null_mean"] == details["null_sd"] == 0
    assert found["d2.best_gain.excess"].value == details["value_at_null_strengths"] > 0


def test_two_points_have_no_correlation(unsteered, nulls):
    """With one null strength every null direction would correlate by 1 or -1."""
    steered = make_tables(["C1"], STRENGTHS, linear(0.8))
    rules = SteeringRules(num_bootstrap=200, null_strengths=(0.0, 0.125))
    found = by_metric(d2_measures(CellTexts(steered, unsteered, nulls), SCORER, rules))
    assert found["d2.scp"].value == pytest.approx(1)
    for suffix in (".excess", ".null_rank", ".null_p95"):
        assert found[f"d2.scp{suffix}"].status == "too_few"
        assert found[f"d2.scp{suffix}"].reason == "the curve has 2 strengths, with 0; a correlation needs 3"
    assert found["d2.scp_1.excess"].value is not None
    steered = make_tables(["C1"], (0.125,), linear(0.8))
    one = by_metric(d2_measures(CellTexts(steered, unsteered), SCORER, RULES))
    assert one["d2.scp"].status == "too_few" and one["d2.scp_1"].value is not None


def test_a_falling_curve_is_best_left_unsteered(unsteered):
    found = by_metric(d2_measures(CellTexts(make_tables(["C1"], STRENGTHS, linear(-0.3)), unsteered), SCORER, RULES))
    assert found["d2.best_strength"].value == 0
    assert found["d2.best_gain"].value == 0
    assert found["d2.scp"].value == pytest.approx(-1)


def uneven(slope, opening, step=0.01):
    """Slopes that differ between openings, so that no resample has the value itself."""
    return slope + step * opening


def test_rank_and_percentile_among_null_directions_by_hand(unsteered):
    slopes = dict(zip(NULL_KEYS, np.arange(20) * 0.02 - 0.2, strict=True))  # from -.2 to .18
    nulls = make_tables(
        NULL_KEYS,
        NULL_STRENGTHS,
        lambda key, opening, *place: linear(uneven(slopes[key], opening))(key, opening, *place),
    )
    # Resamples of the openings have slopes that are further apart than those of two null directions.
    steered = make_tables(
        ["C1"], STRENGTHS, lambda key, opening, *place: linear(uneven(-0.05, opening, 0.05))(key, opening, *place)
    )
    found = by_metric(d2_measures(CellTexts(steered, unsteered, nulls), SCORER, RULES))
    choose, read = halves(8, RULES.seed)
    gains = []
    for slope in slopes.values():
        rises = np.mean([uneven(slope, opening) for opening in choose]) > 0  # a falling one is best left out
        gains.append(rises * max(NULL_STRENGTHS) * np.mean([uneven(slope, opening) for opening in read]))
    excess = found["d2.best_gain.excess"]
    gain = max(NULL_STRENGTHS) * np.mean([uneven(-0.05, opening, 0.05) for opening in read])
    assert excess.value == pytest.approx(gain - np.mean(gains))
    assert excess.ci_low <= excess.value <= excess.ci_high
    details = {"value_at_null_strengths": gain, "null_mean": np.mean(gains), "null_sd": np.std(gains, ddof=1)}
    assert {name: excess.details[name] for name in details} == pytest.approx(details)
    assert excess.details["num_nulls"] == 20
    below = sum(one < gain for one in gains)
    assert 0 < below < 20 and excess.details["percentile"] == pytest.approx(100 * below / 20)
    assert found["d2.best_gain.null_rank"].value == 1 + 20 - below
    assert found["d2.best_gain.null_p95"].value == pytest.approx(np.percentile(gains, 95))


def test_invalid_scorer_makes_every_figure_null(unsteered):
    scorer = GatedScorer("causation", "scorer_invalid", "AUROC .6 on cut texts")
    upside_down = GatedScorer("causation", positive_mean=0.4, negative_mean=0.5)
    for invalid in (scorer, upside_down):
        measures = d2_measures(CellTexts(make_tables(["C1"], STRENGTHS, linear(1)), unsteered), invalid)
        assert {measure.status for measure in measures} == {"scorer_invalid"}
        assert [measure.metric for measure in measures] == list(D2_METRICS)


def test_flat_curve_has_no_correlation(unsteered, nulls):
    flat = CellTexts(make_tables(["C1"], STRENGTHS, linear(0.0)), unsteered, nulls)
    found = by_metric(d2_measures(flat, SCORER, RULES))
    without = ("d2.scp", "d2.scp.excess", "d2.scp.null_rank", "d2.scp.null_p95")
    assert {name for name, measure in found.items() if measure.status == "no_effect"} == set(without)
    assert found["d2.scp_1"].value == 0


def test_openings_with_gaps_are_left_out_and_too_few_is_typed():
    def score(key, opening, strength, scorer):
        return None if opening == 0 and strength == 0.25 else 0.5

    unsteered = make_tables(["unsteered"], (0.0,), linear(0.0), openings=6)
    steered = make_tables(["C1"], STRENGTHS, score, openings=6)
    assert d2_measures(CellTexts(steered, unsteered), SCORER, RULES)[0].n == 5
    few = make_tables(["C1"], STRENGTHS, linear(1), openings=3)
    unsteered = make_tables(["unsteered"], (0.0,), linear(0.0), openings=3)
    assert {m.status for m in d2_measures(CellTexts(few, unsteered), SCORER, RULES)} == {"too_few"}


def test_missing_reference_strength_is_a_clear_error(unsteered):
    steered = make_tables(["C1"], (0.06, 0.25), linear(1))
    with pytest.raises(InputError, match=r"no texts at strength 0.125; the curve has 0, 0.06, 0.25"):
        d2_measures(CellTexts(steered, unsteered), SCORER, RULES)


def test_texts_along_several_directions_are_refused(unsteered):
    steered = make_tables(["C1", "C3"], STRENGTHS, linear(0.5))
    with pytest.raises(InputError, match="C1, C3"):
        d2_measures(CellTexts(steered, unsteered), SCORER, RULES)


def test_no_texts_at_all_is_typed(unsteered):
    empty = SteeredTables(TEXTS.empty_table(), SCORES.empty_table(), FLUENCY.empty_table())
    assert d2_measures(CellTexts(empty, unsteered), SCORER, RULES)[0].status == "too_few"


def two_concepts(own, other):
    slopes = dict(zip(BOTH, (own, other), strict=True))
    return lambda key, opening, strength, scorer: 0.2 + 0.01 * opening + slopes[scorer] * strength


def d3(own, other, nulls=None, nll=lambda s: 2.0):
    steered = make_tables(["C1"], STRENGTHS, two_concepts(own, other), nll, scorers=BOTH)
    unsteered = make_tables(["unsteered"], (0.0,), two_concepts(0, 0), scorers=BOTH)
    return by_metric(d3_measures(CellTexts(steered, unsteered, nulls), ScorerPair(SCORER, NEIGHBOUR, "lc"), RULES))


def test_d3_without_effect_is_null_but_robust_stands():
    found = d3(own=0.0, other=0.1)
    assert found["d3.lc"].status == "no_effect"
    assert found["d3.robust_lc"].status == "ok"


def test_d3_reversed_where_the_chosen_strength_lowers_the_target():
    order = np.random.default_rng(RULES.seed).permutation(8)
    choose = {f"p{opening:02d}" for opening in order[:4]}

    def score(key, opening, strength, scorer):
        return 0.3 + strength * (0.5 if f"p{opening:02d}" in choose else -0.5)

    steered = make_tables(["C1"], STRENGTHS, score, scorers=BOTH)
    unsteered = make_tables(["unsteered"], (0.0,), score, scorers=BOTH)
    found = d3_measures(CellTexts(steered, unsteered), ScorerPair(SCORER, NEIGHBOUR, "ld"), RULES)
    assert found[0].status == "reversed"
    assert found[0].metric == "d3.ld"


def test_null_directions_that_are_not_fluent_count_as_0_and_unscored_ones_give_no_excess():
    broken = make_tables(NULL_KEYS, NULL_STRENGTHS, noisy_null, lambda s: 2.0 + (1.0 if s else 0), scorers=BOTH)
    excess = d3(0.8, 0.0, broken)["d3.robust_lc.excess"]
    assert (excess.details["num_nulls"], excess.details["null_mean"]) == (20, 0)
    assert excess.value == pytest.approx(0.8 * 0.25 / 0.8)
    assert "d3.robust_lc.excess" not in d3(0.8, 0.0, make_tables(NULL_KEYS, NULL_STRENGTHS, noisy_null))


def test_d3_and_its_excess_by_hand():
    """Ranges of the scorers are .8 and .4; a neighbour that falls is charged as one that rises."""
    slopes = {key: (0.02 * number, 0.1 - 0.01 * number) for number, key in enumerate(NULL_KEYS)}

    def score(own, other):
        by_scorer = dict(zip(BOTH, (own, other), strict=True))
        return lambda opening, strength, scorer: 0.2 + uneven(by_scorer[scorer], opening) * strength

    nulls = make_tables(NULL_KEYS, NULL_STRENGTHS, lambda key, *place: score(*slopes[key])(*place), scorers=BOTH)
    steered = make_tables(["C1"], STRENGTHS, lambda _, *place: score(0.8, -0.2)(*place), scorers=BOTH)
    unsteered = make_tables(["unsteered"], (0.0,), lambda _, *place: score(0, 0)(*place), scorers=BOTH)
    pair = ScorerPair(SCORER, NEIGHBOUR, "lc")
    found = by_metric(d3_measures(CellTexts(steered, unsteered, nulls), pair, RULES))
    _, read = halves(8, RULES.seed)

    def shifts(own, other, strength):
        means = [np.mean([uneven(slope, opening) for opening in read]) for slope in (own, other)]
        return strength * means[0] / 0.8, strength * means[1] / 0.4

    target, neighbour = shifts(0.8, -0.2, max(STRENGTHS))
    assert neighbour < 0 and found["d3.lc"].neighbour == "contrast"
    assert found["d3.lc"].value == pytest.approx(1 - neighbour / target)
    assert found["d3.lc"].details == pytest.approx(
        {"strength": max(STRENGTHS), "target_shift": target, "neighbour_shift": neighbour}
    )
    assert found["d3.robust_lc"].value == pytest.approx(target - abs(neighbour))
    robust = [target - abs(neighbour) for target, neighbour in (shifts(*own, 0.25) for own in slopes.values())]
    excess, (target, neighbour) = found["d3.robust_lc.excess"], shifts(0.8, -0.2, 0.25)
    assert excess.details["null_mean"] == pytest.approx(np.mean(robust))
    assert excess.value == pytest.approx(target - abs(neighbour) - np.mean(robust))


def test_d3_is_null_where_no_strength_is_fluent():
    nulls = make_tables(NULL_KEYS, NULL_STRENGTHS, noisy_null, scorers=BOTH)
    found = d3(0.8, 0.0, nulls, lambda s: 2.0 + (1.0 if s else 0))
    assert {measure.status for measure in found.values()} == {"not_fluent"} and len(found) == 3
    # One strength above those of the null directions is fluent: only the excess over them is unknown.
    found = d3(0.8, 0.0, nulls, lambda s: 2.0 + (1.0 if 0 < s < 0.5 else 0))
    assert found["d3.lc"].value == pytest.approx(1) and found["d3.lc"].details["strength"] == 0.5
    assert found["d3.robust_lc.excess"].status == "not_fluent"


def test_d3_with_an_invalid_neighbour_scorer_is_null():
    found = d3_measures(
        CellTexts(make_tables(["C1"], STRENGTHS, linear(1)), make_tables(["unsteered"], (0.0,), linear(0))),
        ScorerPair(SCORER, GatedScorer("contrast", "no_scorer", "none"), "ld"),
    )
    assert {measure.status for measure in found} == {"no_scorer"}
    assert len(found) == len(blank_d3("ld", CellError("failed", "x")))


def direction_table(vector, status=None):
    rows = [{"direction_id": "C1", "vector": vector, "raw_norm": 1.0, "status": status, "reason": status and "why"}]
    return table_from_rows(rows, directions_schema(2))


def test_d3_rep_is_a_cosine():
    first, second = direction_table([1.0, 0.0]), direction_table([0.6, 0.8])
    found = d3_rep_measure(first, second, "lc")
    assert found.value == pytest.approx(0.6, abs=1e-7)
    collapsed = direction_table(None, status="collapsed")
    with pytest.raises(CellError) as caught:
        d3_rep_measure(first, collapsed, "lc")
    assert caught.value.status == "collapsed"


@pytest.mark.parametrize(("relation", "name"), [("ld", "linguistically_distant"), ("lc", "linguistically_close")])
def test_a_relation_without_a_neighbour_is_null_and_directions_need_no_texts(relation, name):
    concept = replace(CONCEPTS.get("causation"), neighbours=Neighbours(**{name: "contrast"}))
    directions = {"causation": direction_table([1.0, 0.0]), "contrast": direction_table([0.6, 0.8])}
    cell = SteeredCell(concept, STRATEGIES.get("A1_mean"), "A1_mean", RULES, CellError("too_few", "no texts"))
    scorers = {"causation": SCORER, "contrast": NEIGHBOUR}
    found = by_metric(all_d3(scorers, lambda concept, strategy: directions[concept], cell))
    names = [(f"d3.{one}", f"d3.robust_{one}", f"d3.robust_{one}.excess") for one in ("ld", "lc")]
    blank = {"ld": "lc", "lc": "ld"}[relation]
    assert set(found) == {*names[0], *names[1], "d3.rep_ld", "d3.rep_lc"}
    assert found[f"d3.rep_{relation}"].value == pytest.approx(0.6, abs=1e-7)
    assert found[f"d3.{relation}"].status == "too_few"
    assert {found[f"d3.{kind}{blank}"].status for kind in ("", "robust_", "rep_")} == {"no_scorer"}
    assert {measure.neighbour for measure in found.values()} == {None, "contrast"}
    failed = all_d3(scorers, lambda *_: direction_table(None, status="collapsed"), cell)
    assert by_metric(failed)[f"d3.rep_{relation}"].status == "collapsed"


def test_curve_rows(unsteered, nulls):
    steered = make_tables(["C1"], STRENGTHS, linear(0.8), lambda s: 2 + s)
    rows = response_curve(CellTexts(steered, unsteered, nulls), SCORER, RULES)
    assert [row["strength"] for row in rows] == [0, *STRENGTHS]
    assert rows[2]["gain"] == pytest.approx(0.1)
    assert rows[2]["perplexity_ratio"] == pytest.approx(np.exp(0.125))
    assert rows[0]["null_low"] == pytest.approx(rows[0]["score"])
    assert rows[-1]["null_low"] is None
    assert not rows[-1]["fluent"]
    means = [np.mean([noisy_null(key, opening, 0.06, "") for opening in range(8)]) for key in NULL_KEYS]
    assert [rows[1][name] for name in ("null_low", "null_mean", "null_high")] == pytest.approx(
        [np.percentile(means, 5), np.mean(means), np.percentile(means, 95)]
    )


def test_scorer_from_gate_rows():
    rows = [
        {"metric": "scorer.gate", "value": 1.0, "reason": None, "params": '{"part": "verdict"}'},
        {"metric": "scorer.positive_mean", "value": 0.8, "reason": None},
        {"metric": "scorer.negative_mean", "value": 0.1, "reason": None},
    ]
    assert GatedScorer.from_gate("causation", rows).score_range == pytest.approx(0.7)
    assert GatedScorer.from_gate("causation", rows[:1]).status == "scorer_invalid"
    assert GatedScorer.from_gate("causation", []).status == "no_scorer"
    check = {"metric": "scorer.gate", "value": 0.4, "reason": "b", "params": '{"part": "b"}'}
    assert GatedScorer.from_gate("causation", [*rows, check]).status == "ok"
    failed = [{"metric": "scorer.gate", "value": 0.0, "reason": "b: .52"}]
    assert GatedScorer.from_gate("causation", failed).reason == "b: .52"


# Independent computations


def random_curves(num_openings: int, seed: int, slope: float = 0.2) -> tuple[np.ndarray, SteeredTables, SteeredTables]:
    """Scores [P, 1 + S] of a noisy rising curve, and the same as steered and unsteered tables."""
    rng = np.random.default_rng(seed)
    strengths = np.array([0.0, *STRENGTHS])
    score_PS = 0.4 + slope * strengths + rng.normal(scale=0.05, size=(num_openings, len(strengths)))
    at = {s: n for n, s in enumerate(strengths)}
    cells = {("C1", p, s): {"x": score_PS[p, at[s]]} for p in range(num_openings) for s in STRENGTHS}
    baseline = {("unsteered", p, 0.0): {"x": score_PS[p, 0]} for p in range(num_openings)}
    return score_PS, tables(cells), tables(baseline)


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
    curves = []
    first, second = halves(7, rules.seed)
    counts = [bootstrap_counts(len(h), 200, rules.seed + n) for n, h in enumerate((first, second))]
    for resample in range(200):
        rows = [
            score_PS[p]
            for h, c in zip((first, second), counts, strict=True)
            for p, k in zip(h, c[resample], strict=True)
            for _ in range(k)
        ]
        curves.append(np.mean(rows, axis=0))
        for metric, value in figures_of(np.array(rows)).items():
            drawn[metric].append(value)
    width = np.sqrt(7 / 5) * stats.t.ppf(0.975, 5)  # seven openings in two strata
    tail = 100 * stats.norm.sf(width)
    for metric, value in figures_of(score_PS).items():
        assert found[metric].value == pytest.approx(value)
        low, high = np.percentile(drawn[metric], [tail, 100 - tail])
        assert (found[metric].ci_low, found[metric].ci_high) == (pytest.approx(low), pytest.approx(high))
    lows, highs = np.percentile(curves, [tail, 100 - tail], axis=0)
    points = response_curve(CellTexts(steered, unsteered), GatedScorer("x"), rules)
    np.testing.assert_allclose([[point["ci_low"], point["ci_high"]] for point in points], np.stack([lows, highs], 1))


def test_the_gain_by_loops() -> None:
    """The best strength of one half of the openings is not that of all: it is read where it was not chosen."""
    rules = SteeringRules(num_bootstrap=200, seed=3)
    score_PS, steered, unsteered = random_curves(10, seed=3, slope=0.0)
    found = by_metric(d2_measures(CellTexts(steered, unsteered), GatedScorer("x"), rules))["d2.best_gain"]
    choose, read = halves(10, rules.seed)
    best = max(range(5), key=lambda s: score_PS[choose, s].mean())
    assert best not in (0, max(range(5), key=lambda s: score_PS[:, s].mean()))
    assert found.value == pytest.approx(score_PS[read, best].mean() - score_PS[read, 0].mean())
    gains = score_PS[read, best] - score_PS[read, 0]
    counts = bootstrap_counts(len(read), 200, rules.seed + 1)
    drawn = [np.mean([gain for gain, k in zip(gains, row, strict=True) for _ in range(k)]) for row in counts]
    tail = 100 * stats.norm.sf(np.sqrt(5 / 4) * stats.t.ppf(0.975, 4))
    assert (found.ci_low, found.ci_high) == pytest.approx(tuple(np.percentile(drawn, [tail, 100 - tail])))


def test_a_score_that_the_neighbour_lacks_does_not_move_the_strength_of_the_target() -> None:
    """Read lazily: the other half of the openings has texts at the target's best strength alone."""
    choose, read = halves(8, 0)
    cells = {
        ("C1", p, s): {"causation": 0.3 + own + (p == choose[0] and s == 0.25), "contrast": 0.4}
        for p in range(8)
        for s, own in zip(STRENGTHS, (0.0, 0.1, 0.3, 0.35), strict=True)
        if p in choose or s == 0.25
    }
    cells["C1", choose[0], 0.06]["contrast"] = None  # without this opening, .5 would be the best strength
    unsteered = tables({("unsteered", p, 0.0): {"causation": 0.3, "contrast": 0.4} for p in range(8)})
    pair = ScorerPair(SCORER, NEIGHBOUR, "ld")
    found = by_metric(d3_measures(CellTexts(tables(cells), unsteered), pair, RULES))["d3.robust_ld"]
    assert (found.details["strength"], found.n) == (0.25, len(read))
    assert found.value == pytest.approx(0.3 / 0.8)


@pytest.mark.parametrize("absent", [0, 1])
def test_where_only_one_half_of_the_openings_is_complete_the_other_is_one_stratum(absent: int) -> None:
    rules, both = SteeringRules(num_bootstrap=200, seed=3), halves(8, 3)
    complete, gains = both[1 - absent], 0.1 * 0.125 * np.arange(8) ** 2
    scores = {("C1", p, s): {"x": 0.3 + 0.1 * s * p**2 if p in complete else None} for p in range(8) for s in STRENGTHS}
    unsteered = tables({("unsteered", p, 0.0): {"x": 0.3} for p in range(8)})
    found = by_metric(d2_measures(CellTexts(tables(scores), unsteered), GatedScorer("x"), rules))
    counts = bootstrap_counts(4, 200, rules.seed + 1 - absent)
    tail = 100 * stats.norm.sf(np.sqrt(4 / 3) * stats.t.ppf(0.975, 3))
    low, high = np.percentile(counts @ gains[complete] / 4, [tail, 100 - tail])
    assert found["d2.scp_1"].value == pytest.approx(gains[complete].mean())
    assert (found["d2.scp_1"].ci_low, found["d2.scp_1"].ci_high) == (pytest.approx(low), pytest.approx(high))
    assert (found["d2.best_gain"].status, found["d2.best_gain"].value) == ("too_few", None)


def test_of_one_opening_to_read_there_is_no_interval_and_no_effect() -> None:
    _, read = halves(8, 0)
    cells = {
        ("C1", p, s): {"causation": 0.3 + s, "contrast": None if p in read[1:] else 0.4}
        for p in range(8)
        for s in STRENGTHS
    }
    unsteered = tables({("unsteered", p, 0.0): {"causation": 0.3, "contrast": 0.4} for p in range(8)})
    found = by_metric(d3_measures(CellTexts(tables(cells), unsteered), ScorerPair(SCORER, NEIGHBOUR, "ld"), RULES))
    assert (found["d3.ld"].status, found["d3.ld"].n) == ("no_effect", 1)
    assert found["d3.robust_ld"].value == pytest.approx(0.5 / 0.8) and found["d3.robust_ld"].ci_low is None


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


def simulated(rng: np.random.Generator, num_openings: int, drift: float, effect: float) -> list[ResponseGrid]:
    """A direction with an effect and 20 without; all drift by chance, and share openings and unsteered texts."""
    unsteered = rng.normal(0.3, 0.15, size=(num_openings, 1)) + rng.normal(0, 0.05, size=(num_openings, 1))

    def grid(slope: float) -> ResponseGrid:
        steered = unsteered + slope * np.array(NULL_STRENGTHS) / 0.25 + rng.normal(0, 0.1, size=(num_openings, 3))
        score = np.concatenate([unsteered, steered], axis=1)
        names, ones = openings(num_openings), np.ones_like(score)
        is_first = np.isin(names, split_openings(names, 0)[0])
        return ResponseGrid(
            tuple(names), np.array([0.0, *NULL_STRENGTHS]), score, 2 * ones, 20 * ones, 0 * ones, is_first
        )

    return [grid(rng.normal(0, drift) + effect), *(grid(rng.normal(0, drift)) for _ in range(20))]


def excesses(metric: str, drift: float, effect: float, times: int) -> tuple[np.ndarray, np.ndarray]:
    """Whether the interval of the excess holds 0, and the rank among the nulls, in each simulation."""
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


@pytest.mark.parametrize("metric", ["d2.scp", "d2.scp_1", "d2.response_area", "d2.best_gain"])
def test_a_planted_effect_is_found(metric: str) -> None:
    covered, ranks = excesses(metric, 0.02, 0.4, times=10)
    if metric == "d2.scp":  # bounded by 1, which a drifting null direction reaches too
        assert ranks.mean() <= 8
        return
    assert not covered.any()
    assert set(ranks) == {1.0}
