"""The page of pretrained personas says that a figure rises only where it does."""

from recipes.personas.page import _trend


def test_a_figure_rises_only_if_each_step_does() -> None:
    assert _trend({10: 0.2, 4: 0.1}) == "+0.10000 (4), +0.20000 (10). It rises with each step of"
    assert "does not rise" in _trend({4: 0.1, 10: 0.3, 15: 0.2})
    assert "does not rise" in _trend({4: 0.1, 10: 0.1})
