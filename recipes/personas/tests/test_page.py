"""The page of pretrained personas says that a figure rises only where it does."""

from recipes.personas.page import VARIANCE, beside_published, rising


def test_a_figure_rises_only_if_each_step_does() -> None:
    values = {(100, 4): 0.1, (100, 10): 0.2, (259, 4): 0.1, (259, 10): 0.3, (259, 15): 0.2, (300, 4): None}
    assert rising(values, 0) == "at 1 of 2"
    assert rising({(100, 4): 0.1, (259, 4): 0.1, (100, 10): 0.1, (259, 10): 0.2}, 1) == "at 1 of 2"


def test_published_figures_stand_beside_ours_of_the_same_words_alone() -> None:
    alone = "\n".join(beside_published(None))
    assert "| 100 | 4 | .000269 | .001282 |" in alone and "SmolLM2-135M, its words" not in alone
    row = {"value": 0.00012, "ci_low": 0.0001, "ci_high": 0.0002, "status": "ok"}
    beside = "\n".join(beside_published({"furniture-100-4": {VARIANCE: row}}))
    assert "| 100 | 4 | +0.00012 (+0.00010 to +0.00020) | .000269 | .001282 |" in beside
    assert "| 100 | 15 |" not in beside and "float16" in alone and "float16" in beside
