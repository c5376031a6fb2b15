"""The gain of texts over others on the same openings, by hand."""

import pyarrow as pa
import pytest

from poolbench.contracts.measures import GatedScorer
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench_driver.measures.prompting import Scored, paired_gain, prompted_gain
from poolbench_driver.measures.response import SteeringRules

RULES, SCORER = SteeringRules(num_bootstrap=200), GatedScorer("contrast")


def scored(name: str, scores: list[float | None], scorer: str = "contrast") -> Scored:
    """Return one text for each opening `p0`, `p1` ... with its score."""
    ids = [f"{name}{number}" for number in range(len(scores))]
    texts = pa.table({"text_id": ids, "prompt_id": [f"p{number}" for number in range(len(scores))]})
    return texts, pa.table({"text_id": ids, "scorer": [scorer] * len(scores), "score": scores})


def test_the_gain_is_over_openings_that_have_both_scores() -> None:
    raised, base = scored("a", [0.5, 0.7, 0.9, 0.8, 0.6, None]), scored("b", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    gain = prompted_gain(raised, base, SCORER, RULES)
    assert (gain.metric, gain.n, gain.num_groups) == ("d2.prompted", 5, 5)
    assert gain.value == pytest.approx(0.4) and gain.ci_low is not None and gain.ci_high is not None
    assert gain.ci_low < 0.4 < gain.ci_high
    assert gain.details == {"score": pytest.approx(0.7), "neutral": pytest.approx(0.3)}


def test_groups_of_openings_are_resampled() -> None:
    raised, base = scored("a", [0.5, 0.7, 0.9, 0.8, 0.6]), scored("b", [0.1, 0.2, 0.3, 0.4, 0.5])
    groups = {f"p{number}": number // 2 for number in range(5)}
    assert paired_gain("gain", raised, base, SCORER, RULES, groups).num_groups == 3


def test_too_few_openings_and_an_invalid_scorer_are_errors() -> None:
    one = scored("a", [0.5]), scored("b", [0.1])
    with pytest.raises(CellError, match="only 1 openings"):
        paired_gain("gain", *one, SCORER, RULES)
    with pytest.raises(CellError, match="only 0 openings"):
        paired_gain("gain", *one, GatedScorer("causation"), RULES)
    with pytest.raises(CellError, match="AUROC"):
        paired_gain("gain", *one, GatedScorer("contrast", Status.SCORER_INVALID, "AUROC .6"), RULES)
