"""Turns of requests and tasks at what one thread at a time may use."""

import threading

import pytest

from poolbench.cancellation import Work, WorkCancelledError, between_steps, check_cancelled, working
from poolbench.worker import turns as module
from poolbench.worker.turns import Turns

PATIENCE_S = 300.0


def _request(turns: Turns, order: list[str]) -> threading.Thread:
    """Start a request, and return when it waits for its turn."""

    def ask() -> None:
        with turns.request():
            order.append("request")

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    waits = threading.Event()
    while not turns._num_requests and thread.is_alive():
        waits.wait(0.005)
    return thread


def test_a_request_waits_for_one_step_of_a_task() -> None:
    turns, order = Turns(), list[str]()
    with turns.task():
        order.append("step")
        asked = _request(turns, order)
        assert order == ["step"]
        check_cancelled()  # between two steps
        order.append("step")
    asked.join(PATIENCE_S)
    assert order == ["step", "request", "step"]


def test_a_task_waits_for_the_requests_before_it() -> None:
    turns, order = Turns(), list[str]()
    with turns.request():
        asked = _request(turns, order)

        def work() -> None:
            with turns.task():
                order.append("task")

        task = threading.Thread(target=work, daemon=True)
        task.start()
    asked.join(PATIENCE_S)
    task.join(PATIENCE_S)
    assert order == ["request", "task"]


def test_requests_do_not_stop_a_task_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    turns = Turns()
    turns._num_requests = 1  # one that never gets its turn
    with turns.task():
        check_cancelled()


def test_the_turn_is_free_after_an_error() -> None:
    turns = Turns()
    for turn in (turns.request, turns.task, turns.request):
        with pytest.raises(ValueError), turn():
            raise ValueError
    with turns.task():
        pass


def test_a_step_also_checks_the_work_around_it() -> None:
    work, steps = Work(), list[int]()
    with working(work), between_steps(lambda: steps.append(1)):
        check_cancelled()
        work.cancel("enough")
        with pytest.raises(WorkCancelledError, match="enough"):
            check_cancelled()
    assert steps == [1]
    check_cancelled()
    assert steps == [1]
