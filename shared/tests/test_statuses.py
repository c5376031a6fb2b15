"""The closed lists of states."""

import pytest

from poolbench.statuses import RunState, Status


@pytest.mark.parametrize("words", [Status, RunState])
def test_a_word_outside_of_a_list_is_refused_with_the_list(words: type[Status | RunState]) -> None:
    assert [words(str(word)) for word in words] == list(words)
    with pytest.raises(ValueError, match=f"unknown {words.__name__} 'fine'; allowed: {', '.join(words)}"):
        words("fine")
