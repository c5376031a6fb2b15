"""Suites, and the pure functions that turn tables of steered texts into D2, D3 and ranks.

Tables of scores may hold the rows of many scorers; each function takes the one it is asked for. If the steered tables
hold several `direction_key` values, name one by `direction_key=`. `Measure.to_row()` gives the columns of a result row
that are known here, and `details`: outcomes, such as the chosen strength, that are not part of a row's identity. The
driver adds model, layer, strategy, concept and the rest.

Excess figures are `<metric>.excess` (with interval), `<metric>.null_rank` (1 is above all null directions) and
`<metric>.null_p95`; a metric beats chance if its value at the null strengths (`details["value_at_null_strengths"]`)
exceeds `null_p95`.
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
from poolbench.suites.confounds import excess_over_confound
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
from poolbench.suites.rules import GatedScorer, SteeringRules
from poolbench.suites.steering import blank_d2, d2_measures

__all__ = [
    "SUITES",
    "CosineBoard",
    "FamilyRank",
    "GatedScorer",
    "Measure",
    "RankAgreement",
    "RankBoard",
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
    "excess_over_confound",
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
