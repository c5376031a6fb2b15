"""Work that is cancelled ends at its next step, also in another thread."""

from __future__ import annotations

import threading

import pytest

from poolbench.cancellation import Work, WorkCancelledError, between_steps, check_cancelled, working


def test_work_is_cancelled_by_another_thread_and_at_the_step_of_other_work() -> None:
    work = Work()
    with working(work):
        check_cancelled()
        threading.Thread(target=work.cancel, args=("no longer wanted",)).run()
        with pytest.raises(WorkCancelledError, match="no longer wanted"):
            check_cancelled()
    check_cancelled()
    work, steps = Work(), list[int]()
    with working(work), between_steps(lambda: steps.append(1)):
        check_cancelled()
        work.cancel("enough")
        with pytest.raises(WorkCancelledError, match="enough"):
            check_cancelled()
    assert steps == [1]
    check_cancelled()
    assert steps == [1]
