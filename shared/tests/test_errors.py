"""Messages of errors: the nearest known names, and values that may be of any kind and size."""

import pytest

from poolbench.errors import MAX_SHOWN, UnknownStrategyError, shown, unknown_name_message


def test_an_unknown_name_is_answered_with_the_nearest_or_with_all() -> None:
    assert unknown_name_message("layer", "FRST", ["first", "noon"]) == "unknown layer 'FRST'; did you mean first?"
    assert unknown_name_message("layer", "zz", ["b", "a"]) == "unknown layer 'zz'; known: a, b"
    assert "did you mean A1_mean" in str(UnknownStrategyError("A1_meen", ["A1_mean"]))


@pytest.mark.parametrize(
    ("value", "text"),
    [("a\x1b\n", r"'a\x1b\n'"), ("\ud800", r"'\ud800'"), (10**5000, "a int"), ("x" * 999, "'" + "x" * (MAX_SHOWN - 4))],
    ids=["controls", "surrogate", "digits", "long"],
)
def test_any_value_is_shown_on_one_short_line(value: object, text: str) -> None:
    assert shown(value).removesuffix("...") == text and len(shown(value)) <= MAX_SHOWN
