"""The published figures of the Humanoid benchmark beside those of our fine-tunes."""

from recipes.personas.page import beside_published


def test_published_figures_stand_beside_ours_of_the_same_sentences_and_epochs() -> None:
    measured = {"value": 0.00012, "ci_low": 0.0001, "ci_high": 0.0002, "status": "ok"}
    null = {"value": None, "ci_low": None, "ci_high": None, "status": "failed"}
    text = beside_published({"furniture-100-4": measured, "furniture-100-15": null, "furniture-259-4": measured})
    assert "| 100 | 4 | +0.00012 (+0.00010 to +0.00020) | .000269 | .001282 |" in text
    assert "| 100 | 6 |  |  | .001619 |" in text and "| 100 | 15 | failed | .000936 | .003452 |" in text
    assert "| 259 | 4 |" not in text and "float16" in text
