"""Waits that a command says, and the times that it expects."""

import pytest
from tests.waiting import wait_until

from poolbench_driver import waiting
from poolbench_driver.waiting import about, left_s, longest_s


@pytest.mark.parametrize(
    ("seconds", "said"), [(2, "about 2 s"), (119, "about 119 s"), (150, "about 2 min"), (7200, "about 2 h")]
)
def test_a_duration_is_said_in_two_digits_or_so(seconds: float, said: str) -> None:
    assert about(seconds) == said


def test_time_left_is_that_at_the_rate_so_far() -> None:
    assert left_s(6, 3, 30.0) == 60.0  # 10 s each
    assert left_s(6, 0, 0.0) is None and left_s(0, 0, 0.0) == 0
    assert longest_s([60.0, 0.0, 20.0]) == 60.0 and longest_s([60.0, None]) is None and longest_s([]) == 0


def test_a_long_wait_is_said_once_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_QUIET_S", 60.0)
    with waiting.waiting("waiting for the steerer"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(waiting, "_QUIET_S", 0.01)
    said = list[str]()
    with waiting.waiting("waiting for the steerer"):
        wait_until(lambda: said.append(capsys.readouterr().err) or "".join(said).endswith("\n"))
    assert "".join(said) + capsys.readouterr().err == "waiting for the steerer\n"
