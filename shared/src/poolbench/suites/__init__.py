"""Suites, and the pure functions that turn tables of steered texts into D2, D3 and ranks.

What the driver calls, per (model, layer):

    unsteered = SteeredTables(texts, scores, fluency)        # strength 0, once a model
    nulls = SteeredTables(texts, scores, fluency)            # null directions, once a concept
    steered = SteeredTables(texts, scores, fluency)          # one (concept, strategy)
    rules = SteeringRules(reference_strength=.125, null_strengths=(0, .06, .125, .25), seed=0)
    scorer = Scorer.from_gate("causation", gate_rows)        # MEASURES rows of scorer.gate
        # or Scorer("causation", status="scorer_invalid", reason="...")
        # or Scorer("causation", positive_mean=.93, negative_mean=.08)

    d2_measures(steered, unsteered, nulls, scorer=scorer, rules=rules)                  -> list[Measure]
    d3_measures(steered, unsteered, nulls, target=scorer, neighbour=other_scorer,
                relation="ld", rules=rules)                                             -> list[Measure]
    d3_rep_measure(directions, neighbour_directions, neighbour="contrast", relation="lc") -> Measure
    cosine_rows({"A1_mean": directions, "W4_hierarchical": directions}, "C3")           -> list[dict], one row per pair
    curve_rows(steered, unsteered, nulls, scorer=scorer, rules=rules)                   -> list[dict]
    published_d2(steered, unsteered, scorer=scorer, rules=rules)                        -> list[Measure]
    published_d3(steered, unsteered, target=scorer, neighbour=other_scorer, relation="ld", rules=rules)
    blank_d2(error), blank_d3("ld", error)                        # where a strategy could not be measured
    rank_board(result_rows, "d1.auroc")                                                 -> RankBoard | None
    boards_by(result_rows, "d1.auroc", lambda row: family_of[row["concept"]])           -> dict[str, RankBoard]

`SCORES` may hold the rows of many scorers; each function takes the one it is asked for. Where `steered`
holds several `direction_key` values, name one by `direction_key=`. `Measure.to_row()` gives the columns
that are known here (metric, metric_version, higher_is_better, direction, neighbour, scorer, value, ci_low,
ci_high, ci_method, n, num_groups, coverage, seed, status, reason, params as JSON) plus `details`, outcomes
such as the chosen strength that are not part of a row's identity; the driver adds model, layer, strategy,
concept and the rest. `to_rows(measures)` does so for a list. `RankBoard.rows()` are `rank.mean` rows.

Excess figures come as `<metric>.excess` (with interval), `<metric>.null_rank` (1 is above all null
directions) and `<metric>.null_p95`; a metric beats chance where its value at the null strengths
(`details["value_at_null_strengths"]`) exceeds `null_p95`.
"""

from poolbench.suites.boards import (
    FamilyRank,
    RankAgreement,
    block_agreement,
    boards_by,
    family_ranks,
    rank_agreements,
    winning_rates,
)
from poolbench.suites.concept_checks import concept_check_rows
from poolbench.suites.cosines import CosineBoard, cosine_board, cosine_rows, d3_rep_measure
from poolbench.suites.curves import curve_rows
from poolbench.suites.disentangle import blank_d3, d3_measures
from poolbench.suites.grids import SteeredTables
from poolbench.suites.layer_stability import layer_stability
from poolbench.suites.measure import Measure, to_rows
from poolbench.suites.metrics import metric_info
from poolbench.suites.published import blank_published, published_d2, published_d3
from poolbench.suites.ranking import RankBoard, rank_board
from poolbench.suites.registry import SUITES
from poolbench.suites.rules import Scorer, SteeringRules
from poolbench.suites.steering import blank_d2, d2_measures

__all__ = [
    "SUITES",
    "CosineBoard",
    "FamilyRank",
    "Measure",
    "RankAgreement",
    "RankBoard",
    "Scorer",
    "SteeredTables",
    "SteeringRules",
    "blank_d2",
    "blank_d3",
    "blank_published",
    "block_agreement",
    "boards_by",
    "concept_check_rows",
    "cosine_board",
    "cosine_rows",
    "curve_rows",
    "d2_measures",
    "d3_measures",
    "d3_rep_measure",
    "family_ranks",
    "layer_stability",
    "metric_info",
    "published_d2",
    "published_d3",
    "rank_agreements",
    "rank_board",
    "to_rows",
    "winning_rates",
]
