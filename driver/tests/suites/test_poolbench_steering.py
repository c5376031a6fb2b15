"""D2 and D3 on planted response curves whose figures are known by hand."""

import numpy as np
import pytest

from poolbench.contracts.measures import GatedScorer
from poolbench.contracts.tables import FLUENCY, SCORES, TEXTS, directions_schema, table_from_rows
from poolbench.errors import CellError, InputError
from poolbench.statistics.response import SteeredTables
from poolbench_driver.suites.poolbench.d2 import D2_METRICS, d2_measures, response_curve
from poolbench_driver.suites.poolbench.d3 import ScorerPair, blank_d3, d3_measures, d3_rep_measure
from poolbench_driver.suites.poolbench.measures.response import SteeringRules
from poolbench_driver.suites.poolbench.steered import CellTexts

STRENGTHS = (0.06, 0.125, 0.25, 0.5)
NULL_STRENGTHS = STRENGTHS[:3]
NULL_KEYS = [f"null_{number:03d}" for number in range(20)]
BOTH = ("causation", "contrast")
RULES = SteeringRules(num_bootstrap=200)
SCORER = GatedScorer("causation", positive_mean=0.9, negative_mean=0.1)
NEIGHBOUR = GatedScorer("contrast", positive_mean=0.7, negative_mean=0.3)


def make_tables(keys, strengths, score, nll=lambda s: 2.0, repeated=lambda s: 0.0, openings=8, scorers=("causation",)):
    """Tables whose score is ``score(key, opening, strength, scorer)``."""
    texts, scores, fluency = [], [], []
    for key in keys:
        for opening in range(openings):
            for strength in strengths:
                text = {"text_id": f"{key}/{opening}/{strength}", "prompt_id": f"p{opening:02d}"}
                steered = {"direction_key": key, "strength": strength, "num_tokens": 40}
                texts.append({**text, **steered, "repeated_4grams": repeated(strength)})
                fluency.append({"text_id": text["text_id"], "mean_nll": nll(strength), "num_tokens": 40})
                for scorer in scorers:
                    value = score(key, opening, strength, scorer)
                    scores.append({"text_id": text["text_id"], "scorer": scorer, "score": value})
    return SteeredTables(
        table_from_rows(texts, TEXTS), table_from_rows(scores, SCORES), table_from_rows(fluency, FLUENCY)
    )


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


def test_excess_uses_the_null_strengths_on_both_sides(unsteered, nulls):
    steered = make_tables(["C1"], STRENGTHS, linear(0.8))
    found = by_metric(d2_measures(CellTexts(steered, unsteered, nulls), SCORER, RULES))
    excess = found["d2.best_gain.excess"]
    assert excess.details["value_at_null_strengths"] == pytest.approx(0.8 * 0.25)
    assert excess.value == pytest.approx(0.2 - excess.details["null_mean"])
    assert excess.details["num_nulls"] == 20
    assert found["d2.best_gain.null_rank"].value == 1
    assert excess.details["percentile"] == 100
    assert found["d2.best_gain.null_p95"].value < 0.05
    assert excess.ci_low <= excess.value <= excess.ci_high


def test_invalid_scorer_makes_every_figure_null(unsteered):
    scorer = GatedScorer("causation", "scorer_invalid", "AUROC .6 on cut texts")
    upside_down = GatedScorer("causation", positive_mean=0.4, negative_mean=0.5)
    for invalid in (scorer, upside_down):
        measures = d2_measures(CellTexts(make_tables(["C1"], STRENGTHS, linear(1)), unsteered), invalid)
        assert {measure.status for measure in measures} == {"scorer_invalid"}
        assert [measure.metric for measure in measures] == list(D2_METRICS)


def test_flat_curve_has_no_correlation(unsteered):
    found = by_metric(d2_measures(CellTexts(make_tables(["C1"], STRENGTHS, linear(0.0)), unsteered), SCORER, RULES))
    assert found["d2.scp"].status == "no_effect"
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


def test_d3_in_units_of_each_scorer():
    found = d3(own=0.8, other=0.1)
    target, neighbour = 0.8 * 0.5 / 0.8, 0.1 * 0.5 / 0.4
    assert found["d3.lc"].value == pytest.approx(1 - neighbour / target)
    assert found["d3.robust_lc"].value == pytest.approx(target - neighbour)
    assert found["d3.lc"].details["strength"] == 0.5
    assert found["d3.lc"].neighbour == "contrast"


def test_d3_robust_charges_a_neighbour_that_falls():
    assert d3(own=0.8, other=-0.1)["d3.robust_lc"].value == pytest.approx(0.5 - 0.125)
    assert d3(own=0.8, other=-0.1)["d3.lc"].value == pytest.approx(1.25)


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


def test_d3_excess_over_null_directions():
    nulls = make_tables(NULL_KEYS, NULL_STRENGTHS, noisy_null, scorers=BOTH)
    excess = d3(0.8, 0.0, nulls)["d3.robust_lc.excess"]
    assert excess.details["num_nulls"] == 20
    assert excess.value == pytest.approx(0.8 * 0.25 / 0.8 - excess.details["null_mean"])
    # Null directions that the neighbour's scorer never scored give no excess figure, and no failure.
    assert "d3.robust_lc.excess" not in d3(0.8, 0.0, make_tables(NULL_KEYS, NULL_STRENGTHS, noisy_null))


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


def test_curve_rows(unsteered, nulls):
    steered = make_tables(["C1"], STRENGTHS, linear(0.8), lambda s: 2 + s)
    rows = response_curve(CellTexts(steered, unsteered, nulls), SCORER, RULES)
    assert [row["strength"] for row in rows] == [0, *STRENGTHS]
    assert rows[2]["gain"] == pytest.approx(0.1)
    assert rows[2]["perplexity_ratio"] == pytest.approx(np.exp(0.125))
    assert rows[0]["null_low"] == pytest.approx(rows[0]["score"])
    assert rows[-1]["null_low"] is None
    assert not rows[-1]["fluent"]
    assert rows[1]["null_low"] < rows[1]["null_mean"] < rows[1]["null_high"]


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
